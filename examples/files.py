"""Files that the examples read: recordings of physiological signals after feature extraction.

    python examples/files.py [FOLDER]    # makes them and prints their paths

A row is a recording of 300 time steps. Class c of `target` raises channel c of `fhr_st` by `CLASS_OFFSET` standard
deviations at the same time steps, so a model can learn `target` from `fhr_st`. All other values are noise. `target`
(class ids) and `weight` (1 where valid, else 0) stay the same for many time steps. Each patient (`guid`) has 20
neighbouring rows in one file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

CLASSES = 4
CLASS_OFFSET = 1.5
STEPS = 300
FILES = 4
FILE_ROWS = 1000
ROWS_PER_PATIENT = 20
ROWS_PER_WRITE = 50

SHAPES = {
    "fhr": (4800,),
    "up": (4800,),
    "fhr_st": (43, STEPS),
    "fhr_ph": (44, STEPS),
    "fhr_up_ph": (130, STEPS),
    "target": (STEPS,),
    "weight": (STEPS,),
    "epoch": (),
    "cs_label": (),
    "bg_label": (),
    "guid": (),
}
"""The shape of a row of each column."""

DTYPES: dict[str, Any] = {"cs_label": "u1", "bg_label": "u1", "guid": h5py.string_dtype("utf-8")}
"""The dtypes of the columns that are not float32."""


def make_signals(size: float = 1.0, folder: str | None = None, seed: int = 0) -> list[str]:
    """Return the paths of four files; make them unless an earlier call has made them.

    Parameters
    ----------
    size
        Scales the 1000 rows of each file.
    folder
        Where the files are; by default a folder of this user below the system's temporary folder.
    seed
        The same seed gives the same values.
    """
    parent = Path(folder or Path(tempfile.gettempdir(), f"ray-h5-examples-{os.getuid()}"))
    target = parent / f"signals-size{size:g}-seed{seed}"
    if not target.is_dir():
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folder gets its name when its files are complete.
        with tempfile.TemporaryDirectory(dir=parent) as temporary:
            staged = Path(temporary, "signals")
            staged.mkdir()
            for number in range(FILES):
                _write(staged / f"signals_{number}.h5", number, max(1, round(FILE_ROWS * size)), seed)
            if not target.is_dir():  # another process may have made it meanwhile
                staged.rename(target)
    return [str(target / f"signals_{number}.h5") for number in range(FILES)]


def _write(path: Path, number: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng([seed, number])
    with h5py.File(path, "w", libver="latest") as file:
        for name, shape in SHAPES.items():
            file.create_dataset(
                name,
                shape=(rows, *shape),
                maxshape=(None, *shape),
                chunks=(1, *shape),
                dtype=DTYPES.get(name, "f4"),
                compression="lzf",
            )
        for first in range(0, rows, ROWS_PER_WRITE):
            stop = min(first + ROWS_PER_WRITE, rows)
            for name, values in draw_signals(rng, number, range(first, stop), rows).items():
                file[name][first:stop] = values
        file.flush()


def draw_signals(rng: np.random.Generator, number: int, rows: range, file_rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the values of some rows of file `number`, by column."""
    count = len(rows)
    target = _held(rng, rng.integers(0, CLASSES, (count, STEPS)), 40)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        name: rng.standard_normal((count, *shape), dtype=np.float32)
        for name, shape in SHAPES.items()
        if name.startswith(("fhr", "up"))
    }
    # The relation that a model can learn: one channel for each class.
    is_class = target[:, None, :] == np.arange(CLASSES)[:, None]
    arrays["fhr_st"][:, :CLASSES] += np.float32(CLASS_OFFSET) * is_class
    patients = max(1, file_rows // ROWS_PER_PATIENT)
    patient = number * patients + np.asarray(rows) * patients // file_rows + 1
    return arrays | {
        "target": target,
        "weight": _held(rng, rng.random((count, STEPS)) < 0.9, 60),
        "epoch": rng.integers(0, 60, count).astype(np.float32),
        "cs_label": (rng.random(count) < 0.3).astype(np.uint8),
        "bg_label": (rng.random(count) < 0.1).astype(np.uint8),
        "guid": np.array([f"patient_{name:04d}" for name in patient], dtype=object),
    }


def _held(rng: np.random.Generator, drawn: np.ndarray[Any, Any], mean_steps: float) -> np.ndarray[Any, Any]:
    """Repeat values of `drawn` (rows, steps), each for `mean_steps` steps on average."""
    starts = rng.random(drawn.shape) < 1 / mean_steps
    starts[:, 0] = True
    last_start = np.maximum.accumulate(np.where(starts, np.arange(drawn.shape[1]), 0), axis=1)
    return np.take_along_axis(drawn, last_start, axis=1).astype(np.float32)


if __name__ == "__main__":
    print("\n".join(make_signals(folder=sys.argv[1] if len(sys.argv) > 1 else None)))
