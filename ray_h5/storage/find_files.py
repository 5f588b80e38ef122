"""`paths` as a user writes them -> the files, in order."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote_to_bytes

from ray_h5.errors import NotReadableError, OptionError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.addresses import split_urls
from ray_h5.storage.local import LOCAL, Listed, PathLike, absolute_path, natural_key
from ray_h5.storage.storage_of_path import Storage

if TYPE_CHECKING:
    from ray_h5.storage.find_remote_files import States

__all__ = ["PathLike", "expand_paths", "find_files", "is_local_only", "list_paths"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def spellings(path: PathLike) -> list[str]:
    """Return the paths that a user may mean, most likely first: %41 in a URI may be an escape, or part of the name."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise OptionError(f"paths: expected str or path-like, found {text!r}")
    if "\0" in text:
        raise OptionError(f"{text!r}: a path cannot contain a NUL character")
    scheme = _SCHEME.match(text)
    if scheme:
        text = text[scheme.end() :]
        if scheme[1].lower() == "file" and text.startswith("localhost/"):  # RFC 8089: the host may be named
            text = text.removeprefix("localhost")
    is_escaped = scheme is not None and scheme[1].lower() == "file" and "%" in text
    unescaped = [os.fsdecode(unquote_to_bytes(os.fsencode(text)))] if is_escaped else []
    return [os.path.expanduser(each) for each in (text, *unescaped)]


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
    states: States


def expand_paths(
    paths: PathLike | Sequence[PathLike],
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
    filesystem: object = None,
) -> list[str]:
    """Return the paths of `find_files`, of which none is remote."""
    return find_files(paths, file_extensions, ignore_missing_paths, filesystem).paths


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
        Leave out paths that do not exist, if at least one file is left. With None, the user has no such option.
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
    given = list_paths(paths)
    _check_extensions(file_extensions)
    # `*.nc` says which ending is wanted. Endings that the user chose are more explicit.
    by_glob = _endings(file_extensions) == _endings(DEFAULT_EXTENSIONS)
    found: set[str] = set()
    missing: list[str] = []
    other_endings = 0
    urls, local = split_urls([os.fspath(path) for path in given])
    remote = None
    if urls:
        from ray_h5.storage.find_remote_files import RemoteSearch

        remote = RemoteSearch.of(urls, storage, by_glob, lambda url: _has_extension(url, file_extensions))
        other_endings = remote.other_endings
    root = "" if filesystem is None else _root_of(filesystem)
    for path in local:
        spelt = [os.path.join(root, each) for each in spellings(path)]
        candidates = (_candidates(each, by_glob) for each in spelt)
        files = next((each for each in candidates if each is not None), None)
        if files is None:
            missing.append(spelt[0])
            continue
        chosen, others = files
        taken = [*chosen, *(file for file in others if _has_extension(file.path, file_extensions))]
        other_endings += len(chosen) + len(others) - len(taken)
        found.update(map(absolute_path, _each_once(taken)))
    in_stores, absent_there = ({}, []) if remote is None else (remote.taken, remote.missing)
    if (missing or absent_there) and not ignore_missing_paths:
        from ray_h5.storage.missing_paths import missing_paths

        may_go_on = ignore_missing_paths is not None and bool(found or in_stores)
        raise missing_paths(absent_there, missing, str if remote is None else remote.note, may_go_on)
    if not found and not in_stores:
        from ray_h5.storage.missing_paths import nothing_found

        raise nothing_found(given, other_endings, file_extensions, [*absent_there, *missing])
    return FoundFiles(sorted({*found, *in_stores}, key=natural_key), in_stores)


def is_local_only(paths: PathLike | Sequence[PathLike]) -> bool:
    """Return whether a path begins with ``local://``: only the node of the driver has the file."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return any(os.fspath(each).lower().startswith("local://") for each in given)


def list_paths(paths: object, option: str = "paths") -> list[PathLike]:
    """Return the paths one by one. This uses up an iterator, such as the one of ``Path.glob``.

    Raises
    ------
    OptionError
        If there is none, or one is no path.
    """
    single = isinstance(paths, (str, os.PathLike))
    for each in paths if isinstance(paths, (list, tuple)) else [paths]:
        # An h5py.File; a dataset or a group has one. All rows of a dataset would be listed as paths.
        if isinstance(name := getattr(getattr(each, "file", each), "filename", None), str):
            raise OptionError(f"{option}: expected a path, found an open file; pass its name, {name!r}")
    is_dataset = type(paths).__name__.endswith("Dataset")  # one of Ray has an `__iter__` that raises
    if not single and (is_dataset or not isinstance(paths, Iterable) or isinstance(paths, (bytes, Mapping))):
        found = f": found a dataset, {type(paths).__name__}; pass its paths" if is_dataset else f"={paths!r}"
        raise OptionError(f"{option}{found}: expected a file, a directory, a glob, or a list of them")
    given: list[PathLike] = [cast("PathLike", paths)] if single else list(cast("Iterable[PathLike]", paths))
    if not given:
        raise OptionError(f"{option}: expected at least one file, directory or glob, found an empty list")
    for path in given:
        # An empty path would be the root of `filesystem`, and is more often a variable that was not set.
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise OptionError(f"{option}: expected str or path-like, found {reprlib.repr(path)}")
    return given


def _check_extensions(extensions: object) -> None:
    if isinstance(extensions, str):
        # Each letter would be an ending.
        raise OptionError(
            f"file_extensions={extensions!r}: expected a list of endings, found one; write "
            f"file_extensions=[{extensions!r}]"
        )
    if extensions is not None and not (
        isinstance(extensions, Collection) and extensions and all(map(_is_ending, extensions))
    ):
        raise OptionError(
            f"file_extensions={extensions!r}: expected at least one ending, such as 'h5', or None for all files"
        )


def _is_ending(given: object) -> bool:
    return isinstance(given, str) and given.strip(".") != ""


def _candidates(path: str, by_glob: bool) -> tuple[Sequence[Listed], Sequence[Listed]] | None:
    """Return the files at `path` that are taken with any ending, and the others; None if there is nothing.

    The former are named themselves or, if `by_glob`, match a glob that ends in an extension.
    """
    if os.path.isdir(path):
        try:
            os.scandir(path).close()
        except OSError as exc:
            raise NotReadableError(
                f"{path}: this folder cannot be listed: {exc.strerror}; ask for the right to read it"
            ) from exc
        from ray_h5.storage.local_listing import walk

        return [], list(walk([path]))
    if os.path.lexists(path):
        return [Listed(path, path)], []
    if glob.has_magic(path):
        from ray_h5.storage.local_listing import matches

        matched, below = matches(path)
        if matched or below:
            return (matched, below) if by_glob and _names_extension(path) else ([], [*matched, *below])
    return None


def _each_once(files: Sequence[Listed]) -> list[str]:
    """Return one path of each file."""
    if len(files) < 2:
        return [file.path for file in files]
    from ray_h5.storage.local_listing import each_once

    return each_once(files)


def _names_extension(pattern: str) -> bool:
    extension = Path(pattern).suffix
    return len(extension) > 1 and not glob.has_magic(extension)


def _endings(extensions: Iterable[str] | None) -> set[str] | None:
    return None if extensions is None else {"." + each.lstrip(".").lower() for each in extensions}


def _has_extension(path: str, extensions: Iterable[str] | None) -> bool:
    endings = _endings(extensions)
    return endings is None or path.lower().endswith(tuple(endings))


def _root_of(filesystem: object) -> str:
    from ray_h5.storage.stores.file_systems import local_root

    return local_root(filesystem)
