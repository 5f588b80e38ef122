import contextlib
from itertools import product

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_h5.errors import OptionError, PredicateError, SchemaMismatchError, UnknownColumnError
from ray_h5.index.folds import fold_values
from ray_h5.index.row_index import build_index
from ray_h5.torch_data import Groups, H5Dataset, Sidecar, Windows, any_equal, kfold, where
from tests.hdf5.h5kit import concatenated


def write(path, **columns):
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            is_text = np.asarray(values).dtype.kind == "U"
            file[name] = np.array(values, dtype=h5py.string_dtype()) if is_text else values
    return str(path)


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """60 patients of 1 to 9 rows in three files; a patient's rows may lie in two files; a fifth is labelled 1."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("patients")
    guid = np.repeat(np.arange(60), rng.integers(1, 10, 60))
    label = (guid % 5 == 0).astype("u1")
    parts = np.array_split(np.arange(len(guid)), 3)
    return [
        write(
            folder / f"{i}.h5",
            guid=[f"p{k}" for k in guid[part]],
            number=guid[part],
            cs_label=label[part],
            text=[f"class {k}" for k in label[part]],
            x=np.zeros((len(part), 3)),
            half=np.where(guid[part] == 3, np.nan, guid[part]),
        )
        for i, part in enumerate(parts)
    ]


@pytest.mark.parametrize(
    "values",
    [
        *(np.array([0.0, -0.0, *np.arange(2, 24) // 2], dtype) for dtype in ("f2", "f4", "f8")),
        (np.arange(24) // 2).astype("M8[ns]"),
        (np.arange(24) // 2).astype("m8[ns]"),
        (np.arange(24) // 2).astype("m8[s]"),
        np.arange(24, dtype="u8") // 2 + np.uint64(2**64 - 20),
        np.array([f"p{row // 2}" for row in range(24)], "S4").view("V4"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_the_predicates_of_a_fold_share_no_row_and_lose_none(tmp_path, values):
    if values.dtype.kind in "mM":
        values = values.astype(h5py.opaque_dtype(values.dtype))
    path = write(tmp_path / "a.h5", x=np.arange(24), g=values)
    for seed in range(2):
        parts = [
            [H5Dataset(path, ["x"], each).selection.tolist() for each in fold]
            for fold in kfold(path, 2, "g", stratify=None, seed=seed)
        ]
        for train, test in parts:
            assert sorted(train + test) == list(range(24))
            assert not {row // 2 for row in train} & {row // 2 for row in test}


@pytest.mark.parametrize("stratify", [None, "cs_label", "text"])
@pytest.mark.parametrize("group", ["guid", "number"])
@pytest.mark.parametrize("k", [2, 5])
def test_groups_never_straddle_and_cover_all(patients, k, group, stratify):
    index = build_index(patients, ["x"])
    folds = fold_values(index, k, group, stratify, 0)
    of = concatenated(patients, group)
    label = concatenated(patients, "cs_label")
    assert len(folds) == k
    tested = []
    for train, test in folds:
        assert test
        assert not set(train) & set(test)
        assert sorted(train + test) == sorted(set(of.tolist()))
        tested += test
        if stratify:
            share = label[np.isin(of, test)].mean()
            assert share == pytest.approx(label.mean(), abs=0.08 if k == 2 else 0.15)
    assert sorted(tested) == sorted(set(of.tolist()))


@pytest.mark.parametrize(
    ("k", "group", "stratify", "error", "says"),
    [
        (1, "guid", None, OptionError, "kfold: k=.*expected an integer of 2 or more"),
        (0, "guid", None, OptionError, "kfold: k=.*expected an integer of 2 or more"),
        (2.0, "guid", None, OptionError, "kfold: k=.*expected an integer of 2 or more"),
        (True, "guid", None, OptionError, "kfold: k=.*expected an integer of 2 or more"),
        ("2", "guid", None, OptionError, "kfold: k=.*expected an integer of 2 or more"),
        (61, "guid", "cs_label", OptionError, "'guid' has only 60 different values"),
        (3, "cs_label", None, OptionError, "only 2 different values"),
        (2, "giud", None, UnknownColumnError, "Did you mean 'guid'"),
        (2, "guid", "cs_labl", UnknownColumnError, "Did you mean 'cs_label'"),
        (2, "x", None, PredicateError, "holds an array"),
        (2, "half", None, OptionError, r"kfold: \d+ rows have no 'half'"),
    ],
)
def test_what_cannot_be_folded(patients, k, group, stratify, error, says):
    with pytest.raises(error, match=says):
        fold_values(build_index(patients, ["guid"]), k, group, stratify, 0)


@pytest.mark.parametrize("values", [["a", None, "b", None], [None, 1, 2, 1], [None] * 4, [True, True, None, None]])
def test_a_value_that_is_missing_is_a_class_of_its_own(tmp_path, values):
    path = write(tmp_path / "a.h5", patient=np.arange(40) // 2)
    table = pa.table({"row": range(40), "label": values * 10})
    pq.write_table(table, tmp_path / "t.parquet")
    sidecar = Sidecar(tmp_path / "t.parquet", on="row")
    for group, seed in product(("patient", None), range(2)):
        folds = kfold(path, 2, group=group, stratify="label", sidecar=sidecar, seed=seed)
        for _, valid in folds:
            labels = pa.array(values * 10).take(H5Dataset(path, ["patient"], valid, sidecar=sidecar).selection)
            counts = {each["values"]: each["counts"] for each in labels.value_counts().to_pylist()}
            assert all(abs(counts[value] - values.count(value) * 5) <= 1 for value in values), (group, counts)


def test_days_of_a_table_are_groups(tmp_path):
    path = write(tmp_path / "a.h5", x=np.arange(12))
    days = np.datetime64("2024-01-30") + np.arange(12) // 2
    pq.write_table(pa.table({"row": range(12), "day": days}), tmp_path / "t.parquet")
    for train, test in kfold(path, 3, "day", stratify=None, sidecar=Sidecar(tmp_path / "t.parquet", on="row")):
        rows = [H5Dataset(path, ["x"], side, sidecar=Sidecar(tmp_path / "t.parquet", on="row")).selection.tolist()
                for side in (train, test)]  # fmt: skip
        assert sorted([*rows[0], *rows[1]]) == list(range(12))
        assert not {row // 2 for row in rows[0]} & {row // 2 for row in rows[1]}


@pytest.mark.parametrize("arguments", [{"stratify": "x"}, {"group": "x"}, {"group": "guid", "stratify": "x"}])
def test_a_column_of_arrays(patients, arguments):
    wrong = "stratify" if "stratify" in arguments else "group"
    with pytest.raises(PredicateError, match=rf"^kfold: {wrong}='x': the column holds an array of shape \(3,\) a row"):
        kfold(patients, 3, **arguments)


@pytest.mark.parametrize("option", ["stratify", "group"])
def test_values_of_several_parts_are_no_classes(tmp_path, option):
    pairs = np.array([(i % 2, i % 3) for i in range(6)], [("a", "i4"), ("b", "f8")])
    path = write(tmp_path / "a.h5", x=np.arange(6), pairs=pairs)
    with h5py.File(path, "a") as file:
        file.create_dataset("lists", (6,), h5py.vlen_dtype("i4"))[:] = [np.arange(i % 2 + 1) for i in range(6)]
    others = {} if option == "group" else {"group": "x"}
    for name in ("pairs", "lists"):
        with pytest.raises(PredicateError, match=f"^kfold: {option}='{name}': the column holds values of type "):
            kfold(path, 2, columns=["x"], **{option: name}, **others)
    with pytest.raises(PredicateError, match="name a field, such as 'pairs/a'"):
        kfold(path, 2, **{option: "pairs"})
    assert len(kfold(path, 2, **{option: "pairs/a"})) == 2


@pytest.mark.parametrize("option", ["stratify", "group"])
def test_a_column_of_rows_that_differ_in_length(tmp_path, option):
    path = write(tmp_path / "a.h5", **{f"demo_{i}/x": np.zeros((i + 1, 3)) for i in range(6)})
    with pytest.raises(PredicateError, match=rf"{option}='x': the column holds an array of shape \(\?, 3\) a row"):
        kfold(path, 3, rows=Groups("demo_*"), **{option: "x"})
    with pytest.raises(PredicateError, match=r"'x' holds an array of shape \(\?, 3\) a row"):
        H5Dataset(path, predicate=where(x=1), rows=Groups("demo_*"))
    with pytest.raises(PredicateError, match="'x' holds rows that differ in length; expected numbers of shape"):
        H5Dataset(path, predicate=where(x=any_equal(1)), rows=Groups("demo_*"))


def test_episodes_without_rows_or_windows(patients):
    with pytest.raises(UnknownColumnError, match=r"kfold: group='episode'.*'episode' is a column of rows=Groups"):
        kfold(patients, 3, group="episode")
    with pytest.raises(UnknownColumnError) as raised:
        kfold(patients, 3, group="giud")
    assert "is a column of rows=Groups" not in str(raised.value)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, True, 2**32])
def test_a_seed_that_is_none(patients, seed):
    with pytest.raises(OptionError, match="kfold: seed="):
        fold_values(build_index(patients), 2, "guid", None, seed)


@pytest.mark.parametrize("stratify", [None, "label"])
def test_folds_of_whole_files(tmp_path, stratify):
    for i in range(7):
        write(tmp_path / f"{i}.h5", x=np.full(i + 1, i), label=np.full(i + 1, i % 2))
    found = kfold(tmp_path, 3, group="path", stratify=stratify)
    tested = []
    for train, test in found:
        one, other = (
            {int(each["x"]) for each in H5Dataset(tmp_path, ["x"], side, windows=windows)}
            for side, windows in ((train, None), (test, Windows({"x": [0]})))
        )
        assert one | other == set(range(7))
        assert not one & other
        tested += other
    assert sorted(tested) == list(range(7))
    (tmp_path / "6.h5").rename(tmp_path / "7.h5")
    with pytest.raises(PredicateError, match="of other names"):
        H5Dataset(tmp_path, ["x"], found[0][0])
    with pytest.raises(OptionError, match="only 7 files with rows"):
        kfold(tmp_path, 8, group="path")


def test_a_column_of_the_name_path_is_a_column(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["path"] = np.array(["p", "q", "p", "q"], object)
    ((train, test), _) = kfold(tmp_path, 2, group="path")
    assert {*H5Dataset(tmp_path, ["path"], train)[:]["path"]} != {*H5Dataset(tmp_path, ["path"], test)[:]["path"]}


@pytest.mark.parametrize("group", [None, "g", "path"])
def test_measurements_are_no_classes(tmp_path, caplog, group):
    rng = np.random.default_rng(0)
    for name in "ab":
        write(tmp_path / f"{name}.h5", g=np.arange(20) // 2, quality=rng.random(20), kind=np.arange(20) % 2 / 2)
    kfold(f"{tmp_path}/*.h5", 2, group=group, stratify="kind")
    assert not caplog.text
    with contextlib.suppress(OptionError):  # of groups, which cannot be stratified so
        kfold(f"{tmp_path}/*.h5", 2, group=group, stratify="quality")
    assert "stratify='quality' has 40 different values in 40 rows: no fold has a share of each." in caplog.text


@pytest.mark.parametrize("rows", [1, 2])
def test_two_rows_may_be_measurements_and_one_is_none(tmp_path, caplog, rows):
    path = write(tmp_path / "a.h5", quality=np.arange(rows) + 0.5)
    with contextlib.suppress(OptionError):
        kfold(path, 2, group=None, stratify="quality")
    assert ("different values" in caplog.text) == (rows == 2)


def test_groups_by_an_attribute_of_files_with_columns_of_several_lengths(tmp_path):
    for number in range(4):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.attrs["patient"] = f"p{number % 2}"
            file["x"], file["names"] = np.arange(5), ["a", "b"]
    with pytest.raises(SchemaMismatchError, match=r"columns=\['x'\]"):
        kfold(tmp_path, 2, group="patient", attrs=["patient"])
    folds = kfold(tmp_path, 2, group="patient", attrs=["patient"], columns=["x"])
    for train, valid in folds:
        counts = [len(H5Dataset(tmp_path, ["x"], side, attrs=["patient"])) for side in (train, valid)]
        assert counts == [10, 10]
