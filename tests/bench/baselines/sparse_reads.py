"""Rows of sparse matrices as others read them: scDataset and AnnData, or in plain h5py what these do."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

__all__ = ["AnnDataRows", "Fetches", "fetched_rows", "has_scdataset", "slices_of"]

Rows = np.ndarray[Any, np.dtype[np.int64]]


def has_scdataset() -> bool:
    """Return whether scDataset and anndata are installed."""
    return all(importlib.util.find_spec(name) for name in ("scdataset", "anndata"))


def slices_of(file: h5py.File, indptr: Rows, rows: Rows) -> Any:
    """Return ascending rows as a scipy matrix: a slice of data and of indices for each run of neighbours."""
    sparse: Any = importlib.import_module("scipy.sparse")
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = rows[np.concatenate([[0], cuts])], rows[np.concatenate([cuts - 1, [len(rows) - 1]])] + 1
    group = file["X"]
    parts = [slice(int(indptr[a]), int(indptr[b])) for a, b in zip(starts, ends, strict=True)]
    data = np.concatenate([group["data"][part] for part in parts])
    indices = np.concatenate([group["indices"][part] for part in parts])
    counts = indptr[rows + 1] - indptr[rows]
    shape = (len(rows), int(group.attrs["shape"][1]))
    return sparse.csr_matrix((data, indices, np.concatenate([[0], np.cumsum(counts)])), shape)


def fetched_rows(file: h5py.File, indptr: Rows, rows: Rows, batch: int, *, dense: bool) -> Iterator[Any]:
    """Yield batches of rows that are read together: sorted, and mixed again. With `dense`, all are made dense first."""
    order = np.argsort(rows, kind="stable")
    fetched = slices_of(file, indptr, rows[order])
    if dense:
        fetched = fetched.toarray()
    place = np.argsort(order)
    for start in range(0, len(rows), batch):
        yield fetched[place[start : start + batch]]


class Fetches:
    """Batches of scDataset in its published settings, or of `fetched_rows` if it is not installed."""

    def __init__(self, path: str, windows: list[Rows], batch: int, *, dense: bool) -> None:
        self._path, self._windows, self._batch, self._dense = path, windows, batch, dense

    def batches(self) -> Iterator[Any]:
        """Yield the batches of all windows."""
        if has_scdataset():
            yield from self._of_scdataset()
            return
        with h5py.File(self._path) as file:
            indptr = file["X/indptr"][:].astype(np.int64)
            for rows in self._windows:
                yield from fetched_rows(file, indptr, rows, self._batch, dense=self._dense)

    def _of_scdataset(self) -> Iterator[Any]:
        anndata: Any = importlib.import_module("anndata")
        experimental: Any = importlib.import_module("anndata.experimental")
        scdataset: Any = importlib.import_module("scdataset")
        backed = anndata.read_h5ad(self._path, backed="r")
        collection = experimental.AnnCollection([backed])
        try:
            rows = np.concatenate(self._windows)
            fetch = len(self._windows[0]) // self._batch
            made = scdataset.scDataset(
                collection,
                # The blocks were drawn before: both contestants read the same rows.
                scdataset.Streaming(indices=rows),
                batch_size=self._batch,
                fetch_factor=fetch,
                fetch_transform=_to_dense if self._dense else _to_sparse,
            )
            yield from made
        finally:
            backed.file.close()


def _to_sparse(view: Any) -> Any:
    return _Indexed(view.to_adata().X)


def _to_dense(view: Any) -> Any:
    return view.to_adata().X.toarray()


class _Indexed:
    """A scipy matrix with a length, as scDataset asks for."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        return self._matrix[rows]


class AnnDataRows:
    """Batches of a backed AnnData; a slice a row in plain h5py if anndata is not installed. The file stays open."""

    def __init__(self, path: str, *, dense: bool) -> None:
        self._dense = dense
        self._file = h5py.File(path)
        self._indptr = self._file["X/indptr"][:].astype(np.int64)
        is_there = importlib.util.find_spec("anndata")
        self._backed: Any = importlib.import_module("anndata").read_h5ad(path, backed="r") if is_there else None

    def batches(self, draws: list[Rows]) -> Iterator[Any]:
        """Yield a batch for each of some rows, which ascend."""
        for rows in draws:
            if self._backed is None:
                yield from fetched_rows(self._file, self._indptr, rows, len(rows), dense=self._dense)
            else:
                found = self._backed[rows].to_memory().X
                yield found.toarray() if self._dense else found

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._backed is not None:
            self._backed.file.close()
