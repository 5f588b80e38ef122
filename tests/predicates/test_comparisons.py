import datetime as dt
import math
from decimal import Decimal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import PredicateError
from ray_h5.index.file_options import FileOptions
from ray_h5.predicates.comparisons import compared
from ray_h5.predicates.criteria import as_criteria, between, where
from ray_h5.predicates.evaluate import evaluate
from ray_h5.predicates.virtual_names import Compared
from ray_h5.ray_data.ray_expressions import RowChooser
from ray_h5.tables.sidecar import Sidecar

INTEGERS = [-(2**63), -(2**53) - 1, -5, -1, 0, 1, 3, 255, 2**24, 2**24 + 1, 1_650_000_000]
INTEGERS += [2**53, 2**53 + 1, 2**60 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]
FLOATS = [-math.inf, -(2.0**64), -(2.0**63), -5.0, -0.5, -0.0, 0.5, 2.0, 2.5, 2.0**24, 1.65e9]
FLOATS += [0.1, -0.1, 1e-50, 1e300, 2.0**53, 2.0**60, 2.0**63, 2.0**64, 2.0**65, math.inf, math.nan]
DTYPES = ["i1", "u1", "i4", "u4", "i8", "u8"]


def passing(predicate, columns):
    return evaluate(predicate, columns, len(columns["x"])).tolist()


def check(dtype, wanted, passes):
    """Compare with what exact arithmetic gives, which is what Python's has."""
    values = [value for value in INTEGERS if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max]
    columns = {"x": np.array(values, dtype)}
    expected = [passes(value) for value in values]
    assert passing(where(x=wanted), columns) == np.flatnonzero(expected).tolist()
    assert passing(~where(x=wanted), columns) == np.flatnonzero(~np.array(expected)).tolist()


@pytest.mark.parametrize("number", [*INTEGERS, *FLOATS])
def test_integers_are_compared_exactly(number):
    for dtype in DTYPES:
        check(dtype, number, lambda value: value == number)
        if not math.isnan(number):
            check(dtype, between(number, None), lambda value: value >= number)
            check(dtype, between(None, number), lambda value: value <= number)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from(INTEGERS), min_size=1, max_size=4),
    st.lists(st.sampled_from([1.0, -0.0, 0.1, 0.5, 1.65e9, 2.0**60, 2.0**63, math.inf, math.nan]), max_size=3),
)
def test_any_numbers_in_a_list(dtype, integers, floats):
    check(dtype, integers, lambda value: value in integers)
    if floats:
        check(dtype, floats, lambda value: value in floats)
        mixed = [number for number in integers if abs(number) <= 2**53] + floats  # pyarrow makes no list of others
        check(dtype, mixed, lambda value: value in mixed)


def test_a_fraction_that_is_no_float32():
    columns = {"x": np.array([1_650_000_000, 1_650_000_001])}
    assert passing(where(x=1.65e9 + 0.5), columns) == []
    assert passing(where(x=between(1.65e9 + 0.5, None)), columns) == [1]


def test_arrays_of_uint64():
    values = np.array([1, 2**63, 2**64 - 1], "u8")
    check("u8", values, lambda value: value in values.tolist())
    check("i8", values, lambda value: value == 1)
    check("u8", pa.array(values), lambda value: value in values.tolist())
    check("u8", values[2], lambda value: value == 2**64 - 1)
    check("u8", between(values[1], values[2]), lambda value: value >= 2**63)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("number", [0, 3, -5, 2**24 + 1, 1_650_000_000, 2**63, 0.1, 0.5, -math.inf, 1.65e9, 2.0**63])
def test_floats_are_compared_in_their_dtype(dtype, number):
    with np.errstate(over="ignore"):
        values = np.array([np.nan, -np.inf, -5, 0, np.float32(0.1), 0.1, 0.5, 3, 2**24, 1.65e9, 2**63, np.inf], dtype)
    kind = np.dtype("f4" if dtype == "f2" else dtype)  # pyarrow compares no float16
    held, end = values.astype(kind), kind.type(number)
    columns = {"x": values}
    assert passing(where(x=number), columns) == np.flatnonzero(held == end).tolist()
    assert passing(where(x=[number]), columns) == np.flatnonzero(held == end).tolist()
    assert passing(where(x=between(number, None)), columns) == np.flatnonzero(held >= end).tolist()
    assert passing(where(x=between(None, number)), columns) == np.flatnonzero(held <= end).tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("number", [1e39, -1e39, 1e300, -1e300, -math.inf, math.inf])
