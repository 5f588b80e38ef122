"""The functions that users write in ``columns=[...]``: `ragged`, `csr`, `fields`, `joined`, `part`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_h5.columns.derived_columns import (
    BoundsLike,
    ColumnLike,
    Csr,
    Cut,
    Fields,
    JoinedColumn,
    MadeColumn,
    Positions,
    Ragged,
    RowPart,
    as_path,
    dataset_of,
    is_drawn,
    is_range,
    joined_in,
    made_of,
)
from ray_h5.errors import OptionError
from ray_h5.options import as_integer, is_integer, names_options, require


@names_options
def ragged(
    content: ColumnLike,
    *,
    offsets: BoundsLike | None = None,
    ends: BoundsLike | None = None,
    bounds: BoundsLike | None = None,
    starts: BoundsLike | None = None,
    counts: BoundsLike | None = None,
    base: int = 0,
    inclusive: bool = False,
) -> Ragged:
    """Return a column whose rows are ranges of a longer array, as an entry of ``columns=[...]``.

    Pass one of `offsets`, `ends`, `bounds`, `counts` and `starts`, or `starts` with `counts` or with `ends`: datasets
    of integers, or fields of compound values such as ``"events/start"``. Columns of a wider array are ``part(...)``,
    such as ``bounds=part("windows", {0: [0, 1]})``, and two fields are ``bounds=fields("events", ["start", "stop"])``.

    Rows of letters, such as vaex writes, are texts.

    Parameters
    ----------
    content : str, or what `fields`, `part`, `joined` or `ragged` returns
        The column with the values of all rows: a dataset, a field of one, or what is made of them. Its name is that of
        the column.
    offsets : str, or what `part`, `fields` or `joined` returns, optional
        The first value of each row, and the end of the last one: a length more than there are rows. Row i is
        ``content[offsets[i]:offsets[i + 1]]``.
    ends : as `offsets`
        The end of each row, which begins where the one before ends, as NWB's ``VectorIndex``. With `starts`, rows begin
        there.
    bounds : as `offsets`
        Start and end of each row: pairs, of shape ``(rows, 2)``.
    starts, counts : as `offsets`
        The first value, and the number of values, of each row. Rows may overlap, and an empty row may begin anywhere.
        `counts` without `starts` is for rows that follow each other, such as the jets of each event; `starts` alone for
        rows that end where the next one begins.
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
    content = _as_column("ragged: content", content)
    options = {"offsets": offsets, "ends": ends, "bounds": bounds, "starts": starts, "counts": counts}
    paths: dict[str, Any] = {
        option: _as_bounds(content, option, of) for option, of in options.items() if of is not None
    }
    ways = [{"offsets"}, {"ends"}, {"bounds"}, {"counts"}, {"starts"}, {"starts", "counts"}, {"starts", "ends"}]
    if {*paths} not in ways:
        raise OptionError(
            f"ragged({content!r}): found {', '.join(f'{path}=' for path in paths) or 'none of them'}; expected "
            "offsets=, a dataset with the first value of each row and the end of the last one; or ends=, with the end "
            "of each row; or bounds=, with pairs of both; or counts=, how many values each row has; or starts=, alone "
            "or with counts= or ends="
        )
    require(is_integer(base), f"ragged({content!r}): base", base, "0, or 1 for programs that count from 1")
    if base and {*paths} == {"counts"}:
        raise OptionError(f"ragged({content!r}): base={base!r}: counts= alone have no number of a first value")
    require(isinstance(inclusive, (bool, np.bool_)), f"ragged({content!r}): inclusive", inclusive, "True or False")
    if inclusive and not {"ends", "bounds"} & {*paths}:
        raise OptionError(f"ragged({content!r}): inclusive=True is for ends= and bounds=, which may be the last values")
    return Ragged(content, **paths, base=int(base), inclusive=bool(inclusive))


def _as_bounds(content: ColumnLike, option: str, value: Any) -> BoundsLike:
    column = _as_column(f"ragged: {option}", value)
    if is_drawn(column) or (not isinstance(column, str) and is_range(column)):
        raise OptionError(
            f"ragged({content!r}): {option}={value!r}: expected the same entries of each row of a dataset, such as "
            "{0: [0]}"
        )
    return column


def _as_column(option: str, value: Any) -> ColumnLike:
    """Return what a column is made of: a path, or a column that says how it is made itself."""
    return value if isinstance(value, MadeColumn) else as_path(option, value)


