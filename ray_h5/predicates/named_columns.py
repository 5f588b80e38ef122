"""The columns that an expression of pyarrow names."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.errors import PredicateError
from ray_h5.predicates.virtual_names import Compared, parse_virtual

_INTEGER_BYTES = 4
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def names_in(expression: pc.Expression) -> list[str]:
    """Return the fields that an expression refers to, each once; virtual columns, too.

    pyarrow does not list them. A serialized expression is an Arrow IPC file, and the metadata of its schema has an
    entry for each part of the expression. Keys occur more than once, so the dict that pyarrow makes of them lacks some.

    Raises
    ------
    PredicateError
        If pyarrow cannot serialize the expression, as with a field that has a number and no name.
    """
    try:
        (written,) = expression.__reduce__()[1]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise PredicateError(f"predicate: {expression}: the columns that it names are not known: {exc}") from exc
    columns: dict[str, None] = {}
    inner = 0  # names of fields of structures, which follow that of the column
    for key, value in _metadata(pa.ipc.open_file(written).schema):
        if key == "nested_field_ref":
            inner = -int(value)
        elif key == "field_ref" and inner > 0:
            inner -= 1
        elif key == "field_ref":
            columns[value] = None
            inner = -inner - 1 if inner else 0
    return [*columns]


def columns_of(expression: pc.Expression) -> list[str]:
    """Return the columns whose values an expression needs: of a comparison that `where` made, the compared one."""
    return [*dict.fromkeys((comparison_of(name) or (name, None))[0] for name in names_in(expression))]


def comparison_of(name: str) -> tuple[str, Compared] | None:
    """Return which column a virtual column compares with what; None for another column."""
    column, criterion = parse_virtual(name) or ("", None)
    return (column, criterion) if isinstance(criterion, Compared) else None


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all metadata of a schema. In Arrow's C data interface, it is a count, and texts after their lengths."""
    capsule = schema.__arrow_c_schema__()  # the addresses are valid while it lives
    # The struct begins with pointers to the format, the name and the metadata.
    at = (ctypes.c_void_p * 3).from_address(_pointer(capsule, b"arrow_schema"))[2] or 0
    texts: list[str] = []
    for _ in range(2 * _integer(at) if at else 0):
        at += _INTEGER_BYTES
        texts.append(ctypes.string_at(at + _INTEGER_BYTES, length := _integer(at)).decode())
        at += length
    return list(zip(texts[::2], texts[1::2], strict=True))


def _integer(at: int) -> int:
    return ctypes.c_int32.from_address(at).value
