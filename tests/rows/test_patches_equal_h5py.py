"""Blocks of arrays as rows: each is what h5py reads of its slices."""

import math

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset

from ray_h5 import Files, H5Dataset, Patches, RayH5Error, Shuffle, Windows, between, fields, loader, part, ragged, where
from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.files import opening
from ray_h5.index.file_options import FileOptions
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.rows.kinds import patch_positions
from ray_h5.rows.patches_option import Patches as Kind
from tests.kit.files import save
from tests.properties import few
from tests.rows.kit import PIPELINES, open_rows


def assert_block(found, expected):
    """Assert that a block has these values, and zeros past the end of the array."""
    inside = tuple(map(slice, expected.shape))
    assert found[inside].tobytes() == expected.astype(found.dtype).tobytes()
    rest = found.copy()
    rest[inside] = 0
    assert not rest.any()


@pytest.fixture
def scans(tmp_path):
    """Write files of different shapes; return the folder, and their arrays by name."""
    rng = np.random.default_rng(0)
    arrays = {}
    for i, shape in enumerate([(16, 20, 24), (20, 16, 16), (30, 18, 21)]):
        raw = rng.random((2, *shape), dtype="f4")
        label = np.zeros(shape, "u1")
        label[3:5, 3:5, 3:5] = i  # none in the first file
        with h5py.File(tmp_path / f"scan_{i}.h5", "w") as file:
            file.create_dataset("raw", data=raw, chunks=(1, 8, 8, 8), compression="gzip")
            file.create_dataset("label", data=label, chunks=(8, 8, 8), compression="gzip")
            file["age"] = 30 + i
        arrays[f"scan_{i}"] = raw, label
    return tmp_path, arrays


SHAPES = {"raw": (8, 8, 8), "label": (8, 8, 8)}


def check(row, arrays):
    """Assert that a row is the block at its corner."""
    raw, label = arrays[row["scan"]]
    cut = tuple(slice(c, c + 8) for c in row["corner"].tolist())
    np.testing.assert_array_equal(row["raw"], raw[(slice(None), *cut)])
    np.testing.assert_array_equal(row["label"], label[cut])
    return row["scan"], *row["corner"].tolist()


def test_a_grid_covers_files_of_different_shapes(scans):
    folder, arrays = scans
    dataset = H5Dataset(folder, rows=Patches(SHAPES, key="scan"))
    seen = [check(row, arrays) for row in dataset]
    assert len(set(seen)) == len(dataset) == 2 * 3 * 3 + 3 * 2 * 2 + 4 * 3 * 3
    old = H5Dataset(folder, None, where(age=between(31, None)), rows=Patches(SHAPES, key="scan"))
    assert {row["scan"] for row in old} == {"scan_1", "scan_2"}


def test_each_chunk_is_decoded_once_and_aligned_blocks_decode_what_they_use(scans):
    folder, _ = scans
    with open_rows(folder / "scan_0.h5", Patches({"raw": (8, 8, 8)}, axes={"raw": (1, 2, 3)}, stride=4)) as reader:
        reader.read(["raw"])
        assert reader.stats.chunks_decoded == 2 * 2 * 3 * 3
    aligned = Patches({"raw": (8, 8, 8)}, axes={"raw": (1, 2, 3)}, per_file=5, align=True)
    with open_rows(folder / "scan_0.h5", aligned) as reader:
        found = reader.read(["raw", "corner"])
        assert not (found["corner"] % 8).any()
        assert reader.stats.chunks_decoded == 2 * len({tuple(each) for each in found["corner"].tolist()})


