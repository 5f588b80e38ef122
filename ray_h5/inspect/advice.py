"""What makes the layout of a column slow to read, and how to write it instead."""

from __future__ import annotations

from dataclasses import dataclass

from ray_h5.codecs.filters import UNCOMPRESSED
from ray_h5.codecs.pipeline import decodes
from ray_h5.manifest.chunk_index import ChunkGrid
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes
from ray_h5.messages import counted
from ray_h5.storage.addresses import is_url
from ray_h5.writing.layouts import GOOD_BYTES, TINY_BYTES, TINY_CHUNKS, holds_many_rows

_HUGE_BYTES = 256 << 20
_SAVED = 0.98
"""A filter pipeline that saves less than the rest is not worth its decoding."""


def advice(layout: ColumnLayout, stored_bytes: int | None, notes: ColumnNotes) -> tuple[str, ...]:
    """Return advice for a column, one text for each problem; nothing for a good layout.

    Parameters
    ----------
    layout : ColumnLayout
        The column.
    stored_bytes : int, optional
        Bytes of its values in the file, if it is one dataset.
    notes : ColumnNotes
        What its attributes say about its values.
    """
    if not layout.num_rows:
        return ()
    found = [_no_values(notes) or _never_written(layout, stored_bytes) or _through_h5py(layout), _packed(notes)]
    if layout.chunk_shape is not None:
        chunks = _Chunks(layout, ChunkGrid.of(layout), stored_bytes)
        huge = chunks.huge()
        many_rows = "" if huge else chunks.of_many_rows()
        found += [chunks.tiny() or chunks.save_nothing(), many_rows, chunks.split(), huge]
    return tuple(text for text in found if text)


def _no_values(notes: ColumnNotes) -> str:
    if not notes.bare_dimension:
        return ""
    return (
        "is a dimension of netCDF without a coordinate: it has a length and no values. Leave it out with columns=[...]."
    )


def _packed(notes: ColumnNotes) -> str:
    if not notes.conversion:
        return ""
    applied = ", ".join([*notes.packing, *(["units"] if notes.time else [])])
    return f"values are delivered as stored, without applying {applied}: {notes.conversion}."


def _never_written(layout: ColumnLayout, stored_bytes: int | None) -> str:
    if stored_bytes != 0 or not layout.row_bytes or layout.storage not in {"chunked", "contiguous"}:
        return ""
    return "was never written: all of its rows are the fill value."


def _through_h5py(layout: ColumnLayout) -> str:
    # Values of other types are always read by h5py, and a compact column is part of its header.
    if layout.direct or layout.kind not in {"number", "bool"} or layout.storage == "compact":
        return ""
    if is_elsewhere(layout):
        return ""
    if layout.storage == "external":
        why = "its values are in raw files"
    elif not decodes(layout.pipeline):
        why = f"it went through {layout.pipeline}"
    elif layout.user_block:
        why = f"its file has a user block of {layout.user_block} bytes, as those of MATLAB do"
    elif layout.odd_type:
        why = f"its type in the file is {layout.odd_type}"
    elif not layout.lists_its_chunks:
        why = "an axis other than the first can grow, and libhdf5 then lists its chunks at wrong offsets"
    else:
        why = f"its {layout.storage} values have no address of their own in the file"
    return f"h5py reads it, because {why}: one thread at a time, and slower."


def is_elsewhere(layout: ColumnLayout) -> bool:
    """Return whether a column is read, without h5py, from other datasets: through a link, or as a virtual dataset."""
    if layout.odd_type or not (layout.sources or layout.storage == "virtual"):
        return False
    return is_url(layout.path) or (layout.storage != "external" and decodes(layout.pipeline) and not layout.user_block)


@dataclass(frozen=True, slots=True)
class _Chunks:
    layout: ColumnLayout
    grid: ChunkGrid
    stored_bytes: int | None

    def tiny(self) -> str:
        chunks, size = -(-self.layout.num_rows // self.grid.chunk_rows) * self.grid.per_row, self.layout.chunk_bytes
        if size >= TINY_BYTES or chunks < TINY_CHUNKS:
            return ""
        return (
            f"{chunks} chunks of {size} bytes: each costs more to find than to read. Write it contiguous, or with "
            f"chunks of {counted(self._good_rows, 'row')}."
        )

    def of_many_rows(self) -> str:
        rows = self.grid.chunk_rows
        read_by_row = self.layout.direct and not self.layout.pipeline.steps and self.grid.per_row == 1
        if read_by_row or not holds_many_rows(rows, self.layout.chunk_bytes, self.layout.num_rows):
            return ""
        return (
            f"a chunk holds {rows} rows, all of which are decoded for one: shuffled by rows, up to {rows} times as "
            f"much is decoded as is delivered. Shuffle by chunks, or write chunks of {counted(self._good_rows, 'row')}."
        )

    def split(self) -> str:
        if self.grid.per_row < 2:
            return ""
        whole = ", ".join(map(str, self.grid.shape[1:]))
        return f"a row is spread over {self.grid.per_row} chunks. Write chunks of whole rows: (rows, {whole})."

    def huge(self) -> str:
        size = self.layout.chunk_bytes
        if size <= _HUGE_BYTES or not self.layout.pipeline.steps:
            return ""
        return (
            f"a chunk is {size >> 20} MiB, and each thread that reads holds one. Write chunks of "
            f"{counted(self._good_rows, 'row')}."
        )

    def save_nothing(self) -> str:
        layout, stored = self.layout, self.stored_bytes
        real = 0 if layout.stored_dtype.hasobject else layout.num_rows * layout.row_bytes
        compressed = any(step.id not in UNCOMPRESSED for step in layout.pipeline.steps)
        if stored is None or not compressed or not real or stored < _SAVED * real:
            return ""
        return f"{layout.pipeline} makes {stored} bytes of {real}: it costs its decoding and saves nothing."

    @property
    def _good_rows(self) -> int:
        return max(1, GOOD_BYTES // max(self.layout.row_bytes, 1))
