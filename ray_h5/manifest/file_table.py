"""Files and their states, as arrays: they take less memory than a Python object for each file."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.arrow_arrays import binary_array
from ray_h5.content_equality import ComparedByContent
from ray_h5.errors import OptionError
from ray_h5.manifest.partition import Partition
from ray_h5.storage.byte_source import FileIdentity, Identity, ObjectIdentity

_MAX_ROWS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FileTable(ComparedByContent):
    """The files of a dataset, in the order of row ids, and their states.

    Attributes
    ----------
    paths : pyarrow.LargeBinaryArray
        Their paths as bytes, which need not be UTF-8.
    identities : numpy.ndarray
        int64 of shape (files, 4): the fields of `FileIdentity`. Inodes are unsigned; they keep their 64 bits. Of a
        remote file: size, time of the last change and zeros.
    etags : pyarrow.LargeBinaryArray
        The ETags of remote files, null for others; empty if all files are local.
    starts : numpy.ndarray
        int64 of shape (files + 1,): row id of each file's first row; the last entry is the number of rows.
    """

    paths: pa.LargeBinaryArray = field(default_factory=lambda: binary_array([]))
    identities: np.ndarray = field(default_factory=lambda: np.empty((0, 4), np.int64))
    etags: pa.LargeBinaryArray = field(default_factory=lambda: binary_array([]))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, file: int) -> str:
        return str(self.paths[file].as_py().decode("utf-8", "surrogateescape"))

    def all_paths(self) -> list[str]:
        """Return the paths of all files."""
        return [path.decode("utf-8", "surrogateescape") for path in self.paths.to_pylist()]

    def have(self, paths: Sequence[str]) -> list[bool]:
        """Return of each path whether it is one of the files."""
        wanted = binary_array([path.encode("utf-8", "surrogateescape") for path in paths])
        return [bool(is_of) for is_of in pc.is_in(wanted, value_set=self.paths).to_pylist()]

    def identity(self, file: int) -> Identity:
        """Return the state of a file."""
        size, mtime_ns, ctime_ns, inode = self.identities[file].tolist()
        if len(self.etags) and self.etags[file].is_valid:
            return ObjectIdentity(self.etags[file].as_py().decode(), size, mtime_ns)
        return FileIdentity(size, mtime_ns, ctime_ns, inode % (1 << 64))

    def differ(self, other: FileTable) -> np.ndarray:
        """Return the numbers of the files whose states are others in a table of as many files."""
        differs = np.any(self.identities != other.identities, axis=1)
        if len(self.etags) or len(other.etags):
            tags = (table.etags.to_pylist() or [None] * len(table) for table in (self, other))
            differs |= np.array([mine != theirs for mine, theirs in zip(*tags, strict=True)], bool)
        return np.flatnonzero(differs)

    @classmethod
    def of(cls, paths: Sequence[str], identities: Sequence[Identity], rows: Sequence[int]) -> FileTable:
        if sum(rows) > _MAX_ROWS:
            most = max(range(len(rows)), key=rows.__getitem__)
            raise OptionError(
                f"the files have {sum(rows)} rows; expected at most {_MAX_ROWS}. The largest file is "
                f"{paths[most]} with {rows[most]} rows. Leave out files that declare rows which they do not hold."
            )
        numbers = [_as_numbers(identity) for identity in identities]
        fields = np.array([number[:3] for number in numbers], np.int64).reshape(-1, 3)
        inodes = np.array([number[3] for number in numbers], np.uint64).view(np.int64)  # some are 2**63 and more
        tags = [identity.etag.encode() if isinstance(identity, ObjectIdentity) else None for identity in identities]
        names = binary_array([path.encode("utf-8", "surrogateescape") for path in paths])
        etags = binary_array(tags if any(tag is not None for tag in tags) else [])
        return cls(names, np.column_stack([fields, inodes]), etags, Partition.of(np.array(rows, np.int64)).starts)

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    @property
    def rows(self) -> Partition:
        """The rows of each file."""
        return Partition(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return int(self.identities[:, 0].sum())

    def remote_bytes(self) -> int:
        """Return how many bytes the files in stores have."""
        if not len(self.etags):
            return 0
        return int(self.identities[self.etags.is_valid().to_numpy(zero_copy_only=False), 0].sum())

    def where(self, row_id: int) -> str:
        """Return the place of a row, for messages."""
        file, row = map(int, self.rows.local(row_id))
        return f"{self.path(file)}, row {row}"

    @property
    def folder(self) -> str:
        """The deepest folder that all files are in, with a slash at its end. Paths below it are the names of files.

        A dataset keeps these names where it is copied or mounted elsewhere; two files of it never share one.
        """
        return shared_folder(self.paths.to_pylist()).decode("utf-8", "surrogateescape")

    @property
    def names_digest(self) -> str:
        """Digest of the names of the files: their paths below `folder`."""
        return digest_of_names(self.paths.to_pylist())

    def files_of(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the file of each row id."""
        return np.asarray(self.rows.part_of(row_ids))


def digest_of(data: bytes | memoryview) -> str:
    """Return a short digest of bytes, as text."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digest_of_names(paths: Sequence[bytes]) -> str:
    """Return a digest of the paths below the deepest folder that all files are in."""
    cut = len(shared_folder(paths))
    return digest_of(b"".join(path[cut:] + b"\0" for path in paths))


def shared_folder(paths: Sequence[bytes]) -> bytes:
    """Return the deepest folder that all paths are in, with a slash at its end; an empty one of no paths."""
    if not paths:
        return b""
    first, last = (path.split(b"/")[:-1] for path in (min(paths), max(paths)))  # what these share, all share
    shared = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))]
    return b"".join(folder + b"/" for folder in shared)


def _as_numbers(state: Identity) -> tuple[int, int, int, int]:
    if isinstance(state, ObjectIdentity):
        return state.size, state.modified_ns, 0, 0
    return state.size, state.mtime_ns, state.ctime_ns, state.inode
