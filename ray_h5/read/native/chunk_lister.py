"""Lists the chunks of a dataset by the compiled loop, which libhdf5 calls with each chunk; h5py calls Python."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

import h5py
import numpy as np

from ray_h5.read.native.library import compiled_loop

logger = logging.getLogger(__name__)

_KNOWN_VERSIONS = (1, 14), (3,)
"""Versions of libhdf5 whose H5Dchunk_iter calls what is given as `ray_h5_list_chunk` is declared: from, to before."""

_DEFAULT = 0
"""H5P_DEFAULT."""


class _List(ctypes.Structure):
    """The struct `chunk_list` of loop.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("axes", "most_bytes", "most_unwritten")),
        *((name, ctypes.c_int64) for name in ("count", "bytes", "unwritten", "room", "stopped")),
        ("rows", ctypes.c_void_p),
    )


def list_chunks(dataset: h5py.Dataset, most_bytes: int, most_unwritten: int) -> np.ndarray | None:
    """List the chunks of a dataset of a local file that were written.

    Fast path: a small part of the time that h5py takes, which makes an object of Python for each chunk.

    Parameters
    ----------
    dataset : h5py.Dataset
        An open dataset.
    most_bytes : int
        The size of the file.
    most_unwritten : int
        How many chunks that were never written may be listed.

    Returns
    -------
    numpy.ndarray
        uint64 of shape (chunks, axes + 3): corner, filter mask, offset and size of each. None if h5py has to list them:
        without the compiled loop, with a libhdf5 of another kind, for other drivers than that of local files, or if
        something is wrong with the list.
    """
    loop, iterate = compiled_loop(), _chunk_iter()
    opened = h5py.h5i.get_file_id(dataset.id).get_access_plist()
    if loop is None or iterate is None or opened.get_driver() != h5py.h5fd.SEC2:
        return None
    listed = _List(dataset.id.rank, most_bytes, most_unwritten)
    at = ctypes.byref(listed)
    try:
        with h5py._objects.phil:
            failed = iterate(dataset.id.id, _DEFAULT, loop.library.ray_h5_list_chunk, at)
        if failed or listed.stopped:
            return None
        words = listed.count * (listed.axes + 3)
        rows = np.empty(words, np.uint64)
        if words:
            ctypes.memmove(rows.ctypes.data, listed.rows, rows.nbytes)
    finally:
        loop.library.ray_h5_free_list(at)
    return rows.reshape(-1, listed.axes + 3)


@functools.cache
def _chunk_iter() -> Any:
    """Return H5Dchunk_iter of the libhdf5 that h5py calls; None if it is not found."""
    first, end = _KNOWN_VERSIONS
    if not first <= h5py.version.hdf5_version_tuple < end:
        return None
    try:
        # A module of h5py, whose names are searched with those of the libraries that it needs.
        iterate = ctypes.CDLL(h5py.h5d.__file__).H5Dchunk_iter
    except (OSError, AttributeError) as exc:
        logger.debug("h5py lists chunks: %s", exc)
        return None
    iterate.restype, iterate.argtypes = ctypes.c_int, [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return iterate