def test_draws_are_of_epochs_and_the_same_everywhere(scans):
    folder, arrays = scans
    options = {"rows": Patches(SHAPES, per_file=6, seed=3, key="scan")}
    dataset = H5Dataset(folder, **options)
    assert len(dataset) == 18
    first = [check(row, arrays) for row in dataset]
    assert len(set(first)) > 15
    batches = loader(folder, 4, shuffle=Shuffle(seed=1), **options)
    epochs = [[seen for batch in batches for seen in _rows(batch, arrays)] for _ in range(3)]
    assert sorted(epochs[0]) == sorted(first)  # the first draw
    assert not {*epochs[0]} & {*epochs[1]} & {*epochs[2]}
    # Ray's tasks read the same rows; so does a loader that resumes, and each rank its part.
    plan = make_plan_of(dataset, Shuffle(seed=1))
    block = read_block(plan, start_of(plan, 2), 0)
    assert [tuple(each) for each in block.rows.arrays["corner"].tolist()] == [each[1:] for each in epochs[2]]
    resumed = loader(folder, 4, shuffle=Shuffle(seed=1), **options)
    resumed.set_epoch(2)
    some = iter(resumed)
    done = [seen for _ in range(2) for seen in _rows(next(some), arrays)]
    state = resumed.state_dict()
    other = loader(folder, 4, shuffle=Shuffle(seed=1), **options)
    other.load_state_dict(state)
    assert done + [seen for batch in other for seen in _rows(batch, arrays)] == epochs[2]
    ranks = [loader(folder, 2, shuffle=Shuffle(seed=1), rank=r, world_size=2, **options) for r in range(2)]
    for each in ranks:
        each.set_epoch(1)
    assert {seen for each in ranks for batch in each for seen in _rows(batch, arrays)} == {*epochs[1]}


def make_plan_of(dataset, shuffle):
    """Return the plan that Ray makes of the same files."""
    from ray_h5.plan.read_plan import make_plan

    return make_plan(dataset._index, list(dataset._index.columns.values()), None, shuffle, block_rows=1000)


def _rows(batch, arrays):
    return [check({name: values[i] for name, values in batch.items()}, arrays) for i in range(len(batch["scan"]))]


def test_rows_that_come_twice_are_drawn_twice(scans):
    folder, arrays = scans
    options = {"rows": Patches(SHAPES, per_file=1, key="scan")}
    batches = loader(folder, 4, shuffle=Shuffle(seed=1, rows_per_epoch=20), **options)
    seen = [each for batch in batches for each in _rows(batch, arrays)]
    assert len(set(seen)) > 15


def test_blocks_that_hold_a_class(scans, tmp_path_factory, monkeypatch):
    folder, arrays = scans
    index_dir = tmp_path_factory.mktemp("index")
    grid = Patches(SHAPES, stride=4, where_any=("label", [1, 2]), key="scan")
    dataset = H5Dataset(folder, rows=grid, index_dir=index_dir)
    every = H5Dataset(folder, rows=Patches(SHAPES, stride=4, key="scan"))
    expected = [check(row, arrays) for row in every if row["label"].any()]
    assert [check(row, arrays) for row in dataset] == expected
    monkeypatch.setattr(opening, "_opened", lambda *_: pytest.fail("a file was opened"))
    assert len(H5Dataset(folder, rows=grid, index_dir=index_dir)) == len(expected)
    monkeypatch.undo()
    drawn = H5Dataset(folder, rows=Patches(SHAPES, per_file=20, where_any=("label", [1, 2]), key="scan"))
    assert len(drawn) == 40  # the first file has no class
    for row in drawn:
        assert row["label"].any()
        check(row, arrays)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (1, 2, 3, 0)])