@names_options
def csr(
    group: ColumnLike,
    *,
    dense: bool = True,
    take: Sequence[int] | Sequence[str] | np.ndarray | None = None,
    names: str | None = None,
    shape: Sequence[int | None] | None = None,
) -> Csr | JoinedColumn:
    """Return a column with the rows of a sparse matrix, as an entry of ``columns=[...]``.

    The matrix is a group of ``data``, ``indices`` and ``indptr``, as AnnData and 10x write it. Its compressed axis is
    the rows: those of a ``csr_matrix``, the cells of a 10x file.

    Rows are read, and travel through Ray, as their entries. Batches of tensors are made of them at the end.

    Parameters
    ----------
    group : str, or what `joined` returns
        The group. It is the name of the column. Of ``joined("chunks/*")``, the rows of several, end to end.
    dense : bool
        Whether batches are dense tensors, of shape ``(rows, width)``. Otherwise each is a ``torch.sparse_csr_tensor``.
    take : sequence of int or str, optional
        The positions of a row to deliver, in this order: numbers, or names that are in `names`. By default all.
    names : str, optional
        The dataset with the names of the positions, such as ``"var/_index"``. With `take`, each file may have the
        names in an order of its own.
    shape : (int or None, int), optional
        Rows and columns, for a group that does not say them: ``(None, 2000)`` for files that differ in rows.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> csr("X", take=["CD3E", "MS4A1"], names="var/_index")
    csr('X', take=['CD3E', 'MS4A1'], names='var/_index')
    """
    if isinstance(group, JoinedColumn) and isinstance(group.argument, str):
        return replace(group, argument=csr(group.argument, dense=dense, take=take, names=names, shape=shape))
    if isinstance(group, MadeColumn):
        raise OptionError(
            f"csr({group!r}): a sparse matrix is a group of data, indices and indptr: expected its name, such as "
            "csr('X'), or joined() of the names of several. Parts of its rows are part(csr(...), {0: ...})"
        )
    group = as_path("csr: group", group)
    require(isinstance(dense, (bool, np.bool_)), f"csr({group!r}): dense", dense, "True or False")
    chosen = None if take is None else _as_list(f"csr({group!r}): take", take)
    by_name = chosen is not None and isinstance(chosen[0], str)
    if by_name and names is None:
        raise OptionError(
            f"csr({group!r}): take= lists names: pass names= too, the dataset that has them, such as 'var/_index'"
        )
    if names is not None and not by_name:
        raise OptionError(f"csr({group!r}): names={names!r} is used only with take=, a list of names")
    called = None if names is None else as_path("csr: names", names)
    return Csr(group, bool(dense), chosen, called, None if shape is None else _as_shape(group, shape))


def _as_shape(group: str, shape: Any) -> tuple[int | None, int]:
    parts = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, (str, bytes)) else ()
    if len(parts) == 2 and is_integer(parts[1]) and parts[1] >= 0:
        if parts[0] is None:
            return None, int(parts[1])
        if is_integer(parts[0]) and parts[0] >= 0:
            return int(parts[0]), int(parts[1])
    raise OptionError(f"csr({group!r}): shape={shape!r}: expected (rows, columns), such as (None, 2000)")


