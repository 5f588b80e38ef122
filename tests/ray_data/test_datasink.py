"""`H5Datasink` without a cluster: `read_h5` gives the rows back that it wrote, and files appear once."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.data.datasource.datasink import WriteResult
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from ray_h5 import H5Datasink, H5Datasource, RayH5Error, Windows, csr, errors
from ray_h5.columns.schema import ColumnSpec
from ray_h5.columns.sparse_rows import Entries, rows_of
from ray_h5.manifest.value_type import ValueType
from ray_h5.ray_data.arrow.blocks import sparse_array
from tests.properties import few

ROWS = 7


def write(sink, tasks, order=None):
    """Do what Ray does: write the blocks of each task, and complete the write."""
    sink.on_write_start(None)
    found = [sink.write(blocks, SimpleNamespace(task_idx=task)) for task, blocks in enumerate(tasks)]
    sink.on_write_complete(WriteResult(0, 0, [found[i] for i in order or range(len(found))]))


def read(folder, **options):
    tables = [table for task in H5Datasource(str(folder), **options).get_read_tasks(1) for table in task()]
    return pa.concat_tables(tables)


def files(folder):
    return sorted(
        os.path.relpath(os.path.join(top, each), folder) for top, _, names in os.walk(folder) for each in names
    )


def rng():
    return np.random.default_rng(3)


def tensor(dtype, shape):
    values = np.zeros((ROWS, *shape), dtype)
    values.view("u1")[...] = rng().integers(0, 2 if dtype == "?" else 120, values.view("u1").shape)
    return ArrowTensorArray.from_numpy(values)


def lists(values, counts=(0, 3, 1, 0, 4, 2, 1)):
    return pa.LargeListArray.from_arrays(pa.array(np.cumsum([0, *counts])), values)


COUNTS = (2, 0, 5, 1, 1, 3, 2)
TEXTS = pa.array(["", "ü", "a" * 300, "b", "Ω\n", " ", "x"])
SPARSE = rows_of(
    Entries(np.array([0, 5, 2], "i4"), np.array([1.5, np.nan, -0.0], "f4")), np.array([0, 1, 1, 3, 3, 3, 3, 3])
)
COLUMNS = {
    **{f"number {dtype}": pa.array(rng().integers(0, 100, ROWS).astype(dtype)) for dtype in ("u1", "i8", "f2", "f8")},
    "nan": pa.array([np.nan, -0.0, np.inf, 1, 2, 3, 4], pa.float32(), from_pandas=False),
    "bool": pa.array([True, False] * 3 + [True]),
    **{f"tensor {dtype}{shape}": tensor(dtype, shape) for dtype in ("f4", "?", "u2") for shape in ((3,), (2, 1, 4))},
    "text": TEXTS,
    "large text": TEXTS.cast(pa.large_string()),
    "dictionary": TEXTS.dictionary_encode(),
    "texts": lists(pa.array(list("abcdefghijk"))),
    "list": lists(pa.array(np.arange(11, dtype="i2"))),
    "list of tensors": lists(pa.FixedSizeListArray.from_arrays(pa.array(np.arange(22.0)), 2)),
    "ragged": ArrowVariableShapedTensorArray.from_numpy(
        np.array([*(np.arange(6.0 * n).reshape(n, 3, 2) for n in COUNTS), None], object)[:-1]
    ),
    "binary": pa.array([b"ab", b"", b"\0\xff", b"1", b"2", b"3", b"4"]),
    "bytes": pa.array([bytes([i, 0]) for i in range(ROWS)], pa.binary(2)),
    "time": pa.array(rng().integers(0, 1 << 50, ROWS), pa.timestamp("us")),
    "duration": pa.array(rng().integers(0, 1 << 50, ROWS), pa.duration("ns")),
    "sparse": sparse_array(
        SPARSE, ColumnSpec("x", ValueType("sparse", np.dtype(object), element=np.dtype("f4"), ragged_shape=(6,)))
    ),
    "struct": pa.StructArray.from_arrays([TEXTS, pa.array(np.arange(7))], ["a", "b"]),
}


def plain(array):
    """Return values that compare, bit for bit."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if hasattr(array, "to_numpy") and isinstance(array.type, pa.ExtensionType):
        return [
            (each.shape, each.dtype.str, each.tobytes())
            for each in map(np.asarray, array.to_numpy(zero_copy_only=False))
        ]
    if pa.types.is_binary(array.type):
        return [list(each) for each in array.to_pylist()]
    return list(map(repr, array.to_pylist()))


