"""A folder of a disk that files are written to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ray_h5.atomic import written_whole
from ray_h5.errors import NotFoundError
from ray_h5.storage.addresses import is_url
from ray_h5.storage.write_notes import (
    HIDDEN,
    NOTE,
    FileStamp,
    Notes,
    WriteNote,
    is_hidden_of_write,
    notes_on_disk,
    settled,
    stamp_of,
)
from ray_h5.writing.destination import Destination
from ray_h5.writing.file_writer import sync, writing
from ray_h5.writing.hidden_folder import JOURNAL, HiddenFolder, folder_locked, temporary_name

_SYNCS = 8
"""Files that are waited for at a time, until the disk has them."""


class DiskFolder(Destination):
    """A folder on a disk. Its hidden folder has a lock, so that the next write knows which ones died."""

    def __init__(self, folder: str, hidden: str) -> None:
        super().__init__(folder, hidden)
        self.journal = os.path.join(self._hidden_folder, JOURNAL)
        self._note = os.path.join(self._hidden_folder, NOTE)
        self._hidden = HiddenFolder(self._hidden_folder)
        self._is_made = False

    def _real_places(self, paths: Iterable[str], storage: object = None) -> Iterable[str]:  # noqa: ARG002  of stores
        return (os.path.realpath(path) for path in paths if not is_url(path))

    def _look(self) -> tuple[list[str], Notes]:
        def listed() -> list[str]:
            with contextlib.suppress(FileNotFoundError):
                return os.listdir(self._folder)
            return []

        def notes_among(names: list[str]) -> Notes:
            hidden = [self.place(name) for name in names if is_hidden_of_write(name)]
            return notes_on_disk(path for path in hidden if not Path(path).is_symlink())

        return settled(self._folder, listed, notes_among)

    def has(self, name: str) -> bool:
        return os.path.lexists(self.place(name))

    def is_empty(self) -> bool:
        return all(name.startswith(HIDDEN) for name in self._look()[0])

    def begin(self) -> None:
        if self._hidden.is_held:
            return
        self._is_made = not os.path.lexists(self._folder)  # what fails removes it
        try:
            with writing(self._folder, "making the folder"):
                Path(self._folder).mkdir(parents=True, exist_ok=True)
                self._remove_dead()
                self._hidden.take()
        except BaseException:
            self._remove_made()
            raise
        self._hidden.clear([JOURNAL])

    def _remove_dead(self) -> None:
        """Remove what writes of this user left that died, with the files that do not count by their notes."""
        for name in filter(is_hidden_of_write, os.listdir(self._folder)):
            dead = HiddenFolder(self.place(name))
            with contextlib.suppress(OSError):  # that of a write that is running, or of another user
                dead.take(make=False)
                try:
                    (note,) = notes_on_disk([dead.path]).values()
                    _unlink(self._folder, note.files if note is not None else {})
                    dead.remove()
                finally:
                    dead.release()

    def temporary(self, name: str) -> str:
        if not os.path.isdir(self._hidden_folder):
            raise NotFoundError(
                f"{self._hidden_folder}: no such folder, and the driver made it: the nodes that write need to see the "
                "same folder as the driver. Mount it on all of them, or write to a store."
            )
        return os.path.join(self._hidden_folder, temporary_name(os.path.basename(name)))

    def keep(self, temporary: str) -> str:
        return temporary

    def put(self, temporary: str, name: str, *, replaces: bool) -> None:
        place = self.place(name)
        sync(temporary)
        with writing(place, "giving the file its name"):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            if replaces:
                Path(temporary).replace(place)
            else:
                if not self._give(temporary, name):
                    self._raise_taken(name)
                Path(temporary).unlink(missing_ok=True)
        sync(os.path.dirname(place))
        self._is_made = False

    def abandon(self, *, keep_journal: bool = False) -> None:
        if not self._hidden.is_held:
            return
        if self._has_note:
            self._hidden.release()
        elif keep_journal:
            self._hidden.clear([JOURNAL])
            self._hidden.release()
        else:
            self._hidden.remove()
            self._remove_made()

    def _remove_made(self) -> None:
        if self._is_made:
            with contextlib.suppress(OSError):
                Path(self._folder).rmdir()  # if nothing is in it

    def _complete(self, names: Mapping[str, str]) -> dict[str, FileStamp]:
        with ThreadPoolExecutor(_SYNCS, "ray_h5-sync") as pool:
            list(pool.map(sync, names))
        with writing(self._folder, "looking at the new files"):
            return {name: stamp_of(token) for token, name in names.items()}

    def _stamps(self, names: Iterable[str]) -> dict[str, FileStamp]:
        with writing(self._folder, "looking at the files that are replaced"):
            return {name: stamp_of(self.place(name)) for name in names}

    def _write_note(self, note: WriteNote) -> None:
        with writing(self._note):
            with written_whole(self._note) as file:
                self._has_note = True  # from here on, nobody knows before it is removed
                file.write(note.as_bytes())
                file.flush()
                os.fsync(file.fileno())
            sync(self._hidden_folder)
            sync(self._folder)

    def _remove_note(self) -> None:
        if self._has_note:
            with writing(self._note, "removing it"):
                Path(self._note).unlink(missing_ok=True)
                sync(self._hidden_folder)
            self._has_note = False

    def _give(self, token: str, name: str) -> bool:
        place = self.place(name)
        with writing(place, "giving the file its name"):
            try:
                os.link(token, place)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links, where only one process can write to a folder
                if os.path.lexists(place):
                    return False
                Path(token).rename(place)
        return True

    def _alone(self) -> AbstractContextManager[None]:
        return folder_locked(self._folder)

    def _named(self) -> None:
        sync(self._folder)
        self._is_made = False

    def _take_back(self, given: Mapping[str, str]) -> None:
        for name, token in given.items():
            if not os.path.lexists(token):
                Path(self.place(name)).rename(token)
            # A name that could not be given may be that of a file of somebody else.
            elif stamp_of(self.place(name)) == stamp_of(token):
                Path(self.place(name)).unlink(missing_ok=True)
        sync(self._folder)

    def _remove(self, files: Mapping[str, FileStamp]) -> None:
        with writing(self._folder, "removing the files that are replaced"):
            _unlink(self._folder, files)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hidden": HiddenFolder(self._hidden_folder)}


def _unlink(folder: str, files: Mapping[str, FileStamp]) -> None:
    """Remove files of a folder if they have their stamps, and wait until the disk has that."""
    for name, stamp in files.items():
        if stamp is not None and stamp_of(place := os.path.join(folder, name)) == stamp:
            Path(place).unlink(missing_ok=True)
    if files:
        sync(folder)
