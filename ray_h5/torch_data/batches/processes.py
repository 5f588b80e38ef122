"""Batches that worker processes of a loader read and make: the same batches, errors and positions as in its threads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import pickle
import select
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data._utils.signal_handling import _set_worker_signal_handlers

from ray_h5.errors import RayH5Error
from ray_h5.loading.prefetch_threads import ReadTimeoutError
from ray_h5.loading.read_calls import Call, Task
from ray_h5.system import move_to_cpu
from ray_h5.torch_data.batches.channel import MOST_WAITING, Received, Receiver, Sender
from ray_h5.torch_data.batches.samples import seed_generators

logger = logging.getLogger(__name__)

NOTHING = object()
"""Stands for a batch without rows."""

_BATCHES, _WAITING_BYTES = 2, 256 << 20
"""Batches that each worker makes ahead; one where all of them together would have more bytes than this."""

_MOST_LEFT = 8
"""Epochs that were left whose batches may be on their way; an epoch begins at once if there are no more."""

_WAIT_S, _LOOK_S = 5.0, 5.0
"""How long a busy worker may take to end, and how often one looks whether its parent is there: as in torch."""

_SENDABLE = "return tensors, arrays and text from transforms and collate_fn"


class WorkerError(RayH5Error, RuntimeError):
    """A worker process of a loader ended while it made batches; a RuntimeError, as a `DataLoader` raises it."""


class Workers:
    """The processes that make the batches of a loader. They stay from epoch to epoch, until the loader is gone.

    An iteration that begins while another one is running has processes of its own.
    """

    def __init__(self) -> None:
        # By process: a fork inherits those of its parent, and must neither use nor end them.
        self._idle: dict[int, tuple[list[Any], _Crew]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Workers, ()

    def batches(
        self, loader: Any, batch_rows: int, tasks: Iterator[Task], what: Callable[[], str]
    ) -> Iterator[tuple[Task, Any]]:
        """Yield each task of an `H5DataLoader`, and the batch that `collate_fn` made; NOTHING without rows.

        Raises
        ------
        ReadTimeoutError
            If a batch takes longer than the `timeout` of the loader, if that is not 0.
        WorkerError
            If a worker ends.
        """
        dataset, workers = loader.dataset, loader.workers
        made_of = [dataset, getattr(dataset, "transform", None), loader.collate_fn, workers]
        known, crew = self._idle.pop(os.getpid(), ([], None))
        if crew is None or not crew.is_running or any(a is not b for a, b in zip(known, made_of, strict=True)):
            crew = _Crew(dataset, loader.collate_fn, workers, start_method(from_store=bool(dataset.call_bytes)))
        few = _BATCHES if _BATCHES * workers * batch_rows * dataset.row_bytes <= _WAITING_BYTES else 1
        ahead = min(loader.prefetch_factor or few, MOST_WAITING)
        try:
            yield from crew.batches(tasks, ahead, loader.timeout, what)
        finally:
            if crew.leave():
                self._idle[os.getpid()] = made_of, crew


class _Crew:
    """Worker processes, each with a channel. They end with this object, in the process that started them."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], count: int, method: str | None) -> None:
        self._process, self._workers = os.getpid(), list[_Worker]()
        self._end = weakref.finalize(self, _end, self._process, self._workers)
        context: Any = multiprocessing.get_context(method)
        for number in range(count):
            others = [worker.connection for worker in self._workers]
            self._workers.append(_Worker(context, others, (dataset, collate, number, count)))

    @property
    def is_running(self) -> bool:
        """Whether all processes are there."""
        return all(worker.process.is_alive() for worker in self._workers)

    def batches(
        self, tasks: Iterator[Task], ahead: int, timeout: float, what: Callable[[], str]
    ) -> Iterator[tuple[Task, Any]]:
        """Yield each task with its batch, in order. Each worker has at most `ahead` tasks."""
        waiting: deque[tuple[Task, _Worker]] = deque()
        turns = itertools.cycle(self._workers)

        def give(most: int) -> None:
            for task in itertools.islice(tasks, most):
                waiting.append((task, next(turns)))
                waiting[-1][1].give(task)

        try:
            for worker in self._workers:
                worker.forget(timeout)
            give(ahead * len(self._workers))
            while waiting:
                if os.getpid() != self._process:
                    raise WorkerError("a fork cannot go on with an iteration that its parent began; begin another one")
                task, worker = waiting[0]
                made = _value(worker.receive(timeout))
                waiting.popleft()
                if isinstance(made, Exception):
                    raise made
                # The next task is sent before this batch is used: its worker is busy meanwhile.
                give(1)
                yield task, made[0] if made else NOTHING
                del made  # so that its memory may be free while the next batch is waited for
        except _LateError:
            # A worker that hangs would keep the next epoch waiting, too.
            self._end.detach()
            _end(self._process, self._workers, wait_s=0)
            raise ReadTimeoutError(
                f"no batch was made in {timeout} seconds (timeout={timeout}), of {what()}: see whether their disk "
                "or mount answers, or give it more time"
            ) from None
        except _EndedError as exc:
            self._end()
            raise WorkerError(
                f"{exc}: a worker process of the loader ended while it made batches of {what()}. The operating system "
                "ends processes when memory is short: take fewer workers=, or smaller batches"
            ) from None

    def leave(self) -> bool:
        """Throw away what was not delivered of an epoch; return whether another one may begin."""
        if os.getpid() != self._process or not self._end.alive:
            return False
        try:
            for worker in self._workers:
                worker.leave()
        except _EndedError:
            self._end()
        return self._end.alive


