"""Facts of files, kept: in memory for the process, and on disk if asked."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import tempfile
import threading
from collections import OrderedDict
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.errors import OptionError
from ray_h5.hdf5.layout import FileIdentity
from ray_h5.planning.facts import ColumnFacts, FileFacts, Scope
from ray_h5.planning.schema import ColumnSpec

logger = logging.getLogger(__name__)

_MAX_FILES = 200_000
_MAX_VALUE_BYTES = 1 << 30

_MAGIC = b"ray_h5ix"
_VERSION = 1
_HEADER = struct.Struct("<8sIQ16s")
"""Magic, version, length of the body, checksum of the body; the body is an Arrow IPC stream."""


class Memory:
    """Facts by file and scope, those used last; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: OrderedDict[tuple[object, ...], FileFacts] = OrderedDict()
        self._bytes = 0

    def get(self, path: str, scope: Scope) -> FileFacts | None:
        with self._lock:
            return self._facts.get(_key(path, scope))

    def put(self, facts: FileFacts, scope: Scope) -> None:
        key = _key(facts.path, scope)
        with self._lock:
            if key in self._facts:
                self._bytes -= _value_bytes(self._facts.pop(key))
            self._facts[key] = facts
            self._bytes += _value_bytes(facts)
            while self._facts and (len(self._facts) > _MAX_FILES or self._bytes > _MAX_VALUE_BYTES):
                self._bytes -= _value_bytes(self._facts.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._facts.clear()
            self._bytes = 0


MEMORY = Memory()
"""That of this process."""


def recall(path: str, scope: Scope, index_dir: str | None) -> FileFacts | None:
    """Return what is known of a file in its present state, if anything."""
    facts = MEMORY.get(path, scope)
    if facts is not None and is_current(facts):
        return facts
    if index_dir is None:
        return None
    facts = load(path, scope, index_dir)
    return facts if facts is not None and is_current(facts) else None


def is_current(facts: FileFacts) -> bool:
    """Whether the file, and those that its columns come from, are as they were."""
    try:
        return all(
            FileIdentity.of(os.stat(path)) == identity
            for path, identity in ((facts.path, facts.identity), *facts.sources)
        )
    except OSError:
        return False  # opening it says what is wrong


def check_index_dir(folder: str) -> str:
    """Make the folder; return its absolute path.

    Raises
    ------
    OptionError
        If nothing can be written there.
    """
    folder = os.path.abspath(os.path.expanduser(folder))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise OptionError(f"index_dir={folder!r}: nothing can be written there: {exc.strerror}") from exc
    return folder


def save(facts: FileFacts, scope: Scope, index_dir: str) -> None:
    """Write the facts of a file to its index file, whole or not at all."""
    body = _to_body(facts, scope)
    header = _HEADER.pack(_MAGIC, _VERSION, len(body), _checksum(body))
    handle, temporary = tempfile.mkstemp(dir=index_dir, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            file.write(body)
        Path(temporary).replace(index_path(facts.path, scope, index_dir))
    except BaseException:
        Path(temporary).unlink()
        raise


def load(path: str, scope: Scope, index_dir: str) -> FileFacts | None:
    """Return what an index file says, or None if there is none that can be trusted."""
    where = index_path(path, scope, index_dir)
    try:
        with open(where, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        _distrust(where, str(exc))
        return None
    try:
        return _from_body(_checked_body(data), path, scope)
    except (pa.ArrowException, ValueError, KeyError, TypeError) as exc:
        _distrust(where, f"{type(exc).__name__}: {exc}")
        return None


def _checked_body(data: bytes) -> memoryview:
    if len(data) < _HEADER.size:
        raise ValueError("it is cut short")
    magic, version, length, checksum = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("it is of another kind or version")
    if length != len(body) or checksum != _checksum(body):
        raise ValueError("its checksum is wrong")
    return body


def index_path(path: str, scope: Scope, index_dir: str) -> str:
    """Return where the index file of a data file lies."""
    name = hashlib.blake2b(json.dumps(_named(path, scope)).encode("utf-8", "surrogateescape"), digest_size=16)
    return os.path.join(index_dir, f"{name.hexdigest()}.h5index")


def _distrust(where: str, why: str) -> None:
    logger.warning("%s: not used, and made anew: %s", where, why)


def _to_body(facts: FileFacts, scope: Scope) -> bytes:
    described = {
        "of": _named(facts.path, scope),
        "identity": astuple(facts.identity),
        "listing": facts.listing,
        "sources": [[path, astuple(identity)] for path, identity in facts.sources],
        "columns": [[_spec_to_json(c.spec), c.num_rows, c.chunk_rows] for c in facts.columns.values()],
        "values": [_spec_to_json(spec) for spec in facts.values],
    }
    schema = pa.schema(
        [(f"{i}", array.type) for i, array in enumerate(facts.values.values())],
        metadata={"ray_h5": json.dumps(described)},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if facts.values:
            writer.write_table(pa.table(list(facts.values.values()), schema=schema))
    return sink.getvalue().to_pybytes()


def _from_body(body: memoryview, path: str, scope: Scope) -> FileFacts:
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    described = json.loads(table.schema.metadata[b"ray_h5"])
    if described["of"] != _named(path, scope):
        raise ValueError(f"it is of {described['of']}")
    columns = [ColumnFacts(_spec_from_json(spec), rows, chunk) for spec, rows, chunk in described["columns"]]
    specs = [_spec_from_json(spec) for spec in described["values"]]
    if table.num_columns != len(specs):
        raise ValueError(f"expected {len(specs)} columns of values, found {table.num_columns}")
    listing = described["listing"]
    facts = FileFacts(
        path,
        FileIdentity(*described["identity"]),
        {column.spec.name: column for column in columns},
        None if listing is None else tuple(listing),
        tuple((source, FileIdentity(*identity)) for source, identity in described["sources"]),
        {spec: _one_array(column) for spec, column in zip(specs, table.columns, strict=True)},
    )
    _check_values(facts)
    return facts


def _check_values(facts: FileFacts) -> None:
    for spec, values in facts.values.items():
        stored = facts.columns.get(spec.name)
        if values.type != spec.value_type or (stored is not None and len(values) != stored.num_rows):
            raise ValueError(f"column {spec.name!r}: {len(values)} values of type {values.type}")


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _named(path: str, scope: Scope) -> list[Any]:
    return [path, scope.group, sorted(scope.allow_external)]


def _key(path: str, scope: Scope) -> tuple[object, ...]:
    return path, replace(scope, threads=1)


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _value_bytes(facts: FileFacts) -> int:
    return sum(array.nbytes for array in facts.values.values())


def _spec_to_json(spec: ColumnSpec) -> list[Any]:
    element = None if spec.element is None else spec.element.str
    return [spec.name, spec.kind, _dtype_to_json(spec.dtype), list(spec.row_shape), element, spec.as_bytes]


def _spec_from_json(parts: list[Any]) -> ColumnSpec:
    name, kind, dtype, row_shape, element, as_bytes = parts
    found = np.dtype(element) if element is not None else None
    return ColumnSpec(name, kind, _dtype_from_json(dtype), tuple(row_shape), found, as_bytes)


def _dtype_to_json(dtype: np.dtype) -> Any:
    if dtype.subdtype is not None:
        element, shape = dtype.subdtype
        return {"element": _dtype_to_json(element), "shape": list(shape)}
    if dtype.names is not None:
        offsets = [dtype.fields[name][1] for name in dtype.names] if dtype.fields else []
        parts = [_dtype_to_json(dtype[name]) for name in dtype.names]
        return {"names": list(dtype.names), "formats": parts, "offsets": offsets, "itemsize": dtype.itemsize}
    return dtype.str


def _dtype_from_json(found: Any) -> np.dtype:
    if isinstance(found, str):
        return np.dtype(found)
    if "element" in found:
        return np.dtype((_dtype_from_json(found["element"]), tuple(found["shape"])))
    parts: Any = {**found, "formats": [_dtype_from_json(each) for each in found["formats"]]}
    return np.dtype(parts)
