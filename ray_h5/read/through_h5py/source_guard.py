"""Checks datasets that values of a column come from, in other files or virtual datasets, before libhdf5 reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import h5py
import numpy as np

from ray_h5.errors import MissingSourceError
from ray_h5.hdf5.columns.virtual_mappings import Needed, VirtualMapping
from ray_h5.hdf5.files.file_bytes import filename_of
from ray_h5.manifest.row_requests import Request
from ray_h5.read.jobs import Worker
from ray_h5.read.through_h5py.h5py_column import Library

Opened: TypeAlias = Callable[[], h5py.Dataset]
Check: TypeAlias = Callable[[h5py.Dataset, np.ndarray, Worker], None]
"""Raises unless some rows of a dataset, which is not virtual, can be read."""


class SourceGuard:
    """Follows the rows of a dataset to those that their values come from, and checks these.

    libhdf5 (2.0) returns uninitialised memory for chunks that are too short. If a mapping is not row by row, all rows
    of its source are checked.

    Parameters
    ----------
    check : callable
        Checks rows of a dataset that is not virtual.
    shared : dict, optional
        The guards of all datasets that the values of one column come from, by the naming file and their names.
        Nested virtual datasets can lead to the same dataset in many ways.
    """

    def __init__(self, check: Check, shared: dict[tuple[str, str, str], SourceGuard] | None = None) -> None:
        self._check_rows = check
        self._shared = {} if shared is None else shared
        self._looked = False
        self._home = ""
        self._shape: tuple[int, ...] = ()
        self._is_virtual = False
        self._mappings: list[VirtualMapping] = []
        self._bounds = np.empty((0, 2), np.int64)

    def check_column(self, name: str, request: Request, worker: Worker, library: Library) -> None:
        """Raise unless what rows of column `name` come from is whole."""
        self._check(lambda: library.dataset(name), lambda _: request.listed().rows, _Look(worker, library))

    def _check(self, opened: Opened, needed: Needed, look: _Look) -> None:
        """Do what `check_column` does for a dataset that is opened only if there is something to look at."""
        opened = functools.cache(opened)
        if not self._looked:
            self._open(opened())
        rows = look.new(self, needed(self._shape))
        rows = rows[rows < self._shape[0]]  # rows past the end of a source get the fill value
        if not len(rows):
            return
        if not self._is_virtual:
            self._check_rows(opened(), rows, look.worker)
        # There may be thousands of mappings, and few that have a part of these rows.
        first, stop = (np.searchsorted(rows, ends) for ends in self._bounds.T)
        for number in np.flatnonzero(first < stop).tolist():
            self._follow(self._mappings[number], opened, rows[first[number] : stop[number]], look)

    def _follow(self, mapping: VirtualMapping, opened: Opened, rows: np.ndarray, look: _Look) -> None:
        for number, needed in mapping.followed(rows):
            names = mapping.names.numbered(number)
            key = self._home, *names
            if key not in self._shared:
                self._shared[key] = SourceGuard(self._check_rows, self._shared)
            try:
                self._shared[key]._check(partial(_source, look.library, opened, *names), needed, look)
            except MissingSourceError:
                if not mapping.names.is_numbered:
                    raise
                return  # the end: libhdf5 uses numbered sources up to the first missing one

    def _open(self, dataset: h5py.Dataset) -> None:
        self._shape, self._home = dataset.shape or (1,), filename_of(dataset.file)
        self._is_virtual = dataset.is_virtual
        if dataset.is_virtual:
            self._mappings = list(VirtualMapping.all_of(dataset))
            self._bounds = np.array([mapping.bounds for mapping in self._mappings], np.int64).reshape(-1, 2)
        self._looked = True


@dataclass(frozen=True, slots=True)
class _Look:
    """The state of the check before one read: which rows of each dataset were checked."""

    worker: Worker
    library: Library
    _rows: dict[SourceGuard, np.ndarray] = field(default_factory=dict)

    def new(self, guard: SourceGuard, rows: np.ndarray) -> np.ndarray:
        """Return those of `rows` (ascending) that were not checked yet, and record them as checked."""
        known = self._rows.get(guard)
        if known is not None:
            rows = np.setdiff1d(rows, known, assume_unique=True)
        if len(rows):
            self._rows[guard] = rows if known is None else np.union1d(known, rows)
        return rows


def _source(library: Library, opened: Opened, file_name: str, name: str) -> h5py.Dataset:
    return library.source(opened(), file_name, name)
