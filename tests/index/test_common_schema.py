"""What files must agree on, and what they need not."""

import pickle

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest

from ray_h5.arrow_arrays import to_arrow
from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import build_index
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.manifest.value_type import ValueType
from ray_h5.plan.row_source import read_rows
from ray_h5.torch_data import Groups, H5Dataset, any_equal, ragged, where
from tests.index.kit import plan_files
from tests.kit.files import save


@pytest.fixture
def write(tmp_path):
    def write(*files):
        return [save(tmp_path / f"{number}.h5", columns) for number, columns in enumerate(files)]

    return write


def mismatch(paths, **options):
    with pytest.raises(SchemaMismatchError) as caught:
        plan_files(paths, **options)
    return str(caught.value)


# dtypes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [(("i4", "i8"), "i8"), (("i4", "i8"), "f2"), (("?", "u1"), "u1"), (("u1", "?", "f4"), "?"), (("f4", "f8"), "f4")],
)
@pytest.mark.parametrize("columns", [None, ["x", "y"]])
def test_files_need_not_agree_on_what_is_cast_away(write, stored, wanted, columns):
    paths = write(*({"y": np.array([0, 1, 1]).astype(dtype), "x": np.zeros((3, 2))} for dtype in stored))
    index, plan = plan_files(paths, columns=columns, dtypes={"y": wanted}, predicate=where(y=1))
    assert index.columns["y"].dtype == np.result_type(*stored)
    values = read_rows(plan, plan.selection).arrays["y"]
    assert values.dtype == np.dtype(wanted)
    assert values.tolist() == [1] * (2 * len(stored))
    assert index.columns == pickle.loads(pickle.dumps(index)).columns


def test_a_column_of_a_predicate_alone_can_be_cast(write):
    name = np.array([b"a", b"M\xfcller"], h5py.string_dtype("ascii"))
    paths = write(*({"x": np.zeros((2, 3)), "y": np.array([0, 1], dtype), "s": name} for dtype in ("i4", "i8")))
    assert "pass dtypes={'y': 'int64'}" in mismatch(paths, columns=["x"], predicate=where(y=1))
    dtypes = {"y": "int64", "s": bytes}
    for predicate in (where(y=1), where(s=b"M\xfcller")):
        plan = plan_files(paths, columns=["x"], dtypes=dtypes, predicate=predicate)[1]
        assert [spec.name for spec in plan.columns] == ["x"]
        assert plan.selection.tolist() == [1, 3]
    assert plan_files(paths, columns=["x"], dtypes={"y": "?"}, predicate=where(y=True))[1].selection.tolist() == [1, 3]


def test_a_cast_changes_no_shape_and_no_string(write):
    paths = write({"y": np.zeros((3, 2), "i4")}, {"y": np.zeros((3, 4, 3), "i8")})
    message = mismatch(paths, dtypes={"y": "i8"})
    assert "expected int64 (2,), found int64 (4, 3)" in message
    assert "dtypes=" not in message
    paths = write({"y": np.zeros(3, "i4")}, {"y": np.array(["a", "b", "c"], dtype=h5py.string_dtype())})
    assert "expected int64, found string" in mismatch(paths, dtypes={"y": "i8"})
    with pytest.raises(OptionError, match="no dtype of numpy"):
        plan_files(paths, dtypes={"y": "nonsense"})
    with pytest.raises(UnknownColumnError, match="Did you mean 'y'"):
        plan_files(write({"y": np.zeros(3)}), dtypes={"yy": "i8"})


def test_a_cast_column_that_is_left_out_may_have_other_rows(write):
    """Such as the values of a ragged column: the casts are written once, for all of what is read."""
    path = write(
        {"values": np.arange(10.0), "from": np.array([0, 2, 5, 10]), "label": np.arange(3), "other": np.arange(3)}
    )
    dtypes = {"values": "f4", "other": "u1", "label": "f8"}
    for columns in (["label"], ["label", "other"], [ragged("values", offsets="from"), "label"]):
        index = FileOptions.of(path, columns=columns, dtypes=dtypes).index(columns)
        for name in index.names:
            spec = index.delivered[name]
            assert (spec.element or spec.dtype) == dtypes[name]
        assert index.values(["other"])["other"].type == "uint8"
    for column in ("values", "nothing"):
        with pytest.raises(SchemaMismatchError, match=column):
            plan_files(path, columns=["label"], dtypes={**dtypes, column: "f4"}, predicate=where(**{column: 1}))
    with pytest.raises(OptionError, match="nonsense"):
        plan_files(path, columns=["label"], dtypes={"values": "nonsense"})


