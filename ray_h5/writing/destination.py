"""Where files are written: a folder on a disk, or one in a store. A file appears when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ray_h5.errors import NotFoundError, OptionError, OutputExistsError
from ray_h5.options import DEFAULT_EXTENSIONS, require
from ray_h5.storage.addresses import StoreAddress, check_slashes, is_url
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import storage_for, whole_path
from ray_h5.writing.file_writer import sync, writing
from ray_h5.writing.hidden_folder import JOURNAL, HiddenFolder, temporary_name

_STAGING = ".ray_h5-"
_STAGING_NAME = re.compile(rf"{re.escape(_STAGING)}[0-9a-f]{{12}}")
_REPACK = ".ray_h5_repack"
_SYNCS = 8
"""Files that are waited for at a time, until the disk has them."""


def folder_of(path: Any, storage_options: Mapping[str, object] | None = None) -> Destination:
    """Return the folder at a path or URL, for the files of many tasks."""
    text = _place_to_write("path", path, "a folder")
    if not os.path.isdir(text) and (_is_hdf5_name(text) or os.path.isfile(text)):
        raise OptionError(
            f"path={whole_path(text)!r}: expected a folder, found the name of a file. Each write task makes a file of "
            "its own below it, such as part-0-0.h5: write the name of a folder, such as 'out'."
        )
    return Destination(text, f"{_STAGING}{secrets.token_hex(6)}", storage_options)


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
    path = _place_to_write("out", out, "a file or folder")
    folder, name = os.path.split(path)
    if os.path.isdir(path) or not (_is_hdf5_name(name) or Path(path).suffix in extensions):
        return Destination(path, _REPACK, storage_options), ""
    return Destination(folder, f"{_REPACK}-{name}", storage_options), name


def _place_to_write(option: str, path: Any, expected: str) -> str:
    """Return the path or URL of a place to write to, without a slash at its end.

    Raises
    ------
    OptionError
        If it is none, or in a store that only reads.
    """
    text = os.fspath(path)
    require(isinstance(text, str) and text, option, path, f"the path or URL of {expected}")
    check_slashes(text)
    if not is_url(text):
        return os.path.abspath(text.removeprefix("local://"))
    if StoreAddress.of(text).kind == "https":
        expected = "cannot write by HTTP; expected s3://, gs:// or az://"
        raise OptionError(expected, option=option, value=whole_path(text))
    return text.rstrip("/")


def _is_hdf5_name(name: str) -> bool:
    return name.rpartition(".")[2].lower() in DEFAULT_EXTENSIONS


class Destination:
    """A folder that files are written to, on a disk that all nodes see, or in a store.

    Files that are not complete are on a disk: in a hidden folder of it, or in one for temporary files, from which they
    are uploaded; those of tasks under hidden names. It can be pickled; the copy belongs to the same write.

    Parameters
    ----------
    folder : str
        Its path or URL.
    hidden : str
        The name of the hidden folder.
    storage_options : mapping of str to object, optional
        How its store is reached.
    """

    def __init__(self, folder: str, hidden: str, storage_options: Mapping[str, object] | None = None) -> None:
        self._folder, self._staging = folder, os.path.join(folder, hidden)
        self._is_in_store = is_url(folder)
        self._storage: Any = storage_for(storage_options, [folder]) if self._is_in_store else LOCAL
        self.storage_options = storage_options if self._is_in_store else None
        """How its store is reached."""
        self.journal = None if self._is_in_store else os.path.join(self._staging, JOURNAL)
        """The path of a file for what a write that is interrupted has done; None in a store, where none can go on."""
        self._hidden = HiddenFolder(self._staging)
        """Of a disk; not used for a store."""
        self._temporary = ""
        """The folder of temporary files for a store."""
        self._is_made = False

    @property
    def path(self) -> str:
        """The folder, without secrets."""
        return whole_path(self._folder)

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self._folder}/{name}"

    def names(self) -> list[str]:
        """Return the HDF5 files that are in the folder itself."""
        return sorted(name for name in self._all_names() if _is_hdf5_name(name) and not name.startswith("."))

    def _all_names(self) -> list[str]:
        if self._is_in_store:
            entries, _ = self._storage.list(f"{self._folder}/", below=False)
            return [entry.url.rpartition("/")[2] for entry in entries]
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(self._folder)
        return []

    def has(self, name: str) -> bool:
        """Return whether a file is there."""
        place = self.place(name)
        return self._storage.identity(place) is not None if self._is_in_store else os.path.lexists(place)

    def is_empty(self) -> bool:
        """Return whether nothing is in the folder, or there is none; of a store, no HDF5 file."""
        return not self.names() if self._is_in_store else all(n.startswith(_STAGING) for n in self._all_names())

    def begin(self) -> None:
        """On a disk, make room for files that are not complete; remove those of writes that died. Once, on the driver.

        Raises
        ------
        OutputExistsError
            If another write has the hidden folder.
        """
        if self._is_in_store or self._hidden.is_held:
            return
        self._is_made = not os.path.lexists(self._folder)  # what fails removes it
        with writing(self._folder, "making the folder"):
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            self._remove_dead()
            self._hidden.take()
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

    def temporary(self, name: str) -> str:
        """Return the path of a new local file."""
        folder, name = self._staging, temporary_name(os.path.basename(name))
        if self._is_in_store:
            folder = self._temporary = self._temporary or tempfile.mkdtemp(prefix="ray_h5-")
        elif not os.path.isdir(folder):
            raise NotFoundError(
                f"{folder}: no such folder, and the driver made it: the nodes that write need to see the same folder "
                "as the driver. Mount it on all of them, or write to a store."
            )
        return os.path.join(folder, name)

    def keep(self, temporary: str) -> str:
        """Take a complete file, out of sight, where the driver finds it; return its token for `publish`."""
        if not self._is_in_store:
            return temporary
        url = f"{self._staging}/{os.path.basename(temporary)}"
        self._upload(temporary, url)
        return url

    def _upload(self, temporary: str, url: str) -> None:
        try:
            self._storage.put_file(url, temporary)
        finally:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
                Path(self._temporary).rmdir()
                self._temporary = ""

    def publish(self, names: Mapping[str, str], replaced: Iterable[str] | None = None) -> None:
        """Give complete files, by token or by their temporary path, their names; remove other files.

        With `replaced`, no file has these names: on a disk, `OutputExistsError` is raised if another write takes one.
        """
        if not self._is_in_store:
            moves = [(self.place(name), self._hidden.old(name)) for name in replaced or ()]
            moves += [(temporary, self.place(name)) for temporary, name in names.items()]
            self._move(moves, names, are_new=replaced is not None)
            return
        self._storage.delete([self.place(name) for name in replaced or ()])
        for token, name in names.items():
            (self._storage.rename if token.startswith(self._staging) else self._upload)(token, self.place(name))

    def _move(self, moves: Sequence[tuple[str, str]], complete: Collection[str], *, are_new: bool) -> None:
        """Rename files on a disk, all or none, once the disk has those that are complete."""
        done: list[tuple[str, str]] = []
        with ThreadPoolExecutor(_SYNCS, "ray_h5-sync") as pool:
            list(pool.map(sync, complete))
        try:
            with writing(self._folder, "giving the files their names"):
                for old, new in moves:
                    Path(new).parent.mkdir(parents=True, exist_ok=True)
                    is_new = not os.path.lexists(new)  # what took the place of another file stays there
                    (_move_new if are_new and old in complete else Path.rename)(Path(old), new)
                    done += [(old, new)] if is_new else []
                for folder in {self._folder, *(os.path.dirname(new) for _, new in moves)}:
                    sync(folder)
        except BaseException:
            for old, new in reversed(done):
                with contextlib.suppress(OSError):
                    if not os.path.lexists(old):  # otherwise another write took the place of what was replaced
                        Path(new).rename(old)
            raise
        self._is_made = False

    def abandon(self, *, keep_journal: bool = False) -> None:
        """Remove what is left of the write."""
        if self._is_in_store:
            if self._temporary:
                shutil.rmtree(self._temporary, ignore_errors=True)
            left, _ = self._storage.list(f"{self._staging}/", below=True)
            self._storage.delete([listed.url for listed in left])
        elif keep_journal and self._hidden.is_held:
            self._hidden.clear([JOURNAL])
            self._hidden.release()
        elif self._hidden.is_held:
            self._hidden.remove()
            if self._is_made:
                with contextlib.suppress(OSError):
                    Path(self._folder).rmdir()  # if nothing is in it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_temporary": "", "_hidden": HiddenFolder(self._staging)}


def _move_new(old: Path, new: str) -> None:
    """Rename a file; raise if something has its new name, also if another write gives it at the same time."""
    try:
        os.link(old, new)
    except FileExistsError:
        raise OutputExistsError(f"{new}: another write made it meanwhile. Write again, or elsewhere.") from None
    except OSError:  # a file system without hard links, where only one process can write to a folder
        old.rename(new)
    else:
        old.unlink()
