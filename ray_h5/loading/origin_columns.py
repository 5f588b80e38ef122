"""Columns that say where a row comes from, and where in an epoch it is: the same in plain PyTorch and in Ray."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import OptionError, PredicateError, UnsupportedColumnError
from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.file_table import FileTable
from ray_h5.manifest.value_type import ValueType
from ray_h5.options import ADDED_BY
from ray_h5.order.epoch_order import row_keys
from ray_h5.plan.blocks import Block
from ray_h5.plan.read_plan import ReadPlan

PATH_SPEC = ColumnSpec("path", ValueType("string", np.dtype(object)))
ROW_ID_SPEC = ColumnSpec("row_id", ValueType("number", np.dtype(np.int64)))
IS_PADDING_SPEC = ColumnSpec("is_padding", ValueType("bool", np.dtype(bool)))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows come from, and where in an epoch they are.

    Attributes
    ----------
    plan : ReadPlan
        The plan that the rows are of.
    row_ids : numpy.ndarray
        int64.
    steps : numpy.ndarray, optional
        int64: with windows, the numbers of the steps that rows are, among those of all files.
    seed, epoch : int
        The seed of the order, and the epoch.
    draws : numpy.ndarray, optional
        int64: which draw of the epoch each row is, if an epoch may draw a row several times.
    is_padding : numpy.ndarray, optional
        bool: whether a row comes again only to fill up the epoch; None if none does.
    """

    plan: ReadPlan
    row_ids: np.ndarray
    steps: np.ndarray | None = None
    seed: int = 0
    epoch: int = 0
    draws: np.ndarray | None = None
    is_padding: np.ndarray | None = None

    @classmethod
    def of(cls, plan: ReadPlan, block: Block) -> Origin:
        """Return the origin of the rows of a block."""
        # A row that was drawn twice is augmented in two ways. Padding repeats positions, and their keys.
        draws = block.positions % plan.epoch_rows if plan.order.may_repeat else None
        is_padding = block.positions >= plan.epoch_rows
        return cls(plan, block.rows.row_ids, block.rows.key_numbers, block.seed, block.epoch, draws, is_padding)

    def column(self, name: str) -> np.ndarray | pa.Array:
        """Return one of the columns of `ORIGINS`: paths as an array of Arrow."""
        return ORIGINS[name].values(self)


class OriginColumn(NamedTuple):
    """A column that says where a row comes from.

    Attributes
    ----------
    spec : ColumnSpec
        Its name and type.
    values : callable
        Returns its values.
    of_epoch : bool
        Whether they depend on the epoch.
    """

    spec: ColumnSpec
    values: Callable[[Origin], np.ndarray | pa.Array]
    of_epoch: bool = False


def _keys(rows: Origin) -> np.ndarray:
    keys = row_keys(rows.row_ids if rows.steps is None else rows.steps, rows.seed, rows.epoch)
    return keys if rows.draws is None else row_keys(keys + rows.draws.astype(np.uint64), rows.seed, rows.epoch)


def _steps(rows: Origin) -> np.ndarray:
    files, plan = rows.plan.files, rows.plan
    if rows.steps is None:  # without windows, rows are steps
        return rows.row_ids - files.starts[files.files_of(rows.row_ids)]
    return rows.steps - plan.steps.starts[files.files_of(rows.row_ids)]


def _is_padding(rows: Origin) -> np.ndarray:
    return np.zeros(len(rows.row_ids), bool) if rows.is_padding is None else rows.is_padding


ORIGINS: dict[str, OriginColumn] = {
    column.spec.name: column
    for column in (
        OriginColumn(PATH_SPEC, lambda rows: paths_of(rows.plan.files, rows.row_ids)),
        OriginColumn(ROW_ID_SPEC, lambda rows: rows.row_ids),
        OriginColumn(ColumnSpec("row_key", ValueType("number", np.dtype(np.uint64))), _keys, of_epoch=True),
        OriginColumn(ColumnSpec("step", ValueType("number", np.dtype(np.int64))), _steps),
        OriginColumn(IS_PADDING_SPEC, _is_padding, of_epoch=True),
    )
}
"""All of them, in the order in which they are delivered."""


def origins_of(asked: Sequence[bool], columns: Collection[str], index: RowIndex) -> dict[str, ColumnSpec]:
    """Return those of `ORIGINS` that are asked for beside `columns` of the files.

    Raises
    ------
    OptionError
        If the files have a column of that name, or rows have no steps.
    """
    added = {name: ORIGINS[name].spec for name, is_asked in zip(ORIGINS, asked, strict=True) if is_asked}
    for name in added.keys() & set(columns):
        raise OptionError(
            f"the files have a column {name!r} of their own, which was asked to be added; leave one of them out: "
            "the column of the files with columns=[...], or the added one"
        )
    if "step" in added and index.scope.windows is None:
        raise OptionError(f"{ADDED_BY['step']}=True: rows have steps with windows=; expected windows, found None")
    return added


def check_planned(names: Collection[str], added: Collection[str]) -> None:
    """Raise a `PredicateError` if a predicate names an added column whose values are not known while planning."""
    for name in sorted({*names} & {*added} - {PATH_SPEC.name, ROW_ID_SPEC.name}):
        why = "changes every epoch" if ORIGINS[name].of_epoch else "is known when rows are read"
        raise PredicateError(f"predicate: {name!r} {why}; filter by it after reading")


def place_values(index: RowIndex, names: Collection[str]) -> dict[str, pa.Array]:
    """Return the columns `path` and `row_id` of all rows, those of `names`, for predicates."""
    if not names:
        return {}
    rows = index.every_row()
    return {name: pa.array(rows) if name == ROW_ID_SPEC.name else paths_of(index.files, rows) for name in names}


def paths_of(files: FileTable, row_ids: np.ndarray) -> pa.Array:
    """Return the path of the file of each row; an `UnsupportedColumnError` if one is not valid UTF-8."""
    file_of_row = files.files_of(row_ids)
    try:
        return files.paths.take(pa.array(file_of_row)).cast(PATH_SPEC.kept_type)
    except pa.ArrowInvalid as exc:
        raise UnsupportedColumnError(
            f"include_paths: one of {len(np.unique(file_of_row))} paths is not UTF-8, as a column of strings must be: "
            f"{exc}"
        ) from exc
