"""Columns that some files lack: None in the rows of these, whatever a row is."""

import h5py
import numpy as np
import pytest
import torch

from ray_h5 import Files, Grid, Groups, H5Dataset, Windows, any_equal, loader, row_mask
from ray_h5.errors import CastError, OptionError, SchemaMismatchError, UnknownColumnError
from ray_h5.torch_data import kfold, where
from tests.kit.files import save

ROWS = 3
LACKING = {
    "label": lambda i: np.arange(ROWS) + 10 * i,
    "flag": lambda i: np.array([True, False, bool(i % 3)]),
    "vector": lambda i: np.full((ROWS, 4), i, "f4"),
    "text": lambda i: np.array([f"t{i}{row}" for row in range(ROWS)], object),
}


@pytest.fixture
def folder(tmp_path):
    """Four files, of which the second and the fourth have all columns."""
    for i in range(4):
        arrays = {"x": np.arange(ROWS) + 100.0 * i, **{name: of(i) for name, of in LACKING.items() if i % 2}}
        save(tmp_path / f"{i}.h5", {name: array for name, array in arrays.items() if name != "text"})
        if i % 2:
            with h5py.File(tmp_path / f"{i}.h5", "a") as file:
                file["text"] = arrays["text"]
    return tmp_path


def plain(value):
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


def expected(name, i):
    if name == "x":
        return (np.arange(ROWS) + 100.0 * i).tolist()
    return LACKING[name](i).tolist() if i % 2 else [None] * ROWS


@pytest.mark.parametrize("index_dir", [None, "index"])
@pytest.mark.parametrize("columns", [None, ["label"], ["x", "vector", "text"], ["flag", "x"]])
def test_rows_along_the_first_axis(folder, columns, index_dir):
    options = {"missing": "null", "index_dir": index_dir and str(folder / index_dir)}
    for _ in range(2 if index_dir else 1):
        rows = H5Dataset(str(folder / "?.h5"), columns, **options)
        assert len(rows) == 4 * ROWS
        for name in rows.columns:
            found = [plain(rows[i][name]) for i in range(len(rows))]
            assert found == [value for i in range(4) for value in expected(name, i)], name
            assert [plain(value) for value in rows[1:11][name]] == found[1:11]
    assert sorted(rows.columns) == sorted(columns or ["x", *LACKING])
    # What one plan says of a file is said by no other.
    with pytest.raises(SchemaMismatchError, match="or pass missing='null': values are None"):
        H5Dataset(str(folder / "?.h5"), columns, index_dir=options["index_dir"])


@pytest.mark.parametrize("rows", [Files(missing="null"), Groups("g", missing="null"), Groups("*", missing="null")])
def test_rows_that_are_whole(folder, rows):
    paths = [str(path) for path in sorted(folder.glob("?.h5"))]
    if isinstance(rows, Groups):
        for path in paths:
            with h5py.File(path, "a") as file:
                for name in list(file):
                    file.move(name, f"g/{name}")
    for columns in (["label", "x", "vector"], ["vector"], None):
        found = H5Dataset(paths, columns, rows=rows)
        for name in set(found.columns) - {"text"}:
            wanted = [expected(name, i) if name == "x" or i % 2 else None for i in range(4)]
            assert [plain(found[i][name]) for i in range(4)] == wanted


def test_predicates_folds_weights_and_casts(folder):
    options = {"missing": "null"}
    paths = str(folder / "?.h5")

    def chosen(predicate):
        return H5Dataset(paths, ["x"], predicate=predicate, **options).selection.tolist()

    assert chosen(where(label=[10, 31])) == [3, 10]
    assert chosen(where(label=None)) == [0, 1, 2, 6, 7, 8]
    assert chosen(where(text="t12")) == [5]
    assert chosen(where(vector=any_equal(3))) == [9, 10, 11]
    assert chosen(~where(label=None) & where(flag=True)) == [3, 5, 9]
    for columns in (["label"], ["text", "vector"]):  # of files that lack all that is read, rows are chosen, too
        found = H5Dataset(paths, columns, predicate=where(x=[0, 101, 202]), **options)
        assert found.selection.tolist() == [0, 4, 8]
        assert [plain(found[i][columns[0]]) for i in range(3)] == [None, expected(columns[0], 1)[1], None]
    for predicate in (where(vektor=any_equal(3)), ~where(vektor=any_equal(3)), where(vektor=3)):
        with pytest.raises(UnknownColumnError, match="no 'vektor' below group"):
            H5Dataset(paths, ["x"], predicate=predicate, **options)
    for path in sorted(folder.glob("?.h5")):  # which rows are chosen does not depend on what is read of them
        with h5py.File(path, "a") as file:
            file["mask"] = [True, False, True]
    for predicate, wanted in (
        (~where(vector=any_equal(3)), [*range(9)]),
        (where(vector=any_equal(3)), [9, 10, 11]),
        (where(mask=row_mask()), [0, 2, 3, 5, 6, 8, 9, 11]),
        (where(mask=row_mask()) & where(label=None), [0, 2, 6, 8]),
    ):
        for columns in (["x"], ["label"], ["flag", "text"]):
            assert H5Dataset(paths, columns, predicate=predicate, **options).selection.tolist() == wanted
    folds = kfold(paths, 2, stratify="label", **options)
    parts = [H5Dataset(paths, ["x"], predicate=valid, **options).selection for _, valid in folds]
    assert sorted(np.concatenate(parts)) == list(range(12))
    floats = H5Dataset(paths, ["label"], dtypes={"label": "float32"}, **options)[:]["label"].numpy()
    np.testing.assert_array_equal(floats.reshape(4, ROWS)[::2], np.nan)
    np.testing.assert_array_equal(floats.reshape(4, ROWS)[1::2], [[10, 11, 12], [30, 31, 32]])
    with pytest.raises(CastError, match="column 'label': the file lacks this column, which int32 cannot say"):
        H5Dataset(paths, ["label"], dtypes={"label": "int32"}, **options)[0]
    classes = H5Dataset(paths, ["text"], labels={"text": {"t11": 1, None: -1}}, **options)[:]["text"]
    assert classes.tolist() == [-1] * 4 + [1] + [-1] * 7
    batch = next(iter(loader(paths, 12, columns=["vector"], pad=True, shuffle=False, **options)))
    assert batch["vector_length"].tolist() == [0, 0, 0, 4, 4, 4] * 2


def test_what_can_be_no_column_of_these(folder):
    save(folder / "1.h5", {"x": np.arange(ROWS), "pairs": np.zeros(ROWS, [("a", "i4")])})
    paths = str(folder / "[01].h5")
    with pytest.raises(SchemaMismatchError, match=r"'pairs' is missing, and others have .* cannot be None"):
        H5Dataset(paths, missing="null")
    for options in ({"rows": Grid(1)}, {"windows": Windows({"x": [0]})}):
        with pytest.raises(OptionError, match="missing='null' is for rows along the first axis, Groups and Files"):
            H5Dataset(paths, missing="null", **options)
    for make in (lambda: H5Dataset(paths, missing="none"), lambda: Files(missing=None)):
        with pytest.raises(OptionError, match="expected 'error' or 'null'"):
            make()
    save(folder / "0.h5", {"x": np.arange(ROWS), "y": np.zeros((ROWS, 2))})
    save(folder / "1.h5", {"x": np.arange(ROWS), "y": np.zeros((ROWS, 2, 2))})
    save(folder / "2.h5", {"x": np.arange(ROWS)})
    with pytest.raises(SchemaMismatchError, match="column 'y': expected"):
        H5Dataset(str(folder / "[012].h5"), missing="null")
