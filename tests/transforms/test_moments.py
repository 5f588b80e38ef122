import json
import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import NonFiniteError, OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.transforms.moments import Moments

AXES = {2: [None, 0, (0, 1), (0, -1)], 3: [None, 0, (0, 1), (0, 2), (2, 0), (0, -1)]}
DTYPES = ["f8", "f4", "f2", "i1", "u2", "i4", "i8", "?", ">f4"]


def numpys(rows, axis):
    """Count, mean, standard deviation by numpy, in long double."""
    rows = rows.astype(np.longdouble)
    return rows.size // rows.mean(axis=axis).size, rows.mean(axis=axis), rows.std(axis=axis)


@st.composite
def batches(draw):
    shape = draw(st.sampled_from([(1, 3), (40, 3), (7, 2, 5), (300, 2, 40), (3, 50, 700), (65, 1, 1)]))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.standard_normal(shape)
    if dtype.kind == "f" and dtype.itemsize > 2:
        rows += draw(st.sampled_from([0.0, -3.0, 1e8 if dtype.itemsize == 8 else 1e4]))
    if dtype.kind in "iu":
        rows = np.abs(rows) * 20
    return rows.astype(dtype), draw(st.sampled_from(AXES[len(shape)]))


@given(batches())
def test_moments_are_numpys(case):
    rows, axis = case
    moments = Moments.of(rows, axis)
    count, mean, std = numpys(rows, axis)
    assert (moments.count == count).all()
    np.testing.assert_allclose(moments.mean.reshape(np.shape(mean)), mean.astype("f8"), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(moments.std().reshape(np.shape(std)), std.astype("f8"), rtol=1e-7, atol=1e-12)
    assert np.broadcast_shapes(moments.mean.shape, rows.shape[1:]) == rows.shape[1:]


@given(st.integers(0, 2**32), st.sampled_from([None, 0, (0, 2)]), st.sampled_from([0.0, 1e8]), st.randoms())
def test_merging_in_any_order_gives_the_moments_of_the_whole(seed, axis, mean, random):
    rows = np.random.default_rng(seed).standard_normal((60, 3, 7)) + mean
    cuts = sorted(random.sample(range(61), 5))
    parts = [Moments.of(part, axis) for part in np.split(rows, cuts)]  # some of them empty
    while len(parts) > 1:
        random.shuffle(parts)
        parts.append(parts.pop().merge(parts.pop()))
    _, expected_mean, expected_std = numpys(rows, axis)
    assert (parts[0].count == Moments.of(rows, axis).count).all()
    np.testing.assert_allclose(parts[0].mean.squeeze(), expected_mean.astype("f8"), rtol=1e-14, atol=1e-13)
    np.testing.assert_allclose(parts[0].std().squeeze(), expected_std.astype("f8"), rtol=1e-8)


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_nan_omitted_is_numpys_nanmean(axis):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 4)).astype("f4") + 1e3
    rows[rng.random(rows.shape) < 0.3] = np.nan
    rows[:, 0] = np.nan
    rows[7, 0] = 5
    moments = Moments.of(rows[:20], axis, "omit").merge(Moments.of(rows[20:], axis, "omit"))
    assert (moments.count.squeeze() == np.sum(~np.isnan(rows), axis=axis)).all()
    np.testing.assert_allclose(moments.mean.squeeze(), np.nanmean(rows, axis=axis, dtype="f8"), rtol=1e-14)
    np.testing.assert_allclose(moments.std().squeeze(), np.nanstd(rows.astype("f8"), axis=axis), rtol=1e-10)


@pytest.mark.parametrize("value", [0.1, -(1e300**0.5), 1e8 + 0.3, 0.0])
@pytest.mark.parametrize("nan_policy", ["raise", "omit"])
def test_a_constant_is_constant_also_after_merging(value, nan_policy):
    rows = np.full((1001, 3), value)
    rows[:, 1] = np.arange(1001)
    moments = Moments.of(rows[:17], 0, nan_policy).merge(Moments.of(rows[17:], 0, nan_policy))
    assert moments.constant().tolist() == [True, False, True]


@given(st.sampled_from(["i8", ">i8", "u8", "i4"]), st.sampled_from([1, 2, 700, 2**30]), st.integers(0, 2**32))
def test_integers_have_the_deviation_that_exact_arithmetic_gives(dtype, spread, seed):
    values = np.random.default_rng(seed).integers(0, spread, 400).astype(dtype) + 7
    whole = reduce(Moments.merge, [Moments.of(part, 0) for part in np.split(values, [3, 40, 40, 333])])
    exact = values.tolist()
    squares = len(exact) * sum(each**2 for each in exact) - sum(exact) ** 2
    assert whole.constant() == (squares == 0)
    np.testing.assert_allclose(whole.std(), math.sqrt(squares) / len(exact), rtol=1e-12)
    np.testing.assert_allclose(whole.mean, sum(exact) / len(exact), rtol=1e-14)


