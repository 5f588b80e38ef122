"""Options that say which files are read and how they are opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ray_h5.errors import OptionError
from ray_h5.hdf5.reading.casting import as_casting
from ray_h5.log import ensure_handler
from ray_h5.planning.index.cache import check_index_dir
from ray_h5.planning.index.file_facts import Scope
from ray_h5.planning.index.lookup import Lookup, Spread, read_ahead
from ray_h5.planning.index.row_index import RowIndex, build_index
from ray_h5.planning.paths import (
    DEFAULT_EXTENSIONS,
    PathLike,
    find_files,
    is_local_only,
    is_remote_filesystem,
    list_paths,
)
from ray_h5.planning.rows.kinds import as_kind
from ray_h5.planning.rows.windows import as_windows
from ray_h5.planning.schema import Cast
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
    states : mapping of str to ObjectIdentity
        The states of remote files, by URL.
    """

    paths: Sequence[str]
    scope: Scope
    index_dir: str | None
    cast: Cast
    local_only: bool
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
        storage_options: Mapping[str, object] | None = None,
    ) -> FileOptions:
        """Check arguments of `read_h5`, and return the options that they stand for.

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
        storage = storage_for(
            storage_options, [text for path in given if isinstance(text := os.fspath(path), str)], remote
        )
        if isinstance(storage, FileSystemStorage):
            given, filesystem = [storage.url(os.fspath(path)) for path in given], None
        scope = Scope.of(group, allow_external, threads, as_kind(rows), as_windows(windows), storage)
        folder = None if index_dir is None else check_index_dir(index_dir)
        files = find_files(given, file_extensions, ignore_missing_paths, filesystem, storage)
        cast = Cast(dict(dtypes or {}), as_casting(casting))
        return cls(files.paths, scope, folder, cast, is_local_only(given), files.states)

    def index(self, columns: Sequence[str] | None = None, spread: Spread = read_ahead) -> RowIndex:
        """Return the index of some columns, or of all. `spread` does the work, unless only this node has the files."""
        lookup = Lookup(self.scope, self.index_dir, read_ahead if self.local_only else spread, self.states)
        return build_index(self.paths, columns, lookup, self.cast)
