"""Read a file in a child process that may crash, hang or run out of memory."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import pickle
import resource
import select
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  children find its filters registered
import numpy as np

from ray_h5 import RowReader
from ray_h5.codecs.filter_ids import BITSHUFFLE
from ray_h5.errors import RayH5Error

MEMORY_BYTES = 4 << 30
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    Attributes
    ----------
    values : mapping of str to str, optional
        For each column the digest of its values, or the error, which begins with "!".
    failure : str
        What ended the child before it could report: a signal, or the time limit.
    trace : str
        Where it was then.
    """

    values: dict[str, str] | None
    failure: str = ""
    trace: str = ""


def in_child(read: Callable[[], dict[str, str]], timeout_s: float) -> Outcome:
    """Do `read` in a fork of this process, whose imports are all done."""
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as trace, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            _child(read, send, trace.fileno(), timeout_s)
        os.close(send)
        sent, late = _received(receive, timeout_s + 2)
        if late:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if sent and not status and not late:
            return Outcome(pickle.loads(sent))
        trace.seek(0)
        shown = trace.read().decode(errors="replace")
    if late or "Timeout" in shown:
        return Outcome(None, "hang", shown)
    ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {status}"
    return Outcome(None, ended, shown)


def _child(read: Callable[[], dict[str, str]], send: int, trace: int, timeout_s: float) -> None:
    gc.disable()
    # Beyond what this process has mapped: after a whole suite that may be gigabytes, and a thread that has no room for
    # its stack never says that it started.
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(trace, all_threads=False)
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=trace)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # plugins print what they find
    os.dup2(null, 2)
    os.write(send, pickle.dumps(read()))
    os._exit(0)


def _received(pipe: int, timeout_s: float) -> tuple[bytes, bool]:
    parts, end = [], time.monotonic() + timeout_s
    with os.fdopen(pipe, "rb", buffering=0) as source:
        while True:
            if not select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
                return b"", True
            part = source.read(1 << 16)
            if not part:
                return b"".join(parts), False
            parts.append(part)


def wanted_rows(count: int, row_bytes: int) -> Any:
    """Return the rows to read: all, or the ends of what is too long to read whole."""
    return slice(None) if count * row_bytes <= MOST_BYTES else [count - 1, 0]


def by_ours(path: str) -> dict[str, str]:
    """Read all columns with RowReader."""
    found: dict[str, str] = {}
    with _caught(found, "", RayH5Error):
        reader = RowReader(path)
        layout = reader.layout
        found.update({name: f"!{_said(error)}" for name, error in layout.refused.items()})
        for name, column in layout.columns.items():
            if column.row_bytes > MOST_BYTES:
                found[name] = "!large rows"
                continue
            with _caught(found, name, RayH5Error):
                found[name] = digest(reader.read([name], wanted_rows(column.num_rows, column.row_bytes))[name])
    return found


def by_h5py(path: str, names: list[str]) -> dict[str, str]:
    """Read columns with h5py, and list the others."""
    found: dict[str, str] = {}
    with _caught(found, "", Exception), h5py.File(path, "r") as file:
        for name in names:
            with _caught(found, name, Exception):
                dataset = file[name]
                row_bytes = int(np.prod(dataset.shape[1:], dtype=object)) * dataset.dtype.itemsize
                rows = wanted_rows(len(dataset), row_bytes)
                values = dataset[rows] if isinstance(rows, slice) else np.stack([dataset[row] for row in rows])
                found[name] = digest(values)
        others: list[str] = []
        file.visititems(lambda name, each: others.append(name) if isinstance(each, h5py.Dataset) else None)
        found.update({name: "!not asked for" for name in others if isinstance(name, str) and name not in found})
    return found


def by_listed_chunks(path: str, names: list[str]) -> dict[str, str]:
    """Read columns with h5py from the chunks that libhdf5 lists, put into a file where it finds them."""
    found: dict[str, str] = {}
    with open(path, "rb") as stored, h5py.File(path, "r") as file, h5py.File.in_memory() as copies:
        for number, name in enumerate(names):
            with _caught(found, name, Exception):
                damaged = file[name].id
                made = (damaged.get_type(), damaged.get_space(), _as_given(damaged.get_create_plist()))
                copy = h5py.Dataset(h5py.h5d.create(copies.id, b"%d" % number, *made))
                chunks: list[h5py.h5d.StoreInfo] = []
                damaged.chunk_iter(chunks.append)
                for chunk in chunks:
                    data = os.pread(stored.fileno(), chunk.size, chunk.byte_offset)
                    copy.id.write_direct_chunk(chunk.chunk_offset, data, chunk.filter_mask)
                found[name] = digest(copy[:])
    return found


def _as_given(plist: h5py.h5p.PropDCID) -> h5py.h5p.PropDCID:
    # Bitshuffle puts three numbers in front of the parameters that it is given, each time it is given some.
    if [plist.get_filter(i)[0] for i in range(plist.get_nfilters())] == [BITSHUFFLE]:
        _, flags, parameters, _ = plist.get_filter(0)
        plist.remove_filter(BITSHUFFLE)
        plist.set_filter(BITSHUFFLE, flags, parameters[3:])
    return plist


@contextlib.contextmanager
def _caught(found: dict[str, str], name: str, expected: type[Exception]) -> Iterator[None]:
    try:
        yield
    except expected as exc:
        found[name] = f"!{_said(exc)}"
    except Exception as exc:  # noqa: BLE001  it is what is looked for
        found[name] = f"!unexpected {_said(exc)} at {_place(exc)}"


def _said(exc: Exception) -> str:
    return f"{type(exc).__name__}: {str(exc)[:300]}"


def _place(exc: Exception) -> str:
    trace, place = exc.__traceback__, ""
    while trace is not None:
        place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def digest(values: np.ndarray) -> str:
    """Return what is the same for the same values only."""
    if values.dtype.hasobject:
        held = repr([value.tolist() if isinstance(value, np.ndarray) else value for value in values.flat]).encode()
    else:
        held = values.astype(values.dtype.newbyteorder("=")).tobytes()
    kind = "object" if values.dtype.hasobject else values.dtype.newbyteorder("=").str
    return f"{kind} {values.shape} {hashlib.sha1(held).hexdigest()}"
