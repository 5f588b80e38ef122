"""Casts while columns are read: a value that is lost is an error, unless casting="unsafe"."""

import pickle

import h5py
import numpy as np
import pytest

from ray_h5 import Grid, RowReader, Windows
from ray_h5.errors import CastError, OptionError
from ray_h5.read.casting import lost
from tests.kit.files import save

BIG = 2**53 + 1

LOST = {
    "too large": ([1, 2, 300], "i4", "i1", 300, "int8 holds -128 to 127"),
    "negative": ([1, 2, -1], "i4", "u4", -1, "uint32 holds 0 to 4294967295"),
    "negative, of the same size": ([1, -1], "i8", "u8", -1, "uint64 holds 0"),
    "too large for int64": ([1, 2**63], "u8", "i8", 2**63, "int64 holds"),
    "NaN": ([1.0, np.nan], "f4", "i8", "nan", "int64 holds whole numbers"),
    "infinity": ([1.0, np.inf], "f4", "i4", "inf", "int32 holds whole numbers"),
    "a fraction": ([1.0, 1.5], "f8", "i4", 1.5, "int32 holds whole numbers"),
    "a float that is too large": ([1.0, 2.0**63], "f8", "i8", 2.0**63, "int64 holds -9223372036854775808 to"),
    "a float that is too small": ([1.0, -129.0], "f4", "i1", -129.0, "int8 holds -128 to 127"),
    "infinite in float32": ([1.0, 1e300], "f8", "f4", 1e300, "the largest value of float32"),
    "infinite in float16": ([1.0, -70000.0], "f4", "f2", -70000.0, "the largest value of float16 is 65504"),
    "an integer, infinite in float16": ([1, 70000], "i4", "f2", 70000, "the largest value of float16 is 65504"),
    "an integer that float64 rounds": ([1, BIG], "i8", "f8", BIG, "exactly only up to 9007199254740992"),
    "the largest int64 in float64": ([1, 2**63 - 1], "i8", "f8", 2**63 - 1, "exactly only up to"),
    "NaN as a boolean": ([1, np.nan], "f4", "?", "nan", "neither true nor false"),
    "an imaginary part": ([1, 1 + 2j], "c16", "f8", "(1+2j)", "it has an imaginary part"),
    "infinite in complex64": ([1, 1e300j], "c16", "c8", "1e+300j", "the largest value of complex64"),
    "big-endian": ([1, 300], ">i2", "u1", 300, "uint8 holds 0 to 255"),
}


