"""HDF5 files as the table: rows of the files take rows of others, by number or by key; h5py and NumPy say which."""

import os
import pickle
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from ray_h5 import any_equal, between, csr, fields, part, ragged
from ray_h5.errors import (
    OptionError,
    PositionError,
    PredicateError,
    SchemaMismatchError,
    StaleIndexError,
    UnknownColumnError,
)
from ray_h5.read.reader import FileReader
from ray_h5.torch_data import Groups, H5Dataset, Shuffle, Sidecar, Windows, balance, kfold, loader, where

IMAGES, QUESTIONS = 20, 60
OF = np.random.default_rng(0).integers(0, IMAGES, QUESTIONS)
ORDER = np.random.default_rng(1).permutation(IMAGES)
NAMES = ["features", "name", "points", "site", "when", "quality"]


def write_features(path, rows=range(IMAGES)):
    """Write rows of images: chunks hold four, and keys are in another order."""
    rows = np.asarray(rows)
    with h5py.File(path, "w") as file:
        features = np.repeat(rows, 12).reshape(-1, 3, 4).astype("f4") + np.arange(12).reshape(3, 4) / 16
        file.create_dataset("features", data=features, chunks=(min(4, len(rows)), 3, 4), compression="gzip")
        file["number"] = rows
        file["guid"] = [f"img{ORDER[row]}" for row in rows]
        file["key"] = ORDER[rows]
        file["name"] = [f"n{row}" for row in rows]
        file["quality"] = rows % 3
        points = file.create_dataset("points", (len(rows),), h5py.vlen_dtype("i4"))
        for place, row in enumerate(rows.tolist()):
            points[place] = np.arange(row % 4)
        file["site"] = rows.astype(h5py.enum_dtype({"a": 0, "b": 1})) % 2
        file["when"] = rows * 1000
        file["steps"] = rows[:, None] % 5 + np.arange(3)
        file["others"] = np.arange(7)
        file["jets"] = np.array([(row / 2, row) for row in rows.tolist()], [("pt", "f4"), ("n", "i2")])
        file["counts"], file["values"] = rows % 4, np.repeat(rows, rows % 4)


def write_questions(path, of=OF):
    with h5py.File(path, "w") as file:
        file["q"] = np.arange(len(of))
        file["image"] = of
        file["key"] = ORDER[of]
        file["guid"] = [f"img{ORDER[row]}" for row in of]
        file["name"] = [f"question {row}" for row in range(len(of))]


@pytest.fixture
def folder(tmp_path):
    write_features(tmp_path / "features.h5")
    write_questions(tmp_path / "questions.h5")
    return tmp_path


BY = {
    "number": {"on": "image", "key": "row_id"},
    "row": {"on": "image", "key": "row"},
    "integers": {"on": "key"},
    "text": {"on": "guid"},
    "other name": {"on": "image", "key": "number"},
    "two": {"on": ["guid", "key"]},
}


def opened(folder, columns, options=BY["integers"], path="features.h5", **more):
    prefix = {"prefix": "image/"} | options
    return H5Dataset(folder / "questions.h5", columns, sidecar=Sidecar(folder / path, **prefix), **more)


def check(rows):
    """Compare rows with what the files were written with; return the questions."""
    for row in rows:
        image = OF[int(row["q"])]
        assert np.asarray(row["image/features"]).tolist() == (image + np.arange(12).reshape(3, 4) / 16).tolist()
        assert row["image/name"] == f"n{image}"
        assert row["name"] == f"question {int(row['q'])}"
        assert np.asarray(row["image/points"]).tolist() == [*range(image % 4)]
        assert (int(row["image/site"]), int(row["image/when"])) == (image % 2, image * 1000)
    return [int(row["q"]) for row in rows]


COLUMNS = ["q", "name", *(f"image/{name}" for name in NAMES)]


@pytest.mark.parametrize("how", BY)
def test_rows_of_another_file(folder, how):
    samples = opened(folder, COLUMNS, BY[how])
    assert check([samples[i] for i in range(len(samples))]) == [*range(QUESTIONS)]
    chosen = opened(folder, COLUMNS, BY[how], predicate=where(**{"image/quality": 1}) & ~where(q=[0, 1, 2]))
    questions = check([chosen[i] for i in range(len(chosen))])
    assert questions == [q for q in range(3, QUESTIONS) if OF[q] % 3 == 1]


