"""Windows: each row is the slice that h5py and numpy give, over groups, grids, files, and episodes in a column."""

import itertools
import math

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Files, Grid, Groups, H5Dataset, Shuffle, Windows, any_equal, kfold, row_mask, where
from ray_h5.errors import OptionError, PredicateError, SchemaMismatchError, UnsupportedColumnError
from tests.kit.files import save
from tests.rows.kit import DTYPES, assert_value, make_dataset, native, open_rows, storages

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


@given(st.data())
def test_over_groups(tmp_path_factory, data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    dtypes = [data.draw(st.sampled_from(WINDOWED)) for _ in "xy"]
    shapes = [data.draw(st.sampled_from([(), (3,), (2, 2)])) for _ in "xy"]
    options = data.draw(window_options())
    if any(h5py.check_enum_dtype(each) for each in dtypes):
        options = (options[0], tuple("edge" if each == "zero" else each for each in options[1]), options[2])
    path = tmp_path_factory.mktemp("windows") / "a.h5"
    episodes, first = [], {}
    with h5py.File(path, "w") as file:
        for i, length in enumerate(lengths):
            group = file.create_group(f"demo_{i}")
            group.attrs["level"] = i * 10
            group["task"] = f"task {i}"
            group["label"] = np.arange(length) + 100 * i
            group["words"] = np.array([f"{i}.{t}" for t in range(length)], h5py.string_dtype())
            group["camera"] = np.full((20, 2), i, "f4")
            episode = {}
            for k, (name, dtype, shape) in enumerate(zip("xy", dtypes, shapes, strict=True)):
                stored = data.draw(fitting(shape, length))
                if data.draw(st.booleans()):  # like the first one, in all but the chunks
                    stored = {**first.setdefault(name, stored), "chunks": stored.get("chunks"), "growing": True}
                    stored["how"] = stored["how"] if stored["chunks"] else "contiguous"
                episode[name] = make_dataset(group, name, dtype, (length, *shape), stored, 3 * i + k)
            episodes.append(episode)
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


@given(st.data())
def test_over_rows_of_a_file(tmp_path_factory, data):
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=5))
    how = data.draw(st.sampled_from(["file", "episode", "ends", "starts", "lengths", "names", "flags", "bounds"]))
    if how in {"episode", "names", "flags"}:
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
        file["meta/ends"] = ends = np.cumsum(lengths, dtype="i8")
        last = np.isin(np.arange(total) + 1, ends)
        if data.draw(st.booleans()):  # the last episode was not finished
            last[-1:] = False
        file["terminals"], file["timeouts"] = (
            last & (np.arange(total) % 2 == 0),
            (last & (np.arange(total) % 2 == 1)) * 1.0,
        )
        file["meta/starts"], file["meta/lengths"] = (ends - lengths).astype("u2"), np.array(lengths, "u4")
        file["meta/bounds"] = np.stack([ends - lengths, ends], axis=1).astype("i4").reshape(-1, 2)[::-1]
    cuts = np.cumsum([0, *lengths]) if how != "file" else [0, total]
    episodes = [{"x": x[i:j], "y": y[i:j]} for i, j in itertools.pairwise(cuts)]
    if how == "bounds":  # in any order
        episodes.reverse()
    expected = expected_rows(episodes, *options)
    others = {
        "file": {},
        "episode": {"episode": "id"},
        "names": {"episode": "name"},
        "ends": {"episode_ends": "meta/ends"},
        "starts": {"episode_starts": "meta/starts"},
        "lengths": {"episode_lengths": "meta/lengths"},
        "flags": {"episode_flags": ["terminals", "timeouts"]},
        "bounds": {"episode_bounds": "meta/bounds"},
    }
    with open_rows(path, None, windows_of(options, **others[how])) as reader:
        rows = rows_to_read(data.draw, len(expected))
        found = check(reader, expected, names_of(options), rows, [*names_of(options), "id"])
        starts = np.cumsum([0, *lengths])[:-1][::-1] if how == "bounds" else cuts
        with h5py.File(path) as file:
            ids = native(file["id"][()])
        for place, row in enumerate(rows):
            assert found["id"][place] == ids[starts[expected[row]["number"]] + expected[row]["t"]]


