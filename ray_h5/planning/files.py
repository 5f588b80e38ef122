"""Options that say which files are read and how they are opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ray_h5.errors import OptionError
from ray_h5.hdf5.reading.casting import as_casting
from ray_h5.log import ensure_handler
from ray_h5.planning.index.cache import check_index_dir
from ray_h5.planning.index.lookup import Lookup, Spread, read_ahead
from ray_h5.planning.index.row_index import RowIndex, build_index
from ray_h5.planning.index.scope import Scope
from ray_h5.planning.paths import (
    DEFAULT_EXTENSIONS,
    PathLike,
    find_files,
    is_local_only,
    is_remote_filesystem,
    list_paths,
)
from ray_h5.planning.rows.column_kinds import ColumnLike, split_columns
from ray_h5.planning.rows.kinds import as_kind
from ray_h5.planning.rows.windows import as_windows
from ray_h5.planning.schema import Cast
from ray_h5.planning.tables.build import index_with_tables
from ray_h5.planning.tables.sidecar import Sidecar, as_attrs, as_sidecars
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.file_systems import FileSystemStorage
from ray_h5.storage.storages import storage_for


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Which files are read, how they are opened, and the casts of their columns.

    Attributes
    ----------
    paths : list of str
        The files, in the order of row ids.
    scope : Scope
        How they are opened.
    index_dir : str, optional
        The folder of their index files.
    cast : Cast
        The casts while columns are read.
    local_only : bool
        Whether only this node has the files.
    sidecars : tuple of Sidecar
        Tables beside the files.
    attrs : mapping of str to str
        Columns that are attributes of the files.
    states : mapping of str to ObjectIdentity
        The states of remote files, by URL.
    """

    paths: Sequence[str]
    scope: Scope
    index_dir: str | None
    cast: Cast
    local_only: bool
    sidecars: tuple[Sidecar, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, ObjectIdentity] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        paths: PathLike | Sequence[PathLike],
        *,
        group: str = "/",
        dtypes: Mapping[str, object] | None = None,
        casting: str = "checked",
        allow_external: PathLike | Sequence[PathLike] = (),
        index_dir: PathLike | None = None,
        filesystem: object = None,
        file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
        ignore_missing_paths: bool = False,
        threads: int = 1,
        rows: object = None,
        windows: object = None,
        columns: object = None,
        decode_cf: bool = False,
        axes: str = "stored",
        sidecar: object = None,
        attrs: object = (),
        storage_options: Mapping[str, object] | None = None,
    ) -> FileOptions:
        """Check arguments of `read_h5`, and return the options that they stand for.

        Of `columns`, those count that say how they are made, such as `csr`.

        Raises
        ------
        NotFoundError, NotReadableError, OptionError
            If there are no such files, or an argument has a value that cannot be used.
        """
        ensure_handler()
        given = list_paths(paths)
        if not isinstance(group, str):
            raise OptionError(f"group={group!r}: expected the name of a group; '/' is the whole file")
        if dtypes is not None and not isinstance(dtypes, Mapping):
            raise OptionError(f"dtypes={dtypes!r}: expected {{column: dtype}}, such as {{'image': 'float16'}}")
        remote = filesystem if is_remote_filesystem(filesystem) else None
        tables, attributes = as_sidecars(sidecar), as_attrs(attrs)
        named = [*given, *(path for table in tables for path in list_paths(table.path))]
        storage = storage_for(
            storage_options, [text for path in named if isinstance(text := os.fspath(path), str)], remote
        )
        if isinstance(storage, FileSystemStorage):
            given, filesystem = [storage.url(os.fspath(path)) for path in given], None
        made = split_columns(columns)[1]
        scope = Scope.of(
            group, allow_external, threads, as_kind(rows), as_windows(windows), storage, made, decode_cf, axes
        )
        folder = None if index_dir is None else check_index_dir(index_dir)
        files = find_files(given, file_extensions, ignore_missing_paths, filesystem, storage)
        cast = Cast(dict(dtypes or {}), as_casting(casting))
        return cls(files.paths, scope, folder, cast, is_local_only(given), tables, attributes, files.states)

    def now(self) -> FileOptions:
        """Return these options with the states that remote files have now."""
        remote = [path for path in self.paths if path in self.states]
        if not remote:
            return self
        return replace(self, states=find_files(remote, file_extensions=None, storage=self.scope.storage).states)

    def index(self, columns: Sequence[ColumnLike] | None = None, spread: Spread = read_ahead) -> RowIndex:
        """Return the index of some columns, or of all. `spread` does the work, unless only this node has the files."""
        lookup = Lookup(self.scope, self.index_dir, read_ahead if self.local_only else spread, self.states)
        names = split_columns(columns)[0]
        if not self.sidecars and not self.attrs:
            return build_index(self.paths, names, lookup, self.cast)
        return index_with_tables(self.paths, names, lookup, self.cast, self.sidecars, self.attrs)
