"""URIs and file systems that stand for paths of a mounted one."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote_to_bytes

from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from ray_h5.errors import OptionError
from ray_h5.hdf5.metadata.access import PathLike

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def local_root(filesystem: Any) -> str:
    """Return what relative paths start from; nothing for the folder of the process."""
    if filesystem is None or isinstance(filesystem, LocalFileSystem):
        return ""
    if isinstance(filesystem, SubTreeFileSystem):
        return _below(local_root(filesystem.base_fs), filesystem.base_path)
    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return local_root(filesystem.handler.fs)
    protocols = getattr(filesystem, "protocol", ())  # fsspec's name of itself, or a tuple of them
    protocols = [protocols] if isinstance(protocols, str) else protocols
    if "file" in protocols:
        return ""
    if "dir" in protocols:
        return _below(local_root(filesystem.fs), filesystem.path)
    raise OptionError(
        f"filesystem={filesystem!r}: expected a local one; HDF5 files are read from mounted file systems. Mount "
        "the store, or copy the files to a disk that every node sees."
    )


def _below(root: str, folder: str) -> str:
    return os.path.join(root, folder.lstrip("/")) if root else folder


def spellings(path: PathLike) -> list[str]:
    """Return the path that is meant; of a URI with escapes also what they stand for, should there be nothing else."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise OptionError(f"paths: expected str or path-like, found {text!r}")
    if "\0" in text:
        raise OptionError(f"{text!r}: a path cannot contain a NUL character")
    scheme = _SCHEME.match(text)
    if scheme:
        if scheme[1].lower() not in {"file", "local"}:
            raise OptionError(
                f"{text}: expected a path of a mounted file system, found {scheme[1]}://. Mount the store, or copy "
                "the files to a disk that every node sees."
            )
        text = text[scheme.end() :]
        if scheme[1].lower() == "file" and text.startswith("localhost/"):  # RFC 8089: the host may be named
            text = text.removeprefix("localhost")
    is_escaped = scheme is not None and scheme[1].lower() == "file" and "%" in text
    unescaped = [os.fsdecode(unquote_to_bytes(os.fsencode(text)))] if is_escaped else []
    return [os.path.expanduser(each) for each in (text, *unescaped)]
