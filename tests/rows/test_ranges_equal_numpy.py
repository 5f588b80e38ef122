"""Ragged columns and rows of sparse matrices: equal to slices of h5py and to scipy, and what a bad file says."""

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ray_h5 import Groups, H5Dataset, RayH5Error, Windows, csr, fields, part, ragged, where
from ray_h5.columns.schema import ColumnSpec
from ray_h5.columns.sparse_rows import SparseBatch
from ray_h5.errors import OptionError, OutOfMemoryError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.manifest.value_type import ValueType
from ray_h5.rows.row_view import RowView
from tests.kit.files import save
from tests.properties import few

LAYOUTS = [{}, {"chunks": (7,)}, {"chunks": (16,), "compression": "gzip"}, {"chunks": (5,), "compression": "lzf"}]


def open_with(path, *columns):
    return FileOptions.of(str(path), columns=columns).scope.open(str(path))


def write_matrix(group, matrix, layout=None, index_dtype=np.int32, shape="attribute"):
    """Write a sparse matrix as AnnData does; or as 10x does, with a dataset `shape` of the transpose."""
    for name, values in (("data", matrix.data), ("indices", matrix.indices.astype(index_dtype))):
        wanted = dict(layout or {})
        if "chunks" in wanted:
            wanted["chunks"] = (max(1, min(wanted["chunks"][0], len(values))),)
        group.create_dataset(name, data=values, **(wanted if len(values) else {}))
    group["indptr"] = matrix.indptr
    if shape == "attribute":
        group.attrs["shape"] = matrix.shape
        group.attrs["encoding-type"] = f"{matrix.format}_matrix"
    else:
        group["shape"] = matrix.shape[::-1]


def random_matrix(rows, width, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    found = sp.random(rows, width, 0.2, format="csr", rng=rng)
    found.data = rng.integers(1, 100, len(found.data)).astype(dtype)
    return found


def as_scipy(rows, width):
    spec = ColumnSpec("X", ValueType("sparse", np.dtype(object), element=np.dtype("f4"), ragged_shape=(width,)))
    batch = SparseBatch.of(rows, spec)
    return sp.csr_matrix((batch.data, batch.indices, batch.indptr), (len(rows), width))


# Equal to the oracles ---------------------------------------------------------------------------


@given(data=st.data())
def test_ragged_rows_equal_slices(tmp_path_factory, data):
    counts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=30))
    row_shape = data.draw(st.sampled_from([(), (2,)]))
    layout = data.draw(st.sampled_from(LAYOUTS)) if not row_shape else {}
    offsets = np.concatenate([[0], np.cumsum(counts)])
    content = np.arange(offsets[-1] * (2 if row_shape else 1), dtype="<i4").reshape(-1, *row_shape)
    path = tmp_path_factory.mktemp("ragged") / "a.h5"
    with h5py.File(path, "w") as file:
        layout = layout if len(content) >= max(layout.get("chunks", (0,))) else {}
        file.create_dataset("x", data=content, **layout)
        file["offsets"] = offsets.astype(data.draw(st.sampled_from(["<i4", ">i8", "<u8"])))
        file["starts"], file["counts"] = offsets[:-1][::-1], np.array(counts)[::-1]
        file["lengths"] = np.array(counts, "u1")
    rows = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=20))
    for column in (ragged("x", offsets="offsets"), ragged("x", counts="lengths")):
        with open_with(path, column) as reader:
            assert isinstance(reader, RowView)
            found = reader.read(["x"], np.array(rows, np.int64))["x"]
        for row, values in zip(rows, found, strict=True):
            np.testing.assert_array_equal(values, content[offsets[row] : offsets[row + 1]])
    with open_with(path, ragged("x", starts="starts", counts="counts")) as reader:
        found = reader.read(["x"])["x"]
    for row, values in enumerate(found[::-1]):
        np.testing.assert_array_equal(values, content[offsets[row] : offsets[row + 1]])


