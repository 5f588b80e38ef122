"""Weights, balance and virtual epochs. Statistical tests have fixed seeds: each fails for one seed in 10,000."""

import dataclasses
import pickle
from collections import Counter

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest
from scipy.special import chdtrc

from ray_h5.errors import OptionError, PositionError, UnknownColumnError
from ray_h5.order.block_layout import Tail
from ray_h5.order.epoch_order import Order
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.shuffle_effect import describe
from ray_h5.torch_data import H5Dataset, OrderSampler, Position, Shuffle, balance, between, where
from tests.golden.layouts import encoded
from tests.index.kit import plan_files
from tests.order.kit import epoch_of, plan_of, resume

FALSE_ALARMS = 1e-4
"""How often a statistical test would fail for another seed."""

SIZES = [12, 0, 20, 8]
LABELS = np.array(["a"] * 4 + ["b"] * 6 + ["c"] * 30)
SITES = np.arange(40) % 2
WEIGHTS = np.where(np.arange(40) % 5 == 0, 0, np.arange(40) % 7 + 1.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of 40 rows: labels a, b, c of 4, 6 and 30 rows; weights; chunks of 4 rows of `x`."""
    folder = tmp_path_factory.mktemp("draws")
    paths, first = [], 0
    for i, rows in enumerate(SIZES):
        here = np.arange(first, first + rows)
        path = folder / "ab"[i // 2] / f"f{i}.h5"
        path.parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as file:
            x = np.repeat(here[:, None], 8, axis=1).astype("f4")
            file.create_dataset("x", data=x, chunks=(4, 8), maxshape=(None, 8), compression="gzip")
            file["label"] = LABELS[here].astype(h5py.string_dtype())
            file["site"] = SITES[here]
            file["w"] = WEIGHTS[here]
            file["bad"] = np.where(here == 33, np.nan, here)
            file["below"] = here - 30
            file["zero"] = here * 0
            file["float"] = np.where(LABELS[here] == "a", -0.0, np.where(LABELS[here] == "b", 0.0, 1.5))
        paths.append(str(path))
        first += rows
    return paths


def is_likely(found, expected):
    """Whether counts are those of the expected shares."""
    expected = np.asarray(expected, float)
    assert not np.asarray(found)[expected == 0].any()
    drawn = expected > 0
    shares = expected[drawn] / expected[drawn].sum()
    return chi_squared(np.asarray(found)[drawn], shares * np.sum(found)) > FALSE_ALARMS


def chi_squared(found, expected):
    """Return the p-value of counts; scipy.stats takes a second to import."""
    return chdtrc(len(found) - 1, ((found - expected) ** 2 / expected).sum())


# Independent draws ------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["w", WEIGHTS, WEIGHTS.tolist(), WEIGHTS.astype("f4"), WEIGHTS.astype("u1")])
def test_rows_are_drawn_by_their_weights(files, weights):
    plan = plan_of(files, Shuffle("rows", 3, weights=weights, rows_per_epoch=20_000))
    found = epoch_of(plan)
    assert len(found) == plan.num_positions == 20_000
    assert is_likely(np.bincount(found, minlength=40), WEIGHTS)
    assert found.tolist() == epoch_of(plan_of(files, Shuffle("rows", 3, weights="w", rows_per_epoch=20_000))).tolist()
    # Neighbours are independent of each other, and so are epochs.
    heavy = WEIGHTS[found] >= 6
    for other in (np.roll(heavy, 1), WEIGHTS[epoch_of(plan, 1)] >= 6):
        both = np.histogram2d(heavy, other, 2)[0]
        alone = np.outer(both.sum(1), both.sum(0)) / both.sum()
        assert chdtrc(1, ((both - alone) ** 2 / alone).sum()) > FALSE_ALARMS


def test_chunk_groups_are_drawn_by_their_summed_weights(files):
    plan = plan_of(files, Shuffle("chunks", 5, 16, weights="w", rows_per_epoch=16))
    assert plan.order.draws.window_groups == 4
    drawn = np.concatenate([epoch_of(plan, epoch) for epoch in range(3_000)])
    # The rows of a window are not independent: one row of each of them.
    for place in (0, 7):
        assert is_likely(np.bincount(drawn[place::16], minlength=40), WEIGHTS)
    for window in drawn.reshape(-1, 16)[:500]:
        groups = {(int(np.searchsorted([12, 32], row, side="right")), row // 4) for row in window.tolist()}
        assert len(groups) <= 4
    even = plan_of(files, Shuffle("chunks", 5, 16, weights="w"))
    listed = plan_of(files, Shuffle("chunks", 5, 16, weights="w"), predicate=pc.field("site") < 2)
    assert listed.order.chunk_groups is not None
    assert listed.order.chunk_groups.size is None
    assert epoch_of(even).tolist() == epoch_of(listed).tolist()


# Balance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (None, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
        ({"a": 0.5}, {"a": 0.5, "b": 0.25, "c": 0.25}),
        ({"a": 0.5, "b": 0.2}, {"a": 0.5, "b": 0.2, "c": 0.3}),
        ({"a": 0.2, "b": 0.3, "c": 0.5}, {"a": 0.2, "b": 0.3, "c": 0.5}),
        ({np.str_("a"): 0.0}, {"b": 0.5, "c": 0.5}),
        ({"a": 1}, {"a": 1.0}),
    ],
)
@pytest.mark.parametrize("unit", ["auto", "rows"])
def test_classes_are_drawn_by_their_shares_and_rows_of_a_class_equally(files, unit, shares, expected):
    plan = plan_of(files, Shuffle(unit, 2, weights=balance("label", shares), rows_per_epoch=20_000))
    assert plan.order.shuffle.unit == "rows"
    weights = np.array([expected.get(label, 0) / (label == LABELS).sum() for label in LABELS.tolist()])
    assert is_likely(np.bincount(epoch_of(plan), minlength=40), weights)


def test_both_zeros_are_one_class(files):
    plan = plan_of(files, Shuffle(seed=2, weights=balance("float", {0.0: 0.75}), rows_per_epoch=20_000))
    weights = np.where(LABELS == "c", 0.25 / 30, 0.75 / 10)
    assert is_likely(np.bincount(epoch_of(plan), minlength=40), weights)


def test_several_columns_make_a_class_of_each_combination(files):
    shares = balance(["label", "site"], {("a", 1): 0.75})
    found = epoch_of(plan_of(files, Shuffle(weights=shares, rows_per_epoch=20_000)))
    counts = Counter(zip(LABELS[found].tolist(), SITES[found].tolist(), strict=True))
    expected = {(label, site): 0.75 if (label, site) == ("a", 1) else 0.05 for label in "abc" for site in (0, 1)}
    assert is_likely([counts[each] for each in expected], [*expected.values()])


def test_shares_by_file(files):
    folder = files[0].rsplit("/", 2)[0]
    for shares in ({"a/*.h5": 0.3, "b/*.h5": 0.7}, {f"{folder}/a/*": 0.3, "b/f*": 0.7}):
        found = epoch_of(plan_of(files, Shuffle(weights=shares, rows_per_epoch=20_000)))
        assert is_likely(np.bincount(found, minlength=40), np.repeat([0.3 / 12, 0.7 / 28], [12, 28]))


def test_classes_of_chunks_are_drawn_if_that_is_said(files):
    plan = plan_of(files, Shuffle("chunks", 5, 16, weights=balance("label")))
    assert plan.order.draws.window_groups == 4
    drawn = np.concatenate([epoch_of(plan, epoch) for epoch in range(3_000)])[::16]
    counts = [(LABELS[drawn] == label).sum() for label in "abc"]
    assert is_likely(counts, np.ones(3))


# Virtual epochs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 39, 40, 41, 100])
@pytest.mark.parametrize("unit", ["rows", "chunks", "files"])
def test_epochs_of_other_lengths_continue_each_other(files, unit, count):
    plan = plan_of(files, Shuffle(unit, 3, rows_per_epoch=count))
    assert plan.num_positions == count
    found = np.concatenate([epoch_of(plan, epoch) for epoch in range(-(-120 // count))])[:120]
    whole = plan_of(files, Shuffle(unit, 3))
    assert found.tolist() == np.concatenate([epoch_of(whole, epoch) for epoch in range(3)]).tolist()


# All of them ------------------------------------------------------------------------------------

ALL = {
    "weights": {"weights": "w"},
    "chunks": {"unit": "chunks", "window_rows": 8, "weights": "w", "rows_per_epoch": 50},
    "balance": {"weights": balance("label")},
    "shares": {"weights": balance("label", {"a": 0.5}), "rows_per_epoch": 53},
    "by file": {"weights": {"a/*.h5": 0.3, "b/*.h5": 0.7}, "rows_per_epoch": 61},
    "virtual": {"rows_per_epoch": 47},
}


@pytest.fixture(params=list(ALL))
def shuffle(request):
    return Shuffle(**{"unit": "rows", "seed": 7, **ALL[request.param]})


def test_a_position_of_other_draws_is_refused(files, shuffle):
    plan = plan_of(files, shuffle)
    position = dataclasses.replace(start_of(plan, 1), rows=4)
    for other in (Shuffle("rows", 7), Shuffle("rows", 7, rows_per_epoch=48), Shuffle("rows", 7, weights="site")):
        with pytest.raises(PositionError, match=r"What differs: .*(rows_per_epoch|weights|shuffled by)"):
            resume(plan_of(files, other), position)
    old = dataclasses.replace(start_of(plan_of(files, Shuffle("rows", 7)), 1), rows=4).to_dict()
    old["plan"] = {name: value for name, value in old["plan"].items() if name not in ("rows_per_epoch", "draws")}
    assert resume(plan_of(files, Shuffle("rows", 7)), Position.from_dict(old)).epoch == 1


def test_a_row_that_repeats_in_a_block_is_decoded_once(files):
    weights = np.where(np.isin(np.arange(40), [3, 14, 15]), 1, 0)
    plan = plan_of(files, Shuffle("rows", 0, weights=weights, rows_per_epoch=64), block_rows=64)
    block = read_block(plan, start_of(plan), 0)
    assert set(block.rows.row_ids) == {3, 14, 15}
    assert block.rows.arrays["x"][:, 0].tolist() == block.rows.row_ids.tolist()
    assert block.rows.stats.chunks_decoded == 2  # rows 14 and 15 share one


def test_no_more_chunks_are_mixed_than_rows_are_selected(files):
    plan = plan_of(files, Shuffle("rows"), predicate=pc.field("site") == 0)
    assert 0 < plan.num_rows < 40
    plan = dataclasses.replace(plan, chunk_group_rows=1)
    assert f"{plan.num_rows} chunks mixed in a window of {plan.num_rows} rows" in describe(plan)


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("bad", r"b/f3.h5, row 1: column 'bad' is nan: expected a weight"),
        ("below", r"f0.h5, row 0: column 'below' is -30"),
        ("zero", "sum of the weights of 40 selected rows is 0"),
        ("label", r"column of numbers, found .*weights=balance\('label'\)"),
        ("x", r"column 'x' holds an array of shape \(8,\) a row"),
        (np.zeros(40), "is 0"),
        (np.full(40, 1e308), "is infinite"),
        (np.ones(39), "expected 40, one for each row of the files"),
        (balance("bad"), "row 1: column 'bad' is NaN, which is no class"),
        (balance("x"), "holds an array"),
        (balance("label", {"d": 0.5}), r"no selected row is of class 'd'; there are 3 classes: 'a', 'b', 'c'"),
        (balance("label", {"a": 0.5, "b": 0.2, "c": 0.2}), "all 3 classes have a share; expected the sum 1"),
        (balance("label", {"a": 0.5, "b": 0.25, "c": 0.249985}), "all 3 classes have a share; expected the sum 1"),
        ({"a/*": 0.5, "c/*": 0.5}, r"f2.h5 has no share|'c/\*' has no file"),
        ({"a/*": 0.5, "*.h5": 0.5}, r"f0.h5 matches 'a/\*', '\*.h5'; expected exactly one pattern"),
        ({"*/f[023].h5": 0.5, "f1.h5": 0.5}, "'f1.h5' has no selected row"),
    ],
)
def test_weights_that_cannot_be_drawn_by(files, weights, said):
    with pytest.raises(OptionError, match=said):
        plan_of(files, Shuffle("rows", weights=weights))


def test_what_a_predicate_leaves_out_may_have_any_weight(files):
    some = pc.field("site") == 0
    assert plan_of(files, Shuffle("rows", weights="bad"), predicate=some).num_positions == 20
    with pytest.raises(OptionError, match="no selected row is of class 'a'; there are 1 classes: 'c'"):
        plan_of(files, Shuffle(weights=balance("label", {"a": 0.5})), predicate=pc.field("label") == "c")
    with pytest.raises(UnknownColumnError, match="wight"):
        plan_of(files, Shuffle("rows", weights="wight"))
    index, plan = plan_files(files, columns=["x"])
    with pytest.raises(OptionError, match="only 5 rows are in an epoch"):
        make_plan(index, plan.columns, None, Shuffle("rows", rows_per_epoch=5), 8, None, Tail("drop", 16))
    nothing = plan_of(files, Shuffle("rows", weights="w"), predicate=pc.field("site") == 9)
    assert nothing.num_positions == 0


@pytest.mark.parametrize("options", [{"weights": "n"}, {"weights": balance("n")}, {"by_length": "n"}])
def test_selected_rows_without_a_value(tmp_path, options):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        encoded(file, "n", "nullable-integer", values=np.arange(9), mask=np.isin(np.arange(9), [3, 7]))
        file["x"] = np.arange(9)
    shuffle = Shuffle("rows", **options)
    for predicate, row, count in ((None, 3, 2), (where(x=between(4, 8)), 7, 1)):
        dataset = H5Dataset(tmp_path / "a.h5", predicate=predicate)
        with pytest.raises(OptionError, match=rf"row {row}: .* has no value here, and in {count} selected rows"):
            OrderSampler(dataset, shuffle=shuffle)
    some = H5Dataset(tmp_path / "a.h5", predicate=where(x=[0, 1, 2, 8]))
    assert {*some.row_ids(list(OrderSampler(some, shuffle=shuffle))).tolist()} <= {0, 1, 2, 8}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": [1, -2]}, r"weights\[1\]=-2: expected a finite number of 0 or more"),
        ({"weights": [1.0, np.nan]}, r"weights\[1\]=nan"),
        ({"weights": [1.0, np.inf]}, r"weights\[1\]=inf"),
        ({"weights": np.ones((2, 2))}, r"found a ndarray of dtype float64 and shape \(2, 2\)"),
        ({"weights": ["a"]}, "expected the name of a numeric column"),
        ({"weights": 3}, "expected the name of a numeric column"),
        ({"weights": {}}, "expected patterns of paths"),
        ({"weights": {"a": 0.5, 3: 0.5}}, "expected patterns of paths"),
        ({"weights": {"a": 0.5, "b": 0.4}}, "sum 1, found 0.9"),
        ({"weights": {"a": -0.5, "b": 1.5}}, "'a': share -0.5: expected a number from 0 to 1"),
        ({"rows_per_epoch": 0}, "rows_per_epoch=0: expected an integer of 1 or more"),
        ({"rows_per_epoch": 1.5}, "rows_per_epoch=1.5"),
        ({"rows_per_epoch": 2**63}, f"rows_per_epoch={2**63}: expected at most {2**40}"),
        ({"unit": "chunks", "window_rows": 2**63}, f"window_rows={2**63}: expected at most {2**63 - 1}"),
        ({"by_length": "n", "run_rows": 2**60}, f"run_rows={2**60}: expected at most {2**40}"),
        ({"replacement": False}, "no option 'replacement'. Weights draw each position independently"),
        ({"weights": pc.field("w") * 2}, r"weights=.*: expected the name of a numeric column.*pass it as an array"),
        ({"by_length": pc.field("w") * 2}, r"by_length=.*: expected the name of a column.*pass it as an array"),
        ({"weights": "w", "unit": "files"}, "expected unit='rows' or 'chunks'"),
    ],
)
def test_options_that_cannot_be_used(options, said):
    with pytest.raises(OptionError, match=said):
        Shuffle(**options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3,), "expected the name of a column"),
        (([],), "expected the name of a column"),
        ((["a", "a"],), "named twice"),
        (("a", {}), "expected shares as a dict"),
        (("a", "b"), "expected shares as a dict"),
        (("a", {"x": 2}), "'x': share 2: expected a number from 0 to 1"),
        (("a", {"x": 0.7, "y": 0.7}), "sum of at most 1"),
    ],
)
def test_balance_that_cannot_be_used(arguments, said):
    with pytest.raises(OptionError, match=said):
        balance(*arguments)


def test_shuffles_with_weights_are_values():
    for weights in ("w", np.arange(3), balance("a", {1: 0.5}), {"a": 1.0}):
        one, other = Shuffle(weights=weights), Shuffle(weights=weights)
        assert one == other
        assert hash(one) == hash(other)
        assert one != Shuffle()
        assert pickle.loads(pickle.dumps(one)) == one
    assert repr(Shuffle("rows", 7)) == "Shuffle(unit='rows', seed=7, window_rows=None)"  # in the hash of plans
    text = repr(Shuffle(weights=balance("a", {1: 0.5}), rows_per_epoch=5))
    assert text.endswith("window_rows=None, weights=balance('a', {1: 0.5}), rows_per_epoch=5)")
    assert repr(Shuffle(weights=np.arange(3))).endswith("weights=<3 numbers>)")


def test_epochs_that_cannot_be_counted():
    order = Order(8, Shuffle("rows", rows_per_epoch=1 << 40))
    assert len(order.selected_indices(np.arange(3), (1 << 23) - 2)) == 3
    for epoch in ((1 << 23) - 1, 1 << 40):
        with pytest.raises(OptionError, match="cannot be counted"):
            order.selected_indices(np.arange(3), epoch)
