"""Checks that files have not changed since they were planned or described."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TypeAlias

from ray_h5.errors import MissingSourceError, StaleIndexError
from ray_h5.lru import first_time
from ray_h5.manifest.layout import FileState, SourceStates
from ray_h5.messages import few
from ray_h5.storage.byte_source import FileIdentity, Identity, only_ctime_differs
from ray_h5.storage.local import LOCAL, identity_now
from ray_h5.storage.storage_of_path import Storage, storage_of

logger = logging.getLogger(__name__)

Look: TypeAlias = Callable[[str], Identity | None]

_ADVICE = "Make the dataset again; if something still writes to the file, wait for it."


def check_identity(path: str, expected: Identity, found: Identity, *, swmr: bool = False) -> None:
    """Raise `StaleIndexError` if a file is not in the state that a plan was made for.

    With `swmr`, a writer may have changed its size and times: only another inode is an error. If nothing but the
    ctime differs, as after a chmod, chown or rename, or when a hard link was made, a warning says so once.
    """
    if not _differ(expected, found, swmr):
        return
    if isinstance(found, FileIdentity):
        now = identity_now(path)
        if now is None:
            raise StaleIndexError(
                f"{path}: the file was removed or renamed after the dataset was planned. Put it back, or make the "
                "dataset again without it."
            )
        if now.inode == found.inode and only_ctime_differs(expected, found):
            _warn_of_ctime(path)
            return
    raise StaleIndexError(
        f"{path}: the file changed between planning and reading: {_changes(expected, found)}. {_ADVICE}"
    )


def _warn_of_ctime(path: str) -> None:
    if first_time("ctime", path):
        logger.warning(
            "%s: its ctime is another one since it was planned, as after a chmod, chown or rename, or when a hard link "
            "is made; its size, mtime and inode are the same. Its headers and chunk index are read again, and reading "
            "goes on.",
            path,
        )


def check_state(path: str, expected: FileState, remote: Storage = LOCAL) -> None:
    """Raise unless a file and the sources of its columns now have the expected states. No file is opened."""
    check_identity(path, expected.identity, storage_of(path, remote).check(path))
    for column, sources in expected.sources.items():
        check_sources_now(path, column, sources, look=storage_of(path, remote).identity)


def check_sources_now(
    path: str,
    column: str,
    expected: Iterable[tuple[str, Identity | None]],
    *,
    swmr: bool = False,
    look: Look = identity_now,
) -> None:
    """Raise unless the sources of a column now have the expected states. `look` returns the state of a file.

    Raises
    ------
    StaleIndexError
        If a source changed, or was missing and exists now.
    MissingSourceError
        If a source is missing now: libhdf5 would return fill values without an error.
    """
    for source, state in expected:
        check_source(f"{path}: column {column!r} leads to {source}", state, look(source), swmr=swmr)


def check_same_sources(
    path: str,
    column: str,
    expected: SourceStates,
    found: SourceStates,
    *,
    swmr: bool = False,
    look: Look = identity_now,
) -> None:
    """Raise unless the sources `found` for a column are the expected ones; errors as in `check_sources_now`."""
    if found == expected:
        return
    # First the sources that both have: "this file changed" says more than "other files".
    states = dict(found)
    for source, state in expected:
        if source in states:
            check_source(f"{path}: column {column!r} leads to {source}", state, states[source], swmr=swmr)
    check_sources_now(path, column, expected, swmr=swmr, look=look)
    if states.keys() != dict(expected).keys():
        before, now = ([leads for leads, state in pairs if state is not None] for pairs in (expected, found))
        raise StaleIndexError(
            f"{path}: column {column!r} leads to other files than when the dataset was made: expected "
            f"{few(before) or 'none'}, found {few(now) or 'none'}. {_ADVICE}"
        )


def check_source(leads: str, expected: Identity | None, found: Identity | None, *, swmr: bool = False) -> None:
    """Raise unless another file has the expected state; `leads` says what leads to it. Errors as above."""
    if expected is None:
        # With swmr, a reader does not use rows that were added later.
        if found is not None and not swmr:
            raise StaleIndexError(
                f"{leads}, which did not exist when the column was described: it may have more rows now, or other "
                f"ones. {_ADVICE}"
            )
    elif found is None:
        raise MissingSourceError(
            f"{leads}, which no longer exists, or which this machine does not see. Put it back as it was, or make the "
            "dataset again: without the column, or once there is another one."
        )
    elif only_ctime_differs(expected, found):
        _warn_of_ctime(leads)
    elif _differ(expected, found, swmr):
        raise StaleIndexError(
            f"{leads}, which changed between planning and reading: {_changes(expected, found)}. {_ADVICE}"
        )


def _differ(expected: Identity, found: Identity, swmr: bool) -> bool:
    if swmr and isinstance(expected, FileIdentity) and isinstance(found, FileIdentity):
        return expected.inode != found.inode
    return expected != found


def _changes(expected: Identity, found: Identity) -> str:
    """Return what differs between two states of a file."""
    pairs = zip(asdict(expected).items(), asdict(found).values(), strict=False)
    return ", ".join(f"expected {name} {value}, found {now}" for (name, value), now in pairs if value != now)