@given(data=st.data())
def test_rows_of_sparse_matrices_equal_scipy(tmp_path_factory, data):
    rows, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 20))
    matrix = random_matrix(rows, width, data.draw(st.integers(0, 5)))
    path = tmp_path_factory.mktemp("csr") / "a.h5"
    with h5py.File(path, "w") as file:
        shape = data.draw(st.sampled_from(["attribute", "dataset"]))
        dtype = data.draw(st.sampled_from([np.int32, np.int64, np.uint8, np.uint64]))
        write_matrix(file.create_group("X"), matrix, data.draw(st.sampled_from(LAYOUTS)), dtype, shape)
    wanted = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=20)), np.int64)
    with open_with(path, csr("X")) as reader:
        found = reader.read(["X"], wanted)["X"]
    np.testing.assert_array_equal(as_scipy(found, width).toarray(), matrix[wanted].toarray())
    take = data.draw(st.lists(st.integers(0, width - 1), min_size=1, unique=True))
    with open_with(path, csr("X", take=take)) as reader:
        found = reader.read(["X"], wanted)["X"]
    np.testing.assert_array_equal(as_scipy(found, len(take)).toarray(), matrix[wanted][:, take].toarray())


@given(data=st.data())
def test_batches_add_values_of_a_position_that_repeats_as_scipy_does(data):
    counts = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    total, width = int(indptr[-1]), 5
    positions = st.lists(st.integers(0, width - 1), min_size=total, max_size=total)
    indices = np.array(data.draw(positions), np.int32)
    values = np.arange(1, total + 1, dtype=np.float32)
    batch = SparseBatch(indptr, indices, values, width)
    expected = sp.csr_matrix((values, indices, indptr), (len(counts), width)).toarray()
    np.testing.assert_array_equal(batch.to_dense(), expected)
    same = batch.canonical()
    assert same.canonical() is same
    np.testing.assert_array_equal(same.to_dense(), expected)


