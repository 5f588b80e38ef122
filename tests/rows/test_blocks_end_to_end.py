"""Blocks of datasets that one column has end to end are those of the same values in one dataset."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import H5Dataset, Patches, fields, joined, part
from ray_h5.errors import UnsupportedColumnError
from tests.properties import few

TYPE = np.dtype([("u", "i4"), ("w", ">f8"), ("q", "<i2", (2,))])


def write(file, rng, values, said):
    """Write values as one dataset, and in several of any chunks."""
    cuts = np.sort(rng.integers(0, len(values) + 1, int(rng.integers(1, 4))))
    for name, piece in [("one", values), *((f"end_{i}", piece) for i, piece in enumerate(np.split(values, cuts)))]:
        how = {}
        if piece.size and rng.random() < 0.6:
            chunk = tuple(min(n, int(rng.integers(1, 4))) for n in piece.shape)
            how = {"chunks": chunk, "compression": rng.choice([None, "gzip", "lzf"])}
        file.create_dataset(name, data=piece, **how).attrs.update(said)


def draw(rng):
    """Return values, what makes a column of them, blocks of them, and options."""
    shape = tuple(rng.integers(3, 7, int(rng.integers(1, 5))).tolist())
    values, make, said = rng.integers(0, 99, shape).astype(">i4"), str, {}
    kind = rng.choice(["numbers", "packed", "fields", "field"])
    if kind == "packed":
        said = {"scale_factor": np.float32(0.5), "add_offset": np.float32(3)}
    if kind in {"fields", "field"}:
        numbers, values = values, np.zeros(shape, TYPE)
        values["u"], values["w"], values["q"] = numbers, numbers * 0.5, numbers[..., None]
        make = (lambda of: fields(of, ["w", "u"])) if kind == "fields" else "{}/q".format
    axes = tuple(sorted(rng.choice(len(shape), int(rng.integers(1, len(shape) + 1)), replace=False).tolist()))
    block = tuple(int(rng.integers(1, shape[axis] + 1)) for axis in axes)
    how = {"per_file": 5} if rng.random() < 0.5 else {"stride": tuple(rng.integers(1, 4, len(axes)).tolist())}
    if rng.random() < 0.3:
        how, block = {**how, "pad": "zero"}, tuple(size + int(rng.integers(0, 3)) for size in block)
    return values, make, said, axes, block, how


@few(25)
@given(seed=st.integers(0, 2**32))
def test_random_blocks_equal_those_of_one_dataset(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    path, in_groups = tmp_path_factory.mktemp("blocks") / "a.h5", rng.random() < 0.3
    values, make, said, axes, block, how = draw(rng)
    with h5py.File(path, "w") as file:
        for name in ("g_0", "g_1") if in_groups else ("/",):
            write(file.require_group(name), rng, values, said)
    how = {**how, "groups": "g_*"} if in_groups else how
    ends, one = joined(make("end_*"), name="ends"), make("one")
    free = [axis for axis in range(values.ndim) if axis not in axes]
    if free and rng.random() < 0.6:
        axis = int(rng.choice(free))
        at = rng.permutation(values.shape[axis])[: int(rng.integers(1, 4))].tolist()
        one, is_within = part(one, {axis: at}), axis > 0 and rng.random() < 0.5
        ends = joined(part(make("end_*"), {axis - 1: at}), name="ends") if is_within else part(ends, {axis: at})
    found = []
    for column in (ends, one):
        name = column if isinstance(column, str) else column.name
        rows = Patches({name: block}, axes={name: axes}, **how)
        dataset = H5Dataset(path, [column], rows=rows, decode_cf=bool(said))
        every = [dataset[i][name].numpy() for i in range(len(dataset))]
        chosen = np.random.default_rng(seed).integers(0, len(every), 5).tolist() if every else []
        found.append([*every, *(dataset[chosen][name].numpy() if chosen else [])])
    assert len(found[0]) == len(found[1])
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


def test_blocks_of_datasets_that_are_packed_in_several_ways(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            file[f"x{i}"] = np.arange(8).reshape(2, 4) + 10 * i
            file[f"x{i}"].attrs["scale_factor"] = np.float32(2.0**i)
    whole = np.concatenate([(np.arange(8).reshape(2, 4) + 10 * i) * 2.0**i for i in range(3)])
    rows = H5Dataset(tmp_path, [joined("x*")], rows=Patches({"x": (3, 2)}, stride=(1, 1)), decode_cf=True)
    for i, row in enumerate(rows):
        at, of = divmod(i, 3)
        np.testing.assert_array_equal(row["x"], whole[at : at + 3, of : of + 2])


def test_parts_of_the_axis_that_fields_add(tmp_path):
    values = np.zeros((5, 3), TYPE)
    values["u"], values["w"] = np.arange(15).reshape(5, 3), np.arange(15).reshape(5, 3) * 0.5
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x0"], file["x1"] = values[:2], values[2:]
    both = np.stack([values["w"], values["u"]], -1)
    columns = {
        "whole": (joined(fields("x*", ["w", "u"]), name="x"), both),
        "inner": (joined(part(fields("x*", ["w", "u"]), {1: [1]}), name="x"), both[..., [1]]),
        "outer": (part(joined(fields("x*", ["w", "u"]), name="x"), {2: [1]}), both[..., [1]]),
        "twice": (part(joined(part(fields("x*", ["w", "u"]), {1: [1, 0]}), name="x"), {2: [0]}), both[..., [1]]),
    }
    for column, expected in columns.values():
        rows = H5Dataset(tmp_path, [column], rows=Patches({"x": (3, 2)}, stride=(1, 1)))
        assert len(rows) == 6
        for i, row in enumerate(rows):
            at, of = divmod(i, 2)
            np.testing.assert_array_equal(row["x"], expected[at : at + 3, of : of + 2])


def test_parts_along_an_axis_that_blocks_cut(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x0"], file["x1"] = np.zeros((2, 3, 4)), np.zeros((2, 3, 4))
    rows = Patches({"x": (2, 2)}, axes={"x": (0, 1)}, stride=(1, 1))
    says = r"blocks cut (the axes \[0, 1\]; .* takes parts of axis 1|axis 1 of its array, of which part)"
    for column in (joined(part("x*", {0: [0, 2]})), part(joined("x*"), {1: [0, 2]})):
        with pytest.raises(UnsupportedColumnError, match=says):
            H5Dataset(tmp_path, [column], rows=rows)
