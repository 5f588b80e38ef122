"""What all augmentations share: a batch is its rows, of numpy and of torch, on any device; keys, columns, errors."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import GaussianNoise, SpecAugment
from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.order.epoch_order import row_keys
from ray_h5.transforms import augmentation

KEYS = row_keys(np.arange(4000), 3, 1)
P = st.sampled_from([0.5, 1.0])
NOISES = st.builds(GaussianNoise, st.just("x"), st.sampled_from([0.02, 3.0]), P, st.sampled_from([None, (-1, 1)]))
COUNTS = st.integers(0, 3)
SIZES = {GaussianNoise: [(), (1,), (3,), (1, 40, 30), (1023,), (1025,), (70_001,), (0,)],
         SpecAugment: [(7, 12), (1, 9, 20), (5, 5), (2, 2, 11, 13)]}  # fmt: skip
MASKS = st.builds(
    SpecAugment, st.just("x"), st.integers(0, 5), st.integers(0, 5), COUNTS, COUNTS,
    st.sampled_from([0.0, 2.5, -1.0, "mean"]), P,
)  # fmt: skip


@st.composite
def cases(draw, augments):
    augment = draw(augments)
    shape, dtype = draw(st.sampled_from(SIZES[type(augment)])), draw(st.sampled_from(["f8", "f4", "f2"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = rng.standard_normal((9, *shape)).astype(dtype)
    array[:2] = -0.0  # a row that is left alone keeps the sign of its zeros
    array.flags.writeable = False  # as Ray hands them out
    return augment, array, row_keys(rng.integers(0, 2**40, 9), draw(st.integers(0, 9)), 0)


def same(one, other):
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@given(cases(st.one_of(NOISES, MASKS)))
def test_a_batch_is_its_rows_however_it_is_cut_and_whatever_it_is_made_of(case):
    augment, array, keys = case
    whole = augment.apply_batch(array, keys)
    assert (whole.dtype, whole.shape) == (array.dtype, array.shape)
    cuts = zip(np.split(array, [2, 3]), np.split(keys, [2, 3]), strict=True)
    assert same(np.concatenate([augment.apply_batch(*part) for part in cuts]), whole)
    order = np.random.default_rng(0).permutation(9)
    assert same(augment.apply_batch(array[order], keys[order]), whole[order])
    again = pickle.loads(pickle.dumps(augment))
    assert again == augment
    assert same(again.apply_batch(array, keys), whole)
    tensor, words = torch.from_numpy(array.copy()), torch.from_numpy(keys.view(np.int64))
    for rows in (array, tensor):
        assert same(augment.apply(rows[4], int(keys[4])), whole[4])
        for each in (keys, words, words.view(torch.uint64)):
            assert same(augment.apply_batch(rows, each), whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augmentation, "as_numpy", lambda _: None)  # as if it lay on a GPU
        found = augment.apply_batch(tensor, words).numpy()
    if getattr(augment, "mask_value", 0) == "mean":
        np.testing.assert_allclose(found, whole, rtol=2e-3 if array.dtype == np.float16 else 1e-6)
    else:
        assert same(found, whole)
    assert same(tensor, array)


def test_rows_epochs_columns_salts_and_transforms_have_draws_of_their_own():
    def masked(column="x", keys=KEYS, salt=0):
        augment = SpecAugment(column, 10, p=1, num_freq_masks=0, salt=salt)
        return (augment.apply_batch(np.ones((len(keys), 1, 60), "f4"), keys) == 0).sum(axis=(1, 2)).astype(float)

    def noise(column="x", keys=KEYS, salt=0):
        return GaussianNoise(column, 1.0, 1.0, salt=salt).apply_batch(np.zeros((len(keys), 9)), keys)[:, 0]

    for made, other in ((masked, noise), (noise, masked)):
        found = made()
        for each in (
            np.roll(found, 1), made(keys=row_keys(np.arange(4000), 3, 2)), made(keys=row_keys(np.arange(4000), 4, 1)),
            made("y"), made(salt=1), other(),
        ):  # fmt: skip
            assert abs(np.corrcoef(found, each)[0, 1]) < 5 / np.sqrt(4000)


@pytest.mark.parametrize("made", [GaussianNoise, SpecAugment])
def test_one_column_at_a_time(made):
    with pytest.raises(OptionError, match=r"column=\['x'\]: expected the name of one column"):
        made(["x"])


@pytest.mark.parametrize("empty", [np.zeros((0, 43, 300)), torch.zeros(0, 43, 300), torch.zeros(0, 43, 300).bfloat16()])
@pytest.mark.parametrize(
    "augment", [SpecAugment("x"), SpecAugment("x", mask_value="mean"), GaussianNoise("x", clip=(0, 1))]
)
def test_a_batch_without_rows_stays_one(augment, empty):
    found = augment.apply_batch(empty, np.empty(0, np.uint64))
    assert (tuple(found.shape), found.dtype) == ((0, 43, 300), empty.dtype)


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
