"""What was planned once is not planned again: not in the next epoch, and not by the process that splits a dataset."""

import itertools
import pickle

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
from ray.data.expressions import col, lit

import ray_h5
from ray_h5.index.file_opener import Scope
from ray_h5.predicates.evaluate import fingerprint
from ray_h5.ray_data.plan_cache import PlanCache
from ray_h5.ray_data.ray_internals import datasources

from .kit import ids_read

in_ray = pytest.mark.usefixtures("ray_local")


@ray.remote
def planned_elsewhere(ds):
    """Plan a dataset in a process that may open no file."""

    def refuse(*_, **__):
        raise AssertionError("a file was opened")

    opened, Scope.open = Scope.open, refuse
    try:
        return datasources(ds)[0].plan().num_rows
    finally:
        Scope.open = opened


@pytest.fixture
def filtered(signals):
    return ray_h5.read_h5(signals, columns=["wide"], shuffle=True).filter(expr=ray_h5.where(label=[1, 2]))


@in_ray
def test_another_process_gets_the_plan(filtered):
    rows = filtered.count()
    assert 0 < rows < 50
    assert ray.get(planned_elsewhere.remote(filtered)) == rows
    # Another selection of columns is another plan, from the same values of the predicate.
    assert ray.get(planned_elsewhere.remote(filtered.select_columns(["wide"]))) == rows


@in_ray
def test_an_epoch_plans_nothing_anew(filtered, monkeypatch):
    rows = sum(len(batch["wide"]) for batch in filtered.iter_batches())
    made = []
    monkeypatch.setattr(ray_h5.H5Datasource, "_make_plan", lambda *_: made.append(1))
    assert sum(len(batch["wide"]) for batch in filtered.iter_batches()) == rows
    assert made == []


NANS = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], "u8").view("f8")


@in_ray
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (col("f").is_in([0.0]), col("f").is_in([-0.0])),
        (col("f").is_in([0.0, 5.0]), col("f").is_in([-0.0, 5.0])),
        (col("one") / lit(0.0) > 0, col("one") / lit(-0.0) > 0),
        (col("i") + lit(pa.scalar(1, pa.int8())) > 0, col("i") + lit(1) > 0),
        (col("f") - lit(pa.scalar(0.1, pa.float32())) == 0, col("f") - lit(0.1) == 0),
        (col("s").str.contains("A", ignore_case=True), col("s").str.contains("A")),
        (ray_h5.where(s=["a", None]), ray_h5.where(s=["a"])),
    ],
)
def test_predicates_that_pyarrow_takes_for_equal_have_plans_of_their_own(tmp_path, one, other):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["f"] = np.array([0.0, -0.0, 5.0, 0.1, np.float32(0.1)])
        file["one"] = np.ones(5)
        file["i"] = np.array([1, 2, 3, 126, 127], "i1")
        file["s"] = np.array(["a", "A", "b", "", "a"], dtype=h5py.string_dtype())
    read = ray_h5.read_h5(tmp_path / "a.h5", include_row_ids=True)
    expected = [
        ids_read(ray_h5.read_h5(tmp_path / "a.h5", include_row_ids=True).filter(expr=each)) for each in (one, other)
    ]
    assert [ids_read(read.filter(expr=each)) for each in (one, other, one)] == [*expected, expected[0]]


def is_in(values, **options):
    return pc.is_in(pc.field("x"), values, **options)


x, y, z = pc.field("x"), pc.field("y"), pc.field("z")
EXPRESSIONS = [
    *(x == pa.scalar(value, pa.float64()) for value in (0.0, -0.0, *NANS.tolist())),
    *(is_in(pa.array(values)) for values in (NANS[:1], NANS[1:2], NANS[2:], [0.0], [-0.0], [0.0, -0.0], [-0.0, 0.0])),
    *(is_in(pa.array([1, None]), skip_nulls=skip) for skip in (True, False)),
    *(x == pa.scalar(1).cast(kind) for kind in (pa.int8(), pa.uint8(), pa.int64(), pa.float32(), pa.bool_())),
    *(is_in(pa.array([1]).cast(kind)) for kind in (pa.int8(), pa.int64(), pa.float64(), pa.bool_())),
    *(x == pa.scalar(None, kind) for kind in (pa.null(), pa.int8(), pa.int64())),
    *(x == pa.scalar(0, pa.timestamp(*kind)) for kind in (("s",), ("ms",), ("s", "UTC"), ("s", "+00:00"))),
    *(x == pa.scalar(0, pa.duration(unit)) for unit in ("s", "ms")),
    *(x == pa.scalar("a", kind) for kind in (pa.string(), pa.large_string(), pa.binary())),
    *(x == each for each in pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", "b"]))),
    *(x == pa.scalar([value]) for value in (0.0, -0.0)),
    *(x == pa.scalar({"a": value}) for value in (0.0, -0.0)),
    *(pc.match_substring(x, "a", ignore_case=ignore) for ignore in (True, False)),
    *(x.is_null(nan_is_null=nan) for nan in (True, False)),
    *(x.cast(pa.int8(), safe=safe) > 0 for safe in (True, False)),
    *(pc.field(*name) > 0 for name in (("a.b",), ("a", "b"), ("a",))),
    (x > 0) & (y > 0) & (z > 0),
    (x > 0) & ((y > 0) & (z > 0)),
]


def test_what_two_expressions_are_told_apart_by():
    found = [fingerprint(each) for each in EXPRESSIONS]
    assert None not in found
    alike = [pair for pair in itertools.combinations(range(len(found)), 2) if found[pair[0]] == found[pair[1]]]
    assert [(str(EXPRESSIONS[i]), str(EXPRESSIONS[j])) for i, j in alike] == []
    assert [fingerprint(pickle.loads(pickle.dumps(each))) for each in EXPRESSIONS] == found
    whole = pa.array(range(100))
    assert fingerprint(is_in(whole[10:12])) == fingerprint(is_in(pa.array([10, 11])))


def test_a_plan_whose_predicate_cannot_be_written_down_is_made_again():
    plans, made = PlanCache(), []
    by_number = pc.field(0) > 1
    assert fingerprint(by_number) is None
    for _ in range(2):
        plans.get((fingerprint(by_number), ("x",)), lambda: made.append(1))
    assert len(made) == 2
