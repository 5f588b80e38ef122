"""Repeats what an error of a disk ended that may pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ray_h5.errors import TransientIOError
from ray_h5.hdf5.files.opening import is_transient, lacks_descriptors
from ray_h5.read.file_cache import forget_all

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_WAITS_S = (0.1, 0.5, 2.0)
"""Waits before the second, third and fourth try after an error that may pass."""


def repeated(
    failed: OSError, action: Callable[[], Result], path: str, reopen: Callable[[], object], *, swmr: bool
) -> Result:
    """Return the result of `action`, which has failed: the file is opened again, and it is repeated.

    Parameters
    ----------
    failed : OSError
        The error of the first try. An error that does not pass is raised again.
    action : callable
        Reads the file.
    path : str
        The file, for messages.
    reopen : callable
        Makes the next try open the file again.
    swmr : bool
        Whether a writer may change the file meanwhile.

    Raises
    ------
    TransientIOError
        If it fails each time.
    """
    waits, has_forgotten = iter(_WAITS_S), False
    while True:
        if lacks_descriptors(failed) and not has_forgotten:
            # The files in the cache hold descriptors, and are only kept for later reads.
            forget_all()
            waits, has_forgotten = iter(_WAITS_S), True
        elif is_transient(failed, swmr) and (wait := next(waits, None)) is not None:
            logger.warning("%s: %s; opening it again in %.1f s", path, failed, wait)
            reopen()
            time.sleep(wait)
        else:
            break
        try:
            return action()
        except OSError as exc:
            failed = exc
    if not is_transient(failed):
        raise failed
    raise TransientIOError(
        f"{path}: still failing after {len(_WAITS_S) + 1} tries: {failed}. Check its file system; the read can be "
        "repeated."
    ) from failed
