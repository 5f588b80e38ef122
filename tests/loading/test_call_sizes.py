"""How many batches each call of a loader reads."""

import h5py
import numpy as np
import pytest

from ray_h5.loading import row_source
from ray_h5.loading.read_calls import OF_RANGES, OF_SHARED_CHUNKS, CallSizes
from ray_h5.read.arrays.joint_columns import JointFiles
from ray_h5.read.jobs import ReadStats
from ray_h5.storage.stop import Stop
from ray_h5.torch_data import loader

MIB = 1 << 20


@pytest.mark.parametrize(
    ("options", "row_bytes", "threads", "expected"),
    [
        ({}, MIB // 64, 0, [1, 4, 16, 16, 3]),  # at most 16 MiB
        ({}, MIB // 16, 0, [1, *[4] * 9, 3]),
        ({}, None, 0, [1] * 40),
        ({}, MIB // 64, 2, [1, 4, 16, 10, 5, 2, 1, 1]),  # the last ones are small, so that threads end together
        ({"least_bytes": 8 * MIB}, MIB // 64, 2, [1, 8, 16, 8, 7]),  # not below 8 MiB
        ({}, MIB // 1024, 2, [1, 16, 16, 7]),  # not below 1 MiB
        ({}, 64, 1, [1, 39]),
        ({"bounds": OF_RANGES}, MIB // 64, 0, [1, 16, 23]),  # at most 80 MiB: chunks are decoded once a call
        ({"bounds": OF_RANGES}, MIB // 8, 0, [1, *[10] * 3, 9]),
        ({"bounds": OF_SHARED_CHUNKS}, MIB // 64, 0, [1, 16, 23]),  # at most 40 MiB
        ({"bounds": OF_SHARED_CHUNKS}, MIB // 8, 0, [1, *[5] * 7, 4]),
        ({"call_bytes": 8 * MIB}, MIB // 64, 0, [4, 16, 16, 4]),
        ({"prefetch_factor": 7}, MIB // 64, 0, [1, 4, *[7] * 5]),
    ],
)
def test_the_first_call_is_small_and_others_grow_to_their_bounds(options, row_bytes, threads, expected):
    batches = [[0] * 64] * 40
    calls = CallSizes(lambda: row_bytes, **options).calls(iter(batches), len(batches), threads)
    assert [len(call) for call in calls] == expected


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_resumed_epoch_decodes_each_chunk_once_too(tmp_path, world_size):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(8192), chunks=64, compression="gzip")
    options = {"columns": ["x"], "shuffle": "chunks", "kept_bytes": 0, "threads": 0, "world_size": world_size}
    batches = loader(tmp_path / "a.h5", 16, **options, rank=0)
    assert batches._ordered.order.window_rows == 2048
    running = iter(batches)
    for _ in range(9):
        next(running)
    again = loader(tmp_path / "a.h5", 16, **options, rank=0)
    again.load_state_dict(batches.state_dict())
    sizes = [len(call) for call in again._calls(Stop()).calls()]
    window = 2048 / 16 / world_size
    stops = np.cumsum([9, *sizes])
    assert all(abs(stop - round(stop / window) * window) < 1 for stop in stops[1:-1])
    again.load_state_dict(batches.state_dict())
    assert [batch.x.tolist() for batch in running] == [batch.x.tolist() for batch in again]


def test_shuffles_decode_chunks_of_many_rows_few_times(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((4096, 8), "f4"), chunks=(16, 8), compression="gzip")
    run_reads = row_source.run_reads
    monkeypatch.setattr(JointFiles, "of", lambda *_: None)  # it counts nothing

    def decoded(shuffle, batch_size):
        stats = ReadStats()
        monkeypatch.setattr(row_source, "run_reads", lambda *given, **more: stats.add(run_reads(*given, **more)))
        batches = loader(tmp_path / "a.h5", batch_size, columns=["x"], shuffle=shuffle, kept_bytes=0, threads=0)
        assert sum(len(batch.x) for batch in batches) == 4096
        return stats.chunks_decoded

    for shuffle in ("rows", "chunks"):
        assert 256 <= decoded(shuffle, 32) <= 3 * 256  # 3 calls: of 1 batch, of 16, and of the other 111
        assert decoded(shuffle, 64) == 256  # one call, as a batch alone would decode a fifth
