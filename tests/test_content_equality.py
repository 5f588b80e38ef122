"""Plans compare, print and pickle."""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.value_type import ValueType
from ray_h5.order.block_layout import Tail
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.predicates.criteria import Criterion, any_equal, between
from tests.index.kit import plan_files

OPTIONS = [
    {},
    {"shuffle": Shuffle("rows", 1)},
    {"shuffle": Shuffle("chunks", 1, 4), "predicate": pc.field("label") >= 1},
    {"shuffle": Shuffle("files", 1), "dtypes": {"label": "i8"}},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_equal_plans_are_equal(five_files, options):
    index, plan = plan_files(five_files, **options)
    MEMORY.clear()
    for other_index, other in (plan_files(five_files, **options), pickle.loads(pickle.dumps((index, plan)))):
        assert other == plan
        assert hash(other) == hash(plan)
        assert (other_index, other.order, other.files) == (index, plan.order, plan.files)
        assert len({plan, other}) == 1


def test_other_plans_are_not_equal(five_files):
    plans = [plan_files(five_files, **options)[1] for options in OPTIONS]
    first = plans[2]
    plans += [
        replace(first, selection=first.selection[1:]),
        replace(first, selection=np.where(first.selection == 1, 0, first.selection)),
        replace(first, selection=first.selection.astype(np.int32)),
        replace(first, tail=Tail("drop", 2)),
        replace(first, block_rows=first.block_rows + 1),
        replace(first, files=replace(first.files, starts=first.files.starts + 1)),
        replace(first, files=replace(first.files, paths=pa.array([b"/a"] * 5, pa.large_binary()))),
    ]
    assert [[one == other for other in plans] for one in plans] == np.eye(len(plans), dtype=bool).tolist()
    assert first != 3
    assert first.files != first


def test_criteria_compare():
    assert Criterion("x", np.arange(3)) == Criterion("x", np.arange(3)) != Criterion("x", np.arange(4))
    assert Criterion("x", between(0, 1)) != Criterion("x", any_equal(0)) != Criterion("y", any_equal(0))


@pytest.mark.parametrize("dtype", ["f4", ">f8", "c16", [("a", "f8"), ("b", "i4")], "M8[s]"])
def test_a_fill_value_that_is_no_number_equals_itself(dtype):
    one, other = (np.zeros((), dtype) for _ in range(2))
    if one.dtype.kind in "fcM":
        one[...] = other[...] = "NaT" if one.dtype.kind == "M" else np.nan
    else:
        one["a"] = other["a"] = np.nan
    layout = ColumnLayout("x", ValueType("number", one.dtype), 3, fill=one)
    assert layout == replace(layout, fill=other)
    assert hash(layout) == hash(replace(layout, fill=other))
    assert layout != replace(layout, fill=np.zeros((), dtype))
    assert layout != replace(layout, fill=other.reshape(1))
