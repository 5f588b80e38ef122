"""Copies datasets, types, links, attributes and references from one file to another, as they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ray_h5.codecs.filter_ids import BITSHUFFLE, BLOSC, LZF, filter_name
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index
from ray_h5.hdf5.format.file_bytes import address_of, widths_of
from ray_h5.hdf5.format.value_types import item_bytes
from ray_h5.manifest.chunk_index import ChunkGrid
from ray_h5.manifest.layout import ColumnLayout, FilterPipeline, FilterStep, Storage
from ray_h5.manifest.value_type import ValueType

SLAB_OBJECTS = 1 << 16
"""Texts or lists that are copied at a time."""

_OWN_FILTERS = 255  # libhdf5 has its own filters up to this number; those of plugins are above
_KEEP_SIZES = {BITSHUFFLE, BLOSC, LZF}
_PIECE = 8 << 20


def slabs(dataset: h5py.Dataset, rows: int = SLAB_OBJECTS) -> Iterator[slice | tuple[()]]:
    """Yield selections of some rows each; of a single value, itself."""
    if not dataset.shape:
        yield ()
        return
    for start in range(0, dataset.shape[0], rows):
        yield slice(start, min(start + rows, dataset.shape[0]))


def raw_values(dataset: h5py.Dataset, part: slice | tuple[()]) -> np.ndarray:
    """Return one of the `slabs` by libhdf5: objects, or values as they are stored, without a conversion."""
    shape, type_ = dataset.shape, None if dataset.dtype.hasobject else dataset.id.get_type()
    if part:
        shape = (part.stop - part.start, *shape[1:])
    values = np.empty(shape, dataset.dtype if type_ is None else np.dtype((np.void, type_.get_size())))
    dataset.id.read(*_spaces(dataset, part, shape), values, type_)
    return values


def raw_fill(dataset: h5py.Dataset) -> np.ndarray:
    """Return the fill value of a dataset that is not written yet, as it is stored, of shape (1,)."""
    space, type_, one = dataset.id.get_space(), dataset.id.get_type(), (1,) * len(dataset.shape)
    space.select_hyperslab((0,) * len(one), one)
    value = np.zeros(1, np.dtype((np.void, type_.get_size())))  # of a fill value that is not defined, nothing is read
    dataset.id.read(h5py.h5s.create_simple((1,)), space, value, type_)
    return value


def _spaces(dataset: h5py.Dataset, part: slice | tuple[()], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the dataspaces in memory and in the file of one of the `slabs`."""
    space = dataset.id.get_space()
    if not part:
        return space, space
    space.select_hyperslab((part.start, *(0 for _ in shape[1:])), shape)
    return h5py.h5s.create_simple(shape), space


def copy_object(item: h5py.Dataset | h5py.Datatype, out: h5py.File, path: str, types: NamedTypes) -> None:
    """Copy a dataset or a type as it is stored, with its attributes or without. References lead nowhere yet."""
    # The first line that fits says how a dataset is copied:
    #   filters change in a dataset that is made      libhdf5
    #   a type with a name, also of an attribute      `_copy_dataset`: libhdf5 would copy the type without its name
    #   chunks of plain values, made when written     `_copy_dataset`: stored chunks, one after the other
    #   objects with a fill value                     `_copy_dataset`: libhdf5 would copy the address of that value
    #   objects, with filters of plugins              `_copy_dataset`: libhdf5 clears memory by a size that these change
    #   any other: contiguous, compact, a user block  libhdf5
    if isinstance(item, h5py.Datatype):
        item.id.copy().commit(out.id, path.encode(), lcpl=new_links())
        return
    plist, is_heap = item.id.get_create_plist(), item.dtype.hasobject
    has_plain_chunks = item.chunks is not None and not is_heap and not item.file.userblock_size
    has_plain_chunks = has_plain_chunks and plist.get_alloc_time() == h5py.h5d.ALLOC_TIME_INCR
    has_fill = not refers(item.dtype) and plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    filters = {step.id for step in pipeline_of(item).steps} - _KEEP_SIZES
    has_objects = is_heap and (has_fill or max(filters, default=0) > _OWN_FILTERS)
    if not ((types.names_one_of(item) or has_plain_chunks or has_objects) and _copy_dataset(item, out, path, types)):
        h5py.h5o.copy(item.file.id, str(item.name).encode(), out.id, path.encode(), lcpl=new_links())