@pytest.mark.parametrize("pad", ["drop", "edge"])
@pytest.mark.parametrize("how", ["episode", "groups", "grid"])
def test_a_mask_in_a_file_is_about_its_steps(tmp_path, how, pad):
    """Windows drop steps, or take each second one; the mask has row numbers, or a boolean for each step."""
    lengths = [5, 5, 5] if how == "grid" else [6, 4, 5]
    total, chosen = sum(lengths), [3, 6, 7, 12]
    steps = np.arange(total)
    episodes = np.split(steps, np.cumsum(lengths)[:-1])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if how == "groups":
            for number, values in enumerate(episodes):
                file[f"demo_{number}/x"] = values
        else:
            file["x"] = np.array(episodes) if how == "grid" else steps
        file["id"] = np.repeat([0, 1, 2], lengths)
        file["mask/rows"] = np.array(chosen)
        file["mask/flags"] = np.isin(steps, chosen)
    rows = {"episode": None, "groups": Groups("demo_*"), "grid": Grid(2)}[how]
    stride = 1 if pad == "drop" else 2
    windows = Windows({"x": range(-1, 2)}, pad=pad, stride=stride, episode="id" if how == "episode" else None)
    windowed = [each[1:-1] if pad == "drop" else each[::2] for each in episodes]
    expected = [step for each in windowed for step in each.tolist() if step in chosen]
    for name in ("mask/rows", "mask/flags"):
        options = {"rows": rows, "windows": windows, "index_dir": str(tmp_path / "index")}
        dataset = H5Dataset(tmp_path / "a.h5", ["x"], where(**{name: row_mask()}), **options)
        assert [int(row["x"][1]) for row in dataset] == expected
    if how == "episode":  # the same dataset is a column, too
        flags = H5Dataset(tmp_path / "a.h5", ["mask/flags"], rows=rows, windows=windows)
        assert [bool(row["mask/flags"]) for row in flags] == np.isin(np.concatenate(windowed), chosen).tolist()


def test_a_mask_for_other_rows_than_the_steps(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(6), "rows": np.array([6]), "flags": np.ones(4, bool)})
    windows = Windows({"x": range(3)}, pad="drop")
    for name, said in (("rows", "lists row 6; the file has 6 steps"), ("flags", "one for each of the 6 steps")):
        with pytest.raises(PredicateError, match=said):
            H5Dataset(tmp_path / "a.h5", ["x"], where(**{name: row_mask()}), windows=windows)


def write_groups(where, lengths, **columns):
    """Write a file of groups of these steps: `x`, and columns that are made from the number and steps of a group."""
    with h5py.File(where, "w") as file:
        for number, length in enumerate(lengths):
            file[f"g{number}/x"] = np.arange(length) + 100 * number
            for name, make in columns.items():
                if (values := make(number, length)) is not None:
                    file[f"g{number}/{name}"] = values


def rows_of(folder, columns, predicate=None, index_dir=None, **options):
    windows, rows = Windows({"x": [0]}, **options), Groups("g*", missing="null")
    return H5Dataset(str(folder / "*.h5"), columns, predicate, rows=rows, windows=windows, index_dir=index_dir)


def rewards(number, length):
    return np.arange(length) / 2 + number


