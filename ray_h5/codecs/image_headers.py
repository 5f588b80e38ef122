"""The format and size of an encoded image, from its first bytes: nothing is decoded, and no memory is taken for it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

FORMATS = "JPEG, PNG, WebP, JPEG XL and TIFF"

_OTHERS = {b"GIF8": "GIF", b"BM": "BMP", b"\x00\x00\x00\x0cjP  ": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000",
           b"\x89HDF": "HDF5", b"\x93NUMPY": "numpy", b"\x76\x2f\x31\x01": "OpenEXR", b"PK\x03\x04": "zip",
           b"%PDF": "PDF", b"DICM": "DICOM"}  # fmt: skip
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_BASELINE = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_SCAN, _END = 0xDA, 0xD9
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_TIFF_TYPES = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q"}
_WITH_ALPHA = (4, 6)
_MAX_ENTRIES = 4096
_MAX_VALUES = 1 << 20
_SMALL_TILE = 1 << 20


class HeaderError(ValueError):
    """Bytes are no image that can be decoded; the text says why."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What an encoded image says of itself.

    Attributes
    ----------
    format : str
        "JPEG", "PNG", "WebP", "JPEG XL" or "TIFF".
    height, width : int
        Its size.
    channels : int
        Values of a pixel, as far as the header says it; at most 4 for other formats than TIFF.
    bits : int
        Bits of a value.
    details : mapping of str to object
        What the decoder of its format needs.
    """

    format: str
    height: int
    width: int
    channels: int
    bits: int = 8
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the decoded image."""
        return self.height * self.width * self.channels * -(-self.bits // 8)


def header_of(data: bytes) -> ImageHeader:
    """Return the header of an encoded image.

    Raises
    ------
    HeaderError
        If it is no image of these formats, or its header is damaged.
    """
    for is_one, parse in _PARSERS:
        if is_one(data):
            try:
                found = parse(data)
            except HeaderError:
                raise
            except (IndexError, OverflowError, ValueError, struct.error) as exc:
                raise HeaderError("it is cut short within its header") from exc
            if found.height < 1 or found.width < 1:
                raise HeaderError(f"its header claims a size of {found.height} x {found.width}")
            return found
    raise HeaderError(_no_format(data))


def _no_format(data: bytes) -> str:
    if not data.strip(b"\0"):
        return f"it is empty: {len(data)} bytes of zeros" if data else "it is empty"
    other = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), None)
    if other is None and data[4:8] == b"ftyp":
        other = {b"avif": "AVIF", b"heic": "HEIC", b"mif1": "HEIF"}.get(data[8:12], "video or HEIF")
    what = other or f"of an unknown format, it begins with {data[:8].hex(' ')}"
    return f"it is {what}; {FORMATS} are decoded"


