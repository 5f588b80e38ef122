"""Each filter alone and with others, filter masks, and partial chunks."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

from tests.conformance.case import Case
from tests.conformance.storage import in_file
from tests.hdf5.h5kit import dataset_with, libhdf5, plist_with, random_rows

ALL = {
    "deflate": {"compression": "gzip"},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
    "szip": {"compression": "szip", "compression_opts": ("nn", 8)},
    "lz4": hdf5plugin.LZ4(),
    "zstd": hdf5plugin.Zstd(),
    "blosc": hdf5plugin.Blosc(),
    "blosc2": hdf5plugin.Blosc2(),
    "bitshuffle": hdf5plugin.Bitshuffle(),
    "bitshuffle of zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    "scaleoffset": {"scaleoffset": 0},
    "shuffle, deflate": {"compression": "gzip", "shuffle": True},
    "shuffle, deflate, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "shuffle, lzf, fletcher32": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    "shuffle, zstd, fletcher32": {**hdf5plugin.Zstd(), "shuffle": True, "fletcher32": True},
    "scaleoffset, deflate": {"scaleoffset": 0, "compression": "gzip"},
}
CHUNK = (4, 16)
CHUNK_BYTES = np.arange(64, dtype="<i4") * 1_000_003
SHUFFLE_DEFLATE = (2, 1)


def _filtered(options: dict[str, Any]) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        few = np.random.default_rng(3).integers(0, 5, (10, 16))
        for dtype in ("i4", ">u2"):
            file.create_dataset(f"few {dtype}", data=few.astype(dtype), chunks=CHUNK, **options)
        file.create_dataset("many", data=random_rows((10, 16), "i4"), chunks=CHUNK, **options)

    return fill


def _nbit(file: h5py.File) -> None:
    type_id = h5py.h5t.STD_I32LE.copy()
    type_id.set_precision(20)
    plist = plist_with(CHUNK)
    plist.set_filter(5, 0, ())
    dataset_with(file, "x", (10, 16), plist, type_id)[:] = np.arange(160, dtype="i4").reshape(10, 16) - 80


def _masks(*masks: int) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        dataset = dataset_with(file, "x", (4 * len(masks), 16), plist_with(CHUNK, SHUFFLE_DEFLATE))
        for i, mask in enumerate(masks):
            data = CHUNK_BYTES.tobytes()
            if not mask & 1:
                data = CHUNK_BYTES.view("u1").reshape(-1, 4).T.tobytes()
            if not mask & 2:
                data = zlib.compress(data)
            dataset.id.write_direct_chunk((4 * i, 0), data, filter_mask=mask)

    return fill


def _partial(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        plist, library = plist_with((4, 5), SHUFFLE_DEFLATE), libhdf5()
        if library is not None and hasattr(library, "H5Pset_chunk_opts"):
            library.H5Pset_chunk_opts(ctypes.c_int64(plist.id), 2)
        dataset_with(file, "x", (10, 6), plist)[:] = random_rows((10, 6), "i4")


FILTERS = (
    *(Case(f"filter: {name}", in_file(_filtered(options))) for name, options in ALL.items()),
    Case("filter: nbit", in_file(_nbit)),
    Case("incompressible lzf", in_file(lambda file: file.create_dataset(
        "x", data=random_rows((16, 16), "i4"), chunks=CHUNK, compression="lzf"))),
    *(Case(f"filter mask {mask}", in_file(_masks(mask, 0))) for mask in range(4)),
    Case("mask bits beyond the pipeline", in_file(_masks(0xFFFFFFFC, 0xFFFFFFFF, 4, 5, 6))),
    Case("unfiltered partial chunks", _partial),
)  # fmt: skip
