"""Files whose rows are not the items of datasets along axis 0, or that one bench alone reads.

`demos` (W5) has episodes as robomimic writes them, `traces` (W6) a group of many small datasets, `cells` (W7) a sparse
matrix as AnnData writes it. `volume` has an image and its labels; `encoded` has images in JPEG, PNG or WebP.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import h5py
import numpy as np

from tests.bench.files import cached_folder, one_file

GENES = 20_000
REMOTE_VALUES = 12_500
"""float32 values of a row in a store: 50 KB, a chunk each."""

_GZIP: Mapping[str, Any] = {"compression": "gzip", "compression_opts": 4}


def make_demos(folder: str | None, size: float, *, gzip: bool) -> str:
    """Return a file of 200 episodes of 80 to 400 steps, contiguous or in gzip chunks of a step."""
    count = max(2, round(200 * size))

    def write(file: h5py.File) -> None:
        for number in range(count):
            rng = np.random.default_rng([0, number])
            steps = int(rng.integers(80, 401))
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = steps
            values: dict[str, Any] = {
                "obs/image": scene(rng, steps),
                "obs/eef": rng.standard_normal((steps, 7), dtype=np.float32),
                "actions": rng.standard_normal((steps, 7)),
            }
            for name, array in values.items():
                options = {"chunks": (1, *array.shape[1:]), **_GZIP} if gzip else {}
                group.create_dataset(name, data=array, **options)

    return one_file(folder, f"demos-v2-{'gzip' if gzip else 'contiguous'}-{count}", write)


def scene(rng: np.random.Generator, steps: int, side: int = 84) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return images: patches of one colour, of which the lower half has texture, and something moves.

    They have the shape (side, side, 3); a patch is a seventh of the side, a multiple of 7.
    """
    patch, half = side // 7, side // 2
    patches = np.repeat(np.repeat(rng.integers(0, 200, (7, 7, 3), dtype=np.uint8), patch, axis=0), patch, axis=1)
    images = np.repeat(patches[None], steps, axis=0)
    images[:, half:] += rng.integers(0, 4, (steps, side - half, side, 3), dtype=np.uint8)
    for step, (row, column) in enumerate(rng.integers(0, side - patch, (steps, 2)).tolist()):
        images[step, row : row + patch, column : column + patch] += np.uint8(50)
    return images


def make_traces(folder: str | None, count: int, shape: tuple[int, ...]) -> str:
    """Return a file with a group of contiguous float32 datasets."""

    def write(file: h5py.File) -> None:
        rng = np.random.default_rng(0)
        for number in range(count):
            file.create_dataset(f"data/trace_{number}", data=rng.standard_normal(shape, dtype=np.float32))

    return one_file(folder, f"traces-v3-{count}x{'x'.join(map(str, shape))}", write)


def make_cells(folder: str | None, size: float) -> tuple[str, int]:
    """Return a file of 50,000 cells x 20,000 genes in compressed rows and gzip chunks, and its number of cells."""
    cells = max(256, round(50_000 * size))

    def write(file: h5py.File) -> None:
        rng = np.random.default_rng(0)
        popularity = np.cumsum(1 / (np.arange(GENES) + 50) ** 0.9)
        genes = rng.permutation(GENES).astype(np.int32)
        parts = [
            _counts(min(1000, cells - at), popularity / popularity[-1], genes, rng) for at in range(0, cells, 1000)
        ]
        data, indices, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (cells, GENES)})
        for name, values in (("data", data), ("indices", indices)):
            group.create_dataset(name, data=values, maxshape=(None,), compression="gzip")
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        group.create_dataset("indptr", data=starts, maxshape=(None,))

    return one_file(folder, f"cells-v3-gzip-{cells}", write), cells


