"""Warnings about what files hold, each once a process and set of files."""

import re

import h5py
import numpy as np
import pytest

from ray_h5.cli import main
from ray_h5.errors import SchemaMismatchError
from ray_h5.torch_data import CombinedHDF5Dataset, Files, Groups, H5Dataset, Windows, loader
from tests.kit.files import save


def warnings_of(caplog):
    found = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    caplog.clear()
    return found


def test_samples_that_become_columns_are_told_once(tmp_path, caplog):
    traces = save(tmp_path / "a.h5", {f"data/trace_{i}": np.zeros(100) for i in range(5)})
    for dataset in (H5Dataset, CombinedHDF5Dataset, H5Dataset):
        dataset(traces)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"{traces}: data/trace_0 ... trace_4: 5 columns alike. If each is a sample, pass rows=")
    assert "rows=ray_h5.Groups('data/trace_*')." in warning
    assert "first axes are read as 100 rows" in warning
    H5Dataset(traces, group="data")
    assert len(warnings_of(caplog)) == 1


def packed(path, scale=0.01, **attributes):
    with h5py.File(path, "w") as file:
        file["t2m"] = np.arange(4, dtype="i2")
        file["t2m"].attrs.update(
            {"scale_factor": scale, "add_offset": 273.15, "_FillValue": np.int16(-32767)} | attributes
        )
        file["plain"] = np.arange(4.0)
        file["plain"].attrs["_FillValue"] = np.nan
    return str(path)


def test_packed_values_are_told_once_with_what_to_compute(tmp_path, caplog):
    path = packed(tmp_path / "a.nc")
    H5Dataset(path)
    H5Dataset(path)
    (warning,) = warnings_of(caplog)
    assert "values are delivered as stored" in warning
    assert "t2m: compute value * 0.01 + 273.15 (the rule of CF; some files" in warning
    assert "and divide), and take -32767 for missing." in warning
    assert "plain" not in warning
    assert "differ" not in warning
    H5Dataset(path, ["plain"])
    assert warnings_of(caplog) == []
    H5Dataset(path, ["t2m"])
    assert len(warnings_of(caplog)) == 1


def test_files_that_are_images_are_told_with_the_call(tmp_path, caplog):
    for i in range(3):
        save(tmp_path / f"slice_{i}.h5", {"image": np.zeros((48, 40, 4)), "mask": np.zeros((48, 40), "u1")})
    assert len(H5Dataset(tmp_path)) == 3 * 48
    (warning,) = warnings_of(caplog)
    assert "each file looks like one image" in warning
    assert "first axes are read as 144 rows" in warning
    assert "pass rows=ray_h5.Files()" in warning
    assert len(H5Dataset(tmp_path, rows=Files())) == 3
    H5Dataset(tmp_path, ["image"])
    H5Dataset(tmp_path / "slice_0.h5")
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("beside", [{}, {"metadata/n": 12}, {"metadata/f": np.arange(3)}], ids=["", "value", "column"])
def test_samples_are_told_whatever_is_beside_them(tmp_path, caplog, capsys, beside):
    arrays = {f"{i}/{name}": np.full((3, size), i) for i in range(1, 13) for name, size in (("map", 8), ("loc", 2))}
    save(tmp_path / "a.h5", {**arrays, **{f"{i}/f": np.arange(3) for i in range(1, 13)}, **beside})
    assert len(H5Dataset(tmp_path / "a.h5")) == 3
    (warning,) = warnings_of(caplog)
    pattern = "[0-9]*" if beside else "*"
    assert f"pass rows=ray_h5.Groups({pattern!r})." in warning
    assert main(["inspect", str(tmp_path / "a.h5")]) == 0
    assert f"rows=ray_h5.Groups({pattern!r})" in capsys.readouterr().out
    assert len(H5Dataset(tmp_path / "a.h5", rows=Groups(pattern))) == 12


def test_samples_of_several_lengths_are_told_in_the_error(tmp_path):
    save(tmp_path / "a.h5", {**{f"{i}/x": np.zeros(i) for i in range(1, 13)}, "metadata/n": 12})
    with pytest.raises(SchemaMismatchError, match=re.escape("rows=ray_h5.Groups('[0-9]*')")):
        H5Dataset(tmp_path / "a.h5")


