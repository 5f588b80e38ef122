"""How files are opened, the same for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ray_h5.columns.derived_columns import JoinedColumn, MadeColumn, Ragged, is_range, links_of, whole_of
from ray_h5.columns.labels import Classes
from ray_h5.columns.row_table import RowTable
from ray_h5.errors import OptionError
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy, as_roots
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.manifest.file_state import FileState
from ray_h5.options import require
from ray_h5.read.reader import FileReader
from ray_h5.rows.frames_option import Frames, with_episodes
from ray_h5.rows.row_kind_options import Grid, Groups, RowKind
from ray_h5.rows.row_view import AnyReader, RowView
from ray_h5.rows.windows_option import Windows
from ray_h5.source import Source
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import Storage, storage_of


@dataclass(frozen=True, slots=True)
class Scope:
    """How every file is opened.

    Attributes
    ----------
    group : str
        The group that column names are relative to.
    allow_external : tuple of str
        The folders that links may lead to.
    threads : int
        Threads for a read.
    rows, windows
        The row kind.
    storage : Storage
        Where files with a URL are.
    columns : tuple of MadeColumn
        The columns that the user described: they are made of several datasets.
    labels : tuple of Classes
        Where rows are read for a plan: the columns that are delivered as numbers of classes.
    missing : {"error", "null"}
        Whether a file may lack columns that others have.
    zipped : mapping of str to str
        The file that is read beside each, if any. It is no part of the value.
    """

    group: str = "/"
    allow_external: tuple[str, ...] = ()
    threads: int = 1
    rows: RowKind | None = None
    windows: Windows | None = None
    storage: Storage = LOCAL
    columns: tuple[MadeColumn, ...] = ()
    decode_cf: bool = False
    axes: str = "stored"
    labels: tuple[Classes, ...] = ()
    missing: str = "error"
    zipped: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, source: Source, storage: Storage = LOCAL, threads: int = 1) -> Scope:
        """Return the scope for what a user says; raise an OptionError for options that have no meaning together."""
        rows, windows, columns = source.rows, source.windows, source.made
        decode_cf, axes = source.decode_cf, source.axes
        rows, windows = with_episodes(rows, windows)
        has_groups = rows is not None and rows.has_groups and not rows.is_block
        ranges = [column for column in columns if is_range(column)]
        if rows is not None and rows.is_block and (ranges or axes == "reversed"):
            option = f"columns: {ranges[0]}" if ranges else "axes='reversed'"
            raise OptionError(
                f"{option}: with rows=Patches(...), blocks are of arrays as they are stored; leave it out"
            )
        require(isinstance(decode_cf, (bool, np.bool_)), "decode_cf", decode_cf, "True or False")
        require(axes in ("stored", "reversed"), "axes", axes, "'stored' or 'reversed'")
        # Columns that are more than parts of the rows of datasets.
        others = [column for column in columns if not isinstance(whole_of(column), (str, JoinedColumn))]
        if axes == "reversed" and (decode_cf or (has_groups and others)):
            other = "decode_cf=True" if decode_cf else f"{others[0]} or rows={rows}"
            raise OptionError(f"axes='reversed': rows lie along the last axis; leave it out, or {other}")
        if source.missing == "null" and (windows is not None or (rows is not None and not rows.episode)):
            other = f"rows={rows}" if windows is None else "windows="
            raise OptionError(
                f"missing='null' is for rows along the first axis, Groups and Files; leave it or {other} out"
            )
        roots, missing = as_roots(source.allow_external), source.missing
        scope = cls(
            source.group, roots, threads, rows, windows, storage, columns, bool(decode_cf), axes, missing=missing
        )
        if not source.tables:  # otherwise some may be made of columns of a table
            scope.check_rows_of_rows()
        return scope

    def check_rows_of_rows(self) -> None:
        """Raise `OptionError` for columns with a row for each index of an axis, if a row is a whole group or file."""
        rows, ranges = self.rows, [column for column in self.columns if is_range(column)]
        if isinstance(rows, Groups) and rows.by is not None:  # rows of a matrix are dense, and a group has several
            ranges = [column for column in ranges if any(isinstance(link, Ragged) for link in links_of(column))]
        if rows is not None and rows.episode and self.windows is None and ranges:
            raise OptionError(
                f"columns: {ranges[0]} has a row for each index of an axis; with rows={rows} a row is a whole "
                f"{rows.episode}, and would be rows of rows. Leave it out; or pass windows=, whose rows are steps of a "
                f"{rows.episode}; or leave rows= out"
                + (" and pass group= of one group" if rows.has_groups and not rows.is_block else "")
                + ", to read the rows in it."
            )

    @property
    def may_lack(self) -> bool:
        """Whether a file may lack columns that others have: their values are None in its rows."""
        return self.windows is None and "null" in (self.missing, getattr(self.rows, "missing", ""))

    @property
    def all_windows(self) -> Windows | None:
        """The windows, also those over files that are steps."""
        return self.rows.windows if isinstance(self.rows, Frames) else self.windows

    def with_windows(self, windows: Windows) -> Scope:
        """Return the scope with other windows in the place of its own."""
        if isinstance(self.rows, Frames):
            return replace(self, rows=self.rows.with_windows(windows))
        return replace(self, windows=windows)

    @property
    def by_axis(self) -> bool:
        """Whether rows lie along the first axis."""
        return self.rows is None and self.windows is None

    @property
    def has_ranges(self) -> bool:
        """Whether rows may be ranges of longer arrays."""
        return self.by_axis or (isinstance(self.rows, Groups) and self.rows.by is not None)

    def unread(self, names: Iterable[str], columns: Iterable[str]) -> set[str]:
        """Return those of `names` that are no datasets that some columns are read from, as far as names say so."""
        sources = set() if self.windows is None else {*self.windows.sources}
        if self.columns:
            sources |= {column.dataset for column in self.columns}
        return {*names} - {*columns} - sources

    def naming(self, columns: Iterable[str] | None) -> Scope:
        """Return the scope for these columns. Those of a grid say what its rows are."""
        if columns is None or not isinstance(self.rows, Grid):
            return self
        windows = () if self.windows is None else self.windows.columns
        sources = {window.name: window.source for window in windows}
        counted = [] if self.windows is None else self.windows.sources
        return replace(self, rows=self.rows.naming([*(sources.get(n, n) for n in columns), *counted]))

    def open(
        self,
        path: str,
        expect: FileState | None = None,
        table: RowTable | None = None,
        known: Manifest | None = None,
        *,
        is_planned: bool = False,
        name: str = "",
    ) -> AnyReader:
        """Open a file; `table` has what is known of its rows, and `known` of a remote file.

        With `is_planned`, a file without a table is known to follow no convention. What is drawn in a file depends on
        its `name`, the path below the folder of all files; alone, it is the last part of its path.
        """
        policy, storage = ExternalPolicy.of(self.allow_external), storage_of(path, self.storage)
        access = Access(path, self.group, policy, storage=storage, beside=self.zipped.get(path, ""))
        reader = FileReader(access, self.threads, expect=expect, known=known)
        plain = self.by_axis and table is None and not self.columns and not self.decode_cf
        plain = plain and self.axes == "stored" and not self.labels
        if plain and (is_planned or not reader.form):
            return reader
        return RowView(
            reader,
            self.rows,
            self.windows,
            table,
            self.columns,
            decode_cf=self.decode_cf,
            is_reversed=self.axes == "reversed",
            labels=self.labels,
            name=name,
            is_planned=is_planned,
            open_file=replace(self, rows=self.rows.files, labels=()).open if isinstance(self.rows, Frames) else None,
        )


@lru_cache(maxsize=1024)
def how_opened(scope: Scope) -> str:
    """Return a text of how files are opened, and so what their facts are."""
    kind = [] if scope.by_axis else [repr((scope.rows, scope.windows))]
    kind += getattr(scope.rows, "named", ())  # of a grid
    kind += [] if scope.all_windows is None else scope.all_windows.not_in_files
    kind += [f"{folders} folders"] if (folders := getattr(scope.rows, "_folders", 0)) else []
    kind += [repr(scope.columns)] if scope.columns else []
    kind += ["decode_cf"] if scope.decode_cf else []
    kind += ["reversed"] if scope.axes == "reversed" else []
    return json.dumps([scope.group, sorted(scope.allow_external), *kind])
