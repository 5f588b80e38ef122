"""The place that files are written to: a local one, or one in a store."""

from __future__ import annotations

import os
from typing import Any

from ray_h5.errors import OptionError
from ray_h5.storage.addresses import Address, check_slashes, is_url
from ray_h5.storage.storage_of_path import whole_path


def place_to_write(option: str, path: Any, expected: str) -> tuple[str, bool]:
    """Return the path or URL of a place to write to, without a slash at its end, and whether it is in a store.

    Raises
    ------
    OptionError
        If it is none, or in a store that only reads.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise OptionError(f"{option}={path!r}: expected the path or URL of {expected}")
    check_slashes(text)
    if not is_url(text):
        return os.path.abspath(text.removeprefix("local://")), False
    if Address.of(text).kind == "https":
        raise OptionError(f"{option}={whole_path(text)!r}: cannot write by HTTP; expected s3://, gs:// or az://")
    return text.rstrip("/"), True
