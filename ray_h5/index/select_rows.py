"""A predicate of pyarrow -> the row ids that pass it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import PredicateError
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.row_index import RowIndex
from ray_h5.messages import few
from ray_h5.predicates.evaluate import check_names, comparable_type, evaluate

_MISSING = re.compile(
    r"No match for FieldRef\.(?:Name\((.*)\)|Nested\(FieldRef\.Name\((.*?)\) FieldRef\..*\))", re.DOTALL
)


def select(index: RowIndex, specs: Mapping[str, ColumnSpec], predicate: pc.Expression) -> np.ndarray:
    """Return the row ids that pass a predicate, ascending.

    Parameters
    ----------
    index : RowIndex
        The files.
    specs : mapping of str to ColumnSpec
        Columns as they are delivered; others are looked up.
    predicate : pyarrow.compute.Expression
        The predicate.
    """
    named = named_columns(index, specs, predicate)
    try:
        return evaluate(predicate, index.small_columns(list(named.values())), index.num_rows)
    except PredicateError as exc:
        raise PredicateError(f"{exc}{_names_of_enums(index, named)}") from exc


def _names_of_enums(index: RowIndex, names: Iterable[str]) -> str:
    """Return sentences, to be appended, with the names of enums, whose integers predicates compare."""
    (facts,) = index.lookup.ask([index.files.path(0)], Question(tuple(names)))
    enums = {name: each.enum for name, each in facts.columns.items() if each.enum and each.spec.kind == "number"}
    return "".join(
        f". {name!r} is an enum, whose integers are compared: {few([f'{label}={value}' for label, value in enum])}"
        for name, enum in enums.items()
        if name in {*names}
    )


def named_columns(index: RowIndex, specs: Mapping[str, ColumnSpec], predicate: pc.Expression) -> dict[str, ColumnSpec]:
    """Return the columns that an expression of pyarrow names.

    pyarrow cannot list them. But its error for a table without one of them contains the name.
    """
    found: dict[str, ColumnSpec] = {}
    while (name := _first_missing(predicate, found)) is not None:
        known = {name: specs[name]} if name in specs else index.find([name])
        check_names([name], known)
        found |= known
    return found


def _first_missing(predicate: pc.Expression, found: Mapping[str, ColumnSpec]) -> str | None:
    # A table without any column cannot be filtered.
    table = pa.table({"": pa.array([], pa.int8()), **{name: _nothing(spec) for name, spec in found.items()}})
    try:
        table.filter(predicate)
    except pa.ArrowInvalid as exc:
        # A name may contain any text, so it is found by what surrounds it.
        columns = "\n".join(f"{column.name}: {column.type}" for column in table.schema)
        match = _MISSING.fullmatch(str(exc).removesuffix(f" in {columns}"))
        name = match and (match[1] or match[2])
        return name if name and name not in found else None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None  # the evaluation reports what is wrong
    return None


def _nothing(spec: ColumnSpec) -> pa.Array:
    return pa.array([], comparable_type(spec.kept_type))
