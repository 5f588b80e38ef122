import numpy as np
import pytest
import torch
from hypothesis import given

from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.order.epoch_order import row_keys
from ray_h5.transforms import augmentation
from ray_h5.transforms.noise import GaussianNoise
from tests.transforms.test_augmentation import KEYS, NOISES, cases, same


def test_the_order_of_bytes_is_nothing_to_the_noise():
    noise = GaussianNoise("x", p=1.0)
    for dtype in ("f2", "f4", "f8"):
        rows = np.zeros((4, 9), dtype)
        found = noise.apply_batch(rows.astype(rows.dtype.newbyteorder()), KEYS[:4])
        assert np.array_equal(found, noise.apply_batch(rows, KEYS[:4]))


@given(cases(NOISES))
def test_rows_without_noise_are_the_same_bits_and_clipping_holds(case):
    augment, array, keys = case
    whole = augment.apply_batch(array, keys)
    plain = GaussianNoise("x", augment.std, augment.p).apply_batch(array, keys)
    for before, noisy, after in zip(array, plain, whole, strict=True):
        assert same(after, noisy if augment.clip is None or same(before, noisy) else noisy.clip(*augment.clip))
    assert same(GaussianNoise("x", p=0).apply_batch(array, keys), array)
    assert GaussianNoise("x", std=0).apply_batch(array, keys) is array


def test_halves_get_the_noise_of_floats():
    array = np.random.default_rng(0).standard_normal((9, 300)).astype("f2")
    augment = GaussianNoise("x", 0.1, 1.0)
    single = augment.apply_batch(array.astype("f4"), KEYS[:9])
    assert same(augment.apply_batch(array, KEYS[:9]), single.astype("f2"))
    tensor = torch.from_numpy(array).bfloat16()
    expected = augment.apply_batch(tensor.float(), KEYS[:9]).bfloat16()
    assert torch.equal(augment.apply_batch(tensor, KEYS[:9]), expected)


def test_errors():
    with pytest.raises(UnsupportedColumnError, match="dtype int64, expected a floating one"):
        GaussianNoise("x").apply_batch(np.arange(3), KEYS[:3])
    with pytest.raises(UnsupportedColumnError, match=r"dtype torch\.uint8"):
        GaussianNoise("x").apply_batch(torch.zeros(3, dtype=torch.uint8), KEYS[:3])
    wrong = [{"clip": clip} for clip in ((1, 0), 5, "ab", (0,), (0, float("nan")), ("0", 1), (0, 1, 2), (0, 10**400))]
    for options in ({"std": -1}, {"std": float("nan")}, {"std": "a"}, {"p": 2}, {"p": None}, {"salt": 1.5}, *wrong):
        with pytest.raises(OptionError, match=next(iter(options))):
            GaussianNoise("x", **options)


@pytest.mark.parametrize("clip", [(0, None), (None, 0), (None, None)])
def test_limits_on_one_side(clip, monkeypatch):
    array = np.random.default_rng(0).standard_normal((50, 30))
    found = GaussianNoise("x", p=1.0, clip=clip).apply_batch(array, KEYS[:50])
    plain = GaussianNoise("x", p=1.0).apply_batch(array, KEYS[:50])
    assert same(found, plain if clip == (None, None) else plain.clip(*clip))
    monkeypatch.setattr(augmentation, "as_numpy", lambda _: None)
    tensor = GaussianNoise("x", p=1.0, clip=clip).apply_batch(torch.from_numpy(array), KEYS[:50])
    assert np.array_equal(tensor.numpy(), found)


def test_the_noise_of_a_version_is_that_of_the_next():
    found = GaussianNoise("x", 1.0, 1.0).apply_batch(np.zeros((2, 2)), row_keys(np.arange(2), 0, 0))
    np.testing.assert_allclose(found, GOLDEN, atol=1e-12)


GOLDEN = [[-0.8628970680783434, -1.481862308419948], [-2.125387295386819, -0.3103290873972557]]
