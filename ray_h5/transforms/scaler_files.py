"""Save scalers to an npz file, without pickle, and load them; with and without Ray."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ray_h5.atomic import written_whole
from ray_h5.errors import CorruptFileError, NotFoundError, OptionError
from ray_h5.storage.local import absolute_path
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.scaler import Scaler

_FORMAT = "ray_h5.scalers"
_VERSION = 3
_READ = (2, _VERSION)
_NOT_SCALERS = "{}: expected an npz file that Standardize.save wrote, found {}; save the scalers again"


def save_scalers(
    path: str | os.PathLike[str], scalers: Mapping[str, Scaler], options: Mapping[str, Any] | None = None
) -> None:
    """Write scalers to an npz file. The file gets its name once it is complete.

    Parameters
    ----------
    path : str or path
        The file; an existing one is replaced.
    scalers : mapping of str to Scaler
        The scaler of each column.
    options : mapping, optional
        More to store, of types that JSON has.

    Raises
    ------
    OptionError
        If `path` is a folder, or a URL.
    NotFoundError
        If the folder of the file is missing.
    """
    if os.path.isdir(absolute_path(os.fspath(path))):
        raise OptionError(f"{os.fspath(path)}: expected the name of a file, found a folder; add a name such as s.npz")
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "options": dict(options or {}),
        "scalers": [
            {"column": column, "epsilon": each.epsilon, "constant": each.constant, "axis": each.moments.axis}
            for column, each in scalers.items()
        ],
    }
    arrays: dict[str, Any] = {str(number): each.moments.pack() for number, each in enumerate(scalers.values())}
    try:
        with written_whole(path) as file:
            np.savez(file, header=np.array(json.dumps(header)), **arrays)
    except FileNotFoundError as exc:
        raise NotFoundError(f"{os.fspath(path)}: the folder to write it to is missing; make it first") from exc


def load_scalers(path: str | os.PathLike[str]) -> dict[str, Scaler]:
    """Return the scalers in a file of `save_scalers` or `Standardize.save`, by column.

    Raises
    ------
    NotFoundError
        If the file is missing.
    CorruptFileError
        If the file is something else, or damaged.
    """
    return read_scalers(path)[0]


def read_scalers(path: str | os.PathLike[str]) -> tuple[dict[str, Scaler], dict[str, Any]]:
    """Return the scalers in a file and the options stored with them; errors as in `load_scalers`."""
    _check_npz(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            if header["format"] != _FORMAT or header["version"] not in _READ:
                raise CorruptFileError(
                    f"{os.fspath(path)}: expected {_FORMAT} version {_VERSION}, found {header['format']} version "
                    f"{header['version']}; save it again with this version of ray_h5"
                )
            scalers = {
                each["column"]: Scaler(
                    Moments.unpack(file[str(number)], each["axis"]), each["epsilon"], each["constant"]
                )
                for number, each in enumerate(header["scalers"])
            }
            return scalers, header["options"]
    # numpy's own messages for such files advise to allow pickle.
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise CorruptFileError(_NOT_SCALERS.format(os.fspath(path), "another one, or a damaged one")) from exc


def _check_npz(path: str | os.PathLike[str]) -> None:
    try:
        Path(absolute_path(os.fspath(path))).stat()
    except FileNotFoundError as exc:
        raise NotFoundError(f"{os.fspath(path)}: no such file; expected one that Standardize.save wrote") from exc
    if not zipfile.is_zipfile(path):
        found = "a folder" if os.path.isdir(path) else "something else"
        raise CorruptFileError(_NOT_SCALERS.format(os.fspath(path), found))
