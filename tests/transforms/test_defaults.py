import itertools

import numpy as np
import pytest

from ray_h5.errors import OptionError
from ray_h5.planning.order import row_keys
from ray_h5.transforms import GaussianNoise, SpecAugment, augmentation_defaults


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


def test_errors():
    with pytest.raises(OptionError, match="samples_per_class"):
        augmentation_defaults(0, (3, 4))
    with pytest.raises(OptionError, match="shape"):
        augmentation_defaults(5, (4,))
