"""What to say of paths that name no file."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ray_h5.errors import NotFoundError
from ray_h5.storage.addresses import shown

_MAX_LISTED = 20
_MAX_COMPARED = 5000


def missing_paths(missing: Sequence[tuple[str, Callable[[str], str]]], may_go_on: bool) -> NotFoundError:
    """Return the error for paths that do not exist.

    Parameters
    ----------
    missing : sequence of (str, callable)
        The paths, and what returns each with what to say about it.
    may_go_on : bool
        Whether the others are enough if the user says so.
    """
    count = len(missing)
    shown = "\n".join(f"  {note(path)}" for path, note in missing[:_MAX_LISTED])
    more = f"\n  and {count - _MAX_LISTED} more" if count > _MAX_LISTED else ""
    many = "1 path does not exist" if count == 1 else f"{count} paths do not exist"
    correct = f"Correct {'it' if count == 1 else 'them'}"
    or_else = ", or pass ignore_missing_paths=True to go on without" if may_go_on else ""
    return NotFoundError(f"{many}:\n{shown}{more}\n{correct}{or_else}.")


def nothing_found(
    paths: Sequence[str], other_endings: int, extensions: Iterable[str] | None, num_missing: int
) -> NotFoundError:
    """Return the error for paths below which no file is taken; `other_endings` files there end otherwise."""
    where = ", ".join(repr(shown(path)) for path in paths[:_MAX_LISTED])
    if other_endings:
        why = (
            f"{'1 file there does' if other_endings == 1 else f'{other_endings} files there do'} not end in "
            f"{' or '.join(extensions or ())}. Name other endings with file_extensions=[...], or in a glob, such as "
            "'*.nc'; any with file_extensions=None."
        )
    elif num_missing:
        why = "all of these are missing." if num_missing == len(paths) else "what exists of these holds no file."
    else:
        why = "there are no files."
    return NotFoundError(f"found no HDF5 file in {where}: {why}")


def note_of_local_path(path: str) -> str:
    """Return a missing path of a disk, and what to say about it."""
    notes = ["a glob that matches nothing"] if glob.has_magic(path) else []
    if near := _near_path(path):
        notes.append(near)
    if not os.path.isabs(path):
        notes.append(f"looked in {Path.cwd()}")
    return f"{path} ({', '.join(notes)})" if notes else path


def _near_path(path: str) -> str:
    """Return which paths a user may mean instead: entries of the deepest folder that exists."""
    folder, name = os.path.split(path.rstrip("/"))
    rest = ""
    while folder and folder != "/" and not os.path.isdir(folder):
        rest = os.path.join(name, rest)
        folder, name = os.path.split(folder)
    if glob.has_magic(name):
        return ""
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return ""
    near = difflib.get_close_matches(name, entries[:_MAX_COMPARED], n=3, cutoff=0.6)
    offered = f"did you mean {' or '.join(repr(os.path.join(folder, each)) for each in near)}?" if near else ""
    missing = f"there is no {os.path.join(folder, name)!r}" if rest else ""
    return "; ".join(each for each in (missing, offered) if each)
