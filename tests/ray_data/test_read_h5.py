import os
import pathlib
import re

import h5py
import numpy as np
import pyarrow as pa
import pytest
import ray
from ray.data.expressions import col
from ray.data.extensions import ArrowTensorTypeV2

import ray_h5
from ray_h5.errors import (
    NotFoundError,
    NotHDF5Error,
    OptionError,
    SchemaMismatchError,
    StaleIndexError,
    TruncatedFileError,
    UnknownColumnError,
)
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from tests.hdf5.h5kit import concatenated
from tests.kit.files import save

pytestmark = pytest.mark.usefixtures("ray_local")


def rows_of(ds, names=None):
    batches = [pa_batch for pa_batch in ds.iter_batches(batch_size=None, batch_format="numpy") if pa_batch]
    names = names or list(batches[0])
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names}


def optimized(ds):
    from ray.data._internal.logical.optimizers import LogicalOptimizer

    return LogicalOptimizer().optimize(ds._logical_plan).dag


def execute_here(ds):
    """Run the read tasks of a dataset in this process; return their tables and what reading cost."""
    source = optimized(ds).datasource
    plan = source.plan()
    whole = start_of(plan)
    stats = [read_block(plan, whole, block).rows.stats for block in range(layout_of(whole).num_blocks)]
    tables = [table for task in source.get_read_tasks(1) for table in task()]
    return pa.concat_tables(tables), stats


def test_columns_that_some_files_lack_are_none(tmp_path):
    for i in range(3):
        lacking = {"label": np.arange(4) + i, "vector": np.full((4, 2), i)} if i != 1 else {}
        save(tmp_path / f"{i}.h5", {"x": np.arange(4.0), **lacking})
    ds = ray_h5.read_h5(str(tmp_path), missing="null")
    rows = ds.take_all()
    assert [row["label"] for row in rows] == [*range(4), *[None] * 4, *range(2, 6)]
    assert [None if row["vector"] is None else row["vector"].tolist() for row in rows][3:9] == [
        [0, 0],
        *[None] * 4,
        [2, 2],
    ]
    assert ds.filter(expr=ray_h5.where(label=None)).count() == 4
    frame = ray_h5.read_h5(str(tmp_path), columns=["label"], missing="null", dtypes={"label": "float32"}).to_pandas()
    assert np.isnan(frame["label"].to_numpy(float)).sum() == 4


def test_every_row_is_what_h5py_reads(signals):
    found = rows_of(ray_h5.read_h5(signals, include_row_ids=True, block_rows=8))
    order = np.argsort(found["row_id"])
    for name in ("wide", "other", "obs/image", "label", "epoch", "good", "guid"):
        expected = concatenated(signals, name)
        assert found[name][order].tolist() == expected.tolist(), name
        if name != "guid":
            assert found[name].dtype == expected.dtype
    wave = concatenated(signals, "wave")
    assert np.array_equal(found["wave"][order], np.stack([wave.real, wave.imag], axis=-1))


def test_counts_and_schema_come_without_a_task(signals, monkeypatch):
    ds = ray_h5.read_h5(signals)
    monkeypatch.setattr(ray.data.Dataset, "_execute_to_iterator", None)
    assert ds.count() == 50
    schema = ds.schema().base_schema
    assert schema.names == ["epoch", "good", "guid", "label", "obs/image", "other", "wave", "wide"]
    assert schema.field("wide").type == ArrowTensorTypeV2((5, 40), pa.float32())
    assert schema.field("wave").type == ArrowTensorTypeV2((2,), pa.float32())
    assert schema.field("guid").type == pa.string()
    assert schema.field("good").type == pa.bool_()
    assert ds.select_columns(["epoch"]).schema().names == ["epoch"]


def test_a_predicate_and_a_projection_are_pushed_all_the_way_down(signals):
    ds = ray_h5.read_h5(signals, block_rows=16).filter(expr=col("label") == 1).select_columns(["wide"])
    assert [op.name for op in walk(optimized(ds))] == ["ReadH5"]
    keep = np.flatnonzero(concatenated(signals, "label") == 1)
    table, stats = execute_here(ds)
    assert table.column_names == ["wide"]
    # One chunk a selected row, and of no other column.
    assert sum(each.chunks_decoded for each in stats) == len(keep)
    assert np.array_equal(rows_of(ds)["wide"], concatenated(signals, "wide")[keep])
    assert ds.count() == len(keep)


