"""Decoded rows that stay in memory: in place of the chunk caches that people give libhdf5."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ray_h5.hdf5.buffers import as_bytes
from ray_h5.hdf5.checks.changed_files import check_identity
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import identity_now

_WORDS = (np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.int16))
_TOGETHER_BYTES = 1 << 20
"""Fewer are copied by one thread in the time that it takes to wake up others."""

Read = Callable[[Mapping[Any, np.ndarray], np.ndarray, np.ndarray], None]
"""Reads columns of some rows into some places of arrays."""


class _Threads(threading.local):
    of_torch = True


_threads = _Threads()
# A forked process has none of the threads that OpenMP thinks it has, and would wait for them for ever.
os.register_at_fork(after_in_child=lambda: setattr(_Threads, "of_torch", False))


class RowCache:
    """Rows of some columns, each there once it was read.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        Row shape and dtype of each column.
    num_rows : int
        Rows that there are.
    """

    def __init__(self, specs: Mapping[Any, tuple[tuple[int, ...], np.dtype]], num_rows: int) -> None:
        # A page of memory is taken when it is first written to: rows that nobody reads cost nothing.
        self.columns = {name: np.empty((num_rows, *shape), dtype) for name, (shape, dtype) in specs.items()}
        self.there = np.zeros(num_rows, bool)

    def read_through(
        self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None, read: Read
    ) -> None:
        """Fill ``out[column][places]``, from memory where rows are there, else by `read`, and keep those.

        Parameters
        ----------
        out : mapping of numpy.ndarray
            Arrays of these columns.
        rows : numpy.ndarray
            int64.
        places : numpy.ndarray, optional
            int64; by default row i goes to place i.
        read : callable
            Reads what is not there.
        """
        there = self.there[rows]
        if there.all():
            self._copy(out, rows, places)
            return
        targets = np.arange(len(rows)) if places is None else places
        missing = ~there
        read(out, rows[missing], targets[missing])
        self.add(rows[missing], {name: out[name][targets[missing]] for name in self.columns})
        if there.any():
            self._copy(out, rows[there], targets[there])

    def add(self, rows: np.ndarray, values: Mapping[Any, np.ndarray]) -> None:
        """Keep rows, whether they are there or not: what is written over is the same."""
        for name, kept in self.columns.items():
            kept[rows] = values[name]
        self.there[rows] = True

    def _copy(self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None) -> None:
        for name, kept in self.columns.items():
            if places is None and len(rows) == len(out[name]):
                take_rows(kept, rows, out[name])
            else:
                out[name][slice(len(rows)) if places is None else places] = kept[rows]


def take_rows(kept: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Do ``out[:] = kept[rows]``, by the threads that torch has for one operation where that pays.

    Parameters
    ----------
    kept : numpy.ndarray
        C-contiguous.
    rows : numpy.ndarray
        int64, not negative.
    out : numpy.ndarray
        Of the dtype and row shape of `kept`.
    """
    word = next((each for each in _WORDS if kept.strides[0] % each.itemsize == 0), None)
    # Copied as integers: so the dtypes have to be the same, and `out` without gaps, or a copy of it would be filled.
    alike = out.dtype == kept.dtype and not kept.dtype.hasobject and out.flags.c_contiguous and out.flags.writeable
    if word is None or not alike or out.nbytes < _TOGETHER_BYTES or not _threads.of_torch:
        np.take(kept, rows, axis=0, out=out, mode="clip")  # "raise", the default, would copy
        return
    source, target = (torch.from_numpy(as_bytes(each).view(word).reshape(len(each), -1)) for each in (kept, out))
    torch.index_select(source, 0, torch.from_numpy(np.require(rows, requirements=["C", "W"])), out=target)


def read_alone() -> None:
    """Let this thread copy rows without those of torch: it is one of several that read."""
    _threads.of_torch = False


def check_kept(path: str, expected: FileIdentity) -> None:
    """Raise a StaleIndexError if a file changed whose rows are kept.

    That it cannot be looked at is said where it is opened, if it has to be.
    """
    with contextlib.suppress(OSError):
        check_identity(path, expected, FileIdentity.of(os.stat(path)))


def is_as_kept(path: str, expected: FileIdentity | None) -> bool:
    """Tell whether a source of rows that are kept is as it was; None is one that was not there.

    That it cannot be looked at is said where it is opened, if it has to be.
    """
    with contextlib.suppress(OSError):
        return identity_now(path) == expected
    return True


def fitting(row_bytes: Mapping[Any, int], num_rows: int, limit: int) -> list[Any]:
    """Return the columns with the smallest rows, as many as fit together into `limit` bytes."""
    found, left = [], limit
    for name in sorted(row_bytes, key=lambda each: row_bytes[each]):
        left -= row_bytes[name] * num_rows
        if left < 0:
            break
        found.append(name)
    return found


def share_of(limit: int) -> int:
    """Return what this process may keep of a bound that holds for all workers of a loader together."""
    worker = get_worker_info()
    return limit if worker is None else limit // worker.num_workers
