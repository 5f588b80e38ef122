"""Open files of this process, kept for the next read.

A handle belongs to the process that opened it: after a fork the child starts with none, and a
pickled `RowReader` opens its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import h5py

from ray_h5.errors import MissingSourceError, RayH5Error, StaleIndexError
from ray_h5.hdf5.chunks import ChunkIndex, build_chunk_index
from ray_h5.hdf5.columns import H5pyColumn
from ray_h5.hdf5.direct import DirectColumn
from ray_h5.hdf5.external import ExternalPolicy
from ray_h5.hdf5.guard import ChunkGuard
from ray_h5.hdf5.layout import ColumnLayout, FileIdentity, FileLayout
from ray_h5.hdf5.notes import ColumnNotes, notes_of
from ray_h5.hdf5.opening import check_regular_file, open_h5, translated
from ray_h5.hdf5.parser import H5Tree, describe
from ray_h5.hdf5.source import LocalFile

MAX_OPEN_FILES = 64
"""Files kept per process. Each costs a descriptor; the usual limit is 1024."""


class OpenFile:
    """One file: its layout and chunk indexes, found when first needed, and its bytes.

    It holds a descriptor of its own. libhdf5 has the file open only inside `library`.

    With `swmr`, a writer may have it open and add rows: the file is as it was when its columns were
    described, and is told from another one by its inode alone.
    """

    def __init__(self, path: str, group: str, policy: ExternalPolicy, swmr: bool = False) -> None:
        self.path = path
        self._group = group
        self._policy = policy
        self._swmr = swmr
        self._lock = threading.RLock()
        with open_h5(path, swmr) as file:
            # A descriptor of our own: one that libhdf5 opened would carry its lock along.
            with translated(path):
                self.source = LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            if not os.path.samestat(os.fstat(file.id.get_vfd_handle()), self.source.stat()):
                raise StaleIndexError(f"{path}: the file was replaced while it was being opened; open it again")
        self.identity = self.source.identity()
        self._columns: dict[str, ColumnLayout] = {}
        self._listed: tuple[str, ...] = ()
        self._refused: dict[str, RayH5Error] | None = None
        self._readers: dict[str, DirectColumn | H5pyColumn] = {}

    @contextlib.contextmanager
    def library(self) -> Iterator[OpenLibrary]:
        """Lend libhdf5's view of the file."""
        opened = OpenLibrary(self.path, self._group, self._policy, self.identity, self._swmr)
        try:
            yield opened
        finally:
            opened.close()

    def column(self, name: str, library: OpenLibrary) -> ColumnLayout:
        """Return the layout of column `name`, or raise why it cannot be read."""
        with self._lock:
            if name not in self._columns:
                self._columns[name] = library.tree.column(name)
            return self._columns[name]

    def layout(self) -> FileLayout:
        """Return the layout of all columns."""
        with self._lock:
            if self._refused is None:
                with self.library() as library:
                    listed, self._refused = describe(library.tree)
                self._listed = tuple(listed)
                self._columns.update(listed)
            # Columns may also have been asked for by names that are not in the list: "/x" is "x".
            columns = {name: self._columns[name] for name in self._listed}
            return FileLayout(self.path, self._group, self.identity, columns, dict(self._refused))

    def stored_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Return what the values of columns take in the file."""
        with self.library() as library, translated(self.path, "adding up its chunks"):
            return {name: int(library.dataset(name).id.get_storage_size()) for name in names}

    def notes(self, names: Iterable[str]) -> dict[str, ColumnNotes]:
        """Return what the file says of the values of columns."""
        with self.library() as library:
            return {name: notes_of(library.dataset(name)) for name in names}

    def reader(self, name: str, library: OpenLibrary) -> DirectColumn | H5pyColumn:
        """Return what reads column `name`."""
        with self._lock:
            if name not in self._readers:
                layout = self.column(name, library)
                self._readers[name] = (self._direct if layout.direct else self._through_h5py)(layout, library)
            return self._readers[name]

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Raise if the file, or another that these columns come from, is not as when it was described."""
        check_identity(self.path, self.identity, self.source.identity(), swmr=self._swmr)
        for path, identity in self._sources(names):
            if not os.path.exists(path):
                # libhdf5 would fill in, and say nothing.
                raise MissingSourceError(f"{self.path}: a column of it leads to {path}, which no longer exists")
            check_identity(path, identity, FileIdentity.of(os.stat(path)), swmr=self._swmr)

    def is_current(self) -> bool:
        """Tell whether what is known of files behind links still holds."""
        with self._lock:
            sources = self._sources(self._columns)
        return all(os.path.exists(path) and FileIdentity.of(os.stat(path)) == known for path, known in sources)

    def _sources(self, names: Iterable[str]) -> list[tuple[str, FileIdentity]]:
        return [source for name in names if name in self._columns for source in self._columns[name].sources]

    def _direct(self, layout: ColumnLayout, library: OpenLibrary) -> DirectColumn:
        index = self._index(layout, library) if layout.storage == "chunked" else None
        return DirectColumn(self.path, layout, self.source, index)

    def _through_h5py(self, layout: ColumnLayout, library: OpenLibrary) -> H5pyColumn:
        if layout.storage != "chunked" or layout.sources or not (layout.lists_its_chunks and layout.item_bytes):
            return H5pyColumn(self.path, layout)
        source = None if layout.user_block else self.source
        guard = ChunkGuard(self.path, layout, source, self._index(layout, library))
        return H5pyColumn(self.path, layout, guard.check)

    def _index(self, layout: ColumnLayout, library: OpenLibrary) -> ChunkIndex:
        with translated(self.path, f"reading the chunk index of column {layout.name!r}"):
            dataset = library.dataset(layout.name)
            return build_chunk_index(dataset, layout, self.path, lambda: self.source.stat().st_size, self._swmr)


