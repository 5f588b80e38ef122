"""Encoded images -> arrays: Pillow reads the headers, and imagecodecs the pixels, in 0.6 of the time that Pillow takes.

What colours become does not depend on the format.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import imagecodecs
import numpy as np

FORMATS = "JPEG, PNG, WebP and TIFF"

Mode: TypeAlias = Literal["RGB", "L", "unchanged"]
"""What colours become: three channels, one, or those of the file."""

_OTHERS = {b"GIF8": "GIF", b"BM": "BMP", b"\x00\x00\x00\x0cjP  ": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000",
           b"\xff\x0a": "JPEG XL", b"\x00\x00\x00\x0cJXL ": "JPEG XL",
           b"\x89HDF": "HDF5", b"\x93NUMPY": "numpy", b"\x76\x2f\x31\x01": "OpenEXR", b"PK\x03\x04": "zip",
           b"%PDF": "PDF", b"DICM": "DICOM"}  # fmt: skip
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
"""The last bytes of an image. Within the data of a JPEG, FF is followed by 00, so that they are no part of it."""

_SMALL_TILE = 1 << 20
_WIDTH, _HEIGHT, _BITS, _COLOURS, _CHANNELS, _PLANES = 256, 257, 258, 262, 277, 284
"""Tags of TIFF. Those of the offsets of strips are 273, of their sizes 279, and of tiles 324, 325, 322 and 323."""

_MOST_CHANNELS = 64

_WHITE_IS_0, _PALETTE, _INK, _YCBCR = 0, 3, 5, 6


class HeaderError(ValueError):
    """Bytes are no image that can be decoded; the text says why."""


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
    image = _opened(data)
    width, height = image.size
    if max_pixels is not None and height * width > max_pixels:
        raise HeaderError(f"its header claims {height} x {width} pixels; expected at most max_pixels={max_pixels}")
    try:
        _check_whole(data, image)
        pixels = _DECODERS[image.format](data, image)
    except HeaderError:
        raise
    except MemoryError:
        raise HeaderError(f"there is no memory for its {height} x {width} pixels") from None
    except Exception as exc:
        raise HeaderError(f"its {image.format} decoder says: {' '.join(str(exc).split())}") from exc
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or sorted(pixels.shape[:2]) != sorted((height, width)):
        raise HeaderError(f"it decodes to shape {pixels.shape}; its header says {height} x {width}")
    return pixels if mode == "unchanged" else _as_mode(pixels, image, mode)


def _opened(data: bytes) -> Any:
    """Return Pillow's image of some bytes, which has its header alone."""
    kind = next((kind for magic, kind in _openers().items() if data.startswith(magic)), None)
    if kind is None or (data[:4] == b"RIFF" and data[8:12] != b"WEBP"):
        raise HeaderError(_no_format(data))
    try:
        # `Image.open` has a limit of pixels for the process, which could be less than `max_pixels`.
        return kind(io.BytesIO(data))
    except Exception as exc:
        raise HeaderError(f"its header cannot be read, or it is cut short: Pillow says: {exc}") from exc


@functools.cache
def _openers() -> Mapping[bytes, Callable[[io.BytesIO], Any]]:
    """Return what reads the header of an image, by its first bytes."""
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    tiff = dict.fromkeys((b"II\x2a\x00", b"MM\x00\x2a", b"II\x2b\x00", b"MM\x00\x2b"), _TiffHeader)
    return {b"\xff\xd8\xff": JpegImageFile, b"\x89PNG\r\n\x1a\n": PngImageFile, b"RIFF": WebPImageFile, **tiff}


class _TiffHeader:
    """The header of a TIFF: Pillow's own image refuses values for which it has no mode, such as float64."""

    format = "TIFF"

    def __init__(self, file: io.BytesIO) -> None:
        from PIL.TiffImagePlugin import ImageFileDirectory_v2

        head = file.read(8)
        head += file.read(8) if 43 in head[2:4] else b""  # a BigTIFF
        self.tag_v2 = ImageFileDirectory_v2(head)
        file.seek(self.tag_v2.next)
        self.tag_v2.load(file)
        self.size = int(self.tag_v2[_WIDTH]), int(self.tag_v2[_HEIGHT])
        channels, bits = int(self.tag_v2.get(_CHANNELS, 1)), max(self.tag_v2.get(_BITS, (1,)))
        if min(self.size) < 1 or not 1 <= channels <= _MOST_CHANNELS or not 1 <= bits <= 64:
            raise ValueError(
                f"it claims {self.size[1]} x {self.size[0]} pixels with {channels} channels of {bits} bits"
            )


def _no_format(data: bytes) -> str:
    if not data.strip(b"\0"):
        return f"it is empty: {len(data)} bytes of zeros" if data else "it is empty"
    other = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), None)
    if other is None and data[4:8] == b"ftyp":
        other = {b"avif": "AVIF", b"heic": "HEIC", b"mif1": "HEIF"}.get(data[8:12], "video or HEIF")
    what = other or f"of an unknown format, it begins with {data[:8].hex(' ')}"
    return f"it is {what}; {FORMATS} are decoded. Decode others in a function of map_batches, or a transform"


