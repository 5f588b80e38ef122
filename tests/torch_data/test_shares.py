"""Ranks take whole windows of a shuffle in turn, so that the ranks of a node decode each chunk once together."""

import pickle

import h5py
import numpy as np
import pytest

from ray_h5.loading import row_source
from ray_h5.torch_data import loader

ROWS, CHUNK_ROWS = 4096, 16
CHUNKS = ROWS // CHUNK_ROWS


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "a.h5"
    with h5py.File(path, "w") as file:
        values = np.arange(ROWS, dtype="i4")[:, None, None] + np.arange(64, dtype="i4").reshape(8, 8)
        file.create_dataset("image", data=values, chunks=(CHUNK_ROWS, 8, 8), compression="gzip")
    return path


@pytest.mark.parametrize(("world_size", "times"), [(1, 1), (2, 1), (4, 1), (8, 2)])
@pytest.mark.parametrize("batch_size", [32, 64])
def test_all_ranks_together_decode_each_chunk_once(images, decoded, world_size, times, batch_size):
    # There are 4 windows: with 8 ranks, two share one.
    rows = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "kept_bytes": 0, "threads": 0}
        batches = list(loader(images, batch_size, shuffle="chunks", **options))
        rows.append(np.concatenate([batch.image[:, 0, 0].numpy() for batch in batches]))
    assert {len(each) for each in rows} == {ROWS // world_size}
    assert sorted(np.concatenate(rows).tolist()) == [*range(ROWS)]
    assert decoded() == times * CHUNKS


def test_ranks_share_the_default_of_kept_bytes(images, monkeypatch):
    monkeypatch.setattr(row_source, "KEPT_BYTES_A_FILE", ROWS * 256)
    for world_size, keeps in ((1, True), (2, False), (8, False)):
        batches = loader(images, 64, rank=0, world_size=world_size, threads=0)
        for _ in range(2):
            list(batches)
        held = batches.dataset.source.num_held()
        assert held == (ROWS if keeps else 0)
        again = pickle.loads(pickle.dumps(batches.dataset))
        assert again.source.keeps_all == keeps
    asked = loader(images, 64, rank=0, world_size=8, threads=0, kept_bytes=ROWS * 256)
    list(asked)
    assert asked.dataset.source.num_held() == ROWS / 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # one rank a node
    assert loader(images, 64, rank=0, world_size=8).dataset.source.keeps_all
