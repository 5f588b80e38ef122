"""Columns as a user describes them: ragged values, rows of sparse matrices, fields, parts, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, is_integer, names_options
from ray_h5.read.arguments import as_names


class _OfDataset:
    """A column of a dataset or a group. It has its name, unless the user calls it otherwise."""

    __slots__ = ()

    called: str

    @property
    def dataset(self) -> str:
        """The dataset, or the group."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.called or self.dataset

    @property
    def _said(self) -> str:
        """How the column is made, as the user writes it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.called!r}: {self._said}" if self.called else self._said


@dataclass(frozen=True, slots=True, repr=False)
class Ragged(_OfDataset):
    """A column made by `ragged`: `content`, the datasets that say where rows begin and end, and how they count."""

    content: str
    offsets: str | None = None
    starts: str | None = None
    counts: str | None = None
    ends: str | None = None
    bounds: str | None = None
    base: int = 0
    inclusive: bool = False
    called: str = ""

    @property
    def dataset(self) -> str:
        return self.content

    @property
    def given(self) -> dict[str, str]:
        """The datasets that say where rows begin and end, by option."""
        options = ("offsets", "starts", "counts", "ends", "bounds")
        return {option: name for option in options if (name := getattr(self, option)) is not None}

    @property
    def bounds_key(self) -> str:
        """Says where rows begin and end: columns with the same key have the same rows."""
        counted = f"\n{self.base}\n{self.inclusive}" if self.base or self.inclusive else ""
        return "\n".join(name if option in {"starts", "counts"} else f"{option} {name}"
                         for option, name in self.given.items()) + counted  # fmt: skip

    @property
    def _said(self) -> str:
        counted = {name: value for name, value in (("base", self.base), ("inclusive", self.inclusive)) if value}
        shown = [f"{option}={value!r}" for option, value in {**self.given, **counted}.items()]
        return f"ragged({', '.join([repr(self.content), *shown])})"


@dataclass(frozen=True, slots=True, repr=False)
class Csr(_OfDataset):
    """A column made by `csr`."""

    group: str
    dense: bool = True
    take: tuple[int, ...] | tuple[str, ...] | None = None
    names: str | None = None
    called: str = ""

    @property
    def dataset(self) -> str:
        return self.group

    @property
    def _said(self) -> str:
        given = {"dense": None if self.dense else False, "take": self.take and list(self.take), "names": self.names}
        options = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"csr({', '.join([repr(self.group), *options])})"


@dataclass(frozen=True, slots=True, repr=False)
class Fields(_OfDataset):
    """A column made by `fields`."""

    compound: str
    names: tuple[str, ...]
    called: str = ""

    @property
    def dataset(self) -> str:
        return self.compound

    @property
    def _said(self) -> str:
        return f"fields({self.compound!r}, {list(self.names)})"


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice of an axis, as a value."""

    start: int | None
    stop: int | None
    step: int | None

    def positions(self, length: int) -> np.ndarray:
        """Return the positions of an axis of this length."""
        return np.arange(*slice(self.start, self.stop, self.step).indices(length), dtype=np.int64)

    def __repr__(self) -> str:
        given = [self.start, self.stop] if self.step is None else [self.start, self.stop, self.step]
        return f"slice({', '.join(map(repr, given))})"


Positions: TypeAlias = tuple[int, ...] | tuple[str, ...] | Cut
"""What is taken of an axis: positions, names, or a slice."""


