"""Rows of sparse matrices -> tensors of compressed rows."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def csr_tensor(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, width: int) -> torch.Tensor:
    """Return rows as one `torch.sparse_csr_tensor`, over the memory of the arrays.

    Parameters
    ----------
    indptr : numpy.ndarray
        int64: row i has the entries from ``indptr[i]`` to ``indptr[i + 1]``.
    indices, data : numpy.ndarray
        The position in its row, and the value, of each entry. Positions are in the row, and ascend without repeats:
        torch does not check it here.
    width : int
        Length of a row.
    """
    import torch

    take_warnings()
    columns, rows = torch.from_numpy(indices), torch.from_numpy(indptr)
    if columns.dtype == torch.int32 and len(columns) <= torch.iinfo(torch.int32).max:
        rows = rows.to(torch.int32)  # torch computes with indices of one dtype
    shape = (len(indptr) - 1, width)
    return torch.sparse_csr_tensor(rows, columns, torch.from_numpy(data), shape, check_invariants=False)


@functools.cache
def take_warnings() -> None:
    """Take the warnings that torch gives once a process: of sparse tensors at all, and of those of other processes."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state|Sparse invariant checks")
        nothing = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        torch.sparse_compressed_tensor(*nothing, layout=torch.sparse_csr)
