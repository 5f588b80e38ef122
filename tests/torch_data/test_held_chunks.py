"""Blocks that share chunks: a loader decodes each chunk once an epoch, or once, and delivers what h5py reads."""

import gc
import pickle
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ray_h5 import H5Dataset, OrderSampler, Patches, RowReader, Shuffle, loader
from ray_h5.errors import CorruptChunkError
from ray_h5.plan import row_source
from ray_h5.read.held_chunks import HeldChunks
from tests.hdf5.h5kit import flip
from tests.kit.files import save

SHAPES = {"raw": (10, 10, 10), "label": (10, 10, 10)}
CHUNKS = 3**3 * 2


@pytest.fixture
def volume(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, dtype in (("raw", "<u2"), ("label", "u1")):
            values = rng.integers(0, 200, (24, 24, 24)).astype(dtype)
            file.create_dataset(name, data=values, chunks=(8, 8, 8), compression="gzip", shuffle=True)
    return tmp_path / "a.h5"


def check(batches, path):
    """Assert that the blocks of an epoch are those that h5py reads, and return how many there are."""
    count = 0
    with h5py.File(path) as file:
        whole = {name: file[name][()] for name in SHAPES}
    for batch in batches:
        for place, corner in enumerate(batch["corner"].tolist()):
            cut = tuple(slice(low, low + 10) for low in corner)
            for name, values in whole.items():
                np.testing.assert_array_equal(batch[name][place], values[cut])
            count += 1
    return count


IMAGES = 25
"""Chunks of all rows of `images`."""


@pytest.fixture
def images(tmp_path):
    values = np.random.default_rng(0).integers(0, 9, (400, 6, 5)).astype("<f4")
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file.create_dataset("image", data=values, chunks=(16, 6, 5), compression="gzip", shuffle=True)
        file["number"] = np.arange(400)
    return tmp_path / "images.h5", values


@pytest.mark.parametrize("kept_bytes", [0, 10_000, None])
@pytest.mark.parametrize("shuffle", ["rows", "chunks"])
def test_batches_one_after_the_other_decode_each_chunk_once(images, decoded, kept_bytes, shuffle):
    path, values = images
    dataset = H5Dataset(path, ["image", "number"], kept_bytes=kept_bytes)
    sampler = OrderSampler(dataset, shuffle=shuffle, run_length=20)
    for epoch in range(2):
        numbers = []
        for batch in DataLoader(dataset, 20, sampler=sampler):
            np.testing.assert_array_equal(batch["image"], values[batch["number"]])
            numbers += batch["number"].tolist()
        assert sorted(numbers) == list(range(400))
        count = decoded()
        assert count == (0 if kept_bytes is None and epoch else IMAGES) or (kept_bytes and epoch and count < IMAGES)


def test_the_largest_window_that_is_chosen_by_default_stays_in_memory(tmp_path):
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("image", (2048, 1 << 14), "<f4", chunks=(128, 1 << 14), compression="gzip")
    sampler = OrderSampler(H5Dataset(tmp_path / "large.h5", ["image"]), run_length=64)
    assert sampler.order.window_rows * (4 << 14) == row_source._SHARED_BYTES


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 2}, {"threads": 2, "kept_bytes": 1000}])
def test_threads_of_a_loader_hold_no_chunk_of_rows_but_decode_it_once(images, options):
    path, values = images
    batches = loader(path, 20, columns=["image", "number"], shuffle="chunks", **{"kept_bytes": 0, **options})
    for _ in range(2):
        for batch in batches:
            np.testing.assert_array_equal(batch["image"], values[batch["number"]])
            assert not batches.dataset._source._held.total_bytes


@pytest.mark.parametrize("dtypes", [None, {"raw": "float32"}])
def test_chunks_of_drawn_blocks_stay_up_to_kept_bytes(volume, decoded, dtypes):
    batches = loader(volume, 4, rows=Patches(SHAPES, per_file=60), threads=0, dtypes=dtypes)
    assert check(batches, volume) == 60
    assert decoded() == CHUNKS
    assert check(batches, volume) == 60
    assert decoded() == 0


@pytest.mark.parametrize("threads", [0, 3])
def test_damaged_chunks_are_not_held(volume, threads):
    with h5py.File(volume) as file:
        chunk = file["raw"].id.get_chunk_info(13)
    flip(volume, chunk.byte_offset + chunk.size // 2, 8)
    batches = loader(volume, 4, rows=Patches(SHAPES, stride=4), threads=threads)
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match="column 'raw', chunk 13"):
            list(batches)