def test_the_message_says_which_cast_would_do(write):
    ones = np.ones(3)
    paths = write(
        {"y": ones.astype("i4"), "b": ones > 0, "z": ones, "s": ones},
        {"y": ones.astype("i8"), "b": ones.astype("u1"), "z": ones, "s": ones[:, None]},
        {"y": ones.astype("i2"), "b": ones > 0, "z": ones, "s": ones},
    )
    message = mismatch(paths)
    assert "dtypes={'b': 'uint8', 'y': 'int64'}" in message
    plan_files(paths, columns=["b", "y", "z"], dtypes={"b": "uint8", "y": "int64"})


# Compound values --------------------------------------------------------------------------------

FIELDS = [("a", "i4"), ("b", "f8"), ("v", "i2", (2,)), ("in", [("s", "S3"), ("w", "u1")])]
LONG = [*FIELDS[:3], ("in", [("s", "S5"), ("w", "u1")])]
TEXT = [*FIELDS[:3], ("in", [("s", h5py.string_dtype()), ("w", "u1")])]
PADDED, PACKED = np.dtype(FIELDS, align=True), np.dtype(FIELDS)


@pytest.mark.parametrize("kinds", [(PADDED, PACKED), (PACKED, PADDED, LONG), (LONG, PADDED), (PADDED, TEXT)])
@pytest.mark.parametrize("options", [{}, {"chunks": (2,), "compression": "gzip"}])
def test_compound_columns_that_are_the_same_in_arrow(tmp_path, kinds, options):
    paths = [str(tmp_path / f"{number}.h5") for number in range(len(kinds))]
    rows = [(1, 0.5, (2, 3), (b"ab", 4)), (5, 1.5, (6, 7), (b"xyz", 8))]
    for path, kind in zip(paths, kinds, strict=True):
        save(path, {"c": np.array(rows, kind)}, **options)
    plan = plan_files(paths, predicate=pc.field("c", "in", "s") == "xyz")[1]
    assert plan.selection.tolist() == list(range(1, 2 * len(kinds), 2))
    values = to_arrow(read_rows(plan, np.arange(2 * len(kinds))).arrays["c"], plan.columns[0].value_type)
    expected = [{"a": a, "b": b, "v": list(v), "in": {"s": s.decode(), "w": w}} for a, b, v, (s, w) in rows]
    assert values.to_pylist() == expected * len(kinds)


# The odd one ------------------------------------------------------------------------------------


def test_a_column_that_one_file_cannot_deliver_is_not_called_missing(write):
    paths = write({"x": np.arange(3), "y": np.zeros(3)}, {"x": np.arange(3), "y": np.zeros(3, "g")})
    assert f"  {paths[1]}: column 'y' cannot be read: has dtype {np.dtype('g')}" in mismatch(paths)


def test_of_two_files_the_first_is_the_measure(write):
    message = mismatch(write({"x": np.arange(3)}, {"y": np.arange(3)}))
    assert "1.h5: column 'x' is missing; column 'y' is not in the others" in message


# Enums ------------------------------------------------------------------------------------------

ONE, OTHER = {"cat": 0, "dog": 1}, {"dog": 0, "cat": 1}


def enum(names, shape=3):
    return np.zeros(shape, h5py.enum_dtype(names, basetype="i1"))


def pair(names):
    return np.zeros(3, [("what", h5py.enum_dtype(names, basetype="i1")), ("how_many", "i4")])


@pytest.mark.parametrize(
    "values", [enum, lambda names: enum(names, (3, 2)), pair], ids=["one a row", "several a row", "in a field"]
)
def test_files_that_mean_other_things_by_an_integer(write, tmp_path, values):
    paths = write(*({"kind": values(names), "x": np.arange(3)} for names in (ONE, ONE, OTHER)))
    prefix = "what." if values is pair else ""
    folder = str(tmp_path / "index")
    for options in ({}, {"columns": ["kind"]}, {"index_dir": folder}, {"index_dir": folder}):
        MEMORY.clear()
        message = mismatch(paths, **options)
        assert "column 'kind': the files disagree" in message
        assert f"{paths[0]}: {prefix}cat=0, {prefix}dog=1\n" in message
        assert f"{paths[2]}: {prefix}dog=0, {prefix}cat=1\n" in message
    assert plan_files(paths, columns=["x"])[1].num_rows == 9


