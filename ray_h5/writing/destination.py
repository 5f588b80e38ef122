"""Where files are written. New files come first, old ones go last; `DiskFolder` and `StoreFolder` do it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from ray_h5.errors import OutputExistsError, RayH5Error, WriteFailedError
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.storage_of_path import whole_path
from ray_h5.storage.write_notes import NOTE, FileStamp, Notes, WriteNote, uncounted


def is_hdf5_name(name: str) -> bool:
    """Return whether a file is called as HDF5 files are."""
    return name.rpartition(".")[2].lower() in DEFAULT_EXTENSIONS


class Destination(ABC):
    """A folder that files are written to, on a disk that all nodes see, or in a store.

    Files that are not complete are under hidden names. It can be pickled; the copy belongs to the same write.

    `publish` puts a dataset of several files in the place of another one: new first, old last. Its steps, and what a
    kill after each of them leaves::

        step                                             a reader sees   the next write
        1  all new files are complete, in hidden folder  old             removes the hidden folder
        2  a note there: the new names do not count      old             removes the new files, and the folder
        3  the new files get names, which are free       old             removes the new files, and the folder
        4  another note: the old names do not count      new             removes the old files, and the folder
        5  the old files are removed                     new             removes the hidden folder
        6  note and hidden folder are removed            new             -

    A reader leaves out what does not count; see `ray_h5.storage.write_notes`. What fails in steps 2 to 4 is undone.
    In a store, where no lock says whether a write runs, the next write finishes steps 5 and 6 of others, and leaves
    what steps 2 and 3 left: it does not count. A single new file without an old one needs no note.

    Parameters
    ----------
    folder : str
        Its path or URL.
    hidden : str
        The name of the hidden folder.
    """

    storage_options: Mapping[str, object] | None = None
    """How its store is reached."""
    journal: str | None = None
    """The path of a file for what a write that is interrupted has done; None in a store, where none can go on."""

    def __init__(self, folder: str, hidden: str) -> None:
        self._folder, self._hidden_folder = folder, f"{folder}/{hidden}"
        self._has_note = False

    @property
    def path(self) -> str:
        """The folder, without secrets."""
        return whole_path(self._folder)

    def place(self, name: str) -> str:
        """Return the path or URL of a file."""
        return f"{self._folder}/{name}"

    def names(self) -> list[str]:
        """Return the HDF5 files that are in the folder itself, and count."""
        names, notes = self._look()
        left_out = uncounted(notes, own=self._hidden_folder)
        return sorted(
            name
            for name in names
            if is_hdf5_name(name) and not name.startswith(".") and self.place(name) not in left_out
        )

    def taken_names(self) -> set[str]:
        """Return all names that are not free, also those that notes list: their files may go at any time."""
        names, notes = self._look()
        return {*names, *(name for note in notes.values() if note is not None for name in note.files)}

    def input_among(self, names: Iterable[str], inputs: Iterable[str], storage: object) -> str | None:
        """Return the place of the first of some files of the folder that is an input, too, by whatever path.

        Parameters
        ----------
        names : iterable of str
            Names in the folder.
        inputs : iterable of str
            Paths and URLs that are read.
        storage : Storage
            Where those with a URL are.
        """
        known = {*self._real_places(inputs, storage)}
        places = [self.place(name) for name in names] if known else []
        return next((place for place in places if known.intersection(self._real_places([place]))), None)

    @abstractmethod
    def _real_places(self, paths: Iterable[str], storage: object = None) -> Iterable[object]:
        """Return what the files of some paths are known by, whatever their paths are; of those that can be here."""

    @abstractmethod
    def _look(self) -> tuple[list[str], Notes]:
        """Return the names in the folder, and the notes that say which of them do not count."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether a file is there."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether nothing is in the folder, or there is none; of a store, no HDF5 file."""

    @abstractmethod
    def begin(self) -> None:
        """Make room for files that are not complete; remove those of writes that died. Once, on the driver.

        Raises
        ------
        OutputExistsError
            If another write has the hidden folder.
        """

    @abstractmethod
    def temporary(self, name: str) -> str:
        """Return the path of a new local file."""

    @abstractmethod
    def keep(self, temporary: str) -> str:
        """Take a complete file, out of sight, where the driver finds it; return its token for `publish`."""

    @abstractmethod
    def put(self, temporary: str, name: str, *, replaces: bool) -> None:
        """Give one complete file its name, at once.

        Raises
        ------
        OutputExistsError
            If something has the name meanwhile, and `replaces` is False.
        """

    @abstractmethod
    def abandon(self, *, keep_journal: bool = False) -> None:
        """Remove what is left of the write. A note stays that says which files count."""

    # The steps of `publish` ------------------------------------------------------------------------

    def publish(self, names: Mapping[str, str], old: Sequence[str] | None) -> None:
        """Give complete files, by token, names that are free, and then remove the old files.

        Parameters
        ----------
        names : mapping of str to str
            The new names, by token.
        old : sequence of str, optional
            The files that count until now. All of them are removed. With None, they stay, whatever there is.

        Raises
        ------
        OutputExistsError
            If another write takes one of the names, or changes what counts.
        """
        tokens_of = {name: token for token, name in names.items()}
        note = WriteNote(self._complete(names), is_committed=False)
        given: dict[str, str] = {}
        replaced: Mapping[str, FileStamp] = {}
        try:
            # Step 2. One file without an old one appears at once by itself.
            if old or len(names) > 1:
                self._write_note(note)
            for name, token in tokens_of.items():
                given[name] = token
                if not self._give(token, name):
                    del given[name]  # it is of another write
                    self._raise_taken(name)
            self._named()
            with self._alone():
                # The last look before the commit: what came meanwhile is not in the list of what goes.
                if old is not None:
                    self._check_others(names.values(), old)
                    replaced = self._stamps(old)
                # Step 4. Once it is done, the new files count, whatever fails.
                self._commit(replaced)
        except BaseException:
            with contextlib.suppress(RayH5Error, OSError):  # otherwise the note stays, and says what counts
                self._undo(note, given)
            raise
        try:
            self._remove(replaced)
            self._remove_note()
        except (RayH5Error, OSError) as exc:
            raise WriteFailedError(
                f"{self.path}: the new files have their names, but those that they replace cannot be removed: {exc}\n"
                f"read_h5 leaves these out, as {self._hidden_folder}/{NOTE} says. Remove them, and then it."
            ) from exc

    def _alone(self) -> AbstractContextManager[None]:
        """Let no other write of the folder look and commit meanwhile: both would count. No store has such a lock."""
        return contextlib.nullcontext()

    def _raise_taken(self, name: str) -> NoReturn:
        raise OutputExistsError(f"{self.place(name)}: another write made it meanwhile. Write again, or elsewhere.")

    def _check_others(self, new: Iterable[str], old: Sequence[str]) -> None:
        if {*self.names()}.difference(new) != {*old}:
            raise OutputExistsError(f"{self.path}: something wrote there meanwhile. Write again, or elsewhere.")

    def _commit(self, replaced: Mapping[str, FileStamp]) -> None:
        """Let the new files count, and the old ones no more: by one step."""
        if replaced:
            self._write_note(WriteNote(replaced, is_committed=True))
        else:
            self._remove_note()

    def _undo(self, note: WriteNote, given: Mapping[str, str]) -> None:
        """Take names back. First the note says again that they do not count: nobody knows whether it still did."""
        if self._has_note:
            self._write_note(note)
        self._take_back(given)
        self._remove_note()

    def _complete(self, names: Mapping[str, str]) -> dict[str, FileStamp]:
        """Wait until complete files, by token, outlive the machine; return what they are known by, by name."""
        return dict.fromkeys(names.values())

    def _stamps(self, names: Iterable[str]) -> dict[str, FileStamp]:
        """Return what files of the folder are known by."""
        return dict.fromkeys(names)

    @abstractmethod
    def _write_note(self, note: WriteNote) -> None:
        """Put a note in the place of the last one, by one step."""

    @abstractmethod
    def _remove_note(self) -> None:
        """Remove the note, if there is one."""

    @abstractmethod
    def _give(self, token: str, name: str) -> bool:
        """Give a complete file a name; return False if something has it."""

    def _named(self) -> None:  # noqa: B027  a store has what it has answered
        """Wait until the names that were given outlive the machine."""

    def _take_back(self, given: Mapping[str, str]) -> None:
        """Take names back that files were given: their tokens, by name."""
        self._remove(dict.fromkeys(given))

    @abstractmethod
    def _remove(self, files: Mapping[str, FileStamp]) -> None:
        """Remove files that do not count any more, as far as they are those that are meant."""
