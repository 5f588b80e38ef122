"""Virtual datasets of any mappings: rows, grids, blocks and reversed axes are what h5py reads."""

import itertools
import pickle
import random
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_h5
from ray_h5 import Grid, H5Dataset, Patches
from ray_h5.errors import CastError, UnsupportedColumnError
from ray_h5.manifest.indices import Along
from tests.hdf5.h5kit import by_h5py
from tests.kit.files import save
from tests.properties import few

SHAPE = (9, 6, 8)
STORED = {"contiguous": {}, "chunked": {"chunks": True, "compression": "gzip"}}


def whole(shape=SHAPE, dtype="i4"):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


# For each virtual dataset: what it has of which source. A source is made of these values of `whole()`.
MAPPINGS = {
    "tiles": [(np.s_[:, a : a + 3, b : b + 4], None) for a in (0, 3) for b in (0, 4)],
    "modules": [(np.s_[:, a], None) for a in range(6)],
    "frames": [(np.s_[a], None) for a in range(9)],
    "columns of frames": [(np.s_[a, :, b : b + 4], None) for a in range(9) for b in (0, 4)],
    "every other": [(np.s_[:, a::2], None) for a in range(2)],
    "blocks of rows": [(np.s_[[0, 1, 4, 8]], None), (np.s_[[2, 3, 5]], None)],
    "parts of a source": [(np.s_[:5, 1:4, 2:6], np.s_[2:7, :3, 4:8]), (np.s_[5:, :, 0], np.s_[:4, :, 3])],
    "holes": [(np.s_[1:3], None), (np.s_[6, 2:4], None)],
}


def write(folder, name, stored, dtype="i4"):
    """Write the sources and the virtual dataset; return the values as h5py reads them."""
    layout = h5py.VirtualLayout(SHAPE, dtype)
    for number, (here, there) in enumerate(MAPPINGS[name]):
        values = whole()[here] if there is None else whole() + 1000
        save(folder / f"{number}.h5", {"x": values}, **stored)
        source = h5py.VirtualSource(f"{number}.h5", "x", values.shape)
        layout[here] = source if there is None else source[there]
    return by_h5py(save(folder / "all.h5", {"x": layout}, fillvalue=-3), "x")


@pytest.mark.parametrize(("name", "stored"), [*zip(MAPPINGS, itertools.cycle(STORED), strict=False)])
def test_rows_of_all_kinds(tmp_path, name, stored):
    values = write(tmp_path, name, STORED[stored])
    rng = np.random.default_rng(0)
    options = {"allow_external": [tmp_path]}
    with ray_h5.RowReader(tmp_path / "all.h5", **options) as reader:
        for rows in (slice(None), slice(2, 7), [8, 0, 3, 3], rng.permutation(9)):
            np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
    for axes in (2, 3):
        flat = values.reshape(-1, *SHAPE[axes:])
        with ray_h5.RowReader(tmp_path / "all.h5", rows=Grid(axes), **options) as reader:
            for rows in (slice(None), rng.integers(0, len(flat), 20)):
                np.testing.assert_array_equal(reader.read(["x"], rows)["x"], flat[rows])
    kind = Patches({"x": (4, 3, 5)}, stride=(3, 2, 4), pad="zero")
    with ray_h5.RowReader(tmp_path / "all.h5", rows=kind, **options) as reader:
        found = reader.read(["x", "corner"])
        for block, corner in zip(found["x"], found["corner"], strict=True):
            expected = np.zeros((4, 3, 5), "i4")
            part = values[tuple(slice(c, c + n) for c, n in zip(corner, (4, 3, 5), strict=True))]
            expected[tuple(map(slice, part.shape))] = part
            np.testing.assert_array_equal(block, expected)
    dataset = H5Dataset([str(tmp_path / "all.h5")], ["x"], axes="reversed", **options)
    np.testing.assert_array_equal(dataset.read(np.array([7, 0, 3, 3]))["x"], values.T[[7, 0, 3, 3]])


