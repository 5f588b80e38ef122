"""Each form of a column with each row kind, with windows and without: equal to numpy, h5py, scipy, anndata and xarray.

`ROWS_OF_ROWS` lists what has no meaning. Any other refusal fails the test.
"""

import math
import random
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Files, Grid, Groups, RayH5Error, Shuffle, Windows, between, csr, fields, joined, part, ragged, where
from ray_h5.plan.blocks import Block
from ray_h5.plan.row_source import read_rows
from ray_h5.ray_data.arrow.blocks import schema_of, to_table
from ray_h5.torch_data import H5Dataset
from tests.properties import few

anndata = pytest.importorskip("anndata", reason="anndata is an oracle of this test")
pd = pytest.importorskip("pandas")
xr = pytest.importorskip("xarray", reason="xarray is an oracle of this test")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

# How columns are stored: each function writes a column, and returns its values as numpy has them. --------------


def write_number(group, name, lead, rng):
    values = rng.integers(-99, 99, (*lead, 2)).astype(">i4")
    chunks = tuple(min(2, n) for n in values.shape) if values.size and rng.random() < 0.5 else None
    group.create_dataset(name, data=values, chunks=chunks, compression="gzip" if chunks else None)
    return values.astype("i4")


def write_text(group, name, lead, rng):
    values = np.array([f"é{i}" for i in rng.integers(0, 99, math.prod(lead))], object).reshape(lead)
    group.create_dataset(name, data=values, dtype=h5py.string_dtype())
    return values


def write_compound(group, name, lead, rng):
    values = np.zeros(lead, [("a", "<i4"), ("b", "<f8")])
    values["a"] = rng.integers(0, 99, lead)
    group[name] = values
    return values


def write_field(group, name, lead, rng):
    return _compound(group, name, lead, rng, "<i8")["y"]


def write_field_beside_text(group, name, lead, rng):
    return _compound(group, name, lead, rng, h5py.string_dtype())["y"]


def write_fields(group, name, lead, rng):
    values = _compound(group, name, lead, rng, ">i8")
    return np.stack([values["y"], values["x"]], axis=-1)


def write_mixed_fields(group, name, lead, rng):
    values = _compound(group, name, lead, rng, ">i8")
    return np.stack([values["y"].astype("f8"), values["n"].astype("f8")], axis=-1)


def _compound(group, name, lead, rng, dtype):
    values = np.zeros((*lead, 2), [("x", "<f4"), ("n", dtype), ("y", "<f4"), ("s", "S3")])
    for each in ("x", "y", "n"):
        values[each] = rng.integers(0, 99, values.shape)
    if values.dtype["n"].kind == "O":
        values["n"] = "é"
    chunks = tuple(min(2, n) for n in values.shape) if values.size and rng.random() < 0.5 else None
    group.create_dataset(name, data=values, chunks=chunks, compression="gzip" if chunks else None)
    return values


def write_part(group, name, lead, rng):
    values = rng.integers(-99, 99, (*lead, 4, 5)).astype("i2")
    chunks = tuple(min(2, n) for n in values.shape) if values.size and rng.random() < 0.5 else None
    group.create_dataset(name, data=values, chunks=chunks, compression="gzip" if chunks else None)
    return values[..., [3, 0], 1:4]


def write_part_of_packed(group, name, lead, rng):
    stored = rng.integers(0, 9, (*lead, 4, 5)).astype("i2")
    return _of_xarray(group, name, stored, {"scale_factor": np.float32(0.5), "_FillValue": np.int16(3)})[
        ..., [3, 0], 1:4
    ]


def write_part_of_fields(group, name, lead, rng):
    return write_fields(group, name, lead, rng)[..., [1], :]


def write_part_of_reversed(group, name, lead, rng):
    return write_reversed(group, name, lead, rng)[..., [2, 0], :1]


def write_category(group, name, lead, rng):
    known = [f"c{i}" for i in rng.permutation(4)]  # each group has its own
    codes = rng.integers(-1, 4, math.prod(lead))
    return _written(group, name, lead, pd.Categorical.from_codes(codes, known))


def write_number_category(group, name, lead, rng):
    known = rng.permutation(4) * 10
    return _written(group, name, lead, pd.Categorical.from_codes(rng.integers(-1, 4, math.prod(lead)), known))


def write_nullable(group, name, lead, rng):
    count = math.prod(lead)
    return _written(group, name, lead, pd.arrays.IntegerArray(rng.integers(0, 99, count), rng.random(count) < 0.4))


