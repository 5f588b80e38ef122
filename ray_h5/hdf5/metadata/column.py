"""The header of one dataset -> ColumnLayout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import h5py
import numpy as np

from ray_h5.errors import CodecUnavailableError, UnsupportedColumnError
from ray_h5.hdf5.codecs.pipeline import decodes
from ray_h5.hdf5.layout import ColumnLayout, FileIdentity, FilterPipeline, FilterStep, Kind, Storage
from ray_h5.hdf5.metadata.dtypes import kind_of, numpy_lacks, odd_type_of, plain_dtype, split_array

_FILTER_NAMES = {
    1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset",
    32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd", 32026: "blosc2",
}  # fmt: skip

_MAX_ITEM_BYTES = 1 << 20
"""The fill value of a column that is decoded here is kept in memory; a type of strings can claim 2 GiB."""

SINGLE_VALUE = "has a single value; a column needs a first axis of rows"


def describe_column(
    dataset: h5py.Dataset, name: str, *, path: str, at_home: bool, sources: tuple[tuple[str, FileIdentity | None], ...]
) -> ColumnLayout:
    """Describe a dataset as a column.

    Parameters
    ----------
    dataset : h5py.Dataset
        The open dataset.
    name : str
        Name of the column.
    path : str
        The file that was opened, for messages.
    at_home : bool
        Whether the dataset is stored in that file and not behind an external link.
    sources : tuple of (str, FileIdentity or None)
        The other files that its values come from, as in `ColumnLayout`.

    Raises
    ------
    UnsupportedColumnError
        If it cannot be read as rows.
    CodecUnavailableError
        If nothing here decodes its chunks.
    """
    where = f"{path}: column {name!r}"
    if dataset.shape is None or dataset.ndim == 0:
        empty = "has an empty (null) dataspace; a column needs a first axis of rows"
        raise _without_rows(f"{where} {empty if dataset.shape is None else SINGLE_VALUE}")
    try:
        dtype = dataset.dtype
        element, array_shape = split_array(dtype)
    except TypeError as exc:
        raise UnsupportedColumnError(f"{where}{numpy_lacks(dataset.id.get_type(), exc)}") from exc
    kind = _kind_of(element, where)
    # h5py makes these anew each time they are asked for; a folder of files has many columns.
    made = dataset.id.get_create_plist()
    user_block = int(h5py.h5i.get_file_id(dataset.id).get_create_plist().get_userblock())
    pipeline = _pipeline(made)
    storage = _storage(dataset, made)
    lists_its_chunks = _lists_its_chunks(dataset)
    odd_type = "" if dtype.hasobject else odd_type_of(dataset.id.get_type(), dtype)
    direct = (
        at_home
        # Offsets under a user block differ between versions of libhdf5.
        and not user_block
        and not dtype.hasobject
        and not odd_type
        and dtype.itemsize <= _MAX_ITEM_BYTES
        and _is_direct(storage, pipeline, lists_its_chunks)
    )
    if not direct:
        _check_codecs(pipeline, where)
    return ColumnLayout(
        name=name,
        kind=kind,
        shape=tuple(int(n) for n in (*dataset.shape, *array_shape)),
        stored_dtype=plain_dtype(element),
        storage=storage,
        chunk_shape=dataset.chunks,
        pipeline=pipeline,
        offset=dataset.id.get_offset() if storage == "contiguous" else None,
        fill=_fill(dataset, made, dtype) if direct else None,
        element=np.dtype(h5py.check_vlen_dtype(element)) if kind == "list" else None,
        enum=tuple(_enum(element)),
        lists_its_chunks=lists_its_chunks,
        user_block=user_block,
        item_bytes=item_bytes(dataset),
        sources=sources,
        direct=direct,
        odd_type=odd_type,
        path=path,
    )


def _kind_of(element: np.dtype, where: str) -> Kind:
    try:
        return kind_of(element, where)
    except UnsupportedColumnError as exc:
        if h5py.check_ref_dtype(element) is None:
            raise
        raise _without_rows(str(exc)) from None


def _without_rows(message: str) -> UnsupportedColumnError:
    error = UnsupportedColumnError(message)
    error.has_rows = False
    return error


def item_bytes(dataset: h5py.Dataset) -> int:
    """Return the size of a value in the file."""
    return _stored_bytes(dataset.id.get_type(), dataset.file.id.get_create_plist().get_sizes()[0])


def _stored_bytes(type_id: h5py.h5t.TypeID, address_bytes: int) -> int:
    """Return the size of a type in the file; libhdf5 tells what it is in memory."""
    kind = type_id.get_class()
    if kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and type_id.is_variable_str()):
        # A value of varying length is stored as its length, and an address and index in the global heap.
        return 4 + int(address_bytes) + 4
    if kind == h5py.h5t.ARRAY:
        return math.prod(type_id.get_array_dims()) * _stored_bytes(type_id.get_super(), address_bytes)
    if kind == h5py.h5t.COMPOUND:
        fields = [type_id.get_member_type(i) for i in range(type_id.get_nmembers())]
        return int(type_id.get_size()) + sum(_stored_bytes(each, address_bytes) - each.get_size() for each in fields)
    return int(type_id.get_size())


def _enum(dtype: np.dtype, prefix: str = "") -> Iterator[tuple[str, int]]:
    dtype = np.dtype(h5py.check_vlen_dtype(dtype) or split_array(dtype)[0])
    for name, value in (h5py.check_enum_dtype(dtype) or {}).items():
        yield prefix + name, int(value)
    for field in dtype.names or ():
        yield from _enum(dtype[field], f"{prefix}{field}.")


def _fill(dataset: h5py.Dataset, made: h5py.h5p.PropDCID, dtype: np.dtype) -> np.ndarray:
    if made.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        # libhdf5 then leaves what was never written as it is in the caller's buffer: h5py's is zero.
        return np.zeros((), plain_dtype(dtype))
    return np.asarray(dataset.fillvalue, dtype=plain_dtype(dtype))


def _storage(dataset: h5py.Dataset, made: h5py.h5p.PropDCID) -> Storage:
    if dataset.is_virtual:
        return "virtual"
    if dataset.external:
        return "external"
    layouts = {h5py.h5d.CHUNKED: "chunked", h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.COMPACT: "compact"}
    return cast("Storage", layouts[made.get_layout()])


def _pipeline(made: h5py.h5p.PropDCID) -> FilterPipeline:
    steps = []
    for i in range(made.get_nfilters()):
        filter_id, _, client_data, name = made.get_filter(i)
        shown = _FILTER_NAMES.get(filter_id) or name.decode("ascii", "replace") or f"filter {filter_id}"
        steps.append(FilterStep(filter_id, shown, tuple(int(v) for v in client_data)))
    return FilterPipeline(tuple(steps))


def _is_direct(storage: Storage, pipeline: FilterPipeline, lists_its_chunks: bool) -> bool:
    if storage == "contiguous":
        return True  # without an offset too: nothing was ever written, all rows are the fill value
    return storage == "chunked" and decodes(pipeline) and lists_its_chunks


def _lists_its_chunks(dataset: h5py.Dataset) -> bool:
    # Where one axis can grow and it is not the first, libhdf5 (2.0) keeps the chunks in an extensible
    # array with that axis in front, and lists them under the coordinates of another chunk.
    growing = [axis for axis, length in enumerate(dataset.maxshape) if length is None]
    return len(growing) != 1 or growing == [0]


def _check_codecs(pipeline: FilterPipeline, where: str) -> None:
    for step in pipeline.steps:
        if not h5py.h5z.filter_avail(step.id):
            raise CodecUnavailableError(
                f"{where} was written with filter {step.id} ({step.name}), which neither ray_h5, h5py nor "
                "hdf5plugin decodes here. Install the HDF5 plugin of that filter and point HDF5_PLUGIN_PATH to it."
            )
