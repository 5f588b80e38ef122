"""Facts of files in the memory of the process and, with `index_dir`, in index files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from ray_h5.atomic import written_whole
from ray_h5.errors import OptionError
from ray_h5.lru import LRU
from ray_h5.planning.index.file_facts import FileFacts
from ray_h5.planning.index.scope import Scope
from ray_h5.planning.index.serialize import from_body, to_body
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.fetching import each_waiting
from ray_h5.storage.local import LOCAL, PathLike, identity_now, local_folder
from ray_h5.storage.storages import RemoteStorage, Storage

logger = logging.getLogger(__name__)

_MAX_FILES = 200_000
_MAX_VALUE_BYTES = 1 << 30
_MAX_BODY_BYTES = 4 << 30
_PIECE_BYTES = 64 << 20
"""The checksum of a larger index file is computed piece by piece, before memory is taken for all of it."""

_MAGIC = b"ray_h5ix"
_VERSION = 10
_HEADER = struct.Struct("<8sIQ16s")
"""Magic, version, length of the body, checksum of the body; the body is an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Facts of one file, and where on disk they are.

    Attributes
    ----------
    facts : FileFacts
        The facts.
    stored : mapping of str to FileIdentity
        The index files that hold all of these facts, and their states when they did. Checking a state is one ``stat``.
        Without it each plan of a process would read the index files again: 62 s of CPU for 100,000 files (measured).
    """

    facts: FileFacts
    stored: Mapping[str, FileIdentity]


class Memory:
    """The facts that this process used last, by file and scope; safe to use from several threads."""

    def __init__(self) -> None:
        self.entries: LRU[_Entry] = LRU(_MAX_FILES, _MAX_VALUE_BYTES, lambda entry: entry.facts.value_bytes)

    def get(self, path: str, scope: Scope, listed: Identity | None = None) -> FileFacts | None:
        """Return what is known of a file in its present state, if anything; `listed` as in `is_current`."""
        key = _key(path, scope)
        entry = self.entries.get(key)
        if entry is None:
            return None
        if not is_current(entry.facts, listed, scope.storage):
            self.entries.drop(key, entry)
            return None
        return entry.facts

    def put(self, facts: FileFacts, scope: Scope, index_dir: str | None = None) -> None:
        """Add facts to what is known of a file; facts that other threads found meanwhile stay.

        Parameters
        ----------
        facts : FileFacts
            The facts.
        scope : Scope
            How the file was opened.
        index_dir : str, optional
            A folder whose index file holds all of these facts.
        """
        key = _key(facts.path, scope)
        found = facts.owned(entry.facts if (entry := self.entries.get(key)) is not None else None)
        stored = {} if index_dir is None else _state_of_index(facts.path, scope, index_dir)

        def add(known: _Entry | None) -> _Entry:
            if known is None:
                return _Entry(found, stored)
            merged = known.facts.merged(found)
            # An index file holds the sum only if it holds the part that the other lacks.
            before = known.stored if known.facts.holds(merged) else {}
            return _Entry(merged, {**before, **(stored if found.holds(merged) else {})})

        self.entries.update(key, add)

    def is_stored(self, path: str, scope: Scope, index_dir: str) -> bool:
        """Return whether the index file holds all that is known of a file; costs a look at its state."""
        entry, state = self.entries.get(_key(path, scope)), _state_of_index(path, scope, index_dir)
        return entry is not None and bool(state) and state.items() <= entry.stored.items()

    def clear(self) -> None:
        self.entries.clear()


MEMORY = Memory()
"""The facts of this process."""


def get(path: str, scope: Scope, index_dir: str, listed: Identity | None = None) -> FileFacts | None:
    """Return what the index file says of a file in its present state, if anything; `listed` as in `is_current`."""
    stored = load(path, scope, index_dir)
    if stored is not None and not is_current(stored, listed, scope.storage):
        logger.info("%s: its index file is outdated and is made again", path)
        return None
    return stored


def put(facts: FileFacts, stored: FileFacts | None, scope: Scope, index_dir: str) -> None:
    """Save facts, unless the index file holds all of them: `stored`, from `get`. What else it holds stays."""
    if stored is None or not stored.holds(facts):
        save(facts if stored is None else stored.merged(facts), scope, index_dir)


def is_current(facts: FileFacts, listed: Identity | None = None, storage: Storage = LOCAL) -> bool:
    """Return whether the file, and those that its columns come from, did not change.

    Of a remote file, `listed` is the state in the listing. Its later states are not asked for: each read says which
    state it wants. The other files in its `storage` that it refers to are in no listing, so these are looked at.
    """
    if is_url(facts.path):
        others = [(path, state) for path, state in facts.sources if path != facts.path]
        is_same = listed is None or facts.identity == listed
        return is_same and all(each_waiting(lambda each: storage.identity(each[0]) == each[1], others))
    try:
        return all(identity_now(path) == identity for path, identity in ((facts.path, facts.identity), *facts.sources))
    except OSError:
        return False  # opening the file reports what is wrong


def check_index_dir(folder: PathLike) -> str:
    """Make the folder of an index, and return its absolute path.

    Raises
    ------
    OptionError
        If it is no path, an empty one, or a folder in which nothing can be written.
    """
    folder = local_folder("index_dir", folder)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise OptionError(f"index_dir={folder!r}: nothing can be written there: {exc.strerror}") from exc
    _warn_of_others(folder)
    return folder


@lru_cache(maxsize=1024)  # once a folder
def _warn_of_others(folder: str) -> None:
    """Warn if others can change an index: its values decide which rows a predicate selects."""
    state = os.stat(folder)
    if state.st_mode & stat.S_IWOTH:
        why = f"everybody can write there (mode {stat.S_IMODE(state.st_mode):o})"
    elif state.st_uid not in {os.geteuid(), 0}:
        why = f"it belongs to another user (uid {state.st_uid})"
    else:
        return
    logger.warning(
        "index_dir=%r: %s. Its contents decide which rows predicates select. Use a folder in which only you, and "
        "people whom you trust, can write.", folder, why,
    )  # fmt: skip


def save(facts: FileFacts, scope: Scope, index_dir: str) -> None:
    """Write the facts of a file to its index file, whole or not at all.

    Raises
    ------
    OptionError
        If it cannot be written. The index file of before, if there was one, stays.
    """
    body = to_body(facts, _named(facts.path, scope))
    where = index_path(facts.path, scope, index_dir)
    if len(body) > _MAX_BODY_BYTES:
        logger.warning(
            "%s: not stored in index_dir: %d bytes, expected at most %d", facts.path, len(body), _MAX_BODY_BYTES
        )
        return
    with contextlib.suppress(OSError):
        Path(where).rmdir()  # if it is an empty folder
    try:
        with written_whole(where) as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, len(body), _checksum([body])))
            file.write(body)
    except OSError as exc:
        raise OptionError(
            f"index_dir={index_dir!r}: {os.path.basename(where)} cannot be written there: {exc.strerror}"
        ) from exc


def load(path: str, scope: Scope, index_dir: str) -> FileFacts | None:
    """Return what an index file says; None if there is none, or it cannot be trusted."""
    where = index_path(path, scope, index_dir)
    try:
        with open(where, "rb", opener=_open_at_once) as file:
            return from_body(_checked_body(file, index_dir), path, _named(path, scope))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        _distrust(where, str(exc))
        return None


def _open_at_once(where: str, flags: int) -> int:
    # O_NONBLOCK: if the path is a pipe, a plain open would wait for its writer.
    return os.open(where, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _checked_body(file: BinaryIO, index_dir: str) -> memoryview:
    """Return the body of an index file. No memory is taken for it before its size and header are checked."""
    state, folder = os.fstat(file.fileno()), os.stat(index_dir)
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("expected a file, found a pipe or a device")
    if folder.st_mode & stat.S_IWOTH and state.st_uid not in {os.geteuid(), folder.st_uid, 0}:
        raise ValueError(f"another user put it there (uid {state.st_uid}), in a folder that everybody can write to")
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError("it is cut short")
    magic, version, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("it has another format or version")
    if length != state.st_size - _HEADER.size or length > _MAX_BODY_BYTES:
        raise ValueError(f"it has {state.st_size} bytes, its header says {length}; at most {_MAX_BODY_BYTES} are read")
    if length > _PIECE_BYTES and _checksum(iter(partial(file.read, _PIECE_BYTES), b"")) != checksum:
        raise ValueError("its checksum is wrong")
    file.seek(_HEADER.size)
    body = file.read(length)
    if len(body) != length or _checksum([body]) != checksum:
        raise ValueError("its checksum is wrong")
    return memoryview(body)


def index_path(path: str, scope: Scope, index_dir: str) -> str:
    """Return the path of the index file of a data file."""
    name = hashlib.blake2b(json.dumps(_named(path, scope)).encode("utf-8", "surrogateescape"), digest_size=16)
    return os.path.join(index_dir, f"{name.hexdigest()}.h5index")


def _state_of_index(path: str, scope: Scope, index_dir: str) -> dict[str, FileIdentity]:
    """Return the index file of a data file and its state; nothing if there is none."""
    where = index_path(path, scope, index_dir)
    try:
        return {where: FileIdentity.of(os.stat(where))}
    except OSError:
        return {}  # writing it reports what is wrong


def _distrust(where: str, why: str) -> None:
    logger.warning("%s: not used, and made again: %s", where, why)


def _named(path: str, scope: Scope) -> list[Any]:
    kind = [] if scope.by_axis else [repr((scope.rows, scope.windows))]
    # The same bucket at another endpoint is another one.
    place = [scope.storage.place] if is_url(path) and isinstance(scope.storage, RemoteStorage) else []
    kind += [repr(scope.columns)] if scope.columns else []
    kind += ["decode_cf"] if scope.decode_cf else []
    kind += ["reversed"] if scope.axes == "reversed" else []
    return [path, scope.group, sorted(scope.allow_external), *kind, *place]


def _key(path: str, scope: Scope) -> tuple[object, ...]:
    return path, replace(scope, threads=1, storage=scope.storage if is_url(path) else LOCAL)


def _checksum(pieces: Iterable[bytes]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        found.update(piece)
    return found.digest()
