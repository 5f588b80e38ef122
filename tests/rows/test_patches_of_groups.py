"""Blocks of arrays in groups of different shapes: each is what h5py reads of its slices, wherever it is read."""

import math
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Groups, Patches, RowReader, Shuffle, Sidecar, part, where
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.read.open_file_base import OpenFile
from ray_h5.torch_data import H5Dataset, kfold, loader
from tests.kit.stores import forget_files
from tests.properties import few
from tests.rows.kit import PIPELINES

COLUMNS = ["raw", "label", "age", "corner", "scan"]


@st.composite
def scans(draw):
    """Draw the arrays of groups of different shapes, how they are stored, and blocks of them."""
    axes = draw(st.integers(1, 3))
    extents = draw(st.lists(st.tuples(*[st.integers(2, 9)] * axes), min_size=1, max_size=5))
    pad = draw(st.sampled_from(["inside", "zero"]))
    shortest = [min(each) + (pad == "zero") for each in zip(*extents, strict=True)]
    block = tuple(draw(st.integers(1, n)) for n in shortest)
    options = draw(
        st.sampled_from(
            [{}, {"stride": 2}, {"stride": (3,) * axes}, {"per_file": 4}, {"per_file": 3, "align": True},
             {"where_any": ("label", [1, 2]), "stride": 2}, {"where_any": ("label", [1]), "per_file": 5}]
        )
    )  # fmt: skip
    stored = {"chunks": True, **draw(st.sampled_from(PIPELINES))} if draw(st.booleans()) else {}
    return extents, block, {**options, "pad": pad}, stored, draw(st.booleans())


def write(path, extents, stored, channels, seed):
    """Write a group for each shape; return the arrays by group."""
    rng = np.random.default_rng(seed)
    found = {}
    with h5py.File(path, "w") as file:
        for number, shape in enumerate(extents):
            name = f"scans/s{number}"
            raw = rng.integers(0, 100, (*shape, 2) if channels else shape).astype(">i2")
            label = (rng.random(shape) < 0.2).astype("u1") * rng.integers(1, 4, shape, "u1")
            label[(0,) * len(shape)] = number != 1  # group 1 may hold no class, group 0 does
            file.create_dataset(f"{name}/raw", data=raw, **stored)
            file.create_dataset(f"{name}/label", data=label, **stored)
            file[f"{name}/age"] = 30 + number
            found[name] = raw, label, 30 + number
        file["scans/s0"].attrs["no"] = 1
        file["other"] = np.arange(3)
    return found


def blocks_of(rows, arrays, kind):
    """Assert that rows are the blocks at their corners; return a key for each."""
    keys = []
    for raw, label, age, corner, scan in zip(*(rows[name] for name in COLUMNS), strict=True):
        name = scan.decode() if isinstance(scan, bytes) else str(scan)
        whole, classes, years = arrays[name]
        at = tuple(int(n) for n in corner)
        assert int(age) == years
        for found, expected in ((np.asarray(raw), whole), (np.asarray(label), classes)):
            cut = expected[tuple(slice(low, low + n) for low, n in zip(at, kind.block, strict=True))]
            inside = tuple(map(slice, cut.shape))
            np.testing.assert_array_equal(found[inside], cut)
            rest = found.copy()
            rest[inside] = 0
            assert not rest.any()
            assert found.shape[: len(kind.block)] == kind.block
        if kind.where_any is not None:
            assert np.isin(np.asarray(label), kind.where_any[1]).any()
        keys.append((name, *at))
    return keys


def grid_of(arrays, kind):
    """Return the corners that numpy finds, group by group."""
    found = []
    for name, (_, label, _) in arrays.items():
        steps = kind.stride or kind.block
        counts = [1 + max(0, math.ceil((n - s) / t)) for n, s, t in zip(label.shape, kind.block, steps, strict=True)]
        if kind.pad == "zero":
            counts = [min(c, math.ceil(n / t)) for c, n, t in zip(counts, label.shape, steps, strict=True)]
        for index in np.ndindex(*counts):
            at = np.array(index) * steps
            if kind.pad == "inside":
                at = np.minimum(at, np.maximum(np.array(label.shape) - kind.block, 0))
            cut = label[tuple(slice(low, low + n) for low, n in zip(at, kind.block, strict=True))]
            if kind.where_any is None or np.isin(cut, kind.where_any[1]).any():
                found.append((name, *at.tolist()))
    return found


