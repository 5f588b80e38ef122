"""What an index leaves out, and what it cannot be made of: empty files, columns, files that are not HDF5."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import islice

from ray_h5.errors import NotHDF5Error, RayH5Error
from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.file_opener import Scope
from ray_h5.index.lookup import Lookup
from ray_h5.manifest.layout import FileState
from ray_h5.messages import few

logger = logging.getLogger(__name__)

_MAX_LOOKED_AT = 1000
"""An error that lists the files that are not HDF5 looks at this many files."""

_MAX_LISTED = 5


def empty_files(paths: Sequence[str], lookup: Lookup) -> dict[str, str]:
    """Return those of the first files that are without a byte, or without a dataset, and which of both."""
    return {path: why for path in paths[:_MAX_LOOKED_AT] if (why := _why_empty(path, lookup))}


def warn_of_empty(empty: Mapping[str, str], count: int) -> None:
    """Log the files that are left out of `count` files."""
    shown = few([f"{path} ({why})" for path, why in empty.items()], _MAX_LISTED)
    logger.warning(
        "left out %d of %d files, which are empty: %s; write them again, or leave them out", len(empty), count, shown
    )


def _why_empty(path: str, lookup: Lookup) -> str:
    listed = lookup.states.get(path)
    with contextlib.suppress(RayH5Error, OSError):  # what else is wrong with a file is reported for all files
        if (os.stat(path).st_size if listed is None else listed.size) == 0:
            return "0 bytes"
        with lookup.scope.open(path, None if listed is None else FileState(listed)) as reader:
            if not reader.layout.columns and not reader.layout.refused:
                return "no dataset"
    return ""


def list_others(paths: Sequence[str], first: NotHDF5Error, scope: Scope) -> NotHDF5Error:
    """Return an error that lists more files that are not HDF5, if there are more."""
    reasons = (_why_not_hdf5(path, scope) for path in paths[:_MAX_LOOKED_AT])
    found = list(islice(filter(None, reasons), _MAX_LISTED + 1))
    # Nothing is found if the error is of a file that a link leads to, or is beyond the first files.
    if len(paths) == 1 or not found:
        return first
    listed = "\n".join(f"  {why}" for why in found[:_MAX_LISTED])
    more = "\n  and more" if len(found) > _MAX_LISTED else ""
    return NotHDF5Error(
        f"some of the {len(paths)} files are not HDF5:\n{listed}{more}\n"
        "Move them away, or name the others: with a glob that leaves these out, or one by one."
    )


def _why_not_hdf5(path: str, scope: Scope) -> str | None:
    with contextlib.suppress(RayH5Error):  # other errors appear once these files are gone
        try:
            scope.open(path).close()
        except NotHDF5Error as exc:
            return str(exc)
    return None


def warn_of_left_out(facts: Sequence[FileFacts]) -> None:
    """Log the columns that cannot be read as rows, and why."""
    left_out = {name: why for each in facts for name, why in each.left_out}
    shown = few([f"{name} ({why})" for name, why in left_out.items()], _MAX_LISTED)
    columns = left_out.keys() | {name for each in facts for name in each.listing or ()}
    logger.warning("left out %d of %d columns: %s; name columns=[...] to choose", len(left_out), len(columns), shown)