@few(15)
@given(
    st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True),
    st.sampled_from([None, 1, 3]),
    st.sampled_from(["zstd", "lz4", "gzip", "blosc", "none"]),
    st.lists(st.integers(0, ROWS), max_size=2),
    st.sampled_from([None, 2, 5]),
)
def test_rows_come_back_bit_for_bit(tmp_path_factory, names, chunk_rows, codec, cuts, rows_per_file):
    folder = tmp_path_factory.mktemp("out")
    table = pa.table({name: COLUMNS[name] for name in names})
    edges = [0, *sorted(cuts), ROWS]
    blocks = [table.slice(start, stop - start) for start, stop in pairwise(edges)]
    write(H5Datasink(folder, chunk_rows=chunk_rows, codec=codec, rows_per_file=rows_per_file), [blocks[:1], blocks[1:]])
    found = read(folder)
    for name in names:
        if name == "struct":
            for field in "ab":
                assert plain(found[f"struct/{field}"]) == plain(COLUMNS[name].field(field))
            continue
        expected = plain(COLUMNS[name])
        got = found[name].combine_chunks()
        if name in {"binary", "list", "list of tensors"}:  # arrays of varying shape
            values = got.to_numpy(zero_copy_only=False)
            assert [list(map(repr, each.tolist())) for each in values] == [
                list(map(repr, list(each))) for each in COLUMNS[name].to_pylist()
            ]
        elif name == "sparse":
            assert repr(got.to_pylist()) == repr(COLUMNS[name].to_pylist()).replace("'length'", "'dense_length'")
        else:
            assert plain(got) == expected, name
    assert not [each for each in files(folder) if not each.startswith("part-")]


def table_of(**columns):
    return pa.table(columns)


def test_nothing_appears_before_the_end_and_nothing_stays_after_a_failure(tmp_path):
    sink = H5Datasink(tmp_path)
    sink.on_write_start()
    sink.write([table_of(x=np.arange(5))], SimpleNamespace(task_idx=0))
    assert len(files(tmp_path)) == 2
    with pytest.raises(RayH5Error):
        read(tmp_path)
    sink.on_write_failed(ValueError())
    assert files(tmp_path) == []


def test_a_retried_task_is_written_once(tmp_path):
    sink = H5Datasink(tmp_path)
    sink.on_write_start()
    ctx = SimpleNamespace(task_idx=0)
    sink.write([table_of(x=np.arange(5))], ctx)  # its result is lost with its node
    parts = sink.write([table_of(x=np.arange(5))], ctx)
    sink.on_write_complete(WriteResult(0, 0, [parts]))
    assert files(tmp_path) == ["part-0-0.h5"]


def test_a_task_that_fails_removes_its_file(tmp_path):
    sink = H5Datasink(tmp_path)
    sink.on_write_start()

    def blocks():
        yield table_of(x=np.arange(5))
        raise KeyError

    with pytest.raises(KeyError):
        sink.write(blocks(), SimpleNamespace(task_idx=0))
    assert [each for each in files(tmp_path) if "part" in each] == []


def test_modes(tmp_path):
    folder = tmp_path / "new/out"
    write(H5Datasink(folder), [[table_of(x=[1])], [table_of(x=[2])]])
    with pytest.raises(errors.OutputExistsError, match="mode='append'"):
        H5Datasink(folder)
    write(H5Datasink(folder, mode="append"), [[table_of(x=[3])]])
    assert files(folder) == ["part-0-0.h5", "part-1-0.h5", "part-2-0.h5"]
    write(H5Datasink(folder, mode="ignore"), [[table_of(x=[4])]])
    assert read(folder)["x"].to_pylist() == [1, 2, 3]
    (folder / "notes.txt").write_text("kept")
    write(H5Datasink(folder, mode="overwrite"), [[table_of(x=[5])]])
    assert files(folder) == ["notes.txt", "part-3-0.h5"]  # new files come before the old ones go
    assert read(folder)["x"].to_pylist() == [5]
    with pytest.raises(errors.OptionError, match="mode='new'"):
        H5Datasink(folder, mode="new")