@pytest.mark.parametrize(
    "options", [{"stride": 3}, {"stride": (5, 2, 1)}, {"pad": "zero"}, {"stride": 7, "pad": "zero"}]
)
def test_a_class_is_looked_for_part_by_part(tmp_path, monkeypatch, order, options):
    """The label has an axis that blocks do not cut: first, second or last. It is read a few rows at once."""
    monkeypatch.setattr(patch_positions, "_PART_VALUES", 300)
    rng = np.random.default_rng(0)
    label = (rng.random((2, 23, 9, 11)) < 0.003).astype("u1")
    axes = tuple(order.index(axis) for axis in (1, 2, 3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("label", data=label.transpose(order), chunks=(2, 2, 3, 2))
        file["raw"] = rng.random(label.shape[1:])
    shapes, block = {"raw": (4, 3, 5), "label": (4, 3, 5)}, (4, 3, 5)
    kinds = [Patches(shapes, axes={"label": axes}, **options, **more) for more in ({}, {"where_any": ("label", [1])})]
    every, chosen = (H5Dataset(tmp_path, ["corner"], rows=kind)[:]["corner"].tolist() for kind in kinds)
    cuts = [tuple(slice(c, c + n) for c, n in zip(corner, block, strict=True)) for corner in every]
    assert chosen == [corner for corner, cut in zip(every, cuts, strict=True) if label.max(axis=0)[cut].any()]
    assert 0 < len(chosen) < len(every)


def test_what_is_refused_says_what_to_do(scans):
    folder, _ = scans
    for arguments, said in [
        (({},), "shape of a block"),
        (({"raw": (8, 0)},), "integers of 1 or more"),
        (({"raw": (8, 8), "label": (4, 4)},), "one shape"),
    ]:
        with pytest.raises(OptionError, match=said):
            Patches(*arguments)
    for options, said in [
        ({"stride": 1, "per_file": 1}, "on a grid, or drawn"),
        ({"stride": (1, 2)}, "expected 3 integers"),
        ({"align": True}, "per_file="),
        ({"where_any": "label"}, "an array and its classes"),
        ({"axes": {"other": (0, 1, 2)}}, "expected axes of raw, label"),
        ({"pad": "edge"}, "'inside' or 'zero'"),
    ]:
        with pytest.raises(OptionError, match=said):
            Patches(SHAPES, **options)
    with pytest.raises(OptionError, match=r"axes=\{'raw': \(1, 2, 3\)\} for the last"):
        H5Dataset(folder, rows=Patches({"raw": (8, 8, 8)}))
    with pytest.raises(SchemaMismatchError, match="pad='zero'"):
        H5Dataset(folder, rows=Patches({"label": (18, 8, 8)}))
    with pytest.raises(OptionError, match="blocks; leave one of both out"):
        H5Dataset(folder, rows=Patches(SHAPES), windows=Windows({"raw": [0]}))
    assert hash(Kind(SHAPES)) == hash(Patches(SHAPES))
    assert len(H5Dataset(folder, rows=Files())) == 3


def test_packed_values_casts_and_links(tmp_path):
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 9, (9, 10)).astype("i2")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["packed"] = stored
        file["packed"].attrs.update({"scale_factor": np.float32(0.5), "_FillValue": np.int16(3)})
        file["mask"] = stored > 4
        file["linked"] = h5py.SoftLink("/mask")
        layout = h5py.VirtualLayout((9, 10), "i2")
        layout[:] = h5py.VirtualSource(file["packed"])
        file.create_virtual_dataset("virtual", layout)
    shapes = dict.fromkeys(["packed", "mask", "linked", "virtual"], (4, 3))
    kind = Patches(shapes, stride=(3, 2))
    dataset = H5Dataset(tmp_path, [*shapes, "corner"], rows=kind, decode_cf=True, dtypes={"mask": "f4"})
    expected = np.where(stored == 3, np.nan, stored * np.float32(0.5))
    for row in dataset:
        cut = tuple(slice(c, c + n) for c, n in zip(row["corner"].tolist(), (4, 3), strict=True))
        np.testing.assert_array_equal(row["packed"], expected[cut])
        np.testing.assert_array_equal(row["mask"], (stored > 4)[cut].astype("f4"))
        np.testing.assert_array_equal(row["linked"], (stored > 4)[cut])
        np.testing.assert_array_equal(row["virtual"], stored[cut])


@pytest.mark.parametrize("options", [{}, {"per_file": 4}])
def test_classes_that_no_block_holds_are_an_error(tmp_path, options):
    save(tmp_path / "a.h5", {"x": np.zeros((5, 6), "u1")})
    with pytest.raises(OptionError, match=r"where_any=\('x', \[1, 7\]\): no block of .*a.h5 holds one of these"):
        H5Dataset(tmp_path / "a.h5", rows=Patches({"x": (3, 3)}, where_any=("x", [1, 7]), **options))


def test_empty_and_odd_arrays(tmp_path):
    for i, extents in enumerate([(0, 5), (5, 6)]):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file.create_dataset("x", extents, "f4", chunks=(2, 2), maxshape=(None, None))
            file["text"] = np.full((5, 6), b"a")
            file["other"] = np.zeros(3)
    for options in ({}, {"per_file": 4}):
        dataset = H5Dataset(tmp_path, rows=Patches({"x": (3, 3)}, pad="zero", **options))
        assert set(dataset.columns) == {"x", "corner"}
        assert len(dataset) == 4
        assert not dataset[3]["x"].any()
    with pytest.raises(UnsupportedColumnError, match="arrays of numbers"):
        H5Dataset(tmp_path / "1.h5", rows=Patches({"text": (3, 3)}))
    with pytest.raises(UnsupportedColumnError, match="name it there with the shape"):
        H5Dataset(tmp_path / "1.h5", ["text"], rows=Patches({"x": (3, 3)}))
    with pytest.raises(UnknownColumnError, match="Did you mean 'other'"):
        H5Dataset(tmp_path / "1.h5", rows=Patches({"othr": (3,)}))


def test_arrays_of_groups_are_read_group_by_group_or_with_groups(tmp_path):
    path, arrays = tmp_path / "a.h5", [np.arange(20.0 * n).reshape(n, 20) for n in (10, 13, 16)]
    save(path, {f"c{i}/img": array for i, array in enumerate(arrays)})
    kind = Patches({"img": (5, 10)}, stride=3)
    said = r"c0, c1, c2 have it: .*pass groups='c\*' to Patches; .*group='c0'"
    for options in ({}, {"columns": ["img"]}):
        with pytest.raises(UnknownColumnError, match=said) as error:
            H5Dataset(path, rows=kind, **options)
        assert "Groups(" not in str(error.value)
    parts = [H5Dataset(path, group=f"c{i}", rows=kind) for i in range(3)]
    rows = list(ConcatDataset(parts))
    assert len(rows) == sum(map(len, parts)) > len(parts[0])
    for array, part_of in zip(arrays, parts, strict=True):
        for row in part_of:
            a, b = row["corner"].tolist()
            np.testing.assert_array_equal(row["img"], array[a : a + 5, b : b + 10])
    together = list(H5Dataset(path, rows=Patches({"img": (5, 10)}, stride=3, groups="c*")))
    for one, other in zip(rows, together, strict=True):
        np.testing.assert_array_equal(one["img"], other["img"])
        np.testing.assert_array_equal(one["corner"], other["corner"])


@st.composite
def parts_of_channels(draw):
    """Draw an array with channels before, between or after the axes of blocks, and parts of them."""
    axes = draw(st.integers(1, 3))
    extents = [draw(st.integers(1, 8)) for _ in range(axes)]
    channels = [draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 2)))]
    at = sorted(draw(st.permutations(range(axes + len(channels))))[:axes])
    cut, others = iter(extents), iter(channels)
    shape = [next(cut) if axis in at else next(others) for axis in range(axes + len(channels))]
    taken = {}
    for axis in sorted({*range(len(shape))} - {*at}):
        places = st.lists(st.integers(0, shape[axis] - 1), min_size=1, unique=True)
        ends = st.integers(-shape[axis], shape[axis])
        slices = st.builds(slice, ends, ends, st.sampled_from([None, 2, -1]))
        if (taken_at := draw(st.one_of(st.none(), places, slices))) is not None:
            taken[axis] = taken_at
    if not taken:
        taken[min({*range(len(shape))} - {*at})] = [0]
    block = tuple(draw(st.integers(1, n)) for n in extents)
    options = {}
    if draw(st.booleans()):
        options = {"chunks": tuple(draw(st.integers(1, n)) for n in shape), **draw(st.sampled_from(PIPELINES))}
    return tuple(shape), tuple(at), block, taken, options


