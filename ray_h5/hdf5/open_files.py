"""The open files of this process, in a bounded cache.

An open file belongs to the process that opened it: after a fork the cache of the child is empty, and a
pickled `RowReader` opens its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import h5py
import numpy as np

from ray_h5.errors import RayH5Error, StaleIndexError, UnsupportedColumnError
from ray_h5.hdf5.checks.changed_files import check_identity, check_same_sources, check_sources_now
from ray_h5.hdf5.checks.values import ValueGuard
from ray_h5.hdf5.chunk_index import ChunkIndex, build_chunk_index
from ray_h5.hdf5.column_guards import ColumnGuards
from ray_h5.hdf5.layout import ColumnLayout, FileLayout, SourceStates
from ray_h5.hdf5.metadata.access import Access, ExternalPolicy
from ray_h5.hdf5.metadata.attributes import ColumnNotes, notes_of, short_attributes
from ray_h5.hdf5.metadata.column import describe_column
from ray_h5.hdf5.metadata.encodings import Encoding, Form
from ray_h5.hdf5.metadata.group_attributes import attributes_of
from ray_h5.hdf5.metadata.groups import GroupPattern, read_group_table
from ray_h5.hdf5.metadata.links import Sources
from ray_h5.hdf5.metadata.opening import open_h5, translated
from ray_h5.hdf5.metadata.tree import H5Tree, describe
from ray_h5.hdf5.open_library import OpenLibrary
from ray_h5.hdf5.parts import Address, Part
from ray_h5.hdf5.reading.direct_column import DirectColumn
from ray_h5.hdf5.reading.grid_column import GridAddress, GridColumn, grid_layout
from ray_h5.hdf5.reading.h5py_column import H5pyColumn
from ray_h5.hdf5.reading.jobs import Job
from ray_h5.hdf5.reading.last_axis import LastAxis, LastAxisColumn
from ray_h5.hdf5.reading.run_request import RunRequest
from ray_h5.hdf5.reading.segmented_column import SegmentedColumn, class_columns
from ray_h5.hdf5.remote.elsewhere import Elsewhere
from ray_h5.hdf5.remote.held_bytes import HeldBytes, gather
from ray_h5.hdf5.remote.known_columns import KnownColumn, PackedIndex
from ray_h5.hdf5.remote.other_columns import adopt_there, bytes_stored, known_there, raw_column
from ray_h5.hdf5.remote.other_files import OtherFiles
from ray_h5.hdf5.remote.spread import VirtualColumn
from ray_h5.hdf5.segments import GroupTable, Segments
from ray_h5.lru import LRU
from ray_h5.storage.byte_source import ByteSource, FileIdentity, Identity, ObjectIdentity
from ray_h5.storage.local import LOCAL, LocalFile, identity_now
from ray_h5.storage.storages import Storage

MAX_OPEN_FILES = 64
"""Most files in the cache. Each needs a descriptor, of which a process usually has 1024; the cache takes at most a
quarter of them."""

MAX_INDEX_BYTES = 256 << 20
"""Most bytes of the chunk indexes of the cached files; a chunk takes 28. The file used last stays in any case."""


ColumnReader: TypeAlias = DirectColumn | H5pyColumn | GridColumn | SegmentedColumn | LastAxisColumn


def jobs_of(reader: ColumnReader, part: Part, library: OpenLibrary) -> list[Job]:
    """Return the work of a part of a read."""
    if isinstance(reader, (SegmentedColumn, DirectColumn)):
        return reader.jobs(part.request, part.out, library)
    request = part.request.listed() if isinstance(part.request, RunRequest) else part.request
    return reader.jobs(request, part.out, library)


class OpenFile:
    """One file: its bytes, and its layout and chunk indexes, which are read when first needed.

    It holds a descriptor of its own. libhdf5 has the file open only inside `library`.

    With `swmr`, a writer may have it open and add rows. The columns stay as they were when they were
    described. Size and times then change all the time, so the inode alone identifies the file.

    Of a remote file, `others` are the other files in its store that columns come from. A file that one of these leads
    to shares them.
    """

    def __init__(self, access: Access, found: Identity, others: OtherFiles | None = None) -> None:
        self.path = access.path
        self.access = access
        self._lock = threading.RLock()
        self._form: Form | None = "" if access.swmr else None
        self.byte_source = self._open(found)
        self.identity = found if self.is_remote else self.byte_source.identity()
        self.held = HeldBytes(self.byte_source) if self.is_remote else None
        self._columns: dict[str, ColumnLayout] = {}
        self._listed: tuple[str, ...] = ()
        self._refused: dict[str, RayH5Error] | None = None
        self._sought: Sources = {}
        self._readers: dict[str | GridAddress | LastAxis, ColumnReader] = {}
        self._class_columns: WeakKeyDictionary[Segments, list[DirectColumn]] = WeakKeyDictionary()
        self._indexes: dict[str, ChunkIndex] = {}
        self._known: dict[str, KnownColumn] = {}
        self._elsewhere: dict[str, Elsewhere | None] = {}
        self.virtual: dict[str, VirtualColumn] = {}
        self._owns_others = others is None
        self.others = others or (OtherFiles(self) if self.is_remote else None)
        self.index_bytes = 0

    def _open(self, found: Identity) -> ByteSource:
        """Open the bytes of the file. Of a local one, a look at it is included."""
        path, access = self.path, self.access
        if not isinstance(found, FileIdentity):
            return access.storage.open(path, found)
        with open_h5(path, access.swmr) as file:
            # A descriptor of our own: that of libhdf5 holds its lock on the file.
            opened = LocalFile.open(path)
            if not os.path.samestat(os.fstat(file.id.get_vfd_handle()), opened.stat()):
                raise StaleIndexError(f"{path}: the file was replaced while it was being opened; open it again")
            if self._form is None:
                tree = H5Tree(file, access)
                self._form = tree.form
                tree.close()
        return opened

    @property
    def form(self) -> Form:
        """The convention that the file follows, as far as it says so."""
        with self._lock:
            if self._form is None:
                with self.library() as library:
                    self._form = library.tree.form
            return self._form

    @property
    def is_remote(self) -> bool:
        """Whether each read is a request, and libhdf5 reads through `replay`."""
        return self.byte_source.is_remote

    @contextlib.contextmanager
    def library(self, held: HeldBytes | None = None) -> Iterator[OpenLibrary]:
        """Yield libhdf5's view of the file; close it at the end.

        Of a remote file it is of bytes in memory: `held`, if a read has bytes of its own.
        """
        opened = OpenLibrary(self.access, self.identity, held or self.held, self.others)
        try:
            yield opened
        finally:
            opened.close()

    def column(self, name: str, library: OpenLibrary) -> ColumnLayout:
        """Return the layout of column `name`; raise the error that says why it cannot be read."""
        with self._lock:
            if name not in self._columns:
                self._columns[name] = library.tree.column(name)
            return self._columns[name]

    def adopt(self, known: Mapping[str, KnownColumn]) -> None:
        """Take what an index says of columns, so that libhdf5 need not be asked."""
        with self._lock:
            for name, column in known.items():
                if name not in self._columns:
                    layout = column.layout
                    self._columns[name] = layout if layout.path == self.path else replace(layout, path=self.path)
                    self._known[name] = column
                    if column.elsewhere is not None:
                        self._elsewhere[name] = column.elsewhere
                        adopt_there(self, column)

    def file_of(self, path: str) -> OpenFile:
        """Return this file, or another one of its store that values come from."""
        if path == self.path and self.access.group == "/":
            return self
        assert self.others is not None
        return self.others.file(path)

    def elsewhere(self, name: str, library: OpenLibrary) -> Elsewhere | None:
        """Return where the values of a column of a remote file are, if they are in other files."""
        layout = self.column(name, library)
        with self._lock:
            if self.others is None or not (layout.sources or name in self._elsewhere):
                return None
            if name not in self._elsewhere:
                with translated(self.path, f"reading the header of column {name!r}"):
                    self._elsewhere[name] = Elsewhere.of(self.path, library.dataset(name), layout, self.others)
            return self._elsewhere[name]

    def known_columns(self, names: Iterable[str], library: OpenLibrary) -> dict[str, KnownColumn]:
        """Return what `adopt` takes, of the columns that are read without libhdf5."""
        names = list(names)
        layouts = dict(zip(names, gather(lambda name: self.column(name, library), names), strict=True))
        gather(lambda name: self.elsewhere(name, library), names)
        wanted = [name for name in names if layouts[name].direct or self.elsewhere(name, library) is not None]
        return dict(zip(wanted, gather(lambda name: self._known_column(name, library), wanted), strict=True))

    def _known_column(self, name: str, library: OpenLibrary) -> KnownColumn:
        layout, elsewhere = self.column(name, library), self.elsewhere(name, library)
        index = None
        if elsewhere is not None:
            elsewhere = known_there(self, elsewhere)
        elif layout.storage == "chunked":
            index = PackedIndex.of(self._index_of(name, library))
        return KnownColumn(layout, index, notes_of(library.dataset(name)), elsewhere)

    def guarded_index(self, layout: ColumnLayout, library: OpenLibrary) -> ChunkIndex | None:
        """Return the chunk index of a column that h5py reads; None if there is none that is checked."""
        chunked = layout.storage == "chunked" and layout.lists_its_chunks and not layout.user_block
        return self._index_of(layout.name, library) if chunked and not layout.sources else None

    def encoding(self, name: str) -> Encoding | None:
        """Return what a group, or a dataset, encodes; None if it is plain."""
        with self.library() as library:
            return library.tree.encoding(name)

    def layout(self) -> FileLayout:
        """Return the layout of all columns."""
        with self._lock:
            if self._refused is None:
                with self.library() as library:
                    listed, refused = describe(library.tree)
                    self._sought = library.tree.sought
                self._listed = tuple(listed)
                self._columns.update(listed)
                self._refused = {name: _fresh(error) for name, error in refused.items()}
            # `_columns` can have more names than the listing: "/x" is another name of "x".
            columns = {name: self._columns[name] for name in self._listed}
            refused = {name: _fresh(error) for name, error in self._refused.items()}
            sought = tuple(self._sought.items())
            return FileLayout(self.path, self.access.group, self.identity, columns, refused, sought)

    def stored_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many bytes the values of columns take in the file."""
        with self.library() as library, translated(self.path, "adding up its chunks"):
            names = list(names)
            return dict(zip(names, gather(partial(bytes_stored, self, library), names), strict=True))

    def notes(self, names: Iterable[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about the values of columns."""
        names = list(names)
        if self._known.keys() >= {*names}:
            return {name: self._known[name].notes for name in names}
        with self.library() as library:
            return dict(zip(names, gather(lambda name: notes_of(library.dataset(name)), names), strict=True))

    def reader(self, address: Address, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a column."""
        if isinstance(address, Segments):
            index_of = partial(self._index_of, library=library)
            reader_of = partial(self._segment_reader, library=library)
            if (columns := self._class_columns.get(address)) is None:
                columns = self._class_columns[address] = class_columns(self.path, address, self.byte_source)
            return SegmentedColumn(self.path, address, self.byte_source, columns, index_of, reader_of)
        with self._lock:
            if address not in self._readers:
                if isinstance(address, GridAddress):
                    self._readers[address] = self._grid(address, library)
                elif isinstance(address, LastAxis):
                    self._readers[address] = LastAxisColumn(
                        self._through_h5py(self.column(address.name, library), library)
                    )
                else:
                    self._readers[address] = self._column_reader(address, library)
            return self._readers[address]

    def group_table(
        self, pattern: GroupPattern, columns: Sequence[str] | None
    ) -> tuple[GroupTable, Mapping[str, RayH5Error]]:
        """Return the groups that match a pattern, and the errors of columns that cannot be read."""
        with self.library() as library:
            return read_group_table(library.tree, pattern, columns, self._size())

    def column_attributes(self, column: str, names: Sequence[str]) -> dict[str, Any]:
        """Return those attributes of a column that are short numbers or one text."""
        with self.library() as library, translated(self.path, f"reading the attributes of column {column!r}"):
            return short_attributes(library.dataset(column), names)

    def attributes(self, names: Sequence[str]) -> dict[str, np.ndarray | bytes]:
        """Return attributes of the group."""
        with self.library() as library, translated(self.path, "reading its attributes"):
            return attributes_of(library.tree.enter()[0], self.path, names)

    def _column_reader(self, name: str, library: OpenLibrary) -> DirectColumn | H5pyColumn:
        layout = self.column(name, library)
        elsewhere = self.elsewhere(name, library)
        if elsewhere is not None and elsewhere.how == "external":
            return raw_column(self, layout, elsewhere)
        return (self._direct if layout.direct else self._through_h5py)(layout, library)

    def _grid(self, address: GridAddress, library: OpenLibrary) -> GridColumn:
        layout = self.column(address.name, library)
        elsewhere = self.elsewhere(address.name, library)
        if elsewhere is not None and elsewhere.how == "external":
            return GridColumn(layout, address.axes, raw_column(self, layout, elsewhere, address.axes))
        if not layout.direct:
            return GridColumn(layout, address.axes, self._through_h5py(layout, library))
        index = self._index_of(address.name, library) if layout.storage == "chunked" else None
        column = DirectColumn(self.path, grid_layout(layout, address.axes), self.byte_source, index)
        return GridColumn(layout, address.axes, column)

    def _index_of(self, name: str, library: OpenLibrary) -> ChunkIndex:
        """Return the chunk index of a dataset; it stays in memory."""
        with self._lock:
            if name not in self._indexes and name in self._known:
                self._indexes[name] = self._counted(self._known[name].chunks(self.path, self._size()))
            if name not in self._indexes:
                layout = self.column(name, library)
                self._indexes[name] = self._index(self.path, library.dataset(name), layout, self._size)
            return self._indexes[name]

    def _segment_reader(self, path: str, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a dataset of a segmented column that h5py reads."""
        dataset = library.dataset(path)
        if dataset.shape != ():
            return self.reader(path, library)
        layout = describe_column(dataset, path, path=self.path, at_home=False, sources=(), single_ok=True)
        refers = layout.stored_dtype.hasobject
        guard = ValueGuard(self.path, path, remembers=not self.access.swmr).check if refers else None
        return H5pyColumn(self.path, layout, guard)

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Raise if the file, or another one that these columns come from, has changed since it was described."""
        check_identity(self.path, self.identity, self.byte_source.identity(), swmr=self.access.swmr)
        if self.is_remote:
            return  # each request says which state it wants
        for name in names:
            check_sources_now(self.path, name, self._columns[name].sources, swmr=self.access.swmr)

    def check_sources(self, name: str, expected: SourceStates) -> None:
        """Raise unless the sources of a column have the expected states.

        Their states are those at the time when the column was described, or now if it was not described yet.
        """
        if name in self._columns:
            found, look = self._columns[name].sources, self.access.storage.identity
            check_same_sources(self.path, name, expected, found, swmr=self.access.swmr, look=look)
        elif self.others is not None:
            self.others.expect(expected)  # each request says which state it wants
        else:
            check_sources_now(self.path, name, expected, swmr=self.access.swmr)

    def sources(self) -> dict[str, SourceStates]:
        """Return the sources of the columns described so far."""
        with self._lock:
            return {name: layout.sources for name, layout in self._columns.items()}

    def agrees(self, sources: Iterable[SourceStates]) -> bool:
        """Return whether the other files of a remote file have the states of a plan."""
        return self.others is None or self.others.agree(sources)

    def is_current(self) -> bool:
        """Return whether the other files that columns come from are unchanged."""
        if self.others is not None:
            return self.others.are_current()
        with self._lock:
            sources = {*self._sought.items(), *(each for layout in self._columns.values() for each in layout.sources)}
        try:
            return all(identity_now(path) == known for path, known in sources)
        except RayH5Error:
            return False  # the file is opened again, and reports the error for the columns concerned

    def _size(self) -> int:
        return self.byte_source.size

    def _direct(self, layout: ColumnLayout, library: OpenLibrary) -> DirectColumn:
        index = None
        if layout.storage == "chunked":
            index = self._index_of(layout.name, library)
        return DirectColumn(self.path, layout, self.byte_source, index)

    def _through_h5py(self, layout: ColumnLayout, library: OpenLibrary) -> H5pyColumn:
        if self.is_remote and layout.sources:
            # libhdf5 would open other files, which it cannot.
            raise UnsupportedColumnError(
                f"{layout.where} has values in other files, which cannot be read in this way in a file in a store. "
                "Copy them into the file with h5repack."
            )
        # libhdf5 reads what was fetched for it; of a local file, the guard reads itself.
        source = None if layout.user_block or self.is_remote else self.byte_source
        guards = ColumnGuards(self.path, self._index, remembers=not self.access.swmr)
        return H5pyColumn(self.path, layout, guards.of(layout, library, source, self._size))

    def _index(self, path: str, dataset: h5py.Dataset, layout: ColumnLayout, size: Callable[[], int]) -> ChunkIndex:
        with translated(path, f"reading the chunk index of column {layout.name!r}"):
            index = build_chunk_index(dataset, layout, path, size, self.access.swmr)
        return self._counted(index)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the file holds in memory: its chunk indexes, and parts of a remote file."""
        others = self.others.cached_bytes if self.others is not None and self._owns_others else 0
        return self.index_bytes + (0 if self.held is None else self.held.nbytes) + others

    def measure(self) -> None:
        """Drop what a remote file holds if it is much, and let the cache count the rest."""
        if self.held is not None:
            self.held.trim()
            assert self.others is not None
            self.others.trim()
            _files.measure(self.access, self)

    def _counted(self, index: ChunkIndex) -> ChunkIndex:
        self.index_bytes += sum(part.nbytes for part in (index.numbers, index.offsets, index.sizes, index.masks))
        _files.measure(self.access, self)
        return index


def _fresh(error: RayH5Error) -> RayH5Error:
    """Return a copy of an error without its traceback, whose frames would keep datasets open."""
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


def _max_open() -> int:
    """Return how many files the cache may hold: at most a quarter of the descriptors of this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else max(1, min(MAX_OPEN_FILES, limit // 4))


_files: LRU[OpenFile] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)


def open_file(
    path: str,
    group: str,
    policy: ExternalPolicy,
    swmr: bool = False,
    storage: Storage = LOCAL,
    expect: Identity | None = None,
    sources: Iterable[SourceStates] = (),
) -> OpenFile:
    """Return the open file at `path`, from the cache if the file has not changed.

    Of a remote file in an expected state, nothing is asked: each request says which state it wants. `sources` are the
    expected states of other files that its columns come from.
    """
    access = Access(path, group, policy, swmr, storage)
    # With swmr too: a reader made after rows were added finds them.
    found = expect if isinstance(expect, ObjectIdentity) else access.storage.check(access.path)
    opened = _files.get(access)
    # The cache is not locked here: a source may be on a mount that does not answer.
    asks = not isinstance(expect, ObjectIdentity)
    if opened is None or opened.identity != found or not (opened.is_current() if asks else opened.agrees(sources)):
        opened = OpenFile(access, found)
    _files.max_items = _max_open()
    # Readers that still hold an evicted file keep it open.
    _files.put(access, opened)
    return opened


def forget(opened: OpenFile) -> None:
    """Remove a file from the cache, so that the next `open_file` opens it again."""
    _files.drop(opened.access, opened)


def forget_all() -> None:
    """Remove all files from the cache; those that readers hold stay open."""
    _files.clear()