@pytest.mark.parametrize("kept", [False, True])
def test_a_column_that_has_steps_in_one_file_alone_must_be_named(tmp_path, kept):
    """`goal` has 3 entries, as the episodes of one file have steps, and `reward` a value for each step."""
    columns = {"goal": lambda number, _: np.arange(3) + 10 * number, "reward": rewards}
    write_groups(tmp_path / "a.h5", [3, 3], **columns)
    write_groups(tmp_path / "b.h5", [5, 4, 2], **columns)
    index_dir = str(tmp_path / "index") if kept else None
    said = (
        r"3 entries for 3 steps in 'g0' of .*a\.h5, and 3 entries for 5 steps in 'g0' of .*b\.h5.*constants=\['goal'\]"
    )
    for _ in range(2):
        with pytest.raises(OptionError, match=said):
            rows_of(tmp_path, ["x", "goal", "reward"], index_dir=index_dir)
    options = {"index_dir": index_dir, "constants": ["goal"]}
    for _ in range(2):
        samples = list(rows_of(tmp_path, ["x", "goal", "reward"], **options))
        assert len(samples) == 17
        for sample in samples:
            number, t = divmod(int(sample["x"][0]), 100)
            assert sample["goal"].tolist() == [10 * number, 10 * number + 1, 10 * number + 2]
            assert float(sample["reward"]) == t / 2 + number
    # A predicate alone names it: the column is an array in each row of each file.
    chosen = rows_of(tmp_path, ["x"], where(goal=any_equal(12)), **options)
    assert [int(sample["x"][0]) for sample in chosen] == [100, 101, 102, 100, 101, 102, 103]


def test_a_column_as_long_as_all_episodes_has_steps_unless_it_is_named(tmp_path):
    write_groups(tmp_path / "a.h5", [4, 4], goal=lambda number, _: np.arange(4) + 10 * number, reward=rewards)
    steps = [0, 1, 2, 3, 10, 11, 12, 13]
    for options in ({}, {"per_step": ["goal"]}):
        assert [int(each["goal"]) for each in rows_of(tmp_path, None, **options)] == steps
    samples = rows_of(tmp_path, None, constants=["goal"])
    assert [float(each["reward"]) for each in samples] == [0, 0.5, 1, 1.5, 1, 1.5, 2, 2.5]
    assert [each["goal"].tolist() for each in samples] == [steps[:4]] * 4 + [steps[4:]] * 4
    write_groups(tmp_path / "b.h5", [5], goal=lambda *_: np.arange(4))
    said = r"'g0'.* 'goal' is a column of steps, and the episode has 5 steps; 'goal' has 4 entries"
    with pytest.raises(SchemaMismatchError, match=said):
        rows_of(tmp_path, ["goal"], per_step=["goal"])


def test_a_single_value_has_no_steps(tmp_path):
    """An episode of one step has no value of the column either: the value is that of the episode."""
    write_groups(tmp_path / "a.h5", [1, 1], age=lambda number, _: 30 + number)
    with pytest.raises(SchemaMismatchError, match=r"'age' is a column of steps, and the episode has 1 steps; .* has 0"):
        rows_of(tmp_path, ["x", "age"], per_step=["age"])
    assert [int(each["age"]) for each in rows_of(tmp_path, ["x", "age"])] == [30, 31]


def test_a_column_as_long_as_some_episodes_must_be_named(tmp_path):
    write_groups(tmp_path / "a.h5", [4, 6], path=lambda number, _: np.arange(4 + number))
    said = r"'path' .*: 4 entries for 4 steps in 'g0' of .*, and 5 entries for 6 steps"
    with pytest.raises(OptionError, match=said):
        rows_of(tmp_path, ["path"])
    with (
        open_rows(tmp_path / "a.h5", Groups("g*"), Windows({"x": [0]})) as reader,
        pytest.raises(OptionError, match=said),
    ):
        reader.read(["path"])
    assert [len(each["path"]) for each in rows_of(tmp_path, ["path"], constants=["path"])] == [4] * 4 + [5] * 6


def test_steps_whose_shape_varies_between_groups(tmp_path):
    def images(number, length):
        return np.arange(length * (number + 1) * 2).reshape(length, number + 1, 2) + 0.5

    write_groups(tmp_path / "a.h5", [3, 5], image=images)
    expected = [images(number, length)[t] for number, length in ((0, 3), (1, 5)) for t in range(length)]
    for sample, value in zip(rows_of(tmp_path, ["x", "image"]), expected, strict=True):
        assert_value(sample["image"], value)
    with open_rows(tmp_path / "a.h5", Groups("g*"), Windows({"x": [0]})) as reader:
        found = reader.read(["image"], [6, 1, 1, 4])["image"]
        for value, row in zip(found, [6, 1, 1, 4], strict=True):
            assert_value(value, expected[row])
    found = rows_of(tmp_path, ["image"]).epoch_order(Shuffle(by_length="image")).runs.lengths
    assert found.tolist() == [len(value) for value in expected]