def _counts(cells: int, shares: np.ndarray, genes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return values and genes of the entries of some cells, and the number of entries of each cell."""
    drawn = np.clip(rng.lognormal(np.log(840), 0.5, cells), 69, 3125).astype(np.int64)
    cell = np.repeat(np.arange(cells), drawn)
    drawn_genes = np.searchsorted(shares, rng.random(len(cell)))
    entries, counts = np.unique(cell * GENES + genes[drawn_genes], return_counts=True)
    per_cell = np.bincount(entries // GENES, minlength=cells)
    return counts.astype(np.float32), (entries % GENES).astype(np.int32), per_cell


def make_volume(folder: str | None, size: float) -> str:
    """Return a file of a volume (uint16) of 320 voxels a side, and its labels, in gzip chunks of 32."""
    side = max(65, round(320 * size ** (1 / 3)))

    def write(file: h5py.File) -> None:
        smooth = np.add.outer(np.add.outer(np.arange(side), np.arange(side)), np.arange(side))
        raw = (smooth + np.random.default_rng(side).integers(0, 64, (side,) * 3)).astype("u2")
        for name, values in (("raw", raw), ("label", (smooth // 100).astype("u1"))):
            file.create_dataset(name, data=values, chunks=(32,) * 3, compression="gzip", shuffle=True)

    return one_file(folder, f"volume-v2-{side}", write)


def make_encoded(folder: str | None, kind: str, count: int) -> str:
    """Return a file of encoded images (375, 500, 3) in `image`, and `label`; 16 of them differ."""
    from PIL import Image

    settings: dict[str, Any] = {} if kind == "PNG" else {"quality": 90}

    def encoded(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        grain = rng.integers(-6, 7, smooth.shape)  # as photographs have
        out = io.BytesIO()
        Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(out, kind, **settings)
        return np.frombuffer(out.getvalue(), np.uint8)

    def write(file: h5py.File) -> None:
        different = [encoded(seed) for seed in range(16)]
        images = file.create_dataset("image", (count,), h5py.vlen_dtype(np.uint8))
        for i in range(count):
            images[i] = different[i % 16]
        file["label"] = np.arange(count) % 1000

    return one_file(folder, f"encoded-v2-{kind.lower()}-{count}", write)


def make_many(folder: str | None, count: int, *, bags: bool) -> list[str]:
    """Return many small files: of three columns, or of one row each."""
    write = _write_bag if bags else _write_columns

    def fill(target: str) -> None:
        for number in range(count):
            with h5py.File(os.path.join(target, f"{number:06d}.h5"), "w") as file:
                write(file, number)

    made = cached_folder(folder, f"many-v2-{'bags' if bags else 'columns'}-{count}", fill)
    return [os.path.join(made, f"{number:06d}.h5") for number in range(count)]


def _write_columns(file: h5py.File, number: int) -> None:
    rows = 20 + number % 7
    values = np.random.default_rng(number).random((rows, 4, 3), np.float32)
    file.create_dataset("signal", data=values, chunks=(4, 4, 3), compression="gzip", shuffle=True)
    file["label"], file["time"] = np.arange(rows, dtype="u1"), np.arange(float(rows))


def _write_bag(file: h5py.File, number: int) -> None:
    entries = 20 + number * 37 % 53
    values = np.random.default_rng(number).random((entries, 8), np.float32)
    file.create_dataset("features", data=values, chunks=(16, 8), compression="gzip")
    file["coords"], file["label"], file["case"] = np.zeros((entries, 2), "i4"), number % 3, f"case_{number}"


def make_bucket(folder: str | None, size: float) -> tuple[str, int, int]:
    """Return a folder with a bucket `bench`, the rows of ``rows.h5``, and the number of files in ``runs/``."""
    rows, small, runs = (max(8, round(full * size)) for full in (8000, 20_000, 1000))

    def write(target: str) -> None:
        rng = np.random.default_rng(0)
        bucket = os.path.join(target, "bench")
        os.makedirs(os.path.join(bucket, "runs"))
        make = partial(_write_stored, rng=rng)
        make(f"{bucket}/rows.h5", {"signal": (rows, REMOTE_VALUES)}, (1, REMOTE_VALUES))
        columns = dict.fromkeys("abc", (small, 1024))
        make(f"{bucket}/contiguous.h5", columns, None)
        # Holds all metadata in one page, which is one request.
        make(f"{bucket}/paged.h5", columns, (1, 1024), fs_strategy="page", fs_page_size=4 << 20)
        make(f"{bucket}/default.h5", columns, (1, 1024))
        for number in range(runs):
            make(f"{bucket}/runs/run_{number:04}.h5", dict.fromkeys("abc", (32, 1024)), (4, 1024))

    return cached_folder(folder, f"bucket-v2-size{size:g}", write), rows, runs


def _write_stored(
    path: str,
    columns: Mapping[str, tuple[int, int]],
    chunks: tuple[int, int] | None,
    rng: np.random.Generator,
    **options: Any,
) -> None:
    with h5py.File(path, "w", **options) as file:
        made = [file.create_dataset(name, shape, "f4", chunks=chunks) for name, shape in columns.items()]
        rows, values = next(iter(columns.values()))
        file["label"] = rng.integers(0, 10, rows)
        for first in range(0, rows, 256):
            count = min(256, rows - first)
            for column in made:  # their chunks alternate, as when rows are appended to all columns
                column[first : first + count] = rng.random((count, values), np.float32)
