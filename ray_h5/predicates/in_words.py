"""A predicate in words: as it is written, not as pyarrow computes it."""

from __future__ import annotations

import json
import re

import pyarrow.compute as pc

from ray_h5.predicates.virtual_names import AnyEqual, DatedText, Derived, FileFold, Length, RowMask, parse_virtual

_MOST = 300
"""Longer predicates are cut off."""

_NUMBER = r"(?:-?inf|-?\d[\d.]*(?:e[-+]?\d+)?)"
_VIRTUAL = re.compile(r"ray_h5:(?=\[)")
_IS_TRUE = " == true"
_ZERO = re.compile(r"subtract_checked\((?P<name>[^()]+), 0\)")
_DOUBLE = re.compile(r"add_checked\((?P<name>[^()]+), 0\)")
_IS_IN = re.compile(
    r"is_in\((?P<name>.+?), \{value_set=[^:{}]*:\[ ?(?P<values>[^{}]*?) ?\], null_matching_behavior=MATCH\}\)"
)
_OF_FLOAT32 = re.compile(
    r" or \(\(subtract_checked\(divide_checked\(add_checked\(subtract_checked\((?P<name>[^()]+), (?P=name)\), 1\), "
    rf"3\), 0\) == 0\.3333333432674408\) and (?:\((?P=name) == {_NUMBER}\)|(?P=name) in \[[^\[\]]*\])\)"
)
_TWICE = re.compile(
    r"\((?P<name>[^()\[\]]+) in \[(?P<one>[^\[\]]*)\] or (?P<open>\()?(?P=name) in \[(?P<other>[^\[\]]*)\](?(open)\))\)"
)
_MINUS_ZERO = re.compile(r"\((?P<found>(?P<name>[^()\[\]]+) in \[[^\[\]]*\]) or (?P=name) in \[-0\]\)")
_ALONE = re.compile(r"\(\((?P<compared>[^()]* (?:[<>=]=?|!=|in) [^()]*)\)\)")
_STAYS_NULL = r"\(is_null\((?P<name>[^()]+), \{nan_is_null=false\}\) and null\[bool\]\)"
_OR_NULL = re.compile(f" or {_STAYS_NULL}")
_NOTHING = re.compile(_STAYS_NULL)
_IS_NULL = re.compile(r"is_null\((?P<name>.+?), \{nan_is_null=false\}\)")


def in_words(expression: pc.Expression) -> str:
    """Return a predicate as text of one line, for messages.

    Comparisons that `where` makes are exact for any type of the column. In the text of pyarrow they have steps that
    nobody wrote: casts, nulls that stay nulls, a second look for the -0.0 of floats, and for numbers as float32 has
    them.
    """
    text = _virtual_in_words(" ".join(str(expression).split()))
    text = _OR_NULL.sub("", text)
    text = _DOUBLE.sub(r"\g<name>", _ZERO.sub(r"\g<name>", text))
    text = _IS_IN.sub(r"\g<name> in [\g<values>]", text)
    text = _OF_FLOAT32.sub("", text)
    text = _MINUS_ZERO.sub(r"(\g<found>)", text)
    while (merged := _MINUS_ZERO.sub(r"\g<found>", _TWICE.sub(r"\g<name> in [\g<one>, \g<other>]", text))) != text:
        text = merged
    text = _ALONE.sub(r"(\g<compared>)", text)
    text = _IS_NULL.sub(r"\g<name> is null", _NOTHING.sub(r"\g<name> in []", text)).replace("invert(", "not (")
    return text if len(text) <= _MOST else f"{text[: _MOST - 4]} ..."


def _virtual_in_words(text: str) -> str:
    """Return the text with criteria that are columns of their own as they are written."""
    begin = 0
    while (found := _VIRTUAL.search(text, begin)) is not None:
        begin = found.end()
        try:
            _, end = json.JSONDecoder().raw_decode(text, begin)
            parsed = parse_virtual(text[found.start() : end])
        except (ValueError, TypeError):
            continue  # text of the user that begins like a virtual column
        if parsed is not None:
            words = _criterion(*parsed)
            text = text[: found.start()] + words + text[end:].removeprefix(_IS_TRUE)
            begin = found.start() + len(words)
    return text


def _criterion(column: str, wanted: Derived) -> str:
    if isinstance(wanted, RowMask):
        return f"{column} = row_mask()"
    if isinstance(wanted, AnyEqual):
        valid = "" if wanted.valid is None else f", valid={wanted.valid!r}"
        return f"{column} = any_equal({wanted.value}{valid})"
    if isinstance(wanted, DatedText):
        texts = [text if text is None else json.dumps(text) for text in wanted.texts]
        if wanted.how == "between":
            return f"{column} = between({', '.join(map(str, texts))})"
        return f"{column} == {texts[0]}" if wanted.how == "equal" else f"{column} in [{', '.join(map(str, texts))}]"
    if isinstance(wanted, Length):
        return f"the length of {column}"
    if isinstance(wanted, FileFold):
        return f"{len(wanted.files)} of {wanted.num_files} files of kfold(group='path')"
    return f"fold {wanted.fold} of kfold(k={wanted.k}), {'its' if wanted.is_test else 'all other'} rows"
