"""What a user writes for `paths` -> the files, in order."""

from __future__ import annotations

import functools
import glob
import heapq
import itertools
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote_to_bytes

from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.storage.local import PathLike, absolute_path

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def local_root(filesystem: Any) -> str:
    """Return what relative paths start from; nothing for the folder of the process."""
    if filesystem is None or isinstance(filesystem, LocalFileSystem):
        return ""
    if isinstance(filesystem, SubTreeFileSystem):
        return _below(local_root(filesystem.base_fs), filesystem.base_path)
    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return local_root(filesystem.handler.fs)
    protocols = getattr(filesystem, "protocol", ())  # fsspec's name of itself, or a tuple of them
    protocols = [protocols] if isinstance(protocols, str) else protocols
    if "file" in protocols:
        return ""
    if "dir" in protocols:
        return _below(local_root(filesystem.fs), filesystem.path)
    raise OptionError(
        f"filesystem={filesystem!r}: expected a local one; HDF5 files are read from mounted file systems. Mount "
        "the store, or copy the files to a disk that every node sees."
    )


def _below(root: str, folder: str) -> str:
    return os.path.join(root, folder.lstrip("/")) if root else folder


def spellings(path: PathLike) -> list[str]:
    """Return the path that is meant; of a URI with escapes also what they stand for, should there be nothing else."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise OptionError(f"paths: expected str or path-like, found {text!r}")
    if "\0" in text:
        raise OptionError(f"{text!r}: a path cannot contain a NUL character")
    scheme = _SCHEME.match(text)
    if scheme:
        if scheme[1].lower() not in {"file", "local"}:
            raise OptionError(
                f"{text}: expected a path of a mounted file system, found {scheme[1]}://. Mount the store, or copy "
                "the files to a disk that every node sees."
            )
        text = text[scheme.end() :]
        if scheme[1].lower() == "file" and text.startswith("localhost/"):  # RFC 8089: the host may be named
            text = text.removeprefix("localhost")
    is_escaped = scheme is not None and scheme[1].lower() == "file" and "%" in text
    unescaped = [os.fsdecode(unquote_to_bytes(os.fsencode(text)))] if is_escaped else []
    return [os.path.expanduser(each) for each in (text, *unescaped)]


__all__ = ["DEFAULT_EXTENSIONS", "NaturalKey", "PathLike", "expand_paths", "is_local_only", "list_paths", "natural_key"]


logger = logging.getLogger(__name__)


DEFAULT_EXTENSIONS = ("h5", "hdf5")


_MAX_LISTED = 20


NaturalKey = tuple[tuple[tuple[int, int, str], ...], str]


class _Found(NamedTuple):
    """A file or folder: the path by which it was found, the one that passes no link, and whether any ending will do."""

    path: str
    real: str
    chosen: bool = False


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
        Files, directories (searched to the bottom) and globs. Neither finds hidden files, such as
        the ``._run.h5`` that some systems leave beside a file, or follows a symbolic link to a
        folder that it lies in. What one directory or glob holds under several names, through
        symbolic links to files or folders, is taken once: by the name that passes the fewest
        links, and of these by the first in order. Beside ``run5``, ``latest -> run5`` adds
        nothing. Hard links are files of their own, and so are two names that are both given.
    file_extensions : sequence of str, optional
        Endings of the files to take from directories and globs; None takes all. A file that is
        named itself is always taken. So is, unless endings are given, what a glob matches that
        names one itself, such as ``*.nc``.
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
    NotReadableError
        If a directory cannot be listed. One below it that cannot is left out, with a warning in the log.
    OptionError
        If an argument is of another kind than said above.
    """
    given = list_paths(paths)
    _check_extensions(file_extensions)
    # The tuple of the default itself: an equal one of the user's own is an answer, and holds for globs too.
    unsaid = file_extensions is DEFAULT_EXTENSIONS
    found: set[str] = set()
    missing: list[str] = []
    passed_over = 0
    root = local_root(filesystem)
    for path in given:
        spelt = [os.path.join(root, each) for each in spellings(path)]
        looked_for = (_candidates(each, unsaid) for each in spelt)
        files = next((each for each in looked_for if each is not None), None)
        if files is None:
            missing.append(spelt[0])
            continue
        taken = [file for file in files if file.chosen or _has_extension(file.path, file_extensions)]
        passed_over += len(files) - len(taken)
        found.update(absolute_path(path) for path in _each_once(taken))
    if missing and not ignore_missing_paths:
        raise NotFoundError(_list_missing(missing))
    if not found:
        raise NotFoundError(_say_nothing_found(given, passed_over, file_extensions, missing))
    return sorted(found, key=natural_key)


