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
        if not isinstance(self.data, Mapping) or not all(
            isinstance(text, str) for pair in self.data.items() for text in pair
        ):
            raise PositionError(f"Position: plan: data={self.data!r}: expected texts by their names")
        if self.unit not in (None, "auto", "rows", "chunks", "files"):
            raise PositionError(
                f"Position: plan: unit={self.unit!r}: expected None, 'auto', 'rows', 'chunks' or 'files'"
            )

    @classmethod
    def from_dict(cls, found: Any) -> Fingerprint:
        """Return the fingerprint that `to_dict` described."""
        names = {each.name for each in fields(cls)}
        # Those with a default came later: orders that have nothing of them are the same without.
        needed = {each.name for each in fields(cls) if each.default is each.default_factory is MISSING}
        if isinstance(found, Mapping) and found.get("parts") == []:  # an earlier version stored that
            found = {name: value for name, value in found.items() if name != "parts"}
        if not isinstance(found, Mapping) or not needed <= set(found) <= names:
            raise PositionError(f"Position: plan: expected {', '.join(sorted(names))}, found {found!r}")
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return the fingerprint as plain values."""
        return asdict(self)

    def shuffle(self, seed: int) -> str:
        """Return the shuffle as a user writes it."""
        if self.unit is None:
            return "None"
        window = f", window_rows={self.window_rows}" if self.unit == "chunks" else ""
        weights = ", weights=..." if self.draws else ""
        count = "" if self.rows_per_epoch is None else f", rows_per_epoch={self.rows_per_epoch}"
        lengths = ", by_length=..." if self.lengths else ""
        return f"Shuffle({self.unit!r}, seed={seed}{window}{weights}{count}{lengths})"


def fingerprint(
    files: FileTable | None,
    selection: np.ndarray | None,
    order: Order,
    data: Mapping[str, str] | None = None,
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
