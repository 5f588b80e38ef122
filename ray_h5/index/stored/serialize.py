"""Facts of a file <-> bytes: an Arrow IPC stream with the values. Its metadata describes the columns in JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import pyarrow as pa

from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import ColumnSpec
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts
from ray_h5.index.facts.source_files import Origin
from ray_h5.index.stored.values_as_json import Reader, Writer, dtype_from_json, dtype_to_json
from ray_h5.manifest.layout import SourceStates
from ray_h5.manifest.manifest import Manifest
from ray_h5.storage.byte_source import FileIdentity, Identity, ObjectIdentity

FOREIGN = (
    pa.ArrowException, OSError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError,
)  # fmt: skip
"""The errors of Arrow, JSON and numpy for bytes that they cannot parse."""


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
        dict(zip(named, arrays[len(specs) : known], strict=True)),
        manifest,
    )


def _identity_from_json(state: list[Any]) -> Identity:
    """Return the state of a file; that of a remote one begins with its ETag."""
    return ObjectIdentity(*state) if isinstance(state[0], str) else FileIdentity(*state)


def _source_from_json(path: str, state: list[Any] | None) -> tuple[str, Identity | None]:
    return path, None if state is None else _identity_from_json(state)


def _chosen(sources: Sequence[tuple[str, Identity | None]], numbers: list[Any]) -> SourceStates:
    return tuple(sources[number] for number in numbers)


def column_from_json(spec: ColumnSpec, num_rows: int, chunk_rows: int, enum: list[Any]) -> ColumnFacts:
    """Return the column that was described."""
    return ColumnFacts(spec, num_rows, chunk_rows, tuple((name, value) for name, value in enum))


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
    """Return the spec that `spec_to_json` was given."""
    name, kind, dtype, row_shape, element, as_bytes, casting, ragged, nullable = parts
    dense: Any
    dense, *ragged_shape, mean_bytes = [False, 0] if ragged is None else ragged
    return ColumnSpec(
        name,
        kind,
        dtype_from_json(dtype),
        tuple(row_shape),
        None if element is None else dtype_from_json(element),
        as_bytes,
        casting,
        tuple(ragged_shape),
        mean_bytes,
        dense,
        nullable,
    )
