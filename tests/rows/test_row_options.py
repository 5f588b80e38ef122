"""What is said of rows= and windows= that are not what was meant."""

import h5py
import numpy as np
import pytest

from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.torch_data import Grid, Groups, H5Dataset, Patches, Windows


@pytest.fixture
def demos(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for i in range(12):
            file[f"data/demo_{i}/actions"] = np.zeros((i + 2, 7))
            file[f"data/demo_{i}/obs/eef"] = np.zeros((i + 2, 3))
            file[f"data/demo_{i}/next_obs/eef"] = np.zeros((i + 2, 3))
    return tmp_path / "demos.h5"


@pytest.mark.parametrize("offsets", [16, np.int64(16), ("u", 16)])
def test_a_number_for_offsets_is_not_taken_for_one_step(offsets):
    with pytest.raises(
        OptionError, match=r"found (np.int64\()?16\)?. Write \[16\] for that one step, or range\(16\) for"
    ):
        Windows({"actions": offsets})


@pytest.mark.parametrize("offset", [0, -1])
def test_a_number_below_one_is_no_count_of_steps(offset):
    with pytest.raises(OptionError, match=rf"Write \[{offset}\] for that one step$"):
        Windows({"actions": offset})


@pytest.mark.parametrize("option", ["episode", "episode_ends", "episode_lengths", "episode_bounds"])
@pytest.mark.parametrize(("rows", "unit"), [(Groups("data/*"), "each group"), (Grid(2), "the last row axis")])
def test_ends_of_episodes_that_rows_define(demos, option, rows, unit):
    windows = Windows({"actions": range(2)}, **{option: "dones"})
    with pytest.raises(
        OptionError, match=rf"Windows: {option}='dones' is for rows along .*rows=G.*{unit}.* Leave it out"
    ):
        H5Dataset(demos, rows=rows, windows=windows)


@pytest.mark.parametrize("windows", [None, Windows({"actions": range(2)})])
def test_rows_that_were_forgotten(demos, windows):
    with pytest.raises(UnknownColumnError) as caught:
        H5Dataset(demos, ["actions"], windows=windows)
    assert str(caught.value).count("no 'actions' below group '/'") == 1
    assert "and 9 more have it: if each is a sample or an episode, pass rows=ray_h5.Groups('data/demo_*');" in str(
        caught.value
    )
    assert caught.value.__suppress_context__  # the same text is not shown twice


def test_two_groups_with_a_column_are_no_samples(demos):
    with pytest.raises(UnknownColumnError) as caught:
        H5Dataset(demos, ["eef"], group="data/demo_0")
    assert "rows=ray_h5.Groups" not in str(caught.value)


def test_a_pattern_that_matches_nothing(demos):
    with pytest.raises(
        UnknownColumnError, match=r"nothing matches the pattern 'demo_\*' .*Did you mean 'data/demo_\*'"
    ):
        H5Dataset(demos, rows=Groups("demo_*"))


def test_molecules_without_rows(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(6):
            file[f"mol_{i}/numbers"] = np.zeros(3 + i, "i2")
            file[f"mol_{i}/positions"] = np.zeros((1 + i % 3, 3 + i, 3))
    with pytest.raises(SchemaMismatchError) as caught:
        H5Dataset(tmp_path / "a.h5")
    assert "If each is a sample, pass rows=ray_h5.Groups('mol_*')." in str(caught.value)
    assert "ds.union" not in str(caught.value)


@pytest.mark.parametrize("at", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("missing", ["error", "null"])
def test_arrays_without_values_are_empty_rows_whatever_their_type(tmp_path, at, missing):
    """As of a molecule without conformations: h5py writes a list without entries so."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, (conformations, atoms) in enumerate([(4, 5), (2, 9), (3, 7)]):
            file[f"m{i}/numbers"] = np.arange(atoms)
            values = np.full((conformations, atoms, 3), i, "f4")
            file[f"m{i}/positions"] = np.zeros(0) if i in at else values
            file[f"m{i}/energy"] = np.zeros(0) if i in at else np.full(conformations, i)
    rows = H5Dataset(tmp_path / "a.h5", rows=Groups("m*", missing=missing))
    with h5py.File(tmp_path / "a.h5") as file:
        for i in range(3):
            for name in ("positions", "energy", "numbers"):
                stored, found = file[f"m{i}/{name}"][()], np.asarray(rows[i][name])
                assert found.size == stored.size
                assert not stored.size or (found.dtype, found.tolist()) == (stored.dtype, stored.tolist())
    windows = Windows({"positions": [0], "energy": [0]}, constants=["numbers"])
    steps = sum(count for i, count in enumerate((4, 2, 3)) if i not in at)
    if steps:
        assert len(H5Dataset(tmp_path / "a.h5", rows=Groups("m*"), windows=windows)) == steps


def test_parts_of_one_sample_are_not_taken_for_samples(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group in ("obs", "next_obs"):
            file[f"{group}/eef"] = np.zeros((5, 3))
        file["names"] = np.zeros(3)
    with pytest.raises(SchemaMismatchError) as caught:
        H5Dataset(tmp_path / "a.h5")
    assert "rows=ray_h5.Groups" not in str(caught.value)


def test_groups_that_differ(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g0/x"] = np.zeros(3)
        file["g1/x"] = np.zeros(3, int)
        file["h0/x"] = np.zeros(3)
        file["h1/x"], file["h1/y"] = np.zeros(3), np.zeros((3, 2))
        file["h0"].attrs["empty"] = h5py.Empty("f8")
    with pytest.raises(
        SchemaMismatchError, match="expected float64 with 1 axis, as in 'g0/x', found int64 with 1 axis in"
    ):
        H5Dataset(tmp_path / "a.h5", rows=Groups("g*"))
    with pytest.raises(SchemaMismatchError, match="different columns: the groups before 'h1/y' lack y"):
        H5Dataset(tmp_path / "a.h5", rows=Groups("h*"))
    with pytest.raises(UnsupportedColumnError, match=r"attribute 'empty' of 'h0' is empty.* Leave it out of attrs="):
        H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("h*", attrs=["empty"]))


MOLECULES = ["x1", "10", "2", "x0", "100"]


@pytest.fixture
def molecules(tmp_path):
    """Groups of molecules under numbers and names, one of them without conformations, beside two of metadata."""
    with h5py.File(tmp_path / "a.h5", "w", track_order=True) as file:
        for i, name in enumerate(MOLECULES):
            group = file.create_group(name, track_order=True)
            group.create_group("cams", track_order=True)
            group["energy"], group["cams/c1"] = (np.zeros(0) if i == 2 else np.full(i + 1, float(i))), np.arange(3)
            group.attrs["charge"] = i
        for name in ("meta", "x_meta"):
            file[f"{name}/version"] = "1.0"
    return tmp_path / "a.h5"


@pytest.mark.parametrize(
    ("pattern", "exclude", "rows"),
    [
        (["[0-9]*", "x*"], "*meta*", ["2", "10", "100", "x0", "x1"]),
        (["x*", "x1", "2"], ["meta*", "x_*"], ["2", "x0", "x1"]),
        ("*", ["meta", "x_meta", "[0-9]*"], ["x0", "x1"]),
        ("**", ["*meta", "cams"], ["2", "10", "100", "x0", "x1"]),
        (["1*/cams", "nothing*", "x*/cams"], ["x_meta", "/10/cams"], ["100/cams", "x0/cams", "x1/cams"]),
        (["[x1]*/*/c1"], ["x_meta", "x0/**", "**/100"], ["10/cams/c1", "x1/cams/c1"]),
        (["10", "x1"], (), ["10", "x1"]),
    ],
)
def test_several_patterns_and_all_but_some(molecules, pattern, exclude, rows):
    attrs = () if "/" in str(pattern) else ["charge"]
    kind = Groups(pattern, attrs, exclude=exclude, key="name")
    assert eval(repr(kind), {"Groups": Groups}) == kind
    found = [*H5Dataset(molecules, rows=kind)]
    assert [row["name"] for row in found] == rows
    with h5py.File(molecules) as file:
        for row in found:
            for name in row.keys() - {"name", "charge", "value"}:
                assert np.asarray(row[name]).tolist() == file[row["name"]][name][()].tolist()
            assert not attrs or row["charge"] == file[row["name"]].attrs["charge"]
    made = Groups(pattern, exclude=exclude, key="name", order="creation")
    names = sorted(rows, key=lambda name: MOLECULES.index(name.split("/")[0]))
    assert [row["name"] for row in H5Dataset(molecules, ["name"], rows=made)] == names


def test_all_but_some_compose(molecules, tmp_path, caplog):
    kind = Groups(["[0-9]*", "x*"], exclude="x_*")
    windows = H5Dataset(molecules, rows=kind, windows=Windows({"energy": [0]}, constants=["cams/c1"]))
    assert [float(row["energy"]) for row in windows] == [1.0, 1.0, *[4.0] * 5, *[3.0] * 4, 0.0]
    lacking = H5Dataset(molecules, rows=Groups(["x*", "meta"], missing="null", exclude="x0"))
    assert [row["version"] for row in lacking] == ["1.0", None, "1.0"]
    with h5py.File(tmp_path / "pairs.h5", "w") as file:
        for name in ("a", "meta", "b"):
            file[f"images/{name}"], file[f"scans/{name}/image"] = np.zeros((4, 4)), np.zeros((4, 4))
            if name != "meta":
                file[f"masks/{name}"] = np.ones((4, 4))
    path, patterns = tmp_path / "pairs.h5", {"image": "images/*", "mask": "masks/*"}
    for exclude in ("meta", "images/meta", "images/me*"):
        assert [row["n"] for row in H5Dataset(path, rows=Groups(patterns, key="n", exclude=exclude))] == ["a", "b"]
    assert [row["n"] for row in H5Dataset(path, rows=Groups(patterns, key="n", exclude=["meta", "masks/a"]))] == ["b"]
    blocks = Patches({"image": (2, 2)}, groups=["scans/a", "scans/[!a]*"], exclude="meta", key="scan")
    assert [row["scan"] for row in H5Dataset(path, rows=blocks)] == [*["scans/a"] * 4, *["scans/b"] * 4]
    with pytest.raises(UnknownColumnError, match=r"nothing matches the pattern \{.*\} .* What exclude=\['\*'\]"):
        H5Dataset(path, rows=Groups(patterns, exclude="*"))
    H5Dataset(molecules, rows=Groups(["[0-9]*", "1", "y*", "**"], exclude=["*meta", "x?", "cams"]))
    assert "nothing in any file matches 1, y*, of the patterns ['[0-9]*', '1', 'y*', '**'], without" in caplog.text
    H5Dataset(molecules, rows=Groups(["[0-9]*", "z*", "**"], exclude=["*meta", "x?", "cams"]))
    assert "nothing in any file matches z*, of" in caplog.text  # files that were read by other patterns before
    for wrong in ([], [""], 3, ["a", 4], {"x": 3}):
        with pytest.raises(OptionError, match="Groups: pattern="):
            Groups(wrong)
    with pytest.raises(OptionError, match="Groups: exclude="):
        Groups("*", exclude=[""])
    with pytest.raises(OptionError, match="Patches: exclude="):
        Patches({"image": (2, 2)}, exclude="meta")
