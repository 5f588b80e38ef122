"""Benches of reading without a loader, and of the first epoch of files that are not in memory."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import h5py
import numpy as np

import ray_h5
from ray_h5 import RowReader
from tests.bench import BenchOptions
from tests.bench.baselines import epochs, reads
from tests.bench.files import SIGNALS, Layout, make_workload
from tests.bench.measure import OURS, Case

Cases = Generator[Case, Any, None]


def bench_read(options: BenchOptions) -> Cases:
    """Measure whole columns and rows: one thread, files open and in the page cache, chunks looked up before.

    `pread` reads each stored chunk by one call and decodes nothing; `pread+decode` does so and decodes it.
    """
    signals, images = (make_workload(name, options.folder, options.size) for name in ("signals", "images"))
    sets = [("signals", signals, signals.paths, SIGNALS, signals.layouts[0])]
    for path, layout in zip(images.paths, images.layouts, strict=True):
        name = f"images {layout.chunk_rows or 'contiguous'} {layout.pipeline}"
        sets.append((name, images, (path,), ("image_u1", "image_f4"), layout))
    rng = np.random.default_rng(0)
    for label, made, paths, columns, layout in sets:
        megabytes = made.row_bytes(columns) * len(paths) / 1e6
        with ExitStack() as stack:
            opened = _Opened(stack, paths, columns, layout)
            yield opened.whole_columns(f"{label} all", made.file_rows, megabytes)
            rows = rng.choice(made.file_rows, max(1, made.file_rows // 3), replace=False)
            for order, some in (("sorted", np.sort(rows)), ("random", rows)):
                yield opened.some_rows(f"{label} rows 1/3 {order}", some, megabytes)


class _Opened:
    """Files of one layout, open for all contestants."""

    def __init__(self, stack: ExitStack, paths: Sequence[str], columns: Sequence[str], layout: Layout) -> None:
        self._paths, self._columns, self._layout = paths, columns, layout
        self._files = [stack.enter_context(h5py.File(path, "r")) for path in paths]
        self._one, self._two = (
            [stack.enter_context(RowReader(path, threads=threads)) for path in paths] for threads in (1, 2)
        )
        self._extents = [{name: reads.extents_of(file[name]) for name in columns} for file in self._files]
        self._decoders = {name: reads.Decoder(self._one[0].column(name)) for name in columns}

    def whole_columns(self, name: str, rows: int, megabytes: float) -> Case:
        arrays = {name: np.empty(self._files[0][name].shape, self._files[0][name].dtype) for name in self._columns}
        for path, file, reader in zip(self._paths, self._files, self._one, strict=True):
            reads.h5py_bulk(file, arrays)
            reads.verify_arrays(path, reader.read(self._columns), arrays)
        every = np.arange(rows)

        def ours(readers: Sequence[RowReader]) -> None:
            for reader in readers:
                reader.read_into(arrays, every)

        contestants = {
            OURS: partial(ours, self._one),
            "2 threads": partial(ours, self._two),
            "h5py_bulk": lambda: [reads.h5py_bulk(file, arrays) for file in self._files],
            "pread": partial(self._pread, self._extents),
            "pread+decode": partial(self._decode, self._extents),
        }
        is_plain = self._layout.pipeline == "none"
        goals: dict[Any, float | None] = {
            "h5py_bulk": 1.5 if is_plain else 1.1,
            ("2 threads", "h5py_bulk"): None if is_plain else 1.8,
            "pread": 0.8 if is_plain else None,
            "pread+decode": 0.95,
        }
        return Case(name, self._paths, contestants, rows * megabytes, "MB/s", goals)

    def some_rows(self, name: str, rows: np.ndarray, megabytes: float) -> Case:
        for path, file, reader in zip(self._paths, self._files, self._one, strict=True):
            fancy = reads.h5py_fancy(file, self._columns, rows)
            reads.verify_arrays(path, reader.read(self._columns, rows), fancy)
        contestants: dict[str, Any] = {
            OURS: lambda: [len(reader.read(self._columns, rows)) for reader in self._one],
            "h5py_fancy": lambda: [len(reads.h5py_fancy(file, self._columns, rows)) for file in self._files],
        }
        is_packed = self._layout.pipeline != "none" and self._layout.chunk_rows != 1
        goals: dict[Any, float | None] = {"h5py_fancy": 5.0 if is_packed else 20.0}
        if is_packed:
            chunks = np.unique(rows // self._layout.chunk_rows).tolist()
            needed = [{name: [stored[i] for i in chunks] for name, stored in each.items()} for each in self._extents]
            contestants["pread+decode"] = partial(self._decode, needed)
            goals["pread+decode"] = 0.95
        return Case(name, self._paths, contestants, len(rows) * megabytes, "MB/s", goals)

    def _pread(self, needed: Sequence[dict[str, list[reads.Extent]]]) -> None:
        for path, extents in zip(self._paths, needed, strict=True):
            reads.pread(path, [extent for stored in extents.values() for extent in stored])

    def _decode(self, needed: Sequence[dict[str, list[reads.Extent]]]) -> None:
        for path, extents in zip(self._paths, needed, strict=True):
            reads.pread_decode(path, extents, self._decoders)


def bench_cold(options: BenchOptions) -> Cases:
    """Measure the first epoch of files that are not in memory; a turn makes its loader or opens its files.

    `preads` are bare loops over the stored chunks, whose places are known before.
    """
    made = make_workload("signals", options.folder, options.size)
    paths, columns = list(made.paths), list(SIGNALS)
    of = partial(ray_h5.loader, paths, 64, columns=columns, shuffle=True, kept_bytes=0)
    epochs.verify_rows(paths, columns, of(threads=2))
    chunks = reads.StoredChunks(paths, columns)
    hinted = "preads, hints 64 ahead"

    def plain() -> None:
        dataset = epochs.PlainH5Dataset(paths, columns, epochs.SMALL_CHUNK_CACHE)
        epochs.count_rows(epochs.torch_loader(dataset), made.rows)

    for threads in (2, 1):
        contestants = {
            OURS: lambda threads=threads: epochs.count_rows(of(threads=threads), made.rows),
            "plain_loader": plain,
            "preads": partial(chunks.preads, 0),
            hinted: partial(chunks.preads, 64),
        }
        goals = {"plain_loader": 5.0, "preads": None, hinted: 0.8}
        name = f"shuffled epoch, {threads} threads"
        yield Case(name, paths, contestants, made.rows, "rows/s", goals, is_cold=True)
