"""Facts of files in index files: in a folder, or, to be read alone, in a store."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from ray_h5.errors import OptionError
from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.file_opener import Scope
from ray_h5.index.stored.memory import is_current
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.local import PathLike, local_folder
from ray_h5.storage.storage_of_path import Storage, storage_of

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 4 << 30
_PIECE_BYTES = 64 << 20
"""The checksum of a larger index file is computed piece by piece, before memory is taken for all of it."""

_LOCK_S = 1.0
"""How long a process waits for others that save, before it saves without the lock: one of them may be stopped."""

_MAGIC = b"ray_h5ix"
_VERSION = 14
_HEADER = struct.Struct("<8sIQ16s")
"""Magic, version, length of the body, checksum of the body; the body is an Arrow IPC stream."""


def get(path: str, scope: Scope, index_dir: str, listed: Identity | None = None) -> FileFacts | None:
    """Return what the index file says of a file in its present state, if anything; `listed` as in `is_current`."""
    stored = load(path, scope, index_dir)
    if stored is not None and not is_current(stored, listed, scope.storage):
        logger.info("%s: its index file is outdated and is made again", path)
        return None
    return stored


def put(facts: FileFacts, stored: FileFacts | None, scope: Scope, index_dir: str) -> None:
    """Save facts, unless the index file holds all of them: `stored`, from `get`. What else it holds stays."""
    if (stored is not None and stored.holds(facts)) or not is_written(index_dir):
        return
    with alone_in(index_dir):
        with contextlib.suppress(OSError, ValueError):  # `get` has reported what is wrong with the index file
            # Another process may have saved more since `stored` was read.
            now = _load(facts.path, scope, index_dir)
            if is_current(now, facts.identity, scope.storage):
                facts = now.merged(facts)
        save(facts, scope, index_dir)


@contextlib.contextmanager
def alone_in(index_dir: str) -> Iterator[None]:
    """Let one thread of one process at a time change the index files of a folder, where its file system has locks.

    Without a lock, one of two that save at a time may drop facts that the other found. They are then found again.
    """
    from ray_h5.atomic import lock_within

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder = os.open(index_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)  # lets go of the lock
            lock_within(folder, _LOCK_S)
        yield


def is_written(index_dir: str) -> bool:
    """Return whether index files are written to a folder; one in a store is only read."""
    return not is_url(index_dir)


def check_index_dir(folder: PathLike, *, in_store: bool = False) -> str:
    """Make the folder of an index, and return its absolute path; one in a store, for files there, is only read.

    Raises
    ------
    OptionError
        If it is no path, an empty one, or a folder in which nothing can be written.
    """
    if in_store and isinstance(folder, str) and not is_written(folder):
        return folder.rstrip("/")
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
    from ray_h5.index.stored.serialize import to_body

    body = to_body(facts, named(facts.path, scope))
    write_body(index_path(facts.path, scope, index_dir), body, index_dir, facts.path)


def write_body(where: str, body: bytes, index_dir: str, what: str) -> None:
    """Write an index file, whole or not at all; errors as `save`. `what` it is of is for messages."""
    from ray_h5.atomic import written_whole

    if len(body) > _MAX_BODY_BYTES:
        logger.warning("%s: not stored in index_dir: %d bytes, expected at most %d", what, len(body), _MAX_BODY_BYTES)
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
    try:
        return _load(path, scope, index_dir)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        distrust(index_path(path, scope, index_dir), str(exc))
        return None


def _load(path: str, scope: Scope, index_dir: str) -> FileFacts:
    from ray_h5.index.stored.serialize import from_body

    where = index_path(path, scope, index_dir)
    body = read_body(where, index_dir) if is_written(index_dir) else _checked_body(_in_store(where, scope.storage))
    return from_body(body, path, named(path, scope))


def read_body(where: str, index_dir: str) -> memoryview:
    """Return the body of an index file; raise an OSError or a ValueError if there is none that can be trusted."""
    with open(where, "rb", opener=_open_at_once) as file:
        _check_owner(os.fstat(file.fileno()), os.stat(index_dir))
        return _checked_body(file)


def _in_store(url: str, storage: Storage) -> BinaryIO:
    """Return an index file in a store, by two requests."""
    state = storage.identity(url)
    if state is None:
        raise FileNotFoundError(url)
    if state.size > _MAX_BODY_BYTES:
        raise ValueError(f"it has {state.size} bytes; at most {_MAX_BODY_BYTES} are read")
    content = bytearray(state.size)
    storage.open(url, state).read_into(0, memoryview(content))
    return io.BytesIO(content)


def _open_at_once(where: str, flags: int) -> int:
    # O_NONBLOCK: if the path is a pipe, a plain open would wait for its writer.
    return os.open(where, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _checked_body(file: BinaryIO) -> memoryview:
    """Return the body of an index file. No memory is taken for it before its size and header are checked."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise ValueError("it is cut short")
    magic, version, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("it has another format or version")
    if length != size - _HEADER.size or length > _MAX_BODY_BYTES:
        raise ValueError(f"it has {size} bytes, its header says {length}; at most {_MAX_BODY_BYTES} are read")
    if length > _PIECE_BYTES and _checksum(iter(partial(file.read, _PIECE_BYTES), b"")) != checksum:
        raise ValueError("its checksum is wrong")
    file.seek(_HEADER.size)
    body = file.read(length)
    if len(body) != length or _checksum([body]) != checksum:
        raise ValueError("its checksum is wrong")
    return memoryview(body)


