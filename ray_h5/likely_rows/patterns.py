"""Paths -> a glob that matches them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from ray_h5.messages import common_pattern


def pattern_of(
    paths: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]
) -> tuple[str, frozenset[tuple[str, ...]]]:
    """Return a glob for paths of one depth, and which of `others` it matches.

    Parameters
    ----------
    paths, others : sequence of tuple of str
        The names of each path.
    """
    globs = [_glob(sorted(set(names))) for names in zip(*paths, strict=True)]
    return "/".join(globs), frozenset(path for path in others if all(map(fnmatch.fnmatchcase, path, globs)))


def _glob(names: Sequence[str]) -> str:
    """Return a glob for the names of one place."""
    if len(names) == 1:
        return _escaped(names[0])
    begin, _, end = common_pattern(names).rpartition("*")
    return f"{_escaped(begin)}*{_escaped(end)}"


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
