"""What the tests of this folder share: files to read, and ways to damage them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Chunks = list[h5py.h5d.StoreInfo]


def by_h5py(path: Path | str, name: str, rows: Any = ()) -> np.ndarray:
    """Return what h5py delivers, in native byte order."""
    with h5py.File(path, "r") as file:
        values = file[name][()][rows]
    return values if values.dtype.hasobject else values.astype(values.dtype.newbyteorder("="))


def concatenated(paths: list[str], name: str) -> np.ndarray:
    """Return what h5py delivers of several files, one after the other; texts as strings."""
    parts = []
    for path in paths:
        with h5py.File(path) as file:
            parts.append(file[name].asstr()[:] if file[name].dtype == object else file[name][:])
    return np.concatenate(parts)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Assert that two arrays are the same to the last bit, NaN payloads included."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.hasobject:
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


def random_rows(shape: tuple[int, ...], dtype: Any = "f4", seed: int = 0) -> np.ndarray:
    """Return an array of random bytes, which no compressor makes smaller."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


def layout_of(source: Path | str, name: str, shape: tuple[int, ...] = (5,), dtype: Any = "i8") -> h5py.VirtualLayout:
    """Return what a virtual dataset is that has the values of one column of a file."""
    layout = h5py.VirtualLayout(shape, dtype)
    layout[:] = h5py.VirtualSource(source, name, shape=shape)
    return layout


def numbered_column(file: h5py.File, name: str, source: str, rows: int, type_id: Any = h5py.h5t.STD_I64LE) -> None:
    """Make a virtual column over the column x, of so many rows, of each of the numbered files."""
    space = h5py.h5s.create_simple((rows,), (h5py.h5s.UNLIMITED,))
    space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (rows,), (rows,))
    plist = plist_with()
    plist.set_virtual(space, source.encode(), b"x", h5py.h5s.create_simple((rows,)))
    h5py.h5d.create(file.id, name.encode(), type_id, space, plist)


def stored_chunks(path: Path | str, name: str) -> Chunks:
    """List the chunks of a column as libhdf5 knows them."""
    with h5py.File(path, "r") as file:
        found: Chunks = []
        file[name].id.chunk_iter(found.append)
    return found


def overwrite(path: Path | str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path | str, offset: int, count: int = 1) -> None:
    """Turn all bits of `count` bytes over."""
    with open(path, "r+b") as file:
        file.seek(offset)
        data = bytes(byte ^ 0xFF for byte in file.read(count))
        file.seek(offset)
        file.write(data)


def replace_once(path: Path | str, old: bytes, new: bytes) -> None:
    """Change the only place in the file where `old` is written."""
    data = Path(path).read_bytes()
    assert data.count(old) == 1
    overwrite(path, data.index(old), new)


def dataset_with(file: h5py.File, name: str, shape: tuple[int, ...], plist: Any, type_id: Any = None) -> h5py.Dataset:
    """Create a dataset by a creation property list of one's own."""
    type_id = h5py.h5t.STD_I32LE if type_id is None else type_id
    space = h5py.h5s.create_simple(shape)
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), type_id, space, plist))


def plist_with(chunk: tuple[int, ...] | None = None, steps: tuple[int, ...] = ()) -> Any:
    """Return a dataset creation property list with filters by their ids, in that order."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk is not None:
        plist.set_chunk(chunk)
    for step in steps:
        if step == 1:
            plist.set_deflate(4)
        elif step == 2:
            plist.set_shuffle()
        elif step == 3:
            plist.set_fletcher32()
        else:
            plist.set_filter(step, h5py.h5z.FLAG_OPTIONAL, ())
    return plist


def libhdf5() -> ctypes.CDLL | None:
    """Return the libhdf5 that h5py has loaded, for what h5py does not offer."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[-1] for line in lines if os.path.basename(line.split()[-1]).startswith("libhdf5")]
    # PyTables and netCDF4 bring a libhdf5 of their own.
    found = sorted((path for path in found if "_hl" not in path), key=lambda path: "h5py" not in path)
    return ctypes.CDLL(found[0]) if found else None


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_fork(action: Callable[[], Any], timeout_s: int = 20) -> Any:
    """Do `action` in a forked child and return what it returned, or raise what it raised."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        # Later Pythons warn of forks while threads run; here the child does nothing that could wait for one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(timeout_s)
        try:
            answer = action()
        except BaseException as exc:  # noqa: BLE001  it is raised again in the parent
            answer = exc
        os.write(send, pickle.dumps(answer))
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        sent = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    answer = pickle.loads(sent)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter; for what may crash one."""
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def program(code: str, *args: str) -> Iterator[None]:
    """Run a program in another interpreter up to its end, and keep it waiting there meanwhile."""
    code += "\nprint('ready', flush=True)\ninput()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.communicate("\n", timeout=60)


def texts_of_pandas_3(path, *names):
    """Store texts as AnnData does with pandas 3: values, and which of them are missing."""
    with h5py.File(path, "a") as file:
        for name in names:
            if isinstance(file[name], h5py.Group):
                continue
            values = file[name][()]
            del file[name]
            group = file.create_group(name)
            group.attrs.update({"encoding-type": "nullable-string-array", "encoding-version": "0.1.0"})
            group["values"], group["mask"] = values, np.zeros(len(values), bool)