def read_as(path, dtype, rows=slice(None), places=None, **options):
    with RowReader(path) as reader:
        layout = reader.column("x")
        count = layout.num_rows if isinstance(rows, slice) else len(rows)
        out = {"x": np.zeros((count, *layout.row_shape), dtype)}
        reader.read_into(out, rows, places, **options)
    return out["x"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Casting complex")
@pytest.mark.parametrize(("values", "stored", "wanted", "value", "why"), LOST.values(), ids=LOST)
@pytest.mark.parametrize("options", [{}, {"chunks": (1,), "compression": "gzip"}], ids=["plain", "chunks"])
def test_a_value_that_is_lost_is_an_error(values, stored, wanted, value, why, options, tmp_path):
    values = np.array(values, stored)
    path = save(tmp_path / "a.h5", {"x": values}, **options)
    with pytest.raises(CastError) as caught:
        read_as(path, wanted)
    said = str(caught.value)
    assert f"{path}: column 'x', row {len(values) - 1}: the value {value} cannot be cast to {np.dtype(wanted)}" in said
    assert why in said
    assert 'casting="unsafe"' in said
    assert str(pickle.loads(pickle.dumps(caught.value))) == said
    np.testing.assert_array_equal(read_as(path, wanted, casting="unsafe"), values.astype(wanted))


LAYOUTS = {
    "contiguous": {},
    "chunks": {"chunks": (3, 2)},
    "compressed": {"chunks": (4, 3), "compression": "gzip", "shuffle": True},
    "split rows": {"chunks": (4, 1), "compression": "gzip"},
    "by h5py": {"chunks": (4, 3), "scaleoffset": 0},
}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_rows_that_are_not_read_may_hold_anything(options, tmp_path):
    values = np.arange(30, dtype="i4").reshape(10, 3)
    values[7, 1] = 1000
    path = save(tmp_path / "a.h5", {"x": values}, **options)
    for rows in ([0, 1, 2, 3, 4, 5, 6, 8, 9], [9, 8, 3, 3], slice(0, 7), slice(8, 10)):
        np.testing.assert_array_equal(read_as(path, "i1", np.arange(10)[rows]), values[rows])
    for rows in ([9, 7, 0], [7], slice(5, 9), slice(None), [7, 7]):
        with pytest.raises(CastError, match="row 7: the value 1000 cannot be cast to int8"):
            read_as(path, "i1", np.arange(10)[rows])
    with pytest.raises(CastError, match="row 7: the value 1000"):
        read_as(path, "i1", [9, 7], [1, 0])


def test_a_fill_value_may_be_lost_too(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        column = file.create_dataset("x", (8, 2), "i4", chunks=(2, 2), fillvalue=300, compression="gzip")
        column[:4] = 1
        file.create_dataset("never", (8, 2), "i4", fillvalue=300)
    np.testing.assert_array_equal(read_as(path, "i1", [0, 3]), 1)
    with pytest.raises(CastError, match="row 5: the value 300"):
        read_as(path, "i1", [0, 5])
    with RowReader(path) as reader, pytest.raises(CastError, match="column 'never', row 2: the value 300"):
        reader.read_into({"never": np.zeros((2, 2), "i1")}, [2, 3])


INNER = [("text", "S4"), ("n", "i4")]
COMPOUND = np.zeros((6, 4), [("a", "i4"), ("b", ">f8"), ("inner", INNER), ("many", "i2", (2, 3)), ("t", "S6")])
COMPOUND["a"], COMPOUND["b"], COMPOUND["many"] = np.arange(24).reshape(6, 4), 0.5, np.arange(6).reshape(2, 3)
COMPOUND["inner"]["text"], COMPOUND["t"] = b"xy", b"a\0bc"
COMPOUND[4, 1] = (300, -1.5, (b"long", 70000), np.full((2, 3), 9), b"longer")


def by_name(values, dtype):
    """Values with each field cast by its name, as h5py and unlike numpy."""
    if dtype.names is None:
        return np.char.decode(values, "utf-8") if dtype.kind == "U" else values.astype(dtype.base)
    made = np.zeros(values.shape, dtype)
    for name in dtype.names:
        made[name] = by_name(values[name], dtype[name])
    return made


@pytest.fixture(scope="module")
def compound_path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("compound") / "a.h5")
    with h5py.File(path, "w") as file:
        file["plain"] = COMPOUND
        file.create_dataset("chunks", data=COMPOUND, chunks=(4, 3), compression="gzip")
        layout = h5py.VirtualLayout(COMPOUND.shape, file["plain"].dtype)
        layout[:] = h5py.VirtualSource(file["plain"])
        file.create_virtual_dataset("virtual", layout)
    return path


@pytest.mark.parametrize("column", ["plain", "chunks", "virtual"])
@pytest.mark.parametrize("kind", ["axis", "grid", "windows"])
@pytest.mark.parametrize(
    ("dtype", "field"),
    [
        ([("inner", [("n", "f4"), ("text", "S9")]), ("t", "U7"), ("a", "i2")], None),
        ([("b", "f4"), ("many", "f8", (2, 3))], None),
        ([("t", "O"), ("a", "O")], None),
        ([("b", "f8"), ("a", "i1")], "a"),
        ([("inner", [("n", "u2")])], "inner/n"),
        ([("inner", [("text", "S3")]), ("a", "i4")], "inner/text"),
        ([("many", "i2", (2, 3)), ("t", "U5")], "t"),
    ],
)
def test_fields_are_cast_by_name_and_checked(column, kind, dtype, field, compound_path):
    options, values = {}, COMPOUND
    if kind == "grid":
        options, values = {"rows": Grid(2)}, COMPOUND.reshape(24)
    elif kind == "windows":
        options = {"windows": Windows({column: [0, 1]}, pad="drop")}
        values = np.stack([COMPOUND[:-1], COMPOUND[1:]], axis=1)
    rows = np.random.default_rng(0).permutation(len(values))
    with RowReader(compound_path, **options) as reader:
        out = np.zeros(values.shape, dtype)
        if field is not None:
            with pytest.raises(CastError, match=rf"column '{column}', row \d+, field '{field}': the value") as caught:
                reader.read_into({column: out}, rows)
            row = int(str(caught.value).split(", row ")[1].split(",")[0])
            assert (values["a"][row] == 300).any()
            rows = np.flatnonzero((values["a"] != 300).reshape(len(values), -1).all(axis=1))
        reader.read_into({column: out}, rows)
        assert repr(out[: len(rows)].tolist()) == repr(by_name(values[rows], out.dtype).tolist())


@pytest.mark.parametrize("casting", ["checked", "unsafe"])
def test_dtypes_that_hold_no_value_of_a_column_are_refused(casting, compound_path, tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["number"], file["text"], file["bytes"] = [1], np.array([b"alpha"]), np.array([b"ab"], "V2")
        file.create_dataset("any", data=["beta\u00e9"], dtype=h5py.string_dtype())
    refused = [
        ("number", [("a", "i8")]),
        ("text", "i4"),
        ("any", "f8"),
        ("bytes", "V4"),
        ("bytes", "S2"),
        ("number", "M8"),
    ]
    refused += [("number", "S9")] if casting == "checked" else []
    for name, dtype in refused:
        with RowReader(path) as reader, pytest.raises(CastError, match=f"column '{name}'"):
            reader.read_into({name: np.zeros(1, dtype)}, [0], casting=casting)
    latin = save(tmp_path / "b.h5", {"latin": np.array([b"caf\xe9"])})
    with RowReader(latin) as reader, pytest.raises(CastError, match=r"UTF-8\. Choose a dtype that holds it") as raised:
        reader.read_into({"latin": np.zeros(1, "U9")}, [0], casting=casting)
    assert ("unsafe" in str(raised.value)) == (casting == "checked")
    for dtype in ("f8", [("z", "i4")], [("a", "i4", (2,))], [("inner", "i4")], [("t", [("x", "i1")])]):
        out = {"plain": np.zeros((6, 4), dtype)}
        with RowReader(compound_path) as reader, pytest.raises(CastError, match="column 'plain': expected"):
            reader.read_into(out, slice(None), casting=casting)
    with RowReader(path) as reader:
        for name, dtype, value in (
            ("any", "U5", "beta\u00e9"),
            ("any", "S6", "beta\u00e9".encode()),
            ("text", "U5", "alpha"),
        ):
            out = np.zeros(1, dtype)
            reader.read_into({name: out}, [0], casting=casting)
            assert out[0] == value
            short = np.zeros(1, f"{dtype[0]}3")
            if casting == "checked":
                with pytest.raises(
                    CastError, match=f"column '{name}', row 0: the value .* at most 3 (bytes|characters)"
                ):
                    reader.read_into({name: short}, [0])
            else:
                reader.read_into({name: short}, [0], casting=casting)
                assert short[0] == value[:3]


def test_each_column_has_its_own_casting(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.array([300]), "y": np.array([400])})
    with RowReader(path, threads=2) as reader:
        out = {"x": np.zeros(1, "i1"), "y": np.zeros(1, "i1")}
        with pytest.raises(CastError, match="column 'y'"):
            reader.read_into(out, [0], casting={"x": "unsafe"})
        reader.read_into(out, [0], casting={"x": "unsafe", "y": "unsafe"})
        assert (out["x"][0], out["y"][0]) == (44, np.int64(400).astype("i1"))
        with pytest.raises(OptionError, match="casting='safe': expected 'checked'"):
            reader.read_into(out, [0], casting="safe")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("wanted", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("stored", ["i1", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_each_pair_of_dtypes_agrees_with_python(stored, wanted):
    stored, wanted = np.dtype(stored), np.dtype(wanted)
    edges = [0, 1, -1, 1.5, np.nan, np.inf, -np.inf, 1e300, 65504, 65520, 70000, 2048, 2049, 2**24 + 1, BIG]
    edges += [side * 2**bits + d for bits in (7, 8, 15, 16, 31, 32, 63, 64) for side in (1, -1) for d in (-1, 0, 1)]
    info = np.iinfo(stored) if stored.kind in "iu" else None
    fit = [v for v in edges if info is None or (v == v and abs(v) < 1e20 and v == int(v) and info.min <= v <= info.max)]
    values = np.array([stored.type(v) for v in fit], stored)

    def is_lost(value):
        exact = value.item()
        if wanted.kind in "iu":
            limits = np.iinfo(wanted)
            return not (np.isfinite(exact) and exact == int(exact) and limits.min <= int(exact) <= limits.max)
        cast = wanted.type(value).item()
        return np.isinf(cast) and np.isfinite(exact) if stored.kind == "f" else cast != exact

    assert lost(values, wanted).tolist() == [bool(is_lost(value)) for value in values]
