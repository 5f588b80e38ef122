"""The oracle: whatever the file and the rows, RowReader delivers what h5py delivers."""

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.errors import CastError
from ray_h5.read.casting import lost
from tests.hdf5.h5kit import assert_same, by_h5py
from tests.kit.files import save
from tests.properties import few

ENUM = h5py.enum_dtype({"low": 0, "mid": 1, "high": 2}, basetype="u1")
NUMBERS = [
    "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i2", ">i4", ">u8",
    "f2", "f4", "f8", ">f2", ">f4", ">f8", "c8", "c16", ">c8", "?", ENUM,
]  # fmt: skip
STRINGS = ["S1", "S5", h5py.string_dtype("utf-8", 6), h5py.string_dtype(), h5py.string_dtype("ascii")]
COLOURS = h5py.enum_dtype({"red": 1, "blue": 2}, basetype=">i2")
PLAIN = [  # whose bytes numpy holds as they are
    "V5", h5py.opaque_dtype(np.dtype("M8[s]")), h5py.opaque_dtype(np.dtype("m8[ms]")),
    np.dtype([("a", "<f4"), ("b", "<i8"), ("c", "S5")]),
    np.dtype([("a", ">f4"), ("b", "<u2"), ("c", COLOURS), ("d", h5py.string_dtype("utf-8", 3))]),
    np.dtype([("a", [("x", ">i4"), ("y", "<c8")]), ("b", "<f4", (2, 3)), ("t", h5py.opaque_dtype(np.dtype("M8[D]")))]),
]  # fmt: skip
PIPELINES: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"compression": "gzip", "compression_opts": 1},
    {"compression": "gzip", "compression_opts": 4, "shuffle": True},
    {"compression": "lzf"},
    {"compression": "lzf", "shuffle": True},
    {"shuffle": True},
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
    {"scaleoffset": 0},  # one that h5py undoes
]
WORDS = [b"", b"a", b"no", "né".encode(), "日本語".encode(), b"long " * 20]


@dataclass(frozen=True)
class Case:
    dtype: Any
    shape: tuple[int, ...]
    written: tuple[int, ...]
    storage: dict[str, Any]
    libver: str
    few_values: bool
    fill: bool
    seed: int

    def write(self, path: str) -> None:
        with h5py.File(path, "w", libver=self.libver) as file:
            fill = {"fillvalue": _values(self.dtype, (1,), self.seed + 1, False)[0]} if self.fill else {}
            dataset = file.create_dataset("x", self.shape, self.dtype, **self.storage, **fill)
            if all(self.written):
                values = _values(self.dtype, self.written, self.seed, self.few_values)
                dataset[tuple(slice(n) for n in self.written)] = values


def _values(dtype: Any, shape: tuple[int, ...], seed: int, few_values: bool) -> np.ndarray:
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype.kind == "O":
        return np.array([WORDS[i] for i in rng.integers(0, len(WORDS), count)], object).reshape(shape)
    if dtype.kind == "b" or h5py.check_enum_dtype(dtype):
        return rng.integers(0, 2 if dtype.kind == "b" else 3, count).astype(dtype).reshape(shape)
    # Random bytes: NaNs with payloads, infinities, negative zeros, and nothing a compressor could save.
    stored = rng.integers(0, 3 if few_values else 256, count * dtype.itemsize, dtype=np.uint8)
    return stored.view(dtype).reshape(shape)


