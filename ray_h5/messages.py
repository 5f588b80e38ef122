"""Messages: names and lists in them, safe to print, and how they reach people who have not set up logging."""

from __future__ import annotations

import difflib
import logging
import os
import re
import string
import sys
from collections.abc import Iterable, Sequence

_MAX_LISTED = 10
_NUMBER = re.compile(r"\d+")
_ALIKE, _LESS_ALIKE = 0.5, 0.2
"""How alike a name that is offered is at least, of 1; and by how much less than the nearest one."""


def few(names: Sequence[str], most: int = _MAX_LISTED) -> str:
    """Return the first of some names, and how many more there are."""
    shown = ", ".join(printable(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def counted(number: int, what: str) -> str:
    """Return a number of things: ``1 file``, ``2 files``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def common_pattern(names: Sequence[str]) -> str:
    """Return a glob for names: what they begin and end with, and ``*`` for the rest."""
    begin = os.path.commonprefix(list(names))  # noqa: RUF071  of characters, not of paths
    end = os.path.commonprefix([name[len(begin) :][::-1] for name in names])[::-1]  # noqa: RUF071
    # A number is left out as a whole: demo_10 and demo_11 are demo_*, and not demo_1*.
    return begin.rstrip(string.digits) + "*" + end.lstrip(string.digits)


def no_column(missing: Sequence[str], names: Iterable[str]) -> str:
    """Return the text of an error about columns that are not in `names`."""
    return f"no column {', '.join(map(repr, missing))}.{near_names(missing[0], names)}"


def near_names(name: str, names: Iterable[str], most: int = _MAX_LISTED) -> str:
    """Return a sentence that offers the names nearest to `name`, or else lists the first ones; with `most` 0 none.

    Several names with commas between them, as other commands take them, are told apart.
    """
    known = sorted(set(map(str, names)))  # a pandas frame may call a column by a number
    several = [part for part in re.split(r"[,;\s]+", name) if part]
    if len(several) > 1 and {*several} <= {*known}:
        said = ", ".join(map(repr, several))
        return f" These are {len(several)} names: {said}. Write each by itself; in a command, spaces separate them."
    if near := [text for text in known if text.endswith(f"/{name}")][:3] or _alike(name, known):
        return f" Did you mean {' or '.join(repr(candidate) for candidate in near)}?"
    if not most:
        return ""
    shown = ", ".join(map(printable, known[:most])) + (", ..." if len(known) > most else "")
    return f" There is: {shown}." if known else " There is none."


def _alike(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that are about as alike as the nearest one, if that is alike: those in the same folder first."""
    # What has another number, such as PartType0 for PartType5, is no other spelling but other data.
    depth, numbers = len(name.split("/")), _numbers(name)
    of_text = {text: _numbers("/".join(text.split("/")[:depth])) for text in known}
    same = [text for text in known if len(of_text[text]) != len(numbers) or of_text[text] == numbers]
    # Below one folder, its name says nothing: a long one would make all names in it alike.
    folder = name[: name.rfind("/") + 1]
    inside = {text[len(folder) :]: text for text in same if text.startswith(folder)}
    close = [inside[tail] for tail in difflib.get_close_matches(name[len(folder) :], inside, n=3, cutoff=_ALIKE)]
    close = close or difflib.get_close_matches(name, {*same} - {*inside.values()}, n=3, cutoff=_ALIKE)
    ratios = [difflib.SequenceMatcher(None, text, name).ratio() for text in close]
    return [text for text, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - _LESS_ALIKE]


def _numbers(text: str) -> list[int]:
    return [*map(int, _NUMBER.findall(text))]


def printable(text: str) -> str:
    """Return `text` with escapes for characters that a terminal would obey, or that cannot be written as UTF-8."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


_PACKAGE = "ray_h5"


class _OwnHandler(logging.Handler):
    """Writes messages to stderr as long as no other handler gets them.

    Programs that call ``logging.basicConfig``, and pytest, set handlers of the root logger. Then this handler goes.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            remove_handler()
            return
        try:
            word = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
            # Looked up now: notebooks and tests replace it.
            print(f"{_PACKAGE}: {word}{self.format(record)}", file=sys.stderr)
        except Exception:  # noqa: BLE001  logging's own way to report what went wrong in a handler
            self.handleError(record)


_own = _OwnHandler()


def ensure_handler() -> None:
    """Show messages from level INFO on, unless the program has set up logging, for itself or for this package.

    The functions that begin the work call this; an import changes nothing.
    """
    logger, root = logging.getLogger(_PACKAGE), logging.getLogger()
    if root.handlers:
        remove_handler()
    elif not logger.handlers and logger.level == logging.NOTSET and logger.propagate:
        logger.addHandler(_own)
        logger.setLevel(logging.INFO)


def remove_handler() -> None:
    """Leave the messages to the handlers of the program."""
    logger = logging.getLogger(_PACKAGE)
    if _own in logger.handlers:
        logger.removeHandler(_own)
        if logger.level == logging.INFO:
            logger.setLevel(logging.NOTSET)


def size(nbytes: int) -> str:
    """Return a number of bytes with three digits and a unit."""
    value, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{value:.3g} {units[0]}"
