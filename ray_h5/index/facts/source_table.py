"""Source files: other files that columns come from, by external links, virtual datasets or external storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ray_h5.hdf5.checks.changed_files import Look, check_same_sources
from ray_h5.manifest.file_table import FileTable, StateTable, state_columns
from ray_h5.manifest.layout import SourceStates
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.local import identity_now

Sources: TypeAlias = Mapping[str, Sequence[SourceStates]]
"""By column, the sources that it has in each file. Columns without sources are left out."""


def sources_of(by_file: Sequence[Mapping[str, SourceStates]], names: Iterable[str]) -> Sources:
    """Return the sources of some columns, given those of the columns of each file."""
    wanted, states_by_name = set(names), dict[str, list[SourceStates]]()
    for file, sources in enumerate(by_file):
        for name in wanted.intersection(sources):
            states_by_name.setdefault(name, [()] * len(by_file))[file] = sources[name]
    return dict(sorted(states_by_name.items()))


def check_same(known: Sources, later: Sources, files: FileTable, look: Look = identity_now) -> None:
    """Raise unless columns have the sources that they had, in the same states; `look` returns the state of one now.

    Raises
    ------
    StaleIndexError, MissingSourceError
        With the file, the column and the source.
    """
    for name in (column for column in known if column in later):
        for file, (states, now) in enumerate(zip(known[name], later[name], strict=True)):
            if states != now:
                check_same_sources(files.path(file), name, states, now, look=look)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SourceTable(StateTable):
    """The sources of columns of many files, as arrays. Each source, and each set of sources, is there once.

    Attributes
    ----------
    members : numpy.ndarray
        int64: the numbers of the sources, set by set.
    ends : numpy.ndarray
        int64 of shape (sets,): where the members of each set end. Set 0 has none.
    columns : mapping of str to numpy.ndarray
        For each column that has sources, int32 of shape (files,): the set of each file.
    """

    members: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    ends: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: Sources) -> SourceTable:
        """Return the table of some columns."""
        if not sources:
            return cls()
        sets: dict[SourceStates, int] = {(): 0}
        columns = {
            name: np.array([sets.setdefault(states, len(sets)) for states in of_files], np.int32)
            for name, of_files in sources.items()
        }
        numbers: dict[tuple[str, Identity | None], int] = {}
        members = [numbers.setdefault(state, len(numbers)) for states in sets for state in states]
        # Columns often have the same sources: they share one array.
        shared: dict[bytes, np.ndarray] = {}
        columns = {
            name: shared.setdefault(numbers_of_column.tobytes(), numbers_of_column)
            for name, numbers_of_column in columns.items()
        }
        ends = np.cumsum([len(states) for states in sets], dtype=np.int64)
        table = state_columns([path for path, _ in numbers], [state for _, state in numbers])
        return cls(**table, members=np.array(members, np.int64), ends=ends, columns=columns)

    def of_file(self, file: int) -> dict[str, SourceStates]:
        """Return the sources of the columns of one file, by column."""
        sets = {name: int(numbers[file]) for name, numbers in self.columns.items()}
        states = {number: tuple(map(self.source, self._members(number).tolist())) for number in set(sets.values())}
        return {name: states[number] for name, number in sets.items() if states[number]}

    def of_files(self, files: np.ndarray) -> np.ndarray:
        """Return the numbers of the sources of some files, each once."""
        sets = {number for numbers in self.columns.values() for number in np.unique(numbers[files]).tolist()}
        members = [self._members(number) for number in sorted(sets)]
        return np.unique(np.concatenate(members)) if members else np.empty(0, np.int64)

    def source(self, number: int) -> tuple[str, Identity | None]:
        """Return a source and its state; the state is None if the source does not exist."""
        return self.path(number), self.state(number)

    def _members(self, number: int) -> np.ndarray:
        return self.members[int(self.ends[number - 1]) if number else 0 : int(self.ends[number])]