def test_each_chunk_is_decoded_once_for_columns_that_share_offsets(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("x", "y"):
            file.create_dataset(name, data=np.arange(1000), chunks=(50,), compression="gzip")
        file["offsets"] = np.arange(0, 1001, 10)
    columns = [ragged(name, offsets="offsets") for name in ("x", "y")]
    with open_with(path, *columns) as reader:
        reader.find(["x", "y"])
        before = reader.stats.chunks_decoded
        reader.read(["x", "y"], np.array([3, 99, 4, 3, 0]))
        assert reader.stats.chunks_decoded - before == 2 * 2  # rows 0 to 4 are in the first chunk


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 5, 3, 10], "row 1 goes from 5 to 3"),
        ([0, 5, 11], "row 1 goes from 5 to 11, and 'x' has 10 values"),
        ([-1, 5, 10], "row 0 goes from -1 to 5; expected a start from 0 on"),
        ([3, 5, 10], "rows go from 3 to 10; expected 0 to 10,.* The numbers fit ends='offsets'"),
        ([0, 5, 8], "rows go from 0 to 8; expected 0 to 10,.* fit starts='offsets'"),
        ([3, 5, 8], "rows go from 3 to 8; .* pass starts= and counts="),
        ([0], "rows go from 0 to 0; expected 0 to 10, all values of 'x'"),
        (np.array([0, 1 << 63], np.uint64), "past what a file can hold"),
        (np.empty(0, np.int64), "is empty"),
        ([0.0, 5.0], "expected integers"),
        ([[0, 5], [5, 10]], "expected integers along one axis"),
    ],
)
def test_bad_offsets(tmp_path, offsets, said):
    path = save(tmp_path / "a.h5", {"x": np.arange(10), "offsets": np.array(offsets)})
    with pytest.raises(RayH5Error, match=said):
        H5Dataset(path, [ragged("x", offsets="offsets")])


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ([3, 5, 10], {"offsets": "v"}, "fit ends='v'"),
        ([3, 5, 9], {"offsets": "v"}, "fit ends='v', inclusive=True"),
        ([1, 5, 11], {"offsets": "v"}, "fit offsets='v', base=1"),
        ([0, 5, 10], {"offsets": "v", "base": 1}, "row 0 goes from 0 to 5; expected a start from 1 on"),
        ([1, 3, 6], {"starts": "v"}, "rows go from 1 to 10; expected 0 to 10.*fit starts='v', base=1"),
        (np.empty(0, int), {"starts": "v"}, "rows go from 0 to 0; expected 0 to 10"),
        ([3, 5, 9], {"ends": "v"}, "rows go from 0 to 9; expected 0 to 10.*fit ends='v', inclusive=True"),
        ([4, 6, 11], {"ends": "v"}, "rows go from 0 to 11; expected 0 to 10.*fit ends='v', base=1"),
        ([0, 3, 5], {"ends": "v"}, "fit starts='v'"),
        ([3, 5, 15], {"ends": "v"}, "row 2 goes from 5 to 15"),
        ([[0, 3], [5, 4]], {"bounds": "v"}, "row 1 goes from 5 to 4"),
        ([[0, 3], [5, 11]], {"bounds": "v"}, "row 1 goes from 5 to 11, and 'x' has 10"),
        ([[0, 3], [0, 4]], {"bounds": "v", "base": 1}, "row 0 goes from 0 to 3; expected a start from 1 on"),
        ([0, 3], {"bounds": "v"}, "expected start and end of each"),
        ([[0, 3], [5, 10]], {"bounds": "v", "inclusive": True}, "row 1 goes from 5 to 10, and 'x' has 10"),
        ([[1, 3], [5, 11]], {"bounds": "v", "base": 1, "inclusive": True}, "row 1 goes from 5 to 11, and 'x' has 10"),
        ([[0, 3], [5, 3]], {"bounds": "v", "inclusive": True}, "row 1 goes from 5 to 3;"),
        ([3, 5, 10], {"ends": "v", "inclusive": True}, "rows go from 0 to 10; expected 0 to 9"),
        ([2, 1], {"counts": "v"}, "'v': rows go from 0 to 3; expected 0 to 10, all values.*starts="),
        ([2, 9], {"counts": "v"}, "row 1 goes from 2 to 11, and 'x' has 10 values"),
        ([9, -3], {"counts": "v"}, "row 1 goes from 9 to 6"),
        ([2**62, 2**62, 2**62, 6], {"counts": "v"}, "'v'.* goes from"),
    ],
)
def test_bounds_that_do_not_fit_name_the_option_that_does(tmp_path, values, options, said):
    path = save(tmp_path / "a.h5", {"x": np.arange(10), "v": np.array(values)})
    with pytest.raises(RayH5Error, match=said):
        H5Dataset(path, [ragged("x", **options)])


