"""The work of a read of one file: which datasets, of it or of other files, have the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.lru import LRU
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.read.arrays.column import Column, shared_jobs
from ray_h5.read.arrays.columns_of_files import parts_of
from ray_h5.read.arrays.plan_boxes import BoxPlanner
from ray_h5.read.arrays.selection import Selection
from ray_h5.read.jobs import Job, Unplanned
from ray_h5.read.open_file import MAX_INDEX_BYTES, MAX_OTHERS, OpenFile, max_open
from ray_h5.read.read_parts import FileRead, Part
from ray_h5.read.virtual_columns import VirtualColumn

if TYPE_CHECKING:
    from ray_h5.manifest.layout import ColumnLayout, SourceStates


def _share(columns: Sequence[Column]) -> int:
    """Return the bytes of the index of a joint column, or its share of the descriptors, if that is more."""
    of_file = MAX_INDEX_BYTES // max_open(MAX_OTHERS)
    return max([column.source.nbytes + len(parts_of(column)) * of_file for column in columns], default=0)


JOINT_COLUMNS: LRU[Sequence[Column]] = LRU(64, 256 << 20, _share, keeps_last=True)
"""Of virtual datasets, in all files, whose sources are read as one column: that, or nothing."""


@dataclass(eq=False)
class FilePlan:
    """Finds out where the values of the parts of a read are, and plans the work there.

    Parameters
    ----------
    file : OpenFile
        The file.
    read : FileRead
        The read. Other files that its values come from are added to it.
    expected : mapping of str to SourceStates
        The files, and their states, that columns have to come from.
    """

    file: OpenFile
    read: FileRead
    expected: Mapping[str, SourceStates] = field(default_factory=dict)

    def jobs(self, parts: Sequence[Part] | None = None) -> list[Job]:
        """Return the work of parts, and of those of the other files that have their values.

        By default it is that of the whole read, which may be planned again.
        """
        file, read = self.file, self.read
        if parts is None:
            read.after.clear()
            read.sources.clear()
            parts = read.parts
        self._others: dict[OpenFile, list[Part]] = {}
        self._jobs: list[Job] = []
        # Parts that take fields, positions or boxes of one dataset are planned together.
        self._own: dict[str | int, list[Part]] = {}
        with file.library():
            gather(self._place, parts)
            jobs = [job for some in gather(self._jobs_here, self._own.values()) for job in some]
            for there in gather(lambda other: FilePlan(other, read).jobs(self._others[other]), self._others):
                self._jobs += there
        if read.held is not None:
            jobs = read.held.sharing(jobs, file)
        return [*jobs, *self._jobs]

    def _jobs_here(self, parts: Sequence[Part]) -> list[Job]:
        """Return the work of a part; or of several that take fields, positions or boxes of one dataset."""
        readers = [self.file.reader(part.address, part.where) for part in parts]
        columns = [
            column
            for column in readers
            if isinstance(column, Column) and column.items is None and isinstance(column.planner, BoxPlanner)
        ]
        if len(columns) == len(parts) > 1:  # each chunk is decoded once
            return shared_jobs(columns, [part.request for part in parts], [part.out for part in parts])
        return [job for each, part in zip(readers, parts, strict=True) for job in each.jobs(part.request, part.out)]

    def _place(self, part: Part) -> None:
        """Find out which file has the values of a part."""
        file, read = self.file, self.read
        if isinstance(name := part.array, JoinedArray):
            if file.access.beside:
                read.add_sources(name.name, name.layouts[0].sources)
                self._others.setdefault(file.file_with(name), []).append(part)
            else:
                self._own[id(part)] = [part]
            return
        layout = file.column(name)
        if name in self.expected:
            file.check_sources(name, self.expected[name])
        elsewhere = None
        if layout.sources or layout.storage == "virtual":
            elsewhere = file.elsewhere(name)
            if layout.storage != "virtual":
                read.add_sources(name, layout.sources)
        if elsewhere is None:
            self._own.setdefault(name if isinstance(part.address, Selection) else id(part), []).append(part)
        elif elsewhere.how == "link":
            (column,) = elsewhere.columns
            address = replace(part.address, array=column.name) if isinstance(part.address, Selection) else column.name
            piece = replace(part, address=address, where=part.where or layout.where)
            self._others.setdefault(file.file_of(column.path), []).append(piece)
        else:
            # What it takes to make one grows with the mappings, and there may be thousands.
            if (virtual := file.virtual.get(name)) is None:
                virtual = file.virtual[name] = VirtualColumn(file.file_of, elsewhere, layout)
            self._place_virtual(part, layout, virtual)

    def _place_virtual(self, part: Part, layout: ColumnLayout, virtual: VirtualColumn) -> None:
        file, most, joint = self.file, max_open(MAX_OTHERS), None
        is_of_rows = file.held is None and isinstance(part.address, str) and not part.where
        if is_of_rows and len(layout.sources) <= most:
            if (known := JOINT_COLUMNS.get(virtual)) is None:
                known = [column for column in [virtual.joint()] if column is not None]
                JOINT_COLUMNS.put(virtual, known)
            joint = known[0] if known else None
        if joint is not None:
            runs, numbers = virtual.by_mapping(part.request)
            paths = {virtual.sources[number].path for number in {*numbers.tolist()} - {-1}}
            self.read.add_sources(layout.name, virtual.states_of(paths))
            self._jobs += virtual.joint_jobs(joint, runs, numbers, part.out)
        elif is_of_rows and len(cut := virtual.cut(part, most)) > 1:  # few files are open at a time
            later = FilePlan(file, self.read)
            self._jobs += [Unplanned(partial(later.jobs, [some])) for some in cut]
        else:
            pieces = list(virtual.parts(part, self.read.after))
            self.read.add_sources(layout.name, virtual.states_of({path for path, _ in pieces}))
            for path, piece in pieces:
                self._others.setdefault(file.file_of(path), []).append(piece)
