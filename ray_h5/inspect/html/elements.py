"""Elements of HTML whose texts are escaped unless they are elements themselves."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import Any

import numpy as np

from ray_h5.messages import printable

__all__ = ["Markup", "image", "joined", "png", "tag"]


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape("\n".join(map(printable, text.split("\n"))))


def joined(*parts: str) -> Markup:
    """Return parts after each other; those that are no `Markup` are escaped."""
    return Markup("".join(map(_escaped, parts)))


def tag(element: str, *inside: str, **attributes: object) -> Markup:
    """Return an element; an underscore at the end of an attribute's name is dropped, others are hyphens."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"' for key, value in attributes.items()
    )
    if element in {"img", "meta"}:
        return Markup(f"<{element}{given}>")
    return Markup(f"<{element}{given}>{joined(*inside)}</{element}>")


def image(data: bytes, kind: str, described: str) -> Markup:
    """Return an image that is a part of the page."""
    return tag("img", src=f"data:image/{kind};base64,{base64.b64encode(data).decode()}", alt=described)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encode a picture of bytes, shape (height, width, 3)."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
