"""Columns that say where a row comes from, and where in an epoch it is."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import UnsupportedColumnError
from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.file_table import FileTable
from ray_h5.order.epoch_order import row_keys
from ray_h5.plan.blocks import Block
from ray_h5.plan.read_plan import ReadPlan

PATH_SPEC = ColumnSpec("path", "string", np.dtype(object), ())
ROW_ID_SPEC = ColumnSpec("row_id", "number", np.dtype(np.int64), ())
"""Columns from the place of a row in the files."""

ROW_KEY_SPEC = ColumnSpec("row_key", "number", np.dtype(np.uint64), ())
IS_PADDING_SPEC = ColumnSpec("is_padding", "bool", np.dtype(bool), ())
"""Columns from the place of a row in an epoch."""


def epoch_column(plan: ReadPlan, block: Block, name: str) -> np.ndarray | None:
    """Return the column `row_key`, `is_padding` or `row_id` of some rows as an array; None for any other name."""
    if name == ROW_KEY_SPEC.name:
        keys = row_keys(block.rows.numbers, block.seed, block.epoch)
        if plan.order.may_repeat:
            # A row that was drawn twice is augmented in two ways. Padding repeats positions, and their keys.
            draws = (block.positions % plan.epoch_rows).astype(np.uint64)
            keys = row_keys(keys + draws, block.seed, block.epoch)
        return keys
    if name == IS_PADDING_SPEC.name:
        return block.positions >= plan.epoch_rows
    return block.rows.row_ids if name == ROW_ID_SPEC.name else None


def place_values(index: RowIndex, names: Collection[str]) -> dict[str, pa.Array]:
    """Return the columns `path` and `row_id` of all rows, those of `names`, for predicates."""
    rows = [index.every_row() for _ in names]  # none is made without names
    made = zip(names, rows, strict=True)
    return {name: pa.array(ids) if name == ROW_ID_SPEC.name else paths_of(index.files, ids) for name, ids in made}


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
