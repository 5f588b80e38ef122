"""Values that are in other datasets or files: which files these are, and which values of which sources.

Each file is checked before libhdf5 opens it. Of a virtual dataset, the creation property list alone is read: libhdf5
opens the sources of one that is asked for its shape.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import (
    CorruptFileError,
    MissingSourceError,
    RayH5Error,
    TransientIOError,
    TruncatedFileError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.columns.dataset_header import fill_of, is_plain
from ray_h5.hdf5.files.links import Sources, Trail
from ray_h5.hdf5.format.file_bytes import ObjectId, address_of, filename_of, gather, widths_of
from ray_h5.hdf5.format.value_types import item_bytes, value_type_of
from ray_h5.manifest.indices import ENDLESS, Along, size_of
from ray_h5.manifest.known_columns import OtherColumn, Redirect
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.messages import printable

_MAX_DEPTH = 32
"""How deep virtual datasets of virtual datasets may be nested."""

_MOST_ABOVE = 1 << 8
"""How deep they are followed, which takes a frame of Python's stack each."""

_MAX_WAYS = 1 << 22
"""Ways from a dataset to its sources. libhdf5 follows each of them, and each level can double them (measured: 0.2 s
for this many, 7.7 s for 32 times as many)."""

_MAX_NUMBERED = 1 << 20

_LARGEST = 1 << 62

_MOST_BLOCKS = 1 << 16
"""Blocks of a selection that are looked at, if they are not regular."""

_COPY = (
    "Copy its values: read the virtual dataset with h5py where its files are, and write it as one dataset; or write "
    "one mapping for each source, of whole rows, with the shape that it has now."
)


_Names: TypeAlias = tuple[str, str]
"""The file and dataset of a mapping: of one source; or of numbered ones, up to the first missing one (H5Pset_virtual).

``%b`` in them is replaced by the number of a source; ``%%`` is a percent sign.
"""

_Indices: TypeAlias = "tuple[Along, ...]"
"""What a mapping selects, along each axis."""

_Mapping: TypeAlias = tuple[_Names, h5py.h5s.SpaceID | None, h5py.h5s.SpaceID | None]
"""A mapping of a virtual dataset: its source, and what it selects of the dataset and of the source, if anything."""


def _are_numbered(names: _Names) -> bool:
    return any("%b" in pattern.replace("%%", "") for pattern in names)


def _numbered(names: _Names, number: int) -> tuple[str, str]:
    """Return the file and the dataset of one number."""
    file, dataset = ("%".join(part.replace("%b", str(number)) for part in name.split("%%")) for name in names)
    return file, dataset


def _mappings(dataset: h5py.Dataset) -> Iterator[_Mapping]:
    made = dataset.id.get_create_plist()
    for number in range(made.get_virtual_count()):
        names, here = (
            (made.get_virtual_filename(number), made.get_virtual_dsetname(number)),
            made.get_virtual_vspace(number),
        )
        # Of a selection of nothing, nothing is selected in the source either, and h5py fails when it is asked for that.
        nothing = here.get_select_type() == h5py.h5s.SEL_NONE
        yield (names, None, None) if nothing else (names, here, made.get_virtual_srcspace(number))


# Which files ------------------------------------------------------------------------------


@dataclass(slots=True)
class ValueSources:
    """The sources of one dataset, as far as they were checked.

    Attributes
    ----------
    files : Sources
        The other files that its values come from.
    depth : int
        Levels of virtual datasets, this one included.
    ways : int
        Number of ways from this dataset to its sources.
    failure : (type, str, str), optional
        Why its values cannot be read: type and message of the error, and the column that the message names. The
        error itself is not kept: its traceback would keep datasets open.
    """

    files: Sources = field(default_factory=dict)
    depth: int = 0
    ways: int = 1
    failure: tuple[type[RayH5Error], str, str] | None = None


def check_value_sources(trail: Trail, dataset: h5py.Dataset, where: str, known: dict[ObjectId, ValueSources]) -> None:
    """Add each file that the values of a virtual or external dataset come from to `trail`; raise if one cannot be read.

    `where` names the dataset in messages. Each dataset is checked once: it is `known` then.
    """
    sources = _checked(trail, dataset, where, known, ())
    trail.sources.update(sources.files)
    if sources.failure is None:
        return
    error, message, of = sources.failure
    if of != where:  # the failure was found while another column was checked
        reason = message.removeprefix(f"{trail.path}: ")
        message = f"{trail.path}: {where} comes from what cannot be read: {reason}"
    raise error(message)


