"""Single opaque values, as h5py writes the bytes of a file: each is the array of its bytes."""

import io

import h5py
import numpy as np
import pytest

from ray_h5 import DecodeImage, Files, Groups, H5Dataset, Sidecar, loader
from ray_h5.cli import main
from ray_h5.errors import SchemaMismatchError
from tests.kit.files import save

SIZES = [(8, 8), (9, 12), (8, 8), (16, 5)]


def encoded(height, width):
    image = pytest.importorskip("PIL.Image")
    made, pixels = io.BytesIO(), np.random.default_rng(height * width).integers(0, 255, (height, width, 3), "u1")
    image.fromarray(pixels).save(made, "PNG")
    return made.getvalue(), pixels


@pytest.fixture
def by_name(tmp_path):
    """Write images under their names, as the files of ISIC have them, and a table of labels."""
    save(tmp_path / "a.h5", {f"ISIC_{number:07d}": np.void(encoded(*size)[0]) for number, size in enumerate(SIZES)})
    lines = [f"ISIC_{number:07d},{number % 2}" for number in range(4)]
    (tmp_path / "a.csv").write_text("\n".join(["isic_id,target", *lines]))
    return tmp_path


def test_opaque_values_of_several_lengths_are_rows(by_name):
    rows = H5Dataset(by_name / "a.h5", rows=Groups("*", key="isic_id"))
    with h5py.File(by_name / "a.h5") as file:
        for number, row in enumerate(rows[:]["value"]):
            assert row.dtype.itemsize == 1
            assert bytes(row.numpy()) == file[f"ISIC_{number:07d}"][()].tobytes()


def test_they_are_decoded_and_joined(by_name):
    options = {"rows": Groups("*", key="isic_id"), "sidecar": Sidecar(by_name / "a.csv", on="isic_id")}
    for batch in loader(by_name / "a.h5", 4, transform=DecodeImage("value"), shuffle=False, **options):
        assert batch["target"].tolist() == [0, 1, 0, 1]
        for size, image in zip(SIZES, batch["value"], strict=True):
            np.testing.assert_array_equal(image.permute(1, 2, 0), encoded(*size)[1])


def test_a_file_an_image(tmp_path):
    for number, size in enumerate(SIZES):
        save(tmp_path / f"{number}.h5", {"png": np.void(encoded(*size)[0]), "label": number})
    rows = H5Dataset(tmp_path, rows=Files(), transform=DecodeImage("png"))
    for number, size in enumerate(SIZES):
        row = rows[number]
        assert row["label"] == number
        np.testing.assert_array_equal(row["png"].permute(1, 2, 0), encoded(*size)[1])


def test_a_single_value_that_is_no_column_is_left_out_of_files(tmp_path, caplog):
    save(tmp_path / "a.h5", {"image": np.zeros((4, 4)), "settings": np.zeros((), [("a", "i4"), ("b", "f4")])})
    assert [*H5Dataset(tmp_path / "a.h5", rows=Files())[0]] == ["image"]
    assert "left out 1 of 2 columns: settings" in caplog.text


def test_other_opaque_values_are_what_they_are(tmp_path):
    moments = np.array(["2024-01-01", "2024-02-01"], "M8[D]")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, at in enumerate(moments):
            stored = file.create_dataset(f"when/t{number}", (), h5py.opaque_dtype(moments.dtype))
            stored[...] = np.asarray(at).astype(stored.dtype)
            file[f"mixed/m{number}"] = np.void(b"abc") if number else np.arange(3)
    assert [row["value"] for row in H5Dataset(tmp_path / "a.h5", rows=Groups("when/*"))] == list(moments)
    with pytest.raises(SchemaMismatchError, match="column 'value': expected int64 with 1 axis"):
        H5Dataset(tmp_path / "a.h5", rows=Groups("mixed/*"))


def test_inspect_prints_a_call_that_reads_them(by_name, capsys):
    assert main(["inspect", str(by_name / "a.h5")]) == 0  # it prints a call that reads the file
    text = capsys.readouterr().out
    assert "4 single values alike. If each is a sample, write read_h5(paths, rows=ray_h5.Groups('ISIC_*', key=" in text
    assert "pass rows=ray_h5.Groups('*'); if each file is one, rows=ray_h5.Files()" in text


def test_opaque_values_that_were_never_written_are_their_fill_value(tmp_path):
    fill = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    fill.set_fill_value(np.array(np.void(b"abc")))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group in ("g0", "g1"):
            scalar, kind = h5py.h5s.create(h5py.h5s.SCALAR), h5py.h5t.py_create(np.dtype("V3"))
            h5py.h5d.create(file.create_group(group).id, b"b", kind, scalar, fill)
        expected = file["g0/b"][()].tobytes()
    found = H5Dataset(tmp_path / "a.h5", ["b"], rows=Groups("g*")).read(np.arange(2))["b"]
    assert [value.tobytes() for value in found] == [expected, expected]
