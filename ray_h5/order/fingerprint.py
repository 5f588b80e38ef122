"""What decides which row has which position in an epoch, and what it holds: an error names the parts that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

import numpy as np

from ray_h5.errors import PositionError
from ray_h5.manifest.file_table import FileTable, digest_of
from ray_h5.options import check_count
from ray_h5.order.epoch_order import Order


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Files, what a row holds, selected rows and shuffle, as numbers and digests. The seed is not among them.

    Attributes
    ----------
    num_files, file_rows : int
        Files, and the rows in them. No files, and all rows, if only the length of a dataset is known.
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
        If the shuffle says how many rows an epoch has, or has weights.
    draws : str
        Digest of what the weights of the shuffle became; empty without weights.
    lengths : str
        Digest of the lengths, windows and runs, if rows come by length.
    chunk_groups : str
        Digest of the chunk groups, if chunks or files are drawn.
    data : mapping of str to str
        What a row holds, by option; see `data_of_rows`. Empty if only the length of a dataset is known.
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
    chunk_groups: str = ""
    data: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_files", "file_rows", "num_rows"):
            check_count(f"Position: plan: {name}", getattr(self, name), 0)
        for name in ("window_rows", "chunk_group_rows", "rows_per_epoch"):
            if getattr(self, name) is not None:
                check_count(f"Position: plan: {name}", getattr(self, name), 1)
        for name in ("names", "starts", "selection", "draws", "lengths", "chunk_groups"):
            if not isinstance(getattr(self, name), str):
                raise PositionError(f"Position: plan: {name}={getattr(self, name)!r}: expected a string")
        texts = [text for pair in self.data.items() for text in pair] if isinstance(self.data, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise PositionError(f"Position: plan: data={self.data!r}: expected texts by their names")
        if self.unit not in (None, "auto", "rows", "chunks", "files"):
            raise PositionError(
                f"Position: plan: unit={self.unit!r}: expected None, 'auto', 'rows', 'chunks' or 'files'"
            )

    @property
    def epoch_rows(self) -> int:
        """Rows of an epoch without its tail; that of `Order`."""
        return self.num_rows if self.rows_per_epoch is None else self.rows_per_epoch

    @classmethod
    def from_dict(cls, state: Any) -> Fingerprint:
        """Return the fingerprint that `to_dict` described."""
        names = {field.name for field in fields(cls)}
        # Those with a default came later: orders that have nothing of them are the same without.
        needed = {field.name for field in fields(cls) if field.default is field.default_factory is MISSING}
        if isinstance(state, Mapping) and state.get("parts") == []:  # an earlier version stored that
            state = {name: value for name, value in state.items() if name != "parts"}
        if not isinstance(state, Mapping) or not needed <= set(state) <= names:
            raise PositionError(f"Position: plan: expected {', '.join(sorted(names))}, found {state!r}")
        return cls(**state)

    def to_dict(self) -> dict[str, Any]:
        """Return the fingerprint as plain values."""
        return asdict(self)

    def differences(self, other: Fingerprint) -> list[str]:
        """Return how another one differs, each in the form ``"3 files, not 4"``: the value of this one first."""
        differ = {field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)}
        found = []
        for name, (text, unless) in _DIFFERENCES.items():
            if name in differ and not differ & unless:
                found.append(text.format(*(_shown(name, getattr(one, name)) for one in (self, other))))
        if "selection" in differ:
            mine, theirs = (f"{'' if one.selection else 'all '}{one.num_rows} rows" for one in (self, other))
            apart = "but not the same" if mine == theirs else f"not {theirs}"
            found.append(f"a predicate that selects {mine}, {apart}")
        for name in sorted({*self.data} | {*other.data}):
            mine, theirs = self.data.get(name, ""), other.data.get(name, "")
            if mine != theirs:
                found.append(f"{name} {_apart(mine or 'not said', theirs)}, not {_apart(theirs or 'said', mine)}")
        return found

    def shuffle(self, seed: int) -> str:
        """Return the shuffle as a user writes it."""
        if self.unit is None:
            return "None"
        window = f", window_rows={self.window_rows}" if self.unit == "chunks" else ""
        weights = ", weights=..." if self.draws else ""
        count = "" if self.rows_per_epoch is None else f", rows_per_epoch={self.rows_per_epoch}"
        lengths = ", by_length=..." if self.lengths else ""
        return f"Shuffle({self.unit!r}, seed={seed}{window}{weights}{count}{lengths})"


_CHUNKS = "the widest column decides: columns= of the run before, and files that are stored as they were"
_UNIT = frozenset({"unit"})
_DIFFERENCES: dict[str, tuple[str, frozenset[str]]] = {
    "num_files": ("{} files, not {}", frozenset()),
    "names": ("files of other names", frozenset({"num_files"})),
    "file_rows": ("{} rows in all, not {}", frozenset()),
    "starts": ("files with other numbers of rows", frozenset({"num_files", "file_rows"})),
    "unit": ("{}, not {}", frozenset()),
    "window_rows": ("window_rows {}, not {}", _UNIT),
    "chunk_group_rows": (f"chunks of {{}} rows, not {{}} ({_CHUNKS})", _UNIT),
    "chunk_groups": (
        f"other rows that share chunks ({_CHUNKS})",
        _UNIT | {"names", "starts", "selection", "chunk_group_rows"},
    ),
    "rows_per_epoch": ("rows_per_epoch {}, not {}", _UNIT),
    "draws": ("weights of digest {}, not {}", _UNIT),
    "lengths": ("by_length (lengths, window_rows and run_rows) of digest {}, not {}", _UNIT),
}
"""What a field that differs is said to be, and those others whose difference says it already."""


def _shown(name: str, value: Any) -> str:
    if name == "unit":
        return "in path order" if value is None else f"shuffled by {value}"
    return str(value or "none")


def _apart(one: str, other: str) -> str:
    """Return those parts of a text that another one lacks."""
    return "; ".join(part for part in one.split("; ") if part not in other.split("; ")) or one


def fingerprint(
    files: FileTable | None, selection: np.ndarray | None, order: Order, data: Mapping[str, str] | None = None
) -> Fingerprint:
    """Return the fingerprint of the files, the selected rows and the order of a plan."""
    return Fingerprint(
        num_files=0 if files is None else len(files),
        file_rows=order.num_rows if files is None else files.num_rows,
        names=digest_of(b"") if files is None else files.names_digest,
        starts="" if files is None else digest_of(files.starts.tobytes()),
        num_rows=order.num_rows,
        selection="" if selection is None else digest_of(np.ascontiguousarray(selection).data),
        unit=None if order.shuffle is None else order.shuffle.unit,
        window_rows=order.window_rows,
        chunk_group_rows=order.chunk_group_rows,
        rows_per_epoch=None if order.shuffle is None else order.shuffle.rows_per_epoch,
        draws="" if order.draws is None else order.draws.digest().hex(),
        lengths="" if order.runs is None else order.runs.digest().hex(),
        chunk_groups="" if order.chunk_groups is None else digest_of(order.chunk_groups.to_bytes()),
        data=dict(data or {}),
    )
