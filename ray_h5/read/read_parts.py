"""What a read consists of: for each column, which dataset or datasets, which rows, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ray_h5.errors import CastError
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.row_requests import Request
from ray_h5.manifest.takes import Take
from ray_h5.read.casting import Casting, CheckedOutput, LostValue, as_casting, checked

if TYPE_CHECKING:
    from ray_h5.read.held_chunks import HeldChunks
    from ray_h5.storage.byte_source import Identity


ColumnAddress: TypeAlias = str | JoinedArray | Take
"""What a column is made of: rows of a dataset, units of many datasets, or other takes of these."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a read: rows of one column, and the array that they go to.

    `where` is the column that leads to this one, for messages, if one does.
    """

    address: ColumnAddress
    request: Request
    out: np.ndarray
    where: str = ""

    @property
    def array(self) -> str | JoinedArray:
        """The dataset that is read, or many."""
        return self.address.array if isinstance(self.address, Take) else self.address


@dataclass(slots=True, eq=False)
class FileRead:
    """A read of rows of one file into arrays.

    Attributes
    ----------
    reader : FileReader
        The reader of the file.
    parts : sequence of Part
        What is read for each column, checked.
    finish : callable, optional
        What is left to do once all parts are read.
    finish_steps : list of callable
        What is left to do before that, of values in other files; the last one is done first.
    sources : dict of str to (str, Identity)
        Other files that rows come from, with a column and the state of the file when that was described.
    held : HeldChunks, optional
        The decoded chunks that stay in memory.
    """

    reader: Any  # its module imports this one
    parts: Sequence[Part]
    finish: Callable[[], None] | None = None
    finish_steps: list[Callable[[], None]] = field(default_factory=list)
    sources: dict[str, tuple[str, Identity | None]] = field(default_factory=dict)
    held: HeldChunks | None = None

    def add_sources(self, column: str, states: Iterable[tuple[str, Identity | None]]) -> None:
        """Have other files looked at when the read is done."""
        for path, state in states:
            self.sources.setdefault(path, (column, state))


def outputs(
    out: Mapping[str, np.ndarray], layouts: Mapping[str, ValueArray], casting: Casting | Mapping[str, Casting]
) -> dict[str, np.ndarray]:
    """Return arrays that raise for values which they cannot hold, as far as `casting` says so."""
    if not isinstance(casting, Mapping):
        casting = dict.fromkeys(out, as_casting(casting))
    return {
        name: checked(name, array, layouts[name].dtype, casting.get(name, "checked"), layouts[name].where)
        for name, array in out.items()
    }


def lost_in(reads: Sequence[tuple[str, Sequence[Part]]], lost_value: LostValue) -> CastError:
    """Return the error for a value that its array cannot hold: where it is in which file, and what to do.

    `reads` are the files and the parts of the reads that ran together.
    """
    # The value was for that output, or for another one in the same memory.
    listed = (
        (path, part, part.request.listed())
        for path, parts in reads
        for part in parts
        if isinstance(part.out, CheckedOutput)
        and (part.out.column, part.out.address) == (lost_value.column, lost_value.address)
    )
    rows = ((path, part, some.rows[some.places == lost_value.place]) for path, part, some in listed)
    path, part, row = next((path, part, int(some[0])) for path, part, some in rows if len(some))
    where = f"{path}: column {lost_value.column!r}, row {row}"
    if isinstance(joined := part.array, JoinedArray):
        dataset, index = map(int, joined.units.local(row))
        path = next((other for other, _ in joined.layouts[0].sources), path)
        where = f"{path}: dataset {joined.paths[dataset]!r}, index {index}"
    return lost_value.error(where)
