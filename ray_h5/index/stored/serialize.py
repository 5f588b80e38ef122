"""Facts of a file <-> bytes: an Arrow IPC stream with the values. Its metadata describes the columns in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import NULLABLE_KINDS, TENSOR_KINDS, ColumnSpec, has_long_double, odd_time
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts
from ray_h5.index.facts.source_files import Origin
from ray_h5.index.stored.values_as_json import Reader, Writer, check_sizes, dtype_from_json, dtype_to_json
from ray_h5.manifest.layout import Kind, SourceStates
from ray_h5.manifest.manifest import Manifest
from ray_h5.predicates.virtual_columns import virtual_spec
from ray_h5.predicates.virtual_names import parse_virtual
from ray_h5.read.casting import Casting
from ray_h5.storage.byte_source import FileIdentity, Identity, ObjectIdentity

FOREIGN = (
    pa.ArrowException, OSError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError,
)  # fmt: skip
"""The errors of Arrow, JSON and numpy for bytes that they cannot parse."""

_MOST_ROWS = (1 << 63) - 1
_DTYPE = re.compile(r"[<>|][biufcmMOSUV]\d*(\[\w+\])?")
_DTYPE_KINDS: dict[Kind, str] = {
    "number": "iufc", "bool": "b", "string": "O", "time": "mM", "binary": "V", "struct": "V", "list": "O",
    "ragged": "O", "sparse": "O", "category": "O", "optional": "O",
}  # fmt: skip

_HAVE_ELEMENTS = {"list", "ragged", "sparse", "category", "optional"}


_SEVERAL_A_ROW = ("string", "time", "binary", "struct", "list", "category", "optional")


def to_body(facts: FileFacts, named: list[Any]) -> bytes:
    """Return the bytes for some facts; `named` identifies the file and the scope."""
    sources = {each: number for number, each in enumerate(facts.sources)}
    described = {
        "of": named,
        "identity": astuple(facts.identity),
        "listing": facts.listing,
        "left_out": facts.left_out,
        "sources": [[path, None if identity is None else astuple(identity)] for path, identity in sources],
        "origins": [[each.columns, [sources[source] for source in each.sources]] for each in facts.origins],
        "sought": [sources[source] for source in facts.sought],
        "columns": [[spec_to_json(c.spec), c.num_rows, c.chunk_rows, c.enum] for c in facts.columns.values()],
        "values": [spec_to_json(spec) for spec in facts.values],
        "attributes": list(facts.attributes),
    }
    writer = Writer(sources)
    described["table"] = writer.json(facts.table, RowTable)
    described["known"] = writer.json(facts.known, Manifest)
    parts = [*facts.values.values(), *facts.attributes.values(), *writer.arrays]
    return to_stream(parts, json.dumps(described))


def to_stream(parts: Sequence[pa.Array], described: str) -> bytes:
    """Return the bytes of some arrays and of the JSON that describes them."""
    # A table of one row, with a list in each column: the lengths of columns may differ.
    columns = [pa.LargeListArray.from_arrays([0, len(array)], array) for array in parts]
    fields = [(f"{i}", column.type) for i, column in enumerate(columns)]
    schema = pa.schema(fields, metadata={"ray_h5": described})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        if columns:
            stream.write_table(pa.table(columns, schema=schema))
    return sink.getvalue().to_pybytes()


def from_stream(body: memoryview) -> tuple[list[pa.Array], dict[str, Any]]:
    """Return what `to_stream` was given. Bytes that are something else raise one of `FOREIGN`, or a ValueError."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    if table.num_rows != min(table.num_columns, 1):
        raise ValueError(f"expected one row, found {table.num_rows}")
    return [column.chunk(0)[0].values for column in table.columns], json.loads(table.schema.metadata[b"ray_h5"])


def from_body(body: memoryview, path: str, named: list[Any]) -> FileFacts:
    """Return the facts that `to_body` was given.

    Raises
    ------
    ValueError
        If the bytes are no facts, or facts of another file.
    """
    try:
        arrays, described = from_stream(body)
        if described["of"] != named:
            raise ValueError(f"it is of {described['of']}")
        facts = _to_facts(path, described, arrays)
        check_facts(facts)
    except FOREIGN as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    return facts


