"""Where a repack writes: one file or a folder, file by file; one repack at a time."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_h5.atomic import written_whole
from ray_h5.errors import OptionError, OutputExistsError
from ray_h5.messages import few
from ray_h5.storage.local import LOCAL
from ray_h5.storage.place_to_write import place_to_write
from ray_h5.storage.storage_of_path import storage_for, whole_path
from ray_h5.writing.folders import is_hdf5_name
from ray_h5.writing.hidden_folder import JOURNAL, HiddenFolder
from ray_h5.writing.output import sync, writing

if TYPE_CHECKING:
    from typing_extensions import Self

    from ray_h5.storage.stores.object_store import ObjectStorage


def target_of(
    out: str | os.PathLike[str], storage_options: Mapping[str, object] | None, extensions: Collection[str]
) -> Target:
    """Return the output of a repack.

    Parameters
    ----------
    out : str
        A file, or a folder; a URL for one in a store. A name with an extension of HDF5 is a file.
    storage_options : mapping of str to object, optional
        How the store is reached; not used for a disk.
    extensions : collection of str
        Further extensions of files: those of the inputs, such as ``.nc``.
    """
    path, is_in_store = place_to_write("out", out, "a file or folder")
    is_named = is_hdf5_name(os.path.basename(path)) or Path(path).suffix in extensions
    is_file = is_named and not os.path.isdir(path)
    if not is_in_store:
        return LocalTarget(path, is_file)
    storage: Any = storage_for(storage_options, [path])
    return StoreTarget(path, is_file, storage, storage_options)


class Target:
    """The output of a repack: a file, or a folder of files.

    Parameters
    ----------
    path : str
        The path or URL.
    is_file : bool
        Whether it is that of the one output, not of a folder.
    """

    storage_options: Mapping[str, object] | None = None
    """How its store is reached."""

    def __init__(self, path: str, is_file: bool) -> None:
        self.path, self.is_file = path, is_file

    def place(self, name: str) -> str:
        """Return the path or URL of an output."""
        return self.path if self.is_file else f"{self.path}/{name}"

    def real_path(self, place: str) -> str:
        """Return the one name of an output; see `Storage.real_path`."""
        raise NotImplementedError

    def begin(self, names: Sequence[str], plan: str, *, resume: bool, overwrite: bool) -> list[str]:
        """Take the lock; return the outputs that are done already.

        Parameters
        ----------
        names : sequence of str
            The outputs.
        plan : str
            What decides their contents.
        resume : bool
            Whether to leave the outputs that an earlier repack of the same plan has written.
        overwrite : bool
            Whether to replace files that are there.

        Raises
        ------
        OutputExistsError
            If one is there, or another repack writes to the same place.
        """
        raise NotImplementedError

    def _check_free(self, there: Sequence[str], overwrite: bool) -> None:
        if there and not overwrite:
            names = few([whole_path(each) for each in there])
            raise OutputExistsError(
                f"{names} exists already. Pass overwrite=True to replace it, resume=True to "
                "go on with a repack that was interrupted, or write elsewhere."
            )

    def temporary(self, name: str) -> str:
        """Return the path of a new local file."""
        raise NotImplementedError

    def put(self, temporary: str, name: str) -> None:
        """Give a complete file its name."""
        raise NotImplementedError

    def _end(self, *, is_complete: bool) -> None:
        """Remove what is not needed any more."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(is_complete=kind is None)