@pytest.mark.parametrize(("axis", "least"), [(0, 2), (2, 1)])
def test_contiguous_blocks_read_the_lines_of_their_channels_once(tmp_path, axis, least):
    shape = (4, 30, 2000) if axis == 0 else (30, 2000, 4)
    values = np.random.default_rng(0).random(shape, dtype="f4")
    save(tmp_path / "a.h5", {"x": values})
    kind = Patches({"x": (10, 2000)}, axes={"x": (1, 2) if axis == 0 else (0, 1)})
    scope = FileOptions.of(str(tmp_path / "a.h5"), columns=[part("x", {axis: [3, 0]})], rows=kind).scope
    with scope.open(str(tmp_path / "a.h5")) as reader:
        reader.find(["x"])
        before = reader.stats.bytes_read
        found = reader.read(["x"], [1])["x"][0]
        nbytes = reader.stats.bytes_read - before
    cut = (slice(None), slice(10, 20)) if axis == 0 else (slice(10, 20),)
    np.testing.assert_array_equal(found, values[cut].take([3, 0], axis=axis))
    assert nbytes <= 10 * 2000 * 4 * 4 // least


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (part("raw", {2: [0]}), r"of which blocks cut the axes \[1, 2, 3\].* takes parts of axis 2.*the axes \[0\]"),
        (part("label", random=3), r"takes parts of axis 0. Take parts of arrays with channels"),
        (part("raw", {4: [0]}), "takes parts of axis 4"),
        (part("raw", {0: [2]}), "found position 2; there are positions from 0 to 1"),
        (part("age", {0: [0]}), "takes axis 0 of rows"),
        (part(ragged("raw", ends="label"), {0: [0]}), "blocks are of arrays as they are stored"),
    ],
)
def test_parts_of_blocks_that_are_refused(scans, column, message):
    folder, _ = scans
    with pytest.raises(RayH5Error, match=message):
        H5Dataset(folder, [column], rows=Patches(SHAPES))


