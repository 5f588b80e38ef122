"""Inputs and targets of one file: what the datasets of pairs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ray_h5.columns.schema import Cast, ColumnSpec
from ray_h5.errors import OptionError, WriterActiveError
from ray_h5.read.reader import RowReader
from ray_h5.storage.local import absolute_path
from ray_h5.torch_data.batches.tensors import Pair, new_arrays
from ray_h5.torch_data.dataset import H5Dataset

Transform = Callable[..., Any]

RDCC_NBYTES = 256 * 1024**2
RDCC_NSLOTS = 1_000_003
RDCC_W0 = 0.75
"""The chunk cache that people often choose for libhdf5."""

WITHOUT_AUX = "Read more columns with H5Dataset(path, columns=[...]); its transform gets the whole sample."


class LivePairs:
    """Columns of a file that a writer in SWMR mode has open, with the rows that were complete when this was made.

    The file is opened for each read: what libhdf5 has of it would be out of date at the next one. Such a writer adds to
    one column before the other, so each is read alone.
    """

    call_bytes = 0

    def __init__(self, path: str, columns: Mapping[str, str], cast: Cast) -> None:
        self.path, self._columns, self._casting = absolute_path(path), columns, cast.casting
        with RowReader(self.path, swmr=True) as reader:
            layouts = {name: reader.column(stored) for name, stored in columns.items()}
        self._length = min(layout.num_rows for layout in layouts.values())
        self.specs = [cast(replace(ColumnSpec.of(layout), name=name)) for name, layout in layouts.items()]

    def __len__(self) -> int:
        return self._length

    def read(self, rows: np.ndarray, out: Mapping[str, np.ndarray] | None = None) -> Mapping[str, np.ndarray]:
        """Read rows as arrays; see `H5Dataset.read`."""
        specs = {spec.name: ((len(rows), *spec.row_shape), spec.dtype) for spec in self.specs}
        arrays = new_arrays(specs) if out is None else out
        with RowReader(self.path, swmr=True) as reader:
            for name, stored in self._columns.items():
                reader.read_into({stored: arrays[name]}, rows, casting=self._casting)
        return arrays

    def release(self) -> None:
        """Do nothing: no file stays open."""


def open_pairs(
    path: str, keys: tuple[str, str | None], dtypes: tuple[Any, Any], *, swmr: bool, **options: Any
) -> H5Dataset | LivePairs:
    """Return what reads inputs, and targets, of one file; a column that is both has the names ``x`` and ``y``.

    `options` are those of `H5Dataset`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(
            f"path={path!r}: expected one file, found {type(path).__name__}; H5Dataset(paths) reads several"
        )
    stored = [key for key in keys if key is not None]
    names = ["x", "y"] if keys[0] == keys[1] else stored
    columns = dict(zip(names, stored, strict=True))
    cast = {name: dtype for name, dtype in zip(names, dtypes, strict=False) if dtype is not None}
    try:
        found = H5Dataset(path, stored if names == stored else columns, dtypes=cast, **options)
    except WriterActiveError:
        if not swmr:
            raise
        return LivePairs(path, columns, Cast(cast, options["casting"]))
    if (count := len(found.index.files)) != 1:
        raise OptionError(f"{path}: expected one file, found {count}; H5Dataset(paths) reads several")
    return found


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
