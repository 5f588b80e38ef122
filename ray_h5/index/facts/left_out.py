"""What an index leaves out, and what it cannot be made of: empty files, columns, files that cannot be read."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ray_h5.errors import CorruptFileError, NotHDF5Error, RayH5Error, TruncatedFileError
from ray_h5.index.facts.file_facts import FileFacts, Question
from ray_h5.index.scan_files import Lookup
from ray_h5.manifest.layout import FileState
from ray_h5.messages import few
from ray_h5.storage.request_pool import each_waiting

logger = logging.getLogger(__name__)

_MAX_LOOKED_AT = 1000
"""A look for empty files looks at this many files."""

_MAX_LISTED = 5
_MAX_UNREADABLE = 100

UNREADABLE = NotHDF5Error, TruncatedFileError, CorruptFileError
"""The errors of files that are not HDF5, cut short or damaged."""


def empty_files(paths: Sequence[str], lookup: Lookup) -> dict[str, str]:
    """Return those of the first files that are without a byte, or without a dataset, and which of both."""
    empty = {}
    for path in paths[:_MAX_LOOKED_AT]:
        listed = lookup.states.get(path)
        with contextlib.suppress(RayH5Error, OSError):  # what else is wrong with a file is reported for all files
            if (os.stat(path).st_size if listed is None else listed.size) == 0:
                empty[path] = "0 bytes"
                continue
            with lookup.scope.open(path, None if listed is None else FileState(listed)) as reader:
                if not reader.layout.columns and not reader.layout.refused:
                    empty[path] = "no dataset"
    return empty


def unreadable_files(paths: Sequence[str], lookup: Lookup, question: Question) -> dict[str, RayH5Error]:
    """Return the files that are not HDF5, cut short or damaged, and the error of each."""
    alone = replace(lookup, index_dir=None)

    def error_of(path: str) -> RayH5Error | None:
        try:
            alone.ask([path], question)
        except UNREADABLE as exc:
            return exc
        except RayH5Error:
            pass  # it appears once these files are gone
        return None

    errors = each_waiting(error_of, paths) if lookup.states else map(error_of, paths)
    return {path: error for path, error in zip(paths, errors, strict=True) if error is not None}


def error_of_unreadable(errors: Mapping[str, RayH5Error], first: RayH5Error, count: int) -> RayH5Error:
    """Return the error that names the files that cannot be read, of `count` files."""
    # Nothing is found if the error is of a file that a link leads to.
    if count == 1 or not errors:
        return first
    listed = [f"  {error}" for error in errors.values()]
    more = [f"  and {len(listed) - _MAX_UNREADABLE} more"] if len(listed) > _MAX_UNREADABLE else []
    advice = (
        "Restore them from a copy, or move them away; or pass ignore_unreadable_files=True to leave them out."
        if len(errors) < count
        else "Restore them from a copy."
    )
    lines = [f"{len(errors)} of {count} files cannot be read:", *listed[:_MAX_UNREADABLE], *more, advice]
    return type(first)("\n".join(lines))


def warn_of_unreadable(errors: Mapping[str, RayH5Error], count: int) -> None:
    """Log the files that are left out of `count` files, as the user asked."""
    listed = "\n".join(f"  {error}" for error in errors.values())
    logger.warning("left out %d of %d files, which cannot be read:\n%s", len(errors), count, listed)


def warn_of_left_out(facts: Sequence[FileFacts]) -> None:
    """Log the columns that cannot be read as rows, and why."""
    left_out = {name: why for file_facts in facts for name, why in file_facts.left_out}
    shown = few([f"{name} ({why})" for name, why in left_out.items()], _MAX_LISTED)
    columns = left_out.keys() | {name for file_facts in facts for name in file_facts.listing or ()}
    logger.warning("left out %d of %d columns: %s; name columns=[...] to choose", len(left_out), len(columns), shown)
