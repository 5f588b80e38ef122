"""A predicate, as a pyarrow expression -> the row ids that pass it."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.columns.schema import TENSOR_KINDS, ColumnSpec, shown_shape
from ray_h5.errors import OptionError, PredicateError, UnknownColumnError
from ray_h5.manifest.layout import ValueArray
from ray_h5.messages import no_column
from ray_h5.predicates.comparisons import comparable_type, compared
from ray_h5.predicates.time_steps import step_shape
from ray_h5.predicates.virtual_names import Compared, in_words, names_in, parse_virtual, read_for


def as_expression(predicate: Any) -> pc.Expression:
    """Return a predicate as an expression of pyarrow. Expressions of Ray are converted.

    Raises
    ------
    OptionError
        If the predicate is no expression.
    PredicateError
        If pyarrow has no such expression, as for a Python function; or it has parts of both kinds.
    """
    if _is_mixed(predicate):
        raise PredicateError(
            "predicate: where and kfold of ray_h5 make expressions of Ray, those of ray_h5.torch_data expressions of "
            "pyarrow, and this predicate combines both. Make all of its parts by one of these packages."
        )
    try:
        expression = predicate.to_pyarrow() if hasattr(predicate, "to_pyarrow") else predicate
    except (TypeError, ValueError) as exc:
        raise PredicateError(f"predicate: {exc}") from exc
    if not isinstance(expression, pc.Expression):
        pairs = isinstance(predicate, (tuple, list)) and any(isinstance(part, pc.Expression) for part in predicate)
        hint = ". Of a pair of kfold, pass one: pair[0] are the rows to train on, pair[1] those to validate on"
        raise OptionError(
            f"predicate: expected an expression such as where(label=1), found {type(predicate).__name__}"
            + (hint if pairs else "")
        )
    return expression


def _is_mixed(predicate: Any) -> bool:
    """Return whether an expression of Ray has parts that are expressions of pyarrow."""
    parts = vars(predicate).values() if hasattr(predicate, "to_pyarrow") else ()
    return any(isinstance(part, pc.Expression) or _is_mixed(part) for part in parts)


def fingerprint(expression: pc.Expression) -> bytes | None:
    """Return bytes that are equal for two expressions only if they select the same rows of any column.

    `Expression.equals` is too coarse: to it -0.0 and 0.0 are equal, but `is_in` distinguishes them. None if pyarrow
    cannot serialize the expression.
    """
    try:
        return hashlib.blake2b(pickle.dumps(expression, 5), digest_size=16).digest()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def check_names(names: Iterable[str], columns: Mapping[str, ColumnSpec]) -> None:
    """Raise unless a predicate can be evaluated on the columns that it names.

    Raises
    ------
    PredicateError
        If a column holds an array a row, or is drawn.
    """
    for name in names:
        spec = columns[name]
        check_not_drawn(name, spec)
        if not spec.has_one_value:
            are_numbers = spec.kind in TENSOR_KINDS and spec.dtype.kind != "c"
            raise no_scalar(name, spec.type.ragged_shape or spec.tensor_shape, are_numbers=are_numbers)


def check_not_drawn(name: str, column: ColumnSpec | ValueArray) -> None:
    """Raise `PredicateError` for a column whose values differ from epoch to epoch."""
    if column.type.drawn:
        raise PredicateError(
            f"column {name!r} is drawn, so its values are others in each epoch: they choose, weigh and group no rows. "
            "Filter by it after reading, or name a column that is not drawn. Beside a part(..., random=), that is its "
            "dataset, if the part has another name, columns={'name': part(...)}; with Patches(per_file=), the column "
            "of key=, or a single value of each file."
        )


def no_scalar(name: str, shape: tuple[int | None, ...], *, are_numbers: bool) -> PredicateError:
    """Return the error for a column that holds an array a row.

    Parameters
    ----------
    name : str
        The column.
    shape : tuple of (int or None)
        The shape of a row; None for axes along which rows differ.
    are_numbers : bool
        Whether all rows are arrays of real numbers or booleans, which `any_equal` compares.
    """
    steps = step_shape(shape)
    advice = ""
    if are_numbers and None not in shape and len(steps) <= 2:
        what = "in which a value occurs" if len(steps) == 1 else "in which a class of a one-hot column occurs"
        advice = f"To choose rows {what}, write where(**{{{name!r}: any_equal(value)}}). "
    return PredicateError(
        f"predicate: column {name!r} holds an array of shape {shown_shape(shape)} a row; a predicate "
        f"compares one value a row. {advice}To choose by a value that you compute, use ds.map(...) and then "
        "ds.filter(...) in Ray, and torch.utils.data.Subset in PyTorch."
    )


def check_there(names: Iterable[str], columns: Collection[str]) -> None:
    """Raise unless `columns` has all columns that are read for a predicate.

    Raises
    ------
    UnknownColumnError
        If one is missing; the message lists near names.
    """
    for name in (column for named in names for column in read_for(named)):
        if name not in columns:
            raise UnknownColumnError(f"predicate: {no_column([name], columns)}")


def evaluate(expression: pc.Expression, columns: Mapping[str, Any], num_rows: int) -> np.ndarray:
    """Return the rows that pass, as ascending int64 positions; `columns` are the arrays that the expression names.

    A row passes where the expression is true: not where it is false and not where it is null.
    Comparisons with NaN are false.

    Raises
    ------
    PredicateError
        If the types of the columns cannot be compared.
    """
    from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions  # imports pandas

    parts = {}
    for name in names_in(expression):
        column, wanted = parse_virtual(name)
        if isinstance(wanted, Compared):
            parts[name] = compared(column, wanted, columns[column])
        elif name in columns:
            parts[name] = columns[name]
    # A table without columns would have no rows; an expression such as a constant names none.
    table = pa.table(parts or {"": pa.nulls(num_rows)})
    try:
        comparable = table.cast(pa.schema([(field.name, comparable_type(field.type)) for field in table.schema]))
        # `Table.filter` would copy the rows that pass.
        source = Declaration("table_source", TableSourceNodeOptions(comparable))
        computed = Declaration("project", ProjectNodeOptions([expression], ["value"]), [source])
        passes = computed.to_table(use_threads=False)["value"]  # threads would not keep the order
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as exc:
        raise _not_evaluated(expression, table, str(exc).splitlines()[0]) from exc
    if not pa.types.is_boolean(passes.type):
        raise _not_evaluated(expression, table, f"expected a boolean a row, found {passes.type}")
    return np.flatnonzero(passes.fill_null(False).to_numpy())


def _not_evaluated(expression: pc.Expression, table: pa.Table, why: str) -> PredicateError:
    types = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
    return PredicateError(f"predicate: {in_words(expression)} cannot be evaluated on {types}: {why}")
