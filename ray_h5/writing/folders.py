"""Where files are written: a local folder, or a folder in a store. Files appear when all of them are complete."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ray_h5.errors import NotFoundError, OptionError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.place_to_write import place_to_write
from ray_h5.storage.storage_of_path import storage_for, whole_path
from ray_h5.writing.hidden_folder import HiddenFolder
from ray_h5.writing.output import sync, writing

if TYPE_CHECKING:
    from ray_h5.storage.stores.object_store import ObjectStorage

_STAGING = ".ray_h5-"
_STAGING_NAME = re.compile(rf"{re.escape(_STAGING)}[0-9a-f]{{12}}")
_SYNCS = 8
"""Files that are waited for at a time, until the disk has them."""


class Folder(Protocol):
    """A folder that files are written to. It can be pickled; the copy belongs to the same write."""

    @property
    def path(self) -> str:
        """The folder, without secrets."""

    def begin(self) -> None:
        """Make room for files that are not complete; remove those of writes that died. Once, on the driver."""

    def names(self) -> list[str]:
        """Return the HDF5 files that are in the folder itself."""

    def is_empty(self) -> bool:
        """Return whether nothing is in the folder, or there is none."""

    def temporary(self, name: str) -> str:
        """Return the path of a new local file, which `keep` takes."""

    def keep(self, temporary: str) -> str:
        """Take a complete file, out of sight; return its token for `publish`."""

    def publish(self, names: Mapping[str, str], replaced: Iterable[str]) -> None:
        """Give files, by token, their names; remove other files, and what is left of the write."""

    def abandon(self) -> None:
        """Remove what is left of the write."""


def folder_of(path: Any, storage_options: Mapping[str, object] | None = None) -> Folder:
    """Return the folder at a path or URL."""
    text, is_in_store = place_to_write("path", path, "a folder")
    is_folder = os.path.isdir(text)
    if not is_folder and (is_hdf5_name(text) or os.path.isfile(text)):
        raise OptionError(
            f"path={whole_path(text)!r}: expected a folder, found the name of a file. Each write task makes a file of "
            "its own below it, such as part-0-0.h5: write the name of a folder, such as 'out'."
        )
    storage: Any = storage_for(storage_options, [text])
    return StoreFolder(text, storage) if is_in_store else LocalFolder(text)


def is_hdf5_name(name: str) -> bool:
    """Return whether a name has an extension of HDF5 files."""
    return name.rpartition(".")[2].lower() in DEFAULT_EXTENSIONS


class LocalFolder:
    """A folder on a disk that all nodes see. Files that are not complete are in a hidden folder of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._hidden = HiddenFolder(os.path.join(path, f"{_STAGING}{secrets.token_hex(6)}"))

    @property
    def path(self) -> str:
        return self._path

    def begin(self) -> None:
        if not self._hidden.is_held:
            with writing(self._path, "making the folder"):
                Path(self._path).mkdir(parents=True, exist_ok=True)
                self._remove_dead()
                self._hidden.take()

    def _remove_dead(self) -> None:
        """Remove what writes of this user left that died; files that they were to replace get their names again."""
        for name in filter(_STAGING_NAME.fullmatch, os.listdir(self._path)):
            dead = HiddenFolder(os.path.join(self._path, name))
            with contextlib.suppress(OSError):  # that of a write that is running, or of another user
                dead.take(make=False)
                for old in dead.old_names():
                    if not os.path.lexists(place := os.path.join(self._path, old)):
                        Path(dead.old(old)).rename(place)
                dead.remove()

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._path) if is_hdf5_name(name) and not name.startswith("."))
        return []

    def is_empty(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return all(name.startswith(_STAGING) for name in os.listdir(self._path))
        return True

    def temporary(self, name: str) -> str:
        if not os.path.isdir(self._hidden.path):
            raise NotFoundError(
                f"{self._hidden.path}: no such folder, and the driver made it: the nodes that write need to see the "
                "same folder as the driver. Mount it on all of them, or write to a store."
            )
        return self._hidden.temporary(name)

    def keep(self, temporary: str) -> str:
        return temporary

    def publish(self, names: Mapping[str, str], replaced: Iterable[str]) -> None:
        moves = [(os.path.join(self._path, name), self._hidden.old(name)) for name in replaced]
        moves += [(temporary, os.path.join(self._path, name)) for temporary, name in names.items()]
        done: list[tuple[str, str]] = []
        with ThreadPoolExecutor(_SYNCS, "ray_h5-sync") as pool:
            list(pool.map(sync, names))
        try:
            with writing(self._path, "giving the files their names"):
                for old, new in moves:
                    Path(old).rename(new)
                    done.append((old, new))
                sync(self._path)
        except BaseException:
            for old, new in reversed(done):
                with contextlib.suppress(OSError):
                    Path(new).rename(old)
            raise
        self.abandon()

    def abandon(self) -> None:
        self._hidden.remove()


class StoreFolder:
    """A folder in a store. Files are made on a local disk, and uploaded under hidden names."""

    def __init__(self, url: str, storage: ObjectStorage) -> None:
        self._url, self._storage = url, storage
        self._staging = f"{url}/{_STAGING}{secrets.token_hex(6)}"
        self._temporary = ""

    @property
    def path(self) -> str:
        return whole_path(self._url)

    def begin(self) -> None:
        pass

    def names(self) -> list[str]:
        found, _ = self._storage.list(f"{self._url}/", below=False)
        names = (each.url.rpartition("/")[2] for each in found)
        return sorted(name for name in names if is_hdf5_name(name) and not name.startswith("."))

    def is_empty(self) -> bool:
        return not self.names()

    def temporary(self, name: str) -> str:
        if not self._temporary:
            self._temporary = tempfile.mkdtemp(prefix="ray_h5-")
        return os.path.join(self._temporary, f"{name}.{secrets.token_hex(4)}.tmp")

    def keep(self, temporary: str) -> str:
        try:
            url = f"{self._staging}/{os.path.basename(temporary)}"
            self._storage.put_file(url, temporary)
            return url
        finally:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            with contextlib.suppress(OSError):
                Path(self._temporary).rmdir()
                self._temporary = ""

    def publish(self, names: Mapping[str, str], replaced: Iterable[str]) -> None:
        self._storage.delete([f"{self._url}/{name}" for name in replaced])
        for token, name in names.items():
            self._storage.rename(token, f"{self._url}/{name}")
        self.abandon()

    def abandon(self) -> None:
        left, _ = self._storage.list(f"{self._staging}/", below=True)
        self._storage.delete([each.url for each in left])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_temporary": ""}