def chunks_decoded(batches):
    """Return how many chunks the readers of a loader have decoded."""
    return sum(each.stats.chunks_decoded for each in batches.dataset._source._readers.values())


@pytest.mark.parametrize(
    ("rows", "dtypes"),
    [
        (Patches(SHAPES, stride=4), None),
        (Patches(SHAPES, stride=4), {"raw": "float32"}),
        (Patches(SHAPES, per_file=60), None),
    ],
)
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("compiled", [True, False])
def test_an_epoch_decodes_each_chunk_once(volume, request, threads, rows, dtypes, compiled):
    if not compiled:
        request.getfixturevalue("steps_in_python")
    batches = loader(volume, 4, shuffle=Shuffle(seed=1), rows=rows, kept_bytes=0, threads=threads, dtypes=dtypes)
    for epoch in (1, 2):  # nothing is kept from epoch to epoch
        assert check(batches, volume) in {60, 125}
        assert chunks_decoded(batches) == epoch * CHUNKS


@given(
    nbytes=st.sampled_from([0, 1, 600, 5 << 10, 20 << 10, 64 << 20]),
    threads=st.integers(0, 3),
    batch=st.integers(1, 40),
    shuffle=st.sampled_from([None, "rows", "chunks"]),
    dtypes=st.sampled_from([None, {"raw": "float64"}]),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_equal_h5py_however_much_is_held(volume, nbytes, threads, batch, shuffle, dtypes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_source, "_SHARED_BYTES", nbytes)
        rows = Patches(SHAPES, stride=7)
        batches = loader(volume, batch, shuffle=shuffle, rows=rows, kept_bytes=0, threads=threads, dtypes=dtypes)
        for _ in range(2):
            assert check(batches, volume) == 27


# Ranks take whole windows of a shuffle in turn: those of a node decode each chunk once together --------------

ROWS, CHUNK_ROWS = 4096, 16


@pytest.fixture(scope="module")
def small_images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "a.h5"
    with h5py.File(path, "w") as file:
        values = np.arange(ROWS, dtype="i4")[:, None, None] + np.arange(64, dtype="i4").reshape(8, 8)
        file.create_dataset("image", data=values, chunks=(CHUNK_ROWS, 8, 8), compression="gzip")
    return path


@pytest.mark.parametrize(("world_size", "times"), [(1, 1), (2, 1), (4, 1), (8, 2)])
@pytest.mark.parametrize("batch_size", [32, 64])
def test_all_ranks_together_decode_each_chunk_once(small_images, decoded, world_size, times, batch_size):
    # There are 4 windows: with 8 ranks, two share one.
    rows = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "kept_bytes": 0, "threads": 0}
        batches = list(loader(small_images, batch_size, shuffle="chunks", **options))
        rows.append(np.concatenate([batch.image[:, 0, 0].numpy() for batch in batches]))
    assert {len(each) for each in rows} == {ROWS // world_size}
    assert sorted(np.concatenate(rows).tolist()) == [*range(ROWS)]
    assert decoded() == times * ROWS // CHUNK_ROWS


def test_ranks_share_the_default_of_kept_bytes(small_images, monkeypatch):
    monkeypatch.setattr(row_source, "KEPT_BYTES_A_FILE", ROWS * 256)
    for world_size, keeps in ((1, True), (2, False), (8, False)):
        batches = loader(small_images, 64, rank=0, world_size=world_size, threads=0)
        for _ in range(2):
            list(batches)
        held = batches.dataset.source.num_held()
        assert held == (ROWS if keeps else 0)
        again = pickle.loads(pickle.dumps(batches.dataset))
        assert again.source.keeps_all == keeps
    asked = loader(small_images, 64, rank=0, world_size=8, threads=0, kept_bytes=ROWS * 256)
    list(asked)
    assert asked.dataset.source.num_held() == ROWS / 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # one rank a node
    assert loader(small_images, 64, rank=0, world_size=8).dataset.source.keeps_all


def test_nothing_stays_of_a_file_whose_chunks_are_gone(tmp_path):
    held = HeldChunks(1 << 10)
    for number in range(20):
        path = save(tmp_path / f"{number}.h5", {"x": np.arange(100)}, chunks=(10,), compression="lzf")
        with RowReader(path) as reader:
            out = np.empty(2, "i8")
            reader.run(replace(reader.planned({"x": out}, [3, 50]), held=held))
        assert out.tolist() == [3, 50]
    gc.collect()
    assert 0 < held.total_bytes <= 1 << 10
    assert 0 < len(held._state.value._columns) <= (1 << 10) // 80
    held.clear()
    assert len(held._state.value._columns) == 0
