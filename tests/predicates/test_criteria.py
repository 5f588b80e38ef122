import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ray_h5
from ray_h5 import RowReader
from ray_h5.errors import CastError, PredicateError, UnknownColumnError
from ray_h5.index.facts import computed_columns
from ray_h5.predicates import time_steps
from ray_h5.predicates.evaluate import as_expression, evaluate
from ray_h5.predicates.virtual_names import Length, parse_virtual, virtual_name
from ray_h5.torch_data import H5Dataset, any_equal, between, row_mask, where
from tests.hdf5.h5kit import by_h5py
from tests.index.kit import plan_files
from tests.kit.files import save

COLUMNS = {
    "u": np.array([0, 1, 2, 255], "u1"),
    "i": np.array([-1, 0, 1, 2**40]),
    "f": np.array([0, 1, np.nan, -0.5], "f4"),
    "h": np.array([0, 1, np.nan, 2], "f2"),
    "b": np.array([True, False, True, False]),
    "s": ["a", "b", "", "ä"],
    "z": np.array([0.0, -0.0, 1, -1]),
    "t": np.datetime64("2020-01-01", "ns") + np.arange(4),
    "d": np.arange(4).astype("m8[ns]"),
}

SCALARS = [
    ({"u": 1}, [1]),
    ({"u": np.uint8(2)}, [2]),
    ({"u": True}, [1]),
    ({"u": False}, [0]),
    ({"i": True}, [2]),
    ({"f": True}, [1]),
    ({"f": 0}, [0]),
    ({"b": True}, [0, 2]),
    ({"b": 0}, [1, 3]),
    ({"b": 1}, [0, 2]),
    ({"b": [True, False]}, [0, 1, 2, 3]),
    ({"u": -1}, []),
    ({"u": 300}, []),
    ({"u": [1, 300]}, [1]),
    ({"u": 1.5}, []),
    ({"u": [1, 2.5]}, [1]),
    ({"u": range(3)}, [0, 1, 2]),
    ({"u": {2, 1}}, [1, 2]),
    ({"u": frozenset([1])}, [1]),
    ({"u": (1,)}, [1]),
    ({"u": np.array([1, 2])}, [1, 2]),
    ({"u": pa.array([1])}, [1]),
    ({"u": pa.chunked_array([[1], [2]])}, [1, 2]),
    ({"u": []}, []),
    ({"s": []}, []),
    ({"s": set()}, []),
    ({"f": []}, []),
    ({"b": []}, []),
    ({"f": -0.5}, [3]),
    ({"z": False}, [0, 1]),
    ({"z": [False]}, [0, 1]),
    ({"z": [True, False]}, [0, 1, 2]),
    ({"t": COLUMNS["t"][1]}, [1]),
    ({"t": COLUMNS["t"][1:3]}, [1, 2]),
    ({"t": [COLUMNS["t"][1]]}, [1]),
    ({"t": np.datetime64("2020-01-01")}, [0]),
    ({"t": between(COLUMNS["t"][1], None)}, [1, 2, 3]),
    ({"d": COLUMNS["d"][2]}, [2]),
    ({"d": between(None, COLUMNS["d"][1])}, [0, 1]),
    ({"d": COLUMNS["d"][:2]}, [0, 1]),
    ({"d": pd.Timedelta(2)}, [2]),
    ({"t": pd.Timestamp(COLUMNS["t"][1])}, [1]),
    ({"t": [pd.Timestamp(COLUMNS["t"][3])]}, [3]),
    ({"t": between(pd.Timestamp(COLUMNS["t"][2]), None)}, [2, 3]),
    ({"f": float("nan")}, []),
    ({"f": [1, 2]}, [1]),
    ({"h": 1}, [1]),
    ({"h": [0.0, 2.0]}, [0, 3]),
    ({"h": between(1, 2)}, [1, 3]),
    ({"s": "a"}, [0]),
    ({"s": ""}, [2]),
    ({"s": ["a", "ä", "zz"]}, [0, 3]),
    ({"s": None}, []),
    ({"f": None}, []),
    ({"u": between(1, 2)}, [1, 2]),
    ({"u": between(1, 1)}, [1]),
    ({"u": between(0.5, 1.5)}, [1]),
    ({"f": between(None, 0.5)}, [0, 3]),
    ({"f": between(-1, None)}, [0, 1, 3]),
    ({"s": between("a", "b")}, [0, 1]),
    ({"s": between("b", None)}, [1, 3]),
    ({"i": between(None, 0), "u": 0}, [0]),
    ({"u": between(0, 2), "s": ["a", "", "ä"], "b": True}, [0, 2]),
]


