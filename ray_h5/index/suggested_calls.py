"""Suggestions are run before they are printed: planned over the files, and the first and the last row is read."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ray_h5.columns.column_functions import csr, joined, ragged
from ray_h5.columns.derived_columns import Ragged
from ray_h5.errors import RayH5Error, SchemaMismatchError
from ray_h5.index.row_index import RowIndex
from ray_h5.likely_rows.suggestions import Suggestion
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_kind_options import Files, Grid, Groups
from ray_h5.rows.windows_option import Windows

logger = logging.getLogger(__name__)

_MAX_ROW_BYTES = 64 << 20
"""A column with larger rows is planned and not read."""

_MAKERS: Mapping[str, Callable[..., Any]] = {
    maker.__name__: maker for maker in (Files, Grid, Groups, Patches, Windows, csr, joined, ragged, range)
}


def suggestions_that_run(suggestions: Iterable[Suggestion], plan: Callable[..., RowIndex]) -> Iterator[Suggestion]:
    """Yield the suggestions whose call reads the files, and those without a call; `plan` plans a call."""
    for suggestion in suggestions:
        try:
            if suggestion.options:
                _read_ends(plan(**arguments_of(suggestion.options)))
        except RayH5Error as exc:
            logger.debug("not suggested: %s: %s", suggestion.options, exc)
        else:
            yield suggestion


def arguments_of(options: str) -> dict[str, Any]:
    """Return the arguments of a call, such as ``rows=ray_h5.Groups('demo_*')``."""
    call = ast.parse(f"read_h5({options})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(keyword.arg): value_of(keyword.value) for keyword in call.keywords}


def value_of(node: ast.expr) -> Any:
    """Return what an expression stands for: values, row kinds, windows and columns that are made.

    Raises
    ------
    ValueError, KeyError
        If it has anything else.
    """
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        named = {str(keyword.arg): value_of(keyword.value) for keyword in node.keywords}
        return _MAKERS[name](*map(value_of, node.args), **named)
    if isinstance(node, ast.List):
        return [*map(value_of, node.elts)]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(value_of, node.values), strict=True))
    return ast.literal_eval(node)


def _read_ends(index: RowIndex) -> None:
    """Read the first and the last row.

    Raises
    ------
    RayH5Error
        If there is no row, or one cannot be read, or bounds leave out values.
    """
    counts = np.diff(index.files.starts)
    filled = np.flatnonzero(counts)
    if not len(filled):
        raise SchemaMismatchError("expected rows, found none")
    names = [name for name, spec in index.columns.items() if spec.row_bytes <= _MAX_ROW_BYTES]
    ranges = [column for column in index.scope.columns if isinstance(column, Ragged) and index.scope.rows is None]
    for file, row in ((int(filled[0]), 0), (int(filled[-1]), int(counts[filled[-1]]) - 1)):
        table = index.tables[file] if index.tables else None
        with index.open(file) as reader:
            reader.read(names, np.array([row]))
            for made in ranges:
                # Offsets and ends are of all values: planning has compared them.
                bounds = None if table is None else table.bounds.get(made.bounds_key)
                length = reader.base.column(made.content).num_rows
                if bounds is not None and (total := bounds.total) != length:
                    raise SchemaMismatchError(f"{made}: its rows have {total} of {length} values")
