"""Rows of varying shape that have no value are None in each format of batches of Ray, as the files lack them."""

import h5py
import numpy as np
import pandas as pd
import pytest
import ray
import torch

import ray_h5
from ray_h5 import Files, Groups, H5Dataset, Sidecar, Standardize, TorchCollate, loader, part
from ray_h5.errors import NullValueError, SchemaMismatchError

pytestmark = pytest.mark.usefixtures("ray_local")

ROWS = 14
LACKING = {0, *range(4, 10), 13}
"""Blocks of two rows: three of them have no value, and the first and the last one have one."""

MAKE = {
    "flat": lambda i: np.arange(i % 4) + 0.5 * i,
    "matrix": lambda i: np.full((i % 3, 2), i, "f4"),
    "volume": lambda i: np.arange(i % 2 * 8, dtype="u1").reshape(-1, 2, 4) + np.uint8(i),
    "flags": lambda i: np.arange(i % 5) % 2 == 0,
    "waves": lambda i: np.full((i % 3, 2), i * 1j, "c8"),
    "fixed": lambda i: np.full((2, 3), i, "i4"),
}


def put(group, i):
    group["i"], group["signal"] = i, np.full((2, 6), i, "f4")
    for name, make in MAKE.items():
        if i not in LACKING:
            group[name] = make(i)


def expected(names, lacking=LACKING):
    return {name: [None if i in lacking else MAKE[name](i) for i in range(ROWS)] for name in names}


def of_groups(folder):
    """Groups with attributes, parts, a cast and labels."""
    with h5py.File(folder / "a.h5", "w") as file:
        for i in range(ROWS):
            put(file.create_group(f"g/{i:02}"), i)
            if i not in LACKING:
                file[f"g/{i:02}"].attrs["picks"] = np.arange(i % 3 + 1)
                file.create_dataset(f"g/{i:02}/words", data=["a", "b"][: i % 3], dtype=h5py.string_dtype())
    values = expected(MAKE)
    taken = {"matrix": np.s_[:, 1:], "fixed": np.s_[[0]]}
    for name, part_of in taken.items():
        values[name] = [None if value is None else value[part_of] for value in values[name]]
    values["volume"] = [None if value is None else value.astype("f4") for value in values["volume"]]
    values["picks"] = [None if i in LACKING else np.arange(i % 3 + 1) for i in range(ROWS)]
    values["words"] = [None if i in LACKING else np.arange(2)[: i % 3] for i in range(ROWS)]
    parts = {"matrix": part("matrix", {1: slice(1, None)}), "fixed": part("fixed", {0: [0]})}
    made = {"dtypes": {"volume": "float32"}, "labels": {"words": {"a": 0, "b": 1}}}
    rows = Groups("g/*", attrs=["picks"], missing="null")
    return folder / "a.h5", [parts.get(name, name) for name in values], values, {"rows": rows, **made}


def of_files(folder):
    for i in range(ROWS):
        with h5py.File(folder / f"{i:02}.h5", "w") as file:
            put(file, i)
    return folder / "*.h5", [*MAKE], expected(MAKE), {"rows": Files(missing="null")}


def of_rows(folder):
    for i in range(0, ROWS, 2):
        with h5py.File(folder / f"{i:02}.h5", "w") as file:
            file["i"], file["signal"] = [i, i + 1], np.full((2, 2, 6), i, "f4")
            if i not in LACKING:
                file["fixed"] = [MAKE["fixed"](i), MAKE["fixed"](i + 1)]
    return folder / "*.h5", ["fixed"], expected(["fixed"], {0, 1, *range(4, 10)}), {"missing": "null"}


