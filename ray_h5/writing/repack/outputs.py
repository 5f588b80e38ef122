"""The outputs of a repack: which of them an earlier one has written, and each its name when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_h5.atomic import written_whole
from ray_h5.errors import OptionError, OutputExistsError
from ray_h5.messages import few
from ray_h5.storage.storage_of_path import whole_path
from ray_h5.writing.destination import Destination
from ray_h5.writing.output import writing

if TYPE_CHECKING:
    from typing_extensions import Self


class Outputs:
    """The outputs of a repack. On a disk, a journal in the hidden folder lists those that are complete.

    Parameters
    ----------
    folder : Destination
        Where they are.
    names : sequence of str
        Their names in it.
    plan : str
        What decides their contents.
    """

    def __init__(self, folder: Destination, names: Sequence[str], plan: str) -> None:
        self.names, self.folder, self._plan = names, folder, plan
        self._done: dict[str, list[int]] = {}
        self._has_begun = False

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Take the lock, and look what is there.

        Parameters
        ----------
        resume : bool
            Whether to leave the outputs that an earlier repack of the same plan has written.
        overwrite : bool
            Whether to replace files that are there.

        Raises
        ------
        OutputExistsError
            If one is there, or another repack writes to the same place.
        """
        if resume and self.folder.journal is None:
            raise OptionError("resume=True: files in a store cannot be resumed; write to a disk, and copy them")
        self.folder.begin()
        done = self._journal() if resume else {}
        self._done = {
            name: done[name] for name in self.names if done.get(name) == _state(self.folder.place(name)) != []
        }
        there = [self.folder.place(name) for name in self.names if name not in self._done and self.folder.has(name)]
        if there and not overwrite:
            raise OutputExistsError(
                f"{few([whole_path(path) for path in there])} exists already. Pass overwrite=True to replace it, "
                "resume=True to go on with a repack that was interrupted, or write elsewhere."
            )
        self._write_journal()
        self._has_begun = True
        self.kept = list(self._done)

    def _journal(self) -> dict[str, list[int]]:
        try:
            with open(self.folder.journal or "", "rb") as file:
                journal = json.load(file)
            plan, done = journal["plan"], dict(journal["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        if plan != self._plan:
            raise OptionError(
                f"resume=True: {self.folder.path} was begun with other options, or the files changed since. Pass the "
                "same options; or overwrite=True to begin again."
            )
        return done

    def _write_journal(self) -> None:
        if (path := self.folder.journal) is not None:
            with writing(path), written_whole(path) as file:
                file.write(json.dumps({"plan": self._plan, "done": self._done}).encode())

    def put(self, temporary: str, name: str) -> None:
        """Give a complete file its name."""
        # First the list: a kill in between leaves a file that is not there, and not one that is not in the list.
        self._done[name] = _state(temporary)
        self._write_journal()
        self.folder.publish({temporary: name})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove what is not needed: all, or all but a list of complete files if it failed."""
        is_resumable = bool(self._done) if self._has_begun else os.path.exists(self.folder.journal or "")
        self.folder.abandon(keep_journal=kind is not None and is_resumable)


def _state(path: str) -> list[int]:
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ino]
