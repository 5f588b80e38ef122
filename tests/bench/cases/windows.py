"""Bench `windows`: windows of 2 images and 16 actions of episodes, contiguous and in gzip chunks of one step.

`random` is a turn of batches of 64 windows of all episodes. `neighbouring` is one block of 1024 windows of a few
episodes, as a shuffle of chunks reads them. Each turn draws other windows. `h5py slices` opens the datasets of each
window by name, slices it and repeats steps at its ends, as robomimic does. `pread+decode` reads and decodes each chunk
that the same windows need once, without making windows of them.

Chunks are counted too: those decoded by one read of a block, for each chunk that the block needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.index.file_options import FileOptions
from ray_h5.rows.groups_and_grids import Groups
from ray_h5.rows.windows import Windows
from tests.bench.baselines.group_reads import dataset_extents, decode_extents, slice_windows
from tests.bench.baselines.h5py_reads import Decoder, Extent
from tests.bench.group_workloads import DEMO_PATTERN, GroupFile, make_demos
from tests.bench.measure import OURS, Contest, Result, run_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from ray_h5.index.row_index import RowIndex
    from ray_h5.rows.row_view import FileReader
    from tests.bench import BenchOptions

__all__ = ["bench_windows"]

_OFFSETS = {"obs/image": range(-1, 1), "actions": range(16)}
_BATCH = 64
_BATCHES = 8
_BLOCK = 1024
_EPISODES = 5

Rows = np.ndarray[Any, np.dtype[np.int64]]
Draw = list[Rows]


def bench_windows(options: BenchOptions) -> list[Result]:
    """Measure random and neighbouring windows in both layouts, and count the chunks that are decoded.

    Raises
    ------
    RuntimeError
        If our bytes differ from h5py's.
    """
    contiguous = make_demos(options.folder, options.size, gzip=False)
    gzip = make_demos(options.folder, options.size, gzip=True)
    results: list[Result] = []
    cases: list[tuple[GroupFile, str, dict[str, dict[str, float | None]]]] = [
        (contiguous, "contiguous", {"random": {"h5py slices": 5.0}, "neighbouring": {"h5py slices": 5.0}}),
        (
            gzip,
            "gzip",
            {
                "random": {"h5py slices": 2.5, "pread+decode": None},
                "neighbouring": {"h5py slices": 5.0, "pread+decode": 0.8},
            },
        ),
    ]
    for made, label, goals in cases:
        with _Demos(made) as demos:
            for order, least in goals.items():
                results += demos.measure(label, order, least, options.turns)
    return results


class _Demos:
    """One open file of episodes, for all contestants."""

    def __init__(self, made: GroupFile) -> None:
        self._path = made.path
        self._rng = np.random.default_rng(made.groups)
        options = FileOptions.of(made.path, rows=Groups(DEMO_PATTERN), windows=Windows(_OFFSETS))
        self._index: RowIndex = options.index(list(_OFFSETS))
        table = self._index.tables[0]
        assert table is not None
        assert table.groups is not None
        assert table.episode_lengths is not None
        self._groups, self._names, self._lengths = table.groups, table.groups.names, table.episode_lengths
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)])

    def __enter__(self) -> Self:
        self._file = h5py.File(self._path)
        self._reader: FileReader = self._index.scope.open(self._path, table=self._index.tables[0])
        self._extents: dict[tuple[str, int], list[Extent]] = {}
        self._decoders = self._find_decoders()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._file.close()

    def measure(self, label: str, order: str, goals: Mapping[str, float | None], turns: int) -> list[Result]:
        case = f"{label} {order}"
        drawn = self._draw(order)
        self._verify(drawn[0])
        # The rows of each turn, and of the warm-up before them; every contestant takes them in this order.
        draws = [self._draw(order) for _ in range(turns + 1)]
        ours, theirs, chunks = iter(draws), iter(draws), iter([self._unique(rows) for rows in draws])
        contestants: dict[str, Callable[[], object]] = {
            OURS: lambda: [len(self._reader.read(list(_OFFSETS), rows)) for rows in next(ours)],
            "h5py slices": lambda: [len(self._sliced(rows)) for rows in next(theirs)],
            "pread+decode": lambda: [len(decode_extents(self._path, found, self._decoders)) for found in next(chunks)],
        }
        seconds = run_turns({name: contestants[name] for name in [OURS, *goals]}, turns)
        contest = Contest("windows", case, seconds)
        amount = sum(map(len, drawn))
        results = [contest.against(each, amount=amount, unit="windows/s", goal=goal) for each, goal in goals.items()]
        return [*results, *([self._count(case, drawn)] if self._decoders else [])]

    def _draw(self, order: str) -> Draw:
        """Return the rows of the reads of one turn."""
        total = int(self._starts[-1])
        if order == "random":
            return [self._rng.integers(0, total, _BATCH) for _ in range(_BATCHES)]
        first = int(self._rng.integers(0, max(1, len(self._lengths) - _EPISODES + 1)))
        last = min(first + _EPISODES, len(self._lengths))
        rows = np.arange(self._starts[first], self._starts[last])
        return [self._rng.permutation(rows)[:_BLOCK]]

    def _windows(self, rows: Rows) -> list[tuple[str, int, int]]:
        """Return group, step, and length of the episode of rows."""
        episodes = np.searchsorted(self._starts, rows, side="right") - 1
        steps = rows - self._starts[episodes]
        return [
            (self._names[episode], step, int(self._lengths[episode]))
            for episode, step in zip(episodes.tolist(), steps.tolist(), strict=True)
        ]

    def _sliced(self, rows: Rows) -> dict[str, Any]:
        return slice_windows(self._file, self._windows(rows), _OFFSETS)

    def _unique(self, drawn: Draw) -> list[dict[str, list[Extent]]]:
        """Return the chunks that each read needs, in the order of the file; nothing if the file has no chunks."""
        if not self._decoders:
            return []
        found = []
        for rows in drawn:
            episodes = np.searchsorted(self._starts, rows, side="right") - 1
            at = rows - self._starts[episodes]
            extents: dict[str, list[Extent]] = {}
            for name, around in _OFFSETS.items():
                steps = np.clip(at[:, None] + np.array(around), 0, self._lengths[episodes][:, None] - 1)
                pairs = np.unique(np.stack([np.repeat(episodes, len(around)), steps.reshape(-1)]), axis=1)
                extents[name] = [self._chunks(name, e)[s] for e, s in zip(*pairs.tolist(), strict=True)]
            found.append(extents)
        return found

    def _chunks(self, name: str, episode: int) -> list[Extent]:
        if (name, episode) not in self._extents:
            self._extents[name, episode] = dataset_extents(self._file[f"{self._names[episode]}/{name}"])
        return self._extents[name, episode]

    def _find_decoders(self) -> dict[str, Decoder]:
        decoders = {}
        for name in _OFFSETS:
            layout = self._groups.columns[name].layouts[0]
            if layout.chunk_shape is None:
                return {}
            stored, decoded, *between = (np.empty(layout.chunk_bytes * 2, np.uint8) for _ in range(4))
            decoder = ChunkDecoder(layout.pipeline, layout.chunk_bytes)
            decoders[name] = Decoder(decoder, stored, decoded[: layout.chunk_bytes], tuple(between))
        return decoders

    def _count(self, case: str, drawn: Draw) -> Result:
        """Count the chunks that reads decode, for each that they need."""
        before = self._reader.stats.chunks_decoded
        for rows in drawn:
            self._reader.read(list(_OFFSETS), rows)
        decoded = self._reader.stats.chunks_decoded - before
        needed = sum(len(chunks) for found in self._unique(drawn) for chunks in found.values())
        share = decoded / needed
        return Result("windows", f"{case}, decoded", "-", "/unique", share, None, None, (share, share), 1, share <= 1)

    def _verify(self, rows: Rows) -> None:
        ours, theirs = self._reader.read(list(_OFFSETS), rows), self._sliced(rows)
        for name, expected in theirs.items():
            if ours[name].tobytes() != expected.tobytes():
                raise RuntimeError(f"{self._path}: the bytes of {name!r} differ from those that h5py reads")