def test_predicates_and_casts_do_not_hide_it(write):
    paths = write(*({"kind": enum(names), "all": enum(names, (3, 2)), "x": np.arange(3)} for names in (ONE, OTHER)))
    for predicate in (where(kind=1), where(all=any_equal(1))):
        assert "disagree on what its integers mean" in mismatch(paths, columns=["x"], predicate=predicate)
    assert "disagree on what its integers mean" in mismatch(paths, columns=["kind"], dtypes={"kind": "i8"})


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (ONE, {"cat": 0, "dog": 1, "bird": 2}, True),
        (ONE, {"bird": 2}, True),
        (ONE, {"CAT": 0, "dog": 1}, False),
        (ONE, {"cat": 2}, False),
    ],
)
def test_files_may_name_more_integers_than_others(write, one, other, agree):
    paths = write({"kind": enum(one)}, {"kind": enum(other)}, {"kind": np.zeros(3, "i1")})
    if agree:
        assert list(build_index(paths).columns) == ["kind"]
    else:
        assert "disagree" in mismatch(paths)


@pytest.mark.parametrize("numbers", [(range(6), range(6, 11)), (range(6), range(5))])
def test_files_with_other_groups_offer_the_groups_as_rows(tmp_path, numbers):
    for name, some in zip("ab", numbers, strict=True):
        save(tmp_path / f"{name}.h5", {f"data/demo_{i}/x": np.full((4, 3), i, "f4") for i in some})
    with pytest.raises(SchemaMismatchError, match=r"pass rows=ray_h5\.Groups\('data/demo_\*'\)"):
        H5Dataset(str(tmp_path))
    assert len(H5Dataset(str(tmp_path), rows=Groups("data/demo_*"))) == sum(map(len, numbers))


# Which columns of files are delivered as which ----------------------------------------------------

F4, I8, OBJECTS = np.dtype("f4"), np.dtype("i8"), np.dtype(object)
NUMBER, ROW, WIDE, GRID = (ColumnSpec("x", ValueType("number", F4, shape)) for shape in ((), (3,), (3, 1), (3, 5)))
TEXT = ColumnSpec("x", ValueType("string", OBJECTS))
WORDS, CODED, MAYBE, LISTS = (
    ColumnSpec("x", ValueType(kind, OBJECTS, element=element))
    for kind, element in (("category", OBJECTS), ("category", F4), ("optional", F4), ("list", F4))
)
STEPS, RAGGED = LISTS.with_type(row_shape=(3,)), LISTS.with_type(kind="ragged", ragged_shape=(None,))
SPECS = [NUMBER, ROW, WIDE, GRID, TEXT, WORDS, CODED, MAYBE, LISTS, STEPS, RAGGED]
ALWAYS = [
    (ROW, WIDE),
    (WIDE, ROW),
    (TEXT, WORDS),
    (MAYBE, NUMBER),
    (MAYBE, CODED),
    (RAGGED, ROW),
    (RAGGED, WIDE),
    (STEPS, WIDE),
    (STEPS, GRID),
]
IF_CAST = [*ALWAYS, (NUMBER, MAYBE), (NUMBER, CODED), (NUMBER, WORDS), (RAGGED, LISTS)]


@pytest.mark.parametrize("delivered", SPECS, ids=str)
def test_which_columns_of_files_are_delivered_as_another(delivered):
    for is_cast, pairs in ((False, ALWAYS), (True, IF_CAST)):
        found = [stored for stored in SPECS if delivered.is_read_from(stored, is_cast)]
        assert found == [stored for stored in SPECS if stored == delivered or (delivered, stored) in pairs]
    if delivered in {NUMBER, ROW, WIDE, GRID, LISTS, STEPS, RAGGED}:
        other = delivered.with_type(**({"dtype": I8} if delivered.element is None else {"element": I8}))
        assert [delivered.is_read_from(other, is_cast) for is_cast in (False, True)] == [False, True]
