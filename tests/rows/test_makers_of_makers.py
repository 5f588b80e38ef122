"""Columns that are made of made columns: random chains of makers equal numpy, and what has no meaning says so."""

import itertools
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Groups, H5Dataset, Windows, csr, fields, joined, loader, part, ragged, where
from ray_h5.errors import CorruptFileError, OptionError, RayH5Error
from tests.properties import few

TYPE = np.dtype([("a", "<i4"), ("b", ">f8"), ("in", [("p", "<i2"), ("q", "<i2", (2,))])])
RUNS = 3


class Chain:
    """A random column, and its rows as numpy has them: of the root, or of each of several runs.

    ``rows[run]`` has the values of the rows of a run; `path` stands for the run in paths, which groups do not name.
    """

    def __init__(self, file, rng, path="", *, is_reversed=False, of_groups=False):
        self.file, self.rng, self.path, self.count, self.is_reversed = file, rng, path, 0, is_reversed
        self.runs = [f"run_{i}/" for i in range(RUNS)] if path or of_groups else [""]

    @property
    def is_whole(self):
        return len(self.runs) == 1

    def dataset(self, name, values):
        """Write a dataset of each run, chunked or contiguous, and return its path."""
        self.count += 1
        name = f"{name}{self.count}"
        is_chunked = self.rng.random() < 0.5 and all(len(of_run) for of_run in values)
        for run, of_run in zip(self.runs, values, strict=True):
            stored = of_run.T if self.is_reversed else of_run
            how = {"chunks": tuple(min(2, n) for n in stored.shape)} if is_chunked else {}
            self.file.create_dataset(run + name, data=stored, **how)
        return self.path + name

    def leaf(self):
        """Return a path or fields of one, and the rows."""
        lengths = [int(self.rng.integers(1 if self.is_whole else 0, 9)) for _ in self.runs]
        kind = self.rng.choice(["numbers", "cube", "scalars", "compound", "table", "nested"])
        if kind in {"numbers", "cube", "scalars"}:
            shape = {"numbers": (3,), "cube": (3, 2), "scalars": ()}[kind]
            values = [self.rng.integers(0, 99, (n, *shape)).astype(">i4") for n in lengths]
            return self.dataset("x", values), values
        values = [np.zeros((n, 2) if kind == "table" else n, TYPE) for n in lengths]
        for of_run in values:
            of_run["a"], of_run["b"] = self.rng.integers(0, 99, (2, *of_run.shape))
            of_run["in"]["q"] = self.rng.integers(0, 99, (*of_run.shape, 2))
        path = self.dataset("t", values)
        if kind == "nested":
            return f"{path}/in/q", [of_run["in"]["q"] for of_run in values]
        if self.rng.random() < 0.3:
            return f"{path}/b", [of_run["b"] for of_run in values]
        stacked = [np.stack([of_run["b"], of_run["a"]], -1) for of_run in values]
        return fields(path, ["b", "a"]), stacked

    def draw(self, depth):
        """Return a column of so many makers, and the rows of each run: arrays, or lists of arrays."""
        if not depth:
            return self.leaf()
        maker = self.rng.choice(["part", "ragged", *(["joined"] if self.is_whole else [])])
        if maker == "joined":
            inner = Chain(self.file, self.rng, "run_*/", is_reversed=self.is_reversed)
            inner.count = self.count + 10
            column, rows = inner.draw(depth - 1)
            self.count = inner.count + 10
            return joined(column, name="joined"), [[row for of_run in rows for row in of_run]]
        column, rows = self.draw(depth - 1)
        if maker == "part":
            return self.part(column, rows)
        return self.ragged(column, rows)

    def part(self, column, rows):
        arrays = [row for of_run in rows for row in of_run]
        if not arrays or not all(isinstance(row, np.ndarray) and row.ndim for row in arrays):
            return column, rows
        axis = int(self.rng.integers(0, arrays[0].ndim))
        least = min(row.shape[axis] for row in arrays)
        what = slice(int(self.rng.integers(0, 2)), None, int(self.rng.choice([1, 2])))
        if least and self.rng.random() < 0.6:
            what = self.rng.permutation(least)[: self.rng.integers(1, least + 1)].tolist()
        key = (slice(None),) * axis + (what,)
        return part(column, {axis: what}), [[row[key] for row in of_run] for of_run in rows]

    def ragged(self, column, rows):
        if rows and any(isinstance(row, list) for of_run in rows for row in of_run):
            return column, rows  # a third level of lists
        cuts = [np.sort(self.rng.integers(0, len(of_run) + 1, 4)) for of_run in rows]
        offsets = [np.array([0, *cut, len(of_run)]) for cut, of_run in zip(cuts, rows, strict=True)]
        made = [
            [of_run[a:b] for a, b in itertools.pairwise(at.tolist())] for at, of_run in zip(offsets, rows, strict=True)
        ]
        how = self.rng.choice(["offsets", "bounds", "fields", *(["joined"] if self.is_whole else [])])
        if how == "offsets":
            return ragged(column, offsets=self.dataset("o", offsets)), made
        pairs = [np.stack([at[:-1], at[1:]], -1) for at in offsets]
        if how == "bounds":
            wider = [np.concatenate([of_run, of_run], 1) for of_run in pairs]
            return ragged(column, bounds=part(part(self.dataset("w", wider), {0: [3, 2, 1]}), {0: [1, 0]})), made
        if how == "joined":
            self.count += 1
            for i, piece in enumerate(np.split(pairs[0], [1, 3])):
                self.file[f"pairs{self.count}_{i}"] = piece.T if self.is_reversed else piece
            return ragged(column, bounds=joined(f"pairs{self.count}_*")), made
        table = [np.zeros(len(of_run), [("stop", "<i8"), ("start", "<u4")]) for of_run in pairs]
        for of_run, pair in zip(table, pairs, strict=True):
            of_run["start"], of_run["stop"] = pair.T
        return ragged(column, bounds=fields(self.dataset("b", table), ["start", "stop"])), made


