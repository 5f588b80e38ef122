"""Parts of rows: equal to numpy, only their chunks are read, names are aligned over files, and what is refused."""

import h5py
import numpy as np
import pytest

from ray_h5 import Files, Grid, Groups, RowReader, Shuffle, Windows, loader, part, ragged
from ray_h5 import fields as of_fields
from ray_h5.errors import CastError, OptionError, RayH5Error
from ray_h5.index.file_options import FileOptions
from ray_h5.torch_data import H5Dataset
from tests.golden.layouts import encoded
from tests.kit.files import save


def read(path, column, **options):
    dataset = H5Dataset(path, [column], **options)
    found = dataset[list(range(len(dataset)))]
    (name,) = found
    return found[name]


@pytest.fixture
def fields(tmp_path):
    values = np.random.default_rng(0).random((5, 73, 24, 40)).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("fields", data=values, chunks=(1, 1, 24, 40), compression="gzip", shuffle=True)
        file["channels"] = np.array([f"c{i}" for i in range(73)], object)
    return tmp_path / "a.h5", values


def test_channels_in_chunks_of_their_own_read_their_bytes_alone(fields):
    path, values = fields
    channels = np.random.default_rng(1).permutation(73)[:20].tolist()
    with h5py.File(path) as file:
        sizes = np.array([file["fields"].id.get_chunk_info(i).size for i in range(5 * 73)]).reshape(5, 73)
    scope = FileOptions.of(str(path), columns=[part("fields", {0: channels})]).scope
    with scope.open(str(path)) as reader:
        reader.find(["fields"])
        before = reader.stats.bytes_read
        found = reader.read(["fields"], [3, 1])["fields"]
        nbytes = reader.stats.bytes_read - before
    assert np.array_equal(found, values[[3, 1]][:, channels])
    assert nbytes <= 1.05 * sizes[[3, 1]][:, channels].sum()


@pytest.mark.parametrize("kind", ["groups", "files", "steps"])
@pytest.mark.parametrize("chunks", [(1, 1, 12, 10), None])
def test_rows_that_are_whole_datasets_read_what_is_asked_for(tmp_path, kind, chunks):
    rng = np.random.default_rng(0)
    volumes = [rng.random((n, 40, 12, 10)).astype("f4") for n in (3, 5, 4)]
    paths = [tmp_path / (f"{i}.h5" if kind == "files" else "a.h5") for i in range(3)]
    options = {"chunks": chunks, "compression": "gzip"} if chunks else {}
    sizes = []
    for i, (path, volume) in enumerate(zip(paths, volumes, strict=True)):
        with h5py.File(path, "a") as file:
            made = file.create_dataset("x" if kind == "files" else f"g{i}/x", data=volume, **options)
            count = volume.shape[0] * 40
            known = [made.id.get_chunk_info(at).size for at in range(count)] if chunks else [480] * count
            sizes.append(np.array(known).reshape(-1, 40))
    channels = [30, 2, 3]
    of = {0: channels} if kind == "steps" else {0: slice(1, 3), 1: channels}
    rows = Files() if kind == "files" else Groups("g*")
    windows = Windows({"x": [0]}, pad="drop") if kind == "steps" else None
    scope = FileOptions.of(
        list(dict.fromkeys(map(str, paths))), columns=[part("x", of)], rows=rows, windows=windows
    ).scope
    found, nbytes = [], 0
    for path in dict.fromkeys(map(str, paths)):
        with scope.open(path) as reader:
            reader.find(["x"])
            before = reader.stats.bytes_read
            found += list(reader.read(["x"])["x"])
            nbytes += reader.stats.bytes_read - before
    if kind == "steps":
        expected = [step[None, channels] for volume in volumes for step in volume]
        asked = sum(each[:, channels].sum() for each in sizes)
    else:
        expected = [volume[1:3][:, channels] for volume in volumes]
        asked = sum(each[1:3][:, channels].sum() for each in sizes)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert nbytes <= 1.05 * asked


