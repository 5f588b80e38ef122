"""One open file: its bytes, its manifest, libhdf5's view of it, and the readers of its columns.

An open file belongs to the process that opened it: after a fork the caches of the child are empty, and a
pickled `FileReader` opens its own. `file_caches` says what stays in memory.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from ray_h5.errors import RayH5Error, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index, listed_in_tree
from ray_h5.hdf5.files.links import as_object
from ray_h5.hdf5.files.metadata_replay import HeldBytes
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.files.other_files import OtherFiles
from ray_h5.hdf5.format.file_bytes import gather
from ray_h5.hdf5.groups.matching_groups import GroupPattern, read_group_table, read_single
from ray_h5.hdf5.tree.attributes import attributes_of, names_of_values, notes_of, short_attributes
from ray_h5.hdf5.tree.known_headers import KNOWN_NOTES, FormatError, KnownHeaders, PlainBytes
from ray_h5.hdf5.tree.tree import H5Tree, now
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.manifest.file_state import SourceStates
from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray
from ray_h5.manifest.known_columns import KnownColumn, OtherColumn, PackedIndex, Redirect
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, Encoding, FileLayout, Form
from ray_h5.manifest.takes import Take
from ray_h5.read.arrays.chunk_source import ChunkSource, RawFiles
from ray_h5.read.arrays.chunk_table import ChunkTable, joined_indexes
from ray_h5.read.arrays.column import Column, JoinedColumn, no_places
from ray_h5.read.file_caches import FILES, OTHERS
from ray_h5.read.native.chunk_lister import list_chunks
from ray_h5.read.read_parts import ColumnAddress
from ray_h5.read.stored_items import StoredItems
from ray_h5.storage.byte_source import ByteSource, Identity

if TYPE_CHECKING:
    from ray_h5.hdf5.files.external_policy import Access
    from ray_h5.hdf5.files.links import Sources

Result = TypeVar("Result")

SourcesRead: TypeAlias = "Mapping[str, tuple[str, Identity | None]]"
NO_SOURCES: SourcesRead = {}


class OpenFile(ABC):
    """One file: its bytes, what is known of it, and readers of its columns. `open_file` has its two kinds.

    With `swmr`, a writer may have it open and add rows. The columns stay as they were when they were
    described. Size and times then change all the time, so the inode alone identifies the file.

    Parameters
    ----------
    access : Access
        How it is opened.
    byte_source : ByteSource
        Its bytes.
    identity : Identity
        The state that they are of.
    held : HeldBytes, optional
        What is in memory of a file in a store.

    Attributes
    ----------
    manifest : Manifest
        What is known of it.
    readers : dict of (str, ColumnAddress) to Column
        The readers of datasets that were read, with the column that leads to each, if one does.
    joined_columns : mapping of JoinedArray to JoinedColumn
        The readers of many datasets.
    others : OtherFiles, optional
        The other files in the store that columns come from.
    """

    is_pinned: ClassVar[bool]
    """Whether each request for bytes says which state it wants: what was found out stays true, also that nothing is
    there. Bytes are held in memory then, which libhdf5 parses, and a pass that misses some is made again."""

    def __init__(
        self, access: Access, byte_source: ByteSource, identity: Identity, held: HeldBytes | None = None
    ) -> None:
        self.path, self.access = access.path, access
        self.byte_source, self.identity, self.held = byte_source, identity, held
        self.others: OtherFiles | None = None
        self._lock = threading.RLock()
        self.manifest = Manifest()
        self._headers: KnownHeaders | None = None
        self._asks_library = access.swmr or bool(access.beside)
        self._is_hdf5 = False
        self._listed: tuple[str, ...] = ()
        self._refused: dict[str, RayH5Error] | None = None
        self._sought: Sources = {}
        self._states: dict[str, Identity] = {}
        self.readers: dict[tuple[str, ColumnAddress], Column] = {}
        self.joined_columns: WeakKeyDictionary[JoinedArray, JoinedColumn] = WeakKeyDictionary()
        self._indexes: dict[str, ChunkIndex] = {}
        self.virtual: dict[str, Any] = {}
        self._index_bytes = 0

    # What differs between files on disks and in stores ----------------------------------------

    @abstractmethod
    def _plain_bytes(self) -> PlainBytes:
        """Return what reads headers without libhdf5; raise a `FormatError` if it must be asked."""

    @abstractmethod
    def _is_same(self) -> bool:
        """Return whether the bytes that were parsed are those of the file, and all were there."""

    @abstractmethod
    def _expect(self, sources: SourceStates) -> None:
        """Take the states of other files in a plan for those of files that were not looked at."""

    @abstractmethod
    def _other_file(self, path: str, group: str = "/") -> OpenFile:
        """Return another file that values come from, opened with a group."""

    @abstractmethod
    def check_sources(self, name: str, expected: SourceStates) -> None:
        """Raise unless the sources of a column have the expected states.

        Their states are those at the time when the column was described, or now if it was not described yet.
        """

    @abstractmethod
    def check_unchanged(self, sources: SourcesRead = NO_SOURCES) -> None:
        """Raise if the file has changed since it was described, or a file that rows of a column come from.

        Files in which only the ctime differs are described again.
        """

    @abstractmethod
    def is_current(self, planned: Iterable[SourceStates] | None = None) -> bool:
        """Return whether the other files that columns come from are unchanged; in a store, as they are `planned`."""

    @property
    def cached_bytes(self) -> int:
        """Bytes that the file holds in memory: what is known of it, chunk indexes, and parts of one in a store."""
        return self.manifest.nbytes + self._index_bytes

    @abstractmethod
    def trim(self) -> None:
        """Drop what is held of a file in a store if it is much, and let the caches count the rest, if there is more."""

    # --------------------------------------------------------------------------------------------

    def library(self) -> H5Tree:
        """Return libhdf5's view of the file in this thread. Blocks in a block share it, and the outermost closes it."""
        if (opened := now.opened.get(self)) is None:
            opened = H5Tree(self.access, self.identity, self.held, self.others, self._states)
            opened.key = self
        return opened

    def look(self) -> None:
        """Find out now whether it is HDF5."""
        if not self._is_hdf5 and self.headers() is None:
            with self.library() as library:
                library.root if self.is_pinned else library.file  # noqa: B018  opens it
            self._is_hdf5 = True

    def forget(self) -> None:
        """Remove the file from the cache, so that it is opened again."""
        FILES.drop(self.access, self)
        if (opened := now.opened.get(self)) is not None:
            opened.close()

    def headers(self) -> KnownHeaders | None:
        """Return what describes the datasets of the file without libhdf5; None if it must be asked."""
        if self._headers is None and not self._asks_library:
            try:
                self._headers = KnownHeaders(self.path, self.access.group, self._plain_bytes())
            except FormatError:
                self._asks_library = True
        return self._headers

    # What is known ---------------------------------------------------------------------------

    def adopt(self, known: Manifest) -> None:
        """Take what a plan knows of the file, so that libhdf5 need not be asked."""
        with self._lock:
            merged = self.manifest.merged(replace(known, columns={}, values={}))
            self.manifest = replace(merged, columns=self.manifest.columns, values=self.manifest.values)
            for name, column in known.columns.items():
                if name not in self.manifest.columns:
                    if column.layout.path != self.path:
                        column = replace(column, layout=replace(column.layout, path=self.path))  # noqa: PLW2901
                    self.manifest.columns[name] = column
                    if column.redirect is not None:
                        self._expect(column.layout.sources)
                        for other in column.redirect.columns:
                            if other.known is not None:
                                self.file_of(other.path).adopt(Manifest(columns={other.name: other.known}))

    def complete(self, names: Collection[str]) -> list[KnownColumn | None]:
        """Find out, and return, all that reads of some columns need to know."""

        def known_there(column: OtherColumn) -> KnownColumn | None:
            return self.file_of(column.path).complete([column.name])[0]

        def complete(name: str) -> None:
            layout, redirect, index = self.column(name), self.redirect(name), None
            if redirect is not None:
                redirect = redirect.with_known(gather(known_there, redirect.columns))
            elif layout.is_decoded and layout.storage == "chunked":
                index = PackedIndex.of(self.index_of(name))
            self.manifest.columns[name] = KnownColumn(layout, index, self._notes(name), redirect)

        with self.library():
            known = self.manifest.columns
            new = [name for name in names if name not in known or not known[name].is_whole]
            gather(self.redirect, new)
            gather(complete, new)
        return [self.manifest.columns.get(name) for name in names]

    @property
    def form(self) -> Form:
        """The convention that the file follows, as far as it says so."""
        with self._lock:
            if (form := self.manifest.form) is None:
                form = ""
                if not self.access.swmr and self.headers() is None:
                    with self.library() as library:
                        form = library.form
                self.manifest = replace(self.manifest, form=form)
            return form

    def column(self, name: str) -> ColumnLayout:
        """Return the layout of column `name`; raise the error that says why it cannot be read."""
        known = self.manifest.columns.get(name)
        if known is None:
            with self._lock:
                if (known := self.manifest.columns.get(name)) is None:
                    if (layout := self._by_headers(lambda headers: headers.column(name))) is None:
                        with self.library() as library:
                            layout = library.column(name)
                        self._learn({name: layout})
                    known = self.manifest.columns[name] = KnownColumn(layout)
        return known.layout

    def _by_headers(self, ask: Callable[[KnownHeaders], Result]) -> Result | None:
        """Return what the headers say without libhdf5; None if it must be asked."""
        headers = self.headers()
        with contextlib.suppress(FormatError):
            return None if headers is None else ask(headers)
        return None

    def _learn(self, layouts: Mapping[str, ColumnLayout]) -> None:
        if (headers := self.headers()) is not None:
            headers.learn(layouts, self._is_same)

    def find(
        self, names: Sequence[str], expected: Mapping[str, SourceStates], *, missing_ok: bool = False
    ) -> tuple[dict[str, ColumnLayout], dict[str, UnknownColumnError]]:
        """Return the layouts of columns, and the errors of those that do not exist.

        Those that are known not to exist are left out if they may be missing. The sources of columns have to be as
        `expected`, by column.
        """
        layouts, absent = dict[str, ColumnLayout](), dict[str, UnknownColumnError]()

        def find(name: str) -> None:
            try:
                layouts[name] = self.column(name)
            except UnknownColumnError as exc:
                self._note_absent(name)
                absent[name] = exc

        with self.library():
            gather(find, [name for name in names if not (missing_ok and name in self.manifest.absent)])
        for name in layouts:
            if name in expected:
                self.check_sources(name, expected[name])
        return layouts, absent

    def _note_absent(self, name: str) -> None:
        # On a disk, a file that a link leads to may have it later.
        if self.is_pinned and self._is_same():
            self.manifest.absent[name] = None

    def encoding(self, name: str) -> Encoding | None:
        """Return what a group, or a dataset, encodes; None if it is plain.

        Raises
        ------
        UnknownColumnError
            If there is neither a group nor a dataset of that name.
        """
        with self._lock:
            if name in self.manifest.encodings:
                return self.manifest.encodings[name]
            if name in self.manifest.absent:
                raise UnknownColumnError(f"{self.path}: no {name!r}")
            try:
                with self.library() as library:
                    found = self.manifest.encodings[name] = library.encoding(name)
            except UnknownColumnError:
                self._note_absent(name)
                raise
            return found

    def columns(self) -> dict[str, ColumnLayout]:
        """Return the layouts of the columns that can be read."""
        if (names := self.manifest.listing) is None:
            names = tuple(self.layout().columns)
            with self._lock:
                self.manifest = replace(self.manifest, listing=names)
        return {name: self.column(name) for name in names}

    def layout(self) -> FileLayout[ColumnLayout]:
        """Return the layout of all columns."""
        with self._lock:
            if self._refused is None:
                if (described := self._by_headers(lambda headers: headers.describe())) is None:
                    with self.library() as library:
                        described = library.describe()
                        self._sought.update(library.sought)
                    self._learn(described[0])
                listed, refused = described
                self._listed = tuple(listed)
                for name, layout in listed.items():
                    self.manifest.columns.setdefault(name, KnownColumn(layout))
                self._refused = {name: _fresh(error) for name, error in refused.items()}
            # The manifest can have more names than the listing: "/x" is another name of "x".
            columns = {name: self.manifest.columns[name].layout for name in self._listed}
            refused = {name: _fresh(error) for name, error in self._refused.items()}
            return FileLayout(self.path, self.access.group, self.identity, columns, refused, self.sought)

    def notes(self, names: Sequence[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about the values of columns."""
        with self.library():
            return dict(zip(names, gather(self._notes, names), strict=True))

    def _notes(self, name: str) -> ColumnNotes:
        if (known := self.manifest.columns.get(name)) is not None and known.notes is not None:
            return known.notes
        key = self._by_headers(lambda headers: headers.noted(name))
        if key is not None and (notes := KNOWN_NOTES.get(key) if key else ColumnNotes()) is not None:
            return notes
        with self.library() as library:
            dataset = library.dataset(name)
            with translated(self.path, f"reading the attributes of column {name!r}"):
                notes = notes_of(dataset)
        if key is not None and self._is_same():
            KNOWN_NOTES.put(key, notes)
        return notes

    def group_table(
        self, pattern: GroupPattern, columns: Sequence[str] | None = None
    ) -> tuple[GroupTable, Mapping[str, RayH5Error]]:
        """Return the groups that match a pattern, with their datasets, and the errors of columns that cannot be read.

        In a store, it has their chunks, too. Errors as in `ray_h5.hdf5.groups.matching_groups.read_group_table`.
        """
        with self.library() as library:
            table, refused = read_group_table(library, pattern, columns, self.byte_source.size)
            self._sought.update(library.sought)
            with self._lock:
                # Groups that were asked for as columns encode these in several datasets: each is opened once.
                self.manifest.encodings.update(library.encodings)
            if not self.is_pinned:
                return table, refused
            known = dict(zip(table.columns, gather(self._with_chunks, table.columns.values()), strict=True))
        return replace(table, columns=known), refused

    def _with_chunks(self, joined: JoinedArray) -> JoinedArray:
        """Return the same datasets with where their chunks are."""
        if self.access.beside:
            return self.file_with(joined)._with_chunks(joined)

        def index_of(number: int) -> ChunkIndex:
            stored = joined.layouts[joined.class_of[number]]
            layout = replace(stored, num_rows=int(joined.lengths[number]))
            path = joined.paths[number]
            with self.library() as library, translated(self.path, f"reading the chunk index of {path!r}"):
                dataset = as_object(library.find(path)[0])
                return build_chunk_index(dataset, layout, self.path, lambda: self.byte_source.size)

        chunked = np.flatnonzero(joined.is_chunked & (joined.lengths > 0))
        with self.library():
            indexes = gather(index_of, chunked.tolist())
        if not indexes:
            return joined
        return replace(joined, chunks=PackedIndex.of(joined_indexes(indexes, joined.chunk_numbers.starts[chunked])))

    @property
    def sought(self) -> SourceStates:
        """Other files that decide which columns there are, as far as columns were listed."""
        with self._lock:
            return tuple(self._sought.items())

    def single(self, name: str) -> JoinedArray | None:
        """Return a dataset with a single value as a joined array of one dataset; None if its value is of no column."""
        with self.library() as library:
            return read_single(library, name, self.byte_source.size)

    def values_of_attributes(self, column: str, names: Sequence[str]) -> dict[str, Any]:
        """Return those attributes of a column that are short numbers or one text; others are left out."""
        known = self.manifest.attributes.get(column, {})
        if not known.keys() >= {*names}:
            with self.library() as library, translated(self.path, f"reading the attributes of column {column!r}"):
                values = short_attributes(library.dataset(column), names)
            known = {**known, **{name: values.get(name) for name in names}}
            if self.is_pinned:
                self.manifest.attributes[column] = known
        return {name: value for name in names if (value := known[name]) is not None}

    def attribute_names(self, path: str = "") -> list[str]:
        """Return the names of attributes with one number or one text, of a group or dataset; of the whole for ""."""
        with self.library() as library, translated(self.path, "listing its attributes"):
            group, trail = library.root
            return names_of_values(as_object(trail.follow(group, path, where="below the group") if path else group))

    def attributes(self, names: Sequence[str]) -> dict[str, np.ndarray | bytes]:
        """Return attributes of the group that names are relative to: an array of one number each, or a text.

        Errors as in `ray_h5.hdf5.tree.attributes.attributes_of`.
        """
        with self.library() as library, translated(self.path, "reading its attributes"):
            return attributes_of(library.root[0], self.path, names)

    def stored_bytes(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many bytes the values of columns take in the file."""
        with self.library(), translated(self.path, "adding up its chunks"):
            return dict(zip(names, gather(self._bytes_stored, names), strict=True))

    def _bytes_stored(self, name: str) -> int:
        """Return how many bytes the values of a column take, in any file."""
        if (redirect := self.redirect(name)) is None:
            with self.library() as library:
                dataset = library.dataset(name)
                listed_in_tree(dataset, f"{self.path}: column {name!r}")  # libhdf5 walks through all of it
                return int(dataset.id.get_storage_size())
        # libhdf5 would open the other files.
        return sum(self.file_of(column.path)._bytes_stored(column.name) for column in redirect.columns)

    # Other files -----------------------------------------------------------------------------

    def redirect(self, name: str) -> Redirect | None:
        """Return where the values of a column are, if they are in other datasets."""
        layout = self.column(name)
        if (layout.is_decoded and layout.storage == "external") or (not layout.sources and layout.storage != "virtual"):
            return None
        with self._lock:
            known = self.manifest.columns[name]
            if known.redirect is None:
                with self.library() as library, translated(self.path, f"reading the header of column {name!r}"):
                    known = replace(known, redirect=library.redirect(library.dataset(name), layout))
                self.manifest.columns[name] = known
            return known.redirect

    def file_of(self, path: str) -> OpenFile:
        """Return this file, or another one that values come from."""
        return self if path == self.path and self.access.group == "/" else self._other_file(path)

    def file_with(self, joined: JoinedArray) -> OpenFile:
        """Return the one of two files that are read together in which datasets lie."""
        sources = joined.layouts[0].sources
        self._expect(sources)
        return self._other_file(next((path for path, _ in sources), self.path), self.access.group)

    def _counted(self, index: ChunkIndex) -> ChunkIndex:
        self._index_bytes += index.nbytes
        for cache in (FILES, OTHERS):
            cache.measure(self.access, self, index.nbytes)
        return index

    # Values ----------------------------------------------------------------------------------

    def source_column(self, name: str) -> tuple[str | JoinedArray, ColumnLayout]:
        """Return the address and the layout of a dataset, also of one with a single value."""
        with self.library():
            try:
                return name, self.column(name)
            except UnsupportedColumnError:
                if (single := self.single(name)) is None:
                    raise
                return single, single.unit

    def index_of(self, name: str) -> ChunkIndex:
        """Return the chunk index of a dataset; it stays in memory."""
        with self._lock:
            if (index := self._indexes.get(name)) is None:
                index = self._indexes[name] = self._counted(self._index(name))
            return index

    def _indexes_of(self, names: Sequence[str]) -> list[ChunkIndex]:
        with self.library():
            return gather(self.index_of, names)

    def _index(self, name: str) -> ChunkIndex:
        known = self.manifest.columns.get(name)
        if known is not None and known.index is not None:
            return known.chunks(self.path, self.byte_source.size)
        layout = self.column(name)
        found = self._by_headers(lambda headers: headers.chunk_index(name, layout)) if self.is_pinned else None
        if found is not None:
            return found
        with self.library() as library:
            dataset = library.dataset(name)
            with translated(self.path, f"reading the chunk index of column {layout.name!r}"):
                size, swmr = lambda: self.byte_source.size, self.access.swmr
                return build_chunk_index(dataset, layout, self.path, size, swmr, list_chunks)

    def reader(self, address: ColumnAddress, where: str = "") -> Column | JoinedColumn:
        """Return the reader of a column; its errors say that the column `where` leads to the file, if one does."""
        array = address.array if isinstance(address, Take) else address
        if isinstance(array, JoinedArray):
            joined = self._joined_column(array)
            return joined.select(address) if isinstance(address, Take) else joined
        if (column := self.readers.get((where, address))) is not None:
            return column
        with self._lock, self.library() as library:
            layout, items = self._items_of(described := self.column(array))
            if not layout.direct:
                raise no_places(described.where)
            index = self.index_of(layout.name) if layout.storage == "chunked" else None
            source = self.byte_source
            if layout.storage == "external":
                source = RawFiles(layout, library.dataset(layout.name))
            path = f"{where} leads to {self.path}" if where else self.path
            take = address if isinstance(address, Take) else Take(array)
            table = ChunkTable.one(layout, source, index)
            column = Column(ChunkSource(path, layout, table, self._key), take, items)
            if not where or isinstance(address, str):  # there may be any number of others
                self.readers[where, address] = column
        return column

    @property
    def _key(self) -> Hashable:
        """Says which file it is, in which state; None if a writer may change it."""
        return None if self.access.swmr else (self.path, self.identity)

    def _items_of(self, layout: ColumnLayout) -> tuple[ColumnLayout, StoredItems | None]:
        """Return the layout of the stored items of a column, and these; None if they are the values."""
        if not layout.file_type:
            return layout, None
        items = StoredItems.of(layout, self.byte_source, self.held, self._key)
        return items.layout, items

    def _joined_column(self, joined: JoinedArray) -> JoinedColumn:
        if (column := self.joined_columns.get(joined)) is None:
            described = [self._items_of(layout) for layout in joined.layouts]
            table = ChunkTable.one(joined.layouts[0], self.byte_source)
            like = [(ChunkSource(self.path, layout, table, self._key), items) for layout, items in described]
            chunks = None
            if joined.chunks is not None:
                where, most = f"{self.path}: column {joined.name!r}", joined.chunk_numbers.num_units
                chunks = self._counted(joined.chunks.chunks(where, most, self.byte_source.size))
            stored = replace(joined)  # another object: the weak key would never go
            column = self.joined_columns[joined] = JoinedColumn(stored, like, self._indexes_of, chunks)
        return column


def _fresh(error: RayH5Error) -> RayH5Error:
    """Return a copy of an error without its traceback, whose frames would keep datasets open."""
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh
