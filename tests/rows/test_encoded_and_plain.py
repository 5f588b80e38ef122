"""A column that one file encodes, as categories or with a mask, and another one stores plainly."""

from itertools import pairwise

import h5py
import numpy as np
import pytest

from ray_h5.errors import SchemaMismatchError, UnknownColumnError
from ray_h5.plan.blocks import Block
from ray_h5.plan.row_source import read_rows
from ray_h5.ray_data.arrow.blocks import to_table
from ray_h5.torch_data import Groups, H5Dataset, Shuffle, Windows, balance, between, kfold, loader, ragged, where
from tests.golden.layouts import encoded

anndata = pytest.importorskip("anndata", reason="anndata writes these files")
pd = pytest.importorskip("pandas")

TYPES = ["B", "T", None, "T", "é", "B"]


def write(path, **obs):
    size = len(next(iter(obs.values())))
    table = pd.DataFrame(obs, index=[f"cell{i}" for i in range(size)])
    anndata.AnnData(np.arange(size * 2.0).reshape(size, 2), obs=table).write_h5ad(path)
    return path


@pytest.fixture
def mixed(tmp_path):
    """Text: categories, plain strings, and categories with other codes. Numbers: with and without a mask."""
    texts = [each or "none" for each in TYPES]
    write(tmp_path / "a.h5ad", kind=pd.Categorical(TYPES), n=pd.array([1, None, 3, 4, 5, 6], "Int64"),
          batch=pd.Categorical([10, 20, 10, 20, 10, 20]), good=[True, False] * 3)  # fmt: skip
    write(tmp_path / "b.h5ad", kind=texts, n=np.arange(6), batch=np.array([10, 30] * 3),
          good=pd.array([True, None, False] * 2, "boolean"))  # fmt: skip
    kind = pd.Categorical(texts, categories=["none", "é", "T", "B"])
    write(tmp_path / "c.h5ad", kind=kind, n=np.arange(6), batch=np.array([10, 30] * 3), good=[False] * 6)
    # anndata makes categories of strings that repeat.
    with h5py.File(tmp_path / "b.h5ad", "r+") as file:
        del file["obs/kind"]
        file["obs/kind"] = np.array(texts, object)
        file["obs/kind"].attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    return tmp_path, [*TYPES, *texts, *texts]


@pytest.mark.parametrize("names", [["a", "b", "c"], ["b", "a", "c"], ["b", "c", "a"]])
def test_values_are_the_same_in_any_order_of_files(mixed, names):
    folder, texts = mixed
    paths = [folder / f"{name}.h5ad" for name in names]
    each = dict(zip("abc", np.array([*texts, None], object)[:-1].reshape(3, 6).tolist(), strict=True))
    whole = H5Dataset(paths, ["obs/kind", "obs/n", "obs/batch", "obs/good", "X"])
    order = [i for name in sorted(names) for i in each[name]]
    assert whole[:]["obs/kind"] == order
    assert whole[:]["obs/n"] == [1, None, 3, 4, 5, 6, *range(6), *range(6)]
    assert whole[:]["obs/batch"] == [10, 20] * 3 + [10, 30] * 6
    assert whole[:]["obs/good"] == [True, False] * 3 + [True, None, False] * 2 + [False] * 6
    assert all(type(value) is int for value in whole[:]["obs/batch"])
    assert whole[7]["obs/kind"] == order[7]


def test_predicates_weights_and_folds(mixed):
    folder, texts = mixed
    wanted = where(**{"obs/kind": ["T", "é"], "obs/n": between(3, None)})
    found = H5Dataset(folder, ["obs/kind"], wanted)
    numbers = [1, None, 3, 4, 5, 6, *range(6), *range(6)]
    expected = [i for i, (t, n) in enumerate(zip(texts, numbers, strict=True)) if t in {"T", "é"} and (n or 0) >= 3]
    assert found.selection.tolist() == expected
    assert H5Dataset(folder, ["X"], where(**{"obs/kind": None})).selection.tolist() == [2]
    there = H5Dataset(folder, ["obs/kind"], ~where(**{"obs/kind": None}))
    drawn = loader(there, 6, shuffle=Shuffle(seed=0, weights=balance("obs/kind")))
    assert {text for batch in drawn for text in batch["obs/kind"]} == {"B", "T", "é", "none"}
    for train, valid in kfold(folder, 2, group="obs/batch"):
        sides = [set(H5Dataset(folder, ["obs/batch"], each)[:]["obs/batch"]) for each in (train, valid)]
        assert not sides[0] & sides[1]


def test_casts_of_both(mixed):
    folder, texts = mixed
    dtypes = {"obs/kind": bytes, "obs/n": "float32", "obs/batch": "float64", "obs/good": "float32"}
    whole = H5Dataset(folder, list(dtypes), dtypes=dtypes)[:]
    assert whole["obs/kind"] == [None if each is None else each.encode() for each in texts]
    np.testing.assert_array_equal(whole["obs/n"], [1, np.nan, 3, 4, 5, 6, *range(6), *range(6)])
    np.testing.assert_array_equal(whole["obs/batch"], [10, 20] * 3 + [10, 30] * 6)
    assert np.isnan(whole["obs/good"][7].item())


