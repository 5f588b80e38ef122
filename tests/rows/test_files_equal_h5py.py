"""Files as rows: each row is what h5py reads of all datasets of a file."""

import pickle
from functools import partial

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Files, H5Dataset, Patches, Shuffle, Sidecar, Windows, between, kfold, loader, ragged, where
from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.files import opening
from tests.properties import few
from tests.rows.kit import DTYPES, assert_value, make_dataset, open_rows, storages


@st.composite
def some_files(draw):
    """Draw columns of several files: a dtype, and the shape and storage in each file."""
    count = draw(st.integers(1, 4))
    columns = {}
    for name in ["x", "obs/y", "z"][: draw(st.integers(1, 3))]:
        row_shape = draw(st.sampled_from([(), (3,), (2, 3), (0,), "single"]))
        if row_shape == "single":
            dtype = draw(st.sampled_from([each for each in DTYPES if each.names is None and each.subdtype is None]))
            options = {"written": "all", "how": "contiguous", "fill": False}
            columns[name] = dtype, [((), options)] * count
            continue
        shapes = [(draw(st.integers(0, 9)), *(n + draw(st.integers(0, 1)) for n in row_shape)) for _ in range(count)]
        columns[name] = draw(st.sampled_from(DTYPES)), [(shape, draw(storages(shape[1:]))) for shape in shapes]
    return count, columns


@few(15)
@given(some_files())
def test_rows_equal_h5py(tmp_path_factory, drawn):
    count, columns = drawn
    folder = tmp_path_factory.mktemp("files")
    for i in range(count):
        expected = {}
        with h5py.File(folder / f"slide.{i}.h5", "w") as file:
            group = file.create_group("in/it")
            for seed, (name, (dtype, of)) in enumerate(columns.items()):
                shape, options = of[i]
                if "chunks" in options:
                    options = {**options, "chunks": tuple(max(1, c) for c in options["chunks"])}
                    if not options["growing"]:
                        clipped = (min(c, max(n, 1)) for c, n in zip(options["chunks"], shape, strict=True))
                        options |= {"chunks": tuple(clipped), "growing": 0 in shape}
                expected[name] = make_dataset(group, name, dtype, shape, options, 10 * i + seed)
        with open_rows(folder / f"slide.{i}.h5", Files(key="slide"), group="in/it") as reader:
            assert set(reader.columns) == {*columns, "slide"}
            assert reader.num_rows == 1
            found = reader.read([*columns, "slide"])
        assert found["slide"].tolist() == [f"slide.{i}".encode()]
        for name, values in expected.items():
            assert_value(found[name][0], values)


@pytest.fixture
def bags(tmp_path):
    """Write files of bags; return the folder, and the features of each file."""
    rng = np.random.default_rng(0)
    features = []
    for i in range(7):
        with h5py.File(tmp_path / f"slide_{i}.h5", "w") as file:
            features.append(rng.random((3 + i, 4), dtype="f4"))
            file.create_dataset("features", data=features[-1], chunks=(2, 4), compression="gzip")
            file["coords"] = rng.integers(0, 99, (3 + i, 2))
            file["label"] = i % 2
            file.attrs["mpp"] = 0.25 * i
    return tmp_path, features


def test_scalars_key_attributes_and_tables(bags):
    folder, features = bags
    lines = [f"slide_{i},patient_{i // 2}" for i in range(7)]
    (folder / "table.csv").write_text("\n".join(["slide,patient", *lines]))
    options = {"rows": Files(key="slide"), "attrs": ["mpp"], "sidecar": Sidecar(folder / "table.csv", on="slide")}
    chosen = H5Dataset(folder, None, where(label=1, mpp=between(0.5, None)), **options)
    assert [row["slide"] for row in chosen] == ["slide_3", "slide_5"]
    for row, i in zip(chosen, [3, 5], strict=True):
        assert row["patient"] == f"patient_{i // 2}"
        assert row["coords"].shape == (3 + i, 2)
        np.testing.assert_array_equal(row["features"], features[i])
    folds = kfold(folder, 2, group="patient", stratify=None, **options)
    held = [{row["patient"] for row in H5Dataset(folder, ["patient"], valid, **options)} for _, valid in folds]
    assert held[0] | held[1] == {f"patient_{i}" for i in range(4)}
    assert not held[0] & held[1]


