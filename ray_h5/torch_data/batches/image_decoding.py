"""Images of a batch, decoded where it is read: in the threads or workers of a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from ray_h5.errors import OptionError, UnknownColumnError
from ray_h5.messages import no_column
from ray_h5.transforms.image_transform import IS_NULL, DecodeImage

Transform = Callable[[Any], Any]

IMAGE_SHAPE = (None, None, None)
"""The shape of an image along which images may differ: height, width and channels."""


def parts_of(transform: Any) -> tuple[tuple[DecodeImage, ...], Transform | None]:
    """Return the decoders that a transform begins with, and the rest, which is applied to each sample."""
    if isinstance(transform, DecodeImage):
        return (transform,), None
    if not isinstance(transform, (list, tuple)):
        return (), transform
    decoders = tuple(takewhile(lambda step: isinstance(step, DecodeImage), transform))
    others = transform[len(decoders) :]
    return decoders, _Composed(others) if others else None


class _Composed:
    """Several transforms, one after the other."""

    def __init__(self, steps: Sequence[Transform]) -> None:
        self.steps = steps

    def __call__(self, sample: Any) -> Any:
        for step in self.steps:
            sample = step(sample)
        return sample


def _tensors(images: np.ndarray) -> np.ndarray:
    """Return images of several sizes as tensors, as other columns are delivered."""
    tensors = np.empty(images.shape, object)
    for place, image in np.ndenumerate(images):
        tensors[place] = None if image is None else torch.from_numpy(np.ascontiguousarray(image))
    return tensors


def check_transform(transform: Any, columns: Sequence[str]) -> None:
    """Raise unless a transform is a function of a sample, or a list of these, and its columns are there."""
    steps = transform if isinstance(transform, (list, tuple)) and transform else [transform]
    if not all(callable(step) for step in steps):
        raise OptionError(f"transform={transform!r}: expected a function of a sample, a list of them, or None")
    for decoder in parts_of(transform)[0]:
        if absent := [name for name in decoder.columns if name not in columns]:
            raise UnknownColumnError(f"DecodeImage: {no_column(absent, columns)}")


def decoded(
    decoders: Sequence[DecodeImage], arrays: Mapping[str, np.ndarray], where: Callable[[int], str], *, skips: bool
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return a batch with images decoded, and which of its rows are left; None for all.

    Parameters
    ----------
    decoders : sequence of DecodeImage
        What is decoded.
    arrays : mapping of str to numpy.ndarray
        The batch as it was read.
    where : callable
        Returns the place of a row, for messages.
    skips : bool
        Whether rows may be left out.
    """
    decoded_arrays = dict(arrays)
    failed = np.zeros(len(next(iter(decoded_arrays.values()))), bool) if decoded_arrays else np.zeros(0, bool)
    for decoder in decoders:
        for name in decoder.columns:
            images, are_null = decoder.decode(arrays[name], where, name, skips=skips)
            decoded_arrays[name] = _tensors(images) if images.dtype == object else images
            if decoder.on_error == "null":
                decoded_arrays[name + IS_NULL] = are_null
            else:
                failed |= are_null
    if not failed.any():
        return decoded_arrays, None
    kept = ~failed
    return {name: values[kept] for name, values in decoded_arrays.items()}, kept