def test_an_overwrite_without_rows_removes_nothing(tmp_path):
    write(H5Datasink(tmp_path, mode="overwrite"), [])
    write(H5Datasink(tmp_path), [[table_of(x=[1])]])
    for tasks in ([], [[]], [[table_of(x=[1]).slice(1)]]):
        with pytest.raises(errors.OutputExistsError, match="no rows, and mode='overwrite' would remove 1 file"):
            write(sink := H5Datasink(tmp_path, mode="overwrite"), tasks)
        sink.on_write_failed(errors.OutputExistsError())
        assert read(tmp_path)["x"].to_pylist() == [1]


@pytest.mark.parametrize("url", ["https://host/out", "http://host/out", "hf://datasets/me/mine/out"])
def test_stores_that_are_not_written_to_are_refused_at_once(url):
    with pytest.raises(errors.OptionError, match=r"expected a folder of a disk, s3://"):
        H5Datasink(url, mode="append")


def test_two_writes_into_one_new_folder(tmp_path):
    first, second = H5Datasink(tmp_path), H5Datasink(tmp_path)
    write(first, [[table_of(x=[1])]])
    with pytest.raises(errors.OutputExistsError):
        write(second, [[table_of(x=[2])]])
    second.on_write_failed(errors.OutputExistsError())
    assert read(tmp_path)["x"].to_pylist() == [1]
    assert files(tmp_path) == ["part-0-0.h5"]


def test_writes_that_append_at_the_same_time_lose_no_file(tmp_path):
    write(H5Datasink(tmp_path), [[table_of(x=[0])]])
    writers, rounds = 4, 12
    barrier = threading.Barrier(writers, timeout=60)

    def appends(number):
        for turn in range(rounds):
            sink = H5Datasink(tmp_path, mode="append")
            sink.on_write_start()
            value = 1 + number + writers * turn
            parts = [sink.write([table_of(x=[value])], SimpleNamespace(task_idx=task)) for task in range(3)]
            barrier.wait()
            sink.on_write_complete(WriteResult(0, 0, parts))

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(appends, range(writers)))
    values = np.bincount(read(tmp_path)["x"].to_numpy())
    assert values.tolist() == [1] + [3] * writers * rounds
    assert len(files(tmp_path)) == 1 + 3 * writers * rounds


def test_writes_begin_at_the_same_time(tmp_path):
    """Each looks for what writes that died left, and takes what others just made for that."""
    for turn in range(60):
        sinks = [H5Datasink(tmp_path / str(turn), mode="append") for _ in range(4)]
        barrier = threading.Barrier(len(sinks), timeout=60)

        def begins(sink, barrier=barrier):
            barrier.wait()
            sink.on_write_start()

        with ThreadPoolExecutor(len(sinks)) as pool:
            list(pool.map(begins, sinks))
        for sink in sinks:
            sink.on_write_failed(RuntimeError())


def test_one_of_two_writes_into_a_new_folder_at_the_same_time(tmp_path):
    for turn in range(12):
        sinks = [H5Datasink(tmp_path / str(turn), mode=mode) for mode in ("error", "error", "ignore", "ignore")]
        barrier = threading.Barrier(len(sinks), timeout=60)

        def ends(number, sinks=sinks, barrier=barrier):
            sink = sinks[number]
            sink.on_write_start()
            parts = [sink.write([table_of(x=[number])], SimpleNamespace(task_idx=task)) for task in range(3)]
            barrier.wait()
            try:
                sink.on_write_complete(WriteResult(0, 0, parts))
            except errors.OutputExistsError as exc:
                sink.on_write_failed(exc)

        with ThreadPoolExecutor(len(sinks)) as pool:
            list(pool.map(ends, range(len(sinks))))
        first, *others = read(tmp_path / str(turn))["x"].to_pylist()
        assert others == [first] * 2


