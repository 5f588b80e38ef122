"""Links to rows that follow each other in other files, as the masters of detectors have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ray_h5.errors import ExternalDataError, RayH5Error
from ray_h5.likely_rows.words import PIECES, last, words


def pieces_in_links(
    folders: Mapping[str, str], refused: Mapping[str, RayH5Error], columns: Iterable[str]
) -> dict[str, RayH5Error]:
    """Return the errors of links to rows that follow each other, with the one call that reads them all.

    Nothing is known of the other files but their names: they may not be opened.

    Parameters
    ----------
    folders : mapping of str to str
        The folders of the files, by link.
    refused : mapping of str to RayH5Error
        The errors of links, and of other columns.
    columns : iterable of str
        The other columns.
    """
    found: dict[str, list[str]] = {}
    for name in folders:
        if name[-1:].isdecimal():
            found.setdefault(re.sub(r"\d+$", "", name), []).append(name)
    others = [*columns, *refused]
    for begin, names in found.items():
        is_piece = bool(PIECES & {*words(last(begin)), last(begin).strip("_")}) and not set("*?[") & {*begin}
        is_alone = not any(fnmatchcase(each, begin + "*") for each in others if each not in names)
        if len(names) > 1 and is_piece and is_alone:
            allowed = list(dict.fromkeys(folders[name] for name in names))
            call = f"columns=[ray_h5.joined({begin + '*'!r})], allow_external={allowed}"
            return {name: _error(refused[name], len(names), call) for name in names}
    return {}


def _error(refused: RayH5Error, count: int, call: str) -> RayH5Error:
    said = str(refused).partition(" If you trust it,")[0]
    error = ExternalDataError(
        f"{said} If you trust these {count} files, and their rows follow each other, read this file without them, and "
        f"pass {call}. Columns with a value for each of these rows go beside it."
    )
    error.__dict__.update(refused.__dict__)
    return error