def _to_facts(path: str, described: dict[str, Any], arrays: Sequence[pa.Array]) -> FileFacts:
    columns = [column_from_json(spec_from_json(spec), *parts) for spec, *parts in described["columns"]]
    specs = [spec_from_json(spec) for spec in described["values"]]
    named = described["attributes"]
    known = len(specs) + len(named)
    if len(arrays) < known:
        raise ValueError(f"expected {known} columns of values, found {len(arrays)}")
    identity = _identity_from_json(described["identity"])
    listing = described["listing"]
    sources = [_source_from_json(*parts) for parts in described["sources"]]
    reader = Reader(arrays[known:], path, {**dict(sources), path: identity}, sources)
    row_table, manifest = (
        reader.value(described[name], of) for name, of in (("table", RowTable | None), ("known", Manifest))
    )
    if len(reader.used) != len(reader.arrays):
        raise ValueError(f"expected {len(reader.used)} arrays, found {len(reader.arrays)}")
    return FileFacts(
        path,
        identity,
        {column.spec.name: column for column in columns},
        None if listing is None else tuple(listing),
        tuple((name, why) for name, why in described["left_out"]),
        tuple(Origin(tuple(names), _chosen(sources, numbers)) for names, numbers in described["origins"]),
        _chosen(sources, described["sought"]),
        dict(zip(specs, arrays, strict=False)),
        row_table,
        _attributes(named, arrays[len(specs) : known]),
        manifest,
    )


def _attributes(names: list[Any], arrays: Sequence[pa.Array]) -> dict[str, pa.Array]:
    for name, array in zip(names, arrays, strict=True):
        kind = array.type
        is_plain = pa.types.is_large_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind)
        if not isinstance(name, str) or len(array) != 1 or array.null_count:
            raise ValueError(f"attribute {name!r}: {len(array)} values")
        if not (is_plain or pa.types.is_floating(kind)):
            raise ValueError(f"attribute {name!r}: no attribute is of type {kind}")
    return dict(zip(names, arrays, strict=True))


def _identity_from_json(state: list[Any]) -> Identity:
    """Return the state of a file; that of a remote one begins with its ETag."""
    identity: Identity = ObjectIdentity(*state) if isinstance(state[0], str) else FileIdentity(*state)
    if isinstance(identity, ObjectIdentity):
        check_sizes("the state of a remote file", identity.size, _absolute(identity.modified_ns))
    return identity


def _source_from_json(path: Any, state: list[Any] | None) -> tuple[str, Identity | None]:
    if not isinstance(path, str) or "\0" in path:
        raise ValueError(f"{path!r} is no path")
    identity = None if state is None else _identity_from_json(state)
    if identity is not None:
        _check_identity(path, identity)
    return path, identity


def _chosen(sources: Sequence[tuple[str, Identity | None]], numbers: list[Any]) -> SourceStates:
    check_sizes("a source", *numbers)
    return tuple(sources[number] for number in numbers)


def check_facts(facts: FileFacts) -> None:
    """Raise a ValueError for what cannot be true."""
    for column in facts.columns.values():
        check_sizes(f"column {column.spec.name!r}", column.num_rows, column.chunk_rows - 1)
    _check_identity(facts.path, facts.identity)
    for name in facts.listing or ():
        if name not in facts.columns:
            raise ValueError(f"column {name!r} is listed, and not described")
    for origin in facts.origins:
        if not all(isinstance(name, str) for name in origin.columns):
            raise ValueError(f"{origin.columns} are no columns")
    if not all(isinstance(word, str) for each in facts.left_out for word in each):
        raise ValueError(f"{facts.left_out} names no columns")
    _check_values(facts)


def _check_values(facts: FileFacts) -> None:
    for spec, values in facts.values.items():
        stored = facts.columns.get(spec.name)
        if values.type != spec.kept_type or (stored is not None and len(values) != stored.num_rows):
            raise ValueError(f"column {spec.name!r}: {len(values)} values of type {values.type}")
        if values.null_count and spec.kind not in NULLABLE_KINDS:
            raise ValueError(f"column {spec.name!r}: {values.null_count} of its values are missing")
        if not _is_of(spec, None if stored is None else stored.spec):
            raise ValueError(f"column {spec.name!r}: values of {spec}, found {stored and stored.spec}")


def _is_of(spec: ColumnSpec, stored: ColumnSpec | None) -> bool:
    """Return whether values of `spec` can come from a stored column: a predicate may cast them."""
    if parse_virtual(spec.name) is not None:
        return spec == virtual_spec(spec.name)
    if stored is None or not spec.has_one_value or not stored.has_one_value:
        return False
    is_coded = spec.kind in TENSOR_KINDS and stored.kind in {"category", "optional"}
    return spec.kind == stored.kind or is_coded or spec.is_made_of(stored) or {spec.kind, stored.kind} <= TENSOR_KINDS


