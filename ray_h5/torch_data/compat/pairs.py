"""Inputs and targets of one file: helpers that the datasets of pairs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError, WriterActiveError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.dtypes import as_dtype
from ray_h5.hdf5.reader import RowReader
from ray_h5.planning.schema import has_long_double
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import absolute_path
from ray_h5.torch_data.reading.samples import Pair

Transform = Callable[[Any], Any]

RDCC_NBYTES = 256 * 1024**2
RDCC_NSLOTS = 1_000_003
RDCC_W0 = 0.75
"""The chunk cache that people often choose for libhdf5."""


def one_path(path: object, dataset: str) -> str:
    """Return the absolute path of the one file of a dataset."""
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(
            f"{dataset}: path={path!r}: expected one file, found {type(path).__name__}; H5Dataset(paths) reads several"
        )
    return absolute_path(os.fspath(path))


def open_reader(path: str, swmr: bool, threads: int = 1, expect: FileIdentity | None = None) -> tuple[RowReader, bool]:
    """Open a file; return its reader, and whether a writer in SWMR mode has it open."""
    try:
        return RowReader(path, threads=threads, expect=expect), False
    except WriterActiveError:
        # A reader in that mode cannot find out whether a file changed, so it is the last resort.
        if not swmr:
            raise
        return RowReader(path, threads=threads, expect=expect, swmr=True), True


def find_pair(reader: RowReader, x_key: str, y_key: str | None, *, live: bool) -> tuple[list[ColumnLayout], int]:
    """Return the layouts of inputs and targets, and the number of pairs.

    A live writer adds to one of them before the other: only complete pairs count.

    Raises
    ------
    UnknownColumnError
        If one does not exist.
    SchemaMismatchError
        If they are not of the same length.
    """
    found = [reader.column(key) for key in (x_key, y_key) if key is not None]
    if not live and len({layout.num_rows for layout in found}) > 1:
        raise SchemaMismatchError(
            f"{reader.path}: expected a target for each input, found {found[0].num_rows} rows in {x_key!r} and "
            f"{found[1].num_rows} in {y_key!r}"
        )
    return found, min(layout.num_rows for layout in found)


def read_dtype(layout: ColumnLayout, wanted: Any | None) -> np.dtype:
    """Return the dtype in which a column is read.

    Raises
    ------
    UnsupportedColumnError
        If it cannot be cast to the one wanted.
    """
    if layout.kind not in ("number", "bool"):
        if wanted is not None:
            raise UnsupportedColumnError(f"column {layout.name!r} holds {layout.kind} values, which cannot be cast")
        return np.dtype(object) if layout.kind == "string" else layout.dtype
    dtype = layout.dtype if wanted is None else as_dtype(wanted, f"column {layout.name!r}").newbyteorder("=")
    if has_long_double(dtype):
        raise UnsupportedColumnError(f"{layout.where}: torch has no long doubles ({dtype}); read them as float64")
    return dtype


def check_chunk_cache(nbytes: int, nslots: int, w0: float) -> None:
    """Raise unless libhdf5 would accept these options."""
    if nbytes < 0 or nslots < 1 or not 0 <= w0 <= 1:
        raise OptionError(
            f"rdcc_nbytes={nbytes}, rdcc_nslots={nslots}, rdcc_w0={w0}: expected bytes of 0 or more, slots of 1 or "
            "more and a policy from 0 to 1"
        )


def apply_transforms(
    transforms: tuple[Transform | None, Transform | None], values: Sequence[Any], *, copied: bool = False
) -> Any:
    """Return a sample: its transformed values, as a pair or alone. Without a transform numbers are tensors.

    With `copied` transforms get copies, because the values stay in memory.
    """
    done = [
        _as_sample(value) if transform is None else transform(value.clone() if copied else value)
        for transform, value in zip(transforms, values, strict=False)
    ]
    return Pair(done) if len(done) == 2 else done[0]


def _as_sample(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.number, np.bool_)):
        return value
    return torch.from_numpy(np.asarray(value))  # as_tensor refuses a number of numpy's uint64
