"""Where the values of a dataset are that is a link or virtual: which values of which sources are which of its own.

libhdf5 takes the selected values of a source in C order, and puts them where values are selected in the virtual
dataset, in C order. Here a selection is one list of indices for each axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, MissingSourceError, UnsupportedColumnError
from ray_h5.hdf5.columns.dataset_header import fill_of, is_plain
from ray_h5.hdf5.columns.value_types import Shared
from ray_h5.hdf5.files.file_bytes import filename_of
from ray_h5.hdf5.files.links import Trail
from ray_h5.manifest.known_columns import Elsewhere, OtherColumn
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.selections import ENDLESS, Along, Selection, size_of

_LARGEST = 1 << 62

_MOST_BLOCKS, _MOST_INDICES = 1 << 16, 1 << 22
"""Blocks of a selection that are looked at, if they are not regular, and indices along an axis that are listed."""

_COPY = (
    "Copy its values: read the virtual dataset with h5py where its files are, and write it as one dataset; or write "
    "one mapping for each source, of whole rows, with the shape that it has now."
)


Exists: TypeAlias = Callable[[str, str], bool]
"""``exists(file, dataset)`` returns whether a source exists, named as the virtual dataset names it."""


@dataclass(frozen=True, slots=True)
class SourceNames:
    """The file and dataset names of a mapping: of one source, or of many that are numbered.

    Attributes
    ----------
    file, dataset : str
        ``%b`` in them is replaced by the number of a source.
    """

    file: str
    dataset: str

    @property
    def is_numbered(self) -> bool:
        """Whether they are the names of numbered sources, up to the first missing one (H5Pset_virtual)."""
        return any("%b" in pattern.replace("%%", "") for pattern in (self.file, self.dataset))

    def numbered(self, number: int) -> tuple[str, str]:
        """Return the file and the dataset of one number; ``%%`` is a percent sign."""
        file_name, name = (
            "%".join(part.replace("%b", str(number)) for part in pattern.split("%%"))
            for pattern in (self.file, self.dataset)
        )
        return file_name, name


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping of a virtual dataset.

    Attributes
    ----------
    names : SourceNames
        The source, or the numbered ones.
    here : Selection
        What is selected in the virtual dataset; of numbered sources, along one axis, a block for each of them.
    there : Selection, optional
        What is selected in a source; None for all of it.
    """

    names: SourceNames
    here: Selection
    there: Selection | None

    def numbered(self, shape: Sequence[int], exists: Exists) -> Iterator[Mapping]:
        """Yield the mappings of numbered sources up to the first that does not exist; else this one."""
        axis = next((axis for axis, along in enumerate(self.here) if along.is_endless), None)
        if axis is None or not self.names.is_numbered:
            yield replace(self, names=SourceNames(*self.names.numbered(0)))
            return
        along = self.here[axis]
        for number, first in enumerate(range(along.first, shape[axis], along.stride)):
            if not exists(*(names := self.names.numbered(number))):
                return
            block = Along(first, along.block, 1, min(along.block, shape[axis] - first))
            here = (*self.here[:axis], block, *self.here[axis + 1 :])
            yield replace(self, names=SourceNames(*names), here=here)


def sources_named(made: h5py.h5p.PropDCID, where: str) -> Iterator[tuple[SourceNames, int | None]]:
    """Yield the sources that a virtual dataset names, and how many axes each has to have; None for any number.

    It needs the creation property list alone: libhdf5 opens the sources when the dataset is asked for its shape.

    Raises
    ------
    CorruptFileError
        If a mapping selects more than any dataset has; `where` names the dataset.
    """
    for number in range(made.get_virtual_count()):
        names = SourceNames(made.get_virtual_filename(number), made.get_virtual_dsetname(number))
        if made.get_virtual_vspace(number).get_select_type() == h5py.h5s.SEL_NONE:
            # Nothing is selected in the source either, and h5py fails when it is asked for that selection.
            yield names, None
        else:
            there = made.get_virtual_srcspace(number)
            if max(_end_of(made.get_virtual_vspace(number)), _end_of(there)) > _LARGEST:
                raise CorruptFileError(
                    f"{where} has a mapping that selects more than any dataset has. Write the virtual dataset again."
                )
            # A selection of the whole source has no shape: only the source has it.
            yield names, None if there.get_select_type() == h5py.h5s.SEL_ALL else len(there.shape)


def _end_of(space: h5py.h5s.SpaceID) -> int:
    """Return the largest end of a selection along an axis; what has no end counts as one."""
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return 0
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        slabs = (map(int, along) for along in zip(*space.get_regular_hyperslab(), strict=True))
        one = {h5py.h5s.UNLIMITED: 1}
        return max(
            first + one.get(count, count) * max(stride, one.get(block, block)) for first, stride, count, block in slabs
        )
    return max(map(int, space.get_select_bounds()[1]))


