"""One open file, and the readers of its columns.

An open file belongs to the process that opened it: after a fork the caches of the child are empty, and a
pickled `RowReader` opens its own.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from ray_h5.errors import RayH5Error, UnsupportedColumnError
from ray_h5.hdf5.checks.changed_files import check_same_sources
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index, damaged_index
from ray_h5.hdf5.columns.chunk_tree import wrong_tree
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.hdf5.files.metadata_replay import replay
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.files.plain_bytes import FormatError, PlainBytes
from ray_h5.hdf5.tree.known_headers import KnownHeaders
from ray_h5.hdf5.tree.tree import describe
from ray_h5.lru import LRU
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout, FileLayout, SourceStates
from ray_h5.read.arrays.box_column import BoxColumn, column_of, shared_jobs
from ray_h5.read.arrays.chunk_source import ChunkSource
from ray_h5.read.arrays.converted_column import ConvertedColumn, HeapReader
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.joined_array_column import JoinedArrayColumn, class_sources, no_places
from ray_h5.read.arrays.selection import Selection, TakenJoinedArray
from ray_h5.read.jobs import Job, Unplanned
from ray_h5.read.native.chunk_lister import list_chunks
from ray_h5.read.read_parts import Address, Part, joined_of, name_of
from ray_h5.read.stored_items import StoredItems
from ray_h5.read.virtual_columns import VirtualColumn, linked

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import h5py

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

ColumnReader: TypeAlias = "DirectColumn | BoxColumn | ConvertedColumn | JoinedArrayColumn"

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
        self._readers: dict[tuple[str, str | Selection], ColumnReader] = {}
        self._joined_arrays: WeakKeyDictionary[JoinedArray, _Classes] = WeakKeyDictionary()
        self._indexes: dict[str, ChunkIndex] = {}
        self._elsewhere: dict[str, Elsewhere] = {}
        self._virtual: dict[str, VirtualColumn] = {}
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
                with contextlib.suppress(FormatError):
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
            except FormatError:
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
        with contextlib.suppress(FormatError):
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

    def jobs(self, read: FileRead, check: Callable[[OpenLibrary], None]) -> list[Job]:
        """Return the work of a read of the file. `check` looks at its columns first: an early error is cheaper."""

        def planned() -> list[Job]:
            read.after.clear()
            read.sources.clear()
            with self.library() as library:
                check(library)
                return self.jobs_of_parts(read.parts, read, library)

        return replay(planned)

    def jobs_of_parts(self, parts: Sequence[Part], read: FileRead, library: OpenLibrary) -> list[Job]:
        """Return the work of parts of a read, and of those of the other files that have their values."""
        plan = _Plan()
        gather(partial(self._place, read=read, plan=plan, library=library), parts)
        own = gather(partial(self._jobs_here, library=library), plan.own.values())
        jobs = [job for found in own for job in found]
        if read.held is not None and not self.access.swmr:
            jobs = [read.held.sharing(job, self.path, self.byte_source, self.identity) for job in jobs]

        def jobs_there(file: OpenFile) -> list[Job]:
            with file.library() as opened:
                return file.jobs_of_parts(plan.there[file], read, opened)

        there = gather(jobs_there, plan.there) if plan.there else []
        return [*jobs, *plan.jobs, *itertools.chain.from_iterable(there)]

    def _jobs_here(self, parts: Sequence[Part], library: OpenLibrary) -> list[Job]:
        """Return the work of a part; or of several that take fields, positions or boxes of one dataset."""
        readers = [self.reader(part.address, library, part.where) for part in parts]
        columns = [each for each in readers if isinstance(each, BoxColumn)]
        if len(columns) == len(parts) > 1:  # each chunk is decoded once
            return shared_jobs(columns, [part.request for part in parts], [part.out for part in parts])
        return [job for each, part in zip(readers, parts, strict=True) for job in each.jobs(part.request, part.out)]

    def _place(self, part: Part, read: FileRead, plan: _Plan, library: OpenLibrary) -> None:
        """Find out which file has the values of a part."""
        name = name_of(part.address)
        if name is None:
            joined = joined_of(part.address) if self.access.beside else None
            if joined is None:
                plan.own[id(part)] = [part]
                return
            read.add_sources(joined.name, joined.layouts[0].sources)
            plan.there.setdefault(self._file_of(joined), []).append(part)
            return
        layout = self.column(name, library)
        elsewhere = None
        if layout.sources or layout.storage == "virtual":
            read.add_sources(name, layout.sources if layout.storage != "virtual" else ())
            elsewhere = self.elsewhere(name, library)
        if elsewhere is None:
            plan.own.setdefault(name if isinstance(part.address, Selection) else id(part), []).append(part)
        elif elsewhere.how == "link":
            path, piece = linked(part, elsewhere, layout)
            plan.there.setdefault(self.file_of(path), []).append(piece)
        else:
            self._place_virtual(part, layout, read, plan)

    def _place_virtual(self, part: Part, layout: ColumnLayout, read: FileRead, plan: _Plan) -> None:
        # What it takes to make one grows with the mappings, and there may be thousands.
        if (virtual := self._virtual.get(layout.name)) is None:
            virtual = self._virtual[layout.name] = VirtualColumn.of(self.file_of, self._elsewhere[layout.name], layout)
        paths, is_near = virtual.paths_of(part), not self.byte_source.is_fetched
        # Others decide which sources there are: a path without a file is one where libhdf5 looks first.
        read.add_sources(layout.name, [each for each in layout.sources if each[0] not in virtual.paths - paths])
        if is_near and isinstance(part.address, str) and not part.where:
            if len(layout.sources) <= max_open(MAX_OTHERS) and (joint := self._joint(virtual)) is not None:
                plan.jobs += virtual.joint_jobs(joint, part)
                return
            if len(pieces := virtual.cut(part, max_open(MAX_OTHERS))) > 1:  # few files are open at a time
                plan.jobs += [Unplanned(self.byte_source, partial(self._jobs_later, each, read)) for each in pieces]
                return
        for path, piece in virtual.parts(part, read.after):
            plan.there.setdefault(self.file_of(path), []).append(piece)

    def _joint(self, virtual: VirtualColumn) -> JointColumn | None:
        if (known := OpenFile.joint_columns.get(virtual)) is None:
            joint = virtual.joint(self.file_of)
            OpenFile.joint_columns.put(virtual, known := [] if joint is None else [joint])
        return known[0] if known else None

    def _jobs_later(self, part: Part, read: FileRead) -> list[Job]:
        with self.library() as library:
            return self.jobs_of_parts([part], read, library)

    @abstractmethod
    def _file_of(self, joined: JoinedArray) -> OpenFile:
        """Return the one of two files that are read together in which datasets lie."""

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

    def elsewhere(self, name: str, library: OpenLibrary) -> Elsewhere | None:
        """Return where the values of a column are, if they are in other datasets."""
        layout = self.column(name, library)
        if (layout.is_decoded and layout.storage == "external") or (not layout.sources and layout.storage != "virtual"):
            return None
        with self._lock:
            if name not in self._elsewhere:
                with translated(self.path, f"reading the header of column {name!r}"):
                    self._elsewhere[name] = library.tree.elsewhere(library.dataset(name), layout)
            return self._elsewhere[name]

    def source_column(self, name: str) -> tuple[Address, ColumnLayout]:
        """Return the address and the layout of a dataset, also of one with a single value."""
        with self.library() as library:
            try:
                return name, self.column(name, library)
            except UnsupportedColumnError:
                if (single := self.single(name)) is None:
                    raise
                return single, single.unit

    def reader_of(self, address: Address, where: str = "") -> ColumnReader:
        """Return the reader of a column; its errors say that `where` leads to it."""
        with self.library() as library:
            return self.reader(address, library, where)

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

    def _converted(
        self, layout: ColumnLayout, selection: Selection, library: OpenLibrary, where: str
    ) -> ConvertedColumn:
        """Return the reader of a column whose values are made of its stored items."""
        items, source = StoredItems.of(layout), self.source_of(layout, library)
        column = self._column_of(items.layout, selection, library, where)
        parts = column.parts if selection == Selection(layout.name) and isinstance(column, DirectColumn) else None
        return ConvertedColumn(where, items, column.jobs, source, self._heap_of(items), parts)

    def _heap_of(self, items: StoredItems) -> HeapReader:
        """Return what reads the values that items refer to."""
        key = None if self.access.swmr else (self.path, self.identity)
        return HeapReader(self.byte_source, items.layout.user_block, items.length_bytes, key, self._held())

    def _held(self) -> HeldBytes | None:
        """Return what is in memory of a file in a store."""
        return None

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

    def reader(self, address: Address, library: OpenLibrary, where: str = "") -> ColumnReader:
        """Return the reader of a column; its errors say that the column `where` leads to the file, if one does."""
        if isinstance(address, (JoinedArray, TakenJoinedArray)):
            return self._joined_array_reader(address, library)
        with self._lock:
            if (found := self._readers.get((where, address))) is None:
                selection = Selection(address) if isinstance(address, str) else address
                found = self._reader_of(selection, library, f"{where} leads to {self.path}" if where else self.path)
                if not where or isinstance(address, str):  # there may be any number of others
                    self._readers[where, address] = found
            return found

    def _reader_of(
        self, selection: Selection, library: OpenLibrary, where: str
    ) -> DirectColumn | BoxColumn | ConvertedColumn:
        layout = self.column(selection.name, library)
        if layout.file_type:
            return self._converted(layout, selection, library, where)
        if not layout.direct:
            raise no_places(layout.where)
        return self._column_of(layout, selection, library, where)

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


class _Plan:
    """Where the values of the parts of a read are.

    Attributes
    ----------
    own : dict of (str or int) to list of Part
        The parts of this file; those that take fields, positions or boxes of one dataset together.
    there : dict of OpenFile to list of Part
        Those of other files.
    jobs : list of callable
        What is planned already.
    """

    def __init__(self) -> None:
        self.own: dict[str | int, list[Part]] = {}
        self.there: dict[OpenFile, list[Part]] = {}
        self.jobs: list[Job] = []


def _fresh(error: RayH5Error) -> RayH5Error:
    """Return a copy of an error without its traceback, whose frames would keep datasets open."""
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


FILES: LRU[OpenFile] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
"""The open files of this process that were asked for."""

OTHERS: LRU[OpenFile] = LRU(MAX_OTHERS, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
"""Those that values of other files come from."""
