"""How files are opened, the same for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.hdf5.layout import FileState
from ray_h5.hdf5.metadata.access import as_roots
from ray_h5.hdf5.reader import RowReader
from ray_h5.hdf5.remote.known_columns import KnownColumn
from ray_h5.planning.rows.column_kinds import RangeColumn
from ray_h5.planning.rows.kinds import RowKind, check_episodes
from ray_h5.planning.rows.space import RowTable
from ray_h5.planning.rows.view import FileReader, RowView
from ray_h5.planning.rows.windows import Windows
from ray_h5.storage.local import LOCAL, PathLike
from ray_h5.storage.storages import Storage


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
    columns : tuple of RangeColumn
        The columns that the user described: they are made of several datasets.
    """

    group: str = "/"
    allow_external: tuple[str, ...] = ()
    threads: int = 1
    rows: RowKind | None = None
    windows: Windows | None = None
    storage: Storage = LOCAL
    columns: tuple[RangeColumn, ...] = ()
    decode_cf: bool = False
    axes: str = "stored"

    @classmethod
    def of(
        cls,
        group: str,
        allow_external: PathLike | Iterable[PathLike],
        threads: int = 1,
        rows: RowKind | None = None,
        windows: Windows | None = None,
        storage: Storage = LOCAL,
        columns: Sequence[RangeColumn] = (),
        decode_cf: bool = False,
        axes: str = "stored",
    ) -> Scope:
        """Return the scope for the arguments of a user."""
        check_episodes(rows, windows)
        if columns and (rows is not None or windows is not None):
            kind = rows if windows is None else windows
            raise OptionError(
                f"columns: {columns[0]} is for rows along the first axis; leave it out, or {kind}, which says what a "
                "row is"
            )
        if not isinstance(decode_cf, (bool, np.bool_)):
            raise OptionError(f"decode_cf={decode_cf!r}: expected True or False")
        if decode_cf and (rows is not None or windows is not None):
            kind = rows if windows is None else windows
            raise OptionError(
                f"decode_cf=True: is for rows along the first axis; leave it out, or {kind}, which says what a row is"
            )
        if axes not in {"stored", "reversed"}:
            raise OptionError(f"axes={axes!r}: expected 'stored' or 'reversed'")
        if axes == "reversed" and (rows is not None or windows is not None or columns or decode_cf):
            other = next(each for each in (rows, windows, *columns, "decode_cf=True") if each is not None)
            raise OptionError(f"axes='reversed': rows lie along the last axis; leave it out, or {other}")
        made = tuple(columns)
        return cls(group, as_roots(allow_external), threads, rows, windows, storage, made, bool(decode_cf), axes)

    @property
    def by_axis(self) -> bool:
        """Whether rows lie along the first axis."""
        return self.rows is None and self.windows is None

    def open(
        self,
        path: str,
        expect: FileState | None = None,
        table: RowTable | None = None,
        known: Mapping[str, KnownColumn] | None = None,
    ) -> FileReader:
        """Open a file; `table` has what is known of its rows, and `known` of columns of a remote file."""
        reader = RowReader(
            path,
            self.group,
            self.threads,
            self.allow_external,
            expect=expect,
            storage_options=self.storage,
            known=known,
        )
        # A remote file of which columns are known is not opened here.
        plain = self.by_axis and table is None and not self.columns and not self.decode_cf
        plain = plain and self.axes == "stored"
        if plain and (known or not reader.form):
            return reader
        return RowView(
            reader,
            self.rows,
            self.windows,
            table,
            self.columns,
            decode_cf=self.decode_cf,
            is_reversed=self.axes == "reversed",
        )
