"""External storage: values of a dataset that lie in raw files, one after the other."""

from __future__ import annotations

import os

import h5py

from ray_h5.hdf5.files.changed_files import check_source
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.storage.byte_source import Buffer, ByteSource, FileIdentity
from ray_h5.storage.local import LocalFile


class RawFiles(ByteSource):
    """The bytes of the values of a dataset: byte 0 is the first one of its first file."""

    size = 0

    def __init__(self, layout: ColumnLayout, dataset: h5py.Dataset) -> None:
        self.path = layout.path
        self._where = layout.where
        self._states = dict(layout.sources)
        self._parts: list[tuple[str, int, int, int]] = []
        for name, offset, count in dataset.external:
            self._parts.append((os.fsdecode(name), int(offset), self.size, self.size + int(count)))
            self.size += int(count)

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""
        buffer = memoryview(buffer)
        for path, start, begin, end in self._parts:
            low, high = max(offset, begin), min(offset + len(buffer), end)
            if low < high:
                self._opened(path).read_into(start + low - begin, buffer[low - offset : high - offset])

    def identity(self) -> FileIdentity:
        """Return the state of the first file."""
        return self._opened(self._parts[0][0]).identity()

    def _opened(self, path: str) -> LocalFile:
        """Open a file; raise unless it is the one that may be read: its name may lead to another one by now."""
        file = LocalFile.open(path)
        check_source(f"{self._where} leads to {path}", self._states.get(path), file.identity())
        return file
