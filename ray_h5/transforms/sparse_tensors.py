"""Rows of sparse matrices -> tensors of compressed rows."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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


def merged_csr(parts: Sequence[torch.Tensor], places: Sequence[np.ndarray]) -> torch.Tensor:
    """Return the rows of several such tensors as one; row i of ``parts[k]`` is row ``places[k][i]`` of it."""
    pointers = [part.crow_indices().numpy().astype(np.int64) for part in parts]
    before = np.cumsum([0, *(each[-1] for each in pointers[:-1])])
    starts = np.concatenate([each[:-1] + first for each, first in zip(pointers, before, strict=True)])
    counts = np.concatenate([np.diff(each) for each in pointers])
    order = np.argsort(np.concatenate(places))
    starts, counts = starts[order], counts[order]
    ends = np.cumsum(counts)
    entries = np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)
    indices, data = (
        np.concatenate([values.numpy() for values in each])[entries]
        for each in zip(*((part.col_indices(), part.values()) for part in parts), strict=True)
    )
    return csr_tensor(np.concatenate([np.zeros(1, np.int64), ends]), indices, data, int(parts[0].shape[1]))


@functools.cache
def take_warnings() -> None:
    """Take the warnings that torch gives once a process: of sparse tensors at all, and of those of other processes."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state|Sparse invariant checks")
        nothing = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        torch.sparse_compressed_tensor(*nothing, layout=torch.sparse_csr)
