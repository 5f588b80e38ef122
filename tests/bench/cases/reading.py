"""Benches of reading without a loader, and of the first epoch of files that are not in memory."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import h5py
import numpy as np

import ray_h5
from ray_h5.errors import OptionError
from ray_h5.index.file_options import FileOptions
from ray_h5.read.reader import RowReader
from tests.bench import BenchOptions
from tests.bench.baselines import epochs, reads
from tests.bench.files import SIGNALS, Layout, make_workload
from tests.bench.made_files import make_tracks, make_virtual
from tests.bench.measure import OURS, Case

Cases = Generator[Case, Any, None]


def bench_read(options: BenchOptions) -> Cases:
    """Measure whole columns and rows: one thread, files open and in the page cache, chunks looked up before.

    `pread` reads each stored chunk by one call and decodes nothing; `pread+decode` does so and decodes it.
    """
    signals, flat, images = (
        make_workload(name, options.folder, options.size) for name in ("signals", "flat", "images")
    )
    pair = ("image_u1", "image_f4")
    sets = [("signals", signals, signals.paths, SIGNALS, signals.layouts[0])]
    sets.append(("flat", flat, flat.paths, pair, flat.layouts[0]))
    for path, layout in zip(images.paths, images.layouts, strict=True):
        sets.append((f"images {layout.chunk_rows} {layout.pipeline}", images, (path,), pair, layout))
    rng = np.random.default_rng(0)
    for label, made, paths, columns, layout in sets:
        megabytes = made.row_bytes(columns) * len(paths) / 1e6
        with ExitStack() as stack:
            opened = _Opened(stack, paths, columns, layout)
            yield opened.whole_columns(f"{label} all", made.file_rows, megabytes)
            for fraction in (3, 8):
                rows = rng.choice(made.file_rows, max(1, made.file_rows // fraction), replace=False)
                for order, some in (("sorted", np.sort(rows)), ("random", rows)):
                    yield opened.some_rows(f"{label} rows 1/{fraction} {order}", some, megabytes)


class _Opened:
    """Files of one layout, open for all contestants."""

    def __init__(self, stack: ExitStack, paths: Sequence[str], columns: Sequence[str], layout: Layout) -> None:
        self._paths, self._columns, self._layout = paths, columns, layout
        self._files = [stack.enter_context(h5py.File(path, "r")) for path in paths]
        self._one, self._two = (
            [stack.enter_context(RowReader(path, threads=threads)) for path in paths] for threads in (1, 2)
        )
        self._extents = [{name: reads.extents_of(file[name]) for name in columns} for file in self._files]
        self._decoders = reads.Decoder.of(self._one[0], columns)

    def whole_columns(self, name: str, rows: int, megabytes: float) -> Case:
        arrays = {name: np.empty(self._files[0][name].shape, self._files[0][name].dtype) for name in self._columns}
        for path, file, reader in zip(self._paths, self._files, self._one, strict=True):
            reads.h5py_bulk(file, arrays)
            reads.verify_arrays(path, reader.read(self._columns), arrays)
        every = np.arange(rows)

        def ours(readers: Sequence[RowReader]) -> None:
            for reader in readers:
                reader.read_into(arrays, every)

        def bulk() -> None:
            for file in self._files:
                reads.h5py_bulk(file, arrays)

        contestants = {
            OURS: partial(ours, self._one),
            "2 threads": partial(ours, self._two),
            "h5py_bulk": bulk,
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
    if not hasattr(os, "posix_fadvise"):
        raise OptionError("bench cold needs os.posix_fadvise, which this system does not have; Linux has it")
    made = make_workload("signals", options.folder, options.size)
    paths, columns = list(made.paths), list(SIGNALS)
    of = partial(ray_h5.loader, paths, 64, columns=columns, shuffle=True, kept_bytes=0)
    epochs.verify_rows(paths, columns, of(threads=2))
    loops = reads.BareLoops(paths, columns, 64)
    with RowReader(paths[0]) as reader:
        decoders = list(reads.Decoder.of(reader, columns).values())
    hinted = "preads, hints 64 ahead"

    def plain() -> None:
        dataset = epochs.PlainH5Dataset(paths, columns, epochs.SMALL_CHUNK_CACHE)
        epochs.count_rows(epochs.torch_loader(dataset), made.rows)

    for threads in (2, 1):
        contestants = {
            OURS: lambda threads=threads: epochs.count_rows(of(threads=threads), made.rows),
            "plain_loader": plain,
            "preads": partial(loops.preads, 0),
            hinted: partial(loops.preads, 64),
            f"{hinted}, and decode": partial(loops.preads, 64, decoders),
        }
        goals = {"plain_loader": 5.0, "preads": None, hinted: 0.8, f"{hinted}, and decode": None}
        name = f"shuffled epoch, {threads} threads"
        yield Case(name, paths, contestants, made.rows, "rows/s", goals, is_cold=True)


def bench_fields(options: BenchOptions) -> Cases:
    """Measure batches of runs of rows, as loaders of jets draw them: 4 of 21 fields of 40 tracks a row."""
    names, wanted = [f"f{i}" for i in range(21)], ["f0", "f3", "f4", "f12"]
    rows = max(2000, round(40_000 * options.size) // 2000 * 2000)
    runs = np.random.default_rng(0).permutation(rows // 100)[:, None] * 100 + np.arange(100)
    batches = list(runs.reshape(-1, 2000))

    def slices(dataset: Any, order: np.ndarray) -> np.ndarray:
        # Run after run: one by one they would take far longer.
        values = np.concatenate([dataset[first : first + 100] for first in order[::100].tolist()])
        return np.stack([values[name] for name in wanted], axis=-1)

    for kind in ("contiguous", "lzf", "gzip"):
        path = make_tracks(options.folder, rows, names, kind)
        scope = FileOptions.of(path, columns=[ray_h5.fields("tracks", wanted)]).scope
        # A larger chunk cache would hold the batch that the contestant before has just decoded.
        with scope.open(path) as reader, h5py.File(path, rdcc_nbytes=1 << 20) as file:
            tracks = file["tracks"]
            ours = partial(reader.read, ["tracks"])
            reads.verify_arrays(path, ours(batches[0]), {"tracks": slices(tracks, batches[0])})
            contestants = {
                OURS: reads.drawn(ours, batches),
                "h5py, fields": reads.drawn(partial(slices, tracks.fields(wanted)), batches),
                "h5py, whole rows": reads.drawn(partial(slices, tracks), batches),
            }
            goals = {"h5py, fields": 1.5, "h5py, whole rows": 3.0}
            yield Case(f"{kind}, 2000 rows", [path], contestants, 2000 * 40 * 4 * 4 / 1e6, "MB/s", goals)


def bench_virtual(options: BenchOptions) -> Cases:
    """Measure shuffled rows of a virtual dataset over 100 files, and of 16 columns behind external links.

    No contestant keeps decoded chunks.
    """
    rows = max(128, round(3000 * options.size))
    rng = np.random.default_rng(0)
    order = rng.permutation(100 * rows)
    batches = [order[first : first + 2048] for first in range(0, len(order) - 2047, 2048)]
    linked = [rng.choice(rows, 128, replace=False) for _ in batches]
    names = [f"link{number}" for number in range(16)]
    for kind, least in (("contiguous", (3.0, 5.0)), ("gzip", (2.0, 2.0))):
        path = make_virtual(options.folder, rows, 100, 16, gzip=kind == "gzip")
        outside = [os.path.dirname(path)]
        with RowReader(path, allow_external=outside) as reader, h5py.File(path, rdcc_nbytes=0) as file:
            for what, draws, columns in (("2048 rows", batches, ["x"]), ("16 links", linked, names)):
                ways = {
                    OURS: partial(reader.read, columns),
                    "h5py, sorted": partial(reads.h5py_fancy, file, columns),
                    "h5py, row by row": partial(_one_by_one, file, columns),
                }
                expected = ways["h5py, sorted"](draws[0])
                for read in ways.values():
                    reads.verify_arrays(path, read(draws[0]), expected)
                contestants = {name: reads.drawn(read, draws) for name, read in ways.items()}
                megabytes = sum(array.nbytes for array in expected.values()) / 1e6
                goals = dict(zip(("h5py, sorted", "h5py, row by row"), least, strict=True))
                yield Case(f"{kind}, {what}", [path], contestants, megabytes, "MB/s", goals)


def _one_by_one(file: h5py.File, columns: Sequence[str], rows: np.ndarray) -> reads.Arrays:
    datasets = {name: file[name] for name in columns}
    return {name: np.stack([dataset[row] for row in rows.tolist()]) for name, dataset in datasets.items()}