@pytest.mark.parametrize(
    ("rows", "axis", "policy", "error", "words"),
    [
        (
            [[1.0, np.nan]],
            None,
            "raise",
            NonFiniteError,
            "1 NaN and 0 infinite of 2 values, the first, nan at 1, in row 0",
        ),
        ([1.0, np.inf], 0, "omit", NonFiniteError, "1 infinite of 2 values, the first, inf, in row 1"),
        ([-np.inf, np.nan, -np.inf], 0, "omit", NonFiniteError, "1 NaN and 2 infinite of 3 values, the first, -inf"),
        ([[1e200], [-1e200]], 0, "raise", NonFiniteError, "too large for their squares"),
        ([[1e200], [2e200], [np.nan]], 0, "omit", NonFiniteError, "too large for their squares"),
        ([[1.0]], 1, "raise", OptionError, "expected axis 0, the rows"),
        ([[1.0]], (0, 2), "raise", OptionError, "there is no axis 2 in a batch of 2 axes"),
        ([[1.0]], (1, 2), "raise", OptionError, r"expected axis 0, the rows, among them, such as \(0, 1, 2\)"),
        ([[1.0]], (), "raise", OptionError, "expected axis 0, the rows, among them, 0 for each element"),
        ([[1.0]], -1, "raise", OptionError, r"expected axis 0, the rows, among them, such as \(0, -1\)"),
        ([[1.0]], 1.0, "raise", OptionError, "axis=1.0: expected an integer"),
        (1.0, None, "raise", OptionError, "expected a batch"),
        ([[1.0]], None, "skip", OptionError, "expected 'raise' or 'omit'"),
        ([["a"]], None, "raise", UnsupportedColumnError, "expected real numbers"),
        ([[1j]], None, "raise", UnsupportedColumnError, "expected real numbers"),
    ],
)
def test_errors(rows, axis, policy, error, words):
    with pytest.raises(error, match=words):
        Moments.of(np.array(rows), axis, policy)


def test_counts_of_a_state_are_those_of_int64():
    state = Moments.of(np.zeros((3, 1)), 0).to_dict()
    assert Moments.from_dict({**state, "count": [2**63 - 1]}).count.tolist() == [2**63 - 1]
    for count in (2**63, 10**30, 10**400):
        with pytest.raises((OptionError, OverflowError), match=r"counts below|too large"):
            Moments.from_dict({**state, "count": [count]})


def test_only_the_same_can_be_merged():
    rows = np.zeros((4, 3, 3))
    with pytest.raises(SchemaMismatchError, match="cannot be merged"):
        Moments.of(rows, (0, 1)).merge(Moments.of(rows, (0, 2)))
    with pytest.raises(SchemaMismatchError, match="cannot be merged"):
        Moments.of(rows, 0).merge(Moments.of(rows[:, :2], 0))


def test_json_keeps_every_bit():
    moments = Moments.of(np.random.default_rng(0).standard_normal((9, 2, 3)) / 3, (0, 2))
    back = Moments.from_dict(json.loads(json.dumps(moments.to_dict())))
    assert back.axis == (0, 2)
    assert back.count.dtype == np.int64
    for name in ("count", "mean", "m2"):
        assert np.array_equal(getattr(back, name), getattr(moments, name))


def test_what_is_not_finite_is_found_by_its_row_id():
    rows = np.zeros((5, 3, 4), "f4")
    rows[3, 1, 2] = np.inf
    with pytest.raises(NonFiniteError, match=r"the first, inf at \(1, 2\), in the row with row_id 103; remove"):
        Moments.of(rows, 0, row_ids=np.arange(100, 105))
    with pytest.raises(NonFiniteError, match=r"in row 3 of its batch \(read_h5\(..., include_row_ids=True\)"):
        Moments.of(rows, 0)


def test_values_too_large_are_an_error_however_they_are_cut():
    rows = np.repeat([1.5e154, -1.5e154], 50)
    for merge in (lambda: Moments.of(rows), lambda: Moments.of(rows[:50]).merge(Moments.of(rows[50:]))):
        with pytest.raises(NonFiniteError, match="too large for their squares"):
            merge()
    # But a constant has no squares to speak of, also next to a part without values.
    large = Moments.of(rows[:0]).merge(Moments.of(rows[:50]))
    assert (large.mean, large.m2, large.count) == (1.5e154, 0, 50)


@pytest.mark.parametrize(
    "damage",
    [
        {"m2": [-1.0, 1.0]},
        {"m2": [None, 1.0]},
        {"m2": [1.0]},
        {"m2": ["a", 1.0]},
        {"mean": [float("nan"), 0.0]},
        {"mean": []},
        {"count": [1.5, 2]},
        {"count": [-1, 2]},
        {"shape": None},
        {"shape": [3]},
        {"axis": None},
        {"axis": [1]},
        {"axis": [0, 1]},
        {"axis": [0, 5]},
        {"axis": ["a"]},
    ],
)
def test_what_are_no_moments(damage):
    state = Moments.of(np.arange(6.0).reshape(3, 2), 0).to_dict()
    with pytest.raises((TypeError, ValueError)):
        Moments.from_dict({**state, **damage})
    with pytest.raises(KeyError):
        Moments.from_dict({name: value for name, value in state.items() if name not in damage})
