"""What remote files have in common, whatever gets their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ray_h5.errors import NotFoundError, NotHDF5Error, RayH5Error, ReadFailedError, TruncatedFileError
from ray_h5.storage.addresses import StoreAddress, check_listed, shown
from ray_h5.storage.block_cache import CachedFile
from ray_h5.storage.byte_source import Buffer, ByteSource, Identity, ObjectIdentity, Span, Then
from ray_h5.storage.request_pool import IN_FLIGHT, call, fetch

Result = TypeVar("Result")

PANIC = "PanicException"
"""What an error inside obstore's Rust is: no Exception, but a BaseException."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a listing: its URL and its state."""

    url: str
    key: str
    identity: ObjectIdentity


class InStore(ABC):
    """How files in stores are used, whatever store they are in. See also `LocalStorage`."""

    __slots__ = ()

    opened_at_once: ClassVar[int] = IN_FLIGHT
    kept_open: ClassVar[int] = 1024
    call_bytes: ClassVar[int] = 64 << 20
    """What counts is how many rows are asked for at once. One batch at a time read 30 MB/s, 16 batches 93 MB/s (60 ms
    to the first byte; shuffled rows of 50 KB)."""

    is_fetched: ClassVar[bool] = True
    reads_notice_changes: ClassVar[bool] = True
    """Whether each read says which state it wants, so that nobody has to look at the file before and after."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What says which store a URL is of, without secrets."""

    # What a store does. Each of these is a request, or a few, in a thread that may wait; what it raises is translated.

    @abstractmethod
    def look(self, url: str) -> ObjectIdentity | None:
        """Return the state that a file has now; None if it does not exist."""

    @abstractmethod
    def entries(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        """Return what `list` does."""

    @abstractmethod
    def read(self, url: str, expect: ObjectIdentity, offset: int, nbytes: int) -> bytes | memoryview:
        """Return bytes of a file in an expected state, by one request."""

    def address(self, url: str) -> StoreAddress:
        """Return the parts of a URL."""
        return StoreAddress.of(url)

    def error(self, exc: BaseException, url: str, doing: str) -> RayH5Error:
        """Return the error for what a request raised. The text of that may hold what is secret."""
        if isinstance(exc, FileNotFoundError):
            return NotFoundError(f"{url}: no such file in filesystem={self.place}")
        return ReadFailedError(f"{url}: {doing} failed in filesystem={self.place}: {type(exc).__name__}")

    # What it is used for ------------------------------------------------------------------------------

    def identity(self, url: str) -> ObjectIdentity | None:
        """Return the state that a file has now; None if it does not exist."""
        return self.asking(url, "looking at it", lambda: self.look(url))

    def check(self, url: str) -> ObjectIdentity:
        """Return the state of a file that exists and is not empty; raise the error that says what it is."""
        identity = self.identity(url)
        if identity is None:
            raise self.error(FileNotFoundError(), url, "looking at it")
        self.open(url, identity)
        return identity

    def list(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        """Return the files in a folder, whose URL ends in ``/``, and the keys of its folders; or all files below it."""
        files, folders = self.asking(url, "listing it", lambda: self.entries(url, below=below))
        top = self.address(url).key
        for key in (*(file.key for file in files), *folders):
            check_listed(url, top, key)
        return files, folders

    def get(self, url: str, expect: ObjectIdentity, offset: int, nbytes: int) -> memoryview:
        """Return bytes of a file in an expected state, by one request, in a thread that may wait."""
        doing = f"reading {nbytes} bytes at offset {offset}"
        data = self._translated(url, doing, lambda: self.read(url, expect, offset, nbytes))
        if len(data) != nbytes:
            raise TruncatedFileError(
                f"{url}: expected {nbytes} bytes at offset {offset}, found {len(data)}; the file has {expect.size} "
                "bytes. It is cut short: copy it again."
            )
        return memoryview(data)

    def asking(self, url: str, doing: str, work: Callable[[], Result]) -> Result:
        """Do a request in another thread, so that Ctrl-C ends the wait."""
        return call(lambda: self._translated(url, doing, work))

    def _translated(self, url: str, doing: str, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except RayH5Error as exc:
            error = exc
        except BaseException as exc:
            if not isinstance(exc, Exception) and type(exc).__name__ != PANIC:
                raise
            error = self.error(exc, shown(url), doing)
        raise error  # without a context, which could hold something secret

    def cached(self, url: str, expect: ObjectIdentity) -> CachedFile | None:  # noqa: ARG002  most have none
        """Return what has bytes of a file in one state on a disk, if its bytes stay there."""
        return None

    def open(self, path: str, expect: Any) -> RemoteFile:
        """Return the bytes of a file in one state. It costs no request."""
        if expect.size == 0:
            raise NotHDF5Error(f"{path}: expected an HDF5 file, found an empty one (0 bytes)")
        return RemoteFile(self, path, expect)

    def seen(self, path: str, planned: Identity | None) -> Identity | None:  # noqa: ARG002  nothing is asked
        """Return the planned state: each read says which state it wants."""
        return planned


class RemoteFile(ByteSource):
    """One remote file in one state.

    Parameters
    ----------
    storage : InStore
        Where it is.
    url : str
        The file.
    expect : ObjectIdentity
        The state.
    """

    is_fetched = True
    path = "a file in a store"

    def __init__(self, storage: InStore, url: str, expect: ObjectIdentity) -> None:
        self._storage, self._url, self._expect = storage, url, expect
        self._cached = storage.cached(url, expect)

    @property
    def size(self) -> int:
        return self._expect.size

    def identity(self) -> ObjectIdentity:
        """Return the state that the file has now; the expected one, if reads notice another."""
        return self._expect if self._storage.reads_notice_changes else self._storage.check(self._url)

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes by one request, or from a disk, in a thread that may wait; see `fetch`."""
        if self._cached is not None:
            return self._cached.get(offset, nbytes)
        return self._storage.get(self._url, self._expect, offset, nbytes)

    def on_disk(self, spans: Sequence[Span]) -> list[bool]:
        """Return for byte ranges whether each seems to be in the cache."""
        return [False for _ in spans] if self._cached is None else self._cached.has(spans)

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill `buffer` with the bytes that begin at `offset`."""
        self.read_ranges([(offset, len(buffer))], lambda _, data: buffer.__setitem__(slice(None), data))

    def read_ranges(self, spans: Sequence[Span], then: Then) -> None:
        """Read spans, and pass each to `then` in this thread as it arrives."""
        fetch([(self, offset, nbytes) for offset, nbytes in spans], then)
