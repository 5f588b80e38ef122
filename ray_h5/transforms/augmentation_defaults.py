"""Default strengths of augmentation for a number of training samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.options import is_integer, is_number, names_options


@dataclass(frozen=True, slots=True)
class AugmentationDefaults:
    """Options to start a search from: ``SpecAugment("x", **defaults.spec_augment)``, and the same for the noise.

    Parameters
    ----------
    spec_augment : dict
        Keyword arguments of `SpecAugment`.
    gaussian_noise : dict
        Keyword arguments of `GaussianNoise`, for columns of unit variance.
    """

    spec_augment: dict[str, Any]
    gaussian_noise: dict[str, Any]


_STRENGTHS = (
    # below samples a class: parts of time and frequency that a mask covers, masks, p of both, std of the noise
    (50, 0.2, 0.2, 2, 0.9, 0.03),
    (200, 0.15, 0.15, 2, 0.8, 0.02),
    (1000, 0.125, 0.1, 1, 0.8, 0.02),
    (float("inf"), 0.08, 0.07, 1, 0.5, 0.01),
)
"""Rules of thumb, not measured on anyone's data: the third is SpecAugment(40, 15) on a 320 x 150 spectrogram."""


@names_options
def augmentation_defaults(samples_per_class: float, shape: Sequence[int]) -> AugmentationDefaults:
    """Return options for SpecAugment and GaussianNoise: the fewer samples, the stronger.

    They are rules of thumb to start a search from.

    Parameters
    ----------
    samples_per_class : float
        Training samples of the smallest class that matters.
    shape : sequence of int
        The shape of one sample: (..., freq, time). Masks are a part of these axes, and never greater.

    Raises
    ------
    OptionError
        If `samples_per_class` is not a number above 0, or `shape` does not have two axes of length 1 or more.
    """
    if not (is_number(samples_per_class) and 0 < samples_per_class < float("inf")):
        raise OptionError(f"samples_per_class={samples_per_class!r}: expected a finite number above 0")
    if np.ndim(shape) != 1 or len(shape) < 2 or not all(is_integer(size) and size >= 1 for size in shape):
        raise OptionError(f"shape={shape!r}: expected the shape of a sample, (..., freq, time), integers of 1 or more")
    time_part, freq_part, masks, p, std = next(rest for below, *rest in _STRENGTHS if samples_per_class < below)
    freqs, times = shape[-2:]
    return AugmentationDefaults(
        spec_augment={
            "time_mask_param": int(times * time_part),
            "freq_mask_param": int(freqs * freq_part),
            "num_time_masks": masks,
            "num_freq_masks": masks,
            "p": p,
        },
        gaussian_noise={"std": std, "p": p},
    )
