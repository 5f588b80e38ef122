"""The work of a read of one file: which datasets, of it or of other files, have the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ray_h5.hdf5.format.file_bytes import gather
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.takes import Take
from ray_h5.read.arrays.column import Column, shared_jobs
from ray_h5.read.arrays.plan_boxes import BoxPlanner
from ray_h5.read.file_caches import JOINT_COLUMNS, MAX_OTHERS, max_open
from ray_h5.read.jobs import Job, planned_later
from ray_h5.read.open_file_base import OpenFile
from ray_h5.read.read_parts import FileRead, Part
from ray_h5.read.virtual_columns import VirtualColumn

if TYPE_CHECKING:
    from ray_h5.manifest.file_state import SourceStates

_NOTHING: Mapping[str, SourceStates] = {}


def jobs_of_parts(
    file: OpenFile, read: FileRead, parts: Sequence[Part], expected: Mapping[str, SourceStates] = _NOTHING
) -> list[Job]:
    """Return the work of parts of a read, and of those of the other files that have their values.

    These files are added to the read. The sources of columns have to be as `expected`, by column.
    """
    others: dict[OpenFile, list[Part]] = {}
    virtual: list[Job] = []
    # Parts that take fields, positions or boxes of one dataset are planned together.
    own: dict[str | int, list[Part]] = {}

    def place(part: Part) -> None:
        """Find out which file has the values of a part."""
        if isinstance(name := part.array, JoinedArray):
            if file.access.beside:
                read.add_sources(name.name, name.layouts[0].sources)
                others.setdefault(file.file_with(name), []).append(part)
            else:
                own[id(part)] = [part]
            return
        layout, redirect = file.column(name), None
        if name in expected:
            file.check_sources(name, expected[name])
        if layout.sources or layout.storage == "virtual":
            redirect = file.redirect(name)
            if layout.storage != "virtual":
                read.add_sources(name, layout.sources)
        if redirect is None:
            own.setdefault(name if isinstance(part.address, Take) else id(part), []).append(part)
        elif redirect.how == "link":
            (column,) = redirect.columns
            address = replace(part.address, array=column.name) if isinstance(part.address, Take) else column.name
            piece = replace(part, address=address, where=part.where or layout.where)
            others.setdefault(file.file_of(column.path), []).append(piece)
        else:
            # What it takes to make one grows with the mappings, and there may be thousands.
            if name not in file.virtual:
                file.virtual[name] = VirtualColumn(file.file_of, redirect, layout)
            virtual.extend(_virtual_jobs(file, read, part, file.virtual[name], others))

    with file.library():
        gather(place, parts)
        jobs = [job for some in gather(partial(_jobs_here, file), own.values()) for job in some]
        for there in gather(lambda other: jobs_of_parts(other, read, others[other]), others):
            virtual += there
    return [*jobs, *virtual]


def _jobs_here(file: OpenFile, parts: Sequence[Part]) -> list[Job]:
    """Return the work of a part; or of several that take fields, positions or boxes of one dataset."""
    readers = [file.reader(part.address, part.where) for part in parts]
    columns = [
        column
        for column in readers
        if isinstance(column, Column) and column.items is None and isinstance(column.planner, BoxPlanner)
    ]
    if len(columns) == len(parts) > 1:  # each chunk is decoded once
        return shared_jobs(columns, [part.request for part in parts], [part.out for part in parts])
    return [job for each, part in zip(readers, parts, strict=True) for job in each.jobs(part.request, part.out)]


def _virtual_jobs(
    file: OpenFile, read: FileRead, part: Part, virtual: VirtualColumn, others: dict[OpenFile, list[Part]]
) -> list[Job]:
    """Return the work of a part of a virtual dataset; what it reads of other files is added to these instead."""
    most, layout = max_open(MAX_OTHERS), virtual.layout
    if not file.is_pinned and isinstance(part.address, str) and not part.where:
        if len(layout.sources) <= most:
            if (joint := JOINT_COLUMNS.get(virtual)) is None:
                joint = [column for column in [virtual.joint()] if column is not None]
                JOINT_COLUMNS.put(virtual, joint)
            if joint:
                jobs, paths = virtual.joint_jobs(joint[0], part.request, part.out)
                read.add_sources(layout.name, virtual.states_of(paths))
                return jobs
        if len(cut := virtual.cut(part, most)) > 1:  # few files are open at a time
            return [planned_later(partial(jobs_of_parts, file, read, [some])) for some in cut]
    pieces = list(virtual.parts(part, read.finish_steps))
    read.add_sources(layout.name, virtual.states_of({path for path, _ in pieces}))
    for path, piece in pieces:
        others.setdefault(file.file_of(path), []).append(piece)
    return []
