"""A prefix of a store that files are written to."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_h5.errors import OutputExistsError
from ray_h5.storage.addresses import SCHEMES, StoreAddress, is_url, scheme_of
from ray_h5.storage.storage_of_path import storage_for
from ray_h5.storage.write_notes import NOTE, FileStamp, Notes, WriteNote, is_hidden_of_write, notes_in_store, settled
from ray_h5.writing.destination import Destination
from ray_h5.writing.hidden_folder import temporary_name


class StoreFolder(Destination):
    """A prefix of a store. Complete files are uploaded under hidden names, and the store copies them.

    Parameters
    ----------
    folder, hidden
        As for `Destination`.
    storage_options : mapping of str to object, optional
        How its store is reached.
    """

    def __init__(self, folder: str, hidden: str, storage_options: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, hidden)
        self.storage_options = storage_options
        self._storage: Any = storage_for(storage_options, [folder])
        self._temporary = ""
        """The folder of temporary files of this process."""

    def _real_places(self, paths: Iterable[str], storage: object = None) -> Iterable[StoreAddress]:
        if type(storage) is type(self._storage) and storage.place != self._storage.place:  # type: ignore[attr-defined]
            return ()
        addresses = (StoreAddress.of(path) for path in paths if is_url(path) and scheme_of(path) in SCHEMES)
        return (replace(address, anonymous=False) for address in addresses)

    def _look(self) -> tuple[list[str], Notes]:
        begin = len(StoreAddress.of(f"{self._folder}/").key)

        def notes_among(listed: tuple[list[Any], list[str]]) -> Notes:
            hidden = [name for key in listed[1] if is_hidden_of_write(name := key[begin:])]
            return notes_in_store(self._storage, [self.place(name) for name in hidden])

        (files, _), notes = settled(self.path, lambda: self._storage.list(f"{self._folder}/", below=False), notes_among)
        return [file.key[begin:] for file in files], notes

    def has(self, name: str) -> bool:
        return self._storage.identity(self.place(name)) is not None

    def is_empty(self) -> bool:
        return not self.names()

    def begin(self) -> None:
        """Do nothing: what is not complete is in a folder for temporary files, or under hidden names."""

    def temporary(self, name: str) -> str:
        self._temporary = self._temporary or tempfile.mkdtemp(prefix="ray_h5-")
        return os.path.join(self._temporary, temporary_name(os.path.basename(name)))

    def keep(self, temporary: str) -> str:
        url = f"{self._hidden_folder}/{os.path.basename(temporary)}"
        self._upload(temporary, url, is_new=False)
        return url

    def put(self, temporary: str, name: str, *, replaces: bool) -> None:
        self._upload(temporary, self.place(name), is_new=not replaces)

    def _upload(self, temporary: str, url: str, *, is_new: bool) -> None:
        try:
            self._storage.put_file(url, temporary, is_new=is_new)
        finally:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
                Path(self._temporary).rmdir()
                self._temporary = ""

    def publish(self, names: Mapping[str, str], old: Sequence[str] | None) -> None:
        for hidden, note in self._look()[1].items():
            if note is not None and note.is_committed:  # of a write that died
                self._remove(note.files)
                self._remove_below(hidden)
        super().publish(names, old)

    def abandon(self, *, keep_journal: bool = False) -> None:  # noqa: ARG002  there is none
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._remove_below(self._hidden_folder, keeps_note=self._has_note)

    def _remove_below(self, hidden: str, *, keeps_note: bool = False) -> None:
        left, _ = self._storage.list(f"{hidden}/", below=True)
        # The note goes last: until then it says that what is left does not count.
        urls = sorted((file.url for file in left), key=lambda url: url.endswith(f"/{NOTE}"))
        self._storage.delete([url for url in urls if not (keeps_note and url.endswith(f"/{NOTE}"))])

    def _write_note(self, note: WriteNote) -> None:
        self._has_note = True
        self._storage.put_bytes(f"{self._hidden_folder}/{NOTE}", note.as_bytes())

    def _remove_note(self) -> None:
        if self._has_note:
            self._storage.delete([f"{self._hidden_folder}/{NOTE}"])
            self._has_note = False

    def _give(self, token: str, name: str) -> bool:
        try:
            self._storage.copy(token, self.place(name))
        except OutputExistsError:
            return False
        return True

    def _remove(self, files: Mapping[str, FileStamp]) -> None:
        self._storage.delete([self.place(name) for name in files])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_temporary": ""}
