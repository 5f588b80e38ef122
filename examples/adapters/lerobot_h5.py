"""Robots' HDF5 files (ALOHA, robomimic) as a dataset that policies of LeRobot train on, without converting.

    features = {"observation.images.top": "observations/images/top", "observation.state": "observations/qpos"}
    dataset = RobotDataset("episode_*.hdf5", features | {"action": "action"}, fps=50, policy=ACTConfig(chunk_size=100))
    dataset = RobotDataset("demo.hdf5", {...}, fps=20, groups="data/demo_*", policy=...)  # robomimic

Its `meta`, samples, padding marks and statistics are those of the LeRobotDataset that a conversion makes. Its training
program takes it by `lerobot_train.make_dataset = lambda config: dataset`, as with `--dataset.use_imagenet_stats=false`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pandas as pd
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.datasets import compute_stats as stats
from lerobot.datasets.factory import resolve_delta_timestamps
from lerobot.datasets.lerobot_dataset import CODEBASE_VERSION, LeRobotDatasetMetadata
from lerobot.datasets.utils import DEFAULT_FEATURES, create_empty_dataset_info

from ray_h5.torch_data import Groups, H5Dataset, Windows


class RobotDataset(torch.utils.data.Dataset):
    """A sample is a frame, with the values of `delta_timestamps` around it; `features` names a dataset by key."""

    def __init__(
        self,
        paths: Any,
        features: Mapping[str, str],
        fps: int,
        *,
        groups: str | None = None,
        policy: PreTrainedConfig | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        task: str = "",
    ) -> None:
        self._sources, self.fps, self.task = dict(features), fps, task
        self._files = {"paths": paths, "rows": None if groups is None else Groups(groups)}
        first = self._windows({key: [0.0] for key in features})[0]
        self.meta = LeRobotDatasetMetadata.__new__(LeRobotDatasetMetadata)  # its `__init__` reads files of its own
        self.meta.repo_id, self.meta.root, self.meta.subtasks = "hdf5", None, None
        described = {key: _feature(first[key][0]) for key in features} | DEFAULT_FEATURES
        self.meta.info = create_empty_dataset_info(CODEBASE_VERSION, fps, described, use_videos=False)
        self.meta.tasks = pd.DataFrame({"task_index": [0]}, index=[task])
        self._describe()
        found = delta_timestamps if policy is None else resolve_delta_timestamps(policy, self.meta)
        self.delta_timestamps = dict(found or {})
        self.h5 = self._windows({key: self.delta_timestamps.get(key, [0.0]) for key in features})
        self.features, self.episodes = self.meta.features, None  # None is all of them, as in LeRobotDataset
        self.num_frames, self.num_episodes = len(self.h5), len(self._starts)

    def _windows(self, seconds: Mapping[str, Sequence[float]]) -> H5Dataset:
        offsets = {key: (self._sources[key], list(times)) for key, times in seconds.items()}
        columns = [*offsets, *(f"{key}_is_pad" for key in offsets)]
        return H5Dataset(**self._files, columns=columns, windows=Windows(offsets, fps=self.fps, pad="edge"))

    def _describe(self) -> None:
        """Set episodes and statistics, as LeRobot computes them while it writes: of all numbers, and some images."""
        numbers = [key for key in self._sources if key not in self.meta.camera_keys]
        steps = self._windows({key: [-1 / self.fps, 0.0] for key in numbers})[:]
        count = len(steps[numbers[0]])
        self._starts = np.flatnonzero(steps[f"{numbers[0]}_is_pad"][:, 0].numpy())  # no step before it
        stops = [*self._starts[1:].tolist(), count]
        bounds = {"dataset_from_index": self._starts.tolist(), "dataset_to_index": stops}
        self.meta.episodes = datasets.Dataset.from_dict(bounds)
        self.meta.info |= {"total_episodes": len(stops), "total_frames": count, "total_tasks": 1}
        arrays = {key: _cast(steps[key][:, 1]).numpy() for key in numbers} | self._places(np.arange(count))
        cameras = {key: self._windows({key: [0.0]}) for key in self.meta.camera_keys}
        of_episodes = []
        for start, stop in zip(*bounds.values(), strict=True):
            found = {key: stats.get_feature_stats(x[start:stop], 0, x.ndim == 1) for key, x in arrays.items()}
            for key, dataset in cameras.items():
                frames = dataset[[start + i for i in stats.sample_indices(stop - start)]][key][:, 0].movedim(-1, 1)
                images = np.stack([stats.auto_downsample_height_width(frame) for frame in frames.numpy()])
                each = stats.get_feature_stats(images, (0, 2, 3), keepdims=True)
                found[key] = {name: x if name == "count" else np.squeeze(x / 255.0, axis=0) for name, x in each.items()}
            of_episodes.append(found)
        self.meta.stats = stats.aggregate_stats(of_episodes)

    def _places(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        episodes = np.searchsorted(self._starts, indices, "right") - 1
        frames, tasks = indices - self._starts[episodes], np.zeros_like(indices)
        numbers = {"frame_index": frames, "episode_index": episodes, "index": indices, "task_index": tasks}
        return {"timestamp": frames / self.fps, **numbers}

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples that are read by one call."""
        places = {key: _cast(torch.from_numpy(values)) for key, values in self._places(np.array(indices)).items()}
        samples = enumerate(self.h5.__getitems__(indices))
        return [self._item(sample, {key: values[i] for key, values in places.items()}) for i, sample in samples]

    def _item(self, sample: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        item = {**places, "task": self.task}
        item |= {f"{key}_is_pad": sample[f"{key}_is_pad"] for key in self.delta_timestamps}
        for key in self._sources:
            value = _cast(sample[key] if key in self.delta_timestamps else sample[key][0])
            item[key] = value.movedim(-1, -3).float() / 255 if key in self.meta.camera_keys else value
        return item


def _cast(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.is_floating_point() else value


def _feature(value: torch.Tensor) -> dict[str, Any]:
    if value.dtype == torch.uint8 and value.ndim == 3:
        return {"dtype": "image", "shape": tuple(value.shape), "names": ["height", "width", "channels"]}
    return {"dtype": str(_cast(value).dtype).removeprefix("torch."), "shape": tuple(value.shape) or (1,), "names": None}