def _written(group, name, lead, values):
    """Let anndata write values, and read them. It has one axis; of several, parts are written again in their shape."""
    anndata.io.write_elem(group, name, values)
    part = next(each for each in ("codes", "values") if each in group[name])
    found = pd.Series(anndata.io.read_elem(group[name])).astype(object)
    if len(lead) > 1:
        for each in {part, "mask"} & {*group[name]}:
            stored = group[name][each][()]
            del group[name][each]
            group[name][each] = stored.reshape(lead)
    return found.where(found.notna(), None).to_numpy(object).reshape(lead)


def write_packed(group, name, lead, rng):
    stored = rng.integers(0, 9, (*lead, 2)).astype("i2")
    said = {"scale_factor": np.float32(rng.integers(1, 5) / 4), "_FillValue": np.int16(3)}
    return _of_xarray(group, name, stored, said)


def write_time(group, name, lead, rng):
    return _of_xarray(
        group, name, rng.integers(0, 9999, lead), {"units": f"hours since 20{rng.integers(10, 20)}-01-01"}
    )


def _of_xarray(group, name, stored, said):
    group[name] = stored
    group[name].attrs.update(said)
    variable = xr.Variable([f"d{i}" for i in range(stored.ndim)], stored, said)
    return xr.conventions.decode_cf_variable(name, variable).to_numpy()


def write_reversed(group, name, lead, rng):
    values = rng.integers(0, 99, (*lead, 3, 2))
    group[name] = values.T
    return values


def write_joined(group, name, lead, rng):
    """In datasets of several lengths, of which some are empty."""
    values = write_number(group, f"whole {name}", lead, rng)
    for i, some in enumerate(np.split(values, np.sort(rng.integers(0, lead[0] + 1, rng.integers(0, 3))))):
        group.create_dataset(f"{name}_{i}", data=some, chunks=(1, 2) if len(some) and i % 2 else None)
    return values


def write_images(group, name, lead, rng):
    group.create_dataset(name, lead, h5py.vlen_dtype("u1"))
    values = np.empty(lead, object)
    for at in np.ndindex(*lead):
        group[name][at] = values[at] = rng.integers(0, 255, rng.integers(1, 5)).astype("u1")
    return values


def write_ragged(group, name, lead, rng):
    counts = rng.integers(0, 4, lead[0])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    group[name] = content = rng.integers(0, 99, (offsets[-1], 2))
    group[f"{name}_offsets"] = offsets
    values = np.empty(lead[0], object)
    for i in range(lead[0]):
        values[i] = content[offsets[i] : offsets[i + 1]]
    return values


def write_sparse(group, name, lead, rng):
    matrix = sp.random(lead[0], 5, 0.4, format="csr", dtype="f4", rng=rng)
    anndata.io.write_elem(group, name, matrix)
    return matrix.toarray()


WRITERS = {
    "number": write_number,
    "text": write_text,
    "compound": write_compound,
    "field": write_field,
    "field beside text": write_field_beside_text,
    "fields": write_fields,
    "mixed fields": write_mixed_fields,
    "part": write_part,
    "part of packed": write_part_of_packed,
    "part of fields": write_part_of_fields,
    "part of reversed": write_part_of_reversed,
    "category": write_category,
    "number category": write_number_category,
    "nullable": write_nullable,
    "packed": write_packed,
    "time": write_time,
    "reversed": write_reversed,
    "joined": write_joined,
    "images": write_images,
    "ragged": write_ragged,
    "sparse": write_sparse,
}
KINDS = ["axis", "groups", "grid", "files"]

PADS = ["edge", "zero", "drop", ("zero", "edge")]

ONE_AXIS = {"ragged", "sparse", "joined"}
"""Forms whose rows lie along one axis."""

WHOLE = {"groups", "files"}
"""Row kinds of which a row is a whole episode."""

CASTS = {
    "number": "float64",
    "nullable": "float64",
    "number category": "float32",
    "packed": "float64",
    "ragged": "float64",
    "images": "float32",
}

CLASSES = {
    "number": {0: 3, 5: 4, -7: 1, None: -1},
    "text": {"": 7, "é5": 0, "é42": 2, None: -1},
    "category": {"c1": 5, "c3": 0, None: -1},
    "number category": {30: 2, 0: 1, None: -1},
    "nullable": {0: 3, 5: 1, 7: 1, None: -1},
    "images": {0: 2, 17: 1, None: -1},
    "ragged": {0: 3, 5: 1, 77: 0, None: -2},
}
"""Numbers of classes, of all values alike."""