def _copy_dataset(dataset: h5py.Dataset, out: h5py.File, path: str, types: NamedTypes) -> bool:
    """Copy a dataset without its attributes, not by `h5o.copy`; return False if filters are others then."""
    plist, space = dataset.id.get_create_plist(), dataset.id.get_space()
    id_ = h5py.h5d.create(out.id, path.encode(), types.of(dataset.id), space, dcpl=plist, lcpl=new_links())
    made = h5py.Dataset(id_)
    if pipeline_of(made) != pipeline_of(dataset):  # bitshuffle adds parameters in each dataset that is made with it
        del out[path]
        return False
    if dataset.shape is None or not dataset.id.get_storage_size() or refers(dataset.dtype):
        pass
    elif dataset.chunks is not None and not dataset.dtype.hasobject:
        # One after the other: by itself, libhdf5 keeps memory for all of them.
        for corner, mask, data in stored_chunks(dataset):
            made.id.write_direct_chunk(corner, data, mask)
    else:
        for part in slabs(dataset):
            values, type_ = raw_values(dataset, part), None if dataset.dtype.hasobject else dataset.id.get_type()
            made.id.write(*_spaces(made, part, values.shape), values, type_)
    return True


def pipeline_of(dataset: h5py.Dataset) -> FilterPipeline:
    """Return the filters of a dataset."""
    plist = dataset.id.get_create_plist()
    filters = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return FilterPipeline(tuple(FilterStep(code, filter_name(code, b""), values) for code, _, values, _ in filters))


def layout_of(dataset: h5py.Dataset) -> ColumnLayout:
    """Return how an array is stored, with values of any type as bytes."""
    name, type_ = str(dataset.name).lstrip("/"), dataset.id.get_type()
    storage: Storage = "contiguous" if dataset.chunks is None else "chunked"
    size = item_bytes(type_, widths_of(dataset.file.id).address)
    num_rows, *axes = dataset.shape or (1,)
    values = ValueType("number", np.dtype((np.void, type_.get_size())), tuple(axes))
    pipeline = pipeline_of(dataset)
    return ColumnLayout(name, values, num_rows, dataset.chunks, size, storage=storage, pipeline=pipeline)


def copy_references(dataset: h5py.Dataset, made: h5py.Dataset) -> None:
    """Write the references of a dataset, to the objects of the same names in the file of the other one."""
    for part in slabs(dataset):
        values = np.asarray(dataset[part], None if dataset.dtype.names else object)
        values = np.ascontiguousarray(remapped(values, dataset.file, made.file), dataset.dtype).reshape(values.shape)
        # Not by h5py's own assignment: it takes lists of references for one value.
        made.id.write(*_spaces(made, part, values.shape), values)


def stored_chunks(dataset: h5py.Dataset) -> Iterator[tuple[tuple[int, ...], int, bytes]]:
    """Yield the place of each chunk, its filter mask and its stored bytes; raise if the list of chunks is damaged."""
    path, layout = dataset.file.filename, layout_of(dataset)
    # Not as libhdf5 lists them: it numbers those of an extensible array in another order than it looks them up.
    index = build_chunk_index(dataset, layout, path, lambda: Path(path).stat().st_size)
    for corner in ChunkGrid.of(layout).corners(index.numbers):
        yield corner, *dataset.id.read_direct_chunk(corner)


def copy_userblock(file: h5py.File, path: str, nbytes: int) -> None:
    """Copy the bytes before the superblock to another file; MATLAB has its signature there."""
    with open(file.filename, "rb") as source, open(path, "r+b") as made:
        while nbytes and (data := source.read(min(nbytes, _PIECE))):
            made.write(data)
            nbytes -= len(data)


def new_links() -> h5py.h5p.PropLCID:
    """Return properties of new links: names in UTF-8, and groups on the way are made."""
    plist = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    plist.set_create_intermediate_group(True)
    plist.set_char_encoding(h5py.h5t.CSET_UTF8)
    return plist


def new_properties(group: h5py.h5p.PropGCID) -> h5py.h5p.PropGCID:
    """Return properties of a new group, as another one has them.

    Not a copy of them: that of a group with many members also has the address of their names in its own file.
    """
    made = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    made.set_link_creation_order(group.get_link_creation_order())
    made.set_attr_creation_order(group.get_attr_creation_order())
    made.set_attr_phase_change(*group.get_attr_phase_change())
    made.set_obj_track_times(group.get_obj_track_times())
    return made


