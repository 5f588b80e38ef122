"""Targets of atheris: what parses bytes of files in Python: ``python -m tests.fuzz.parsers headers -max_total_time=60``

Each target takes a damaged file and may raise what its callers expect, and nothing else.
"""

import contextlib
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ray_h5.hdf5", "ray_h5.index", "ray_h5.manifest"]):
    from ray_h5.errors import RayH5Error
    from ray_h5.hdf5.files.btree_prefetch import Hints
    from ray_h5.hdf5.format.heap import DamagedHeapError, Heap
    from ray_h5.hdf5.format.object_headers import FormatError
    from ray_h5.hdf5.tree.known_headers import KnownHeaders, PlainBytes
    from ray_h5.index.stored import index_files
    from ray_h5.index.stored.facts_as_bytes import FOREIGN
    from ray_h5.index.stored.facts_store import IndexFile

import h5py
import numpy as np
import pyarrow as pa

from ray_h5 import build_index


def reader_of(data):
    return lambda at, count: data[at : at + count]


def headers(data):
    """Superblock, groups and object headers."""
    try:
        found = KnownHeaders("a.h5", "/", PlainBytes(reader_of(data), len(data)))
        found.describe()
        for name in ("x", "g/y", "text"):
            found.column(name)
    except (FormatError, RayH5Error):
        pass


def heaps(data):
    """A collection of the global heap, wherever it is."""
    at = max(0, data.find(b"GCOL"))
    with contextlib.suppress(DamagedHeapError):
        Heap(reader_of(data), len(data), 8).values([(1, at, 1)] if at else [], 1)


def hints(data):
    """Nodes of files in stores, which lead to others."""
    found, todo = Hints(len(data)), [(0, 4096)]
    for at, count in todo[:64]:
        todo += found.after(at, memoryview(data[at : at + count]))


def index(data):
    """The body of an index file."""
    with contextlib.suppress(pa.ArrowException, *FOREIGN):
        found = IndexFile.of_body("a", None, data)
        for key in found.keys:
            found.get(key)


TARGETS = {each.__name__: each for each in (headers, heaps, hints, index)}


def seeds(folder):
    """Write small files; return their bytes, and the body of an index file of one."""
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(20.0).reshape(5, 4)
        file["g/y"] = np.arange(5)
        file.create_dataset("z", data=np.arange(5), chunks=(2,), compression="gzip")
        file.create_dataset("text", data=["a", "b", "c", "d", "e"], dtype=h5py.string_dtype())
    with h5py.File(folder / "b.h5", "w", libver="latest") as file:
        file.create_dataset("z", data=np.arange(50), chunks=(2,), maxshape=(None,))
    build_index(str(path), index_dir=folder / "index")
    (where,) = (folder / "index").iterdir()
    body = index_files.read_body(str(where), str(folder / "index"))
    return [path.read_bytes(), (folder / "b.h5").read_bytes()], body


def main(arguments):
    target, *rest = arguments[1:]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files, body = seeds(Path(folder))
        corpus = Path(folder) / "seeds"
        corpus.mkdir()
        for number, each in enumerate([body] if target == "index" else files):
            (corpus / str(number)).write_bytes(each)
        atheris.Setup([arguments[0], *rest, str(corpus)], TARGETS[target])
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
