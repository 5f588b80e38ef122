"""Bench `worldmodel`: clips of episodes, by the readers of stable-worldmodel for HDF5 and Lance, and by ours.

The files are written by its own writers: images of 224 x 224, as they are in HDF5, as JPEG in Lance. Clips have 4 steps
of 5 frames, shuffled, in batches of 64. `loader` has a thread where the others have no workers, and two for two.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ray_h5.errors import OptionError
from tests.bench import BenchOptions
from tests.bench.files import cached_folder
from tests.bench.made_files import scene
from tests.bench.measure import OURS, Case, Result, of_figures

_ADAPTERS = str(Path(__file__).parents[3] / "examples" / "adapters")
_CLIPS = {"num_steps": 4, "frameskip": 5}
_STEPS, _BATCH = 40, 64

_WRITERS = {"hdf5": "steps.h5", "lance": "steps.lance"}
"""The formats of stable-worldmodel, and the name of a file, or a folder, of each."""


def bench_worldmodel(options: BenchOptions) -> Generator[Case | Result, Any, None]:
    """Measure clips a second without workers and with two, and what the files take on the disk."""
    if importlib.util.find_spec("stable_worldmodel") is None:
        raise OptionError("bench worldmodel: stable_worldmodel is not installed; pip install stable-worldmodel")
    torch.set_num_threads(1)  # on a busy machine, stacking in two threads takes ten times as long
    if _ADAPTERS not in sys.path:
        sys.path.append(_ADAPTERS)
    from stable_worldmodel.data import load_dataset
    from worldmodel_h5 import RayH5Dataset

    episodes = max(2, round(120 * options.size))
    paths = {name: _made(name, options.folder, episodes) for name in _WRITERS}
    for name, path in paths.items():
        files = [path] if os.path.isfile(path) else [each for each in Path(path).rglob("*") if each.is_file()]
        yield of_figures("worldmodel", f"{name} on the disk", "GB", [sum(map(os.path.getsize, files)) / 1e9])
    ours = RayH5Dataset(paths["hdf5"], **_CLIPS)
    for workers in (0, 2):
        # Lance makes spawn the way in which all later workers start: it comes last.
        theirs = {name: load_dataset(path, format=name, **_CLIPS) for name, path in paths.items()}
        assert torch.equal(theirs["hdf5"][7]["pixels"], ours[7]["pixels"])
        contestants: dict[str, Callable[[], object]] = {
            OURS: partial(_count, partial(ours.loader, _BATCH, threads=max(1, workers)), len(ours)),
            "in a DataLoader": _epochs(ours, workers, "fork"),
            "hdf5": _epochs(theirs["hdf5"], workers, "fork"),
            "lance": _epochs(theirs["lance"], workers, "spawn"),
        }
        goals: dict[str | tuple[str, str], float | None] = {"hdf5": 2.0, "lance": 5.0}
        goals |= {("in a DataLoader", "hdf5"): None}
        name = f"{len(ours)} clips of {episodes} episodes, {workers} workers"
        yield Case(name, [paths["hdf5"]], contestants, len(ours), "clips/s", goals)


def _made(name: str, folder: str | None, episodes: int) -> str:
    """Return the file or folder of a format, as the writer of stable-worldmodel fills it."""
    from stable_worldmodel.data import get_format

    def steps_of(number: int) -> dict[str, Any]:
        rng = np.random.default_rng([0, number])
        values = {"pixels": scene(rng, _STEPS, 224), "proprio": rng.standard_normal((_STEPS, 4), dtype=np.float32)}
        values |= {"action": rng.standard_normal((_STEPS, 2), dtype=np.float32)}
        return {name: list(each) for name, each in values.items()}

    def fill(target: str) -> None:
        with get_format(name).open_writer(os.path.join(target, _WRITERS[name])) as writer:
            writer.write_episodes(map(steps_of, range(episodes)))

    return os.path.join(cached_folder(folder, f"worldmodel-v1-{name}-{episodes}", fill), _WRITERS[name])


def _epochs(dataset: Any, workers: int, start: str) -> Callable[[], object]:
    how = {"multiprocessing_context": start, "persistent_workers": True} if workers else {}
    batches = DataLoader(dataset, _BATCH, shuffle=True, num_workers=workers, **how)
    return partial(_count, lambda: batches, len(dataset))


def _count(batches: Callable[[], Iterable[Any]], clips: int) -> None:
    """Read an epoch, and look that it has all clips."""
    read = 0
    for batch in batches():
        assert batch["pixels"].shape[1:] == (_CLIPS["num_steps"], 3, 224, 224)
        read += len(batch["action"])
    assert read == clips, f"{read} of {clips} clips"