COMPOUNDS = [
    np.dtype([("x", "<f4"), ("skip", "S3"), ("y", "<f4"), ("n", ">i8"), ("v", "<i2", (2, 3)), ("w", "<i2", (2, 3))]),
    np.dtype([("n", "<i4"), ("x", "?"), ("v", "u1", (2, 3)), ("y", ">f8"), ("w", ">f8", (2, 3))]),
    np.dtype([("text", h5py.string_dtype()), ("w", "?", (2, 3)), ("n", "<i2"), ("x", "<f4"), ("v", "u1", (2, 3)),
              ("y", "<f4")]),
]  # fmt: skip


def random_items(rng, shape, dtype):
    """Return numbers of a type, or compound values of it."""
    if not dtype.names:
        return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    values = np.zeros(shape, dtype)
    for name in dtype.names:
        found = rng.integers(0, 99, values[name].shape)
        values[name] = b"a" if values[name].dtype.kind in "OS" else found % 2 if values[name].dtype == bool else found
    return values


ITEMS = st.one_of(
    st.tuples(st.sampled_from([np.dtype("<i2"), np.dtype(">f4"), np.dtype("?")]), st.none()),
    st.tuples(
        st.sampled_from(COMPOUNDS),
        st.sampled_from(["x", "n", "v", ["x", "y"], ["y", "x", "n"], ["v", "w"], ["y"]]),
    ),
)
"""Types of items, and which fields of them are read: one, several, or all of what has none."""


