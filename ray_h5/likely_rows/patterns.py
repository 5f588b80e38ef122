"""Paths -> a glob that matches them and no others."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import string
from collections.abc import Iterator, Sequence

from ray_h5.messages import common_pattern

_MAX_FIRST = 12
"""First characters of names that a glob may list."""

_MAX_TRIED = 64


def pattern_of(
    paths: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]
) -> tuple[str, frozenset[tuple[str, ...]]]:
    """Return a glob for paths of one depth, and which of `others` it matches; those as few as possible.

    Parameters
    ----------
    paths, others : sequence of tuple of str
        The names of each path.
    """
    places = [sorted(set(names)) for names in zip(*paths, strict=True)]
    beside = [sorted({each[i] for each in others} - set(names)) for i, names in enumerate(places)]
    best: tuple[str, frozenset[tuple[str, ...]]] | None = None
    choices = [list(_globs(names, near)) for names, near in zip(places, beside, strict=True)]
    for globs in itertools.islice(itertools.product(*choices), _MAX_TRIED):
        found = frozenset(each for each in others if all(map(fnmatch.fnmatchcase, each, globs)))
        if best is None or len(found) < len(best[1]):
            best = "/".join(globs), found
        if not found:
            break
    assert best is not None
    return best


def _globs(names: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Yield globs for some names of one place, the plainest first."""
    if len(names) == 1:
        yield _escaped(names[0])
        return
    plain = common_pattern(names)
    begin, _, end = plain.rpartition("*")
    begin, end = _escaped(begin), _escaped(end)
    yield f"{begin}*{end}"
    if not others:
        return
    if all(name[len(plain.rpartition("*")[0]) :][:1] in tuple(string.digits) for name in names):
        yield f"{begin}[0-9]*{end}"
    start = os.path.commonprefix(list(names))  # noqa: RUF071  of characters, not of paths
    firsts = sorted({name[len(start) : len(start) + 1] for name in names})
    wrong = sorted({name[len(start) : len(start) + 1] for name in others if name.startswith(start)})
    if "" not in firsts and not {*wrong} & {*firsts} and not any(each in "]!^-[" for each in (*firsts, *wrong)):
        for listed, sign in ((wrong, "!"), (firsts, "")):
            if 0 < len(listed) <= _MAX_FIRST:
                yield f"{_escaped(start)}[{sign}{''.join(listed)}]*"


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
