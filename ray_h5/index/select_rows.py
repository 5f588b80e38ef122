"""A predicate of pyarrow -> the row ids that pass it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow.compute as pc

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import PredicateError
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.row_index import RowIndex
from ray_h5.messages import few
from ray_h5.predicates.evaluate import check_names, evaluate
from ray_h5.predicates.names import columns_of


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
    named: dict[str, ColumnSpec] = {}
    for name in columns_of(predicate):
        known = {name: specs[name]} if name in specs else index.find([name])
        check_names([name], known)
        named |= known
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
