"""`labels=`: text, categories and integers as numbers of classes, the same in all files."""

import csv

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from ray_h5 import torch_data
from ray_h5.errors import CastError, OptionError, UnknownColumnError
from ray_h5.torch_data import Files, Groups, H5Dataset, Shuffle, Sidecar, Windows, balance, loader, part, ragged, where
from tests.golden.layouts import encoded
from tests.kit.files import save

TEXTS = [["T", "B", "T", "NK"], ["B", "B", "mono", "T"]]


def cells(path, codes, categories):
    """A column of categories as AnnData writes it, beside a plain one of strings."""
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        file["X"] = np.arange(len(codes) * 2.0).reshape(-1, 2)
        obs = file.create_group("obs")
        obs.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
        obs.attrs["column-order"] = ["cell_type"]
        obs["_index"] = np.arange(len(codes)).astype("S")
        group = obs.create_group("cell_type")
        group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
        group["codes"] = np.array(codes, np.int8)
        group["categories"] = np.array(categories, object)


@pytest.fixture
def annotated(tmp_path):
    """One file lacks a class, the other has another order."""
    cells(tmp_path / "a.h5ad", [1, 0, 1, 2], ["B", "T", "NK"])
    cells(tmp_path / "b.h5ad", [2, 2, 0, 1], ["mono", "T", "B"])
    return str(tmp_path / "*.h5ad")


@pytest.fixture
def texts(tmp_path):
    for name, values in zip("ab", TEXTS, strict=True):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(4.0)
            file["kind"] = np.array(values, object if name == "a" else "S4")
            file["grade"] = np.array([30, 10, 30, 20])
    return str(tmp_path / "*.h5")


def expected(classes):
    return [classes.index(each) for part in TEXTS for each in part]


def numbers(dataset, name):
    return [dataset[i][name].item() for i in range(len(dataset))]


@pytest.mark.parametrize("fixture", ["annotated", "texts"])
@pytest.mark.parametrize("classes", ["auto", ["T", "mono", "NK", "B"]])
def test_numbers_are_the_same_in_all_files(fixture, classes, request):
    name = "obs/cell_type" if fixture == "annotated" else "kind"
    dataset = H5Dataset(request.getfixturevalue(fixture), [name], labels={name: classes})
    ordered = ["B", "NK", "T", "mono"] if classes == "auto" else classes
    assert numbers(dataset, name) == expected(ordered)
    assert dataset.labels == {name: {value: number for number, value in enumerate(ordered)}}
    batch = next(iter(loader(dataset, 8, shuffle=None)))
    assert batch[name].dtype == torch.int64
    assert batch[name].tolist() == expected(ordered)


def test_predicates_and_balance_compare_the_text(texts):
    dataset = H5Dataset(texts, ["kind"], where(kind=["B", "mono"]), labels={"kind": "auto"})
    assert numbers(dataset, "kind") == [0, 0, 0, 3]
    order = loader(
        texts, 4, columns=["kind"], labels={"kind": "auto"}, shuffle=Shuffle("rows", weights=balance("kind"))
    )
    assert sum(len(batch["kind"]) for batch in order) == 8


def test_others_are_an_error_or_a_number(texts):
    with pytest.raises(CastError, match=r"a\.h5, row 3: column 'kind': 'NK' is none of the 2 classes .* None: -1"):
        H5Dataset(texts, ["kind"], labels={"kind": ["B", "T"]})[3]
    given = {"B": 0, "T": 5, "mono": 5, None: -100}
    dataset = H5Dataset(texts, ["kind"], labels={"kind": given})
    assert numbers(dataset, "kind") == [5, 0, 5, -100, 0, 0, 5, 5]
    assert dataset.labels == {"kind": given}


def test_missing_values(tmp_path):
    cells(tmp_path / "a.h5ad", [1, -1, 0], ["B", "T"])
    path, name = tmp_path / "a.h5ad", "obs/cell_type"
    assert numbers(H5Dataset(path, [name], labels={name: {None: -1}}), name) == [1, -1, 0]
    with pytest.raises(CastError, match=r"row 1: column 'obs/cell_type': the value is missing of labels: 0=B, 1=T"):
        H5Dataset(path, [name], labels={name: "auto"})[1]