def walk(op):
    yield op
    for below in op.input_dependencies:
        yield from walk(below)


def test_paths_row_ids_and_order_of_files(signals):
    ds = ray_h5.read_h5(list(reversed(signals)), columns=["label"], include_paths=True, include_row_ids=True)
    rows = ds.take_all()
    assert [row["row_id"] for row in rows] == list(range(50))
    assert [os.path.basename(row["path"]) for row in rows] == ["s9.h5"] * 20 + ["s11.h5"] * 30
    assert ds.filter(expr=col("path") == signals[2]).count() == 30
    assert [row["row_id"] for row in ds.filter(expr=col("row_id") % 20 == 1).take_all()] == [1, 21, 41]
    folder = os.path.dirname(signals[0])
    assert ray_h5.read_h5(folder).count() == ray_h5.read_h5(f"{folder}/*.h5").count() == 50
    found = pathlib.Path(folder).glob("*.h5")
    assert ray_h5.build_index(found).num_rows == 50
    assert ray_h5.read_h5(f"local://{path}" for path in signals).count() == 50
    with h5py.File(signals[0], "a") as file:
        file["path"] = np.zeros(20)
    with pytest.raises(OptionError, match="a column 'path' of their own"):
        ray_h5.read_h5(signals[0], include_paths=True)


def test_the_files_are_told(signals):
    for ds in (ray_h5.read_h5(signals, block_rows=8), ray_h5.read_h5(signals).filter(expr=col("label") == 99)):
        assert sorted(ds.input_files()) == sorted(signals)
        assert sorted(ds.map_batches(lambda batch: batch).input_files()) == sorted(signals)


def test_a_column_that_is_called_path_is_a_column(signals):
    with h5py.File(signals[0], "a") as file:
        file["path"] = np.array([f"way {i % 2}" for i in range(20)], dtype=h5py.string_dtype())
    for columns in (None, ["label"]):
        ds = ray_h5.read_h5(signals[0], columns=columns).filter(expr=col("path") == "way 1")
        assert ds.count() == 10


def test_groups_and_columns(signals):
    assert ray_h5.read_h5(signals, group="obs").schema().names == ["image"]
    ds = ray_h5.read_h5(signals, columns=["obs/image", "label"])
    assert ds.schema().names == ["obs/image", "label"]
    with pytest.raises(OptionError, match=r"write columns=\['label'\]"):
        ray_h5.read_h5(signals, columns="label")
    with pytest.raises(UnknownColumnError, match="Did you mean 'label'"):
        ray_h5.read_h5(signals, columns=["labl"])
    with pytest.raises(UnknownColumnError, match="nothing"):
        ray_h5.read_h5(signals, group="nothing")
    with pytest.raises(OptionError, match="group=None: expected the name of a group"):
        ray_h5.read_h5(signals, group=None)
    with pytest.raises(OptionError, match=r"columns: expected a list of names, .* found 3"):
        ray_h5.read_h5(signals, columns=["label", 3])
    with pytest.raises(OptionError, match=r"write predicate_columns=\['label'\]"):
        ray_h5.build_index(signals, predicate_columns="label")


def test_dtypes_are_cast_in_the_read(signals):
    ds = ray_h5.read_h5(signals, columns=["wide", "label", "guid"], dtypes={"wide": "f2", "label": "i8", "guid": bytes})
    assert ds.schema().base_schema.field("wide").type == ArrowTensorTypeV2((5, 40), pa.float16())
    found = rows_of(ds)
    assert np.array_equal(found["wide"], concatenated(signals, "wide").astype("f2"))
    assert found["label"].dtype == np.int64
    assert found["guid"][0] == b"p0"
    assert ds.filter(expr=col("label") == 1).count() == (concatenated(signals, "label") == 1).sum()