class OpenLibrary:
    """A file as libhdf5 sees it, opened when first asked for."""

    def __init__(self, path: str, group: str, policy: ExternalPolicy, identity: FileIdentity, swmr: bool) -> None:
        self._path = path
        self._group = group
        self._policy = policy
        self._identity = identity
        self._swmr = swmr
        self._tree: H5Tree | None = None

    @property
    def tree(self) -> H5Tree:
        if self._tree is None:
            file = open_h5(self._path, self._swmr)
            self._tree = H5Tree(file, self._path, self._group, self._policy, self._swmr)
            found = FileIdentity.of(os.fstat(file.id.get_vfd_handle()))
            check_identity(self._path, self._identity, found, swmr=self._swmr)
        return self._tree

    def dataset(self, name: str) -> h5py.Dataset:
        return self.tree.dataset(name)

    def close(self) -> None:
        if self._tree is not None:
            self._tree.close()


def check_identity(path: str, expected: FileIdentity, found: FileIdentity, *, swmr: bool = False) -> None:
    """Raise `StaleIndexError` if a file is not in the state that a plan was made for.

    With `swmr`, if it is another file: a writer may have changed its size and its times.
    """
    if expected.inode != found.inode if swmr else expected != found:
        raise StaleIndexError(
            f"{path}: the file changed between planning and reading: expected {expected}, found {found}. "
            "Make the dataset again; if something still writes to the file, wait for it."
        )


class _Handles:
    """The bounded cache, least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[object, ...], OpenFile] = OrderedDict()

    def get(self, path: str, group: str, policy: ExternalPolicy, swmr: bool) -> OpenFile:
        # With swmr too: a reader made after rows were added finds them.
        key = (path, FileIdentity.of(check_regular_file(path)), group, policy, swmr)
        with self._lock:
            if key in self._open and self._open[key].is_current():
                self._open.move_to_end(key)
                return self._open[key]
        opened = OpenFile(path, group, policy, swmr)
        with self._lock:
            # Readers that still hold an evicted file keep it open until they let go of it.
            self._open[key] = opened
            while len(self._open) > MAX_OPEN_FILES:
                self._open.popitem(last=False)
        return opened

    def drop(self, opened: OpenFile) -> None:
        with self._lock:
            for key in [key for key, value in self._open.items() if value is opened]:
                del self._open[key]


_handles = _Handles()
_inherited: list[_Handles] = []


def open_file(path: str, group: str, policy: ExternalPolicy, swmr: bool = False) -> OpenFile:
    """Return the open file at `path`, from the cache if the file is as it was."""
    return _handles.get(path, group, policy, swmr)


def forget(opened: OpenFile) -> None:
    """Take a file out of the cache, so that the next `open_file` opens it anew."""
    _handles.drop(opened)


def _start_afresh() -> None:
    global _handles  # noqa: PLW0603  a fork makes a new process of this module
    # The old ones are not touched: another thread may have held their locks at the fork.
    _inherited.append(_handles)
    _handles = _Handles()


os.register_at_fork(after_in_child=_start_afresh)
