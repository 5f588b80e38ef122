"""From paths and a predicate to a plan in one step, for engines that are asked for all at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.planning.facts import Scope
from ray_h5.planning.index import RowIndex, build_index
from ray_h5.planning.lookup import Lookup
from ray_h5.planning.paths import PathLike
from ray_h5.planning.plan import ReadPlan, make_plan
from ray_h5.planning.predicate import as_expression, check_names, comparable_type, evaluate
from ray_h5.planning.schema import Cast, ColumnSpec
from ray_h5.planning.shuffle import Shuffle
from ray_h5.planning.store import check_index_dir

_MISSING = re.compile(
    r"No match for FieldRef\.(?:Name\((.*)\)|Nested\(FieldRef\.Name\((.*?)\) FieldRef\..*\))", re.DOTALL
)


def plan_files(
    paths: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    group: str = "/",
    predicate: pc.Expression | None = None,
    shuffle: Shuffle | None = None,
    dtypes: Mapping[str, object] | None = None,
    allow_external: PathLike | Sequence[PathLike] = (),
    index_dir: str | None = None,
    block_rows: int | None = None,
    threads: int = 1,
) -> tuple[RowIndex, ReadPlan]:
    """Return the index of some files, and the plan to read their selected rows.

    Parameters
    ----------
    paths : sequence of str
        The files, in the order of row ids; see `expand_paths`.
    columns : sequence of str, optional
        The columns to read; None takes all.
    group : str
        The group that column names are relative to.
    predicate : expression of pyarrow or Ray, optional
        Which rows to select, such as from `where`; it may name columns that `columns` leaves out.
    shuffle : Shuffle, optional
        The order of an epoch.
    dtypes : mapping of str to dtype, optional
        Columns to cast.
    allow_external : path-like, or sequence of them
        Folders that links, virtual datasets and external storage may lead into.
    index_dir : str, optional
        A folder in which the index is kept.
    block_rows : int, optional
        Rows of a block.
    threads : int
        Threads that one read may use.
    """
    folder = None if index_dir is None else check_index_dir(index_dir)
    lookup = Lookup(Scope.of(group, allow_external, threads), folder)
    index = build_index(paths, columns, lookup, Cast(dtypes or {}))
    specs = index.delivered
    selection = None if predicate is None else select(index, specs, as_expression(predicate))
    return index, make_plan(index, [specs[name] for name in index.columns], selection, shuffle, block_rows)


def select(index: RowIndex, specs: Mapping[str, ColumnSpec], predicate: pc.Expression) -> np.ndarray:
    """Return the row ids that pass a predicate, ascending.

    Parameters
    ----------
    index : RowIndex
        The files.
    specs : mapping of str to ColumnSpec
        Columns as they are delivered; others are looked up.
    predicate : pyarrow.compute.Expression
        The predicate.
    """
    named = _named_columns(index, specs, predicate)
    return evaluate(predicate, index.small_columns(list(named.values())), index.num_rows)


def _named_columns(index: RowIndex, specs: Mapping[str, ColumnSpec], predicate: pc.Expression) -> dict[str, ColumnSpec]:
    """Return the columns that an expression of pyarrow names.

    There is no way to ask it; but on a table that lacks one it says which.
    """
    found: dict[str, ColumnSpec] = {}
    while (name := _first_missing(predicate, found)) is not None:
        known = {name: specs[name]} if name in specs else index.find([name])
        check_names([name], known)
        found |= known
    return found


def _first_missing(predicate: pc.Expression, found: Mapping[str, ColumnSpec]) -> str | None:
    # Without any column a table could not be filtered at all.
    table = pa.table({"": pa.array([], pa.int8()), **{name: _nothing(spec) for name, spec in found.items()}})
    try:
        table.filter(predicate)
    except pa.ArrowInvalid as exc:
        # Names may look like anything: what follows them is known, and taken off.
        columns = "\n".join(f"{column.name}: {column.type}" for column in table.schema)
        match = _MISSING.fullmatch(str(exc).removesuffix(f" in {columns}"))
        name = match and (match[1] or match[2])
        return name if name and name not in found else None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None  # evaluating it says what is wrong
    return None


def _nothing(spec: ColumnSpec) -> pa.Array:
    return pa.array([], comparable_type(spec.kept_type))