@pytest.mark.parametrize("name", ["tiles", "modules", "every other", "holes", "parts of a source"])
def test_a_part_of_a_virtual_dataset_is_the_source_of_another(tmp_path, name):
    inner = write(tmp_path, name, {})
    parts = [np.s_[:, 2, 3], np.s_[:, 1:5:2], np.s_[2:8, :, 3], np.s_[1, :, ::3], np.s_[:, 1:3, 2:7]]
    with h5py.File(tmp_path / "all.h5", "a") as file:
        for place, taken in enumerate(parts):
            layout = h5py.VirtualLayout(np.stack([inner[taken]] * 2, 1).shape, "i8")
            for number in range(2):
                layout[:, number] = h5py.VirtualSource(".", "x", SHAPE)[taken]
            file.create_virtual_dataset(f"outer{place}/y", layout)
    for place, taken in enumerate(parts):
        expected = np.stack([inner[taken], inner[taken]], 1)
        rows = np.random.default_rng(0).permutation(len(expected))
        options = {"group": f"outer{place}", "allow_external": [tmp_path]}
        dataset = H5Dataset(tmp_path / "all.h5", ["y"], **options)
        np.testing.assert_array_equal(dataset[rows]["y"], expected[rows])
        flat = H5Dataset(tmp_path / "all.h5", ["y"], rows=Grid(2), dtypes={"y": "f4"}, **options)
        np.testing.assert_array_equal(flat[:]["y"], expected.reshape(-1, *expected.shape[2:]))
        turned = H5Dataset(tmp_path / "all.h5", ["y"], axes="reversed", **options)
        np.testing.assert_array_equal(turned[:]["y"], expected.T)


@pytest.mark.parametrize("stored", STORED)
def test_a_source_of_one_value_fills_one_place(tmp_path, stored):
    save(tmp_path / "0.h5", {"x": [54.0]}, **STORED[stored])
    layout = h5py.VirtualLayout((2, 1), "f8")
    layout[0] = h5py.VirtualSource(tmp_path / "0.h5", "x", (1,))
    save(tmp_path / "all.h5", {"x": layout}, fillvalue=7)
    with ray_h5.RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        np.testing.assert_array_equal(reader.read(["x"])["x"], [[54], [7]])


def test_values_of_other_types_are_converted_where_none_changes(tmp_path):
    values = write(tmp_path, "tiles", {}, "f8")
    reader = ray_h5.RowReader(tmp_path / "all.h5", allow_external=[tmp_path])
    found = reader.read(["x"], [3, 1])["x"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values[[3, 1]])
    with pytest.raises(CastError, match=r"column 'x', row 8.*uint8"):
        reader.read_into({"x": np.empty((1, *SHAPE[1:]), "u1")}, [8])


@pytest.mark.parametrize(("stored", "dtype"), [("f8", "i2"), ("i4", "u1"), ("f8", "f4"), ("i8", "f4"), (">i4", "<i2")])
@pytest.mark.parametrize("name", ["tiles", "every other", "frames", "holes"])
def test_values_of_other_types_are_those_that_libhdf5_converts(tmp_path, name, stored, dtype):
    rng = np.random.default_rng(0)
    layout = h5py.VirtualLayout(SHAPE, dtype)
    for number, (here, _) in enumerate(MAPPINGS[name]):
        values = (rng.standard_normal(whole()[here].shape) * 10 ** rng.integers(0, 8)).astype(stored)
        save(tmp_path / f"{number}.h5", {"x": values}, chunks=True)
        layout[here] = h5py.VirtualSource(f"{number}.h5", "x", values.shape)
    expected = by_h5py(save(tmp_path / "all.h5", {"x": layout}, fillvalue=3), "x")
    with ray_h5.RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        for rows in (slice(None), [8, 0, 3, 3], rng.permutation(9)):
            found = reader.read(["x"], rows)["x"]
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected[rows])