def test_a_damaged_chunk_of_parts_of_groups_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            made = file.create_dataset(f"g{i}/x", data=np.ones((4, 6, 50)), chunks=(2, 1, 50), compression="gzip")
        damaged = made.id.get_chunk_info_by_coord((2, 3, 0))
    with open(tmp_path / "a.h5", "r+b") as file:
        file.seek(damaged.byte_offset)
        file.write(b"x" * damaged.size)
    for channels in ([3, 0], [4, 1]):
        dataset = H5Dataset(tmp_path / "a.h5", [part("x", {1: channels})], rows=Groups("g*"))
        if 3 not in channels:
            assert np.array_equal(dataset[2]["x"], np.ones((4, 2, 50)))
            continue
        with pytest.raises(RayH5Error, match="g2/x"):
            dataset[2]


@pytest.mark.parametrize(
    "axes",
    [
        {0: [5]},
        {1: slice(3, 20)},
        {2: slice(None, None, -2)},
        {0: [70, 2], 1: slice(-3, None), 2: [0, 39, 7]},
        {2: list(range(0, 40, 2)), 1: list(range(0, 24, 3))},
        {1: slice(4, 4)},
    ],
)
def test_equal_to_numpy(fields, axes):
    path, values = fields
    expected = values
    for axis, at in axes.items():
        expected = expected[(slice(None),) * (axis + 1) + (at,)]
    found = read(path, part("fields", axes))
    assert found.shape == expected.shape
    assert np.array_equal(found.numpy(), expected)


def test_names_are_aligned_over_files(tmp_path):
    """Genes of dense matrices in other orders, as for CSR; one file has them as CSR."""
    rng, genes = np.random.default_rng(0), [f"g{i}" for i in range(30)]
    expected = []
    for number in range(3):
        order = rng.permutation(30)
        values = rng.random((4, 30)).astype("f4")
        with h5py.File(tmp_path / f"{number}.h5ad", "w") as file:
            file.attrs["encoding-type"] = "anndata"
            group = file.create_group("obs")
            group.attrs.update({"encoding-type": "dataframe", "_index": "_index", "column-order": []})
            group["_index"] = np.array([f"cell{i}" for i in range(4)], object)
            group = file.create_group("var")
            group.attrs.update({"encoding-type": "dataframe", "_index": "_index", "column-order": []})
            group["_index"] = np.array(genes, object)[order]
            file.create_dataset("X", data=values, chunks=(3, 7), compression="gzip")
        place = np.argsort(order)
        expected.append(values[:, place[[7, 3, 29]]])
    column = part("X", {0: ["g7", "g3", "g29"]}, names="var/_index")
    assert np.array_equal(read(tmp_path, column).numpy(), np.concatenate(expected))
    with pytest.raises(RayH5Error, match=r"1 of 2 names are not there, such as 'g77'\. There is: g0, g1"):
        read(tmp_path, part("X", {0: ["g1", "g77"]}, names="var/_index"))


@pytest.mark.parametrize("names", ["plain", "compound/id", "coded", "characters"])
@pytest.mark.parametrize("windows", [None, Windows({"y": [0]})])
def test_names_of_groups_are_any_column_of_the_file(tmp_path, names, windows):
    values = [np.arange(3.0 * n).reshape(n, 3) for n in (2, 4)]
    known = np.array([b"A", b"B", b"C"])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, each in enumerate(values):
            file[f"g{i}/y"] = each
        file["plain"] = known
        file["compound"] = np.array([(each, 0) for each in known], [("id", "S1"), ("k", "i4")])
        encoded(file, "coded", "categorical", codes=np.array([2, 0, 1], "i1"), categories=np.array([b"B", b"C", b"A"]))
        file["characters"] = known[:, None]
    options = {"rows": Groups("g*"), "windows": windows, "decode_cf": names == "characters"}
    found = H5Dataset(tmp_path / "a.h5", [part("y", {0 if windows else 1: ["C", "A"]}, names=names)], **options)
    rows = values if windows is None else [step[None] for each in values for step in each]
    assert [row["y"].tolist() for row in found] == [row[:, [2, 0]].tolist() for row in rows]
    with pytest.raises(RayH5Error, match=f"names='{names}': 1 of 1 names are not there, such as 'D'"):
        H5Dataset(tmp_path / "a.h5", [part("y", {1: ["D"]}, names=names)], **options | {"windows": None})