@pytest.mark.parametrize("prefix", ["", "image/"])
def test_columns_are_made_of_those_of_another_file(folder, prefix):
    columns = {
        "features": (part(f"{prefix}features", {0: [2], 1: [3, 0]}), lambda of: of + np.array([[11, 8]]) / 16),
        "jets": (fields(f"{prefix}jets", ["pt", "n"]), lambda of: [of / 2, of]),
        "jets/n": (f"{prefix}jets/n", lambda of: of),
        "values": (ragged(f"{prefix}values", counts=f"{prefix}counts"), lambda of: [of] * (of % 4)),
    }
    called = {"cut": columns["features"], "n": columns["jets/n"], "count": (f"{prefix}counts", lambda of: of % 4)}
    own = {prefix + name: column for name, column in columns.items()}
    for asked in ([column for column, _ in columns.values()], {name: column for name, (column, _) in called.items()}):
        samples = opened(folder, asked, BY["integers"] | {"prefix": prefix})
        for sample, of in zip(samples, OF, strict=True):
            for name, (_, expected) in (own if isinstance(asked, list) else called).items():
                assert np.array_equal(sample[name], expected(of)), name
    position = loader(opened(folder, [part("image/features", {0: [0]})]), 8)
    next(iter(position))
    with pytest.raises(PositionError, match="tables 'image/features'"):
        loader(opened(folder, [part("image/features", {0: [1]})]), 8).load_state_dict(position.state_dict())
    with pytest.raises(OptionError, match="entries are drawn of columns of the files, and this is one of a table"):
        opened(folder, [part("image/features", random=2)])


def test_encoded_columns_of_another_file(folder):
    dense = np.random.default_rng(0).integers(0, 3, (IMAGES, 5)).astype("f4")
    matrix = sp.csr_matrix(dense)
    with h5py.File(folder / "features.h5", "r+") as file:
        for name in ("data", "indices", "indptr"):
            file[f"X/{name}"] = getattr(matrix, name)
        file["X"].attrs.update({"encoding-type": "csr_matrix", "shape": dense.shape})
        file["kind/categories"], file["kind/codes"] = ["B", "T"], np.arange(IMAGES) % 3 - 1
        file["kind"].attrs["encoding-type"] = "categorical"
        file["score/values"], file["score/mask"] = np.arange(IMAGES), np.arange(IMAGES) % 2 == 1
        file["score"].attrs["encoding-type"] = "nullable-integer"
        file["number"].attrs["scale_factor"] = 0.5
    for column, at in [("image/X", [*range(5)]), (csr("image/X", take=[3, 1]), [3, 1]), (csr("image/X"), [*range(5)])]:
        samples = opened(folder, ["q", column, "image/kind"])
        for sample, of in zip(samples, OF, strict=True):
            assert np.array_equal(sample["image/X"], dense[of][at])
            assert sample["image/kind"] == [None, "B", "T"][of % 3]
    cut = opened(folder, {"X": part(csr("image/X"), {0: slice(2, 4)}), "class": "image/kind"}, labels={"class": "auto"},
                 predicate=where(**{"class": ["B", "T"]}))  # fmt: skip
    rows = [of for of in OF.tolist() if of % 3]
    for batch in loader(cut, 64, shuffle=False):
        assert np.array_equal(batch["X"], dense[rows[:64], 2:4])
        assert batch["class"].tolist() == [of % 3 - 1 for of in rows]

    # Predicates may name what files do not list, and columns= does not name.
    for name, values, chosen in [
        ("kind", "B", OF % 3 == 1),
        ("kind", None, OF % 3 == 0),
        ("score", [2, 3, 4], np.isin(OF, [2, 4])),
        ("score", None, OF % 2 == 1),
        ("number", 2.5, OF == 5),
    ]:
        rows = opened(
            folder, ["q"], predicate=where(**{f"image/{name}": values, "q": between(3, None)}), decode_cf=True
        )
        assert pickle.loads(pickle.dumps(rows))[:]["q"].tolist() == [q for q in np.flatnonzero(chosen) if q >= 3], name
    with pytest.raises(UnknownColumnError, match="image/kind/codes"):
        opened(folder, ["q"], predicate=where(**{"image/kind": "B", "image/knd": 1}))


