"""The open files of this process: on disks, and in stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ray_h5.errors import OptionError, RayH5Error, StaleIndexError
from ray_h5.hdf5.files.metadata_replay import HeldBytes, has_missed, trim
from ray_h5.hdf5.files.other_files import OtherFiles
from ray_h5.hdf5.tree.known_headers import FormatError, PlainBytes
from ray_h5.manifest.file_state import FileState, SourceStates, are_same_sources, check_same, check_sources, compare
from ray_h5.read.file_caches import FILES, JOINT_COLUMNS, MAX_OTHERS, OTHERS, max_open
from ray_h5.read.open_file_base import NO_SOURCES, OpenFile, SourcesRead
from ray_h5.storage.byte_source import Identity, ObjectIdentity
from ray_h5.storage.local import identity_now

if TYPE_CHECKING:
    from ray_h5.hdf5.files.external_policy import Access


class FileOnDisk(OpenFile):
    """A file on a disk: its state is looked at before and after each read, and so are those of files it leads to.

    Parameters
    ----------
    access : Access
        How it is opened.
    state : Identity
        The state that it was found in; its own is that of the opened file.
    """

    is_pinned = False

    def __init__(self, access: Access, state: Identity) -> None:
        # A descriptor of our own: that of libhdf5 holds its lock.
        byte_source = access.storage.open(access.path, state)
        super().__init__(access, byte_source, byte_source.identity())

    def _plain_bytes(self) -> PlainBytes:
        if (descriptor := self.byte_source.descriptor) is None:
            raise FormatError  # as what is not known of a file
        return PlainBytes.on_disk(descriptor, self.identity.size)

    def _is_same(self) -> bool:
        return self.byte_source.identity() == self.identity

    def _expect(self, sources: SourceStates) -> None:
        for path, state in sources:
            if state is not None:
                self._states.setdefault(path, state)

    def _other_file(self, path: str, group: str = "/") -> OpenFile:
        access = replace(self.access, path=path, group=group, beside="")
        known = self.identity if path == self.path else self._states.get(path)
        opened = OTHERS.get(access)
        if opened is not None and opened.identity == known and opened.is_current():
            return opened  # its name is looked at once it is read
        identity = access.storage.check(path)
        if opened is None or opened.identity != identity or not opened.is_current():
            opened = FileOnDisk(access, identity)
            OTHERS.max_items = max_open(MAX_OTHERS)
            OTHERS.put(access, opened)
        # It was opened by its name, which may lead to another file by now.
        check_same(f"{self.path}: a column leads to {path}", known, opened.identity, leads=True)
        return opened

    def check_sources(self, name: str, expected: SourceStates) -> None:
        known, look = self.manifest.columns.get(name), self.access.storage.identity
        found = None if known is None else known.layout.sources
        check_sources(self.path, name, expected, found, swmr=self.access.swmr, look=look)

    def check_unchanged(self, sources: SourcesRead = NO_SOURCES) -> None:
        swmr, found = self.access.swmr, self.byte_source.identity()
        if found != self.identity and check_same(self.path, self.identity, found, swmr=swmr).kind == "ctime":
            self.look_again(found)
        for path, (name, state) in sources.items():
            leads, now = f"{self.path}: column {name!r} leads to {path}", identity_now(path)
            if now != state and check_same(leads, state, now, leads=True, swmr=swmr).kind == "ctime":
                assert now is not None
                others = [file for file in OTHERS.values() if isinstance(file, FileOnDisk)]
                for file in others:
                    if file.path == path and compare(file.identity, now).kind == "ctime":
                        file.look_again(now)
                for file in (self, *others):
                    file._take_state(path, now)

    def look_again(self, identity: Identity, *, is_planned: bool = True) -> None:
        """Describe the file again, as only its ctime differs.

        If its columns and chunks are as before, it stays open. Otherwise it changed, which is an error if a plan was
        made for the file as it was.
        """
        again = FileOnDisk(self.access, identity)
        with self._lock, again.library():
            described = {name: (known, again.column(name)) for name, known in dict(self.manifest.columns).items()}
            is_same = compare(identity, again.identity).is_none and all(  # it may be touched once more meanwhile
                known.layout == replace(now, sources=known.layout.sources)
                and are_same_sources(known.layout.sources, now.sources)
                for known, now in described.values()
            )
            if is_same and all(again.index_of(name) == index for name, index in self._indexes.items()):
                self.identity, self._headers = again.identity, None
                self._states.update(again._states)
                self.manifest.columns.update(
                    (name, replace(known, layout=now)) for name, (known, now) in described.items()
                )
                # They were made of what is not compared.
                self.readers.clear()
                self.joined_columns.clear()
            elif is_planned:
                for name, (known, now) in described.items():  # says which other file changed
                    check_sources(self.path, name, known.layout.sources, now.sources)
                raise StaleIndexError(
                    f"{self.path}: the file changed between planning and reading: its size and mtime are the same, and "
                    "its columns or their chunks are not. Make the dataset again."
                )

    def _take_state(self, path: str, state: Identity) -> None:
        """Take over the state of another file, if only its ctime differs from the known one."""

        def taken(sources: Iterable[tuple[str, Identity | None]]) -> SourceStates:
            return tuple(
                (other, state if other == path and compare(known, state).kind == "ctime" else known)
                for other, known in sources
            )

        with self._lock:
            self._states.update((other, known) for other, known in taken(self._states.items()) if known is not None)
            self._sought.update(taken(self._sought.items()))
            for name, known in dict(self.manifest.columns).items():
                if any(other == path for other, _ in known.layout.sources):
                    layout = replace(known.layout, sources=taken(known.layout.sources))
                    self.manifest.columns[name] = replace(known, layout=layout)

    def is_current(self, planned: Iterable[SourceStates] | None = None) -> bool:
        del planned  # the files are looked at
        with self._lock:
            columns = (source for known in [*self.manifest.columns.values()] for source in known.layout.sources)
            sources = {*self._sought.items(), *columns, *self._states.items()}
        try:
            return all(identity_now(path) == known for path, known in sources)
        except RayH5Error:
            return False  # the file is opened again, and reports the error for the columns concerned

    def trim(self) -> None:
        """Nothing is held."""


class FileInStore(OpenFile):
    """A file in a store: each request says which state it wants.

    Parameters
    ----------
    access : Access
        How it is opened.
    state : Identity
        Its state.
    others : OtherFiles, optional
        The other files in the store that columns come from. A file that one of these leads to shares them.
    """

    is_pinned = True
    held: HeldBytes
    others: OtherFiles

    def __init__(self, access: Access, state: Identity, others: OtherFiles | None = None) -> None:
        if access.swmr:
            raise OptionError(f"{access.path}: swmr=True: nobody adds rows to an object in a store; leave it out")
        byte_source = access.storage.open(access.path, state)
        super().__init__(access, byte_source, state, HeldBytes(byte_source))
        self._counted_sizes = (0, 0, 0)
        self._owns_others = others is None
        self.others = others or OtherFiles(self, FileInStore)

    def _plain_bytes(self) -> PlainBytes:
        return PlainBytes(self.held.read_on, self.held.size)

    def _is_same(self) -> bool:
        return not has_missed()

    def _expect(self, sources: SourceStates) -> None:
        self.others.expect(sources)

    def _other_file(self, path: str, group: str = "/") -> OpenFile:
        other: OpenFile = self.others.file(path, group)
        return other

    def check_sources(self, name: str, expected: SourceStates) -> None:
        if (known := self.manifest.columns.get(name)) is None:
            self.others.expect(expected)
            return
        look = self.access.storage.identity
        check_sources(self.path, name, expected, known.layout.sources, swmr=False, look=look)

    def check_unchanged(self, sources: SourcesRead = NO_SOURCES) -> None:
        for file in (self, *self.others.opened(sources)):
            check_same(file.path, file.identity, file.byte_source.identity())

    def is_current(self, planned: Iterable[SourceStates] | None = None) -> bool:
        return self.others.are_current(planned)

    @property
    def cached_bytes(self) -> int:
        others = self.others.cached_bytes if self._owns_others else 0
        return super().cached_bytes + others + self.held.nbytes

    def trim(self) -> None:
        held = [self.held, *self.others.held]
        trim(held)
        # To count is to look at each column that is known, of which there may be thousands.
        sizes = sum(part.nbytes for part in held), len(self.manifest.columns), len(self.manifest.values)
        if sizes != self._counted_sizes:
            self._counted_sizes = sizes
            for cache in (FILES, OTHERS):
                cache.measure(self.access, self)


def open_file(access: Access, expect: FileState | None = None) -> OpenFile:
    """Return an open file, from the cache if the file has not changed; otherwise a new one.

    Of a remote file in an expected state, nothing is asked: each request says which state it wants.
    """
    planned, sources = (None, None) if expect is None else (expect.identity, expect.sources.values())
    # With swmr too: a reader made after rows were added finds them.
    identity = planned if isinstance(planned, ObjectIdentity) else access.storage.check(access.path)
    opened = FILES.get(access)
    # The cache is not locked here: a source may be on a mount that does not answer.
    if isinstance(opened, FileOnDisk) and compare(opened.identity, identity).kind == "ctime":
        opened.look_again(identity, is_planned=planned is not None and compare(planned, identity).kind == "ctime")
    if opened is None or opened.identity != identity or not opened.is_current(sources):
        opened = (FileInStore if access.storage.is_fetched else FileOnDisk)(access, identity)
    FILES.max_items = max_open()
    # Readers that still hold an evicted file keep it open.
    FILES.put(access, opened)
    return opened


def forget(are_of: Callable[[Sequence[str]], Sequence[bool]]) -> None:
    """Remove some files from the cache, and those that their columns come from; what readers hold stays open.

    `are_of` returns of paths whether each is among the files.
    """
    paths = list(dict.fromkeys(file.path for file in FILES.values()))
    gone = {path for path, is_of in zip(paths, are_of(paths), strict=True) if is_of}
    files = FILES.remove(lambda _, file: file.path in gone)
    columns = [known.layout for file in files for known in [*file.manifest.columns.values()]]
    gone |= {path for layout in columns for path, _ in layout.sources}
    OTHERS.remove(lambda _, file: file.path in gone)
    JOINT_COLUMNS.remove(lambda virtual, _: virtual.layout.path in gone)


def forget_all() -> None:
    """Remove all files from the cache; those that readers hold stay open."""
    for cache in (FILES, OTHERS, JOINT_COLUMNS):
        cache.clear()