def _check_whole(data: bytes, image: Any) -> None:
    """Raise for an image that is cut short, or damaged where its format has checksums."""
    if image.format in _ENDS and data.rfind(_ENDS[image.format], image.fp.tell()) < 0:
        raise HeaderError("it is cut short: its end is missing")
    if image.format == "PNG":
        # libpng looks at checksums, too. But after most errors that it finds itself, its wrapper (imagecodecs 2026.3)
        # loses an array, and a reference to None: Python ends after some thousand images.
        image.verify()
    if image.format == "TIFF":
        tags, size = image.tag_v2, image.size[0] * image.size[1]
        ranges = zip(tags.get(273) or tags.get(324) or (), tags.get(279) or tags.get(325) or (), strict=False)
        end = max((offset + count for offset, count in ranges), default=len(data) + 1)
        if end > len(data):
            raise HeaderError(f"it is cut short: {len(data)} of {end} bytes")
        if (tile := tags.get(322, 1) * tags.get(323, 1)) > 4 * max(size, _SMALL_TILE):
            raise HeaderError(f"its tiles claim {tile} pixels, and it has {size}")


def _jpeg(data: bytes, image: Any) -> np.ndarray:
    pixels = imagecodecs.jpeg8_decode(data, out=_room(image))
    is_inverted = image.mode == "CMYK" and "adobe" in image.info  # Adobe stores how much light is left
    return 255 - pixels if is_inverted else pixels


def _room(image: Any) -> np.ndarray:
    channels = len(image.getbands())
    return np.empty((image.height, image.width, channels)[: 3 if channels > 1 else 2], np.uint8)


def _png(data: bytes, image: Any) -> np.ndarray:
    bits, colours = data[24:26]  # Pillow has no modes of several channels of 16 bits
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}[colours] + ("transparency" in image.info and colours not in {4, 6})
    dtype = np.dtype(np.uint16 if bits > 8 else np.uint8)
    shape = (image.height, image.width, channels)
    memory = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    out = memory.view(dtype).reshape(shape if channels > 1 else shape[:2])
    try:
        return imagecodecs.png_decode(data, out=out)
    except imagecodecs.PngError:
        # The wrapper keeps a reference to `out` and never drops it. Without this, each damaged image would take its
        # memory.
        del out  # nothing may look at it any more
        memory.resize(0, refcheck=False)
        raise


def _webp(data: bytes, image: Any) -> np.ndarray:
    return imagecodecs.webp_decode(data, hasalpha=image.mode == "RGBA", out=_room(image))


def _tiff(data: bytes, image: Any) -> np.ndarray:
    colours = image.tag_v2.get(_COLOURS, 1)
    if colours in {_PALETTE, _INK, _YCBCR}:
        return imagecodecs.tiff_decode(data, asrgb=True)[..., :3]
    pixels: Any = imagecodecs.tiff_decode(data)
    if image.tag_v2.get(_PLANES) == 2 and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if colours == _WHITE_IS_0:
        pixels = ~pixels if pixels.dtype.kind == "b" else np.iinfo(pixels.dtype).max - pixels
    return pixels


_DECODERS = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "TIFF": _tiff}


def _as_mode(pixels: np.ndarray, image: Any, mode: Mode) -> np.ndarray:
    pixels = _as_bytes(pixels, image)
    channels = pixels.shape[2]
    if image.format == "JPEG" and channels == 4:
        light = 255 - pixels[..., 3:].astype(np.int32)  # without ink, rounded as Pillow does
        product = pixels[..., :3] * light + 128
        pixels = np.clip(light - ((product >> 8) + product >> 8), 0, 255).astype(np.uint8)
    elif channels in {2, 4}:
        pixels = pixels[..., : channels - 1]  # without alpha
    elif channels not in {1, 3}:
        raise HeaderError(f"it has {channels} channels; mode='unchanged' delivers them")
    if mode == "RGB":
        return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    if pixels.shape[2] == 1:
        return pixels
    weights = np.array([19595, 38470, 7471], np.uint32)  # the luma of ITU-R 601-2, as Pillow computes it
    return ((pixels @ weights + 0x8000) >> 16).astype(np.uint8)[..., None]


def _as_bytes(pixels: np.ndarray, image: Any) -> np.ndarray:
    """Return values as uint8: of more bits, the upper 8."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind != "u":
        raise HeaderError(f"its values are {pixels.dtype}, which are no colours; mode='unchanged' delivers them")
    bits = max(image.tag_v2.get(_BITS, (1,))) if image.format == "TIFF" else 8 * pixels.dtype.itemsize
    return (pixels >> np.array(max(bits - 8, 0), pixels.dtype)).astype(np.uint8)
