"""The open files of this process, in a bounded cache.

An open file belongs to the process that opened it: after a fork the cache of the child is empty, and a
pickled `RowReader` opens its own.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import h5py
import numpy as np

from ray_h5.errors import RayH5Error
from ray_h5.hdf5.checks.changed_files import check_identity, check_same_sources, check_sources_now
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index
from ray_h5.hdf5.columns.column import describe_column
from ray_h5.hdf5.files.access import Access, ExternalPolicy
from ray_h5.hdf5.files.links import Sources
from ray_h5.hdf5.files.open_library import OpenLibrary
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.tree.tree import describe
from ray_h5.lru import LRU
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.layout import LAYOUT_BYTES, ColumnLayout, FileLayout, SourceStates
from ray_h5.manifest.manifest import Encoding, Form
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.jobs import Job
from ray_h5.read.read_parts import Address, Part, jobs_of, name_of
from ray_h5.storage.byte_source import ByteSource, Identity, ObjectIdentity
from ray_h5.storage.local import LOCAL, LocalFile, identity_now
from ray_h5.storage.storage_of_path import Storage

if TYPE_CHECKING:
    from ray_h5.hdf5.groups.groups import GroupPattern
    from ray_h5.manifest.joined_arrays import GroupTable, Segments
    from ray_h5.manifest.known_columns import Elsewhere, KnownColumn
    from ray_h5.manifest.manifest import ColumnNotes
    from ray_h5.read.arrays.grid_column import GridAddress, GridColumn
    from ray_h5.read.arrays.joint_columns import JointColumn
    from ray_h5.read.arrays.last_axis import LastAxis, LastAxisColumn, LastAxisThroughH5py
    from ray_h5.read.arrays.segmented_column import SegmentedColumn
    from ray_h5.read.block_column import BlockAddress, BlockColumn, BlocksThroughH5py
    from ray_h5.read.file_reads import FileRead
    from ray_h5.read.remote.elsewhere_reads import VirtualColumn
    from ray_h5.read.taken_column import TakenAddress, TakenColumn
    from ray_h5.read.through_h5py.h5py_column import H5pyColumn


Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_OPEN_FILES = 64
"""Most files in the cache. Each needs a descriptor, of which a process usually has 1024; the cache takes at most a
quarter of them."""

MAX_OTHERS = 256
"""Most local files in the cache that values of other files come from."""

MAX_INDEX_BYTES = 256 << 20
"""Most bytes of the chunk indexes of the cached files; a chunk takes 28. The file used last stays in any case."""


ColumnReader: TypeAlias = (
    "DirectColumn | H5pyColumn | GridColumn | SegmentedColumn | LastAxisColumn | LastAxisThroughH5py "
    "| BlocksThroughH5py"
)


def _taken_together(parts: Sequence[Part]) -> dict[int, list[Part]]:
    """Return the parts that take fields or positions of the same dataset, for each such part by its id."""
    if sum(not isinstance(part.address, str) for part in parts) < 2:
        return {}
    from ray_h5.read.taken_column import TakenAddress

    by_name: dict[str, list[Part]] = {}
    for part in parts:
        if isinstance(part.address, TakenAddress) and part.address.axes == 1:
            by_name.setdefault(part.address.name, []).append(part)
    return {id(part): found for found in by_name.values() if len(found) > 1 for part in found}


def _shared_jobs_of(file: OpenFile, parts: Sequence[Part], library: OpenLibrary) -> list[Job]:
    """Return the work of parts of a read that take fields or positions of one dataset: each chunk is decoded once."""
    from ray_h5.read.taken_column import TakenColumn, shared_jobs

    readers = [file.reader(part.address, library) for part in parts]
    columns = [each for each in readers if isinstance(each, TakenColumn)]
    return shared_jobs(columns, [part.request.listed() for part in parts], [part.out for part in parts], library)


def _share(found: Sequence[JointColumn]) -> int:
    """Return the bytes of the index of a joint column, or its share of the descriptors, if that is more."""
    return max([each.nbytes + len(each) * MAX_INDEX_BYTES // max_open(MAX_OTHERS) for each in found], default=0)


class OpenFile:
    """One file: its bytes, and its layout and chunk indexes, which are read when first needed.

    It holds a descriptor of its own. libhdf5 has the file open only inside `library`.

    With `swmr`, a writer may have it open and add rows. The columns stay as they were when they were
    described. Size and times then change all the time, so the inode alone identifies the file.

    `is_hdf5` says that libhdf5 opened it before.

    `FileInStore` is one in a store.
    """

    joint_columns: ClassVar[LRU[Sequence[JointColumn]]] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, _share, keeps_last=True)
    """Of virtual datasets, in all files, whose sources are read as one column: that, or nothing."""

    def __init__(self, access: Access, found: Identity) -> None:
        self.path = access.path
        self.access = access
        self._lock = threading.RLock()
        self._form: Form | None = "" if access.swmr else None
        self.byte_source, self.identity = self._open(found)
        self.is_hdf5 = False
        self._columns: dict[str, ColumnLayout] = {}
        self._listed: tuple[str, ...] = ()
        self._refused: dict[str, RayH5Error] | None = None
        self._sought: Sources = {}
        self._readers: dict[str | GridAddress | LastAxis | TakenAddress | BlockAddress, ColumnReader] = {}
        self._readers_for: dict[tuple[str, str], DirectColumn] = {}
        self._segmented: WeakKeyDictionary[Segments, tuple[list[DirectColumn], ChunkIndex | None]] = WeakKeyDictionary()
        self._indexes: dict[str, ChunkIndex] = {}
        self._elsewhere: dict[str, Elsewhere | None] = {}
        self.virtual: dict[str, VirtualColumn] = {}
        self.index_bytes = 0
        self.facts: dict[str, np.ndarray] = {}

    def _open(self, found: Identity) -> tuple[ByteSource, Identity]:  # noqa: ARG002  it is compared with the open file
        """Open the bytes of the file, by a descriptor of our own: that of libhdf5 holds its lock."""
        source = LocalFile.open(self.path)
        return source, source.identity()

    @property
    def form(self) -> Form:
        """The convention that the file follows, as far as it says so."""
        with self._lock:
            if self._form is None:
                with self.library() as library:
                    self._form = library.tree.form
            return self._form

    @contextlib.contextmanager
    def library(self) -> Iterator[OpenLibrary]:
        """Yield libhdf5's view of the file; close it at the end, or at that of `opened_once`."""
        shared = _once.libraries
        if shared is not None and self in shared:
            yield shared[self]
            return
        opened = OpenLibrary(self.access, self.identity)
        if shared is not None:
            shared[self] = opened
            yield opened
            return
        try:
            yield opened
        finally:
            opened.close()

    def look(self) -> None:
        """Open the file with libhdf5, to find out now whether it is HDF5."""
        if self.is_hdf5:
            return
        try:
            with self.library() as library:
                library.tree  # noqa: B018  opens it
        except (RayH5Error, OSError):
            forget(self)  # the cache would keep its descriptor
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
                jobs += self._jobs_of_part(part, library, read.after)
        for parts in {id(each): each for each in together.values()}.values():
            if self.leads_elsewhere(str(name_of(parts[0].address)), library):
                jobs += [job for part in parts for job in self._jobs_of_part(part, library, read.after)]
            else:
                jobs += _shared_jobs_of(self, parts, library)
        return jobs

    def _jobs_of_part(self, part: Part, library: OpenLibrary, after: list[Callable[[], None]]) -> list[Job]:
        name = name_of(part.address)
        if name is not None and self.leads_elsewhere(name, library):
            from ray_h5.read.remote.elsewhere_reads import jobs_on_disk

            if (there := jobs_on_disk(self, part, library, after)) is not None:
                return there
        return jobs_of(self.reader(part.address, library), part, library)

    def column(self, name: str, library: OpenLibrary) -> ColumnLayout:
        """Return the layout of column `name`; raise the error that says why it cannot be read."""
        with self._lock:
            if name not in self._columns:
                self._columns[name] = library.tree.column(name)
            return self._columns[name]

    def each(self, action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of `action`."""
        return [action(item) for item in items]

    def adopt(self, known: Mapping[str, KnownColumn]) -> None:
        """Take what an index says of columns, so that libhdf5 need not be asked; a file on a disk is asked itself."""

    def known_columns(self, names: Iterable[str], library: OpenLibrary) -> dict[str, KnownColumn]:  # noqa: ARG002
        """Return what `adopt` takes."""
        return {}

    def trim(self) -> None:
        """Drop what is held of the file if it is much."""

    def file_of(self, path: str) -> OpenFile:
        """Return this file, or another one that values come from."""
        if path == self.path and self.access.group == "/":
            return self
        return self._other_file(path)

    def _other_file(self, path: str) -> OpenFile:
        access = replace(self.access, path=path, group="/", beside="")
        found = access.storage.check(path)
        opened = _others.get(access)
        if opened is None or opened.identity != found:
            opened = OpenFile(access, found)
            _others.max_items = max_open(MAX_OTHERS)
            _others.put(access, opened)
        return opened

    def elsewhere(self, name: str, library: OpenLibrary) -> Elsewhere | None:  # noqa: ARG002  a file in a store uses it
        """Return where the values of a column are, if no other way to read them is known; see `elsewhere_on_disk`."""
        return None

    def leads_elsewhere(self, name: str, library: OpenLibrary) -> bool:
        """Return whether the values of a column are in other datasets."""
        layout = self.column(name, library)
        return bool(layout.sources) or layout.storage == "virtual"

    def elsewhere_on_disk(self, name: str, library: OpenLibrary) -> Elsewhere | None:
        """Return where the values of a column of a local file are, if they are in other datasets, and few files."""
        if not self.leads_elsewhere(name, library):
            return None
        layout = self.column(name, library)
        if self.access.swmr or len(layout.sources) > max_open(MAX_OTHERS):
            return None
        from ray_h5.hdf5.columns.values_elsewhere import find_elsewhere
        from ray_h5.hdf5.files.links import Trail

        with self._lock:
            if name not in self._elsewhere:
                try:
                    with translated(self.path, f"reading the header of column {name!r}"):
                        found = find_elsewhere(self.path, library.dataset(name), layout, Trail(self.access, {}))
                except RayH5Error:
                    found = None  # h5py reads it, or says what is wrong
                self._elsewhere[name] = None if found is None or found.how == "external" else found
            return self._elsewhere[name]

    def leave_to_h5py(self, name: str) -> None:
        """Read a column of a local file through h5py from now on."""
        self._elsewhere[name] = None

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
        from ray_h5.read.remote.other_columns import bytes_stored

        with self.library() as library, translated(self.path, "adding up its chunks"):
            names = list(names)
            return dict(zip(names, self.each(partial(bytes_stored, self, library), names), strict=True))

    def notes(self, names: Iterable[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about the values of columns."""
        from ray_h5.hdf5.tree.attributes import notes_of

        names = list(names)
        with self.library() as library:
            return dict(zip(names, self.each(lambda name: notes_of(library.dataset(name)), names), strict=True))

    def reader(self, address: Address, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a column."""
        if isinstance(address, str):
            with self._lock:
                if address not in self._readers:
                    self._readers[address] = self._column_reader(address, library)
                return self._readers[address]
        from ray_h5.manifest.joined_arrays import Segments
        from ray_h5.read.arrays.taken_segments import TakenSegments

        if isinstance(address, (Segments, TakenSegments)):
            from ray_h5.read.arrays.segmented_column import SegmentedColumn, class_columns

            segments, taken = (address, None) if isinstance(address, Segments) else (address.segments, address.taken)

            index_of = partial(self._index_of, library=library)
            reader_of = partial(self._segment_reader, library=library)
            if (known := self._segmented.get(segments)) is None:
                columns, chunks = class_columns(self.path, segments, self.byte_source), None
                if segments.chunks is not None:
                    where, most = f"{self.path}: column {segments.name!r}", int(segments.first_chunks[-1])
                    chunks = self._counted(segments.chunks.chunks(where, most, self._size()))
                known = self._segmented[segments] = columns, chunks
            return SegmentedColumn(
                self.path, segments, self.byte_source, known[0], index_of, reader_of, known[1], taken
            )
        with self._lock:
            if address not in self._readers:
                from ray_h5.read.arrays.grid_column import GridAddress
                from ray_h5.read.arrays.last_axis import LastAxis
                from ray_h5.read.taken_column import TakenAddress

                if isinstance(address, TakenAddress):
                    self._readers[address] = self._taken(address, library)
                elif isinstance(address, LastAxis):
                    self._readers[address] = self._last_axis(address, library)
                elif isinstance(address, GridAddress):
                    self._readers[address] = self._grid(address, library)
                else:
                    self._readers[address] = self._blocks(address, library)
            return self._readers[address]

    def reader_for(self, where: str, address: Address, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a column that `where` leads to, as its errors say."""
        if not isinstance(address, str) or not self.column(address, library).direct:
            return self.reader(address, library)
        with self._lock:
            if (where, address) not in self._readers_for:
                self._readers_for[where, address] = self._direct(self.column(address, library), library, where)
            return self._readers_for[where, address]

    def group_table(
        self, pattern: GroupPattern, columns: Sequence[str] | None
    ) -> tuple[GroupTable, Mapping[str, RayH5Error]]:
        """Return the groups that match a pattern, and the errors of columns that cannot be read."""
        from ray_h5.hdf5.groups.groups import read_group_table

        with self.library() as library:
            return read_group_table(library.tree, pattern, columns, self._size())

    def single(self, name: str) -> Segments | None:
        """Return a dataset with a single value as a column of one segment; None if it cannot be one."""
        from ray_h5.hdf5.groups.groups import read_single

        with self.library() as library:
            return read_single(library.tree, name, self._size())

    def column_attributes(self, column: str, names: Sequence[str]) -> dict[str, Any]:
        """Return those attributes of a column that are short numbers or one text."""
        from ray_h5.hdf5.tree.attributes import short_attributes

        with self.library() as library, translated(self.path, f"reading the attributes of column {column!r}"):
            return short_attributes(library.dataset(column), names)

    def attributes(self, names: Sequence[str]) -> dict[str, np.ndarray | bytes]:
        """Return attributes of the group."""
        from ray_h5.hdf5.groups.group_attributes import attributes_of

        with self.library() as library, translated(self.path, "reading its attributes"):
            return attributes_of(library.tree.enter()[0], self.path, names)

    def _column_reader(self, name: str, library: OpenLibrary) -> DirectColumn | H5pyColumn:
        layout = self.column(name, library)
        return (self._direct if layout.direct else self._through_h5py)(layout, library)

    def _grid(self, address: GridAddress, library: OpenLibrary) -> GridColumn:
        from ray_h5.read.arrays.grid_column import GridColumn, grid_layout

        layout = self.column(address.name, library)
        if not layout.direct:
            return GridColumn(layout, address.axes, self._through_h5py(layout, library))
        index = self._index_of(address.name, library) if layout.storage == "chunked" else None
        column = DirectColumn(self.path, grid_layout(layout, address.axes), self.byte_source, index)
        return GridColumn(layout, address.axes, column)

    def _taken(self, address: TakenAddress, library: OpenLibrary) -> TakenColumn | GridColumn:
        from ray_h5.read.arrays.grid_column import GridColumn, grid_layout
        from ray_h5.read.taken_column import TakenColumn

        layout = self.column(address.name, library)
        index = self._index_of(address.name, library) if layout.storage == "chunked" else None
        if address.axes == 1:
            return TakenColumn(self.path, layout, self.byte_source, index, address)
        column = TakenColumn(self.path, grid_layout(layout, address.axes), self.byte_source, index, address)
        return GridColumn(layout, address.axes, column)

    def _last_axis(self, address: LastAxis, library: OpenLibrary) -> LastAxisColumn | LastAxisThroughH5py:
        from ray_h5.read.arrays.last_axis import LastAxisColumn, LastAxisThroughH5py

        layout = self.column(address.name, library)
        is_array = layout.item_bytes not in {0, layout.stored_dtype.itemsize}
        if not layout.direct or is_array or address.axes != 1:
            return LastAxisThroughH5py(self._through_h5py(layout, library), address.axes)
        index = self._index_of(address.name, library) if layout.storage == "chunked" else None
        return LastAxisColumn(self.path, layout, self.byte_source, index)

    def _blocks(self, address: BlockAddress, library: OpenLibrary) -> BlockColumn | BlocksThroughH5py:
        from ray_h5.read.block_column import BlockColumn, BlocksThroughH5py

        layout = self.column(address.name, library)
        if not layout.direct:
            return BlocksThroughH5py(self._through_h5py(layout, library), address)
        index = self._index_of(address.name, library) if layout.storage == "chunked" else None
        return BlockColumn(self.path, layout, self.byte_source, index, address)

    def _index_of(self, name: str, library: OpenLibrary) -> ChunkIndex:
        """Return the chunk index of a dataset; it stays in memory."""
        with self._lock:
            if name not in self._indexes:
                layout = self.column(name, library)
                self._indexes[name] = self._index(self.path, library.dataset(name), layout, self._size)
            return self._indexes[name]

    def _segment_reader(self, path: str, library: OpenLibrary) -> ColumnReader:
        """Return the reader of a dataset of a segmented column that h5py reads."""
        from ray_h5.read.through_h5py.h5py_column import H5pyColumn
        from ray_h5.read.through_h5py.value_guard import ValueGuard

        dataset = library.dataset(path)
        if dataset.shape != ():
            return self.reader(path, library)
        layout = describe_column(dataset.id, path, path=self.path, at_home=False, sources=(), single_ok=True)
        refers = layout.stored_dtype.hasobject
        guard = ValueGuard(self.path, path, remembers=not self.access.swmr).check if refers else None
        return H5pyColumn(self.path, layout, guard)

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Raise if the file, or another one that these columns come from, has changed since it was described."""
        check_identity(self.path, self.identity, self.byte_source.identity(), swmr=self.access.swmr)
        for name in names:
            check_sources_now(self.path, name, self._columns[name].sources, swmr=self.access.swmr)

    def check_sources(self, name: str, expected: SourceStates) -> None:
        """Raise unless the sources of a column have the expected states.

        Their states are those at the time when the column was described, or now if it was not described yet.
        """
        if name in self._columns:
            found, look = self._columns[name].sources, self.access.storage.identity
            check_same_sources(self.path, name, expected, found, swmr=self.access.swmr, look=look)
        else:
            self._check_unseen(name, expected)

    def _check_unseen(self, name: str, expected: SourceStates) -> None:
        check_sources_now(self.path, name, expected, swmr=self.access.swmr)

    def sources(self) -> dict[str, SourceStates]:
        """Return the sources of the columns described so far."""
        with self._lock:
            return {name: layout.sources for name, layout in self._columns.items()}

    def is_usable(self, planned: Iterable[SourceStates] | None) -> bool:  # noqa: ARG002  a file in a store uses it
        """Return whether the file in the cache can be used, for a plan whose sources have these states."""
        return self.is_current()

    def is_current(self) -> bool:
        """Return whether the other files that columns come from are unchanged."""
        with self._lock:
            sources = {*self._sought.items(), *(each for layout in self._columns.values() for each in layout.sources)}
        try:
            return all(identity_now(path) == known for path, known in sources)
        except RayH5Error:
            return False  # the file is opened again, and reports the error for the columns concerned

    def _size(self) -> int:
        return self.byte_source.size

    def _direct(self, layout: ColumnLayout, library: OpenLibrary, where: str = "") -> DirectColumn:
        index = None
        if layout.storage == "chunked":
            index = self._index_of(layout.name, library)
        return DirectColumn(where or self.path, layout, self.byte_source, index)

    def _through_h5py(self, layout: ColumnLayout, library: OpenLibrary) -> H5pyColumn:
        from ray_h5.read.through_h5py.column_guards import ColumnGuards
        from ray_h5.read.through_h5py.h5py_column import H5pyColumn

        guards = ColumnGuards(self.path, self._index, remembers=not self.access.swmr)
        return H5pyColumn(self.path, layout, guards.of(layout, library, self._guarded_source(layout), self._size))

    def _guarded_source(self, layout: ColumnLayout) -> ByteSource | None:
        """Return what the guard of a column reads before libhdf5 does, if it can."""
        return None if layout.user_block else self.byte_source

    def _index(self, path: str, dataset: h5py.Dataset, layout: ColumnLayout, size: Callable[[], int]) -> ChunkIndex:
        with translated(path, f"reading the chunk index of column {layout.name!r}"):
            index = build_chunk_index(dataset, layout, path, size, self.access.swmr)
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
        for cache in (_files, _others):
            cache.measure(self.access, self)


def _fresh(error: RayH5Error) -> RayH5Error:
    """Return a copy of an error without its traceback, whose frames would keep datasets open."""
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


def max_open(most: int | None = None) -> int:
    """Return how many files a cache may hold: at most a quarter of the descriptors of this process."""
    most = MAX_OPEN_FILES if most is None else most
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, limit // 4))


class _Once(threading.local):
    libraries: dict[OpenFile, OpenLibrary] | None = None


_once = _Once()


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
    """Have libhdf5 open each local file that this thread asks at most once, until the block ends."""
    if _once.libraries is not None:
        yield
        return
    opened: dict[OpenFile, OpenLibrary] = {}
    _once.libraries = opened
    try:
        yield
    finally:
        _once.libraries = None
        for each in opened.values():
            each.close()


_files: LRU[OpenFile] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
_others: LRU[OpenFile] = LRU(MAX_OTHERS, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)


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
    access, make = Access(path, group, policy, swmr, storage, beside), make or OpenFile
    # With swmr too: a reader made after rows were added finds them.
    found = expect if isinstance(expect, ObjectIdentity) else access.storage.check(access.path)
    opened = _files.get(access)
    # The cache is not locked here: a source may be on a mount that does not answer.
    if opened is None or opened.identity != found or not opened.is_usable(None if expect is None else sources):
        opened = make(access, found)
    _files.max_items = max_open()
    # Readers that still hold an evicted file keep it open.
    _files.put(access, opened)
    return opened


def forget(opened: OpenFile) -> None:
    """Remove a file from the cache, so that the next `open_file` opens it again."""
    _files.drop(opened.access, opened)
    if _once.libraries is not None and (library := _once.libraries.pop(opened, None)) is not None:
        library.close()


def forget_all() -> None:
    """Remove all files from the cache; those that readers hold stay open."""
    for cache in (_files, _others, OpenFile.joint_columns):
        cache.clear()
