"""stable-worldmodel's HDF5 files read by ray_h5, as another format of its registry.

Put this folder on PYTHONPATH, import this module in the training script, and name the format:

    import worldmodel_h5
    dataset = stable_worldmodel.data.load_dataset("pusht.h5", format="ray_h5", num_steps=4, frameskip=5)

Samples are those of its own reader, and so are options and methods. `dataset.loader(64)` yields the batches of
a DataLoader and is faster: it reads whole batches in threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from stable_worldmodel.data import HDF5Dataset, register_format
from stable_worldmodel.data.formats.hdf5 import HDF5

from ray_h5.torch_data import H5Dataset, Windows, loader


class RayH5Dataset(HDF5Dataset):
    """Clips of episodes: windows of steps that lie in one episode."""

    _merged: tuple[str, ...] = ()
    """Keys whose values lie in memory."""

    _windows: H5Dataset | None = None

    def __init__(self, path: Any, **options: Any) -> None:
        super().__init__(path=path, **options)
        if not np.array_equal(self.offsets, np.cumsum(self.lengths) - self.lengths):
            raise ValueError(f"{path}: expected episodes without gaps; ep_offset has other starts than ep_len")

    def _steps(self, name: str) -> range:
        """Return the steps of a clip that a column has: actions of skipped frames, too."""
        return range(0, self.span, 1 if name == "action" else self.frameskip)

    @property
    def windows(self) -> H5Dataset:
        """The clips: columns of the file, and the step of each clip where there are others."""
        if self._windows is None:
            offsets = {name: self._steps(name) for name in self._keys if name not in self._merged}
            windows = Windows(offsets, pad="drop", episode_lengths="ep_len")
            steps = bool(self._merged)
            self._windows = H5Dataset(str(self.h5_path), [*offsets], windows=windows, include_steps=steps)
        return self._windows

    def merge_col(self, source: list[str] | str, target: str, dim: int = -1) -> None:
        """Add a key whose values are those of others, end to end, in memory."""
        super().merge_col(source, target, dim)
        self._merged, self._windows = (*self._merged, target), None

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return self.__getitems__([idx])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples that are read by one call."""
        return [self._changed(sample, 0) for sample in self.windows.__getitems__(indices)]

    def loader(self, batch_size: int, **options: Any) -> Iterator[dict[str, Any]]:
        """Yield the batches of an epoch; options are those of `ray_h5.torch_data.loader`."""
        if self.transform is not None:
            raise ValueError("loader: transform= changes single samples; leave it out, and change whole batches")
        for batch in loader(self.windows, batch_size, **options):
            yield self._changed(batch, 1)

    def _changed(self, read: Mapping[str, Any], axis: int) -> dict[str, Any]:
        """Return what its own reader does for columns as they are read; `axis` is that of steps."""
        steps: dict[str, Any] = {}
        for name in self._keys:
            if name in self._merged:
                value = torch.from_numpy(self._cache[name][np.add.outer(read["step"], self._steps(name))])
            else:
                value = read[name]
            if not isinstance(value, torch.Tensor):  # text: that of the first step
                steps[name] = [texts[0] for texts in value] if axis else value[0]
            elif value.ndim == axis + 4 and value.shape[-1] in (1, 3):
                steps[name] = value.movedim(-1, axis + 1)  # channels first
            else:
                steps[name] = value
        steps = self.transform(steps) if self.transform else steps
        if "action" in steps:
            steps["action"] = steps["action"].reshape(*steps["action"].shape[:axis], self.num_steps, -1)
        return steps


@register_format
class RayH5(HDF5):
    """HDF5 files by ray_h5, where this format is named: the format `hdf5` finds the same files."""

    name = "ray_h5"

    @classmethod
    def detect(cls, path: Any) -> bool:  # noqa: ARG003
        """Return False: the file goes to the format that is named."""
        return False

    @classmethod
    def open_reader(cls, path: Any, **options: Any) -> RayH5Dataset:
        """Return a dataset of a file, or of the only file in a folder."""
        return RayH5Dataset(super().open_reader(path).h5_path, **options)
