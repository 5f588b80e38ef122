"""What samples are asked for by, counted from the front."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import torch

from ray_h5.errors import OptionError, RowIndexError


def check_index(index: SupportsIndex, length: int, where: str) -> int:
    """Return `index` counted from the front.

    Raises
    ------
    RowIndexError
        If it is not in ``range(-length, length)``.
    """
    found = operator.index(index)
    if not -length <= found < length:
        raise RowIndexError(f"{where}: index {found} is not among its {length} samples (0 to {length - 1})")
    return found + length if found < 0 else found


def check_indices(indices: Sequence[int] | np.ndarray | torch.Tensor, length: int, where: str) -> np.ndarray:
    """Return `indices` as an int64 array counted from the front; errors as in `check_index`.

    Raises
    ------
    OptionError
        If they are no integers along one axis: a mask, or numbers with a fraction, would be other samples.
    """
    found = np.asarray(indices)
    if found.dtype.kind not in "iu" and found.size:
        raise OptionError(
            f"{where}: expected integers for indices, found {found.dtype}; of a mask, np.flatnonzero(mask)"
        )
    if found.ndim != 1:
        raise OptionError(f"{where}: expected one axis of indices, found shape {found.shape}; use .ravel()")
    if not found.size:
        return found.astype(np.int64)
    # As Python's integers: int64 does not have all of uint64.
    least, most = int(found.min()), int(found.max())
    if least < -length or most >= length:
        for index in found.tolist():
            check_index(index, length, where)
    found = found.astype(np.int64, copy=False)
    return np.where(found < 0, found + length, found) if least < 0 else found
