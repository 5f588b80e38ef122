"""The header of one dataset -> ColumnLayout."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import lru_cache

import h5py
import numpy as np

from ray_h5.codecs.filter_ids import filter_name
from ray_h5.codecs.pipeline import decodes
from ray_h5.errors import CodecUnavailableError, CorruptFileError
from ray_h5.hdf5.columns.chunk_lists import layout_of
from ray_h5.hdf5.format.file_bytes import Widths, filename_of, widths_of
from ray_h5.hdf5.format.value_types import StoredType, value_type_of, without_rows
from ray_h5.manifest.file_state import SourceStates
from ray_h5.manifest.layout import ColumnLayout, FilterPipeline, FilterStep, Storage

MAX_FILL_BYTES = 1 << 20
"""A column keeps its fill value in memory. A string type in a file can claim 2 GiB."""

NO_FILL = np.zeros((), "V1")

SINGLE_VALUE = "has a single value; a column needs a first axis of rows"

_STORAGES: dict[int, Storage] = {
    h5py.h5d.CHUNKED: "chunked",
    h5py.h5d.CONTIGUOUS: "contiguous",
    h5py.h5d.COMPACT: "compact",
    h5py.h5d.VIRTUAL: "virtual",
}


def describe_column(
    dataset: h5py.h5d.DatasetID,
    name: str,
    *,
    path: str,
    widths: Widths | None,
    sources: SourceStates = (),
    single_ok: bool = False,
    properties: h5py.h5p.PropDCID | None = None,
) -> ColumnLayout:
    """Describe a dataset as a column.

    Parameters
    ----------
    dataset : h5py.h5d.DatasetID
        The open dataset.
    name : str
        Name of the column.
    path : str
        The file that was opened, for messages.
    widths : Widths, optional
        Of that file. None for a dataset in another file, to which an external link leads.
    sources : tuple of (str, Identity or None)
        The other files that its values come from, as in `ColumnLayout`.
    single_ok : bool
        Whether a single value is described as one row. By default it is refused.
    properties : h5py.h5p.PropDCID, optional
        The creation properties of the dataset, if the caller has them.

    Raises
    ------
    UnsupportedColumnError
        If it cannot be read as rows.
    CodecUnavailableError
        If neither this package nor h5py can decode its chunks.
    """
    where = f"{path}: column {name!r}"
    # Each handle is asked for once: libhdf5 makes a new one each time, and a file may have thousands of columns.
    space = dataset.get_space()
    if not (shape := space.get_simple_extent_dims()):
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            raise without_rows(f"{where} has an empty (null) dataspace; a column needs a first axis of rows")
        if not single_ok:
            raise without_rows(f"{where} {SINGLE_VALUE}", is_single=True)
    at_home, widths = widths is not None, widths or widths_of(h5py.h5i.get_file_id(dataset))
    properties = dataset.get_create_plist() if properties is None else properties
    values = value_type_of(dataset.get_type(), widths, where)
    storage, pipeline = storage_of(properties), pipeline_of(properties)
    is_decoded = at_home and storage != "virtual" and (not widths.user_block or _offsets_count_it())
    for step in [] if decodes(pipeline) else pipeline.steps:
        if not h5py.h5z.filter_avail(step.id):
            raise CodecUnavailableError(
                f"{where} was written with filter {step.id} ({step.name}), which neither ray_h5, h5py nor "
                "hdf5plugin decodes here. Install the HDF5 plugin of that filter and point HDF5_PLUGIN_PATH to it."
            )
    direct = is_decoded and not values.dtype.hasobject and not values.odd_type
    num_rows, *axes = shape or (1,)
    return ColumnLayout(
        name=name,
        type=replace(values.type, row_shape=(*axes, *values.array_shape)),
        num_rows=num_rows,
        file_dtype=values.file_dtype,
        storage=storage,
        chunk_shape=properties.get_chunk() if storage == "chunked" else None,
        pipeline=pipeline,
        offset=offset_of(dataset, storage, widths.user_block),
        fill=fill_of(properties, values) if is_decoded else None,
        user_block=widths.user_block,
        sources=sources,
        direct=direct,
        file_type=values.in_file if is_decoded and not direct else b"",
        item_bytes=values.item_bytes,
        odd_type=values.odd_type,
        lost_fields=values.lost_fields,
        path=path,
    )


def storage_of(properties: h5py.h5p.PropDCID) -> Storage:
    """Return how the values of a dataset are stored, given its creation properties."""
    storage = _STORAGES[properties.get_layout()]
    return "external" if storage != "virtual" and properties.get_external_count() > 0 else storage


def is_plain(properties: h5py.h5p.PropDCID) -> bool:
    """Return whether the values of a dataset are in its own file, given its creation properties."""
    return storage_of(properties) not in {"virtual", "external"}


def offset_of(dataset: h5py.h5d.DatasetID, storage: Storage, user_block: int) -> int | None:
    """Return where values begin that are not in chunks; None if nothing was written."""
    if storage == "compact":  # in the header
        opened = h5py.Dataset(dataset)
        layout, (_, _, body, address) = layout_of(opened)
        if len(body) < layout.begin + layout.nbytes or layout.nbytes != dataset.get_storage_size():
            raise CorruptFileError(
                f"{filename_of(opened.file)}: {opened.name!r} has {dataset.get_storage_size()} bytes in its header, "
                f"found {len(body) - layout.begin}. Restore the file from a copy."
            )
        return user_block + address + layout.begin
    # libhdf5 adds the user block to an address that is not defined, too.
    if storage == "contiguous" and (not user_block or dataset.get_storage_size()):
        return dataset.get_offset()
    return 0 if storage == "external" else None


@lru_cache(maxsize=1)
def _offsets_count_it() -> bool:
    """Return whether the offsets that this libhdf5 gives out count the user block."""
    image = io.BytesIO()
    with h5py.File(image, "w", userblock_size=512) as file:
        file.create_dataset("chunked", data=[7], dtype="u1", chunks=(1,))
        file["contiguous"] = np.full(1, 7, np.uint8)
        offsets = [file["contiguous"].id.get_offset()]
        file["chunked"].id.chunk_iter(lambda chunk: offsets.append(chunk.byte_offset))
    return all(image.getvalue()[offset] == 7 for offset in offsets)


def fill_of(properties: h5py.h5p.PropDCID, values: StoredType) -> np.ndarray | None:
    """Return the value of rows that were never written, as a 0-d array; None for zeros, and for values of no length.

    `NO_FILL` is one of varying length, which libhdf5 does not give out for a file that is opened to be read.
    """
    # libhdf5 leaves rows that were never written as they are in the caller's buffer, if the fill time is "never".
    # h5py's buffer is zero.
    is_zero = properties.get_fill_time() == h5py.h5d.FILL_TIME_NEVER
    if is_zero or properties.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
        return None if values.dtype.hasobject or values.dtype.itemsize > MAX_FILL_BYTES else values.zero
    if values.dtype.hasobject:
        return NO_FILL
    if values.lost_fields:
        return values.zero  # libhdf5 cannot convert the type; PyTables writes all rows
    fill = np.zeros((1,), values.dtype)
    properties.get_fill_value(fill)
    return np.asarray(fill[0], dtype=values.zero.dtype)


def pipeline_of(properties: h5py.h5p.PropDCID) -> FilterPipeline:
    """Return the filter pipeline of a dataset, given its creation properties."""
    return _pipeline_of(tuple(properties.get_filter(i) for i in range(properties.get_nfilters())))


@lru_cache(maxsize=256)
def _pipeline_of(filters: tuple[tuple[int, int, tuple[int, ...], bytes], ...]) -> FilterPipeline:
    return FilterPipeline(
        tuple(FilterStep(number, filter_name(number, name), tuple(map(int, data))) for number, _, data, name in filters)
    )
