"""A layout: how its files are written, and which rows its community means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np


@dataclass(frozen=True)
class Want:
    """The rows that a layout means.

    `values` has, by column, a row and what it is there; `paths` are the files, if not the whole folder.
    """

    rows: int
    values: Mapping[str, tuple[int, Any]]
    paths: Any = None


@dataclass(frozen=True)
class Layout:
    """`default` is what happens without options: right, warned (other rows, and a warning), odd (unsaid), or refused.

    `call` is a part of the printed call that makes the rows of it; empty if nothing has to be printed.
    `said` is a part of what is said where no call helps: these files hold no rows.
    """

    name: str
    write: Callable[[Path], Want]
    default: str
    call: str
    said: str


LAYOUTS: dict[str, Layout] = {}


def layout(name, default="right", call="", said=""):
    """Add the function that writes a layout."""

    def add(write):
        LAYOUTS[name] = Layout(name, write, default, call, said)
        return write

    return add


def put(path: Path, arrays: Mapping[str, Any], below: str = "", **attrs: Any) -> None:
    """Write datasets below a group: values, or the shape of numbers that differ. `attrs` are those of the file."""
    with h5py.File(path, "a") as file:
        file.attrs.update(attrs)
        for name, values in arrays.items():
            data = numbers(*values) if isinstance(values, tuple) else values
            text = np.asarray(data).dtype.kind in "UO"
            file.create_dataset(f"{below}/{name}", data=data, dtype=h5py.string_dtype() if text else None)


def numbers(*shape: int, start: float = 0, dtype: str = "f4") -> np.ndarray:
    """Return numbers that differ."""
    return (np.arange(np.prod(shape)) + start).reshape(shape).astype(dtype)


def as_matlab(path: Path) -> None:
    """Write the head of MATLAB into the user block of a file."""
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(128))