@pytest.mark.parametrize("make", [where, ray_h5.where])
@pytest.mark.parametrize(("criteria", "rows"), SCALARS)
def test_what_passes(criteria, rows, make):
    assert evaluate(as_expression(make(**criteria)), COLUMNS, 4).tolist() == rows
    passing = set(rows)
    # What is not there is null nowhere: the rest passes what is not.
    others = [row for row in range(4) if row not in passing]
    assert evaluate(as_expression(~make(**criteria)), COLUMNS, 4).tolist() == others


FLOATS = [0.1, 0.7, -0.0, 0.0, 1.0, 16777216.0, 1e300, -1e300, np.nan, np.inf, -np.inf, 0.10000000149011612]


def passing(criteria, values):
    return evaluate(where(**criteria), {"x": values}, len(values)).tolist()


@example("f4", 1e300, 0.1)
@given(st.sampled_from(["f4", "f8"]), st.sampled_from([0.3, *FLOATS]), st.sampled_from([0.3, *FLOATS]))
def test_a_float_is_compared_in_the_dtype_of_the_column(dtype, one, other):
    with np.errstate(over="ignore"):
        values, low, high = np.array(FLOATS, dtype), np.array(one, dtype), np.array(other, dtype)
    # A number that the dtype does not hold is not the infinite one that it would be cast to.
    low, high = (number if np.isinf(cast) else cast for number, cast in ((one, low), (other, high)))
    exact = values.astype("f8")
    assert passing({"x": one}, values) == np.flatnonzero(exact == low).tolist()
    if not np.isnan(one):
        assert passing({"x": [one]}, values) == np.flatnonzero(exact == low).tolist()
        assert passing({"x": between(one, None)}, values) == np.flatnonzero(exact >= low).tolist()
        assert passing({"x": between(None, one)}, values) == np.flatnonzero(exact <= low).tolist()
    if one == one and other == other:
        assert passing({"x": [one, other]}, values) == np.flatnonzero((exact == low) | (exact == high)).tolist()
    if one <= other:
        expected = np.flatnonzero((exact >= low) & (exact <= high)).tolist()
        assert passing({"x": between(one, other)}, values) == expected
    # What is written with pyarrow stays pyarrow's.
    with np.errstate(invalid="ignore"):
        expected = np.flatnonzero(exact == one).tolist()
    assert evaluate(pc.field("x") == one, {"x": values}, len(values)).tolist() == expected


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, [0], [0.0], [-0.0], [0, 3], [0.5, 0]])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "u1"])
def test_zero_has_two_signs(zero, dtype):
    assert passing({"x": zero}, np.array([0.0, 1, -0.0], dtype)) == [0, 2]


