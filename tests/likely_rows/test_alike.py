"""Which layouts are taken for samples that became columns, and which are not."""

import fnmatch
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_h5
from ray_h5.index.file_options import _MAKERS as MAKERS
from ray_h5.likely_rows.alike import likely_samples, pattern_of
from ray_h5.likely_rows.arguments import value_of, written
from ray_h5.likely_rows.suggestions import suggestions
from ray_h5.likely_rows.tree import FileTree, Seen

ROWS = 100


def columns(*names, dtype="<f4", shape=()):
    return dict.fromkeys(names, (dtype, shape))


def likely(found):
    """Return the likeliest samples of columns with 100 rows each, given by their dtypes and shapes of rows."""
    return next(
        iter(likely_samples({name: Seen(dtype, (ROWS, *shape)) for name, (dtype, shape) in found.items()})), None
    )


def groups(names, *fields, shape=()):
    return columns(*(f"{name}/{field}" for name in names for field in fields), shape=shape)


SAMPLES = {
    "five demos": groups([f"data/demo_{i}" for i in range(5)], "actions", "obs/qpos"),
    "nine molecules": groups([f"mol_{i:03d}" for i in range(9)], "positions", "energy"),
    "molecules of different sizes": {
        f"gdb11_s0{i}/{name}": ("<f4", (i, 3) if name == "coordinates" else ())
        for i in range(1, 5)
        for name in ("coordinates", "energies")
    },
    "molecules by their names": groups(["aspirin", "benzene", "ethanol", "malonaldehyde", "toluene"], "R", "E"),
    "sixty traces": columns(*(f"trace_{i}" for i in range(60))),
    "two traces with their times": {**columns("trace_1", "trace_2"), "time": ("<f8", ())},
    "numbers alone": columns("0", "1", "2", shape=(64, 64)),
    "groups of numbers alone": groups(["0", "1"], "image", "mask"),
    "episodes beside a summary": {**groups(["episode_0", "episode_1"], "action"), "note": ("<i4", ())},
    "subjects of BIDS": groups(["sub-01", "sub-02", "sub-03"], "bold"),
    "dates": groups(["2024-01-01", "2024-01-02"], "power", "wind"),
    "hashes": groups(["0a1fb3", "b3c49e", "77aa01"], "audio"),
    "patients by their names": groups(["adams", "baker", "clark", "davis", "evans", "frank"], "ecg", "resp"),
    "fields in one name": columns("demo_0_actions", "demo_0_obs", "demo_1_actions", "demo_1_obs"),
    "shots of a tokamak": groups(["shot_30421", "shot_30422"], "ip", "density"),
    "camel case": columns("Sweep1", "Sweep2", "Sweep3"),
    "signals alone": columns("signal_0", "signal_1"),
    "persons": groups(["Person1", "Person2"], "gait"),
    "cells of samples, each a matrix with its barcodes": groups(["sample_1", "sample_2"], "matrix", "matrix/barcodes"),
    # A vector a protein, or a column of a table a gene: nothing says which, and the message names both.
    "features by their ids": columns(*(f"ENSG{i:011d}" for i in range(0, 5000, 7))),
    "vectors by their accessions": columns(
        *(f"{'OPQ'[i % 3]}{i % 10}AX{i // 10 % 10}{i % 9}" for i in range(0, 900, 7))
    ),
    "many of anything": columns(*(f"d{i}" for i in range(32)), shape=(3,)),
    "tasks of trajectories": groups([f"{task}/traj{i}" for task in ("open", "close") for i in range(3)], "actions"),
    "traces by station and time": columns(
        *(f"{s}_201006040{i}_EV" for i, s in enumerate(["B082.TA", "AAM.US", "R33.XO"])), shape=(3,)
    ),
}
COLUMNS = {
    "a matrix, below which are its barcodes": columns("matrix", "matrix/barcodes", "matrix/features"),
    "a matrix, after its barcodes": columns("matrix/barcodes", "matrix"),
    "inputs and targets": columns("x", "y"),
    "numbered inputs": {**columns("x1", "x2", "x3"), "y": ("<f4", ())},
    "images and labels": {"image": ("|u1", (32, 32, 3)), "label": ("<i8", ())},
    "cardiotocograms": columns("fhr", "up", "target", "weight", "epoch"),
    "ALOHA": {
        **columns("action", "observations/qpos", "observations/qvel", shape=(14,)),
        **columns(*(f"observations/images/cam_{n}" for n in ("high", "low", "left_wrist")), shape=(480, 640, 3)),
    },
    "numbered cameras": groups(["cam0", "cam1", "cam2"], "rgb", "depth"),
    "bridge": {**columns("images0", "images1", "images2", shape=(256, 256, 3)), **columns("actions", shape=(7,))},
    "leads of an ECG": {**columns(*(f"lead_{i}" for i in range(1, 13)), shape=(5000,)), "label": ("<i8", ())},
    "leads by their names": columns("I", "II", "III", "aVR", "aVL", "aVF", *(f"V{i}" for i in range(1, 7))),
    "polysomnography": columns("C3", "C4", "F3", "F4", "O1", "O2", "EEG1", "EEG2", "EMG1", "EMG2"),
    "weather": columns("u10", "v10", "u100", "v100", "t2m", "d2m", "msl", shape=(181, 360)),
    "bands of a satellite": columns(*(f"B{i:02d}" for i in range(1, 13)), shape=(120, 120)),
    "a table": {**columns(*(f"feature_{i}" for i in range(10))), "target": ("<f4", ())},
    "a table of other words": {**columns(*(f"score_{i}" for i in range(10))), "target": ("<f4", ())},
    "joints": groups(["joint_0", "joint_1", "joint_2"], "position", "velocity"),
    "sensors": groups(["accelerometer", "gyroscope", "magnetometer"], "x", "y", "z"),
    "sensors on a body": groups(["left_arm", "right_arm", "left_leg", "right_leg", "back"], "acc", "gyro"),
    "two views": {**columns("view_0", "view_1", shape=(224, 224, 3)), "label": ("<i8", ())},
    "agents": groups(["robot0", "robot1"], "pos", "vel"),
    "weights of a model": groups(["layer_0", "layer_1"], "kernel", "bias"),
    "PDEBench": columns("Vx", "Vy", "density", "pressure", shape=(128, 128)),
    "CAMELS": columns("Mgas", "Mcdm", "Mstar", "T", "Z", shape=(256, 256)),
    "CNN features": columns("feats_l2", "feats_l3", "labels", shape=(512,)),
    "one group": groups(["sample_0"], "x", "y"),
    "samples of different types": {"sample_1": ("<f4", ()), "sample_2": ("<i8", ())},
    "sample rate and count": columns("sample_rate", "sample_count"),
    "particle physics": columns("jet_pt", "jet_eta", "jet_phi", "jet_mass", "n_jets"),
    "two splits of one": {"train/x": ("<f4", (3,)), "train/y": ("<i8", ())},
    "many features of a table": columns(*(f"gene_{i}" for i in range(5000))),
    "features of many words": columns(*(f"{a}_{b}" for a in ("mean", "peak", "last") for b in "abcdefghijklmnop")),
    "embeddings of layers, and a label": {
        **columns(*(f"emb_{i}" for i in range(40)), shape=(16,)),
        "label": ("<i8", ()),
    },
    "proteins of a table, and a label": {**columns(*(f"P0A{i:02d}{i % 10}" for i in range(40))), "label": ("<i8", ())},
    "nothing": {},
}