def test_numbers_beyond_those_of_a_dtype_equal_no_infinite_value(dtype, number):
    values = np.array([np.nan, -np.inf, -6e4, 0, 6e4, np.inf], dtype)
    exact, columns = values.astype("f8"), {"x": values}
    assert passing(where(x=[number, 0.0]), columns) == np.flatnonzero((exact == number) | (exact == 0)).tolist()
    assert passing(where(x=number), columns) == np.flatnonzero(exact == number).tolist()
    assert passing(where(x=between(number, None)), columns) == np.flatnonzero(exact >= number).tolist()
    assert passing(where(x=between(None, number)), columns) == np.flatnonzero(exact <= number).tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(("wanted", "rows"), [([math.nan, 1.0], [0]), ([math.nan], []), (math.nan, [])])
def test_nothing_equals_nan(dtype, wanted, rows):
    columns = {"x": np.array([1, np.nan, -np.nan, 0, 2], dtype)}
    assert passing(where(x=wanted), columns) == rows
    assert passing(~where(x=wanted), columns) == [row for row in range(5) if row not in rows]


@pytest.mark.parametrize("wanted", [True, 1, 1.0, [True], [1], [1.0], [1, 1.0]])
def test_booleans_are_one_and_zero(wanted):
    columns = {"x": np.array([True, False, True])}
    assert passing(where(x=wanted), columns) == [0, 2]
    assert passing(~where(x=wanted), columns) == [1]
    assert passing(where(x=[0.0, 1]), columns) == [0, 1, 2]


@pytest.mark.parametrize("wanted", [2, [2], [1, 2], 2.0, [2.0], 0.5, [0.5], [math.inf], [65504], [-1]])
def test_no_boolean_is_another_number(wanted):
    with pytest.raises(PredicateError, match="x: bool"):
        passing(where(x=wanted), {"x": np.array([True, False, True])})


@pytest.mark.parametrize("kind", [pa.decimal128(3, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)], ids=str)
def test_decimals_are_compared_exactly(kind):
    held = [Decimal("1.50"), Decimal("2.00"), None, Decimal("-3.25")]
    columns = {"x": pa.array(held, kind)}
    for wanted, rows in [
        (1.5, [0]),
        (Decimal("1.50"), [0]),
        ([2, 2**64 - 1], [1]),
        ([1.5, 2.0], [0, 1]),
        (between(-10, 1.5), [0, 3]),
        (between(2**63, None), []),
        (-(2**63), []),
    ]:
        assert passing(where(x=wanted), columns) == rows
        assert passing(~where(x=wanted), columns) == [row for row in (0, 1, 3) if row not in rows]


def test_null_in_a_list_is_null():
    columns = {"x": pa.array([1, None, 2**40]), "s": pa.array(["a", None, "b"])}
    assert passing(where(x=[None, 1]), columns) == [0, 1]
    assert passing(where(x=[None, 2**63]), columns) == [1]
    assert passing(where(s=[None, "a"]), columns) == [0, 1]


DAY = dt.datetime(2024, 1, 1)
NULLABLE = {
    "int": ([1, None, 2, 0], [1, 2, True, False, [1], [0, 2], [], [1.5, 2.0], between(1, 2), 2**63]),
    "float": ([1.0, None, 0.1, 0.0], [1, 0.1, 0.0, [0.1], [0.1, 0], [math.nan], between(None, 0.1)]),
    "bool": ([True, None, False, True], [True, 0, [1], [True, False]]),
    "text": (
        ["a", None, "b", "2024-01-01"],
        ["a", ["a"], ["a", "b"], between("a", None), "2024-01-01", ["2024-01-01"]],
    ),
    "time": ([DAY, None, DAY + dt.timedelta(1), DAY], [DAY, [DAY], "2024-01-01", ["2024-01-01", "2024-01-09"]]),
}


