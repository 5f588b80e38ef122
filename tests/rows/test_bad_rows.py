# ruff: noqa: E501  the table of cases is one line each
"""Files and options that make no rows: each is a named error while planning, which says what to do."""

import os
import re

import h5py
import numpy as np
import pytest

from ray_h5 import Grid, Groups, H5Dataset, Patches, RayH5Error, RowReader, Windows, row_mask, where
from ray_h5.errors import (
    CorruptFileError,
    ExternalDataError,
    MissingSourceError,
    OptionError,
    PredicateError,
    SchemaMismatchError,
    StaleIndexError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.index.file_options import FileOptions
from tests.hdf5.h5kit import in_fork, overwrite
from tests.kit.files import save
from tests.rows.kit import open_rows

DEMOS = Groups("data/demo_*")


def demos(file):
    for i, length in ((2, 3), (10, 2)):
        file[f"data/demo_{i}/x"] = np.arange(length)


def with_(*more):
    def make(file):
        demos(file)
        for name, value in more:
            file[name] = value

    return make


def enums(file):
    for i, names in enumerate(({"a": 0, "b": 1}, {"a": 1, "b": 0})):
        file.create_dataset(f"data/demo_{i}/x", data=np.array([0, 1], "i1"), dtype=h5py.enum_dtype(names, "i1"))


def one_enum(file):
    file.create_dataset("data/demo_0/x", data=np.array([5], "i1"), dtype=h5py.enum_dtype({"five": 5}, "i1"))


def hostile(file):
    """Thirty groups, each in the one before by two names: 2^30 paths."""
    group = file.create_group("data/demo_0")
    for _ in range(30):
        below = group.create_group("a")
        group["b"] = below
        group = below
    group["x"] = [1]


def fan(file):
    """Many names of one group with many datasets."""
    for i in range(200):
        file[f"group/x{i}"] = [1]
        file[f"row_{i}"] = file["group"]


def long_double(file):
    demos(file)
    for name in ("data/demo_2", "data/demo_10", "/"):
        file[name].attrs["a"] = np.longdouble(1.5)


def of_time(file):
    demos(file)
    for name in ("data/demo_2", "data/demo_10", "/"):
        h5py.h5a.create(file[name].id, b"a", h5py.h5t.UNIX_D32LE, h5py.h5s.create(h5py.h5s.SCALAR))


def virtual(file):
    layout = h5py.VirtualLayout((2,), "i8")
    layout[:] = h5py.VirtualSource("/nowhere/other.h5", "x", (2,))
    file.create_virtual_dataset("data/demo_0/x", layout)


def of_rows(episode=None, ends=None):
    def make(file):
        file["x"] = np.arange(5)
        if episode is not None:
            file["id"] = episode
        if ends is not None:
            file["meta/ends"] = ends

    return make


def names_not_utf8(file):
    demos(file)
    file["data"].create_group(b"demo_\xff")


CASES = {
    "nothing matches": (demos, Groups("dat/demo_*"), None, UnknownColumnError, "'dat/demo_\\*'.* Did you mean 'data/demo_\\*'"),
    "no datasets": (lambda f: f.create_group("data/demo_0"), DEMOS, None, UnsupportedColumnError, "'data/demo_0' has no dataset"),
    "groups and datasets": (with_(("data/demo_5", [1])), DEMOS, None, SchemaMismatchError, "matches groups and datasets, such as 'data/demo_5'"),
    "dtypes": (with_(("data/demo_5/x", [1.0])), DEMOS, None, SchemaMismatchError, "expected int64 .*, as in 'data/demo_2/x', found float64 .* in 'data/demo_5/x'"),
    "axes": (with_(("data/demo_5/x", [[1]])), DEMOS, None, SchemaMismatchError, "found int64 with 2 axes in 'data/demo_5/x'"),
    "single values": (with_(("data/demo_5/x", 1)), DEMOS, None, SchemaMismatchError, "found int64 with 0 axes"),
    "enums": (enums, DEMOS, None, SchemaMismatchError, "their integers mean other things"),
    "lacks a column": (with_(("data/demo_2/y", [1])), DEMOS, None, SchemaMismatchError, "'data/demo_10' lacks y"),
    "an attribute": (demos, Groups("data/demo_*", attrs=("num_samples",)), None, SchemaMismatchError, "'data/demo_2' has no attribute 'num_samples'"),
    "a dataset as attribute": (demos, Groups("data/demo_*", attrs=("x",)), None, SchemaMismatchError, "'x' is in the group itself: name it in columns="),
    "an attribute with a slash": (demos, Groups("data/demo_*", attrs=("no/such",)), None, SchemaMismatchError, "has no attribute 'no/such', which attrs= names"),
    "key is a dataset": (demos, Groups("data/demo_*", key="x"), None, OptionError, "'x' is a column of the file, and one that key= or attrs= of Groups"),
    "no order": (demos, Groups("data/demo_*", order="creation"), None, UnsupportedColumnError, "does not record the order"),
    "another file": (with_(("data/demo_5", h5py.ExternalLink("/nowhere/other.h5", "/g"))), DEMOS, None, ExternalDataError, "outside allow_external"),
    "a dataset of another file": (with_(("data/demo_2/y", h5py.ExternalLink("/nowhere/other.h5", "/g"))), DEMOS, None, ExternalDataError, "outside allow_external"),
    "values of another file": (virtual, DEMOS, None, SchemaMismatchError, "found no column that can be delivered: x .*values in other datasets"),
    "a link to nothing": (with_(("data/demo_5", h5py.SoftLink("/gone"))), DEMOS, None, MissingSourceError, "leads to '/gone'"),
    "many ways": (hostile, Groups("data/**/x"), None, CorruptFileError, "many links"),
    "many ways by level": (hostile, Groups("data/demo_0/" + "/".join("*" * 29)), None, CorruptFileError, "many links"),
    "many ways to rows": (fan, Groups("row_*"), None, CorruptFileError, "many links"),
    "many ways inside": (hostile, DEMOS, None, CorruptFileError, "many links"),
    "an attribute that Arrow lacks": (long_double, Groups("data/*", attrs=("a",)), None, UnsupportedColumnError, "attribute 'a' of 'data/demo_2' has dtype float128"),
    "an attribute that numpy lacks": (of_time, Groups("data/*", attrs=("a",)), None, UnsupportedColumnError, "attribute 'a' of 'data/demo_2' has a type that numpy lacks"),
    "a name that is not UTF-8": (names_not_utf8, DEMOS, None, UnsupportedColumnError, r"file\['/data'\].move\(b'demo_\\xff'"),
    "lengths differ": (with_(("data/demo_2/y", [1]), ("data/demo_10/y", [1])), DEMOS, Windows({"x": [0], "y": [0]}), SchemaMismatchError, "'x' has 3 steps, and 'y' has 1"),
    "no axis of time": (with_(("data/demo_2/y", 1), ("data/demo_10/y", 1)), DEMOS, Windows({"y": [0]}), UnsupportedColumnError, "'y' has a single value in each episode, and no axis of time"),
    "steps of other shapes": (with_(("data/demo_2/y", [[b"1"]] * 3), ("data/demo_10/y", [[b"1", b"2"]] * 2)), DEMOS, Windows({"y": [0]}), UnsupportedColumnError, r"other shapes in other groups, such as \(1,\) and \(2,\)"),
    "zero of an enum": (one_enum, DEMOS, Windows({"x": [-1]}, pad="zero"), UnsupportedColumnError, "an enum"),
    "unknown": (demos, DEMOS, Windows({"xx": [0]}), UnknownColumnError, "no 'xx'.* Did you mean 'x'"),
    "too short": (demos, DEMOS, Windows({"x": range(9)}, pad="drop"), OptionError, "needs 9 steps, and no episode has as many. The longest is 'data/demo_2' of .*, with 3 steps"),
    "no steps": (lambda f: f.create_dataset("data/demo_0/x", (0,), "i4"), DEMOS, Windows({"x": [0]}), OptionError, "found none"),
    "a file too short": (of_rows(), None, Windows({"x": range(-3, 9)}, pad="drop"), OptionError, "needs 12 steps.* with 5 steps"),
    "not in runs": (of_rows([1, 1, 2, 1, 1]), None, Windows({"x": [0]}, episode="id"), SchemaMismatchError, "value 1 is in row 0 and again in row 3"),
    "an episode that is NaN": (of_rows([1, 1, np.nan, 2, 2]), None, Windows({"x": [0]}, episode="id"), SchemaMismatchError, "missing value in row 2"),
    "flags that end episodes": (of_rows([False, False, False, False, True]), None, Windows({"x": [0]}, episode="id"), UnsupportedColumnError, r"'id' is boolean; .*pass episode_flags=\['id'\]"),
    "numbers that are flags": (of_rows([0, 0, 1, 0, 1]), None, Windows({"x": [0]}, episode="id"), SchemaMismatchError, r"value 0 is in row 0 and again in row 3.* pass episode_flags=\['id'\]"),
    "flags that are numbers": (of_rows([0, 0, 2, 2, 2]), None, Windows({"x": [0]}, episode_flags="id"), SchemaMismatchError, "found 2 in row 2. .* pass episode='id'"),
    "too few flags": (of_rows([0, 1]), None, Windows({"x": [0]}, episode_flags="id"), SchemaMismatchError, "expected 5 values, one for each step, found 2"),
    "bounds past the end": (of_rows(ends=[[0, 3], [3, 6]]), None, Windows({"x": [0]}, episode_bounds="meta/ends"), SchemaMismatchError, "row 1 goes from 3 to 6, and 'x' has 5"),
    "bounds that are no pairs": (of_rows(ends=[0, 3]), None, Windows({"x": [0]}, episode_bounds="meta/ends"), SchemaMismatchError, r"expected start and end of each, of shape \(number, 2\)"),
    "too few episodes": (of_rows([1, 1]), None, Windows({"x": [0]}, episode="id"), SchemaMismatchError, "expected 5 values, one for each step, found 2"),
    "ends descend": (of_rows(ends=[3, 2, 5]), None, Windows({"x": [0]}, episode_ends="meta/ends"), SchemaMismatchError, "episodes: row 1 goes from 3 to 2"),
    "ends pass the end": (of_rows(ends=[3, 6]), None, Windows({"x": [0]}, episode_ends="meta/ends"), SchemaMismatchError, "expected episodes from step 0 to 5, the number of steps; found 0 to 6"),
    "ends stop early": (of_rows(ends=[3, 4]), None, Windows({"x": [0]}, episode_ends="meta/ends"), SchemaMismatchError, "found 0 to 4"),
    "ends below 0": (of_rows(ends=[-1, 5]), None, Windows({"x": [0]}, episode_ends="meta/ends"), SchemaMismatchError, "row 0 goes from 0 to -1"),
    "starts descend": (of_rows(ends=[0, 3, 2]), None, Windows({"x": [0]}, episode_starts="meta/ends"), SchemaMismatchError, "row 1 goes from 3 to 2"),
    "starts from 1": (of_rows(ends=[1, 3]), None, Windows({"x": [0]}, episode_starts="meta/ends"), SchemaMismatchError, "expected episodes from step 0 to 5, the number of steps; found 1 to 5"),
    "no starts": (of_rows(ends=np.empty(0, "i8")), None, Windows({"x": [0]}, episode_starts="meta/ends"), SchemaMismatchError, "expected episodes from step 0 to 5, the number of steps; found 0 to 0"),
    "starts past the end": (of_rows(ends=[0, 6]), None, Windows({"x": [0]}, episode_starts="meta/ends"), SchemaMismatchError, "row 1 goes from 6 to 5"),
    "lengths that are too short": (of_rows(ends=[2, 2]), None, Windows({"x": [0]}, episode_lengths="meta/ends"), SchemaMismatchError, "expected episodes from step 0 to 5, .* found 0 to 4"),
    "a length past the end": (of_rows(ends=np.array([1 << 63, 1 << 63, 5], "u8")), None, Windows({"x": [0]}, episode_lengths="meta/ends"), SchemaMismatchError, "9223372036854775808 is past what a file can hold"),
    "a length below 0": (of_rows(ends=[-1, 5, 1]), None, Windows({"x": [0]}, episode_lengths="meta/ends"), SchemaMismatchError, "row 0 goes from 0 to -1"),
    "ends are no integers": (of_rows(ends=[5.0]), None, Windows({"x": [0]}, episode_ends="meta/ends"), SchemaMismatchError, "expected integers"),
    "too many axes": (of_rows(), Grid(2), None, UnsupportedColumnError, r"no column has 2 axes or more: x \(5,\)"),
    "no time in a grid": (lambda f: (f.create_dataset("u", (4, 6, 3), "f4"), f.create_dataset("m", (4,), "f4")), Grid(2), Windows({"m": [0]}), UnsupportedColumnError, "does not have the axis of time"),
}  # fmt: skip


def planning_says(cases, folder):
    """What planning says in each case; in one child, as each of them might take for ever, or end the process."""
    options = {}
    for number, case in enumerate(cases):
        make, rows, windows, _, _ = CASES[case]
        with h5py.File(folder / f"{number}.h5", "w") as file:
            make(file)
        options[case] = FileOptions.of([folder / f"{number}.h5"], rows=rows, windows=windows)

    def outcome(case):
        try:
            options[case].index(None)
        except RayH5Error as exc:
            return exc
        return None

    return in_fork(lambda: {case: outcome(case) for case in options}, timeout_s=100)


def check(case, outcome):
    *_, error, said = CASES[case]
    assert isinstance(outcome, error)
    assert re.search(said, str(outcome))


MANY_WAYS = [case for case in CASES if case.startswith("many ways")]
"""Cases that take seconds each until their bound is reached."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return planning_says([case for case in CASES if case not in MANY_WAYS], tmp_path_factory.mktemp("bad"))


@pytest.mark.parametrize("case", [case for case in CASES if case not in MANY_WAYS])
def test_bad_input_is_named_while_planning(outcomes, case):
    check(case, outcomes[case])


@pytest.mark.slow
def test_groups_of_many_names_are_refused(tmp_path):
    for case, outcome in planning_says(MANY_WAYS, tmp_path).items():
        check(case, outcome)


@pytest.mark.parametrize(
    ("make", "said"), [(long_double, "has dtype float128"), (of_time, "has a type that numpy lacks.*H5T_TIME")]
)
def test_attributes_of_files_that_cannot_be_read(tmp_path, make, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
        file["y"] = np.arange(3)
    with pytest.raises(UnsupportedColumnError, match=f"attribute 'a' of '/' {said}.*out of attrs="):
        H5Dataset(str(tmp_path / "a.h5"), ["y"], attrs=["a"])


def test_names_that_are_not_utf8_concern_patterns_that_match_them(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        names_not_utf8(file)
        file.create_group(b"caf\xe9")
        file[b"na\xefve"] = 1
        h5py.h5d.create(file["data/demo_10"].id, b"\xff", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((2,)))
    for pattern in ("data/demo_[0-9]*", "d*/demo_1*"):
        for columns in (["x"], None):
            assert H5Dataset(path, columns, rows=Groups(pattern)).columns == ["x"]
        with open_rows(path, Groups(pattern)) as reader:
            assert [*reader.layout.refused] == [r"\xff"]
    for pattern in ("data/demo_*", "*/demo_10", "**/demo_10"):
        with pytest.raises(UnsupportedColumnError, match="has a name that is not UTF-8"):
            H5Dataset(path, ["x"], rows=Groups(pattern))


def test_groups_may_share_others_by_links(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(8):
            file[f"camera/m{i}"] = np.eye(3)
        for i in range(1200):
            file[f"demo_{i}/x"] = [i]
            file[f"demo_{i}/camera"] = h5py.SoftLink("/camera")
    with open_rows(tmp_path / "a.h5", Groups("demo_*")) as reader:
        assert reader.read(["x"])["x"][:, 0].tolist() == [*range(1200)]
        assert reader.read(["camera/m3"], [7])["camera/m3"].tolist() == [np.eye(3).tolist()]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Windows({}), "expected {column: offsets}"),
        (lambda: Windows({"x": []}), "one or more steps"),
        (lambda: Windows({"x": "ab"}), "one or more steps"),
        (lambda: Windows({"x": [0.5]}), "Offsets in seconds need fps="),
        (lambda: Windows({"x": [True]}), "expected integers"),
        (lambda: Windows({"x": np.zeros((2, 2), int)}), "expected integers, found array"),
        (lambda: Windows({"x": np.array([[1], [2]])}), "expected integers, found array"),
        (lambda: Windows({"x": [1 << 41]}), "beyond the end of any episode"),
        (lambda: Windows({"x": [float("inf")]}, fps=10), "expected seconds"),
        (lambda: Windows({"x": [float("nan")]}, fps=10), "expected seconds"),
        (lambda: Windows({"x": [0]}, fps=0), "expected a number above 0"),
        (lambda: Windows({"x": [0]}, fps=float("nan")), "expected a number above 0"),
        (lambda: Windows({"x": [0]}, stride=0), "stride"),
        (lambda: Windows({"x": [0]}, pad="reflect"), "'edge', 'zero' or 'drop'"),
        (lambda: Windows({"x": [0]}, pad=("edge",)), "'edge', 'zero' or 'drop'"),
        (lambda: Windows({"x": [0]}, episode="a", episode_ends="b"), "pass one of them"),
        (lambda: Windows({"x": [0]}, episode_flags=["a"], episode_bounds="b"), "pass one of them"),
        (lambda: Windows({"x": [0]}, episode_starts="a", episode_lengths="b"), "pass one of them"),
        (lambda: Windows({"x": [0]}, episode_flags=[]), "expected the names"),
        (lambda: Windows({"x": [0], "x_is_pad": ("y", [0])}), "rename it"),
        (lambda: Windows({1: [0]}), "expected the name of a column"),
        (lambda: Groups(""), "expected a glob over paths"),
        (lambda: Groups({}), "expected {column: glob}"),
        (lambda: Groups({"x": ""}), "expected {column: glob}"),
        (lambda: Groups({"x": "a/b"}), "one or more of"),
        (lambda: Groups({"x": "a/*", "y": "b/?"}), "the same signs in each glob"),
        (lambda: Groups({"x": "**/a", "y": "**/b"}), "'\\*\\*' is for one pattern alone"),
        (lambda: Groups({"x": "a/*"}, attrs=["n"]), "are of groups, or datasets, of one column"),
        (lambda: Patches({"x": (2,)}, stride=1, groups={"x": "a"}), "Patches: groups=.*one or more of"),
        (lambda: Groups("a", attrs="n"), r"write attrs=\['n'\]"),
        (lambda: Groups("a", attrs=["n", 3, "m"]), "Groups: attrs: expected a list of names"),
        (lambda: Groups("a", attrs=3), "Groups: attrs: expected a list of names"),
        (lambda: Groups("a", attrs={"n": "m"}), "Groups: attrs: expected a list of names, .* found {'n': 'm'}"),
        (lambda: Groups("a", attrs=("n",), key="n"), "names that differ"),
        (lambda: Groups("a", order="size"), "'name' or 'creation'"),
        (lambda: Groups("a", order=["name"]), "'name' or 'creation'"),
        (lambda: Groups("a", missing=["null"]), "'error' or 'null'"),
        (lambda: Patches({"x": (2,)}, stride=1, pad=["zero"]), "'inside' or 'zero'"),
        (lambda: FileOptions.of(["a.h5"], axes=["reversed"]), "'stored' or 'reversed'"),
        (lambda: Grid(0), "axes"),
        (lambda: Grid(2, of={"t": (2,)}), "row axes from 0 to 1"),
        (lambda: Grid(2, of={"t": (1, 0)}), "ascending"),
        (lambda: FileOptions.of(["a.h5"], rows="data/*"), r"write Groups\('data/\*'\)"),
        (lambda: FileOptions.of(["a.h5"], rows=2), r"write Grid\(2\)"),
        (lambda: FileOptions.of(["a.h5"], windows={"x": [0]}), "write Windows"),
        (lambda: FileOptions.of(["a.h5"], rows=Groups("a"), windows=Windows({"x": [0]}, episode="e")), "each group is an"),
        (lambda: FileOptions.of(["a.h5"], rows=Grid(2), windows=Windows({"x": [0]}, episode_ends="e")), "the last row axis"),
        (lambda: FileOptions.of(["a.h5"], windows=Windows({"x": [0]}, episode_length="min")), "is for rows=Groups"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(tmp_path, monkeypatch, make, said):
    monkeypatch.chdir(tmp_path)
    h5py.File("a.h5", "w").close()
    with pytest.raises(OptionError, match=said):
        make()


def test_the_order_of_creation(tmp_path):
    made = ["demo_3", "demo_10", "demo_2"]
    with h5py.File(tmp_path / "a.h5", "w", track_order=True) as file:
        data = file.create_group("data", track_order=True)
        for i, name in enumerate(made):
            data[f"{name}/x"] = [i]
    with open_rows(tmp_path / "a.h5", Groups("data/*", order="creation", key="name")) as reader:
        assert reader.read(["name"])["name"].tolist() == [f"data/{name}".encode() for name in made]
    with open_rows(tmp_path / "a.h5", Groups("data/*", key="name")) as reader:
        assert reader.read(["name"])["name"].tolist() == [b"data/demo_2", b"data/demo_3", b"data/demo_10"]


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("a/*/x", ["a/1/x", "a/2/x", "a/10/x"]),
        ("**/x", ["a/1/x", "a/2/x", "a/10/x", "b/1/x", "b/deep/1/x"]),
        ("b/**/1", ["b/1", "b/deep/1"]),
        ("**/**/deep/**/1", ["b/deep/1"]),
        ("/a/[12]/", ["a/1", "a/2"]),
        ("a/1?", ["a/10"]),
        ("a/**", ["a/1", "a/2", "a/10"]),
    ],
)
def test_patterns(tmp_path, pattern, rows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, name in enumerate(["a/10", "a/2", "a/1", "b/1", "b/deep/1"]):
            file[f"{name}/x"] = np.arange(i)
    with open_rows(tmp_path / "a.h5", Groups(pattern, key="name")) as reader:
        assert reader.read(["name"])["name"].tolist() == [row.encode() for row in rows]


def test_a_path_with_signs_of_a_pattern_is_that_of_an_object(tmp_path):
    save(tmp_path / "a.h5", {"raw/x[0]/t": np.arange(3), "raw/x[1]/t": np.arange(4)})
    assert len(H5Dataset(tmp_path / "a.h5", rows=Groups("raw/x[0]"))[0]["t"]) == 3
    with pytest.raises(UnknownColumnError, match=re.escape("Did you mean 'raw/x[[]*]'")):
        H5Dataset(tmp_path / "a.h5", rows=Groups("raw/x[2]"))
    assert len(H5Dataset(tmp_path / "a.h5", rows=Groups("raw/x[[]*]"))) == 2


def test_two_stars_over_datasets_name_the_pattern_of_these(tmp_path):
    save(tmp_path / "a.h5", {f"2017/L1C/{number}.csv": np.zeros((number, 13)) for number in (9, 10, 77)})
    with pytest.raises(SchemaMismatchError) as caught:
        H5Dataset(tmp_path / "a.h5", rows=Groups("**"))
    (pattern,) = re.findall(r"pass rows=ray_h5\.Groups\('(.*)'\)\.$", str(caught.value))
    assert len(H5Dataset(tmp_path / "a.h5", rows=Groups(pattern))) == 3


def test_groups_that_do_not_fit_are_refused_each_time(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            file[f"g{i}/x"] = np.arange(3)
        group = file["g0"].create_group("c")
        group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
        group["codes"], group["categories"] = np.array([0, 1, 0], "i1"), np.array(["a", "b"], object)
        file["g1/c"] = np.array([5, 6, 7])
    with RowReader(tmp_path / "a.h5", rows=Groups("g*", missing="null")) as reader:
        for _ in range(2):
            with pytest.raises(SchemaMismatchError, match="column 'c': expected"):
                _ = reader.columns


def test_datasets_that_overlap(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for i in range(3):
            file[f"data/demo_{i}/x"] = np.arange(20) + 100 * i
        places = [file[f"data/demo_{i}/x"].id.get_offset() for i in range(3)]
    data = path.read_bytes()
    stored = places[1].to_bytes(8, "little") + (160).to_bytes(8, "little")
    assert data.count(stored) == 1
    overwrite(path, data.index(stored), (places[0] + 8).to_bytes(8, "little"))
    with pytest.raises(CorruptFileError, match="'data/demo_0/x' and 'data/demo_1/x' overlap"):
        FileOptions.of([path], rows=DEMOS).index(None)
    overwrite(path, data.index(stored), (len(data) - 8).to_bytes(8, "little"))
    with pytest.raises(CorruptFileError, match=r"likely file corruption|end past the file's end"):
        FileOptions.of([path], rows=DEMOS).index(None)


@pytest.mark.parametrize("windows", [None, Windows({"x": [0, 1]})])
def test_a_file_that_changes_after_planning(tmp_path, windows):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        demos(file)
    dataset = H5Dataset(path, rows=DEMOS, windows=windows)
    with h5py.File(path, "a") as file:
        file["data/demo_2/x"][...] = 9
    os.utime(path, (1, 1))
    with pytest.raises(
        StaleIndexError, match=r"changed between .* reading: expected mtime_ns \d+, found 1000000000, exp"
    ):
        dataset[0]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([b"demo_2", b"demo_7"], "'demo_7', which is no group of rows. Did you mean"),
        ([b"demo_2", b"/data/demo_2"], "'data/demo_2' more than once"),
        ([b"x"], "'x', which several groups are: data/demo_2/x, data/demo_10/x"),
    ],
)
def test_masks_of_names(tmp_path, names, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        demos(file)
        file["mask/train"] = names
    rows = Groups("data/demo_*/x") if names == [b"x"] else DEMOS
    with pytest.raises(PredicateError, match=said):
        H5Dataset(tmp_path / "a.h5", predicate=where(**{"mask/train": row_mask()}), rows=rows)


def test_texts_of_several_lengths_and_attributes_of_several_types(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, name in enumerate(["a", "abc", "äöü"]):
            group = file.create_group(f"data/demo_{i}")
            group["name"] = name if i == 2 else np.bytes_(name)
            group.attrs["number"] = [1, 0.5, np.float32(2)][i]
            group.attrs["big"] = [2**60 + 1, np.uint8(7), -1][i]
            group.attrs["flag"] = i == 1
    kind = Groups("data/demo_*", attrs=("number", "big", "flag"))
    with open_rows(tmp_path / "a.h5", kind) as reader:
        kinds = {name: layout.kind for name, layout in reader.find(["number", "big", "flag"]).items()}
        found = reader.read(["name", "number", "big", "flag"], [2, 0, 1, 0])
    assert kinds == {"number": "number", "big": "number", "flag": "bool"}
    assert found["flag"].tolist() == [False, False, True, False]
    assert found["name"].tolist() == ["äöü".encode(), b"a", b"abc", b"a"]
    assert found["number"].tolist() == [2.0, 1.0, 0.5, 1.0]
    assert found["big"].tolist() == [-1, 2**60 + 1, 7, 2**60 + 1]
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["data/demo_0"].attrs["big"] = np.uint64(2**63 + 1)
    with pytest.raises(SchemaMismatchError, match="integers in some groups that float64 cannot hold"):
        FileOptions.of([tmp_path / "a.h5"], rows=kind).index(None)


def test_windows_beside_columns_of_other_lengths(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(9), "y": np.arange(9), "mask": [1, 4], "other": np.arange(20)})
    said = r"found 3 lengths:\n  2 rows: columns=\['mask'\]\n  9 rows: columns=\['x', 'y'\]\n  20 rows: columns=\['other'\]"
    with pytest.raises(SchemaMismatchError, match=said):
        H5Dataset(tmp_path / "a.h5", windows=Windows({"x": [0]}))


def test_episodes_by_the_wrong_option_lose_no_file(tmp_path):
    for name, ends in {"a": [3, 5], "b": [4, 3, 5]}.items():
        save(tmp_path / f"{name}.h5", {"x": np.zeros(5), "ends": ends})
    with pytest.raises(SchemaMismatchError, match=r"row 1 goes from 4 to 3.*episode_starts=, episode_ends="):
        H5Dataset(tmp_path, ["x"], windows=Windows({"x": [0]}, episode_ends="ends"), ignore_unreadable_files=True)


@pytest.mark.parametrize("options", [{"axes": "reversed"}, {"rows": Grid(3)}, {"rows": Patches({"x": (2, 2, 2)})}])
def test_rows_along_an_axis_of_items_that_are_arrays(tmp_path, options):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4, 9), np.dtype((">i2", (3,))))
        file["x"][...] = np.arange(108).reshape(4, 9, 3)
    with pytest.raises(UnsupportedColumnError, match="'x' has items that are arrays"):
        H5Dataset(path, ["x"], **options).read([0])


def test_steps_of_compound_values_with_text_that_no_episode_has(tmp_path):
    dtype = np.dtype([("t", h5py.string_dtype()), ("n", ">i4")])
    values = np.array([(f"t{i}", i) for i in range(9)], dtype)
    save(tmp_path / "a.h5", {"x": values, "e": [5, 9]})
    windows = Windows({"x": [-1, 0]}, pad="zero", episode_ends="e")
    rows = H5Dataset(tmp_path / "a.h5", ["x", "x_is_pad"], windows=windows).read([0, 1, 5])["x"]
    assert rows["t"].tolist() == [[b"", b"t0"], [b"t0", b"t1"], [b"", b"t5"]]
    assert rows["n"].tolist() == [[0, 0], [0, 1], [0, 5]]
