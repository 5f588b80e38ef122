"""Decoded rows that stay in memory. They take the place of the chunk cache that people give libhdf5."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ray_h5.fork import PerProcess
from ray_h5.hdf5.buffers import as_bytes
from ray_h5.hdf5.checks.changed_files import check_identity
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.local import identity_now

_WORDS = (np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.int16))
_PARALLEL_BYTES = 1 << 20
"""One thread copies fewer bytes than these in the time that it takes to wake up others."""

Read = Callable[[Mapping[Any, np.ndarray], np.ndarray, np.ndarray], None]
"""Reads some rows into ``out[column][places]``; called with (out, rows, places)."""

_process = PerProcess(object)
_importing_process = _process.value
"""After a fork, `_process.value` is another object."""


class _Thread(threading.local):
    is_reader = False


_thread = _Thread()


class RowCache:
    """Rows of some columns. Each row is held from the time when it was first read.

    Parameters
    ----------
    specs : mapping of (shape, dtype)
        Row shape and dtype of each column.
    num_rows : int
        How many rows there are.

    Attributes
    ----------
    columns : dict of numpy.ndarray
        An array for all rows of each column.
    is_held : numpy.ndarray
        bool: which rows of these arrays have their values.
    """

    def __init__(self, specs: Mapping[Any, tuple[tuple[int, ...], np.dtype]], num_rows: int) -> None:
        # A page of memory is allocated when it is first written to: rows that are never read cost nothing.
        self.columns = {name: np.empty((num_rows, *shape), dtype) for name, (shape, dtype) in specs.items()}
        self.is_held = np.zeros(num_rows, bool)

    def read_through(
        self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None, read: Read
    ) -> None:
        """Fill ``out[column][places]`` from memory; call `read` for the rows that are not held, and hold them.

        Parameters
        ----------
        out : mapping of numpy.ndarray
            Arrays of these columns.
        rows : numpy.ndarray
            int64.
        places : numpy.ndarray, optional
            int64; by default row i goes to place i.
        read : callable
            Reads the rows that are not held.
        """
        is_held = self.is_held[rows]
        if is_held.all():
            self._copy(out, rows, places)
            return
        targets = np.arange(len(rows)) if places is None else places
        missing = ~is_held
        read(out, rows[missing], targets[missing])
        self.add(rows[missing], {name: out[name][targets[missing]] for name in self.columns})
        if is_held.any():
            self._copy(out, rows[is_held], targets[is_held])

    def add(self, rows: np.ndarray, values: Mapping[Any, np.ndarray]) -> None:
        """Hold rows. Rows that are held already are overwritten with the same values."""
        for name, array in self.columns.items():
            array[rows] = values[name]
        self.is_held[rows] = True

    def _copy(self, out: Mapping[Any, np.ndarray], rows: np.ndarray, places: np.ndarray | None) -> None:
        for name, array in self.columns.items():
            if places is None and len(rows) == len(out[name]):
                take_rows(array, rows, out[name])
            else:
                out[name][slice(len(rows)) if places is None else places] = array[rows]


def take_rows(array: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Do ``out[:] = array[rows]``, with torch's threads if that is faster.

    Parameters
    ----------
    array : numpy.ndarray
        C-contiguous.
    rows : numpy.ndarray
        int64, not negative.
    out : numpy.ndarray
        Of the dtype and row shape of `array`.
    """
    word = next((each for each in _WORDS if array.strides[0] % each.itemsize == 0), None)
    # torch copies integers of `word`, which is right only for equal dtypes; and it needs `out` in one piece, or it
    # would fill a copy of it.
    is_plain = out.dtype == array.dtype and not array.dtype.hasobject and out.flags.c_contiguous and out.flags.writeable
    if word is None or not is_plain or out.nbytes < _PARALLEL_BYTES or not _has_torch_threads():
        np.take(array, rows, axis=0, out=out, mode="clip")  # mode "raise", the default, would copy
        return
    words, target = (torch.from_numpy(as_bytes(each).view(word).reshape(len(each), -1)) for each in (array, out))
    torch.index_select(words, 0, torch.from_numpy(np.require(rows, requirements=["C", "W"])), out=target)


def copy_alone() -> None:
    """Let the calling thread copy rows without torch's threads: it is one of several threads that read."""
    _thread.is_reader = True


def _has_torch_threads() -> bool:
    # A forked process has none of the threads that OpenMP counts on, and would wait for them for ever.
    return not _thread.is_reader and _process.value is _importing_process


def check_file(path: str, expected: Identity) -> None:
    """Raise a StaleIndexError if a file changed whose rows are held.

    A file that cannot be looked at raises no error here, but where it is opened, if it has to be.
    """
    with contextlib.suppress(OSError):
        check_identity(path, expected, FileIdentity.of(os.stat(path)))


def is_unchanged(path: str, expected: Identity | None) -> bool:
    """Return whether a file that columns come from is as it was; None stands for a file that did not exist.

    A file that cannot be looked at raises no error here, but where it is opened, if it has to be.
    """
    with contextlib.suppress(OSError):
        return identity_now(path) == expected
    return True


def columns_that_fit(row_bytes: Mapping[Any, int], num_rows: int, max_bytes: int) -> list[Any]:
    """Return the columns with the smallest rows, all that fit together with all their rows into `max_bytes`."""
    found, left = [], max_bytes
    for name in sorted(row_bytes, key=lambda each: row_bytes[each]):
        left -= row_bytes[name] * num_rows
        if left < 0:
            break
        found.append(name)
    return found


def worker_share(max_bytes: int) -> int:
    """Return the part of a bound for all workers of a loader together that this process may use."""
    worker = get_worker_info()
    return max_bytes if worker is None else max_bytes // worker.num_workers
