import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import (
    ConstantColumnError,
    NonFiniteError,
    NotFittedError,
    OptionError,
    SchemaMismatchError,
    UnsupportedColumnError,
)
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.scaler import Scaler


def fitted(rows, axis=None, nan_policy="raise", **options):
    return Scaler(Moments.of(rows, axis, nan_policy), **options)


@given(
    st.integers(0, 2**32),
    st.sampled_from([None, 0, (0, 2), (0, 1)]),
    st.sampled_from(["f8", "f4", "f2", "u1", "i4", "?"]),
    st.sampled_from([(30, 3, 8), (2000, 3, 40)]),
)
def test_transform_is_numpys_arithmetic_and_inverse_undoes_it(seed, axis, dtype, shape):
    rows = (np.random.default_rng(seed).standard_normal(shape) * 9 + 20).astype("f8")
    rows = (rows > 20) if dtype == "?" else rows.astype(dtype)
    scaler = fitted(rows, axis)
    wide = rows.astype("f8")
    std = wide.std(axis=axis, keepdims=True)
    expected = (wide - wide.mean(axis=axis, keepdims=True)) / (std + 1e-8)
    found = scaler.transform(rows)
    assert found.dtype == (rows.dtype if rows.dtype.kind == "f" else np.float32)
    tolerance = {"f8": 1e-12, "f2": 4e-3}.get(dtype, 2e-6)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(scaler.inverse(found), wide, rtol=tolerance * 10, atol=tolerance * 30)
    # One row is scaled as in its batch, and a tensor as an array is.
    assert np.array_equal(scaler.transform(rows[5]), found[5])
    assert np.array_equal(scaler.transform(torch.from_numpy(rows)).numpy(), found)
    assert np.array_equal(scaler.inverse(torch.from_numpy(found)).numpy(), scaler.inverse(found))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_digits_are_kept_with_large_means(dtype):
    rows = (np.random.default_rng(0).standard_normal((5000, 4)) * 1000 + 1e8).astype(dtype)
    found = fitted(rows, 0).transform(rows)
    wide = rows.astype(np.longdouble)
    expected = ((wide - wide.mean(0)) / wide.std(0)).astype("f8")
    np.testing.assert_allclose(found, expected, atol=1e-6 if dtype == "f4" else 1e-10)


def test_nan_passes_through_and_reduced_axes_may_change_their_length():
    scaler = fitted(np.random.default_rng(0).standard_normal((9, 2, 5)), (0, 2))
    found = scaler.transform(np.full((4, 2, 77), np.nan))
    assert found.shape == (4, 2, 77)
    assert np.isnan(found).all()


def test_complex_tensors_are_refused_as_arrays_are():
    scaler = fitted(np.arange(4.0))
    for array in (np.zeros(3, complex), torch.zeros(3, dtype=torch.complex64)):
        with pytest.raises(UnsupportedColumnError, match="expected real numbers"):
            scaler.transform(array)
        with pytest.raises(UnsupportedColumnError, match="expected real numbers"):
            fitted(array.conj())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.complex(torch.ones(4, 3), torch.arange(12.0).reshape(4, 3)).conj().imag,
        torch.arange(12.0, requires_grad=True).reshape(4, 3),
        torch.arange(12).reshape(4, 3).bfloat16(),
        torch.arange(12).reshape(4, 3).half(),
        torch.arange(12).reshape(4, 3).bool(),
        torch.tensor([[2**53 + 1], [2**53 + 3]]),
    ],
    ids=["negated", "with a gradient", "bfloat16", "float16", "bool", "int64"],
)
def test_moments_of_a_tensor_are_those_of_its_values(tensor):
    values = np.array(tensor.tolist())
    assert Moments.of(tensor, 0).to_dict() == Moments.of(values, 0).to_dict()


def test_the_input_is_never_changed():
    rows = np.random.default_rng(0).standard_normal((9, 2)).astype("f4")
    rows.flags.writeable = False
    kept = rows.copy()
    scaler = fitted(rows, 0)
    scaler.inverse(scaler.transform(rows))
    tensor = torch.from_numpy(kept.copy())
    scaler.transform(tensor)
    assert np.array_equal(rows, kept)
    assert np.array_equal(tensor.numpy(), kept)


def test_a_constant_is_an_error_that_names_it_or_becomes_zero():
    rows = np.random.default_rng(0).standard_normal((9, 3, 5))
    rows[:, 1] = 7
    with pytest.raises(ConstantColumnError, match=r"1 of 3 places along axis 1: 1; the first is 7.*constant='one'"):
        fitted(rows, (0, 2))
    scaler = fitted(rows, (0, 2), constant="one")
    found = scaler.transform(rows)
    assert (found[:, 1] == 0).all()
    assert np.array_equal(scaler.inverse(found)[:, 1], rows[:, 1])
    with pytest.raises(ConstantColumnError, match="all values are 7"):
        fitted(rows[:, 1])


def test_errors():
    rows = np.random.default_rng(0).standard_normal((9, 3, 5))
    scaler = fitted(rows, (0, 2))
    for shape in [(9, 2, 5), (9, 1, 5), (3,), (2, 9, 3, 5), ()]:
        with pytest.raises(SchemaMismatchError, match=r"fitted on rows of shape \(3, any\)"):
            scaler.transform(np.zeros(shape))
    for call in (scaler.transform, scaler.inverse):
        with pytest.raises(SchemaMismatchError, match=r"\(3, any\), so expected one axis more, for a batch of them;"):
            call(rows[0], batched=True)
        assert np.array_equal(call(rows, batched=True), call(rows))
    with pytest.raises(UnsupportedColumnError):
        scaler.transform(rows.astype(complex))
    with pytest.raises(NotFittedError, match="no value was counted"):
        fitted(rows[:0])
    rows[:, 2] = np.nan
    with pytest.raises(NonFiniteError, match="all values are NaN at 1 of 3 places along axis 1: 2"):
        fitted(rows, (0, 2), nan_policy="omit")
    with pytest.raises(OptionError, match="epsilon"):
        fitted(rows[:, 0], epsilon=-1)
    with pytest.raises(OptionError, match="constant"):
        fitted(rows[:, 0], constant="skip")


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1"])
def test_what_float32_cannot_hold_is_computed_in_float64(dtype):
    rows = np.arange(6).astype(dtype)
    for values, expected in (
        (np.array([1.0, 1.0 + 1e-15]) * 1e-30, 0),
        (np.array([-1e300, 1e300]) * 1e-160, 0),
        (np.array([0.0, 1e-50]), float("inf")),
    ):
        scaler = fitted(values, epsilon=0)
        with np.errstate(over="ignore"):
            for found in (scaler.transform(rows), scaler.transform(torch.from_numpy(rows)).numpy()):
                assert not np.isnan(found).any()
                assert expected == 0 or (found[1:] == expected).all()


@pytest.mark.parametrize("epsilon", ["1", None, float("nan"), True])
def test_epsilon_is_a_number(epsilon):
    with pytest.raises(OptionError, match=r"epsilon=.*: expected 0 or more"):
        fitted(np.arange(5.0), epsilon=epsilon)


def test_a_repr_shows_what_was_fitted_in_a_few_words():
    values = np.arange(24.0).reshape(4, 2, 3)
    assert repr(fitted(values)) == "Scaler(mean 11.5, std 6.922, axis=(0, 1, 2))"
    found = repr(fitted(values, axis=(0, 2)))
    assert found == "Scaler(mean 10 to 13 at 2 places, std 6.758 to 6.758 at 2 places, axis=(0, 2))"