@pytest.mark.parametrize("found", SAMPLES.values(), ids=SAMPLES)
def test_samples_that_became_columns(found):
    assert likely(found) is not None


@pytest.mark.parametrize("found", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_one_sample(found):
    assert likely(found) is None


@pytest.mark.parametrize(
    ("names", "others", "pattern"),
    [
        (["data/demo_0", "data/demo_10"], ["data/summary"], "data/demo_*"),
        (["x[0]", "x[1]"], ["y"], "x[[]*]"),
        (["trace_1_EV", "trace_2_EV"], ["trace_1_NO"], "trace_*_EV"),
    ],
)
def test_a_pattern_matches_these_alone(names, others, pattern):
    assert pattern_of(names) == pattern
    assert [each for each in (*names, *others) if fnmatch.fnmatchcase(each, pattern)] == names


NAMES = ["adams", "baker", "clark", "davis", "evans"]


@pytest.mark.parametrize(
    ("samples", "beside", "pattern", "taken"),
    [
        (NAMES, {"base/x": 1}, "* but base", 5),
        (NAMES, {"base_1/x": 1, "base_2/x": 1}, "* but base_*", 5),
        (NAMES, {"ada/x": 1, "bob/x": 1}, "* but ada, bob", 5),
        (NAMES, {f"{letter}/x": 1 for letter in "abcde"}, "", 5),
        (range(1, 13), {"metadata/x": 1}, "[0-9]*", 12),
        (range(1, 13), {"metadata/other": 1}, "[0-9]*", 12),
        (range(1, 13), {"13/x": 1, "13/more": 1}, "*", 13),
        (NAMES, {"zz/x": 1, "zz/y": 1, "zz/z": 1}, "*", 6),
        (NAMES, {"zz/x": 1}, "[!z]*", 5),
        (["s_adams", "s_baker", "s_clark", "s_davis", "s_evans"], {"s_0/x": 1}, "s_[!0]*", 5),
    ],
)
def test_a_pattern_leaves_out_what_is_beside_samples(samples, beside, pattern, taken):
    found = {**groups(samples, "x", "y", "z"), **dict.fromkeys(beside, ("<f4", ()))}
    alike = likely(found)
    pattern, _, exclude = pattern.partition(" but ")
    assert (alike.pattern, ", ".join(alike.exclude), len(alike.paths)) == (pattern, exclude, taken)
    assert bool(alike.arguments) == bool(pattern)
    assert f"exclude={exclude!r})" in written(alike.arguments) or ", " in exclude or not exclude
    # The same for what is no column, once it is known.
    if taken == len(samples):
        later = likely(groups(samples, "x", "y", "z")).beside_others(beside)
        assert (later.arguments, later.paths) == (alike.arguments, alike.paths)
        assert alike.beside_others(beside) is None


def calls_of(function, *args):
    """Return how many functions are called, of Python and of C."""
    calls = 0

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return calls


LARGE = {
    "molecules of many lengths": ("mol_{0}/xyz", "mol_{0}/n"),
    "units with bounds": ("unit_{0}/start", "unit_{0}/count"),
    "columns of their own in pairs": ("g{0}/a{1}", "g{0}/b{1}"),
    "datasets": ("{0}_image", "{1}_mask{0}"),
}


@pytest.mark.parametrize("names", LARGE.values(), ids=LARGE)
def test_the_time_of_a_guess_is_linear(names):
    def tree(count):
        return FileTree(
            {name.format(i, i // 2): Seen("<i8", (3 + i % 9,)) for i in range(count) for name in names}, files=3
        )

    calls_of(suggestions, tree(10))
    few, many = (calls_of(suggestions, tree(count)) for count in (300, 1500))
    assert many <= 6 * few


def test_files_of_one_array_with_equal_axes_are_told_as_images():
    def said(files, *shape, **others):
        found = suggestions(FileTree({"a": Seen("<f4", shape)}, files=files, **others))
        return any("each looks like one image" in each.found and "Files()" in each.options for each in found)

    assert said(8, 64, 64)
    assert said(8, 64, 64, 3)
    assert said(50, 64, 64, 64)
    assert not said(7, 64, 64)  # a chance
    assert not said(8, 64, 64, rows_differ=True)
    assert not said(8, 64, 32)  # a table
    assert not said(8, 16, 16)
    assert not said(8, 64, 64, 32)  # 64 images


def test_a_volume_with_channels_first_is_read_in_blocks():
    found = {
        "image": Seen("<f4", (4, 240, 240, 155)),
        "label": Seen("|u1", (240, 240, 155)),
        "spacing": Seen("<f8", (3,)),
    }
    said = [each.options for each in suggestions(FileTree(found, files=3))]
    assert "rows=ray_h5.Patches({'image': (64, 64, 64), 'label': (64, 64, 64)})" in said
    found["age"] = Seen("<f8", (240,))  # a value a plane
    assert not any("Patches" in each.options for each in suggestions(FileTree(found, files=3)))


PARTS = st.sampled_from(
    ["demo_0", "demo_1", "demo_10", "traj2", "obs", "x", "y", "a[b]", "ENSG00012", "train", "*", ""]
)


@given(st.dictionaries(st.lists(PARTS, min_size=1, max_size=4).map("/".join), st.integers(0, 3), max_size=24))
def test_what_is_suggested_for_any_names_is_a_call_and_its_pattern_matches(found):
    tree = FileTree({name: Seen("float32", (7, 40, 40)[: axes + 1] or (7,)) for name, axes in found.items()}, files=2)
    for each in suggestions(tree):
        read = eval(f"dict({each.options})", {"ray_h5": ray_h5})
        assert repr(read) == repr({name: value_of(value, MAKERS) for name, value in each.arguments.items()})
        assert each.as_call
        assert each.as_advice.endswith(".")
    for alike in likely_samples(tree.columns):
        for path in alike.paths:
            assert all(map(fnmatch.fnmatchcase, path.split("/"), alike.pattern.split("/")))