def test_a_group_that_lacks_a_column_of_steps(tmp_path):
    def unless_1(make):
        return lambda number, length: None if number == 1 else make(number, length)

    write_groups(
        tmp_path / "a.h5",
        [3, 2, 4],
        eef=unless_1(lambda number, length: np.arange(length * 2).reshape(length, 2) + number),
        word=unless_1(lambda number, length: [f"{number}.{t}" for t in range(length)]),
        label=unless_1(rewards),
    )
    with open_rows(tmp_path / "a.h5", Groups("g*", missing="null"), Windows({"x": [0]})) as reader:
        found = reader.read(["eef", "word"], [4, 8, 0, 3])
        assert [None if each is None else each.tolist() for each in found["eef"]] == [None, [8, 9], [0, 1], None]
        assert found["word"].tolist() == [None, b"2.3", b"0.0", None]
        with pytest.raises(
            UnsupportedColumnError, match="'label': a group lacks it, and a single value cannot be None"
        ):
            reader.read(["label"])


def test_the_shortest_column_with_offsets_decides(tmp_path):
    """With episode_length="min", a column of steps is as long as one of the columns with offsets."""
    columns = {"y": lambda _, length: np.arange(length + 1), "z": lambda _, length: np.arange(length + 1) * 2}
    write_groups(tmp_path / "a.h5", [4, 6], camera=lambda number, _: np.full(20, number), **columns)
    windows = Windows({"x": [0], "y": [0]}, episode_length="min")
    samples = H5Dataset(tmp_path / "a.h5", ["x", "z", "camera"], rows=Groups("g*"), windows=windows)
    assert [int(each["z"]) for each in samples] == [2 * (int(each["x"][0]) % 100) for each in samples]
    assert [each["camera"].tolist() for each in samples] == [[0] * 20] * 4 + [[1] * 20] * 6


@pytest.mark.parametrize("rows", [Groups("episode_*"), Files()])
@pytest.mark.parametrize("pad", ["drop", "edge", "zero", ("drop", "edge")])
@pytest.mark.parametrize("offsets", [[0, 1], [-1, 0, 2], [1]])
def test_observations_after_the_last_action_are_reached(tmp_path, rows, pad, offsets):
    """T + 1 observations and T actions are T transitions: nothing is lost, and nothing is padded."""
    lengths, transitions = [3, 1, 5], []
    for number, length in enumerate(lengths):
        path = "all.h5" if rows == Groups("episode_*") else f"{number}.h5"
        with h5py.File(tmp_path / path, "a") as file:
            group = file.create_group(f"episode_{number}") if path == "all.h5" else file
            group["observation"] = np.arange(1, length + 2) + 100 * number
            group["action"], group["end"] = np.arange(1, length + 1) + 100 * number, np.arange(length) == length - 1
    windows = Windows({"observation": offsets, "action": [0]}, pad=pad, episode_length="min")
    pads = windows.pad
    for number, length in enumerate(lengths):
        for t in range(length):
            wanted = [t + offset for offset in offsets]
            if (pads[0] == "drop" and wanted[0] < 0) or (pads[1] == "drop" and wanted[-1] > length):
                continue
            is_zero = [(pads[0] == "zero" and at < 0) or (pads[1] == "zero" and at > length) for at in wanted]
            held = [
                0 if zero else min(max(at, 0), length) + 1 + 100 * number
                for at, zero in zip(wanted, is_zero, strict=True)
            ]
            transitions.append(
                (held, [t + 1 + 100 * number], t == length - 1, [not 0 <= at <= length for at in wanted])
            )
    dataset = H5Dataset(tmp_path, rows=rows, windows=windows)
    names = ["observation", "action", "end", "observation_is_pad"]
    found = [tuple(np.asarray(row.get(name, [False] * len(offsets))).tolist() for name in names) for row in dataset]
    assert found == transitions
    if pad == "drop" and offsets == [0, 1]:
        assert len(found) == sum(lengths)
        assert sum(end for _, _, end, _ in found) == len(lengths)
        with pytest.raises(SchemaMismatchError, match="offsets reach the further entries"):
            H5Dataset(tmp_path, rows=rows, windows=Windows({"observation": [0, 1], "action": [0]}))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("episode_ends", [3, 5, 7]),
        ("episode_starts", [0, 3, 5]),
        ("episode_lengths", [3, 2, 2]),
        ("episode_bounds", [[0, 3], [3, 5], [5, 7]]),
        ("episode", [0.5, 0.5, 0.5, 2, 2, 0, 0]),
    ],
)
def test_a_value_an_episode_is_no_column_of_steps(tmp_path, option, values):
    save(tmp_path / "a.h5", {"x": np.arange(7), "y": np.arange(7) * 2, "said": values})
    dataset = H5Dataset(tmp_path / "a.h5", windows=Windows({"x": [-1, 0]}, pad="edge", **{option: "/said"}))
    assert {*dataset.columns} == {"x", "x_is_pad", "y"} | ({"said"} if option == "episode" else set())
    assert dataset[:]["x"].tolist() == [[0, 0], [0, 1], [1, 2], [3, 3], [3, 4], [5, 5], [5, 6]]
    assert dataset[:]["y"].tolist() == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("ends", [([2], [4, 6]), ([6], []), ([0, 1], [1, 3]), ([], [])])
