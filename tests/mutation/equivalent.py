"""Changes that no test can notice, and why: what is delivered, and what is refused, is the same."""

import os

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("order/left.py", "turns = range(-(-wanted // count) if count else 0)", "0 -> 1"): (
        "no rows that come once more are none"
    ),
    (
        "order/draws/length_runs.py",
        "if found is None:  # it is not read: its shapes are not known yet",
        "found is None -> found is not None",
    ): "lengths that are not known are counted below, row by row",
    ("torch_data/samplers.py", "self._counted_runs: tuple[Any, int] = (None, 0)", "0 -> 1"): (
        "nothing is asked for by None, so that the number beside it is never returned"
    ),
    (
        "order/draws/values_of_rows.py",
        "return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()",
        "1 -> 2",
    ): "a column of all rows has one chunk, which is copied then",
    (
        "order/draws/length_runs.py",
        "some = self.lengths[:: -(-len(self.lengths) // _LOOKED_AT)]",
        "-(-len(self.lengths) // _LOOKED_AT) -> +(-len(self.lengths) // _LOOKED_AT)",
    ): "as many rows, counted from the last one, have about the same lengths",
    (
        "order/draws/weighted_draws.py",
        'return np.searchsorted(self.ends, np.minimum(weights, np.nextafter(limit, 0)), side="right")',
        "0 -> 1",
    ): "a product is rounded up to the limit in one of 2**53 draws, and only of weights whose sum is below 1",
    ("order/left.py", "elif start < stop:", "start < stop -> start <= stop"): (
        "ranges that are kept are parts of others, and no part is empty; an epoch without rows has no ranges in a state"
    ),
    ("order/left.py", "if found and start < stop and found[-1][1] == start:", "start < stop -> start <= stop"): (
        "an empty range makes no other one longer"
    ),
    (
        "order/draws/weights.py",
        'if weights.dtype.kind in "ub" or not len(weights):',
        "weights.dtype.kind in 'ub' or not len(weights) -> weights.dtype.kind in 'ub' and (not len(weights))",
    ): "numbers without a sign, and no numbers, are found to be good the longer way, too",
    ("predicates/virtual_columns.py", "values = base.read_whole(column).reshape(-1)", "1 -> 2"): (
        "NumPy takes any negative length for what is left"
    ),
    (
        "predicates/virtual_columns.py",
        "step = max(1, -(-rows // widest.chunk_rows)) * widest.chunk_rows",
        "-rows -> +rows",
    ): "pieces are shorter, and their values the same",
    (
        "rows/kinds/patch_rows.py",
        "return np.stack([self._corners_along(axis)[each] for axis, each in enumerate(along)], axis=-1)",
        "-1 -> +1",
    ): "rows and axes are two axes",
    ("rows/kinds/window_rows.py", "chunk_rows = max(steps.chunk_rows, run, 1)", "1 -> 2"): (
        "a chunk group of one or two rows costs the same"
    ),
    (
        "predicates/comparisons.py",
        "return value != value or _float32(value) == value",
        "value != value or _float32(value) == value -> value != value and _float32(value) == value",
    ): "what float32 holds is compared a second time, as float32 has it",
    (
        "torch_data/samplers.py",
        "start, rows = run or self.run or (self.start(1, 1, None), 0)",
        "1 -> 2",
    ): "of a run that has not begun, ranks and blocks make no difference",
    (
        "index/folds.py",
        "found = np.full(len(values), numbers.max(initial=-1) + 1)",
        "1 -> 2",
    ): "any number will do that no other class has",
    (
        "predicates/in_words.py",
        "begin = found.start() + len(words)",
        "found.start() + len(words) -> found.start() - len(words)",
    ): "what is searched again has nothing to replace",
    (
        "predicates/comparisons.py",
        "doubles = column - Decimal(0) + 0.0",
        "column - Decimal(0) + 0.0 -> column - Decimal(0) - 0.0",
    ): "only fractions are looked up, and 0 is none",
    (
        "rows/kinds/patch_rows.py",
        "sizes = zip(self._arrays[1], self._kind.block, self._strides, strict=True)",
        "True -> False",
    ): "they are as many: that was checked before",
    (
        "rows/kinds/window_rows.py",
        "return StepsColumn(name, steps.values, None, units_of, 1, joined, self.episodes_of)",
        "1 -> 2",
    ): "a column whose steps differ in shape has the layout of ragged rows, which have no chunks",
    (
        "rows/kinds/step_columns.py",
        "files = [(path, table) for path, table in zip(paths, tables, strict=True) if table and table.groups]",
        "table and table.groups -> table or table.groups",
    ): "where episodes are groups or files, each file has a table; one without groups is left out below",
    ("rows/kinds/patch_groups.py", 'at = path.find("/", at + 1)', "1 -> 2"): "no path has an empty name",
    (
        "rows/kinds/window_rows.py",
        "ends = times.at(recordings, np.clip(units, 0, last)) + steps",
        "0 -> 1",
    ): "it is used for the last sample alone",
}
"""By module, line of source and change; ``*`` stands for each change of a line."""


def why_equivalent(mutant):
    """Return why nobody can notice a mutant; "" if somebody can."""
    path = os.path.relpath(mutant.path, "ray_h5")
    changes = (f"{mutant.before} -> {mutant.after}", "*")
    return next(
        (EQUIVALENT[path, mutant.line, change] for change in changes if (path, mutant.line, change) in EQUIVALENT), ""
    )