def write_items(rng, folder, stored, written, through):
    """Write an array, and a way that leads to it; return what h5py reads of it."""
    shape, dtype, options = stored
    with h5py.File(folder / "a.h5", "w") as file, h5py.File(folder / "b.dat", "w") as other:
        fill = {} if dtype.hasobject else {"fillvalue": random_items(rng, (), dtype)}
        raw = (other if through == "external" else file).create_dataset("raw", shape, dtype, **options, **fill)
        if written != "none":
            some = shape[0] if written == "all" else (shape[0] + 1) // 2
            raw[:some] = random_items(rng, (some, *shape[1:]), dtype)
        if through == "link":
            file["t"] = h5py.SoftLink("/raw")
        elif through == "external":
            file["t"] = h5py.ExternalLink("b.dat", "/raw")
        elif through == "virtual":
            layout = h5py.VirtualLayout(shape, raw.dtype)
            layout[...] = h5py.VirtualSource(raw)
            file.create_virtual_dataset("t", layout)
        return raw[()]


@few(60)
@given(
    parts_of_channels(),
    ITEMS,
    st.sampled_from(["all", "part", "none"]),
    st.sampled_from(["inside", "zero"]),
    st.sampled_from([None, "link", "external", "virtual"]),
    st.sampled_from(["whole", "part", "part of fields"]),
    st.booleans(),
    st.sampled_from([None, 1, 2, 5]),
    st.integers(0, 1 << 20),
)
def test_parts_and_fields_of_blocks_equal_h5py(
    tmp_path_factory, made, items, written, pad, through, how, of_array, stride, seed
):
    (shape, at, block, taken, options), (dtype, names) = made, items
    folder = tmp_path_factory.mktemp("fields")
    rng = np.random.default_rng(seed)
    values = write_items(rng, folder, (shape, dtype, options), written, through)
    if pad == "zero":
        block = tuple(n + 1 for n in block)
    name = "raw" if through is None else "t"
    column, of, expected = name, name, values
    if isinstance(names, str):
        column, of, expected = f"{name}/{names}", name if of_array else f"{name}/{names}", values[names]
    elif names:
        column, expected = fields(name, names), np.stack([values[each] for each in names], axis=len(shape))
    called = column if isinstance(column, str) else name
    if how != "whole":
        if how == "part of fields" and expected.ndim > len(shape):
            taken = {**taken, len(shape): [expected.shape[len(shape)] - 1, 0][: expected.shape[len(shape)]]}
        column = part(column, taken)
        for axis, each in taken.items():
            expected = expected[(slice(None),) * axis + (each,)]
    rows = Patches({of: block}, stride=stride, axes={of: at}, pad=pad)
    dataset = H5Dataset(folder / "a.h5", [column, "corner"], rows=rows, allow_external=folder)
    found = dataset[rng.integers(0, len(dataset), 5).tolist()]
    for row, corner in zip(found[called].numpy(), found["corner"].numpy(), strict=True):
        cut = [slice(None)] * len(shape)
        for axis, low, length in zip(at, corner, block, strict=True):
            cut[axis] = slice(low, low + length)
        assert_block(row, expected[tuple(cut)])


def test_arrays_of_compound_values_have_their_fields_as_columns(tmp_path):
    values = np.zeros((8, 9), [("x", "f4"), ("y", "i2"), ("s", "S2")])
    values["x"], values["y"] = np.arange(72).reshape(8, 9), np.arange(72).reshape(8, 9) % 3
    save(tmp_path / "a.h5", {"t": values}, chunks=(3, 4), compression="gzip")
    kind = Patches({"t": (4, 4)}, per_file=7, where_any=("t/y", [2]))
    dataset = H5Dataset(tmp_path, rows=kind)
    assert set(dataset.columns) == {"t/x", "t/y", "corner"}
    for row in dataset:
        i, j = row["corner"].tolist()
        np.testing.assert_array_equal(row["t/x"], values["x"][i : i + 4, j : j + 4])
        np.testing.assert_array_equal(row["t/y"], values["y"][i : i + 4, j : j + 4])
    with open_rows(tmp_path / "a.h5", Patches({"t": (4, 4)}, stride=2)) as reader:
        reader.read(["t/x", "t/y"])
        assert reader.stats.chunks_decoded == 3 * 3  # once for both
    with pytest.raises(UnsupportedColumnError, match=r"holds struct values.*columns=\['t/x'\]"):
        H5Dataset(tmp_path, ["t"], rows=kind)
    with pytest.raises(UnsupportedColumnError, match=r"'t/s' holds string values; blocks are of arrays of numbers"):
        H5Dataset(tmp_path, ["t/s"], rows=kind)