@pytest.mark.parametrize(("column", "plain"), [("obs/kind", "string"), ("obs/batch", "int64")])
def test_codes_need_categories_in_all_files(mixed, column, plain):
    folder, _ = mixed
    paths = [folder / "b.h5ad", folder / "a.h5ad"]
    message = rf"'{column}': .*codes of its categories in .*a\.h5ad; .*b\.h5ad holds {plain}.*Leave '{column}' out of"
    with pytest.raises(SchemaMismatchError, match=message):
        H5Dataset(paths, [column], dtypes={column: "int32"})


def test_other_codes_do_not_matter_beside_plain_values(tmp_path):
    """The codes of two files differ; a third one has plain numbers, and is the first."""
    write(tmp_path / "a.h5ad", batch=np.array([30, 40]))
    write(tmp_path / "b.h5ad", batch=pd.Categorical([30, 40]))
    write(tmp_path / "c.h5ad", batch=pd.Categorical([30, 40], categories=[40, 30]))
    assert H5Dataset(tmp_path, ["obs/batch"])[:]["obs/batch"] == [30, 40] * 3
    cast = H5Dataset(tmp_path, ["obs/batch"], dtypes={"obs/batch": "float32"})[:]["obs/batch"]
    assert cast.tolist() == [30, 40] * 3


@pytest.mark.parametrize("of", ["ranges", "spans", "steps of ranges"])
@pytest.mark.parametrize("known", [["é", "T", "B"], [30, 10, 20]])
def test_lists_of_categories_are_values_whose_codes_each_file_may_have_its_own_of(tmp_path, of, known):
    expected, bounds = [], np.array([0, 2, 2, 6])
    for number in range(3):
        order = np.roll(known, number)
        codes = np.array([0, 2, -1, 1, 1, 0], "i1")
        values = [None if code < 0 else order[code].item() for code in codes.tolist()]
        is_plain = number == 2 and known[0] == "é"  # categories in some files, and text in others
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["bounds"], file["time"] = bounds, np.arange(6.0)
            if is_plain:
                values = [value or "" for value in values]
                file["kind"] = np.array(values, object)
            else:
                texts = order.astype(object if order.dtype.kind == "U" else order.dtype)
                encoded(file, "kind", "categorical", codes=codes, categories=texts)
        ranges = [values[begin:end] for begin, end in pairwise(bounds)]
        steps = [[ranges[max(i - 1, 0)], ranges[i]] for i in range(len(ranges))]
        spans = [values[max(i - 1, 0) : i + 2] for i in range(6)]
        expected += {"ranges": ranges, "spans": spans, "steps of ranges": steps}[of]
    window = {"ranges": None, "spans": Windows({"kind": slice(-1.5, 1.5)}, at="time")}
    windows = window.get(of, Windows({"kind": [-1, 0]}))
    columns = ["kind"] if of == "spans" else [ragged("kind", offsets="bounds")]
    found = H5Dataset(tmp_path, columns, windows=windows)
    assert [row["kind"] for row in found] == expected
    plan = found._source.plan
    table = to_table(plan, Block(read_rows(plan, np.arange(len(found))), np.arange(len(found)), 0), ["kind"])
    assert table["kind"].to_pylist() == expected


def test_types_of_values_that_differ_are_refused_with_a_cast_that_works(tmp_path):
    write(tmp_path / "a.h5ad", n=pd.array([1, None, 3], "Int64"))
    write(tmp_path / "b.h5ad", n=np.array([1, 2, 3], "int32"))
    write(tmp_path / "c.h5ad", n=pd.Categorical([5, 6, 7]))
    with pytest.raises(SchemaMismatchError, match=r"expected optional int64, found int32") as raised:
        H5Dataset([tmp_path / "a.h5ad", tmp_path / "b.h5ad"], ["obs/n"])
    assert "pass dtypes={'obs/n': 'float64'}" in str(raised.value)
    found = H5Dataset(tmp_path, ["obs/n"], dtypes={"obs/n": "float64"})[:]["obs/n"]
    np.testing.assert_array_equal(found, [1, np.nan, 3, 1, 2, 3, 5, 6, 7])
    write(tmp_path / "d.h5ad", n=["x", "y", "z"])
    with pytest.raises(SchemaMismatchError, match=r"expected .*, found string") as raised:
        H5Dataset([tmp_path / "a.h5ad", tmp_path / "d.h5ad"], ["obs/n"])
    assert "dtypes" not in str(raised.value)


def _category(group, name):
    member = group.create_group(name)
    member.attrs["encoding-type"], member.attrs["encoding-version"] = "categorical", "0.2.0"
    member["codes"], member["categories"] = np.array([0, 1, 0], "i1"), np.array(["u", "v"], object)