@pytest.mark.slow
@given(
    data=st.data(),
    base=st.sampled_from([0, 1, 5]),
    inclusive=st.booleans(),
    dtype=st.sampled_from(["u1", "i4", "u8", ">i8"]),
)
@few(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_way_to_say_bounds(tmp_path_factory, data, base, inclusive, dtype):
    path = tmp_path_factory.mktemp("b") / "a.h5"
    counts = np.array(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    stops = np.cumsum(counts)
    starts, last = stops - counts + base, stops + base - inclusive
    written = {
        "offsets": np.append(starts, stops[-1] + base),
        "ends": last,
        "starts": starts,
        "counts": counts,
        "bounds": np.stack([starts, last], axis=1),
    }
    ways = [["offsets"], ["ends"], ["bounds"], ["starts"], ["starts", "counts"], ["starts", "ends"]]
    with h5py.File(path, "w") as file:
        file["x"] = content = np.arange(stops[-1] * 2).reshape(-1, 2)
        for name, values in written.items():
            file[name] = values.astype(dtype)
        table = np.zeros(len(counts), [(name, dtype) for name in ("starts", "counts", "ends")])
        for name in table.dtype.names:
            table[name] = written[name]
        file["table"] = table
        for name in ("counts", "ends", "starts"):  # columns of wider arrays
            file[f"wide/{name}"] = np.stack([written[name] + 9, written[name]], axis=1).astype(dtype)
        file["wide/bounds"] = np.insert(written["bounds"], 1, 7, axis=1).astype(dtype)
    for way in ways:
        has_ends = {"ends", "bounds"} & {*way}
        options = {name: f"table/{name}" if len(way) == 2 else name for name in way}
        found = H5Dataset(path, [ragged("x", **options, base=base, inclusive=inclusive and bool(has_ends))])
        assert len(found) == len(counts)
        for i in range(len(counts)):
            assert found[i]["x"].tolist() == content[stops[i] - counts[i] : stops[i]].tolist()
    wide = {name: part(f"wide/{name}", {0: [1]}) for name in ("counts", "ends", "starts")}
    for options in (
        {"bounds": part("wide/bounds", {0: [0, 2]}), "base": base, "inclusive": inclusive},
        {"bounds": fields("table", ["starts", "ends"]), "base": base, "inclusive": inclusive},
        {"bounds": part(fields("table", ["ends", "starts"]), {0: [1, 0]}), "base": base, "inclusive": inclusive},
        {"counts": wide["counts"]},
        {"starts": wide["starts"], "base": base},
        {"starts": wide["starts"], "ends": wide["ends"], "base": base, "inclusive": inclusive},
    ):
        found = H5Dataset(path, [ragged("x", **options)])
        assert [row["x"].tolist() for row in found] == [each.tolist() for each in np.split(content, stops[:-1])]


@given(data=st.data(), base=st.sampled_from([0, 1, 3]), inclusive=st.booleans())
@few(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_empty_row_begins_anywhere(tmp_path_factory, data, base, inclusive):
    counts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    stops = np.cumsum(counts)
    anywhere = np.array(data.draw(st.lists(st.integers(-2, 30), min_size=len(counts), max_size=len(counts))))
    starts = np.where(counts > 0, stops - counts + base, anywhere)
    pairs = np.stack([starts, starts + counts - inclusive], axis=1)
    file = {"x": np.arange(stops[-1]), "s": starts, "n": counts, "p": pairs}
    path = save(tmp_path_factory.mktemp("b") / "a.h5", file)
    for options in ({"starts": "s", "counts": "n"}, {"bounds": "p", "inclusive": inclusive}):
        found = H5Dataset(path, [ragged("x", **options, base=base)])
        expected = np.split(np.arange(stops[-1]), stops[:-1])
        assert [row["x"].tolist() for row in found] == [each.tolist() for each in expected]


def test_starts_alone_end_with_their_own_values(tmp_path):
    file = {"x": np.arange(9), "y": np.arange(7), "s": [0, 2, 2, 5]}
    file |= {f"g{i}/{name}": file[name][: 6 + i] for i in range(2) for name in "xys"}
    path = save(tmp_path / "a.h5", file)
    columns = [ragged("x", starts="s"), ragged("y", starts="s")]
    for options, ends in (({}, [(9, 7)]), ({"rows": Groups("g*"), "windows": Windows({"x": [0]})}, [(6, 6), (7, 7)])):
        rows = H5Dataset(path, columns, **options)
        cuts = [(0, 2), (2, 2), (2, 5), (5, None)]
        for i, row in enumerate(rows):
            a, b = cuts[i % 4]
            found = [row["x"][0] if options else row["x"], row["y"]]
            expected = [list(range(a, end if b is None else b)) for end in ends[i // 4]]
            assert [each.tolist() for each in found] == expected
    with pytest.raises(SchemaMismatchError, match="rows go from 1 to 9; expected 0 to 9"):
        H5Dataset(save(tmp_path / "b.h5", {"x": np.arange(9), "s": [1, 2]}), [ragged("x", starts="s")])


def test_rows_of_letters_are_texts(tmp_path):
    texts = ["male", "", "fem\0ale\0", "\u00e9"]
    coded = [text.encode() for text in texts]
    file = {"t": np.frombuffer(b"".join(coded), "S1"), "e": np.cumsum([*map(len, coded)]), "y": np.arange(4)}
    file |= {f"g{i}/{name}": values for i in range(2) for name, values in file.items() if "/" not in name}
    path, column = save(tmp_path / "a.h5", file), ragged("t", ends="e")
    assert [row["t"] for row in H5Dataset(path, [column])] == texts
    assert [row["t"] for row in H5Dataset(path, [column], windows=Windows({"t": [0, 0]}))] == [[t, t] for t in texts]
    groups = H5Dataset(path, [column, "y"], rows=Groups("g*"), windows=Windows({"y": [0]}))
    assert [row["t"] for row in groups] == texts * 2
    backwards = H5Dataset(path, [part(column, {0: slice(None, None, -1)})], dtypes={"t": bytes})
    assert [row["t"] for row in backwards] == [text[::-1] for text in coded]
    drawn = H5Dataset(path, [part(column, random=3)], dtypes={"t": bytes})
    assert [len(row["t"]) for row in drawn] == [min(3, len(text)) for text in coded]
    chosen = H5Dataset(path, [column, "y"], where(t=["male", texts[3]]), labels={"t": "auto"})
    assert [(int(row["y"]), int(row["t"])) for row in chosen] == [(0, 2), (3, 3)]


def test_arguments_of_bounds():
    for options in (
        {},
        {"offsets": "a", "ends": "b"},
        {"counts": "a", "ends": "b"},
        {"ends": part("a", random=1)},
        {"bounds": part(ragged("a", ends="b"), {0: [0, 1]})},
        {"counts": "a", "offsets": "b"},
        {"counts": "a", "base": 1},
        {"offsets": "a", "inclusive": True},
        {"ends": "a", "base": "1"},
        {"ends": "a", "inclusive": 1},
    ):
        with pytest.raises(OptionError, match=r"ragged\('x'\)"):
            ragged("x", **options)


@pytest.mark.parametrize(
    ("starts", "counts", "said"),
    [
        ([0, 3], [3, -1], "row 1 goes from 3 to 2"),
        ([0, -3], [3, 1], "row 1 goes from -3 to -2"),
        ([0, 3], [3], "2 starts and 1 counts"),
        ([0, 8], [3, 3], "row 1 goes from 8 to 11"),
        ([0, (1 << 63) - 2], [3, 3], "row 1 goes from 9223372036854775806 to -9223372036854775807"),
    ],
)
def test_bad_starts_and_counts(tmp_path, starts, counts, said):
    path = save(tmp_path / "a.h5", {"x": np.arange(10), "s": starts, "n": counts})
    with pytest.raises(SchemaMismatchError, match=said):
        H5Dataset(path, [ragged("x", starts="s", counts="n")])


def damaged(tmp_path, change):
    path = tmp_path / "a.h5"
    matrix = random_matrix(10, 8)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        write_matrix(group, matrix)
        change(group)
    return path


def put(name, values):
    def change(group):
        del group[name]
        group[name] = values

    return change


def with_index(value, dtype=np.int64):
    def change(group):
        indices = group["indices"][:].astype(dtype)
        indices[3] = value
        put("indices", indices)(group)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_index(8), r"row \d+: 'X/indices' has 8; expected positions from 0 to 7"),
        (with_index(-1), "has -1; expected positions from 0 to 7"),
        (with_index(1 << 40), "expected positions from 0 to 7"),
        (with_index((1 << 64) - 1, np.uint64), "expected positions from 0 to 7"),
        (put("indices", np.zeros(3, np.int32)), "and there are 3 indices"),
        (put("data", np.zeros(3)), "and 3 values"),
        (put("indptr", np.arange(1, 12)), "indptr goes from 1 to"),
        (put("indptr", np.array([0, 5, 3])), "row 1 goes from 5 to 3"),
        (put("indptr", np.array([0, 1, 2])), "expected one more than rows"),
        (put("indices", np.zeros(40, "f4")), "indices are float32"),
        (put("data", np.array([b"a"] * 40)), "data are string"),
        (lambda group: group.attrs.__setitem__("shape", [10, -8]), "expected two lengths from 0 on"),
        (lambda group: group.attrs.__setitem__("shape", "10x8"), "expected two integers"),
        (lambda group: group.attrs.__delitem__("shape"), "it has no attribute 'shape'"),
        (lambda group: group.attrs.__setitem__("encoding-type", "csc_matrix"), "compressed along its columns"),
    ],
)
def test_bad_matrices(tmp_path, change, said):
    path = damaged(tmp_path, change)
    with pytest.raises(RayH5Error, match=said) as caught:
        H5Dataset(path, [csr("X")])[:]
    assert "X" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("width", [1 << 61, 1 << 45])
def test_a_width_that_no_memory_holds(tmp_path, width):
    path = damaged(tmp_path, lambda group: group.attrs.__setitem__("shape", [10, width]))
    samples = H5Dataset(path, [csr("X")])
    with pytest.raises(OutOfMemoryError, match=r"column 'X': dense rows .* cannot have the memory for values of"):
        samples[0]
    dense = H5Dataset(damaged(tmp_path, lambda _: None), [csr("X", take=[5, 0, 7])])[:]["X"]
    wide = damaged(tmp_path, lambda group: group.attrs.__setitem__("shape", [10, width]))
    np.testing.assert_array_equal(H5Dataset(wide, [csr("X", take=[5, 0, 7])])[:]["X"], dense)
    assert H5Dataset(wide, [csr("X", take=[width - 1])])[3]["X"].tolist() == [0]


def test_columns_of_other_lengths(tmp_path):
    path = damaged(tmp_path, lambda group: group.file.create_dataset("label", data=np.zeros(9)))
    with pytest.raises(SchemaMismatchError, match="2 lengths"):
        H5Dataset(path, [csr("X"), "label"])


def test_a_group_of_something_else(tmp_path):
    path = damaged(tmp_path, lambda group: group.file.create_dataset("other/x", data=np.zeros(9)))
    with pytest.raises(UnsupportedColumnError, match="'other' is no sparse matrix"):
        H5Dataset(path, [csr("other")])
    with pytest.raises(UnsupportedColumnError, match="is no sparse matrix"):
        H5Dataset(path, [csr("other/x")])
    with pytest.raises(RayH5Error, match="nothing"):
        H5Dataset(path, [csr("nothing")])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ragged("x"), "expected offsets="),
        (lambda: ragged("x", offsets="o", starts="s", counts="n"), "expected offsets="),
        (lambda: ragged(3, offsets="o"), "expected the name"),
        (lambda: csr(""), "expected the name"),
        (lambda: csr("X", dense=1), "expected True or False"),
        (lambda: csr("X", take=[]), "found an empty list"),
        (lambda: csr("X", take="CD3E"), "expected a list"),
        (lambda: csr("X", take=[1, 1]), "more than once"),
        (lambda: csr("X", take=[-1]), "from 0 on"),
        (lambda: csr("X", take=["a"]), "pass names= too"),
        (lambda: csr("X", take=[1], names="var/_index"), "only with take="),
        (lambda: csr("X", names="var/_index"), "only with take="),
        (lambda: FileOptions.of("a.h5", columns=csr("X")), "write columns="),
        (lambda: FileOptions.of("a.h5", columns=[csr("X"), "X"]), "more than once"),
    ],
)
def test_options(make, said):
    with pytest.raises(OptionError, match=said):
        make()


