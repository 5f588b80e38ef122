"""Rows of many files, chosen and ordered, in batches of bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_h5.columns.varying.padding import cast_rows
from ray_h5.columns.varying.sparse_rows import SparseBatch
from ray_h5.errors import NullValueError
from ray_h5.index.file_options import FileOptions
from ray_h5.order.plan_reads import read_rows
from ray_h5.order.read_plan import ReadPlan, make_plan
from ray_h5.splitmix import mix
from ray_h5.writing.file_arrays import ColumnValues, Form, Ranges, TableWriter, part_of
from ray_h5.writing.layouts import Layout
from ray_h5.writing.output import OutputFile
from ray_h5.writing.repack.copying import SLAB_BYTES

RUN_BYTES = 128 << 20
"""Bytes of the rows that are brought into a random order in memory."""

_MOST_RUNS = 256
_RUN_LAYOUT = Layout(codec="none", chunk_bytes=256 << 10)

Batch = tuple[dict[str, ColumnValues], int]
"""Rows: the values of each column, and how many there are."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a plan.

    Attributes
    ----------
    plan : ReadPlan
        Which rows of which files.
    forms : mapping of str to Form
        What columns are written as.
    group_rows : int
        Rows that share chunks: a batch holds whole ones, so that each is decoded once.
    """

    plan: ReadPlan
    forms: Mapping[str, Form]
    group_rows: int

    @property
    def batch_rows(self) -> int:
        """Rows of a batch: 64 MiB, or those that share chunks, if these are larger."""
        rows = max(1, SLAB_BYTES // max(self.plan.row_bytes, 1))
        return -(-rows // self.group_rows) * self.group_rows

    def of_files(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the selected rows among those with row ids from `start` to `stop`, in order."""
        for first in range(start, stop, self.batch_rows):
            row_ids = np.arange(first, min(stop, first + self.batch_rows))
            if (selection := self.plan.selection) is not None:
                row_ids = selection[slice(*np.searchsorted(selection, [row_ids[0], row_ids[-1] + 1]))]
            if len(row_ids):
                yield self.read(row_ids), len(row_ids)

    def all(self) -> Iterator[Batch]:
        """Yield all selected rows, in the order of the files."""
        for start, stop in zip(self.plan.files.starts[:-1].tolist(), self.plan.files.starts[1:].tolist(), strict=True):
            yield from self.of_files(start, stop)

    def read(self, row_ids: np.ndarray) -> dict[str, ColumnValues]:
        """Return rows as they are written."""
        plan = self.plan
        arrays = dict(read_rows(plan, row_ids).arrays)
        if plan.joined is not None:
            for name in plan.joined.specs:
                arrays[name] = plan.joined.array(name, plan.files, row_ids)

        def where(row: int) -> str:
            return plan.files.where(int(row_ids[row]))

        found: dict[str, ColumnValues] = {}
        for spec in plan.columns:
            values, form = arrays[spec.name], self.forms[spec.name]
            if spec.kind == "sparse":
                found[spec.name] = SparseBatch.of(values, spec, where)
            elif form.kind == "ragged":
                rows = list(values)
                if (missing := next((row for row, each in enumerate(rows) if each is None), None)) is not None:
                    raise NullValueError(
                        f"{where(missing)}: column {spec.name!r} is missing, and rows that are written have all of "
                        "their values. Leave the column out with columns=[...], or the groups that lack it."
                    )
                numbers = spec.element is not None and spec.element.kind in "biufc"
                found[spec.name] = Ranges.of(cast_rows(rows, spec, where) if numbers else rows, form)  # type: ignore[arg-type]
            else:
                found[spec.name] = values
        return found


def shuffled(rows: Rows, seed: int, temporary: Callable[[str], str], threads: int) -> Iterator[Batch]:
    """Yield all rows in a random order.

    Each row goes to a run that its number and the seed draw; each run is then brought into a random order in memory.
    So each input chunk is decoded once, and memory is bounded.

    Parameters
    ----------
    rows : Rows
        The rows.
    seed : int
        The seed: the order is a function of it, of the rows and of their size.
    temporary : callable
        Returns the path of a new file for the rows of a run.
    threads : int
        Threads that read.
    """
    total = rows.plan.num_rows * max(rows.plan.row_bytes, 1)
    count = min(_MOST_RUNS, max(1, -(-total // RUN_BYTES)))
    paths = [temporary(f"run-{run}.h5") for run in range(count)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(OutputFile(path, durable=False)) for path in paths]
        tables = [TableWriter(file, rows.forms, _RUN_LAYOUT) for file in files]
        position = 0
        for columns, number in rows.all():
            runs = _draws(seed, np.arange(position, position + number)) % count
            position += number
            for run in np.unique(runs).tolist():
                places = np.flatnonzero(runs == run)
                tables[run].append({name: taken(values, places) for name, values in columns.items()}, len(places))
        for table in tables:
            table.finish()
    for run, path in enumerate(paths):
        if tables[run].rows:
            yield from _run(path, rows, np.random.default_rng([seed, run]), threads)
        Path(path).unlink()


def _run(path: str, rows: Rows, rng: np.random.Generator, threads: int) -> Iterator[Batch]:
    """Yield the rows of a run in a random order."""
    files = FileOptions.of(path, columns=list(rows.forms), threads=threads, file_extensions=None)
    index = files.index()
    plan = make_plan(index, [index.columns[name] for name in rows.forms])
    run = Rows(plan, rows.forms, 1)
    order = rng.permutation(plan.num_rows)
    whole = run.read(np.arange(plan.num_rows))
    for start in range(0, len(order), run.batch_rows):
        places = order[start : start + run.batch_rows]
        yield {name: taken(values, places) for name, values in whole.items()}, len(places)


def _draws(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Return a number for each row, the same in each repack."""
    key = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    return np.asarray(mix(mix(numbers.astype(np.uint64)) ^ key) >> np.uint64(1)).astype(np.int64)


def taken(values: ColumnValues, places: np.ndarray) -> ColumnValues:
    """Return rows of a column, in an order."""
    if isinstance(values, Ranges):
        at, offsets = _spread(values.offsets, places)
        return Ranges(offsets, values.values[at])
    if isinstance(values, SparseBatch):
        at, offsets = _spread(values.indptr, places)
        return SparseBatch(offsets, values.indices[at], values.data[at], values.width)
    return values[places]


def _spread(offsets: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the values of some rows, and the offsets of these rows."""
    counts = offsets[places + 1] - offsets[places]
    made = np.concatenate([[0], np.cumsum(counts)])
    return np.repeat(offsets[places] - made[:-1], counts) + np.arange(made[-1]), made


def cut(batches: Iterator[Batch], sizes: Sequence[int]) -> Iterator[Iterator[Batch]]:
    """Yield the rows of each of some files, of these sizes; each must be consumed before the next."""
    rest: list[Batch] = []

    def take(size: int) -> Iterator[Batch]:
        while size:
            columns, count = rest.pop() if rest else next(batches)
            stop = min(size, count)
            if stop < count:
                rest.append(({name: part_of(each, stop, count) for name, each in columns.items()}, count - stop))
                columns = {name: part_of(each, 0, stop) for name, each in columns.items()}
            yield columns, stop
            size -= stop

    for size in sizes:
        yield take(size)
