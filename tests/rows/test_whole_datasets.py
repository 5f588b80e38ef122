"""Rows that are whole contiguous datasets are read by one call of the compiled loop; all others as before."""

import os

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import RowIndexError, StaleIndexError
from ray_h5.read.native.library import compiled_loop
from ray_h5.read.reader import FileReader
from ray_h5.rows.row_kind_options import Groups
from tests.rows.kit import open_rows

pytestmark = pytest.mark.skipif(compiled_loop() is None, reason="the loop is not compiled")

COUNT = 20


def made(path, **options):
    """Write groups of a matrix and a number; `options` are of the matrices."""
    with h5py.File(path, "w") as file:
        for number in range(COUNT):
            values = np.arange(6, dtype=options.get("dtype", "f4")).reshape(2, 3) + 10 * number
            file.create_dataset(f"g{number}/x", data=values, **options)
            file[f"g{number}/n"] = number
    return path


def expected(rows):
    matrices = [np.arange(6).reshape(2, 3) + 10 * row for row in rows]
    return {"x": np.array(matrices).reshape(-1, 2, 3).tolist(), "n": list(rows)}


@pytest.fixture
def planned(monkeypatch):
    """The reads that are planned as those of other rows."""
    reads, run = [], FileReader.run
    monkeypatch.setattr(FileReader, "run", lambda self, read: reads.append(read) or run(self, read))
    return reads


@given(rows=st.lists(st.integers(0, COUNT - 1), max_size=30), columns=st.permutations(["x", "n"]))
def test_rows_are_those_of_h5py(tmp_path_factory, rows, columns):
    path = made(tmp_path_factory.mktemp("whole") / "a.h5")
    with open_rows(path, Groups("g*")) as reader:
        found = reader.read(columns, rows)
        assert {name: each.tolist() for name, each in found.items()} == expected(rows)
        assert [*found] == columns
        assert reader.read(["x"], rows)["x"].tolist() == expected(rows)["x"]


def test_they_are_read_by_one_call(tmp_path, planned):
    with open_rows(made(tmp_path / "a.h5"), Groups("g*")) as reader:
        found = reader.read(["x", "n"], [7, 3, 3, 19, 0])
        assert {name: each.tolist() for name, each in found.items()} == expected([7, 3, 3, 19, 0])
        assert not planned
        assert reader.stats.requests
        assert reader.stats.bytes_read >= 4 * (24 + 8)
        with pytest.raises(RowIndexError):
            reader.read(["x"], [COUNT])


@pytest.mark.parametrize(
    "options",
    [{"dtype": ">f4"}, {"chunks": (1, 3)}, {"chunks": (2, 3), "compression": "gzip"}],
    ids=["another byte order", "chunks", "a filter"],
)
def test_what_is_stored_in_another_way_is_planned(tmp_path, planned, options):
    with open_rows(made(tmp_path / "a.h5", **options), Groups("g*")) as reader:
        found = reader.read(["x", "n"], [7, 3, 3])
        assert {name: each.tolist() for name, each in found.items()} == expected([7, 3, 3])
    assert len(planned) == 1


def test_datasets_without_values_and_of_other_lengths_are_planned(tmp_path, planned):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file[f"g{number}/long"] = np.arange(number + 1)
            file.create_dataset(f"g{number}/absent", (2,), "i8", fillvalue=7)
    with open_rows(tmp_path / "a.h5", Groups("g*")) as reader:
        assert [each.tolist() for each in reader.read(["long"], [2, 0])["long"]] == [[0, 1, 2], [0]]
        assert reader.read(["absent"], [2, 0])["absent"].tolist() == [[7, 7], [7, 7]]
    assert len(planned) == 2


def test_a_file_that_was_cut_short_is_an_error(tmp_path):
    path = made(tmp_path / "a.h5")
    with open_rows(path, Groups("g*")) as reader:
        reader.read(["x"], [1])
        os.truncate(path, 600)
        with pytest.raises(StaleIndexError):
            reader.read(["x"], range(COUNT))
