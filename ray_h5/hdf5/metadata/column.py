"""The header of one dataset -> ColumnLayout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import h5py
import numpy as np

from ray_h5.errors import CodecUnavailableError, UnsupportedColumnError
from ray_h5.hdf5.codecs.filters import filter_name
from ray_h5.hdf5.codecs.pipeline import decodes
from ray_h5.hdf5.layout import ColumnLayout, FilterPipeline, FilterStep, Kind, Storage
from ray_h5.hdf5.metadata.dtypes import kind_of, numpy_lacks, odd_type_of, plain_dtype, split_array
from ray_h5.storage.byte_source import FileIdentity

_MAX_ITEM_BYTES = 1 << 20
"""A column that is decoded here keeps its fill value in memory. A string type in a file can claim 2 GiB."""

SINGLE_VALUE = "has a single value; a column needs a first axis of rows"


def describe_column(
    dataset: h5py.Dataset,
    name: str,
    *,
    path: str,
    at_home: bool,
    sources: tuple[tuple[str, FileIdentity | None], ...],
    single_ok: bool = False,
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
        Whether the dataset is in that file and not in one that an external link leads to.
    sources : tuple of (str, FileIdentity or None)
        The other files that its values come from, as in `ColumnLayout`.
    single_ok : bool
        Whether a single value is described as one row. By default it is refused.

    Raises
    ------
    UnsupportedColumnError
        If it cannot be read as rows.
    CodecUnavailableError
        If neither this package nor h5py can decode its chunks.
    """
    where = f"{path}: column {name!r}"
    _check_rows(dataset, where, single_ok=single_ok)
    dtype = _dtype(dataset, where)
    element, array_shape = split_array(dtype)
    kind = _kind_of(element, where)
    # Asked for once: h5py creates them at each access, and a folder of files has many columns.
    properties = dataset.id.get_create_plist()
    user_block = int(h5py.h5i.get_file_id(dataset.id).get_create_plist().get_userblock())
    pipeline = _pipeline(properties)
    storage = _storage(dataset, properties)
    lists_its_chunks = _lists_its_chunks(dataset)
    odd_type = "" if dtype.hasobject else odd_type_of(dataset.id.get_type(), dtype)
    direct = (
        at_home
        # With a user block, offsets differ between versions of libhdf5.
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
        shape=tuple(int(n) for n in (*(dataset.shape or (1,)), *array_shape)),
        stored_dtype=plain_dtype(element),
        storage=storage,
        chunk_shape=dataset.chunks,
        pipeline=pipeline,
        offset=dataset.id.get_offset() if storage == "contiguous" else None,
        fill=_fill(dataset, properties, dtype) if direct else None,
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


def _check_rows(dataset: h5py.Dataset, where: str, *, single_ok: bool) -> None:
    if dataset.shape is None:
        raise _without_rows(f"{where} has an empty (null) dataspace; a column needs a first axis of rows")
    if dataset.ndim == 0 and not single_ok:
        raise _without_rows(f"{where} {SINGLE_VALUE}")


def _dtype(dataset: h5py.Dataset, where: str) -> np.dtype:
    try:
        return dataset.dtype
    except TypeError as exc:
        raise UnsupportedColumnError(f"{where}{numpy_lacks(dataset.id.get_type(), exc)}") from exc


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
    """Return the size of a type in the file. libhdf5's ``get_size`` is the size in memory."""
    kind = type_id.get_class()
    if kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and type_id.is_variable_str()):
        # A value of varying length is stored as its length, and its address and index in the global heap.
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


def _fill(dataset: h5py.Dataset, properties: h5py.h5p.PropDCID, dtype: np.dtype) -> np.ndarray:
    if properties.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        # libhdf5 leaves rows that were never written as they are in the caller's buffer. h5py's buffer is zero.
        return np.zeros((), plain_dtype(dtype))
    return np.asarray(dataset.fillvalue, dtype=plain_dtype(dtype))


def _storage(dataset: h5py.Dataset, properties: h5py.h5p.PropDCID) -> Storage:
    if dataset.is_virtual:
        return "virtual"
    if dataset.external:
        return "external"
    layouts = {h5py.h5d.CHUNKED: "chunked", h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.COMPACT: "compact"}
    return cast("Storage", layouts[properties.get_layout()])


def _pipeline(properties: h5py.h5p.PropDCID) -> FilterPipeline:
    steps = []
    for i in range(properties.get_nfilters()):
        filter_id, _, client_data, name = properties.get_filter(i)
        steps.append(FilterStep(filter_id, filter_name(filter_id, name), tuple(int(v) for v in client_data)))
    return FilterPipeline(tuple(steps))


def _is_direct(storage: Storage, pipeline: FilterPipeline, lists_its_chunks: bool) -> bool:
    if storage == "contiguous":
        return True  # without an offset, it was never written: all rows are the fill value
    return storage == "chunked" and decodes(pipeline) and lists_its_chunks


def _lists_its_chunks(dataset: h5py.Dataset) -> bool:
    # If one axis can grow and it is not the first, libhdf5 (2.0) keeps the chunks in an extensible
    # array with that axis first, and lists them under the coordinates of other chunks.
    growing = [axis for axis, length in enumerate(dataset.maxshape) if length is None]
    return len(growing) != 1 or growing == [0]


def _check_codecs(pipeline: FilterPipeline, where: str) -> None:
    for step in pipeline.steps:
        if not h5py.h5z.filter_avail(step.id):
            raise CodecUnavailableError(
                f"{where} was written with filter {step.id} ({step.name}), which neither ray_h5, h5py nor "
                "hdf5plugin decodes here. Install the HDF5 plugin of that filter and point HDF5_PLUGIN_PATH to it."
            )