def _jpeg(data: bytes) -> ImageHeader:
    frame: tuple[int, int, int, int] | None = None
    adobe, scan = False, 0
    for marker, begin, end in _segments(data):
        if marker in _FRAMES:
            if marker not in _BASELINE:
                raise HeaderError("it is a lossless or hierarchical JPEG, which is not decoded")
            frame = struct.unpack_from(">BHHB", data, begin)
        adobe |= marker == 0xEE and data[begin : begin + 5] == b"Adobe"
        scan = end
    if frame is None:
        raise HeaderError("its header has no size")
    bits, height, width, channels = frame
    if height == 0:
        raise HeaderError("it does not say its height in its header")
    if bits != 8 or channels not in {1, 3, 4}:
        raise HeaderError(f"it has {channels} channels of {bits} bits; JPEGs of 1, 3 or 4 of 8 bits are decoded")
    # Within the data of an image FF is followed by 00, so the end marker cannot be part of it. A picture in the header,
    # such as a preview, has an end marker of its own.
    if data.rfind(b"\xff\xd9", scan) < 0:
        raise HeaderError("it is cut short: its end marker is missing")
    return ImageHeader("JPEG", height, width, channels, 8, {"adobe": adobe})


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the segments of a JPEG up to its first scan: marker, begin and end."""
    at, marker = 2, 0
    while marker != _SCAN:
        at = data.index(b"\xff", at)  # libjpeg skips what is no marker, too
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in _NO_LENGTH:
            continue
        if marker == _END:
            raise HeaderError("it has no image: its end marker comes first")
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2:
            raise HeaderError(f"its header is damaged: a segment claims {length} bytes")
        yield marker, at + 2, at + length
        at += length


def _png(data: bytes) -> ImageHeader:
    width, height, bits, color = struct.unpack_from(">IIBB", data, 16)
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(color)
    if data[12:16] != b"IHDR" or channels is None:
        raise HeaderError("its header is damaged")
    chunks = _png_chunks(data)
    alpha = b"tRNS" in chunks and color not in _WITH_ALPHA
    return ImageHeader("PNG", height, width, channels + alpha, max(bits, 8))


def _png_chunks(data: bytes) -> set[bytes]:
    """Return the names of the chunks of a PNG.

    Their checksums are computed here. libpng would look at them too, but after most errors that it finds itself, its
    wrapper (imagecodecs 2026.3) loses an array, and a reference to None: Python ends after some thousand images.
    """
    at, kind, found = 8, b"", set()
    view = memoryview(data)
    while kind != b"IEND":
        if at + 12 > len(data):
            raise HeaderError("it is cut short: its end is missing")
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + size + 12
        if end > len(data):
            raise HeaderError("it is cut short: its end is missing")
        if zlib.crc32(view[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise HeaderError(f"it is damaged: the checksum of its chunk {kind.decode('latin-1')!r} is wrong")
        found.add(kind)
        at = end
    return found


def _webp(data: bytes) -> ImageHeader:
    (riff,) = struct.unpack_from("<I", data, 4)
    if riff + 8 > len(data):
        raise HeaderError(f"it is cut short: {len(data)} of {riff + 8} bytes")
    kind = data[12:16]
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise HeaderError("its header is damaged")
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("WebP", height & 0x3FFF, width & 0x3FFF, 3)
    if kind == b"VP8L":
        (word,) = struct.unpack_from("<I", data, 21)
        alpha = word >> 28 & 1
        return ImageHeader("WebP", (word >> 14 & 0x3FFF) + 1, (word & 0x3FFF) + 1, 3 + alpha)
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        if len(data) < 30:
            raise HeaderError("it is cut short within its header")
        return ImageHeader("WebP", height, width, 4 if data[20] & 0x10 else 3)
    raise HeaderError("its header is damaged")


def _jpegxl(data: bytes) -> ImageHeader:
    stream = data if data.startswith(b"\xff\x0a") else _jpegxl_stream(data)
    bits = _Bits(stream[2:34])
    small = bits.take(1)
    height = (bits.take(5) + 1) * 8 if small else _jpegxl_length(bits)
    ratio = bits.take(3)
    if ratio:
        over, under = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio - 1]
        width = height * over // under
    else:
        width = (bits.take(5) + 1) * 8 if small else _jpegxl_length(bits)
    depth, extra = _jpegxl_metadata(bits)
    if extra > 1:
        raise HeaderError(f"it has {extra} channels beside its colours; one, alpha, is decoded")
    return ImageHeader("JPEG XL", height, width, 3 + extra, depth)


def _jpegxl_metadata(bits: _Bits) -> tuple[int, int]:
    """Return the bits of a value, and how many channels there are beside colours."""
    if bits.take(1):  # all is as it is by default
        return 8, 0
    if bits.take(1):
        bits.take(3)  # orientation
        if bits.take(1):
            _skip_size(bits, (9, 13, 18, 30), (5, 5, 5, 5))
        if bits.take(1):
            _skip_size(bits, (6, 8, 10, 12), (0, 0, 5, 9))
        if bits.take(1):  # animation
            for widths in ((0, 0, 10, 30), (0, 0, 8, 10), (0, 3, 16, 32)):
                bits.take(widths[bits.take(2)])
            bits.take(1)
    is_float = bits.take(1)
    choice = bits.take(2)
    depth = (32, 16, 24)[choice] if is_float and choice < 3 else (8, 10, 12)[choice] if choice < 3 else bits.take(6) + 1
    if is_float:
        bits.take(4)
    bits.take(1)
    choice = bits.take(2)
    return depth, choice if choice < 2 else bits.take((4, 12)[choice - 2]) + (2, 1)[choice - 2]


def _skip_size(bits: _Bits, large: tuple[int, ...], small: tuple[int, ...]) -> None:
    """Skip a size of its own, such as that of a preview."""
    is_small = bits.take(1)

    def skip() -> None:
        if is_small and small[0] == small[1] == 5:
            bits.take(5)
        else:
            bits.take((small if is_small else large)[bits.take(2)])

    skip()
    if bits.take(3) == 0:
        skip()


def _jpegxl_stream(data: bytes) -> bytes:
    """Return the beginning of the codestream in a container of boxes."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        if kind == b"jxlc" or kind == b"jxlp":
            begin = at + head + (4 if kind == b"jxlp" else 0)
            if data[begin : begin + 2] != b"\xff\x0a":
                raise HeaderError("its header is damaged")
            return data[begin : begin + 64]
        if size < head:
            break
        at += size
    raise HeaderError("its header is damaged: it has no image")