def test_a_write_that_cannot_be_published_leaves_the_old_files(tmp_path, monkeypatch):
    write(H5Datasink(tmp_path), [[table_of(x=[1])], [table_of(x=[2])]])
    count = []

    def failing(works):
        def fails(*paths):
            count.append(1)
            if len(count) in (2, 3):  # the second new file, also where there are no links
                raise OSError(5, "Input/output error")
            return works(*paths)

        return fails

    sink = H5Datasink(tmp_path, mode="overwrite")
    monkeypatch.setattr(Path, "rename", failing(Path.rename))
    monkeypatch.setattr(os, "link", failing(os.link))
    with pytest.raises(errors.WriteFailedError, match="Input/output error"):
        write(sink, [[table_of(x=[3])], [table_of(x=[4])]])
    sink.on_write_failed(errors.WriteFailedError())
    assert files(tmp_path) == ["part-0-0.h5", "part-1-0.h5"]
    assert read(tmp_path)["x"].to_pylist() == [1, 2]


@pytest.mark.parametrize("name", ["new.h5", "there.h5", "there"])
def test_the_name_of_a_file_is_refused(tmp_path, name):
    for each in ("there.h5", "there"):
        (tmp_path / each).write_text("kept")
    with pytest.raises(errors.OptionError, match=rf"{name}': expected a folder, found the name of a file\. "):
        H5Datasink(tmp_path / name, mode="overwrite")
    (tmp_path / "folder.h5").mkdir()
    write(H5Datasink(tmp_path / "folder.h5"), [[table_of(x=[1])]])
    assert files(tmp_path / "folder.h5") == ["part-0-0.h5"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"x": np.arange(3, dtype="f4")}, "'x' has plain float32; expected plain int64"),
        ({"x": ArrowTensorArray.from_numpy(np.zeros((3, 2), "i8"))}, r"'x' has plain int64 \(2,\)"),
        ({"y": np.arange(3)}, r"columns \['y'\]; expected \['x'\]"),
    ],
)
def test_blocks_and_tasks_need_one_schema(tmp_path, other, said):
    blocks = [table_of(x=np.arange(3)), pa.table(other)]
    with pytest.raises(errors.SchemaMismatchError, match=said):
        write(H5Datasink(tmp_path), [blocks])
    with pytest.raises(errors.SchemaMismatchError, match=f"task 1: .*{said}|task 1 has {said}"):
        write(H5Datasink(tmp_path), [[block] for block in blocks])


def test_rows_of_varying_length_that_agree_in_some_blocks(tmp_path):
    rows = [np.full((n, 2), i, "f4") for i, n in enumerate([1, 3, 2, 2, 0, 4])]
    stacked = ArrowTensorArray.from_numpy(np.stack(rows[2:4]))
    lists = pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2))
    tasks = [
        [pa.table({"x": _varying(rows[:2]), "s": pa.array([["a"], []])})],
        [pa.table({"x": stacked, "s": lists}), pa.table({"x": _varying(rows[4:]), "s": pa.array([[], ["é"]])})],
    ]
    with pytest.raises(errors.SchemaMismatchError, match=r"pass varying=\['x'\]; otherwise cast or pad"):
        write(H5Datasink(tmp_path / "1"), tasks)
    write(H5Datasink(tmp_path / "2", varying=["x", "s"]), tasks)
    found = read(tmp_path / "2")
    for one, other in zip(found["x"].to_pylist(), rows, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [list(each) for each in found["s"].to_pylist()] == [["a"], [], ["a", "b"], ["c", "d"], [], ["é"]]
    with pytest.raises(errors.OptionError, match="varying: no column 'y'"):
        write(H5Datasink(tmp_path / "3", varying=["y"]), tasks)
    with pytest.raises(errors.OptionError, match="varying: column 'n' has plain int64; expected tensors or lists"):
        write(H5Datasink(tmp_path / "3", varying=["n"]), [[table_of(n=[1])]])


def _varying(rows):
    held = np.empty(len(rows), object)
    held[:] = rows
    return ArrowVariableShapedTensorArray.from_numpy(held)


def test_missing_values(tmp_path):
    block = table_of(a=pa.array([1, None, 3]), b=pa.array(["x", "y", None]), c=[1.0, 2.0, 3.0])
    with pytest.raises(errors.NullValueError, match="'a': the value of row 1"):
        write(H5Datasink(tmp_path / "1"), [[block]])
    with pytest.raises(errors.OptionError, match=r"null_value=-1\.5: column 'b'"):
        write(H5Datasink(tmp_path / "2", null_value=-1.5), [[block.select(["b"])]])
    write(H5Datasink(tmp_path / "3", null_value={"a": -1, "b": "none"}), [[block]])
    found = read(tmp_path / "3")
    assert found["a"].to_pylist() == [1, -1, 3]
    assert found["b"].to_pylist() == ["x", "y", "none"]
    with pytest.raises(errors.OptionError, match="null_value"):
        write(H5Datasink(tmp_path / "4", null_value={"q": 1}), [[block]])


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[[1]], [[2, 3]]]), "lists of numbers"),
        (pa.array([[{"a": 1}], []]), "'odd' has lists of struct<a: int64>: lists of numbers"),
        (pa.array([[{"a": 1}]], pa.list_(pa.struct({"a": pa.int32()}), 1)), "'odd' has lists of struct<a: int32>"),
        (pa.array(["a\0b", "c"]), "first NUL"),
        (pa.array([0, 1], pa.timestamp("us", "UTC")), "time zone"),
        (pa.array([1, 2], pa.decimal128(5)), "decimal128"),
        (
            ArrowVariableShapedTensorArray.from_numpy(
                np.array([np.zeros((2, 3)), np.zeros((2, 4)), None], object)[:-1]
            ),
            r"\(2, \?\)",
        ),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, column, said):
    with pytest.raises(errors.UnsupportedColumnError, match=said) as error:
        write(H5Datasink(tmp_path), [[pa.table({"odd": column})]])
    assert "'odd'" in str(error.value)


