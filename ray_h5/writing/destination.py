"""Where files are written: a folder on a disk, or one in a store. A file appears when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ray_h5.errors import NotFoundError, OptionError, OutputExistsError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.addresses import Address, check_slashes, is_url
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import storage_for, whole_path
from ray_h5.writing.hidden_folder import JOURNAL, HiddenFolder
from ray_h5.writing.output import sync, writing

if TYPE_CHECKING:
    from ray_h5.storage.stores.object_store import ObjectStorage

_STAGING = ".ray_h5-"
_STAGING_NAME = re.compile(rf"{re.escape(_STAGING)}[0-9a-f]{{12}}")
_REPACK = ".ray_h5_repack"
_SYNCS = 8
"""Files that are waited for at a time, until the disk has them."""


def folder_of(path: Any, storage_options: Mapping[str, object] | None = None) -> Destination:
    """Return the folder at a path or URL, for the files of many tasks."""
    text, is_in_store = _place_to_write("path", path, "a folder")
    is_folder = os.path.isdir(text)
    if not is_folder and (_is_hdf5_name(text) or os.path.isfile(text)):
        raise OptionError(
            f"path={whole_path(text)!r}: expected a folder, found the name of a file. Each write task makes a file of "
            "its own below it, such as part-0-0.h5: write the name of a folder, such as 'out'."
        )
    hidden = f"{_STAGING}{secrets.token_hex(6)}"
    return _at(text, hidden, storage_options) if is_in_store else LocalDestination(text, hidden)


def output_of(
    out: Any, storage_options: Mapping[str, object] | None, extensions: Collection[str]
) -> tuple[Destination, str]:
    """Return the folder of the outputs of a repack, and the name of the one output, or "" for a name for each input.

    Its hidden folder has one name: one repack at a time writes to a place, and the next one goes on with it.

    Parameters
    ----------
    out : str or path-like
        A file, or a folder; a URL for one in a store. A name with an extension of HDF5 is a file.
    storage_options : mapping of str to object, optional
        How the store is reached; not used for a disk.
    extensions : collection of str
        Further extensions of files: those of the inputs, such as ``.nc``.
    """
    path, is_in_store = _place_to_write("out", out, "a file or folder")
    name = os.path.basename(path)
    if os.path.isdir(path) or not (_is_hdf5_name(name) or Path(path).suffix in extensions):
        folder, name, hidden = path, "", _REPACK
    else:
        folder, hidden = os.path.dirname(path), f"{_REPACK}-{name}"
    return _at(folder, hidden, storage_options) if is_in_store else LocalDestination(folder, hidden), name


def _place_to_write(option: str, path: Any, expected: str) -> tuple[str, bool]:
    """Return the path or URL of a place to write to, without a slash at its end, and whether it is in a store.

    Raises
    ------
    OptionError
        If it is none, or in a store that only reads.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise OptionError(f"{option}={path!r}: expected the path or URL of {expected}")
    check_slashes(text)
    if not is_url(text):
        return os.path.abspath(text.removeprefix("local://")), False
    if Address.of(text).kind == "https":
        raise OptionError(f"{option}={whole_path(text)!r}: cannot write by HTTP; expected s3://, gs:// or az://")
    return text.rstrip("/"), True


def _at(url: str, hidden: str, storage_options: Mapping[str, object] | None) -> StoreDestination:
    storage: Any = storage_for(storage_options, [url])
    return StoreDestination(url, hidden, storage, storage_options)


def _is_hdf5_name(name: str) -> bool:
    return name.rpartition(".")[2].lower() in DEFAULT_EXTENSIONS


class _Folder(ABC):
    """What folders on a disk and in a store have in common. They can be pickled; the copy belongs to the same write."""

    storage_options: Mapping[str, object] | None = None
    """How its store is reached."""
    journal: str | None = None
    """The path of a file for what a write that is interrupted has done; None if none can go on."""

    def __init__(self, folder: str, storage: Any) -> None:
        self._folder, self._storage = folder, storage

    @property
    def path(self) -> str:
        """The folder, without secrets."""
        return whole_path(self._folder)

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self._folder}/{name}"

    def real_path(self, name: str) -> str:
        """Return the one path of a file; see `Storage.real_path`."""
        return self._storage.real_path(self.place(name))

    def names(self) -> list[str]:
        """Return the HDF5 files that are in the folder itself."""
        return sorted(name for name in self._all_names() if _is_hdf5_name(name) and not name.startswith("."))

    @abstractmethod
    def _all_names(self) -> list[str]: ...


