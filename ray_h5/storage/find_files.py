"""`paths` as a user writes them -> the files, in order."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ray_h5.errors import NotFoundError, OptionError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.addresses import is_url, shown
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.local import LOCAL, PathLike
from ray_h5.storage.natural_order import natural_key
from ray_h5.storage.search import Endings, FilesOfPath, StoreSearch, find_on_disk, note_on_disk
from ray_h5.storage.storage_of_path import InStore, Storage

__all__ = ["PathLike", "find_files", "is_local_only", "list_paths"]

_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Files, in order.

    Attributes
    ----------
    paths : list of str
        Their paths and URLs.
    states : mapping of str to ObjectIdentity
        The states of remote files when they were found, by URL.
    """

    paths: list[str]
    states: dict[str, ObjectIdentity]


def find_files(
    paths: PathLike | Sequence[PathLike],
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool | None = False,
    filesystem: object = None,
    storage: Storage = LOCAL,
) -> FoundFiles:
    """Return the files that `paths` names.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        Files, directories (searched with all below them) and globs. Directories and globs leave out hidden files, such
        as the ``._run.h5`` that some systems write beside a file. They do not follow a symbolic link to a folder that
        contains it. A file that one directory or glob has under several names, because of symbolic links, is taken
        once: under the name that passes the fewest links; of these, the first in order. Beside ``run5``, ``latest ->
        run5`` adds nothing. Hard links are files of their own. So are two names that are both given.
    file_extensions : sequence of str, optional
        Endings of the files to take from directories and globs; None takes all. A file that is named itself is always
        taken. A glob that ends in an extension, such as ``*.nc``, also takes the files that it matches, unless other
        endings than the default ones are given.
    ignore_missing_paths : bool, optional
        Leave out paths that do not exist, if at least one file is left. With None, the user has no such option, nor
        endings.
    filesystem : pyarrow or fsspec file system, optional
        A local one, or a subtree of a local one. Relative paths start from its root.
    storage : Storage
        Where files with a URL are. A folder of a store is what keys begin with.

    Returns
    -------
    FoundFiles
        Absolute paths and URLs, sorted naturally (``f2`` before ``f10``), without duplicates.

    Raises
    ------
    NotFoundError
        With every path that does not exist; or if no file is found.
    NotReadableError
        If a directory cannot be listed. A folder below it that cannot is left out, with a warning.
    OptionError
        If an argument has a value that cannot be used.
    """
    texts = [os.fspath(path) for path in list_paths(paths)]
    search = _Search(texts, filesystem, storage, Endings(file_extensions))
    files_of = {path: search.find(path) for path in dict.fromkeys(texts)}
    taken = [*filter(None, files_of.values())]
    states = {name: state for files in taken for name, state in files.files.items()}
    missing = [path for path, files in files_of.items() if files is None]
    if missing and not ignore_missing_paths:
        notes = [*map(search.note, missing[:_MAX_LISTED])]
        raise _missing(notes, len(missing), may_go_on=ignore_missing_paths is not None and bool(states))
    if not states:
        raise _no_file(texts, taken, file_extensions, are_tables=ignore_missing_paths is None)
    known = {name: state for name, state in states.items() if state is not None}
    return FoundFiles(sorted(states, key=natural_key), known)


class _Search:
    """Looks for URLs in stores, all of which are asked at once, and for other paths on the disk."""

    def __init__(self, texts: Sequence[str], filesystem: object, storage: Storage, endings: Endings) -> None:
        self._root, self._endings = "", endings
        if filesystem is not None:
            from ray_h5.storage.stores.file_systems import local_root  # few need it

            self._root = local_root(filesystem)
        urls = [*filter(is_url, texts)]
        if urls and not isinstance(storage, InStore):
            raise OptionError(f"{shown(urls[0])}: expected a path of the local file system, found a URL")
        self._in_stores = StoreSearch(urls, storage, endings) if isinstance(storage, InStore) else None

    def find(self, path: str) -> FilesOfPath | None:
        """Return the files that a path names; None if there is nothing."""
        if self._in_stores is not None and is_url(path):
            return self._in_stores.find(path)
        return find_on_disk(path, self._root, self._endings)

    def note(self, path: str) -> str:
        """Return what is there instead of a path that does not exist."""
        if self._in_stores is not None and is_url(path):
            return self._in_stores.note(path)
        return note_on_disk(path, self._root)


def _missing(notes: list[str], count: int, *, may_go_on: bool) -> NotFoundError:
    """Return the error of paths that do not exist, of which the first have notes."""
    notes += [f"and {count - len(notes)} more"] if count > len(notes) else []
    what, them = ("1 path does not exist", "it") if count == 1 else (f"{count} paths do not exist", "them")
    or_else = ", or pass ignore_missing_paths=True to go on without" if may_go_on else ""
    return NotFoundError("\n  ".join([f"{what}:", *notes]) + f"\nCorrect {them}{or_else}.")


def _no_file(
    texts: Sequence[str], taken: Sequence[FilesOfPath], extensions: Sequence[str] | None, *, are_tables: bool
) -> NotFoundError:
    """Return the error of paths of which those that exist hold no file that is taken."""
    others = sum(files.other_endings for files in taken)
    why = "what exists of these holds no file." if taken else "all of these are missing."
    if others:
        does = "1 file there does" if others == 1 else f"{others} files there do"
        how = "with file_extensions=[...], or in a glob, such as '*.nc'; any with file_extensions=None."
        how = "in a glob, such as '*.txt'." if are_tables else how
        why = f"{does} not end in {' or '.join(extensions or ())}. Name other endings {how}"
    elif len(taken) == len({*texts}):
        why = "there are no files."
    where = ", ".join(repr(shown(path)) for path in texts[:_MAX_LISTED])
    return NotFoundError(f"found no file in {where}: {why}")


def is_local_only(paths: PathLike | Sequence[PathLike]) -> bool:
    """Return whether a path begins with ``local://``: only the node of the driver has the file."""
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return any(os.fspath(path).lower().startswith("local://") for path in listed)


def list_paths(paths: object, option: str = "paths") -> list[PathLike]:
    """Return the paths one by one. This uses up an iterator, such as the one of ``Path.glob``.

    Raises
    ------
    OptionError
        If there is none, or one is no path.
    """
    single = isinstance(paths, (str, os.PathLike))
    for place in paths if isinstance(paths, (list, tuple)) else [paths]:
        # An h5py.File; a dataset or a group has one. All rows of a dataset would be listed as paths.
        if isinstance(name := getattr(getattr(place, "file", place), "filename", None), str):
            raise OptionError(f"{option}: expected a path, found an open file; pass its name, {name!r}")
    is_dataset = type(paths).__name__.endswith("Dataset")  # one of Ray has an `__iter__` that raises
    if not single and (is_dataset or not isinstance(paths, Iterable) or isinstance(paths, (bytes, Mapping))):
        problem = f": found a dataset, {type(paths).__name__}; pass its paths" if is_dataset else f"={paths!r}"
        raise OptionError(f"{option}{problem}: expected a file, a directory, a glob, or a list of them")
    listed: list[PathLike] = [cast("PathLike", paths)] if single else list(cast("Iterable[PathLike]", paths))
    if not listed:
        raise OptionError(f"{option}: expected at least one file, directory or glob, found an empty list")
    for path in listed:
        # An empty path would be the root of `filesystem`, and is more often a variable that was not set.
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise OptionError(f"{option}: expected str or path-like, found {reprlib.repr(path)}")
    return listed
