"""What the searches of disks and of stores share: which files are taken, and the errors of paths that name none."""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ray_h5.errors import NotFoundError, OptionError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.addresses import shown
from ray_h5.storage.byte_source import ObjectIdentity

States = dict[str, ObjectIdentity | None]
"""The states of remote files by their URLs; None for each file of a disk, by its path."""

_MAX_LISTED = 20


class Taken(NamedTuple):
    """The files that are taken of what a path names, and how many others are there, which end otherwise."""

    files: States
    other_endings: int = 0


class Endings:
    """Endings of the files to take from folders and globs, as the user writes them; None takes all files."""

    def __init__(self, extensions: Collection[str] | None) -> None:
        what = f"file_extensions={extensions!r}: expected"
        if isinstance(extensions, str):
            # Each letter would be an ending.
            raise OptionError(f"{what} a list of endings, found one; write file_extensions=[{extensions!r}]")
        is_list = isinstance(extensions, Collection) and len(extensions) > 0
        if extensions is not None and not (
            is_list and all(isinstance(ending, str) and ending.strip(".") for ending in extensions)
        ):
            raise OptionError(f"{what} at least one ending, such as 'h5', or None for all files")
        self._endings = None if extensions is None else {_normal(ending) for ending in extensions}

    def take(self, matched: Iterable[str], below: Iterable[str], pattern: str = "") -> list[str]:
        """Return the paths that are taken: of what a glob matches itself, and of what is below the folders it matches.

        ``*.nc`` says which ending is wanted, so that all it matches is taken. Endings that the user chose are more
        explicit.
        """
        extension = posixpath.splitext(pattern)[1]
        names_ending = len(extension) > 1 and not glob.has_magic(extension)
        takes_all = names_ending and self._endings == {_normal(ending) for ending in DEFAULT_EXTENSIONS}
        return [*(path for path in matched if takes_all or self._has(path)), *filter(self._has, below)]

    def _has(self, path: str) -> bool:
        return self._endings is None or path.lower().endswith(tuple(self._endings))


def _normal(extension: str) -> str:
    return "." + extension.lstrip(".").lower()


def missing_paths(notes: Sequence[str], may_go_on: bool) -> NotFoundError:
    """Return the error for paths that do not exist.

    Parameters
    ----------
    notes : sequence of str
        The paths, each with what to say about it.
    may_go_on : bool
        Whether the others are enough if the user says so.
    """
    count = len(notes)
    lines = [f"  {note}" for note in notes[:_MAX_LISTED]]
    lines += [f"  and {count - _MAX_LISTED} more"] if count > _MAX_LISTED else []
    many, them = ("1 path does not exist", "it") if count == 1 else (f"{count} paths do not exist", "them")
    or_else = ", or pass ignore_missing_paths=True to go on without" if may_go_on else ""
    return NotFoundError("\n".join([f"{many}:", *lines, f"Correct {them}{or_else}."]))


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
