"""A file in a store, opened: libhdf5 parses bytes that are in memory, and what its reads need is fetched together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ray_h5.errors import OptionError, RayH5Error
from ray_h5.hdf5.checks.changed_files import check_identity
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.hdf5.files.metadata_replay import HeldBytes, has_missed, trim
from ray_h5.hdf5.files.open_library import OpenLibrary, once
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.files.other_files import OtherFiles
from ray_h5.hdf5.files.plain_bytes import FormatError, PlainBytes
from ray_h5.hdf5.tree.known_values import chunk_index, known_notes, learn_notes
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.known_columns import Elsewhere, KnownColumn, OtherColumn, PackedIndex
from ray_h5.manifest.layout import LAYOUT_BYTES, SourceStates
from ray_h5.read.open_file import NO_SOURCES, OpenFile, SourcesRead
from ray_h5.storage.byte_source import ByteSource, Identity

if TYPE_CHECKING:
    from ray_h5.hdf5.files.external_policy import Access
    from ray_h5.hdf5.groups.groups import GroupPattern
    from ray_h5.manifest.joined_arrays import GroupTable, JoinedArray
    from ray_h5.manifest.layout import ColumnNotes

Item = TypeVar("Item")
Result = TypeVar("Result")


class FileInStore(OpenFile):
    """One file in a store, in one state: each request says which.

    Parameters
    ----------
    access, found
        As of `OpenFile`.
    others : OtherFiles, optional
        The other files in the store that columns come from. A file that one of these leads to shares them.
    """

    def __init__(self, access: Access, found: Identity, others: OtherFiles[FileInStore] | None = None) -> None:
        if access.swmr:
            raise OptionError(f"{access.path}: swmr=True: nobody adds rows to an object in a store; leave it out")
        super().__init__(access, found)
        self._known: dict[str, KnownColumn] = {}
        self.held = HeldBytes(self.byte_source)
        self._owns_others = others is None
        self.others = others or OtherFiles(self, FileInStore)

    def _open(self, found: Identity) -> tuple[ByteSource, Identity]:
        return self.access.storage.open(self.path, found), found

    @contextlib.contextmanager
    def library(self, held: HeldBytes | None = None) -> Iterator[OpenLibrary]:
        """Yield libhdf5's view of the file, of bytes in memory: `held`, if a read has bytes of its own."""
        shared = once.libraries if held is None else None
        opened = None if shared is None else shared.get(self)
        if opened is None:
            opened = OpenLibrary(self.access, self.identity, held or self.held, self.others)
        if shared is None:
            with contextlib.closing(opened):
                yield opened
            return
        shared[self] = opened
        try:
            yield opened
        finally:
            # What it could not read may look like damage to the next pass. A pass that goes on needs it open.
            if has_missed() and shared.pop(self, None) is not None:
                once.replaced.append(opened)

    def _plain_bytes(self) -> PlainBytes:
        return PlainBytes(self.held.read_on, self.held.size)

    def _is_same(self) -> bool:
        """Return whether libhdf5 had all bytes that it asked for; they are those that headers were read from."""
        return not has_missed()

    def look(self) -> None:
        """Look at the group of the file, to find out now whether it is HDF5."""
        if self.headers() is None:
            with self.library() as library:
                library.tree.enter()

    def _held(self) -> HeldBytes | None:
        return self.held

    def each(self, action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of `action`. The bytes that the items lack are fetched together."""
        return gather(action, items)

    # What is known of columns ----------------------------------------------------------------

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
                        self._adopt_there(column.elsewhere, column.layout.sources)

    def known_columns(self, names: Iterable[str], library: OpenLibrary) -> dict[str, KnownColumn]:
        """Return what `adopt` takes."""
        names = list(names)
        self.each(lambda name: self.elsewhere(name, library), names)
        return dict(zip(names, self.each(lambda name: self._known_column(name, library), names), strict=True))

    def _known_column(self, name: str, library: OpenLibrary) -> KnownColumn:
        layout, elsewhere = self.column(name, library), self.elsewhere(name, library)
        index = None
        if elsewhere is not None:
            elsewhere = elsewhere.with_known(gather(self._known_there, elsewhere.columns))
        elif layout.is_decoded and layout.storage == "chunked":
            index = PackedIndex.of(self.index_of(name, library))
        return KnownColumn(layout, index, self._notes(name, library), elsewhere)

    def notes(self, names: Iterable[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about the values of columns."""
        names = list(names)
        known = {name: self._known[name].notes for name in names if name in self._known}
        if len(known) == len(names) and None not in known.values():
            return {name: notes for name, notes in known.items() if notes is not None}
        return super().notes(names)

    def _notes(self, name: str, library: OpenLibrary) -> ColumnNotes:
        headers = self.headers()
        with contextlib.suppress(FormatError):
            if headers is not None:
                return known_notes(headers, name)
        found = super()._notes(name, library)
        with contextlib.suppress(FormatError):
            if headers is not None and self._is_same():
                learn_notes(headers, name, found)
        return found

    def index_of(self, name: str, library: OpenLibrary) -> ChunkIndex:
        with self._lock:
            if name not in self._indexes and name in self._known and self._known[name].index is not None:
                self._indexes[name] = self._counted(self._known[name].chunks(self.path, self._size()))
            if name not in self._indexes and (headers := self.headers()) is not None:
                with contextlib.suppress(FormatError):
                    found = chunk_index(headers, name, self.column(name, library), self._size())
                    self._indexes[name] = self._counted(found)
            return super().index_of(name, library)

    def group_table(
        self, pattern: GroupPattern, columns: Sequence[str] | None
    ) -> tuple[GroupTable, Mapping[str, RayH5Error]]:
        """Return the groups that match a pattern, where their chunks are, and the errors of columns."""
        table, refused = super().group_table(pattern, columns)
        with self.library() as library:
            names = list(table.columns)
            found = self.each(lambda name: self._with_chunks(table.columns[name], library), names)
        return replace(table, columns=dict(zip(names, found, strict=True))), refused

    def _with_chunks(self, joined: JoinedArray, library: OpenLibrary) -> JoinedArray:
        """Return the same datasets with where their chunks are."""
        if self.access.beside:
            there = self._file_of(joined)
            with there.library() as opened:
                return there._with_chunks(joined, opened)
        from ray_h5.read.arrays.chunk_source import joined_indexes

        def index_of(number: int) -> ChunkIndex:
            stored = joined.layouts[joined.class_of[number]]
            layout = replace(stored, shape=(int(joined.lengths[number]), *stored.row_shape))
            path = joined.paths[number]
            with translated(self.path, f"reading the chunk index of {path!r}"):
                return build_chunk_index(library.tree.dataset(path), layout, self.path, self._size)

        chunked = np.flatnonzero(joined.is_chunked & (joined.lengths > 0))
        indexes = self.each(index_of, chunked.tolist())
        if not indexes:
            return joined
        return replace(joined, chunks=PackedIndex.of(joined_indexes(indexes, joined.first_chunks[chunked])))

    # Columns whose values are in other files -------------------------------------------------

    def _other_file(self, path: str, group: str = "/") -> OpenFile:
        return self.others.file(path, group)

    def _file_of(self, joined: JoinedArray) -> FileInStore:
        self.others.expect(joined.layouts[0].sources)
        return self.others.file(next((url for url, _ in joined.layouts[0].sources), self.path), self.access.group)

    def _known_there(self, column: OtherColumn) -> KnownColumn | None:
        """Return what is known of a dataset that has values of a column."""
        there = self.file_of(column.path)
        with there.library() as library:
            return there.known_columns([column.name], library).get(column.name)

    def _adopt_there(self, elsewhere: Elsewhere, sources: SourceStates) -> None:
        """Take what an index says of the datasets that have the values of a column."""
        self.others.expect(sources)
        for each in elsewhere.columns:
            if each.known is not None:
                self.file_of(each.path).adopt({each.name: each.known})

    # States ----------------------------------------------------------------------------------

    def check_unchanged(self, sources: SourcesRead = NO_SOURCES) -> None:
        """Raise if the file, or another one that rows of a column come from, has changed since it was described."""
        for file in (self, *self.others.opened(sources)):
            check_identity(file.path, file.identity, file.byte_source.identity())

    def _check_unseen(self, name: str, expected: SourceStates) -> None:  # noqa: ARG002  each request says which state it wants
        self.others.expect(expected)

    def is_usable(self, planned: Iterable[SourceStates] | None) -> bool:
        """Return whether the other files have the states of a plan; without one, whether they are unchanged."""
        return self.is_current() if planned is None else self.others.agree(planned)

    def is_current(self) -> bool:
        """Return whether the other files that columns come from are unchanged."""
        return self.others.are_current()

    @property
    def cached_bytes(self) -> int:
        """Bytes that the file holds in memory: its layouts and chunk indexes, and parts of it."""
        others = self.others.cached_bytes if self._owns_others else 0
        return super().cached_bytes + len(self._known) * LAYOUT_BYTES + self.held.nbytes + others

    def trim(self) -> None:
        """Drop what is held if it is much, and let the cache count the rest."""
        trim([self.held, *self.others.held])
        self._count()
