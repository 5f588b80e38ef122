"""What a read costs, in chunks, bytes and requests rather than in seconds."""

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.read.arrays import plan_boxes
from ray_h5.storage.local import LocalFile
from tests.hdf5.h5kit import by_h5py, dataset_with, plist_with, random_rows, stored_chunks
from tests.kit.files import save

SHUFFLED = np.random.default_rng(0).permutation(40)
GZIP = {"chunks": (4, 300), "compression": "gzip"}
SPLIT = {"chunks": (4, 100), "compression": "gzip"}

# rows, and the rows of chunks (four rows each) that hold them
ROWS = [
    (slice(None), range(10)),
    (slice(None, None, -1), range(10)),
    (SHUFFLED, range(10)),
    ([5], [1]),
    ([5, 5, 5], [1]),
    ([39, 0, 39, 1], [0, 9]),
    ([0, 4, 8, 3, 7, 11], [0, 1, 2]),
    (slice(10, 14), [2, 3]),
    ([], []),
    (np.arange(40) == 17, [4]),
    (np.repeat(SHUFFLED, 3), range(10)),
]


@pytest.fixture
def fetched(monkeypatch):
    """Record the byte ranges that are read."""
    ranges = []
    read_into = LocalFile.read_into

    def recording(self, offset, buffer):
        ranges.append((offset, offset + len(buffer)))
        read_into(self, offset, buffer)

    monkeypatch.setattr(LocalFile, "read_into", recording)
    monkeypatch.setattr(LocalFile, "descriptor", None)
    return ranges


def covered(chunks):
    return sum(chunk.size for chunk in chunks)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("storage", [GZIP, SPLIT], ids=["rows", "split"])
def test_each_chunk_is_fetched_and_decoded_once(tmp_path, fetched, storage, threads):
    path = save(tmp_path / "a.h5", {"x": random_rows((40, 300))}, **storage)
    for rows, touched in ROWS:
        wanted = [chunk for chunk in stored_chunks(path, "x") if chunk.chunk_offset[0] // 4 in touched]
        others = [chunk for chunk in stored_chunks(path, "x") if chunk not in wanted]
        reader = RowReader(path, threads=threads)
        fetched.clear()
        reader.read(["x"], rows)
        assert reader.stats.chunks_decoded == len(wanted)
        # No two chunks that are not neighbours are wanted here with a small gap between them.
        assert reader.stats.bytes_read == covered(wanted) == sum(stop - start for start, stop in fetched)
        assert reader.stats.requests == len(fetched) <= len(wanted)
        for chunk in others:
            end = chunk.byte_offset + chunk.size
            assert not any(start < end and chunk.byte_offset < stop for start, stop in fetched)


def test_neighbours_share_a_request(tmp_path):
    path = save(tmp_path / "a.h5", {"x": random_rows((40, 300))}, **GZIP)
    reader = RowReader(path)
    reader.read(["x"])
    assert reader.stats.requests < 10


def test_only_the_columns_asked_for_are_read(tmp_path):
    path = save(tmp_path / "a.h5", {"x": random_rows((40, 300)), "y": random_rows((40, 300), seed=1)}, **GZIP)
    reader = RowReader(path)
    reader.read(["y"], SHUFFLED)
    assert reader.stats.bytes_read == covered(stored_chunks(path, "y"))


class TestUnallocated:
    """Chunks that were never written cost nothing and hold the fill value."""

    @pytest.mark.parametrize("libver", ["earliest", "latest"])
    @pytest.mark.parametrize(
        "storage",
        [{"chunks": (4, 300)}, {"chunks": (4, 100)}, GZIP, SPLIT, {"chunks": (4, 100), "maxshape": (None, None)}],
    )
    def test_nothing_is_read(self, tmp_path, storage, libver):
        fills = {"none": None, "integer": 7, "float": -1.5}
        with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
            for name, fill in fills.items():
                file.create_dataset(name, (40, 300), "f4", fillvalue=fill, **storage)[8:12] = 3
        for name, fill in fills.items():
            reader = RowReader(tmp_path / "a.h5")
            found = reader.read([name], [0, 39, 0, 20])[name]
            assert np.all(found == (fill or 0))
            assert found.shape == (4, 300)
            stats = reader.stats
            assert (stats.requests, stats.bytes_read, stats.chunks_decoded) == (0, 0, 0)
            np.testing.assert_array_equal(reader.read([name])[name], by_h5py(tmp_path / "a.h5", name))
            assert reader.stats.bytes_read == covered(stored_chunks(tmp_path / "a.h5", name))

    def test_a_row_that_is_written_in_part(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", (8, 300), "i4", fillvalue=9, **SPLIT)
            file["x"][:, 100:200] = np.arange(100)
        reader = RowReader(tmp_path / "a.h5")
        np.testing.assert_array_equal(reader.read(["x"], [7, 0])["x"], by_h5py(tmp_path / "a.h5", "x", [7, 0]))
        assert reader.stats.chunks_decoded == 2

    @pytest.mark.parametrize("rows", [slice(None), [15, 0, 5]], ids=str)
    @pytest.mark.parametrize(
        ("chunk", "steps"),
        [((4,), ()), ((4,), (1,)), ((4,), (1, 1)), (None, ())],
        ids=["ours", "ours, gzip", "h5py", "contiguous"],
    )
    def test_a_column_that_may_not_be_filled(self, tmp_path, chunk, steps, rows):
        # With fill time NEVER libhdf5 leaves the buffer as it is: h5py's holds zeros, ours what it held before.
        plist = plist_with(chunk, steps)
        plist.set_fill_value(np.array(7, "i4"))
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            dataset = dataset_with(file, "x", (16,), plist)
            if chunk:
                dataset[4:8] = 5
        expected = by_h5py(tmp_path / "a.h5", "x", rows)
        out = np.full(len(expected), 0x55555555, "i4")
        RowReader(tmp_path / "a.h5").read_into({"x": out}, np.arange(16)[rows])
        np.testing.assert_array_equal(out, expected)


# A row of two pages is fetched alone; rows of a few bytes share the page that they are on.
LARGE, SMALL = 2048, 8


@pytest.mark.parametrize("storage", [{}, {"chunks": (16, LARGE)}, {"chunks": (40, LARGE)}])
def test_large_rows_stored_as_they_are_are_read_alone(tmp_path, fetched, storage):
    values = np.arange(40 * LARGE, dtype="i4").reshape(40, LARGE)
    path = save(tmp_path / "a.h5", {"x": values}, **storage)
    for rows in ([7], [3, 4, 5], [39, 7, 0], [5, 3, 5], [2, 1, 0], SHUFFLED, [15, 16, 17], slice(None, None, 2)):
        reader = RowReader(path)
        fetched.clear()
        np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
        assert reader.stats.bytes_read == len(set(np.arange(40)[rows])) * LARGE * 4
        assert reader.stats.chunks_decoded == 0
        assert len({start for start, _ in fetched}) == len(fetched)


@pytest.mark.parametrize("storage", [{}, {"chunks": (8_000, SMALL)}])
def test_small_rows_stored_as_they_are_share_their_page(tmp_path, storage):
    values = np.arange(20_000 * SMALL, dtype="i4").reshape(20_000, SMALL)
    path = save(tmp_path / "a.h5", {"x": values}, **storage)
    reader = RowReader(path)
    rows = [19_000, 100, 3, 101, 12_000]
    np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
    assert len(rows) * SMALL * 4 <= reader.stats.bytes_read <= len(rows) * (4096 + SMALL * 4)
    assert reader.stats.requests == 3
    assert reader.stats.chunks_decoded == 0


def test_text_of_varying_length_is_decoded_a_chunk_once(tmp_path):
    path = save(tmp_path / "a.h5", {"x": [f"row {i}" for i in range(40)]}, chunks=(4,), compression="gzip")
    reader = RowReader(path)
    found = reader.read(["x"], [39, 0, 38, 1, 20, 0])["x"]
    assert found.tolist() == [b"row 39", b"row 0", b"row 38", b"row 1", b"row 20", b"row 0"]
    assert reader.stats.chunks_decoded == len({row // 4 for row in (39, 0, 38, 1, 20)})


OF_COLUMNS = [
    ("f4", (6000, 33), (6000, 1)),
    ("i2", (5000, 4, 9), (1700, 2, 3)),
    ("S3", (4000, 12), (4000, 5)),
    (">f8", (5000, 7), (600, 2)),
]


@pytest.mark.parametrize("rows", ["all", "half", "twice", "few", "parts"])
@pytest.mark.parametrize(("dtype", "shape", "chunks"), OF_COLUMNS)
def test_shuffled_rows_of_chunks_that_hold_little_of_a_row(tmp_path, monkeypatch, dtype, shape, chunks, rows):
    """As column stores write them: no piece is planned for each value of most of the rows."""
    rng = np.random.default_rng(len(rows))
    values = rng.integers(0, 99, shape).astype(dtype)
    path = save(tmp_path / "a.h5", {"x": values}, chunks=chunks, compression="gzip", compression_opts=1)
    every = rng.permutation(len(values))
    wanted = {
        "all": every,
        "half": every[: len(every) // 2],
        "twice": rng.integers(0, len(every), 2 * len(every)),
        "few": every[:20],
        "parts": np.concatenate([rng.permutation(1000), rng.permutation(1000) + len(every) - 1000]),
    }[rows]
    pieces, table = [], plan_boxes.BoxPlanner._table
    monkeypatch.setattr(
        plan_boxes.BoxPlanner, "_table", lambda *args: [pieces.append(len(args[5].begins)), table(*args)][1]
    )
    with RowReader(path) as reader:
        assert np.array_equal(reader.read(["x"], wanted)["x"], values[wanted])
        out = np.full((len(wanted) + 3, *shape[1:]), 7, "S5" if dtype == "S3" else "f8")
        places = rng.permutation(len(out))[: len(wanted)]
        reader.read_into({"x": out}, wanted, places)
    assert np.array_equal(out[places], values[wanted].astype(out.dtype))
    assert rows == "few" or sum(pieces) < 5_000
