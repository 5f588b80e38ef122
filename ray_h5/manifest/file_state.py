"""The state of a file, and of all that it leads to; and the one comparison of two states.

What a plan expects is compared with what is found::

    found / expected    a state          nothing
    the same            same             -
    another ctime       ctime            -
    more bytes          grown            -
    anything else       changed          appeared
    nothing             gone             same

After ``same`` and ``ctime`` reading goes on: a chmod, a chown, a rename and a hard link of a backup change the ctime
alone. The headers and the chunks of such a file are then read again. Anything else is an error: a plan is made for one
state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from ray_h5.errors import MissingSourceError, StaleIndexError
from ray_h5.lru import first_time
from ray_h5.messages import few
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.local import LOCAL, identity_now
from ray_h5.storage.storage_of_path import Storage, storage_of

logger = logging.getLogger(__name__)

SourceStates: TypeAlias = tuple[tuple[str, Identity | None], ...]
"""Other files that values come from, and their states; None for a missing file."""

_ADVICE = "Make the dataset again; if something still writes to the file, wait for it."


class Change(NamedTuple):
    """What differs between the state that is expected and the one that is found, and why."""

    kind: Literal["same", "ctime", "grown", "changed", "appeared", "gone"]
    why: str = ""

    @property
    def is_none(self) -> bool:
        """Whether reading goes on."""
        return self.kind in {"same", "ctime"}


def compare(expected: Identity | None, found: Identity | None, *, swmr: bool = False) -> Change:
    """Return what differs between two states of a file; None is no file.

    With `swmr`, a writer may have changed size and times, and may make files: only another inode is a change. A reader
    does not use rows that were added later.
    """
    if expected == found or (expected is None and swmr):
        return Change("same")
    if expected is None or found is None:
        return Change("appeared" if expected is None else "gone")
    pairs = zip(asdict(expected).items(), asdict(found).values(), strict=False)
    why = ", ".join(f"expected {name} {value}, found {now}" for (name, value), now in pairs if value != now)
    if isinstance(expected, FileIdentity) and isinstance(found, FileIdentity) and expected.inode == found.inode:
        if swmr:
            return Change("same")
        if replace(expected, ctime_ns=found.ctime_ns) == found:
            return Change("ctime", why)
        return Change("grown" if found.size > expected.size else "changed", why)
    return Change("changed", why)


def check_same(
    where: str, expected: Identity | None, found: Identity | None, *, leads: bool = False, swmr: bool = False
) -> Change:
    """Raise unless a file has the expected state. If its ctime alone differs, a warning says so once.

    `where` is its path; with `leads`, a text that says what leads to the file, and ends with its path.

    Raises
    ------
    StaleIndexError
        If the file changed, or was missing and exists now; or if it has lost its name.
    MissingSourceError
        If one that something leads to is missing now: libhdf5 would return fill values without an error.
    """
    change = compare(expected, found, swmr=swmr)
    if change.kind == "same":
        return change
    is_named = True
    if not leads and isinstance(found, FileIdentity):  # an open file; its name may lead to another one by now
        if (now := identity_now(where)) is None:
            raise StaleIndexError(
                f"{where}: the file was removed or renamed after the dataset was planned. Put it back, or make the "
                "dataset again without it."
            )
        is_named = now.inode == found.inode
    if change.kind == "ctime" and is_named:
        if first_time("ctime", where):
            logger.warning(
                "%s: its ctime changed after it was planned, as after a chmod, chown or rename, or when a hard "
                "link is made; its size, mtime and inode are the same. Its headers and chunk index are read again, and "
                "reading goes on.",
                where,
            )
        return change
    if change.kind == "gone":
        raise MissingSourceError(
            f"{where}, which no longer exists, or which this machine does not see. Put it back as it was, or make the "
            "dataset again: without the column, or once there is another one."
        )
    if change.kind == "appeared":
        raise StaleIndexError(
            f"{where}, which did not exist when the column was described: it may have more rows now, or other ones. "
            f"{_ADVICE}"
        )
    what = ", which" if leads else ": the file"
    raise StaleIndexError(f"{where}{what} changed between planning and reading: {change.why}. {_ADVICE}")


def check_sources(
    path: str,
    column: str,
    expected: SourceStates,
    found: SourceStates | None = None,
    *,
    swmr: bool = False,
    look: Callable[[str], Identity | None] = identity_now,
) -> None:
    """Raise unless the sources of a column have the expected states: those `found` for it, and those of now.

    `look` returns the state of a file now. Errors as in `check_same`.
    """
    if found == expected:
        return
    # First the sources that both have: "this file changed" says more than "other files".
    states = dict(found or ())
    for source, state in expected:
        if source in states:
            check_same(f"{path}: column {column!r} leads to {source}", state, states[source], leads=True, swmr=swmr)
    for source, state in expected:
        check_same(f"{path}: column {column!r} leads to {source}", state, look(source), leads=True, swmr=swmr)
    if found is not None and states.keys() != dict(expected).keys():
        before, now = ([leads for leads, state in pairs if state is not None] for pairs in (expected, found))
        raise StaleIndexError(
            f"{path}: column {column!r} leads to other files than when the dataset was made: expected "
            f"{few(before) or 'none'}, found {few(now) or 'none'}. {_ADVICE}"
        )


def are_same_sources(expected: SourceStates, found: SourceStates) -> bool:
    """Return whether sources are the same files, in the same states. Their ctimes may differ."""
    return [path for path, _ in expected] == [path for path, _ in found] and all(
        compare(state, now).is_none for (_, state), (_, now) in zip(expected, found, strict=True)
    )


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file, and of the other files that its columns come from.

    Attributes
    ----------
    identity : Identity
        State of the file.
    sources : mapping of str to SourceStates
        The sources of columns, by column. Sources of other columns may be in any state.
    """

    identity: Identity
    sources: Mapping[str, SourceStates] = field(default_factory=dict)

    def check_now(self, path: str, remote: Storage = LOCAL) -> None:
        """Raise unless the file at a path, and the sources of its columns, have this state. No file is opened."""
        storage = storage_of(path, remote)
        check_same(path, self.identity, storage.check(path))
        for column, sources in self.sources.items():
            check_sources(path, column, sources, look=storage.identity)