def _check_owner(state: os.stat_result, folder: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("expected a file, found a pipe or a device")
    if folder.st_mode & stat.S_IWOTH and state.st_uid not in {os.geteuid(), folder.st_uid, 0}:
        raise ValueError(f"another user put it there (uid {state.st_uid}), in a folder that everybody can write to")


def index_path(path: str, scope: Scope, index_dir: str) -> str:
    """Return the path of the index file of a data file."""
    return path_of(named(path, scope), index_dir)


def path_of(identified: list[Any], index_dir: str) -> str:
    """Return the path of the index file of what a list identifies."""
    name = hashlib.blake2b(json.dumps(identified).encode("utf-8", "surrogateescape"), digest_size=16)
    return os.path.join(index_dir, f"{name.hexdigest()}.h5index")


def state_of_index(path: str, scope: Scope, index_dir: str) -> dict[str, FileIdentity]:
    """Return the index file of a data file and its state; nothing if there is none."""
    where = index_path(path, scope, index_dir)
    return {} if (state := state_of(where)) is None else {where: state}


def state_of(where: str) -> FileIdentity | None:
    """Return the state of an index file; None if there is none."""
    try:
        return FileIdentity.of(os.stat(where))
    except OSError:
        return None  # writing it reports what is wrong


def distrust(where: str, why: str) -> None:
    """Warn of an index file that is not used."""
    logger.warning("%s: not used, and made again: %s", where, why)


def named(path: str, scope: Scope) -> list[Any]:
    """Return what identifies a file, or a folder, and how it is opened."""
    kind = [] if scope.by_axis else [repr((scope.rows, scope.windows))]
    # The same bucket at another endpoint is another one.
    place = list(filter(None, [storage_of(path, scope.storage).place]))
    kind += getattr(scope.rows, "named", ())  # of a grid
    kind += [f"{folders} folders"] if (folders := getattr(scope.rows, "_folders", 0)) else []
    kind += [repr(scope.columns)] if scope.columns else []
    kind += ["missing_ok"] if any(getattr(each, "missing_ok", False) for each in scope.columns) else []
    kind += ["decode_cf"] if scope.decode_cf else []
    kind += ["reversed"] if scope.axes == "reversed" else []
    kind += [f"zip_files {beside}"] if (beside := scope.beside(path)) else []
    return [path, scope.group, sorted(scope.allow_external), *kind, *place]


def _checksum(pieces: Iterable[bytes]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        found.update(piece)
    return found.digest()