@pytest.mark.parametrize("kind", [Files, partial(Patches, {"x": (2,)}, stride=2)])
def test_names_of_files_tell_them_apart(tmp_path, kind):
    names = ["p1/a/scan.h5", "p1/b/scan.h5", "p2/a/scan.h5", "p2/a/other.h5"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = [number, number]
    paths, expected = [tmp_path / name for name in names], sorted(name.removesuffix(".h5") for name in names)
    (tmp_path / "t.csv").write_text("scan,y\n" + "".join(f"{name},{n}\n" for n, name in enumerate(expected)))
    (tmp_path / "index").mkdir()

    def keys(paths, **options):
        options |= {"rows": kind(key="scan"), "index_dir": tmp_path / "index"}
        return [row["scan"] for row in pickle.loads(pickle.dumps(H5Dataset(paths, **options)))]

    table = Sidecar(tmp_path / "t.csv", on="scan")
    for _ in range(2):  # the second reads index files
        assert keys(paths, sidecar=table) == expected
        assert keys(paths, predicate=where(scan=expected[3])) == [expected[3]]
        assert keys(paths[1:3]) == ["b/scan", "a/scan"]
        assert keys(paths[2:], predicate=where(scan=["scan", "other"])) == ["other", "scan"]
    paths[0].rename(tmp_path / "p2/a/scan.hdf5")
    with pytest.raises(OptionError, match=r"key='scan': two files '.*p2/a/scan' differ only by extension"):
        keys(tmp_path / "p2")


def test_ranks_and_padding(bags):
    folder, features = bags
    options = {"columns": ["features", "slide"], "rows": Files(key="slide"), "pad": True}
    found = {}
    for rank in range(2):
        batches = loader(folder, 2, shuffle=Shuffle(seed=3), rank=rank, world_size=2, **options)
        for batch in batches:
            for name, values, length in zip(batch["slide"], batch["features"], batch["features_length"], strict=True):
                found[name] = values[:length].numpy()
    assert sorted(found) == [f"slide_{i}" for i in range(7)]
    for i in range(7):
        np.testing.assert_array_equal(found[f"slide_{i}"], features[i])


def test_a_warm_index_opens_no_file(bags, tmp_path_factory, monkeypatch):
    folder, index_dir = bags[0], tmp_path_factory.mktemp("index")
    H5Dataset(folder, rows=Files(key="slide"), index_dir=index_dir)
    monkeypatch.setattr(opening, "_opened", lambda *_: pytest.fail("a file was opened"))
    assert len(H5Dataset(folder, rows=Files(key="slide"), index_dir=index_dir)) == 7


def test_windows_over_files(bags):
    folder, features = bags
    windows = Windows({"features": [-1, 0]}, pad="drop")
    dataset = H5Dataset(folder, ["features", "coords", "label"], rows=Files(), windows=windows)
    assert len(dataset) == sum(len(each) - 1 for each in features)
    np.testing.assert_array_equal(dataset[0]["features"], features[0][:2])
    assert dataset[0]["coords"].shape == (2,)  # as many as features: a value for each step
    assert dataset[2]["label"] == 1


def test_what_is_refused_says_what_to_do(bags, tmp_path_factory):
    folder, _ = bags
    with pytest.raises(OptionError, match=r"write Files\(\.\.\.\)"):
        H5Dataset(folder, rows=Files)
    with pytest.raises(OptionError, match="Choose another key"):
        H5Dataset(folder, rows=Files(key="label"))
    with pytest.raises(OptionError, match="rows of rows"):
        H5Dataset(folder, [ragged("features", offsets="coords")], rows=Files())
    with h5py.File(folder / "slide_0.h5", "a") as file:
        file["other"] = np.zeros(9)
    with pytest.raises(SchemaMismatchError, match="episode_length='min'"):
        H5Dataset(folder / "slide_0.h5", rows=Files(), windows=Windows({"features": [0], "other": [0]}))
    path = tmp_path_factory.mktemp("vlen") / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", (2,), h5py.vlen_dtype("u1"))
        file["x"] = np.zeros(2)
    with pytest.raises(UnsupportedColumnError, match="rows of rows"):
        H5Dataset(path, ["images"], rows=Files())
    assert H5Dataset(path, rows=Files())[0].keys() == {"x"}  # and a warning says why
