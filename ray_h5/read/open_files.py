"""The open files of this process, in a bounded cache; those on a disk: libhdf5 has one open only while it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ray_h5.errors import ExternalDataError, MissingSourceError, RayH5Error, StaleIndexError
from ray_h5.hdf5.checks.changed_files import check_identity, check_source, check_sources_now
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.hdf5.files.object_headers import NotPlainError, PlainBytes
from ray_h5.hdf5.files.open_library import OpenLibrary, once
from ray_h5.hdf5.files.opening import translated
from ray_h5.read.arrays.box_column import BoxColumn, shared_jobs
from ray_h5.read.arrays.selection import Selection
from ray_h5.read.jobs import Job
from ray_h5.read.open_file import FILES, MAX_OTHERS, NO_SOURCES, OTHERS, OpenFile, SourcesRead, max_open
from ray_h5.read.read_parts import FileRead, Part, jobs_of, joined_of, name_of
from ray_h5.storage.byte_source import Identity, ObjectIdentity, only_ctime_differs
from ray_h5.storage.local import LOCAL, LocalFile, identity_now

if TYPE_CHECKING:
    from ray_h5.errors import RayH5Error
    from ray_h5.manifest.joined_arrays import JoinedArray
    from ray_h5.manifest.known_columns import Elsewhere
    from ray_h5.manifest.layout import SourceStates
    from ray_h5.read.remote.elsewhere_reads import VirtualColumn
    from ray_h5.storage.byte_source import ByteSource
    from ray_h5.storage.storage_of_path import Storage


OTHER_FILES = StaleIndexError, ExternalDataError, MissingSourceError
"""The errors of another file that is not the one that it was, or may not be read."""


class FileOnDisk(OpenFile):
    """One file on a disk. It holds a descriptor of its own. libhdf5 has the file open only inside `library`.

    `is_hdf5` says that libhdf5 opened it before.
    """

    def __init__(self, access: Access, found: Identity) -> None:
        super().__init__(access, found)
        self.is_hdf5 = False
        self._states: dict[str, Identity] = {}
        self.virtual: dict[str, VirtualColumn] = {}

    def _open(self, found: Identity) -> tuple[ByteSource, Identity]:  # noqa: ARG002  it is compared with the open file
        """Open the bytes of the file, by a descriptor of our own: that of libhdf5 holds its lock."""
        source = LocalFile.open(self.path)
        return source, source.identity()

    def _plain_bytes(self) -> PlainBytes:
        if (descriptor := self.byte_source.descriptor) is None:
            raise NotPlainError
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
        if opened is not None and opened.identity == known:
            return opened  # its name is looked at once it is read
        found = access.storage.check(path)
        if opened is None or opened.identity != found:
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

    def jobs(self, read: FileRead, check: Callable[[OpenLibrary], None], libraries: contextlib.ExitStack) -> list[Job]:
        """Return the work of a read of the file.

        `check` looks at its columns first: an early error is cheaper. Jobs that need libhdf5 have the file open until
        `libraries` is closed.
        """
        library = libraries.enter_context(self.library())
        check(library)
        jobs: list[Job] = []
        together = _taken_together(read.parts)
        for part in read.parts:
            if id(part) not in together:
                jobs += self._jobs_of_part(part, library, read, libraries)
        for parts in {id(each): each for each in together.values()}.values():
            if self.leads_elsewhere(str(name_of(parts[0].address)), library):
                jobs += [job for part in parts for job in self._jobs_of_part(part, library, read, libraries)]
            else:
                jobs += _shared_jobs_of(self, parts, library)
        return self._sharing(jobs, read)

    def _sharing(self, jobs: list[Job], read: FileRead) -> list[Job]:
        """Return work that decodes no chunk of the file that is held."""
        if read.held is None or self.access.swmr:
            return jobs
        return [read.held.sharing(job, self.path, self.byte_source, self.identity) for job in jobs]

    def _jobs_of_part(
        self, part: Part, library: OpenLibrary, read: FileRead, libraries: contextlib.ExitStack
    ) -> list[Job]:
        name = name_of(part.address)
        if self.access.beside and (joined := joined_of(part.address)) is not None:
            return self._jobs_of_one(part, joined, read, libraries)
        if name is not None and self.leads_elsewhere(name, library):
            there = self._jobs_elsewhere(part, library, read, libraries)
            if there is not None:
                return there
            # libhdf5 opens the sources by their names: before that, they must be those that the guards looked at.
            read.add_sources(name, sources := self.column(name, library).sources)
            check_sources_now(self.path, name, sources, swmr=self.access.swmr)
        return jobs_of(self.reader(part.address, library), part, library)

    def _jobs_of_one(
        self, part: Part, joined: JoinedArray, read: FileRead, libraries: contextlib.ExitStack
    ) -> list[Job]:
        """Return the work of a part whose datasets lie in one of two files that are read together."""
        read.add_sources(joined.name, joined.layouts[0].sources)
        for path, state in joined.layouts[0].sources:
            self._states.setdefault(path, cast("Identity", state))
        path = next((path for path, _ in joined.layouts[0].sources), self.path)
        there = cast("FileOnDisk", self._other_file(path, self.access.group))
        library = libraries.enter_context(there.library())
        return there._sharing(jobs_of(there.reader(part.address, library), part, library), read)

    def _jobs_elsewhere(
        self, part: Part, library: OpenLibrary, read: FileRead, libraries: contextlib.ExitStack
    ) -> list[Job] | None:
        """Return the work of a part whose values are in other datasets: that of the files that its rows come from.

        None for another part: h5py reads it, with its guards, or says what is wrong.
        """
        from ray_h5.read.remote.elsewhere_reads import leads_to, spread, virtual_of

        name = str(name_of(part.address))
        elsewhere = self.elsewhere_on_disk(name, library)
        if elsewhere is None or (elsewhere.how == "virtual" and not isinstance(part.address, str)):
            return None
        jobs: list[Job] = []
        undone: list[Callable[[], None]] = []
        layout = self.column(name, library)
        try:
            if elsewhere.how == "virtual":
                virtual = virtual_of(self, elsewhere, layout)
                paths = virtual.paths_of(part.request)
                if len(paths) > max_open(MAX_OTHERS):
                    return None
                # A path without a file is one where libhdf5 looks first.
                read.add_sources(name, [each for each in layout.sources if each[1] is None or each[0] in paths])
                if len(layout.sources) <= max_open(MAX_OTHERS) and (joint := virtual.joint(self)) is not None:
                    return virtual.joint_jobs(joint, part)
            else:
                read.add_sources(name, layout.sources)
            for other, piece in spread(self, part, elsewhere, layout, undone):
                there = libraries.enter_context(other.library())
                if isinstance(other, FileOnDisk) and other.leads_elsewhere(str(name_of(piece.address)), there):
                    self._elsewhere[name] = None  # h5py reads a chain of files: it looks at each of them again
                    return None
                jobs += jobs_of(other.reader_for(leads_to(layout, other), piece.address, there), piece, there)
        except OTHER_FILES:
            raise  # libhdf5 would open whatever has their names now
        except RayH5Error:
            self._elsewhere[name] = None  # h5py reads it from now on
            return None
        read.after += undone
        return jobs

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

    def leads_elsewhere(self, name: str, library: OpenLibrary) -> bool:
        """Return whether the values of a column are in other datasets."""
        layout = self.column(name, library)
        return bool(layout.sources) or layout.storage == "virtual"

    def elsewhere_on_disk(self, name: str, library: OpenLibrary) -> Elsewhere | None:
        """Return where the values of a column of a local file are, if they are in other datasets."""
        if self.access.swmr or not self.leads_elsewhere(name, library):
            return None
        from ray_h5.hdf5.columns.values_elsewhere import find_elsewhere
        from ray_h5.hdf5.files.links import LinkedFiles, Trail

        with self._lock:
            if name not in self._elsewhere:
                try:
                    with translated(self.path, f"reading the header of column {name!r}"):
                        layout, trail = self.column(name, library), Trail(self.access, LinkedFiles())
                        found = find_elsewhere(self.path, library.dataset(name), layout, trail)
                except OTHER_FILES:
                    raise
                except RayH5Error:
                    found = None  # h5py reads it, or says what is wrong
                self._elsewhere[name] = found
            return self._elsewhere[name]


def _taken_together(parts: Sequence[Part]) -> dict[int, list[Part]]:
    """Return the parts that take fields, positions or boxes of the same dataset, for each such part by its id."""
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        if isinstance(part.address, Selection):
            by_name.setdefault(part.address.name, []).append(part)
    return {id(part): found for found in by_name.values() if len(found) > 1 for part in found}


def _shared_jobs_of(file: OpenFile, parts: Sequence[Part], library: OpenLibrary) -> list[Job]:
    """Return the work of parts of a read that take fields or positions of one dataset: each chunk is decoded once."""
    readers = [file.reader(part.address, library) for part in parts]
    columns = [each for each in readers if isinstance(each, BoxColumn)]
    if len(columns) == len(parts):
        return shared_jobs(columns, [part.request for part in parts], [part.out for part in parts])
    return [job for reader, part in zip(readers, parts, strict=True) for job in jobs_of(reader, part, library)]


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
