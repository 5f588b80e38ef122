"""The parts that decide which row has which position in an epoch: an error names those that differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ray_h5.errors import PositionError
from ray_h5.options import check_count
from ray_h5.planning.epoch.order import Order
from ray_h5.planning.index.file_table import FileTable

_NEWER = frozenset({"rows_per_epoch", "draws", "lengths"})
"""Parts that a position of an earlier version does not have."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Files, selected rows and shuffle, as numbers and digests.

    Attributes
    ----------
    num_files, file_rows : int
        Files, and the rows in them.
    names, starts : str
        Digests of the names of the files, and of how many rows each has.
    num_rows : int
        Selected rows.
    selection : str
        Digest of the selected rows; empty if all are selected.
    unit : str, optional
        What is drawn; None without a shuffle.
    window_rows, chunk_group_rows : int, optional
        If chunks are drawn: rows that are mixed with each other, and rows of a chunk group.
    rows_per_epoch : int, optional
        If the shuffle says how many rows an epoch has, or has weights. A position of an earlier version has none.
    draws : str
        Digest of what the weights of the shuffle became; empty without weights.
    lengths : str
        Digest of the lengths, windows and runs, if rows come by length.
    """

    num_files: int
    file_rows: int
    names: str
    starts: str
    num_rows: int
    selection: str
    unit: str | None
    window_rows: int | None
    chunk_group_rows: int | None
    rows_per_epoch: int | None = None
    draws: str = ""
    lengths: str = ""

    def __post_init__(self) -> None:
        for name in ("num_files", "file_rows", "num_rows"):
            check_count(f"Position: plan: {name}", getattr(self, name), 0)
        for name in ("window_rows", "chunk_group_rows", "rows_per_epoch"):
            if getattr(self, name) is not None:
                check_count(f"Position: plan: {name}", getattr(self, name), 1)
        for name in ("names", "starts", "selection", "draws", "lengths"):
            if not isinstance(getattr(self, name), str):
                raise PositionError(f"Position: plan: {name}={getattr(self, name)!r}: expected a string")
        if self.unit not in (None, "rows", "chunks", "files"):
            raise PositionError(f"Position: plan: unit={self.unit!r}: expected None, 'rows', 'chunks' or 'files'")

    @classmethod
    def from_dict(cls, found: Any) -> Fingerprint:
        """Return the fingerprint that `dataclasses.asdict` described."""
        names = {each.name for each in fields(cls)}
        if not isinstance(found, Mapping) or not names - _NEWER <= set(found) <= names:
            raise PositionError(f"Position: plan: expected {', '.join(sorted(names))}, found {found!r}")
        return cls(**found)

    def shuffle(self, seed: int) -> str:
        """Return the shuffle as a user writes it."""
        if self.unit is None:
            return "None"
        window = f", window_rows={self.window_rows}" if self.unit == "chunks" else ""
        weights = ", weights=..." if self.draws else ""
        count = "" if self.rows_per_epoch is None else f", rows_per_epoch={self.rows_per_epoch}"
        lengths = ", by_length=..." if self.lengths else ""
        return f"Shuffle({self.unit!r}, seed={seed}{window}{weights}{count}{lengths})"

    def differences(self, other: Fingerprint) -> list[str]:
        """Return the differences, each in the form ``"3 files, not 4"``: the value of this one first."""
        return [*self._file_differences(other), *self._row_differences(other), *self._shuffle_differences(other)]

    def _file_differences(self, other: Fingerprint) -> list[str]:
        found = []
        if self.num_files != other.num_files:
            found.append(f"{self.num_files} files, not {other.num_files}")
        elif self.names != other.names:
            found.append("files of other names")
        if self.file_rows != other.file_rows:
            found.append(f"{self.file_rows} rows in the files, not {other.file_rows}")
        elif self.num_files == other.num_files and self.starts != other.starts:
            found.append("files with other numbers of rows")
        return found

    def _row_differences(self, other: Fingerprint) -> list[str]:
        if self.selection == other.selection:
            return []
        if self.num_rows != other.num_rows:
            return [f"a predicate that selects {self._selected()}, not {other._selected()}"]
        return [f"a predicate that selects {self._selected()}, but not the same"] if self.starts == other.starts else []

    def _selected(self) -> str:
        return f"{self.num_rows} rows" if self.selection else f"all {self.num_rows} rows"

    def _shuffle_differences(self, other: Fingerprint) -> list[str]:
        if self.unit != other.unit:
            return [f"{_drawn(self.unit)}, not {_drawn(other.unit)}"]
        found = []
        if self.window_rows != other.window_rows:
            found.append(f"window_rows {self.window_rows}, not {other.window_rows}")
        if self.chunk_group_rows != other.chunk_group_rows:
            found.append(
                f"chunks of {self.chunk_group_rows} rows, not {other.chunk_group_rows} (the widest column decides: "
                "columns= of the run before, and files that are stored as they were)"
            )
        if self.rows_per_epoch != other.rows_per_epoch:
            found.append(f"rows_per_epoch {self.rows_per_epoch}, not {other.rows_per_epoch}")
        if self.draws != other.draws:
            found.append(f"{_weighted(self.draws)}, not {_weighted(other.draws)}")
        if self.lengths != other.lengths:
            found.append(f"{_by_length(self.lengths)}, not {_by_length(other.lengths)}")
        return found


def fingerprint(files: FileTable, selection: np.ndarray | None, order: Order) -> Fingerprint:
    """Return the fingerprint of the files, the selected rows and the order of a plan."""
    return Fingerprint(
        num_files=len(files),
        file_rows=files.num_rows,
        names=_digest(b"".join(path.rsplit(b"/", 1)[-1] + b"\0" for path in files.paths.to_pylist())),
        starts=_digest(files.starts.tobytes()),
        num_rows=order.num_rows,
        selection="" if selection is None else _digest(np.ascontiguousarray(selection).data),
        unit=None if order.shuffle is None else order.shuffle.unit,
        window_rows=order.window_rows,
        chunk_group_rows=order.chunk_group_rows,
        rows_per_epoch=None if order.shuffle is None else order.shuffle.rows_per_epoch,
        draws="" if order.draws is None else order.draws.digest().hex(),
        lengths="" if order.runs is None else order.runs.digest().hex(),
    )


def _drawn(unit: str | None) -> str:
    return "in path order" if unit is None else f"shuffled by {unit}"


def _weighted(draws: str) -> str:
    return f"weights of digest {draws}" if draws else "no weights"


def _by_length(lengths: str) -> str:
    return f"by_length (lengths, window_rows and run_rows of digest {lengths})" if lengths else "no by_length"


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
