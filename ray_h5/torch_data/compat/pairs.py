"""Inputs and targets of one file: helpers that the datasets of pairs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ray_h5.columns.schema import has_long_double
from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError, WriterActiveError
from ray_h5.hdf5.columns.dtypes import as_dtype
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.reader import RowReader
from ray_h5.storage.addresses import on_hub
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.storage_of_path import Storage, storage_for, storage_of, whole_path
from ray_h5.torch_data.batches.tensors import Pair

Transform = Callable[..., Any]

RDCC_NBYTES = 256 * 1024**2
RDCC_NSLOTS = 1_000_003
RDCC_W0 = 0.75
"""The chunk cache that people often choose for libhdf5."""

WITHOUT_AUX = "Read more columns with H5Dataset(path, columns=[...]); its transform gets the whole sample."


def one_file(path: object, dataset: str, storage_options: object = None) -> tuple[str, Storage]:
    """Return the absolute path, or the URL, of the one file of a dataset, and the storage that has it."""
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(
            f"{dataset}: path={path!r}: expected one file, found {type(path).__name__}; H5Dataset(paths) reads several"
        )
    given = on_hub(os.fspath(path))
    storage = storage_for(storage_options, [given])
    return whole_path(given), storage


def open_reader(
    path: str, storage: Storage, swmr: bool, threads: int = 1, expect: Identity | None = None
) -> tuple[RowReader, bool]:
    """Open a file; return its reader, and whether a writer in SWMR mode has it open."""
    try:
        return RowReader(path, threads=threads, expect=expect, storage_options=storage), False
    except WriterActiveError:
        # A reader in that mode cannot find out whether a file changed, so it is the last resort.
        if not (swmr and storage_of(path, storage).has_writers):
            raise
        return RowReader(path, threads=threads, expect=expect, swmr=True), True


def find_columns(reader: RowReader, x_key: str, y_key: str | None, *, live: bool) -> tuple[list[ColumnLayout], int]:
    """Return the layouts of inputs and targets, and the number of samples.

    A live writer adds to one of them before the other: only complete samples count.

    Raises
    ------
    UnknownColumnError
        If one does not exist.
    SchemaMismatchError
        If they are not of the same length.
    """
    keys = [x_key, *([] if y_key is None else [y_key])]
    found = [reader.column(key) for key in keys]
    for key, layout in zip(keys, found, strict=True):
        if not live and layout.num_rows != found[0].num_rows:
            raise SchemaMismatchError(
                f"{reader.path}: expected a target for each input, found {found[0].num_rows} rows in {x_key!r} and "
                f"{layout.num_rows} in {key!r}"
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
    transforms: tuple[Transform | None, Transform | None],
    values: Sequence[Any],
    *,
    as_tensors: bool = True,
    path: str,
) -> Any:
    """Return a sample: its transformed values, as a pair or alone. Without a transform numbers are tensors.

    With `as_tensors` transforms get tensors.
    """
    done = []
    for name, transform, value in zip(("transform", "target_transform"), transforms, values, strict=False):
        given = as_sample(value) if transform is None or as_tensors else value
        done.append(given if transform is None else _transformed(name, transform, given, path))
    return Pair(done) if len(done) == 2 else done[0]


def _transformed(name: str, transform: Transform, given: Any, path: str) -> Any:
    try:
        return transform(given)
    except (AttributeError, TypeError) as exc:
        if not isinstance(given, (np.ndarray, np.generic)):
            raise
        raise OptionError(
            f"{path}: {name} raised {type(exc).__name__}: {exc}. It was given a NumPy value, {given.dtype} of shape "
            f"{given.shape}. If it expects a tensor, pass as_tensors=True"
        ) from exc


def as_sample(value: Any) -> Any:
    """Return numbers as a tensor; anything else as it is."""
    if not isinstance(value, (np.ndarray, np.number, np.bool_)):
        return value
    return torch.from_numpy(np.asarray(value))  # as_tensor refuses a number of numpy's uint64
