"""A look at the lengths of values of varying length before libhdf5 takes memory for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import h5py
import numpy as np

from ray_h5.errors import CorruptChunkError
from ray_h5.hdf5.checks.heap import Heap, ReferenceLayout, stored_reader
from ray_h5.hdf5.files.file_bytes import ReadBytes
from ray_h5.hdf5.files.held_bytes import hint_addresses
from ray_h5.hdf5.files.opening import translated
from ray_h5.manifest.row_requests import Request, RowRange
from ray_h5.read.jobs import Worker
from ray_h5.read.through_h5py.h5py_column import Library

_BLOCK_BYTES = 64 << 10
_BLOCKS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row that has a value of a wrong length, and what is wrong with it, for messages."""

    row: int
    reason: str


def wrong_rows(
    dataset: h5py.Dataset,
    references: ReferenceLayout,
    items: np.ndarray,
    first_row: int,
    whole: set[int],
    *,
    exactly: bool,
) -> list[WrongRow]:
    """Return the rows that have a value of a wrong length.

    Parameters
    ----------
    dataset : h5py.Dataset
        The open dataset.
    references : ReferenceLayout
        Where its items hold references.
    items : numpy.ndarray
        uint8 of shape (rows, items of a row, bytes of an item): stored rows.
    first_row : int
        The row that they begin with.
    whole : set of int
        As in `Heap`.
    exactly : bool
        As in `Heap.wrong_values`.
    """
    per_row = references.per_item * items.shape[1]
    found = references.references(items.reshape(-1, references.item_bytes))
    hint_addresses(dataset.file, found["address"])
    wrong = Heap.of(dataset, whole).wrong_values(found, references.unit_bytes, exactly=exactly)
    return [WrongRow(first_row + value.position // per_row, value.reason) for value in wrong]


@dataclass(slots=True, eq=False)
class ValueGuard:
    """Refuses values of varying length that claim more than the file has, of a column that is not chunked.

    libhdf5 (2.0) takes memory for the claimed length before it looks at the value: 4 GiB in a file of 2 KiB.

    Attributes
    ----------
    path : str
        The file, for messages.
    name : str
        The column, for messages and to open it.
    remembers : bool
        Whether rows that are whole are not looked at again: not so while a writer has the file.
    """

    path: str
    name: str
    remembers: bool = False
    _looked_at: set[int] = field(default_factory=set)
    _heaps: set[int] = field(default_factory=set)
    _block_rows: int = 0
    _references: ReferenceLayout | None = None

    def check(self, request: Request, worker: Worker, library: Library, *, exactly: bool = False) -> None:
        """Raise `CorruptChunkError` if a value of these rows claims a length that it cannot have.

        With `exactly`, also if a small one is not as long as it claims, which libhdf5 finds out itself.
        """
        self.check_in(lambda: library.dataset(self.name), request, worker, exactly=exactly)

    def check_in(
        self,
        opened: Callable[[], h5py.Dataset],
        request: Request,
        worker: Worker,  # noqa: ARG002  as ChunkGuard has it
        *,
        exactly: bool = False,
    ) -> None:
        """Do what `check` does for a dataset that is opened only if there is something to look at."""
        if self._references is None:
            dataset = opened()
            references = ReferenceLayout.of(dataset)
            row_bytes = math.prod(dataset.shape[1:]) * references.item_bytes
            self._block_rows = max(1, _BLOCK_BYTES // max(1, row_bytes))
            self._references = references  # last: to other threads it says that all is known
        blocks = dict.fromkeys(request.by_chunk(self._block_rows)[0].tolist())
        if new := [block for block in blocks if exactly or block not in self._looked_at]:
            self._check_blocks(opened(), self._references, request, new, exactly=exactly)

    def _check_blocks(
        self,
        dataset: h5py.Dataset,
        references: ReferenceLayout,
        request: Request,
        blocks: list[int],
        *,
        exactly: bool,
    ) -> None:
        with translated(self.path, f"reading column {self.name!r}"):
            read = stored_reader(dataset)
            if read is None:
                return
            for some in _runs(blocks):
                first = some[0] * self._block_rows
                items = _items(dataset, read, references.item_bytes, first, len(some) * self._block_rows)
                heaps = self._heaps if self.remembers else set[int]()
                wrong = wrong_rows(dataset, references, items, first, heaps, exactly=exactly)
                if found := first_asked_for(wrong, request):
                    raise CorruptChunkError(
                        f"{self.path}: column {self.name!r}, row {found.row}: a value of varying length is "
                        f"damaged: {found.reason}. Restore the file from a copy."
                    )
                if self.remembers and not wrong:
                    self._looked_at.update(some)


def _items(dataset: h5py.Dataset, read: ReadBytes, item_bytes: int, first: int, count: int) -> np.ndarray:
    """Return stored rows, as `wrong_rows` takes them."""
    num_rows, *row_shape = dataset.shape or (1,)
    per_row = math.prod(row_shape)
    row_bytes = per_row * item_bytes
    stored = read(first * row_bytes, min(count, num_rows - first) * row_bytes)
    # Less than that: the file is cut short, and libhdf5 says so.
    whole = len(stored) // row_bytes if row_bytes else 0
    return np.frombuffer(stored, np.uint8, whole * row_bytes).reshape(whole, per_row, item_bytes)


def first_asked_for(wrong: Iterable[WrongRow], request: Request) -> WrongRow | None:
    """Return the first of some wrong rows that a request has; None if it has none of them."""
    for each in wrong:
        if isinstance(request, RowRange):
            low, high = request.bounds
            if low <= each.row < high:
                return each
        elif bool((request.rows == each.row).any()):
            return each
    return None


def _runs(blocks: list[int]) -> Iterator[list[int]]:
    """Part ascending numbers into those that follow each other, a few at once."""
    run: list[int] = []
    for block in blocks:
        if run and (block != run[-1] + 1 or len(run) == _BLOCKS_AT_ONCE):
            yield run
            run = []
        run.append(block)
    if run:
        yield run
