"""Columns of other rates: what windows in seconds take of each, equal to numpy."""

import math

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ray_h5 import Files, Groups, H5Dataset, RayH5Error, Windows, part, ragged, where
from ray_h5.errors import OptionError, UnsupportedColumnError
from tests.kit.files import save
from tests.properties import few


def nearest(times, asked):
    """Return the nearest sample, the later one of two; and whether it stands for a time without one."""
    away = np.abs(times - asked)
    at = int(np.flatnonzero(away == away.min())[-1])
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    return at, away[at] > step * (1 + 1e-6)


@few(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equal_to_numpy(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("t") / "a.h5"
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    # Quarters of a second are exact in floats.
    fast = np.cumsum(rng.integers(1, 3, data.draw(st.integers(2, 30)))) / 4
    slow = np.cumsum(rng.integers(1, 9, data.draw(st.integers(1, 8)))) / 4
    x, y = rng.random((len(fast), 2)).astype("f4"), rng.integers(0, 99, len(slow))
    save(path, {"fast/data": x, "fast/timestamps": fast, "slow/data": y, "slow/timestamps": slow})
    offsets = data.draw(st.lists(st.integers(-8, 8).map(lambda n: n / 4 + 1 / 16), min_size=1, max_size=3))
    low = data.draw(st.integers(-8, 4)) / 4
    high = low + data.draw(st.integers(1, 8)) / 4
    pad, stride = data.draw(st.sampled_from(["edge", "zero"])), data.draw(st.integers(1, 3))
    windows = Windows(
        {"fast/data": offsets, "slow/data": offsets, "near": ("fast/data", slice(low, high))},
        at="timestamps",
        pad=pad,
        stride=stride,
    )
    columns = ["fast/data", "slow/data", "near", "slow/data_is_pad", "time", "fast/data_is_pad"]
    dataset = H5Dataset(path, columns, windows=windows)
    anchors = fast[::stride]
    assert len(dataset) == len(anchors)
    for row, now in enumerate(anchors):
        found = dataset[row]
        assert float(found["time"]) == now
        for name, times, values in (("fast/data", fast, x), ("slow/data", slow, y)):
            at, is_pad = zip(*(nearest(times, now + offset) for offset in offsets), strict=True)
            expected = values[list(at)]
            if pad == "zero":
                expected[np.array(is_pad)] = 0
            assert np.array_equal(found[name], expected)
            assert found[f"{name}_is_pad"].tolist() == list(is_pad)
        assert np.array_equal(found["near"], x[(fast >= now + low) & (fast < now + high)])


def recording(path):
    """A recording as NWB, GWOSC and others write rates: 10 s at 100 Hz, beside 1 Hz, 1/2 Hz, and events."""
    with h5py.File(path, "w") as file:
        file["lfp/data"] = np.arange(1000.0)
        file["lfp/starting_time"] = 2.0
        file["lfp/starting_time"].attrs["rate"] = 100.0
        file["quality/mask"] = np.arange(10) % 2
        file["quality/mask"].attrs.update({"Xspacing": 1.0, "Xstart": 2.0})
        file["stage"] = np.arange(5)
        file["stage"].attrs.update({"rate": 0.5, "start": 2.0})
        file["spikes"] = np.array([2.5, 3.0, 3.25, 9.75])


def test_rates_of_attributes_and_samples_that_hold(tmp_path):
    recording(tmp_path / "a.h5")
    windows = Windows(
        {"lfp/data": slice(0, 2), "quality/mask": [0.0], "stage": [0.0, 1.0], "spikes": slice(0, 2)},
        at={"spikes": "spikes"},
        fps=2,
        pad="drop",
        holds=["quality/mask", "stage"],
    )
    dataset = H5Dataset(tmp_path / "a.h5", ["lfp/data", "quality/mask", "stage", "spikes", "time"], windows=windows)
    assert len(dataset) == 17  # up to 2 s before the end of the first column
    for row in range(len(dataset)):
        found, now = dataset[row], 2 + row / 2
        assert float(found["time"]) == now
        assert found["lfp/data"].tolist() == [(now - 2) * 100 + i for i in range(200)]
        assert found["quality/mask"].tolist() == [math.floor(now - 2) % 2]
        assert found["stage"].tolist() == [(now - 2) // 2, (now - 1) // 2]
        assert found["spikes"].tolist() == [each for each in (2.5, 3.0, 3.25, 9.75) if now <= each < now + 2]


def test_a_column_without_offsets_has_its_value_then(tmp_path):
    recording(tmp_path / "a.h5")
    windows = Windows({"lfp/data": [0.0]}, at={"x": "y"}, stride=100, holds=["stage", "quality/mask"])
    dataset = H5Dataset(tmp_path / "a.h5", ["lfp/data", "stage", "quality/mask"], windows=windows)
    assert [int(row["stage"]) for row in dataset] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [int(row["quality/mask"]) for row in dataset] == [0, 1] * 5


@pytest.mark.parametrize("rows", [None, Files()])
def test_a_single_value_is_that_of_the_recording(tmp_path, rows):
    for number in range(2):
        save(tmp_path / f"{number}.h5", {"x": np.arange(3.0), "t": np.arange(3.0) / 4, "age": 30 + number})
    windows = Windows({"x": [0]}, at={"x": "t"})
    dataset = H5Dataset(tmp_path, ["x", "age"], where(age=31), rows=rows, windows=windows)
    assert [(row["x"].tolist(), row["age"]) for row in dataset] == [([float(i)], 31) for i in range(3)]
    with pytest.raises(UnsupportedColumnError, match="'age' has a single value, and no axis of time"):
        H5Dataset(tmp_path, rows=rows, windows=Windows({"x": [0], "age": [0]}, at={"x": "t", "age": "t"}))


@pytest.mark.parametrize("columns", [None, ["x"], ["x", "time"]])
def test_a_slice_that_is_padded_in_some_files_alone_is_refused(tmp_path, columns):
    for number, rate in enumerate([10.0, 10.5]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.arange(30.0)
            file["x"].attrs["rate"] = rate
    given = {"at": {"other": "other"}}
    said = r"has 10 samples in each row of .*0\.h5.*as there are in .*1\.h5.*pad=.drop."
    with pytest.raises(OptionError, match=said):
        H5Dataset(tmp_path, columns, windows=Windows({"x": slice(0, 1)}, **given))
    H5Dataset(tmp_path, ["time"], windows=Windows({"x": slice(0, 1)}, **given))
    listed = H5Dataset(tmp_path, columns, windows=Windows({"x": [0.0, 0.5]}, **given))
    assert listed[0]["x"].tolist() == [0.0, 5.0]
    dropped = H5Dataset(tmp_path, columns, windows=Windows({"x": slice(0, 1)}, pad="drop", **given))
    assert len(dropped[0]["x"]) == 10


@few(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_groups_are_the_recordings_of_files_of_their_own(tmp_path_factory, data):
    """The rows of groups are those of files that hold one group each."""
    folder = tmp_path_factory.mktemp("t")
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    pads = data.draw(st.sampled_from(["edge", "zero", "drop", ("zero", "drop"), ("edge", "zero")]))
    by = data.draw(st.sampled_from(["listed", "rates", "nwb"]))
    seconds = st.integers(-6, 6).map(lambda n: n / 4 + 1 / 16)
    offsets = data.draw(st.lists(seconds, min_size=1, max_size=3))
    low = data.draw(st.integers(-6, 4)) / 4
    windows = Windows(
        {"fast/x": offsets, "slow/x": offsets, "near": ("fast/x", slice(low, low + data.draw(st.integers(1, 6)) / 4))},
        at="timestamps" if by == "listed" else {"none": "none"},
        pad=pads,
        stride=data.draw(st.integers(1, 3)),
        fps=data.draw(st.sampled_from([None, None, 2])),
        holds=data.draw(st.sampled_from([[], ["slow/x"]])),
    )
    count, columns = data.draw(st.integers(1, 4)), ["fast/x", "slow/x", "near", "time", "slow/y"]
    columns += [] if pads == "drop" else ["fast/x_is_pad", "slow/x_is_pad"]
    with h5py.File(folder / "all.h5", "w") as whole:
        for number in range(count):
            with h5py.File(folder / f"{number}.h5", "w") as alone:
                for each, rate, most in (("fast", 4.0, 20), ("slow", 1.0, 6)):
                    length = int(rng.integers(6, most + 2))
                    group, start = alone.create_group(each), float(rng.integers(0, 4)) / 4
                    group["x"], group["y"] = rng.random((length, 2)), rng.integers(0, 9, length)
                    if by == "listed":
                        group["timestamps"] = start + np.cumsum(rng.integers(1, 4, length)) / rate
                    elif by == "rates":
                        for name in "xy":
                            group[name].attrs.update({"rate": rate, "t0": start})
                    else:
                        group["starting_time"] = start
                        group["starting_time"].attrs["rate"] = rate
                alone.copy(alone["/"], whole, f"r{number}")
    try:
        expected = [H5Dataset(folder / f"{number}.h5", columns, windows=windows) for number in range(count)]
    except RayH5Error:  # no row of one of them
        assert "drop" in pads
        return
    found = H5Dataset(folder / "all.h5", columns, rows=Groups("r*"), windows=windows)
    rows = [each[i] for each in expected for i in range(len(each))]
    assert len(found) == len(rows)
    for i, row in enumerate(rows):
        assert all(np.array_equal(found[i][name], row[name]) for name in columns)


def sessions(path):
    """Sessions of several lengths, with a camera at 2 Hz of frames of their own size, and speed at 10 Hz."""
    with h5py.File(path, "w") as file:
        for number in range(3):
            group = file.create_group(f"session_{number}")
            group.attrs["subject"] = f"m{number}"
            group["camera/frames"] = np.full((4 + number, 2, 2 + number), number) + np.arange(4 + number)[:, None, None]
            group["camera/t"] = np.arange(4 + number) / 2 + number
            group["speed"] = np.arange(20.0 + 5 * number) + 100 * number
            group["speed"].attrs.update({"rate": 10.0, "starting_time": float(number)})
            group["map"], group["weight"] = np.full((2, 3), number), 70.0 + number


def test_frames_of_other_sizes_without_offsets_are_that_of_the_time(tmp_path):
    sessions(tmp_path / "a.h5")
    windows = Windows({"speed": [0.0]}, at={"camera/frames": "camera/t"}, stride=5)
    dataset = H5Dataset(tmp_path / "a.h5", ["camera/frames"], rows=Groups("session_*"), windows=windows)
    assert [int(row["camera/frames"][0, 0]) for row in dataset] == [*range(4), *range(1, 6), *range(2, 8)]
    assert dataset[4]["camera/frames"].shape == (2, 3)
    with pytest.raises(RayH5Error, match="have other shapes in other groups"):
        H5Dataset(tmp_path / "a.h5", ["camera/frames"], rows=Groups("session_*"),
                  windows=Windows({"camera/frames": slice(0, 1)}, at="t"))  # fmt: skip


def test_files_are_recordings_too(tmp_path):
    for number in range(2):
        save(tmp_path / f"r{number}.h5", {"x": np.arange(4) + 10 * number, "t": np.arange(4.0), "site": 7 + number})
    windows = Windows({"x": [0.0, 1.0]}, at="t", pad="drop")
    dataset = H5Dataset(tmp_path, rows=Files(key="name"), windows=windows)
    assert [(row["name"], int(row["site"]), row["x"].tolist()) for row in dataset][2:4] == [
        ("r0", 7, [2, 3]), ("r1", 8, [10, 11])]  # fmt: skip


def test_events_of_which_a_group_has_none(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, spikes in enumerate([[0.1, 0.2, 1.5], []]):
            file[f"u{number}/x"], file[f"u{number}/t"] = np.arange(2.0), np.arange(2.0)
            file[f"u{number}/spikes"] = np.array(spikes, float)
    windows = Windows({"x": [0.0], "spikes": slice(0, 1)}, at={"x": "t", "spikes": "spikes"})
    dataset = H5Dataset(tmp_path / "a.h5", ["spikes"], rows=Groups("u*"), windows=windows)
    assert [row["spikes"].tolist() for row in dataset] == [[0.1, 0.2], [1.5], [], []]
    windows = Windows({"x": [0.0], "spikes": [0.0]}, at={"x": "t", "spikes": "spikes"})
    with pytest.raises(OptionError, match="group 'u1': Windows: column 'spikes' has no sample"):
        H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("u*"), windows=windows)


@pytest.mark.parametrize(
    ("column", "said"),
    [("x", "draws from each sample, and the number of samples varies"), ("rows", "'rows' has no times")],
)
def test_columns_that_have_no_samples_of_one_shape(tmp_path, column, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            file[f"u{number}/x"], file[f"u{number}/t"] = np.zeros((3, 5)), np.array([0.0, 1.0, 3.0])
            file[f"u{number}/rows"], file[f"u{number}/ends"] = np.zeros(4), np.array([1, 3, 4])
    columns = [part("x", random=2), ragged("rows", ends="ends")]
    windows = Windows({column: slice(0, 2)}, at={"x": "t"})
    with pytest.raises(UnsupportedColumnError, match=said):
        H5Dataset(tmp_path / "a.h5", columns, rows=Groups("u*"), windows=windows)[0]


@pytest.mark.parametrize(
    ("values", "times", "said"),
    [
        (np.arange(3), [0.0, 2.0, 1.0], "time 2 is 1.0, after 2.0; expected finite times that ascend"),
        (np.arange(3), [0.0, np.nan, 1.0], "'timestamps': time 1 is nan; expected finite times"),
        (np.arange(3), [0.0, 1.0, np.inf], "time 2 is inf; expected finite times.*each sample of 'x'"),
        (np.arange(3), [-np.inf, 0.0, 1.0], "time 0 is -inf; expected finite times"),
        (np.arange(1), [np.nan], "time 0 is nan; expected finite times"),
        (
            np.arange(3),
            ["a", "b", "c"],
            r"string values of shape \(3,\); expected times along one axis.*at={'x': 'dataset'}",
        ),
        (np.arange(1), 2.0, "has a single value; expected times along one axis"),
        (np.arange(3), np.array([-(2**63), 0, 2**63 - 1]), "times go from -9.* lasts less than that"),
        (np.arange(2), np.array([1, 2**64 - 1], "u8"), "time 1 is 18446744073709551615; expected finite times"),
        (np.arange(3), None, "column 'x' has no times: a dataset 'timestamps' beside it"),
    ],
)
def test_bad_times(tmp_path, values, times, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
        if times is not None:
            file["timestamps"] = times
    with pytest.raises(RayH5Error, match=said):
        H5Dataset(tmp_path / "a.h5", ["x"], windows=Windows({"x": [0.0]}, at="timestamps"))


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        (Windows({"x": [0.0]}, at={"x": (1e-20, 0)}, fps=1.0), "fps=1.0: a recording would have"),
        (Windows({"x": slice(0, 1)}, at={"x": (1e300, 0)}), r"slice\(0.0, 1.0\) has 1e\+300 samples in each row"),
    ],
)
def test_more_rows_or_samples_than_there_can_be(tmp_path, windows, said):
    with pytest.raises(OptionError, match=said):
        H5Dataset(save(tmp_path / "a.h5", {"x": np.arange(5)}), ["x"], windows=windows)


@pytest.mark.parametrize("group", range(3))
def test_the_recording_of_a_bad_time_is_named(tmp_path, group):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file[f"u{number}/x"], file[f"u{number}/t"] = np.arange(2), [np.nan if number == group else 0.0, 1.0]
    with pytest.raises(RayH5Error, match=f"group 'u{group}'.*time 0 is nan"):
        H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("u*"), windows=Windows({"x": [0.0]}, at={"x": "t"}))


@pytest.mark.parametrize("attribute", ["Xstart", "rate"])
def test_attributes_that_are_infinite(tmp_path, attribute):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["x"].attrs.update({"rate": 10.0, attribute: np.inf})
    with pytest.raises(RayH5Error, match=r"column 'x': its (first time|rate) is inf; expected"):
        H5Dataset(tmp_path / "a.h5", ["x"], windows=Windows({"x": [0.0]}, at="timestamps"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": 3}, "expected the name of a dataset"),
        ({"at": {"x": (0, 1)}}, r"expected a dataset, or \(rate, first time\)"),
        ({"at": {"x": (np.inf, 1)}}, "finite numbers, and a rate above 0"),
        ({"at": {"x": (10.0, np.nan)}}, "finite numbers, and a rate above 0"),
        ({"at": "t", "episode": "id"}, "each file is one recording"),
        ({"at": "t", "per_step": ["y"]}, "columns have times of their own"),
        ({"holds": ["x"]}, "only with at="),
        ({"at": "t", "offsets": slice(1, 1)}, "is empty"),
        ({"at": "t", "offsets": slice(1)}, r"expected slice\(from, to\)"),
        ({"at": "t", "offsets": ["a"]}, "expected seconds"),
    ],
)
def test_arguments(options, said):
    offsets = options.pop("offsets", [0.0])
    with pytest.raises(OptionError, match=said):
        Windows({"x": offsets}, **options)


def test_attributes_of_a_column_come_before_its_starting_time(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            group = file.create_group(f"r{number}")
            group["x"], group["starting_time"] = np.arange(6) + 10 * number, 9.0
            group["starting_time"].attrs["rate"] = 2.0
        file["r0/x"].attrs.update({"rate": 4.0, "t0": 1.0})
    windows = Windows({"x": [0.0]}, at={"n": "n"}, pad="drop")
    found = [(int(row["x"][0]), float(row["time"])) for row in H5Dataset(tmp_path, rows=Groups("r*"), windows=windows)]
    starts, steps = [1, 9, 9], [0.25, 0.5, 0.5]
    assert found == [(10 * n + i, starts[n] + steps[n] * i) for n in range(3) for i in range(6)]


def test_a_slice_of_listed_times_that_does_not_fit_is_no_row_with_drop(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(1000.0), "t": np.arange(1000) / 100, "spikes": [0.5, 9.5]})
    at = {"x": "t", "spikes": "spikes"}
    lengths = {}
    for source in ("t", (100.0, 0.0)):
        windows = Windows({"x": slice(-1.0, 1.0), "spikes": slice(-1.0, 1.0)}, at=at | {"x": source}, fps=1, pad="drop")
        rows = [row["x"] for row in H5Dataset(tmp_path / "a.h5", ["x", "spikes"], windows=windows)]
        lengths[source] = [len(row) for row in rows]
        assert rows[0].tolist() == list(range(200))
    assert lengths == {"t": [200] * 9, (100.0, 0.0): [200] * 9}  # events limit no row


def test_a_column_without_offsets_that_has_no_sample_is_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, count in enumerate([2, 0]):
            group = file.create_group(f"r{number}")
            group["x"], group["t"] = np.arange(3.0), np.arange(3.0)
            group["label"], group["tl"] = np.arange(count), np.arange(count) * 1.0
    options = {"rows": Groups("r*"), "windows": Windows({"x": [0.0]}, at={"x": "t", "label": "tl"})}
    with pytest.raises(UnsupportedColumnError, match="'label' has no sample in recording 1"):
        H5Dataset(tmp_path / "a.h5", ["x", "label"], **options)
    assert len(H5Dataset(tmp_path / "a.h5", ["x"], **options)) == 6


@pytest.mark.parametrize("pad", ["drop", ("drop", "edge"), ("edge", "drop"), "edge", "zero"])
@pytest.mark.parametrize("counts", [[4, 0, 4], [0, 4], [0, 0]])
def test_a_slice_of_a_recording_without_a_sample_fits_nowhere(tmp_path, pad, counts):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, count in enumerate(counts):
            group = file.create_group(f"r{number}")
            group["y"], group["ty"] = np.arange(4.0), np.arange(4.0)
            group["x"], group["tx"] = np.arange(count) + 10 * number, np.arange(count) * 1.0
    windows = Windows({"y": [0.0], "x": slice(0.0, 1.0)}, at={"y": "ty", "x": "tx"}, pad=pad)
    columns = ["x", "y"] if "drop" in pad else ["x", "y", "y_is_pad"]
    if "drop" in pad and not any(counts):
        with pytest.raises(OptionError, match="times at which all columns have them; found none"):
            H5Dataset(tmp_path / "a.h5", columns, rows=Groups("r*"), windows=windows)
        return
    found = [row["x"].tolist() for row in H5Dataset(tmp_path / "a.h5", columns, rows=Groups("r*"), windows=windows)]
    own = [[10 * number + i] for number, count in enumerate(counts) for i in range(count)]
    empty = [[]] * 4 * counts.count(0)
    assert sorted(found) == sorted(own if "drop" in pad else own + empty)