@few(7)
@given(scans(), st.integers(0, 1 << 20), st.booleans(), st.booleans())
def test_blocks_of_groups_equal_h5py(server, tmp_path_factory, made, seed, in_store, by_name):
    extents, block, options, stored, channels = made
    folder = tmp_path_factory.mktemp("groups")
    arrays = write(folder / "a.h5", extents, stored, channels, seed)
    axes = {"raw": tuple(range(len(block)))}
    groups = "scans/*"
    if by_name:  # the same rows, of datasets that need not be in one group
        groups = {name: f"scans/*/{name}" for name in ("raw", "label", "age")}
        arrays = {name.rpartition("/")[2]: each for name, each in arrays.items()}
    kind = Patches({"raw": block, "label": block}, axes=axes, groups=groups, key="scan", seed=seed, **options)
    with RowReader(folder / "a.h5", rows=kind) as reader:
        num_rows = reader.num_rows
        expected = blocks_of(reader.read(COLUMNS), arrays, kind)
        some = np.random.default_rng(seed).integers(0, num_rows, 6)
        assert blocks_of(reader.read(COLUMNS, some), arrays, kind) == [expected[at] for at in some]
    if kind.per_file is None:
        assert expected == grid_of(arrays, kind)
    else:
        held = [name for name, (_, label, _) in arrays.items() if kind.where_any is None or (label == 1).any()]
        assert [key[0] for key in expected] == [name for name in held for _ in range(kind.per_file)]
    shuffle = Shuffle(seed=seed)
    given = {"columns": COLUMNS, "rows": kind}
    epochs = [epoch_of(folder / "a.h5", arrays, kind, num_rows, shuffle, given, number) for number in range(2)]
    assert sorted(epochs[0]) == sorted(expected)  # the first draw
    assert len(H5Dataset(folder / "a.h5", **given)) == num_rows
    if in_store:
        forget_files()
        (folder / "a.h5").rename(Path(server.root) / "bkt/a.h5")
        given = {**given, "storage_options": server.options}
        again = [epoch_of("s3://bkt/a.h5", arrays, kind, num_rows, shuffle, given, number) for number in range(2)]
        assert again == epochs
        forget_files()


def epoch_of(path, arrays, kind, num_rows, shuffle, given, epoch):
    """Return the keys of an epoch, which is stopped after a batch, and resumed."""
    first = loader(path, 2, shuffle=shuffle, **given)
    first.set_epoch(epoch)
    batches = iter(first)
    keys = blocks_of(next(batches), arrays, kind)
    if len(keys) == num_rows:
        return keys
    state = first.state_dict()
    rest = loader(path, 2, shuffle=shuffle, **given)
    rest.load_state_dict(state)
    return keys + [key for batch in rest for key in blocks_of(batch, arrays, kind)]


SHAPES = {"raw": (3, 4), "label": (3, 4)}
EXTENTS = [(7, 9), (5, 12), (3, 4)]


@pytest.fixture
def scan_file(tmp_path):
    return tmp_path / "a.h5", write(tmp_path / "a.h5", EXTENTS, {"chunks": (2, 3), "compression": "gzip"}, False, 0)


def test_each_epoch_has_other_corners_and_ray_reads_the_same(scan_file):
    path, arrays = scan_file
    kind = Patches(SHAPES, groups="scans/*", key="scan", per_file=5, seed=3)
    dataset = H5Dataset(path, COLUMNS, rows=kind)
    assert len(dataset) == 15
    batches = loader(path, 15, shuffle=Shuffle(seed=1), columns=COLUMNS, rows=kind)
    epochs = [[key for batch in batches for key in blocks_of(batch, arrays, kind)] for _ in range(3)]
    assert len({tuple(sorted(each)) for each in epochs}) == 3
    from ray_h5.plan.read_plan import make_plan

    plan = make_plan(dataset._index, list(dataset._index.columns.values()), None, Shuffle(seed=1), block_rows=1000)
    block = read_block(plan, start_of(plan, 2), 0).rows
    assert [tuple(each) for each in block.arrays["corner"].tolist()] == [each[1:] for each in epochs[2]]
    one = H5Dataset(path, ["corner"], group="scans/s1", rows=Patches(SHAPES, per_file=5, seed=3))
    assert not np.array_equal(  # groups of one shape do not have the same corners
        np.stack([row["corner"] for row in one]), np.stack([dataset[at]["corner"] for at in range(5, 10)])
    )


