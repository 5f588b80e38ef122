"""Files of tables: on this machine, or in a store."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from ray_h5.errors import StaleIndexError, TableError
from ray_h5.messages import few
from ray_h5.planning.paths import find_files, list_paths
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import ByteSource, Identity
from ray_h5.storage.local import LOCAL, identity_now
from ray_h5.storage.storages import Storage, storage_of

_EXTENSIONS = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "pq")
_PART_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
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

    @property
    def is_remote(self) -> bool:
        """Whether it is in a store."""
        return is_url(self.path)

    def beginning(self, count: int) -> bytes:
        """Return its first bytes."""
        if not self.is_remote:
            with open(self.path, "rb") as file:
                return file.read(count)
        return _RemoteReader(self._source()).read(count)

    def for_parquet(self) -> str | pa.NativeFile:
        """Return what Arrow reads parts of."""
        return pa.PythonFile(_RemoteReader(self._source()), "r") if self.is_remote else self.path

    def for_csv(self) -> str | pa.NativeFile:
        """Return what Arrow reads from beginning to end. Of a file in a store, the bytes are fetched once."""
        if not self.is_remote:
            return self.path
        content = pa.BufferReader(self._content)
        # Of a path, Arrow looks at the ending by itself.
        return pa.CompressedInputStream(content, "gzip") if self.path.endswith(".gz") else content

    def check_unchanged(self) -> None:
        """Raise if the file is another one by now. Requests for a file in a store do so by themselves."""
        if not self.is_remote and identity_now(self.path) != self.state:
            raise StaleIndexError(f"{self}: the table changed since its keys were read; make the dataset again")

    @cached_property
    def _content(self) -> pa.Buffer:
        source = self._source()
        found = bytearray(source.size)
        spans = [(at, min(_PART_BYTES, source.size - at)) for at in range(0, source.size, _PART_BYTES)]

        def take(number: int, part: memoryview) -> None:
            at, count = spans[number]
            found[at : at + count] = part

        source.read_ranges(spans, take)
        return pa.py_buffer(found)

    def _source(self) -> ByteSource:
        return self.storage.open(self.path, self.state)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_content"}


class _RemoteReader(io.RawIOBase):
    """A file in a store, which Arrow reads parts of."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._source.size - self._at)]
        if len(view):
            self._source.read_into(self._at, view)
        self._at += len(view)
        return len(view)


def find_tables(path: Any, storage: Storage) -> list[TableFile]:
    """Return the files of a table; `storage` is that of files with a URL."""
    found = find_files(list_paths(path), _EXTENSIONS, ignore_missing_paths=None, storage=storage)
    return [_file(each, found.states.get(each), storage_of(each, storage)) for each in found.paths]


def _file(path: str, state: Identity | None, storage: Storage) -> TableFile:
    if not is_url(path):
        return TableFile(path, identity_now(path))
    state = state or storage.identity(path)
    if state is not None and not state.size:
        raise TableError(f"{path}: is empty; expected a header and a line for each key")
    return TableFile(path, state, storage)


def check_names(file: TableFile, names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise TableError(f"{file}: the columns {few([repr(name) for name in twice])} are there more than once")
