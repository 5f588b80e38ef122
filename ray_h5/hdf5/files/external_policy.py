"""How a file is opened, and which other files may be read that it refers to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ray_h5.errors import ExternalDataError, OptionError
from ray_h5.messages import printable
from ray_h5.storage.addresses import (
    SCHEMES,
    StoreAddress,
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
    return tuple(_as_remote_root(root) if is_url(root) else absolute_path(root) for root in roots)


def _as_remote_root(url: str) -> str:
    """Return a URL that files may be below, without what is secret and without the slash at its end."""
    plain = without_secrets(url)[0].rstrip("/")
    if scheme_of(plain) in SCHEMES:
        # s3a:// is s3://; and a bucket with a key and its secret is refused.
        address = StoreAddress.of(plain)
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


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """Which other files may be read: those below `roots`, which are folders and, for files in stores, URLs."""

    roots: tuple[str, ...] = ()

    @classmethod
    def of(cls, allow_external: PathLike | Iterable[PathLike]) -> ExternalPolicy:
        if isinstance(allow_external, tuple) and not allow_external:
            return cls()
        urls, folders = split_urls(as_roots(allow_external))
        return cls((*map(os.path.realpath, folders), *urls))

    def admit_name(self, name: str, *, home: str, where: str) -> None:
        """Raise if a local file refers to a URL."""
        if is_url(name):
            raise ExternalDataError(
                f"{home}: {where} leads to a file in a store, which is not read for a local one. Copy that file "
                "next to it, and write the link again with its name; or read that file itself."
            )

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
        self.admit_name(path, home=home, where=where)
        real = os.path.realpath(path) if real is None else real
        for variable in _REDIRECTIONS:
            if os.environ.get(variable):
                raise ExternalDataError(
                    f"{home}: {where} leads to {printable(path)}, but {variable} makes libhdf5 look elsewhere; unset it"
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
        """Raise unless a file in a store may be read that another file of the same store refers to; see `admit`."""
        address = storage.address(url)
        if address == storage.address(home):
            return
        for root in map(storage.address, split_urls(self.roots)[0]):
            folder = root.key.rstrip("/")
            is_below = not folder or address.key == folder or address.key.startswith(folder + "/")
            if is_below and (address.kind, address.root) == (root.kind, root.root):
                return
        above = address.url(address.key.rpartition("/")[0] + "/" if "/" in address.key else "")
        raise self._outside(f"{home}: {where} leads to {printable(url)}", above)

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
    group: str = "/"
    policy: ExternalPolicy = ExternalPolicy()
    swmr: bool = False
    storage: Storage = LOCAL
    beside: str = ""
