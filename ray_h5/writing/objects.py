"""Copies datasets, types and links as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.writing.attributes import NamedTypes, refers, remapped

SLAB_OBJECTS = 1 << 16
"""Texts or lists that are copied at a time."""

_PIECE = 8 << 20


def slabs(dataset: h5py.Dataset) -> Iterator[slice | tuple[()]]:
    """Yield selections of some rows each; of a single value, itself."""
    if not dataset.shape:
        yield ()
        return
    for start in range(0, dataset.shape[0], SLAB_OBJECTS):
        yield slice(start, start + SLAB_OBJECTS)


def copy_object(
    item: h5py.Dataset | h5py.Datatype,
    out: h5py.File,
    path: str,
    types: NamedTypes,
) -> None:
    """Copy a dataset or a type as it is stored, with its attributes or without. References lead nowhere yet."""
    if isinstance(item, h5py.Datatype):
        item.id.copy().commit(out.id, path.encode(), lcpl=new_links())
    elif types.names_one_of(item) or _has_plain_chunks(item) or _has_fill_on_heap(item):
        _copy_dataset(item, out, path, types)
    else:
        # libhdf5 copies chunks without decoding them. Of a fill value on the heap it copies the address.
        h5py.h5o.copy(item.file.id, str(item.name).encode(), out.id, path.encode(), lcpl=new_links())


def _copy_dataset(dataset: h5py.Dataset, out: h5py.File, path: str, types: NamedTypes) -> None:
    """Copy a dataset without its attributes, not by `h5o.copy`."""
    plist, space = dataset.id.get_create_plist(), dataset.id.get_space()
    id_ = h5py.h5d.create(out.id, path.encode(), types.of(dataset.id), space, dcpl=plist, lcpl=new_links())
    made = h5py.Dataset(id_)
    if dataset.shape is None or not dataset.size or refers(dataset.dtype):
        pass
    elif dataset.dtype.hasobject:
        for part in slabs(dataset):
            made[part] = dataset[part]
    elif dataset.chunks is not None:
        _copy_chunks(dataset, made)
    else:
        type_ = dataset.id.get_type()
        values = np.empty(dataset.shape, np.dtype((np.void, type_.get_size())))
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=type_)
        made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=type_)


def copy_references(dataset: h5py.Dataset, made: h5py.Dataset) -> None:
    """Write the references of a dataset, to the objects of the same names in the file of the other one."""
    for part in slabs(dataset):
        values = np.asarray(dataset[part], None if dataset.dtype.names else object)
        values = np.ascontiguousarray(remapped(values, dataset.file, made.file), dataset.dtype).reshape(values.shape)
        space = made.id.get_space()
        if part:
            space.select_hyperslab((part.start, *(0 for _ in dataset.shape[1:])), values.shape)
        # Not by h5py's own assignment: it takes lists of references for one value.
        made.id.write(h5py.h5s.create_simple(values.shape) if part else space, space, values)


def _has_plain_chunks(dataset: h5py.Dataset) -> bool:
    """Return whether the chunks of an array can be copied one by one."""
    if dataset.chunks is None or dataset.dtype.hasobject or dataset.file.userblock_size:
        return False
    return bool(dataset.id.get_create_plist().get_alloc_time() == h5py.h5d.ALLOC_TIME_INCR)


def _copy_chunks(dataset: h5py.Dataset, made: h5py.Dataset) -> None:
    """Copy the stored bytes of chunks, one after the other: by itself, libhdf5 keeps memory for all of them."""
    chunks: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(chunks.append)
    size = Path(dataset.file.filename).stat().st_size
    for chunk in chunks:
        if chunk.byte_offset + chunk.size > size:
            raise CorruptFileError(
                f"{dataset.file.filename}: {dataset.name!r}: its chunk at {chunk.chunk_offset} is cut short"
            )
        mask, data = dataset.id.read_direct_chunk(chunk.chunk_offset)
        made.id.write_direct_chunk(chunk.chunk_offset, data, mask)


def _has_fill_on_heap(dataset: h5py.Dataset) -> bool:
    if not dataset.dtype.hasobject or refers(dataset.dtype):
        return False
    return dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED


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
