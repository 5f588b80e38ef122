"""Encoded images -> arrays. What colours become does not depend on the format."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import imagecodecs
import numpy as np

from ray_h5.codecs.image_headers import HeaderError, ImageHeader, header_of

Mode: TypeAlias = Literal["RGB", "L", "unchanged"]
"""What colours become: three channels, one, or those of the file."""

_CMYK = 4
_MOST_BYTES = 8
"""Bytes of a pixel that are always decoded: four channels of 16 bits."""
_PALETTE, _INK, _YCBCR = 3, 5, 6


def decode_image(data: bytes, mode: Mode = "RGB", max_pixels: int | None = None) -> np.ndarray:
    """Return an image as an array of shape (height, width, channels).

    Parameters
    ----------
    data : bytes
        The encoded image. Zeros may follow it.
    mode : {"RGB", "L", "unchanged"}
        ``"RGB"`` and ``"L"`` give uint8 of 3 and 1 channels: grey is repeated, alpha is left out, CMYK is converted as
        Pillow does, and of values of more than 8 bits the upper 8 are taken. ``"unchanged"`` gives what the file has.
    max_pixels : int, optional
        The most pixels, which is checked before memory is taken.

    Raises
    ------
    HeaderError
        If it cannot be decoded; the text says why.
    """
    header = header_of(data)
    if max_pixels is not None and header.height * header.width > max_pixels:
        raise HeaderError(
            f"its header claims {header.height} x {header.width} pixels; expected at most max_pixels={max_pixels}"
        )
    if max_pixels is not None and header.decoded_bytes > _MOST_BYTES * max_pixels:
        raise HeaderError(
            f"its header claims {header.decoded_bytes} bytes: {header.height} x {header.width} pixels of "
            f"{header.channels} channels of {header.bits} bits; expected at most {_MOST_BYTES} * max_pixels, "
            f"{_MOST_BYTES * max_pixels}"
        )
    try:
        found = _DECODERS[header.format](data, header)
    except MemoryError:
        raise HeaderError(f"there is no memory for its {header.height} x {header.width} pixels") from None
    except (
        RuntimeError,
        ValueError,
        TypeError,
        OSError,
        LookupError,
        ArithmeticError,
    ) as exc:  # what imagecodecs raises
        raise HeaderError(f"its {header.format} decoder says: {' '.join(str(exc).split())}") from exc
    found = found[..., None] if found.ndim == 2 else found
    if found.ndim != 3 or sorted(found.shape[:2]) != sorted((header.height, header.width)):
        raise HeaderError(f"it decodes to shape {found.shape}; its header says {header.height} x {header.width}")
    return found if mode == "unchanged" else _as_mode(found, header, mode)


def _jpeg(data: bytes, header: ImageHeader) -> np.ndarray:
    if header.channels == _CMYK:
        out = np.empty((header.height, header.width, _CMYK), np.uint8)
        found = imagecodecs.jpeg8_decode(data, out=out)
        return 255 - found if header.details["adobe"] else found  # Adobe stores how much light is left
    shape = (header.height, header.width) if header.channels == 1 else (header.height, header.width, 3)
    return imagecodecs.jpeg8_decode(data, out=np.empty(shape, np.uint8))


def _png(data: bytes, header: ImageHeader) -> np.ndarray:
    dtype = np.dtype(np.uint16 if header.bits > 8 else np.uint8)
    memory = np.empty(header.decoded_bytes, np.uint8)
    shape = (header.height, header.width, header.channels)
    out = memory.view(dtype).reshape(shape if header.channels > 1 else shape[:2])
    try:
        return imagecodecs.png_decode(data, out=out)
    except imagecodecs.PngError:
        # The wrapper keeps a reference to `out` for ever. Without this, each damaged image would take its memory.
        del out  # nothing may look at it any more
        memory.resize(0, refcheck=False)
        raise


def _webp(data: bytes, header: ImageHeader) -> np.ndarray:
    out = np.empty((header.height, header.width, header.channels), np.uint8)
    return imagecodecs.webp_decode(data, hasalpha=header.channels == _CMYK, out=out)


def _jpegxl(data: bytes, header: ImageHeader) -> np.ndarray:  # noqa: ARG001  all decoders take both
    return imagecodecs.jpegxl_decode(data, index=0, numthreads=1)


def _tiff(data: bytes, header: ImageHeader) -> np.ndarray:
    if header.details["photometric"] in {_PALETTE, _INK, _YCBCR}:
        return imagecodecs.tiff_decode(data, asrgb=True)[..., :3]
    found: Any = imagecodecs.tiff_decode(data)
    if header.details["planar"] and found.ndim == 3:
        found = np.moveaxis(found, 0, -1)
    if header.details["photometric"] == 0:  # white is 0
        found = ~found if found.dtype.kind == "b" else np.iinfo(found.dtype).max - found
    return found


_DECODERS = {"JPEG": _jpeg, "PNG": _png, "WebP": _webp, "JPEG XL": _jpegxl, "TIFF": _tiff}


def _as_mode(found: np.ndarray, header: ImageHeader, mode: Mode) -> np.ndarray:
    found = _as_bytes(found, header)
    channels = found.shape[2]
    if header.format == "JPEG" and channels == _CMYK:
        found = _without_ink(found)
    elif channels in {2, 4}:
        found = found[..., : channels - 1]  # without alpha
    elif channels not in {1, 3}:
        raise HeaderError(f"it has {channels} channels; mode='unchanged' delivers them")
    if mode == "RGB":
        return np.repeat(found, 3, axis=2) if found.shape[2] == 1 else found
    return found if found.shape[2] == 1 else _grey(found)


def _as_bytes(found: np.ndarray, header: ImageHeader) -> np.ndarray:
    """Return values as uint8: of more bits, the upper 8."""
    if found.dtype == np.uint8:
        return found
    if found.dtype.kind == "b":
        return found.astype(np.uint8) * np.uint8(255)
    if found.dtype.kind != "u":
        raise HeaderError(f"its values are {found.dtype}, of which no colours follow; mode='unchanged' delivers them")
    bits = header.bits if header.format == "TIFF" else 8 * found.dtype.itemsize
    return (found >> np.array(max(bits - 8, 0), found.dtype)).astype(np.uint8)


def _without_ink(found: np.ndarray) -> np.ndarray:
    """Return cyan, magenta, yellow and black as red, green and blue, rounded as Pillow does."""
    light = 255 - found[..., 3:].astype(np.int32)
    product = found[..., :3] * light + 128
    return np.clip(light - ((product >> 8) + product >> 8), 0, 255).astype(np.uint8)


def _grey(found: np.ndarray) -> np.ndarray:
    """Return the luma of ITU-R 601-2, as Pillow computes it."""
    weights = np.array([19595, 38470, 7471], np.uint32)
    return ((found @ weights + 0x8000) >> 16).astype(np.uint8)[..., None]