@pytest.mark.parametrize("wanted", [0.1, [0.1], between(0.1, 0.1), between(None, 0.1), any_equal(0.1)])
def test_the_same_float_passes_in_each_criterion(tmp_path, wanted):
    save(tmp_path / "a.h5", {"x": np.array([0.7, 0.1, 0.10000002], "f4")})
    assert selected([str(tmp_path / "a.h5")], where(x=wanted), ["x"]) == [1]
    assert selected([str(tmp_path / "a.h5")], ~where(x=wanted), ["x"]) == [0, 2]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (where, "at least one criterion"),
        (lambda: where(u={"a": 1}), r"where\(u=\{'a': 1\}\): expected a value.* found dict"),
        (lambda: where(u=object()), "found object"),
        (lambda: where(u=np.zeros((2, 2))), "found ndarray"),
        (lambda: where(u=(x for x in [1])), "found generator"),
        (lambda: where(u=10**400), "expected a number of at most 20 digits"),
        (lambda: where(u=[1, "a"]), "values of one type"),
        (lambda: where(u={1, "a"}), "values of one type"),
        (lambda: where(u=[1, 10**400]), "values of one type"),
        (lambda: where(u=[2**63, "a"]), "values of one type"),
        (lambda: where(u=["a", 2**63]), "values of one type"),
        (lambda: where(u=[[1]]), "values of one type"),
        (lambda: between(None, None), "at least one end"),
        (lambda: between(2, 1), "expected low <= high"),
        (lambda: between(float("nan"), 1), "expected low <= high"),
        (lambda: between("a", 3), "ends of one type"),
        (lambda: between([1], 2), "numbers, strings or None, found list"),
        (lambda: between(np.array([1]), 2), "found ndarray"),
        (lambda: any_equal("a"), "expected a number"),
        (lambda: any_equal(None), "expected a number"),
        (lambda: any_equal([1]), "expected a number"),
        (lambda: any_equal(True), "expected a number"),
        (lambda: any_equal(float("nan")), "no value of a column equals it"),
        (lambda: any_equal(1, valid=3), r"any_equal\(1, valid=3\): expected the name of a column"),
        (lambda: any_equal(10**40), "no value of a column equals it"),
        (lambda: any_equal(2**64), "no value of a column equals it"),
        (lambda: any_equal(-(2**63) - 1), "no value of a column equals it"),
        (lambda: where(u=(0.5, 1)), "a pair of numbers may be a range"),
        (lambda: where(u=[1, 10**20]), "values of one type"),
    ],
)
def test_what_is_no_criterion(make, says):
    with pytest.raises(PredicateError, match=says):
        make()


@pytest.mark.parametrize("criteria", [{"u": "x"}, {"s": 1}, {"s": True}, {"s": [1]}, {"u": ["a"]}, {"b": "x"}])
def test_what_cannot_be_compared_says_what_with_what(criteria):
    with pytest.raises(
        PredicateError, match=r"cannot be evaluated on [usb]: (uint8|large_string|string|bool): column '[usb]'"
    ):
        evaluate(where(**criteria), COLUMNS, 4)


@given(st.text(), st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False)), st.none() | st.text())
def test_a_virtual_column_has_a_name_that_says_what_it_is(column, value, valid):
    criterion = any_equal(value, valid=valid)
    assert parse_virtual(virtual_name(column, criterion)) == (column, criterion)
    assert parse_virtual(virtual_name(column, row_mask())) == (column, row_mask())
    assert parse_virtual(column) == (column, None) or column.startswith("ray_h5:")


# Virtual columns, over files ---------------------------------------------------------------------

ROWS, STEPS, CLASSES = (9, 0, 14), 5, 4


@pytest.fixture(scope="module")
def classed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classed")
    paths = []
    for i, rows in enumerate(ROWS):
        rng = np.random.default_rng(i)
        ids = rng.integers(0, CLASSES, (rows, STEPS))
        ids[rng.random(rows) < 0.5] = 0
        with h5py.File(folder / f"{i}.h5", "w") as file:
            file["ids"] = ids.astype("f4")
            file["one_hot"] = np.eye(CLASSES, dtype="u1")[ids].reshape(rows, STEPS, CLASSES)
            file["weight"] = rng.choice([-1, 0, 0.5, np.nan], (rows, STEPS)).astype("f4")
            file["good"] = rng.random((rows, STEPS)) < 0.5
            for name in ("ids", "weight"):
                file[f"{name}_column"] = file[name][:][:, :, None]
            file["label"] = rng.integers(0, 3, rows)
            file["name"] = np.array([f"n{row}" for row in range(rows)], dtype=h5py.string_dtype())
            file["empty"] = np.zeros((rows, 0), "u1")
            file["cube"] = np.zeros((rows, 2, 2, 2), "u1")
            mask = rng.random(rows) < 0.4
            file["mask/bool"] = mask
            file["mask/rows"] = rng.permutation(np.flatnonzero(mask))
            file["mask/none"] = np.zeros(0, "i4")
            file["mask/zeros_and_ones"] = mask.astype("u1")
            file["mask/outside"] = np.array([rows])
            file["mask/negative"] = np.array([-1])
            file["mask/floats"] = mask.astype("f4")
            file["mask/short"] = mask[:-1]
        paths.append(str(folder / f"{i}.h5"))
    return paths


