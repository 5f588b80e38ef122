"""Benches of plain PyTorch: loaders, their shuffles and threads, and transforms of their batches.

Loaders are made before the timing, and timed over whole epochs of shuffled batches of 64, with persistent workers. The
batches of ours are compared with h5py's bytes before. In cases named `kept`, both sides hold rows that were decoded in
epochs before; otherwise every epoch reads and decodes all rows again.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset

import ray_h5
from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset, create_optimized_dataloader, loader
from ray_h5.transforms.image_transform import DecodeImage
from tests.bench.baselines.epochs import (
    LARGE_CHUNK_CACHE,
    SMALL_CHUNK_CACHE,
    PlainH5Dataset,
    count_rows,
    ray_batches,
    ray_session,
    torch_loader,
    verify_rows,
)
from tests.bench.baselines.reads import BareLoops
from tests.bench.files import SIGNALS, Workload, make_workload
from tests.bench.made_files import make_encoded
from tests.bench.measure import OURS, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench import BenchOptions


Cases = Generator[Case, Any, None]


def bench_loader(options: BenchOptions) -> Cases:
    """Measure our datasets and loaders on `signals` against a per-sample Dataset, and against a bare loop.

    The baseline has a chunk cache of 1 MiB a dataset, or one that holds all rows in the cases named `kept`. The bare
    loop knows where the chunks are; it is ``os.preadv`` and ``imagecodecs.lzf_decode`` in Python.
    """
    made = make_workload("signals", options.folder, options.size)
    paths, columns = list(made.paths), list(SIGNALS)
    of = partial(loader, paths, 64, columns=columns)
    for workers in (0, 2):
        combined = CombinedHDF5Dataset(paths, columns, cache_size=0, kept_bytes=0)
        ours = {
            "loader": (of(threads=workers, kept_bytes=0), 8.0),
            "combined": (torch_loader(combined, workers), 5.0),
            "H5Dataset": (torch_loader(H5Dataset(paths, columns, kept_bytes=0), workers), None),
        }
        if workers:
            ours["loader, in processes"] = (of(workers=workers, kept_bytes=0), 1.0)
        yield _against_plain(made, f"{workers} workers", ours, workers, SMALL_CHUNK_CACHE)
    loops = BareLoops(paths, columns, 64)
    one, two = (of(threads=threads, kept_bytes=0) for threads in (1, 2))
    contestants: dict[str, Callable[[], object]] = {
        "1 thread": partial(count_rows, one, made.rows),
        "2 threads": partial(count_rows, two, made.rows),
        "bare loop": loops.in_python,
    }
    goals: dict[Any, float | None] = {
        ("1 thread", "bare loop"): 1.25,
        ("2 threads", "1 thread"): 1.6,
    }
    yield Case("loader", paths, contestants, made.rows, "rows/s", goals, turns=2)
    for workers in (0, 2):
        warm = CombinedHDF5Dataset(paths, columns, cache_size=made.rows, kept_bytes=0)
        optimized = create_optimized_dataloader(paths, 64, workers, 0, 1, load_fields=columns, cache_size=0)
        ours = {
            "loader": (of(threads=workers), 20.0),
            "combined": (torch_loader(CombinedHDF5Dataset(paths, columns), workers), 5.0),
            "combined, all in its cache": (torch_loader(warm, workers), 20.0),
            "create_optimized": (optimized, 10.0),
        }
        # Each worker of ours has its own cache, and reads other samples in each epoch: the first epochs fill it.
        warmups = 4 if workers else 1
        yield _against_plain(made, f"kept, {workers} workers", ours, workers, LARGE_CHUNK_CACHE, warmups)


def _against_plain(
    made: Workload,
    name: str,
    ours: dict[str, tuple[Iterable[Any], float | None]],
    workers: int,
    cache: int,
    warmups: int = 1,
) -> Case:
    for batches, _ in ours.values():
        verify_rows(made.paths, SIGNALS, batches)
    plain = torch_loader(PlainH5Dataset(made.paths, SIGNALS, cache), workers)
    contestants = {each: partial(count_rows, batches, made.rows) for each, (batches, _) in ours.items()}
    contestants["plain_loader"] = partial(count_rows, plain, made.rows)
    goals: dict[Any, float | None] = {(each, "plain_loader"): goal for each, (_, goal) in ours.items()}
    if "loader, in processes" in ours:
        goals["loader, in processes", "H5Dataset"] = goals.pop(("loader, in processes", "plain_loader"))
    return Case(name, made.paths, contestants, made.rows, "rows/s", goals, warmups=warmups)


def bench_shuffle(options: BenchOptions) -> Cases:
    """Measure shuffled epochs; a ratio of 1 against ``unshuffled`` means that shuffling costs nothing.

    `4 ranks` reads the shares of all ranks of a node, one after the other, against one rank that reads all: each chunk
    is decoded once, unless there are fewer windows than ranks, as at small sizes.
    """
    signals, images = (make_workload(name, options.folder, options.size) for name in ("signals", "images"))
    cases: dict[str, tuple[list[str], list[str], int]] = {"signals": (list(signals.paths), list(SIGNALS), signals.rows)}
    for codec in ("none", "shuffle+gzip"):
        for chunk_rows in (16, 128):
            name = f"images {chunk_rows} rows a chunk, {codec.removeprefix('shuffle+')}"
            cases[name] = (images.paths_of(chunk_rows, codec), ["image_f4"], images.file_rows)
    for name, (paths, columns, rows) in cases.items():
        of = partial(loader, paths, 64, columns=columns, kept_bytes=0)
        contestants = {
            OURS: partial(count_rows, of(shuffle="auto"), rows),
            "unshuffled": partial(count_rows, of(shuffle=False), rows),
        }
        goals: dict[Any, float | None] = {"unshuffled": 1 / 1.05}
        if name.endswith("gzip"):
            shares = [of(shuffle="chunks", rank=rank, world_size=4) for rank in range(4)]
            # A rank may read a row more, so that all have as many.
            contestants["4 ranks"] = partial(count_rows, _Chained(shares), sum(map(_rows_of, shares)))
            goals["4 ranks", "one rank"] = None
            contestants["one rank"] = partial(count_rows, of(shuffle="chunks"), rows)
        yield Case(f"loader, {name}", paths, contestants, rows, "rows/s", goals)
    with ray_session(3 << 30):
        for name, (paths, columns, rows) in cases.items():
            plain_ds = ray_h5.read_h5(paths, columns=columns)
            shuffled_ds = ray_h5.read_h5(paths, columns=columns, shuffle=ray_h5.Shuffle(seed=0))
            contestants = {
                OURS: partial(ray_batches, shuffled_ds, rows),
                "unshuffled": partial(ray_batches, plain_ds, rows),
                "ray_random_shuffle": partial(ray_batches, plain_ds.random_shuffle(seed=0), rows),
                "ray_local_shuffle": partial(ray_batches, plain_ds, rows, local_shuffle_buffer_size=1000),
            }
            goals = {"unshuffled": 1 / 1.05, "ray_random_shuffle": None, "ray_local_shuffle": None}
            yield Case(f"{name} epoch", paths, contestants, rows, "rows/s", goals)


class _Chained:
    """The batches of some loaders, one after the other."""

    def __init__(self, loaders: Sequence[Iterable[Any]]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._loaders)


def _rows_of(batches: Iterable[Any]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)


def bench_images(options: BenchOptions) -> Cases:
    """Measure epochs of encoded images: with 0 and 1 threads, against Pillow in a `DataLoader` with as many workers."""
    torch.set_num_threads(1)
    count = max(64, int(2000 * options.size))
    decode = DecodeImage("image", size=(224, 224))
    for kind in ("JPEG", "PNG", "WEBP"):
        path = make_encoded(options.folder, kind, count)
        for threads in (0, 1):
            ours = loader(path, 64, threads=threads, columns=["image", "label"], transform=decode)
            plain = torch_loader(_Pillow(path, count), threads)
            contestants = {OURS: partial(count_rows, ours, count), "Pillow": partial(count_rows, plain, count)}
            yield Case(f"{kind} {threads} threads", [path], contestants, count, "rows/s", {"Pillow": 1.5})


class _Pillow(Dataset[Any]):
    """As people write it: h5py, Pillow, a tensor."""

    def __init__(self, path: str, count: int) -> None:
        self._path, self._count = path, count
        self._file: h5py.File | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        if self._file is None:
            self._file = h5py.File(self._path)
        image = Image.open(io.BytesIO(self._file["image"][index].tobytes())).convert("RGB")
        pixels = np.array(image.resize((224, 224), Image.Resampling.BILINEAR))
        return {"image": torch.from_numpy(pixels).permute(2, 0, 1), "label": int(self._file["label"][index])}