def check_mappings(dataset: h5py.Dataset, where: str) -> None:
    """Raise an `UnsupportedColumnError` if the mappings of a virtual dataset in a store are none that are mapped here.

    Its sources are not opened. `where` names it in messages.
    """
    for mapping in _mappings(dataset, where, None):
        if any(along.is_endless for along in (*mapping.here, *(mapping.there or ()))):
            raise UnsupportedColumnError(
                f"{where} has a mapping without an end (of numbered sources, or with an unlimited selection), which is "
                f"not read in a file in a store. {_COPY}"
            )


def _mappings(dataset: h5py.Dataset, where: str, shape: Sequence[int] | None) -> Iterator[Mapping]:
    """Yield the mappings of a virtual dataset that select something; `shape` is its own, if it can be asked for it."""
    made = dataset.id.get_create_plist()
    for number in range(made.get_virtual_count()):
        here = made.get_virtual_vspace(number)
        if here.get_select_type() == h5py.h5s.SEL_NONE:
            continue
        names = SourceNames(made.get_virtual_filename(number), made.get_virtual_dsetname(number))
        # Before it is known that no mapping is endless, a dataset has no shape: libhdf5 would open sources for it.
        extents = tuple(here.get_simple_extent_dims() if shape is None else shape)
        wanted = _selection(here, extents, where)
        assert wanted is not None
        yield Mapping(names, wanted, _selection(made.get_virtual_srcspace(number), None, where))


def _selection(space: h5py.h5s.SpaceID, shape: Sequence[int] | None, where: str) -> Selection | None:
    """Return a selection; None for everything, if the shape is not known."""
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return None if shape is None else tuple(map(Along.all_of, shape))
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        return tuple(itertools.starmap(_along, zip(*space.get_regular_hyperslab(), strict=True)))
    product = _product(space) if kind == h5py.h5s.SEL_HYPERSLABS else None
    if product is None:
        raise UnsupportedColumnError(
            f"{where} has a mapping whose selection is not one list of indices for each axis, so it is not read. "
            f"{_COPY}"
        )
    return product


def _along(first: int, stride: int, count: int, block: int) -> Along:
    first, stride, count, block = (int(number) for number in (first, stride, count, block))
    if block == h5py.h5s.UNLIMITED:
        return Along(first, 1, ENDLESS, 1)
    # libhdf5 accepts any stride if there is one block.
    return Along(first, max(1, stride, block), ENDLESS if count == h5py.h5s.UNLIMITED else count, block)


def _product(space: h5py.h5s.SpaceID) -> Selection | None:
    """Return a selection of several blocks as one list of indices for each axis; None if it is none."""
    if not 0 < space.get_select_hyper_nblocks() <= _MOST_BLOCKS:
        return None
    blocks = np.asarray(space.get_select_hyper_blocklist(), np.int64)  # (blocks, first and last corner, axes)
    axes = []
    for axis in range(blocks.shape[2]):
        runs = np.unique(blocks[:, :, axis], axis=0)
        if (runs[:, 1] - runs[:, 0] + 1).sum() > min(_MOST_INDICES, space.get_select_npoints()):
            return None
        indices = np.unique(np.concatenate([np.arange(low, high + 1) for low, high in runs.tolist()]))
        axes.append(Along(0, 0, 0, 0, tuple(indices.tolist())))
    return tuple(axes) if size_of(tuple(axes)) == space.get_select_npoints() else None


def find_elsewhere(path: str, dataset: h5py.Dataset, layout: ColumnLayout, trail: Trail) -> Elsewhere:
    """Return where the values of a dataset are that was described as a column of the file `path`."""
    file = filename_of(dataset.file)
    # A link may lead to another file, and from there back to this one.
    if file != path or is_plain(dataset.id.get_create_plist()):
        return Elsewhere("link", (OtherColumn(file, dataset.name.strip("/")),))
    home, what = filename_of(dataset.file), f"virtual column {layout.name!r}"
    columns: dict[OtherColumn, int] = {}
    mappings = []

    def exists(file_name: str, name: str) -> bool:
        try:
            trail.source(dataset, file_name, name, what)
        except MissingSourceError:
            return False
        return True

    named = (mapping.numbered(dataset.shape, exists) for mapping in _mappings(dataset, layout.where, dataset.shape))
    for mapping in itertools.chain.from_iterable(named):
        file_name, name = mapping.names.file, mapping.names.dataset
        path = home if file_name == "." else trail.located(file_name, home, what)
        number = columns.setdefault(OtherColumn(path, name.strip("/")), len(columns))
        mappings.append((number, mapping.here, mapping.there))
    fill = None if layout.stored_dtype.hasobject else _fill(dataset, layout)
    return Elsewhere("virtual", tuple(columns), tuple(mappings), fill=fill)


def _fill(dataset: h5py.Dataset, layout: ColumnLayout) -> np.ndarray | None:
    values = Shared.of(dataset.file.id).value_type(dataset.id.get_type(), layout.where)
    return fill_of(dataset.id.get_create_plist(), values)