def dtype_of(id_: h5py.h5a.AttrID | h5py.h5d.DatasetID) -> np.dtype | None:
    """Return the dtype of an attribute or a dataset; None for a type that h5py cannot read, such as times of HDF5."""
    try:
        return np.dtype(id_.dtype)
    except (TypeError, ValueError):
        return None


class NamedTypes:
    """Types of a file that have names, and the same ones in its copy: netCDF4 opens no file whose types lost theirs.

    Parameters
    ----------
    names : mapping of int to str
        Their paths, by their byte offsets in the file.
    out : h5py.File
        The copy.
    """

    def __init__(self, names: Mapping[int, str], out: h5py.File) -> None:
        self._names, self._out = names, out

    def of(self, id_: h5py.h5a.AttrID | h5py.h5d.DatasetID) -> h5py.h5t.TypeID:
        """Return the type of an attribute or a dataset, for its copy."""
        type_ = id_.get_type()
        path = self._path_of(type_)
        return type_.copy() if path is None or path not in self._out else self._out[path].id

    def names_one_of(self, dataset: h5py.Dataset) -> bool:
        """Return whether a dataset, or one of its attributes, has a type with a name."""
        ids = (dataset.id, *(dataset.attrs.get_id(name) for name in dataset.attrs)) if self._names else ()
        return any(self._path_of(id_.get_type()) is not None for id_ in ids)

    def _path_of(self, type_: h5py.h5t.TypeID) -> str | None:
        return self._names.get(address_of(type_)[1]) if self._names and type_.committed() else None


def copy_attribute(
    item: h5py.Group | h5py.Dataset, made: h5py.Group | h5py.Dataset, name: str, types: NamedTypes
) -> None:
    """Copy an attribute with its exact type. References lead to the objects of the same names in the other file."""
    attribute = item.attrs.get_id(name)
    if name in made.attrs:
        del made.attrs[name]
    encoded = name.encode() if isinstance(name, str) else name  # h5py gives names that are not UTF-8 as bytes
    new = h5py.h5a.create(made.id, encoded, types.of(attribute), attribute.get_space())
    if attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return
    if refers(np.dtype(attribute.dtype)):
        values = np.asarray(item.attrs[name], None if attribute.shape else object)
        values = remapped(values, item.file, made.file).reshape(attribute.shape)
        new.write(np.ascontiguousarray(values, attribute.dtype))
        return
    # As they are stored: a conversion would cut texts that end with a NUL in the file, and with none in numpy, and swap
    # the bytes of big-endian lists. Lists then stay in memory, as other objects would.
    is_list = isinstance(attribute.get_type(), h5py.h5t.TypeVlenID)
    type_ = None if attribute.dtype.hasobject and not is_list else attribute.get_type()
    raw = np.empty(attribute.shape, attribute.dtype if type_ is None else np.dtype((np.void, type_.get_size())))
    attribute.read(raw, mtype=type_)
    new.write(raw, mtype=type_)


def refers(dtype: np.dtype) -> bool:
    """Return whether values are, or contain, references."""
    if dtype.names is not None:
        return any(refers(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return refers(dtype.subdtype[0])
    vlen = h5py.check_vlen_dtype(dtype)
    return h5py.check_ref_dtype(dtype) is not None or (vlen is not None and refers(np.dtype(vlen)))


def remapped(values: Any, file: h5py.File, out: h5py.File) -> Any:
    """Return values with references to the same names in another file."""
    if isinstance(values, h5py.Reference):
        name = h5py.h5r.get_name(values, file.id) if values else None
        if name is None or name.decode() not in out:
            return type(values)()
        if isinstance(values, h5py.RegionReference):
            return h5py.h5r.create(out.id, name, h5py.h5r.DATASET_REGION, h5py.h5r.get_region(values, file.id))
        return out[name].ref
    if not isinstance(values, (np.ndarray, np.void)):
        return values
    if values.dtype.names is not None:
        made = np.array(values, copy=True)
        for name in values.dtype.names:
            if refers(values.dtype[name]):
                made[name] = remapped(np.asarray(values[name]), file, out)
        return made
    if values.dtype != object or not isinstance(values, np.ndarray):
        return values
    made = np.empty(values.shape, values.dtype)
    for at in np.ndindex(values.shape):
        made[at] = remapped(values[at], file, out)
    return made