def test_each_chunk_of_each_group_is_decoded_once(scan_file):
    path, _ = scan_file
    with RowReader(path, rows=Patches({"raw": (3, 4)}, groups="scans/*", stride=1)) as reader:
        reader.read(["raw"])
        chunks = sum(math.ceil(a / 2) * math.ceil(b / 3) for a, b in EXTENTS)
        assert reader.stats.chunks_decoded == chunks


def test_groups_are_episodes_of_folds_predicates_and_tables(scan_file, tmp_path):
    path, _ = scan_file
    kind = Patches(SHAPES, groups="scans/*", key="scan", stride=2)
    whole = H5Dataset(path, COLUMNS, rows=kind)
    by_group = {name: sum(row["scan"] == name for row in whole) for name in ("scans/s0", "scans/s1", "scans/s2")}
    old = H5Dataset(path, COLUMNS, where(age=[31, 32]), rows=kind)
    assert {row["scan"] for row in old} == {"scans/s1", "scans/s2"}
    for train, test in kfold(path, 3, group="group", rows=kind):
        sides = [{row["scan"] for row in H5Dataset(path, ["scan"], side, rows=kind)} for side in (train, test)]
        assert not sides[0] & sides[1]
    (tmp_path / "t.csv").write_text("scan,site\nscans/s0,A\nscans/s1,B\nscans/s2,C\n")
    joined = H5Dataset(path, ["scan", "site"], rows=kind, sidecar=Sidecar(tmp_path / "t.csv", on="scan"))
    assert [row["site"] for row in joined].count("B") == by_group["scans/s1"]


