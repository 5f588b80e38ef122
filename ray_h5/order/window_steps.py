"""The steps that windows hold, each once, as a plan of its own: windows overlap, and moments count each value once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ray_h5.order.epoch_order import Order
from ray_h5.order.read_plan import ReadPlan
from ray_h5.rows.kinds.clock import Clock
from ray_h5.rows.windows_option import WindowColumn, Windows
from ray_h5.tables.table_columns import TableColumns


def steps_plan(plan: ReadPlan, names: Collection[str]) -> ReadPlan:
    """Return a plan whose rows are the steps that columns of windows hold in the selected rows, each once.

    Parameters
    ----------
    plan : ReadPlan
        A plan with windows.
    names : collection of str
        Columns with the same offsets.
    """
    windows = plan.scope.windows
    assert windows is not None
    (offsets,) = {column.offsets for column in windows.columns if column.name in names}
    starts = plan.files.starts
    selected = plan.selection
    lengths = [np.empty(0, np.int64) if table is None else table.lengths for table in plan.tables]
    step_starts = np.cumsum([0, *(length.sum() for length in lengths)], dtype=np.int64)
    numbers = []
    for file, of_episodes in enumerate(lengths):
        if selected is None:
            rows = np.arange(starts[file + 1] - starts[file])
        else:
            low, high = np.searchsorted(selected, starts[file : file + 2])
            rows = selected[low:high] - starts[file]
        numbers.append(_steps(rows, of_episodes, windows, offsets) + step_starts[file])
    steps = np.concatenate([*numbers, np.empty(0, np.int64)])
    columns = tuple(
        replace(spec, row_shape=(1, *spec.row_shape[1:])) if spec.name in names else spec for spec in plan.of_files
    )
    return replace(
        plan,
        files=replace(plan.files, starts=step_starts),
        columns=columns,
        scope=replace(plan.scope, windows=windows.single_steps()),
        selection=steps,
        order=Order(len(steps)),
        beside=TableColumns(),
    )


def _steps(rows: np.ndarray, lengths: np.ndarray, windows: Windows, offsets: tuple[int, ...]) -> np.ndarray:
    """Return the ordinals of the steps that rows of a file hold, ascending."""
    episodes, steps, side = Clock.of_steps(lengths, windows).samples(WindowColumn("", "", offsets), rows)
    # Zeros are no values of the file. The first and last step, which stand for padding otherwise, are.
    before, after = (pad == "zero" for pad in windows.pad)
    held = ~((before & (side < 0)) | (after & (side > 0)))
    firsts = np.cumsum(lengths) - lengths
    return np.unique((firsts[episodes][:, None] + steps)[held])