def _nullable(group, name):
    member = group.create_group(name)
    member.attrs["encoding-type"], member.attrs["encoding-version"] = "nullable-integer", "0.1.0"
    member["values"], member["mask"] = np.array([5, 6, 7]), np.array([False, True, False])


def _matrix(group, name):
    member = group.create_group(name)
    member.attrs["encoding-type"], member.attrs["encoding-version"] = "csr_matrix", "0.1.0"
    member.attrs["shape"] = (3, 4)
    member["data"], member["indices"], member["indptr"] = np.ones(3), np.arange(3), np.arange(4)


def _plain(group, name):
    group[name] = np.arange(3)


def _compound(group, name):
    group[name.rpartition("/")[0]] = np.zeros(3, [(name.rpartition("/")[2], "f8")])


def _nothing(group, name):
    """Leave the group as it is."""


@pytest.mark.parametrize("windows", [None, Windows({"y": [0]})])
@pytest.mark.parametrize("columns", [["x"], ["x", "y"], None])
@pytest.mark.parametrize("makers", [
    [_plain, _category], [_category, _plain], [_nothing, _nullable, _plain], [_plain, _nothing, _category],
    [_category, _nullable], [_nullable, _category], [_nothing, _category, _nullable],
])  # fmt: skip
def test_groups_that_store_a_column_in_two_ways_are_named(tmp_path, makers, columns, windows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, make in enumerate(makers):
            make(group := file.create_group(f"g{number}"), "x")
            group["y"] = np.arange(3.0)
    first, second = (number for number, make in enumerate(makers) if make is not _nothing)
    groups = rf"('g{first}'.*'g{second}'|'g{second}'.*'g{first}')"
    with pytest.raises(SchemaMismatchError, match=rf"column 'x': expected .*{groups}.*Choose groups that agree"):
        H5Dataset(tmp_path / "a.h5", columns, rows=Groups("g*", missing="null"), windows=windows)
    dataset = H5Dataset(tmp_path / "a.h5", ["y"], rows=Groups("g*", missing="null"), windows=windows)
    assert len(dataset) == len(makers) * (1 if windows is None else 3)


@pytest.mark.parametrize("makers", [[_plain, _matrix], [_matrix, _plain]])
def test_groups_with_a_matrix_or_a_dataset_are_named(tmp_path, makers):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, make in enumerate(makers):
            make(group := file.create_group(f"g{number}"), "x")
            group["y"] = np.arange(3.0)
    for windows in (None, Windows({"y": [0]})):
        with pytest.raises(SchemaMismatchError, match=r"column 'x': expected .*'g[01]'.*'g[01]'"):
            H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("g*", missing="null"), windows=windows)


@pytest.mark.parametrize("makers", [[_plain, _compound], [_compound, _plain], [_nothing, _plain, _compound]])
def test_groups_with_a_field_or_a_dataset_are_named(tmp_path, makers):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, make in enumerate(makers):
            make(group := file.create_group(f"g{number}"), "a/b")
            group["y"] = np.arange(3.0)
    rows = Groups("g*", missing="null")
    with pytest.raises(UnknownColumnError):  # all columns are known then, and not compared
        H5Dataset(tmp_path / "a.h5", ["z"], rows=rows)
    H5Dataset(tmp_path / "a.h5", ["y"], rows=rows)
    with pytest.raises(SchemaMismatchError, match=r"column 'a/b': expected .*'g\d'.*'g\d'"):
        H5Dataset(tmp_path / "a.h5", ["a/b"], rows=rows)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["g0/z"] = 7
    values = H5Dataset(tmp_path / "*.h5", ["z"], rows=rows)[:]["z"]
    assert [value if value is None else int(value) for value in values] == [None] * len(makers) + [7]


@pytest.mark.parametrize("makers", [[_plain, _category, _nothing], [_plain, _category, _compound]])
def test_datasets_of_an_encoded_column_are_read_though_other_groups_store_it_in_another_way(tmp_path, makers):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, make in enumerate(makers):
            make(file.create_group(f"g{number}"), "x/y" if make is _compound else "x")
    rows = Groups("g*", missing="null")
    found = H5Dataset(tmp_path / "a.h5", ["x/codes"], rows=rows)[:]["x/codes"]
    assert [value if value is None else value.tolist() for value in found] == [None, [0, 1, 0], None]
    for columns in (["x/codes", "x"], ["x", "x/codes"]):
        with pytest.raises(SchemaMismatchError, match="column 'x': expected"):
            H5Dataset(tmp_path / "a.h5", columns, rows=rows)


def test_a_group_that_lacks_a_column_and_has_others_of_its_name_is_none(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g0/x"], file["g1/x/values"], file["g2/y"] = np.arange(3), np.arange(2), 1
    rows = Groups("g*", missing="null")
    assert [value if value is None else value.tolist() for value in H5Dataset(tmp_path / "a.h5", ["x"], rows=rows)[:][
        "x"]] == [[0, 1, 2], None, None]  # fmt: skip
