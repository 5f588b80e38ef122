"""What a caller says of rows and names, checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ray_h5.errors import OptionError, RowIndexError, SchemaMismatchError
from ray_h5.hdf5.gather import Request, RowRange, request_of
from ray_h5.hdf5.layout import ColumnLayout

Rows = slice | Sequence[int] | np.ndarray


def as_rows(rows: Rows, num_rows: int, where: str) -> np.ndarray:
    """Return `rows` as an int64 array of row numbers, each checked to be below `num_rows`."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(num_rows), dtype=np.int64)
    wanted = np.asarray(rows)
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iub"):
        raise OptionError(f"rows: expected a slice or a 1-d array of int or bool, found {wanted.dtype} {wanted.shape}")
    if wanted.dtype.kind == "b":
        if len(wanted) != num_rows:
            raise RowIndexError(f"{where}: expected a mask of {num_rows} rows, found one of {len(wanted)}")
        return np.flatnonzero(wanted)
    # Before the cast, which would make another row of one that int64 cannot hold.
    outside = (wanted < 0) | (wanted >= num_rows)
    if outside.any():
        raise RowIndexError(f"{where}: row {wanted[outside][0]} is not among its {num_rows} rows (0 to {num_rows - 1})")
    return wanted.astype(np.int64)


def as_request(rows: Rows, num_rows: int, where: str) -> Request:
    """Return a request for `rows`; errors as in `as_rows`."""
    if isinstance(rows, slice):
        start, stop, step = rows.indices(num_rows)
        if step == 1:
            return RowRange(start, 0, max(0, stop - start))
    return request_of(as_rows(rows, num_rows, where))


def check_fit(array: np.ndarray, layout: ColumnLayout, count: int, places: np.ndarray | None, where: str) -> None:
    """Raise `OptionError` unless `count` rows of a column can go to `places` of `array`."""
    last = count - 1 if places is None else int(places.max(initial=-1))
    if array.shape[1:] != layout.row_shape or array.ndim == 0 or last >= len(array):
        raise OptionError(
            f"{where}: expected an array of {last + 1} or more rows of shape {layout.row_shape}, found {array.shape}"
        )
    if places is not None and (len(places) != count or places.min(initial=0) < 0):
        raise OptionError(f"{where}: expected {count} places from 0 on, found {len(places)}: {places[:3]} ...")


class HasRows(Protocol):
    """A column, as far as its length goes."""

    @property
    def num_rows(self) -> int: ...


def common_rows(where: str, columns: Mapping[str, HasRows]) -> int:
    """Return the length of the first axis of `columns`.

    Raises
    ------
    SchemaMismatchError
        If there is none, or more than one; the message lists them.
    """
    lengths: dict[int, list[str]] = {}
    for name, column in columns.items():
        lengths.setdefault(column.num_rows, []).append(name)
    if len(lengths) == 1:
        return next(iter(lengths))
    if not lengths:
        raise SchemaMismatchError(f"{where}: found no column; is group= the group that holds the datasets?")
    listed = "\n".join(f"  {n} rows: {', '.join(names)}" for n, names in sorted(lengths.items()))
    raise SchemaMismatchError(
        f"{where}: expected columns with one common first axis, found {len(lengths)} lengths:\n{listed}\n"
        "Choose columns of one length with columns=[...], or a group that holds only those with group=."
    )


def near_names(name: str, names: Iterable[str]) -> str:
    """Return a sentence that offers the names nearest to `name`."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f" Did you mean {' or '.join(repr(each) for each in near)}?"
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    return f" There is: {shown}." if known else " There are no columns."
