"""Storage layouts, chunk indexes, and what is around them in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.conformance.case import Case
from tests.hdf5.h5kit import dataset_with, plist_with

SHAPE = (23, 6)
DATA = np.random.default_rng(7).integers(-9, 9, SHAPE).astype("<i4")
FAR = 5 << 30


def plain(libver: str = "earliest", *, data: np.ndarray = DATA, **options: Any) -> Callable[[Path], None]:
    """Return what writes `data` as column "x" by `options` of `create_dataset`."""

    def make(path: Path) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("x", data=data, **options)

    return make


def in_file(fill: Callable[[h5py.File], Any], **options: Any) -> Callable[[Path], None]:
    """Return what fills a new file."""

    def make(path: Path) -> None:
        with h5py.File(path, "w", **options) as file:
            fill(file)

    return make


def _contiguous(time: int, write: bool) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        plist = plist_with()
        plist.set_alloc_time(time)
        plist.set_fill_value(np.array(5, "i4"))
        dataset = dataset_with(file, "x", SHAPE, plist)
        if write:
            dataset[3:9] = DATA[3:9]

    return fill


def _compact(file: h5py.File) -> None:
    plist = plist_with()
    plist.set_layout(h5py.h5d.COMPACT)
    dataset_with(file, "x", SHAPE, plist)[:] = DATA


def _implicit(file: h5py.File) -> None:
    plist = plist_with((4, 6))
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    dataset_with(file, "x", SHAPE, plist)[:] = DATA


def _far(path: Path) -> None:
    with h5py.File(path, "w") as file:
        plist = plist_with()
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        dataset_with(file, "hole", (FAR,), plist, h5py.h5t.STD_U8LE)
        file.create_dataset("x", data=DATA, chunks=(4, 6), compression="gzip")
        file.create_dataset("flat", data=DATA)


def _junk(path: Path) -> None:
    plain(chunks=(4, 6), compression="lzf")(path)
    with open(path, "ab") as file:
        file.write(b"\x89HDF\r\n\x1a\njunk" * 100)


def _fills(*written: slice, shape: tuple[int, ...] = SHAPE, **options: Any) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        for name, value, dtype in (("x", -3, "i4"), ("y", 0.5, ">f8"), ("z", 0, "u1")):
            dataset = file.create_dataset(name, shape, dtype, chunks=(4, 4), fillvalue=value, **options)
            for rows in written:
                dataset[rows] = DATA[rows]

    return fill


def _endless(file: h5py.File) -> None:
    dataset = file.create_dataset("x", (2**62,), "i4", chunks=(1024,), maxshape=(None,), fillvalue=7)
    dataset[5:7] = 1


def _many(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        space, plist = h5py.h5s.create_simple((4,)), plist_with()
        plist.set_layout(h5py.h5d.COMPACT)
        for i in range(5_000):
            dataset = h5py.h5d.create(file.id, b"c%04d" % i, h5py.h5t.STD_I32LE, space, plist)
            if i % 1_250 == 0:
                dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(i, i + 4, dtype="i4"))


EARLY, LATE = h5py.h5d.ALLOC_TIME_EARLY, h5py.h5d.ALLOC_TIME_LATE
SOME = (slice(4, 9),)

STORAGE = (
    Case("contiguous, early", in_file(_contiguous(EARLY, True))),
    Case("contiguous, late", in_file(_contiguous(LATE, True))),
    Case("contiguous, never allocated", in_file(_contiguous(LATE, False))),
    Case("compact", in_file(_compact)),
    Case("compact, latest", in_file(_compact, libver="latest")),
    Case("single chunk", plain("latest", chunks=SHAPE, maxshape=SHAPE)),
    Case("single chunk, filtered", plain("latest", chunks=SHAPE, compression="gzip")),
    Case("implicit index", in_file(_implicit, libver="latest")),
    Case("fixed array", plain("latest", chunks=(4, 4))),
    Case("extensible array", plain("latest", chunks=(4, 4), maxshape=(None, 6), compression="gzip")),
    Case("extensible array along the second axis", plain("latest", chunks=(4, 4), maxshape=(23, None))),
    Case("B-tree, version 1", plain("earliest", chunks=(4, 4))),
    Case("B-tree, version 1, filtered", plain("earliest", chunks=(4, 6), compression="gzip")),
    Case("B-tree, version 2", plain("latest", chunks=(4, 4), maxshape=(None, None))),
    Case("B-tree, version 2, filtered", plain("latest", chunks=(4, 4), maxshape=(None, None), compression="lzf")),
    Case("user block of 512", in_file(_fills(slice(None)), userblock_size=512)),
    Case("user block of 1024", in_file(_fills(slice(None), compression="gzip"), userblock_size=1024)),
    Case("paged", in_file(_fills(slice(None)), fs_strategy="page", fs_page_size=4096, libver="latest")),
    Case("beyond 4 GiB", _far, columns=("x", "flat"), fuzz=False),
    Case("trailing junk", _junk),
    Case("edge chunks with a fill value", in_file(_fills(slice(None)))),
    Case("partly unallocated", in_file(_fills(*SOME))),
    Case("partly unallocated, filtered", in_file(_fills(*SOME, compression="gzip", shuffle=True))),
    Case("wholly unallocated", in_file(_fills(), libver="latest")),
    Case("zero rows", in_file(_fills(shape=(0, 6), maxshape=(None, 6)))),
    Case("rows of no width", plain(data=np.empty((5, 0), "f4"))),
    Case("2^62 rows", in_file(_endless), rows=([2**62 - 1, 6, 2**40, 0], slice(3, 9)), child=True, growth_mb=64),
    Case("5,000 columns", _many, columns=("c0000", "c1250", "c4999"), fuzz=False),
)
