"""One open file, and the readers of its columns.

An open file belongs to the process that opened it: after a fork the caches of the child are empty, and a
pickled `RowReader` opens its own.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import h5py
import numpy as np

from ray_h5.errors import RayH5Error
from ray_h5.hdf5.checks.changed_files import check_same_sources
from ray_h5.hdf5.checks.chunk_tree import wrong_tree
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index, damaged_index
from ray_h5.hdf5.files.file_bytes import filename_of
from ray_h5.hdf5.files.object_headers import NotPlainError, PlainBytes
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.tree.known_headers import KnownHeaders
from ray_h5.hdf5.tree.tree import describe
from ray_h5.lru import LRU
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout, FileLayout, SourceStates
from ray_h5.manifest.row_requests import SPAN_BYTES, request_of
from ray_h5.read.arrays.box_column import BoxColumn, column_of
from ray_h5.read.arrays.chunk_source import ChunkSource
from ray_h5.read.arrays.converted_column import ConvertedColumn, HeapReader
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.joined_array_column import JoinedArrayColumn, class_sources
from ray_h5.read.arrays.selection import Selection, TakenJoinedArray
from ray_h5.read.jobs import Job, Worker
from ray_h5.read.kernel.chunk_lister import list_chunks
from ray_h5.read.read_parts import Address
from ray_h5.read.stored_items import StoredItems

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ray_h5.hdf5.files.external_policy import Access
    from ray_h5.hdf5.files.links import Sources
    from ray_h5.hdf5.files.metadata_replay import HeldBytes
    from ray_h5.hdf5.files.open_library import OpenLibrary
    from ray_h5.hdf5.groups.groups import GroupPattern
    from ray_h5.manifest.joined_arrays import GroupTable
    from ray_h5.manifest.known_columns import Elsewhere, KnownColumn
    from ray_h5.manifest.layout import ColumnNotes, Encoding, Form
    from ray_h5.read.arrays.joint_columns import JointColumn
    from ray_h5.read.read_parts import FileRead
    from ray_h5.read.through_h5py.h5py_column import H5pyColumn
    from ray_h5.read.through_h5py.selected_columns import SelectedThroughH5py
    from ray_h5.storage.byte_source import ByteSource, Identity

MAX_OPEN_FILES = 64
"""Most files in the cache. Each needs a descriptor, of which a process usually has 1024; the cache takes at most a
quarter of them."""

MAX_OTHERS = 256
"""Most local files in the cache that values of other files come from."""

MAX_INDEX_BYTES = 256 << 20
"""Most bytes of the chunk indexes of the cached files; a chunk takes 28. The file used last stays in any case."""


SourcesRead: TypeAlias = "Mapping[str, tuple[str, Identity | None]]"
NO_SOURCES: SourcesRead = {}

ColumnReader: TypeAlias = (
    "DirectColumn | BoxColumn | ConvertedColumn | H5pyColumn | JoinedArrayColumn | SelectedThroughH5py"
)

_Classes: TypeAlias = (
    "tuple[JoinedArray, list[ChunkSource], dict[int, tuple[StoredItems, HeapReader]], ChunkIndex | None]"
)
"""A joined array of stored items; its classes, those whose values are made of the items, and the chunks."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def max_open(most: int | None = None) -> int:
    """Return how many files a cache may hold: at most a quarter of the descriptors of this process."""
    most = MAX_OPEN_FILES if most is None else most
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, limit // 4))


