"""Which items are for training and which for validation, the same on all ranks."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import torch

from ray_h5.atomic import written_whole
from ray_h5.errors import OptionError, RayH5Error
from ray_h5.options import as_integer, is_number, names_options
from ray_h5.storage.local import absolute_path

Split = tuple[np.ndarray, np.ndarray]

_NAMES = ("train_idx", "val_idx")


@names_options
def make_train_val_indices(
    n_items: int,
    val_fraction: float = 0.1,
    seed: int = 1234,
    save_path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Split:
    """Return the indices of training and of validation items, drawn once and the same on all ranks.

    If torch.distributed is initialised, rank 0 draws or reads them and sends them to the others.

    Parameters
    ----------
    n_items : int
        How many items there are.
    val_fraction : float
        Share of them that is for validation, from 0 to 1.
    seed : int
        Zero or more.
    save_path : path-like, optional
        An npz file to keep the indices in; ``.npz`` is appended if it is missing. If it exists, its indices are
        returned, whatever `val_fraction` and `seed` are.
    overwrite : bool
        Draw and write them again.

    Returns
    -------
    tuple of numpy.ndarray
        Training and validation indices, int64, ascending.

    Raises
    ------
    OptionError
        If an argument makes no sense, or the file holds no split of `n_items` items.
    """
    n_items, seed = as_integer("n_items", n_items, 0), as_integer("seed", seed, 0)
    if not is_number(val_fraction) or not 0 <= val_fraction <= 1:
        raise OptionError(f"val_fraction={val_fraction!r}: expected a number from 0 to 1")
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    found: list[Split | Exception | None] = [None]
    if not distributed or torch.distributed.get_rank() == 0:
        try:
            found = [_kept_or_drawn(n_items, val_fraction, seed, save_path, overwrite)]
        except (RayH5Error, OSError) as exc:
            found = [exc]  # raised on all ranks: none waits for the others for ever
    if distributed:
        torch.distributed.broadcast_object_list(found, src=0)
    split = found[0]
    if isinstance(split, Exception):
        raise split
    assert split is not None
    return split


def _kept_or_drawn(
    n_items: int, val_fraction: float, seed: int, save_path: str | os.PathLike[str] | None, overwrite: bool
) -> Split:
    path = None if save_path is None else _as_npz(save_path)
    if path is not None and path.exists() and not overwrite:
        return _kept(path, n_items)
    mixed = np.random.default_rng(seed).permutation(n_items)
    count = round(float(val_fraction) * n_items)
    split = np.sort(mixed[count:]), np.sort(mixed[:count])
    if path is not None:
        with written_whole(path) as file:
            np.savez_compressed(file, train_idx=split[0], val_idx=split[1])
    return split


def _as_npz(path: str | os.PathLike[str]) -> Path:
    name = absolute_path(os.fspath(path))
    return Path(name if name.endswith(".npz") else f"{name}.npz")


def _kept(path: Path, n_items: int) -> Split:
    advice = "delete it, or pass overwrite=True"
    try:
        with np.load(path, allow_pickle=False) as kept:
            train, val = (kept[name] for name in _NAMES)
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile) as exc:
        raise OptionError(f"{path}: expected indices train_idx and val_idx in an npz file: {exc}; {advice}") from exc
    both = np.concatenate([train.ravel(), val.ravel()])
    if both.dtype.kind not in "iu" or not np.array_equal(np.sort(both), np.arange(n_items)):
        raise OptionError(f"{path}: expected a split of {n_items} items, found one of {len(both)} others; {advice}")
    return train.astype(np.int64), val.astype(np.int64)
