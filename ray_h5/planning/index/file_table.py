"""The files of a dataset, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError
from ray_h5.planning.by_content import ComparedByContent
from ray_h5.storage.byte_source import FileIdentity

_MAX_ROWS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FileTable(ComparedByContent):
    """The files, as arrays: they take less memory than a Python object for each file.

    Attributes
    ----------
    paths : pyarrow.LargeBinaryArray
        Their paths as bytes, which need not be UTF-8, in the order of row ids.
    identities : numpy.ndarray
        int64 of shape (files, 4): the fields of `FileIdentity`. Inodes are unsigned; they keep their 64 bits.
    starts : numpy.ndarray
        int64 of shape (files + 1,): row id of each file's first row; the last entry is the
        number of rows.
    """

    paths: pa.LargeBinaryArray
    identities: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, paths: Sequence[str], identities: Sequence[FileIdentity], rows: Sequence[int]) -> FileTable:
        if sum(rows) > _MAX_ROWS:
            most = max(range(len(rows)), key=rows.__getitem__)
            raise OptionError(
                f"the files have {sum(rows)} rows; expected at most {_MAX_ROWS}. The largest file is "
                f"{paths[most]} with {rows[most]} rows. Leave out files that declare rows which they do not hold."
            )
        states = np.array([(each.size, each.mtime_ns, each.ctime_ns) for each in identities], np.int64)
        inodes = np.array([each.inode for each in identities], np.uint64).view(np.int64)  # some are 2**63 and more
        names = [path.encode("utf-8", "surrogateescape") for path in paths]
        starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        return cls(pa.array(names, pa.large_binary()), np.column_stack([states, inodes]), starts)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def path(self, file: int) -> str:
        return _as_path(self.paths[file])

    def all_paths(self) -> list[str]:
        """Return the paths of all files."""
        return [_as_path(path) for path in self.paths]

    def identity(self, file: int) -> FileIdentity:
        size, mtime_ns, ctime_ns, inode = self.identities[file].tolist()
        return FileIdentity(size, mtime_ns, ctime_ns, inode % (1 << 64))

    def where(self, row_id: int) -> str:
        """Return the place of a row, for messages."""
        file = int(self.files_of(np.array([row_id]))[0])
        return f"{self.path(file)}, row {row_id - self.starts[file]}"

    def files_of(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the file of each row id."""
        return np.searchsorted(self.starts, row_ids, side="right") - 1


def _as_path(name: pa.LargeBinaryScalar) -> str:
    return str(name.as_py().decode("utf-8", "surrogateescape"))