def test_integers_and_rows_of_texts(texts, tmp_path):
    assert numbers(H5Dataset(texts, ["grade"], labels={"grade": "auto"}), "grade") == [2, 0, 2, 1] * 2
    with pytest.raises(CastError, match=r"row 1: column 'grade': 10 is none"):
        H5Dataset(texts, ["grade"], labels={"grade": [20, 30]})[1]
    save(tmp_path / "rows.hdf5", {"pair": np.array([["a", "b"], ["b", "b"]], object)})
    found = H5Dataset(tmp_path / "rows.hdf5", labels={"pair": ["a", "b"]})
    assert [found[i]["pair"].tolist() for i in range(2)] == [[0, 1], [1, 1]]
    assert H5Dataset(tmp_path / "rows.hdf5", labels={"pair": "auto"}).labels == {"pair": {"a": 0, "b": 1}}


@pytest.mark.parametrize("kind", ["ragged", "groups", "files", "table"])
@pytest.mark.parametrize("dtype", [h5py.string_dtype(), np.uint8, bool])
def test_a_class_for_each_value_of_rows_of_several_lengths(tmp_path, kind, dtype):
    """The classes of "auto" are those of all rows of all files; a batch is padded with a number of its own."""
    rng, rows, paths = np.random.default_rng(5), [], []
    for number in range(3):
        paths.append(tmp_path / f"{number}.h5")
        own = [rng.choice(["b", "ä", "c"][: number + 1], n) for n in rng.integers(0, 4, 3)]
        own = [row if np.dtype(dtype).hasobject else 2 * (row == "b") for row in own]
        own = [row.astype(dtype) for row in own]
        own, whole = ([np.concatenate(own)] if kind in {"files", "table"} else own), np.concatenate(own)
        columns = {"v": whole, "offsets": np.cumsum([0, *map(len, own)]), "x": np.zeros((1, 2))}
        columns = {f"g{i}/v": row for i, row in enumerate(own)} if kind == "groups" else columns
        save(paths[-1], columns)
        rows += [row.tolist() for row in own]
    options = {"rows": {"groups": Groups("g*"), "files": Files()}.get(kind)}
    options["columns"] = [{"ragged": ragged("v", offsets="offsets")}.get(kind, "v")]
    if kind == "table":
        if dtype is not np.uint8:
            return
        pq.write_table(pa.table({"path": [path.name for path in paths], "classes": rows}), tmp_path / "t.parquet")
        options = {"columns": ["x", "classes"], "sidecar": Sidecar(tmp_path / "t.parquet", on="path")}
    name, different = ("classes" if kind == "table" else "v"), sorted({value for row in rows for value in row})
    for _ in range(2):
        found = H5Dataset(paths, labels={name: "auto"}, index_dir=tmp_path / "index", **options)
        assert found.labels == {name: {value: number for number, value in enumerate(different)}}
        assert [row[name].tolist() for row in found] == [[different.index(value) for value in row] for row in rows]
        assert all(row[name].dtype == torch.int64 for row in found)
    batch = next(iter(loader(found, 9, shuffle=None, pad={name: -100})))
    longest = max(map(len, rows))
    assert batch[name].tolist() == [[*map(different.index, row), *[-100] * (longest - len(row))] for row in rows]
    with pytest.raises(CastError, match=r"\.h5, row \d: column '\w+': .* is none of the 1 classes") as caught:
        list(H5Dataset(paths, labels={name: different[:1]}, **options))
    assert "where(" not in str(caught.value)  # a predicate compares one value a row


def test_classes_of_a_column_that_is_drawn_are_listed(tmp_path):
    save(tmp_path / "a.h5", {"v": np.arange(5) % 3, "offsets": [0, 3, 5]})
    column = part(ragged("v", offsets="offsets"), random=2)
    assert len(H5Dataset(tmp_path / "a.h5", [column], labels={"v": [2, 1, 0]})[0]["v"]) == 2
    with pytest.raises(OptionError, match=r"the column is drawn, .* list the classes"):
        H5Dataset(tmp_path / "a.h5", [column], labels={"v": "auto"})


