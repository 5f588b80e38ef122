"""Why a predicate cannot be evaluated: what pyarrow says of types and kernels, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_TYPES = re.compile(r"(?:no kernel matching input types \(|type of values set: |Unsupported cast from )(.*)")
_TEXT = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_NUMBER = re.compile(r"(?:[<>=]=? |:\[\s*)(-?\d[\d.]*(?:e[-+]?\d+)?|true|false)(?=[\s),\]])")


def why_not_evaluated(error: Exception, expression: pc.Expression, table: pa.Table) -> str:
    """Return why pyarrow cannot evaluate an expression, and what to write instead.

    Parameters
    ----------
    error : Exception
        The error of pyarrow.
    expression : pyarrow.compute.Expression
        The predicate.
    table : pyarrow.Table
        The columns that it names, in the types in which they are compared.
    """
    said = str(error).splitlines()[0]
    found = _TYPES.search(said)
    if found is None and "Failed to parse" not in said:
        return said
    types = found[1] if found else ""
    at_fault = [field for field in table.schema if str(field.type) in types] or list(table.schema)
    return "; ".join(_why(field, types, str(expression).partition(field.name)[2]) for field in at_fault)


def _why(field: pa.Field, types: str, compared: str) -> str:
    kind, name = field.type, field.name
    if pa.types.is_nested(kind):
        return (
            f"column {name!r} holds {'a structure' if pa.types.is_struct(kind) else 'a list'} a row, and a predicate "
            "compares one value a row; choose rows by another column, or filter after reading, with ds.filter(fn=...)"
        )
    return f"column {name!r} holds {_held(kind)}{_instead(kind, types, compared)}"


def _held(kind: pa.DataType) -> str:
    if _is_text(kind):
        return "text, which is compared with text only"
    if pa.types.is_boolean(kind):
        return "booleans, which are compared with True and False only"
    if pa.types.is_duration(kind):
        return "time spans, which are compared with datetime.timedelta or numpy.timedelta64 only"
    if pa.types.is_temporal(kind):
        return "times, which are compared with times only"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes, which are compared with bytes only"
    return "numbers, which are compared with numbers only"


def _instead(kind: pa.DataType, types: str, compared: str) -> str:  # `compared` is what follows the name of the column
    texts = "string" in types.replace(str(kind), "")
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return ": write a datetime, or in where(...) text such as '2024-01-31' or '2024-01-31T12:00'"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = [text for text in _TEXT.findall(compared) if _is_number(text)] if texts else []
        return f": write {numbers[0]} in place of '{numbers[0]}'" if numbers else ""
    if _is_text(kind) and re.search("int|decimal|double|float|bool", types):
        numbers = list(_numbers(compared))
        return f": write '{numbers[0]}' in place of {numbers[0]}" if numbers else ""
    if pa.types.is_boolean(kind) and texts:
        return ": write it without quotes"
    return ""


def _numbers(expression: str) -> Iterator[str]:
    for each in _NUMBER.findall(_TEXT.sub('""', expression)):
        yield {"true": "True", "false": "False"}.get(each, each)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
