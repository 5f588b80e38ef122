"""Readers of columns whose rows are no indices of the first axis: grids, last axes, blocks, and parts of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ray_h5.read.arrays.block_column import BlockAddress, BlockColumn
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.grid_column import GridAddress, GridColumn, grid_layout
from ray_h5.read.arrays.last_axis import LastAxis, LastAxisColumn
from ray_h5.read.arrays.taken_column import TakenAddress, TakenColumn
from ray_h5.read.through_h5py.selected_columns import BlocksThroughH5py, LastAxisThroughH5py, SelectedThroughH5py

if TYPE_CHECKING:
    from ray_h5.hdf5.files.open_library import OpenLibrary
    from ray_h5.manifest.chunk_index import ChunkIndex
    from ray_h5.manifest.layout import ColumnLayout
    from ray_h5.read.through_h5py.h5py_column import H5pyColumn
    from ray_h5.read.through_h5py.selected_columns import BlocksThroughH5py, LastAxisThroughH5py
from ray_h5.storage.byte_source import ByteSource


class HasColumns(Protocol):
    """An open file, as far as its columns are read."""

    path: str
    byte_source: ByteSource

    def column(self, name: str, library: OpenLibrary) -> ColumnLayout:
        """Return the layout of a column."""

    def index_of(self, name: str, library: OpenLibrary) -> ChunkIndex:
        """Return the chunk index of a dataset."""

    def through_h5py(self, layout: ColumnLayout, library: OpenLibrary) -> H5pyColumn:
        """Return the reader of a column that h5py reads."""


def reader_of(
    file: HasColumns, address: GridAddress | LastAxis | BlockAddress | TakenAddress, library: OpenLibrary
) -> GridColumn | TakenColumn | LastAxisColumn | BlockColumn | SelectedThroughH5py:
    """Return the reader of a column."""
    if isinstance(address, TakenAddress):
        return _taken(file, address, library)
    if isinstance(address, LastAxis):
        return _last_axis(file, address, library)
    return _grid(file, address, library) if isinstance(address, GridAddress) else _blocks(file, address, library)


def _grid(file: HasColumns, address: GridAddress, library: OpenLibrary) -> GridColumn:
    layout = file.column(address.name, library)
    if not layout.direct:
        return GridColumn(layout, address.axes, file.through_h5py(layout, library))
    index = file.index_of(address.name, library) if layout.storage == "chunked" else None
    column = DirectColumn(file.path, grid_layout(layout, address.axes), file.byte_source, index)
    return GridColumn(layout, address.axes, column)


def _taken(file: HasColumns, address: TakenAddress, library: OpenLibrary) -> TakenColumn | GridColumn:
    layout = file.column(address.name, library)
    index = file.index_of(address.name, library) if layout.storage == "chunked" else None
    if address.axes == 1:
        return TakenColumn(file.path, layout, file.byte_source, index, address)
    column = TakenColumn(file.path, grid_layout(layout, address.axes), file.byte_source, index, address)
    return GridColumn(layout, address.axes, column)


def _last_axis(file: HasColumns, address: LastAxis, library: OpenLibrary) -> LastAxisColumn | SelectedThroughH5py:
    layout = file.column(address.name, library)
    is_array = layout.item_bytes not in {0, layout.stored_dtype.itemsize}
    if not layout.direct or is_array or address.axes != 1:
        return LastAxisThroughH5py(file.through_h5py(layout, library), address.axes)
    index = file.index_of(address.name, library) if layout.storage == "chunked" else None
    return LastAxisColumn(file.path, layout, file.byte_source, index)


def _blocks(file: HasColumns, address: BlockAddress, library: OpenLibrary) -> BlockColumn | SelectedThroughH5py:
    layout = file.column(address.name, library)
    if not layout.direct:
        return BlocksThroughH5py(file.through_h5py(layout, library), address)
    index = file.index_of(address.name, library) if layout.storage == "chunked" else None
    return BlockColumn(file.path, layout, file.byte_source, index, address)
