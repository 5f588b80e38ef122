"""Images of a batch, decoded where it is read: in the threads or workers of a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from ray_h5.errors import OptionError, UnknownColumnError
from ray_h5.messages import no_column
from ray_h5.torch_data.batches.tensors import BatchArrays
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


def check_transform(transform: Any, columns: Sequence[str]) -> None:
    """Raise unless a transform is a function of a sample, or a list of these, and its columns are there."""
    steps = transform if isinstance(transform, (list, tuple)) and transform else [transform]
    if not all(callable(step) for step in steps):
        raise OptionError(f"transform={transform!r}: expected a function of a sample, a list of them, or None")
    for decoder in parts_of(transform)[0]:
        if absent := [name for name in decoder.columns if name not in columns]:
            raise UnknownColumnError(f"DecodeImage: {no_column(absent, columns)}")


def decoded(
    decoders: Sequence[DecodeImage], arrays: BatchArrays, place: Callable[[int], str], *, skips: bool
) -> BatchArrays:
    """Return a batch with images decoded. Rows without an image may be left out if `skips`.

    Parameters
    ----------
    decoders : sequence of DecodeImage
        What is decoded.
    arrays : BatchArrays
        The batch as it was read.
    place : callable
        Returns the place of a sample, for messages.
    skips : bool
        Whether rows may be left out.
    """
    made, failed = dict(arrays), np.zeros(len(arrays.indices), bool)
    for decoder in decoders:
        for name in decoder.columns:
            images, are_null = decoder.decode(arrays[name], lambda i: place(arrays.indices[i]), name, skips=skips)
            if images.dtype == object:  # of several sizes: tensors, as other columns are delivered
                tensors = np.empty(images.shape, object)
                for at, image in np.ndenumerate(images):
                    tensors[at] = None if image is None else torch.from_numpy(np.ascontiguousarray(image))
                images = tensors
            made[name] = images
            if decoder.on_error == "null":
                made[name + IS_NULL] = are_null
            else:
                failed |= are_null
    if not failed.any():
        return BatchArrays(made, arrays.indices)
    return BatchArrays({name: values[~failed] for name, values in made.items()}, arrays.indices[~failed])
