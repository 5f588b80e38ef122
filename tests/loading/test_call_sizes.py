"""How many batches each call of a loader reads."""

import h5py
import numpy as np
import pytest

from ray_h5 import H5DataLoader, H5Dataset, OrderSampler, Shuffle, loader, ragged
from ray_h5.plan import row_source
from ray_h5.read.jobs import ReadStats
from ray_h5.read.joint_columns import JointColumns
from ray_h5.storage.request_pool import Stop
from tests.kit.files import save

MIB = 1 << 20


@pytest.mark.parametrize(
    ("row_bytes", "threads", "chunk_rows", "prefetch_factor", "expected"),
    [
        (MIB // 64, 0, None, None, [1, 4, 16, 16, 3]),  # at most 16 MiB
        (MIB // 16, 0, None, None, [1, *[4] * 9, 3]),
        (MIB // 64, 2, None, None, [1, 4, 16, 10, 5, 2, 1, 1]),  # the last ones are small: threads end together
        (MIB // 1024, 2, None, None, [1, 16, 16, 7]),  # not below 1 MiB
        (64, 1, None, None, [1, 39]),
        (MIB // 64, 0, 2, None, [1, 16, 23]),  # at most 40 MiB: chunks are decoded once a call
        (MIB // 8, 0, 2, None, [1, *[5] * 7, 4]),
        (MIB // 64, 0, None, 7, [1, 4, *[7] * 5]),
        (MIB // 64, 0, 2, 7, [*[7] * 5, 5]),
    ],
)
def test_the_first_call_is_small_and_others_grow_to_their_bounds(
    tmp_path, row_bytes, threads, chunk_rows, prefetch_factor, expected
):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        chunks = None if chunk_rows is None else (chunk_rows, row_bytes)
        file.create_dataset("x", (2560, row_bytes), "u1", chunks=chunks)
    dataset = H5Dataset(tmp_path / "a.h5", ["x"])
    sampler = OrderSampler(dataset, shuffle="rows", run_length=64)
    batches = H5DataLoader(dataset, 64, sampler, threads=threads, prefetch_factor=prefetch_factor)
    assert [len(call) for call in batches._calls(batches._order().tasks()[1], Stop()).calls()] == expected


@pytest.mark.parametrize(("window_rows", "expected"), [(1024, [128] * 4), (4096, [1, 16, *[40] * 12, 15])])
def test_a_window_of_ranges_is_read_at_once_if_it_is_not_too_large(tmp_path, window_rows, expected):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["end"] = (1 << 15) * np.arange(1, 4097)
        file.create_dataset("content", (4096 << 15,), "f8", chunks=(1 << 16,))  # 256 KiB a row, none of them written
    dataset = H5Dataset(tmp_path / "a.h5", [ragged("content", ends="end")])
    batches = loader(dataset, 8, shuffle=Shuffle("chunks", window_rows=window_rows), threads=0)
    sizes = [len(call) for call in batches._calls(batches._order().tasks()[1], Stop()).calls()]
    assert sum(sizes) == 512
    assert sizes == expected


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_resumed_epoch_decodes_each_chunk_once_too(tmp_path, world_size):
    save(tmp_path / "a.h5", {"x": np.arange(8192)}, chunks=64, compression="gzip")
    options = {"columns": ["x"], "shuffle": "chunks", "kept_bytes": 0, "threads": 0, "world_size": world_size}
    batches = loader(tmp_path / "a.h5", 16, **options, rank=0)
    assert batches._ordered.order.window_rows == 2048
    running = iter(batches)
    for _ in range(9):
        next(running)
    again = loader(tmp_path / "a.h5", 16, **options, rank=0)
    again.load_state_dict(batches.state_dict())
    sizes = [len(call) for call in again._calls(again._order().tasks()[1], Stop()).calls()]
    window = 2048 / 16 / world_size
    stops = np.cumsum([9, *sizes])
    assert all(abs(stop - round(stop / window) * window) < 1 for stop in stops[1:-1])
    again.load_state_dict(batches.state_dict())
    assert [batch.x.tolist() for batch in running] == [batch.x.tolist() for batch in again]


def test_shuffles_decode_chunks_of_many_rows_few_times(tmp_path, monkeypatch):
    save(tmp_path / "a.h5", {"x": np.zeros((4096, 8), "f4")}, chunks=(16, 8), compression="gzip")
    run_reads = row_source.run_reads
    monkeypatch.setattr(JointColumns, "of_files", lambda *_: None)  # it counts nothing

    def decoded(shuffle, batch_size):
        stats = ReadStats()
        monkeypatch.setattr(row_source, "run_reads", lambda *given, **more: stats.add(run_reads(*given, **more)))
        batches = loader(tmp_path / "a.h5", batch_size, columns=["x"], shuffle=shuffle, kept_bytes=0, threads=0)
        assert sum(len(batch.x) for batch in batches) == 4096
        return stats.chunks_decoded

    for shuffle in ("rows", "chunks"):
        assert 256 <= decoded(shuffle, 32) <= 3 * 256  # 3 calls: of 1 batch, of 16, and of the other 111
        assert decoded(shuffle, 64) == 256  # one call, as a batch alone would decode a fifth


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("batch_size", [100, 300, 2048, 3000])
def test_a_batch_in_two_windows_is_read_by_two_calls(tmp_path, monkeypatch, batch_size, threads):
    rows, names = np.arange(8192), np.array([f"n{i}" for i in range(8192)], object)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.stack([rows, rows], 1), chunks=(64, 2), compression="gzip")
        file.create_dataset("name", data=names, dtype=h5py.string_dtype())
        file["end"] = 2 * rows + 2
        file.create_dataset("content", data=np.repeat(rows, 2), chunks=64, compression="gzip")
    options = {"shuffle": Shuffle("chunks", window_rows=2048), "threads": threads, "kept_bytes": 0}
    columns = ["x", "name", ragged("content", ends="end")]
    order = []
    for batch in loader(tmp_path / "a.h5", batch_size, columns=columns, include_row_ids=True, **options):
        numbers = batch.row_id.tolist()
        assert batch.x.tolist() == [[i, i] for i in numbers]
        assert batch.name == [f"n{i}" for i in numbers]
        assert [each.tolist() for each in batch.content] == [[i, i] for i in numbers]
        assert len(numbers) == min(batch_size, 8192 - len(order))
        order += numbers
    assert sorted(order) == rows.tolist()
    monkeypatch.setattr(JointColumns, "of_files", lambda *_: None)  # it counts nothing
    batches = loader(tmp_path / "a.h5", batch_size, columns=["x"], **options)
    assert np.concatenate([batch.x for batch in batches])[:, 0].tolist() == order
    decoded = sum(each.stats.chunks_decoded for each in batches.dataset._source._readers.values())
    assert decoded == 128 or batch_size > 2048
