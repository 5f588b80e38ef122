"""Columns whose rows are ranges of longer arrays, as a user writes them: ragged values, rows of sparse matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.hdf5.reading.arguments import as_names
from ray_h5.options import is_integer


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column made by `ragged`."""

    content: str
    offsets: str | None = None
    starts: str | None = None
    counts: str | None = None

    @property
    def name(self) -> str:
        return self.content

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets that it is made of."""
        return tuple(each for each in (self.content, self.offsets, self.starts, self.counts) if each is not None)


@dataclass(frozen=True, slots=True)
class Csr:
    """A column made by `csr`."""

    group: str
    dense: bool = True
    take: tuple[int, ...] | tuple[str, ...] | None = None
    names: str | None = None

    @property
    def name(self) -> str:
        return self.group


RangeColumn: TypeAlias = Ragged | Csr

ColumnLike: TypeAlias = str | Ragged | Csr
"""An entry of ``columns=[...]``."""


def ragged(content: str, *, offsets: str | None = None, starts: str | None = None, counts: str | None = None) -> Ragged:
    """Return a column whose row i is ``content[offsets[i]:offsets[i + 1]]``, as an entry of ``columns=[...]``.

    Parameters
    ----------
    content : str
        The dataset with the values of all rows, one row after the other. It is the name of the column.
    offsets : str, optional
        The dataset with the first value of each row, and the end of the last one: a length more than there are rows.
    starts, counts : str, optional
        Instead of `offsets`: the datasets with the first value, and the number of values, of each row. Rows may
        overlap.

    Raises
    ------
    OptionError
        If neither `offsets`, nor `starts` and `counts`, are given.

    Examples
    --------
    >>> ragged("events/x", offsets="events/offsets").name
    'events/x'
    """
    content = _path("ragged: content", content)
    if (offsets is None) == (starts is None) or (starts is None) != (counts is None):
        raise OptionError(
            f"ragged({content!r}): expected offsets=, a dataset with the first value of each row and the end of the "
            "last one; or both starts= and counts="
        )
    given = {"offsets": offsets, "starts": starts, "counts": counts}
    paths = {option: None if each is None else _path(f"ragged: {option}", each) for option, each in given.items()}
    return Ragged(content, **paths)


def csr(
    group: str,
    *,
    dense: bool = True,
    take: Sequence[int] | Sequence[str] | np.ndarray | None = None,
    names: str | None = None,
) -> Csr:
    """Return a column with the rows of a sparse matrix, as an entry of ``columns=[...]``.

    The matrix is a group of ``data``, ``indices`` and ``indptr``, as AnnData and 10x write it. Its compressed axis is
    the rows: those of a ``csr_matrix``, the cells of a 10x file.

    Rows are read, and travel through Ray, as their entries. Batches of tensors are made of them at the end.

    Parameters
    ----------
    group : str
        The group. It is the name of the column.
    dense : bool
        Whether batches are dense tensors, of shape ``(rows, width)``. Otherwise each is a ``torch.sparse_csr_tensor``.
    take : sequence of int or str, optional
        The positions of a row to deliver, in this order: numbers, or names that are in `names`. By default all.
    names : str, optional
        The dataset with the names of the positions, such as ``"var/_index"``. With `take`, each file may have the
        names in an order of its own.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> csr("X", take=["CD3E", "MS4A1"], names="var/_index")
    Csr(group='X', dense=True, take=('CD3E', 'MS4A1'), names='var/_index')
    """
    group = _path("csr: group", group)
    if not isinstance(dense, (bool, np.bool_)):
        raise OptionError(f"csr({group!r}): dense={dense!r}: expected True or False")
    chosen = None if take is None else _as_take(group, take)
    by_name = chosen is not None and isinstance(chosen[0], str)
    if by_name and names is None:
        raise OptionError(
            f"csr({group!r}): take= lists names: pass names= too, the dataset that has them, such as 'var/_index'"
        )
    if names is not None and not by_name:
        raise OptionError(f"csr({group!r}): names={names!r} is used only with take=, a list of names")
    return Csr(group, bool(dense), chosen, None if names is None else _path("csr: names", names))


def _as_take(group: str, take: Any) -> tuple[Any, ...]:
    if isinstance(take, (str, bytes)) or not isinstance(take, Iterable):
        raise OptionError(f"csr({group!r}): take={take!r}: expected a list of positions, or of names")
    found = tuple(take.tolist() if isinstance(take, np.ndarray) else take)
    if not found:
        raise OptionError(f"csr({group!r}): take: expected one position or more, found an empty list")
    if all(isinstance(each, str) for each in found):
        chosen: tuple[Any, ...] = tuple(map(str, found))
    elif all(is_integer(each) and each >= 0 for each in found):
        chosen = tuple(map(int, found))
    else:
        wrong = next(each for each in found if not isinstance(each, str) and not (is_integer(each) and each >= 0))
        raise OptionError(f"csr({group!r}): take: expected positions from 0 on, or names alone; found {wrong!r}")
    if len(set(chosen)) < len(chosen):
        double = next(each for each in chosen if chosen.count(each) > 1)
        raise OptionError(f"csr({group!r}): take lists {double!r} more than once; expected each position once")
    return chosen


def _path(option: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip("/"):
        raise OptionError(f"{option}={given!r}: expected the name of a dataset or group, such as 'events/x'")
    return given.strip("/")


def split_columns(columns: Any) -> tuple[list[str] | None, tuple[RangeColumn, ...]]:
    """Return the names in the argument `columns`, and the columns in it that say how they are made.

    Raises
    ------
    OptionError
        If it is no list of names and columns, or one is made in two ways.
    """
    if columns is None:
        return None, ()
    if isinstance(columns, (Ragged, Csr)):
        raise OptionError(f"columns={columns}: expected a list; write columns=[...]")
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        return as_names(columns), ()
    given = list(columns)
    special = [each for each in given if isinstance(each, (Ragged, Csr))]
    names = [each.name if isinstance(each, (Ragged, Csr)) else each for each in given]
    for each in special:
        if names.count(each.name) > 1:
            raise OptionError(f"columns: {each.name!r} is listed more than once; a column is made in one way")
    return as_names(names), tuple(special)