def test_ranges_of_another_file_are_values_of_groups(folder):
    by_number = {"on": "q", "key": "row_id", "missing": "drop"}
    ranges = ragged("image/values", counts="image/counts")
    samples = opened(folder, ["q", ranges], by_number, rows=Groups(by="q"))
    assert [row["image/values"].tolist() for row in samples] == [[of] * (of % 4) for of in range(IMAGES)]
    with pytest.raises(OptionError, match=r"ragged\('q', counts='image'\) .* would be rows of rows"):
        opened(folder, ["name", ragged("q", counts="image")], by_number, rows=Groups(by="q"))
    with pytest.raises(UnknownColumnError, match=r"no column matches 'image/\*'.* name those of tables and attributes"):
        opened(folder, ["q", "image/*"])


def test_workers_threads_shuffles_and_resume_read_the_same_rows(folder):
    samples = opened(folder, ["q", "image/features", "image/number"], dtypes={"image/features": "float16"})
    assert samples[0]["image/features"].dtype == torch.float16
    batches = loader(samples, 8, shuffle=Shuffle(weights=balance("image/quality")), drop_last=False)
    for batch in batches:
        assert batch["image/number"].tolist() == OF[batch["q"].numpy()].tolist()
        assert batch["image/features"][:, 0, 0].tolist() == OF[batch["q"].numpy()].tolist()
    batches = loader(samples, 8, seed=3, drop_last=False)
    whole = [batch["q"].tolist() for batch in batches]
    for taken in (0, 3, 7):
        first = loader(samples, 8, seed=3, drop_last=False)
        iterator = iter(first)
        begun = [next(iterator)["q"].tolist() for _ in range(taken)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        rest = loader(opened(folder, ["q", "image/features", "image/number"], dtypes={"image/features": "float16"}), 8,
                      seed=3, drop_last=False)  # fmt: skip
        rest.load_state_dict(state)
        assert begun + [batch["q"].tolist() for batch in rest] == whole
    workers = loader(samples, 8, seed=3, workers=2, drop_last=False)
    for batch, expected in zip(workers, whole, strict=True):
        assert batch["q"].tolist() == expected
        assert batch["image/features"][:, 0, 0].tolist() == OF[batch["q"].numpy()].tolist()
    for batch in torch.utils.data.DataLoader(pickle.loads(pickle.dumps(samples)), batch_size=7, num_workers=1):
        assert batch["image/number"].tolist() == OF[batch["q"].numpy()].tolist()


def test_a_run_does_not_resume_with_other_rows_beside(folder):
    first = loader(opened(folder, ["q", "image/number"]), 8, seed=3)
    next(iter(first))
    with h5py.File(folder / "features.h5", "r+") as file:
        file["key"][...] = file["key"][()][::-1]
    rest = loader(opened(folder, ["q", "image/number"]), 8, seed=3)
    with pytest.raises(PositionError, match="tables"):
        rest.load_state_dict(first.state_dict())


def test_each_row_is_asked_for_once_a_call(folder, monkeypatch):
    asked = []
    planned = FileReader.planned

    def counted(self, out, rows, *args, **options):
        if "features" in out:
            asked.append(np.asarray(rows).tolist())
        return planned(self, out, rows, *args, **options)

    monkeypatch.setattr(FileReader, "planned", counted)
    monkeypatch.setattr("ray_h5.plan.row_source.RowSource._read_together", lambda *_: set())
    samples = opened(folder, ["q", "image/features"], kept_bytes=0)
    found = samples[:]
    assert found["image/features"][:, 0, 0].tolist() == OF.tolist()
    assert asked == [sorted({*OF.tolist()})]


def test_folds_and_labels_by_columns_of_another_file(folder):
    sidecar = Sidecar(folder / "features.h5", on="key", prefix="image/")
    folds = kfold(folder / "questions.h5", 3, group="image/number", stratify="image/quality", sidecar=sidecar)
    seen = []
    for train, test in folds:
        images = [{*OF[opened(folder, ["q"], predicate=each)[:]["q"].numpy()].tolist()} for each in (train, test)]
        assert not images[0] & images[1]
        seen += images[1]
    assert sorted(seen) == sorted({*OF.tolist()})
    samples = opened(folder, ["q", "image/name"], labels={"image/name": "auto"})
    classes = sorted(f"n{image}" for image in range(IMAGES))  # also of images without a question
    assert [classes[i] for i in samples[:]["image/name"].tolist()] == [f"n{image}" for image in OF]


def test_what_is_computed_of_lists_of_another_file(folder):
    has_two = opened(folder, ["q"], predicate=where(**{"image/steps": any_equal(2)}))
    assert has_two[:]["q"].tolist() == np.flatnonzero(OF % 5 < 3).tolist()
    with pytest.raises(PredicateError, match="expected valid='q' of it"):
        opened(folder, ["q"], predicate=where(**{"image/steps": any_equal(2, valid="q")}))
    samples = opened(folder, ["q", "image/points"])
    shuffle = Shuffle(by_length="image/points", run_rows=QUESTIONS)
    lengths = [len(each) for batch in loader(samples, 10, shuffle=shuffle) for each in batch["image/points"]]
    assert sorted(lengths) == sorted((OF % 4).tolist())
    assert max(np.ptp(lengths[at : at + 10]) for at in range(0, QUESTIONS, 10)) <= 2


def test_several_files_beside_are_one_table(folder):
    (folder / "parts").mkdir()
    for number, rows in enumerate(np.split(np.arange(IMAGES), [5, 6, 13])):
        write_features(folder / "parts" / f"f{number}.h5", rows)
    for how in ("number", "text"):
        samples = opened(folder, COLUMNS, BY[how], path="parts")
        assert check([samples[i] for i in range(len(samples))]) == [*range(QUESTIONS)]


@pytest.mark.parametrize(("above", "match"), [("", "whole"), ("parts/", "whole"), ("/old/machine/parts/", "tail")])
def test_a_file_and_a_row_in_it_are_a_key(folder, above, match):
    """As the index files of AudioSet name their sounds: the file that has them, and where."""
    (folder / "parts").mkdir()
    starts = np.array([0, 5, 6, 13])
    for number, rows in enumerate(np.split(np.arange(IMAGES), starts[1:])):
        write_features(folder / "parts" / f"f{number}.h5", rows)
    file_of = np.searchsorted(starts, OF, side="right") - 1
    with h5py.File(folder / "questions.h5", "r+") as file:
        file["where"] = [f"{above}f{number}.h5" for number in file_of]
        file["index"] = OF - starts[file_of]
    samples = opened(folder, COLUMNS, {"on": ["where", "index"], "key": ["path", "row"], "match": match}, path="parts")
    assert check([samples[i] for i in range(len(samples))]) == [*range(QUESTIONS)]


def test_a_file_beside_each_file(tmp_path):
    for site in range(3):
        rows = np.arange(5 + site)
        write_questions(tmp_path / f"run{site}.h5", OF[rows])
        write_features(tmp_path / f"run{site}_f.hdf5", (np.arange(IMAGES) + 7 * site) % IMAGES)
    for on, key in (("guid", "guid"), ("row", "row")):
        sidecar = Sidecar("{stem}_f.hdf5", on=on, key=key, missing="drop", prefix="f/")
        if on == "row":
            with pytest.raises(SchemaMismatchError, match="expected 5 lines, one for each row, found 20"):
                H5Dataset(tmp_path, ["q", "f/number"], sidecar=sidecar, file_extensions=["h5"])
            continue
        samples = H5Dataset(tmp_path, ["q", "f/number"], sidecar=sidecar, file_extensions=["h5"])
        assert samples[:]["f/number"].tolist() == [int(OF[row]) for site in range(3) for row in range(5 + site)]


def test_groups_and_windows_take_rows_of_another_file(tmp_path):
    with h5py.File(tmp_path / "episodes.h5", "w") as file:
        for number in range(3):
            file[f"e{number}/x"] = np.arange(4 + number) + 10 * number
            file[f"e{number}/frame"] = np.arange(4 + number) + 5 * number
    write_features(tmp_path / "features.h5")
    sidecar = Sidecar(tmp_path / "features.h5", on="frame", key="row_id")
    windows = Windows({"x": (0, 1), "frame": (0,)}, pad="drop")
    with pytest.raises((PredicateError, SchemaMismatchError, UnknownColumnError)):
        H5Dataset(tmp_path / "episodes.h5", ["x", "features"], rows=Groups("e*"), sidecar=sidecar)
    with h5py.File(tmp_path / "names.h5", "w") as file:
        file["group"] = [b"e2", b"e0", b"e1"]
        file["vector"] = np.arange(6.0).reshape(3, 2)
    sidecar = Sidecar(tmp_path / "names.h5", on="group")
    groups = H5Dataset(tmp_path / "episodes.h5", ["vector"], rows=Groups("e*"), sidecar=sidecar)
    assert groups[:]["vector"].tolist() == [[2, 3], [4, 5], [0, 1]]
    steps = H5Dataset(tmp_path / "episodes.h5", ["x", "vector"], rows=Groups("e*"), windows=windows, sidecar=sidecar)
    found = steps[:]
    assert found["vector"].tolist() == [[2, 3]] * 3 + [[4, 5]] * 4 + [[0, 1]] * 5


def test_rows_without_a_row_there(folder):
    with h5py.File(folder / "questions.h5", "r+") as file:
        file["image"][3], file["key"][3] = IMAGES, 99
    for how in ("number", "integers"):
        said = (
            rf"features\.h5: 1 of 60 rows have no line; their keys: {[99, 20][how == 'number']}; .*questions\.h5, row 3"
        )
        with pytest.raises(SchemaMismatchError, match=said):
            opened(folder, COLUMNS, BY[how])
        dropped = opened(folder, COLUMNS, BY[how] | {"missing": "drop"})
        assert check([dropped[i] for i in range(len(dropped))]) == [q for q in range(QUESTIONS) if q != 3]
        names = ["q", "image/features", "image/name", "image/points"]
        samples = opened(folder, names, BY[how] | {"missing": "null"})
        assert torch.isnan(samples[3]["image/features"]).all()
        assert (samples[3]["image/name"], samples[3]["image/points"]) == (None, None)
        assert samples[4]["image/name"] == f"n{OF[4]}"
        null = opened(folder, ["q"], BY[how] | {"missing": "null"}, predicate=where(**{"image/quality": None}))
        assert null[:]["q"].tolist() == [3]
        with pytest.raises(SchemaMismatchError, match=r"questions.h5, row 3: column 'image/number'.*missing='drop'"):
            opened(folder, ["q", "image/number"], BY[how] | {"missing": "null"})
        number = opened(folder, ["image/number"], BY[how] | {"missing": "null"}, dtypes={"image/number": "float32"})
        assert torch.isnan(number[3]["image/number"])
        labelled = opened(
            folder, ["image/name"], BY[how] | {"missing": "null"}, labels={"image/name": {"n1": 1, None: -1}}
        )
        assert int(labelled[3]["image/name"]) == -1


def test_what_cannot_be_joined_is_refused(folder):
    with pytest.raises(UnknownColumnError, match=r"no column 'imag'.*key='row_id'"):
        opened(folder, ["q"], {"on": "image", "key": "imag"})
    with pytest.raises(UnknownColumnError, match="Did you mean 'image/features'"):
        opened(folder, ["q", "image/feature"])
    with pytest.raises(SchemaMismatchError, match=r"'key' of the files holds int64.*"):
        opened(folder, ["q"], {"on": "key", "key": "guid"})
    with pytest.raises(SchemaMismatchError, match="keys 'quality' are in more than one line"):
        opened(folder, ["q"], {"on": "image", "key": "quality"})
    with pytest.raises(SchemaMismatchError, match=r"key 'features' is .*expected one value a row"):
        opened(folder, ["q"], {"on": "image", "key": "features"})
    with pytest.raises(SchemaMismatchError, match=r"(?s)found 2 lengths.*key, others are asked of these files"):
        opened(folder, ["q", "image/others"])
    with pytest.raises(SchemaMismatchError, match=r"(?s)found 3 lengths.*Name columns of one length"):
        opened(folder, None, {"on": "image", "key": "row_id"})
    with pytest.raises(OptionError, match=r"'name'.*prefix="):
        opened(folder, ["q", "name"], BY["integers"] | {"prefix": ""})
    with pytest.raises(SchemaMismatchError, match="expected 60 lines, found 20"):
        opened(folder, ["q", "image/name"], {"on": "row_id"})
    # What is not asked for may have the name of a column of the files; by default all columns are delivered.
    assert opened(folder, ["q", "features"], BY["integers"] | {"prefix": ""})[5]["features"][0, 0] == OF[5]
    assert {*opened(folder, None).columns} == {"q", "image", "key", "guid", "name", *(f"image/{name}" for name in
            (*NAMES, "number", "guid", "steps", "jets", "counts"))}  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (["q", "image/features"], {}),
        (["q", "image/number"], {"predicate": where(q=[0, 1])}),
        (["q"], {"predicate": where(**{"image/quality": [0, 1, 2]})}),
        (["q"], {"predicate": where(**{"image/steps": any_equal(2)})}),
    ],
)
def test_a_file_beside_that_changes_is_noticed(folder, columns, options):
    samples = opened(folder, columns, **options)
    samples[0]
    write_features(folder / "new.h5", np.arange(IMAGES)[::-1])
    os.replace(folder / "new.h5", folder / "features.h5")
    with pytest.raises(StaleIndexError, match=r"features\.h5"):
        samples[1]
    assert int(opened(folder, ["image/number"])[1]["image/number"]) == OF[1]


