"""Index files: facts of many files, in a folder or, to be read alone, in a store."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import stat
import struct
import tempfile
from functools import lru_cache
from pathlib import Path

from ray_h5.atomic import written_whole
from ray_h5.errors import OptionError
from ray_h5.index.stored.facts_as_bytes import VERSION
from ray_h5.lru import first_time
from ray_h5.storage.addresses import SCHEMES, is_url, scheme_of, shown
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.local import PathLike, local_folder
from ray_h5.storage.storage_of_path import Storage

logger = logging.getLogger(__name__)

ENDING = ".h5index"

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

_MAX_BODY_BYTES = 4 << 30
_READ_BYTES = 16 << 20
"""What is read of a file before anything of it is known to be right."""

_MAGIC = b"ray_h5ix"
_HEADER = struct.Struct("<8sIQ16s")
"""Magic, version, length of the body, checksum of the body."""


def check_index_dir(folder: PathLike, *, in_store: bool = False) -> str:
    """Make the folder of an index, and return its absolute path.

    One in a store, for files there, is only read; so is one with index files in which nothing can be written.

    Raises
    ------
    OptionError
        If it is no path, an empty one, a folder in which nothing can be written, or in a store that lists no files.
    """
    if in_store and isinstance(folder, str) and is_url(folder):
        if SCHEMES.get(scheme_of(folder)) == "https":  # index files are found by a listing
            raise OptionError(
                f"index_dir={shown(folder)!r}: a server of https:// does not list its files; expected a local folder, "
                "or one of s3://, gs:// or az://"
            )
        return folder.rstrip("/")
    folder = local_folder("index_dir", folder)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        if exc.errno not in _READ_ONLY or not any(name.endswith(ENDING) for name in _names_in(folder)):
            raise OptionError(f"index_dir={folder!r}: nothing can be written there: {exc.strerror}") from exc
    _warn_of_others(folder)
    return folder


def _names_in(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


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
    advice = "Use a folder in which only you, and people whom you trust, can write."
    logger.warning("index_dir=%r: %s. Its contents decide which rows predicates select. %s", folder, why, advice)


def write_body(where: str, body: bytes) -> bool:
    """Write an index file, whole or not at all; return False for a body that is too large, or a folder to read alone.

    Raises
    ------
    OptionError
        If it cannot be written.
    """
    folder, name = os.path.split(where)
    if len(body) > _MAX_BODY_BYTES:
        logger.warning("index_dir=%r: not stored: %d bytes, expected at most %d", folder, len(body), _MAX_BODY_BYTES)
        return False
    try:
        with written_whole(where) as file:
            file.write(_HEADER.pack(_MAGIC, VERSION, len(body), _checksum(body)))
            file.write(body)
    except OSError as exc:
        if exc.errno in _READ_ONLY:
            if first_time("read-only index", folder):
                logger.warning("index_dir=%r: only read, not stored: %s", folder, exc.strerror)
            return False
        raise OptionError(f"index_dir={folder!r}: {name} cannot be written there: {exc.strerror}") from exc
    return True


def read_body(where: str, index_dir: str) -> memoryview:
    """Return the body of an index file; raise an OSError or a ValueError if there is none that can be trusted."""
    # O_NONBLOCK: if the path is a pipe, a plain open would wait for its writer.
    with open(where, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        state, folder = os.fstat(file.fileno()), os.stat(index_dir)
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("expected a file, found a pipe or a device")
        if folder.st_mode & stat.S_IWOTH and state.st_uid not in {os.geteuid(), folder.st_uid, 0}:
            raise ValueError(f"another user put it there (uid {state.st_uid}), in a folder that everybody can write to")
        _check_size(state.st_size)
        checksum = _checksum_in(file.read(_HEADER.size), state.st_size)
        if state.st_size > _READ_BYTES:  # memory is taken for what is right: it is read twice
            digest = hashlib.blake2b(digest_size=16)
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
            _check_sum(digest.digest(), checksum)
            file.seek(_HEADER.size)
        return _checked_body(file.read(), checksum)


def body_in_store(url: str, state: Identity, storage: Storage) -> memoryview:
    """Return the body of an index file in a store, by one request, or two for a large one; errors as `read_body`."""
    _check_size(state.size)
    source = storage.open(url, state)
    if state.size > _READ_BYTES:
        source.read_into(0, memoryview(header := bytearray(_HEADER.size)))
        _checksum_in(header, state.size)
    content = bytearray(state.size)
    source.read_into(0, memoryview(content))
    return _checked_body(memoryview(content)[_HEADER.size :], _checksum_in(content, state.size))


def _check_size(size: int) -> None:
    if size > _MAX_BODY_BYTES:
        raise ValueError(f"it has {size} bytes; at most {_MAX_BODY_BYTES} are read")


def _checksum_in(content: bytes | bytearray, size: int) -> bytes:
    """Return the checksum that the header of an index file says, which has so many bytes in all."""
    if len(content) < _HEADER.size:
        raise ValueError("it is cut short")
    magic, version, length, checksum = _HEADER.unpack_from(content)
    if magic != _MAGIC or version != VERSION:
        raise ValueError("it has another format or version")
    if length != size - _HEADER.size:
        raise ValueError(f"it has {size} bytes, its header says {length}")
    return bytes(checksum)


def _checked_body(body: bytes | memoryview, checksum: bytes) -> memoryview:
    _check_sum(_checksum(body), checksum)
    return memoryview(body)


def _check_sum(found: bytes, expected: bytes) -> None:
    if found != expected:
        raise ValueError("its checksum is wrong")


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