def _jpegxl_length(bits: _Bits) -> int:
    return bits.take((9, 13, 18, 30)[bits.take(2)]) + 1


class _Bits:
    """Reads numbers of some bits, the lowest bit first."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        if count > self._left:
            raise IndexError
        found = self._value & (1 << count) - 1
        self._value >>= count
        self._left -= count
        return found


def _tiff(data: bytes) -> ImageHeader:
    order = "<" if data[:2] == b"II" else ">"
    tags = dict(_tags(data, order))
    if not {256, 257} <= tags.keys():
        raise HeaderError("its header has no size")
    width, height = tags[256][0], tags[257][0]
    bits = tags.get(258, (1,))
    channels = tags.get(277, (1,))[0]
    offsets, counts = tags.get(273) or tags.get(324) or (), tags.get(279) or tags.get(325) or ()
    ends = [offset + count for offset, count in zip(offsets, counts, strict=False)]
    if not ends:
        raise HeaderError("its header does not say where the image is")
    if max(ends) > len(data):
        raise HeaderError(f"it is cut short: {len(data)} of {max(ends)} bytes")
    if not 1 <= channels <= 64 or not bits or max(bits) > 64:
        raise HeaderError(f"it claims {channels} channels of {max(bits, default=0)} bits")
    tile = tags.get(322, (1,))[0] * tags.get(323, (1,))[0]
    if tile > 4 * max(height * width, _SMALL_TILE):
        raise HeaderError(f"its tiles claim {tile} pixels, its size is {height} x {width}")
    details = {
        "photometric": tags.get(262, (1,))[0],
        "planar": tags.get(284, (1,))[0] == 2,
        "float": 3 in tags.get(339, ()),
    }
    return ImageHeader("TIFF", height, width, channels, max(bits), details)


def _tags(data: bytes, order: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the tags of the first image, with their values as integers."""
    is_big = data[2:4] in (b"\x2b\x00", b"\x00\x2b")
    (at,) = struct.unpack_from(order + ("Q" if is_big else "I"), data, 8 if is_big else 4)
    (count,) = struct.unpack_from(order + ("Q" if is_big else "H"), data, at)
    at += 8 if is_big else 2
    if count > _MAX_ENTRIES:
        raise HeaderError("its header is damaged")
    width, room = (20, 8) if is_big else (12, 4)
    for entry in range(at, at + count * width, width):
        tag, kind, number = struct.unpack_from(order + ("HHQ" if is_big else "HHI"), data, entry)
        letter = _TIFF_TYPES.get(kind)
        if letter is None or number > _MAX_VALUES:
            continue
        begin = entry + width - room
        if struct.calcsize(letter) * number > room:
            (begin,) = struct.unpack_from(order + ("Q" if is_big else "I"), data, begin)
        yield tag, struct.unpack_from(f"{order}{number}{letter}", data, begin)


_JXL_BOX = b"\x00\x00\x00\x0cJXL \r\n\x87\n"
_TIFF_MAGIC = (b"II\x2a\x00", b"MM\x00\x2a", b"II\x2b\x00", b"MM\x00\x2b")

_PARSERS: tuple[tuple[Callable[[bytes], bool], Callable[[bytes], ImageHeader]], ...] = (
    (lambda data: data.startswith(b"\xff\xd8\xff"), _jpeg),
    (lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), _png),
    (lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", _webp),
    (lambda data: data.startswith((b"\xff\x0a", _JXL_BOX)), _jpegxl),
    (lambda data: data.startswith(_TIFF_MAGIC), _tiff),
)
