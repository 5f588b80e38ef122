"""The layouts of communities: what is read by default, and by the call that `inspect`, a warning or an error prints."""

import logging
import re

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import H5Dataset, RayH5Error
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.measure import inspect_files
from ray_h5.inspect.text import to_text
from tests.layouts import cells, fields, libraries, programs, ranges, robots  # noqa: F401  they add layouts
from tests.layouts.kit import LAYOUTS


def calls_in(text):
    """Return the options of each call in a text: after ``read_h5(paths, `` or ``pass ``."""
    found = []
    for match in re.finditer(r"read_h5\(paths, |[Pp]ass (?=\w+=)", text):
        depth, options = 0, ""
        for char in text[match.end() :]:
            depth += (char in "([{") - (char in ")]}")
            # Outside brackets, a sentence goes on after an option, and other options after a comma.
            if depth < 0 or (depth == 0 and char in " \n;" and not options.endswith(",")):
                break
            options += char
        found.append(options.rstrip(",.:"))
    return list(dict.fromkeys(found))


def is_right(dataset, want):
    """Return whether a dataset has the rows that a layout means."""
    if len(dataset) != want.rows:
        return False
    for name, (row, value) in want.values.items():
        found = dataset[row].get(name)
        if found is None:
            return False
        found, wanted = np.asarray(found), np.asarray(value)
        if found.shape != wanted.shape or not np.array_equal(found.astype(wanted.dtype), wanted):
            return False
    return True


def default_of(paths, want, caplog):
    """Return what happens without options, and all that is said."""
    caplog.clear()
    try:
        with caplog.at_level(logging.WARNING):
            dataset = H5Dataset(paths)
            right = is_right(dataset, want) if want else False
    except RayH5Error as error:
        return "refused", str(error)
    said = "\n".join(each.getMessage() for each in caplog.records)
    return ("right" if right and not said else "warned" if said else "odd"), said


def printed_of(paths, said, want, given=""):
    """Return the first printed call that makes the rows of a layout; None if there is none.

    Where a call is refused, its error may print what else to pass.
    """
    for options in calls_in(said):
        call = f"{given}, {options}" if given else options
        try:
            if is_right(
                eval(f"H5Dataset(paths, {call})", {"H5Dataset": H5Dataset, "paths": paths, "ray_h5": ray_h5}), want
            ):
                return call
        except (TypeError, SyntaxError) as error:
            print(call, "->", error)
        except RayH5Error as error:
            print(call, "->", error)
            if not given and (found := printed_of(paths, str(error), want, call)):
                return found
    return None


@pytest.fixture
def looked(each, tmp_path_factory, caplog):
    """The files of a layout, what they mean, and all that is said of them: by default, and by `inspect`."""
    if each.name not in LOOKED:
        folder = tmp_path_factory.mktemp("layout")
        want = each.write(folder)
        paths = sorted(map(str, folder.iterdir())) if want is None or want.paths is None else str(folder / want.paths)
        default, said = default_of(paths, want, caplog)  # first: what is warned of is said once
        try:
            shown, is_refused = to_text(inspect_files(FileOptions.of(paths))), False
        except RayH5Error as error:  # where a file as a whole is refused, the command prints this
            shown, is_refused = str(error), True
        LOOKED[each.name] = paths, want, default, said, shown, is_refused
    return LOOKED[each.name]


LOOKED = {}
"""What was looked at: each layout is written once for all tests."""


@pytest.mark.parametrize("each", LAYOUTS.values(), ids=LAYOUTS)
def test_layout(each, looked):
    paths, want, default, said, shown, _ = looked
    print(shown)
    print(said)
    assert default == each.default
    if each.said:
        assert each.said in shown
        if default == "refused":
            assert each.said in said
    if each.call:
        printed = printed_of(paths, f"{shown}\n{said}", want)
        assert printed is not None
        assert each.call in printed
        assert default == "right" or each.call in said


@pytest.mark.parametrize("each", LAYOUTS.values(), ids=LAYOUTS)
def test_each_call_that_is_printed_runs(looked):
    paths, _, _, said, shown, is_refused = looked
    if is_refused:
        return
    advice = [line for line in shown.splitlines() if "write read_h5(paths, " in line]
    for options in calls_in("\n".join([*advice, said])):
        if options.startswith("allow_external"):
            continue  # what is in other files is seen, and said, once they are allowed
        dataset = eval(f"H5Dataset(paths, {options})", {"H5Dataset": H5Dataset, "paths": paths, "ray_h5": ray_h5})
        dataset[0], dataset[len(dataset) - 1]


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 24), marks=pytest.mark.slow)])
def test_each_call_that_is_printed_for_any_file_runs(tmp_path, caplog, seeds):
    """Names of communities, in groups and lengths that need not fit: what does not run is not printed."""
    for seed in seeds:
        draw = np.random.default_rng(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        for number in range(draw.integers(1, 3)):
            write_any(folder / f"{number}.h5", draw)
        try:
            shown = to_text(inspect_files(FileOptions.of(folder)))
        except RayH5Error:
            shown = ""
        advice = [line for line in shown.splitlines() if "write read_h5(paths, " in line]
        for options in calls_in("\n".join([*advice, default_of(folder, None, caplog)[1]])):
            if not options.startswith(("decode_cf", "pad=", "dtypes=")):
                dataset = eval(f"H5Dataset(folder, {options})", {**globals(), "folder": folder})
                dataset[0], dataset[len(dataset) - 1]


def write_any(path, draw):
    one = ["label", "offsets", "ep_len", "ep_offset", "starts", "counts", "indptr", "episode_ends", "done", "time"]
    many = ["x", "image", "actions", "features", "tokens", "pixels"]
    groups = ["", "data/", "demo_#/", "case_#/", "images/", "masks/", "INDEX/a/", "INSTRUMENT/a/", "bucket#/"]
    steps = int(draw.integers(4, 20))
    with h5py.File(path, "w") as file:
        for group in draw.choice(groups, 3, replace=False):
            names = draw.choice([*one, *many], 3, replace=False)
            for i in range(4 if "#" in group else 1):
                rows = steps + i * int(draw.integers(0, 2))
                for name in names:
                    few = int(draw.choice([rows, max(2, rows // 3), rows + 1]))
                    ascending = np.linspace(0, steps, few).astype(int)
                    values = ascending if name in one else np.zeros((rows, *draw.choice([[2], [4]])), "f4")
                    file[f"{group.replace('#', str(i))}{name}"] = values