def test_sources_look_at_their_own_rows_alone(tmp_path, monkeypatch):
    """A stack may have thousands of sources, and a grid of it millions of rows."""
    looked_at, places = [], Along.places
    monkeypatch.setattr(Along, "places", lambda self, at: looked_at.append(len(at)) or places(self, at))
    values = write(tmp_path, "frames", {})
    with ray_h5.RowReader(tmp_path / "all.h5", rows=Grid(2), allow_external=[tmp_path]) as reader:
        np.testing.assert_array_equal(reader.read(["x"])["x"], values.reshape(-1, SHAPE[2]))
    # Of 9 sources each has an index along two axes for each of its 6 rows, and those along the third one.
    assert sum(looked_at) <= 9 * (2 * 6 + 8)


def test_many_sources_are_open_a_few_at_a_time(tmp_path, monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    values = write(tmp_path, "frames", {})
    with ray_h5.RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        np.testing.assert_array_equal(reader.read(["x"])["x"], values)
        np.testing.assert_array_equal(reader.read(["x"], [8, 1, 1])["x"], values[[8, 1, 1]])


@pytest.mark.parametrize("seed", range(6))
def test_stacks_with_gaps_are_read_as_one_column(tmp_path, seed):
    rng, end, mappings = np.random.default_rng(seed), 0, []
    chunks = (int(rng.integers(1, 5)), 3) if seed % 2 else None
    for number in range(4):
        (gap, before, after), length = rng.integers(0, 3, 3).tolist(), int(rng.integers(1, 9))
        values = rng.integers(1, 99, (before + length + after, 3)).astype("i4")
        save(tmp_path / f"{number}.h5", {"x": values}, chunks=chunks, maxshape=(None, 3) if chunks else None)
        source = h5py.VirtualSource(f"{number}.h5", "x", values.shape)[before : before + length]
        mappings.append((end + gap, end := end + gap + length, source))
    layout = h5py.VirtualLayout((end + 2, 3), "i4")
    for first, stop, source in mappings[::-1]:
        layout[first:stop] = source
    values = by_h5py(save(tmp_path / "all.h5", {"x": layout}, fillvalue=-3), "x")
    with ray_h5.RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        low, high = sorted(rng.integers(0, len(values) + 1, 2).tolist())
        for rows in (slice(None), slice(low, high), rng.integers(0, len(values), 9)):
            np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
            out = np.zeros((len(values) + 1, 3))
            places = rng.permutation(len(out))[: len(values[rows])]
            reader.read_into({"x": out}, rows, places)
            np.testing.assert_array_equal(out[places], values[rows])


@pytest.mark.parametrize("unit", [(5,), (4, 3), (1,), (1, 2)])
@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip", "shuffle": True}, {"dtype": ">f8"}])
@pytest.mark.parametrize("files", [1, 3])
def test_datasets_that_are_stacked_are_read_as_one_column(tmp_path, unit, options, files):
    rng, sources = random.Random(str(unit)), 20
    options = options | ({"chunks": unit} if "chunks" in options else {})
    paths = [tmp_path / f"{number}.h5" for number in range(files)]
    layout = h5py.VirtualLayout((sources + 3, *unit), options.get("dtype", "f4"))
    for number in range(sources):
        with h5py.File(paths[number % files], "a", libver="latest") as file:
            data = np.random.default_rng(number).random(unit)
            file.create_dataset(f"s/{number}", data=data, **{"dtype": "f4", **options})
        name = "." if files == 1 else paths[number % files]
        layout[number + (number > 7)] = h5py.VirtualSource(name, f"s/{number}", unit, options.get("dtype", "f4"))
    with h5py.File(paths[0], "a") as file:
        file.create_virtual_dataset("x", layout, fillvalue=7)
    expected = by_h5py(paths[0], "x")
    with ray_h5.RowReader(paths[0], allow_external=[tmp_path]) as reader:
        for rows in (slice(None), [rng.randrange(sources + 3) for _ in range(30)], [8, 8], [sources + 2]):
            np.testing.assert_array_equal(reader.read(["x"], rows)["x"], expected[rows])
        out = np.empty((sources, *unit), expected.dtype.newbyteorder("="))
        jobs = reader.jobs_of(reader.planned({"x": out}, [number for number in range(sources + 1) if number != 8]))
        assert len(jobs) == 1


@pytest.mark.parametrize("chunks", [None, (2, 4)])
def test_rows_of_stacks_may_be_wider_than_those_of_all_sources(tmp_path, chunks):
    layout = h5py.VirtualLayout((8, 6), "i4")
    for number in range(2):
        save(tmp_path / f"{number}.h5", {"x": np.arange(16, dtype="i4").reshape(4, 4) + 100 * number}, chunks=chunks)
        layout[4 * number : 4 * number + 4, 1:5] = h5py.VirtualSource(f"{number}.h5", "x", (4, 4))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=-3)
        values = file["x"][()]
    with ray_h5.RowReader(tmp_path / "all.h5", allow_external=[tmp_path]) as reader:
        for rows in (slice(None), [7, 0, 3, 3]):
            np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])


