"""Files of tables: on this machine, or in a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ray_h5.errors import StaleIndexError, TableError
from ray_h5.manifest.file_state import compare
from ray_h5.messages import few
from ray_h5.per_process import cached_property
from ray_h5.storage.addresses import is_url, without_secrets
from ray_h5.storage.byte_source import FileObject, Identity
from ray_h5.storage.find_files import find_files, list_paths
from ray_h5.storage.hub import on_hub
from ray_h5.storage.local import LOCAL, PathLike, absolute_path
from ray_h5.storage.storage_of_path import Storage, storage_of

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


def find_tables(path: Any, storage: Storage) -> list[TableFile]:
    """Return the files of a table; `storage` is that of files with a URL."""
    return _found([*list_paths(path)], storage, None)


def tables_of_files(
    by_file: Mapping[str, str], storage: Storage, *, is_whole: bool
) -> tuple[list[TableFile], dict[str, int]]:
    """Return the tables that files have, and the number of that of each file.

    `by_file` are their paths; `is_whole` says that each must exist.
    """
    tables = _found([*dict.fromkeys(by_file.values())], storage, None if is_whole else True)
    numbers = {table.path: number for number, table in enumerate(tables)}
    names = {file: without_secrets(path)[0] if is_url(path) else absolute_path(path) for file, path in by_file.items()}
    return tables, {file: numbers[name] for file, name in names.items() if name in numbers}


def _found(named: Sequence[PathLike], storage: Storage, ignore_missing_paths: bool | None) -> list[TableFile]:
    paths = [on_hub(path, listed=True) for path in named]
    files = find_files(paths, _EXTENSIONS, ignore_missing_paths=ignore_missing_paths, storage=storage)
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
