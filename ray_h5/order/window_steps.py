"""The steps that windows hold, each once, as a plan of its own: windows overlap, and moments count each value once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ray_h5.order.epoch_order import Order
from ray_h5.order.read_plan import ReadPlan
from ray_h5.rows.kinds.clock import Clock
from ray_h5.rows.windows_option import WindowColumn
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
    column = WindowColumn("", "", offsets)
    # Zeros are no values of the file. The first and last step, which stand for padding otherwise, are.
    before, after = (pad == "zero" for pad in windows.pad)
    step_starts, numbers = [0], [np.empty(0, np.int64)]
    for file, table in enumerate(plan.tables):
        start, stop = plan.files.starts[file : file + 2].tolist()
        lengths = np.empty(0, np.int64) if table is None else table.lengths
        if plan.selection is None:
            rows = np.arange(stop - start)
        else:
            rows = plan.selection[slice(*np.searchsorted(plan.selection, [start, stop]))] - start
        episodes, steps, side = Clock.of_steps(lengths, windows).samples(column, rows)
        is_held = ~((before & (side < 0)) | (after & (side > 0)))
        firsts = np.cumsum(lengths) - lengths
        numbers.append(np.unique((firsts[episodes][:, None] + steps)[is_held]) + step_starts[-1])
        step_starts.append(step_starts[-1] + int(lengths.sum()))
    steps = np.concatenate(numbers)
    columns = tuple(
        replace(spec, row_shape=(1, *spec.row_shape[1:])) if spec.name in names else spec for spec in plan.of_files
    )
    return replace(
        plan,
        files=replace(plan.files, starts=np.array(step_starts, np.int64)),
        columns=columns,
        scope=replace(plan.scope, windows=windows.single_steps()),
        selection=steps,
        order=Order(len(steps)),
        beside=TableColumns(),
    )