@st.composite
def _storages(draw, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    if draw(st.integers(0, 5)) == 0:
        return {}  # contiguous
    chunks = tuple(max(draw(st.sampled_from([1, -(-n // 2), -(-n // 3), n, n + 1, n + 3])), 1) for n in shape)
    # Which axes may grow, and how far, decides the kind of the chunk index.
    maxshape = tuple(
        None if c > n else draw(st.sampled_from([n, n, n + 4, None])) for n, c in zip(shape, chunks, strict=True)
    )
    pipeline = dict(draw(st.sampled_from(PIPELINES)))
    if np.dtype(dtype).kind == "O":
        pipeline.pop("fletcher32", None)  # HDF5 refuses checksums of pointers
    if np.dtype(dtype).kind not in "iu" or h5py.check_enum_dtype(np.dtype(dtype)):
        pipeline.pop("scaleoffset", None)  # of floats it keeps a few digits only
    return {"chunks": chunks, "maxshape": maxshape, **pipeline}


@st.composite
def cases(draw, dtypes: list[Any]) -> Case:
    shape = (draw(st.integers(0, 40)), *draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 1, 2, 3, 5, 0]), max_size=3)))
    dtype = draw(st.sampled_from(dtypes))
    return Case(
        dtype=dtype,
        shape=shape,
        written=draw(st.one_of(st.just(shape), st.just(shape), st.tuples(*[st.integers(0, n) for n in shape]))),
        storage=draw(_storages(shape, dtype)),
        libver=draw(st.sampled_from(["earliest", "latest"])),
        few_values=draw(st.booleans()),
        # h5py itself cannot read strings that were not written where the fill value is one of any length,
        # nor set one that is a time.
        fill=np.dtype(dtype).kind not in "OMm" and draw(st.booleans()),
        seed=draw(st.integers(0, 2**32)),
    )


@st.composite
def row_lists(draw, num_rows: int) -> list[int]:
    if not num_rows:
        return []
    order = draw(st.sampled_from(["few", "sorted", "unsorted", "all, shuffled", "a run"]))
    if order == "few":
        return draw(st.lists(st.integers(0, num_rows - 1), max_size=6))
    # A seed is drawn much faster than a long list.
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if order == "all, shuffled":
        return rng.permutation(num_rows).tolist()
    if order == "a run":
        start, stop = sorted(rng.integers(0, num_rows + 1, 2).tolist())
        return list(range(start, stop))
    rows = rng.integers(0, num_rows, rng.integers(2 * num_rows)).tolist()
    return sorted(rows) if order == "sorted" else rows


@st.composite
def row_choices(draw, num_rows: int) -> Any:
    kind = draw(st.sampled_from(["slice", "list", "array", "mask"]))
    if kind == "slice":
        return draw(st.slices(num_rows))
    if kind == "mask":
        return np.random.default_rng(draw(st.integers(0, 2**32))).random(num_rows) < 0.5
    rows = draw(row_lists(num_rows))
    return rows if kind == "list" else np.array(rows, draw(st.sampled_from(["i8", "i4", "u2"])))


@given(data=st.data(), case=cases(NUMBERS + STRINGS + PLAIN), threads=st.integers(1, 3))
def test_read_equals_h5py(data, case, threads):
    rows = data.draw(row_choices(case.shape[0]), label="rows")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.h5")
        case.write(path)
        with RowReader(path, threads=threads) as reader:
            found = reader.read(["x"], rows)["x"]
        expected = by_h5py(path, "x", np.asarray(rows, np.int64) if isinstance(rows, list) else rows)
    assert_same(found, expected)


# Pairs for which astype is defined for every value that is made here.
CASTS = [
    ("f4", "f8"), ("f4", "f2"), (">f4", "f4"), (">f4", ">f8"), ("f2", "f4"), ("f8", "f4"), ("c8", "c16"),
    ("i8", "i1"), ("i2", "f2"), (">i2", "i4"), ("u1", "u8"), ("u4", "f4"), ("?", "i4"), ("?", "f4"),
    (ENUM, "i8"), ("i4", "?"), ("f4", "f4"), ("S5", "S9"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@few(12)
@given(data=st.data(), cast=st.sampled_from(CASTS), threads=st.integers(1, 3))
def test_read_into_places_and_casts(data, cast, threads):
    stored, wanted = cast
    case = data.draw(cases([stored]), label="case")
    rows = np.array(data.draw(row_lists(case.shape[0]), label="rows"), np.int64)
    spare = data.draw(st.integers(0, 5), label="spare")
    places = np.random.default_rng(case.seed).permutation(len(rows) + spare)[: len(rows)]
    before = _values(wanted, (len(rows) + spare, *case.shape[1:]), case.seed + 2, False)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.h5")
        case.write(path)
        out = before.copy()
        with RowReader(path, threads=threads) as reader:
            reader.read_into({"x": out}, rows, places, casting="unsafe")
            values = by_h5py(path, "x", rows)
            checked = before.copy()
            numbers = {values.dtype.kind, np.dtype(wanted).kind} <= set("biufc")
            if numbers and lost(values, np.dtype(wanted)).any():
                with pytest.raises(CastError):
                    reader.read_into({"x": checked}, rows, places)
            else:
                reader.read_into({"x": checked}, rows, places)
                np.testing.assert_array_equal(checked, out, strict=True)
        expected = before.copy()
        expected[places] = values.astype(wanted)
    np.testing.assert_array_equal(out, expected, strict=True)
    untouched = np.setdiff1d(np.arange(len(out)), places)
    assert out[untouched].tobytes() == before[untouched].tobytes()


@pytest.mark.parametrize("order", ["C", "F", "every second row"])
@pytest.mark.parametrize(
    "storage",
    [{}, {"chunks": (4, 3, 2)}, {"chunks": (4, 3, 2), "compression": "gzip"}, {"chunks": (4, 3, 2), "scaleoffset": 0}],
)
def test_read_into_any_memory_order(tmp_path, order, storage):
    values = np.arange(10 * 3 * 2, dtype="i4").reshape(10, 3, 2)
    save(tmp_path / "a.h5", {"x": values}, **storage)
    out = np.zeros((20, 3, 2), "i4")[::2] if order == "every second row" else np.zeros((10, 3, 2), "i4", order)
    RowReader(tmp_path / "a.h5").read_into({"x": out}, np.arange(10))
    np.testing.assert_array_equal(out, values)


def test_several_columns_come_in_the_order_asked_for(tmp_path):
    save(tmp_path / "a.h5", {name: np.arange(5) + 10 * i for i, name in enumerate(["c", "a", "b"])})
    found = RowReader(tmp_path / "a.h5").read(["b", "c", "a"], [4, 0])
    assert {name: values.tolist() for name, values in found.items()} == {"b": [24, 20], "c": [4, 0], "a": [14, 10]}
    assert list(found) == ["b", "c", "a"]


@pytest.mark.parametrize("chunk_rows", [None, 512, 70_000, 80_000])
@pytest.mark.parametrize(
    "rows",
    [slice(None, None, -1), np.repeat(5, 70_000), np.arange(80_000) % 70_001],
    ids=["reversed", "one row", "any"],
)
def test_more_rows_than_are_planned_together(tmp_path, chunk_rows, rows):
    chunks = {} if chunk_rows is None else {"chunks": (chunk_rows,), "compression": "lzf"}
    path = save(tmp_path / "a.h5", {"x": np.arange(80_000)}, **chunks)
    assert_same(RowReader(path).read(["x"], rows)["x"], by_h5py(path, "x", rows))
    out = np.empty(len(np.arange(80_000)[rows]), "f8")
    RowReader(path).read_into({"x": out}, rows)
    np.testing.assert_array_equal(out, by_h5py(path, "x", rows))


def test_rows_that_fill_more_than_one_fetch(tmp_path):
    # Fetches are cut at a mebibyte; rows before, on and after the cuts must be the right ones.
    values = np.arange(3_000_000, dtype="i4").reshape(1000, 3000)
    rows = np.random.default_rng(0).permutation(1000)
    for name, storage in {"plain": {}, "rows": {"chunks": (7, 3000)}, "split": {"chunks": (30, 1100)}}.items():
        save(tmp_path / f"{name}.h5", {"x": values}, **storage)
        reader = RowReader(tmp_path / f"{name}.h5", threads=2)
        np.testing.assert_array_equal(reader.read(["x"])["x"], values)
        np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
        np.testing.assert_array_equal(reader.read(["x"], slice(None, None, -3))["x"], values[::-3])