def _as_list(what: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise OptionError(f"{what}={values!r}: expected a list of positions or names")
    listed = tuple(values.tolist() if isinstance(values, np.ndarray) else values)
    if not listed:
        raise OptionError(f"{what}: expected one position or more, found an empty list")
    types = [str if isinstance(entry, str) else int if is_integer(entry) and entry >= 0 else None for entry in listed]
    if (of := types[0]) is None or len({*types}) > 1:
        wrong = listed[types.index(None)] if None in types else [*listed]
        raise OptionError(f"{what}: expected positions from 0 on, or names alone; found {wrong!r}")
    chosen = tuple(map(of, listed))
    if len(set(chosen)) < len(chosen):
        double = next(entry for entry in chosen if chosen.count(entry) > 1)
        raise OptionError(f"{what} lists {double!r} more than once; expected each once")
    return chosen


@names_options
def fields(dataset: ColumnLike, names: Sequence[str]) -> MadeColumn:
    """Return a column with some fields of compound values, as an entry of ``columns=[...]``.

    The fields are the last axis: ``fields("jets", ["pt", "eta"])`` of a dataset of shape ``(rows, 40)`` has rows of
    shape ``(40, 2)``, in the dtype that holds all of them. Of a decoded chunk, their bytes alone are copied. A single
    field is a column of the name ``"jets/pt"``, without `fields`.

    Parameters
    ----------
    dataset : str, or what `ragged`, `part` or `joined` returns
        The dataset. It is the name of the column. Fields of what is made are made of the fields:
        ``fields(ragged("hits", offsets="o"), ["x", "y"])`` is ``ragged(fields("hits", ["x", "y"]), offsets="o")``.
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
    dataset = _as_column("fields: dataset", dataset)
    if isinstance(dataset, (Fields, Csr)):
        raise OptionError(
            f"fields({dataset!r}): its values are numbers, and have no fields; expected a dataset of compound values"
        )
    if isinstance(names, str):
        raise OptionError(
            f"fields({dataset!r}, {names!r}): expected a list of names, such as [{names!r}]. A single field without "
            f"an axis of its own is a column: columns=[{f'{dataset_of(dataset)}/{names}'!r}]"
        )
    listed = tuple(names) if isinstance(names, Iterable) else ()
    if not listed or not all(isinstance(name, str) and name.strip("/") for name in listed):
        raise OptionError(f"fields({dataset!r}): names={names!r}: expected a list of names of fields")
    chosen = tuple(name.strip("/") for name in _as_list(f"fields({dataset!r}): names", listed))
    if isinstance(dataset, str):
        return Fields(dataset, chosen)
    return made_of(dataset, fields(dataset.argument, chosen))  # fields are of each value, whatever rows are


@names_options
def joined(pattern: ColumnLike, *, name: str | None = None) -> JoinedColumn:
    """Return a column whose rows are those of several columns, end to end, as an entry of ``columns=[...]``.

    Parameters
    ----------
    pattern : str, or what `ragged`, `csr`, `fields` or `part` returns for one
        A glob over paths in the file, or below each group of `Groups`: ``"data/frames_*"`` has the rows of
        ``data/frames_0``, then those of ``data/frames_1``, and so on in the order of their numbers. The datasets,
        sparse matrices, categories or other columns agree in dtype and row shape. Or a column that is made of each
        match, in itself: ``joined(ragged("run_*/x", offsets="run_*/offsets"))`` has the rows of ``run_0``, as its
        offsets say, then those of ``run_1``. Stars of other datasets stand for what those of the first one stand for.
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
    pattern = _as_column("joined: pattern", pattern)
    if (other := joined_in(pattern)) is not None:
        raise OptionError(f"joined({pattern!r}): {other!r} is one column; expected one glob for all datasets")
    expected = "a glob, such as 'data/frames_*'; a dataset is a column itself"
    require({*"*?["} & {*(glob := dataset_of(pattern))}, "joined: pattern", pattern, expected)
    default = re.split(r"[*?\[]", glob, maxsplit=1)[0].rstrip("/_-.") or "value"
    return JoinedColumn(pattern, default if name is None else as_path("joined: name", name))


@names_options
def part(
    dataset: ColumnLike,
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
    dataset : str, or what another function of columns returns
        The column, such as ``joined("data/frames_*")`` or ``csr("X")``.
    axes : mapping of int to (slice or sequence of int or str), optional
        What is taken of each axis of a row, in this order: positions, a slice, or names that are in `names`. Axis 0 is
        the first axis of a row: of windows, that of a step; of `Patches`, that of the array, and parts are of axes that
        blocks have as a whole. ``part("fields", {0: [0, 5, 7], 2: slice(0, 64)})``
    names : str, optional
        The dataset with the names of the positions of an axis. Each file may have them in an order of its own.
    random : int, optional
        Draw so many entries of the first axis of a row, in each epoch others. They keep their order. A row with fewer
        has all of them. The draw is a function of `seed`, the name of the file (its path below the folder of all
        files), the row, and the epoch: columns of a row with equally many entries have the same, and so have all
        steps of a window.
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
    of = _as_column("part: dataset", dataset)
    what = f"part({of!r})"
    if not isinstance(axes, (Mapping, type(None))) or not (axes or random is not None):
        raise OptionError(f"{what}: axes={axes!r}: expected {{axis: positions}}, such as {{0: [0, 5, 7]}}, or random=")
    positions: dict[int, Positions] = {}
    for axis, value in (axes or {}).items():
        if not is_integer(axis) or axis < 0:
            raise OptionError(f"{what}: axis {axis!r}: expected the number of an axis of a row, from 0 on")
        positions[int(axis)] = _as_positions(f"{what}: axis {axis}", value)
    has_names = any(isinstance(at, tuple) and isinstance(at[0], str) for at in positions.values())
    if has_names and names is None:
        raise OptionError(f"{what}: names are listed: pass names= too, the dataset that has them, such as 'var/_index'")
    if names is not None and not has_names:
        raise OptionError(f"{what}: names={names!r} is used only with a list of names")
    count = None if random is None else as_integer(f"{what}: random", random, 1, instead=" entries")
    if random is not None and 0 in positions:
        raise OptionError(f"{what}: random={random} draws from axis 0; leave {{0: ...}} out")
    if random is not None and is_drawn(of):
        raise OptionError(f"{what}: random={random}: its entries are drawn already; draw them once")
    at = tuple(sorted(positions.items()))
    named = None if names is None else as_path("part: names", names)
    return RowPart(of, at, named, count, as_integer("part: seed", seed, 0))


def _as_positions(what: str, value: Any) -> Positions:
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        if not all(part is None or is_integer(part) for part in parts) or value.step == 0:
            raise OptionError(f"{what}: {value!r}: expected a slice of integers")
        return Cut(*(None if part is None else int(part) for part in parts))
    return _as_list(what, value)