def _checked(
    trail: Trail, dataset: h5py.Dataset, where: str, known: dict[ObjectId, ValueSources], above: tuple[ObjectId, ...]
) -> ValueSources:
    """Check a dataset, after all datasets that its values come from; `above` are those that come from it."""
    address, what = address_of(dataset.id), f"{trail.path}: virtual dataset of {where}"
    if address in above:
        raise MissingSourceError(f"{what} leads back to {dataset.name!r}, which it comes from: a loop")
    if len(above) > _MOST_ABOVE:
        raise CorruptFileError(f"{what} comes from more than {_MOST_ABOVE} nested virtual datasets")
    if address in known:
        return known[address]
    sources = ValueSources()
    own = trail.with_sources(sources.files)
    try:
        if not dataset.is_virtual:
            _check_raw_files(own, dataset, where)
        for source in _sources_of(own, dataset, where) if dataset.is_virtual else ():
            is_last = is_plain(source.id.get_create_plist())
            inner = ValueSources() if is_last else _checked(trail, source, where, known, (*above, address))
            sources.files.update(inner.files)
            if inner.failure is not None:
                sources.failure = inner.failure
                break
            sources.depth, sources.ways = max(sources.depth, inner.depth + 1), sources.ways + inner.ways
            if sources.depth > _MAX_DEPTH:
                raise CorruptFileError(
                    f"{what} comes from more than {_MAX_DEPTH} nested virtual datasets: too many to follow. Write "
                    "the values into one dataset."
                )
            if sources.ways > _MAX_WAYS:
                raise CorruptFileError(
                    f"{what} leads to its values on more than {_MAX_WAYS} ways, through virtual datasets of "
                    "virtual datasets: too many for libhdf5. Write the values into one dataset."
                )
    except TransientIOError:
        raise  # not remembered as a failure: the next try may succeed
    except RayH5Error as exc:
        sources.failure = type(exc), str(exc), where
    known[address] = sources
    return sources


def _sources_of(trail: Trail, dataset: h5py.Dataset, where: str) -> Iterator[h5py.Dataset]:
    """Yield the sources of a virtual dataset. The caller checks each one before it asks for the next."""
    what = f"virtual dataset of {where}"
    axes_of: dict[tuple[_Names, int | None], None] = {}  # how many axes each has to have; None for any number
    for names, here, there in _mappings(dataset):
        if here is not None and max(_end_of(here), _end_of(there)) > _LARGEST:
            raise CorruptFileError(
                f"{trail.path}: {what} has a mapping that selects more than any dataset has. Write the virtual dataset "
                "again."
            )
        # A selection of the whole source has no shape: only the source has it.
        axes = None if there is None or there.get_select_type() == h5py.h5s.SEL_ALL else len(there.shape)
        axes_of[names, axes] = None
    if trail.others is not None and any(file != "." for (file, _), _ in axes_of):
        for _, *selected in _selected(dataset, f"{trail.path}: {what}", None):
            if any(along.is_endless for selection in selected for along in selection or ()):
                raise UnsupportedColumnError(
                    f"{trail.path}: {what} has a mapping without an end (of numbered sources, or with an unlimited "
                    f"selection), which is not read in a file in a store. {_COPY}"
                )
        # What they miss is fetched together.
        firsts = dict.fromkeys(_numbered(names, 0) for names, _ in axes_of)
        gather(lambda source: trail.source(dataset, *source, what), firsts)
    for names, ndim in axes_of:
        for number in range(_MAX_NUMBERED if _are_numbered(names) else 1):
            try:
                source = trail.source(dataset, *_numbered(names, number), what)
            except MissingSourceError:
                if number == 0:
                    raise
                break
            yield source
            if ndim not in {None, source.ndim}:
                # libhdf5 (2.0) may crash on such a mapping.
                raise CorruptFileError(
                    f"{trail.path}: {what} selects from {source.name!r} of {printable(filename_of(source.file))} as if "
                    f"it had {ndim} axes, found {source.ndim}. Write the virtual dataset again for its source."
                )


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


def _check_raw_files(trail: Trail, dataset: h5py.Dataset, where: str) -> None:
    """Check the files of external storage: libhdf5 would return zeros for a missing part."""
    what = f"external storage of {where}"
    if trail.others is not None:
        raise UnsupportedColumnError(
            f"{trail.path}: {what} is in raw files, which are not read in a file in a store. Copy the values into the "
            "file with h5repack, or read it from a local disk."
        )
    # The list of files may be longer than the values; what is not needed may be missing.
    left = (dataset.size or 0) * item_bytes(dataset.id.get_type(), widths_of(dataset.file.id).address)
    for file_name, offset, size in dataset.external or ():
        path = os.fsdecode(file_name)
        trail.access.policy.admit(path, home=trail.path, where=what)
        needed = min(size, left)
        left -= needed
        if needed and (stored_size := trail.look_at(path, what).size) < offset + needed:
            raise TruncatedFileError(
                f"{trail.path}: {what} is in {printable(path)}, {needed} bytes from byte {offset} on: expected "
                f"{offset + needed} bytes or more, found {stored_size}. The file is cut short: copy it again."
            )
        # Once more: the file whose state is known now is the one that may be read, also if its name is a link.
        trail.access.policy.admit(path, home=trail.path, where=what)