def test_rows_of_rows_are_refused(tmp_path):
    path = damaged(tmp_path, put("indices", np.zeros(1)))
    with pytest.raises(OptionError, match=r"would be rows of rows\. .* pass group="):
        H5Dataset(path, [csr("X")], rows=Groups("*"))


# Matrices in groups that are episodes -----------------------------------------------------------


def write_episodes(path, counts, width=9, shape="attribute", layout=None):
    """Write a matrix a group, with as many times; return the matrices."""
    matrices = [random_matrix(count, width, seed) for seed, count in enumerate(counts)]
    with h5py.File(path, "w") as file:
        for i, matrix in enumerate(matrices):
            group = file.create_group(f"g{i}")
            group["t"] = np.arange(matrix.shape[0])
            write_matrix(group.create_group("X"), matrix, layout, shape=shape)
        file["names"] = np.array([f"n{i}" for i in range(width)], object)
    return matrices


@few(4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), shape=st.sampled_from(["attribute", "dataset"]), layout=st.sampled_from(LAYOUTS))
def test_windows_over_matrices_of_groups_equal_scipy(tmp_path_factory, data, shape, layout):
    path = tmp_path_factory.mktemp("episodes") / "a.h5"
    counts = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    matrices = write_episodes(path, counts, shape=shape, layout=layout)
    offsets = data.draw(st.lists(st.integers(-2, 2), min_size=1, max_size=3))
    columns, taken = data.draw(
        st.sampled_from(
            [
                (["X"], slice(None)),
                ([csr("X")], slice(None)),
                ([csr("X", take=[7, 2])], [7, 2]),
                ([csr("X", take=["n4", "n1"], names="names")], [4, 1]),
                ([part("X", {0: [3, 8]})], [3, 8]),
            ]
        )
    )
    dataset = H5Dataset(path, [*columns, "t"], rows=Groups("g*"), windows=Windows({"X": offsets}, per_step=["t"]))
    rows = [(i, t) for i, count in enumerate(counts) for t in range(count)]
    assert len(dataset) == len(rows)
    found = dataset[list(range(len(rows)))]["X"].numpy()
    for (i, t), row in zip(rows, found, strict=True):
        steps = np.clip(t + np.array(offsets), 0, counts[i] - 1)
        assert np.array_equal(row, matrices[i].toarray()[steps][:, taken])


