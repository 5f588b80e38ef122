"""zip_files=: files that are read together by row."""

import logging
import re

import h5py
import numpy as np
import pytest

from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, StaleIndexError, UnsupportedColumnError
from ray_h5.torch_data import Files, Grid, H5Dataset, Shuffle, Sidecar, Windows, loader, where
from tests.kit.files import save

COUNTS = [5, 3, 0, 7, 2, 4, 1, 6, 2, 3, 5]


@pytest.fixture
def pairs(tmp_path):
    """Eleven pairs of files, and the values of all rows: x_10 is after x_9."""
    rng = np.random.default_rng(0)
    expected = {"x": [], "label": [], "y": [], "text": []}
    for number, count in enumerate(COUNTS):
        made = {
            "x": rng.random((count, 3)), "label": rng.integers(0, 3, count),
            "y": rng.random((count, 2, 4)), "text": np.array([f"{number} {row}" for row in range(count)], "S8"),
        }  # fmt: skip
        save(tmp_path / f"x_{number}.h5", {"x": made["x"], "label": made["label"]})
        with h5py.File(tmp_path / f"y_{number}.h5", "w") as file:
            options = {"chunks": (2, 2, 4), "compression": "gzip", "maxshape": (None, 2, 4)}
            file.create_dataset("y", data=made["y"], **options)
            file["text"] = made["text"]
        for name, values in made.items():
            expected[name].append(values)
    return tmp_path, {name: np.concatenate(values) for name, values in expected.items()}


def globs(folder):
    return {"paths": f"{folder}/x_*.h5", "zip_files": f"{folder}/y_*.h5"}


def check(batch, expected, rows):
    for name in ("x", "y", "label"):
        np.testing.assert_array_equal(np.asarray(batch[name]), expected[name][rows])
    assert [each.encode() for each in batch["text"]] == expected["text"][rows].tolist()


def test_rows_have_the_columns_of_both(pairs, tmp_path):
    folder, expected = pairs
    dataset = H5Dataset(**globs(folder))
    assert sorted(dataset.columns) == ["label", "text", "x", "y"]
    order = np.random.default_rng(1).permutation(len(expected["x"]))
    check(dataset[order.tolist()], expected, order)
    for label in range(3):
        chosen = H5Dataset(**globs(folder), predicate=where(label=label))
        rows = np.flatnonzero(expected["label"] == label)
        check(chosen[list(range(len(rows)))], expected, rows)
    text = expected["text"][7].decode()
    check(H5Dataset(**globs(folder), predicate=where(text=text))[[0]], expected, [7])
    seen = []
    for batch in loader(dataset, 4, shuffle=Shuffle("chunks", seed=2)):
        rows = [expected["text"].tolist().index(each.encode()) for each in batch["text"]]
        check(batch, expected, rows)
        seen += rows
    assert sorted(seen) == list(range(len(expected["x"])))
    again = H5Dataset(**globs(folder), index_dir=tmp_path / "index")
    check(H5Dataset(**globs(folder), index_dir=tmp_path / "index")[[3]], expected, [3])
    assert again.columns == dataset.columns


def test_windows_grids_and_files(pairs):
    folder, expected = pairs
    windows = H5Dataset(f"{folder}/x_0.h5", ["x", "y"], zip_files=f"{folder}/y_0.h5",
                        windows=Windows({"y": [-1, 0], "x": [0]}, pad="drop"))  # fmt: skip
    np.testing.assert_array_equal(windows[2]["y"].numpy(), expected["y"][2:4])
    np.testing.assert_array_equal(windows[2]["x"].numpy(), expected["x"][3:4])
    grid = H5Dataset(f"{folder}/x_0.h5", ["y"], zip_files=f"{folder}/y_0.h5", rows=Grid(2))
    np.testing.assert_array_equal(grid[3]["y"].numpy(), expected["y"][1, 1])
    whole = H5Dataset(f"{folder}/x_[01].h5", ["x", "y"], zip_files=f"{folder}/y_[01].h5", rows=Files())
    np.testing.assert_array_equal(whole[1]["y"].numpy(), expected["y"][5:8])
    np.testing.assert_array_equal(whole[1]["x"].numpy(), expected["x"][5:8])


