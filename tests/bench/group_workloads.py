"""Files with many groups or datasets that are rows or episodes: `demos` (W5) and `traces` (W6).

`demos` has episodes as robomimic writes them: a group each, of 80 to 400 steps, with an image, a pose and an action a
step. It is contiguous, or in gzip chunks of one step. `traces` has recordings as a seismic archive writes them: one
group of small contiguous datasets, with or without attributes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ATTRIBUTES", "DEMO_PATTERN", "TRACE_PATTERN", "GroupFile", "make_demos", "make_traces"]

DEMO_PATTERN = "data/demo_*"
TRACE_PATTERN = "data/*"

ATTRIBUTES = tuple(f"number_{i}" for i in range(6)) + tuple(f"text_{i}" for i in range(4))
"""The attributes of each of the `traces` that has some."""

_DEMOS = 200
_STEPS = (80, 401)
_IMAGE = (84, 84, 3)
_PATCH = 12
_DEMO_VERSION = 1
_TRACE_VERSION = 1


@dataclass(frozen=True, slots=True)
class GroupFile:
    """A file, and how many groups or datasets in it are rows."""

    path: str
    groups: int


def make_demos(folder: str | None = None, size: float = 1.0, *, gzip: bool, seed: int = 0) -> GroupFile:
    """Return the file of `demos`; make it unless an earlier call has made it.

    Parameters
    ----------
    folder
        The folder of the workloads; see `tests.bench.workloads.make_workload`.
    size
        Scales the number of episodes.
    gzip
        Whether datasets are compressed, in chunks of one step; otherwise they are contiguous.
    seed
        The same seed gives the same values.
    """
    count = max(2, round(_DEMOS * size))
    options = {"compression": "gzip", "compression_opts": 4} if gzip else {}
    key = f"demos-v{_DEMO_VERSION}-{'gzip' if gzip else 'contiguous'}-size{size:g}-seed{seed}"

    def write(target: str) -> None:
        with h5py.File(os.path.join(target, "demos.h5"), "w") as file:
            for number in range(count):
                _write_demo(file.create_group(f"data/demo_{number}"), np.random.default_rng([seed, number]), options)
        _sync(os.path.join(target, "demos.h5"))

    return GroupFile(os.path.join(cached_folder(folder, key, write), "demos.h5"), count)


def _write_demo(group: h5py.Group, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
    steps = int(rng.integers(*_STEPS))
    group.attrs["num_samples"] = steps
    values: dict[str, np.ndarray[Any, Any]] = {
        "obs/image": _draw_images(rng, steps),
        "obs/eef": rng.standard_normal((steps, 7), dtype=np.float32),
        "actions": rng.standard_normal((steps, 7)),
    }
    for name, array in values.items():
        chunks = {"chunks": (1, *array.shape[1:])} if options else {}
        group.create_dataset(name, data=array, **chunks, **options)


def _draw_images(rng: np.random.Generator, steps: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return images of an episode: patches of one colour, of which the lower half has texture, and something moves."""
    height, width, channels = _IMAGE
    patches = rng.integers(0, 200, (height // _PATCH, width // _PATCH, channels), dtype=np.uint8)
    scene = np.repeat(np.repeat(patches, _PATCH, axis=0), _PATCH, axis=1)
    images = np.repeat(scene[None], steps, axis=0)
    images[:, height // 2 :] += rng.integers(0, 4, (steps, height // 2, width, channels), dtype=np.uint8)
    for step, (row, column) in enumerate(rng.integers(0, height - _PATCH, (steps, 2)).tolist()):
        images[step, row : row + _PATCH, column : column + _PATCH] += np.uint8(50)
    return images


def make_traces(
    folder: str | None, count: int, shape: tuple[int, ...], *, attributes: bool, seed: int = 0
) -> GroupFile:
    """Return a file of `traces`; make it unless an earlier call has made it.

    Parameters
    ----------
    folder
        The folder of the workloads; see `tests.bench.workloads.make_workload`.
    count
        Number of datasets.
    shape
        Shape of each, of float32.
    attributes
        Whether each dataset has the attributes `ATTRIBUTES`: six numbers and four texts.
    seed
        The same seed gives the same values.
    """
    shown = "x".join(map(str, shape))
    key = f"traces-v{_TRACE_VERSION}-{count}x{shown}{'-attributes' if attributes else ''}-seed{seed}"

    def write(target: str) -> None:
        rng = np.random.default_rng(seed)
        with h5py.File(os.path.join(target, "traces.h5"), "w") as file:
            group = file.create_group("data")
            for number in range(count):
                dataset = group.create_dataset(f"trace_{number}", data=rng.standard_normal(shape, dtype=np.float32))
                if attributes:
                    _write_attributes(dataset, number)
        _sync(os.path.join(target, "traces.h5"))

    return GroupFile(os.path.join(cached_folder(folder, key, write), "traces.h5"), count)


def _write_attributes(dataset: h5py.Dataset, number: int) -> None:
    for i, name in enumerate(ATTRIBUTES):
        dataset.attrs[name] = f"station {number % 97}, {i}" if name.startswith("text") else number * 0.5 + i


def _sync(path: str) -> None:
    """Write a file to the disk; otherwise the kernel does so while the first turns are timed."""
    with open(path, "rb") as written:
        os.fsync(written.fileno())
