"""The files that the values of a dataset come from. Each is checked before libhdf5 opens it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py

from ray_h5.errors import (
    CorruptFileError,
    MissingSourceError,
    RayH5Error,
    TransientIOError,
    TruncatedFileError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.columns.dataset_header import is_plain
from ray_h5.hdf5.columns.value_types import Shared, item_bytes
from ray_h5.hdf5.columns.virtual_mappings import SourceNames, check_mappings, sources_named
from ray_h5.hdf5.files.file_bytes import Address, address_of, filename_of, gather
from ray_h5.hdf5.files.links import Sources, Trail
from ray_h5.messages import printable

_MAX_DEPTH = 32
"""How deep virtual datasets of virtual datasets may be nested."""

_MOST_ABOVE = 1 << 8
"""How deep they are followed, which takes a frame of Python's stack each."""

_MAX_WAYS = 1 << 22
"""Ways from a dataset to its sources. libhdf5 follows each of them, and each level can double them (measured: 0.2 s
for this many, 7.7 s for 32 times as many)."""

_MAX_NUMBERED = 1 << 20


@dataclass(slots=True)
class _Finding:
    """What was found about the sources of one dataset.

    Attributes
    ----------
    sources : Sources
        The other files that its values come from.
    depth : int
        Levels of virtual datasets, this one included.
    ways : int
        Number of ways from this dataset to its sources.
    failure : (type, str, str), optional
        Why its values cannot be read: type and message of the error, and the column that the message names. The
        error itself is not kept: its traceback would keep datasets open.
    """

    sources: Sources = field(default_factory=dict)
    depth: int = 0
    ways: int = 1
    failure: tuple[type[RayH5Error], str, str] | None = None

    def add(self, source: _Finding, where: str) -> None:
        """Add what was found about a source; raise if there is too much to follow."""
        self.depth, self.ways = max(self.depth, source.depth + 1), self.ways + source.ways
        if self.depth > _MAX_DEPTH:
            raise CorruptFileError(
                f"{where} comes from more than {_MAX_DEPTH} nested virtual datasets: too many to follow. Write "
                "the values into one dataset."
            )
        if self.ways > _MAX_WAYS:
            raise CorruptFileError(
                f"{where} leads to its values on more than {_MAX_WAYS} ways, through virtual datasets of virtual "
                "datasets: too many for libhdf5. Write the values into one dataset."
            )


class ValueSources:
    """Checks the datasets that values of one file come from, each dataset once.

    It reads the creation property lists alone: libhdf5 opens the sources of a virtual dataset that is asked for its
    shape.
    """

    def __init__(self) -> None:
        self._known: dict[Address, _Finding] = {}

    def check(self, trail: Trail, dataset: h5py.Dataset, where: str) -> None:
        """Add each file that the values of a virtual or external dataset come from to `trail`.

        Raise if they cannot be read.

        `where` names the dataset in messages.
        """
        finding = self._finding(trail, dataset, where, ())
        trail.sources.update(finding.sources)
        if finding.failure is None:
            return
        error, message, of = finding.failure
        if of != where:  # the failure was found while another column was checked
            reason = message.removeprefix(f"{trail.path}: ")
            message = f"{trail.path}: {where} comes from what cannot be read: {reason}"
        raise error(message)

    def _finding(self, trail: Trail, dataset: h5py.Dataset, where: str, above: tuple[Address, ...]) -> _Finding:
        """Check a dataset, after all datasets that its values come from; `above` are those that come from it."""
        address, what = address_of(dataset.id), f"{trail.path}: virtual dataset of {where}"
        if address in above:
            raise MissingSourceError(f"{what} leads back to {dataset.name!r}, which it comes from: a loop")
        if len(above) > _MOST_ABOVE:
            raise CorruptFileError(f"{what} comes from more than {_MOST_ABOVE} nested virtual datasets")
        if address in self._known:
            return self._known[address]
        finding = _Finding()
        own = trail.with_sources(finding.sources)
        try:
            for source in (_mapped if dataset.is_virtual else _stored_outside)(own, dataset, where):
                is_last = is_plain(source.id.get_create_plist())
                inner = _Finding() if is_last else self._finding(trail, source, where, (*above, address))
                finding.sources.update(inner.sources)
                if inner.failure is not None:
                    finding.failure = inner.failure
                    break
                finding.add(inner, what)
        except TransientIOError:
            raise  # not remembered as a failure: the next try may succeed
        except RayH5Error as exc:
            finding.failure = type(exc), str(exc), where
        self._known[address] = finding
        return finding


def _mapped(trail: Trail, dataset: h5py.Dataset, where: str) -> Iterator[h5py.Dataset]:
    """Yield the sources of a virtual dataset. The caller checks each one before it asks for the next."""
    what = f"virtual dataset of {where}"
    named = dict.fromkeys(sources_named(dataset.id.get_create_plist(), f"{trail.path}: {what}"))
    if trail.others is not None and any(names.file != "." for names, _ in named):
        check_mappings(dataset, f"{trail.path}: {what}")
        # What they miss is fetched together.
        gather(
            lambda names: trail.source(dataset, *names.numbered(0), what),
            dict.fromkeys(mapping_names for mapping_names, _ in named),
        )
    for names, ndim in named:
        for source in _sources(trail, dataset, names, what):
            yield source
            if ndim not in {None, source.ndim}:
                # libhdf5 (2.0) may crash on such a mapping.
                raise CorruptFileError(
                    f"{trail.path}: {what} selects from {source.name!r} of {printable(filename_of(source.file))} as if "
                    f"it had {ndim} axes, found {source.ndim}. Write the virtual dataset again for its source."
                )


def _sources(trail: Trail, dataset: h5py.Dataset, names: SourceNames, where: str) -> Iterator[h5py.Dataset]:
    """Yield the source datasets of a mapping: one, or the numbered ones up to the first that is missing."""
    for number in range(_MAX_NUMBERED if names.is_numbered else 1):
        try:
            source = trail.source(dataset, *names.numbered(number), where)
        except MissingSourceError:
            if number == 0:
                raise
            return
        yield source


def _stored_outside(trail: Trail, dataset: h5py.Dataset, where: str) -> Iterator[h5py.Dataset]:
    """Check the files of external storage: libhdf5 would return zeros for a missing part. It yields no dataset."""
    yield from ()
    what = f"external storage of {where}"
    if trail.others is not None:
        raise UnsupportedColumnError(
            f"{trail.path}: {what} is in raw files, which are not read in a file in a store. Copy the values into the "
            "file with h5repack, or read it from a local disk."
        )
    # The list of files may be longer than the values; what is not needed may be missing.
    left = (dataset.size or 0) * item_bytes(dataset.id.get_type(), Shared.of(dataset.file.id).address_bytes)
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