def test_an_episode_ends_where_one_of_the_flags_is_true(tmp_path, ends):
    flags = [np.isin(np.arange(7), each) for each in ends]
    save(tmp_path / "a.h5", {"x": np.arange(7), "terminal": flags[0], "timeout": flags[1] * 1.0})
    windows = Windows({"x": [-1, 0]}, pad="edge", episode_flags=["terminal", "timeout"])
    episodes = np.split(np.arange(7), np.flatnonzero((flags[0] | flags[1])[:-1]) + 1)
    expected = [[max(step - 1, int(each[0])), step] for each in episodes for step in each.tolist()]
    assert H5Dataset(tmp_path / "a.h5", ["x"], windows=windows)[:]["x"].tolist() == expected


def test_episodes_that_are_too_short_are_counted(tmp_path, caplog):
    windows = Windows({"x": [-1, 0, 2]}, pad="drop")
    for name, lengths in (("some", [4, 3, 0, 2, 1]), ("none", [2, 3, 1])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file["ends"] = np.arange(sum(lengths)), np.cumsum(lengths)
            for number, steps in enumerate(lengths):
                file[f"g{number}/x"] = np.arange(steps)
    by_ends = Windows({"x": [-1, 0, 2]}, pad="drop", episode_ends="ends")
    for options in ({"rows": Groups("g*"), "windows": windows}, {"windows": by_ends, "columns": ["x"]}):
        assert len(H5Dataset(tmp_path / "some.h5", **options)) == 1
        assert "3 of 5 episodes are shorter than the 4 steps that a row needs, and have no row" in caplog.text
        caplog.clear()
        name = "'g1'" if "rows" in options else "1"
        with pytest.raises(OptionError, match=f"a row needs 4 steps, .* The longest is {name} of .*, with 3 steps"):
            H5Dataset(tmp_path / "none.h5", **options)


@pytest.mark.parametrize(
    ("option", "values", "said"),
    [
        ("episode_starts", [0, 5, 3], "row 1 goes from 5 to 3"),
        ("episode_ends", [3, 2, 7], "row 1 goes from 3 to 2"),
        ("episode_ends", [1, 5, 3, 7], "row 2 goes from 5 to 3"),
        ("episode_lengths", [3, -1, 5], "row 1 goes from 3 to 2"),
    ],
)
def test_episodes_that_do_not_ascend(tmp_path, option, values, said):
    save(tmp_path / "a.h5", {"x": np.arange(7), "said": values})
    with pytest.raises(SchemaMismatchError, match=said):
        H5Dataset(tmp_path / "a.h5", ["x"], windows=Windows({"x": [0]}, **{option: "said"}))


def test_folds_keep_episodes_together_that_have_no_names(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(12), "ends": [3, 7, 8, 12]})
    windows = Windows({"x": [0]}, episode_ends="ends")
    tested = []
    for train, valid in kfold(tmp_path, 2, group="episode", windows=windows):
        sides = [H5Dataset(tmp_path, ["x"], each, windows=windows)[:]["x"].numpy().ravel() for each in (train, valid)]
        episodes = [{*np.searchsorted([3, 7, 8, 12], side, side="right").tolist()} for side in sides]
        assert not episodes[0] & episodes[1]
        assert sorted(np.concatenate(sides)) == list(range(12))
        tested += sides[1].tolist()
    assert sorted(tested) == list(range(12))


