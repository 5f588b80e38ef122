"""Recipes of workloads: the columns, layouts and sizes of their files, and the functions that draw their values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from examples.files import DTYPES, SHAPES, draw_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["PACKED", "RECIPES", "Column", "Layout", "Recipe", "RowSpan"]

_SUBJECTS_A_FILE = 25

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a workload.

    Parameters
    ----------
    name
        Path of the HDF5 dataset in its file.
    shape
        Shape of one row.
    dtype
        A numpy dtype string, or "str" for variable-length UTF-8.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, decoded."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows `first` to `stop` of file number `file`, which has `file_rows` rows."""

    file: int
    first: int
    stop: int
    file_rows: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Layout:
    """How the columns of one file are stored: rows a chunk (None is contiguous), and the filter pipeline."""

    chunk_rows: int | None = None
    pipeline: str = "none"
    libver: str | None = None

    def dataset_options(self, column: Column, rows: int) -> dict[str, Any]:
        """Return the arguments of ``create_dataset`` for a column."""
        options: dict[str, Any] = {
            "shape": (rows, *column.shape),
            "dtype": h5py.string_dtype("utf-8") if column.dtype == "str" else column.dtype,
        }
        if self.chunk_rows is not None:
            options |= {"chunks": (self.chunk_rows, *column.shape), "maxshape": (None, *column.shape)}
        return options | _pipeline_options(self.pipeline)


def _pipeline_options(pipeline: str) -> dict[str, Any]:
    import hdf5plugin

    makers: dict[str, Callable[[], Mapping[str, Any]]] = {
        "none": dict,
        "lzf": lambda: {"compression": "lzf"},
        "shuffle+gzip": lambda: {"shuffle": True, "compression": "gzip", "compression_opts": 4},
        "shuffle+gzip1": lambda: {"shuffle": True, "compression": "gzip", "compression_opts": 1},
        "shuffle+lzf": lambda: {"shuffle": True, "compression": "lzf"},
        "shuffle+zstd": lambda: {"shuffle": True, **hdf5plugin.Zstd(clevel=3)},
        "blosc": lambda: hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE),
        "lz4": hdf5plugin.LZ4,
        "bitshuffle": lambda: hdf5plugin.Bitshuffle(cname="lz4"),
    }
    return dict(makers[pipeline]())


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a workload is made: its size, the layout of each file, and the function that draws a span of rows.

    `version` is a part of the name of the cached folder: raise it with every change of the written values.
    """

    version: int
    layouts: tuple[Layout, ...]
    file_rows: int
    columns: tuple[Column, ...]
    draw: Callable[[np.random.Generator, RowSpan], Arrays]
    rows_per_write: int = 50


def _draw_signals(rng: np.random.Generator, span: RowSpan) -> Arrays:
    return draw_signals(rng, span.file, range(span.first, span.stop), span.file_rows)


def _draw_flat(rng: np.random.Generator, span: RowSpan) -> Arrays:
    shape = (span.rows, *_IMAGE_COLUMNS[0].shape)
    return {
        "image_u1": rng.integers(0, 256, shape, dtype=np.uint8),
        "image_f4": rng.standard_normal(shape, dtype=np.float32),
    }


def _draw_wide(rng: np.random.Generator, span: RowSpan) -> Arrays:
    rows = span.rows
    row = np.arange(span.first, span.stop)
    return {
        "subject": (span.file * _SUBJECTS_A_FILE + row * _SUBJECTS_A_FILE // span.file_rows).astype(np.int32),
        "time": row.astype(np.float64) / 250,
        "label": rng.integers(0, 10, rows).astype(np.uint8),
        "quality": rng.random(rows, dtype=np.float32),
        "session": rng.integers(0, 4, rows).astype(np.uint8),
        "site": rng.integers(0, 7, rows).astype(np.uint8),
        "valid": rng.random(rows) < 0.9,
        "score": rng.standard_normal(rows, dtype=np.float32),
        "vector": np.round(rng.standard_normal((rows, 64), dtype=np.float32), 2),
    }


def _draw_images(rng: np.random.Generator, span: RowSpan) -> Arrays:
    # Like photographs in one respect: neighbouring values are similar, and their last bits are noise.
    coarse = rng.random((span.rows, 3, 8, 8), dtype=np.float32)
    smooth = np.repeat(np.repeat(coarse, 8, axis=2), 8, axis=3)
    grey = (smooth * 224 + rng.integers(0, 32, smooth.shape)).astype(np.uint8)
    return {"image_u1": grey, "image_f4": grey.astype(np.float32) / np.float32(255)}


_SIGNALS_COLUMNS = tuple(
    Column(name, shape, "str" if name == "guid" else DTYPES.get(name, "f4")) for name, shape in SHAPES.items()
)
_WIDE_COLUMNS = (
    Column("subject", (), "i4"),
    Column("time", (), "f8"),
    Column("label", (), "u1"),
    Column("quality", (), "f4"),
    Column("session", (), "u1"),
    Column("site", (), "u1"),
    Column("valid", (), "?"),
    Column("score", (), "f4"),
    Column("vector", (64,), "f4"),
)
_IMAGE_COLUMNS = (Column("image_u1", (3, 64, 64), "u1"), Column("image_f4", (3, 64, 64), "f4"))

PIPELINES = ("none", "shuffle+gzip", "shuffle+lzf", "shuffle+zstd", "blosc", "lz4", "bitshuffle")
"""The filter pipelines of `images`, each with 16 and with 128 rows a chunk."""

PACKED = ("gzip", "zstd")
"""The codecs of `packed_images`, after a shuffle of bytes."""

_IMAGE_LAYOUTS = tuple(Layout(chunk_rows, pipeline) for pipeline in PIPELINES for chunk_rows in (16, 128))

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "flat": Recipe(1, (Layout(),), 2048, _IMAGE_COLUMNS, _draw_flat),
        "images": Recipe(1, _IMAGE_LAYOUTS, 2048, _IMAGE_COLUMNS, _draw_images, rows_per_write=128),
        "packed_images": Recipe(
            1, tuple(Layout(16, f"shuffle+{codec}") for codec in PACKED), 2048, _IMAGE_COLUMNS, _draw_images, 128
        ),
        "signals": Recipe(1, (Layout(1, "lzf", "latest"),) * 4, 1000, _SIGNALS_COLUMNS, _draw_signals),
        "wide": Recipe(1, (Layout(1024, "shuffle+gzip1"),) * 16, 62_500, _WIDE_COLUMNS, _draw_wide, 8192),
    }
)
"""The recipes of all workloads, by name."""