def test_a_row_number_needs_no_list_of_the_rows_there(folder):
    """A file may claim rows that were never written; rows of the same file are taken, too."""
    with h5py.File(folder / "questions.h5", "r+") as file:
        file.create_dataset("features", (1 << 40,), "f4", chunks=(1 << 16,), fillvalue=7)
        file["features"][3] = 5
    taken = {"on": "image", "key": "row_id", "prefix": "other/"}
    samples = opened(folder, ["q", "other/features"], taken, path="questions.h5")
    assert samples[:]["other/features"].tolist() == np.where(OF == 3, 5, 7).tolist()
    with pytest.raises(SchemaMismatchError, match=r"(?s)sidecar: .*found 2 lengths.*prefix="):
        opened(folder, ["q", "features"], taken | {"prefix": ""}, path="questions.h5")
    with h5py.File(folder / "questions.h5", "r+") as file:
        file["image"][5] = -1
    with pytest.raises(SchemaMismatchError, match="their keys: -1; the first is"):
        opened(folder, ["q", "other/features"], taken, path="questions.h5")
    with pytest.raises(OptionError, match="delimiter=: expected no options of CSV"):
        opened(folder, ["q"], taken | {"delimiter": ";"})


def test_index_files_know_files_beside(folder, tmp_path):
    for _ in range(2):
        samples = opened(folder, COLUMNS, index_dir=tmp_path / "index")
        check([samples[i] for i in range(0, len(samples), 7)])