def test_files_that_do_not_fit_are_named(pairs, caplog):
    folder, _ = pairs
    with pytest.raises(OptionError, match=r"expected a file for each of 11, found 10.*x_10\.h5"):
        H5Dataset(f"{folder}/x_*.h5", zip_files=[f"{folder}/y_{number}.h5" for number in range(10)])
    with pytest.raises(OptionError, match=r"x_0\.h5' is also in the paths|x_0\.h5 is also in the paths"):
        H5Dataset(f"{folder}/x_0.h5", zip_files=f"{folder}/x_0.h5")
    with pytest.raises(SchemaMismatchError, match=r"(?s)x_0\.h5.*3 rows.*5 rows.*y_1\.h5.*Sidecar\(.*'row_id'\)"):
        H5Dataset(f"{folder}/x_0.h5", zip_files=f"{folder}/y_1.h5")
    with pytest.raises(OptionError, match="zip_files"):
        H5Dataset(f"{folder}/x_0.h5", zip_files=[])
    with h5py.File(folder / "x_1.h5", "r+") as file:
        file["inner/x"] = np.zeros(5)
    with pytest.raises(RayH5Error, match=r"zip_files: .*y_1\.h5 has no group 'inner'"):
        H5Dataset(f"{folder}/x_1.h5", zip_files=f"{folder}/y_1.h5", group="inner")
    with h5py.File(folder / "y_0.h5", "r+") as file:
        file["label"] = np.zeros(5)
    with caplog.at_level(logging.WARNING):
        dataset = H5Dataset(f"{folder}/x_0.h5", zip_files=f"{folder}/y_0.h5")
    assert sorted(dataset.columns) == ["text", "x", "y"]
    assert "label" in caplog.text
    with pytest.raises(UnsupportedColumnError, match=r"'label' is in .*y_0\.h5, too"):
        H5Dataset(f"{folder}/x_0.h5", ["label"], zip_files=f"{folder}/y_0.h5")


def test_a_file_beside_that_changes_is_an_error(pairs):
    folder, _ = pairs
    dataset = H5Dataset(**globs(folder))
    with h5py.File(folder / "y_1.h5", "r+") as file:
        file["y"][:] = 0
    with pytest.raises(StaleIndexError, match=r"y_1\.h5"):
        dataset[6]


def test_files_that_pair_up_are_refused_with_the_way_to_read_them(tmp_path):
    for i in range(2):
        for name, values in (("x", np.zeros((4 + i, 3))), ("y", np.arange(4 + i))):
            with h5py.File(tmp_path / f"run{i}_{name}.h5", "w") as file:
                file[name] = values
    with pytest.raises(SchemaMismatchError) as raised:
        H5Dataset(tmp_path)
    paths, others = (str(tmp_path / f"run*_{name}.h5") for name in "xy")
    assert f"pass the paths {paths!r} and zip_files={others!r}" in str(raised.value)
    assert len(H5Dataset(paths, zip_files=others)) == 9
    with h5py.File(tmp_path / "run1_y.h5", "a") as file:
        del file["y"]
        file["y"] = np.arange(3)  # other numbers of rows are no pairs
    with pytest.raises(SchemaMismatchError) as raised:
        H5Dataset(tmp_path)
    assert "zip_files" not in str(raised.value)


@pytest.mark.parametrize("name", ["event_id", "eventID", "grid"])
def test_files_with_ids_of_each_other_are_refused_with_the_way_to_join_them(tmp_path, name):
    ids = np.array([3, 1, 1, 2, 3])
    save(tmp_path / "questions.h5", {"q": np.arange(5), name: ids})
    save(tmp_path / "images.h5", {"x": np.arange(4.0), name: np.arange(4)})
    with pytest.raises(SchemaMismatchError) as raised:
        H5Dataset(tmp_path)
    printed = re.search(r"pass the paths '(.*)' and sidecar=(Sidecar\(.*\))\.", str(raised.value))
    assert (printed is None) == (name == "grid")
    if printed is not None:
        sidecar = eval(printed[2], {"Sidecar": Sidecar})
        assert H5Dataset(printed[1], ["q", "x"], sidecar=sidecar)[:]["x"].tolist() == ids.tolist()


