"""Groups of two files that have one name are one row: images.h5 and labels.h5."""

import itertools
import pickle

import h5py
import numpy as np
import pytest
import torch

import ray_h5
from ray_h5 import Groups, H5Dataset, Patches, Shuffle, Windows, loader, where
from ray_h5.errors import SchemaMismatchError, StaleIndexError, UnknownColumnError, UnsupportedColumnError
from tests.rows.kit import assert_value

CASES = [7, 1, 30, 2]
PAIRS = Groups({"image": "images/case_*", "mask": "masks/case_*", "age": "ages/case_*"}, key="case")
KINDS = {"image": "images", "mask": "masks", "age": "ages"}


def write(folder, group, number):
    """Write one pair of files: images of several sizes, and masks and ages of another order."""
    with (
        h5py.File(folder / f"images_{number}.h5", "w") as images,
        h5py.File(folder / f"labels_{number}.h5", "w") as other,
    ):
        labels = other.require_group(group)
        labels["room"] = np.zeros(999, "u1")
        for case in CASES:
            size = 3 + case % 5 + number
            image = np.arange(size * 6, dtype="f4").reshape(size, 6) + 100 * case
            chunks = {"chunks": (2, 6), "compression": "gzip"} if case % 2 else {}
            images.require_group(group).create_dataset(f"images/case_{case}", data=image, **chunks)
        for case in reversed(CASES):
            size = 3 + case % 5 + number
            mask = np.random.default_rng(case).integers(0, 9, (size, 6)).astype("u1")
            labels.create_dataset(f"masks/case_{case}", data=mask, chunks=(1, 6) if case % 2 else None)
            labels[f"ages/case_{case}"] = case + 100 * number


@pytest.fixture
def pairs(tmp_path, request):
    group = getattr(request, "param", "study/a")
    for number in range(2):
        write(tmp_path, group, number)
    return {"paths": f"{tmp_path}/images_*.h5", "zip_files": f"{tmp_path}/labels_*.h5", "group": group}


def stored(pairs, column, number, case):
    path = pairs["paths" if column == "image" else "zip_files"].replace("*", str(number))
    with h5py.File(path) as file:
        return file[pairs["group"]][f"{KINDS[column]}/{case}"][()]


def check(row, pairs):
    number = int(row["age"]) // 100
    for column in ("image", "mask", "age"):
        assert_value(np.asarray(row[column]), np.asarray(stored(pairs, column, number, row["case"])))
    return number, row["case"]


NAMES = ["case_1", "case_2", "case_7", "case_30"]
ALL = [*itertools.product(range(2), NAMES)]


@pytest.mark.parametrize(("pairs", "threads"), [("/", 0), ("study/a", 2)], indirect=["pairs"])
def test_rows_equal_h5py(pairs, tmp_path, threads):
    for _ in range(2):  # the second reads the index file
        dataset = H5Dataset(**pairs, rows=PAIRS, index_dir=tmp_path / "index")
        assert [check(row, pairs) for row in dataset] == ALL
    copy = pickle.loads(pickle.dumps(dataset))
    assert [check(row, pairs) for row in torch.utils.data.DataLoader(copy, None, num_workers=1)] == ALL
    batches = loader(dataset, 3, shuffle=Shuffle("rows", seed=4), threads=threads, collate_fn=list)
    epochs = [[check(row, pairs) for batch in batches for row in batch] for _ in range(2)]
    assert all(sorted(epoch) == sorted(ALL) for epoch in epochs)
    assert epochs[0] != epochs[1]
    for row in H5Dataset(**pairs, rows=PAIRS, predicate=where(case=["case_2", "case_30"], age=[2, 130])):
        assert check(row, pairs) in {(0, "case_2"), (1, "case_30")}


def test_an_epoch_goes_on_where_it_stopped(pairs):
    def batches():
        return loader(H5Dataset(**pairs, rows=PAIRS), 2, shuffle=Shuffle("chunks", seed=1), threads=0, collate_fn=list)

    whole = [check(row, pairs) for batch in batches() for row in batch]
    for stop in range(1, 4):
        first, second = batches(), batches()
        seen = [check(row, pairs) for batch in itertools.islice(first, stop) for row in batch]
        second.load_state_dict(first.state_dict())
        assert seen + [check(row, pairs) for batch in second for row in batch] == whole