class LocalDestination(_Folder):
    """A folder on a disk that all nodes see. Files that are not complete are in a hidden folder of it."""

    def __init__(self, folder: str, hidden: str) -> None:
        super().__init__(folder, LOCAL)
        self._hidden = HiddenFolder(os.path.join(folder, hidden))
        self.journal = os.path.join(self._hidden.path, JOURNAL)
        self._is_made = False

    def begin(self) -> None:
        """Make room for files that are not complete; remove those of writes that died. Once, on the driver.

        Raises
        ------
        OutputExistsError
            If another write has the hidden folder.
        """
        if self._hidden.is_held:
            return
        self._is_made = not os.path.lexists(self._folder)  # what fails removes it
        with writing(self._folder, "making the folder"):
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            self._remove_dead()
            try:
                self._hidden.take()
            except BlockingIOError:
                raise OutputExistsError(
                    f"{self._folder}: another write has it. Wait for it, or write elsewhere."
                ) from None
        self._hidden.clear([JOURNAL])

    def _remove_dead(self) -> None:
        """Remove what writes of this user left that died; files that they were to replace get their names again."""
        for name in filter(_STAGING_NAME.fullmatch, os.listdir(self._folder)):
            dead = HiddenFolder(os.path.join(self._folder, name))
            with contextlib.suppress(OSError):  # that of a write that is running, or of another user
                dead.take(make=False)
                for old in dead.old_names():
                    if not os.path.lexists(place := self.place(old)):
                        Path(dead.old(old)).rename(place)
                dead.remove()

    def has(self, name: str) -> bool:
        """Return whether a file is there."""
        return os.path.lexists(self.place(name))

    def is_empty(self) -> bool:
        """Return whether nothing is in the folder, or there is none."""
        return all(name.startswith(_STAGING) for name in self._all_names())

    def _all_names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(self._folder)
        return []

    def temporary(self, name: str) -> str:
        """Return the path of a new local file."""
        if not os.path.isdir(self._hidden.path):
            raise NotFoundError(
                f"{self._hidden.path}: no such folder, and the driver made it: the nodes that write need to see the "
                "same folder as the driver. Mount it on all of them, or write to a store."
            )
        return self._hidden.temporary(os.path.basename(name))

    def keep(self, temporary: str) -> str:
        """Take a complete file, out of sight, where the driver finds it; return its token for `publish`."""
        return temporary

    def publish(self, names: Mapping[str, str], replaced: Iterable[str] = ()) -> None:
        """Give complete files, by token or by their temporary path, their names; remove other files."""
        moves = [(self.place(name), self._hidden.old(name)) for name in replaced]
        moves += [(temporary, self.place(name)) for temporary, name in names.items()]
        done: list[tuple[str, str]] = []
        with ThreadPoolExecutor(_SYNCS, "ray_h5-sync") as pool:
            list(pool.map(sync, names))
        try:
            with writing(self._folder, "giving the files their names"):
                for old, new in moves:
                    Path(new).parent.mkdir(parents=True, exist_ok=True)
                    is_new = not os.path.lexists(new)  # what took the place of another file stays there
                    Path(old).rename(new)
                    done += [(old, new)] if is_new else []
                for folder in {self._folder, *(os.path.dirname(new) for _, new in moves)}:
                    sync(folder)
        except BaseException:
            for old, new in reversed(done):
                with contextlib.suppress(OSError):
                    Path(new).rename(old)
            raise
        self._is_made = False

    def abandon(self, *, keep_journal: bool = False) -> None:
        """Remove what is left of the write."""
        if not self._hidden.is_held:
            return
        if keep_journal:
            self._hidden.clear([JOURNAL])
            self._hidden.release()
            return
        self._hidden.remove()
        if self._is_made:
            with contextlib.suppress(OSError):
                Path(self._folder).rmdir()  # if nothing is in it


class StoreDestination(_Folder):
    """A folder in a store. Files are made on a local disk, and uploaded; those of tasks under hidden names."""

    def __init__(
        self, folder: str, hidden: str, storage: ObjectStorage, storage_options: Mapping[str, object] | None
    ) -> None:
        super().__init__(folder, storage)
        self.storage_options = storage_options
        self._staging = self.place(hidden)
        self._temporary = ""

    def begin(self) -> None:
        pass

    def has(self, name: str) -> bool:
        return self._storage.identity(self.place(name)) is not None

    def _all_names(self) -> list[str]:
        entries, _ = self._storage.list(f"{self._folder}/", below=False)
        return [entry.url.rpartition("/")[2] for entry in entries]

    def is_empty(self) -> bool:
        return not self.names()

    def temporary(self, name: str) -> str:
        if not self._temporary:
            self._temporary = tempfile.mkdtemp(prefix="ray_h5-")
        return os.path.join(self._temporary, f"{os.path.basename(name)}.{secrets.token_hex(4)}.tmp")

    def keep(self, temporary: str) -> str:
        url = f"{self._staging}/{os.path.basename(temporary)}"
        self._put(temporary, url)
        return url

    def _put(self, temporary: str, url: str) -> None:
        try:
            self._storage.put_file(url, temporary)
        finally:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            with contextlib.suppress(OSError):
                Path(self._temporary).rmdir()
                self._temporary = ""

    def publish(self, names: Mapping[str, str], replaced: Iterable[str] = ()) -> None:
        self._storage.delete([self.place(name) for name in replaced])
        for token, name in names.items():
            if token.startswith(self._staging):
                self._storage.rename(token, self.place(name))
            else:
                self._put(token, self.place(name))

    def abandon(self, *, keep_journal: bool = False) -> None:  # noqa: ARG002  no write to a store can go on
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
        left, _ = self._storage.list(f"{self._staging}/", below=True)
        self._storage.delete([listed.url for listed in left])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_temporary": ""}


Destination: TypeAlias = LocalDestination | StoreDestination
"""A folder that files are written to. The methods are documented where they are of a disk."""
