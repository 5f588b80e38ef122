"""Rows that follow each other: nothing is listed one by one, and what comes is the same."""

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.read.reader import RowReader
from tests.hdf5.h5kit import assert_same, random_rows

STARTS, COUNTS = st.integers(0, 60), st.integers(1, 60)
RANGES = st.builds(Request.range, first=STARTS, place=STARTS, count=COUNTS)


def assert_same_request(found, expected):
    assert found.listed().rows.tolist() == expected.listed().rows.tolist()
    assert found.listed().places.tolist() == expected.listed().places.tolist()


@given(rows=RANGES)
def test_a_range_is_what_it_lists(rows):
    listed = rows.listed()
    assert listed.counts is None
    assert rows.num_rows == listed.num_rows == len(listed)
    assert request_of(listed.rows, listed.places).is_range
    for request in (request_of(listed.rows, listed.places), listed.joined(), rows.joined()):
        assert_same_request(request, listed)


@given(rows=st.lists(st.integers(0, 9), min_size=1, max_size=5), place=STARTS)
def test_what_is_no_range_is_not_taken_for_one(rows, place):
    places = np.arange(len(rows)) + place
    request = request_of(np.array(rows), places)
    found = sorted(zip(request.listed().rows.tolist(), request.listed().places.tolist(), strict=True))
    assert found == sorted(zip(rows, places.tolist(), strict=True))
    assert request.is_range == (rows == list(range(rows[0], rows[0] + len(rows))))


def test_calls_of_a_whole_column(tmp_path):
    values = random_rows((900_000,), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, chunks in (("contiguous", None), ("chunks", (1000,))):
            file.create_dataset(name, data=values, chunks=chunks)
    for name in ("contiguous", "chunks"):
        reader = RowReader(tmp_path / "a.h5")
        assert_same(reader.read([name])[name], values)
        assert reader.stats.requests <= 20, "parts of the chunk index are between chunks"
        assert reader.stats.bytes_read == values.nbytes


def test_chunks_with_gaps_between_them_are_read_several_at_once(tmp_path):
    values = random_rows((20_000,), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        both = [file.create_dataset(name, values.shape, "f4", chunks=(50,)) for name in ("x", "y")]
        for i in range(0, len(values), 50):
            for dataset in both:
                dataset[i : i + 50] = values[i : i + 50]
                dataset.flush()
    reader = RowReader(tmp_path / "a.h5")
    assert_same(reader.read(["x"])["x"], values)
    assert reader.stats.requests <= 20
