"""Benches of plain PyTorch: loaders, their shuffles and threads, and transforms of their batches.

Loaders are made before the timing, and timed over whole epochs of shuffled batches of 64, with persistent workers. The
batches of ours are compared with h5py's bytes before. In cases named `kept`, both sides hold rows that were decoded in
epochs before; otherwise every epoch reads and decodes all rows again.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

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
from tests.bench.files import SIGNALS, Workload, make_workload
from tests.bench.made_files import make_encoded
from tests.bench.measure import OURS, Case

if TYPE_CHECKING:
    from tests.bench import BenchOptions


Cases = Generator[Case, Any, None]


def bench_loader(options: BenchOptions) -> Cases:
    """Measure our datasets and loaders on `signals` against a per-sample Dataset.

    The baseline has a chunk cache of 1 MiB a dataset, or one that holds all rows in the cases named `kept`.
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
    one, two = (partial(count_rows, of(threads=threads, kept_bytes=0), made.rows) for threads in (1, 2))
    yield Case("loader, 2 threads", paths, {OURS: two, "1 thread": one}, made.rows, "rows/s", {"1 thread": 1.6})
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
    """Measure shuffled epochs; a ratio of 1 against ``unshuffled`` means that shuffling costs nothing."""
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
        yield Case(f"loader, {name}", paths, contestants, rows, "rows/s", {"unshuffled": 1 / 1.05})
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
            goals: dict[Any, float | None] = {
                "unshuffled": 1 / 1.05,
                "ray_random_shuffle": None,
                "ray_local_shuffle": None,
            }
            yield Case(f"{name} epoch", paths, contestants, rows, "rows/s", goals)


def bench_images(options: BenchOptions) -> Cases:
    """Measure epochs of encoded images: with 0 and 1 threads, against Pillow in a `DataLoader` with as many workers."""
    torch.set_num_threads(1)
    count = max(64, int(2000 * options.size))
    decode = DecodeImage("image", size=(224, 224))
    for kind in ("JPEG", "PNG", "WEBP"):
        path = make_encoded(options.folder, kind, count)
        for threads in (0, 1):
            ours = loader(path, 64, threads=threads, columns=["image", "label"], transform=decode)
            samples = PlainH5Dataset([path], ["image", "label"], SMALL_CHUNK_CACHE)
            plain = torch_loader(samples, threads, collate_fn=_by_pillow)
            contestants = {OURS: partial(count_rows, ours, count), "Pillow": partial(count_rows, plain, count)}
            yield Case(f"{kind} {threads} threads", [path], contestants, count, "rows/s", {"Pillow": 1.5})


def _by_pillow(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Put samples together, decoded as people do it."""
    from PIL import Image

    for sample in samples:
        image = Image.open(io.BytesIO(sample["image"].numpy().tobytes())).convert("RGB")
        pixels = np.array(image.resize((224, 224), Image.Resampling.BILINEAR))
        sample["image"] = torch.from_numpy(pixels).permute(2, 0, 1)
    return dict(default_collate(samples))
