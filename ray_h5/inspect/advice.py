"""What makes the layout of a column slow to read, and how to write it instead."""

from __future__ import annotations

from collections.abc import Iterator

from ray_h5.codecs.filter_ids import UNCOMPRESSED
from ray_h5.codecs.pipeline import decodes
from ray_h5.manifest.chunk_index import ChunkGrid
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes
from ray_h5.messages import counted
from ray_h5.storage.addresses import is_url
from ray_h5.writing.layouts import GOOD_BYTES, chunk_faults

_HUGE_BYTES = 256 << 20
# A filter pipeline that saves less than the rest is not worth its decoding.
_SAVED = 0.98


def advice(layout: ColumnLayout, stored_bytes: int | None, notes: ColumnNotes) -> Iterator[str]:
    """Yield advice for a column, one text for each problem; nothing for a good layout.

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
        return
    if notes.bare_dimension:
        yield (
            "is a dimension of netCDF without a coordinate: it has a length and no values. Leave it out with "
            "columns=[...]."
        )
    elif stored_bytes == 0 and layout.row_bytes and layout.storage in {"chunked", "contiguous"}:
        yield "was never written: all of its rows are the fill value."
    elif why := _why_slow(layout):
        yield f"libhdf5 takes part in reading it, because {why}: one thread at a time, and slower."
    if notes.conversion:
        applied = ", ".join([*notes.packing, *(["units"] if notes.time else [])])
        yield f"values are delivered as stored, without applying {applied}: {notes.conversion}."
    faults = faults_of(layout)
    yield from faults.values()
    real = 0 if layout.stored_dtype.hasobject else layout.num_rows * layout.row_bytes
    is_compressed = any(step.id not in UNCOMPRESSED for step in layout.pipeline.steps)
    if "tiny" not in faults and stored_bytes and is_compressed and real and stored_bytes >= _SAVED * real:
        yield f"{layout.pipeline} makes {stored_bytes} bytes of {real}: it costs its decoding and saves nothing."


def _why_slow(layout: ColumnLayout) -> str:
    if layout.kind not in {"number", "bool"} or is_elsewhere(layout):
        return ""
    if not decodes(layout.pipeline):
        return f"it went through {layout.pipeline}"
    if layout.odd_type:
        return f"its type in the file is {layout.odd_type}"
    return "" if layout.is_decoded else f"its {layout.storage} values have no address of their own in the file"


def is_elsewhere(layout: ColumnLayout) -> bool:
    """Return whether a column is read, without h5py, from other datasets: through a link, or as a virtual dataset."""
    return not layout.is_decoded and (is_url(layout.path) or not layout.user_block)


def faults_of(layout: ColumnLayout) -> dict[str, str]:
    """Return the faults of the chunks of a column, which a repack mends, and what they mean for it."""
    if layout.chunk_shape is None or not layout.num_rows:
        return {}
    grid, rows, nbytes = ChunkGrid.of(layout), layout.chunk_rows, layout.chunk_bytes
    chunks = -(-layout.num_rows // rows) * grid.per_row
    good_rows = counted(max(1, GOOD_BYTES // max(layout.row_bytes, 1)), "row")
    texts = {
        "tiny": f"{chunks} chunks of {nbytes} bytes: each costs more to find than to read. Write it contiguous, or "
        f"with chunks of {good_rows}.",
        "large": f"a chunk holds {rows} rows, all of which are decoded for one: shuffled by rows, up to {rows} times "
        f"as much is decoded as is delivered. Shuffle by chunks, or write chunks of {good_rows}.",
        "split": f"a row is spread over {grid.per_row} chunks. Write chunks of whole rows: (rows, "
        f"{', '.join(map(str, grid.shape[1:]))}).",
    }
    if nbytes > _HUGE_BYTES:
        texts["large"] = f"a chunk is {nbytes >> 20} MiB, and each thread that reads holds one. Write {good_rows} each."
    faults = chunk_faults(rows, nbytes, chunks, bool(layout.pipeline.steps), grid.per_row > 1)
    return {fault: texts[fault] for fault in faults}
