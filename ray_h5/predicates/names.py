"""The columns that an expression of pyarrow names."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.errors import PredicateError
from ray_h5.predicates.virtual_names import Compared, parse_virtual

_MAGIC_BYTES = 8
"""Of an Arrow IPC file; its first message, the schema, follows."""


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
    schema = pa.ipc.read_message(pa.BufferReader(written.slice(_MAGIC_BYTES))).metadata
    found: dict[str, None] = {}
    inner = 0  # names of fields of structures, which follow that of the column
    for key, value in _metadata(schema.to_pybytes()):
        if key == b"nested_field_ref":
            inner = -int(value)
        elif key == b"field_ref" and inner > 0:
            inner -= 1
        elif key == b"field_ref":
            found[value.decode()] = None
            inner = -inner - 1 if inner else 0
    return [*found]


def columns_of(expression: pc.Expression) -> list[str]:
    """Return the columns whose values an expression needs: of a comparison that `where` made, the compared one."""
    return [*dict.fromkeys((comparison_of(name) or (name, None))[0] for name in names_in(expression))]


def comparison_of(name: str) -> tuple[str, Compared] | None:
    """Return which column a virtual column compares with what; None for another column."""
    column, criterion = parse_virtual(name) or ("", None)
    return (column, criterion) if isinstance(criterion, Compared) else None


def _metadata(message: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the metadata of the schema in a message, of which the flatbuffers format of Arrow says where it is."""
    # A message has version, kind, and header, which is the schema. A schema has byte order, fields, and metadata.
    schema = _target(message, _fields(message, _target(message, 0))[2])
    entries = _target(message, _fields(message, schema)[2])
    for number in range(_uint32(message, entries)):
        key, value = _fields(message, _target(message, entries + 4 + 4 * number))
        yield _bytes(message, key), _bytes(message, value)


def _fields(message: bytes, table: int) -> list[int]:
    """Return where the fields of a table are; 0 for one that is not there."""
    # A table begins with the distance to its list of places: two sizes, and then the place of each field.
    begin = table - struct.unpack_from("<i", message, table)[0]
    (size,) = struct.unpack_from("<H", message, begin)
    return [table + at if at else 0 for (at,) in struct.iter_unpack("<H", message[begin + 4 : begin + size])]


def _uint32(message: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", message, at)[0])


def _target(message: bytes, at: int) -> int:
    return at + _uint32(message, at)


def _bytes(message: bytes, at: int) -> bytes:
    begin = _target(message, at)
    return message[begin + 4 : begin + 4 + _uint32(message, begin)]
