"""Random offsets, positions, codes and attributes: what is read is right, or a named error. Nothing else."""

import contextlib
import itertools

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import H5Dataset, RayH5Error, csr, ragged
from tests.properties import few

INTEGERS = st.sampled_from([np.int8, np.int32, np.int64, np.uint8, np.uint64])
SMALL = st.integers(-2, 12)
WILD = st.one_of(SMALL, st.sampled_from([1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 62)]))


def integers(draw, count, values=WILD):
    dtype = np.dtype(draw(INTEGERS))
    found = np.array(draw(st.lists(values, min_size=count, max_size=count)), object)
    info = np.iinfo(dtype)
    return np.array([min(max(int(each), int(info.min)), int(info.max)) for each in found], dtype)


@few(12)
@given(data=st.data())
def test_random_offsets(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "a.h5"
    content = np.arange(10.0)
    count = data.draw(st.integers(0, 5))
    offsets = integers(data.draw, count + 1)
    if data.draw(st.booleans()):
        offsets.sort()
    starts, counts = integers(data.draw, count), integers(data.draw, count)
    with h5py.File(path, "w") as file:
        file["x"], file["offsets"], file["s"], file["n"] = content, offsets, starts, counts
    bounds = {
        "offsets": [(int(a), int(b)) for a, b in itertools.pairwise(offsets)],
        "starts": [(int(a), int(a) + int(n)) for a, n in zip(starts, counts, strict=True)],
    }
    columns = {"offsets": ragged("x", offsets="offsets"), "starts": ragged("x", starts="s", counts="n")}
    for way, column in columns.items():
        # Where a row without values begins does not matter.
        is_right = all(0 <= a <= b <= len(content) or (way == "starts" and a == b) for a, b in bounds[way])
        if way == "offsets":
            is_right &= (int(offsets[0]), int(offsets[-1])) == (0, len(content))  # values that are left out are refused
        if not is_right:
            with pytest.raises(RayH5Error, match="a\\.h5"):
                H5Dataset(path, [column])[:]
        elif count:
            found = H5Dataset(path, [column])[:]["x"]
            assert [each.tolist() for each in found] == [content[a:b].tolist() if a < b else [] for a, b in bounds[way]]


@few(12)
@given(data=st.data())
def test_random_matrices(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "a.h5"
    rows, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    entries = data.draw(st.integers(0, 8))
    indptr = np.sort(integers(data.draw, rows + 1, st.integers(0, entries)))
    if data.draw(st.booleans()):
        indptr[0], indptr[-1] = 0, entries
    indices = integers(data.draw, entries, st.integers(-1, width) if data.draw(st.booleans()) else WILD)
    values = np.arange(1.0, entries + 1)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": (rows, width)})
        group["indptr"], group["indices"], group["data"] = indptr, indices, values
    is_right = int(indptr[0]) == 0 and int(indptr[-1]) <= entries and np.all(np.diff(indptr.astype(object)) >= 0)
    used = indices[: int(indptr[-1])].astype(object) if is_right else []
    is_right = is_right and all(0 <= each < width for each in used)
    for is_dense in (True, False):
        columns = [csr("X", dense=is_dense)]
        if not is_right:
            with pytest.raises(RayH5Error, match=r"a\.h5.*X"):
                H5Dataset(path, columns)[:]
            continue
        found = H5Dataset(path, columns)[:]["X"].to_dense().numpy()
        end = int(indptr[-1])
        parts = values[:end], indices[:end].astype(np.int64), indptr.astype(np.int64)
        np.testing.assert_array_equal(found, sp.csr_matrix(parts, (rows, width)).toarray())


@few(12)
@given(data=st.data())
def test_random_codes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "a.h5"
    count = data.draw(st.integers(1, 6))
    codes = integers(data.draw, count, st.integers(-2, 4) if data.draw(st.booleans()) else WILD)
    names = data.draw(st.lists(st.sampled_from("abcdef"), max_size=4, unique=True))
    with h5py.File(path, "w") as file:
        group = file.create_group("type")
        group.attrs.update({"encoding-type": "categorical", "ordered": False})
        group["codes"] = codes
        group.create_dataset("categories", data=np.array(names, object), dtype=h5py.string_dtype())
    if all(-1 <= int(code) < len(names) for code in codes):
        assert H5Dataset(path, ["type"])[:]["type"] == [None if code < 0 else names[code] for code in codes.astype(int)]
    else:
        with pytest.raises(RayH5Error, match="stands for nothing"):
            H5Dataset(path, ["type"])[:]


_TEXTS = [
    "csr_matrix",
    "csc_matrix",
    "categorical",
    "nullable-integer",
    "dataframe",
    "awkward-array",
    "dict",
    "",
    "é\0",
]
_VALUES = st.one_of(
    st.sampled_from(_TEXTS), st.integers(-3, 9), st.lists(st.integers(-3, 9), max_size=3), st.just(float("nan"))
)


@few(12)
@given(data=st.data())
def test_random_attributes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "a.h5ad"
    attributes = data.draw(st.dictionaries(st.sampled_from(["encoding-type", "shape", "form", "_index"]), _VALUES))
    names = data.draw(st.sets(st.sampled_from(["data", "indices", "indptr", "shape", "codes", "categories", "values"])))
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = data.draw(st.sampled_from(["anndata", "dict", "MuData"]))
        group = file.create_group("X")
        for name in names:
            group[name] = data.draw(
                st.sampled_from([np.arange(3), np.zeros(3), np.array([b"a"] * 3), np.zeros((3, 2))])
            )
        for name, value in attributes.items():
            try:
                group.attrs[name] = value
            except (TypeError, ValueError):  # h5py cannot write it
                continue
        file["obs/depth"] = np.arange(3)
    for columns in (["X"], None, [csr("X")], ["obs/depth"]):
        with contextlib.suppress(RayH5Error):
            H5Dataset(path, columns)[:]
