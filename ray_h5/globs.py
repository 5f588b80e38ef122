"""Globs over paths in a file: what their stars, question marks and lists of characters stand for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache

WILDCARD = re.compile(r"(\*|\?|\[!?\]?[^\]]*\])")
"""A star, a question mark, or a list of characters."""


def is_glob(path: str) -> bool:
    """Return whether a path, or a part of one, has a star, a question mark or a list of characters."""
    return "*" in path or "?" in path or "[" in path


def texts_of(path: str, glob: str) -> list[str] | None:
    """Return what the wildcards of a glob stand for in a path, level by level; None if it does not match.

    ``cell_*/[ab]`` stands for ``["12", "a"]`` in ``cell_12/a``.
    """
    levels, parts = path.strip("/").split("/"), [part for part in glob.split("/") if part]
    if len(levels) != len(parts):
        return None
    matched = [_captures(part).fullmatch(level) for level, part in zip(levels, parts, strict=True)]
    return None if None in matched else [text for match in matched if match is not None for text in match.groups()]


def is_at_or_below(path: str, glob: str) -> bool:
    """Return whether a glob matches a path, or a group above it; a glob without a slash is of a name at any level.

    ``meta*`` matches ``data/meta_1/x``, and ``data/**/raw`` matches ``data/a/b/raw/x``.
    """
    given = glob.strip("/").split("/")
    return _leads_to(path.split("/"), given if len(given) > 1 else ["**", *given])


def _leads_to(levels: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether the parts of a glob match the first levels of a path."""
    if not parts:
        return True
    if parts[0] == "**":
        return any(_leads_to(levels[skipped:], parts[1:] or ["*"]) for skipped in range(len(levels)))
    is_match = bool(levels) and (levels[0] == parts[0] or fnmatch.fnmatchcase(levels[0], parts[0]))
    return is_match and _leads_to(levels[1:], parts[1:])


@lru_cache(maxsize=256)  # a glob is compared with each of 10^5 paths
def _captures(glob: str) -> re.Pattern[str]:
    """Return a pattern that captures the text of each wildcard of a glob of one level."""
    parts = WILDCARD.split(glob)
    # translate() returns (?s:...)\\Z
    forms = [re.escape(part) if i % 2 == 0 else f"({fnmatch.translate(part)[4:-3]})" for i, part in enumerate(parts)]
    return re.compile("".join(forms), re.DOTALL)
