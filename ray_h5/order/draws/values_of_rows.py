"""A number for each selected row, which an option of a `Shuffle` names: a column or an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError
from ray_h5.index.row_index import RowIndex
from ray_h5.order.draws.shuffle import UnusableRowsError
from ray_h5.order.draws.weights_and_class_balance import first_wrong, shown
from ray_h5.tables.table_columns import one_array


class Option(NamedTuple):
    """An option of a `Shuffle`, for messages."""

    name: str
    noun: str
    """What the numbers are, one of them."""
    advice: str
    """What to write instead of a column without numbers; it may have a place for the name of the column."""


def row_values(index: RowIndex, selection: np.ndarray | None, value: str | np.ndarray, option: Option) -> np.ndarray:
    """Return a number for each selected row.

    Raises
    ------
    OptionError
        If one is missing, negative, infinite or NaN, or the values are no numbers.
    UnknownColumnError
        If there is no such column.
    """
    if isinstance(value, np.ndarray):
        check_length(value, index.num_rows, "the files", option)
        return value if selection is None else value[selection]
    spec, what = index.find([value])[value], f"column {value!r}"
    if spec.has_one_value:  # before it is read: lists may be large
        _check_numbers(spec.kept_type, value, option)
    column = scalars(index, [value], option)[value]
    check_present(index, column, selection, what)
    values = one_array(column).to_numpy(zero_copy_only=False)
    values = values if selection is None else values[selection]
    wrong = first_wrong(values)
    if wrong is not None:
        row = wrong if selection is None else int(selection[wrong])
        raise UnusableRowsError(
            f"{index.files.where(row)}: {what} is {values[wrong]}: expected a {option.noun}, a finite number of 0 or "
            f"more. Filter these rows, or pass {option.name} as an array."
        )
    return values


def _check_numbers(kind: pa.DataType, value: str, option: Option) -> None:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        advice = option.advice.format(value)
        raise OptionError(f"Shuffle: {option.name}={value!r}: expected a column of numbers, found {kind}; {advice}")


def check_length(values: np.ndarray, rows: int, where: str, option: Option) -> None:
    """Raise unless there is a number for each row."""
    if len(values) != rows:
        raise OptionError(
            f"Shuffle: {option.name}={shown(values)}: expected {rows}, one for each row of {where}, selected or not"
        )


def scalars(index: RowIndex, names: Sequence[str], option: Option) -> dict[str, pa.ChunkedArray]:
    """Return columns of one value a row, as the files store them: draws are the same, whatever a dataset casts."""
    specs = index.find(names)
    for name, spec in specs.items():
        if not spec.has_one_value:
            held = "rows of varying shape" if spec.kind == "ragged" else f"an array of shape {spec.tensor_shape} a row"
            raise OptionError(
                f"Shuffle: {option.name}: column {name!r} holds {held}; expected one "
                "value a row. Pass what you compute from it as an array with a number for each row."
            )
    return index.values(names, stored=True)


def check_present(index: RowIndex, column: pa.ChunkedArray, selection: np.ndarray | None, what: str) -> None:
    """Raise if a selected row has no value. NaN is a number here."""
    if not column.null_count:
        return
    absent = column.is_null().to_numpy()
    rows = np.flatnonzero(absent) if selection is None else selection[absent[selection]]
    if len(rows):
        raise UnusableRowsError(
            f"{index.files.where(int(rows[0]))}: {what} has no value here, and in {len(rows)} selected rows in all. "
            "Filter these rows."
        )
