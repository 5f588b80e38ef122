"""Guards of columns that h5py reads: what is looked at before libhdf5 gets their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import h5py

from ray_h5.hdf5.checks.heap import ReferenceLayout
from ray_h5.hdf5.columns.chunk_lists import check_chunk_list
from ray_h5.hdf5.columns.column import describe_column
from ray_h5.hdf5.files.file_bytes import bytes_of, filename_of
from ray_h5.hdf5.files.opening import translated
from ray_h5.manifest.chunk_index import ChunkIndex
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.through_h5py.chunk_guard import ChunkGuard
from ray_h5.read.through_h5py.h5py_column import Guard, Library
from ray_h5.read.through_h5py.source_guard import SourceGuard
from ray_h5.read.through_h5py.value_guard import ValueGuard
from ray_h5.storage.byte_source import ByteSource

Size: TypeAlias = Callable[[], int]
"""Returns the bytes of a file now."""

IndexOf: TypeAlias = Callable[[str, h5py.Dataset, ColumnLayout, Size], ChunkIndex]
"""Returns the chunk index of a dataset; the first argument says where it is, for messages."""


@dataclass(frozen=True, slots=True)
class ColumnGuards:
    """Makes the guards of the columns of one file.

    Attributes
    ----------
    path : str
        The file.
    index : callable
        Returns the chunk index of a dataset, in any file.
    remembers : bool
        Whether what was found whole stays so.
    """

    path: str
    index: IndexOf
    remembers: bool

    def of(self, layout: ColumnLayout, library: Library, source: ByteSource | None, size: Size) -> Guard | None:
        """Return the guard of a column; None if it needs none.

        Without a `source`, libhdf5 reads the chunks for the guard.
        """
        if layout.sources or layout.storage == "virtual":
            return partial(SourceGuard(partial(self._there, layout)).check_column, layout.name)
        if layout.storage != "chunked":
            refers = layout.stored_dtype.hasobject
            return self._values(self.path, layout.name).check if refers else None
        return self._chunks(self.path, library.dataset(layout.name), layout, source, size).check

    def _there(self, layout: ColumnLayout, dataset: h5py.Dataset) -> ChunkGuard | ValueGuard | None:
        """Return the guard of a dataset that values of a column come from, in any file; None if it needs none."""
        file, name = dataset.file, dataset.name.strip("/")
        where = f"{self.path}: column {layout.name!r} leads to {filename_of(file)}"
        if dataset.chunks is None:
            return self._values(where, name) if ReferenceLayout.of(dataset).per_item else None
        described = describe_column(dataset.id, name, path=where, at_home=False, sources=())
        return self._chunks(where, dataset, described, None, lambda: bytes_of(file)[1])

    def _values(self, path: str, name: str) -> ValueGuard:
        return ValueGuard(path, name, remembers=self.remembers)

    def _chunks(
        self, path: str, dataset: h5py.Dataset, layout: ColumnLayout, source: ByteSource | None, size: Size
    ) -> ChunkGuard:
        index = None
        if layout.lists_its_chunks:
            index = self.index(path, dataset, layout, size)
        else:
            with translated(path, f"listing the chunks of column {layout.name!r}"):
                check_chunk_list(dataset, layout, path, size)
        return ChunkGuard(path, layout, source, index, remembers=self.remembers)
