"""Row numbers of masks and tables under windows: one rule for all kinds, whatever offsets leave steps without a row."""

import csv

import h5py
import numpy as np
import pytest

from ray_h5.torch_data import Files, Grid, Groups, H5Dataset, Sidecar, Windows, row_mask, where

STEPS = 12

NUMBERS = np.arange(STEPS)
"""The number of each step in its file is the value of `x`."""


def along_the_first_axis(file):
    file["x"] = NUMBERS
    file["id"], file["ends"] = np.repeat([3, 1, 2], [5, 3, 4]), np.array([5, 8, 12])
    file["last"], file["trials"] = np.isin(NUMBERS, [4, 7, 11]), np.array([[1, 5], [6, 8], [8, 12]])
    file["first"], file["count"] = np.array([0, 5, 8]), np.array([5, 3, 4])
    file["t"] = np.cumsum(np.r_[0, np.resize([1.0, 1.5, 0.75], STEPS - 1)])


def in_groups(file):
    for number, part in enumerate(np.split(NUMBERS, [5, 8])):
        file[f"g{number}/x"], file[f"g{number}/t"] = part, part * 1.0


def on_a_grid(file):
    file["x"] = NUMBERS.reshape(3, 4)


KINDS = {
    "rows": (along_the_first_axis, {}, {}),
    "episode": (along_the_first_axis, {}, {"episode": "id"}),
    "ends": (along_the_first_axis, {}, {"episode_ends": "ends"}),
    "flags": (along_the_first_axis, {}, {"episode_flags": "last"}),
    "starts": (along_the_first_axis, {}, {"episode_starts": "first"}),
    "lengths": (along_the_first_axis, {}, {"episode_lengths": "count"}),
    "bounds": (along_the_first_axis, {}, {"episode_bounds": "trials"}),
    "groups": (in_groups, {"rows": Groups("g*")}, {}),
    "files": (along_the_first_axis, {"rows": Files()}, {}),
    "grid": (on_a_grid, {"rows": Grid(2)}, {}),
    "times": (along_the_first_axis, {}, {"at": {"x": "t"}}),
    "rates": (along_the_first_axis, {}, {"at": {"x": (1.0, 0.0)}}),
    "ticks": (along_the_first_axis, {}, {"at": {"x": (1.0, 0.0)}, "fps": 1}),
    "times in groups": (in_groups, {"rows": Groups("g*")}, {"at": {"x": "t"}}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two files for each way to write them, with masks, and tables beside them."""
    found = {}
    for write in (along_the_first_axis, in_groups, on_a_grid):
        folder = found[write] = tmp_path_factory.mktemp(write.__name__)
        for name in "ab":
            with h5py.File(folder / f"{name}.h5", "w") as file:
                write(file)
                file["masks/listed"], file["masks/true"] = (
                    np.array([2, 3, 4, 9, 10]),
                    np.isin(NUMBERS, [2, 3, 4, 9, 10]),
                )
        names = {
            "row": [(number, number) for number in NUMBERS],
            "step": [(number, number) for number in NUMBERS],
            "lines": [(number,) for number in NUMBERS],
            "both": [(f"{name}.h5", number, number) for name in "ab" for number in NUMBERS],
        }
        heads = {"row": ("row", "label"), "step": ("step", "label"), "both": ("path", "row", "label")}
        for name, lines in names.items():
            with open(folder / f"{name}.csv", "w", newline="") as file:
                csv.writer(file).writerows([heads.get(name, ("label",)), *lines])
    return found


def windows_of(times):
    """Return windows that leave out the first step of an episode, and each second one after it."""
    offsets = [-1.0, 0.0] if "at" in times else [-1, 0]
    return Windows({"x": offsets}, pad="drop", stride=2, **times)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_tables_name_the_steps_of_files(folders, tmp_path, kind):
    write, options, times = KINDS[kind]
    folder, windows = folders[write], windows_of(times)
    both = {"windows": windows, **options}

    def now(path, *arguments, **more):
        return H5Dataset(path, *arguments, **both, **more)[:]["x"][:, -1].tolist()

    plain = now(folder / "a.h5", ["x"])
    assert len({*plain}) == len(plain) > 1
    assert {*plain} <= {*NUMBERS.tolist()}
    chosen = [each for each in plain if each in {2, 3, 4, 9, 10}]
    for mask in ("listed", "true"):
        assert now(folder / "a.h5", ["x"], where(**{f"masks/{mask}": row_mask()})) == chosen
    tables = [("a.h5", "row", "row"), ("?.h5", ["path", "row"], "both")]
    tables += [("a.h5", "step", name) for name in ("step", "lines")]
    for index_dir in (tmp_path, tmp_path):  # the second time, the index is read
        for paths, on, name in tables:
            sidecar = Sidecar(folder / f"{name}.csv", on=on)
            found = H5Dataset(str(folder / paths), ["x", "label"], **both, sidecar=sidecar, index_dir=index_dir)[:]
            assert found["label"].tolist() == found["x"][:, -1].tolist() == plain * (2 if "?" in paths else 1)


# Times ------------------------------------------------------------------------------------------


def test_what_has_no_times_is_left_out(tmp_path, caplog):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["lfp"], file["t"], file["other"] = np.arange(5.0), np.arange(5.0), np.arange(3)
        file["speed/data"], file["speed/t"] = np.arange(4.0), np.arange(4.0)
    windows = Windows({"lfp": [0.0], "speed/data": [0.0]}, at={"lfp": "t", "speed/data": "t"})
    assert H5Dataset(tmp_path / "a.h5", windows=windows).columns == [
        "lfp", "speed/data", "lfp_is_pad", "speed/data_is_pad", "time",
    ]  # fmt: skip
    assert "left out 1 of 6 columns: other (has no times" in caplog.text
    with pytest.raises(Exception, match="column 'other' has no times"):
        H5Dataset(tmp_path / "a.h5", ["lfp", "other"], windows=windows)


@pytest.mark.parametrize("names", [["x", "time"], ["time", "x"], ["time"]])
@pytest.mark.parametrize("dtype", ["f8", "i8"])
@pytest.mark.parametrize(
    ("at", "fps", "expected"),
    [("time", 4, [0.0, 0.25, 0.5]), ("time", None, [0.0, 1.0, 2.0]), ("timestamps", None, [0.0, 0.5, 1.0])],
)
def test_the_column_time_has_the_times_of_rows(tmp_path, names, dtype, at, fps, expected):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["timestamps"] = np.arange(20.0), np.arange(20) * 0.5
        if at == "time":
            file["time"] = np.arange(20).astype(dtype)
    windows = Windows({"x": [0.0]}, at=at, fps=fps, pad="drop")
    for index_dir in (None, tmp_path / "index"):
        found = H5Dataset(path, names, windows=windows, index_dir=index_dir)[:]["time"][:3]
        assert (found.tolist(), str(found.dtype)) == (expected, "torch.float64")