def test_windows_and_blocks(pairs):
    windows = Windows({"image": [-1, 0], "mask": [0]}, pad="drop")
    found = 0
    for row in H5Dataset(**pairs, rows=PAIRS, windows=windows, columns=["image", "mask", "age", "case"]):
        number, case = int(row["age"]) // 100, row["case"]
        image, mask = stored(pairs, "image", number, case), stored(pairs, "mask", number, case)
        step = next(at for at in range(1, len(image)) if (image[at - 1 : at + 1] == row["image"].numpy()).all())
        assert_value(row["mask"].numpy(), mask[step : step + 1])
        found += 1
    assert found == sum(len(stored(pairs, "image", *each)) - 1 for each in ALL)
    kind = Patches({"image": (2, 3), "mask": (2, 3)}, stride=3, key="case",
                   groups={"image": "images/case_*", "mask": "masks/case_*"})  # fmt: skip
    for row in H5Dataset(**pairs, rows=kind):
        top, left = row["corner"].tolist()
        blocks = [
            [stored(pairs, name, number, row["case"])[top : top + 2, left : left + 3] for name in ("image", "mask")]
            for number in range(2)
        ]
        assert any(all((one == row[name].numpy()).all() for one, name in zip(each, ("image", "mask"), strict=True))
                   for each in blocks)  # fmt: skip


@pytest.mark.usefixtures("ray_local")
def test_ray(pairs):
    ds = ray_h5.read_h5(**pairs, rows=PAIRS, shuffle=True, block_rows=3)
    assert sorted(check(row, pairs) for row in ds.take_all()) == sorted(ALL)
    chosen = ds.filter(expr=where(age=ray_h5.between(100, 107)))
    assert sorted(check(row, pairs) for row in chosen.take_all()) == [(1, "case_1"), (1, "case_2"), (1, "case_7")]


