"""Parts of several remote files as one, for external storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ray_h5.storage.byte_source import ByteSource, ObjectIdentity
from ray_h5.storage.fetching import Getter
from ray_h5.storage.stores.remote_file import RemoteFile


class JoinedBytes(RemoteFile):
    """Parts of files, one after the other.

    Parameters
    ----------
    parts : sequence of (ByteSource, int, int)
        The file, the offset and the size of each part.
    """

    def __init__(self, parts: Sequence[tuple[ByteSource, int, int]]) -> None:
        super().__init__(ObjectIdentity("", sum(nbytes for _, _, nbytes in parts)))
        self._parts = [(cast("Getter", source), offset, nbytes) for source, offset, nbytes in parts]
        self._ends = np.cumsum([nbytes for _, _, nbytes in parts], dtype=np.int64)

    def identity(self) -> ObjectIdentity:
        """Return the state that is read. Reads raise if one of the files has another one."""
        return self._expect

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes, in a thread that may wait; see `fetch`."""
        first = int(np.searchsorted(self._ends, offset, side="right"))
        found: list[memoryview] = []
        while nbytes > 0:
            source, begin, size = self._parts[first]
            within = offset - (int(self._ends[first]) - size)
            count = min(nbytes, size - within)
            found.append(source.get(begin + within, count))
            offset, nbytes, first = offset + count, nbytes - count, first + 1
        return found[0] if len(found) == 1 else memoryview(b"".join(found))
