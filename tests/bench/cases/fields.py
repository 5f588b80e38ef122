"""Bench `fields`: some fields of compound values as tensors, against a plain reader of h5py.

`pread+decode` reads and decodes each chunk of a batch, and copies no field: the limit of compressed tracks.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ray_h5.columns.user_columns import fields
from ray_h5.index.file_options import FileOptions
from tests.bench.baselines.h5py_reads import chunk_decoders, pread_decode, stored_extents
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.bench import BenchOptions
    from tests.bench.baselines.h5py_reads import Decoder, Extent

__all__ = ["bench_fields"]

_ROWS, _TRACKS, _CHUNK = 40_000, 40, 100
_BATCH_ROWS, _RUN = 2000, 100
_CACHE_BYTES = 1 << 20
"""Of h5py: a larger chunk cache would hold the batch that the contestant before has just decoded."""

_NAMES = [f"f{i}" for i in range(21)]
_WANTED = ["f0", "f3", "f4", "f12"]
_FLOOR = "pread+decode"
_GOALS = {"h5py, fields": 1.5, "h5py, whole rows": 3.0}
_KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "lzf": {"chunks": (_CHUNK, _TRACKS), "compression": "lzf"},
    "gzip": {"chunks": (_CHUNK, _TRACKS), "compression": "gzip", "compression_opts": 1},
}


def bench_fields(options: BenchOptions) -> list[Result]:
    """Measure batches of runs of rows, as loaders of jets draw them: 4 of 21 fields of 40 tracks a row.

    Raises
    ------
    RuntimeError
        If a batch is not what h5py reads.
    """
    found: list[Result] = []
    rows = max(10 * _RUN, round(_ROWS * options.size) // _RUN * _RUN)
    runs = np.random.default_rng(0).permutation(rows // _RUN)[:, None] * _RUN + np.arange(_RUN)
    batches = [each.reshape(-1) for each in np.split(runs, range(_BATCH_ROWS // _RUN, len(runs), _BATCH_ROWS // _RUN))]
    for kind, stored in _KINDS.items():
        folder = cached_folder(options.folder, f"fields-{kind}-{rows}", partial(_write, rows, stored))
        path = os.path.join(folder, "a.h5")
        scope = FileOptions.of(path, columns=[fields("tracks", _WANTED)]).scope
        with scope.open(path) as reader, h5py.File(path, rdcc_nbytes=_CACHE_BYTES) as file:
            reads: dict[str, Callable[[np.ndarray], Any]] = {
                OURS: lambda order, reader=reader: reader.read(["tracks"], order)["tracks"],  # type: ignore[misc]
                "h5py, fields": partial(_some, file["tracks"]),
                "h5py, whole rows": partial(_whole, file["tracks"]),
            }
            if stored:
                chunks, decoders = stored_extents(file, ["tracks"]), chunk_decoders(reader.base, ["tracks"])
                reads[_FLOOR] = partial(_decode, path, chunks["tracks"], decoders)
            if not np.array_equal(reads[OURS](batches[0]), _whole(file["tracks"], batches[0])):
                raise RuntimeError(f"{path}: fields differ from those of h5py")
            contestants = {name: partial(_next, each, itertools.cycle(batches)) for name, each in reads.items()}
            contest = Contest("fields", f"{kind}, {len(batches[0])} rows", run_turns(contestants, options.turns))
        amount = len(batches[0]) * _TRACKS * len(_WANTED) * 4 / 1e6
        goals = {name: _GOALS.get(name) for name in reads if name != OURS}
        found += [contest.against(name, amount=amount, unit="MB/s", goal=goal) for name, goal in goals.items()]
    return found


def _next(read: Callable[[np.ndarray], Any], batches: Iterator[np.ndarray]) -> Any:
    return read(next(batches))


def _write(rows: int, stored: dict[str, Any], folder: str) -> None:
    rng = np.random.default_rng(0)
    values = np.zeros((rows, _TRACKS), [(name, "f4") for name in _NAMES])
    for name in _NAMES:
        values[name] = rng.integers(0, 999, values.shape)
    with h5py.File(os.path.join(folder, "a.h5"), "w") as file:
        file.create_dataset("tracks", data=values, **stored)


def _decode(path: str, chunks: Sequence[Extent], decoders: Mapping[str, Decoder], order: np.ndarray) -> None:
    pread_decode(path, {"tracks": [chunks[row // _CHUNK] for row in order[::_CHUNK].tolist()]}, decoders)


def _slices(dataset: Any, order: np.ndarray) -> np.ndarray:
    """Return rows, run after run: one by one they would take far longer."""
    return np.concatenate([dataset[first : first + _RUN] for first in order[::_RUN].tolist()])


def _some(dataset: h5py.Dataset, order: np.ndarray) -> np.ndarray:
    values = _slices(dataset.fields(_WANTED), order)
    return np.stack([values[name] for name in _WANTED], axis=-1)


def _whole(dataset: h5py.Dataset, order: np.ndarray) -> np.ndarray:
    values = _slices(dataset, order)
    return np.stack([values[name] for name in _WANTED], axis=-1)
