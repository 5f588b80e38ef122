"""Which files are taken from folders and globs: those with certain endings."""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ray_h5.errors import OptionError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.byte_source import ObjectIdentity

States = dict[str, ObjectIdentity | None]
"""The states of remote files by their URLs; None for each file of a disk, by its path."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one path of a user names.

    Attributes
    ----------
    files : dict
        The states of the files that are taken.
    other_endings : int
        How many files are there and end otherwise.
    """

    files: States
    other_endings: int = 0


@dataclass(frozen=True, slots=True)
class Endings:
    """Endings of the files to take from folders and globs.

    Attributes
    ----------
    extensions : collection of str, optional
        As the user writes them; None takes all files.
    """

    extensions: Collection[str] | None

    def __post_init__(self) -> None:
        given = self.extensions
        if isinstance(given, str):
            # Each letter would be an ending.
            raise OptionError(
                f"file_extensions={given!r}: expected a list of endings, found one; write file_extensions=[{given!r}]"
            )
        if given is not None and not (
            isinstance(given, Collection)
            and given
            and all(isinstance(ending, str) and ending.strip(".") for ending in given)
        ):
            raise OptionError(
                f"file_extensions={given!r}: expected at least one ending, such as 'h5', or None for all files"
            )

    def take(self, matched: Iterable[str], below: Iterable[str], pattern: str = "") -> list[str]:
        """Return the paths that are taken: of what a glob matches itself, and of what is below the folders it matches.

        ``*.nc`` says which ending is wanted, so that all it matches is taken. Endings that the user chose are more
        explicit.
        """
        extension = posixpath.splitext(pattern)[1]
        names_ending = len(extension) > 1 and not glob.has_magic(extension)
        takes_all = names_ending and _normal(self.extensions) == _normal(DEFAULT_EXTENSIONS)
        return [*(path for path in matched if takes_all or self._has(path)), *filter(self._has, below)]

    def _has(self, path: str) -> bool:
        endings = _normal(self.extensions)
        return endings is None or path.lower().endswith(tuple(endings))


def _normal(extensions: Iterable[str] | None) -> set[str] | None:
    return None if extensions is None else {"." + extension.lstrip(".").lower() for extension in extensions}