@dataclass(frozen=True, slots=True, repr=False)
class RowPart(_OfDataset):
    """A column made by `part`: what is taken of each axis of a row, and how many entries are drawn.

    Without both it is the whole of a dataset under another name.
    """

    of: str | Ragged | Fields
    axes: tuple[tuple[int, Positions], ...] = ()
    names: str | None = None
    random: int | None = None
    seed: int = 0
    called: str = ""

    @property
    def dataset(self) -> str:
        return self.of if isinstance(self.of, str) else self.of.dataset

    @property
    def whole(self) -> str | Ragged | Fields:
        """The column that it is a part of, under its name."""
        return replace(self.of, called=self.called) if self.called and not isinstance(self.of, str) else self.of

    @property
    def is_whole(self) -> bool:
        return not self.axes and self.random is None

    @property
    def _said(self) -> str:
        if self.is_whole:
            return repr(self.of)
        axes = [repr({axis: list(at) if isinstance(at, tuple) else at for axis, at in self.axes})] if self.axes else []
        options = [
            f"{name}={value!r}"
            for name, value in (("names", self.names), ("random", self.random), ("seed", self.seed or None))
            if value is not None
        ]
        return f"part({', '.join([repr(self.of), *axes, *options])})"


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column made by `joined`."""

    pattern: str
    name: str

    @property
    def dataset(self) -> str:
        return self.pattern

    def __repr__(self) -> str:
        return f"joined({self.pattern!r}, name={self.name!r})"


MadeColumn: TypeAlias = Ragged | Csr | Fields | RowPart | JoinedColumn
"""Columns that say how they are made."""

ColumnLike: TypeAlias = str | Ragged | Csr | Fields | RowPart | JoinedColumn
"""An entry of ``columns=[...]``."""

Columns: TypeAlias = Sequence[ColumnLike] | Mapping[str, ColumnLike]
"""What ``columns=`` takes."""


@names_options
def ragged(
    content: str,
    *,
    offsets: str | None = None,
    ends: str | None = None,
    bounds: str | None = None,
    starts: str | None = None,
    counts: str | None = None,
    base: int = 0,
    inclusive: bool = False,
) -> Ragged:
    """Return a column whose rows are ranges of a longer array, as an entry of ``columns=[...]``.

    Pass one of `offsets`, `ends` and `bounds`, or `starts` with `counts` or with `ends`: datasets of integers, or
    fields of compound values such as ``"events/start"``.

    Parameters
    ----------
    content : str
        The dataset with the values of all rows, or a field of one. It is the name of the column.
    offsets : str, optional
        The first value of each row, and the end of the last one: a length more than there are rows. Row i is
        ``content[offsets[i]:offsets[i + 1]]``.
    ends : str, optional
        The end of each row, which begins where the one before ends, as NWB's ``VectorIndex``. With `starts`, rows begin
        there.
    bounds : str, optional
        Start and end of each row: pairs, of shape ``(rows, 2)``.
    starts, counts : str, optional
        The first value, and the number of values, of each row. Rows may overlap.
    base : int
        The number of the first value in these datasets: 1 where a program counts from 1, as MATLAB does.
    inclusive : bool
        Whether an end is the last value of its row, and not the one after it.

    Raises
    ------
    OptionError
        If other datasets are given than one of these.

    Examples
    --------
    >>> ragged("events/x", offsets="events/offsets").name
    'events/x'
    >>> ragged("units/spike_times", ends="units/spike_times_index")
    ragged('units/spike_times', ends='units/spike_times_index')
    """
    content = _path("ragged: content", content)
    given = {"offsets": offsets, "ends": ends, "bounds": bounds, "starts": starts, "counts": counts}
    paths = {option: _path(f"ragged: {option}", each) for option, each in given.items() if each is not None}
    if {*paths} not in ({"offsets"}, {"ends"}, {"bounds"}, {"starts", "counts"}, {"starts", "ends"}):
        raise OptionError(
            f"ragged({content!r}): found {', '.join(f'{each}=' for each in paths) or 'none of them'}; expected "
            "offsets=, a dataset with the first value of each row and the end of the last one; or ends=, with the end "
            "of each row; or bounds=, with pairs of both; or starts= with counts= or ends="
        )
    if not is_integer(base):
        raise OptionError(f"ragged({content!r}): base={base!r}: expected 0, or 1 for programs that count from 1")
    if not isinstance(inclusive, (bool, np.bool_)):
        raise OptionError(f"ragged({content!r}): inclusive={inclusive!r}: expected True or False")
    if inclusive and not {"ends", "bounds"} & {*paths}:
        raise OptionError(f"ragged({content!r}): inclusive=True is for ends= and bounds=, which may be the last values")
    return Ragged(content, **paths, base=int(base), inclusive=bool(inclusive))


@names_options
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
    csr('X', take=['CD3E', 'MS4A1'], names='var/_index')
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
    return _as_list(f"csr({group!r}): take", take)


def _as_list(what: str, given: Any) -> tuple[Any, ...]:
    found = tuple(given.tolist() if isinstance(given, np.ndarray) else given)
    if not found:
        raise OptionError(f"{what}: expected one position or more, found an empty list")
    if all(isinstance(each, str) for each in found):
        chosen: tuple[Any, ...] = tuple(map(str, found))
    elif all(is_integer(each) and each >= 0 for each in found):
        chosen = tuple(map(int, found))
    else:
        wrong = next(each for each in found if not isinstance(each, str) and not (is_integer(each) and each >= 0))
        raise OptionError(f"{what}: expected positions from 0 on, or names alone; found {wrong!r}")
    if len(set(chosen)) < len(chosen):
        double = next(each for each in chosen if chosen.count(each) > 1)
        raise OptionError(f"{what} lists {double!r} more than once; expected each position once")
    return chosen


@names_options
def fields(dataset: str, names: Sequence[str]) -> Fields:
    """Return a column with some fields of compound values, as an entry of ``columns=[...]``.

    The fields are the last axis: ``fields("jets", ["pt", "eta"])`` of a dataset of shape ``(rows, 40)`` has rows of
    shape ``(40, 2)``, in the dtype that holds all of them. Of a decoded chunk, their bytes alone are copied. A single
    field is a column of the name ``"jets/pt"``, without `fields`.

    Parameters
    ----------
    dataset : str
        The dataset. It is the name of the column.
    names : sequence of str
        The fields, in this order, each with numbers or booleans. ``"a/b"`` is field ``b`` of field ``a``.

    Raises
    ------
    OptionError
        If `names` is no list of names, or lists one twice.

    Examples
    --------
    >>> fields("jets", ["pt", "eta"])
    fields('jets', ['pt', 'eta'])
    """
    dataset = _path("fields: dataset", dataset)
    if isinstance(names, str):
        raise OptionError(
            f"fields({dataset!r}, {names!r}): expected a list of names, such as [{names!r}]. A single field without "
            f"an axis of its own is a column: columns=[{f'{dataset}/{names}'!r}]"
        )
    found = tuple(names) if isinstance(names, Iterable) else ()
    if not found or not all(isinstance(each, str) and each.strip("/") for each in found):
        raise OptionError(f"fields({dataset!r}): names={names!r}: expected a list of names of fields")
    if len(set(found)) < len(found):
        double = next(each for each in found if found.count(each) > 1)
        raise OptionError(f"fields({dataset!r}): names lists {double!r} more than once; expected each field once")
    return Fields(dataset, tuple(str(each).strip("/") for each in found))


@names_options
def joined(pattern: str, *, name: str | None = None) -> JoinedColumn:
    """Return a column whose rows are those of several datasets, end to end, as an entry of ``columns=[...]``.

    Parameters
    ----------
    pattern : str
        A glob over paths in the file: ``"data/frames_*"`` has the rows of ``data/frames_0``, then those of
        ``data/frames_1``, and so on in the order of their numbers. The datasets agree in dtype and row shape.
    name : str, optional
        The name of the column; by default what the pattern has before its first ``*``, such as ``"data/frames"``.

    Raises
    ------
    OptionError
        If `pattern` has no ``*``, or `name` is no name.

    Examples
    --------
    >>> joined("entry/data/data_*")
    joined('entry/data/data_*', name='entry/data/data')
    """
    pattern = _path("joined: pattern", pattern)
    if not any(each in pattern for each in "*?["):
        raise OptionError(
            f"joined({pattern!r}): expected a glob, such as 'data/frames_*'; a dataset is a column itself"
        )
    default = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rstrip("/_-.") or "value"
    return JoinedColumn(pattern, default if name is None else _path("joined: name", name))


@names_options
def part(
    dataset: str | Ragged | Fields,
    axes: Mapping[int, Any] | None = None,
    *,
    names: str | None = None,
    random: int | None = None,
    seed: int = 0,
) -> RowPart:
    """Return a column with parts of each row, as an entry of ``columns=[...]``. It has the name of its dataset.

    A mapping gives it another name: ``columns={"a": part("x", {0: [0]}), "b": "x"}``. Chunks that hold none of the
    parts are not read.

    Parameters
    ----------
    dataset : str, or what `fields` or `ragged` returns
        The column.
    axes : mapping of int to (slice or sequence of int or str), optional
        What is taken of each axis of a row, in this order: positions, a slice, or names that are in `names`. Axis 0 is
        the first axis of a row: of windows, that of a step; of `Patches`, that of the array, and parts are of axes that
        blocks have as a whole. ``part("fields", {0: [0, 5, 7], 2: slice(0, 64)})``
    names : str, optional
        The dataset with the names of the positions of an axis. Each file may have them in an order of its own.
    random : int, optional
        Draw so many entries of the first axis of a row, in each epoch others. They keep their order. A row with fewer
        has all of them. The draw is a function of `seed`, the name of the file, the row, and the epoch: columns of a
        row with equally many entries have the same.
    seed : int
        The seed of `random`.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> part("fields", {0: [0, 5, 7], 2: slice(0, 64)})
    part('fields', {0: [0, 5, 7], 2: slice(0, 64)})
    >>> part("features", random=2048)
    part('features', random=2048)
    """
    of = dataset if isinstance(dataset, (Ragged, Fields)) else _path("part: dataset", dataset)
    what = f"part({of!r})"
    if axes is not None and not isinstance(axes, Mapping):
        raise OptionError(f"{what}: axes={axes!r}: expected {{axis: positions}}, such as {{0: [0, 5, 7]}}")
    if not axes and random is None:
        raise OptionError(f"{what}: expected {{axis: positions}}, such as {{0: [0, 5, 7]}}, or random=")
    found: dict[int, Positions] = {}
    for axis, given in (axes or {}).items():
        if not is_integer(axis) or axis < 0:
            raise OptionError(f"{what}: axis {axis!r}: expected the number of an axis of a row, from 0 on")
        found[int(axis)] = _as_positions(f"{what}: axis {axis}", given)
    has_names = any(isinstance(at, tuple) and isinstance(at[0], str) for at in found.values())
    if has_names and names is None:
        raise OptionError(f"{what}: names are listed: pass names= too, the dataset that has them, such as 'var/_index'")
    if names is not None and not has_names:
        raise OptionError(f"{what}: names={names!r} is used only with a list of names")
    if random is not None and (not is_integer(random) or random < 1):
        raise OptionError(f"{what}: random={random!r}: expected a number of entries, 1 or more")
    if random is not None and 0 in found:
        raise OptionError(f"{what}: random={random} draws from axis 0; leave {{0: ...}} out")
    at = tuple(sorted(found.items()))
    named = None if names is None else _path("part: names", names)
    return RowPart(of, at, named, None if random is None else int(random), as_integer("part: seed", seed, 0))


def _as_positions(what: str, given: Any) -> Positions:
    if isinstance(given, slice):
        parts = (given.start, given.stop, given.step)
        if not all(each is None or is_integer(each) for each in parts) or given.step == 0:
            raise OptionError(f"{what}: {given!r}: expected a slice of integers")
        return Cut(*(None if each is None else int(each) for each in parts))
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise OptionError(f"{what}: {given!r}: expected a list of positions or names, or a slice")
    return _as_list(what, given)


def _path(option: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip("/"):
        raise OptionError(f"{option}={given!r}: expected the name of a dataset or group, such as 'events/x'")
    return given.strip("/")


_MADE = (Ragged, Csr, Fields, RowPart, JoinedColumn)


def is_range(column: MadeColumn) -> bool:
    """Return whether the rows of a column are ranges of a longer array."""
    made = column.of if isinstance(column, RowPart) else column
    return isinstance(made, (Ragged, Csr))


def split_columns(columns: Any) -> tuple[list[str] | None, tuple[MadeColumn, ...]]:
    """Return the names in the argument `columns`, and the columns in it that say how they are made.

    Raises
    ------
    OptionError
        If it is no list of names and columns and no mapping of them, or one is made in two ways.
    """
    if columns is None:
        return None, ()
    if isinstance(columns, _MADE):
        raise OptionError(f"columns={columns}: expected a list; write columns=[...]")
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        return as_names(columns), ()
    given = [_called(*each) for each in columns.items()] if isinstance(columns, Mapping) else list(columns)
    special = [each for each in given if isinstance(each, _MADE)]
    names = [each.name if isinstance(each, _MADE) else each for each in given]
    for each in special:
        if names.count(each.name) > 1:
            other = f"Pass a mapping for two columns of one dataset: columns={{'a': {each!r}, 'b': ...}}"
            if isinstance(each, JoinedColumn):
                other = "Pass joined(..., name=) for another name"
            raise OptionError(f"columns: {each.name!r} is listed more than once; a column is made in one way. {other}")
    read = {name: each for each in given for name in _read_by(each)}
    for each in special:
        if each.name in read and each.name != each.dataset and not isinstance(each, JoinedColumn):
            raise OptionError(
                f"columns: {each!r}: {each.name!r} is also the name of a dataset that {read[each.name]!r} is made of. "
                "Call the column otherwise."
            )
    return as_names(names), tuple(special)


def _called(name: Any, given: Any) -> str | MadeColumn:
    """Return a column under the name that a user calls it."""
    path = _path("columns: a name", name)
    if isinstance(given, JoinedColumn):
        return replace(given, name=path)
    if isinstance(given, (Ragged, Csr, Fields, RowPart)):
        return given if given.name == path else replace(given, called=path)
    of = _path(f"columns: {name!r}", given)
    if "*" in of or "*" in path:
        raise OptionError(f"columns: {name!r}: {given!r}: expected one column, not a pattern")
    return name if of == path else RowPart(of, called=path)


def _read_by(column: str | MadeColumn) -> list[str]:
    """Return the datasets that a column is made of, as far as it says so."""
    if not isinstance(column, _MADE):
        return []
    whole = column.of if isinstance(column, RowPart) else column
    others = [*whole.given.values()] if isinstance(whole, Ragged) else []
    named = [getattr(each, "names", None) for each in (column, whole)]
    return [column.dataset, *others, *(each for each in named if isinstance(each, str))]
