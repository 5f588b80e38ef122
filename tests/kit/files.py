"""Files of a few columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py


def save(path: Path | str, columns: dict[str, Any], libver: str | None = None, **options) -> str:
    """Write one dataset a column, all with the same `options`, and return the path as a string."""
    with h5py.File(path, "w", libver=libver) as file:
        for name, data in columns.items():
            if isinstance(data, h5py.VirtualLayout):
                file.create_virtual_dataset(name, data, **options)
            elif options:
                file.create_dataset(name, data=data, **options)
            else:
                file[name] = data  # which may be a link
    return str(path)
