from fractions import Fraction

import numpy as np
import pytest
import torch

from ray_h5 import errors
from ray_h5.order.epoch_order import row_keys
from ray_h5.transforms.spec_augment import SpecAugment

N = 20_000
KEYS = row_keys(np.arange(N), 3, 1)


@pytest.mark.parametrize("dtype", ["c8", "c16", "S3", "M8[s]"])
def test_what_is_no_real_number_is_not_masked(dtype):
    arrays = [np.zeros((4, 3, 3), dtype)]
    if np.dtype(dtype).kind == "c":
        arrays.append(torch.from_numpy(arrays[0]))
    for array in arrays:
        with pytest.raises(errors.UnsupportedColumnError, match=r"SpecAugment\('x'\): .* expected real numbers"):
            SpecAugment("x", 1, 1).apply_batch(array, KEYS[:4])


def test_bfloat16_integers_and_other_axes():
    array = np.random.default_rng(0).integers(1, 100, (50, 6, 9))
    augment = SpecAugment("x", 4, 3, p=1)
    whole = augment.apply_batch(array, KEYS[:50])
    assert np.array_equal(augment.apply_batch(array.astype("u1"), KEYS[:50]), whole)
    half = augment.apply_batch(torch.from_numpy(array).bfloat16(), torch.from_numpy(KEYS[:50].view(np.int64)))
    assert half.dtype == torch.bfloat16
    assert np.array_equal(half.float().numpy(), whole)
    turned = SpecAugment("x", 4, 3, p=1, time_axis=0, freq_axis=1)
    assert np.array_equal(turned.apply_batch(array.swapaxes(1, 2), KEYS[:50]), whole.swapaxes(1, 2))


def test_errors():
    batch = {"x": np.zeros((2, 6, 9)), "row_key": KEYS[:2]}
    with pytest.raises(errors.MaskTooLargeError, match=r"time_mask_param=40 is greater than axis -1 .* length 9"):
        SpecAugment("x")(batch)
    with pytest.raises(errors.MaskTooLargeError, match=r"freq_mask_param=7 .* length 6"):
        SpecAugment("x", 5, 7)(batch)
    assert SpecAugment("x", num_time_masks=0, num_freq_masks=0)(batch)["x"].shape == (2, 6, 9)
    with pytest.raises(errors.MissingRowKeyError, match=r"include_row_keys=True.*WorkerSafeAugmentedDataset"):
        SpecAugment("x", 5, 5)({"x": batch["x"]})
    with pytest.raises(errors.UnknownColumnError, match=r"SpecAugment: no column 'z'\. There is: row_key, x\."):
        SpecAugment("z", 5, 5)(batch)
    with pytest.raises(errors.SchemaMismatchError, match=r"2 rows, but keys of shape \(3,\)"):
        SpecAugment("x", 5, 5).apply_batch(batch["x"], KEYS[:3])
    with pytest.raises(errors.UnsupportedColumnError, match="freq_axis=-2"):
        SpecAugment("x", 5, 5).apply_batch(np.zeros((2, 9)), KEYS[:2])
    with pytest.raises(errors.OptionError, match="keys have dtype"):
        SpecAugment("x", 5, 5).apply_batch(batch["x"], np.array([0.1, 0.2]))
    with pytest.raises(errors.OptionError, match="the same axis"):
        SpecAugment("x", 5, 5, freq_axis=-1).apply_batch(batch["x"], KEYS[:2])


