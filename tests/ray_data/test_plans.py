"""What was planned once is not planned again: not in the next epoch, and not by the process that splits a dataset."""

import pytest
import ray

import ray_h5
from ray_h5.planning.facts import Scope
from ray_h5.ray_data.internals import datasources
from ray_h5.ray_data.tasks import Plans

pytestmark = pytest.mark.usefixtures("ray_local")


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


def test_another_process_gets_the_plan(filtered):
    rows = filtered.count()
    assert 0 < rows < 50
    assert ray.get(planned_elsewhere.remote(filtered)) == rows


def test_what_another_process_needs_for_a_plan_goes_with_the_dataset(filtered):
    filtered.count()
    # Another selection of columns is another plan, from the same values of the predicate.
    assert ray.get(planned_elsewhere.remote(filtered.select_columns(["wide"]))) == filtered.count()


def test_a_plan_that_others_took_the_place_of_is_still_read(filtered):
    (source,) = datasources(filtered)
    plan = source.plan()
    plans = Plans()
    assert ray.get(plans.reference(plan)).num_rows == plan.num_rows


def test_an_epoch_plans_nothing_anew(filtered, monkeypatch):
    rows = sum(len(batch["wide"]) for batch in filtered.iter_batches())
    made = []
    monkeypatch.setattr(ray_h5.H5Datasource, "_make_plan", lambda *_: made.append(1))
    assert sum(len(batch["wide"]) for batch in filtered.iter_batches()) == rows
    assert made == []
