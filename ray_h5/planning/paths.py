"""What a user writes for `paths` -> the files, in order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ray_h5.errors import NotFoundError, OptionError

PathLike = str | os.PathLike[str]

DEFAULT_EXTENSIONS = ("h5", "hdf5")

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_MAX_LISTED = 20


def expand_paths(
    paths: PathLike | Sequence[PathLike],
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS,
    ignore_missing_paths: bool = False,
    filesystem: object = None,
) -> list[str]:
    """Return the files that `paths` stands for.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        Files, directories (searched to the bottom) and globs.
    file_extensions : sequence of str, optional
        Endings of the files to take from directories and globs; None takes all. A file that is
        named itself is always taken.
    ignore_missing_paths : bool
        Leave out what does not exist, as long as something is left.
    filesystem : pyarrow or fsspec file system, optional
        A local one, or a subtree of a local one, whose root relative paths then start from.

    Returns
    -------
    list of str
        Absolute paths, sorted naturally (``f2`` before ``f10``), without duplicates.

    Raises
    ------
    NotFoundError
        Listing every path that does not exist, or where nothing is found at all.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise OptionError("paths: expected at least one file, directory or glob, found an empty list")
    found: set[str] = set()
    missing: list[str] = []
    passed_over = 0
    root = _local_root(filesystem)
    for each in (os.path.join(root, _local(path)) for path in given):
        files = _candidates(each)
        if files is None:
            missing.append(each)
            continue
        named = files == [each]
        taken = [file for file in files if named or _has_extension(file, file_extensions)]
        passed_over += len(files) - len(taken)
        found.update(os.path.abspath(file) for file in taken)
    if missing and not ignore_missing_paths:
        raise NotFoundError(_list_missing(missing))
    if not found:
        raise NotFoundError(
            f"found no HDF5 file in {', '.join(map(repr, given[:_MAX_LISTED]))}: {passed_over} files there do not "
            f"end in {file_extensions}, {len(missing)} paths do not exist. Name other endings with "
            "file_extensions=[...], or any with file_extensions=None."
        )
    return sorted(found, key=natural_key)


def natural_key(path: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key under which numbers inside a path compare by value."""
    parts = re.split(r"([0-9]+)", path)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part), path


def is_local_only(paths: PathLike | Sequence[PathLike]) -> bool:
    """Tell whether a path says, with ``local://``, that only the driver's node has the file."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return any(os.fspath(each).startswith("local://") for each in given)


def _local_root(filesystem: object) -> str:
    if filesystem is None or isinstance(filesystem, LocalFileSystem):
        return ""
    if isinstance(filesystem, SubTreeFileSystem) and isinstance(filesystem.base_fs, LocalFileSystem):
        return str(filesystem.base_path)
    protocols = getattr(filesystem, "protocol", ())  # fsspec's name of itself, or a tuple of them
    if "file" in ([protocols] if isinstance(protocols, str) else protocols):
        return ""
    raise OptionError(
        f"filesystem={filesystem!r}: expected a local one; HDF5 files are read from mounted file systems. Mount "
        "the store, or copy the files to a disk that every node sees."
    )


def _local(path: PathLike) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise OptionError(f"paths: expected str or path-like, found {text!r}")
    if "\0" in text:
        raise OptionError(f"{text!r}: a path cannot contain a NUL character")
    if scheme := _SCHEME.match(text):
        if scheme[1] not in {"file", "local"}:
            raise OptionError(
                f"{text}: expected a path of a mounted file system, found {scheme[1]}://. Mount the store, or copy "
                "the files to a disk that every node sees."
            )
        text = text[scheme.end() :]
    return os.path.expanduser(text)


def _candidates(path: str) -> list[str] | None:
    """Return the files at `path`, or None if there is nothing."""
    if os.path.isdir(path):
        return list(_walk(path))
    if os.path.lexists(path):
        return [path]
    if glob.has_magic(path):
        matched = glob.glob(path, recursive=True)
        return [file for each in matched for file in (_walk(each) if os.path.isdir(each) else [each])] or None
    return None


def _walk(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (os.path.join(parent, name) for name in names)


def _has_extension(path: str, extensions: Iterable[str] | None) -> bool:
    if extensions is None:
        return True
    wanted = tuple("." + each.lstrip(".").lower() for each in extensions)
    return path.lower().endswith(wanted)


def _list_missing(missing: Sequence[str]) -> str:
    shown = "\n".join(f"  {path}" for path in missing[:_MAX_LISTED])
    more = f"\n  and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    return (
        f"{len(missing)} of the paths do not exist:\n{shown}{more}\n"
        "Correct them, or pass ignore_missing_paths=True to go on without."
    )