@pytest.mark.parametrize(
    "options",
    [
        {"p": 1.1},
        {"p": float("nan")},
        {"p": None},
        {"p": "a"},
        {"time_mask_param": -1},
        {"time_mask_param": "40"},
        {"time_mask_param": None},
        {"time_mask_param": 40.5},
        {"num_freq_masks": -1},
        {"num_time_masks": 1.5},
        {"num_time_masks": True},
        {"time_axis": 1.0},
        {"time_axis": -2},
        {"salt": "a"},
        {"mask_value": "max"},
        {"mask_value": 1j},
        {"mask_value": None},
        {"mask_value": [0.0]},
        {"mask_value": 10**400},
    ],
)
def test_options(options):
    with pytest.raises(errors.OptionError, match=next(iter(options))):
        SpecAugment("x", **options)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u1", -1),
        ("u1", 300),
        ("i2", 0.5),
        ("i2", float("nan")),
        ("i8", 2**63),
        ("f2", 1e6),
        ("f4", -1e300),
        ("?", 0.5),
        ("?", 2),
    ],
)
def test_a_value_that_the_dtype_does_not_have_is_an_error(dtype, value):
    array = np.ones((2, 4, 6), dtype)
    for each in (array, torch.from_numpy(array)):
        with pytest.raises(errors.UnsupportedColumnError, match=r"SpecAugment\('x'\): .* cannot hold mask_value="):
            SpecAugment("x", 2, 2, mask_value=value).apply_batch(each, KEYS[:2])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("u1", 255), ("i2", -3.0), ("u8", 2**64 - 1), ("f2", 0.1), ("f4", float("nan")), ("f8", 1e300), ("?", True)],
)
def test_a_value_that_the_dtype_has_is_what_masks_are_filled_with(dtype, value):
    array = np.zeros((50, 4, 6), dtype)
    found = SpecAugment("x", 4, 3, mask_value=value, p=1).apply_batch(array, KEYS[:50])
    assert np.array_equal(np.unique(found), np.unique(np.array([0, value], dtype)), equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize("value", [Fraction(1, 4), 2**70, np.float32(0.25)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_value_may_be_any_real_number(dtype, value):
    augment = SpecAugment("x", 4, 3, mask_value=value, p=1)
    found = augment.apply_batch(torch.zeros((50, 4, 6), dtype=dtype), KEYS[:50])
    assert found.unique().tolist() == [0, float(value)]
    with pytest.raises(errors.UnsupportedColumnError, match="cannot hold mask_value="):
        augment.apply_batch(np.zeros((50, 4, 6), "i8"), KEYS[:50])


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
def test_the_mean_is_of_what_is_not_nan(dtype, monkeypatch):
    array = np.random.default_rng(0).standard_normal((50, 6, 9)).astype(dtype)
    array[:, 0, 0] = np.nan
    array[7] = np.nan
    augment = SpecAugment("x", 4, 3, p=1, mask_value="mean")
    found = augment.apply_batch(array, KEYS[:50])
    assert np.isnan(np.delete(found, 7, axis=0)).sum() <= 49  # those that were, where they are not masked
    changed = found[3][found[3] != array[3]]
    mean = np.nanmean(array[3].astype("f8")).astype(dtype)
    np.testing.assert_allclose(changed[~np.isnan(changed)], mean, rtol=1e-12)
    monkeypatch.setattr("ray_h5.transforms.augmentation.as_numpy", lambda _: None)
    other = augment.apply_batch(torch.from_numpy(array), KEYS[:50]).numpy()
    np.testing.assert_allclose(other, found, rtol=2e-3 if dtype == "f2" else 1e-6)


@pytest.mark.parametrize(
    ("dtype", "values", "mean"),
    [
        ("u1", [10, 11, 11, 11, 11, 11], 11),
        ("i2", [-10, -11, -11, -11, -11, -11], -11),
        ("?", [0, 0, 0, 0, 0, 1], 0),
        ("i8", [2**63 - 1] * 6, 2**63 - 1),
        ("i8", [-(2**63)] * 6, -(2**63)),
        ("u8", [2**64 - 1] * 6, 2**64 - 1),
    ],
)
def test_the_mean_of_integers_is_the_nearest_one_that_lies_among_them(dtype, values, mean, monkeypatch):
    array = np.tile(np.array(values, dtype), (50, 4, 1))
    augment = SpecAugment("x", 4, 3, p=1, mask_value="mean")
    masks = SpecAugment("x", 4, 3, p=1).apply_batch(np.ones(array.shape), KEYS[:50]) == 0
    expected = np.where(masks, np.array(mean, dtype), array)
    assert np.array_equal(augment.apply_batch(array, KEYS[:50]), expected)
    monkeypatch.setattr("ray_h5.transforms.augmentation.as_numpy", lambda _: None)
    assert np.array_equal(augment.apply_batch(torch.from_numpy(array), KEYS[:50]).numpy(), expected)


@pytest.mark.parametrize("none", [{"num_freq_masks": 0}, {"freq_mask_param": 0}])
def test_samples_of_one_axis_have_masks_of_time_alone(none, monkeypatch):
    augment = SpecAugment("x", 10, p=1, **none)
    rows = np.ones((50, 60), "f4")
    found = augment.apply_batch(rows, KEYS[:50])
    assert np.array_equal(found, augment.apply_batch(rows[:, None], KEYS[:50])[:, 0])
    assert (found == 0).any()
    turned = SpecAugment("x", 0, 10, num_time_masks=0, freq_axis=-1, p=1).apply_batch(rows, KEYS[:50])
    assert (turned == 0).any()
    assert augment.apply(rows[3], int(KEYS[3])).shape == (60,)
    monkeypatch.setattr("ray_h5.transforms.augmentation.as_numpy", lambda _: None)
    assert np.array_equal(augment.apply_batch(torch.from_numpy(rows), KEYS[:50]).numpy(), found)
