"""Where a repack writes: one file or a folder, file by file; one repack at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_h5.errors import OptionError, OutputExistsError
from ray_h5.messages import few
from ray_h5.storage.addresses import is_url
from ray_h5.storage.storage_of_path import storage_for, whole_path
from ray_h5.writing.folders import is_hdf5_name
from ray_h5.writing.output import sync, writing

if TYPE_CHECKING:
    from typing_extensions import Self

    from ray_h5.storage.stores.object_store import ObjectStorage

_JOURNAL = "journal.json"
_LOCK = "lock"


class Target:
    """The output of a repack.

    A local one has a hidden folder beside it, with files that are not complete, the list of those that are, and a
    lock. All of it is removed when the repack has succeeded.

    Parameters
    ----------
    out : str
        A file, or a folder; a URL for one in a store. A name with an extension of HDF5 is a file.
    storage_options : mapping of str to object, optional
        How the store is reached.
    extensions : collection of str
        Further extensions of files: those of the inputs, such as ``.nc``.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        extensions: Collection[str] = (),
    ) -> None:
        text = os.fspath(out)
        if not isinstance(text, str) or not text:
            raise OptionError(f"out={out!r}: expected the path or URL of a file or folder")
        self._storage: ObjectStorage | None = None
        if is_url(text):
            found: Any = storage_for(storage_options, [text])
            if found.address(text).kind == "https":
                raise OptionError(f"out={whole_path(text)!r}: cannot write by HTTP; expected s3://, gs:// or az://")
            self._storage = found
        else:
            text = os.path.abspath(text.removeprefix("local://"))
        self.path = text.rstrip("/")
        is_named = is_hdf5_name(os.path.basename(self.path)) or Path(self.path).suffix in extensions
        self.is_file = is_named and not os.path.isdir(self.path)
        self._folder = os.path.dirname(self.path) if self.is_file else self.path
        label = f"-{os.path.basename(self.path)}" if self.is_file else ""
        self._staging = os.path.join(self._folder, f".ray_h5_repack{label}")
        self._lock: int | None = None
        self._done: dict[str, list[int]] = {}
        self._plan = ""
        self._has_begun = False

    def place(self, name: str) -> str:
        """Return the path or URL of an output."""
        return self.path if self.is_file else f"{self.path}/{name}"

    def is_remote(self) -> bool:
        return self._storage is not None

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
        if self._storage is not None:
            if resume:
                raise OptionError("resume=True: files in a store cannot be resumed; write to a disk, and copy them")
            there = [self.place(name) for name in names if self._storage.identity(self.place(name)) is not None]
            self._check_free(there, overwrite)
            self._staging = tempfile.mkdtemp(prefix="ray_h5-")
            self._has_begun = True
            return []
        self._plan = plan
        self._take_lock()
        for name in os.listdir(self._staging):
            if name not in {_LOCK, _JOURNAL}:
                with contextlib.suppress(OSError):
                    Path(os.path.join(self._staging, name)).unlink()
        done = self._journal() if resume else {}
        self._done = {name: done[name] for name in names if name in done and done[name] == _state(self.place(name))}
        there = [self.place(name) for name in names if name not in self._done and os.path.lexists(self.place(name))]
        self._check_free(there, overwrite)
        self._write_journal()
        self._has_begun = True
        return list(self._done)

    def _take_lock(self) -> None:
        lock = os.path.join(self._staging, _LOCK)
        while self._lock is None:
            with writing(self.path, "making the folder"):
                Path(self._staging).mkdir(parents=True, exist_ok=True)
                found = os.open(lock, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(found)
                raise OutputExistsError(
                    f"{self.path}: another repack writes to it. Wait for it, or write elsewhere."
                ) from None
            # Another repack may have ended meanwhile, and removed the folder.
            if os.path.exists(lock) and os.path.samestat(os.fstat(found), os.stat(lock)):
                self._lock = found
            else:
                os.close(found)

    def _check_free(self, there: Sequence[str], overwrite: bool) -> None:
        if there and not overwrite:
            names = few([whole_path(each) for each in there])
            raise OutputExistsError(
                f"{names} exists already. Pass overwrite=True to replace it, resume=True to "
                "go on with a repack that was interrupted, or write elsewhere."
            )

    def _journal(self) -> dict[str, list[int]]:
        try:
            with open(os.path.join(self._staging, _JOURNAL)) as file:
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
        path = os.path.join(self._staging, _JOURNAL)
        with writing(path), open(f"{path}.tmp", "w") as file:
            json.dump({"plan": self._plan, "done": self._done}, file)
        Path(f"{path}.tmp").replace(path)

    def temporary(self, name: str) -> str:
        """Return the path of a new local file."""
        return os.path.join(self._staging, f"{os.path.basename(name)}.{secrets.token_hex(4)}.tmp")

    def put(self, temporary: str, name: str) -> None:
        """Give a complete file its name."""
        place = self.place(name)
        if self._storage is not None:
            try:
                self._storage.put_file(place, temporary)
            finally:
                Path(temporary).unlink()
            return
        # First the list: a kill in between leaves a file that is not there, and not one that is not in the list.
        self._done[name] = _state(temporary)
        self._write_journal()
        with writing(place, "giving it its name"):
            Path(os.path.dirname(place)).mkdir(parents=True, exist_ok=True)
            Path(temporary).replace(place)
            sync(os.path.dirname(place))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove what is not needed: all, or all but the list of complete files, if there are some and it failed."""
        if self._lock is None and not self._has_begun:
            return
        is_unused = not self._has_begun and not os.path.exists(os.path.join(self._staging, _JOURNAL))
        if kind is None or is_unused or (self._has_begun and not self._done):
            shutil.rmtree(self._staging, ignore_errors=True)
            if kind is not None and not self.is_file and self._storage is None:
                with contextlib.suppress(OSError):
                    Path(self._folder).rmdir()  # if nothing is in it
        else:
            for name in os.listdir(self._staging):
                if name not in {_LOCK, _JOURNAL}:
                    with contextlib.suppress(OSError):
                        Path(os.path.join(self._staging, name)).unlink()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _state(path: str) -> list[int]:
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns, found.st_ino]