def test_names_are_read_once(fields):
    path, values = fields
    scope = FileOptions.of(str(path), columns=[part("fields", {0: ["c9", "c4"]}, names="channels")]).scope
    reads = []
    for row in (0, 3):
        with scope.open(str(path)) as reader:
            assert np.array_equal(reader.read(["fields"], [row])["fields"], values[[row]][:, [9, 4]])
            reads.append(reader.stats.requests)
    assert reads[0] > reads[1]


def test_entries_of_rows_of_varying_length(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(3, 9, 12)
    stops = np.cumsum(counts)
    content = rng.random((stops[-1], 4)).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=content, chunks=(5, 2), compression="gzip")
        file["ends"] = stops
        for number, (stop, count) in enumerate(zip(stops, counts, strict=True)):
            file[f"g{number:02}/x"] = content[stop - count : stop]
    bags = [content[stop - count : stop] for stop, count in zip(stops, counts, strict=True)]
    for options, of in (({}, ragged("x", ends="ends")), ({"rows": Groups("g*")}, "x")):
        for axes in ({0: slice(1, None)}, {0: slice(None, None, -2)}, {0: slice(5, None), 1: [3, 0]}, {1: slice(2)}):
            found = read(tmp_path / "a.h5", part(of, axes), **options)
            for bag, one in zip(bags, found, strict=True):
                expected = bag[axes.get(0, slice(None))][:, axes.get(1, slice(None))]
                assert np.array_equal(one.numpy(), expected)
        found = read(tmp_path / "a.h5", part(of, {0: [2, 0]}), **options)
        assert np.array_equal(found.numpy(), np.stack([bag[[2, 0]] for bag in bags]))
        with pytest.raises(RayH5Error, match=r"part.. takes entry 3 of each row, and a row has 3 entries"):
            read(tmp_path / "a.h5", part(of, {0: [3]}), **options)


def bags_of(folder, kind):
    """Write bags of features with their coordinates; return how they are read, their lengths, and where each ends."""
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 60, 12)
    stops = np.cumsum(counts)
    features = np.arange(stops[-1] * 3, dtype="f4").reshape(-1, 3)
    coordinates = np.arange(stops[-1]) * 10
    if kind == "files":
        for i, (stop, count) in enumerate(zip(stops, counts, strict=True)):
            with h5py.File(folder / f"{i:02}.h5", "w") as file:
                file.create_dataset("features", data=features[stop - count : stop], chunks=(4, 3), compression="gzip")
                file["coords"] = coordinates[stop - count : stop]
    else:
        with h5py.File(folder / "a.h5", "w") as file:
            for i, (stop, count) in enumerate(zip(stops, counts, strict=True)):
                file[f"g{i:02}/features"], file[f"g{i:02}/coords"] = (
                    each[stop - count : stop] for each in (features, coordinates)
                )
            file["features"], file["coords"], file["ends"] = features, coordinates, stops
    rows = {"files": Files(), "groups": Groups("g*"), "ragged": None}[kind]
    names = ["features", "coords"]
    of = [ragged(name, ends="ends") if kind == "ragged" else name for name in names]
    return {"rows": rows, "columns": [part(each, random=20) for each in of]}, counts, stops


@pytest.mark.parametrize("kind", ["files", "groups", "ragged"])
def test_a_draw_of_entries(tmp_path, kind):
    options, counts, stops = bags_of(tmp_path, kind)
    dataset = H5Dataset(tmp_path, **options)
    load = loader(dataset, batch_size=4, shuffle=Shuffle("rows", seed=3), pad=True)
    epochs = []
    for epoch in range(3):
        load.set_epoch(epoch)
        drawn = {}
        for batch in load:
            lengths = batch.get("coords_length")
            for i in range(len(batch["coords"])):
                coords = batch["coords"][i] if lengths is None else batch["coords"][i][: lengths[i]]
                features = batch["features"][i][: len(coords)]
                rows = coords.numpy() // 10
                bag = int(np.searchsorted(stops, rows[0], side="right"))
                assert len(rows) == min(20, counts[bag])
                assert (np.diff(rows) > 0).all()
                assert rows[-1] < stops[bag]
                assert features[:, 0].tolist() == (rows * 3).tolist()  # the same draw
                drawn[bag] = rows.tolist()
        assert sorted(drawn) == list(range(12))
        epochs.append(drawn)
    large = np.flatnonzero(counts > 25)
    assert all(len({str(epoch[bag]) for epoch in epochs}) == 3 for bag in large)
    load.set_epoch(1)
    again = np.concatenate([batch["coords"].reshape(-1).numpy() for batch in load])
    assert set(again.tolist()) - {0} <= {10 * row for rows in epochs[1].values() for row in rows}