@pytest.mark.parametrize("seed", range(6))
def test_random_joins_equal_numpy(tmp_path, seed):
    rng = np.random.default_rng(seed)
    there, here = int(rng.integers(1, 40)), int(rng.integers(1, 80))
    keys = rng.choice(10_000, there, replace=False) - 5000
    shape = (there, *rng.integers(1, 4, rng.integers(0, 3)).tolist())
    values = rng.integers(-9, 9, shape).astype(["i2", "f8", "u1", "c8"][seed % 4])
    of = rng.integers(0, there, here)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["id"] = keys if seed % 2 else [str(key).encode() for key in keys]
        file.create_dataset("v", data=values, chunks=tuple(int(rng.integers(1, n + 1)) for n in shape))
    cuts = sorted(rng.integers(0, here + 1, 2).tolist())
    for number, rows in enumerate(np.split(of, cuts)):
        with h5py.File(tmp_path / f"a{number}.h5", "w") as file:
            file["id"] = keys[rows] if seed % 2 else np.array([str(key).encode() for key in keys[rows]], "S8")
            file["n"] = rows
    samples = H5Dataset(str(tmp_path / "a*.h5"), ["n", "v"], sidecar=Sidecar(tmp_path / "b.h5", on="id"))
    for batch in loader(samples, 9, shuffle=bool(seed % 3), seed=seed, drop_last=False, threads=seed % 3):
        assert np.array_equal(batch["v"].numpy(), values[batch["n"].numpy()])
    shutil.rmtree(tmp_path)
