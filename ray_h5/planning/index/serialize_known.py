"""What is known of columns of remote files <-> JSON, for index files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias, get_args

import numpy as np

from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.attributes import ColumnNotes
from ray_h5.hdf5.remote.elsewhere import Elsewhere, How, OtherColumn, RawPart
from ray_h5.hdf5.remote.known_columns import KnownColumn, PackedIndex
from ray_h5.hdf5.remote.mappings import Along, Selection
from ray_h5.planning.index.serialize_rows import FromJson, ToJson, layout_from_json, layout_to_json
from ray_h5.storage.byte_source import Identity

States: TypeAlias = Mapping[str, Identity | None]

_MAX_NESTED = 32
"""As many virtual datasets of virtual datasets are read."""


def known_to_json(known: KnownColumn, dtype_to_json: ToJson) -> dict[str, Any]:
    """Return what is known of a column of a remote file; its packed chunk index is stored apart."""
    layout = known.layout
    found = {**layout_to_json(layout, dtype_to_json), "name": layout.name, "offset": layout.offset, "path": ""}
    notes = [dict(known.notes.packing), dict(known.notes.enum), known.notes.bare_dimension]
    chunks = None if known.index is None else known.index.count
    elsewhere = None if known.elsewhere is None else _elsewhere_to_json(known.elsewhere, dtype_to_json)
    sources = [path for path, _ in layout.sources]
    return {**found, "chunks": chunks, "notes": notes, "sources": sources, "elsewhere": elsewhere}


def known_from_json(
    found: dict[str, Any], packed: bytes, from_json: FromJson, path: str, states: States, depth: int = 0
) -> KnownColumn:
    """Return what `known_to_json` was given.

    Parameters
    ----------
    found, packed
        What was stored.
    from_json : callable
        Returns a dtype.
    path : str
        The file that has the column.
    states : mapping of str to Identity or None
        The states of that file, and of those that its columns come from.
    depth : int
        How many columns lead to this one.

    Raises
    ------
    ValueError
        If it cannot be of these files.
    """
    sources = tuple((each, states[each]) for each in found["sources"])
    layout = replace(layout_from_json(str(found["name"]), found, from_json), offset=found["offset"], sources=sources)
    numbers = [each for each in (found["offset"], found["chunks"]) if each is not None]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers):
        raise ValueError(f"column {layout.name!r}: {numbers} has what is no number")
    if depth > _MAX_NESTED or not layout.shape:
        raise ValueError(f"column {layout.name!r}: it has no rows, or leads to itself")
    notes = _notes_from_json(layout.name, *found["notes"])
    if (found["elsewhere"] is not None) != bool(sources):
        raise ValueError(f"column {layout.name!r}: values in other files that it does not lead to")
    if sources:
        elsewhere = _elsewhere_from_json(found["elsewhere"], layout, from_json, states, depth)
        return KnownColumn(layout, None, notes, elsewhere)
    file_bytes = _size(states, path)
    if not layout.direct or layout.storage not in {"contiguous", "chunked"}:
        raise ValueError(f"column {layout.name!r} is not read without libhdf5")
    ends = 0 if layout.offset is None else layout.offset + layout.num_rows * layout.row_bytes
    if layout.storage == "contiguous" and ends > file_bytes:
        raise ValueError(f"column {layout.name!r}: values past the end of the file")
    if (layout.storage == "chunked") != (found["chunks"] is not None) or (
        layout.storage == "chunked" and (not layout.chunk_shape or not all(layout.chunk_shape))
    ):
        raise ValueError(f"column {layout.name!r}: {layout.storage}, and chunks of {layout.chunk_shape}")
    index = None if found["chunks"] is None else PackedIndex(found["chunks"], packed)
    if index is not None:
        index.unpacked(layout, file_bytes)
    return KnownColumn(layout, index, notes)


def _notes_from_json(name: str, packing: dict[str, Any], enum: dict[str, Any], is_bare: Any) -> ColumnNotes:
    texts = [*packing, *packing.values(), *enum]
    if not all(isinstance(each, str) for each in texts) or not all(isinstance(each, int) for each in enum.values()):
        raise ValueError(f"column {name!r}: {texts} are no notes")
    return ColumnNotes(packing, enum, bool(is_bare))


def _elsewhere_to_json(elsewhere: Elsewhere, dtype_to_json: ToJson) -> dict[str, Any]:
    def column(each: OtherColumn) -> list[Any]:
        if each.known is None:
            return [each.path, each.name, None, ""]
        packed = b"" if each.known.index is None else each.known.index.data
        return [each.path, each.name, known_to_json(each.known, dtype_to_json), base64.b64encode(packed).decode()]

    return {
        "how": elsewhere.how,
        "columns": [column(each) for each in elsewhere.columns],
        "mappings": [[number, _indices(here), _indices(there)] for number, here, there in elsewhere.mappings],
        "raw": [[each.path, each.offset, each.nbytes] for each in elsewhere.raw],
        "fill": None if elsewhere.fill is None else elsewhere.fill.tobytes().hex(),
    }


def _indices(selection: Selection | None) -> list[Any] | None:
    if selection is None:
        return None
    return [[list(a.listed)] if a.listed else [a.first, a.stride, a.count, a.block] for a in selection]


def _elsewhere_from_json(
    found: dict[str, Any], layout: ColumnLayout, from_json: FromJson, states: States, depth: int
) -> Elsewhere:
    def column(path: Any, name: Any, known: Any, packed: str) -> OtherColumn:
        if path not in states or not isinstance(name, str):
            raise ValueError(f"column {layout.name!r}: {path!r}, {name!r} is no column that it leads to")
        if known is None:
            return OtherColumn(path, name)
        data = base64.b64decode(packed, validate=True)
        return OtherColumn(path, name, known_from_json(known, data, from_json, path, states, depth + 1))

    columns = tuple(column(*each) for each in found["columns"])
    mappings = tuple(_mapping_from_json(layout.name, len(columns), *each) for each in found["mappings"])
    raw = tuple(_raw_from_json(layout.name, states, *each) for each in found["raw"])
    fill = None
    if found["fill"] is not None:
        fill = np.frombuffer(bytes.fromhex(found["fill"]), layout.stored_dtype, 1).reshape(()).copy()
    how = found["how"]
    if how not in get_args(How) or (how == "link" and len(columns) != 1):
        raise ValueError(f"column {layout.name!r}: {how!r} with {len(columns)} columns")
    if how == "external" and (
        fill is None
        or layout.stored_dtype.hasobject
        or sum(each.nbytes for each in raw) != layout.num_rows * layout.row_bytes
    ):
        raise ValueError(f"column {layout.name!r}: raw files of another size")
    return Elsewhere(how, columns, mappings, raw, fill)


def _mapping_from_json(
    name: str, count: int, number: Any, here: Any, there: Any
) -> tuple[int, Selection, Selection | None]:
    _check(name, [number])
    _check(name, [number], number < count)
    selected = _selection(name, here)
    if not selected:
        raise ValueError(f"column {name!r}: a mapping of nothing")
    return number, selected, None if there is None else _selection(name, there)


def _selection(name: str, parts: list[Any]) -> Selection:
    found = []
    for part in parts:
        if len(part) == 1:
            (listed,) = part
            _check(name, listed, len(listed) > 0)
            _check(name, listed, all(np.diff(listed) > 0))
            found.append(Along(0, 0, 0, 0, tuple(listed)))
        else:
            first, stride, times, block = part
            _check(name, part)
            _check(name, part, stride >= block > 0)
            found.append(Along(first, stride, times, block))
    return tuple(found)


def _raw_from_json(name: str, states: States, path: Any, offset: Any, nbytes: Any) -> RawPart:
    _check(name, [offset, nbytes])
    _check(name, [offset, nbytes], offset + nbytes <= _size(states, path))
    return RawPart(path, offset, nbytes)


def _size(states: States, path: Any) -> int:
    if (state := states[path]) is None:
        raise ValueError(f"{path} does not exist")
    return state.size


def _check(name: str, numbers: list[Any], holds: bool = True) -> None:
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in numbers) or not holds:
        raise ValueError(f"column {name!r}: {numbers} is no part of a file")
