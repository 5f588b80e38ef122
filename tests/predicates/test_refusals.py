"""Types that are not compared: text that stands for times is parsed, and the rest is refused in our words."""

import datetime as dt
import re

import h5py
import numpy as np
import pyarrow as pa
import pytest

from ray_h5.errors import PredicateError
from ray_h5.predicates.evaluate import evaluate
from ray_h5.torch_data import Groups, H5Dataset, any_equal, between, csr, ragged, where
from tests.kit.files import save

DAYS = np.array(["2024-01-30", "2024-01-31", "2024-02-01", "NaT"], "M8[D]")


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for unit in ("s", "ms", "us", "ns"):
            values = (DAYS + np.timedelta64(12, "h")).astype(f"M8[{unit}]")
            file.create_dataset(unit, data=values.astype(h5py.opaque_dtype(values.dtype)))
        file.create_dataset("day", data=DAYS.astype(h5py.opaque_dtype(DAYS.dtype)))
        file["text"] = np.array([str(day) for day in DAYS], dtype=h5py.string_dtype())
        file["x"] = np.arange(4)
        file["group"] = np.array([3, 10, 3, 4])
        file["good"] = np.array([True, False, True, True])
        file["bytes"] = np.array([b"ab", b"cd"] * 2).view("V2")
        file.create_dataset("list", (4,), h5py.vlen_dtype("f4"))
    return path


def rows(path, **criteria):
    return H5Dataset(path, ["x"], where(**criteria)).selection.tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_text_is_parsed_where_a_column_holds_times(path, unit):
    assert rows(path, **{unit: "2024-01-31T12"}) == [1]
    assert rows(path, **{unit: "2024-01-31 12:00:00.000"}) == [1]
    assert rows(path, **{unit: ["2024-01-30T12:00", "2024-02-01T12:00Z"]}) == [0, 2]
    assert rows(path, **{unit: between("2024-01-31", None)}) == [1, 2]
    assert rows(path, **{unit: between("2024-01-30 13:00", "2024-01-31T12:00:00")}) == [1]
    assert rows(path, **{unit: between(None, "2024-02-01")}) == [0, 1]
    assert rows(path, **{unit: ["2024-01-31", "2024-01-31T12:00"]}) == [1]  # a day is its midnight


@pytest.mark.parametrize("column", ["s", "ms", "us", "ns", "day"])
@pytest.mark.parametrize("wanted", ["2024-01", ["2024-01", "2024-02-01"], between("2024-01", None)], ids=str)
def test_a_month_is_refused_with_its_range(path, column, wanted):
    """pandas and xarray select the whole month; numpy takes its first day."""
    with pytest.raises(PredicateError, match=rf"'2024-01' is a month, and column '{column}' holds times") as raised:
        rows(path, **{column: wanted})
    advised = re.search(r"write (between\(.*?\))", str(raised.value))[1]
    assert rows(path, **{column: eval(advised, {"between": between})}) == [0, 1]


def test_days_and_text_of_days(path):
    for name in ("day", "text"):
        assert rows(path, **{name: "2024-01-31"}) == [1]
        assert rows(path, **{name: {"2024-01-31", "2024-02-01"}}) == [1, 2]
        assert rows(path, **{name: between("2024-01-31", "2024-02-01")}) == [1, 2]
    assert rows(path, text="2024-01-31", x=1) == [1]
    with pytest.raises(PredicateError, match="no sample matches"):
        rows(path, text="2024-01-31T00:00")  # text is compared as text
    assert H5Dataset(path, ["x"], ~where(day="2024-01-31") & where(x=between(0, 2))).selection.tolist() == [0, 2]


TEXT = "(?s)predicate: .* cannot be evaluated on .*: column "
REFUSED = {
    "a number as text": ({"group": "3"}, "'group' holds numbers, .*such as 3; found '3'"),
    "numbers as text": ({"group": between("3", None)}, "'group' holds numbers, .*such as 3; found '3'"),
    "other text": ({"group": "train"}, "'group' holds numbers, .* found 'train'$"),
    "text as a number": ({"text": 3}, "'text' holds text, .*such as '3'; found 3"),
    "text as numbers": ({"text": [7, 8]}, "'text' holds text, .*; found 7, 8"),
    "booleans": ({"good": "True"}, "'good' holds booleans, .*True and False only; found 'True'"),
    "booleans as fractions": ({"good": 0.5}, "'good' holds booleans, which are compared with True and False only"),
    "a list": ({"list": 3}, "'list' holds a list a row, and a predicate compares one value a row"),
    "a list and text": ({"list": "a"}, "'list' holds a list a row"),
    "times": ({"s": "yesterday"}, "'s' holds times, .* text such as '2024-01-31'"),
    "times as numbers": ({"s": between(3, None)}, "'s' holds times"),
    "no such day": ({"day": "2024-02-31"}, "'day' holds times"),
    "numbers as times": ({"x": dt.datetime(2024, 1, 1)}, "'x' holds numbers"),
    "bytes": ({"bytes": 3}, "'bytes' holds bytes, which are compared with bytes only"),
    "numbers as text of times": ({"x": "2024-01-01"}, "'x' holds numbers"),
}


