"""What lies outside a file: which of it may be read, and where libhdf5 would look for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ray_h5.errors import ExternalDataError, OptionError
from ray_h5.messages import printable
from ray_h5.storage.local import PathLike, absolute_path

# libhdf5 looks there first, whatever the file says.
_REDIRECTIONS = ("HDF5_VDS_PREFIX", "HDF5_EXTFILE_PREFIX", "HDF5_EXT_PREFIX")


def as_roots(allow_external: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """Return the folders that a user means, as absolute paths: another process has another current folder.

    A single string is one folder, not a list of its letters: ``/`` among them would allow everything.

    Raises
    ------
    OptionError
        If they are not names of folders, or one is empty, which would mean the current folder of each process.
    """
    given = [allow_external] if isinstance(allow_external, (str, bytes, os.PathLike)) else allow_external
    try:
        roots = [os.fsdecode(root) for root in given]
    except TypeError as exc:
        raise OptionError(f"allow_external={allow_external!r}: expected folders, or () for none") from exc
    if "" in roots:
        raise OptionError(f"allow_external={roots}: expected folders, found an empty name")
    return tuple(map(absolute_path, roots))


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """Which files outside the opened one may be read: those below `roots`."""

    roots: tuple[str, ...] = ()

    @classmethod
    def of(cls, allow_external: PathLike | Iterable[PathLike]) -> ExternalPolicy:
        return cls(tuple(os.path.realpath(root) for root in as_roots(allow_external)))

    def admit(self, path: str, *, home: str, where: str) -> None:
        """Raise unless a file that another one refers to may be read.

        Parameters
        ----------
        path : str
            The file; a relative name is one that libhdf5 looks up in the current folder.
        home : str
            The file that was opened first: what leads back to it leads nowhere else.
        where : str
            What refers to it, for messages.

        Raises
        ------
        ExternalDataError
            If it lies outside the roots, or its name is relative to the current folder of a process.
        """
        shown, real = printable(path), os.path.realpath(path)
        for variable in _REDIRECTIONS:
            if os.environ.get(variable):
                raise ExternalDataError(
                    f"{home}: {where} leads to {shown}, but {variable} tells libhdf5 to look elsewhere; unset it"
                )
        if not os.path.isabs(path):
            # What is looked at here might not be what another process reads.
            raise ExternalDataError(
                f"{home}: {where} leads to {path!r}, a relative name, which libhdf5 looks up in the current "
                "folder of each process. Write the column again with an absolute name, or into the file."
            )
        if real != os.path.realpath(home) and not any(os.path.commonpath([root, real]) == root for root in self.roots):
            raise ExternalDataError(
                f"{home}: {where} leads to {printable(real)}, which is outside "
                f"allow_external={list(self.roots)}. If you trust it, pass allow_external=[{os.path.dirname(real)!r}]."
            )


@dataclass(frozen=True, slots=True)
class Access:
    """How a file is looked at.

    Attributes
    ----------
    path : str
        The file.
    group : str
        The group that column names are relative to.
    policy : ExternalPolicy
        Where links, virtual datasets and external storage may lead.
    swmr : bool
        Whether it, and the files that links lead to, may be open in a writer in SWMR mode.
    """

    path: str
    group: str
    policy: ExternalPolicy
    swmr: bool = False


def places_of(name: str, source: str) -> list[str]:
    """Return where libhdf5 looks for a file that another one, `source`, refers to by `name`, in its order.

    A relative name among them is one in the current folder.
    """
    absolute = os.path.isabs(name)
    tail = os.path.basename(name) if absolute else name
    places = [name] if absolute else []
    places += [os.path.join(os.path.dirname(os.path.abspath(source)), tail), tail]
    if Path(source).is_symlink():
        places.append(os.path.join(os.path.dirname(os.path.realpath(source)), tail))
    return places
