"""Where the values of a dataset come from, however many files away: a look at each of these before libhdf5 has one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import h5py

from ray_h5.errors import CorruptFileError, MissingSourceError, RayH5Error, TransientIOError, TruncatedFileError
from ray_h5.hdf5.metadata.column import item_bytes
from ray_h5.hdf5.metadata.links import Sources, Trail
from ray_h5.hdf5.metadata.virtual import SourceNames, sources_named
from ray_h5.messages import printable

_MAX_DEPTH = 32
"""Virtual datasets that may lie one over the other."""

_MAX_WAYS = 1 << 22
"""Ways from a dataset to what it comes from: libhdf5 goes each of them, and they double with each level (measured:
0.2 s for these, 7.7 s for 32 times as many)."""

_MAX_NUMBERED = 1 << 20

Address: TypeAlias = tuple[int, int]
"""What tells an object of the open files from the others, whatever its names."""


def address_of(found: h5py.Group | h5py.Dataset) -> Address:
    """Return where an object is: in which of the open files, and at which byte of it."""
    info = h5py.h5o.get_info(found.id)
    return info.fileno, info.addr


@dataclass(slots=True)
class _Origin:
    """What a look at a dataset found.

    Attributes
    ----------
    sources : Sources
        The files outside that its values come from.
    depth : int
        How many virtual datasets lie one over the other, this one included.
    ways : int
        On how many ways libhdf5 gets at its values.
    failure : (type, str, str), optional
        Why they cannot be read: the error without its traceback, which would keep open what was looked at, and the
        column that its message names.
    """

    sources: Sources = field(default_factory=dict)
    depth: int = 0
    ways: int = 1
    failure: tuple[type[RayH5Error], str, str] | None = None

    def add(self, source: _Origin, where: str) -> None:
        """Note that values come from `source`, which was looked at; raise what keeps these from being read."""
        if source.failure is not None:
            self.sources.update(source.sources)
            raise _SourceFailedError(source.failure)
        self.depth, self.ways = max(self.depth, source.depth + 1), self.ways + source.ways
        if self.depth > _MAX_DEPTH:
            raise CorruptFileError(
                f"{where} lies over more than {_MAX_DEPTH} other virtual datasets, one over the other: too many to "
                "follow. Write the values into one dataset."
            )
        if self.ways > _MAX_WAYS:
            raise CorruptFileError(
                f"{where} leads to its values on more than {_MAX_WAYS} ways, through virtual datasets of virtual "
                "datasets: too many for libhdf5. Write the values into one dataset."
            )
        self.sources.update(source.sources)


class _SourceFailedError(Exception):
    """Why a source cannot be read is why what comes from it cannot."""

    def __init__(self, failure: tuple[type[RayH5Error], str, str]) -> None:
        super().__init__()
        self.failure = failure


@dataclass(slots=True)
class _Step:
    """A dataset that is being looked at: the sources that were not looked at yet, and the one that is."""

    origin: _Origin
    sources: Iterator[h5py.Dataset]
    entered: Address | None = None


class Traces:
    """The looks at the datasets that values of one file come from. Each dataset is looked at once.

    It asks a dataset for its creation list alone: asked for the shape of a virtual one, libhdf5 opens its sources.
    """

    def __init__(self) -> None:
        self._known: dict[Address, _Origin] = {}

    def look(self, trail: Trail, dataset: h5py.Dataset, where: str) -> None:
        """Note in `trail` each file that the values of a dataset come from, or raise why they cannot be read.

        `where` says in messages which dataset that is.
        """
        if _is_plain(dataset):
            return
        address = address_of(dataset)
        if address not in self._known:
            self._explore(trail, dataset, where)
        origin = self._known[address]
        trail.sources.update(origin.sources)
        if origin.failure is None:
            return
        error, message, of = origin.failure
        if of != where:
            reason = message.removeprefix(f"{trail.path}: ")
            message = f"{trail.path}: {where} comes from what cannot be read: {reason}"
        raise error(message)

    def _explore(self, trail: Trail, dataset: h5py.Dataset, where: str) -> None:
        """Look at a dataset, and before it at all that its values come from. Nothing here may go by recursion."""
        steps = {address_of(dataset): _step(trail, dataset, where)}
        while steps:
            address = next(reversed(steps))
            step = steps[address]
            try:
                source = self._next(step, f"{trail.path}: virtual dataset of {where}")
                if source is not None:
                    step.entered = address_of(source)
                    if step.entered in steps:
                        what = f"{trail.path}: virtual dataset of {where}"
                        raise MissingSourceError(f"{what} leads back to {source.name!r}, which it comes from: a loop")
                    if step.entered not in self._known:
                        steps[step.entered] = _step(trail, source, where)
                    continue
            except TransientIOError:
                raise
            except _SourceFailedError as exc:
                step.origin.failure = exc.failure
            except RayH5Error as exc:
                step.origin.failure = type(exc), str(exc), where
            self._known[address] = step.origin
            del steps[address]

    def _next(self, step: _Step, where: str) -> h5py.Dataset | None:
        """Return the next source of a dataset that has sources itself."""
        if step.entered is not None:
            step.origin.add(self._known[step.entered], where)
        for source in step.sources:
            if not _is_plain(source):
                return source
            step.origin.add(_Origin(), where)
        return None


def _is_plain(dataset: h5py.Dataset) -> bool:
    """Tell whether a dataset has its values where it is."""
    return not dataset.is_virtual and not dataset.external


def _step(trail: Trail, dataset: h5py.Dataset, where: str) -> _Step:
    origin = _Origin()
    own = Trail(trail.access, trail.linked, origin.sources)
    return _Step(origin, (_mapped if dataset.is_virtual else _stored_outside)(own, dataset, where))


def _mapped(trail: Trail, dataset: h5py.Dataset, where: str) -> Iterator[h5py.Dataset]:
    """Yield the sources of a virtual dataset; go on from each only once it is known that its values may be read."""
    what = f"virtual dataset of {where}"
    for names, ndim in dict.fromkeys(sources_named(dataset.id.get_create_plist())):
        for source in _sources(trail, dataset, names, what):
            yield source
            if ndim not in {None, source.ndim}:
                # libhdf5 (2.0) may crash then.
                raise CorruptFileError(
                    f"{trail.path}: {what} selects from {source.name!r} of {printable(source.file.filename)} as if it "
                    f"had {ndim} axes, found {source.ndim}. Write the virtual dataset again for its source."
                )


def _sources(trail: Trail, dataset: h5py.Dataset, names: SourceNames, where: str) -> Iterator[h5py.Dataset]:
    """Yield what a mapping leads to, each once it is known that it may be read."""
    for number in range(_MAX_NUMBERED if names.is_numbered else 1):
        try:
            source = trail.source(dataset, *names.numbered(number), where)
        except MissingSourceError:
            if number == 0:
                raise
            return
        yield source


def _stored_outside(trail: Trail, dataset: h5py.Dataset, where: str) -> Iterator[h5py.Dataset]:
    """Look at the files of external storage: libhdf5 would make zeros of what is not there."""
    yield from ()
    what = f"external storage of {where}"
    left = (dataset.size or 0) * item_bytes(dataset)
    for file_name, offset, size in dataset.external or ():
        path = os.fsdecode(file_name)
        trail.access.policy.admit(path, home=trail.path, where=what)
        needed = min(size, left)
        left -= needed
        if needed and (found := trail.look_at(path, what).size) < offset + needed:
            raise TruncatedFileError(
                f"{trail.path}: {what} is in {printable(path)}, {needed} bytes from byte {offset} on: expected "
                f"{offset + needed} bytes or more, found {found}. The file is cut short: copy it again."
            )