def whole(paths, name):
    return np.concatenate([by_h5py(path, name) for path in paths])


def selected(paths, predicate, columns=("ids",)):
    return plan_files(paths, columns=columns, predicate=predicate)[1].selection.tolist()


@pytest.mark.parametrize("wanted", [0, 1, 3, 2.0, 7, -1, 0.5])
@pytest.mark.parametrize("valid", [None, "weight", "good"])
def test_a_value_at_any_step(classed, wanted, valid):
    counts = np.ones((sum(ROWS), STEPS), bool) if valid is None else whole(classed, valid) > 0
    expected = ((whole(classed, "ids") == wanted) & counts).any(axis=1)
    assert selected(classed, where(ids=any_equal(wanted, valid=valid))) == np.flatnonzero(expected).tolist()
    assert selected(classed, ~where(ids=any_equal(wanted, valid=valid))) == np.flatnonzero(~expected).tolist()
    arrays = [whole(classed, "ids"), None if valid is None else whole(classed, valid)]
    assert np.array_equal(time_steps.occurs(*arrays, "ids", any_equal(wanted, valid=valid)), expected)
    if wanted in range(CLASSES):
        found = selected(classed, where(one_hot=any_equal(wanted, valid=valid)))
        assert found == np.flatnonzero(expected).tolist()


@pytest.mark.parametrize("valid", [None, "weight"])
@pytest.mark.parametrize("wanted", [0, 1, 3, 0.5])
def test_a_last_axis_of_one_is_none(classed, wanted, valid):
    expected = selected(classed, where(ids=any_equal(wanted, valid=valid)))
    for column, weight in (("ids_column", valid), ("ids_column", "weight_column"), ("ids", "weight_column")):
        if valid is not None or weight is None:
            assert selected(classed, where(**{column: any_equal(wanted, valid=weight)})) == expected
    if valid and wanted in range(CLASSES):
        assert selected(classed, where(one_hot=any_equal(wanted, valid="weight_column"))) == expected


@pytest.mark.parametrize(("dtype", "casting"), [("u1", "unsafe"), ("f4", "checked"), (bool, "unsafe")])
def test_a_value_at_any_step_of_what_is_delivered(tmp_path, dtype, casting):
    """After map_batches it is looked for in blocks, which hold delivered values: both choose the same rows."""
    stored = np.array([[257, 0], [1, 0], [2**24 + 1, 0], [0.1, 0], [0, 0.5]])
    weight = np.array([[-1, 1], [256, 0], [1, 0], [1, 1], [1, 1]])
    dtypes = {"x": dtype, "weight": dtype} if casting == "unsafe" else {"x": dtype}
    index_dir = str(tmp_path / "index")
    save(tmp_path / "a.h5", {"x": stored, "weight": weight})
    paths = [str(tmp_path / "a.h5")]
    x, counted = stored.astype(dtype), weight.astype(dtypes.get("weight", weight.dtype)) > 0
    for wanted in (1, 0.1, 2**24, 0.5):
        for valid, counts in ((None, True), ("weight", counted)):
            predicate, hits = where(x=any_equal(wanted, valid=valid)), ((x == wanted) & counts).any(axis=1)
            options = {"columns": ["x"], "predicate": predicate, "index_dir": index_dir}
            found = plan_files(paths, dtypes=dtypes, casting=casting, **options)[1].selection
            assert found.tolist() == np.flatnonzero(hits).tolist(), (wanted, valid)
            # The values of another cast are not taken from the index.
            hits = (stored == wanted) & (True if valid is None else weight > 0)
            assert plan_files(paths, **options)[1].selection.tolist() == np.flatnonzero(hits.any(axis=1)).tolist()


def test_a_value_that_a_cast_loses_is_an_error_also_in_any_equal(tmp_path):
    save(tmp_path / "a.h5", {"x": np.array([[1, 257]])})
    with pytest.raises(CastError, match="column 'x', row 0: the value 257 cannot be cast to uint8"):
        plan_files([str(tmp_path / "a.h5")], columns=["x"], predicate=where(x=any_equal(1)), dtypes={"x": "u1"})