def of_tables(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["i"], file["signal"] = np.arange(ROWS), np.zeros((ROWS, 2, 6), "f4")
    lines = [i for i in range(ROWS) if i not in LACKING]
    frame = pd.DataFrame({"i": lines, "flat": [MAKE["flat"](i).tolist() for i in lines]})
    frame.to_parquet(folder / "table.parquet")
    sidecar = Sidecar(folder / "table.parquet", on="i", missing="null")
    return folder / "a.h5", ["flat"], expected(["flat"]), {"sidecar": sidecar}


KINDS = pytest.mark.parametrize("kind", [of_groups, of_files, of_rows, of_tables], ids=lambda kind: kind.__name__)


def read(folder, kind, *more):
    path, columns, values, options = kind(folder)
    return ray_h5.read_h5(path, columns=["i", *columns, *more], block_rows=2, **options), values


def batches(ds, batch_format, batch_size=5):
    """Return the values of each column, as a batch has them."""
    found = {}
    for batch in ds.iter_batches(batch_format=batch_format, batch_size=batch_size):
        for name in batch.column_names if batch_format == "pyarrow" else batch:
            found.setdefault(name, []).extend(batch[name].to_pylist() if batch_format == "pyarrow" else batch[name])
    return found


def check(found, values):
    """Compare values of all rows, in any order, with those of the files."""
    assert sorted(found["i"]) == [*range(ROWS)]
    for name, wanted in values.items():
        assert sum(value is None for value in found[name]) == sum(value is None for value in wanted)
        for i, value in zip(found["i"], found[name], strict=True):
            assert (value is None) == (wanted[i] is None)
            if value is not None:
                of_file = np.stack([wanted[i].real, wanted[i].imag], -1) if wanted[i].dtype.kind == "c" else wanted[i]
                assert isinstance(value, np.ndarray)
                assert (value.dtype, value.shape) == (of_file.dtype, of_file.shape)
                np.testing.assert_array_equal(value, of_file)


@KINDS
def test_batches_of_each_format(tmp_path, kind):
    ds, values = read(tmp_path, kind)
    once = ds.materialize()
    for batch_format in ("numpy", "pandas", "pyarrow"):
        check(batches(once, batch_format), values)
    mapped = ds.map_batches(lambda table: table, batch_format="pyarrow", batch_size=3)
    check(batches(mapped, "numpy"), values)
    found = {name: [] for name in ["i", *values]}
    for batch in mapped.iter_torch_batches(batch_size=5, collate_fn=TorchCollate()):
        for name in found:
            assert name == "i" or isinstance(batch[name], list)
            found[name] += [value if value is None else value.numpy() for value in batch[name]]
    check(found, values)
    name = next(iter(values))
    padded = [*once.iter_torch_batches(batch_size=5, collate_fn=TorchCollate(padding={name: -1}))]
    lengths = torch.cat([batch[f"{name}_length"] for batch in padded]).tolist()
    assert lengths == [0 if value is None else len(value) for value in values[name]]
    plain = [value for batch in loader(ds, 5) for value in batch[name]]
    assert [value is None for value in plain] == [value is None for value in values[name]]


STEPS = {
    "repartition": lambda ds: ds.repartition(3),
    "shuffle": lambda ds: ds.random_shuffle(seed=0),
    "sort": lambda ds: ds.sort("i", descending=True),
    "hash": lambda ds: ds.repartition(2, keys=["i"]),
    "filter": lambda ds: ds.filter(expr=ray_h5.where(i=ray_h5.between(0, ROWS))),
    "columns": lambda ds: ds.rename_columns({"i": "j"}).with_column("i", ray.data.expressions.col("j")),
}


@pytest.mark.parametrize("step", STEPS)
def test_what_ray_does_to_blocks(tmp_path, step):
    ds, values = read(tmp_path, of_groups)
    after = STEPS[step](ds)
    assert after.count() == ROWS
    assert {"i", *values} <= {*after.schema().names}
    check(batches(after, "pandas" if step == "sort" else "numpy"), values)


def test_rows_frames_and_files_of_parquet(tmp_path):
    (tmp_path / "h5").mkdir()
    ds, values = read(tmp_path / "h5", of_groups)
    rows = ds.take_all()
    check({name: [row[name] for row in rows] for name in rows[0]}, values)
    check(ds.to_pandas(), values)
    check(ds.take_batch(ROWS), values)
    # Tasks import the type with the context that Ray sends them, where they get blocks by its name alone.
    assert ds.materialize().context.get_config("ray_h5.nullable_tensor") is type(
        ds.schema().base_schema.field("flat").type
    )
    ds.write_parquet(str(tmp_path / "parquet"))
    check(batches(ray.data.read_parquet(str(tmp_path / "parquet")), "pyarrow"), values)


def test_preprocessors_keep_them(tmp_path):
    ds, values = read(tmp_path, of_groups, "signal")
    scaled = Standardize(["signal"]).fit_transform(ds)
    check(batches(scaled, "numpy"), values)


def test_writing(tmp_path):
    (tmp_path / "h5").mkdir()
    ds, values = read(tmp_path / "h5", of_groups)
    with pytest.raises(NullValueError, match=r"column 'flat': the value of row \d of its block is missing"):
        ray_h5.write_h5(ds.select_columns(["i", "flat"]), tmp_path / "failed")
    there = ds.filter(expr=ray_h5.where(i=[i for i in range(ROWS) if i not in LACKING]))
    ray_h5.write_h5(there.select_columns(["i", "flat"]), tmp_path / "out")
    written = H5Dataset(tmp_path / "out")
    assert {int(row["i"]): row["flat"].tolist() for row in written} == {
        i: values["flat"][i].tolist() for i in range(ROWS) if i not in LACKING
    }


def test_tensors_of_another_type(tmp_path):
    """Ray's own tensors cannot say that one is missing: joined with such, they are an error."""
    ds, _ = read(tmp_path, of_groups)
    other = ray.data.from_items([{"i": 20, "matrix": np.ones((n, 2), "f4")} for n in (1, 2)])
    with pytest.raises(SchemaMismatchError, match="some may be missing and others may not"):
        ds.select_columns(["i", "matrix"]).union(other).take_batch(ROWS + 2)
