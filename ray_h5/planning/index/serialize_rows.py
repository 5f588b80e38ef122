"""What is known of the rows of a file <-> JSON and Arrow arrays, for index files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from ray_h5.hdf5.layout import ColumnLayout, FilterPipeline, FilterStep, Kind, Storage
from ray_h5.hdf5.segments import MISSING, NOT_WRITTEN, GroupTable, Paths, Segments, Texts
from ray_h5.planning.rows.bounds import Bounds, ChunkedBy
from ray_h5.planning.rows.space import RowTable

ToJson = Callable[[np.dtype], Any]
FromJson = Callable[[Any], np.dtype]


def table_to_parts(table: RowTable | None, dtype_to_json: ToJson) -> tuple[Any, list[pa.Array]]:
    """Return a description, and the arrays that belong to it."""
    if table is None:
        return None, []
    arrays: list[pa.Array] = []

    def add(array: pa.Array) -> int:
        arrays.append(array)
        return len(arrays) - 1

    described: dict[str, Any] = {"num_steps": table.num_steps}
    if table.bounds or table.chunked_by:
        described["bounds"] = [
            [key, add(pa.array(b.starts)), add(pa.array(b.stops))] for key, b in table.bounds.items()
        ]
        described["chunked_by"] = [[name, each.key, each.size] for name, each in table.chunked_by.items()]
    if table.episode_lengths is not None:
        described["episode_lengths"] = add(pa.array(table.episode_lengths, pa.int64()))
    if table.groups is not None:
        groups = table.groups
        described["names"] = add(_from_texts(groups.names.groups))
        described["segments"] = [_segments_to_json(each, add, dtype_to_json) for each in groups.columns.values()]
        described["attributes"] = {
            name: add(_from_texts(values) if isinstance(values, Texts) else pa.array(values))
            for name, values in groups.attributes.items()
        }
    return {**described, "arrays": len(arrays)}, arrays


def table_from_parts(
    described: Any, arrays: Sequence[pa.Array], dtype_from_json: FromJson, file_bytes: int
) -> RowTable | None:
    """Return the table that `table_to_parts` was given.

    Raises
    ------
    ValueError
        If it cannot be true.
    """
    if described is None:
        if arrays:
            raise ValueError(f"expected no more values, found {len(arrays)}")
        return None
    if described["arrays"] != len(arrays):
        raise ValueError(f"expected {described['arrays']} arrays, found {len(arrays)}")
    lengths = described.get("episode_lengths")
    found = None if lengths is None else arrays[lengths].to_numpy().astype(np.int64)
    if found is not None and (found < 0).any():
        raise ValueError("an episode with a negative length")
    groups = None
    if "names" in described:
        names = _to_texts(arrays[described["names"]])
        names.data.decode()  # raises ValueError unless it is UTF-8
        columns = [
            _segments_from_json(each, names, arrays, dtype_from_json, file_bytes) for each in described["segments"]
        ]
        attributes = {str(name): _values(arrays[at], len(names)) for name, at in described["attributes"].items()}
        groups = GroupTable(Paths(names), {each.name: each for each in columns}, attributes)
    steps = described["num_steps"]
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"{steps!r} is no number of steps")
    bounds = {str(key): _bounds(arrays[first], arrays[last]) for key, first, last in described.get("bounds", [])}
    return RowTable(groups, found, steps, bounds, dict(map(_chunked_by, described.get("chunked_by", []))))


def _bounds(starts: pa.Array, stops: pa.Array) -> Bounds:
    if starts.type != pa.int64() or stops.type != pa.int64() or len(starts) != len(stops):
        raise ValueError(f"bounds of {len(starts)} and {len(stops)} rows")
    found = Bounds(starts.to_numpy(), stops.to_numpy())
    if starts.null_count or stops.null_count or (found.starts < 0).any() or (found.stops < found.starts).any():
        raise ValueError("a row that ends before it begins")
    return found


def _chunked_by(parts: list[Any]) -> tuple[str, ChunkedBy]:
    name, key, size = parts
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{size!r} is no number of values")
    return str(name), ChunkedBy(str(key), size)


def _from_texts(texts: Texts) -> pa.Array:
    """Return the same bytes as an Arrow array."""
    offsets = np.concatenate([np.zeros(1, np.int64), texts.ends])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts.data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(texts), buffers)


def _to_texts(array: pa.Array) -> Texts:
    """Return the bytes of an Arrow array."""
    if not pa.types.is_large_binary(array.type) or array.null_count:
        raise ValueError(f"expected texts, found {array.type}")
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    if not len(array) or data is None:
        return Texts(b"", np.zeros(len(array), np.int64))
    if ends[0] < 0 or (ends[1:] < ends[:-1]).any() or ends[-1] > data.size:
        raise ValueError("texts past the end of their bytes")
    return Texts(data.to_pybytes()[int(ends[0]) : int(ends[-1])], ends[1:] - ends[0])


def _values(array: pa.Array, count: int) -> np.ndarray | Texts:
    if len(array) != count or array.null_count:
        raise ValueError(f"expected {count} values of an attribute, found {len(array)}")
    if pa.types.is_large_binary(array.type):
        return _to_texts(array)
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values


def _segments_to_json(segments: Segments, add: Callable[[pa.Array], int], dtype_to_json: ToJson) -> dict[str, Any]:
    return {
        "name": segments.name,
        "below": segments.paths.below,
        "single": segments.single,
        "axes": segments.shapes.shape[1],
        "class_of": add(pa.array(segments.class_of, pa.int32())),
        "shapes": add(pa.array(segments.shapes.reshape(-1), pa.int64())),
        "offsets": add(pa.array(segments.offsets, pa.int64())),
        "layouts": [layout_to_json(each, dtype_to_json) for each in segments.layouts],
    }


def _segments_from_json(
    described: dict[str, Any], names: Texts, arrays: Sequence[pa.Array], from_json: FromJson, file_bytes: int
) -> Segments:
    name, axes = str(described["name"]), int(described["axes"])
    class_of, shapes, offsets = (arrays[described[part]].to_numpy() for part in ("class_of", "shapes", "offsets"))
    layouts = tuple(layout_from_json(name, each, from_json) for each in described["layouts"])
    count = len(names)
    if len(class_of) != count or len(shapes) != count * axes or len(offsets) != count or not layouts:
        raise ValueError(f"column {name!r}: expected {count} segments, found {len(class_of)}")
    if ((class_of < MISSING) | (class_of >= len(layouts))).any() or (shapes < 0).any():
        raise ValueError(f"column {name!r}: a segment of no class, or of a negative shape")
    shapes = shapes.reshape(count, axes)
    items = np.array([layout.stored_dtype.itemsize for layout in layouts], np.float64)[class_of]
    ends = offsets + shapes.astype(np.float64).prod(axis=1) * items
    if ((offsets < NOT_WRITTEN) | ((offsets != NOT_WRITTEN) & (ends > file_bytes))).any():
        raise ValueError(f"column {name!r}: a segment past the end of the file")
    for layout, at in zip(layouts, range(len(layouts)), strict=True):
        if axes and (shapes[class_of == at, 1:] != layout.row_shape).any() and not described["single"]:
            raise ValueError(f"column {name!r}: a segment of another shape than its class")
    return Segments(
        name, Paths(names, str(described["below"])), layouts, class_of, shapes, offsets, bool(described["single"])
    )


def layout_to_json(layout: ColumnLayout, dtype_to_json: ToJson) -> dict[str, Any]:
    """Return a layout, without its name, offset and sources."""
    return {
        "kind": layout.kind,
        "shape": list(layout.shape),
        "dtype": dtype_to_json(layout.stored_dtype),
        "storage": layout.storage,
        "chunk_shape": None if layout.chunk_shape is None else list(layout.chunk_shape),
        "pipeline": [[step.id, step.name, list(step.client_data)] for step in layout.pipeline.steps],
        "fill": None if layout.fill is None else layout.fill.tobytes().hex(),
        "element": None if layout.element is None else dtype_to_json(layout.element),
        "enum": [list(each) for each in layout.enum],
        "item_bytes": layout.item_bytes,
        "lists_its_chunks": layout.lists_its_chunks,
        "direct": layout.direct,
        "odd_type": layout.odd_type,
        "path": layout.path,
    }


def layout_from_json(name: str, found: dict[str, Any], from_json: FromJson) -> ColumnLayout:
    """Return what `layout_to_json` was given; raise a ValueError if it cannot be a layout."""
    dtype = from_json(found["dtype"])
    if found["kind"] not in get_args(Kind) or found["storage"] not in get_args(Storage):
        raise ValueError(f"column {name!r}: {found['kind']!r}, {found['storage']!r} are no kind and storage")
    integers = [*found["shape"], *(found["chunk_shape"] or []), found["item_bytes"], *_pipeline_numbers(found)]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in integers):
        raise ValueError(f"column {name!r}: {integers} has what is no size")
    fill = None
    if found["fill"] is not None:
        fill = np.frombuffer(bytes.fromhex(found["fill"]), dtype, 1).reshape(()).copy()
    steps = tuple(FilterStep(number, str(step), tuple(data)) for number, step, data in found["pipeline"])
    return ColumnLayout(
        name,
        found["kind"],
        tuple(found["shape"]),
        dtype,
        found["storage"],
        None if found["chunk_shape"] is None else tuple(found["chunk_shape"]),
        FilterPipeline(steps),
        fill=fill,
        element=None if found["element"] is None else from_json(found["element"]),
        enum=tuple((str(word), int(value)) for word, value in found["enum"]),
        item_bytes=found["item_bytes"],
        lists_its_chunks=bool(found["lists_its_chunks"]),
        direct=bool(found["direct"]),
        odd_type=str(found["odd_type"]),
        path=str(found["path"]),
    )


def _pipeline_numbers(found: dict[str, Any]) -> Iterator[Any]:
    for number, _, data in found["pipeline"]:
        yield number
        yield from data
