"""Which data this is: a run goes on, and folds are read, with the data that they were made of, and with no other."""

import csv
import json
import shutil

import h5py
import numpy as np
import pytest

from ray_h5 import Grid, Groups, Patches, RowReader, Shuffle, Sidecar, Windows, csr, fields, part, ragged
from ray_h5.torch_data import H5Dataset, OrderSampler, PositionError, PredicateError, kfold, loader

SHUFFLE = Shuffle("rows", seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that are read in many ways, with as many rows in each."""
    folder = tmp_path_factory.mktemp("data")
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"], file["y"], file["volume"] = np.arange(240).reshape(40, 6), np.arange(40), np.zeros((24, 24))
        file["label"] = np.arange(576).reshape(24, 24) % 2
        file["id"], file["other"] = np.repeat(np.arange(4), 10), np.repeat(np.arange(4), [5, 15, 12, 8])
        file["values"], file["offsets"] = np.arange(200), np.arange(41) * 5
        file["later"] = np.r_[0, np.arange(1, 41) * 5 - np.r_[np.ones(39, int), 0]]
        file["pairs"] = np.zeros(40, [("a", "f4"), ("b", "f4"), ("c", "f4")])
        for name, value in (("data", np.ones(40)), ("indices", np.arange(40) % 6), ("indptr", np.arange(41))):
            file[f"matrix/{name}"] = value
        file["matrix"].attrs["shape"] = (40, 6)
        file["grid"], file["t"] = np.zeros((8, 5)), np.arange(40.0)
        file["times"] = np.arange(40.0) * 2
        for number in range(20):
            file[f"one/{number}/x"], file[f"two/{number}/x"] = np.full(3, number), np.full(3, number + 100)
    for name, sign in (("labels", 1), ("others", -1)):
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["y", "w"], *([n, "" if n == 7 else sign * n] for n in range(40))])
    with open(folder / "longer.csv", "w", newline="") as file:  # more lines, of no row, and in another order
        csv.writer(file).writerows([["y", "w"], *([n, "" if n == 7 else n] for n in range(60, -1, -1))])
    return folder


def table(folder, name):
    return {"sidecar": Sidecar(folder / f"{name}.csv", on="y", missing="null"), "columns": ["w"], "dtypes": {"w": "f4"}}


OTHER = {
    "columns": ({"columns": ["x"]}, {"columns": ["y"]}, "columns 'x' int64 (6,), not 'y' int64"),
    "dtypes": ({"columns": ["x"]}, {"columns": ["x"], "dtypes": {"x": "f4"}}, "'x' int64 (6,), not 'x' float32 (6,)"),
    "part": ({"columns": [part("x", {0: [0]})]}, {"columns": [part("x", {0: [1]})]}, "columns part("),
    "bounds": (
        {"columns": [ragged("values", offsets="offsets")]},
        {"columns": [ragged("values", offsets="later")]},
        "offsets='later'",
    ),
    "take": (
        {"columns": [csr("matrix", take=[0])]},
        {"columns": [csr("matrix", take=[1])]},
        "columns csr('matrix', take=[0])",
    ),
    "fields": ({"columns": [fields("pairs", ["a", "b"])]}, {"columns": [fields("pairs", ["a", "c"])]}, "'c'"),
    "a name for another": ({"columns": {"x": "y"}}, {"columns": {"x": "id"}}, "'x': 'y' int64, not 'x': 'id' int64"),
    "group": ({"group": "one/0"}, {"group": "two/0"}, "group one/0, not two/0"),
    "pattern": ({"rows": Groups("one/*")}, {"rows": Groups("two/*")}, "rows Groups(pattern='one/*'"),
    "grid": ({"rows": Grid(2), "columns": ["grid"]}, {"columns": ["y"]}, "rows Grid("),
    "classes": (
        {"rows": Patches({"volume": (4, 4)}, per_file=36)},
        {"rows": Patches({"volume": (4, 4)}, per_file=36, where_any=("label", [1]))},
        "where_any",
    ),
    "pad": ({"windows": Windows({"x": [0, 1]})}, {"windows": Windows({"x": [0, 1]}, pad="zero")}, "pad='zero'"),
    "episode": (
        {"windows": Windows({"x": [0, 1]}, episode="id")},
        {"windows": Windows({"x": [0, 1]}, episode="other")},
        "episode='id'",
    ),
    "times": (
        {"windows": Windows({"x": [-1.0, 0.0]}, at="t"), "columns": ["x"]},
        {"windows": Windows({"x": [-1.0, 0.0]}, at="times"), "columns": ["x"]},
        "at='t'",
    ),
    "labels": (
        {"columns": ["id"], "labels": {"id": [0, 1, 2, 3]}},
        {"columns": ["id"], "labels": {"id": [3, 1, 2, 0]}},
        "labels 'id': {0: 0",
    ),
}


def sampler(folder, **options):
    return OrderSampler(H5Dataset(folder / "a.h5", **{"columns": None} | options), shuffle=SHUFFLE)


def options_of(options):
    has_all = options.keys() & {"rows", "group"}
    return options if has_all or "columns" in options else {"columns": ["x", "y"], **options}


@pytest.mark.parametrize("case", OTHER)
def test_a_run_does_not_go_on_with_other_data(folder, case):
    before, now, said = OTHER[case]
    if "labels" in now or "dtypes" not in now:
        before, now = options_of(before), options_of(now)
    state = json.loads(json.dumps(sampler(folder, **before).state_dict()))
    with pytest.raises(PositionError, match="What differs: ") as caught:
        sampler(folder, **now).load_state_dict(state)
    assert said in str(caught.value)
    sampler(folder, **before).load_state_dict(state)


def test_a_run_does_not_go_on_with_other_values_of_a_table(folder):
    state = sampler(folder, **table(folder, "labels")).state_dict()
    for same in ("labels", "longer"):
        sampler(folder, **table(folder, same)).load_state_dict(state)
    with pytest.raises(PositionError, match=r"tables 'w' of digest .*, not 'w' of digest"):
        sampler(folder, **table(folder, "others")).load_state_dict(state)


SAME = {
    "threads and memory": ({"columns": ["x"]}, {"columns": ["x"], "kept_bytes": 0}),
    "order of columns": ({"columns": ["x", "y"]}, {"columns": ["y", "x"]}),
    "a pattern": ({"columns": ["id"]}, {"columns": ["i?"]}),
    "the dtype of the file": ({"columns": ["x"]}, {"columns": ["x"], "dtypes": {"x": "int64"}}),
    "padding": (
        {"columns": [ragged("values", offsets="offsets")]},
        {"columns": [ragged("values", offsets="offsets")], "pad": True},
    ),
    "a group": ({"group": "one/0"}, {"group": "/one/0/"}),
    "steps": ({"windows": Windows({"x": [0, 1]})}, {"windows": Windows({"x": iter(range(2))})}),
    "seconds": ({"windows": Windows({"x": range(2)})}, {"windows": Windows({"x": [0, 0.1]}, fps=10)}),
}


@pytest.mark.parametrize("case", SAME)
def test_what_changes_no_data_is_no_difference(folder, case, tmp_path):
    before, now = map(options_of, SAME[case])
    state = sampler(folder, **before).state_dict()
    sampler(folder, **now, index_dir=tmp_path).load_state_dict(state)


# Names of files ---------------------------------------------------------------------------------


@pytest.fixture
def patients(tmp_path):
    """A file of one name in the folder of each of six patients."""
    for number in range(6):
        (tmp_path / f"patient_{number}").mkdir()
        with h5py.File(tmp_path / f"patient_{number}" / "scan.h5", "w") as file:
            file["id"], file["volume"] = np.arange(50) + 1000 * number, np.zeros((50, 50), "u1")
            file["x"] = np.tile(np.arange(100), (50, 1))
    return tmp_path


def of(folder, *numbers):
    return [folder / f"patient_{number}" / "scan.h5" for number in numbers]


def test_files_of_one_name_are_told_apart_by_their_folders(patients):
    first = loader(of(patients, 0, 1, 2, 3), 16, columns=["id"], seed=1)
    next(iter(first))
    state = first.state_dict()
    with pytest.raises(PositionError, match="files of other names"):
        loader(of(patients, 2, 3, 4, 5), 16, columns=["id"], seed=1).load_state_dict(state)
    moved = patients / "elsewhere" / "deeper"
    for path in of(patients, 0, 1, 2, 3):
        shutil.copytree(path.parent, moved / path.parent.name)
    again = loader(of(moved, 0, 1, 2, 3), 16, columns=["id"], seed=1)
    again.load_state_dict(state)
    rest = [int(each) for batch in again for each in batch["id"]]
    assert len({*rest}) == len(rest) == 200 - 16


def test_folds_are_of_the_files_that_they_were_made_of(patients):
    for group in ("path", None):
        for train, valid in kfold(of(patients, 2, 3, 4, 5), 2, group=group):
            sides = [{*H5Dataset(of(patients, 2, 3, 4, 5), ["id"], side)[:]["id"].tolist()} for side in (train, valid)]
            assert not sides[0] & sides[1]
            assert len(sides[0] | sides[1]) == 200
            with pytest.raises(PredicateError, match="of other names"):
                H5Dataset(of(patients, 0, 1, 2, 3), ["id"], valid)


def test_folds_of_rows_are_of_the_rows_that_they_were_made_of(tmp_path):
    def write(folder, *counts):
        (tmp_path / folder).mkdir()
        for number, count in enumerate(counts):
            with h5py.File(tmp_path / folder / f"{number}.h5", "w") as file:
                file["id"], file["kind"] = np.arange(count), np.arange(count) % (2 + len(folder))
        return tmp_path / folder

    def dropping(*ids):
        path = tmp_path / f"{ids[0]}.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([["row_id", "w"], *([each, 1] for each in range(200) if each not in ids)])
        return {"sidecar": Sidecar(path, on="row_id", missing="drop")}

    even, uneven = write("a", 100, 100), write("b", 60, 140)
    train, valid = kfold(even, 4)[0]
    assert len(H5Dataset(even, ["id"], train)) + len(H5Dataset(even, ["id"], valid)) == 200
    with pytest.raises(PredicateError, match="with other numbers of rows in each"):
        H5Dataset(uneven, ["id"], valid)
    train, valid = kfold(even, 4, **dropping(1, 2, 3))[0]
    assert len(H5Dataset(even, ["id"], train, **dropping(1, 2, 3))) == 147
    with pytest.raises(PredicateError, match="a table leaves out other rows"):
        H5Dataset(even, ["id"], valid, **dropping(4, 5, 6))
    valid = kfold(even, 4, stratify="kind")[0][1]
    with pytest.raises(PredicateError, match="stratify has other values"):
        H5Dataset(write("other", 100, 100), ["id"], valid)


DRAWN = {
    "corners": ({"columns": ["volume", "corner"], "rows": Patches({"volume": (4, 4)}, per_file=4)}, "corner"),
    "entries": ({"columns": [part("x", random=5)]}, "x"),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_draws_differ_from_folder_to_folder(patients, kind, tmp_path_factory):
    options, name = DRAWN[kind]
    found = H5Dataset(of(patients, 0, 1, 2), **options)[:][name].numpy()
    by_file = found.reshape(3, -1)
    assert not any((by_file[one] == by_file[other]).all() for one, other in ((0, 1), (1, 2), (0, 2)))
    moved = tmp_path_factory.mktemp("moved")
    for path in of(patients, 0, 1, 2):
        shutil.copytree(path.parent, moved / path.parent.name)
    np.testing.assert_array_equal(H5Dataset(of(moved, 0, 1, 2), **options)[:][name].numpy(), found)
    # A file that is read alone has the last part of its path as its name.
    alone = H5Dataset(of(moved, 1), **options)[:][name].numpy()
    np.testing.assert_array_equal(H5Dataset(of(patients, 2), **options)[:][name].numpy(), alone)
    if "rows" in options:
        with RowReader(of(moved, 1)[0], rows=options["rows"]) as reader:
            np.testing.assert_array_equal(reader.read([name])[name], alone)


def test_blocks_that_are_drawn_in_arrays_of_other_lengths(tmp_path):
    def write(lengths, chunks=2, classes=(1, 2)):
        for number, length in enumerate(lengths):
            with h5py.File(tmp_path / f"{number}.h5", "w") as file:
                for name in ("raw", "a/raw", "b/raw"):
                    file.create_dataset(name, data=np.arange(length * 8).reshape(length, 8), chunks=(chunks, 2))
                file["label"] = np.isin(np.arange(length * 8), classes).reshape(length, 8)

    shapes = {"shapes": {"raw": (2, 2)}, "per_file": 4}
    for options, other, said in (
        ({}, {"lengths": [9, 7]}, r"drawn in 1.h5 'raw' of \(8, 8\), not 1.h5 'raw' of \(7, 8\)\."),
        ({"groups": "?"}, {"lengths": [9, 7]}, r"1.h5 b:'raw' of \(8, 8\), not .* 1.h5 b:'raw' of \(7, 8\)\."),
        ({"align": True}, {"lengths": [9, 8], "chunks": 4}, r"in chunks of \[2, 2\], not .* in chunks of \[4, 2\]"),
        ({"where_any": ("label", [1])}, {"lengths": [9, 8], "classes": (30,)}, "at places of digest"),
    ):
        write([9, 8])
        kind = Patches(**shapes, **options)
        batches = loader(tmp_path, 3, rows=kind, seed=1)
        next(iter(batches))
        state = json.loads(json.dumps(batches.state_dict()))
        loader(tmp_path, 3, rows=kind, seed=1).load_state_dict(state)
        write(**other)
        with pytest.raises(PositionError, match=said):
            loader(tmp_path, 3, rows=kind, seed=1).load_state_dict(state)