def test_matrices_of_groups_are_listed_and_read_their_entries_alone(tmp_path):
    matrices = write_episodes(tmp_path / "a.h5", [40, 50])
    windows = Windows({"t": [0, 1]})
    dataset = H5Dataset(tmp_path / "a.h5", rows=Groups("g*"), windows=windows)
    assert {*dataset.columns} == {"t", "t_is_pad", "X"}
    row = dataset[45]
    assert np.array_equal(row["X"], matrices[1].toarray()[5])
    scope = FileOptions.of(str(tmp_path / "a.h5"), columns=[csr("X")], rows=Groups("g*"), windows=windows).scope
    with scope.open(str(tmp_path / "a.h5")) as reader:
        reader.find(["X"])
        reader.read(["X"], [1])
        before = reader.stats.bytes_read
        reader.read(["X"], [45])
        assert reader.stats.bytes_read - before == matrices[1][5].nnz * 8


def drop(name):
    def change(file):
        del file[name]

    return change


def replace(name, values):
    def change(file):
        del file[name]
        file[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: file["g1/X"].attrs.__setitem__("shape", (4, 8)), "length 9 in group 'g0', and 8 in 'g1'"),
        (lambda file: file["g1/X"].attrs.__setitem__("encoding-type", "csc_matrix"), "'g1/X' is a csc_matrix"),
        (lambda file: file["g1/X"].attrs.__setitem__("shape", (5, 9)), r"sparse matrix 'g1/X': its shape is \(5, 9\)"),
        (drop("g1/X/data"), "'g1' lacks X/data"),
        (drop("g1/X"), "'g1' lacks X/data, X/indices"),
        (replace("g1/X/indptr", np.arange(5, dtype="i4") * 99), "sparse matrix 'g1/X': indptr goes from 0 to 396"),
        (replace("g1/X/indptr", np.array([0, 2, 1, 3, 3], "i4")), "group 'g1'.*row 1 goes from 2 to 1"),
        (replace("g1/X/indptr", np.arange(4, dtype="i4") * 0), r"its shape is \(4, 9\), and indptr has 4 entries"),
    ],
)
def test_bad_matrices_of_groups(tmp_path, change, said):
    write_episodes(tmp_path / "a.h5", [3, 4])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        change(file)
    with pytest.raises(RayH5Error, match=said):
        H5Dataset(tmp_path / "a.h5", [csr("X")], rows=Groups("g*"), windows=Windows({"X": [0]}))


