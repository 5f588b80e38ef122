"""Bench `patches`: blocks of a volume and of its labels, drawn, on a grid whose blocks overlap, and aligned.

`h5py slices` is the usual dataset: a selection of an open file for each block and array, stacked. `whole volume` is
torchio's way: a batch loads the arrays, and cuts its blocks out of memory. `pread+decode` reads each chunk that a batch
touches once, decodes it, and copies nothing: no reader can do with less. Blocks that overlap copy each value several
times, so there is no goal for these.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.index.file_options import FileOptions
from ray_h5.rows.patches import Patches
from tests.bench.baselines.group_reads import dataset_extents, decode_extents
from tests.bench.baselines.h5py_reads import Decoder, Extent
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.bench import BenchOptions

__all__ = ["bench_patches", "make_volume"]

_SIDE = 320
_CHUNK = 32
_BLOCK = (64, 64, 64)
_SHAPES = {"raw": _BLOCK, "label": _BLOCK}
_BATCHES, _BATCH = 4, 8
_VERSION = 1

_CASES: dict[str, tuple[Patches, dict[str, float | None]]] = {
    "drawn": (Patches(_SHAPES, per_file=1000), {"h5py slices": 2.0, "whole volume": 5.0, "pread+decode": 0.85}),
    "aligned": (
        Patches(_SHAPES, per_file=1000, align=True),
        {"h5py slices": 2.0, "whole volume": 5.0, "pread+decode": 0.85},
    ),
    "grid": (Patches(_SHAPES, stride=16), {"h5py slices": 4.0, "pread+decode": None}),
}


def make_volume(folder: str | None = None, size: float = 1.0) -> str:
    """Return the file of a volume (uint16) and its labels, in gzip chunks; make it unless an earlier call has."""
    side = max(_BLOCK[0] + 1, round(_SIDE * size ** (1 / 3)))

    def write(made: str) -> None:
        rng = np.random.default_rng(side)
        with h5py.File(f"{made}/volume.h5", "w") as file:
            how = {"chunks": (_CHUNK,) * 3, "compression": "gzip", "shuffle": True}
            smooth = np.add.outer(np.add.outer(np.arange(side), np.arange(side)), np.arange(side))
            raw = (smooth + rng.integers(0, 64, (side,) * 3)).astype("u2")
            file.create_dataset("raw", data=raw, **how)
            file.create_dataset("label", data=(smooth // 100).astype("u1"), **how)

    return f"{cached_folder(folder, f'volume-{_VERSION}-{side}', write)}/volume.h5"


def bench_patches(options: BenchOptions) -> list[Result]:
    """Measure batches of blocks, and count the chunks that they decode.

    Raises
    ------
    RuntimeError
        If our bytes differ from h5py's.
    """
    path = make_volume(options.folder, options.size)
    return [result for case in _CASES for result in _measure(path, case, options.turns)]


def _measure(path: str, case: str, turns: int) -> list[Result]:
    kind, goals = _CASES[case]
    names = list(_SHAPES)
    index = FileOptions.of(path, rows=kind).index([*names, Patches.corner])
    rng = np.random.default_rng(0)
    with index.scope.open(path) as reader, h5py.File(path) as file:
        # The rows of each turn, and of the warm-up before them; every contestant takes them in this order.
        first = rng.integers(0, max(1, index.num_rows - _BATCH * _BATCHES), turns + 1)
        draws = [
            [rng.integers(0, index.num_rows, _BATCH) for _ in range(_BATCHES)]
            if case != "grid"
            else list(np.split(np.arange(start, start + _BATCH * _BATCHES) % index.num_rows, _BATCHES))
            for start in first.tolist()
        ]
        corners = [[reader.read([Patches.corner], rows)[Patches.corner].tolist() for rows in of] for of in draws]
        extents = {name: dataset_extents(file[name]) for name in names}
        needed = [[_needed(extents, file[names[0]].shape, of) for of in turn] for turn in corners]
        decoders = {name: _decoder(reader.base.column(name).chunk_bytes, reader.base.column(name)) for name in names}
        _verify(path, reader.read(names, draws[0][0]), _sliced(file, corners[0][0]))
        ours, theirs, cut, chunks = iter(draws), iter(corners), iter(corners), iter(needed)
        contestants: dict[str, Callable[[], object]] = {
            OURS: lambda: [len(reader.read(names, rows)) for rows in next(ours)],
            "h5py slices": lambda: [len(_sliced(file, of)) for of in next(theirs)],
            "whole volume": lambda: [len(_sliced({name: file[name][()] for name in names}, of)) for of in next(cut)],
            "pread+decode": lambda: [len(decode_extents(path, found, decoders)) for found in next(chunks)],
        }
        seconds = run_turns({name: contestants[name] for name in [OURS, *goals]}, turns)
        before = reader.stats.chunks_decoded
        for rows in draws[0]:
            reader.read(names, rows)
        decoded = reader.stats.chunks_decoded - before
    share = decoded / sum(len(found) for of in needed[0] for found in of.values())
    contest = Contest("patches", case, seconds)
    amount = _BATCH * _BATCHES
    results = [contest.against(each, amount=amount, unit="blocks/s", goal=goal) for each, goal in goals.items()]
    count = Result("patches", f"{case}, decoded", "-", "/unique", share, None, None, (share, share), 1, share <= 1)
    return [*results, count]


def _sliced(file: Mapping[str, Any], corners: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    cuts = [tuple(slice(low, low + n) for low, n in zip(corner, _BLOCK, strict=True)) for corner in corners]
    return {name: np.stack([file[name][cut] for cut in cuts]) for name in _SHAPES}


def _needed(
    extents: dict[str, list[Extent]], shape: Sequence[int], corners: Sequence[Sequence[int]]
) -> dict[str, list[Extent]]:
    """Return the chunks that blocks touch, in the order of the file."""
    counts = [-(-n // _CHUNK) for n in shape]
    touched = {
        int(np.ravel_multi_index(cell, counts))
        for corner in corners
        for cell in product(
            *(range(low // _CHUNK, (low + n - 1) // _CHUNK + 1) for low, n in zip(corner, _BLOCK, strict=True))
        )
    }
    return {name: sorted(found[number] for number in touched) for name, found in extents.items()}


def _decoder(nbytes: int, layout: object) -> Decoder:
    stored, decoded, *between = (np.empty(nbytes * 2, np.uint8) for _ in range(4))
    return Decoder(ChunkDecoder(layout.pipeline, nbytes), stored, decoded[:nbytes], tuple(between))  # type: ignore[attr-defined]


def _verify(path: str, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name, expected in theirs.items():
        if ours[name].tobytes() != expected.tobytes():
            raise RuntimeError(f"{path}: the bytes of {name!r} differ from those that h5py reads")
