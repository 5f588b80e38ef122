"""Bench `images`: batches of encoded images, against Pillow in a `DataLoader`.

The baseline is plain PyTorch: ``__getitem__`` reads the bytes by h5py, Pillow decodes and resizes them, and a
`DataLoader` stacks them, in as many workers as ours has threads.
"""

from __future__ import annotations

import io
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ray_h5.torch_data import loader
from ray_h5.transforms.decode_image import DecodeImage
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.verify import count_rows
from tests.bench.workloads import cached_folder

if TYPE_CHECKING:
    from tests.bench import BenchOptions

__all__ = ["bench_images", "jpeg_file"]

_COUNT = 2000
_DIFFERENT = 16
"""Images that are made; the others are the same again. Each is decoded whenever it is read."""
_SIZE = (375, 500)
_RESIZED = (224, 224)
_BATCH_SIZE = 64
_FORMATS = {"JPEG": {"quality": 90}, "PNG": {}, "WEBP": {"quality": 90}}
_GOAL = 1.5
_FILE = "images.h5"


def bench_images(options: BenchOptions) -> list[Result]:
    """Measure epochs of shuffled batches: in the process that trains, and with one thread against one worker."""
    torch.set_num_threads(1)
    count = max(_BATCH_SIZE, int(_COUNT * options.size))
    results = []
    for kind, settings in _FORMATS.items():
        path = _written(options.folder, kind, settings, count)
        for threads in (0, 1):
            contestants = {OURS: partial(_ours, path, threads, count), "Pillow": partial(_pillow, path, threads, count)}
            contest = Contest("images", f"{kind} {threads} threads", run_turns(contestants, options.turns))
            results.append(contest.against("Pillow", amount=count, unit="rows/s", goal=_GOAL))
    return results


def jpeg_file(folder: str | None, size: float) -> str:
    """Return the file of JPEGs, in the column `image`."""
    return _written(folder, "JPEG", _FORMATS["JPEG"], max(_BATCH_SIZE, int(_COUNT * size)))


def _written(folder: str | None, kind: str, settings: dict[str, Any], count: int) -> str:
    """Return a file of images."""

    def write(target: str) -> None:
        encoded = [np.frombuffer(_encoded(seed, kind, settings), np.uint8) for seed in range(_DIFFERENT)]
        with h5py.File(os.path.join(target, _FILE), "w") as file:
            images = file.create_dataset("image", (count,), h5py.vlen_dtype(np.uint8))
            for i in range(count):
                images[i] = encoded[i % _DIFFERENT]
            file["label"] = np.arange(count) % 1000

    return os.path.join(cached_folder(folder, f"images-v1-{kind.lower()}-{count}", write), _FILE)


def _encoded(seed: int, kind: str, settings: dict[str, Any]) -> bytes:
    """Return an image of smooth noise, with a little grain as photographs have."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize(_SIZE[::-1], Image.Resampling.BICUBIC), np.int16)
    image = np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, **settings)
    return out.getvalue()


def _ours(path: str, threads: int, count: int) -> None:
    decode = DecodeImage("image", size=_RESIZED)
    count_rows(loader(path, _BATCH_SIZE, threads=threads, columns=["image", "label"], transform=decode), count)


def _pillow(path: str, workers: int, count: int) -> None:
    count_rows(DataLoader(_Plain(path), _BATCH_SIZE, shuffle=True, num_workers=workers), count)


class _Plain(Dataset[Any]):
    """As people write it: h5py, Pillow, a tensor."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: h5py.File | None = None
        with h5py.File(path) as file:
            self._count = len(file["label"])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        if self._file is None:
            self._file = h5py.File(self._path)
        image = Image.open(io.BytesIO(self._file["image"][index].tobytes())).convert("RGB")
        pixels = np.array(image.resize(_RESIZED[::-1], Image.Resampling.BILINEAR))
        return {"image": torch.from_numpy(pixels).permute(2, 0, 1), "label": int(self._file["label"][index])}
