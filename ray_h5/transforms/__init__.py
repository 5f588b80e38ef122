"""Arrays -> arrays: numbers put to a scale, spectrograms masked, noise added; numpy, and torch where it is given.

Nothing here knows files or engines. What is random is a function of the key of a row, so that it is the
same in a Ray task, in its retry and in a plain PyTorch Dataset.
"""

from ray_h5.transforms.defaults import AugmentationDefaults, augmentation_defaults
from ray_h5.transforms.files import load_scalers, save_scalers
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.noise import GaussianNoise
from ray_h5.transforms.spec_augment import SpecAugment
from ray_h5.transforms.standardize import Scaler

__all__ = [
    "AugmentationDefaults",
    "GaussianNoise",
    "Moments",
    "Scaler",
    "SpecAugment",
    "augmentation_defaults",
    "load_scalers",
    "save_scalers",
]
