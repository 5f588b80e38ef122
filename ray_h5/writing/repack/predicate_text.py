"""Predicates as text, for the command line: ``label == 1 and split in ['train', 'val']``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc

from ray_h5.errors import PredicateError

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left.isin(right),
    ast.NotIn: lambda left, right: ~left.isin(right),
}


def parse_where(text: str) -> pc.Expression:
    """Return the expression of a text: comparisons of columns with values, and ``and``, ``or``, ``not``.

    A column whose name is no word is written as ``col("obs/label")``.

    Raises
    ------
    PredicateError
        If it is something else.
    """
    try:
        return _expression(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ValueError, RecursionError) as exc:
        if isinstance(exc, PredicateError):
            raise
        raise _wrong(text) from None


def _expression(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.BoolOp):
        parts = [_expression(each, text) for each in node.values]
        joined = parts[0]
        for part in parts[1:]:
            joined = joined & part if isinstance(node.op, ast.And) else joined | part
        return joined
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_expression(node.operand, text)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        found = [_compared(left, op, right, text) for left, op, right in zip(sides, node.ops, sides[1:], strict=False)]
        joined = found[0]
        for part in found[1:]:
            joined = joined & part
        return joined
    if (name := _name(node)) is not None:
        return pc.field(name)
    raise _wrong(text)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, text: str) -> Any:
    compare = _COMPARISONS.get(type(op))
    if compare is None or (_name(left) is None) == (_name(right) is None):
        raise _wrong(text)
    if isinstance(op, (ast.In, ast.NotIn)) and (_name(left) is None or not isinstance(right, (ast.List, ast.Tuple))):
        raise _wrong(text)
    one, other = (
        pc.field(name) if (name := _name(side)) is not None else ast.literal_eval(side) for side in (left, right)
    )
    if isinstance(one, pc.Expression):
        return compare(one, list(other) if isinstance(other, tuple) else other)
    return compare(pc.scalar(one), other)


def _name(node: ast.expr) -> str | None:
    """Return the column that a part of the text names."""
    if isinstance(node, ast.Name):
        return node.id
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col"
    if is_call and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
        return str(node.args[0].value)  # type: ignore[attr-defined]
    return None


def _wrong(text: str) -> PredicateError:
    return PredicateError(
        f'where={text!r}: expected comparisons of columns with values, such as "label == 1 and quality >= 0.5", '
        "\"split in ['train', 'val']\" or 'col(\"obs/label\") != 3'"
    )
