import h5py
import numpy as np
import pyarrow as pa
import pytest
from ray.data.expressions import col
from ray.data.extensions import ArrowTensorTypeV2

import ray_h5
from ray_h5.errors import CastError, OptionError, UnsupportedColumnError
from ray_h5.torch_data import H5Dataset
from tests.kit.files import save

pytestmark = pytest.mark.usefixtures("ray_local")

COMPOUND = np.dtype(
    [("a", ">i4"), ("b", "f8"), ("s", "S3"), ("v", "f4", (2, 2)), ("in", [("q", "i2"), ("ok", "?")]), ("z", "c8")]
)


@pytest.fixture
def typed(tmp_path):
    path = str(tmp_path / "typed.h5")
    rng = np.random.default_rng(0)
    compound = np.zeros(5, COMPOUND)
    for i, value in enumerate(compound):
        value["a"], value["b"], value["s"], value["v"] = i, i / 2, b"xyz"[: i % 4], i
        value["in"], value["z"] = (-i, i % 2 == 0), i + 2j
    with h5py.File(path, "w") as file:
        file["compound"] = compound
        file["opaque"] = np.array([b"abcd", b"\0\1\2\3", b"a\0b\0", b"1234", b"5678"], dtype="V4")
        times = np.arange(5).astype("M8[us]")
        file["time"] = times.astype(h5py.opaque_dtype(times.dtype))
        spans = np.arange(5).astype("m8[ms]")
        file["span"] = spans.astype(h5py.opaque_dtype(spans.dtype))
        lists = file.create_dataset("lists", (5,), h5py.vlen_dtype("f4"))
        for i in range(5):
            lists[i] = np.arange(i)
        file.create_dataset("array", (5,), np.dtype(("i2", (2, 3))))[...] = rng.integers(0, 99, (5, 2, 3))
        file["enum"] = np.array([0, 1, 2, 1, 0], dtype=h5py.enum_dtype({"no": 0, "yes": 1, "maybe": 2}, "i1"))
        file["half"] = rng.standard_normal((5, 3)).astype("f2")
        file["wave"] = (rng.standard_normal((5, 3)) + 1j).astype(">c16")
        named = np.dtype([("name", h5py.string_dtype()), ("n", "i4")])
        file.create_dataset("named", (5,), named)[...] = np.array([(f"p{i}", i) for i in range(5)], named)
        file["reference"] = np.array([file["enum"].ref] * 5, dtype=h5py.ref_dtype)
        file.create_dataset("swapped", (5,), h5py.vlen_dtype(">f4"))
        file["strings"] = np.array([[b"a", b"b"]] * 5)
    return path


def test_every_type_has_its_arrow_type(typed):
    schema = ray_h5.read_h5(typed).schema().base_schema
    assert {field.name: field.type for field in schema} == {
        "array": ArrowTensorTypeV2((2, 3), pa.int16()),
        "compound": pa.struct(
            [
                ("a", pa.int32()),
                ("b", pa.float64()),
                ("s", pa.string()),
                ("v", pa.list_(pa.list_(pa.float32(), 2), 2)),
                ("in", pa.struct([("q", pa.int16()), ("ok", pa.bool_())])),
                ("z", pa.list_(pa.float32(), 2)),
            ]
        ),
        "enum": pa.int8(),
        "half": ArrowTensorTypeV2((3,), pa.float16()),
        "lists": pa.large_list(pa.float32()),
        "named": pa.struct([("name", pa.string()), ("n", pa.int32())]),
        "opaque": pa.binary(4),
        "reference": ArrowTensorTypeV2((5,), pa.int8()),
        "span": pa.duration("ms"),
        "strings": pa.list_(pa.string(), 2),
        "time": pa.timestamp("us"),
        "wave": ArrowTensorTypeV2((3, 2), pa.float64()),
    }


