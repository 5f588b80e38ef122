"""Source files: other files that columns come from, by external links, virtual datasets or external storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ray_h5.content_equality import ComparedByContent
from ray_h5.manifest.layout import SourceStates

Sources: TypeAlias = Mapping[str, Sequence[SourceStates]]
"""By column, the sources that it has in each file. Columns without sources are left out."""


def sources_of(by_file: Sequence[Mapping[str, SourceStates]], names: Iterable[str]) -> Sources:
    """Return the sources of some columns, given those of the columns of each file."""
    wanted, states_by_name = set(names), dict[str, list[SourceStates]]()
    for file, sources in enumerate(by_file):
        for name in wanted.intersection(sources):
            states_by_name.setdefault(name, [()] * len(by_file))[file] = sources[name]
    return dict(sorted(states_by_name.items()))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SourceTable(ComparedByContent):
    """The sources of columns of many files. Each set of sources is there once.

    Attributes
    ----------
    sets : tuple of SourceStates
        The sets of sources. The first one has none.
    columns : mapping of str to numpy.ndarray
        For each column that has sources, int32 of shape (files,): the set of each file.
    """

    sets: tuple[SourceStates, ...] = ((),)
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: Sources) -> SourceTable:
        """Return the table of some columns."""
        sets: dict[SourceStates, int] = {(): 0}
        shared: dict[bytes, np.ndarray] = {}  # columns often have the same sources
        columns = {}
        for name, of_files in sources.items():
            numbers = np.array([sets.setdefault(states, len(sets)) for states in of_files], np.int32)
            columns[name] = shared.setdefault(numbers.tobytes(), numbers)
        return cls((*sets,), columns)

    def of_file(self, file: int) -> dict[str, SourceStates]:
        """Return the sources of the columns of one file, by column."""
        return {name: self.sets[numbers[file]] for name, numbers in self.columns.items() if numbers[file]}

    def of_files(self, files: Sequence[int] | slice = slice(None)) -> SourceStates:
        """Return the sources of some files, each once; by default of all."""
        sets = {number for numbers in self.columns.values() for number in np.unique(numbers[files]).tolist()}
        return tuple(dict.fromkeys(state for number in sorted(sets) for state in self.sets[number]))
