"""The mappings of virtual datasets in remote files: libhdf5 cannot open their sources, so rows are mapped here.

libhdf5 takes the selected values of a source in C order, and puts them where values are selected in the virtual
dataset, in C order. Here a selection is one list of indices for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.columns.virtual_mappings import SourceNames
from ray_h5.manifest.selections import Along, Selection, size_of

_MOST_BLOCKS, _MOST_INDICES = 1 << 16, 1 << 22
"""Blocks of a selection that are looked at, if they are not regular, and indices along an axis that are listed."""

_COPY = (
    "Copy its values: read the virtual dataset with h5py where its files are, and write it as one dataset; or write "
    "one mapping for each source, of whole rows, with the shape that it has now."
)


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping of a virtual dataset.

    Attributes
    ----------
    file, dataset : str
        The source, as the file names it.
    here : Selection
        What is selected in the virtual dataset.
    there : Selection, optional
        What is selected in the source; None for all of it.
    shape : tuple of int
        The shape of the virtual dataset.
    """

    file: str
    dataset: str
    here: Selection
    there: Selection | None
    shape: tuple[int, ...]


def check_mappings(dataset: h5py.Dataset, where: str) -> None:
    """Raise an `UnsupportedColumnError` if the mappings of a virtual dataset are none that are mapped here.

    Its sources are not opened. `where` names it in messages.
    """
    for mapping in _mappings(dataset, where, None):
        extents = zip(mapping.here[1:], mapping.shape[1:], strict=True)
        if not all(along.is_all_of(length) for along, length in extents):
            raise UnsupportedColumnError(
                f"{where} has a mapping of parts of rows, which is not read in a file in a store: expected whole rows. "
                f"{_COPY}"
            )


def mappings_of(dataset: h5py.Dataset, where: str) -> Iterator[Mapping]:
    """Yield the mappings of a virtual dataset that select something."""
    yield from _mappings(dataset, where, dataset.shape)


def _mappings(dataset: h5py.Dataset, where: str, shape: Sequence[int] | None) -> Iterator[Mapping]:
    made = dataset.id.get_create_plist()
    for number in range(made.get_virtual_count()):
        here = made.get_virtual_vspace(number)
        if here.get_select_type() == h5py.h5s.SEL_NONE:
            continue
        names = SourceNames(made.get_virtual_filename(number), made.get_virtual_dsetname(number))
        there = made.get_virtual_srcspace(number)
        if names.is_numbered or _is_endless(here) or _is_endless(there):
            raise UnsupportedColumnError(
                f"{where} has a mapping without an end (of numbered sources, or with an unlimited selection), which is "
                f"not read in a file in a store. {_COPY}"
            )
        # Before it is known that no mapping is endless, a dataset has no shape: libhdf5 would open sources for it.
        extents = tuple(here.get_simple_extent_dims() if shape is None else shape)
        wanted = _selection(here, extents, where)
        assert wanted is not None
        yield Mapping(*names.numbered(0), wanted, _selection(there, None, where), extents)


def _is_endless(space: h5py.h5s.SpaceID) -> bool:
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return False
    _, _, counts, blocks = space.get_regular_hyperslab()
    return h5py.h5s.UNLIMITED in (*counts, *blocks)


def _selection(space: h5py.h5s.SpaceID, shape: Sequence[int] | None, where: str) -> Selection | None:
    """Return a selection; None for everything, if the shape is not known."""
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return None if shape is None else tuple(map(Along.all_of, shape))
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        parts = zip(*space.get_regular_hyperslab(), strict=True)
        return tuple(
            # libhdf5 accepts any stride if there is one block.
            Along(int(first), max(1, int(stride), int(block)), int(count), int(block))
            for first, stride, count, block in parts
        )
    found = _product(space) if kind == h5py.h5s.SEL_HYPERSLABS else None
    if found is None:
        raise UnsupportedColumnError(
            f"{where} has a mapping whose selection is not one list of indices for each axis, which is not read in a "
            f"file in a store. {_COPY}"
        )
    return found


def _product(space: h5py.h5s.SpaceID) -> Selection | None:
    """Return a selection of several blocks as one list of indices for each axis; None if it is none."""
    if not 0 < space.get_select_hyper_nblocks() <= _MOST_BLOCKS:
        return None
    blocks = np.asarray(space.get_select_hyper_blocklist(), np.int64)  # (blocks, first and last corner, axes)
    axes = []
    for axis in range(blocks.shape[2]):
        runs = np.unique(blocks[:, :, axis], axis=0)
        if (runs[:, 1] - runs[:, 0] + 1).sum() > _MOST_INDICES:
            return None
        if int((runs[:, 1] - runs[:, 0] + 1).sum()) > space.get_select_npoints():
            return None
        indices = np.unique(np.concatenate([np.arange(low, high + 1) for low, high in runs.tolist()]))
        axes.append(Along(0, 0, 0, 0, tuple(indices.tolist())))
    return tuple(axes) if size_of(tuple(axes)) == space.get_select_npoints() else None
