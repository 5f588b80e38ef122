"""Windows: each row is the slice that h5py and numpy give, over groups, grids, files, and episodes in a column."""

import itertools

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_h5.planning.rows.kinds import Grid, Groups
from ray_h5.planning.rows.windows import Windows
from tests.planning.rows.kit import DTYPES, assert_value, make_dataset, native, open_rows, storages

WINDOWED = [each for each in DTYPES if not each.hasobject and each.names is None and each.kind != "S"]
PADS = ["edge", "zero", "drop"]


def window_of(episode, t, offsets, pad):
    """Return the steps of an episode at some offsets from t, and which of them are padding; None if it is dropped."""
    found, is_pad = [], []
    for at in (t + offset for offset in offsets):
        side = 0 if at < 0 else 1 if at >= len(episode) else None
        if side is not None and pad[side] == "drop":
            return None
        step = episode[min(max(at, 0), len(episode) - 1)]
        found.append(np.zeros_like(step) if side is not None and pad[side] == "zero" else step)
        is_pad.append(side is not None)
    return np.stack(found), np.array(is_pad)


def expected_rows(episodes, windows, pad, stride):
    """Return what each row is: a dict of columns, given the columns of each episode."""
    rows = []
    for number, episode in enumerate(episodes):
        length = len(next(iter(episode.values())))
        kept = []
        for t in range(length):
            row = {"t": t, "number": number}
            for name, (source, offsets) in windows.items():
                made = window_of(episode[source], t, offsets, pad)
                if made is None:
                    break
                row[name], row[name + "_is_pad"] = made
            else:
                kept.append(row)
        rows += kept[::stride]
    return rows


def check(reader, expected, names, rows, asked):
    assert reader.num_rows == len(expected)
    found = reader.read(asked, rows)
    for place, row in enumerate(rows):
        for name in names:
            assert_value(found[name][place], expected[row][name], f"{name} of row {row}")
    return found


offset_lists = st.one_of(
    st.lists(st.integers(-6, 6), min_size=1, max_size=4),
    st.builds(range, st.integers(-4, 0), st.integers(1, 5)),
    st.just([2, 2, -1, -30, 30]),
)


@st.composite
def window_options(draw):
    pad = (draw(st.sampled_from(PADS)), draw(st.sampled_from(PADS)))
    return {"a": ("x", draw(offset_lists)), "y": ("y", draw(offset_lists))}, pad, draw(st.integers(1, 4))


def windows_of(options, **others):
    windows, pad, stride = options
    given = dict(windows)
    given["y"] = windows["y"][1]  # a column under its own name
    return Windows(given, pad=pad if pad[0] != pad[1] else pad[0], stride=stride, **others)


def names_of(options):
    windows, pad, _ = options
    return [*windows, *([] if pad == ("drop", "drop") else [f"{name}_is_pad" for name in windows])]


def rows_to_read(draw, count):
    return draw(st.lists(st.integers(0, count - 1), max_size=15)) if count else []