def test_names_that_both_files_have(tmp_path):
    """One pattern of two columns: the first is of the first file."""
    for name, value in (("images", 7), ("labels", 1)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for case in range(3):
                file.create_dataset(f"case_{case}", data=np.full((4 + case, 3), value, "u1"), chunks=(2, 3))
    files = {"paths": tmp_path / "images.h5", "zip_files": tmp_path / "labels.h5"}
    for row, size in zip(
        H5Dataset(**files, rows=Groups({"image": "case_*", "mask": "case_*"})), (4, 5, 6), strict=True
    ):
        assert_value(row["image"].numpy(), np.full((size, 3), 7, "u1"))
        assert_value(row["mask"].numpy(), np.full((size, 3), 1, "u1"))
    with pytest.raises(SchemaMismatchError, match=r"images.*labels.*each file: rows=Groups\({'x': 'case_\*'"):
        H5Dataset(**files, rows=Groups({"image": "case_*", "mask": "*"}))
    with pytest.raises(SchemaMismatchError, match=r"name the column of each file: rows=Groups\({'x': 'case_\*', 'y': "):
        H5Dataset(**files, rows=Groups("case_*"))


def test_groups_with_columns_of_both(tmp_path):
    compound = np.dtype([("a", "i4"), ("b", "S3")])
    for name, cases in (("images", range(4)), ("labels", reversed(range(4)))):
        with h5py.File(tmp_path / f"{name}.h5", "w", track_order=True) as file:
            for case in cases:
                group = file.create_group(f"data/case_{case}", track_order=True)
                group[name] = np.full((4 + case, 3), case, "f4" if name == "images" else "i8")
                group["note"], group.attrs["n"] = f"{name} {case}", case
                group[f"of_{name}/pairs"] = np.array([(case, b"x")] * 2, compound)
                group[f"of_{name}/texts"] = np.array([name] * case, h5py.string_dtype())
    files = {"paths": tmp_path / "images.h5", "zip_files": tmp_path / "labels.h5"}
    kind = Groups("data/case_*", attrs=("n",), key="case", order="creation")
    dataset = H5Dataset(**files, rows=kind)
    assert sorted(dataset.columns) == ["case", "images", "labels", "n", "of_images/pairs", "of_images/texts",
                                       "of_labels/pairs", "of_labels/texts"]  # fmt: skip
    for case, row in enumerate(dataset):
        assert (row["case"], int(row["n"])) == (f"data/case_{case}", case)
        assert_value(row["images"].numpy(), np.full((4 + case, 3), case, "f4"))
        assert_value(row["labels"].numpy(), np.full((4 + case, 3), case, "i8"))
        for name in ("images", "labels"):
            assert row[f"of_{name}/texts"] == [name] * case
            assert [tuple(each) for each in row[f"of_{name}/pairs"]] == [(case, b"x")] * 2 or len(
                row[f"of_{name}/pairs"]
            ) == 2
    with pytest.raises(UnsupportedColumnError, match=r"images\.h5: column 'note' is in .*labels\.h5, too"):
        H5Dataset(**files, rows=kind, columns=["note"])


def test_a_name_in_one_file_alone_is_named(pairs):
    path = pairs["zip_files"].replace("*", "1")
    with h5py.File(path, "a") as file:
        del file[pairs["group"]]["masks/case_2"]
        del file[pairs["group"]]["ages/case_2"]
    with pytest.raises(SchemaMismatchError, match=r"labels_1\.h5: images/case_2: no dataset 'masks/case_\*' has this"):
        H5Dataset(**pairs, rows=PAIRS)
    pattern = {"image": "images/case_*", "mask": "masks/case_*"}
    found = [row["mask"] is None for row in H5Dataset(**pairs, rows=Groups(pattern, missing="null"))]
    assert found == [False, False, False, False, False, True, False, False]
    with pytest.raises(UnknownColumnError, match=r"nothing matches the pattern 'label/\*'"):
        H5Dataset(**pairs, rows=Groups({"image": "images/case_*", "mask": "label/*"}))


def test_a_group_in_one_file_alone_is_named(tmp_path):
    for name, cases in (("images", (0, 1, 2)), ("labels", (0, 2, 3))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for case in cases:
                file[f"case_{case}/{name}"] = np.full((case + 1, 2), case)
                file[f"case_{case}"].attrs["age"] = case
    files = {"paths": tmp_path / "images.h5", "zip_files": tmp_path / "labels.h5"}
    with pytest.raises(SchemaMismatchError, match=r"labels\.h5: no group 'case_1', which .*images\.h5 has.*2 names"):
        H5Dataset(**files, rows=Groups("case_*"))
    rows = [*H5Dataset(**files, rows=Groups("case_*", key="case", missing="null"))]
    assert [row["case"] for row in rows] == [f"case_{case}" for case in range(4)]
    lengths = [[None if row[name] is None else len(row[name]) for name in ("images", "labels")] for row in rows]
    assert lengths == [[1, 1], [2, None], [3, 3], [None, 4]]
    ages = H5Dataset(**files, rows=Groups("case_*", attrs=["age"], missing="null"))[:]["age"].tolist()
    assert ages[:3] == [0, 1, 2]
    assert np.isnan(ages[3])  # attributes are those of the first file


def test_a_file_beside_that_changes_is_an_error(pairs):
    dataset = H5Dataset(**pairs, rows=PAIRS)
    with h5py.File(pairs["zip_files"].replace("*", "1"), "r+") as file:
        file[pairs["group"]]["masks/case_7"][:] = 0
    assert check(dataset[2], pairs) == (0, "case_7")
    with pytest.raises(StaleIndexError, match=r"labels_1\.h5"):
        dataset[6]
    assert len(H5Dataset(**pairs, rows=PAIRS)) == 8


def test_datasets_end_to_end_lie_in_one_of_two_files(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as one, h5py.File(tmp_path / "b.h5", "w") as other:
        for part in range(3):
            one[f"image/{part}"], other[f"label/{part}"] = np.full((2, 3), part), np.arange(2) + 10 * part
    columns = [ray_h5.joined("image/*", name="image"), ray_h5.joined("label/*", name="label")]
    dataset = H5Dataset(tmp_path / "a.h5", columns, zip_files=tmp_path / "b.h5")
    assert_value(dataset[[0, 3, 5]].label.numpy(), np.array([0, 11, 21]))
    assert_value(dataset[[0, 3, 5]].image.numpy(), np.repeat([[0], [1], [2]], 3, axis=1))
