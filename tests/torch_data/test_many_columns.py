"""A file with very many datasets: what is done once a file, once a column, and never again."""

import sys
from collections import Counter

import h5py
import numpy as np
import pytest

from ray_h5 import H5Dataset, RowReader
from ray_h5.hdf5.columns import value_types
from ray_h5.hdf5.columns.value_types import Shared
from ray_h5.hdf5.tree import known_headers, tree
from ray_h5.read import open_files

STORAGES = {"contiguous": {}, "gzip": {"chunks": (4,), "compression": "gzip"}}


def write(path, count, **storage):
    with h5py.File(path, "w") as file:
        for i in range(count):
            file.create_dataset(f"g{i % 7}/x{i:04d}", data=np.arange(12, dtype="f4") + i, **storage)
    return str(path)


def steps_of(action):
    """Return how many steps the interpreter takes for an action; no time of this machine is in it."""
    found = 0

    def count(frame, event, _argument):
        nonlocal found
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        found += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
    return found


def costs(path):
    """Return the steps of opening a dataset of all columns, of its first sample and of a later one."""
    made = []
    opening = steps_of(lambda: made.append(H5Dataset(path, kept_bytes=0)))
    return {
        "opening": opening,
        "first": steps_of(lambda: made[0][3]),
        "later": steps_of(lambda: made[0][7]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("storage", STORAGES)
def test_the_cost_grows_with_the_number_of_columns_and_not_with_its_square(tmp_path, storage):
    H5Dataset(write(tmp_path / "warm.h5", 8, **STORAGES[storage]))[0]  # imports are no part of the cost
    few, many = (costs(write(tmp_path / f"{n}.h5", n, **STORAGES[storage])) for n in (100, 400))
    for what, cost in many.items():
        assert cost < 4.4 * few[what], what


@pytest.fixture
def counted(monkeypatch):
    """Count how often a tree is listed, a column described, and a type described."""
    found = Counter()

    def counting(owner, name, what):
        real = getattr(owner, name)

        def wrapper(*args, **kwargs):
            found[what] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    counting(tree.H5Tree, "columns", "trees")
    counting(tree, "describe_column", "columns")
    counting(Shared, "_described", "types")
    value_types._types.clear()  # of the whole process
    return found


def test_a_file_is_listed_once_and_each_column_described_once(tmp_path, counted):
    dataset = H5Dataset(write(tmp_path / "a.h5", 60))
    for i in range(5):
        dataset[i]
    assert counted == {"trees": 1, "columns": 60, "types": 1}


def test_columns_that_are_named_are_described_and_no_others(tmp_path, counted):
    path = write(tmp_path / "a.h5", 60)
    dataset = H5Dataset(path, columns=["g0/x0000", "g1/x0001"])
    for i in range(5):
        dataset[i]
    with RowReader(path) as reader:
        for i in range(5):
            reader.read(["g0/x0000"], [i])
    assert counted["trees"] == 0
    assert counted["columns"] == 1  # by libhdf5; the header of the second is like that of the first


def test_another_process_describes_the_columns_that_it_reads(tmp_path, counted):
    dataset = H5Dataset(write(tmp_path / "a.h5", 60), columns=["g0/x0000", "g1/x0001"])
    dataset.release()
    open_files.forget_all()
    known_headers._known.clear()
    counted.clear()
    dataset[0], dataset[1]
    assert (counted["trees"], counted["columns"]) == (0, 1)


def test_a_reader_lists_a_file_once(tmp_path, counted):
    with RowReader(write(tmp_path / "a.h5", 60)) as reader:
        for i in range(3):
            assert len(reader.columns) == 60
            assert reader.num_rows == 12
            reader.read(list(reader.columns), [i])
    assert counted == {"trees": 1, "columns": 60, "types": 1}


def test_columns_of_equal_types_are_described_as_they_are(tmp_path):
    """The description of a type is shared; shape, fill value, filters and chunks are those of each dataset."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (4,), "f4")
        file.create_dataset("b", (4, 3), "f4", fillvalue=2.5, chunks=(2, 3), compression="gzip")
        file.create_dataset("c", (4,), "f4", fillvalue=-1, maxshape=(None,))
        file.create_dataset("d", (4,), ">f4", fillvalue=7)
        file.create_dataset("e", (4,), h5py.enum_dtype({"no": 0, "yes": 1}, "i1"))
        file.create_dataset("f", (4,), h5py.enum_dtype({"off": 0, "on": 1}, "i1"))
    with RowReader(tmp_path / "a.h5") as reader, h5py.File(tmp_path / "a.h5") as file:
        for name, layout in reader.columns.items():
            assert layout.shape == file[name].shape
            assert layout.fill == file[name].fillvalue
            assert layout.chunk_shape == file[name].chunks
            assert layout.stored_dtype.str == file[name].dtype.str
            np.testing.assert_array_equal(reader.read([name])[name], file[name][:])
        assert dict(reader.columns["e"].enum) == {"no": 0, "yes": 1}
        assert dict(reader.columns["f"].enum) == {"off": 0, "on": 1}
        assert str(reader.columns["b"].pipeline) != "none"
        assert str(reader.columns["c"].pipeline) == "none"
