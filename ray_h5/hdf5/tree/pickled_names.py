"""Names of columns that PyTables pickled, read without loading a pickle."""

from __future__ import annotations

import pickletools
from typing import Any

_MAX_TEXT = 1 << 20
_WORDS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "STRING", "SHORT_BINSTRING", "INT", "BININT", "BININT1"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def pickled_names(text: str) -> list[str] | None:
    """Return a list of names that PyTables pickled, those of several levels as paths; None for anything else."""
    try:
        names = _built(text)
        if not isinstance(names, list) or not all(isinstance(name, (str, tuple)) for name in names):
            return None
        levels = [(name,) if isinstance(name, str) else name for name in names]
        if sum(len(word) for level in levels for word in level) > _MAX_TEXT:  # a reference may repeat words
            return None
        return ["/".join(level) for level in levels]
    except (ValueError, UnicodeError, IndexError, KeyError, TypeError, AttributeError):
        return None


def _built(text: str) -> Any:
    """Return the words, tuples and lists of a pickle; nothing is loaded."""
    mark, stack, memo = object(), list[Any](), dict[int, Any]()
    for code, value, _ in pickletools.genops(text.encode("latin-1")):
        name = code.name
        if name in _WORDS:
            stack.append(str(value))
        elif name in {"MARK", "EMPTY_LIST"}:
            stack.append(mark if name == "MARK" else [])
        elif name in {"LIST", "TUPLE", "APPENDS"}:
            at = len(stack) - 1 - stack[::-1].index(mark)
            items = stack[at + 1 :]
            del stack[at:]
            if name == "APPENDS":
                stack[-1].extend(items)
            else:
                stack.append(items if name == "LIST" else tuple(items))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "APPEND":
            stack[-2].append(stack.pop())
        elif name in {"PUT", "BINPUT", "MEMOIZE"}:
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in {"GET", "BINGET"}:
            stack.append(memo[int(value or 0)])
        elif name not in {"PROTO", "FRAME", "STOP"}:
            raise ValueError(name)
    (items,) = stack
    return items
