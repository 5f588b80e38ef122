import pickle
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import (
    MaskTooLargeError,
    MissingRowKeyError,
    OptionError,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.order.epoch_order import row_keys
from ray_h5.transforms.noise import GaussianNoise
from ray_h5.transforms.spec_augment import SpecAugment

N = 20_000
KEYS = row_keys(np.arange(N), 3, 1)


def masked(augment, keys=KEYS, freqs=5, times=60):
    """Which positions are masked: (n, times) where all freqs are, (n, freqs) where all times are."""
    out = augment.apply_batch(np.ones((len(keys), freqs, times), "f4"), keys) == 0
    return out.all(axis=1), out.all(axis=2)


def chi_square(counts, expected):
    """The statistic, and what it exceeds in one case of a million (Wilson and Hilferty's approximation)."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3
    return statistic, limit


def test_starts_are_uniform_over_all_that_fit():
    times, _ = masked(SpecAugment("x", 10, num_freq_masks=0, p=1))
    for width in (1, 4, 10):
        rows = times[times.sum(axis=1) == width]
        starts = rows.argmax(axis=1)
        assert (rows.sum(axis=1) == width).all()
        assert (rows[np.arange(len(rows)), starts + width - 1]).all()  # in one piece
        counts = np.bincount(starts, minlength=61 - width)
        assert len(counts) == 61 - width
        statistic, limit = chi_square(counts, len(rows) / (61 - width))
        assert statistic < limit


def test_epochs_columns_salts_and_rows_have_draws_of_their_own():
    one = masked(SpecAugment("x", 10, p=1, num_freq_masks=0))[0].sum(axis=1)
    others = {
        "epoch": masked(SpecAugment("x", 10, p=1, num_freq_masks=0), row_keys(np.arange(N), 3, 2)),
        "seed": masked(SpecAugment("x", 10, p=1, num_freq_masks=0), row_keys(np.arange(N), 2, 1)),
        "column": masked(SpecAugment("y", 10, p=1, num_freq_masks=0)),
        "salt": masked(SpecAugment("x", 10, p=1, num_freq_masks=0, salt=1)),
        "next row": masked(SpecAugment("x", 10, p=1, num_freq_masks=0), np.roll(KEYS, 1)),
    }
    for name, (other, _) in others.items():
        assert abs(np.corrcoef(one, other.sum(axis=1))[0, 1]) < 5 / np.sqrt(N), name


@st.composite
def cases(draw):
    shape = draw(st.sampled_from([(7, 12), (1, 9, 20), (3, 6, 5), (2, 2, 11, 13)]))
    small = min(shape[-2:])
    augment = SpecAugment(
        "x",
        draw(st.integers(0, shape[-1])),
        draw(st.integers(0, small)),
        num_time_masks=draw(st.integers(0, 3)),
        num_freq_masks=draw(st.integers(0, 3)),
        mask_value=draw(st.sampled_from([0.0, 2.5, -1.0, "mean"])),
        p=draw(st.sampled_from([0.5, 1.0])),
    )
    dtype = draw(st.sampled_from(["f8", "f4", "f2"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = rng.standard_normal((9, *shape)).astype(dtype)
    array.flags.writeable = False  # as Ray hands them out
    return augment, array, row_keys(rng.integers(0, 2**40, 9), draw(st.integers(0, 9)), 0)


@given(cases())
def test_a_batch_is_its_rows_however_it_is_cut_and_whatever_it_is_made_of(case):
    augment, array, keys = case
    whole = augment.apply_batch(array, keys)
    assert whole.dtype == array.dtype
    order = np.random.default_rng(0).permutation(9)
    parts = [
        augment.apply_batch(part, key)
        for part, key in zip(np.split(array, [2, 3]), np.split(keys, [2, 3]), strict=True)
    ]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(augment.apply_batch(array[order], keys[order]), whole[order])
    assert np.array_equal(augment.apply(array[4], keys[4]), whole[4])
    assert np.array_equal(augment.apply(array[4], int(keys[4])), whole[4])
    tensor, words = torch.from_numpy(array.copy()), torch.from_numpy(keys.view(np.int64))
    assert np.array_equal(augment.apply_batch(tensor, words).numpy(), whole)
    assert np.array_equal(augment.apply_batch(tensor, words.view(torch.uint64)).numpy(), whole)
    assert np.array_equal(augment.apply(tensor[4], int(keys[4])).numpy(), whole[4])
    again = pickle.loads(pickle.dumps(augment))
    assert again == augment
    assert np.array_equal(again.apply_batch(array, keys), whole)


@given(cases())
def test_the_path_of_other_devices_gives_the_same(case):
    augment, array, keys = case
    whole = augment.apply_batch(array, keys)
    tensor = torch.from_numpy(array.copy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray_h5.transforms.augmentation.as_numpy", lambda _: None)  # as if it lay on a GPU
        found = augment.apply_batch(tensor, torch.from_numpy(keys.view(np.int64)))
    if augment.mask_value == "mean":
        np.testing.assert_allclose(found.numpy(), whole, rtol=2e-3 if array.dtype == np.float16 else 1e-6)
    else:
        assert np.array_equal(found.numpy(), whole)
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("dtype", ["c8", "c16", "S3", "M8[s]"])
def test_what_is_no_real_number_is_not_masked(dtype):
    arrays = [np.zeros((4, 3, 3), dtype)]
    if np.dtype(dtype).kind == "c":
        arrays.append(torch.from_numpy(arrays[0]))
    for array in arrays:
        with pytest.raises(UnsupportedColumnError, match=r"SpecAugment\('x'\): .* expected real numbers"):
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
    with pytest.raises(MaskTooLargeError, match=r"time_mask_param=40 is greater than axis -1 .* length 9"):
        SpecAugment("x")(batch)
    with pytest.raises(MaskTooLargeError, match=r"freq_mask_param=7 .* length 6"):
        SpecAugment("x", 5, 7)(batch)
    assert SpecAugment("x", num_time_masks=0, num_freq_masks=0)(batch)["x"].shape == (2, 6, 9)
    with pytest.raises(MissingRowKeyError, match=r"include_row_keys=True.*WorkerSafeAugmentedDataset"):
        SpecAugment("x", 5, 5)({"x": batch["x"]})
    with pytest.raises(UnknownColumnError, match=r"SpecAugment: no column 'z'\. There is: row_key, x\."):
        SpecAugment("z", 5, 5)(batch)
    with pytest.raises(SchemaMismatchError, match=r"2 rows, but keys of shape \(3,\)"):
        SpecAugment("x", 5, 5).apply_batch(batch["x"], KEYS[:3])
    with pytest.raises(UnsupportedColumnError, match="freq_axis=-2"):
        SpecAugment("x", 5, 5).apply_batch(np.zeros((2, 9)), KEYS[:2])
    with pytest.raises(OptionError, match="keys have dtype"):
        SpecAugment("x", 5, 5).apply_batch(batch["x"], np.array([0.1, 0.2]))
    with pytest.raises(OptionError, match="the same axis"):
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
    with pytest.raises(OptionError, match=next(iter(options))):
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
        with pytest.raises(UnsupportedColumnError, match=r"SpecAugment\('x'\): .* cannot hold mask_value="):
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
    with pytest.raises(UnsupportedColumnError, match="cannot hold mask_value="):
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


@pytest.mark.parametrize(
    "augment",
    [SpecAugment("x", 2, 2, p=1), SpecAugment("x", 2, 2, mask_value="mean", p=1), GaussianNoise("x", p=1)],
)
def test_tensors_that_torch_negates_when_they_are_read(augment):
    tensor = torch.complex(torch.ones(3, 4, 6), torch.arange(72.0).reshape(3, 4, 6)).conj().imag
    assert tensor.is_neg()
    before = tensor.clone()
    expected = augment.apply_batch(-np.arange(72, dtype="f4").reshape(3, 4, 6), KEYS[:3])
    assert np.array_equal(augment.apply_batch(tensor, KEYS[:3]).resolve_neg().numpy(), expected)
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("augment", [SpecAugment("x", 2, 2, p=1), GaussianNoise("x", p=1)])
def test_a_key_is_an_integer(augment):
    sample = np.ones((4, 6))
    expected = augment.apply(sample, 3)
    for key in (np.uint64(3), torch.tensor(3), 3 + 2**64):
        assert np.array_equal(augment.apply(sample, key), expected)
    large = 2**63 + 3
    assert np.array_equal(augment.apply(sample, torch.tensor(large, dtype=torch.uint64)), augment.apply(sample, large))
    for key in ("a", "3", None, 1.5, torch.tensor(1.5), torch.tensor([1, 2])):
        with pytest.raises(OptionError, match=r"key=.*: expected an integer, the key of the row"):
            augment.apply(sample, key)


@pytest.mark.parametrize(
    "augment", [SpecAugment("x", 2, 2), SpecAugment("x", 2, 2, mask_value="mean"), GaussianNoise("x")]
)
def test_eight_bits_of_torch_are_too_few_for_a_float(augment):
    tensor = torch.ones((2, 4, 6)).to(torch.float8_e4m3fn)
    with pytest.raises(UnsupportedColumnError, match=r"the column has dtype torch\.float8_e4m3fn, expected"):
        augment.apply_batch(tensor, KEYS[:2])


@pytest.mark.parametrize("augment", [SpecAugment("x", 2, 2), GaussianNoise("x")])
def test_what_is_no_batch_is_an_error_that_says_how_to_call_it(augment):
    batch = {"x": np.zeros((2, 4, 6)), "row_key": KEYS[:2]}
    for found in (
        pd.DataFrame({"x": [1.0], "row_key": [1]}),
        {"x": batch["x"][0], "row_key": batch["row_key"][0]},
        [1, 2],
    ):
        with pytest.raises(OptionError, match=r'ds\.map_batches\(it\), batch_format="numpy" or "pyarrow"'):
            augment(found)
    for call in (lambda: augment.apply_batch([[1.0]], KEYS[:1]), lambda: augment.apply([1.0], 3)):
        with pytest.raises(OptionError, match="expected an array or a tensor, found list"):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("augment", [SpecAugment("x", 4, 3, p=1), GaussianNoise("x", p=1)])
def test_a_gradient_goes_through(augment, dtype):
    tensor = torch.ones((50, 6, 9), dtype=dtype, requires_grad=True)
    found = augment.apply_batch(tensor, KEYS[:50])
    found.sum().backward()
    kept = (found != 0) if isinstance(augment, SpecAugment) else torch.ones_like(found)
    assert torch.equal(tensor.grad, kept.to(dtype))
    with torch.no_grad():
        alone = augment.apply_batch(tensor, KEYS[:50])
    assert not alone.requires_grad
    assert torch.equal(alone, found)


@pytest.mark.parametrize("empty", [np.zeros((0, 43, 300)), torch.zeros(0, 43, 300), torch.zeros(0, 43, 300).bfloat16()])
@pytest.mark.parametrize("mask_value", [0.0, "mean"])
def test_a_batch_without_rows_stays_one(empty, mask_value):
    augmented = SpecAugment("x", mask_value=mask_value).apply_batch(empty, np.empty(0, np.uint64))
    assert (tuple(augmented.shape), augmented.dtype) == ((0, 43, 300), empty.dtype)