def test_a_draw_of_each_row(tmp_path):
    values = np.random.default_rng(0).random((40, 30, 2))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(7, 30, 2), compression="gzip")
        file["index"] = np.tile(np.arange(30), (40, 1))
    columns = [part("x", random=5), part("index", random=5)]
    found = H5Dataset(tmp_path / "a.h5", columns)[[3, 39, 3]]
    for place, row in enumerate([3, 39, 3]):
        assert np.array_equal(found["x"][place], values[row][found["index"][place]])
    assert found["index"][0].tolist() == found["index"][2].tolist() != found["index"][1].tolist()
    other = H5Dataset(tmp_path / "a.h5", [part("index", random=5, seed=1)])[[3]]
    assert other["index"][0].tolist() != found["index"][0].tolist()
    counts = np.bincount(H5Dataset(tmp_path / "a.h5", columns)[list(range(40))]["index"].reshape(-1).numpy())
    assert counts.max() < 25  # of 200 draws of 30 entries
    labelled = H5Dataset(tmp_path / "a.h5", columns, labels={"index": {2 * i + 1: i for i in range(15)} | {None: -1}})
    numbers = labelled[[3, 39, 3]]["index"]
    assert np.array_equal(numbers, np.where(found["index"] % 2, found["index"] // 2, -1))


@pytest.mark.parametrize("rows", [None, Groups("g*"), Grid(2)])
def test_all_steps_of_a_window_have_one_draw(tmp_path, rows):
    """It is that of the row, also at an edge, and in columns of other offsets; another epoch has others."""
    values = np.random.default_rng(0).random((3, 8, 30, 2))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, data in (("x", values), ("index", np.tile(np.arange(30), (3, 8, 1)))):
            file[f"grid/{name}"], file[f"axis/{name}"] = data, data[0]
            for number, each in enumerate(data):
                file[f"groups/g{number}/{name}"] = each
    group = {None: "axis", Groups("g*"): "groups", Grid(2): "grid"}[rows]
    columns = {"x": part("x", random=5), "index": part("index", random=5), "now": part("index", random=5)}
    columns["also"] = "also"
    windows = Windows({"x": [-1, 0], "index": [-1, 0], "also": ("index", [-1, 0])}, pad="zero")
    dataset = H5Dataset(tmp_path / "a.h5", columns, group=group, rows=rows, windows=windows)
    found = dataset[list(range(8))]
    assert found["now"].shape == (8, 5)
    assert np.array_equal(found["also"], found["index"])
    for t in range(8):
        for step, at in enumerate([t - 1, t]):
            taken = values[0, at][found["index"][t, step]] if at >= 0 else np.zeros((5, 2))
            assert np.array_equal(found["x"][t, step], taken)
    drawn = np.where(found["index"].any(axis=2, keepdims=True), found["index"], found["now"][:, None])  # not padding
    assert np.array_equal(drawn, np.stack([found["now"]] * 2, axis=1))
    assert len(np.unique(found["now"], axis=0)) == 8
    epochs = []
    for epoch in range(2):
        load = loader(dataset, batch_size=8, shuffle=Shuffle("rows", seed=3))
        load.set_epoch(epoch)
        epochs.append(np.sort(np.concatenate([batch["now"].numpy() for batch in load]), axis=0).tolist())
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (part("fields", {3: [0]}), "takes axis 3 of rows; expected rows with so many axes"),
        (part("fields", {0: [73]}), "found position 73; there are positions from 0 to 72"),
        (part("fields", {0: ["c1", "x"]}, names="channels"), "1 of 2 names are not there, such as 'x'"),
        (part("fields", {1: ["c1"]}, names="channels"), "expected a name for each of 24 positions"),
        (part("channels", {0: [0]}), "takes axis 0 of rows"),
        (part("channels", random=3), "no axis to draw from"),
    ],
)
def test_refused(fields, column, message):
    with pytest.raises(RayH5Error, match=message):
        read(fields[0], column)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: part("x"), "expected {axis: positions}"),
        (lambda: part("x", [0, 1]), "expected {axis: positions}"),
        (lambda: part("x", {-1: [0]}), "axis -1: expected the number of an axis"),
        (lambda: part("x", {0: []}), "found an empty list"),
        (lambda: part("x", {0: [1, 1]}), "more than once"),
        (lambda: part("x", {0: [-1]}), "expected positions from 0 on"),
        (lambda: part("x", {0: ["a", 1]}, names="v"), r"or names alone; found \['a', 1\]"),
        (lambda: part("x", {0: "ab"}), "expected a list of positions or names"),
        (lambda: part("x", {0: slice(0.5)}), "a slice of integers"),
        (lambda: part("x", {0: ["a"]}), "pass names= too"),
        (lambda: part("x", {0: [1]}, names="v"), "used only with a list of names"),
        (lambda: part("x", random=0), "1 or more"),
        (lambda: part("x", {0: [1]}, random=3), "draws from axis 0"),
    ],
)
def test_arguments(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_parts_of_a_column_without_offsets_that_a_group_lacks(tmp_path):
    o, o3 = np.arange(15).reshape(3, 5), np.arange(24).reshape(3, 2, 4)
    save(tmp_path / "a.h5", {"r0/x": np.arange(3), "r0/o": o, "r0/o3": o3, "r1/x": np.arange(3)})
    columns = {"x": "x", "o": part("o", {0: [0, 2]}), "inner": part("o3", {1: [0, 3]}), "drawn": part("o", random=2)}
    options = {"rows": Groups("r*", missing="null"), "windows": Windows({"x": [0]})}
    values = H5Dataset(tmp_path / "a.h5", columns, **options).read(range(6))
    assert [row.tolist() for row in values["o"][:3]] == o[:, [0, 2]].tolist()
    assert [row.tolist() for row in values["inner"][:3]] == o3[:, :, [0, 3]].tolist()
    assert all(set(row.tolist()) <= set(o[at].tolist()) and len(row) == 2 for at, row in enumerate(values["drawn"][:3]))
    assert all(row is None for name in ("o", "inner", "drawn") for row in values[name][3:])


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (part("x", random=2), {}),
        (part("x", random=2), {"decode_cf": True}),
        (part("x", {0: [0]}), {"axes": "reversed"}),
        (part("x", random=1), {"axes": "reversed"}),
        (part(of_fields("c", ["a", "b"]), {0: [0], 1: [0]}), {}),
        ("x", {"decode_cf": True}),
        ("x", {"decode_cf": True, "windows": Windows({"x": [0, 1]}, pad="drop")}),
    ],
    ids=str,
)
def test_values_of_parts_that_are_cast_are_checked(tmp_path, column, options):
    values = np.ones((5, 5), "i2")
    values[3] = values[:, 3] = 200
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["scale_factor"] = 2.0
        file["c"] = values.astype([("a", "f4"), ("b", "i2")])
    name = column if isinstance(column, str) else column.name
    kept = H5Dataset(tmp_path / "a.h5", [column], dtypes={name: "int16"}, casting="unsafe", **options)
    assert kept.read(np.array([0]))[name].dtype == "i2"
    checked = H5Dataset(tmp_path / "a.h5", [column], dtypes={name: "int8"}, **options)
    row = 2 if "windows" in options else 3
    with pytest.raises(
        CastError, match=rf"a.h5: column '{name}', row {row}: the value (200|400).* cannot be cast to int8"
    ):
        checked.read(np.array([row]))


def test_windows_into_an_array_with_gaps_are_checked(tmp_path):
    save(tmp_path / "a.h5", {"x": np.array([1.0, 2.0, 300.0])})
    out = np.zeros((1, 2, 3), "i1")[..., 0]
    with RowReader(tmp_path / "a.h5", windows=Windows({"x": [0, 1]}, pad="drop")) as reader:
        reader.read_into({"x": out}, [0])
        assert out.tolist() == [[1, 2]]
        with pytest.raises(CastError, match=r"column 'x', row 1: the value 300.0 cannot be cast to int8"):
            reader.read_into({"x": out}, [1])