def test_axes_of_a_field_are_none_that_blocks_cut(tmp_path):
    values = random_items(np.random.default_rng(0), (6, 7), np.dtype([("v", "u1", (2, 3)), ("y", "f4")]))
    save(tmp_path / "a.h5", {"t": values})
    found = H5Dataset(tmp_path / "a.h5", ["t/v", "corner"], rows=Patches({"t/v": (4, 4)}))[:]
    for block, (i, j) in zip(found["t/v"], found["corner"].tolist(), strict=True):
        np.testing.assert_array_equal(block, values["v"][i : i + 4, j : j + 4])


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"x": (4, 4, 5), "y": (4, 5)}, r"'x' has shape \(4, 4, 5\), and blocks may cut the axes \(0, 2\) or \(1, 2\)"),
        ({"x": (4, 5), "y": (4, 5, 5)}, r"'y' has shape \(4, 5, 5\), and blocks may cut the axes \(0, 1\) or"),
    ],
)
def test_two_ways_to_cut_an_array_are_named(tmp_path, shapes, said):
    save(tmp_path / "a.h5", {name: np.zeros(shape) for name, shape in shapes.items()})
    with pytest.raises(OptionError, match=said):
        H5Dataset(tmp_path / "a.h5", rows=Patches(dict.fromkeys(shapes, (2, 2))))


@pytest.mark.parametrize("lacks", [0, 1])
def test_the_group_that_lacks_an_array_is_named(tmp_path, lacks):
    save(tmp_path / "a.h5", {f"s{number}/{'y' if number == lacks else 'x'}": np.zeros((4, 4)) for number in range(2)})
    with pytest.raises(SchemaMismatchError, match=f"group 's{lacks}' lacks 'x', which group 's{1 - lacks}' has"):
        H5Dataset(tmp_path, rows=Patches({"x": (2, 2)}, groups="s*"))


@st.composite
def volumes(draw):
    """Draw an array, how it is stored, and blocks of it."""
    axes = draw(st.integers(1, 3))
    extents = tuple(draw(st.integers(1, 11)) for _ in range(axes))
    block = tuple(draw(st.integers(1, n)) for n in extents)
    stride = draw(st.one_of(st.none(), st.integers(1, 5), st.tuples(*[st.integers(1, 5)] * axes)))
    channels = draw(st.sampled_from([(), (2,)]))
    before = draw(st.booleans())
    shape = (*channels, *extents) if before else (*extents, *channels)
    options = {}
    if draw(st.booleans()):
        options = {"chunks": tuple(draw(st.integers(1, n)) for n in shape), **draw(st.sampled_from(PIPELINES))}
    written = draw(st.sampled_from(["all", "all", "part", "none"]))
    return extents, block, stride, (shape, len(channels) * before), options, written