BLANKS = {
    "number": [0, 0],
    "joined": [0, 0],
    "text": "",
    "compound": [0, 0.0],
    "part": [[0] * 3] * 2,
    "part of packed": [[0.0] * 3] * 2,
    "part of fields": [[0.0, 0.0]],
    "part of reversed": [[0]] * 2,
    "field": [0.0, 0.0],
    "field beside text": [0.0, 0.0],
    "fields": [[0.0, 0.0]] * 2,
    "mixed fields": [[0.0, 0.0]] * 2,
    "packed": [0.0, 0.0],
    "reversed": [[0, 0]] * 3,
    "images": [],
    "ragged": [],
    "sparse": [0.0] * 5,
}
"""What a step outside the episode is with pad="zero"; None for the others, whose values may be missing."""

COLUMNS = {
    "joined": joined("c_*", name="c"),
    "ragged": ragged("c", offsets="c_offsets"),
    "sparse": csr("c"),
    "field": "c/y",
    "field beside text": "c/y",
    "fields": fields("c", ["y", "x"]),
    "mixed fields": fields("c", ["y", "n"]),
}

PARTS = {
    "part": ("c", {0: [3, 0], 1: slice(1, 4)}),
    "part of packed": ("c", {0: [3, 0], 1: slice(1, 4)}),
    "part of fields": (fields("c", ["y", "x"]), {0: [1]}),
    "part of reversed": ("c", {0: [2, 0], 1: slice(1)}),
}
"""What is taken of the axes of a step."""

ROWS_OF_ROWS = {"ragged": "rows of rows", "sparse": "rows of rows"}
"""What has no meaning for rows that are whole groups or files. With windows over them, rows are steps."""


def write_file(path, kind, form, rng):
    """Write a file of episodes, and return the values of column ``c`` in each of them."""
    lengths = [int(n) for n in rng.integers(1, 6, rng.integers(1, 4))]
    write = WRITERS[form]
    if kind == "files":
        episodes = []
        for i, length in enumerate(lengths):
            with h5py.File(path.with_name(f"{path.stem}_{i}.h5"), "w") as file:
                t = np.arange(length) + 100 * i
                file["t"] = t
                episodes.append(write(file, "c", (length,), rng))
        return episodes
    with h5py.File(path, "w") as file:
        if kind == "groups":
            groups = [file.create_group(f"g{i}") for i in range(len(lengths))]
            for i, (group, length) in enumerate(zip(groups, lengths, strict=True)):
                group["t"] = np.arange(length) + 100 * i
            return [write(group, "c", (length,), rng) for group, length in zip(groups, lengths, strict=True)]
        if kind == "grid":
            shape = (len(lengths), lengths[0])
            t = np.arange(shape[1]) + 100 * np.arange(shape[0])[:, None]
            file["t"] = t.T if form.endswith("reversed") else t
            if form in ONE_AXIS:  # that of time
                return [write(file, "c", shape[1:], rng)] * shape[0]
            return list(write(file, "c", shape, rng))
        file["t"] = np.concatenate([np.arange(n) + 100 * i for i, n in enumerate(lengths)])
        file["id"] = np.repeat(np.arange(len(lengths)), lengths)
        return np.split(write(file, "c", (sum(lengths),), rng), np.cumsum(lengths)[:-1])


def expected_rows(kind, form, windows, episodes):
    """Return the values of ``t`` and of ``c`` in each row."""
    if kind in WHOLE and windows is None:
        return [([k + 100 * i for k in range(len(each))], plain(each)) for i, each in enumerate(episodes)]
    found = []
    for i, values in enumerate(episodes):
        for t in range(len(values)):
            row = [plain(values[t])] if windows is None else window(plain(list(values)), t, windows, form)
            if row is not None:
                found.append((t + 100 * i, row[0] if windows is None else row))
    return found


def window(values, t, windows, form):
    """Return the values at some offsets from t; None if the window is dropped."""
    row = []
    for offset in windows.columns[0].offsets:
        at = min(max(t + offset, 0), len(values) - 1)
        pad = None if at == t + offset else windows.pad[t + offset > at]
        if pad == "drop":
            return None
        row.append(BLANKS.get(form) if pad == "zero" else values[at])
    return row


def plain(value):
    """Return a value as lists of plain values; text as str, and what is missing as None."""
    if hasattr(value, "detach"):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.ndim:
        value = list(value)
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (np.void, np.ndarray)):
        return plain(value.item())
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else str(value.astype("M8[ns]"))
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None or value != value else value


