"""Rows that follow each other: nothing is listed one by one, and what comes is the same."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.manifest.row_requests import RowRange, RowRequest, request_of
from ray_h5.read.reader import RowReader
from tests.hdf5.h5kit import assert_same, by_h5py, random_rows

MEBIBYTE = 1 << 20
STARTS, COUNTS = st.integers(0, 60), st.integers(1, 60)
RANGES = st.builds(RowRange, first=STARTS, place=STARTS, count=COUNTS)


def assert_same_request(found, expected):
    assert found.listed().rows.tolist() == expected.listed().rows.tolist()
    assert found.listed().places.tolist() == expected.listed().places.tolist()


@given(rows=RANGES, start=COUNTS, stop=COUNTS)
def test_a_range_is_what_it_lists(rows, start, stop):
    listed = rows.listed()
    assert isinstance(listed, RowRequest)
    assert len(rows) == len(listed)
    assert rows.bounds == listed.bounds
    assert request_of(listed.rows, listed.places) == rows == listed.packed()
    for keep in (slice(start, stop), slice(None, None, 2), listed.rows % 3 == 0):
        assert_same_request(rows.select(keep), listed.select(keep))


@given(rows=st.lists(st.integers(0, 9), min_size=1, max_size=5), place=STARTS)
def test_what_is_no_range_is_not_taken_for_one(rows, place):
    places = np.arange(len(rows)) + place
    request = request_of(np.array(rows), places)
    found = sorted(zip(request.listed().rows.tolist(), request.listed().places.tolist(), strict=True))
    assert found == sorted(zip(rows, places.tolist(), strict=True))
    assert isinstance(request, RowRange) == (rows == list(range(rows[0], rows[0] + len(rows))))


@given(rows=RANGES, chunk_rows=st.integers(1, 20), row_bytes=st.sampled_from([0, 1, 100_000, MEBIBYTE, 3 * MEBIBYTE]))
def test_pieces_of_a_range(rows, chunk_rows, row_bytes):
    pieces = list(rows.pieces(chunk_rows, row_bytes))
    assert [row for piece in pieces for row in piece.listed().rows.tolist()] == rows.listed().rows.tolist()
    assert [at for piece in pieces for at in piece.listed().places.tolist()] == rows.listed().places.tolist()
    for piece in pieces:
        assert len(piece) * row_bytes <= MEBIBYTE or len(piece) <= chunk_rows
    assert all(piece.first % chunk_rows == 0 for piece in pieces[1:]), "no chunk is read twice"


STORAGES = {
    "contiguous": {},
    "chunks": {"chunks": (64, 5)},
    "one chunk": {"chunks": (5000, 5)},
    "gzip": {"chunks": (64, 5), "compression": "gzip"},
    "gzip, in parts": {"chunks": (64, 2), "compression": "gzip"},
    "through h5py": {"chunks": (64, 5), "scaleoffset": 0},
}


@pytest.mark.parametrize("user_block", [0, 512])
@pytest.mark.parametrize("storage", STORAGES)
def test_no_row_of_a_range_is_listed(tmp_path, monkeypatch, storage, user_block):
    values = random_rows((5000, 5), "i4")
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=user_block) as file:
        file.create_dataset("x", data=values, **STORAGES[storage])
    reader = RowReader(tmp_path / "a.h5")

    def listed(rows):
        assert len(rows) <= 64, "more than a chunk"
        return whole(rows)

    whole = RowRange.listed
    monkeypatch.setattr(RowRange, "listed", listed)
    for rows in (slice(None), slice(77, 4321), np.arange(64, 4992), slice(0, 0), slice(4999, None)):
        assert_same(reader.read(["x"], rows)["x"], values[rows])
    out = np.zeros((6000, 5), "i4")
    reader.read_into({"x": out}, np.arange(128, 1280), np.arange(128, 1280) + 3)
    assert_same(out, np.concatenate([np.zeros((131, 5), "i4"), values[128:1280], np.zeros((4717, 5), "i4")]))


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


def test_chunks_that_were_never_written_within_a_range(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (500, 3), "i2", chunks=(20, 3), fillvalue=-7)[100:333] = 5
        file.create_dataset("never", (500, 3), ">i2", chunks=(20, 3), fillvalue=-7)
    for name in ("x", "never"):
        for rows in (slice(None), slice(90, 400), slice(110, 130)):
            assert_same(RowReader(tmp_path / "a.h5").read([name], rows)[name], by_h5py(tmp_path / "a.h5", name, rows))