def some_of(rng, length, count=None):
    """Return a slice of an axis, or a list of indices, and how many indices it has."""
    step = rng.choice([1, 1, 1, 2, 3])
    most = -(-length // step)
    count = rng.randint(1, most) if count is None else count
    if count > most:
        step, most = 1, length
    first = rng.randint(0, length - 1 - (count - 1) * step)
    return slice(first, first + (count - 1) * step + 1, step), count


def write_source(rng, path, shape, dtype, chunks, through):
    """Write a source as it is, behind a link, or as a virtual dataset that is cut along its last axis."""
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 120, shape).astype(dtype)
    stored = {"chunks": tuple(-(-n // 2) for n in shape), "compression": rng.choice([None, "gzip"])} if chunks else {}
    with h5py.File(path, "w") as file:
        file.create_dataset("x" if through == "plain" else "raw", data=values, **stored)
        if through == "link":
            file["x"] = h5py.SoftLink("/raw")
        elif through == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            half = shape[-1] // 2
            for part in (np.s_[..., :half], np.s_[..., half:]):
                if values[part].size:
                    layout[part] = h5py.VirtualSource(".", "raw", shape)[part]
            file.create_virtual_dataset("x", layout)


def write_random(rng, folder):
    """Write a virtual dataset with some mappings that are apart, and their sources; return its values."""
    shape = tuple(rng.randint(1, 7) for _ in range(rng.choice([1, 2, 2, 3, 3])))
    dtype = rng.choice(["i4", "f8", "u1", "i2"])
    layout, taken = h5py.VirtualLayout(shape, dtype), np.zeros(shape, bool)
    for number in range(rng.randint(0, 6)):
        selected = [some_of(rng, n) if rng.random() < 0.6 else (slice(None), n) for n in shape]
        here, counts = tuple(at for at, _ in selected), [count for _, count in selected]
        if shape[0] > 2 and rng.random() < 0.2:
            here, counts[0] = ([0, 2], *here[1:]), 2
        if taken[here].any():
            continue
        taken[here] = True
        how = rng.choice(["alike", "alike", "fewer axes", "more axes"])
        if how != "alike":
            counts = [count for count in counts if count > 1] or [1]
        if how == "more axes":
            counts.insert(rng.randint(0, len(counts)), 1)
        of_source = tuple(count + rng.choice([0, 0, 1, 4]) for count in counts)
        there = tuple(some_of(rng, n, count)[0] for n, count in zip(of_source, counts, strict=True))
        of_type = rng.choice([dtype, dtype, "i4", "u1"])
        through = rng.choice(["plain", "plain", "link", "virtual"])
        write_source(rng, folder / f"{number}.h5", of_source, of_type, rng.random() < 0.5, through)
        layout[here] = h5py.VirtualSource(f"{number}.h5", "x", of_source, dtype=of_type)[there]
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=rng.choice([None, 7]))
        return file["x"][()]


@pytest.mark.parametrize("place", ["disk", "store"])
@few(60)
@given(seed=st.integers(0, 1 << 30))
def test_any_mappings_equal_h5py(tmp_path_factory, place, seed):
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("any")
    values = write_random(rng, folder)
    path, options = folder / "all.h5", {"allow_external": [folder]}
    if place == "store":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        for file in folder.iterdir():
            memory.pipe(f"/{folder.name}/{file.name}", file.read_bytes())
        path, options = f"memory://{folder.name}/all.h5", {"filesystem": memory}
        options["allow_external"] = f"memory://{folder.name}"
    kinds = {1: {}, -1: {"axes": "reversed"}, **{axes: {"rows": Grid(axes)} for axes in range(2, values.ndim + 1)}}
    for axes, kind in kinds.items():
        expected = values.T if axes == -1 else values.reshape(-1, *values.shape[axes:])
        rows = [rng.randrange(len(expected)) for _ in range(5)]
        for dtypes in ({}, {"x": "f8"}):
            dataset = H5Dataset([path], ["x"], dtypes=dtypes, **kind, **options)
            for some in (np.arange(len(expected)), np.array(rows)):
                np.testing.assert_array_equal(dataset.read(some)["x"], expected[some])
    block = tuple(rng.randint(1, n + 1) for n in values.shape)
    dataset = H5Dataset([path], ["x", "corner"], rows=Patches({"x": block}, stride=2, pad="zero"), **options)
    for row in (dataset[rng.randrange(len(dataset))] for _ in range(3)):
        part = values[tuple(slice(low, low + n) for low, n in zip(row["corner"].tolist(), block, strict=True))]
        inside = tuple(map(slice, part.shape))
        np.testing.assert_array_equal(row["x"].numpy()[inside], part)
        assert int((row["x"].numpy() != 0).sum()) == int((part != 0).sum())


@pytest.mark.parametrize("kind", [{"rows": Grid(2)}, {"axes": "reversed"}])
@pytest.mark.parametrize("first", [0, 1])
def test_axes_of_items_are_none_of_rows(tmp_path, kind, first):
    items = np.dtype(("i4", (2, 3)))
    layout = h5py.VirtualLayout((5 + 2 * first,), items)
    layout[first : first + 5] = h5py.VirtualSource(".", "raw", (5,), dtype=items)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", (5,), items)[...] = np.arange(30).reshape(5, 2, 3)
        file.create_virtual_dataset("x", layout)
        values = file["x"][()]
    np.testing.assert_array_equal(H5Dataset(tmp_path / "a.h5", ["x"])[:]["x"], values)
    with pytest.raises(UnsupportedColumnError, match=r"column 'x'.* has items that are arrays"):
        H5Dataset(tmp_path / "a.h5", ["x"], **kind)[:]


@few(30)
@given(seed=st.integers(0, 1 << 30))
def test_mappings_without_an_end_equal_h5py(tmp_path_factory, seed):
    """Two side by side: of numbered sources, of which one may be missing; or of one that grows, in blocks of rows."""
    rng, folder, endless = random.Random(seed), tmp_path_factory.mktemp("endless"), h5py.h5s.UNLIMITED
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_fill_value(np.array(-1, "i4"))
    width = rng.randint(1, 4)
    for side in range(2):
        first, block, count, is_numbered = rng.randint(0, 3), rng.randint(1, 3), rng.randint(1, 5), rng.random() < 0.6
        stride, of_type = block + rng.randint(0, 2), rng.choice(["i4", "u1", "f8"])
        for number in range(count if is_numbered else 1):
            values = np.random.default_rng(number).integers(0, 99, (block if is_numbered else block * count, width))
            with h5py.File(folder / f"{side}_{number}.h5", "w", libver="latest") as file:
                file.create_dataset("x", data=values.astype(of_type), chunks=(2, 1), maxshape=(None, width))
        if is_numbered and count > 2 and rng.random() < 0.4:
            (folder / f"{side}_{rng.randint(1, count - 1)}.h5").unlink()
        here = h5py.h5s.create_simple((40, 2 * width), (endless, 2 * width))
        here.select_hyperslab((first, side * width), (endless, 1), (stride, 1), (block, width))
        there = h5py.h5s.create_simple((block, width), (endless, width))
        if not is_numbered:
            there.select_hyperslab((0, 0), (endless, 1), (block, 1), (block, width))
        made.set_virtual(here, f"{side}_{'%b' if is_numbered else 0}.h5".encode(), b"x", there)
    with h5py.File(folder / "all.h5", "w", libver="latest") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, here, dcpl=made)
        values = file["x"][()]
    with ray_h5.RowReader(folder / "all.h5", allow_external=[folder]) as reader:
        assert reader.num_rows == len(values)
        for rows in (slice(None), [rng.randrange(len(values)) for _ in range(4)]):
            np.testing.assert_array_equal(reader.read(["x"], rows)["x"], values[rows])
    flat = H5Dataset(folder / "all.h5", ["x"], rows=Grid(2), allow_external=folder)
    np.testing.assert_array_equal(flat[:]["x"], values.reshape(-1))


def selects(shape, ranges):
    """Return a selection of runs along the first axis, and their indices."""
    space = h5py.h5s.create_simple(shape)
    space.select_none()
    for first, length in ranges:
        space.select_hyperslab(
            (first, *[0] * (len(shape) - 1)), (1,) * len(shape), block=(length, *shape[1:]), op=h5py.h5s.SELECT_OR
        )
    return space, np.unique(np.concatenate([np.arange(first, first + length) for first, length in ranges]))


def write_runs(path, shape, here, there, dtype="i4"):
    with h5py.File(path, "w", libver="latest") as file:
        source = file.create_dataset(
            "x", (shape[0] * 2, *shape[1:]), dtype, chunks=(min(4096, shape[0]), *shape[1:]), compression="lzf"
        )
        source[: min(len(source), 300)] = np.arange(1, 1 + min(len(source), 300)).reshape(-1, *[1] * (len(shape) - 1))
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_virtual(selects(shape, here)[0], b".", b"x", selects(source.shape, there)[0])
        h5py.h5d.create(file.id, b"v", h5py.h5t.py_create(np.dtype(dtype)), h5py.h5s.create_simple(shape), made)


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
@few(40)
@given(seed=st.integers(0, 1 << 30))
def test_mappings_of_runs_equal_h5py(tmp_path_factory, shape, seed):
    rng = random.Random(seed)
    ranges = [[(rng.randrange(n - 9), rng.randint(1, 9)) for _ in range(rng.randint(1, 5))] for n in (40, 80)]
    here, there = (selects((n, *shape[1:]), of)[1] for n, of in zip((40, 80), ranges, strict=True))
    count = min(len(here), len(there))  # both select as many
    ranges = [[(int(i), 1) for i in of[:count]] for of in (here, there)]
    path = tmp_path_factory.mktemp("runs") / "a.h5"
    write_runs(path, shape, *ranges)
    expected = by_h5py(path, "v")
    with ray_h5.RowReader(path) as reader:
        for rows in (slice(None), [rng.randrange(40) for _ in range(9)]):
            np.testing.assert_array_equal(reader.read(["v"], rows)["v"], expected[rows])


@few(60)
@given(
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6),
    indices=st.lists(st.integers(0, 70), max_size=9),
)
def test_runs_along_an_axis_are_their_indices(runs, indices):
    begin, pairs = 0, []
    for gap, length in runs:
        pairs.append((begin + gap, length))
        begin += gap + length
    along, listed = (
        Along(0, 0, 0, 0, tuple(pairs)),
        [i for first, length in pairs for i in range(first, first + length)],
    )
    assert (len(along), along.begin, along.end) == (len(listed), listed[0], listed[-1] + 1)
    assert along.at(np.arange(len(listed))).tolist() == listed
    assert along.places(np.array(indices, np.int64)).tolist() == [
        listed.index(i) if i in listed else -1 for i in indices
    ]


def test_a_mapping_of_two_long_runs_costs_two_runs(tmp_path):
    n = 2_000_000
    write_runs(tmp_path / "a.h5", (2 * n,), [(0, n), (n + 5, n - 5)], [(7, n), (2 * n, n - 5)], "u1")
    tracemalloc.start()
    with ray_h5.RowReader(tmp_path / "a.h5") as reader:
        found = reader.read(["v"], [1, 200, n + 1, 2 * n - 1])["v"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        mappings = reader.opened.redirect("v").mappings
    assert found.tolist() == [9, 208, 0, 0]
    assert peak < 4 << 20
    assert len(pickle.dumps(mappings)) < 2000
