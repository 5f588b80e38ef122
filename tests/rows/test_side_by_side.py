"""Datasets of one name in several groups are one row: images and their masks."""

import pickle

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import Groups, H5Dataset, Patches, RowReader, Sidecar, Windows, where
from ray_h5.errors import SchemaMismatchError, UnknownColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.measure import inspect_files
from tests.hdf5.h5kit import by_h5py
from tests.rows.kit import assert_value

SIZES = [5, 3, 11, 4]
PAIRS = Groups({"image": "images/case_*", "mask": "masks/case_*", "age": "ages/case_*"}, key="case")


@pytest.fixture
def path(tmp_path):
    """Write images of several sizes, masks of other types, and numbers; each in chunks of its own, or in none."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, size in reversed([*zip((1, 2, 10, 30), SIZES, strict=True)]):
            image = np.arange(size * 6, dtype="f4").reshape(size, 6) + 100 * number
            chunks = {"chunks": (2, 6), "compression": "gzip"} if number % 2 else {}
            file.create_dataset(f"images/case_{number}", data=image, **chunks)
            file.create_dataset(f"masks/case_{number}", data=image.astype("u1") % 3, chunks=(1, 6) if chunks else None)
            file[f"ages/case_{number}"] = number
        file["images/other"], file["masks/note"] = np.zeros(3), "a text"
    return tmp_path / "a.h5"


def in_file(path, number, kind="images"):
    return by_h5py(path, f"{kind}/case_{number}")


@pytest.mark.parametrize("index", [False, True])
def test_rows_equal_h5py(path, tmp_path, index):
    for _ in range(2):  # the second reads the index file
        dataset = H5Dataset(path, rows=PAIRS, index_dir=tmp_path / "index" if index else None)
        assert sorted(dataset.columns) == ["age", "case", "image", "mask"]
        assert [row["case"] for row in dataset] == ["case_1", "case_2", "case_10", "case_30"]
        for row, number in zip(dataset, (1, 2, 10, 30), strict=True):
            assert row["age"] == number
            for kind in ("image", "mask"):
                assert_value(row[kind].numpy(), in_file(path, number, f"{kind}s"))
    (row,) = H5Dataset(path, ["mask"], where(case="case_10"), rows=PAIRS)
    assert row.keys() == {"mask"}


def test_names_that_differ_but_for_a_number(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in (3, 12):
            file[f"img_{number}_x"], file[f"seg_{number}"] = np.full(number, number), number
    rows = [*H5Dataset(tmp_path / "a.h5", rows=Groups({"image": "img_*_x", "mask": "seg_*"}, key="name"))]
    assert [(row["name"], len(row["image"]), int(row["mask"])) for row in rows] == [
        ("img_3_x", 3, 3),
        ("img_12_x", 12, 12),
    ]


def test_a_row_that_lacks_a_dataset(path):
    with h5py.File(path, "a") as file:
        del file["masks/case_2"]
        file["masks/case_7"] = np.zeros((2, 6), "u1")
    with pytest.raises(SchemaMismatchError, match=r"masks/case_7: no dataset 'images/case_.*' has this name"):
        H5Dataset(path, rows=PAIRS)
    pairs = Groups({"image": "images/case_*", "mask": "masks/case_*"}, missing="null", key="case")
    found = {row["case"]: (row["image"] is None, row["mask"] is None) for row in H5Dataset(path, rows=pairs)}
    assert found == {"case_1": (False, False), "case_2": (False, True), "case_10": (False, False),
                     "case_30": (False, False), "case_7": (True, False)}  # fmt: skip
    with pytest.raises(UnknownColumnError, match=r"nothing matches the pattern 'label/\*' .*There is: ages"):
        H5Dataset(path, rows=Groups({"image": "images/case_*", "mask": "label/*"}))
    with pytest.raises(SchemaMismatchError, match="matches groups and datasets"):
        H5Dataset(path, rows=Groups({"all": "*"}))


def test_windows_along_the_first_axis(path):
    windows = Windows({"image": range(-1, 2), "mask": [0]}, pad="drop")
    dataset = H5Dataset(path, rows=PAIRS, windows=windows)
    expected = [(n, t) for n, size in zip((1, 2, 10, 30), SIZES, strict=True) for t in range(1, size - 1)]
    assert len(dataset) == len(expected)
    for row, (number, step) in zip(dataset, expected, strict=True):
        assert (row["case"], row["age"]) == (f"case_{number}", number)
        assert_value(row["image"].numpy(), in_file(path, number)[step - 1 : step + 2])
        assert_value(row["mask"].numpy(), in_file(path, number, "masks")[step : step + 1])


@pytest.mark.usefixtures("ray_local")
def test_ray_tables_and_the_command_line(path, tmp_path, capsys):
    from ray_h5.cli import main

    (tmp_path / "labels.csv").write_text("case,label\n" + "".join(f"case_{n},{n % 2}\n" for n in (30, 10, 2, 1)))
    table = Sidecar(tmp_path / "labels.csv", on="case")
    rows = ray_h5.read_h5(str(path), rows=PAIRS, sidecar=table).take_all()
    assert [(row["case"], row["label"]) for row in rows] == [
        ("case_1", 1),
        ("case_2", 0),
        ("case_10", 0),
        ("case_30", 0),
    ]
    assert_value(np.asarray(rows[2]["mask"]), in_file(path, 10, "masks"))
    given = ["inspect", str(path), "--groups", "image=images/case_*", "--groups", "mask=masks/case_*"]
    assert main(given) == 0
    assert "4 rows" in capsys.readouterr().out
    assert main([*given, "--patches", "image=2,2", "mask=2,2", "--patch-stride", "2"]) == 0
    assert main([*given, "--groups", "ages"]) == 1
    assert "expected globs, in quotes, or COLUMN=GLOB" in capsys.readouterr().err
    several = Groups(["images/case_?", "images/case_1*"], exclude="case_2", key="case")
    assert [row["case"] for row in ray_h5.read_h5(str(path), rows=several).take_all()] == [
        "images/case_1",
        "images/case_10",
    ]
    given = ["inspect", str(path), "--groups", "images/case_?", "--groups", "images/case_1*"]
    assert main([*given, "--exclude", "case_2"]) == 0
    assert "2 rows" in capsys.readouterr().out
    assert main(["inspect", str(path), "--exclude", "case_2"]) == 1


def test_values_and_blocks_of_one_pattern(path):
    assert pickle.loads(pickle.dumps(PAIRS)) == PAIRS
    assert hash(pickle.loads(pickle.dumps(PAIRS))) == hash(PAIRS)
    with pytest.raises(ray_h5.RayH5Error, match=r"pass groups={'image': 'images/case_\*'}"):
        H5Dataset(path, rows=Patches({"image": (3, 3)}, stride=3, groups="images/case_*"))
    kind = Patches({"image": (3, 3)}, stride=3, groups={"image": "images/case_*"}, key="case")
    with RowReader(path, rows=kind) as reader:
        found = reader.read(["image", "corner", "case"])
    for image, (top, left), name in zip(found["image"], found["corner"], found["case"], strict=True):
        whole = in_file(path, name.decode().removeprefix("case_"))
        assert_value(image, whole[top : top + 3, left : left + 3])


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_the_call_is_suggested(tmp_path, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(6):
            file[f"train/images/case_{number}"] = np.full((16 + number, 20), 200, dtype)
            file[f"train/masks/case_{number}"] = np.full((16 + number, 20), 1, "u1")
    (found,) = inspect_files(FileOptions.of(tmp_path / "a.h5")).suggestions
    patterns = {"images": "train/images/case_*", "masks": "train/masks/case_*"}
    assert found.options == f"rows=ray_h5.Groups({patterns!r}, key='name')"


def test_classes_with_the_same_names_are_no_columns(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, name in enumerate(("cat", "dog")):
            for image in range(6):
                file[f"{name}/{image}.png"] = np.full((16 + image, 20), number, "u1")
    found = inspect_files(FileOptions.of(tmp_path / "a.h5")).suggestions
    assert not any("{" in each.options for each in found)