def test_an_attribute_that_says_another_length(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            file[f"g{number}/x"] = np.arange(3 + number)
            file[f"g{number}"].attrs["num_samples"] = 3
    rows = Groups("g*", attrs=["num_samples"])
    with pytest.raises(SchemaMismatchError, match="'g1': attribute 'num_samples' says 3 steps, and 'x' has 4"):
        H5Dataset(tmp_path, ["x"], rows=rows, windows=Windows({"x": [0]}))
    assert len(H5Dataset(tmp_path, ["x"], rows=rows, windows=Windows({"x": [0]}, episode_length="min"))) == 7
    for several in ([[9, 9], [9, 9]], [[9], [9, 8]]):  # no lengths
        with h5py.File(tmp_path / "a.h5", "a") as file:
            for number, values in enumerate(several):
                file[f"g{number}"].attrs["num_samples"] = values
        found = H5Dataset(tmp_path, ["x", "num_samples"], rows=rows, windows=Windows({"x": [0]}))
        assert [step["num_samples"].tolist() for step in found] == [several[0]] * 3 + [several[1]] * 4


def test_a_column_of_files_without_offsets(tmp_path):
    for name, steps in (("a", 3), ("b", 5)):
        save(tmp_path / f"{name}.h5", {"x": np.arange(steps), "reward": np.arange(steps) * 2, "goal": [1, 2, 3]})
    with pytest.raises(OptionError, match="'goal' has no offsets, and is as long as some episodes alone"):
        H5Dataset(tmp_path, ["goal"], rows=Files(), windows=Windows({"x": [0]}))
    windows = Windows({"x": [0]}, constants=["goal"])
    samples = H5Dataset(tmp_path, ["goal", "reward"], rows=Files(), windows=windows)
    assert [(each["goal"].tolist(), int(each["reward"])) for each in samples] == [
        ([1, 2, 3], 2 * step) for steps in (3, 5) for step in range(steps)
    ]
    with pytest.raises(
        SchemaMismatchError, match="'goal' is a column of steps, and the episode has 5 steps; 'goal' has 3 entries"
    ):
        H5Dataset(tmp_path, ["x", "goal"], rows=Files(), windows=Windows({"x": [0]}, per_step=["goal"]))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("pad", ["edge", "drop"])
def test_a_file_without_steps_beside_others(tmp_path, shape, pad):
    full = tuple(length or 4 for length in shape)
    for name, lengths in (("a", full), ("b", shape)):
        save(tmp_path / f"{name}.h5", {"x": np.arange(math.prod(lengths)).reshape(lengths), "of_all": np.int64(7)})
    rows, windows = Grid(len(shape)), Windows({"x": range(2)}, pad=pad)
    whole = H5Dataset(str(tmp_path / "*.h5"), rows=rows, windows=windows)
    first = H5Dataset(str(tmp_path / "a.h5"), rows=rows, windows=windows)
    assert [row["x"].tolist() for row in whole] == [row["x"].tolist() for row in first]
    chosen = H5Dataset(str(tmp_path / "*.h5"), rows=rows, windows=windows, predicate=where(of_all=7))
    assert len(chosen) == len(first) > 0
