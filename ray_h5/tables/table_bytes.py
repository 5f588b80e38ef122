"""Files of tables: on this machine, or in a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ray_h5.errors import NotFoundError, StaleIndexError, TableError
from ray_h5.hdf5.files.opening import HEAD_BYTES
from ray_h5.hdf5.format.object_headers import SIGNATURE
from ray_h5.manifest.file_state import compare
from ray_h5.messages import few
from ray_h5.per_process import cached_property
from ray_h5.storage.addresses import is_url, without_secrets
from ray_h5.storage.byte_source import FileObject, Identity
from ray_h5.storage.find_files import FoundFiles, find_files
from ray_h5.storage.hub import on_hub
from ray_h5.storage.local import LOCAL, PathLike, absolute_path
from ray_h5.storage.storage_of_path import Storage, storage_of
from ray_h5.tables.sidecar import Sidecar

_EXTENSIONS = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "pq")
_PART_BYTES = 8 << 20


@dataclass(frozen=True)
class TableFile:
    """One file of a table. It can be sent to another process.

    Attributes
    ----------
    path : str
        Its path or URL.
    state : Identity, optional
        Its state when it was found.
    storage : Storage
        Where it is.
    """

    path: str
    state: Identity | None
    storage: Storage = LOCAL

    def __str__(self) -> str:
        return self.path

    def opened(self) -> pa.NativeFile:
        """Return what Arrow reads parts of."""
        if self.storage is LOCAL:
            return pa.OSFile(self.path)
        source = self.storage.open(self.path, self.state)
        return pa.PythonFile(FileObject(source.size, source.read_into), "r")

    def decoded(self) -> pa.NativeFile:
        """Return the bytes of a file of CSV as a stream. Those of one in a store are fetched once."""
        if self.storage is LOCAL:
            return pa.input_stream(self.path)  # it looks at the ending
        content = pa.BufferReader(self._content)
        return pa.CompressedInputStream(content, "gzip") if self.path.endswith(".gz") else content

    @cached_property
    def _content(self) -> pa.Buffer:
        source = self.storage.open(self.path, self.state)
        data = bytearray(source.size)
        spans = [(at, min(_PART_BYTES, source.size - at)) for at in range(0, source.size, _PART_BYTES)]

        def take(number: int, part: memoryview) -> None:
            at, count = spans[number]
            data[at : at + count] = part

        source.read_ranges(spans, take)
        return pa.py_buffer(data)

    def check_unchanged(self) -> None:
        """Raise if the file is another one by now."""
        if not compare(self.state, self.storage.seen(self.path, self.state)).is_none:
            raise StaleIndexError(f"{self}: the table changed since its keys were read; make the dataset again")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_content"}


@dataclass(slots=True)
class TableBudget:
    """What a table takes, and what it may take.

    Attributes
    ----------
    max_rows, max_bytes : int
        The most lines, and the most bytes in memory.
    rows, bytes : int
        What it takes so far.
    """

    max_rows: int
    max_bytes: int
    rows: int = 0
    bytes: int = 0

    def add(self, file: TableFile, rows: int, size: int) -> None:
        """Count lines and bytes of a file before they are taken.

        Raises
        ------
        TableError
            If they are too many.
        """
        self.rows, self.bytes = self.rows + rows, self.bytes + size
        if self.rows > self.max_rows:
            raise TableError(
                f"{file}: the table has {self.rows} lines or more; expected at most {self.max_rows}. If it is meant to "
                "be so long, pass Sidecar(..., max_rows=...)."
            )
        if self.bytes > self.max_bytes:
            raise TableError(
                f"{file}: the columns of the table take {self.bytes} bytes in memory or more; expected at most "
                f"{self.max_bytes}. If there is memory for them, pass Sidecar(..., max_bytes='8GiB')."
            )


@dataclass(frozen=True)
class TableFiles:
    """The files of a table.

    Attributes
    ----------
    files : list of TableFile
        The files.
    part_of : mapping of str to int, optional
        Where data files have a table each: the number of that of each data file.
    """

    files: list[TableFile]
    part_of: Mapping[str, int] | None = None

    @classmethod
    def of(cls, sidecar: Sidecar, storage: Storage, paths: Sequence[str] = ()) -> TableFiles:
        """Find the files of a table that is not in memory.

        `storage` is that of files with a URL; `paths` are the data files that may have a table each.
        """
        if not sidecar.is_by_file:
            return cls(_found(sidecar.paths, storage, None))
        by_file = {path: os.fspath(on_hub(sidecar.path_for(path), listed=True)) for path in paths}
        named = [*dict.fromkeys(by_file.values())]
        may_lack = sidecar.missing != "error"
        try:
            files = _found(named, storage, may_lack or None)
        except NotFoundError as exc:
            more = (
                "" if may_lack else " For rows of files without a table, pass Sidecar(..., missing='drop') or 'null'."
            )
            raise NotFoundError(f"sidecar={os.fspath(sidecar.paths[0])!r}: {exc}{more}") from None
        numbers = {file.path: number for number, file in enumerate(files)}
        full = {path: without_secrets(one)[0] if is_url(one) else absolute_path(one) for path, one in by_file.items()}
        return cls(files, {path: numbers[one] for path, one in full.items() if one in numbers})

    @property
    def are_hdf5(self) -> bool:
        """Whether the first one is a file of HDF5. Its signature may follow a user block."""
        return SIGNATURE in self.files[0].opened().read(HEAD_BYTES + len(SIGNATURE))


def _found(named: Sequence[PathLike], storage: Storage, ignore_missing_paths: bool | None) -> list[TableFile]:
    paths = [on_hub(path, listed=True) for path in named]
    try:
        files = find_files(paths, _EXTENSIONS, ignore_missing_paths=ignore_missing_paths, storage=storage)
    except NotFoundError as exc:  # a folder, or a glob, may be of HDF5
        try:
            files = find_files(paths, ignore_missing_paths=ignore_missing_paths, storage=storage)
        except NotFoundError:
            raise exc from None  # it names the endings of tables
    return _with_states(files, storage)


def _with_states(files: FoundFiles, storage: Storage) -> list[TableFile]:
    tables = []
    for table_path in files.paths:
        place = storage_of(table_path, storage)
        state = files.states.get(table_path) or place.identity(table_path)
        if state is not None and not state.size:
            raise TableError(f"{table_path}: is empty; expected a header and a line for each key")
        tables.append(TableFile(table_path, state, place))
    return tables


def check_names(file: TableFile, names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise TableError(f"{file}: the columns {few([repr(name) for name in twice])} are there more than once")
