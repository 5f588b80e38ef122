"""Columns of a remote file whose values are in other files: what is known there, sizes, and raw files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ray_h5.hdf5.checks.chunk_tree import wrong_tree
from ray_h5.hdf5.columns.chunk_lists import damaged_index
from ray_h5.hdf5.files.file_bytes import gather
from ray_h5.manifest.known_columns import Elsewhere, KnownColumn, OtherColumn
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.arrays.direct_column import DirectColumn
from ray_h5.read.arrays.grid_column import grid_layout
from ray_h5.read.remote.joined_bytes import JoinedBytes

if TYPE_CHECKING:
    from ray_h5.hdf5.files.open_library import OpenLibrary
    from ray_h5.read.open_files import OpenFile
    from ray_h5.read.remote.file_in_store import FileInStore


def known_there(file: FileInStore, elsewhere: Elsewhere) -> Elsewhere:
    """Return the same with what is known of the datasets that have the values."""

    def known(column: OtherColumn) -> KnownColumn | None:
        there = file.file_of(column.path)
        with there.library() as library:
            return there.known_columns([column.name], library).get(column.name)

    return elsewhere.with_known(gather(known, elsewhere.columns))


def adopt_there(file: FileInStore, known: KnownColumn) -> None:
    """Take what an index says of the datasets that have the values of a column."""
    assert known.elsewhere is not None
    file.others.expect(known.layout.sources)
    for each in known.elsewhere.columns:
        if each.known is not None:
            file.file_of(each.path).adopt({each.name: each.known})


def bytes_stored(file: OpenFile, library: OpenLibrary, name: str) -> int:
    """Return how many bytes the values of a column take, in any file."""
    if (elsewhere := file.elsewhere(name, library)) is None:
        dataset = library.dataset(name)
        if reason := wrong_tree(dataset):  # libhdf5 walks through all of it
            raise damaged_index(f"{file.path}: column {name!r}", reason)
        return int(dataset.id.get_storage_size())
    # libhdf5 would open the other files.
    total = sum(part.nbytes for part in elsewhere.raw)
    for column in elsewhere.columns:
        there = file.file_of(column.path)
        with there.library() as opened:
            total += bytes_stored(there, opened, column.name)
    return total


def raw_column(file: FileInStore, layout: ColumnLayout, elsewhere: Elsewhere, axes: int = 1) -> DirectColumn:
    """Return the reader of external storage, whose first `axes` axes are rows."""
    parts = [(file.others.bytes_of(each.path), each.offset, each.nbytes) for each in elsewhere.raw]
    stored = replace(grid_layout(layout, axes), storage="contiguous", offset=0, fill=elsewhere.fill, direct=True)
    return DirectColumn(file.path, stored, JoinedBytes(parts), None)
