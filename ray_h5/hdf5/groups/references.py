"""Datasets of object references, as MATLAB's cell arrays and NWB write them: what each entry refers to."""

from __future__ import annotations

import math

import h5py
import numpy as np

from ray_h5.buffers import zeros
from ray_h5.codecs.pipeline import ChunkDecoder, DecodeError, decodes
from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.columns.chunk_lists import build_chunk_index
from ray_h5.hdf5.columns.dataset_header import is_plain, pipeline_of
from ray_h5.hdf5.format.file_bytes import gather
from ray_h5.hdf5.tree.tree import FROM_ROOT, H5Tree
from ray_h5.hdf5.tree.walker import OF_MATLAB, hard_links
from ray_h5.manifest.chunk_index import ChunkGrid, corrupt_chunk
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.value_type import ValueType

_MAX_REFERENCES = 1 << 24

_NOTHING = frozenset({0, (1 << 64) - 1})
"""The addresses of a reference that was never written."""

Named = tuple[str, h5py.Group]
"""A path below the group that the file was opened with, or from the root, and the group that has its last name."""


def targets_of(tree: H5Tree, name: str, dataset: h5py.Dataset, file_bytes: int) -> list[Named]:
    """Return what each entry of a dataset of references refers to, in a file of so many bytes.

    Raises
    ------
    UnsupportedColumnError, CorruptFileError
        If its entries lie along several axes, or one refers to nothing.
    """
    where, addresses = f"{tree.path}: column {name!r}", addresses_of(tree, name, dataset, file_bytes)
    names = named(tree, {*addresses})
    for row, address in enumerate(addresses):
        if address not in names:
            raise leads_nowhere(f"{where}, row {row}", address, name)
    return [names[address] for address in addresses]


def addresses_of(tree: H5Tree, name: str, dataset: h5py.Dataset, file_bytes: int) -> list[int]:
    """Return where in the file is what each entry refers to; errors as in `targets_of`."""
    where = f"{tree.path}: column {name!r}"
    addresses: list[int] = _addresses(where, tree.path, name, dataset, file_bytes).tolist()
    if addresses and all(address in _NOTHING for address in addresses):
        raise UnsupportedColumnError(f"{where} has references that lead nowhere: none was written")
    if not _NOTHING.isdisjoint(addresses):
        row = next(row for row, address in enumerate(addresses) if address in _NOTHING)
        raise CorruptFileError(
            f"{where}, row {row}: a null reference; expected one to a dataset or group. Write what the row "
            f"has, or read the other columns: columns=[...] without {name!r}."
        )
    return addresses


def leads_nowhere(where: str, address: int, name: str) -> CorruptFileError:
    """Return the error for a reference to an object that has no name."""
    return CorruptFileError(
        f"{where}: the reference leads to address {address}, where no dataset or group of the "
        f"file has a name: it was deleted. Read the other columns: columns=[...] without {name!r}."
    )


def _addresses(where: str, path: str, name: str, dataset: h5py.Dataset, file_bytes: int) -> np.ndarray:
    """Return the address that each entry holds, as uint64."""
    properties = dataset.id.get_create_plist()
    if not is_plain(properties):
        raise UnsupportedColumnError(
            f"{where} has references that lie in other datasets or files (virtual dataset or external storage). "
            "Copy them into the file, or leave the column out."
        )
    shape, count = dataset.shape or (), math.prod(dataset.shape or ())
    if not shape or sum(n != 1 for n in shape) > 1:
        raise UnsupportedColumnError(
            f"{where} has references of shape {shape}; expected one for each row, along one axis"
        )
    if count > _MAX_REFERENCES:
        raise CorruptFileError(f"{where} claims {count} references; expected at most {_MAX_REFERENCES}")
    dtype, pipeline = np.dtype("<u8"), pipeline_of(properties)
    addresses = zeros(shape, dtype, where)
    if properties.get_layout() != h5py.h5d.CHUNKED:
        if count:
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, addresses, h5py.h5t.STD_REF_OBJ)
        return addresses.reshape(-1)
    if not decodes(pipeline):
        raise UnsupportedColumnError(f"{where} has references with the filters {pipeline}; write them without")
    # libhdf5 would read past the end of a chunk that is too short.
    chunk = properties.get_chunk()
    type_ = ValueType("number", dtype, shape[1:])
    layout = ColumnLayout(name, type_, shape[0], chunk, path=path, storage="chunked", pipeline=pipeline)
    index, grid = build_chunk_index(dataset, layout, path, lambda: file_bytes), ChunkGrid.of(layout)
    decoder = ChunkDecoder(pipeline, layout.chunk_bytes)

    def put(at: int) -> None:
        number, offset, size = (int(array[at]) for array in (index.numbers, index.offsets, index.sizes))
        corner = grid.corners(np.array([number]))[0]
        _, stored = dataset.id.read_direct_chunk(corner)
        values = np.empty(layout.chunk_bytes, np.uint8)
        try:
            decoder.decode(np.frombuffer(stored, np.uint8), int(index.masks[at]), values)
        except DecodeError as exc:
            raise corrupt_chunk(path, layout, number, offset, size, str(exc)) from None
        into = tuple(slice(first, first + n) for first, n in zip(corner, grid.chunk_shape, strict=True))
        part = addresses[into]
        part[...] = values.view("<u8").reshape(grid.chunk_shape)[tuple(map(slice, part.shape))]

    gather(put, range(len(index.numbers)))
    return addresses.reshape(-1)


def named(tree: H5Tree, wanted: set[int]) -> dict[int, Named]:
    """Return the names of objects: in the group of MATLAB's targets first, then in all groups, the upper ones first."""
    root, to_root = tree.root
    starts = [(root, ""), *([] if to_root.sources else [(tree.file["/"], FROM_ROOT)])]
    if isinstance(targets := to_root.hard_target(root, OF_MATLAB[0].encode()), h5py.Group):
        starts.insert(0, (targets, f"{OF_MATLAB[0]}/"))
    names: dict[int, Named] = {}
    for name, address, group in hard_links(starts, to_root):
        if address in wanted:
            names.setdefault(address, (name, group))
        if len(names) == len(wanted):
            break
    return names