# Which values -----------------------------------------------------------------------------
#
# libhdf5 takes the selected values of a source in C order, and puts them where values are selected in the virtual
# dataset, in C order. Here a selection is one list of indices for each axis.


def find_redirect(path: str, dataset: h5py.Dataset, layout: ColumnLayout, trail: Trail) -> Redirect:
    """Return where the values of a dataset are that was described as a column of the file `path`."""
    home, what, made = filename_of(dataset.file), f"virtual column {layout.name!r}", dataset.id.get_create_plist()
    # A link may lead to another file, and from there back to this one.
    if home != path or is_plain(made):
        return Redirect("link", (OtherColumn(home, dataset.name.strip("/")),))

    def exists(file_name: str, name: str) -> bool:
        try:
            trail.source(dataset, file_name, name, what)
        except MissingSourceError:
            return False
        return True

    columns: dict[OtherColumn, int] = {}
    mappings = []
    for names, selected, there in _selected(dataset, layout.where, dataset.shape):
        for number, here in enumerate(_parts(selected, dataset.shape) if _are_numbered(names) else [selected]):
            file_name, name = _numbered(names, number)
            if here is not selected and not exists(file_name, name):
                break
            source = home if file_name == "." else trail.located(file_name, home, what)
            mappings.append((columns.setdefault(OtherColumn(source, name.strip("/")), len(columns)), here, there))
    fill = None
    if not layout.stored_dtype.hasobject:
        fill = fill_of(made, value_type_of(dataset.id.get_type(), widths_of(dataset.file.id), layout.where))
    return Redirect("virtual", tuple(columns), tuple(mappings), fill=fill)


def _parts(selection: _Indices, shape: Sequence[int]) -> Iterator[_Indices]:
    """Yield the blocks of a selection without an end, as far as the shape goes; one with an end as it is."""
    axis = next((axis for axis, along in enumerate(selection) if along.is_endless), None)
    if axis is None:
        yield selection
        return
    along = selection[axis]
    for first in range(along.first, shape[axis], along.stride):
        block = Along(first, along.block, 1, min(along.block, shape[axis] - first))
        yield (*selection[:axis], block, *selection[axis + 1 :])


def _selected(
    dataset: h5py.Dataset, where: str, shape: Sequence[int] | None
) -> Iterator[tuple[_Names, _Indices, _Indices | None]]:
    """Yield what mappings select of a virtual dataset, and of a source: None for all of it.

    `shape` is its own, if it can be asked for it: libhdf5 would open sources of one with an endless mapping.
    """
    for names, here, there in _mappings(dataset):
        if here is not None:
            wanted = _selection(here, here.get_simple_extent_dims() if shape is None else shape, where)
            assert wanted is not None
            yield names, wanted, _selection(there, None, where)


def _selection(space: h5py.h5s.SpaceID, shape: Sequence[int] | None, where: str) -> _Indices | None:
    """Return a selection; None for everything, if the shape is not known."""
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return None if shape is None else tuple(map(Along.all_of, shape))
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        slabs = (map(int, along) for along in zip(*space.get_regular_hyperslab(), strict=True))
        # libhdf5 accepts any stride if there is one block.
        return tuple(
            Along(first, 1, ENDLESS, 1)
            if block == h5py.h5s.UNLIMITED
            else Along(first, max(1, stride, block), ENDLESS if count == h5py.h5s.UNLIMITED else count, block)
            for first, stride, count, block in slabs
        )
    product = _product(space) if kind == h5py.h5s.SEL_HYPERSLABS else None
    if product is None:
        raise UnsupportedColumnError(
            f"{where} has a mapping whose selection is not one list of indices for each axis, so it is not read. "
            f"{_COPY}"
        )
    return product


def _product(space: h5py.h5s.SpaceID) -> _Indices | None:
    """Return a selection of several blocks as runs of indices for each axis; None if it is none."""
    if not 0 < space.get_select_hyper_nblocks() <= _MOST_BLOCKS:
        return None
    blocks = np.asarray(space.get_select_hyper_blocklist(), np.int64)  # (blocks, first and last corner, axes)
    product = tuple(Along.of_runs(_union(*blocks[:, :, axis].T)) for axis in range(blocks.shape[2]))
    return product if size_of(product) == space.get_select_npoints() else None


def _union(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return ranges of indices, given the first and the last of each, as runs that are apart: shape (runs, 2)."""
    order = np.argsort(first, kind="stable")
    first, end = first[order], np.maximum.accumulate(last[order]) + 1
    begins = np.flatnonzero(np.concatenate([[True], first[1:] > end[:-1]]))
    lengths = end[np.append(begins[1:] - 1, len(end) - 1)] - first[begins]
    return np.stack([first[begins], lengths], axis=1)