@settings(max_examples=100)
@given(st.data())
def test_over_groups(tmp_path_factory, data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    dtypes = [data.draw(st.sampled_from(WINDOWED)) for _ in "xy"]
    shapes = [data.draw(st.sampled_from([(), (3,), (2, 2)])) for _ in "xy"]
    options = data.draw(window_options())
    if any(h5py.check_enum_dtype(each) for each in dtypes):
        options = (options[0], tuple("edge" if each == "zero" else each for each in options[1]), options[2])
    path = tmp_path_factory.mktemp("windows") / "a.h5"
    episodes = []
    with h5py.File(path, "w") as file:
        for i, length in enumerate(lengths):
            group = file.create_group(f"demo_{i}")
            group.attrs["level"] = i * 10
            group["task"] = f"task {i}"
            group["label"] = np.arange(length) + 100 * i
            group["words"] = np.array([f"{i}.{t}" for t in range(length)], h5py.string_dtype())
            group["camera"] = np.full((20, 2), i, "f4")
            episodes.append(
                {
                    name: make_dataset(
                        group, name, dtype, (length, *shape), data.draw(fitting(shape, length)), 3 * i + k
                    )
                    for k, (name, dtype, shape) in enumerate(zip("xy", dtypes, shapes, strict=True))
                }
            )
    expected = expected_rows(episodes, *options_of(options))
    kind = Groups("demo_*", attrs=("level",), key="demo")
    with open_rows(path, kind, windows_of(options)) as reader:
        rows = rows_to_read(data.draw, len(expected))
        asked = [*names_of(options), "level", "demo", "task", "label", "words", "camera", "x"]
        found = check(reader, expected, names_of(options), rows, asked)
        for place, row in enumerate(rows):
            number, t = expected[row]["number"], expected[row]["t"]
            assert found["level"][place] == 10 * number
            assert found["demo"][place] == f"demo_{number}".encode()
            assert found["task"][place] == f"task {number}".encode()
            assert found["label"][place] == 100 * number + t
            assert found["words"][place] == f"{number}.{t}".encode()
            assert found["camera"][place].tolist() == [[number, number]] * 20
            assert_value(found["x"][place], episodes[number]["x"][t])
        starts = np.cumsum([0, *lengths])
        steps = [starts[row["number"]] + row["t"] for row in expected]
        assert reader.step_numbers(np.arange(len(expected))).tolist() == steps


def options_of(options):
    windows, pad, stride = options
    return windows, pad, stride


@st.composite
def fitting(draw, row_shape, length, lead=()):
    """Draw the storage of a dataset of some shape: chunks fit into it unless it can grow."""
    options = draw(storages(row_shape, 1 + len(lead)))
    if "chunks" in options:
        shape = (*lead, length, *row_shape)
        if 0 in shape:
            options["growing"] = True
        if not options["growing"]:
            options["chunks"] = tuple(min(c, n) for c, n in zip(options["chunks"], shape, strict=True))
    return options


@settings(max_examples=80)
@given(st.data())
def test_over_a_grid(tmp_path_factory, data):
    lead = data.draw(st.sampled_from([(3,), (1,), (2, 3)]))
    length = data.draw(st.integers(1, 7))
    options = data.draw(window_options())
    path = tmp_path_factory.mktemp("windows") / "a.h5"
    with h5py.File(path, "w") as file:
        x, y = (
            make_dataset(file, name, dtype, (*lead, length, *shape), data.draw(fitting(shape, length, lead)), k)
            for k, (name, dtype, shape) in enumerate([("x", "<f4", (5, 2)), ("y", ">i4", (5, 2))])
        )
        file["time"] = np.arange(length) / 10
        file["mean"] = np.arange(np.prod(lead)).reshape(lead)
        file["scale"] = np.arange(9.0)
    axes = len(lead) + 1
    flat = [each.reshape(-1, *each.shape[len(lead) :]) for each in (x, y)]
    episodes = [dict(zip("xy", each, strict=True)) for each in zip(*flat, strict=True)]
    expected = expected_rows(episodes, *options)
    of = {"time": (axes - 1,), "mean": tuple(range(axes - 1)), "scale": ()}
    with open_rows(path, Grid(axes, of=of, include_axes=True), windows_of(options)) as reader:
        rows = rows_to_read(data.draw, len(expected))
        asked = [*names_of(options), "time", "mean", "scale", "x", *(f"axis_{i}" for i in range(axes))]
        found = check(reader, expected, names_of(options), rows, asked)
        for place, row in enumerate(rows):
            number, t = expected[row]["number"], expected[row]["t"]
            at = np.unravel_index(number, lead)
            assert found["time"][place] == t / 10
            assert found["mean"][place] == number
            assert found["scale"][place].tolist() == list(range(9))
            assert_value(found["x"][place], episodes[number]["x"][t])
            assert [found[f"axis_{i}"][place] for i in range(axes)] == [*at, t]


@settings(max_examples=80)
@given(st.data())
def test_over_rows_of_a_file(tmp_path_factory, data):
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=5))
    how = data.draw(st.sampled_from(["file", "episode", "ends", "names"]))
    if how in {"episode", "names"}:
        lengths = [each for each in lengths if each]
    options = data.draw(window_options())
    total = sum(lengths)
    path = tmp_path_factory.mktemp("windows") / "a.h5"
    with h5py.File(path, "w") as file:
        x, y = (
            make_dataset(file, name, dtype, (total, *shape), data.draw(fitting(shape, total)), k)
            for k, (name, dtype, shape) in enumerate([("x", "<f4", (2,)), ("y", "|u1", ())])
        )
        file["id"] = np.repeat([7, 3, 9, 1, 4][: len(lengths)], lengths).astype("i4")
        names = [f"e{i}" for i in range(len(lengths))]
        file.create_dataset("name", data=np.repeat(np.array(names, object), lengths), dtype=h5py.string_dtype())
        file["meta/ends"] = np.cumsum(lengths, dtype="i8")
    cuts = np.cumsum([0, *lengths]) if how != "file" else [0, total]
    episodes = [{"x": x[i:j], "y": y[i:j]} for i, j in itertools.pairwise(cuts)]
    expected = expected_rows(episodes, *options)
    others = {
        "file": {},
        "episode": {"episode": "id"},
        "names": {"episode": "name"},
        "ends": {"episode_ends": "meta/ends"},
    }
    with open_rows(path, None, windows_of(options, **others[how])) as reader:
        rows = rows_to_read(data.draw, len(expected))
        found = check(reader, expected, names_of(options), rows, [*names_of(options), "id"])
        starts = np.cumsum([0, *map(len, (each["x"] for each in episodes))])
        with h5py.File(path) as file:
            ids = native(file["id"][()])
        for place, row in enumerate(rows):
            assert found["id"][place] == ids[starts[expected[row]["number"]] + expected[row]["t"]]