def _polling(*descriptors: int) -> Callable[[float | None], list[int]]:
    """Return a function that waits some seconds, or without end, for any of some descriptors; it returns those ready.

    As `multiprocessing.connection.wait`, which makes a selector each time: in a tenth of its time.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)

    def ready(timeout: float | None) -> list[int]:
        return [descriptor for descriptor, _ in poll.poll(None if timeout is None else math.ceil(1000 * timeout))]

    return ready


class _EndedError(Exception):
    """A worker has ended."""


class _LateError(Exception):
    """A worker sent nothing in time."""


class _Worker:
    """One worker process, as the process sees it that started it.

    `_waited` tasks of the running epoch were sent and are not done. When an epoch is left, the worker is asked to throw
    its tasks away, and answers. What arrives before the answers that are `_left` belongs to such epochs.
    """

    def __init__(self, context: Any, others: list[Connection], made_of: tuple[Any, ...]) -> None:
        self.connection, theirs = context.Pipe()
        # A fork inherits the ends of this side, and would keep the pipes open.
        inherited = [*others, self.connection] if context.get_start_method() == "fork" else []
        self._receiver = Receiver(self.connection)
        self._waited = self._left = 0
        with theirs:
            self.process = context.Process(target=_work, args=(theirs, inherited, made_of), daemon=True)
            self.process.start()
        self._poll = _polling(self.connection.fileno(), self.process.sentinel)

    def give(self, task: Task) -> None:
        """Send a task."""
        self._waited += 1
        self._send((task.indices, task.drawn_by))

    def leave(self) -> None:
        """Throw away the tasks that were sent."""
        if self._waited:
            self._waited, self._left = 0, self._left + 1
            self._send(None)

    def forget(self, timeout: float) -> None:
        """Throw away what has arrived of epochs that were left, so that pipe and memory do not fill up."""
        while self._left and (self._left > _MOST_LEFT or self._poll(0)):
            self._take(timeout)

    def receive(self, timeout: float) -> Received:
        """Return the next batch."""
        while True:
            received = self._take(timeout)
            if received is not None and not self._left:
                self._waited -= 1
                return received

    def _send(self, message: Any) -> None:
        try:
            self.connection.send_bytes(pickle.dumps(message))
        except OSError as exc:
            raise self._ended() from exc

    def _take(self, timeout: float) -> Received | None:
        """Return what arrives next: a batch, or None for the end of an epoch that was left."""
        ready = self._poll(timeout or None)
        if not ready:
            raise _LateError
        # Of a worker that has ended, what it sent before arrives first.
        if self.connection.fileno() not in ready:
            raise self._ended()
        try:
            received = self._receiver.receive()
        except (EOFError, ConnectionError) as exc:
            raise self._ended() from exc
        self._left -= received is None
        return received

    def _ended(self) -> _EndedError:
        self.process.join(_WAIT_S)
        code = self.process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {signal.Signals(-code).name}"
        return _EndedError(f"process {self.process.pid}, {how}")


def _value(received: Received) -> Any:
    """Return a batch in a list, an empty list, or an error."""
    try:
        return received.value()
    except Exception as exc:
        raise WorkerError(
            f"a batch of a worker process of the loader cannot be made again: {type(exc).__name__}: {exc}; {_SENDABLE}"
        ) from exc


def _end(process: int, workers: list[_Worker], wait_s: float = _WAIT_S) -> None:
    """End worker processes, in the process that started them; those that are busy have some seconds to end."""
    if os.getpid() != process:
        return
    for worker in workers:
        worker.connection.close()
    until = time.monotonic() + wait_s
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        for end in (worker.process.terminate, worker.process.kill):
            if worker.process.is_alive():
                end()
                worker.process.join(_WAIT_S)


def _work(connection: Connection, inherited: list[Connection], made_of: tuple[Any, ...]) -> None:
    """Make batches in a worker process, until the other end of its pipe is closed."""
    dataset, collate, number, count = made_of
    for end in inherited:
        end.close()
    _set_worker_signal_handlers()
    torch.set_num_threads(1)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=number, dataset=dataset)
    default_collate_fn_map[torch.Tensor] = _collate_tensors
    sender = Sender(connection)
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):  # the parent has ended, or says why
        for task in _tasks(connection, sender, number):
            _send_made(sender, dataset, collate, task)


def _tasks(connection: Connection, sender: Sender, number: int) -> Iterator[Task]:
    """Yield the tasks of a worker in order, until its parent has ended.

    All that was sent is read before a batch is made: the other side never waits long to send, and tasks of an epoch
    that was left are thrown away before they cost anything.
    """
    tasks, parent, ready = deque[Task](), os.getppid(), _polling(connection.fileno())
    while True:
        while not tasks or ready(0):
            if not ready(0):
                while not ready(_LOOK_S):  # the pipe stays open if another process has inherited it
                    if os.getppid() != parent:
                        return
                # The kernel wakes a process that reads from a pipe on the CPU of the one that writes. Where all CPUs
                # are busy, all workers and the process that trains stay on one: an epoch takes 3 times as long
                # (measured).
                move_to_cpu(number)
            message = pickle.loads(connection.recv_bytes())  # noqa: S301  of the process that started this one
            if message is None:
                tasks.clear()
                sender.send_end()
            else:
                tasks.append(Task(*message))
        yield tasks.popleft()


def _send_made(sender: Sender, dataset: Any, collate: Callable[[Any], Any], task: Task) -> None:
    """Send the batch of a task in a list, an empty list if it has no rows, or the error that it raised."""
    try:
        made = _made(dataset, collate, task)
    except Exception as exc:  # noqa: BLE001  raised again where batches are asked for
        sender.send(_as_sent(exc))
        return
    try:
        sender.send(made)
    except ConnectionError:
        raise
    except Exception as exc:  # noqa: BLE001  whatever the classes in a batch do
        text = f"a batch cannot be sent from a worker process of the loader: {type(exc).__name__}: {exc}"
        is_memory = isinstance(exc, (OSError, MemoryError))
        advice = "no memory is left for it: take fewer workers=, or smaller batches" if is_memory else _SENDABLE
        sender.send(_as_sent(WorkerError(f"{text}; {advice}")))


def _made(dataset: Any, collate: Callable[[Any], Any], task: Task) -> list[Any]:
    seed_generators(task.seed)
    if dataset.has_own_samples:
        return [collate(dataset.__getitems__(list(task.indices)))]
    batcher, samples = dataset._makers()
    (arrays,) = batcher.read(Call([task]))
    return [collate(samples(arrays))] if len(arrays.indices) or not len(task) else []


def _as_sent(error: Exception) -> Any:
    """Return an error as another process raises it, with its traceback as text."""
    sent = ExceptionWithTraceback(error, error.__traceback__)
    with contextlib.suppress(Exception):
        if type(pickle.loads(ForkingPickler.dumps(sent))) is type(error):  # noqa: S301  our own bytes
            return sent
    logger.debug("an error that cannot be pickled", exc_info=error)
    text = f"a worker process of the loader raised {type(error).__qualname__}: {error}"
    return ExceptionWithTraceback(WorkerError(text), error.__traceback__)


def _collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate tensors as in the process that trains: not in shared memory of torch, which a channel does not need."""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    finally:
        torch_worker._worker_info = info


def start_method(*, from_store: bool) -> str | None:
    """Return how workers are started; None for the default.

    A process that is forked after its parent used the library for stores would wait for ever.
    """
    return "forkserver" if from_store and multiprocessing.get_start_method() == "fork" else None
