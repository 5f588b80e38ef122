"""The compiled loop: found beside this module, loaded once, and given the decoders that imagecodecs brings.

`loop.c` is compiled when a wheel is built, or by ``pip install`` from a clone; see
`ray_h5.read.native.build`. Without it, `ray_h5.read.native.steps_in_python` does the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray_h5.codecs.filter_ids import BITSHUFFLE, BLOSC, DEFLATE, FLETCHER32, LZ4, LZF, SHUFFLE, ZSTD
from ray_h5.errors import OutOfMemoryError
from ray_h5.per_process import PerProcess, cached_property
from ray_h5.read.native.build import compiled_path, is_left_out, why_missing

logger = logging.getLogger(__name__)

_LIBRARIES = {
    "libdeflate": ("libdeflate_alloc_decompressor", "libdeflate_zlib_decompress", "libdeflate_free_decompressor"),
    "libzstd": ("ZSTD_createDCtx", "ZSTD_decompressDCtx", "ZSTD_freeDCtx"),
    "liblz4": ("LZ4_decompress_safe",),
    "libblosc": ("blosc_decompress_ctx",),
    "_bitshuffle": ("bshuf_bitunshuffle",),
}
"""The libraries whose functions the loop calls, in the order of the struct `codecs` in loop.c."""

_IDLE_NS = 20_000_000
"""Many times what it takes to plan a call."""


class Loop:
    """The loaded library.

    Attributes
    ----------
    library : ctypes.CDLL
        Has ``ray_h5_run``; see loop.c.
    codecs : ctypes.Array
        The addresses of the functions that it calls.
    decodes : frozenset of int
        The HDF5 filter ids that it decodes.
    of_thread : PerProcess
        Its value has what the calling thread has of the loop; see `_OfThread`.
    """

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        void, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "context": (void, [void]),
            "free": (None, [void]),
            "run": (number, [void, void, number, void, number, void, void, void, *[number] * 3, void, void, void]),
            "decode": (flag, [void, void, number, void, number, void, number]),
            "dense": (number, [number, number, void, void, number, void, flag, void, number, number, void, flag]),
            "pool": (void, [void, number, number]),
            "free_pool": (None, [void]),
            "end_pool": (None, [void]),
            "use_pool": (None, [void, void, number]),
            "help": (None, [void, number]),
            "plan_rows": (flag, [void, number, void, number, number, *[void] * 5, number, void]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.library, f"ray_h5_{name}")
            function.restype, function.argtypes = result, arguments
        codecs = {name: _functions(name) for name in _LIBRARIES}
        addresses = [address for name, names in _LIBRARIES.items() for address in codecs[name] or [0] * len(names)]
        self.codecs = (void * len(addresses))(*addresses)
        filters = zip((DEFLATE, ZSTD, LZ4, BLOSC, BITSHUFFLE), codecs.values(), strict=True)
        self.decodes = frozenset({SHUFFLE, FLETCHER32, LZF, *(number for number, functions in filters if functions)})
        self.of_thread = PerProcess(functools.partial(_OfThread, self))

    def help(self, idle_ns: int) -> None:
        """Run jobs of other threads in the pool of this thread until there are none for so long, or it ends."""
        self.library.ray_h5_help(self.of_thread.value.address, idle_ns)


class _OfThread(threading.local):
    """What a thread has of the loop: the pool in which it runs jobs, and a context, from when it first runs some."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.pool: Pool | None = None

    @cached_property
    def address(self) -> int:
        """The address of its context, which has buffers and decoders."""
        library = self._loop.library
        self._context = _Owned(library.ray_h5_context(self._loop.codecs), library.ray_h5_free)  # freed with the thread
        return self._context.address


class _Owned:
    """An object of the loop that is freed with this one.

    Raises
    ------
    OutOfMemoryError
        If there was no memory for the object.
    """

    def __init__(self, address: int | None, free: Callable[[int], None]) -> None:
        if not address:
            raise OutOfMemoryError("there is no memory for a thread that decodes chunks. Read with fewer threads=.")
        self.address, self._free = address, free

    def __del__(self) -> None:
        if address := self.__dict__.pop("address", None):
            self._free(address)


class Pool(_Owned):
    """Threads that run the compiled loop together: all of them jobs of one table, then of the next.

    Those that plan tables wait for their turn in the loop, without Python's lock: one that is ready begins at once
    where another one ends. Helpers never need that lock.

    Parameters
    ----------
    loop : Loop
        The loop.
    threads : int
        How many run jobs at one time.
    helpers : int
        Threads that run jobs and nothing else.
    """

    def __init__(self, loop: Loop, threads: int, helpers: int) -> None:
        super().__init__(loop.library.ray_h5_pool(loop.codecs, threads, helpers), loop.library.ray_h5_free_pool)
        self._loop = loop

    def enter(self, number: int = 0) -> None:
        """Let the calling thread run jobs in this pool from now on; those of tables with a lower number come first."""
        mine = self._loop.of_thread.value
        mine.pool = self
        self._loop.library.ray_h5_use_pool(mine.address, self.address, number)

    def help(self) -> None:
        """Run jobs of other threads in this thread, which has entered, until there are none for a while, or `end`."""
        self._loop.help(_IDLE_NS)

    def end(self) -> None:
        """Let nobody help any more."""
        self._loop.library.ray_h5_end_pool(self.address)


def pool_of(threads: int, helpers: int) -> Pool | None:
    """Return a pool; None without the compiled loop."""
    loop = compiled_loop()
    return None if loop is None else Pool(loop, threads, helpers)


@contextlib.contextmanager
def threads_of_loop(threads: int) -> Iterator[None]:
    """Let several threads run the jobs of the calling thread, if the loop is compiled, and it is in no pool."""
    loop = compiled_loop()
    if loop is None or loop.of_thread.value.pool is not None:
        yield
        return
    Pool(loop, threads, threads - 1).enter()
    try:
        yield
    finally:
        mine = loop.of_thread.value
        loop.library.ray_h5_use_pool(mine.address, None, 0)
        mine.pool = None


@functools.cache
def compiled_loop() -> Loop | None:
    """Return the compiled loop; None if it is missing, which a process says once, or is switched off."""
    reason = why_missing()
    if reason is None:
        return Loop(compiled_path())
    level = logging.DEBUG if is_left_out() else logging.WARNING
    logger.log(level, "rows are decoded in Python, which is several times slower, without the loop in C: %s", reason)
    return None


def _functions(name: str) -> list[int] | None:
    """Return the addresses of the functions of one library that imagecodecs brings; None if it is not found."""
    for needed in _brought("libsnappy") if name == "libblosc" else ():
        ctypes.CDLL(str(needed), ctypes.RTLD_GLOBAL)
    for path in _brought(name):
        try:
            library = ctypes.CDLL(str(path))
            return [
                ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0 for function in _LIBRARIES[name]
            ]
        except (OSError, AttributeError) as exc:
            logger.debug("%s is not used: %s", path, exc)
    return None


def _brought(name: str) -> Iterator[Path]:
    """Yield the libraries of that name that lie in or beside imagecodecs, where its wheels have them."""
    import imagecodecs

    home = Path(imagecodecs.__file__).parent
    for folder in (home.with_name("imagecodecs.libs"), home / ".dylibs", home):
        yield from sorted(path for path in folder.glob(f"{name}*") if path.name[len(name)] in "-.")
