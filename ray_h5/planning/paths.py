"""`paths` as a user writes them -> the files, in order."""

from __future__ import annotations

import glob
import os
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.planning.remote_paths import RemoteFiles, States
from ray_h5.storage.addresses import has_magic, is_url, shown, without_secrets
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.listing import Listed, each_once, matches, natural_key, walk
from ray_h5.storage.local import LOCAL, PathLike, absolute_path
from ray_h5.storage.storages import RemoteStorage, Storage

__all__ = ["DEFAULT_EXTENSIONS", "PathLike", "expand_paths", "find_files", "is_local_only", "list_paths", "natural_key"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def local_root(filesystem: Any) -> str:
    """Return the folder that relative paths start from; an empty path for the current folder."""
    if filesystem is None or isinstance(filesystem, LocalFileSystem):
        return ""
    if isinstance(filesystem, SubTreeFileSystem):
        return _below(local_root(filesystem.base_fs), filesystem.base_path)
    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return local_root(filesystem.handler.fs)
    protocols = getattr(filesystem, "protocol", ())  # of fsspec: a name, or a tuple of names
    protocols = [protocols] if isinstance(protocols, str) else protocols
    if "file" in protocols:
        return ""
    if "dir" in protocols:
        return _below(local_root(filesystem.fs), filesystem.path)
    raise OptionError(f"filesystem={filesystem!r}: expected a local one, or a file system of fsspec or pyarrow")


def is_remote_filesystem(filesystem: Any) -> bool:
    """Return whether a file system is one of fsspec or pyarrow that is not local."""
    if filesystem is None or not (isinstance(filesystem, FileSystem) or hasattr(filesystem, "cat_file")):
        return False
    try:
        local_root(filesystem)
    except OptionError:
        return True
    return False


def _below(root: str, folder: str) -> str:
    return os.path.join(root, folder.lstrip("/")) if root else folder


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


DEFAULT_EXTENSIONS = ("h5", "hdf5", "h5ad")


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
    urls = [os.fspath(path) for path in given if is_url(os.fspath(path))]
    remote = _Remote.of(urls, storage)
    for url in urls:
        named = remote.files(url, by_glob)
        if named is None:
            missing.append(shown(url))
            continue
        other_endings += remote.take(*named, file_extensions)
    root = local_root(filesystem)
    for path in given:
        if is_url(os.fspath(path)):
            continue
        spelt = [os.path.join(root, each) for each in spellings(path)]
        candidates = (_candidates(each, by_glob) for each in spelt)
        files = next((each for each in candidates if each is not None), None)
        if files is None:
            missing.append(spelt[0])
            continue
        chosen, others = files
        taken = [*chosen, *(file for file in others if _has_extension(file.path, file_extensions))]
        other_endings += len(chosen) + len(others) - len(taken)
        found.update(map(absolute_path, each_once(taken)))
    if missing and not ignore_missing_paths:
        raise NotFoundError(_list_missing(missing, remote.note, ignore_missing_paths is not None))
    if not found and not remote.taken:
        raise NotFoundError(_say_nothing_found(given, other_endings, file_extensions, missing))
    return FoundFiles(sorted({*found, *remote.taken}, key=natural_key), remote.taken)


@dataclass(slots=True)
class _Remote:
    """The files in stores that were found so far."""

    finder: RemoteFiles | None
    named: Mapping[str, ObjectIdentity | None]
    taken: States = field(default_factory=dict)

    @classmethod
    def of(cls, urls: Sequence[str], storage: Storage) -> _Remote:
        if not urls:
            return cls(None, {})
        if not isinstance(storage, RemoteStorage):
            raise OptionError(f"{shown(urls[0])}: expected a path of the local file system, found a URL")
        finder = RemoteFiles(storage)
        return cls(finder, finder.named(list(dict.fromkeys(without_secrets(url)[0] for url in urls))))

    def files(self, given: str, by_glob: bool) -> tuple[States, States] | None:
        """Return what `RemoteFiles.candidates` does, of files that are named too."""
        assert self.finder is not None
        url = without_secrets(given)[0]
        state = self.named.get(url)
        if state is not None:
            return {url: state}, {}
        may_be_file = not has_magic(url) and not url.endswith("/")
        refused = None
        try:
            found = self.finder.candidates(url, by_glob)
        except NotReadableError as exc:
            if not may_be_file:
                raise
            found, refused = None, exc  # who may not list may read
        if found is not None or not may_be_file or url in self.named:
            return found
        state = self.finder.identity(url)
        if state is None and refused is not None:
            raise refused
        return None if state is None else ({url: state}, {})

    def take(self, named: States, others: States, extensions: Sequence[str] | None) -> int:
        """Take the files that end as asked, and return how many do not."""
        taken = {**named, **{url: state for url, state in others.items() if _has_extension(url, extensions)}}
        self.taken.update(taken)
        return len(named) + len(others) - len(taken)

    def note(self, path: str) -> str:
        """Return what to say about a file that is missing in a store."""
        return "" if self.finder is None or not is_url(path) or has_magic(path) else self.finder.note(path)


def is_local_only(paths: PathLike | Sequence[PathLike]) -> bool:
    """Return whether a path begins with ``local://``: only the node of the driver has the file."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return any(os.fspath(each).lower().startswith("local://") for each in given)


def list_paths(paths: object) -> list[PathLike]:
    """Return the paths one by one. This uses up an iterator, such as the one of ``Path.glob``.

    Raises
    ------
    OptionError
        If there is none, or one is no path.
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
            raise OptionError(f"paths: expected str or path-like, found {reprlib.repr(path)}")
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


def _candidates(path: str, by_glob: bool) -> tuple[list[Listed], list[Listed]] | None:
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
        return [], list(walk([path]))
    if os.path.lexists(path):
        return [Listed(path, path)], []
    if glob.has_magic(path):
        matched, below = matches(path)
        if matched or below:
            return (matched, below) if by_glob and _names_extension(path) else ([], [*matched, *below])
    return None


def _names_extension(pattern: str) -> bool:
    extension = Path(pattern).suffix
    return len(extension) > 1 and not glob.has_magic(extension)


def _endings(extensions: Iterable[str] | None) -> set[str] | None:
    return None if extensions is None else {"." + each.lstrip(".").lower() for each in extensions}


def _has_extension(path: str, extensions: Iterable[str] | None) -> bool:
    endings = _endings(extensions)
    return endings is None or path.lower().endswith(tuple(endings))


def _list_missing(missing: Sequence[str], note_of: Callable[[str], str], may_go_on: bool) -> str:
    shown = "\n".join(f"  {path}{_missing_note(path, note_of(path))}" for path in missing[:_MAX_LISTED])
    more = f"\n  and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    many = "1 path does not exist" if len(missing) == 1 else f"{len(missing)} paths do not exist"
    correct = f"Correct {'it' if len(missing) == 1 else 'them'}"
    or_else = ", or pass ignore_missing_paths=True to go on without" if may_go_on else ""
    return f"{many}:\n{shown}{more}\n{correct}{or_else}."


def _missing_note(path: str, note: str) -> str:
    notes = ["a glob that matches nothing"] if glob.has_magic(path) else []
    if note:
        notes.append(note)
    if not os.path.isabs(path) and not is_url(path):
        notes.append(f"looked in {Path.cwd()}")
    return f" ({', '.join(notes)})" if notes else ""


def _say_nothing_found(
    given: Sequence[PathLike], other_endings: int, extensions: Iterable[str] | None, missing: Sequence[str]
) -> str:
    where = ", ".join(repr(shown(os.fspath(path))) for path in given[:_MAX_LISTED])
    if other_endings:
        why = (
            f"{'1 file there does' if other_endings == 1 else f'{other_endings} files there do'} not end in "
            f"{' or '.join(extensions or ())}. Name other endings with file_extensions=[...], or in a glob, such as "
            "'*.nc'; any with file_extensions=None."
        )
    elif missing:
        why = "all of these are missing." if len(missing) == len(given) else "what exists of these holds no file."
    else:
        why = "there are no files."
    return f"found no HDF5 file in {where}: {why}"