def write_cells(path, kinds):
    """Write a file of AnnData with a category for each cell."""
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        table = file.create_group("obs")
        table.attrs.update({"encoding-type": "dataframe", "_index": "_index", "column-order": ["kind"]})
        table["_index"] = np.array([f"cell {i}" for i in range(len(kinds))], object)
        column = table.create_group("kind")
        column.attrs["encoding-type"] = "categorical"
        names, codes = np.unique(kinds, return_inverse=True)
        column["codes"], column["categories"] = codes.astype("i1"), names.astype(object)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("names", [None, ["x", "obs/kind"]])
def test_encoded_columns_are_those_of_either_file(tmp_path, is_first, names):
    """A file of AnnData has its columns, and the plain one beside it has all of its own."""
    kinds = ["B", "T", "B", "NK"]
    write_cells(tmp_path / "cells.h5ad", kinds)
    save(tmp_path / "x.h5", {"x": np.arange(4.0)})
    files = [tmp_path / "cells.h5ad", tmp_path / "x.h5"]
    path, other = files if is_first else files[::-1]
    dataset = H5Dataset(path, names, zip_files=other)
    assert sorted(dataset.columns) == (["obs/_index", "obs/kind", "x"] if names is None else ["obs/kind", "x"])
    batch = dataset[[3, 0, 2]]
    assert list(batch["obs/kind"]) == ["NK", "B", "B"]
    np.testing.assert_array_equal(batch["x"], [3, 0, 2])
    assert len(H5Dataset(path, names, zip_files=other, predicate=where(**{"obs/kind": "B"}))) == 2


IDS = np.arange(12) * 7 % 12
ORDERS = {
    "reversed": (IDS[::-1], "error"),
    "same": (IDS, ""),
    "last": (np.r_[IDS[:-1], 99], "row 11 has 105 and 199"),
    "others": (IDS + 50, "row 0 has 100 and 150"),
    "repeated": (IDS // 2, "row 1 has 107 and 103"),
}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("columns", [None, ["x", "y"]])
def test_ids_that_differ_say_how_rows_were_joined(tmp_path, caplog, order, as_text, columns):
    """Two pairs of files; the ids of the second pair differ."""
    ids, said = ORDERS[order]
    for number, others in enumerate((IDS, ids)):
        for name, values in (("x", IDS), ("y", others)):
            stored = values + 100 * number
            own = stored if not as_text else [f"{value}" for value in stored]
            save(tmp_path / f"{name}_{number}.h5", {name: stored * 2.0, "id": np.array(own, "S4" if as_text else None)})
    given = {"paths": str(tmp_path / "x_*.h5"), "columns": columns}
    if said != "error":
        assert len(H5Dataset(**given, zip_files=str(tmp_path / "y_*.h5"))) == 24
        text = re.sub(r"(\d+) and (\d+)$", r"'\1' and '\2'", said) if as_text else said
        assert text in caplog.text
        assert ("joins" in caplog.text) == bool(said)
        return
    with pytest.raises(SchemaMismatchError, match=r"x_1\.h5.*'id' differs: row 0 has '?100'? and '?105'?") as caught:
        H5Dataset(**given, zip_files=str(tmp_path / "y_*.h5"))
    printed = re.search(r"sidecar=(Sidecar\(.*?, on='id'\))", str(caught.value))[1]
    joined = H5Dataset(given["paths"], ["x", "y"], sidecar=eval(printed, {"Sidecar": Sidecar}))[:]
    assert joined["x"].tolist() == joined["y"].tolist()
    joined = H5Dataset(given["paths"], ["x", "y"], sidecar=Sidecar(str(tmp_path / "y_*.h5"), on="row_id"))[:]
    assert joined["y"].tolist()[12:] == joined["x"].tolist()[12:][::-1]
