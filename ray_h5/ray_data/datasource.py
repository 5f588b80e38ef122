"""The Datasource: what Ray Data asks, answered from the index and the plan."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import DataContext, Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.data.expressions import ColumnExpr, Expr

from ray_h5.errors import OptionError, UnknownColumnError
from ray_h5.hdf5.rows import near_names
from ray_h5.planning.index import Scope, build_index
from ray_h5.planning.plan import ReadPlan, choose_block_rows, read_block
from ray_h5.planning.predicate import check_names, evaluate
from ray_h5.planning.schema import ColumnSpec, cast_columns
from ray_h5.ray_data.blocks import PATH_SPEC, ROW_ID_SPEC, Output, origin, schema_of, to_table

logger = logging.getLogger(__name__)


class H5Datasource(Datasource):
    """HDF5 files as a source of Ray Data; `ray_h5.read_h5` makes one and reads it.

    Planning happens where the object is made: row counts and schema then, and the small columns
    of a predicate when it is first planned. Tasks receive the plan by reference.

    Parameters
    ----------
    paths : sequence of str
        The files, in the order of row ids.
    columns : sequence of str, optional
        The columns to read; None takes all.
    group : str
        The group that column names are relative to.
    dtypes : mapping of str to dtype, optional
        Columns to cast in the read tasks; ``bytes`` for strings that are not UTF-8.
    include_paths, include_row_ids : bool
        Add the columns `path` and `row_id`.
    block_rows, num_blocks : int, optional
        Rows of a block, or the number of blocks. By default blocks are sized by their bytes.
    allow_external : sequence of str
        Folders that links, virtual datasets and external storage may lead into.
    threads : int
        Threads that read and decode in one task.
    local_only : bool
        Whether only the driver's node has the files.

    Raises
    ------
    RayH5Error
        If a file cannot be planned for; see the leaves of `ray_h5.errors`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        group: str = "/",
        dtypes: Mapping[str, object] | None = None,
        include_paths: bool = False,
        include_row_ids: bool = False,
        block_rows: int | None = None,
        num_blocks: int | None = None,
        allow_external: Sequence[str] = (),
        threads: int = 1,
        local_only: bool = False,
    ) -> None:
        super().__init__()
        # Ray's base class leaves this one to its subclasses.
        self._projection_map: dict[str, str] | None = None
        self._local_only = local_only
        self._block_size = (block_rows, num_blocks)
        choose_block_rows(1, 1, *self._block_size)
        self._index = build_index(paths, columns, Scope(group, tuple(allow_external), threads))
        self._columns = cast_columns(self._index.columns, dtypes or {})
        self._added = _added_columns(self._columns, include_paths, include_row_ids)
        self._output = Output((*self._columns, *self._added))
        self._predicate: pc.Expression | None = None
        self._predicate_specs: dict[str, ColumnSpec] = {}
        self._plan: ReadPlan | None = None
        self._plan_ref: ray.ObjectRef[ReadPlan] | None = None

    # What Ray asks while it optimises -------------------------------------------------------

    def supports_projection_pushdown(self) -> bool:
        return True

    def supports_predicate_pushdown(self) -> bool:
        return True

    @property
    def supports_distributed_reads(self) -> bool:
        return not self._local_only

    def apply_projection(self, projection_map: dict[str, str] | None) -> H5Datasource:
        """Return a datasource that reads these columns only."""
        clone: H5Datasource = super().apply_projection(projection_map)
        names = clone.get_projection_map()
        if names is not None:
            for name in names:
                if name not in self._output.names:
                    raise UnknownColumnError(f"no column {name!r}.{near_names(name, self._output.names)}")
            clone._output = self._output.select(list(names))
        return clone._unplanned()

    def apply_predicate(self, predicate_expr: Expr) -> H5Datasource:
        """Return a datasource that yields only the rows that pass."""
        names = column_names(predicate_expr)
        specs = self._specs(names)
        check_names(names, specs)
        clone = copy.copy(self)
        expression = predicate_expr.to_pyarrow()
        clone._predicate = expression if self._predicate is None else self._predicate & expression
        clone._predicate_specs = {**self._predicate_specs, **{name: specs[name] for name in names}}
        clone._predicate_expr = (
            predicate_expr if self._predicate_expr is None else self._predicate_expr & predicate_expr
        )
        return clone._unplanned()

    def estimate_inmemory_data_size(self) -> int:
        plan = self.plan()
        return plan.num_rows * plan.row_bytes

    # What Ray asks when it executes ---------------------------------------------------------

    def get_read_tasks(
        self,
        parallelism: int,  # noqa: ARG002  Ray's name
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """Return a task a block. `parallelism` is a wish of Ray's that would cut blocks too small."""
        plan = self.plan()
        schema = schema_of(plan, self._output)
        if plan.num_blocks == 0:
            metadata = BlockMetadata(num_rows=0, size_bytes=0, input_files=None, exec_stats=None)
            return [ReadTask(partial(_read_nothing, schema), metadata, schema=schema)]
        # Ray asks several times, only to count; only the call that has a context runs the tasks.
        reference = self._reference() if data_context is not None else None
        return [self._task(plan, block, reference, schema, per_task_row_limit) for block in range(plan.num_blocks)]

    def plan(self) -> ReadPlan:
        """Return the plan for the predicate and the columns as they are now."""
        if self._plan is None:
            selection = None
            if self._predicate is not None:
                selection = evaluate(self._predicate, self._predicate_table())
            columns = tuple(self._columns[name] for name in self._output.names if name in self._columns)
            rows = self._index.num_rows if selection is None else len(selection)
            row_bytes = sum(column.row_bytes for column in columns)
            block_rows = choose_block_rows(row_bytes, rows, *self._block_size)
            self._plan = ReadPlan(self._index.files, columns, self._index.scope, selection, block_rows)
            logger.debug("plan: %d rows in %d blocks of %d", rows, self._plan.num_blocks, block_rows)
        return self._plan

    def _task(
        self,
        plan: ReadPlan,
        block: int,
        reference: ray.ObjectRef[ReadPlan] | None,
        schema: pa.Schema,
        limit: int | None,
    ) -> ReadTask:
        rows = plan.rows_in(block)
        metadata = BlockMetadata(num_rows=rows, size_bytes=rows * plan.row_bytes, input_files=None, exec_stats=None)
        read = partial(_read_block, reference or plan, self._output, block, limit)
        return ReadTask(read, metadata, schema=schema, per_task_row_limit=limit)

    def _specs(self, names: Iterable[str]) -> dict[str, ColumnSpec]:
        """Return the specs of columns that a predicate names.

        It may name a column that `columns` leaves out, but none that a selection dropped.
        """
        known = {**self._columns, **self._added}
        if self.get_projection_map() is not None:
            return {name: known[name] for name in self._output.names}
        found = {name: known[name] for name in names if name in self._output.names}
        return {**found, **self._index.find([name for name in names if name not in found])}

    def _predicate_table(self) -> pa.Table:
        stored = [spec for name, spec in self._predicate_specs.items() if name not in self._added]
        columns = dict(self._index.small_columns(stored))
        row_ids = np.arange(self._index.num_rows, dtype=np.int64)
        for name in self._predicate_specs.keys() & self._added.keys():
            columns[name] = origin(self._index.files, row_ids, name)
        return pa.table(columns)

    def _reference(self) -> ray.ObjectRef[ReadPlan]:
        if self._plan_ref is None:
            self._plan_ref = ray.put(self.plan())
        return self._plan_ref

    def _unplanned(self) -> H5Datasource:
        self._plan = self._plan_ref = None
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A plan is made again where it is needed: its selection may be large.
        return {**self.__dict__, "_plan": None, "_plan_ref": None}


def column_names(expression: Expr) -> frozenset[str]:
    """Return the names of the columns that one of Ray's expressions names."""
    if isinstance(expression, ColumnExpr):
        return frozenset({expression.name})
    found: set[str] = set()
    for each in dataclasses.fields(expression):
        value = getattr(expression, each.name)
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
        for part in parts:
            if isinstance(part, Expr):
                found |= column_names(part)
    return frozenset(found)


def _added_columns(
    columns: Mapping[str, ColumnSpec], include_paths: bool, include_row_ids: bool
) -> dict[str, ColumnSpec]:
    added = {PATH_SPEC.name: PATH_SPEC} if include_paths else {}
    added |= {ROW_ID_SPEC.name: ROW_ID_SPEC} if include_row_ids else {}
    for name in added.keys() & columns.keys():
        raise OptionError(
            f"the files have a column {name!r} of their own; read it without include_{name}s, or leave it out with "
            "columns=[...]"
        )
    return added


def _read_block(
    plan: ReadPlan | ray.ObjectRef[ReadPlan], output: Output, block: int, limit: int | None
) -> Iterable[pa.Table]:
    if not isinstance(plan, ReadPlan):
        plan = ray.get(plan)
    yield to_table(plan, read_block(plan, block, limit), output)


def _read_nothing(schema: pa.Schema) -> Iterable[pa.Table]:
    yield schema.empty_table()