def test_sparse_windows_have_one_step_a_time(tmp_path):
    write_episodes(tmp_path / "a.h5", [3, 4])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        for group, count in (("g0", 3), ("g1", 5)):
            file[f"{group}/u"] = np.arange(count)
    options = {"rows": Groups("g*"), "windows": Windows({"u": [0]})}
    said = r"'X' is a column of steps, and the episode has 5 steps; 'X' has 4 entries"
    with pytest.raises(SchemaMismatchError, match=said):
        H5Dataset(tmp_path / "a.h5", [csr("X"), "u"], **options)
    with pytest.raises(OptionError, match="rows of rows"):
        H5Dataset(tmp_path / "a.h5", [csr("X")], rows=Groups("g*"))


@pytest.mark.parametrize("in_groups", [False, True])
def test_a_matrix_whose_shape_the_file_lacks(tmp_path, in_groups):
    whole = sp.random(7, 12, 0.3, "csr", random_state=0)
    rows = {"rows": Groups("lab"), "windows": Windows({"x": [0]})} if in_groups else {}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("lab") if in_groups else file
        for name in ("data", "indices", "indptr"):
            group[f"counts/{name}"] = getattr(whole, name)
        group["x"] = np.arange(7)
    for shape in ((7, 12), (None, 12), np.array([7, 12])):
        dataset = H5Dataset(tmp_path / "a.h5", [csr("counts", shape=shape)], **rows)
        np.testing.assert_array_equal(np.stack([row["counts"].numpy() for row in dataset]), whole.toarray())
    assert csr("counts", shape=(None, 12)) == csr("counts", shape=[None, 12])
    with pytest.raises(SchemaMismatchError, match=r"csr\('counts', shape=\(8, 12\)\): expected the shape \(7, 12\)"):
        H5Dataset(tmp_path / "a.h5", [csr("counts", shape=(8, 12))], **rows)
    with pytest.raises(UnsupportedColumnError, match=r"or pass csr\(..., shape=\(rows, columns\)\)"):
        H5Dataset(tmp_path / "a.h5", [csr("counts")], **rows)
    name = "lab/counts" if in_groups else "counts"
    with h5py.File(tmp_path / "a.h5", "a") as file:  # it says what it is, and no shape
        file[name].attrs["encoding-type"] = "csr_matrix"
    dataset = H5Dataset(tmp_path / "a.h5", [csr("counts", shape=(None, 12))], **rows)
    np.testing.assert_array_equal(np.stack([row["counts"].numpy() for row in dataset]), whole.toarray())
    with pytest.raises(SchemaMismatchError, match=r"nothing says how many columns it has; pass columns=\[csr\("):
        H5Dataset(tmp_path / "a.h5", [csr("counts")], **rows)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["lab/counts" if in_groups else "counts"].attrs.update({"shape": (7, 12), "encoding-type": "csr_matrix"})
    with pytest.raises(SchemaMismatchError, match=r"expected the shape \(7, 12\)"):
        H5Dataset(tmp_path / "a.h5", [csr("counts", shape=(7, 13))], **rows)


@pytest.mark.parametrize("shape", [7, "ab", (7,), (7, None), (-1, 7), (7.0, 2), (1, 2, 3)])
def test_shapes_that_are_none(shape):
    with pytest.raises(OptionError, match=r"expected \(rows, columns\)"):
        csr("counts", shape=shape)
