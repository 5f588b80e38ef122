"""Rows that are whole groups or files: with windows, they are episodes, or files are steps of episodes of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ray_h5.buffers import empty, objects
from ray_h5.columns.column_resolver import Parts, are_single_values
from ray_h5.columns.conventions.matlab_columns import texts_of_characters
from ray_h5.columns.file_columns import THE_FILE, FileColumns
from ray_h5.columns.ragged.range_columns import Ranges, array_of_rows
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.values import InMemory, Reading, Values, read_dtype, run_readings
from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.joined_arrays import ENDS, LACKS, GroupTable, Texts
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.row_requests import Request
from ray_h5.manifest.value_type import ValueType
from ray_h5.merged_facts import Facts
from ray_h5.per_process import cached_property
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.group_columns import GroupColumns
from ray_h5.rows.kinds.clock import has_steps
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_columns import Episodes, RowColumn, RowsOfKind, with_single_values
from ray_h5.rows.row_kind_options import NUM_SAMPLES, Files, Groups
from ray_h5.rows.windows_option import IS_PAD, WindowColumn, Windows

_OF_ROWS = {"list", "ragged", "sparse"}
"""Kinds of columns whose values are arrays of varying length already."""


@dataclass(frozen=True, slots=True, eq=False)
class LengthsOfColumns(Facts):
    """The length of the first axis of each column of a file that is a row."""

    of: Mapping[str, int] = field(default_factory=dict)


class WholeRows(Episodes):
    """Parts of one file that are rows, or episodes: its groups, or the file itself.

    Parameters
    ----------
    columns : GroupColumns or FileColumns
        The columns of the parts.
    kind : Groups or Files
        The row kind.
    windows : Windows, optional
        Windows over the parts, which are episodes then.
    """

    def __init__(self, columns: GroupColumns | FileColumns, kind: Groups | Files, windows: Windows | None) -> None:
        self.columns: GroupColumns | FileColumns = columns
        self._kind = kind
        self._windows = windows
        self._is_timed = windows is not None and windows.at is not None  # columns have times of their own

    @property
    def num_rows(self) -> int:
        return 1 if self.columns.groups is None else len(self.columns.groups)

    @property
    def table(self) -> RowTable:
        if isinstance(self.columns, GroupColumns) or self._is_timed:
            return self.columns.table()
        # With windows, the lengths in all files say which columns have a value for each step.
        known = dict(self.columns.as_arrays)
        if self._windows is not None:
            return self.columns.table(groups=GroupTable(THE_FILE, {}, {}, known))
        lengths = {name: int(joined_array.shapes[0, 0]) for name, joined_array in known.items()}
        return self.columns.table(of_kind=LengthsOfColumns(lengths))

    def prepare(self, names: Iterable[str]) -> None:
        if isinstance(self.columns, GroupColumns):
            self.columns.look_at(path for name in names for path in self.columns.paths_of(name) if not self.adds(name))

    def adds(self, name: str) -> str | None:
        if isinstance(self.columns, GroupColumns):
            said = "key= or attrs= of Groups adds. Choose another key, or leave out the attribute"
            return said if name in self.columns.own else None
        return f"Files(key={self._kind.key!r}) adds. Choose another key" if name == self._kind.key else None

    def listing(self) -> Listing:
        listing = self.columns.listing()
        if isinstance(self.columns, GroupColumns):
            return listing
        listing, key = with_single_values(listing), [] if self._kind.key is None else [self._kind.key]
        return replace(listing, names=(*key, *listing.names))

    def column(self, name: str) -> RowColumn:
        columns = self.columns
        if isinstance(columns, GroupColumns) and name in columns.own:
            of_groups = columns.known.names.groups if name == self._kind.key else columns.known.attributes[name]
            if isinstance(ends := columns.known.attributes.get(ENDS + name), np.ndarray):
                return RowColumn(name, _of_arrays(name, columns.known, ends))
            if isinstance(lacks := columns.known.attributes.get(LACKS + name), np.ndarray):
                of_groups = np.where(lacks, np.array(None), of_groups.take(np.arange(len(lacks))))
            if isinstance(of_groups, Texts):
                return RowColumn(name, InMemory.of(name, of_groups.take, object))
            return RowColumn(name, InMemory.of(name, of_groups.__getitem__, of_groups.dtype, of_groups.shape[1:]))
        if isinstance(self._kind, Files) and name == self._kind.key:
            return name_column(name, columns.path, self._kind)
        values, joined = columns.datasets(name)
        # Datasets of such values, one a group, are refused as lists of lists.
        if values.array.kind == "sparse" or (values.array.kind in _OF_ROWS and isinstance(columns, FileColumns)):
            raise UnsupportedColumnError(
                f"{columns.path}: column {name!r} has values of varying length, a list for each index of its first "
                f"axis: a row of {type(self._kind).__name__} would be rows of rows. Leave rows= out to read these rows "
                "one by one, or leave the column out with columns=[...]."
            )
        whole = columns.of_units(name, Ranges.whole(name, columns.path, values, joined))
        text = texts_of_characters(whole) if columns.decode_cf else None
        return RowColumn(name, text or whole)

    # Episodes: each part is one -----------------------------------------------------------

    def lengths_of(self, names: Iterable[str]) -> np.ndarray:
        assert self._windows is not None
        names = list(names)
        own = self.columns.own if isinstance(self.columns, GroupColumns) else {}
        if same := [name for name in names if name in own or name == self._kind.key]:
            raise UnsupportedColumnError(
                f"{self.columns.path}: Windows: column {same[0]!r} is a name or an attribute, which is the same at "
                "each step. Leave it out of the offsets: each row then has the value of its episode."
            )
        self.prepare(names)
        times = {name: self._time_of(name) for name in names}
        first, lengths = next(iter(times.items()))
        for name, others in times.items():
            differ = np.flatnonzero(others != lengths)
            if len(differ) and self._windows.episode_length != "min":
                at = int(differ[0])
                raise SchemaMismatchError(
                    f"{self.columns.where(at)}: {first!r} has {lengths[at]} steps, and {name!r} has {others[at]}. Pass "
                    "episode_length='min' for a row at each step that both have; offsets reach the further entries of "
                    "the longer one, as from an action to the observation after it, and pad='drop' leaves out no step "
                    "that has all entries."
                )
            lengths = np.minimum(lengths, others)
        self._check_attribute(first, lengths)
        return lengths

    def _time_of(self, name: str) -> np.ndarray:
        """Return the steps that a column with offsets has in each part."""
        if self.columns.is_range(name):
            return self.steps(name).lengths
        values, joined = self.columns.datasets(name)
        if are_single_values(joined):
            raise UnsupportedColumnError(
                f"{self.columns.path}: Windows: column {name!r} has a single value in each episode, and no axis of "
                "time. Leave it out of the offsets: each row then has the value of its episode."
            )
        instead = "leave the column out of the offsets"
        if values.array.kind not in {"number", "bool"}:
            self.columns.check_one_shape(name, joined, "and are no numbers", instead)
        self.columns.check_all_have(name, joined, "has offsets", instead)
        return joined.lengths

    def _check_attribute(self, name: str, lengths: np.ndarray) -> None:
        """Raise unless groups have the number of steps that an attribute says, if it is one integer in each."""
        assert self._windows is not None
        known = self.columns.known.attributes if isinstance(self.columns, GroupColumns) else {}
        said, has_several = known.get(NUM_SAMPLES), ENDS + NUM_SAMPLES in known
        if not isinstance(said, np.ndarray) or said.dtype.kind not in "iu" or has_several or said.ndim > 1:
            return
        if self._windows.episode_length == "min":
            return
        differ = np.flatnonzero(said != lengths)
        if len(differ):
            at = int(differ[0])
            raise SchemaMismatchError(
                f"{self.columns.where(at)}: attribute {NUM_SAMPLES!r} says {said[at]} steps, and {name!r} has "
                f"{lengths[at]}. Pass episode_length='min' to go by the columns."
            )

    def steps(self, name: str) -> Parts:
        return self.columns.parts(name)

    def constant(self, name: str) -> RowColumn | None:
        assert self._windows is not None
        attributes = self._kind.attrs if isinstance(self._kind, Groups) else ()
        if name in {self._kind.key, *attributes, *self._windows.constants}:
            return self.column(name)
        if self.columns.is_range(name):
            return None
        _, joined = self.columns.datasets(name)
        if are_single_values(joined) or self._is_timed:
            is_constant = are_single_values(joined) and name not in self._windows.per_step
        else:
            is_constant = not has_steps(name, [(self.columns.path, self.table)], self._windows)
        return self.column(name) if is_constant else None

    def episode_names(self) -> np.ndarray:
        groups = self.columns.groups
        return objects([b""]) if groups is None else groups.groups.take(np.arange(len(groups)))


# Files that are steps ------------------------------------------------------------------------------


class FrameRows(RowsOfKind):
    """The row of one file: a window of each column with offsets, and the values of this file of the others.

    Parameters
    ----------
    own : WholeRows
        The file as a row.
    kind : Frames
        The windows, and the episodes of files.
    open_file : callable
        Opens a file of the episode as a row.
    """

    def __init__(self, own: WholeRows, kind: Frames, open_file: Callable[[str], Any]) -> None:
        self._own, self._kind, self._open, self._path = own, kind, open_file, own.columns.path
        self._by_name = {column.name: column for column in kind.windows.columns}
        self._marked = {column.name: column for column in (kind.windows.every if kind.windows.marks_padding else ())}

    @property
    def num_rows(self) -> int:
        return int(self._kind.has_row(self._path))

    @property
    def table(self) -> RowTable:
        return self._own.table

    def listing(self) -> Listing:
        listing = self._own.listing()
        marks = [name + IS_PAD for name in self._marked]
        return replace(listing, names=tuple(dict.fromkeys([*listing.names, *self._by_name, *marks])))

    def adds(self, name: str) -> str | None:
        window = self._by_name.get(name)
        if (window is not None and window.name != window.source) or (window is None and self._padded(name) is not None):
            return "Windows adds. Name the windows otherwise, such as {'window': ('u', range(0, 4))}"
        return self._own.adds(name) if window is None else None

    def has(self, name: str) -> bool:
        return self._own.has(name)

    def _padded(self, name: str) -> WindowColumn | None:
        """Return the window whose padding a column marks."""
        return self._marked.get(name.removesuffix(IS_PAD)) if name.endswith(IS_PAD) else None

    def column(self, name: str) -> RowColumn:
        if (window := self._by_name.get(name)) is not None:
            own = self._own.column(window.source)
            return RowColumn(name, _Stack(window, self._path, own, self._kind, self._open), np.zeros_like)
        if (of := self._padded(name)) is not None:
            side = self._kind.window(self._path, of)[1]
            return RowColumn(name, InMemory.of(name, lambda rows: np.tile(side != 0, (len(rows), 1)), bool, side.shape))
        return self._own.column(name)

    def episode_names(self) -> np.ndarray:
        return objects([self._kind.episode_of(self._path).encode("utf-8", "surrogateescape")])

    def episodes_of(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros_like(rows)


@dataclass(frozen=True, eq=False)
class _Stack(Values):
    """A window of one file: the values of this and of other files, one after the other."""

    window: WindowColumn
    path: str
    own: RowColumn
    kind: Frames
    open_file: Callable[[str], Any]

    @cached_property
    def one(self) -> ValueArray:
        """The array of the value of one file."""
        return self.own.layout(1, self.path)

    @cached_property
    def array(self) -> ValueArray:
        one = self.one
        if one.kind in {"list", "ragged", "sparse"}:
            raise UnsupportedColumnError(
                f"{one.where} has rows of {one.kind} values: with a file a step, windows are of arrays of one shape. "
                "Leave it out of the offsets."
            )
        return array_of_rows(self.window.name, one, (1, len(self.window.offsets), *one.row_shape), 1, self.path)

    def reading(self, units: Request, out: np.ndarray) -> Reading:
        places, array = units.listed().places, self.array
        files, side = self.kind.window(self.path, self.window)
        at: dict[str, list[int]] = {}
        for step, path in enumerate(files):
            at.setdefault(path, []).append(step)

        # Once the file of the row was read: its reader has one file, and few files are open at a time.
        def finish() -> None:
            window = empty(array.row_shape, read_dtype(array, out.dtype), array.where)
            run_readings([partial(self._planned, path, window, np.array(steps)) for path, steps in at.items()])
            for step in np.flatnonzero(self.kind.windows.is_blank(side)).tolist():
                window[step] = self.own.values.blank(window.dtype)
            for place in places.tolist():
                out[place] = window

        return Reading([], [finish])

    def _planned(self, path: str, window: np.ndarray, steps: np.ndarray) -> Any:
        """Return the read of the value of one file into these steps of a window."""
        reader, own = self.open_file(path), self.one
        layout = reader.column(source := self.window.source)
        if (layout.kind, layout.row_shape, layout.dtype) != (own.kind, own.row_shape, own.dtype):
            raise SchemaMismatchError(
                f"{path}: column {source!r} holds {layout.dtype} of shape {layout.row_shape}, and {self.path} of the "
                f"same window {own.dtype} of shape {own.row_shape}. Windows are of files that agree in it."
            )
        return reader.planned({source: window}, np.zeros_like(steps), steps)


def _of_arrays(name: str, table: GroupTable, ends: np.ndarray) -> InMemory:
    """Return attributes that are arrays of several lengths, one after the other; None where a group has none."""
    values, lacks = (table.attributes[before + name] for before in ("", LACKS))
    assert isinstance(values, np.ndarray)
    assert isinstance(lacks, np.ndarray)

    def values_of(rows: np.ndarray) -> np.ndarray:
        begins = np.where(rows > 0, ends[rows - 1], 0).tolist()
        whole = zip(begins, ends[rows].tolist(), lacks[rows].tolist(), strict=True)
        return objects(None if is_none else values[a:b] for a, b, is_none in whole)

    mean = max(1, round(values.nbytes / max(len(ends), 1)))
    has_none = bool(lacks.any())
    type_ = ValueType("ragged", np.dtype(object), element=values.dtype, ragged_shape=(None,), nullable=has_none)
    return InMemory(ValueArray(name, type_, 1, item_bytes=mean, direct=True), values_of)


def name_column(
    name: str, path: str, kind: Files | Patches, units_of: Callable[[np.ndarray], np.ndarray] | None = None
) -> RowColumn:
    """Return a column with the name of a file, without its extension, after as many folders as `kind` says."""
    there = PurePosixPath(path)
    named = "/".join((*there.parts[:-1], there.stem)[-1 - kind._folders :])
    key = objects([named.encode("utf-8", "surrogateescape")])
    return RowColumn(name, InMemory.of(name, key.take, object), units_of)