def test_vectors_under_ids_are_told_as_both(tmp_path, caplog):
    names = [f"{'OPQ'[i % 3]}{i % 10}AX{i // 10 % 10}{i % 9}" for i in range(0, 300, 7)]
    save(tmp_path / "a.h5", {name: np.zeros(64) for name in names})
    assert len(H5Dataset(tmp_path / "a.h5")) == 64
    (warning,) = warnings_of(caplog)
    assert "If each is a sample, pass rows=ray_h5.Groups('*')" in warning
    assert "first axes are read as 64 rows" in warning
    save(tmp_path / "b.h5", {**{name: np.zeros(64) for name in names}, "label": np.zeros(64)})
    H5Dataset(tmp_path / "b.h5")
    assert warnings_of(caplog) == []


def test_files_of_one_square_array_are_told_with_the_call(tmp_path, caplog):
    for i in range(9):
        save(tmp_path / f"{i}.h5", {"kspace": np.zeros((40, 40))})
    assert len(H5Dataset(tmp_path)) == 9 * 40
    (warning,) = warnings_of(caplog)
    assert "9 files of one array with equal axes" in warning
    assert "pass rows=ray_h5.Files()" in warning


def test_rows_that_differ_in_shape_are_told_and_delivered(tmp_path, caplog):
    for i in range(3):
        save(tmp_path / f"{i}.h5", {"x": np.full((4, 5 + i % 2, 3), i, "f4"), "y": np.arange(4)})
    for _ in range(2):
        dataset = H5Dataset(tmp_path)
    (warning,) = warnings_of(caplog)
    assert "rows of 'x' differ in shape from file to file: 'x' has rows of ? x 3" in warning
    assert "pad=True" in warning
    assert "rows=ray_h5.Files()" in warning
    assert [row["x"].shape for row in dataset] == [(5 + i // 4 % 2, 3) for i in range(12)]
    assert [int(row["x"][0, 0]) for row in dataset] == [i // 4 for i in range(12)]
    padded = next(iter(loader(tmp_path, 12, shuffle=False, pad=True)))
    assert padded["x"].shape == (12, 6, 3)
    assert padded["x_length"].tolist() == [5 + i // 4 % 2 for i in range(12)]


def test_rows_that_differ_within_a_file_are_not_told(tmp_path, caplog):
    """As entries of a cell array do, each of which leads to an array of its own."""
    for number, lengths in enumerate([(3,), (4, 5, 6)]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            entries = [file.create_dataset(f"#refs#/{n}", data=np.zeros((n, 2))).ref for n in lengths]
            file.create_dataset("cells", data=entries, dtype=h5py.ref_dtype)
    assert [len(row["cells"]) for row in H5Dataset(tmp_path, ["cells"])] == [3, 4, 5, 6]
    assert warnings_of(caplog) == []


def test_windows_whose_padding_no_column_marks(tmp_path, caplog):
    save(tmp_path / "a.h5", {"u": np.arange(5), "v": np.arange(5)})

    def said(columns, pad="edge"):
        caplog.clear()
        H5Dataset(tmp_path / "a.h5", columns, windows=Windows({"u": [0, 1], "v": [0, 1], "w": ("u", [0])}, pad=pad))
        return [each for each in caplog.messages if "padding" in each]

    assert "leaves out u_is_pad, which says" in said(["u"])[0]
    assert said(["u", "v", "u_is_pad"]) == said(["w"]) == said(None) == []
    assert said(["v"], pad="drop") == said(["v"], pad=("edge", "drop")) == []


def test_files_without_rows_are_named(tmp_path, caplog):
    for number, rows in enumerate((3, 0, 2)):
        save(tmp_path / f"{number}.h5", {"x": np.zeros((rows, 2))})
    assert len(H5Dataset(tmp_path)) == 5
    assert warnings_of(caplog) == [f"1 of 3 files have no rows: {tmp_path / '1.h5'}"]
