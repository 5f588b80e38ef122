"""Rows that are groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.layout import Kind
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.segments import GroupTable, Segments, Texts
from ray_h5.messages import near_names
from ray_h5.planning.rows.columns import SegmentColumn, ValuesColumn
from ray_h5.planning.rows.kinds import Groups
from ray_h5.planning.rows.space import Column, Listing, RowTable, Steps

_LENGTH = "num_samples"
"""An attribute with the number of steps of a group, as robomimic writes it."""


class GroupRows:
    """The groups of one file that match a pattern, as rows.

    Parameters
    ----------
    reader : RowReader
        The open file.
    kind : Groups
        Which groups.
    table : RowTable, optional
        What is known of them.
    episode_length : {"min"}, optional
        As in `Windows`.
    """

    def __init__(
        self, reader: RowReader, kind: Groups, table: RowTable | None, episode_length: str | None = None
    ) -> None:
        self._reader = reader
        self._kind = kind
        self._groups = None if table is None else table.groups
        self._refused: dict[str, RayH5Error] = {}
        self._listed = False
        self._episode_length = episode_length

    @property
    def num_rows(self) -> int:
        return len(self._known)

    @property
    def table(self) -> RowTable:
        return RowTable(self._known)

    @property
    def _known(self) -> GroupTable:
        if self._groups is None:
            self.listing()
        assert self._groups is not None
        return self._groups

    def listing(self) -> Listing:
        if not self._listed:
            table, refused = self._reader.group_table(self._kind.in_file)
            if doubles := [name for name in self._own_names() if name in table.columns]:
                raise OptionError(
                    f"{self._reader.path}: {doubles[0]!r} is a dataset of the groups {self._kind.pattern!r}, and "
                    "a name in key= or attrs= of Groups. Choose another key, or leave out the attribute."
                )
            self._groups, self._refused, self._listed = table, dict(refused), True
        names = [*self._own_names(), *self._known.columns]
        return Listing(tuple(dict.fromkeys(names)), self._refused)

    def _own_names(self) -> list[str]:
        return [*([] if self._kind.key is None else [self._kind.key]), *self._kind.attrs]

    def prepare(self, names: Iterable[str]) -> None:
        known = set() if self._groups is None else {*self._groups.columns}
        absent = [name for name in names if name not in known and name not in self._own_names()]
        if self._listed or (self._groups is not None and not absent):
            return
        table, _ = self._reader.group_table(self._kind.in_file, absent)
        if self._groups is not None:
            table = replace(self._groups, columns={**self._groups.columns, **table.columns})
        self._groups = table

    def column(self, name: str) -> Column:
        if name == self._kind.key:
            return self._values(name, self._known.names.groups)
        if name in self._kind.attrs:
            return self._values(name, self._known.attributes[name])
        return SegmentColumn(name, self._segments(name))

    def _values(self, name: str, values: np.ndarray | Texts) -> ValuesColumn:
        if isinstance(values, Texts):
            return ValuesColumn(name, "string", values.take, np.dtype(object))
        kind: Kind = "bool" if values.dtype.kind == "b" else "number"
        return ValuesColumn(name, kind, lambda rows: values[rows], values.dtype)

    def _segments(self, name: str) -> Segments:
        self.prepare([name])
        if name in self._known.columns:
            return self._known.columns[name]
        if name in self._refused:
            raise self._refused[name]
        names = self.listing().names
        raise UnknownColumnError(
            f"{self._reader.path}: no {name!r} in the groups {self._kind.pattern!r}.{near_names(name, names)}"
        )

    # Episodes: each group is one ---------------------------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        names = list(names)
        self.prepare(names)
        found = {name: self._time_of(name) for name in names}
        first = names[0]
        lengths = found[first]
        for name, others in found.items():
            differ = np.flatnonzero(others != lengths)
            if len(differ) and self._episode_length != "min":
                at = int(differ[0])
                raise SchemaMismatchError(
                    f"{self._reader.path}: group {self._known.names[at]!r}: {first!r} has {lengths[at]} steps, and "
                    f"{name!r} has {others[at]}. Pass episode_length='min' to use the steps that both have."
                )
            lengths = np.minimum(lengths, others)
        self._check_attribute(first, lengths)
        return lengths

    def _time_of(self, name: str) -> np.ndarray:
        segments = self._segments(name)
        if segments.single or segments.shapes.shape[1] == 0:
            raise UnsupportedColumnError(
                f"{self._reader.path}: Windows: column {name!r} has a single value in each group, and no axis of time. "
                "Leave it out of the offsets: each row then has the value of its episode."
            )
        if segments.unit_shape is None:
            raise UnsupportedColumnError(
                f"{self._reader.path}: Windows: the steps of column {name!r} have other shapes in other groups, such "
                f"as {segments.layouts[0].row_shape} and {segments.layouts[1].row_shape}; windows are of steps of one "
                "shape. Choose groups that agree with the pattern, or leave the column out of the offsets."
            )
        if not segments.is_there.all():
            lacking = self._known.names[int(np.argmin(segments.is_there))]
            raise SchemaMismatchError(
                f"{self._reader.path}: Windows: group {lacking!r} lacks column {name!r}, which has offsets. Leave it "
                "out of the offsets, or choose groups that have it with the pattern."
            )
        return segments.lengths

    def _check_attribute(self, name: str, lengths: np.ndarray) -> None:
        said = self._known.attributes.get(_LENGTH)
        if not isinstance(said, np.ndarray) or said.dtype.kind not in "iu" or self._episode_length == "min":
            return
        differ = np.flatnonzero(said != lengths)
        if len(differ):
            at = int(differ[0])
            raise SchemaMismatchError(
                f"{self._reader.path}: group {self._known.names[at]!r}: attribute {_LENGTH!r} says {said[at]} steps, "
                f"and {name!r} has {lengths[at]}. Pass episode_length='min' to go by the columns."
            )

    def steps(self, name: str, lengths: np.ndarray) -> Steps | None:
        if name in self._own_names():
            return None
        segments = self._segments(name)
        is_array = not segments.single and segments.shapes.shape[1] and segments.unit_shape is not None
        if not is_array or not segments.is_there.all() or np.any(segments.lengths < lengths):
            return None
        if self._episode_length is None and np.any(segments.lengths != lengths):
            return None
        return Steps(segments, segments.unit, segments.starts[:-1], max(each.chunk_rows for each in segments.layouts))

    def is_step(self, name: str) -> bool:  # noqa: ARG002  as the other spaces have it
        return False

    def constant(self, name: str) -> Column:
        return self.column(name)

    def episode_names(self) -> np.ndarray:
        return self._known.names.groups.take(np.arange(self.num_rows))
