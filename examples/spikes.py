"""Decode running speed from spikes: units, field potential and behaviour of one recording, each at times of its own."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch

from ray_h5 import Windows, ragged
from ray_h5.torch_data import H5Dataset, loader

SECONDS, UNITS = 300, 8
SPEED, SPIKES, STAGE = "behavior/speed/data", "ecephys/spikes/times", "stage"


def make_file(path: Path) -> None:
    rng = np.random.default_rng(0)
    behavior = np.arange(0, SECONDS, 1 / 30)
    speed = np.abs(np.convolve(rng.normal(size=len(behavior)), np.ones(90) / 9, "same"))
    rate = np.repeat(speed[:, None] * rng.uniform(0.5, 2, UNITS), 4, axis=0)  # 120 steps a second
    fired = [np.flatnonzero(rng.random(len(rate)) < rate[:, unit] / 30) / 120 for unit in range(UNITS)]
    every, of_unit = np.concatenate(fired), np.repeat(np.arange(UNITS), [len(each) for each in fired])
    with h5py.File(path, "w") as file:
        file[SPEED], file["behavior/speed/timestamps"] = speed, behavior
        file[SPIKES] = np.sort(every)
        file["ecephys/spikes/unit"] = of_unit[np.argsort(every)]
        file["units/spike_times"] = every  # unit after unit, as NWB's VectorIndex says
        file["units/spike_times_index"] = np.cumsum([len(each) for each in fired])
        file[STAGE] = rng.integers(0, 2, SECONDS // 30)
        file[STAGE].attrs["rate"] = 1 / 30


def decode(path: str) -> float:
    """Return the correlation of the decoded speed with the real one."""
    units = H5Dataset(path, [ragged("units/spike_times", ends="units/spike_times_index")])
    print("spikes of each unit:", [len(units[unit]["units/spike_times"]) for unit in range(len(units))])
    unit = "ecephys/spikes/unit"
    spans = {SPEED: [0.0], SPIKES: slice(-0.5, 0.5), unit: slice(-0.5, 0.5), STAGE: [0.0]}
    times = {SPEED: "timestamps", SPIKES: SPIKES, unit: SPIKES}  # the stage has a rate
    windows = Windows(spans, at=times, fps=5, holds=[STAGE])
    dataset = H5Dataset(path, [SPEED, SPIKES, unit, STAGE], windows=windows)
    counts, speeds = [], []
    for batch in loader(dataset, 64):
        counts += [torch.bincount(each.long(), minlength=UNITS) for each in batch[unit]]
        speeds.append(batch[SPEED][:, 0])
    x, y = torch.stack(counts).double(), torch.cat(speeds)
    half = len(y) // 2
    solution = torch.linalg.lstsq(x[:half], y[:half, None]).solution
    found = float(torch.corrcoef(torch.stack([(x[half:] @ solution)[:, 0], y[half:]]))[0, 1])
    print(f"correlation with the speed of the second half: {found:.2f}")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_file(Path(folder) / "recording.h5")
        decode(f"{folder}/recording.h5")