def test_text_that_may_be_a_time_is_compared_with_what_is_delivered(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("s")
        group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
        group["codes"], group["categories"] = np.array([1, 0], "i1"), np.array([b"2024-01-01", b"b"], object)
    assert plan_files([str(tmp_path / "a.h5")], predicate=where(s="2024-01-01"))[1].selection.tolist() == [1]
    for text in ("2024-01-01", "b"):
        with pytest.raises(PredicateError, match="numbers, which are compared with numbers only"):
            plan_files([str(tmp_path / "a.h5")], predicate=where(s=text), dtypes={"s": "i4"})


def test_other_columns_for_any_equal(classed):
    assert selected(classed, where(ids=any_equal(1e300))) == []
    assert selected(classed, where(label=any_equal(1))) == np.flatnonzero(whole(classed, "label") == 1).tolist()
    assert selected(classed, where(good=any_equal(1))) == np.flatnonzero(whole(classed, "good").any(axis=1)).tolist()
    assert selected(classed, where(empty=any_equal(0))) == []


@pytest.mark.parametrize("valid", [None, "weight"])
def test_a_chunk_is_decoded_once(tmp_path, valid, monkeypatch):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.eye(700, 64, dtype="f4"), chunks=(96, 64), compression="gzip")
        file.create_dataset("weight", data=np.ones((700, 64), "u1"))
    monkeypatch.setattr(computed_columns, "_PIECE_BYTES", 100 * 64 * 4)  # neither a chunk nor two
    pieces = []
    read_into = RowReader.read_into
    monkeypatch.setattr(
        RowReader, "read_into", lambda *given, **options: pieces.append(given[2]) or read_into(*given, **options)
    )
    with RowReader(path) as reader:
        values = computed_columns.compute(reader, 700, "x", any_equal(1, valid=valid))
        assert reader.stats.chunks_decoded == 8
    assert np.flatnonzero(values).tolist() == list(range(64))
    assert max(piece.stop - piece.start for piece in pieces) <= 192


def test_lengths_of_lists_are_read_in_pieces(tmp_path, monkeypatch):
    lengths = np.random.default_rng(0).integers(0, 5, 60)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("lists", (60,), h5py.vlen_dtype("f4"), chunks=(7,))[:] = [np.ones(n) for n in lengths]
    monkeypatch.setattr(computed_columns, "_PIECE_BYTES", 1)
    with RowReader(str(tmp_path / "a.h5")) as reader:
        assert np.array_equal(computed_columns.compute(reader, 60, "lists", Length()), lengths)


def test_masks(classed):
    expected = np.flatnonzero(whole(classed, "mask/bool")).tolist()
    assert selected(classed, where(**{"mask/bool": row_mask()})) == expected
    assert selected(classed, where(**{"mask/rows": row_mask()})) == expected
    assert selected(classed, where(**{"mask/bool": True})) == expected
    assert selected(classed, where(**{"mask/zeros_and_ones": 1})) == expected
    assert selected(classed, where(**{"mask/none": row_mask()})) == []
    both = where(**{"mask/rows": row_mask()}, label=1, ids=any_equal(2))
    ids, labels = whole(classed, "ids"), whole(classed, "label")
    assert selected(classed, both) == [i for i in expected if labels[i] == 1 and (ids[i] == 2).any()]


def test_a_mask_is_of_the_rows_that_are_read(tmp_path):
    path = save(tmp_path / "a.h5", {"long": np.arange(20), "short": np.arange(10), "rows": np.array([1, 7])})
    mask = where(rows=row_mask())
    for index_dir in (None, str(tmp_path / "index")):
        for column in ("long", "short", "long"):
            assert plan_files([path], columns=[column], predicate=mask, index_dir=index_dir)[1].selection.tolist() == [
                1,
                7,
            ]
            both = mask & where(**{column: 7})
            assert plan_files([path], columns=[column], predicate=both)[1].selection.tolist() == [7]