@pytest.mark.parametrize("has_windows", [False, True])
@pytest.mark.parametrize("form", list(WRITERS))
@pytest.mark.parametrize("kind", KINDS)
@few(1)
@given(seed=st.integers(0, 1 << 20))
def test_every_form_with_every_row_kind(tmp_path_factory, server, kind, form, has_windows, seed):
    choice = random.Random(f"{seed} {kind} {form} {has_windows}").choice  # each case has options of its own
    column = COLUMNS.get(form, "c")
    if form in PARTS:
        of, axes = PARTS[form]
        first = kind in WHOLE and not has_windows  # there, the first axis of a row is time
        column = part(of, {axis + first: at for axis, at in axes.items()})
    named = choice([(), (), ("d",), ("d", "e/f")])  # the columns that are of the dataset
    columns = {"t": "t", **dict.fromkeys(named, column)} if named else ["t", column]
    c = named[0] if named else column if isinstance(column, str) else "c"
    is_cast, is_selected, is_shuffled = (choice([False, True]) for _ in range(3))
    classes = None if is_cast or choice([False, True]) else CLASSES.get(form)
    is_remote = choice([False, False, True])
    folder = Path(server.root) / "bkt" if is_remote else tmp_path_factory.mktemp("composed")
    name = f"{tmp_path_factory.mktemp('n').name}.h5"
    episodes = write_file(folder / name, kind, form, np.random.default_rng(choice(range(1 << 20))))
    windows, expected = None, []
    while not expected:
        if has_windows:
            offsets = [choice(range(-3, 4)) for _ in range(choice([1, 2, 3]))]
            pad = PADS[([*WRITERS].index(form) + KINDS.index(kind) + seed) % len(PADS)]  # each form meets each one
            others = {"axis": {"episode": "id"}, "grid": {}}.get(kind, {"per_step": ["t"]})
            windows = Windows(dict.fromkeys(named or [c], offsets), pad=pad, **others)
        expected = expected_rows(kind, form, windows, episodes)
    of = {"t": (0, 1), "c_*" if form == "joined" else "c": (1,) if form in ONE_AXIS else (0, 1)}
    options = {
        "rows": {"axis": None, "groups": Groups("g*"), "grid": Grid(2, of=of), "files": Files()}[kind],
        "windows": windows,
        "decode_cf": form in {"packed", "part of packed", "time"},
        "axes": "reversed" if form.endswith("reversed") else "stored",
        "dtypes": {c: CASTS[form]} if is_cast and form in CASTS else None,
        "labels": dict.fromkeys(named or [c], classes) if classes else None,
        "storage_options": server.options if is_remote else None,
    }
    predicate = None
    if (
        is_selected
        and (kind not in WHOLE or has_windows)
        and (chosen := [row for row in expected if 1 <= row[0] <= 101])
    ):
        predicate, expected = where(t=between(1, 101)), chosen
    path = f"s3://bkt/{name}" if is_remote else str(folder / name)
    path = path.replace(".h5", "_*.h5") if kind == "files" else path
    refused = ROWS_OF_ROWS.get(form) if windows is None and kind in WHOLE else None
    if refused is None and windows is None and form == "images" and kind in WHOLE:
        refused = "are lists of lists" if kind == "groups" else "rows of rows"
    if refused is not None:
        with pytest.raises(RayH5Error, match=refused):
            H5Dataset(path, columns, predicate, **options)
        return
    if classes:
        expected = [(t, numbered(values, classes)) for t, values in expected]
    dataset = H5Dataset(path, columns, predicate, **options)
    plan = dataset._source.plan
    order = dataset.epoch_order(Shuffle(seed=seed) if is_shuffled else None)
    order = order.selected_indices(np.arange(len(dataset)), 0)
    found = dataset[order]
    assert len(dataset) == len(expected)
    assert sorted(order.tolist()) == list(range(len(expected)))
    for place, row in enumerate(order.tolist()):
        assert (plain(found["t"][place]), plain(found[c][place])) == (expected[row][0], expected[row][1])
        assert all(plain(found[each][place]) == expected[row][1] for each in named)
    table = to_table(plan, Block(read_rows(plan, plan.row_ids(order)), order, 0), ["t", c])
    assert table.schema == schema_of(plan, ["t", c])
    assert table.num_rows == len(expected)
    if form not in {"time", "sparse"}:  # of other types in Python
        assert [plain(value) for value in table[c].to_pylist()] == [expected[row][1] for row in order.tolist()]


def numbered(values, classes):
    """Return lists of values as numbers of classes."""
    if isinstance(values, list):
        return [numbered(each, classes) for each in values]
    return classes.get(values, classes[None])
