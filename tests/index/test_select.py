import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import OptionError, PredicateError, UnknownColumnError
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.torch_data import RayH5Error, Shuffle, between, where
from tests.index.kit import combined, plan_files
from tests.kit.files import save

field = pc.field
TEXTS = ["", "a", "b", "ab", "ä", "Z", "a\nb"]


def write(path, rows, seed):
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file["u"] = rng.integers(0, 5, rows).astype("u1")
        file["i"] = rng.integers(-3, 4, rows)
        file["f"] = rng.choice([-1.5, 0, 0.25, 2, np.nan, np.inf], rows).astype("f4")
        file["s"] = np.array([TEXTS[i] for i in rng.integers(0, len(TEXTS), rows)], dtype=h5py.string_dtype())
        file["b"] = rng.random(rows) < 0.5
        file["x"] = rng.random((rows, 3))


NAMES = ["u", "i", "f", "s", "b"]


def table_of(paths):
    parts = {name: [] for name in NAMES}
    for path in paths:
        with h5py.File(path) as file:
            for name in NAMES:
                parts[name].append(file[name].asstr()[:] if name == "s" else file[name][:])
    columns = {name: pa.array(np.concatenate(each)) for name, each in parts.items()}
    columns["s"] = columns["s"].cast(pa.string())
    return pa.table({**columns, "row": np.arange(len(columns["u"]))})


numbers = st.sampled_from(["u", "i", "f"])
values = st.sampled_from([-3, 0, 1, 2, 4, 0.25, 300])
leaves = st.one_of(
    st.builds(lambda n, v: field(n) == v, numbers, values),
    st.builds(lambda n, v: field(n) > v, numbers, values),
    st.builds(lambda n, v: field(n) != v, numbers, values),
    st.builds(lambda n, v: field(n) <= v, numbers, values),
    st.builds(
        lambda n, vs: pc.is_in(field(n), pa.array(vs, pa.int64())),
        st.sampled_from(["u", "i"]),
        st.lists(st.integers(-3, 4), max_size=4),
    ),
    st.builds(lambda v: field("s") == v, st.sampled_from(TEXTS)),
    st.builds(lambda vs: pc.is_in(field("s"), pa.array(vs, pa.string())), st.lists(st.sampled_from(TEXTS))),
    st.builds(lambda v: field("s") >= v, st.sampled_from(TEXTS)),
    st.builds(lambda v: pc.starts_with(field("s"), v), st.sampled_from(TEXTS)),
    st.builds(lambda v: field("b") == v, st.booleans()),
    st.builds(lambda n: field(n).is_null(), st.sampled_from(NAMES)),
    st.builds(lambda n: field(n).is_null(nan_is_null=True), numbers),
    st.builds(lambda one, two, v: field(one) + field(two) > v, st.sampled_from(["i", "f"]), st.just("i"), values),
    st.just(field("b")),
    st.just(field("f") == field("i")),
)
predicates = combined(leaves, max_leaves=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


@pytest.mark.slow
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(0, 3), predicates)
def test_a_plan_has_the_rows_that_the_same_filter_keeps(folder, sizes, seed, predicate):
    paths = []
    for i, rows in enumerate(sizes):
        path = folder / f"{seed}_{i}_{rows}.h5"
        if not path.exists():
            write(path, rows, 10 * seed + i)
        paths.append(str(path))
    expected = table_of(paths).filter(predicate)["row"].to_pylist()
    for columns in (["x"], ["s", "u"]):
        _, plan = plan_files(paths, columns=columns, predicate=predicate, block_rows=5)
        assert plan.selection.tolist() == expected
    blocks = [read_block(plan, start_of(plan), i).rows for i in range(layout_of(start_of(plan)).num_blocks)]
    assert [row for block in blocks for row in block.row_ids.tolist()] == expected
    assert all(len(block.row_ids) == 5 for block in blocks[:-1])
    found = [text.decode() for block in blocks for text in block.arrays["s"].tolist()]
    assert found == table_of(paths).filter(predicate)["s"].to_pylist()


# What is not selected ---------------------------------------------------------------------------


def write_sorted(folder, files=10, rows=100):
    """Files of one chunk a row, whose label is the number of the file."""
    paths = []
    for i in range(files):
        path = str(folder / f"f{i}.h5")
        with h5py.File(path, "w") as file:
            data = np.repeat(np.arange(i * rows, (i + 1) * rows)[:, None], 8, axis=1).astype("f4")
            file.create_dataset("x", data=data, chunks=(1, 8), compression="gzip", fletcher32=True)
            file["label"] = np.full(rows, i)
            file["row"] = np.arange(i * rows, (i + 1) * rows)
        paths.append(path)
    return paths


