"""How the facts of one file are found: a question, and what the file answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import shorten

import numpy as np
import pyarrow as pa

from ray_h5.buffers import ROW_BYTES, empty
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import ColumnSpec, scalar_to_arrow
from ray_h5.errors import SchemaMismatchError, StaleIndexError, UnsupportedColumnError
from ray_h5.hdf5.tree.tree import opened_once
from ray_h5.index.facts.computed_columns import compute
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts, Question
from ray_h5.manifest.file_state import FileState
from ray_h5.manifest.layout import ValueArray
from ray_h5.predicates.evaluate import check_not_drawn
from ray_h5.predicates.virtual_names import Length, RowMask, parse_virtual, read_for
from ray_h5.read.reader import OBJECT_BYTES, FileReader
from ray_h5.rows.row_view import AnyReader
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import Identity

logger = logging.getLogger(__name__)

_WHY_CHARACTERS = 100
_LINK_CHARACTERS = 300
"""A link is named with the path that it leads to."""


def learn(
    facts: FileFacts | None, path: str, question: Question, scope: Scope, listed: Identity | None = None
) -> FileFacts:
    """Return the known facts of a file together with the answers to a question.

    A column that the file lacks is no error here: the comparison of all files reports it. `listed` is the state of a
    remote file in a listing.
    """
    state = None if listed is None else FileState(listed)
    table, known = None, None
    if facts is not None:
        state, table, known = facts.state, facts.table, facts.known
    try:
        with opened_once(), scope.open(path, state, table, known) as reader:
            return _answered(facts, path, question, scope, reader)
    except UnsupportedColumnError as exc:
        if not exc.is_encoded or table is not None:
            raise
    # A column is a group, and the file does not say so.
    with opened_once(), scope.open(path, state, RowTable(), known) as reader:
        return _answered(facts, path, question, scope, reader)


def _answered(facts: FileFacts | None, path: str, question: Question, scope: Scope, reader: AnyReader) -> FileFacts:
    if facts is None:
        reader.base.look_again()
        facts = FileFacts(path, reader.identity)
    facts = _learn_columns(facts, reader, question.columns)
    if scope.may_lack and not facts.chosen(question.columns):
        # Its rows are those of its other columns; or groups, whose other columns may differ from group to group.
        by_axis = scope.rows is None
        facts = _learn_columns(facts, reader, None) if by_axis else replace(facts, own_rows=reader.num_rows)
    absent = facts.absent(question) if question.values else []
    for spec in (key for key in absent if not isinstance(key, str)):
        if scope.may_lack and (values := _of_lacking(facts, reader, spec, question.columns)) is not None:
            facts = replace(facts, values={**facts.values, spec: values})
        else:
            facts = _learn_values(facts, reader, spec, question.columns)
    if attributes := [key for key in absent if isinstance(key, str)]:
        facts = _learn_attributes(facts, reader, attributes, scope)
    if known := reader.base.manifest():
        facts = replace(facts, known=known)
    if isinstance(reader, FileReader):
        return facts
    return replace(facts, table=reader.table if facts.table is None else facts.table.merged(reader.table))


def check_planned(reader: AnyReader, column: str, rows: int) -> None:
    """Raise unless a column has the number of rows that was planned. The file did not change since.

    Raises
    ------
    StaleIndexError
        If not: only a wrong index on disk can be the cause.
    """
    layout = reader.find([column])[column]
    if layout.num_rows != rows:
        raise StaleIndexError(wrong_index(layout, f"{rows} rows", f"{layout.num_rows}"))


def wrong_index(layout: ValueArray, planned: str, found: str) -> str:
    """Return the message for a column that is not what an index on disk says."""
    return (
        f"{layout.where}: planned as {planned}, found {found}, in a file that did not change. Its entry in "
        "index_dir is wrong: delete that folder, and build the index again."
    )


def _learn_columns(facts: FileFacts, reader: AnyReader, columns: Sequence[str] | None) -> FileFacts:
    if columns is not None:
        new = [name for name in columns if name not in facts.columns]
        return facts.described(reader.find(new, missing_ok=True))
    if facts.listing is not None:
        return facts
    layout = reader.layout
    if isinstance(reader, FileReader):
        for error in layout.refused.values():
            if isinstance(error, UnsupportedColumnError) and error.is_encoded:
                raise error  # the file is opened as one whose columns may be made of several datasets
    kept: dict[str, ColumnFacts] = {}
    refused = {}
    for name, error in layout.refused.items():
        if not isinstance(error, UnsupportedColumnError) and not getattr(error, "is_dangling", False):
            raise error  # it may be a column of rows, and all columns are asked for
        refused[name] = error
    for name, column in layout.columns.items():
        try:
            kept[name] = ColumnFacts.of(column)
        except UnsupportedColumnError as exc:
            refused[name] = exc
    for error in refused.values():
        logger.debug("left out: %s", error)  # a warning says it once for all files
    said = {name: error for name, error in refused.items() if getattr(error, "has_rows", True)}
    left_out = tuple((name, _why(name, error, layout.path)) for name, error in said.items())
    layouts = {name: layout.columns[name] for name in kept}
    others = (column.sources for name, column in layout.columns.items() if name not in layouts)
    sought = tuple(dict.fromkeys([*layout.sought, *(source for sources in others for source in sources)]))
    if reader.base.is_fetched:
        reader.find(list(layouts))  # for the manifest
    return replace(facts.described(layouts, kept), listing=tuple(layouts), left_out=left_out, sought=sought)


def _learn_values(facts: FileFacts, reader: AnyReader, spec: ColumnSpec, columns: Sequence[str] | None) -> FileFacts:
    rows = facts.num_rows(columns)
    for name in list(facts.chosen(columns))[:1]:
        check_planned(reader, name, rows)
    column, criterion = parse_virtual(spec.name)
    # A mask is a dataset of the file, also where rows are groups.
    is_mask = isinstance(criterion, RowMask)
    finder = reader.base if is_mask and not isinstance(reader, FileReader) else reader
    read = finder.find(read_for(spec.name))
    for name, layout in read.items() if not isinstance(criterion, Length) else ():  # lengths are not drawn
        check_not_drawn(name, layout)
    described = facts.described(read)
    # A mask as a column of rows would have other rows.
    facts = replace(described, columns=facts.columns) if finder is not reader else described
    _check_claim(reader, read.values(), spec, rows)
    computed = None if criterion is None else pa.array(compute(reader, rows, column, criterion), spec.kept_type)
    values = _stored(facts, reader, spec, rows) if computed is None else computed
    return replace(facts, values={**facts.values, spec: values})


def _check_claim(reader: AnyReader, layouts: Iterable[ValueArray], spec: ColumnSpec, rows: int) -> None:
    value_bytes = OBJECT_BYTES if spec.dtype.hasobject else spec.dtype.itemsize
    reader.base.check_claim(layouts, rows * max(value_bytes, ROW_BYTES))


def _of_lacking(
    facts: FileFacts, reader: AnyReader, spec: ColumnSpec, columns: Sequence[str] | None
) -> pa.Array | None:
    """Return the values of a column that the file lacks: nulls, no occurrence, lengths of 0; None if it has it."""
    _, criterion = parse_virtual(spec.name)
    names = read_for(spec.name)
    if isinstance(criterion, RowMask) or {*names} <= reader.find(names, missing_ok=True).keys():
        return None
    rows = facts.num_rows(columns)
    others = list(facts.chosen(columns) or facts.listing or ())[:1]  # one that says how many rows there are
    _check_claim(reader, reader.find(others).values(), spec, rows)
    has_none = criterion is None or spec.dtype.hasobject
    return pa.nulls(rows, spec.kept_type) if has_none else pa.array(np.zeros(rows, spec.dtype))


def _learn_attributes(facts: FileFacts, reader: AnyReader, names: Sequence[str], scope: Scope) -> FileFacts:
    values = dict(facts.values)
    try:
        by_name = reader.base.attributes(names)
    except SchemaMismatchError as exc:
        if scope.rows is None or not scope.rows.has_groups:
            raise
        raise SchemaMismatchError(f"{exc} Attributes of groups are read with rows=Groups(..., attrs=[...]).") from None
    for name, value in by_name.items():
        try:
            text = [value.decode()] if isinstance(value, bytes) else None
            values[name] = pa.array(value) if text is None else pa.array(text, pa.large_string())
        except UnicodeDecodeError:
            raise UnsupportedColumnError(
                f"{facts.path}: attribute {name!r} holds {value!r}, which is not UTF-8; leave it out of attrs=[...]"
            ) from None
    return replace(facts, values=values)


def _stored(facts: FileFacts, reader: AnyReader, spec: ColumnSpec, rows: int) -> pa.Array:
    row_count = facts.columns[spec.name].num_rows
    if row_count != rows:
        raise SchemaMismatchError(
            f"{facts.path}: expected {rows} rows, as its other columns have, found {row_count} in {spec.name!r}. If it "
            "lists the rows of a split, choose them with row_mask()."
        )
    stored = facts.columns[spec.name].spec
    if not spec.is_read_from(stored, True):
        raise SchemaMismatchError(f"{facts.path}: column {spec.name!r}: expected {spec}, found {stored}")
    array = empty((rows, *spec.row_shape), spec.dtype, f"{facts.path}: column {spec.name!r}")
    reader.read_into({spec.name: array}, slice(None), casting=spec.casting)
    values, where = array.reshape(rows), facts.path
    return scalar_to_arrow(values, spec.without_axes, lambda row: f"{where}, row {row}", spec.kept_type)


def _why(name: str, error: Exception, path: str) -> str:
    """Return the reason in an error about a column, in a few words."""
    message = str(error)
    said = message.partition(f"column {name!r}")[2] or message.removeprefix(f"{path}: ")
    most = _LINK_CHARACTERS if getattr(error, "is_dangling", False) else _WHY_CHARACTERS
    return shorten(re.split("; |[.] ", said, maxsplit=1)[0].strip(" ,:"), most, placeholder=" ...")
