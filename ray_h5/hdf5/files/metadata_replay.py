"""Parts of a remote file that are in memory, for libhdf5 to parse. It never waits for the network.

h5py holds a lock of the process while it reads. So a read of bytes that are not in memory raises `MissingBytes`, which
leaves h5py; all bytes that were missed are fetched at once, and the pass is made again (`replay`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import h5py

from ray_h5.hdf5.files.btree_prefetch import Hints
from ray_h5.hdf5.format.file_bytes import HELD, address_of
from ray_h5.storage.byte_source import ByteSource, FileObject, MissingBytes, Span
from ray_h5.storage.request_pool import each_waiting, fetch

Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK_BYTES = 4 << 10
"""Bytes are fetched and held in blocks of this size, or of whole pages of a paged file."""

_HEAD_BYTES = 64 << 10
_SMALL_FILE_BYTES = 2 << 20
"""The rest of a smaller file is fetched at once, if its head is not enough: that takes no longer than a request."""

_GAP_BYTES = 16 << 10
_PART_BYTES = 8 << 20
_PATIENT_ROUNDS = 12
"""Passes after which it is clear that hints do not help: each miss then reads on, twice as far as the one before."""

_MAX_HINTED_BYTES = 64 << 20

_MAX_HELD_BYTES = 64 << 20
"""More, of all files that one file leads to, is dropped once a pass is done: parts of a file are rarely needed twice.
Small files are not fetched whole if they are more together."""


@dataclass(slots=True)
class _Pass:
    """What one pass missed, and what it will need next; and questions to the store, each once."""

    missed: list[tuple[HeldBytes, int, int]] = field(default_factory=list)
    hinted: list[tuple[HeldBytes, int, int]] = field(default_factory=list)
    asked: dict[Hashable, Callable[[], None]] = field(default_factory=dict)


class _Passes(threading.local):
    def __init__(self) -> None:
        self.running: list[_Pass] = []


_passes = _Passes()


class HeldBytes:
    """Blocks of a remote file.

    Parameters
    ----------
    source : ByteSource
        The file.
    below : HeldBytes, optional
        Blocks that are held for longer: metadata, below the data of one read.
    """

    def __init__(self, source: ByteSource, below: HeldBytes | None = None) -> None:
        self.source = source
        self.size, self.url = source.size, ""
        self.block_bytes: int = BLOCK_BYTES if below is None else below.block_bytes
        self._blocks: dict[int, memoryview] = {} if below is None else dict(below._blocks)
        self._hints: Hints = Hints(self.size) if below is None else below._hints
        self._fetched = below is not None
        self.requests = self.bytes_fetched = 0

    @property
    def nbytes(self) -> int:
        return len(self._blocks) * BLOCK_BYTES

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes, fewer at the end of the file; raise `MissingBytes` unless all are held."""
        data = bytearray(max(0, min(count, self.size - offset)))
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer; raise `MissingBytes` unless all bytes are held."""
        numbers, blocks = range(offset // BLOCK_BYTES, (offset + len(buffer) - 1) // BLOCK_BYTES + 1), self._blocks
        if not all(number in blocks for number in numbers):
            blocks = self._missed(offset, len(buffer))
        at = 0
        for number in numbers:
            begin = offset + at - number * BLOCK_BYTES
            part = blocks[number][begin : begin + len(buffer) - at]
            buffer[at : at + len(part)] = part
            at += len(part)

    def read_on(self, offset: int, count: int) -> bytes:
        """Return bytes as `read` does, and ask for what whoever parses them will read next."""
        data = self.read(offset, count)
        if len(self._blocks) * BLOCK_BYTES < self.size:
            self.hint(offset, memoryview(data))
        return data

    def holds(self, offset: int, count: int) -> bool:
        """Return whether bytes are held."""
        last = (min(offset + count, self.size) - 1) // BLOCK_BYTES
        return all(number in self._blocks for number in range(offset // BLOCK_BYTES, last + 1))

    def _missed(self, offset: int, count: int) -> dict[int, memoryview]:
        """Return blocks with some bytes that are not held; raise `MissingBytes` in a pass, which fetches them later."""
        if _passes.running:
            _passes.running[-1].missed.append((self, offset, count))
            raise MissingBytes
        # Outside `replay`: nothing holds a lock of h5py here. Another thread may drop what this one holds (`trim`).
        own = HeldBytes(self.source, self)
        own._fetched = self._fetched
        own.fetch([(offset, count)])
        self._fetched = True
        self.requests += own.requests
        self.bytes_fetched += own.bytes_fetched
        self._blocks.update(own._blocks)
        return own._blocks

    def hint(self, offset: int, data: memoryview) -> None:
        """Ask for what libhdf5 will read next, given what it has just read."""
        if _passes.running:
            hinted = _passes.running[-1].hinted
            for at, count in self._hints.after(offset, data):
                hinted.append((self, at, count))

    def following(self, offset: int, count: int) -> list[Span]:
        """Return what libhdf5 will read after some bytes that it has not read yet, except what is held."""
        if not self.holds(offset, count):
            return []
        data = self.read(offset, count)
        spans = self._hints.after(offset, memoryview(data)) if self._hints.leads_on(offset, data[:8]) else []
        return [span for span in spans if not self.holds(*span)]

    def fetch(self, spans: Iterable[Span]) -> None:
        """Fetch byte ranges and hold them."""
        _fetch_all({self: list(spans)})

    def wanted_parts(self, spans: Iterable[Span], *, whole: bool = True) -> list[Span]:
        """Return the requests for byte ranges that are not held, joined where they are close.

        `whole` says whether the rest of a small file is fetched at once.
        """
        if not self._fetched and self.size <= 2 * _HEAD_BYTES:
            spans = [(0, self.size)]
        elif not self._fetched:
            spans = [*spans, (0, min(_HEAD_BYTES, self.size))]
        elif whole and self.size <= _SMALL_FILE_BYTES:
            spans = [(0, self.size)]
        unit, blocks = max(1, self.block_bytes // BLOCK_BYTES), -(-self.size // BLOCK_BYTES)
        numbers: set[int] = set()
        for offset, count in spans:
            end = -(-min(offset + count, self.size) // self.block_bytes) * unit
            numbers.update(range(offset // self.block_bytes * unit, min(end, blocks)))
        parts: list[list[int]] = []
        gap, most = _GAP_BYTES // BLOCK_BYTES + 1, _PART_BYTES // BLOCK_BYTES
        for number in sorted(numbers - self._blocks.keys()):
            if parts and number - parts[-1][1] <= gap and number - parts[-1][0] < most:
                parts[-1][1] = number
            else:
                parts.append([number, number])
        ends = [(first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, self.size)) for first, last in parts]
        return [(begin, end - begin) for begin, end in ends]

    def hold(self, offset: int, data: memoryview) -> None:
        """Hold bytes that begin with a block."""
        self._fetched = True
        self.requests += 1
        self.bytes_fetched += len(data)
        for at in range(0, len(data), BLOCK_BYTES):
            self._blocks[(offset + at) // BLOCK_BYTES] = data[at : at + BLOCK_BYTES]

    def drop(self) -> None:
        """Drop all blocks."""
        self._blocks = {}


def replay(action: Callable[[], Result]) -> Result:
    """Return the result of a pass over remote files; fetch what it misses and make it again until nothing is missed.

    What a pass raises counts only if it missed nothing: bytes that are not there may look like damage.
    """
    following: list[tuple[HeldBytes, int, int]] = []
    for number in itertools.count():
        running = _Pass()
        _passes.running.append(running)
        try:
            result = action()
            if not running.missed and not running.asked:
                return result
            del result
        except MissingBytes:
            pass
        except Exception:
            if not running.missed and not running.asked:
                raise
        finally:
            _passes.running.pop()
        each_waiting(lambda question: question(), list(running.asked.values()))
        ahead = 0 if number < _PATIENT_ROUNDS else min(BLOCK_BYTES << (number - _PATIENT_ROUNDS), _PART_BYTES)
        wanted: dict[HeldBytes, list[Span]] = {}
        for held, offset, count in running.missed:
            wanted.setdefault(held, []).append((offset, max(count, ahead)))
        most = _MAX_HINTED_BYTES  # a damaged file may hint at any number of bytes
        for held, offset, count in [*running.hinted, *following]:
            most -= count
            if held in wanted and most >= 0:
                wanted[held].append((offset, count))
        if wanted:
            _fetch_all(wanted)
        hinted = dict.fromkeys([*running.hinted, *following])
        following = [(held, *span) for held, *hint in hinted for span in held.following(*hint)]
    raise AssertionError("unreachable")


def trim(files: Sequence[HeldBytes]) -> None:
    """Drop what is held of files, if it is much of all together."""
    if sum(held.nbytes for held in files) > _MAX_HELD_BYTES:
        for held in files:
            held.drop()


def has_missed() -> bool:
    """Return whether the pass that runs has missed something, so that it is made again."""
    return bool(_passes.running) and bool(_passes.running[-1].missed or _passes.running[-1].asked)


def ask_later(key: Hashable, question: Callable[[], None]) -> None:
    """Ask a store something before the next pass, with what else this pass asks; now, outside `replay`.

    A question that was asked already has the same key.
    """
    if not _passes.running:
        question()
        return
    _passes.running[-1].asked[key] = question
    raise MissingBytes


def _fetch_all(wanted: dict[HeldBytes, list[Span]]) -> None:
    small = sum(held.size for held in wanted if held.size <= _SMALL_FILE_BYTES)
    whole = small <= _MAX_HELD_BYTES
    requests = [(held, *part) for held, spans in wanted.items() for part in held.wanted_parts(spans, whole=whole)]

    def then(number: int, data: memoryview) -> None:
        held, offset, _ = requests[number]
        held.hold(offset, data)

    fetch([(held.source, offset, count) for held, offset, count in requests], then)


class _HeldFile(FileObject):
    """`HeldBytes` as a file object for h5py."""

    def __init__(self, held: HeldBytes) -> None:
        def read_into(offset: int, buffer: memoryview) -> None:
            held.read_into(offset, buffer)
            held.hint(offset, buffer)

        super().__init__(held.size, read_into)
        self._held = held

    def __repr__(self) -> str:
        return self._held.url  # h5py calls the file by it


def open_held(held: HeldBytes, url: str) -> h5py.File:
    """Open a file whose bytes are in memory; raise `MissingBytes` if not enough of them are."""
    held.url = url
    file = h5py.File(_HeldFile(held), "r")
    try:
        HELD[address_of(file.id)[0]] = held
        made = file.id.get_create_plist()
        if made.get_file_space_strategy()[0] == h5py.h5f.FSPACE_STRATEGY_PAGE:
            # Whole pages from now on: each is full of metadata, or of data.
            page = int(made.get_file_space_page_size())
            if BLOCK_BYTES < page <= _PART_BYTES and page % BLOCK_BYTES == 0:
                held.block_bytes = page
    except BaseException:
        file.close()
        raise
    return file
