"""Text that is not UTF-8: an error that names its row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ray_h5.errors import UnsupportedColumnError

_MAX_SHOWN = 60
"""Characters of a value in an error: text that is not UTF-8 may be an image."""


def check_utf8(array: np.ndarray, name: str, where: Callable[[int], str]) -> None:
    """Raise an UnsupportedColumnError for the first row of a column whose text is not UTF-8; ``where(i)`` names it."""
    rows = array.tolist()
    flat = rows if array.ndim == 1 else array.ravel().tolist()
    if {*map(type, flat)} <= {bytes} and b"".join(flat).isascii():
        return  # fast path: nothing is decoded
    row = next((i for i, value in enumerate(rows) if not _is_utf8(value)), None)
    if row is not None:
        shown = repr(rows[row])
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}... ({len(shown)} characters)"
        raise UnsupportedColumnError(
            f"{where(row)}: column {name!r} holds {shown}, which is not UTF-8. Pass dtypes={{{name!r}: bytes}} "
            f"to read_h5, H5Dataset or loader to get its values as bytes; ray_h5.DecodeImage({name!r}) makes arrays of "
            "those that are images."
        ) from None


def _is_utf8(value: object) -> bool:
    if isinstance(value, (tuple, list, np.ndarray)):  # a compound value, and arrays in it
        return all(map(_is_utf8, value))
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False
