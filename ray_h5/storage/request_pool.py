"""Ranges of remote files, fetched by many requests at once.

Requests run in daemon threads of the process. The thread that wants the bytes waits on a queue, so that Ctrl-C and an
error end the wait at once: a request that hangs is left alone, and ends with the process.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ray_h5.errors import ReadFailedError
from ray_h5.per_process import PerProcess
from ray_h5.storage.byte_source import IN_FLIGHT_BYTES, ByteSource, Then

IN_FLIGHT = 64
"""Requests of a process that run at once. At 60 ms to the first byte and 80 MB/s a stream, fewer leave a fast link
idle."""

GAP_BYTES, FEW_GAP_BYTES = 256 << 10, 64 << 10
"""Bytes between two ranges that are fetched along: a request takes more CPU than these. They are fewer for few ranges:
all of these are in flight at once, and bytes count more than requests."""

LEAST_PART_BYTES, MOST_PART_BYTES = 1 << 20, 8 << 20
"""The smallest and the largest request: what is wanted is parted so that all requests are in flight at once. At 60 ms
and 80 MB/s, parts of 2 MiB filled a link that parts of 8 MiB left half idle."""

_QUICK_S = 0.01
_WAITING_THREADS = 32

_LOOK_S = 0.05
"""How often a thread that waits looks whether it is stopped."""

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Stop:
    """Ends the waits of some threads for their requests: each raises an error.

    Parameters
    ----------
    outer : Stop, optional
        What ends the waits of the thread that started these.
    """

    def __init__(self, outer: Stop | None = None) -> None:
        self.outer = outer
        self._is_set = False

    def enter(self) -> None:
        """Let this stop end the waits of the calling thread."""
        _stops.inner = self

    def set(self) -> None:
        """End the waits."""
        self._is_set = True

    def check(self) -> None:
        """Raise if this, or an outer one, is set."""
        if self._is_set:
            raise ReadFailedError("reading was stopped")
        if self.outer is not None:
            self.outer.check()


class _Stops(threading.local):
    inner: Stop | None = None


_stops = _Stops()
"""What ends the waits of the calling thread."""

_exit = PerProcess(Stop)

# When a process ends, Python waits for threads of pools; these wait for requests that may hang. The last function that
# is registered is called first, and that of concurrent.futures is registered by the import of its pool.
threading._register_atexit(  # type: ignore[attr-defined]
    lambda: _exit.value.set()  # noqa: PLW0108  a forked process has another one
)


def _wait_for(answers: SimpleQueue[Answer]) -> Answer:
    """Return the next answer; raise once a stop of this thread, or the end of the process, ends the wait."""
    while True:
        for stop in (_stops.inner, _exit.value):
            if stop is not None:
                stop.check()
        try:
            return answers.get(timeout=_LOOK_S)
        except Empty:
            pass


class _Pool:
    """Daemon threads that run functions; one more is started while all are busy, up to a number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = self._idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.put(work)
            if self._idle > 0:
                self._idle -= 1
            elif self._threads < IN_FLIGHT:
                self._threads += 1
                threading.Thread(target=self._run, name="ray_h5_fetch", daemon=True).start()

    def _run(self) -> None:
        while True:
            work = self._waiting.get()
            work()
            del work
            with self._lock:
                # If there is work, this thread or another one takes it at once. `_idle` may be too small for a moment,
                # never too large: a thread more is started, and no work waits for one that is busy.
                self._idle += self._waiting.empty()


class _Budget:
    """Bytes in flight: who would exceed them waits. One range that is larger than all of them runs alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    def take(self, nbytes: int, ended: threading.Event) -> bool:
        """Wait until so many bytes fit, and take them; return False if they are no longer wanted."""
        with self._changed:
            while nbytes and self._taken and self._taken + nbytes > IN_FLIGHT_BYTES:
                if ended.is_set():
                    return False
                self._changed.wait(1.0)
            self._taken += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        with self._changed:
            self._taken -= nbytes
            self._changed.notify_all()


@contextlib.contextmanager
def fetching_threads(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Yield threads that may wait for requests. After an error or Ctrl-C they end at once."""
    stop = Stop(_stops.inner)
    pool = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=stop.enter)
    try:
        yield pool
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def each_waiting(action: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of an action for each item: one after the other, or in threads once one turns out to wait.

    Threads cost more than an action that needs no request.
    """
    results: list[Result] = []
    for number, item in enumerate(items):
        began = time.monotonic()
        results.append(action(item))
        if len(items) - number > 2 and time.monotonic() - began > _QUICK_S:
            left = items[number + 1 :]
            with fetching_threads(min(_WAITING_THREADS, len(left)), "ray_h5_wait") as pool:
                return results + list(pool.map(action, left))
    return results


class Fetched:
    """What this process has asked for.

    Attributes
    ----------
    rounds : int
        Calls of `fetch`: the requests of one are sent together.
    requests, nbytes : int
        Requests for ranges, and their bytes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rounds = self.requests = self.nbytes = 0

    def add(self, nbytes: int, requests: int) -> None:
        """Count one round."""
        with self._lock:
            self.rounds += 1
            self.requests += requests
            self.nbytes += nbytes


fetched = PerProcess(Fetched)
_pool = PerProcess(_Pool)
_budget = PerProcess(_Budget)


def fetch(requests: Sequence[tuple[ByteSource, int, int]], then: Then) -> None:
    """Fetch ranges of files, many at once, and pass each to `then` in this thread as it arrives.

    Parameters
    ----------
    requests : sequence of (ByteSource, int, int)
        The file, the offset and the size of each.
    then : callable
        Takes the number of a request and its bytes. It must not fetch.

    Raises
    ------
    RayH5Error
        The first error of a request. Those that were not sent yet are not sent.
    """
    fetched.value.add(sum(nbytes for _, _, nbytes in requests), len(requests))
    _run([(partial(source.get, offset, nbytes), nbytes) for source, offset, nbytes in requests], then)


def call(work: Callable[[], Result]) -> Result:
    """Do something in a thread of the pool, and wait for it in a way that Ctrl-C ends."""
    results: list[Result] = []
    _run([(work, 0)], lambda _, answer: results.append(answer))
    return results[0]


def _run(works: Sequence[tuple[Callable[[], Any], int]], then: Callable[[int, Any], None]) -> None:
    """Run calls, each with the bytes that it returns, in threads of the pool; `then` takes an answer in this thread."""
    pool, budget = _pool.value, _budget.value
    answers: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    ended = threading.Event()  # nobody takes answers any more

    def run(number: int) -> None:
        work, nbytes = works[number]
        if not ended.is_set() and budget.take(nbytes, ended):
            try:
                answer = work()
            except BaseException as exc:  # noqa: BLE001  the thread that waits raises it
                answer = exc
            answers.put((number, answer))
            if ended.is_set():
                let_go()

    def let_go() -> None:
        """Let go of answers, in this thread or in the one that made the last of them."""
        with contextlib.suppress(Empty):
            while True:
                budget.give_back(works[answers.get_nowait()[0]][1])

    unsent = iter(range(len(works)))
    try:
        # Not all at once: several callers share the threads evenly.
        for number in itertools.islice(unsent, IN_FLIGHT):
            pool.submit(partial(run, number))
        for _ in works:
            number, answer = _wait_for(answers)
            try:
                if isinstance(answer, BaseException):
                    raise answer
                for following in itertools.islice(unsent, 1):
                    pool.submit(partial(run, following))
                then(number, answer)
            finally:
                budget.give_back(works[number][1])
            del answer
    finally:
        ended.set()
        let_go()