def test_every_value_is_h5pys(typed):
    with h5py.File(typed) as file:
        table = pa.concat_tables(ray_h5.read_h5(typed).iter_batches(batch_size=None, batch_format="pyarrow"))
        assert table["compound"][3].as_py() == {
            "a": 3, "b": 1.5, "s": "xyz", "v": [[3, 3], [3, 3]], "in": {"q": -3, "ok": False}, "z": [3, 2]
        }  # fmt: skip
        assert table["named"][1].as_py() == {"name": "p1", "n": 1}
        assert table["opaque"].to_pylist() == [b"abcd", b"\0\1\2\3", b"a\0b\0", b"1234", b"5678"]
        assert table["lists"].to_pylist() == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
        assert table["span"].cast(pa.int64()).to_pylist() == [0, 1, 2, 3, 4]
        assert table["time"].cast(pa.int64()).to_pylist() == [0, 1, 2, 3, 4]
        wave = table["wave"].combine_chunks().to_numpy_ndarray()
        assert np.array_equal(wave[..., 0] + 1j * wave[..., 1], file["wave"][:])


def test_a_predicate_reaches_into_a_compound(typed):
    ds = ray_h5.read_h5(typed, columns=["enum"]).filter(expr=col("compound").struct["a"] > 2)
    assert [row["enum"] for row in ds.take_all()] == [1, 0]


def test_what_cannot_be_a_column_is_named_and_the_rest_stays_readable(typed):
    with pytest.raises(UnsupportedColumnError, match="byte order"):
        ray_h5.read_h5(typed, columns=["swapped"])
    for name in ("compound", "opaque"):
        with pytest.raises(OptionError, match="cannot be cast"):
            ray_h5.read_h5(typed, dtypes={name: "f4"})
    with h5py.File(typed) as file:
        expected = [row.astype("f4").tolist() for row in file["lists"]]
    lists = ray_h5.read_h5(typed, columns=["lists"], dtypes={"lists": "f4"}).take_all()
    assert [row["lists"] if isinstance(row["lists"], list) else row["lists"].tolist() for row in lists] == expected


@pytest.mark.parametrize("element", ["c8", "c16"])
def test_complex_numbers_of_varying_length_are_lists_of_pairs(tmp_path, element):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        spikes = file.create_dataset("spikes", (6,), h5py.vlen_dtype(np.dtype(element)))
        for i in (0, 2, 3, 5):  # rows 1 and 4 are never written
            spikes[i] = (np.arange(i) * (0.1 - 2j)).astype(element)
        file["n"] = np.arange(6)
    part = pa.float32() if element == "c8" else pa.float64()
    ds = ray_h5.read_h5(path, index_dir=tmp_path / "index")
    assert ds.schema().base_schema.field("spikes").type == pa.large_list(pa.list_(part, 2))
    with h5py.File(path) as file:
        expected = list(file["spikes"])
    pairs = [[[value.real, value.imag] for value in row.tolist()] for row in expected]
    for rows in (list(range(6)), [1, 4], [5, 1]):
        found = ray_h5.read_h5(path).filter(expr=ray_h5.where(n=rows)) if len(rows) < 6 else ds
        table = pa.concat_tables(found.iter_batches(batch_size=None, batch_format="pyarrow"))
        assert table["spikes"].to_pylist() == [pairs[row] for row in sorted(rows)]
    for row, batch in enumerate(ds.iter_batches(batch_size=1, batch_format="numpy")):
        assert [list(pair) for pair in batch["spikes"][0]] == pairs[row]
    assert ds.filter(expr=ray_h5.where(n=[])).schema().base_schema == ds.schema().base_schema
    assert ds.filter(expr=col("spikes").is_null()).count() == 0
    samples = H5Dataset(path)
    assert all(np.array_equal(samples[row].spikes, expected[row]) for row in range(6))
    assert {samples[row].spikes.dtype for row in range(6)} == {np.dtype(element)}


def test_a_cast_that_loses_a_value_is_an_error(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.array([1, 2, 300])})
    with pytest.raises(CastError, match=r"a\.h5: column 'x', row 2: the value 300 cannot be cast to int8: int8 holds"):
        ray_h5.read_h5(path, dtypes={"x": "int8"}).materialize()
    found = ray_h5.read_h5(path, dtypes={"x": "int8"}, casting="unsafe").take_all()
    assert [row["x"] for row in found] == [1, 2, 44]