def test_chunks_without_a_selected_row_are_not_read(tmp_path):
    paths = write_sorted(tmp_path, 2)
    keep = [5, 60, 61, 130]
    for i, path in enumerate(paths):
        with h5py.File(path) as file:
            chunks = []
            file["x"].id.chunk_iter(chunks.append)
        with open(path, "r+b") as raw:
            for chunk in chunks:
                if chunk.chunk_offset[0] + 100 * i not in keep:
                    raw.seek(chunk.byte_offset)
                    raw.write(b"\xff" * chunk.size)
    _, plan = plan_files(paths, predicate=where(row=keep), columns=["x"])
    blocks = [read_block(plan, start_of(plan), i).rows for i in range(layout_of(start_of(plan)).num_blocks)]
    assert [row for block in blocks for row in block.row_ids.tolist()] == keep
    assert [value for block in blocks for value in block.arrays["x"][:, 7].tolist()] == keep
    assert sum(block.stats.chunks_decoded for block in blocks) == 4
    plan = plan_files(paths, columns=["x"])[1]
    with pytest.raises(RayH5Error):
        read_block(plan, start_of(plan), 0)


@pytest.mark.parametrize("shuffle", [None, "rows"])
def test_blocks_are_filled_with_selected_rows(tmp_path, shuffle):
    paths = write_sorted(tmp_path, 20)
    every = where(row=list(range(0, 2000, 100)))
    _, plan = plan_files(paths, predicate=every, block_rows=8, shuffle=shuffle and Shuffle(shuffle, 0))
    sizes = [len(read_block(plan, start_of(plan), i).rows.row_ids) for i in range(layout_of(start_of(plan)).num_blocks)]
    assert sizes == [8, 8, 4]
    # By themselves they are as many as for a dataset of that size.
    assert layout_of(start_of(plan_files(paths, predicate=every)[1])).num_blocks == 5


# What cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicate", "error", "says"),
    [
        ("label == 1", OptionError, r"expected an expression such as where\(label=1\), found str"),
        (True, OptionError, "found bool"),
        (np.array([True]), OptionError, "found ndarray"),
        (field("lable") == 1, UnknownColumnError, "Did you mean 'label'"),
        ((field("label") == 1) & (field("scroe") > 1), UnknownColumnError, "Did you mean 'score'"),
        (field("signal") > 1, PredicateError, r"'signal' holds an array of shape \(2, 3\)"),
        (~(field("signal").isin([1])), PredicateError, "holds an array"),
        (field("label") > "x", PredicateError, "label: uint8"),
        ((field("label") > "x") & (field("nothing") == 1), RayH5Error, "nothing|label: uint8"),
        (field("name") + 1 > 2, PredicateError, "name: large_string"),
        (field("label") + 1, PredicateError, "cannot be evaluated"),
        (pc.scalar(1), PredicateError, "cannot be evaluated"),
        (field("label", "x") == 1, RayH5Error, "label"),
        (field("label) in b") == 1, UnknownColumnError, r"no 'label\) in b'"),
    ],
)
def test_what_is_no_predicate(five_files, predicate, error, says):
    with pytest.raises(error, match=says):
        plan_files(five_files, predicate=predicate)


@pytest.mark.parametrize(
    "name", ["a b", "a(1)", "ä", "x.y", "[0]", "a'b", 'a"b', "deep/er", "-", "a) in b", "a) FieldRef.Name(b"]
)
def test_names_of_any_kind(tmp_path, name):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4)
        file[name] = np.arange(4)
    assert plan_files([path], columns=["x"], predicate=where(**{name: [1, 3]}))[1].selection.tolist() == [1, 3]


@pytest.mark.parametrize("fields", [("pair", "one"), ("pa) in ir", "one"), ("pair", "on) in e")])
def test_names_inside_a_struct(tmp_path, fields):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file[fields[0]] = np.array([(1, 2.0), (3, 4.0)], dtype=[(fields[1], "i4"), ("two", "f8")])
    assert plan_files([path], predicate=field(*fields) == 3)[1].selection.tolist() == [1]


@pytest.mark.parametrize("dtype", ["M8[D]", "M8[s]", "m8[s]", "m8[us]"])
def test_times_are_compared_with_times(tmp_path, dtype):
    path = str(tmp_path / "a.h5")
    times = np.arange(4).astype(dtype)
    times[1] = "NaT"
    save(path, {"t": times.astype(h5py.opaque_dtype(times.dtype)), "x": np.arange(4)})
    for wanted, rows in ((times[2], [2]), ([times[3], times[0]], [0, 3]), (between(times[2], None), [2, 3])):
        assert plan_files([path], columns=["x"], predicate=where(t=wanted))[1].selection.tolist() == rows


def test_a_predicate_sees_what_is_delivered(five_files):
    for dtype in ("f2", "f4", "i8", "?"):
        _, plan = plan_files(five_files, dtypes={"label": dtype}, predicate=where(label=1))
        expected = [i for i in range(13) if (i % 3 == 1 if dtype != "?" else i % 3)]
        assert plan.selection.tolist() == expected
    _, plan = plan_files(five_files, dtypes={"name": bytes}, predicate=field("name") == b"p3")
    assert plan.selection.tolist() == [3]