def assert_rows(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, list):
            assert_rows(one, other)
        else:
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def rows_of(dataset, name):
    return [dataset[i][name] for i in range(len(dataset))]


@few(60)
@given(seed=st.integers(0, 2**32), axes=st.sampled_from(["stored", "reversed"]))
def test_random_chains_equal_numpy(tmp_path_factory, seed, axes):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("makers") / "a.h5"
    with h5py.File(path, "w") as file:
        column, rows = Chain(file, rng, is_reversed=axes == "reversed").draw(int(rng.integers(1, 5)))
    (expected,) = rows
    if isinstance(column, str) or not len(expected):
        return
    dataset = H5Dataset(path, [column], axes=axes)
    assert_rows(rows_of(dataset, column.name), expected)
    chosen = rng.integers(0, len(expected), 6).tolist()
    assert_rows(dataset[chosen][column.name], [expected[i] for i in chosen])


@few(40)
@given(seed=st.integers(0, 2**32))
def test_random_chains_are_steps_of_groups(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("makers") / "a.h5"
    with h5py.File(path, "w") as file:
        column, rows = Chain(file, rng, of_groups=True).draw(int(rng.integers(1, 4)))
    if isinstance(column, str) or not any(rows):
        return
    windows = Windows({column.name: [0, 1]}, pad="drop")
    dataset = H5Dataset(path, [column], rows=Groups("run_*"), windows=windows)
    expected = [[one, other] for of_run in rows for one, other in itertools.pairwise(of_run)]
    assert_rows(rows_of(dataset, column.name), expected)


@few(20)
@given(seed=st.integers(0, 2**32))
def test_sparse_rows_end_to_end_equal_scipy(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    path, dense = tmp_path_factory.mktemp("chunks") / "a.h5", []
    with h5py.File(path, "w") as file:
        for i in range(3):
            values = rng.integers(1, 9, (int(rng.integers(0, 5)), 6)) * (rng.random((1, 6)) < 0.5)
            dense.append(values)
            at = np.nonzero(values)
            group = file.create_group(f"chunks/{i}")
            group["data"], group["indices"] = values[at].astype("f4"), at[1].astype("i4")
            group["indptr"] = np.r_[0, np.cumsum((values != 0).sum(1))]
            group.attrs.update({"encoding-type": "csr_matrix", "shape": values.shape})
        file["names"] = np.array([f"n{i}" for i in range(6)], "S2")
    expected = np.concatenate(dense)
    columns = {
        "whole": joined("chunks/*"),
        "taken": csr(joined("chunks/*"), take=["n4", "n1"], names="names"),
        "part": part(joined(csr("chunks/*", take=[5, 3, 0])), {0: [2, 0]}),
    }
    if not len(expected):
        return
    found = H5Dataset(path, columns)[list(range(len(expected)))]
    for name, at in {"whole": [*range(6)], "taken": [4, 1], "part": [0, 5]}.items():
        np.testing.assert_array_equal(found[name].numpy(), expected[:, at])


@pytest.fixture
def runs(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, (codes, known) in enumerate([([0, -1, 1], ["u", "v"]), ([1, 0], ["w", "v"])]):
            file[f"ct/{i}/codes"], file[f"ct/{i}/categories"] = np.int8(codes), np.array(known, "S1")
            file[f"ct/{i}"].attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0"})
            file[f"ni/{i}/values"], file[f"ni/{i}/mask"] = np.arange(len(codes)), np.arange(len(codes)) == 1
            file[f"ni/{i}"].attrs.update({"encoding-type": "nullable-integer", "encoding-version": "0.1.0"})
            file[f"x{i}"], file[f"number{i}"] = np.arange(6).reshape(2, 3), 1.0
        texts = [np.arange(n, dtype="i4") for n in (2, 4, 3)]
        file.create_dataset("v", data=np.array([*texts, None], object)[:3], dtype=h5py.vlen_dtype("i4"))
        file["csr/data"], file["csr/indices"], file["csr/indptr"] = [1.0], [0], [0, 1, 1]
        file["csr/counts"] = [2]
    return tmp_path / "a.h5"


def test_encoded_columns_end_to_end(runs):
    values = H5Dataset(runs, [joined("ct/*"), joined("ni/*")])
    assert rows_of(values, "ct") == ["u", None, "v", "v", "w"]
    assert rows_of(values, "ni") == [0, None, 2, 0, None]
    codes = H5Dataset(runs, [joined("ct/*")], dtypes={"ct": "int32"})[[0, 1, 2, 3, 4]]["ct"]
    assert codes.tolist() == [0, -1, 1, 1, 2]  # of u, v, w
    classes = H5Dataset(runs, [joined("ct/*")], labels={"ct": ["v", "u", "w"]}, predicate=where(ct=["u", "v", "w"]))
    assert [int(row["ct"]) for row in classes] == [1, 0, 0, 2]
    drawn = [row for batch in loader(runs, 2, columns=[joined("ct/*")], shuffle=True) for row in batch["ct"]]
    assert sorted(map(str, drawn)) == ["None", "u", "v", "v", "w"]


def test_parts_of_arrays_of_varying_length(runs):
    rows = [np.arange(n) for n in (2, 4, 3)]
    for what in (slice(1, 3), slice(None, None, -1)):
        assert_rows(rows_of(H5Dataset(runs, [part("v", {0: what})]), "v"), [row[what] for row in rows])
    first = H5Dataset(runs, [part("v", {0: [1, 0]})])[[2, 0, 1]]["v"]
    assert first.tolist() == [[1, 0]] * 3
    draws = set()
    batches = loader(runs, 3, columns=[part("v", random=2)], shuffle=False)
    for epoch in range(8):
        batches.set_epoch(epoch)
        ((two, of_four, of_three),) = [batch["v"] for batch in batches]
        assert np.asarray(two).tolist() == [0, 1]
        assert all(np.asarray(of).tolist() == sorted({*np.asarray(of).tolist()}) for of in (of_four, of_three))
        draws.add((*np.asarray(of_four).tolist(),))
    assert len(draws) > 1
    assert {*map(len, draws)} == {2}
    with pytest.raises(RayH5Error, match="takes entry 3 of each row, and a row has 2"):
        H5Dataset(runs, [part("v", {0: [3]})])[0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: csr(fields("x0", ["a"])), r"expected its name, such as csr\('X'\), or joined"),
        (lambda: fields(csr("csr"), ["a"]), "numbers, and have no fields"),
        (lambda: fields(fields("x0", ["a"]), ["b"]), "numbers, and have no fields"),
        (lambda: joined(ragged(joined("x*"), offsets="o")), "expected one glob"),
        (lambda: joined(ragged("x", offsets="o*")), "expected a glob"),
        (lambda: ragged("x0", offsets=part("x1", random=2)), "expected the same entries of each row"),
        (lambda: ragged("x0", offsets=ragged("x1", offsets="o")), "expected the same entries of each row"),
        (lambda: part(part("x0", random=3), random=2), "draw them once"),
    ],
)
def test_makers_without_a_meaning(make, says):
    with pytest.raises(OptionError, match=says):
        make()


def test_a_damaged_matrix_of_several_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            for name, values in {"data": [1.0, 2.0], "indices": [0, 1 + 8 * (i == 1)], "indptr": [0, 1, 2]}.items():
                file[f"m/{i}/{name}"] = values
            file[f"m/{i}"].attrs.update({"encoding-type": "csr_matrix", "shape": (2, 3)})
    with pytest.raises(CorruptFileError, match="row 3: 'm/1/indices' has 9; expected positions from 0 to 2"):
        H5Dataset(tmp_path / "a.h5", [joined("m/*")])[[5, 3, 0]]


def test_makers_of_what_files_do_not_hold(runs):
    wrong = {
        "leave dense=False out": ragged(csr("csr", dense=False, shape=(2, 1)), counts="csr/counts"),
        "rows of varying length itself": ragged("x0", offsets="v"),
        "single values": joined("number*"),
        "stars": joined(ragged("x*", offsets="*/o*")),
        "nothing matches": joined(ragged("gone*/x", offsets="gone*/o")),
        "its parts differ: category.*'ct/0', and optional.*'ni/0'": joined("[cn][ti]/0"),
    }
    for says, column in wrong.items():
        with pytest.raises(RayH5Error, match=says):
            H5Dataset(runs, [column])[0]


@pytest.fixture
def uneven(tmp_path):
    """Ranges of equal lengths in one run, and of others in the next; references to arrays of several shapes."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, ends in enumerate([[3, 6, 9], [1, 6, 9]]):
            file[f"run_{i}/x"], file[f"run_{i}/ends"] = np.arange(9) + 10 * i, ends
            file[f"run_{i}/outer"] = [0, 2, 3]
            shapes = [(2, 3), (4, 3)] if i == 0 else [(1, 3), (2, 5)]
            for at, shape in enumerate(shapes):
                file[f"cells/{i}{at}"] = np.arange(np.prod(shape)).reshape(shape)
            file[f"refs_{i}"] = np.array([file[f"cells/{i}{at}"].ref for at in range(2)], h5py.ref_dtype)
        file["wide"], file["offsets"] = np.arange(80).reshape(8, 10), [0, 3, 3, 8]
        file.create_dataset("v", data=np.array([np.arange(5), np.arange(3)], object), dtype=h5py.vlen_dtype("i4"))
    return tmp_path / "a.h5"


def test_a_part_of_a_part_is_of_what_the_first_one_left(uneven):
    whole = ragged("run_1/x", ends="run_1/ends")
    twice = part(part(whole, {0: slice(None, None, -1)}), {0: slice(0, 2)})
    assert_rows(rows_of(H5Dataset(uneven, [twice]), twice.name), [[10], [15, 14], [18, 17]])
    of_lists = part(part("v", {0: slice(1, None)}), {0: [1, 0]})
    assert_rows(rows_of(H5Dataset(uneven, [of_lists]), "v"), [[2, 1], [2, 1]])
    first_of_drawn = part(part("v", random=3), {0: [0]})
    assert [int(row[0]) for row in rows_of(H5Dataset(uneven, [first_of_drawn]), "v")][1] == 0


def test_what_others_are_made_of_has_one_kind_however_long_ranges_are(uneven):
    inner = part(ragged("run_*/x", ends="run_*/ends"), {0: slice(0, 2)})
    expected = [[[0, 1], [3, 4]], [[6, 7]], [[10], [11, 12]], [[16, 17]]]
    found = rows_of(H5Dataset(uneven, [joined(ragged(inner, offsets="run_*/outer"))]), "run")
    assert [[each.tolist() for each in row] for row in found] == expected
    shapes = [tuple(row.shape) for row in rows_of(H5Dataset(uneven, [joined("refs_*")]), "refs")]
    assert shapes == [(2, 3), (4, 3), (1, 3), (2, 5)]
    (padded,) = loader(uneven, 4, columns=[joined("refs_*")], pad=True, shuffle=False)
    assert padded["refs_length"].tolist() == [[*shape] for shape in shapes]


@pytest.mark.parametrize("end", ["x", "x_*"])
def test_files_whose_ranges_are_equally_long_are_read_with_others(tmp_path, end):
    for i, ends in enumerate([[3, 6, 9], [1, 6, 9]]):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            for name in ("x", "x_0"):
                file[name] = np.arange(9)
            file["ends"], file["outer"] = ends, [0, 2, 3]
    column = ragged(part(ragged(end, ends="ends"), {0: slice(0, 2)}), offsets="outer")
    column = joined(column, name="x") if "*" in end else column
    found = rows_of(H5Dataset(tmp_path, [column]), "x")
    assert [[each.tolist() for each in row] for row in found] == [[[0, 1], [3, 4]], [[6, 7]], [[0], [1, 2]], [[6, 7]]]


def test_units_of_a_range_share_the_draw_of_their_row(uneven):
    column = ragged(part("wide", random=4), offsets="offsets")
    batches, draws = loader(uneven, 3, columns=[column], shuffle=False), []
    for epoch in range(4):
        batches.set_epoch(epoch)
        ((first, none, last),) = [batch["wide"] for batch in batches]
        assert tuple(none.shape) == (0, 4)
        for rows, begin in ((first, 0), (last, 3)):
            taken = np.asarray(rows) - 10 * np.arange(begin, begin + len(rows))[:, None]
            assert (taken == taken[0]).all()
            draws.append((*taken[0].tolist(),))
    assert len({*draws}) > 4
    rows = H5Dataset(uneven, [column])
    for one, at in zip(rows[[2, 0]]["wide"], (2, 0), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(rows[at]["wide"]))


def calls_of(action):
    """Return how many functions of Python an action calls."""
    count = itertools.count()
    sys.setprofile(lambda _, event, __: next(count) if event == "call" else None)
    try:
        action()
    finally:
        sys.setprofile(None)
    return next(count)


@pytest.mark.parametrize("kind", ["category", "optional"])
def test_encoded_columns_of_many_matches_are_two_arrays(tmp_path, kind):
    planned, read = {}, {}
    for count in (20, 60):
        path = tmp_path / f"{count}.h5"
        with h5py.File(path, "w") as file:
            for i in range(count):
                names = [("codes", "categories"), ("values", "mask")][kind == "optional"]
                said = {"category": "categorical", "optional": "nullable-integer"}[kind]
                values = np.int8([1, 0, -1]) if kind == "category" else np.arange(3)
                other = np.array([f"k{i % 3}", "all"], "S3") if kind == "category" else np.arange(3) == 2
                file[f"p{i}/{names[0]}"], file[f"p{i}/{names[1]}"] = values, other
                file[f"p{i}"].attrs.update({"encoding-type": said, "encoding-version": "0.2.0"})
        made = []
        planned[count] = calls_of(lambda path=path, made=made: made.append(H5Dataset(path, [joined("p*")])))
        expected = [[b"all".decode(), f"k{i % 3}", None] if kind == "category" else [0, 1, None] for i in range(count)]
        read[count] = calls_of(lambda made=made: made[0][0])
        assert rows_of(made[0], "p") == list(itertools.chain(*expected))
    assert planned[60] - planned[20] < 40 * 500
    assert read[60] - read[20] < 40 * 30