def test_blocks_are_sized_by_bytes_and_not_by_ray(signals):
    def blocks(**options):
        return ray_h5.read_h5(signals, columns=["wide"], **options).materialize().num_blocks()

    assert blocks() == 4  # 50 rows in blocks of 16
    assert blocks(block_rows=10) == 5
    assert blocks(override_num_blocks=2) == 2
    assert blocks(override_num_blocks=4, tail="pad", tail_rows=64) == 4
    assert blocks(override_num_blocks=np.int64(2), tail="drop", tail_rows=np.int64(16)) == 2
    with pytest.raises(OptionError, match="pass one of them"):
        blocks(block_rows=10, override_num_blocks=2)
    one_cpu = ray_h5.read_h5(signals, columns=["wide"], num_cpus=0.5, memory=1 << 20, concurrency=1)
    assert one_cpu.materialize().count() == 50


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (os.remove, NotFoundError, "1 path does not exist"),
        (lambda path: pathlib.Path(path).write_text("hello"), NotHDF5Error, "no HDF5 signature"),
        (lambda path: os.truncate(path, 3000), TruncatedFileError, r"expected \d+ bytes, found 3000"),
    ],
)
def test_bad_files_are_named_at_planning(signals, spoil, error, says):
    spoil(signals[2])
    with pytest.raises(error, match=says) as caught:
        ray_h5.read_h5(signals)
    assert signals[2] in str(caught.value)


def test_an_empty_file_is_left_out_with_a_warning(signals, caplog):
    pathlib.Path(signals[2]).write_text("")
    assert ray_h5.read_h5(signals).count() == 20
    assert f"left out 1 of 3 files, which are empty: {signals[2]} (0 bytes)" in caplog.text
    with pytest.raises(NotHDF5Error, match="0 bytes"):
        ray_h5.read_h5(signals[2])


def test_a_mismatch_is_named_at_planning(signals):
    with h5py.File(signals[1], "a") as file:
        del file["wide"]
    with pytest.raises(SchemaMismatchError, match=rf"{signals[1]}: column 'wide' is missing"):
        ray_h5.read_h5(signals)


def test_a_file_changed_after_planning_arrives_with_its_type_and_message(signals):
    ds = ray_h5.read_h5(signals, columns=["wide"])
    os.utime(signals[0], ns=(1, 1))
    with pytest.raises(StaleIndexError, match=re.escape(f"{signals[0]}: the file changed between planning")) as caught:
        ds.materialize()
    assert isinstance(caught.value, RuntimeError)


def test_local_paths_are_read_on_the_drivers_node(signals):
    ds = ray_h5.read_h5([f"local://{path}" for path in signals], columns=["label"])
    assert not ds._logical_plan.dag.datasource.supports_distributed_reads
    assert ds.materialize().count() == 50


def test_the_datasource_takes_what_read_h5_takes(signals, tmp_path):
    first = pathlib.Path(signals[0])
    options = {"columns": ("label",), "shuffle": "rows", "tail": "drop", "tail_rows": 8, "index_dir": tmp_path / "kept"}
    for paths in (signals[0], first, f"{first.parent}/{first.stem}.*", iter([first]), f"local://{first}"):
        source = ray_h5.H5Datasource(paths, **options)
        assert source.plan().num_positions == 16
        assert source.supports_distributed_reads == (not str(paths).startswith("local:"))
        assert ray.data.read_datasource(source, override_num_blocks=1).count() == 16
    assert ray_h5.H5Datasource([first, tmp_path / "none.h5"], ignore_missing_paths=True).plan().num_rows == 20
    for wrong in ({"columns": "label"}, {"shuffle": "row"}, {"tail": "drop"}, {"dtypes": ["f4"]}, {"group": None}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))}|Shuffle"):
            ray_h5.H5Datasource(first, **wrong)


def test_what_files_hold_is_told_once(tmp_path, caplog):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(5):
            file[f"demo_{i}/t2m"] = np.zeros(9, "i2")
            file[f"demo_{i}/t2m"].attrs["scale_factor"] = 0.5
    for _ in range(2):
        ds = ray_h5.read_h5(str(tmp_path / "a.h5"))
        ds.filter(expr=ray_h5.where(**{"demo_0/t2m": 0})).count()
    found = [
        each.getMessage() for each in caplog.records if each.name.startswith("ray_h5") and each.levelname == "WARNING"
    ]
    assert len(found) == 2
    assert "demo_0 ... demo_4: 5 groups alike" in found[0]
    assert "demo_0/t2m: compute value * 0.5 (the rule of CF" in found[1]