@pytest.mark.parametrize(("criteria", "message"), REFUSED.values(), ids=REFUSED)
def test_the_rest_is_refused_in_our_words(path, criteria, message):
    with pytest.raises(PredicateError, match=TEXT + message) as caught:
        rows(path, **criteria)
    assert "kernel" not in str(caught.value)


def test_no_pair_of_types_speaks_of_kernels():
    columns = [
        pa.array([1, 2]), pa.array([1.0, 2]), pa.array(["a", "b"], pa.large_string()), pa.array([True, False]),
        pa.array(np.array([1, 2], "M8[s]")), pa.array(np.array([1, 2], "m8[s]")), pa.array([[1.0], []]),
        pa.array([{"a": 1}] * 2), pa.array([b"12", b"34"], pa.binary(2)), pa.array(np.array([1, 2], "f2")),
    ]  # fmt: skip
    values = [3, 1.5, "10", "b", True, dt.datetime(1970, 1, 1), dt.timedelta(1), b"1"]
    for column in columns:
        for value in values:
            for wanted in (value, [value], between(value, None)):
                assert "column 'c' holds" in (said(wanted, column) or "column 'c' holds"), (column.type, wanted)


def said(wanted, column):
    try:
        evaluate(where(c=wanted), {"c": column}, 2)
    except PredicateError as exc:
        return str(exc)
    return None


ARRAYS = {
    "steps": np.ones((4, 3)), "one_hot": np.ones((4, 5, 3)), "single": np.ones((4, 5, 1)),
    "image": np.ones((4, 3, 2, 2)), "texts": np.full((4, 2), b"1"), "mask": np.ones((4, 3), bool),
    "complex": np.ones(4, complex), "spectrum": np.ones((4, 3), complex),
    "events/x": np.ones(10), "events/offsets": [0, 1, 4, 4, 10],
    "cells/data": np.ones(4), "cells/indices": range(4), "cells/indptr": range(5), "cells/shape": [4, 4],
}  # fmt: skip
"""Four rows of arrays of many kinds."""


@pytest.mark.parametrize(
    ("column", "is_advised"),
    [
        ("steps", True), ("one_hot", True), ("single", True), ("mask", True), ("image", False), ("texts", False),
        ("complex", False), ("spectrum", False), ("events/x", False), ("cells", False),
    ],
)  # fmt: skip
def test_any_equal_is_advised_where_it_works(tmp_path, column, is_advised):
    path = save(tmp_path / "a.h5", ARRAYS)
    columns = ["steps", ragged("events/x", offsets="events/offsets"), csr("cells")]
    with pytest.raises(PredicateError, match="holds an array of shape") as raised:
        H5Dataset(path, columns, where(**{column: 1}))
    advised = re.search(r"write (where\(.*?\}\))[.]", str(raised.value))
    assert (advised is not None) == is_advised
    assert ("a class of a one-hot column occurs" in str(raised.value)) == (column == "one_hot")
    if advised is not None:
        predicate = eval(advised[1], {"where": where, "any_equal": any_equal, "value": 1})
        assert len(H5Dataset(path, columns, predicate)) == 4


def test_any_equal_is_advised_for_each_kind_of_row(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(4):
            file[f"g{i}/short"], file[f"g{i}/long"] = np.ones(3), np.ones(i + 1)
    with pytest.raises(PredicateError, match="any_equal"):
        H5Dataset(tmp_path, predicate=where(short=1), rows=Groups("g*"))
    assert len(H5Dataset(tmp_path, predicate=where(short=any_equal(1)), rows=Groups("g*"))) == 4
    with pytest.raises(PredicateError, match=r"\(\?,\)") as raised:
        H5Dataset(tmp_path, predicate=where(long=1), rows=Groups("g*"))
    assert "any_equal" not in str(raised.value)


def test_text_for_an_enum_names_its_integers(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4)
        file.create_dataset("kind", data=[0, 1, 1, 0], dtype=h5py.enum_dtype({"cat": 0, "dog": 1}, "i1"))
    message = r"numbers, which are compared with numbers only.*'dog'. 'kind' is an enum, .* compared: cat=0, dog=1"
    with pytest.raises(PredicateError, match=message):
        H5Dataset(tmp_path / "a.h5", ["x"], where(kind="dog"))
    assert len(H5Dataset(tmp_path / "a.h5", ["x"], where(kind=1))) == 2