def _check_identity(path: str, identity: Identity) -> None:
    if isinstance(identity, ObjectIdentity):
        return
    check_sizes(f"the state of {path!r}", *map(_absolute, astuple(identity)))


def _absolute(value: Any) -> Any:
    return (
        abs(value) if isinstance(value, int) and not isinstance(value, bool) else value
    )  # there are times before 1970


def column_from_json(spec: ColumnSpec, num_rows: int, chunk_rows: int, enum: list[Any]) -> ColumnFacts:
    """Return a column; raise a ValueError for what cannot be true."""
    if any([type(part) for part in each] != [str, int] for each in enum):
        raise ValueError(f"{enum} names no integers")
    check_sizes(f"the rows of column {spec.name!r}", num_rows, chunk_rows, most=_MOST_ROWS)
    names = tuple((name, value) for name, value in enum)
    return ColumnFacts(spec, num_rows, chunk_rows, names)


def spec_to_json(spec: ColumnSpec) -> list[Any]:
    """Return a spec as JSON."""
    element = None if spec.element is None else dtype_to_json(spec.element)
    ragged = [spec.dense, *spec.ragged_shape, spec.mean_bytes] if spec.kind in {"ragged", "sparse"} else None
    return [
        spec.name,
        spec.kind,
        dtype_to_json(spec.dtype),
        list(spec.row_shape),
        element,
        spec.as_bytes,
        spec.casting,
        ragged,
        spec.nullable,
    ]


def spec_from_json(parts: list[Any]) -> ColumnSpec:
    """Return the spec that `spec_to_json` was given; raise a ValueError for what cannot be true."""
    name, kind, dtype, row_shape, element, as_bytes, casting, ragged, nullable = parts
    is_said = isinstance(as_bytes, bool) and isinstance(nullable, bool)
    if not isinstance(name, str) or kind not in get_args(Kind) or not is_said:
        raise ValueError(f"{parts} is no column")
    check_sizes(f"the shape of column {name!r}", *row_shape)
    found = None if element is None else dtype_from_json(element)
    dense: Any
    dense, *ragged_shape, mean_bytes = [False, 0] if ragged is None else ragged
    check_sizes(f"the shape of column {name!r}", mean_bytes, *(n for n in ragged_shape if n is not None))
    shape = tuple(row_shape)
    spec = ColumnSpec(
        name,
        kind,
        dtype_from_json(dtype),
        shape,
        found,
        as_bytes,
        casting,
        tuple(ragged_shape),
        mean_bytes,
        dense,
        nullable,
    )
    _check_spec(spec)
    return spec


def _is_width(shape: tuple[int | None, ...]) -> bool:
    return len(shape) in {1, 2} and None not in shape  # steps of a window, and the length of each


def _check_spec(spec: ColumnSpec) -> None:
    """Raise unless a column of this kind can have this dtype and shape."""
    dtype, element = spec.dtype, spec.element
    is_of_kind = dtype.kind in _DTYPE_KINDS[spec.kind] and (dtype.names is not None) == (spec.kind == "struct")
    # Lists of text are several a row: those of a window.
    of_lists = "biufcMVSO" if spec.row_shape else "biufcMV"
    kinds = {"list": of_lists, "ragged": "biufcSO", "category": "biufcSO"}.get(spec.kind, "biufc")
    has_element = (element is not None) == (spec.kind in _HAVE_ELEMENTS) and (element is None or element.kind in kinds)
    has_element = has_element and (spec.kind in {"ragged", "sparse"}) == bool(spec.ragged_shape)
    has_element = has_element and type(spec.dense) is bool and (spec.kind != "sparse" or _is_width(spec.ragged_shape))
    has_shape = not spec.row_shape or spec.kind in {*TENSOR_KINDS, *_SEVERAL_A_ROW}
    held = dtype if element is None else element
    if (
        not (is_of_kind and has_element and has_shape)
        or (spec.as_bytes and spec.kind != "string")
        or (spec.nullable and spec.kind != "list")
        or spec.casting not in get_args(Casting)
        or (spec.casting != "checked" and spec.kind not in TENSOR_KINDS)
        or not held.isnative
        or has_long_double(held)
        or odd_time(held) is not None
    ):
        raise ValueError(
            f"column {spec.name!r}: no values of kind {spec.kind!r} have {dtype}, {spec.row_shape}, {element}"
        )
    np.empty((0, *spec.row_shape), dtype)  # raises a ValueError for a shape that no array has
