"""DecodeImage: encoded images of a column -> arrays of one size."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ray_h5.buffers import objects
from ray_h5.errors import ImageError, OptionError, UnknownColumnError
from ray_h5.messages import no_column
from ray_h5.options import as_integer, is_integer, names_options, require
from ray_h5.per_process import PerProcess
from ray_h5.transforms.decode_image import HeaderError, Mode, decode_image
from ray_h5.transforms.image_batches import as_bytes, encoded, is_batch, rows_of_several

logger = logging.getLogger(__name__)

_MAX_PIXELS = 1 << 26
IS_NULL = "_is_null"
"""The end of the name of a column that says which images could not be decoded."""

_ONE_SAMPLE = (
    "on_error='skip' leaves rows out of batches, and this is a single sample: read batches, as with loader(...) or "
    "dataset[[...]], or pass on_error='null'."
)


@dataclass(slots=True)
class ImageCounts:
    """How many images this process has decoded, and how many it could not decode."""

    decoded: int = 0
    failed: int = 0
    lock: Any = field(default_factory=threading.Lock, repr=False)


@names_options
@dataclass(frozen=True)  # without slots: Ray derives from a class that it is given, and sets an attribute
class DecodeImage:
    """Decode images: JPEG, PNG, WebP and TIFF, in bytes of varying length or in opaque values, padded or not.

    Pass it to ``H5Dataset(..., transform=DecodeImage("image"))``, where batches are decoded in the threads or workers
    of the loader; or to ``ds.map_batches(DecodeImage("image"))`` of Ray. The first bytes of an image say its format.
    Its size is read from its header, by Pillow, and checked before memory is taken for it.

    Grey images get three equal channels, alpha is left out, CMYK becomes RGB as in Pillow, and of more than 8 bits the
    upper 8 are taken. A rotation that is noted beside the pixels, as cameras do in JPEG, is not applied.

    A file that is cut short is an error. So is damage that a format has a checksum for, as PNG and WebP have at least
    in part. In the data of a JPEG, damage is not always visible to the decoder: it may become wrong pixels.

    Parameters
    ----------
    column : str or sequence of str
        The column, or several.
    size : (int, int) or int, optional
        Height and width that images are resized to, bilinear and antialiased, by torch. By default images keep their
        sizes: a batch is then one array if all are equal, else a list; with `pad` of `H5Dataset` it is one tensor.
    mode : {"RGB", "L", "unchanged"}
        ``"RGB"`` and ``"L"`` deliver uint8 of 3 channels and of 1. ``"unchanged"`` delivers the channels and the dtype
        of each image.
    channels_last : bool
        Deliver (height, width, channels); by default (channels, height, width).
    max_pixels : int
        The most pixels of an image, before it is resized.
    on_error : {"raise", "skip", "null"}
        What happens if an image cannot be decoded: an error that names file and row; the row is left out of the batches
        of `H5Dataset` and its loaders, while a single sample such as ``dataset[1]`` is an error; or it is null in Ray,
        and zeros in arrays, with the column ``<column>_is_null``. Warnings name the first of them, and `counts` has
        their number.

    Raises
    ------
    OptionError
        If an option cannot be used.
    ImageError
        When images are decoded: if one cannot be.

    Examples
    --------
    >>> DecodeImage("image", size=(224, 224)).size
    (224, 224)
    """

    keeps_rows: ClassVar[bool] = True
    """The number of rows of a batch stays the same; a run of Ray can then resume within an epoch."""

    column: str | Sequence[str]
    size: tuple[int, int] | int | None = None
    mode: Mode = "RGB"
    channels_last: bool = False
    max_pixels: int = _MAX_PIXELS
    on_error: Literal["raise", "skip", "null"] = "raise"
    _counts: PerProcess[ImageCounts] = field(
        default_factory=lambda: PerProcess(ImageCounts), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        names = (self.column,) if isinstance(self.column, str) else tuple(self.column)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise OptionError(f"DecodeImage: column={self.column!r}: expected the name of a column, or several")
        object.__setattr__(self, "column", names[0] if len(names) == 1 else names)
        if self.size is not None:
            size = (self.size, self.size) if is_integer(self.size) else self.size
            if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(is_integer(n) and n > 0 for n in size):
                raise OptionError(f"DecodeImage: size={self.size!r}: expected (height, width), such as (224, 224)")
            object.__setattr__(self, "size", (int(size[0]), int(size[1])))
        object.__setattr__(self, "max_pixels", as_integer("DecodeImage: max_pixels", self.max_pixels, 1))
        require(self.mode in get_args(Mode), "DecodeImage: mode", self.mode, "'RGB', 'L' or 'unchanged'")
        is_known = self.on_error in ("raise", "skip", "null")
        require(is_known, "DecodeImage: on_error", self.on_error, "'raise', 'skip' or 'null'")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are decoded."""
        return (self.column,) if isinstance(self.column, str) else tuple(self.column)

    @property
    def counts(self) -> ImageCounts:
        """The images of this process: how many were decoded, and how many could not be."""
        return self._counts.value

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Return a batch, or one sample, with the columns decoded.

        Parameters
        ----------
        batch : mapping of str to array
            A batch of arrays, as of ``ds.map_batches``; or a sample, whose images are tensors afterwards.

        Raises
        ------
        ImageError
            If an image cannot be decoded. It names file and row if the batch has the columns ``path`` and ``row_id``,
            as with ``read_h5(..., include_paths=True, include_row_ids=True)``.
        """
        if not isinstance(batch, Mapping):
            raise OptionError(
                f"DecodeImage: expected a batch or a sample, {{column: value}}, found {type(batch).__name__}; use "
                'ds.map_batches(it), batch_format="numpy", which is the default'
            )
        if absent := [name for name in self.columns if name not in batch]:
            raise UnknownColumnError(f"DecodeImage: {no_column(absent, batch)}")
        if not is_batch(batch[self.columns[0]]):
            return self._sample(batch)
        if self.on_error == "skip":
            raise OptionError(
                "DecodeImage: on_error='skip' is for H5Dataset(..., transform=it), which leaves such rows out. In Ray, "
                "pass on_error='null', and filter by the column that ends with _is_null"
            )
        paths, ids = batch.get("path"), batch.get("row_id")

        def where(row: int) -> str:
            if paths is not None and ids is not None:
                return f"{paths[row]}, row id {ids[row]}"
            return f"row {row} of this batch (read with include_paths=True, include_row_ids=True to see file and row)"

        out = dict(batch)
        for name in self.columns:
            out[name], failed = self.decode(batch[name], where, name)
            if self.on_error == "null":
                out[name + IS_NULL] = failed
        return out

    def _sample(self, sample: Mapping[str, Any]) -> Any:
        """Return one sample with tensors for images."""
        import torch

        out = sample.copy() if hasattr(sample, "copy") else dict(sample)
        for name in self.columns:
            images, failed = self.decode(objects([sample[name]]), lambda _: "", name, skips=False)
            out[name] = torch.from_numpy(np.ascontiguousarray(images[0]))
            if self.on_error == "null":
                out[name + IS_NULL] = bool(failed[0])
        return out

    def decode(
        self, values: Any, where: Callable[[int], str], column: str, *, skips: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the images of some rows, and which rows could not be decoded.

        Images without a common size are objects. One that could not be decoded is zeros, or None among objects.

        Parameters
        ----------
        values : numpy.ndarray
            Encoded images, one a row, or arrays of them; or uint8 of shape (rows, ..., bytes), padded.
        where : callable
            Returns the place of a row, for messages.
        column : str
            The column, for messages.
        skips : bool
            Whether ``on_error="skip"`` marks a row as failed. Otherwise it raises.
        """
        if (rows := rows_of_several(values)) is not None:
            decoded = [
                self.decode(row, partial(_same_place, where, i), column, skips=skips) for i, row in enumerate(rows)
            ]
            return objects(images for images, _ in decoded), np.array([failed.any() for _, failed in decoded], bool)
        shape, items = encoded(values, column)
        images: list[np.ndarray | None] = []
        failed = np.zeros(shape[0], bool)
        for number, item in enumerate(items):
            row = number * shape[0] // len(items)
            try:
                image = decode_image(as_bytes(item), self.mode, self.max_pixels)
            except HeaderError as exc:
                place = where(row)
                error = ImageError(
                    f"{place}{': ' if place else ''}column {column!r}: the image cannot be decoded: {exc}."
                )
                if self.on_error == "raise":
                    raise error from None
                if self.on_error == "skip" and not skips:
                    raise ImageError(f"{error} {_ONE_SAMPLE}") from None
                images.append(None)
                failed[row] = True
                self._report(error)
                continue
            if isinstance(self.size, tuple) and image.shape[:2] != self.size:
                image = _resized(image, self.size)
            images.append(image if self.channels_last else np.moveaxis(image, 2, 0))
        counts = self.counts
        with counts.lock:
            counts.decoded += sum(image is not None for image in images)
        return self._joined(images, shape), failed

    def _joined(self, images: list[np.ndarray | None], shape: tuple[int, ...]) -> np.ndarray:
        """Return images as one array if they have one shape, else as objects."""
        alike = {(image.shape, image.dtype) for image in images if image is not None}
        if not alike and isinstance(self.size, tuple) and self.mode != "unchanged":
            # The options say what all images are.
            channels = 3 if self.mode == "RGB" else 1
            blank = (*self.size, channels) if self.channels_last else (channels, *self.size)
            alike = {(blank, np.dtype(np.uint8))}
        if len(alike) != 1:
            return objects(images).reshape(shape)
        image_shape, dtype = alike.pop()
        out = np.empty((len(images), *image_shape), dtype)
        for i, image in enumerate(images):
            out[i] = 0 if image is None else image
        return out.reshape(*shape, *image_shape)

    def _report(self, error: ImageError) -> None:
        """Count an image that cannot be decoded; warn of the first one, and each time their number has doubled."""
        counts = self.counts
        with counts.lock:
            counts.failed += 1
            failed = counts.failed
        if failed & (failed - 1) == 0:
            what = "left out" if self.on_error == "skip" else "null"
            logger.warning("%s %d so far in this process are %s.", error, failed, what)


def _same_place(where: Callable[[int], str], row: int, _: int) -> str:
    return where(row)


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image of (height, width, channels) in another size."""
    import torch
    from torch.nn.functional import interpolate

    exact = image.dtype == np.uint8
    work = np.ascontiguousarray(image if exact else image.astype(np.float32))
    tensor = torch.from_numpy(work).permute(2, 0, 1)[None]
    array = interpolate(tensor, size=size, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    if exact or image.dtype.kind == "f":
        return array.astype(image.dtype, copy=False)
    most = 1 if image.dtype.kind == "b" else np.iinfo(image.dtype).max
    return np.clip(np.rint(array), 0, most).astype(image.dtype)
