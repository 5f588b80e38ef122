"""Checks of the arguments of a reader: files, rows, output arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ray_h5.errors import OptionError, RowIndexError
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.hdf5.files.opening import is_of_matlab
from ray_h5.likely_rows.length_errors import HasRows, error_of_lengths
from ray_h5.manifest.file_state import FileState, SourceStates
from ray_h5.manifest.row_requests import Request, request_of
from ray_h5.options import require
from ray_h5.storage.byte_source import FileIdentity, Identity, ObjectIdentity
from ray_h5.storage.hub import on_hub
from ray_h5.storage.storage_of_path import Storage, storage_for, storage_of, whole_path

Rows = slice | Sequence[int] | np.ndarray


def as_access(
    path: str | bytes | os.PathLike[str],
    group: str,
    allow_external: Iterable[str | os.PathLike[str]],
    swmr: bool,
    storage_options: Mapping[str, Any] | Storage | None,
    zip_file: str,
) -> Access:
    """Return how the file of a `RowReader` is opened, which documents the parameters; raise an OptionError if wrong."""
    require(isinstance(path, (str, bytes, os.PathLike)), "path", path, "the path of one file")
    if not isinstance(group, str):
        raise OptionError(
            f"group={group!r}: expected the name of one group; columns of several are read from the group above "
            "them, by names such as 'a/x' and 'b/x'"
        )
    require(isinstance(zip_file, str), "zip_file", zip_file, "the path of a file of the same rows")
    require(isinstance(swmr, (bool, np.bool_)), "swmr", swmr, "True or False")
    address = on_hub(os.fsdecode(path))
    whole = whole_path(address)
    if not hasattr(storage_options, "opened_at_once"):  # isinstance takes 0.1 ms for a protocol
        storage_options = storage_for(storage_options, [address])
    storage = storage_of(whole, cast("Storage", storage_options))
    return Access(whole, group, ExternalPolicy.of(allow_external), swmr, storage, zip_file)


def as_state(expect: Identity | FileState | None) -> FileState | None:
    """Return the state that a file must have; raise an OptionError for something else."""
    states = (FileIdentity, ObjectIdentity, FileState)
    require(expect is None or isinstance(expect, states), "expect", expect, "the state of a file, or None")
    return expect if expect is None or isinstance(expect, FileState) else FileState(expect)


def as_rows(rows: Rows, num_rows: int, where: str) -> np.ndarray:
    """Return `rows` as an int64 array of row numbers, each checked to be below `num_rows`."""
    if isinstance(rows, slice):
        return np.arange(*_indices(rows, num_rows), dtype=np.int64)
    wanted = _one_axis("rows", rows, "iub", "a slice or a 1-d array of int or bool")
    if wanted.dtype.kind == "b":
        if len(wanted) != num_rows:
            raise RowIndexError(f"{where}: expected a mask of {num_rows} rows, found one of {len(wanted)}")
        return np.flatnonzero(wanted)
    # Checked before the cast: a number that int64 cannot hold would become another row.
    outside = (wanted < 0) | (wanted >= num_rows)
    if outside.any():
        numbers = f" (0 to {num_rows - 1})" if num_rows else ""
        raise RowIndexError(f"{where}: row {wanted[outside][0]} is not among its {num_rows} rows{numbers}")
    return wanted.astype(np.int64)


def as_request(rows: Rows, num_rows: int, where: str) -> Request:
    """Return a request for `rows`; errors as in `as_rows`."""
    if isinstance(rows, slice):
        start, stop, step = _indices(rows, num_rows)
        if step == 1:
            return Request.range(start, 0, stop - start)
    return request_of(as_rows(rows, num_rows, where))


def _indices(rows: slice, num_rows: int) -> tuple[int, int, int]:
    try:
        return rows.indices(num_rows)
    except (TypeError, ValueError) as exc:
        raise OptionError(f"rows={rows}: expected a slice of integers, of a step other than 0") from exc


def _one_axis(option: str, value: Any, kinds: str, expected: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as exc:
        raise OptionError(f"{option}: expected {expected}, found lists of several lengths") from exc
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise OptionError(f"{option}: expected {expected}, found {array.dtype} {array.shape}")
    return array


def as_places(places: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return `places` as an int64 array. Numbers that int64 cannot hold become negative; `check_fit` refuses them."""
    return _one_axis("places", places, "iu", "a 1-d array of int").astype(np.int64, copy=False)


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its last axes of length one."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def fitted(array: np.ndarray, row_shape: tuple[int, ...]) -> np.ndarray:
    """Return an array with the last axes of length one that rows have, if it differs from them in these alone."""
    if not isinstance(array, np.ndarray) or not array.ndim or array.shape[1:] == row_shape:
        return array
    return array.reshape(len(array), *row_shape) if without_ones(array.shape[1:]) == without_ones(row_shape) else array


def check_fit(array: object, row_shape: tuple[int, ...], count: int, places: np.ndarray | None, where: str) -> None:
    """Raise `OptionError` unless `count` rows of a column fit into `places` of `array`."""
    if not isinstance(array, np.ndarray):
        raise OptionError(f"{where}: expected a numpy array to read into, found a {type(array).__name__}")
    last = count - 1 if places is None else int(places.max(initial=-1))
    if array.shape[1:] != row_shape or array.ndim == 0 or last >= len(array):
        raise OptionError(
            f"{where}: expected an array of {last + 1} or more rows of shape {row_shape}, found {array.shape}"
        )
    if not array.flags.writeable:
        raise OptionError(f"{where}: expected an array to read into, found one that cannot be written to; copy it")
    if places is not None and (len(places) != count or places.min(initial=0) < 0):
        raise OptionError(f"{where}: expected {count} places from 0 on, found {len(places)}: {places[:3]} ...")


def common_rows(
    path: str,
    columns: Mapping[str, HasRows],
    head: Callable[[], bytes] | None = None,
    sources: Mapping[str, SourceStates] | None = None,
) -> int:
    """Return the length of the first axis of `columns`, of the file at `path`.

    `head` returns the beginning of a file that cannot be opened by its path. `sources` are the other files that
    columns come from, if the columns do not say so.

    Raises
    ------
    SchemaMismatchError
        If there are no columns, or columns of several lengths; the message lists them.
    """
    lengths: dict[int, list[str]] = {}
    for name, column in columns.items():
        lengths.setdefault(column.shape[0], []).append(name)
    if len(lengths) == 1:
        return next(iter(lengths))

    def of_matlab() -> bool:
        return is_of_matlab(path, None if head is None else head())

    raise error_of_lengths(path, columns, lengths, of_matlab, sources)