@few(15)
@given(volumes(), st.sampled_from(["<i2", ">f4", "?"]), st.integers(0, 1 << 20), st.sampled_from(["inside", "zero"]))
def test_blocks_equal_h5py(tmp_path_factory, volume, dtype, seed, pad):
    extents, block, stride, (shape, first), options, written = volume
    path = tmp_path_factory.mktemp("patches") / "a.h5"
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file["label"] = rng.integers(0, 9, extents)
        made = file.create_dataset("raw", shape, dtype, fillvalue=1, **options)
        if written != "none":
            some = made.shape[0] if written == "all" else (made.shape[0] + 1) // 2
            made[:some] = rng.integers(0, 100, (some, *shape[1:])).astype(dtype)
        raw, label = made[()], file["label"][()]
    if pad == "zero":
        block = tuple(n + 1 for n in block)
    axes = None if len(shape) == len(extents) else {"raw": tuple(range(first, first + len(extents)))}
    kind = Patches({"raw": block, "label": block}, stride=stride, axes=axes, pad=pad)
    steps = block if stride is None else (stride,) * len(block) if isinstance(stride, int) else stride
    counts = [1 + max(0, math.ceil((n - s) / t)) for n, s, t in zip(extents, block, steps, strict=True)]
    if pad == "zero":
        counts = [min(count, math.ceil(n / t)) for count, n, t in zip(counts, extents, steps, strict=True)]
    with open_rows(path, kind) as reader:
        assert reader.num_rows == math.prod(counts)
        rows = rng.integers(0, reader.num_rows, 5)
        found = reader.read(["raw", "label", "corner"], rows)
    for place, row in enumerate(rows):
        corner = np.unravel_index(row, counts) * np.array(steps)
        if pad == "inside":
            corner = np.minimum(corner, np.array(extents) - block)
        assert found["corner"][place].tolist() == corner.tolist()
        cut = tuple(slice(c, c + s) for c, s in zip(corner, block, strict=True))
        assert_block(found["label"][place], label[cut])
        assert_block(found["raw"][place], raw[(slice(None),) * first + cut])


@pytest.mark.parametrize("groups", [None, "v*"])
def test_what_has_fewer_axes_than_blocks_comes_whole_with_each_block(tmp_path, groups):
    """A target of a volume, names of its channels, ragged over volumes: named alone, since each row has a copy."""
    made, rng = [], np.random.default_rng(0)
    for i in range(3):
        volume = {
            "raw": rng.random((4 + i, 5)),
            "target": rng.random(4),
            "names": np.array([b"a", b"bc"]),
            "t": np.arange(i + 1),
        }
        made.append(volume | {"day": i})
        path = tmp_path / ("a.h5" if groups else f"{i}.h5")
        with h5py.File(path, "a") as file:
            for name, values in made[i].items():
                file[f"v{i}/{name}" if groups else name] = values
    kind = Patches({"raw": (2, 3)}, stride=2, groups=groups)
    assert {*H5Dataset(tmp_path, rows=kind).columns} == {"corner", "day", "raw"}
    rows, count = H5Dataset(tmp_path, ["raw", "target", "names", "t", "day"], rows=kind), 0
    for volume in made:
        for top in sorted({*range(0, len(volume["raw"]) - 1, 2), len(volume["raw"]) - 2}):
            for left in (0, 2):
                row, count = rows[count], count + 1
                np.testing.assert_array_equal(row["raw"], volume["raw"][top : top + 2, left : left + 3])
                np.testing.assert_array_equal(row["target"], volume["target"])
                assert ([*row["names"]], row["t"].tolist(), int(row["day"])) == (
                    ["a", "bc"],
                    volume["t"].tolist(),
                    volume["day"],
                )
    assert count == len(rows)
    taken = H5Dataset(tmp_path, {"raw": "raw", "two": part("target", {0: [2, 0]})}, rows=kind)
    np.testing.assert_array_equal(taken[len(rows) - 1]["two"], made[-1]["target"][[2, 0]])
    batches = loader(tmp_path, 5, columns=["raw", "target"], rows=kind, shuffle=Shuffle(seed=1))
    targets = {tuple(row.tolist()) for batch in batches for row in batch["target"]}
    assert targets == {tuple(volume["target"].tolist()) for volume in made}
    drawn = H5Dataset(tmp_path, ["target", "corner"], rows=Patches({"raw": (2, 3)}, per_file=2, groups=groups))
    np.testing.assert_array_equal(drawn[-1 - 2 * len(drawn)]["target"], made[-1]["target"])