def test_groups_without_a_class_have_no_rows_and_an_index_knows_the_others(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number, n in enumerate([6, 5, 9]):
            file[f"g{number}/x"] = np.pad(np.full((2, 2), number % 2 or 5), (0, n - 2)).astype("u1")
    kind = Patches({"x": (2, 2)}, groups="g*", where_any=("x", [5]), key="g")
    given = {"rows": kind, "index_dir": tmp_path / "index"}
    found = [(row["g"], *row["corner"].tolist()) for row in H5Dataset(path, **given)]
    assert found == [("g0", 0, 0), ("g2", 0, 0)]
    forget_files()
    assert [(row["g"], *row["corner"].tolist()) for row in H5Dataset(path, **given)] == found
    with pytest.raises(OptionError, match=r"no block of .* holds one of these"):
        H5Dataset(path, rows=Patches({"x": (2, 2)}, groups="g*", where_any=("x", [77])))


def test_parts_packed_values_and_compounds(tmp_path):
    path, rng = tmp_path / "a.h5", np.random.default_rng(0)
    values, tables = [], []
    with h5py.File(path, "w") as file:
        for number, shape in enumerate([(5, 6), (4, 7)]):
            stored = rng.integers(0, 9, (3, *shape)).astype("i2")
            file[f"g{number}/x"] = stored
            if number:
                file[f"g{number}/x"].attrs["scale_factor"] = 0.5  # the other group is as it is stored
            table = np.zeros(shape, [("a", "<f4"), ("n", "<i8")])
            table["a"], table["n"] = rng.random(shape), number
            file[f"g{number}/t"] = table
            values.append(stored * (0.5 if number else 1))
            tables.append(table)
    kind = Patches({"x": (4, 5), "t": (4, 5)}, groups="g*", key="g")
    dataset = H5Dataset(path, [part("x", {0: [2, 0]}), "t/a", "corner", "g"], rows=kind, decode_cf=True)
    assert {row["g"] for row in dataset} == {"g0", "g1"}
    for row in dataset:
        number, (i, j) = int(row["g"][1:]), row["corner"].tolist()
        np.testing.assert_array_equal(row["x"], values[number][[2, 0], i : i + 4, j : j + 5])
        np.testing.assert_array_equal(row["t/a"], tables[number]["a"][i : i + 4, j : j + 5])
    drawn = H5Dataset(path, [part("x", random=2), "corner", "g"], rows=kind)
    for row in drawn:
        number, (i, j) = int(row["g"][1:]), row["corner"].tolist()
        with h5py.File(path) as file:
            whole = file[f"g{number}/x"][:, i : i + 4, j : j + 5].tolist()
        assert all(each in whole for each in np.asarray(row["x"]).tolist())


@pytest.mark.parametrize(
    ("change", "kind", "columns", "error", "said"),
    [
        (None, {"groups": "scan/*"}, None, UnknownColumnError, r"nothing matches the pattern 'scan/\*'"),
        (None, {"groups": "scans/*/raw"}, None, UnsupportedColumnError, "matches datasets, such as"),
        (None, {"pad": "inside", "shapes": {"raw": (5, 4)}}, None, SchemaMismatchError, "group 'scans/s2'.*shorter"),
        ("lacks", {}, None, SchemaMismatchError, "'scans/s1' lacks 'raw'.*agree with groups="),
        ("lacks age", {}, None, SchemaMismatchError, "'scans/s1' lacks age"),
        ("lacks age", {}, ["age"], SchemaMismatchError, "'scans/s1' lacks age"),
        ("other dtype", {}, None, SchemaMismatchError, "'scans/s0' has blocks of int16.*'scans/s1' of float32"),
        ("other channels", {}, None, SchemaMismatchError, r"shape \(3, 4\), and group 'scans/s1' of .*\(3, 4, 2\)"),
        ("more", {}, None, SchemaMismatchError, "'scans/s0' lacks 'weight', which group 'scans/s1' has"),
        (None, {}, ["other"], UnknownColumnError, "scans/s0/other"),
        (None, {"key": "raw"}, None, OptionError, "'raw' is a column of the file"),
    ],
)
def test_groups_that_are_refused(scan_file, change, kind, columns, error, said):
    path, _ = scan_file
    with h5py.File(path, "a") as file:
        group = file["scans/s1"]
        if change in {"lacks", "other dtype", "other channels"}:
            values = group["raw"][()]
            del group["raw"]
            if change != "lacks":
                group["raw"] = values.astype("f4") if change == "other dtype" else np.stack([values] * 2, axis=-1)
        elif change == "lacks age":
            del group["age"]
        elif change == "more":
            group["weight"] = 1.5
    given = {"groups": "scans/*", **kind}
    with pytest.raises(error, match=said):
        H5Dataset(path, columns, rows=Patches(given.pop("shapes", SHAPES), **given))


def test_options_and_values(scan_file):
    path, _ = scan_file
    for wrong in ("", "/", 3):
        with pytest.raises(OptionError, match="expected a glob over paths"):
            Patches(SHAPES, groups=wrong)
    kind = Patches(SHAPES, groups="scans/*")
    assert kind.has_groups
    assert not Patches(SHAPES).has_groups
    assert Groups("a").has_groups
    assert eval(repr(kind)) == kind
    assert hash(kind) == hash(Patches(SHAPES, groups="scans/*"))
    assert set(H5Dataset(path, rows=kind).columns) == {"raw", "label", "age", "corner"}
    with pytest.raises(RayH5Error, match="takes axis 0 of rows"):
        H5Dataset(path, [part("age", {0: [0]})], rows=kind)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"per_file": 3}, {"where_any": ("label", [1])}, {"per_file": 2, "align": True}]
)
def test_a_row_looks_at_its_own_group_alone(tmp_path, monkeypatch, options, by_name):
    """Other groups are arrays of shapes in the plan: a worker describes no dataset of theirs."""
    seen, column = [], OpenFile.column
    monkeypatch.setattr(OpenFile, "column", lambda self, name: seen.append(name) or column(self, name))
    counts = []
    for groups in (3, 120):
        with h5py.File(tmp_path / f"{groups}.h5", "w") as file:
            for g in range(groups):
                values = np.arange((4 + g % 3) * 5).reshape(-1, 5)
                file.create_dataset(f"s{g}/raw", data=values, chunks=(2, 2))
                file[f"s{g}/label"] = values % 2
        pattern = {"raw": "s*/raw", "label": "s*/label"} if by_name else "s*"
        kind = Patches({"raw": (2, 2), "label": (2, 2)}, groups=pattern, **options)
        dataset = pickle.loads(
            pickle.dumps(H5Dataset(tmp_path / f"{groups}.h5", ["raw", "label", "corner"], rows=kind))
        )
        seen.clear()
        row = dataset[len(dataset) - 1]
        counts.append(len(seen))
        assert {name.split("/")[0] for name in seen} <= {f"s{g}" for g in (0, 1, 2, groups - 1)}  # one of each shape
        top, left = row["corner"].tolist()
        expected = np.arange((4 + (groups - 1) % 3) * 5).reshape(-1, 5)[top : top + 2, left : left + 2]
        assert row["raw"].tolist() == expected.tolist()
        assert row["label"].tolist() == (expected % 2).tolist()
    assert 0 < counts[1] <= counts[0] + 2
