"""Paths and URLs of outputs, as users write them -> the folders that files are written to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ray_h5.errors import OptionError
from ray_h5.options import require
from ray_h5.storage.addresses import StoreAddress, check_slashes, is_url
from ray_h5.storage.storage_of_path import whole_path
from ray_h5.storage.write_notes import HIDDEN
from ray_h5.writing.destination import Destination, is_hdf5_name
from ray_h5.writing.disk_folder import DiskFolder
from ray_h5.writing.store_folder import StoreFolder

_REPACK = ".ray_h5_repack"
_WRITABLE = frozenset({"s3", "gs", "az"})


def folder_of(path: Any, storage_options: Mapping[str, object] | None = None) -> Destination:
    """Return the folder at a path or URL, for the files of many tasks."""
    text = _place_to_write("path", path, "a folder")
    if not os.path.isdir(text) and (is_hdf5_name(text) or os.path.isfile(text)):
        raise OptionError(
            f"path={whole_path(text)!r}: expected a folder, found the name of a file. Each write task makes a file of "
            "its own below it, such as part-0-0.h5: write the name of a folder, such as 'out'."
        )
    return _folder_at(text, f"{HIDDEN}{secrets.token_hex(6)}", storage_options)


def output_of(
    out: Any, storage_options: Mapping[str, object] | None, extensions: Collection[str]
) -> tuple[Destination, str]:
    """Return the folder of the outputs of a repack, and the name of the one output, or "" for a name for each input.

    Its hidden folder has one name: one repack at a time writes to a place, and the next one goes on with it.

    Parameters
    ----------
    out : str or path-like
        A file, or a folder; a URL for one in a store. A name with an extension of HDF5 is a file.
    storage_options : mapping of str to object, optional
        How the store is reached; not used for a disk.
    extensions : collection of str
        Further extensions of files: those of the inputs, such as ``.nc``.
    """
    path = _place_to_write("out", out, "a file or folder")
    folder, name = os.path.split(path)
    if os.path.isdir(path) or not (is_hdf5_name(name) or Path(path).suffix in extensions):
        return _folder_at(path, _REPACK, storage_options), ""
    return _folder_at(folder, f"{_REPACK}-{name}", storage_options), name


def _folder_at(path: str, hidden: str, storage_options: Mapping[str, object] | None) -> Destination:
    return StoreFolder(path, hidden, storage_options) if is_url(path) else DiskFolder(path, hidden)


def _place_to_write(option: str, path: Any, expected: str) -> str:
    """Return the path or URL of a place to write to, without a slash at its end.

    Raises
    ------
    OptionError
        If it is none, or in a store that only reads.
    """
    text = os.fspath(path)
    require(isinstance(text, str) and text, option, path, f"the path or URL of {expected}")
    check_slashes(text)
    if not is_url(text):
        return os.path.abspath(text.removeprefix("local://"))
    if StoreAddress.of(text).kind not in _WRITABLE:
        raise OptionError(
            "cannot write by HTTP or to the Hugging Face Hub; expected a folder of a disk, s3://, gs:// or az://",
            option=option,
            value=whole_path(text),
        )
    return text.rstrip("/")
