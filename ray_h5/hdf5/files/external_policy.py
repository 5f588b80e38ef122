"""Files that another file refers to: which file each name means, on a disk and in a store, and which may be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ray_h5.errors import ExternalDataError, MissingSourceError, OptionError
from ray_h5.messages import printable
from ray_h5.storage.addresses import (
    SCHEMES,
    Address,
    check_slashes,
    is_url,
    scheme_of,
    shown,
    split_urls,
    without_secrets,
)
from ray_h5.storage.local import LOCAL, PathLike, absolute_path
from ray_h5.storage.storage_of_path import InStore, Storage

# Environment variables that libhdf5 puts before the names in a file.
_REDIRECTIONS = ("HDF5_VDS_PREFIX", "HDF5_EXTFILE_PREFIX", "HDF5_EXT_PREFIX")

_COPY = (
    "Copy the values into the file (`h5repack`, or h5py's copy() with expand_external=True); or put both files into one"
    " folder of the store, and write the link again with a relative name."
)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def as_roots(allow_external: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """Return the folders as absolute paths: other processes have other current folders. URLs lose what is secret.

    A single string is one folder, not a list of its letters: ``/`` among them would allow everything.

    Raises
    ------
    OptionError
        If they are not names of folders, or one is empty: that would be the current folder of each process.
    """
    folders = [allow_external] if isinstance(allow_external, (str, bytes, os.PathLike)) else allow_external
    try:
        roots = [os.fsdecode(root) for root in folders]
    except TypeError as exc:
        raise OptionError(f"allow_external={allow_external!r}: expected folders, or () for none") from exc
    if "" in roots:
        raise OptionError(f"allow_external={roots}: expected folders, found an empty name")
    for root in roots:
        check_slashes(root)
    return tuple(as_remote_root(root) if is_url(root) else absolute_path(root) for root in roots)


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """Which other files may be read: those below `roots`, which are folders and, for files in stores, URLs."""

    roots: tuple[str, ...] = ()

    def check_name(self, name: str, *, home: str, where: str) -> None:
        """Raise if a local file refers to a URL."""
        if is_url(name):
            raise ExternalDataError(
                f"{home}: {where} leads to a file in a store, which is not read for a local one. Copy that file "
                "next to it, and write the link again with its name; or read that file itself."
            )

    @classmethod
    def of(cls, allow_external: PathLike | Iterable[PathLike]) -> ExternalPolicy:
        urls, folders = split_urls(as_roots(allow_external))
        return cls((*map(os.path.realpath, folders), *urls))

    def admit(self, path: str, *, home: str, where: str, real: str | None = None) -> None:
        """Raise unless a file may be read that another file refers to; both are local.

        Parameters
        ----------
        path : str
            The file. libhdf5 looks up a relative name in the current folder.
        home : str
            The file that was opened first. It may always be read.
        where : str
            The link or dataset that refers to `path`, for messages.
        real : str, optional
            The real path of the file that was opened by this name: a link may lead elsewhere by now.

        Raises
        ------
        ExternalDataError
            If it is outside the roots, or its name is relative to the current folder of a process.
        """
        self.check_name(path, home=home, where=where)
        shown, real = printable(path), os.path.realpath(path) if real is None else real
        for variable in _REDIRECTIONS:
            if os.environ.get(variable):
                raise ExternalDataError(
                    f"{home}: {where} leads to {shown}, but {variable} makes libhdf5 look elsewhere; unset it"
                )
        if not os.path.isabs(path):
            # Another process, with another current folder, would read another file than the one checked here.
            raise ExternalDataError(
                f"{home}: {where} leads to {path!r}, a relative name, which libhdf5 looks up in the current "
                "folder of each process. Write the column again with an absolute name, or into the file."
            )
        _, roots = split_urls(self.roots)
        if real != os.path.realpath(home) and not any(os.path.commonpath([root, real]) == root for root in roots):
            raise self._outside(f"{home}: {where} leads to {printable(real)}", os.path.dirname(real))

    def admit_remote(self, url: str, *, home: str, where: str, storage: InStore) -> None:
        """Raise unless a file in a store may be read that another file of the same store refers to.

        Parameters and errors are those of `admit`.
        """
        address = storage.address(url)
        if address == storage.address(home):
            return
        if not any(_is_below(address, storage.address(root)) for root in split_urls(self.roots)[0]):
            folder = address.url(address.key.rpartition("/")[0] + "/" if "/" in address.key else "")
            raise self._outside(f"{home}: {where} leads to {printable(url)}", folder)

    def _outside(self, said: str, folder: str) -> ExternalDataError:
        return ExternalDataError(
            f"{said}, which is outside allow_external={list(self.roots)}. If you trust it, pass "
            f"allow_external=[{folder!r}]."
        )


@dataclass(frozen=True, slots=True)
class Access:
    """How a file is opened.

    Attributes
    ----------
    path : str
        The file.
    group : str
        The group that column names are relative to.
    policy : ExternalPolicy
        Which other files may be read.
    swmr : bool
        Whether a writer in SWMR mode may have it open, or the files that links lead to.
    storage : Storage
        Where it is.
    beside : str
        A file of the same rows, whose columns join those of the file; empty for none.
    """

    path: str
    group: str
    policy: ExternalPolicy
    swmr: bool = False
    storage: Storage = LOCAL
    beside: str = ""


def places_of(name: str, source: str) -> list[str]:
    """Return the paths where libhdf5 looks, in this order, for a file that `source` refers to by `name`.

    A relative path is one in the current folder.
    """
    absolute = os.path.isabs(name)
    tail = os.path.basename(name) if absolute else name
    places = [name] if absolute else []
    # Next to the file by the name it was opened with, then the current folder.
    places += [os.path.join(os.path.dirname(os.path.abspath(source)), tail), tail]
    if Path(source).is_symlink():
        # Last: next to the file that a symbolic link leads to.
        places.append(os.path.join(os.path.dirname(os.path.realpath(source)), tail))
    return places


# Names in stores --------------------------------------------------------------------------


def as_remote_root(url: str) -> str:
    """Return a URL that files may be below, without what is secret and without the slash at its end.

    Raises
    ------
    OptionError
        If no file can be below it.
    """
    plain = without_secrets(url)[0].rstrip("/")
    if scheme_of(plain) in SCHEMES:
        # s3a:// is s3://; and a bucket with a key and its secret is refused.
        address = Address.of(plain)
        key = address.key
        plain = address.url(key).rstrip("/")
    else:
        plain = shown(plain).rstrip("/")  # of a file system of fsspec
        key = plain.partition("://")[2].partition("/")[2]
    if key and any(part in {"", ".", ".."} for part in key.split("/")):
        raise OptionError(
            f"allow_external={shown(url)!r}: expected the URL of a folder, found an empty part, '.' or '..' in it"
        )
    return plain


def _is_below(address: Address, root: Address) -> bool:
    """Return whether a file is in a folder of the same store, or in one below it."""
    folder = root.key.rstrip("/")
    same = (address.kind, address.root) == (root.kind, root.root)
    return same and (not folder or address.key == folder or address.key.startswith(folder + "/"))


def remote_name(name: str, source: str, *, home: str, where: str, storage: InStore) -> str:
    """Return the URL of the file that `source`, a remote file, refers to by `name`; the others are for messages.

    Raises
    ------
    ExternalDataError
        If it is a local path, of another store, or above the top of the store.
    MissingSourceError
        If no file of a store can have that name.
    """
    begin, here = f"{home}: {where} leads to", storage.address(source)
    parts = here.key.split("/")[:-1]
    if is_url(name):
        parts = _key_in(here, name, begin, storage).split("/")
    elif os.path.isabs(name) or "://" in name or _DRIVE.match(name) or name.startswith("\\\\"):
        raise ExternalDataError(
            f"{begin} {printable(name)}, a path of a local disk. A file in a store leads to files of the same store "
            f"only. {_COPY}"
        )
    for part in [] if is_url(name) else name.split("/"):
        if part == ".." and not parts:
            raise ExternalDataError(
                f"{begin} {printable(name)}, which is above the top of {here.url('')}. Write the link again with "
                "a name below it."
            )
        if part == "..":
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    key = "/".join(parts)
    try:
        key.encode()
    except UnicodeEncodeError:
        raise MissingSourceError(
            f"{begin} {printable(name)!r}, a name that is not UTF-8, which no file in a store has"
        ) from None
    if not key:
        raise MissingSourceError(f"{begin} {printable(name)!r}, which is a folder")
    return here.url(key)


def _key_in(here: Address, url: str, begin: str, storage: InStore) -> str:
    """Return the key of a URL of the same store."""
    try:
        there = storage.address(without_secrets(url)[0])
    except OptionError:
        there = None
    if there is None or (there.kind, there.root) != (here.kind, here.root):
        raise ExternalDataError(
            f"{begin} {printable(shown(url))}, which is not in {here.url('')}. A file in a store leads to files of "
            f"the same bucket or host only. {_COPY}"
        )
    if any(part in {"", ".", ".."} for part in there.key.split("/")):
        raise ExternalDataError(
            f"{begin} {printable(shown(url))}, a URL with an empty part, '.' or '..' in it. Write the link again with "
            "the URL without them, or with a relative name."
        )
    return there.key
