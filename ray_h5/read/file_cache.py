"""The open files of this process, in a bounded cache; those on a disk: libhdf5 has one open only while it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ray_h5.errors import RayH5Error, StaleIndexError
from ray_h5.hdf5.checks.changed_files import check_identity, check_source, check_sources_now
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.hdf5.files.open_library import OpenLibrary, once
from ray_h5.hdf5.files.plain_bytes import FormatError, PlainBytes
from ray_h5.read.open_file import FILES, MAX_OTHERS, NO_SOURCES, OTHERS, OpenFile, SourcesRead, max_open
from ray_h5.storage.byte_source import Identity, ObjectIdentity, only_ctime_differs
from ray_h5.storage.local import LOCAL, LocalFile, identity_now

if TYPE_CHECKING:
    from ray_h5.errors import RayH5Error
    from ray_h5.manifest.joined_arrays import JoinedArray
    from ray_h5.manifest.layout import SourceStates
    from ray_h5.storage.byte_source import ByteSource
    from ray_h5.storage.storage_of_path import Storage


class FileOnDisk(OpenFile):
    """One file on a disk. It holds a descriptor of its own. libhdf5 has the file open only inside `library`.

    `is_hdf5` says that libhdf5 opened it before.
    """

    def __init__(self, access: Access, found: Identity) -> None:
        super().__init__(access, found)
        self.is_hdf5 = False
        self._states: dict[str, Identity] = {}

    def _open(self, found: Identity) -> tuple[ByteSource, Identity]:  # noqa: ARG002  it is compared with the open file
        """Open the bytes of the file, by a descriptor of our own: that of libhdf5 holds its lock."""
        source = LocalFile.open(self.path)
        return source, source.identity()

    def _plain_bytes(self) -> PlainBytes:
        if (descriptor := self.byte_source.descriptor) is None:
            raise FormatError
        return PlainBytes.on_disk(descriptor, self.identity.size)

    @contextlib.contextmanager
    def library(self) -> Iterator[OpenLibrary]:
        """Yield libhdf5's view of the file; close it at the end, or at that of `opened_once`."""
        shared = once.libraries
        if shared is not None and self in shared:
            yield shared[self]
            return
        opened = OpenLibrary(self.access, self.identity, states=self._states)
        if shared is not None:
            shared[self] = opened
            yield opened
            return
        try:
            yield opened
        finally:
            opened.close()

    def forget(self) -> None:
        super().forget()
        if once.libraries is not None and (library := once.libraries.pop(self, None)) is not None:
            library.close()

    def _other_file(self, path: str, group: str = "/") -> OpenFile:
        access = replace(self.access, path=path, group=group, beside="")
        known = self.identity if path == self.path else self._states.get(path)
        opened = OTHERS.get(access)
        if opened is not None and opened.identity == known and opened.is_current():
            return opened  # its name is looked at once it is read
        found = access.storage.check(path)
        if opened is None or opened.identity != found or not opened.is_current():
            opened = FileOnDisk(access, found)
            OTHERS.max_items = max_open(MAX_OTHERS)
            OTHERS.put(access, opened)
        # It was opened by its name, which may lead to another file by now.
        check_source(f"{self.path}: a column leads to {path}", known, opened.identity)
        return opened

    def look(self) -> None:
        """Open the file with libhdf5, to find out now whether it is HDF5."""
        if self.is_hdf5 or self.headers() is not None:
            return
        try:
            with self.library() as library:
                library.tree  # noqa: B018  opens it
        except (RayH5Error, OSError):
            self.forget()  # the cache would keep its descriptor
            raise
        self.is_hdf5 = True

    def _file_of(self, joined: JoinedArray) -> OpenFile:
        for path, state in joined.layouts[0].sources:
            self._states.setdefault(path, cast("Identity", state))
        return self._other_file(next((path for path, _ in joined.layouts[0].sources), self.path), self.access.group)

    def check_unchanged(self, sources: SourcesRead = NO_SOURCES) -> None:
        """Raise if the file has changed since it was described, or another one that rows of a column come from."""
        found = self.byte_source.identity()
        if found != self.identity:
            check_identity(self.path, self.identity, found, swmr=self.access.swmr)
            if not self.access.swmr:
                self.look_again(found)
        for path, (name, state) in sources.items():
            check_sources_now(self.path, name, [(path, state)], swmr=self.access.swmr)

    def look_again(self, found: Identity, *, is_planned: bool = True) -> None:
        """Describe the file again, of which only the ctime is another one.

        If its columns and chunks are as before, it stays open. Otherwise it changed, which is an error if a plan was
        made for the file as it was.
        """
        again = FileOnDisk(self.access, found)
        with self._lock, again.library() as library:
            is_same = again.identity == found and all(
                again.column(name, library) == layout for name, layout in self._columns.items()
            )
            if is_same and all(again.index_of(name, library) == index for name, index in self._indexes.items()):
                self.identity, self._headers = found, None
                # They were made of what is not compared.
                self._readers.clear()
                self._joined_arrays.clear()
            elif is_planned:
                raise StaleIndexError(
                    f"{self.path}: the file changed between planning and reading: its size and mtime are the same, and "
                    "its columns or their chunks are not. Make the dataset again."
                )

    def _check_unseen(self, name: str, expected: SourceStates) -> None:
        check_sources_now(self.path, name, expected, swmr=self.access.swmr)

    def is_current(self) -> bool:
        """Return whether the other files that columns come from are unchanged."""
        with self._lock:
            columns = (each for layout in self._columns.values() for each in layout.sources)
            sources = {*self._sought.items(), *columns, *self._states.items()}
        try:
            return all(identity_now(path) == known for path, known in sources)
        except RayH5Error:
            return False  # the file is opened again, and reports the error for the columns concerned


def open_file(
    path: str,
    group: str,
    policy: ExternalPolicy,
    swmr: bool = False,
    storage: Storage = LOCAL,
    expect: Identity | None = None,
    sources: Iterable[SourceStates] = (),
    make: Callable[[Access, Identity], OpenFile] | None = None,
    beside: str = "",
) -> OpenFile:
    """Return the open file at `path`, from the cache if the file has not changed; otherwise what `make` returns.

    Of a remote file in an expected state, nothing is asked: each request says which state it wants. `sources` are the
    expected states of other files that its columns come from.
    """
    access, make = Access(path, group, policy, swmr, storage, beside), make or FileOnDisk
    # With swmr too: a reader made after rows were added finds them.
    found = expect if isinstance(expect, ObjectIdentity) else access.storage.check(access.path)
    opened = FILES.get(access)
    # The cache is not locked here: a source may be on a mount that does not answer.
    if isinstance(opened, FileOnDisk) and only_ctime_differs(opened.identity, found):
        opened.look_again(found, is_planned=only_ctime_differs(expect, found))
    if opened is None or opened.identity != found or not opened.is_usable(None if expect is None else sources):
        opened = make(access, found)
    FILES.max_items = max_open()
    # Readers that still hold an evicted file keep it open.
    FILES.put(access, opened)
    return opened


def forget_all() -> None:
    """Remove all files from the cache; those that readers hold stay open."""
    for cache in (FILES, OTHERS, OpenFile.joint_columns):
        cache.clear()