def test_classes_of_values_that_may_be_missing_in_groups(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, known in enumerate([["T", "B"], ["B", "NK"]]):  # each group numbers its categories otherwise
            encoded(
                file, f"{i}/kind", "categorical", codes=np.array([0, -1, 1], "i1"), categories=np.array(known, object)
            )
    rows = Groups("*")
    found = H5Dataset(tmp_path / "a.h5", ["kind"], rows=rows, labels={"kind": {None: -1}})
    assert found.labels == {"kind": {"B": 0, "NK": 1, "T": 2, None: -1}}
    assert [row["kind"].tolist() for row in found] == [[2, -1, 0], [0, -1, 1]]
    with pytest.raises(OptionError, match=r"the value is missing in some rows. Pass labels={'kind': {None: -1}}"):
        H5Dataset(tmp_path / "a.h5", ["kind"], rows=rows, labels={"kind": "auto"})
    with pytest.raises(OptionError, match=r"dtypes: column 'kind' holds .* pass labels={'kind': 'auto'}"):
        H5Dataset(tmp_path / "a.h5", ["kind"], rows=rows, dtypes={"kind": "int32"})


def test_windows(tmp_path):
    save(tmp_path / "a.h5", {"kind": np.array(["a", "b", "c"], object)})
    found = H5Dataset(tmp_path / "a.h5", windows=Windows({"kind": [-1, 0]}), labels={"kind": ["c", "b", "a"]})
    assert [found[i]["kind"].tolist() for i in range(3)] == [[2, 2], [2, 1], [1, 0]]


def test_columns_of_tables(texts, tmp_path):
    with open(tmp_path / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", "split"], ["a.h5", "late"], ["b.h5", "early"]])
    sidecar = Sidecar(tmp_path / "table.csv", on="path")
    found = H5Dataset(texts, ["x", "split"], sidecar=sidecar, labels={"split": "auto"})
    assert numbers(found, "split") == [1] * 4 + [0] * 4
    assert found.labels == {"split": {"early": 0, "late": 1}}
    with pytest.raises(CastError, match=r"row 0.*'late' is none of the 1 classes"):
        H5Dataset(texts, ["x", "split"], sidecar=sidecar, labels={"split": ["early"]})[0]


def test_a_state_of_other_classes_is_refused(texts):
    def sampler(classes):
        dataset = H5Dataset(texts, ["kind"], labels={"kind": classes})
        return torch_data.OrderSampler(dataset, shuffle=Shuffle(seed=1))

    state = sampler("auto").state_dict()
    sampler(["B", "NK", "T", "mono"]).load_state_dict(state)
    with pytest.raises(torch_data.PositionError, match=r"labels .kind.: {.B.: 0, .NK.: 1, .*, not .kind.: {.T.: 0"):
        sampler(["T", "B", "NK", "mono"]).load_state_dict(state)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["kind"], "expected {column: classes}"),
        ({"kind": "all"}, "expected 'auto'"),
        ({"kind": []}, "expected at least one class"),
        ({"kind": ["B", "B"]}, "B twice"),
        ({"kind": ["B", None]}, "None is no class"),
        ({"kind": {"B": "0"}}, "expected an integer as the number of 'B'"),
        ({"kind": [0.5]}, "expected text or integers"),
        ({"kind": [b"\xff"]}, r"expected text or integers as classes, found b'.xff'"),
        ({1: "auto"}, "expected names of columns"),
        ({"x": "auto"}, "labels are for text, categories and integers"),
        ({"kind": [0, 1]}, r"'kind': \.\.\.}: the column holds .*, and the classes are numbers: .* write 'auto'"),
        ({"grade": ["B", "T"]}, r"the column holds int64, and the classes are text: name its integers, such as \[0, 1"),
    ],
)
def test_wrong_options(texts, labels, message):
    with pytest.raises(OptionError, match=message):
        H5Dataset(texts, labels=labels)


def test_a_column_that_is_cast_or_missing(texts):
    with pytest.raises(OptionError, match="'grade' is in both"):
        H5Dataset(texts, labels={"grade": "auto"}, dtypes={"grade": "int8"})
    with pytest.raises(UnknownColumnError, match=r"labels: no column 'kinds'. Did you mean 'kind'\?"):
        H5Dataset(texts, labels={"kinds": "auto"})


def test_a_column_that_is_not_delivered(texts):
    with pytest.raises(OptionError, match=r"'kind' is not delivered. Write columns=\[..., 'kind'\], or leave it out"):
        H5Dataset(texts, ["x"], labels={"kind": "auto"})
    assert len(torch_data.kfold(texts, 2, group="grade", stratify="kind", labels={"kind": "auto"})) == 2


def test_the_index_keeps_the_values(texts):
    index = H5Dataset(texts, ["kind"], labels={"kind": "auto"}).index
    assert pc.unique(index.values(["kind"])["kind"]).to_pylist() == ["T", "B", "NK", "mono"]