def test_windows_of_sparse_rows_are_refused(tmp_path):
    # A matrix would have the steps of a window end to end in one row.
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("X")
        group["data"], group["indices"], group["indptr"] = np.ones(3), [0, 1, 4], [0, 2, 3]
        group.attrs["shape"] = [2, 5]
    options = {"columns": [csr("X")], "windows": Windows({"X": [0, 1]})}
    source = H5Datasource(str(tmp_path / "a.h5"), **options)
    blocks = [block for task in source.get_read_tasks(1) for block in task()]
    with pytest.raises(errors.UnsupportedColumnError, match="'X' has windows of sparse rows"):
        write(H5Datasink(tmp_path / "out"), [blocks])


def test_columns_are_chosen_and_names_are_checked(tmp_path):
    block = pa.table({"a": [1], "b": [2]})
    write(H5Datasink(tmp_path / "1", columns=["b"]), [[block]])
    assert read(tmp_path / "1").column_names == ["b"]
    with pytest.raises(errors.OptionError, match="'c'"):
        write(H5Datasink(tmp_path / "2", columns=["c"]), [[block]])
    with pytest.raises(errors.SchemaMismatchError, match=r"'a' and 'a/b'"):
        write(H5Datasink(tmp_path / "3"), [[pa.table({"a": [1], "a/b": [2]})]])
    struct = pa.array([{"b": 3}])
    for table in ({"a/b": [1], "a": struct}, {"a": struct, "a/b": [1]}, {"a": [1], "/a": [2]}, {"a": [1], "a/": [2]}):
        with pytest.raises(errors.SchemaMismatchError, match="two of them are"):
            write(H5Datasink(tmp_path / "3"), [[pa.table(table)]])
    with pytest.raises(errors.UnsupportedColumnError, match="'e' has structs without fields"):
        write(H5Datasink(tmp_path / "3"), [[pa.table({"e": pa.array([{}], pa.struct([]))})]])
    with pytest.raises(errors.SchemaMismatchError, match=r"'\.\./x'"):
        write(H5Datasink(tmp_path / "4"), [[pa.table({"../x": [1]})]])


def test_checkpoints_of_ray_are_refused(tmp_path, monkeypatch):
    from ray.data import DataContext

    monkeypatch.setattr(DataContext.get_current(), "_checkpoint_config", object())
    with pytest.raises(errors.OptionError, match="checkpoint_config"):
        H5Datasink(tmp_path)
