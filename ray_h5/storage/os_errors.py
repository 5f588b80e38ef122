"""Errors of the operating system -> `RayH5Error`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ray_h5.errors import NotFoundError, NotReadableError, RayH5Error, ReadFailedError, TransientIOError

TRANSIENT_ERRNOS = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR})
"""Errors of network file systems that may pass."""

NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})

_NO_SUCH_FILE_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


def translate_os_error(exc: Exception, path: str, doing: str, code: int | None) -> RayH5Error | None:
    """Return the `RayH5Error` for an error of the operating system; None if it is none.

    Parameters
    ----------
    exc : Exception
        What was raised. h5py raises other types than OSError, too, for errors of the operating system.
    path : str
        The file.
    doing : str
        What failed, such as ``"opening"``.
    code : int, optional
        The errno, if there is one.
    """
    text = " ".join(str(exc).split())
    if isinstance(exc, FileNotFoundError) or code in _NO_SUCH_FILE_ERRNOS:
        return NotFoundError(f"{path}: no such file ({text})")
    if isinstance(exc, PermissionError):
        return NotReadableError(f"{path}: this process may not read it ({text})")
    if code in TRANSIENT_ERRNOS:
        return TransientIOError(f"{path}: {doing} failed: {text}")
    if code in NO_DESCRIPTOR_ERRNOS:
        return ReadFailedError(
            f"{path}: {doing} failed, this process may have no more files open ({text}). Raise the limit "
            "(`ulimit -n`), or close what it holds: each RowReader in use is one."
        )
    if isinstance(exc, OSError) and exc.errno is not None:
        return ReadFailedError(f"{path}: {doing} failed: {text}")
    return None


def os_error(exc: OSError, path: str, doing: str) -> RayH5Error:
    """Return the `RayH5Error` for an error that the operating system raised."""
    return translate_os_error(exc, path, doing, exc.errno) or ReadFailedError(f"{path}: {doing} failed: {exc}")


@contextlib.contextmanager
def translated_os_errors(path: str, doing: str = "opening") -> Iterator[None]:
    """Raise errors of the operating system as the `RayH5Error` that names them."""
    try:
        yield
    except RayH5Error:
        raise
    except OSError as exc:
        raise os_error(exc, path, doing) from exc
    except ValueError as exc:  # a name that no file can have, such as one with a NUL
        raise NotFoundError(f"{path!r}: no such file ({exc})") from exc