def _share(found: Sequence[JointColumn]) -> int:
    """Return the bytes of the index of a joint column, or its share of the descriptors, if that is more."""
    return max([each.nbytes + len(each) * MAX_INDEX_BYTES // max_open(MAX_OTHERS) for each in found], default=0)


class OpenFile(ABC):
    """One file: its bytes, its layout, and readers and chunk indexes of its columns, which are made when first needed.

    With `swmr`, a writer may have it open and add rows. The columns stay as they were when they were
    described. Size and times then change all the time, so the inode alone identifies the file.

    `FileOnDisk` is one on a disk, `FileInStore` one in a store.
    """

    joint_columns: ClassVar[LRU[Sequence[JointColumn]]] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, _share, keeps_last=True)
    """Of virtual datasets, in all files, whose sources are read as one column: that, or nothing."""

    def __init__(self, access: Access, found: Identity) -> None:
        self.path = access.path
        self.access = access
        self._lock = threading.RLock()
        self._form: Form | None = "" if access.swmr else None
        self._headers: KnownHeaders | None = None
        self._asks_library = access.swmr or bool(access.beside)
        self.byte_source, self.identity = self._open(found)
        self._columns: dict[str, ColumnLayout] = {}
        self._encodings: dict[str, Encoding | None] = {}
        self._listed: tuple[str, ...] = ()
        self._refused: dict[str, RayH5Error] | None = None
        self._sought: Sources = {}
        self._readers: dict[str | Selection | tuple[str, str], ColumnReader] = {}
        self._joined_arrays: WeakKeyDictionary[JoinedArray, _Classes] = WeakKeyDictionary()
        self._indexes: dict[str, ChunkIndex] = {}
        self._elsewhere: dict[str, Elsewhere | None] = {}
        self.index_bytes = 0
        self.facts: dict[str, np.ndarray] = {}

    @abstractmethod
    def _open(self, found: Identity) -> tuple[ByteSource, Identity]:
        """Open the bytes of the file; return them, and the state that they are of."""

    @abstractmethod
    def library(self) -> AbstractContextManager[OpenLibrary]:
        """Return what has libhdf5's view of the file until it ends."""

    @abstractmethod
    def look(self) -> None:
        """Find out now whether it is HDF5."""

    @property
    def form(self) -> Form:
        """The convention that the file follows, as far as it says so."""
        with self._lock:
            if self.headers() is not None:
                return ""
            if self._form is None:
                with self.library() as library:
                    self._form = library.tree.form
            return self._form

    def column(self, name: str, library: OpenLibrary) -> ColumnLayout:
        """Return the layout of column `name`; raise the error that says why it cannot be read."""
        with self._lock:
            if name not in self._columns:
                headers = self.headers()
                with contextlib.suppress(NotPlainError):
                    if headers is not None:
                        self._columns[name] = headers.column(name)
                        return self._columns[name]
                self._columns[name] = library.tree.column(name)
                if headers is not None:
                    headers.learn({name: self._columns[name]}, self._is_same)
            return self._columns[name]

    @abstractmethod
    def _plain_bytes(self) -> PlainBytes:
        """Return the bytes of the file, if its headers are read without libhdf5."""

    def headers(self) -> KnownHeaders | None:
        """Return what describes the datasets of the file without libhdf5; None if it must be asked."""
        if self._headers is None and not self._asks_library:
            try:
                self._headers = KnownHeaders(self.path, self.access.group, self._plain_bytes())
            except NotPlainError:
                self._asks_library = True
        return self._headers

    def _is_same(self) -> bool:
        """Return whether the open file is in the state that it was in when it was opened."""
        return self.byte_source.identity() == self.identity

    def each(self, action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of `action`."""
        return [action(item) for item in items]

    def encoding(self, name: str) -> Encoding | None:
        """Return what a group, or a dataset, encodes; None if it is plain."""
        with self._lock:
            if name not in self._encodings:
                with self.library() as library:
                    self._encodings[name] = library.tree.encoding(name)
            return self._encodings[name]

    def layout(self) -> FileLayout:
        """Return the layout of all columns."""
        with self._lock:
            if self._refused is None:
                listed, refused = self._describe()
                self._listed = tuple(listed)
                self._columns.update(listed)
                self._refused = {name: _fresh(error) for name, error in refused.items()}
            # `_columns` can have more names than the listing: "/x" is another name of "x".
            columns = {name: self._columns[name] for name in self._listed}
            refused = {name: _fresh(error) for name, error in self._refused.items()}
            sought = tuple(self._sought.items())
            return FileLayout(self.path, self.access.group, self.identity, columns, refused, sought)

    def _describe(self) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
        """Return the layouts of the columns that can be read, and the errors of the others."""
        headers = self.headers()
        with contextlib.suppress(NotPlainError):
            if headers is not None:
                return headers.describe()
        with self.library() as library:
            found = describe(library.tree)
            self._sought.update(library.tree.sought)
        if headers is not None:
            headers.learn(found[0], self._is_same)
        return found

    def notes(self, names: Iterable[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about the values of columns."""
        names = list(names)
        with self.library() as library:
            return dict(zip(names, self.each(lambda name: self._notes(name, library), names), strict=True))

    def _notes(self, name: str, library: OpenLibrary) -> ColumnNotes:
        from ray_h5.hdf5.tree.attributes import notes_of

        dataset = library.dataset(name)
        with translated(self.path, f"reading the attributes of column {name!r}"):
            return notes_of(dataset)

    def group_table(
        self, pattern: GroupPattern, columns: Sequence[str] | None
    ) -> tuple[GroupTable, Mapping[str, RayH5Error]]:
        """Return the groups that match a pattern, and the errors of columns that cannot be read."""
        from ray_h5.hdf5.groups.groups import read_group_table

        with self.library() as library:
            found = read_group_table(library.tree, pattern, columns, self._size())
            self._sought.update(library.tree.sought)
            return found

    @property
    def sought(self) -> SourceStates:
        """Other files that decide which columns there are, as far as columns were listed."""
        with self._lock:
            return tuple(self._sought.items())

    def single(self, name: str) -> JoinedArray | None:
        """Return a dataset with a single value as a joined array of one dataset; None if it cannot be one."""
        from ray_h5.hdf5.groups.groups import read_single

        with self.library() as library:
            return read_single(library.tree, name, self._size())

    def column_attributes(self, column: str, names: Sequence[str]) -> dict[str, Any]:
        """Return those attributes of a column that are short numbers or one text."""
        from ray_h5.hdf5.tree.attributes import short_attributes

        with self.library() as library, translated(self.path, f"reading the attributes of column {column!r}"):
            return short_attributes(library.dataset(column), names)

    def attribute_names(self, path: str) -> list[str]:
        """Return the names of attributes with one value, of a group or dataset below the group; of the group for ""."""
        from ray_h5.hdf5.groups.group_attributes import names_of_values

        with self.library() as library, translated(self.path, "listing its attributes"):
            group, trail = library.tree.enter()
            found = trail.follow(group, path, where="below the group") if path else group
            return names_of_values(found)

    def attributes(self, names: Sequence[str]) -> dict[str, np.ndarray | bytes]:
        """Return attributes of the group."""
        from ray_h5.hdf5.groups.group_attributes import attributes_of

        with self.library() as library, translated(self.path, "reading its attributes"):
            return attributes_of(library.tree.enter()[0], self.path, names)

    def check_sources(self, name: str, expected: SourceStates) -> None:
        """Raise unless the sources of a column have the expected states.

        Their states are those at the time when the column was described, or now if it was not described yet.
        """
        if name in self._columns:
            found, look = self._columns[name].sources, self.access.storage.identity
            check_same_sources(self.path, name, expected, found, swmr=self.access.swmr, look=look)
        else:
            self._check_unseen(name, expected)

    def sources(self) -> dict[str, SourceStates]:
        """Return the sources of the columns described so far."""
        with self._lock:
            return {name: layout.sources for name, layout in self._columns.items()}

    def _size(self) -> int:
        return self.byte_source.size

    @abstractmethod
    def check_unchanged(self, sources: SourcesRead = NO_SOURCES) -> None:
        """Raise if the file has changed since it was described, or another one that rows of a column come from."""

    @abstractmethod
    def _check_unseen(self, name: str, expected: SourceStates) -> None:
        """Raise unless the sources of a column that was not described have the expected states."""

    def is_usable(self, planned: Iterable[SourceStates] | None) -> bool:  # noqa: ARG002  a file in a store uses it
        """Return whether the file in the cache can be used, for a plan whose sources have these states."""
        return self.is_current()

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether the other files that columns come from are unchanged."""

    @abstractmethod
    def jobs(self, read: FileRead, check: Callable[[OpenLibrary], None], libraries: contextlib.ExitStack) -> list[Job]:
        """Return the work of a read of the file.

        `check` looks at its columns first: an early error is cheaper. Jobs that need libhdf5 have the file open until
        `libraries` is closed.
        """

    @abstractmethod
    def _other_file(self, path: str, group: str = "/") -> OpenFile:
        """Return another file that values come from, opened with a group."""

    def forget(self) -> None:
        """Remove the file from the cache, so that it is opened again."""
        FILES.drop(self.access, self)

    def adopt(self, known: Mapping[str, KnownColumn]) -> None:  # noqa: B027  a file on a disk is asked itself
        """Take what an index says of columns, so that libhdf5 need not be asked."""

    def known_columns(self, names: Iterable[str], library: OpenLibrary) -> dict[str, KnownColumn]:  # noqa: ARG002
        """Return what `adopt` takes."""
        return {}

    def trim(self) -> None:  # noqa: B027  the cache counts what is held
        """Drop what is held of the file if it is much."""

    def file_of(self, path: str) -> OpenFile:
        """Return this file, or another one that values come from."""
        if path == self.path and self.access.group == "/":
            return self
        return self._other_file(path)

    def elsewhere(self, name: str, library: OpenLibrary) -> Elsewhere | None:  # noqa: ARG002  a file in a store uses it
        """Return where the values of a column are, if no other way to read them is known; see `elsewhere_on_disk`."""
        return None

    def stored_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many bytes the values of columns take in the file."""
        with self.library() as library, translated(self.path, "adding up its chunks"):
            names = list(names)
            return dict(zip(names, self.each(lambda name: self._bytes_stored(name, library), names), strict=True))

    def _bytes_stored(self, name: str, library: OpenLibrary) -> int:
        """Return how many bytes the values of a column take, in any file."""
        if (elsewhere := self.elsewhere(name, library)) is None:
            dataset = library.dataset(name)
            if reason := wrong_tree(dataset):  # libhdf5 walks through all of it
                raise damaged_index(f"{self.path}: column {name!r}", reason)
            return int(dataset.id.get_storage_size())
        # libhdf5 would open the other files.
        total = 0
        for column in elsewhere.columns:
            there = self.file_of(column.path)
            with there.library() as opened:
                total += there._bytes_stored(column.name, opened)
        return total

    def reader_for(self, where: str, address: Address, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a column that `where` leads to, as its errors say."""
        if not isinstance(address, str) or not self.column(address, library).direct:
            return self.reader(address, library)
        with self._lock:
            if (where, address) not in self._readers:
                self._readers[where, address] = self._reader_of(Selection(address), library, where)
            return self._readers[where, address]

    def index_of(self, name: str, library: OpenLibrary) -> ChunkIndex:
        """Return the chunk index of a dataset; it stays in memory."""
        with self._lock:
            if name not in self._indexes:
                layout = self.column(name, library)
                self._indexes[name] = self._index(self.path, library.dataset(name), layout, self._size)
            return self._indexes[name]

    def source_of(self, layout: ColumnLayout, library: OpenLibrary) -> ByteSource:
        """Return the bytes that the values of a column are in."""
        if layout.storage != "external":
            return self.byte_source
        from ray_h5.read.raw_files import RawFiles

        return RawFiles(layout, library.dataset(layout.name))

    def _converted(self, layout: ColumnLayout, selection: Selection, library: OpenLibrary) -> ConvertedColumn:
        """Return the reader of a column whose values are made of its stored items."""
        items, source = StoredItems.of(layout), self.source_of(layout, library)
        column = self._column_of(items.layout, selection, library, self.path)
        parts = column.parts if selection == Selection(layout.name) and isinstance(column, DirectColumn) else None
        return ConvertedColumn(self.path, items, column.jobs, source, self._heap_of(items), parts)

    def _heap_of(self, items: StoredItems) -> HeapReader:
        """Return what reads the values that items refer to."""
        key = None if self.access.swmr else (self.path, self.identity)
        return HeapReader(self.byte_source, items.layout.user_block, items.length_bytes, key, self._held())

    def _held(self) -> HeldBytes | None:
        """Return what is in memory of a file in a store."""
        return None

    def through_h5py(self, layout: ColumnLayout, library: OpenLibrary) -> H5pyColumn:  # noqa: ARG002  one in a store refuses
        """Return the reader of a column that h5py reads: its values are in other datasets."""
        from ray_h5.read.through_h5py.h5py_column import H5pyColumn
        from ray_h5.read.through_h5py.source_guard import SourceGuard

        guard = SourceGuard(partial(self._check_rows, layout))
        return H5pyColumn(self.path, layout, partial(guard.check_column, layout.name))

    def _check_rows(self, layout: ColumnLayout, dataset: h5py.Dataset, rows: np.ndarray, worker: Worker) -> None:
        """Read rows of a dataset that has values of a column, to find out whether they can be read."""
        file = self.file_of(filename_of(dataset.file))
        name = dataset.name.strip("/")
        with file.library() as library:
            found = file.column(name, library) if dataset.shape else None
            if found is None or not found.is_decoded or (found.direct and found.chunk_shape is None):
                return  # nothing is decoded, and libhdf5 says what is missing
            reader = file.reader_for(f"{layout.path}: column {layout.name!r} leads to {file.path}", name, library)
            at_once = max(1, SPAN_BYTES // max(1, found.row_bytes) // found.chunk_rows) * found.chunk_rows
            for part in np.split(rows, np.flatnonzero(np.diff(rows // at_once)) + 1):
                for job in reader.jobs(request_of(part), np.empty((len(part), *found.row_shape), found.dtype), library):
                    job(worker)

    def _index(self, path: str, dataset: h5py.Dataset, layout: ColumnLayout, size: Callable[[], int]) -> ChunkIndex:
        with translated(path, f"reading the chunk index of column {layout.name!r}"):
            index = build_chunk_index(dataset, layout, path, size, self.access.swmr, list_chunks)
        return self._counted(index)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the file holds in memory: its layouts and chunk indexes."""
        facts = sum(each.nbytes for each in self.facts.values())
        return len(self._columns) * LAYOUT_BYTES + self.index_bytes + facts

    def _counted(self, index: ChunkIndex) -> ChunkIndex:
        self.index_bytes += index.nbytes
        self._count()
        return index

    def _count(self) -> None:
        """Let the caches know how much memory the file takes."""
        for cache in (FILES, OTHERS):
            cache.measure(self.access, self)

    def reader(self, address: Address, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a column."""
        if isinstance(address, (JoinedArray, TakenJoinedArray)):
            return self._joined_array_reader(address, library)
        with self._lock:
            if address not in self._readers:
                selection = Selection(address) if isinstance(address, str) else address
                self._readers[address] = self._reader_of(selection, library)
            return self._readers[address]

    def _reader_of(
        self, selection: Selection, library: OpenLibrary, where: str = ""
    ) -> DirectColumn | BoxColumn | ConvertedColumn | H5pyColumn | SelectedThroughH5py:
        """Return the reader of a selection; errors of a file that `where` leads to begin with it."""
        layout = self.column(selection.name, library)
        if layout.file_type:
            return self._converted(layout, selection, library)
        if layout.direct:
            return self._column_of(layout, selection, library, where or self.path)
        column = self.through_h5py(layout, library)
        if selection == Selection(selection.name):
            return column
        from ray_h5.read.through_h5py.selected_columns import selected_through_h5py

        return selected_through_h5py(column, selection)

    def _column_of(
        self, layout: ColumnLayout, selection: Selection, library: OpenLibrary, where: str
    ) -> DirectColumn | BoxColumn:
        index = self.index_of(layout.name, library) if layout.storage == "chunked" else None
        return column_of(ChunkSource(where, layout, self.source_of(layout, library), index), selection)

    def _joined_array_reader(self, address: JoinedArray | TakenJoinedArray, library: OpenLibrary) -> JoinedArrayColumn:
        joined, taken = (address, None) if isinstance(address, JoinedArray) else (address.joined, address.taken)
        index_of = partial(self.index_of, library=library)
        if (known := self._joined_arrays.get(joined)) is None:
            found = {at: StoredItems.of(layout) for at, layout in enumerate(joined.layouts) if layout.file_type}
            layouts = tuple(found[at].layout if at in found else layout for at, layout in enumerate(joined.layouts))
            stored, chunks = replace(joined, layouts=layouts) if found else joined, None
            if joined.chunks is not None:
                where, most = f"{self.path}: column {joined.name!r}", int(joined.first_chunks[-1])
                chunks = self._counted(joined.chunks.chunks(where, most, self._size()))
            converted = {at: (items, self._heap_of(items)) for at, items in found.items()}
            known = stored, class_sources(self.path, stored, self.byte_source), converted, chunks
            self._joined_arrays[joined] = known
        stored, sources, converted, chunks = known
        return JoinedArrayColumn(self.path, stored, self.byte_source, sources, index_of, converted, chunks, taken)


def _fresh(error: RayH5Error) -> RayH5Error:
    """Return a copy of an error without its traceback, whose frames would keep datasets open."""
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


FILES: LRU[OpenFile] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
"""The open files of this process that were asked for."""

OTHERS: LRU[OpenFile] = LRU(MAX_OTHERS, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
"""Those that values of other files come from."""