@pytest.fixture(scope="module")
def nullable(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nullable")
    with h5py.File(folder / "a.h5", "w") as file:
        file["i"] = np.arange(4)
    pq.write_table(
        pa.table({"i": range(4), **{name: values for name, (values, _) in NULLABLE.items()}}), folder / "t.pq"
    )
    index = FileOptions.of(folder / "a.h5", sidecar=Sidecar(folder / "t.pq", on="i")).index()
    return lambda predicate: index.select(predicate).tolist()


@pytest.mark.parametrize("name", NULLABLE)
def test_a_comparison_with_null_chooses_no_row_and_neither_does_its_opposite(nullable, name):
    values, forms = NULLABLE[name]
    for wanted in forms:
        chosen, others = (nullable(each) for each in (where(**{name: wanted}), ~where(**{name: wanted})))
        assert sorted(chosen + others) == [0, 2, 3], wanted
        # After map_batches, blocks are filtered.
        in_block = RowChooser(*as_criteria({name: wanted}))(pa.chunked_array([values])).to_pylist()
        assert in_block == [None if row == 1 else row in chosen for row in range(4)], wanted
        if not isinstance(wanted, Compared):
            with_null = [*(wanted if isinstance(wanted, list) else [wanted]), None]
            assert nullable(where(**{name: with_null})) == sorted([*chosen, 1]), wanted
            assert nullable(~where(**{name: with_null})) == others, wanted


@pytest.mark.parametrize("flip", [False, True])
def test_a_list_of_days_and_times(flip):
    columns = {"x": np.array(["2020-01-02T00", "2020-01-02T05", "2020-01-04T00", "2020-01-04T05"], "M8[us]")}
    wanted = [dt.date(2020, 1, 4), dt.datetime(2020, 1, 2, 5)]  # pyarrow makes days of both
    assert passing(where(x=wanted[::-1] if flip else wanted), columns) == [1, 2]
    assert passing(where(x=between(dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, 6))), columns) == [0, 1]


FINER = [
    (pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("us", "UTC"), pa.timestamp("ns", "+02:00")),
    (pa.date64(), pa.timestamp("us")),
    (pa.time32("s"), pa.time64("ns")),
    (pa.duration("ms"), pa.duration("us")),
    (pa.decimal128(9, 2), pa.decimal128(20, 9)),
]


@pytest.mark.parametrize(("kind", "finer"), FINER, ids=str)
def test_times_and_decimals_are_compared_with_many_in_one_pass(kind, finer, monkeypatch):
    """What is finer than a type, or more than it holds, equals none of its values."""
    day, is_decimal = 86_400_000, pa.types.is_decimal(kind)
    numbers = [Decimal(number) for number in range(5)] if is_decimal else [0, day, 2 * day, 3 * day, 4 * day]
    numbers = list(range(5)) if pa.types.is_time(kind) else numbers
    width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    held = pa.array(numbers, kind) if is_decimal else pa.array(numbers, width).cast(kind)
    others = [value.cast(finer) for value in (held[1], held[3])]
    steps = (
        [Decimal(n) / 10**9 for n in range(1, 300)] if is_decimal else pa.array(range(1, 300), pa.int64()).cast(finer)
    )
    others += [None, *(pa.scalar(step, finer) if is_decimal else step for step in steps)]
    if pa.types.is_timestamp(finer):
        others.append(dt.datetime(9000, 1, 1, tzinfo=dt.timezone.utc if finer.tz else None))
    values, passes, equal = pa.chunked_array([held, pa.array([None], kind)]), [], pc.equal
    monkeypatch.setattr(pc, "equal", lambda one, other: passes.append(1) or equal(one, other))
    found = compared("x", Compared("equal", tuple(others)), values)
    assert found.to_pylist() == [False, True, False, True, False, True]
    assert len(passes) < 10
