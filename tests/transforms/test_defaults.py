import itertools

import numpy as np
import pytest

from ray_h5 import GaussianNoise, SpecAugment, augmentation_defaults
from ray_h5.errors import OptionError
from ray_h5.order.epoch_order import row_keys


@pytest.mark.parametrize("shape", [(43, 300), (1, 224, 313), (2, 3), (1, 1)])
def test_options_fit_the_shape_and_grow_weaker_with_more_data(shape):
    strengths = []
    for samples in (1, 49, 50, 500, 5000, 10**9):
        defaults = augmentation_defaults(samples, shape)
        augment = SpecAugment("x", **defaults.spec_augment)
        noise = GaussianNoise("x", **defaults.gaussian_noise)
        keys = row_keys(np.arange(3), 0, 0)
        assert noise.apply_batch(augment.apply_batch(np.ones((3, *shape)), keys), keys).shape == (3, *shape)
        spec = defaults.spec_augment
        strengths.append(
            (spec["time_mask_param"] * spec["num_time_masks"], spec["freq_mask_param"], spec["p"], noise.std, noise.p)
        )
    for stronger, weaker in itertools.pairwise(strengths):
        assert all(one >= other for one, other in zip(stronger, weaker, strict=True))


@pytest.mark.parametrize(
    ("samples", "shape", "name"),
    [
        (0, (3, 4), "samples_per_class"),
        ("a", (3, 4), "samples_per_class"),
        (float("nan"), (3, 4), "samples_per_class"),
        (float("inf"), (3, 4), "samples_per_class"),
        (5, (4,), "shape"),
        (10, 300, "shape"),
        (10, ("a", "b"), "shape"),
        (10, (3.5, 10), "shape"),
        (10, (0, 3), "shape"),
        (10, "ab", "shape"),
    ],
)
def test_errors(samples, shape, name):
    with pytest.raises(OptionError, match=f"{name}=.*: expected"):
        augmentation_defaults(samples, shape)


def test_a_shape_may_be_an_array():
    assert augmentation_defaults(10, np.array([43, 300])) == augmentation_defaults(10, (43, 300))
