"""A predicate in words: as it is written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.compute as pc

from ray_h5.predicates.named_columns import names_in
from ray_h5.predicates.virtual_names import AnyEqual, Compared, Derived, Length, RowMask, parse_virtual

_MOST = 300
"""Longer predicates are cut off."""

_IS_TRUE = " == true"


def in_words(expression: pc.Expression) -> str:
    """Return a predicate as text of one line, for messages. Criteria of `where` are columns of their own in it."""
    text = str(expression)
    for name in names_in(expression):
        if (parsed := parse_virtual(name)) is not None:
            words = criterion_in_words(*parsed)
            text = text.replace(f"{name}{_IS_TRUE}", words).replace(name, words)
    text = " ".join(text.split()).replace("invert(", "not (")
    return text if len(text) <= _MOST else f"{text[: _MOST - 4]} ..."


def criterion_in_words(column: str, wanted: Derived) -> str:
    """Return a criterion of `where` as text."""
    if isinstance(wanted, RowMask):
        return f"{column} = row_mask()"
    if isinstance(wanted, AnyEqual):
        valid = "" if wanted.valid is None else f", valid={wanted.valid!r}"
        return f"{column} = any_equal({wanted.value}{valid})"
    if isinstance(wanted, Compared):
        values = [_shown(value) for value in wanted.values[:_MOST]]
        if wanted.how == "between":
            return f"{column} = between({', '.join(values)})"
        if wanted.how == "one_of":
            return f"{column} in [{', '.join(values)}]"
        return f"{column} is null" if wanted.values == (None,) else f"{column} == {values[0]}"
    if isinstance(wanted, Length):
        return f"the length of {column}"
    if wanted.files is not None:
        return f"{len(wanted.files)} of {wanted.num_files} files of kfold(group='path')"
    return f"fold {wanted.fold} of kfold(k={wanted.k}), {'its' if wanted.is_test else 'all other'} rows"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