class StoreTarget(Target):
    """An output in a store. Files are made in a folder of this machine, and uploaded."""

    def __init__(self, path: str, is_file: bool, storage: ObjectStorage, options: Mapping[str, object] | None) -> None:
        super().__init__(path, is_file)
        self._storage, self.storage_options = storage, options
        self._staging = ""

    def real_path(self, place: str) -> str:
        return self._storage.real_path(place)

    def begin(self, names: Sequence[str], plan: str, *, resume: bool, overwrite: bool) -> list[str]:  # noqa: ARG002
        if resume:
            raise OptionError("resume=True: files in a store cannot be resumed; write to a disk, and copy them")
        places = [self.place(name) for name in names]
        self._check_free([place for place in places if self._storage.identity(place) is not None], overwrite)
        self._staging = tempfile.mkdtemp(prefix="ray_h5-")
        return []

    def temporary(self, name: str) -> str:
        return os.path.join(self._staging, f"{os.path.basename(name)}.{secrets.token_hex(4)}.tmp")

    def put(self, temporary: str, name: str) -> None:
        try:
            self._storage.put_file(self.place(name), temporary)
        finally:
            Path(temporary).unlink()

    def _end(self, *, is_complete: bool) -> None:  # noqa: ARG002  nothing of it is in the store
        if self._staging:
            shutil.rmtree(self._staging, ignore_errors=True)


class LocalTarget(Target):
    """An output on a disk.

    It has a hidden folder beside it, with files that are not complete, the list of those that are, and a lock. All of
    it is removed when the repack has succeeded.
    """

    def __init__(self, path: str, is_file: bool) -> None:
        super().__init__(path, is_file)
        self._folder = os.path.dirname(path) if is_file else path
        label = f"-{os.path.basename(path)}" if is_file else ""
        self._hidden = HiddenFolder(os.path.join(self._folder, f".ray_h5_repack{label}"))
        self._journal_path = os.path.join(self._hidden.path, JOURNAL)
        self._done: dict[str, list[int]] = {}
        self._plan = ""
        self._has_begun = self._makes_folder = False

    def real_path(self, place: str) -> str:
        return LOCAL.real_path(place)

    def begin(self, names: Sequence[str], plan: str, *, resume: bool, overwrite: bool) -> list[str]:
        self._plan = plan
        self._makes_folder = not os.path.lexists(self._folder)
        with writing(self.path, "making the folder"):
            try:
                self._hidden.take()
            except BlockingIOError:
                raise OutputExistsError(
                    f"{self.path}: another repack writes to it. Wait for it, or write elsewhere."
                ) from None
        self._hidden.clear([JOURNAL])
        done = self._journal() if resume else {}
        self._done = {name: done[name] for name in names if name in done and done[name] == _state(self.place(name))}
        there = [self.place(name) for name in names if name not in self._done and os.path.lexists(self.place(name))]
        self._check_free(there, overwrite)
        self._write_journal()
        self._has_begun = True
        return list(self._done)

    def temporary(self, name: str) -> str:
        return self._hidden.temporary(os.path.basename(name))

    def _journal(self) -> dict[str, list[int]]:
        try:
            with open(self._journal_path, "rb") as file:
                found = json.load(file)
            plan, done = found["plan"], dict(found["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        if plan != self._plan:
            raise OptionError(
                f"resume=True: {self.path} was begun with other options, or the files changed since. Pass the same "
                "options; or overwrite=True to begin again."
            )
        return done

    def _write_journal(self) -> None:
        with writing(self._journal_path), written_whole(self._journal_path) as file:
            file.write(json.dumps({"plan": self._plan, "done": self._done}).encode())

    def put(self, temporary: str, name: str) -> None:
        place = self.place(name)
        # First the list: a kill in between leaves a file that is not there, and not one that is not in the list.
        self._done[name] = _state(temporary)
        self._write_journal()
        with writing(place, "giving it its name"):
            Path(os.path.dirname(place)).mkdir(parents=True, exist_ok=True)
            Path(temporary).replace(place)
            sync(os.path.dirname(place))

    def _end(self, *, is_complete: bool) -> None:
        """Remove what is not needed: all, or all but the list of complete files, if there are some and it failed."""
        if not self._hidden.is_held:
            return
        is_unused = not self._has_begun and not os.path.exists(self._journal_path)
        if is_complete or is_unused or (self._has_begun and not self._done):
            self._hidden.remove()
            if not is_complete and self._makes_folder:
                with contextlib.suppress(OSError):
                    Path(self._folder).rmdir()  # if nothing is in it
        else:
            self._hidden.clear([JOURNAL])
            self._hidden.release()


def _state(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns, found.st_ino]
