"""Arrays -> arrays: standardization, masks for spectrograms, noise, images; of numpy, and of torch.

No module here uses HDF5 files or Ray. Random numbers are a function of the key of a row, so that they are the same in a
Ray task, in its retry and in a plain PyTorch Dataset.
"""

from ray_h5.transforms.decode_image import DecodeImage
from ray_h5.transforms.defaults import AugmentationDefaults, augmentation_defaults
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.noise import GaussianNoise
from ray_h5.transforms.scaler import Scaler
from ray_h5.transforms.scaler_files import load_scalers, save_scalers
from ray_h5.transforms.spec_augment import SpecAugment

__all__ = [
    "AugmentationDefaults",
    "DecodeImage",
    "GaussianNoise",
    "Moments",
    "Scaler",
    "SpecAugment",
    "augmentation_defaults",
    "load_scalers",
    "save_scalers",
]
