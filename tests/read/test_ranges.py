"""Rows that follow each other: nothing is listed one by one, and what comes is the same."""

import h5py

from ray_h5 import RowReader
from tests.hdf5.h5kit import assert_same, random_rows


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
