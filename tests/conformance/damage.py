"""Files that are damaged, or want to do harm."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import (
    CodecUnavailableError,
    CorruptChunkError,
    CorruptFileError,
    NotHDF5Error,
    StaleIndexError,
    TruncatedFileError,
    WriterActiveError,
)
from tests.conformance.case import Case
from tests.conformance.storage import in_file, plain
from tests.hdf5.h5kit import dataset_with, flip, overwrite, plist_with, random_rows, run_python, stored_chunks

CHUNK = np.arange(64, dtype="<i4")
DYING_WRITER = """
import os, sys, h5py
file = h5py.File(sys.argv[1], "w", libver="latest")
dataset = file.create_dataset("x", data=range(10), maxshape=(None,), chunks=(4,))
file.swmr_mode = True
dataset.flush()
os._exit(0)
"""


def _cut(keep: Callable[[int], int]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        plain("latest", chunks=(4, 4))(path)
        os.truncate(path, keep(path.stat().st_size))

    return make


def _flipped(place: bytes | int, libver: str = "latest", **options: Any) -> Callable[[Path], None]:
    """Flip a byte at an offset, or a few bytes after a signature."""

    def make(path: Path) -> None:
        plain(libver, chunks=(4, 4), **options)(path)
        # The last header is the column's: the first is the root group's, which opening looks at.
        flip(path, place if isinstance(place, int) else path.read_bytes().rindex(place) + len(place) + 2)

    return make


def _flipped_chunk(number: int, **options: Any) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        plain(chunks=(4, 4), data=random_rows((23, 6), "i4"), fletcher32=True, **options)(path)
        chunk = stored_chunks(path, "x")[number]
        flip(path, chunk.byte_offset + chunk.size // 2)

    return make


def _stored(data: bytes, *steps: int, type_id: Any = None) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        dataset = dataset_with(file, "x", (8, 16), plist_with((4, 16), steps), type_id)
        dataset.id.write_direct_chunk((4, 0), data)

    return fill


def _short_scaleoffset(steps: int) -> Callable[[h5py.File], None]:
    """Store a chunk of scaleoffset without its last bytes, perhaps deflated after that."""

    def fill(file: h5py.File) -> None:
        with h5py.File.in_memory() as other:
            whole = other.create_dataset("x", data=CHUNK.reshape(4, 16) * 1_000_003, chunks=(4, 16), scaleoffset=0)
            _, data = whole.id.read_direct_chunk((0, 0))
        options = {"compression": "gzip"} if steps == 2 else {}
        dataset = file.create_dataset("x", (8, 16), "i4", chunks=(4, 16), scaleoffset=0, **options)
        dataset.id.write_direct_chunk((4, 0), zlib.compress(data[:-9]) if steps == 2 else data[:-9])

    return fill


def _scaleoffset_of_nothing(path: Path) -> None:
    """Damage the parameters of the filter: libhdf5 hands out memory that nobody wrote to."""
    with h5py.File(path, "w") as file:
        data = CHUNK.reshape(4, 16).astype(">u2") * 3
        dataset = file.create_dataset("x", data=data, chunks=(4, 16), scaleoffset=0, compression="gzip")
        parameters = dataset.id.get_create_plist().get_filter(0)[2]
    at = path.read_bytes().index(struct.pack("<20I", *parameters))
    with open(path, "r+b") as stored:
        stored.seek(at + 12)
        stored.write(bytes(20))


def _swapped_chunks(path: Path) -> None:
    """Let a B-tree list the second chunk under the place of the last one."""
    plain(chunks=(4, 6), compression="gzip")(path)
    data = path.read_bytes()
    tree = data.index(b"TREE\x01") + 24
    # Each entry is a key of a size, a mask and 3 offsets, and an address.
    overwrite(path, tree + (32 + 8) + 8, (20).to_bytes(8, "little"))


def _wrong_bound(path: Path) -> None:
    """Let the last key of a B-tree end the column before its last chunk."""
    plain(chunks=(4, 6), compression="gzip")(path)
    data = path.read_bytes()
    # A node of chunks is of type 1; its keys are a size, a mask and 3 offsets, and lie between addresses.
    tree = data.index(b"TREE\x01")
    entries = int.from_bytes(data[tree + 6 : tree + 8], "little")
    overwrite(path, tree + 24 + entries * (32 + 8) + 8, bytes(8))


class _Harm:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def _pickled(path: Path) -> None:
    harm = pickle.dumps(_Harm(str(path.parent / "harm")))
    with h5py.File(path, "w") as file:
        file["x"] = CHUNK
        for each in (file, file["x"]):
            for name in ("pickle", "__reduce__", "PICKLED", "metadata"):
                each.attrs[name] = np.void(harm)


def _unharmed(folder: Path) -> None:
    assert not (folder / "harm").exists()


def _written_anew(path: Path) -> None:
    plain(chunks=(8, 6), compression="gzip")(path)


def _four_byte_strings() -> Any:
    return h5py.h5t.py_create(np.dtype("S4"))


SHORT = zlib.compress(CHUNK[:-1].tobytes())
BAD_ADLER = zlib.compress(CHUNK.tobytes())[:-1] + b"\0"
BOMB = zlib.compress(bytes(160 << 20), 1)
FLETCHER32, SHUFFLE, DEFLATE, MADE_UP = 3, 2, 1, 40_000

CUTS = {
    "to nothing": (lambda size: 0, NotHDF5Error),  # noqa: ARG005
    "to 7 bytes": (lambda size: 7, NotHDF5Error),  # noqa: ARG005
    "to 8 bytes": (lambda size: 8, TruncatedFileError),  # noqa: ARG005
    "in the superblock": (lambda size: 40, TruncatedFileError),  # noqa: ARG005
    "behind the superblock": (lambda size: 48, TruncatedFileError),  # noqa: ARG005
    "in a header": (lambda size: 120, TruncatedFileError),  # noqa: ARG005
    "by half": (lambda size: size // 2, TruncatedFileError),
    "by a byte": (lambda size: size - 1, TruncatedFileError),
}
BAD_CHUNKS = {
    "short stream": _stored(SHORT, DEFLATE),
    "short stream, read by h5py": _stored(SHORT, DEFLATE, type_id=_four_byte_strings()),
    "empty stream": _stored(zlib.compress(b""), DEFLATE),
    "bad Adler sum": _stored(BAD_ADLER, DEFLATE),
    "short under shuffle": _stored(CHUNK[:-1].tobytes(), SHUFFLE),
    "short under shuffle, read by h5py": _stored(CHUNK[:-1].tobytes(), SHUFFLE, type_id=_four_byte_strings()),
    "tiny under fletcher32": _stored(b"abc", FLETCHER32),
    "tiny under fletcher32, read by h5py": _stored(b"abc", FLETCHER32, type_id=_four_byte_strings()),
    "tiny under deflate and fletcher32": _stored(b"abc", DEFLATE, FLETCHER32),
}

USER_BLOCK = ("short stream", "empty stream", "short under shuffle", "tiny under fletcher32")

DAMAGE = (
    *(Case(f"cut {name}", _cut(keep), error, "opening") for name, (keep, error) in CUTS.items()),
    Case("flip in the signature", _flipped(2), NotHDF5Error, "opening"),
    Case("flip in a checksummed superblock", _flipped(20), CorruptFileError, "opening"),
    Case("flip in the version of the superblock", _flipped(8, "earliest"), CorruptFileError, "opening"),
    Case("flip in the header of a column", _flipped(b"OHDR"), CorruptFileError, "column"),
    Case("flip in a chunk index", _flipped(b"FADB"), CorruptFileError, "read"),
    Case("flip in a chunk", _flipped_chunk(0), CorruptChunkError),
    Case("flip in a deflated chunk", _flipped_chunk(5, compression="gzip"), CorruptChunkError),
    Case(
        "wrong bound in a B-tree of version 1",
        _wrong_bound,
        CorruptFileError,
    ),
    *(Case(name, in_file(fill), CorruptChunkError, child=True) for name, fill in BAD_CHUNKS.items()),
    *(
        Case(
            f"{name}, behind a user block", in_file(BAD_CHUNKS[name], userblock_size=512), CorruptChunkError, child=True
        )
        for name in USER_BLOCK
    ),
    *(
        Case(f"short scaleoffset, step {steps}", in_file(_short_scaleoffset(steps)), CorruptChunkError, child=True)
        for steps in (1, 2)
    ),
    Case("scaleoffset of values of no size", _scaleoffset_of_nothing, CorruptChunkError, child=True),
    Case("chunks out of order in a B-tree of version 1", _swapped_chunks, CorruptFileError),
    Case("deflate bomb", in_file(_stored(BOMB, DEFLATE)), CorruptChunkError, child=True, growth_mb=64),
    Case(
        "deflate bomb, read by h5py",
        in_file(_stored(BOMB, DEFLATE, type_id=_four_byte_strings())),
        CorruptChunkError,
        child=True,
        growth_mb=64,
    ),
    Case("missing plugin", in_file(_stored(b"abc", MADE_UP)), CodecUnavailableError, "column"),
    Case("pickle in attributes", _pickled, after=_unharmed),
    Case("killed SWMR writer", lambda path: run_python(DYING_WRITER, str(path)), WriterActiveError, "opening"),
    Case("changed after planning", plain(chunks=(4, 4)), StaleIndexError, disturb=_written_anew),
)
