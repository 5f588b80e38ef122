"""Files for the tests of row kinds, and what h5py reads from them."""

from __future__ import annotations

import h5py
import numpy as np
from hypothesis import strategies as st

from ray_h5.rows.row_kind_options import RowKind
from ray_h5.rows.row_view import RowView
from ray_h5.rows.windows_option import Windows
from ray_h5.scope import Scope
from ray_h5.source import Source

ENUM = h5py.enum_dtype({"left": 0, "right": 1, "up": 5}, basetype="i2")
TEXT = h5py.string_dtype()
COMPOUND = np.dtype([("a", "<i4"), ("b", ">f8")])

NUMBERS = [
    "<i1", ">u2", "<i4", ">i8", "<u8", "<f2", ">f4", "<f8", "?", "<c8", ">c16", ENUM, np.dtype(("<f4", (3,))),
]  # fmt: skip
TEXTS = [TEXT, np.dtype("S5")]

DTYPES = [np.dtype(each) for each in NUMBERS] + TEXTS + [COMPOUND]

PIPELINES = [
    {},
    {"compression": "gzip"},
    {"compression": "lzf"},
    {"compression": "gzip", "shuffle": True},
    {"shuffle": True, "fletcher32": True},
]


def open_rows(path, rows: RowKind | None = None, windows: Windows | None = None, group: str = "/") -> RowView:
    """Open a file with a row kind."""
    return Scope.of(Source(path, group=group, rows=rows, windows=windows)).open(str(path))


def values_of(dtype, shape, seed: int) -> np.ndarray:
    """Return an array of values of a type."""
    rng = np.random.default_rng(seed)
    if h5py.check_string_dtype(np.dtype(dtype)) is not None:
        texts = [f"t{i}é"[: i % 4] for i in rng.integers(0, 999, int(np.prod(shape, dtype=int)))]
        made = np.array([*(text.encode() for text in texts), None], object)[:-1]
        return made.reshape(shape).astype("S5") if np.dtype(dtype).kind == "S" else made.reshape(shape)
    if np.dtype(dtype).names:
        made = np.zeros(shape, dtype)
        made["a"], made["b"] = rng.integers(0, 99, shape), rng.random(shape)
        return made
    base, extra = np.dtype(dtype).subdtype or (np.dtype(dtype), ())
    if h5py.check_enum_dtype(base):
        return rng.choice([0, 1, 5], shape).astype("i2")
    if base.kind == "b":
        return rng.random(shape) < 0.5
    if base.kind == "c":
        return (rng.random((*shape, *extra)) + 1j * rng.random((*shape, *extra))).astype(base)
    return rng.integers(0, 100, (*shape, *extra)).astype(base)


@st.composite
def storages(draw, row_shape: tuple[int, ...], lead: int = 1):
    """Draw the options of a dataset: how it is stored, and which part of it is written."""
    how = draw(st.sampled_from(["contiguous", "compact", "chunked", "chunked", "chunked"]))
    written = draw(st.sampled_from(["all", "all", "none", "part"]))
    options: dict = {"written": written, "how": how, "fill": draw(st.booleans())}
    if how == "chunked":
        options["chunks"] = tuple(draw(st.integers(1, 4)) for _ in range(lead)) + tuple(
            draw(st.integers(1, max(1, n))) for n in row_shape
        )
        options["growing"] = draw(st.booleans())
        options["pipeline"] = draw(st.sampled_from(PIPELINES))
    return options


def make_dataset(parent: h5py.Group, name: str, dtype, shape, options, seed: int) -> np.ndarray:
    """Write a dataset, and return what h5py reads of it."""
    dtype = np.dtype(dtype)
    values = values_of(dtype, shape, seed)
    if dtype.hasobject and options["how"] == "chunked":
        options = {**options, "pipeline": {}}
    plain = dtype.subdtype is None and h5py.check_string_dtype(dtype) is None and dtype.names is None
    fill = np.array(7).astype(dtype) if options["fill"] and plain and h5py.check_enum_dtype(dtype) is None else None
    create: dict = {} if fill is None else {"fillvalue": fill}
    if options["how"] == "chunked":
        create |= {"chunks": options["chunks"], **options["pipeline"]}
        create |= {"maxshape": (None,) * len(shape)} if options["growing"] else {}
        dataset = parent.create_dataset(name, shape, dtype, **create)
    elif options["how"] == "compact" and int(np.prod(shape)) * 24 < 60_000:
        *above, name = name.split("/")
        parent = parent.require_group("/".join(above)) if above else parent
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        if fill is not None:
            plist.set_fill_value(fill.reshape(1))
        type_id = h5py.h5t.py_create(dtype, logical=True)
        made = h5py.h5d.create(parent.id, name.encode(), type_id, h5py.h5s.create_simple(shape), plist)
        dataset = h5py.Dataset(made)
    else:
        dataset = parent.create_dataset(name, shape, dtype, **create)
    if options["written"] == "all" and values.size:
        dataset[...] = values
    elif options["written"] == "part" and values.size and len(shape):
        dataset[: (shape[0] + 1) // 2] = values[: (shape[0] + 1) // 2]
    found = dataset[()]
    return native(np.asarray(found) if dtype.subdtype is None else found)


def native(values: np.ndarray) -> np.ndarray:
    """Return values in native byte order, without h5py's notes in the dtype."""
    if values.dtype.hasobject:
        return values
    dtype = values.dtype.newbyteorder("=")
    return values.astype(np.dtype(dtype.str) if dtype.names is None else dtype)


def assert_value(found, expected: np.ndarray, where: str = "") -> None:
    """Assert that a row is equal to what h5py read, and of the same dtype and shape."""
    found = np.asarray(found)
    expected = np.asarray(expected)
    assert found.shape == expected.shape, (where, found.shape, expected.shape)
    if expected.dtype.hasobject:
        assert found.tolist() == expected.tolist(), where
        return
    assert found.dtype == expected.dtype, (where, found.dtype, expected.dtype)
    if expected.dtype.names:
        assert found.tolist() == expected.tolist(), where
    else:
        assert found.tobytes() == expected.tobytes(), where