@pytest.mark.parametrize(
    ("criteria", "error", "says"),
    [
        ({"one_hot": any_equal(4)}, PredicateError, r"0.h5: any_equal\(4\): column 'one_hot' is one-hot of 4 classes"),
        ({"one_hot": any_equal(0.5)}, PredicateError, "expected a class from 0 to 3"),
        ({"one_hot": any_equal(-1)}, PredicateError, "expected a class from 0 to 3"),
        ({"one_hot": any_equal(float("inf"))}, PredicateError, "expected a class from 0 to 3"),
        ({"name": any_equal(1)}, PredicateError, "holds one string value a row"),
        ({"cube": any_equal(1)}, PredicateError, r"shape \(2, 2, 2\) a row; expected numbers of shape \(T,\)"),
        ({"ids": any_equal(1, valid="label")}, PredicateError, "of that shape in 'label'"),
        ({"ids": any_equal(1, valid="wieght")}, UnknownColumnError, "Did you mean 'weight'"),
        ({"idz": any_equal(1)}, UnknownColumnError, "Did you mean 'ids'"),
        ({"mask/rows": any_equal(1)}, PredicateError, r"column 'mask/rows' has \d+ rows, the others 9"),
        ({"mask/outside": row_mask()}, PredicateError, "lists row 9; the file has 9 rows"),
        ({"mask/negative": row_mask()}, PredicateError, "lists row -1"),
        ({"mask/floats": row_mask()}, PredicateError, "expected a boolean a row, or row numbers"),
        ({"mask/short": row_mask()}, PredicateError, "has 8 entries; expected one for each of the 9 rows"),
        (
            {"mask/zeros_and_ones": row_mask()},
            PredicateError,
            r"more than once.*where\(\*\*\{'mask/zeros_and_ones': 1\}",
        ),
        ({"mask/trian": row_mask()}, UnknownColumnError, "no 'mask/trian'"),
        ({"ids": 1}, PredicateError, r"an array of shape \(5,\) a row.*any_equal\(value\).*ds.map"),
        ({"lable": 1}, UnknownColumnError, "Did you mean 'label'"),
    ],
)
def test_what_virtual_columns_cannot_be_made_of(classed, criteria, error, says):
    with pytest.raises(error, match=says):
        selected(classed, where(**criteria))
    with pytest.raises(error, match=says):
        selected(classed, ~(where(label=1) & where(**criteria)))


def test_constants(classed):
    assert selected(classed, pc.scalar(True)) == list(range(sum(ROWS)))
    assert selected(classed, pc.scalar(False)) == []


def test_integers_that_no_column_holds_are_named_as_such():
    for value in (2**70, -(10**30)):
        with pytest.raises(PredicateError, match=r"expected a number of at most 20 digits; no column holds larger"):
            where(g=value)
    for make in (lambda n: where(g=n), lambda n: where(g=[1, n]), lambda n: between(n, None), any_equal):
        with pytest.raises(PredicateError, match="at most 20 digits"):
            make(10**5000)


@pytest.mark.parametrize("choose", [where, ray_h5.where])
def test_a_criterion_without_a_name_says_what_to_write(choose):
    with pytest.raises(
        PredicateError, match=r"where\('label == 1'\): expected names of columns, such as where\(label=1\)"
    ):
        choose("label == 1")


def test_expressions_of_ray_name_the_columns_that_they_compare():
    for criterion, columns in (
        ({"x": 1}, ["x"]), ({"x": any_equal(1, valid="v")}, ["x", "v"]), ({"x": any_equal(1)}, ["x"]),
        ({"x": row_mask()}, []), ({"x": between(1, 2)}, ["x"]),
    ):  # fmt: skip
        expression = ray_h5.where(**criterion)
        assert [each.name for each in expression.args] == columns
        for names in (columns, [f"{name}2" for name in columns]):
            (column, *valid), wanted = names or ["x"], criterion["x"]
            renamed = any_equal(1, valid=valid[0]) if valid else wanted
            assert str(expression.pc_func(*names, expression.fn)) == str(where(**{column: renamed}))


@pytest.mark.parametrize("mixed", [lambda one, other: one & other, lambda one, other: (one | one) & ~(one & other)])
def test_a_predicate_of_ray_and_of_pyarrow_is_refused(tmp_path, mixed):
    path = save(tmp_path / "a.h5", {"x": np.arange(3)})
    predicate = mixed(ray_h5.where(x=1), where(x=1))
    with pytest.raises(PredicateError, match="this predicate combines both"):
        H5Dataset(path, predicate=predicate)