def natural_key(path: str) -> NaturalKey:
    """Return a sort key under which numbers inside a path compare by value."""
    parts = re.split(r"([0-9]+)", path)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part), path


def is_local_only(paths: PathLike | Sequence[PathLike]) -> bool:
    """Tell whether a path says, with ``local://``, that only the driver's node has the file."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return any(os.fspath(each).lower().startswith("local://") for each in given)


def list_paths(paths: object) -> list[PathLike]:
    """Return what `paths` names, one by one; an iterator, such as of ``Path.glob``, is used up by it.

    Raises
    ------
    OptionError
        If that is nothing, or something else than paths.
    """
    single = isinstance(paths, (str, os.PathLike))
    if not single and not (isinstance(paths, Iterable) and not isinstance(paths, bytes)):
        raise OptionError(f"paths={paths!r}: expected a file, a directory, a glob, or a list of them")
    given: list[PathLike] = [cast("PathLike", paths)] if single else list(cast("Iterable[PathLike]", paths))
    if not given:
        raise OptionError("paths: expected at least one file, directory or glob, found an empty list")
    for path in given:
        # An empty path would be the root of `filesystem`, and is more often a variable that was not set.
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise OptionError(f"paths: expected str or path-like, found {path!r}")
    return given


def _check_extensions(extensions: object) -> None:
    if isinstance(extensions, str):
        # Its letters would be endings one by one, and would match files that are none of HDF5.
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


def _candidates(path: str, by_glob: bool) -> list[_Found] | None:
    """Return the files at `path`, or None if there is nothing.

    One is chosen, whatever its ending, where it is named itself, and if `by_glob` also where a glob that
    names an extension matches it.
    """
    if os.path.isdir(path):
        try:
            os.scandir(path).close()
        except OSError as exc:
            raise NotReadableError(
                f"{path}: this folder cannot be listed: {exc.strerror}; ask for the right to read it"
            ) from exc
        return list(_walk([path]))
    if os.path.lexists(path):
        return [_Found(path, path, chosen=True)]
    if glob.has_magic(path):
        return _globbed(path, by_glob and _names_extension(path)) or None
    return None


def _names_extension(pattern: str) -> bool:
    extension = Path(pattern).suffix
    return len(extension) > 1 and not glob.has_magic(extension)


def _globbed(pattern: str, chosen: bool) -> list[_Found]:
    real = functools.cache(os.path.realpath)
    files: list[_Found] = []
    folders: list[str] = []
    for each in _matched(pattern):
        if not os.path.isdir(each):
            parent, name = os.path.split(each)
            where = real(each) if Path(each).is_symlink() else os.path.join(real(parent), name)
            files.append(_Found(each, where, chosen))
        elif not (glob.has_magic(os.path.basename(pattern)) and _leads_up(each)):
            folders.append(each)
    return [*files, *_walk(folders)]


def _matched(pattern: str) -> list[str]:
    """Return what a glob matches.

    The standard library's ``**`` follows links that lead up, over and over: two of them are enough for it
    never to end.
    """
    parts = Path(pattern).parts
    if "**" not in parts:
        return glob.glob(pattern)
    at = parts.index("**")
    tops, below = glob.glob(str(Path(*parts[:at]))), parts[at + 1 :]
    if not below:
        return [file.path for file in _walk(tops)]
    return [path for folder, _ in _descend(tops) for path in _matched(os.path.join(glob.escape(folder.path), *below))]


def _walk(tops: Iterable[str]) -> Iterator[_Found]:
    for folder, entries in _descend(tops):
        for entry in entries:
            yield _found(entry, folder.real)


def _found(entry: os.DirEntry[str], real_parent: str) -> _Found:
    # Of what is no link, the real path costs no look at the file system.
    real = os.path.realpath(entry) if entry.is_symlink() else os.path.join(real_parent, entry.name)
    return _Found(entry.path, real)


def _descend(tops: Iterable[str]) -> Iterator[tuple[_Found, list[os.DirEntry[str]]]]:
    """Yield each folder from `tops` on once, with its files; none that is hidden, as in globs.

    Links can give a folder any number of names, each a way to all the others. It goes by the one that
    passes the fewest links: those are met last. Folders are told apart by their real paths: inodes are
    not unique on every mount, and one taken for another would be left out.
    """
    waiting = [(*_detour(top), _Found(top, os.path.realpath(top))) for top in tops]
    heapq.heapify(waiting)
    walked: set[str] = set()
    while waiting:
        links, _, folder = heapq.heappop(waiting)
        if folder.real in walked:
            continue
        walked.add(folder.real)
        folders, files = _listed(folder.path)
        yield folder, files
        for each in folders:
            if not (each.is_symlink() and _leads_up(each.path)):
                found = _found(each, folder.real)
                heapq.heappush(waiting, (links + each.is_symlink(), natural_key(found.path), found))


def _listed(folder: str) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the folders and the files in `folder`."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as exc:
        # Many a disk has such a folder at its top (lost+found), with nothing in it for anybody.
        logger.warning("%s: this folder cannot be listed, and is left out: %s", folder, exc.strerror)
        return [], []
    # `DirEntry.is_dir` would raise at a link in a circle, but asks for no `stat` of what is no link.
    are_folders = [os.path.isdir(entry) if entry.is_symlink() else entry.is_dir() for entry in shown]
    files = [entry for entry, is_folder in zip(shown, are_folders, strict=True) if not is_folder]
    return list(itertools.compress(shown, are_folders)), files


def _leads_up(folder: str) -> bool:
    """Tell whether a folder is a link to one that it lies in."""
    if not Path(folder).is_symlink():
        return False
    target = os.path.realpath(folder)
    return os.path.commonpath([target, os.path.realpath(os.path.dirname(folder))]) == target


def _each_once(files: Iterable[_Found]) -> list[str]:
    """Return one path of each file: the one that passes the fewest links, and of these the first in order."""
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.real, []).append(file.path)
    return [each[0] if len(each) == 1 else min(each, key=_detour) for each in paths.values()]


def _detour(path: str) -> tuple[int, NaturalKey]:
    """Return a sort key under which a path comes before others that pass more links."""
    return sum(each.is_symlink() for each in (Path(path), *Path(path).parents)), natural_key(path)


def _has_extension(path: str, extensions: Iterable[str] | None) -> bool:
    if extensions is None:
        return True
    wanted = tuple("." + each.lstrip(".").lower() for each in extensions)
    return path.lower().endswith(wanted)


def _list_missing(missing: Sequence[str]) -> str:
    shown = "\n".join(f"  {path}{_missing_note(path)}" for path in missing[:_MAX_LISTED])
    more = f"\n  and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    many = "1 path does not exist" if len(missing) == 1 else f"{len(missing)} paths do not exist"
    correct = "Correct it" if len(missing) == 1 else "Correct them"
    return f"{many}:\n{shown}{more}\n{correct}, or pass ignore_missing_paths=True to go on without."


def _missing_note(path: str) -> str:
    notes = ["a glob that matches nothing"] if glob.has_magic(path) else []
    if not os.path.isabs(path):
        notes.append(f"looked in {Path.cwd()}")
    return f" ({', '.join(notes)})" if notes else ""


def _say_nothing_found(
    given: Sequence[PathLike], passed_over: int, extensions: Iterable[str] | None, missing: Sequence[str]
) -> str:
    where = ", ".join(repr(os.fspath(path)) for path in given[:_MAX_LISTED])
    if passed_over:
        why = (
            f"{'1 file there does' if passed_over == 1 else f'{passed_over} files there do'} not end in "
            f"{' or '.join(extensions or ())}. Name other endings with file_extensions=[...], or in a glob, such as "
            "'*.nc'; any with file_extensions=None."
        )
    elif missing:
        why = "all of these are missing." if len(missing) == len(given) else "what exists of these holds no file."
    else:
        why = "there are no files."
    return f"found no HDF5 file in {where}: {why}"
