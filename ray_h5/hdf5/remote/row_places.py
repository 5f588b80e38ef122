"""Where the rows of a remote file are: the byte ranges that have to be fetched for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_h5.hdf5.open_files import OpenFile
from ray_h5.hdf5.reading.direct_column import DirectColumn
from ray_h5.hdf5.remote.held_bytes import gather, replay


@dataclass(frozen=True, slots=True, eq=False)
class RowPlaces:
    """Byte ranges of a file, and which of some rows each of them has a part of.

    Attributes
    ----------
    starts, stops : numpy.ndarray
        int64: the rows, as a range of positions among them.
    offsets, sizes : numpy.ndarray
        int64: the bytes.
    """

    starts: np.ndarray
    stops: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


def places_of(file: OpenFile, columns: Sequence[str], rows: np.ndarray) -> RowPlaces:
    """Return where rows are, which ascend. Columns that h5py reads are left out.

    What is not known of the file is fetched; after a read of these columns, that is nothing.
    """

    def found() -> list[tuple[np.ndarray, ...]]:
        with file.library() as library:
            readers = gather(lambda name: file.reader(name, library), columns)
            return [each.places(rows) for each in readers if isinstance(each, DirectColumn)]

    nothing = np.empty((4, 0), np.int64)
    return RowPlaces(*(np.concatenate(arrays) for arrays in zip(nothing, *replay(found), strict=True)))
