"""What the values of a column are: h5py's dtype -> a kind, and a plain numpy dtype."""

from __future__ import annotations

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.layout import Kind

_KINDS: dict[str, Kind] = {
    "b": "bool", "i": "number", "u": "number", "f": "number", "c": "number", "S": "string", "M": "time",
}  # fmt: skip


def split_array(dtype: np.dtype) -> tuple[np.dtype, tuple[int, ...]]:
    """Part an array type into the type of an element and the axes that it adds to a row."""
    return dtype.subdtype or (dtype, ())


def kind_of(dtype: np.dtype, where: str) -> Kind:
    """Return what values of `dtype` are.

    Raises
    ------
    UnsupportedColumnError
        If they have no counterpart outside of HDF5, as references have none.
    """
    if h5py.check_string_dtype(dtype) is not None:
        return "string"
    if (element := h5py.check_vlen_dtype(dtype)) is not None:
        if not np.dtype(element).isnative:
            # h5py (3.16) hands them out with their bytes in the file's order and native dtype.
            raise UnsupportedColumnError(
                f"{where} has {_shown(dtype)}, whose byte order h5py loses: its values would be wrong. Write the "
                "column again in the byte order of this machine."
            )
        if np.dtype(element).kind in "biufc":
            return "list"
    elif dtype.names is not None:
        for name in dtype.names:
            if not name:
                raise UnsupportedColumnError(f"{where} has a field without a name, which h5py cannot read")
            _check_field(dtype[name], f"{where}, field {name!r},")
        return "struct"
    elif dtype.kind == "V":
        return "binary"
    elif dtype.kind in _KINDS and h5py.check_ref_dtype(dtype) is None:
        return _KINDS[dtype.kind]
    raise UnsupportedColumnError(
        f"{where} has type {_shown(dtype)}, which cannot be read as rows. Numbers, booleans, enums, strings, times, "
        "opaque and compound values, and arrays of numbers of varying length can be."
    )


def plain_dtype(dtype: np.dtype) -> np.dtype:
    """Return `dtype` without the notes that h5py hangs on it, which do not pickle quietly."""
    if dtype.names is None:
        element, shape = split_array(dtype)
        if shape:
            return np.dtype((plain_dtype(element), shape))
        return np.dtype(object) if dtype.kind == "O" else np.dtype(dtype.str)
    assert dtype.fields is not None
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [plain_dtype(dtype[name]) for name in dtype.names],
            "offsets": [dtype.fields[name][1] for name in dtype.names],
            "itemsize": dtype.itemsize,
        }
    )


def _check_field(dtype: np.dtype, where: str) -> None:
    element, _ = split_array(dtype)
    if kind_of(element, where) == "list":
        raise UnsupportedColumnError(f"{where} has arrays of varying length inside a compound type")


def _shown(dtype: np.dtype) -> str:
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    if (element := h5py.check_vlen_dtype(dtype)) is not None:
        return f"array of {element} of varying length"
    return str(dtype)
