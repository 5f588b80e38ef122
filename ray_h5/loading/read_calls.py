"""How many batches one call of a reader reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ray_h5.loading.shares import Share

Batch = TypeVar("Batch", bound=Sized)


class CallBounds(NamedTuple):
    """How many batches that follow each other one call reads: a call with more rows finds more neighbours.

    Attributes
    ----------
    batches, nbytes : int
        At most so many batches, of so many bytes.
    growth : int
        How many times as many batches the next call reads, up to these.
    shared : bool
        Whether rows share chunks, which are decoded once a call: small calls decode them again.
    """

    batches: int
    nbytes: int
    growth: int
    shared: bool = True

    def hold(self, batches: float, batch_bytes: float) -> bool:
        """Return whether one call may read so many batches."""
        return batches <= self.batches and batches * batch_bytes <= self.nbytes


ROWS_ALONE = CallBounds(256, 16 << 20, 4, shared=False)
"""Calls of 32 MiB read 1.04 times as fast from memory, and 0.85 times as fast from a disk (measured)."""

OF_SHARED_CHUNKS = CallBounds(128, 40 << 20, 16)
"""Where rows of chunks of many rows, or blocks, are shuffled."""

OF_RANGES = CallBounds(256, 80 << 20, 16)
"""Where rows are ranges of longer arrays."""

LEAST_BYTES, LEAST_SHARED_BYTES = 1 << 20, 8 << 20
"""To plan a smaller call takes longer than to read its rows; or to copy them, where threads share decoded chunks."""

_MOST_POOLED_BYTES = 64 << 20
"""Of calls that are run in a pool."""

FEW_CHUNKS = 4
"""Where there are at most so many chunks for each row of a batch, one batch decodes a fifth of them or more."""

PLANNERS = 3
"""Calls that are planned side by side for the threads of a pool."""

_FIRST_BATCHES = 4
"""Of files in stores: the first call is smaller, as it is waited for."""


@dataclass(frozen=True, slots=True)
class CallSizes:
    """How many batches each call reads.

    Attributes
    ----------
    row_bytes : callable
        Returns the bytes of a sample; None while they are not known.
    bounds : CallBounds
        What a call may read.
    call_bytes : int
        Bytes that a call reads at least, if files are in stores; 0 if they are on disks.
    prefetch_factor : int, optional
        The batches of a call; by default what the bytes allow.
    windows : callable, optional
        Returns the share of the epoch, once its first batch was taken: each window of its shuffle is read by one call,
        so that its chunks are decoded once.
    is_whole : bool
        Whether one call reads all batches.
    least_bytes : int
        Only the first call is smaller than that, if there are as many batches.
    """

    row_bytes: Callable[[], int | None]
    bounds: CallBounds = ROWS_ALONE
    call_bytes: int = 0
    prefetch_factor: int | None = None
    windows: Callable[[], Share] | None = None
    is_whole: bool = False
    least_bytes: int = LEAST_BYTES

    def calls(
        self, batches: Iterator[Batch], left: float, threads: int, are_pooled: Callable[[], bool] = lambda: False
    ) -> Iterator[list[Batch]]:
        """Yield the batches that each call reads; `left` is their number.

        The first calls are small, so that the first batch comes soon; the last ones too, so that threads end together.
        Where calls `are_pooled`, all threads end together, and each call reads more for many threads.
        """
        if self.windows is not None:
            yield from _in_windows(batches, self.windows)
            return
        if self.is_whole:
            yield from filter(None, [list(batches)])
            return
        most_batches, most_bytes, growth, shared = self.bounds
        count = self.prefetch_factor if shared and self.prefetch_factor else 1
        if self.call_bytes:
            most_bytes, count = max(most_bytes, self.call_bytes), max(count, _FIRST_BATCHES)
        while call := list(itertools.islice(batches, count)):
            yield call
            left -= len(call)
            row_bytes = self.row_bytes()
            if row_bytes is None:
                continue
            batch_bytes, nbytes, is_pooled = max(1, len(call[0]) * row_bytes), most_bytes, are_pooled()
            if is_pooled:
                nbytes = max(nbytes, min(nbytes * threads // PLANNERS, _MOST_POOLED_BYTES))
            fitting, least = max(1, nbytes // batch_bytes), max(1, self.least_bytes // batch_bytes)
            grown = most_batches if self.call_bytes else max(growth * count, least)
            count = min(grown, self.prefetch_factor or min(most_batches, fitting))
            if threads > 1 and not is_pooled:
                count = int(min(count, max(least, -(-left // threads))))


def _in_windows(batches: Iterator[Batch], of: Callable[[], Share]) -> Iterator[list[Batch]]:
    """Yield the batches of each window; one that lies in two windows comes with the later one."""
    share: Share | None = None
    call: list[Batch] = []
    stop = end = 0
    for batch in batches:
        if share is None:
            share = of()
            stop = share.rows
        stop += len(batch)
        if stop > end:
            if call:
                yield call
            call, end = [], share.window_end(stop - 1)
        call.append(batch)
    if call:
        yield call
