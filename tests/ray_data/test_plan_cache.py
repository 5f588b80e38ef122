"""What was planned once is not planned again: not in the next epoch, and not by the process that splits a dataset."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
from ray.data.expressions import col, lit

import ray_h5
from ray_h5.predicates.evaluate import fingerprint
from ray_h5.ray_data import datasource
from ray_h5.ray_data.datasource import PlanCache
from ray_h5.ray_data.ray_internals import datasources
from ray_h5.scope import Scope

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
def test_an_epoch_plans_nothing_anew(filtered, monkeypatch, caplog):
    made = []
    caplog.set_level("INFO", "ray_h5")
    monkeypatch.setattr(datasource, "describe", lambda plan: made.append(plan) or "a plan that only this test has")
    rows = sum(len(batch["wide"]) for batch in filtered.iter_batches())
    assert len(made) == 1
    assert "reading a plan that only this test has" in caplog.text
    made.clear()
    monkeypatch.setattr(ray_h5.H5Datasource, "_make_plan", lambda *_: made.append(1))
    assert sum(len(batch["wide"]) for batch in filtered.iter_batches()) == rows
    assert made == []


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


def test_a_plan_whose_predicate_cannot_be_written_down_is_made_again():
    plans, made = PlanCache(), []
    by_number = pc.field(0) > 1
    assert fingerprint(by_number) is None
    for _ in range(2):
        plans.get((fingerprint(by_number), ("x",)), lambda: made.append(1))
    assert len(made) == 2
