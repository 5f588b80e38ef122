"""Batches that worker processes of a loader read and make: the same batches, errors and positions as in its threads."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ray_h5.errors import RayH5Error
from ray_h5.loading.prefetch_threads import ReadTimeoutError
from ray_h5.loading.read_calls import Call, Task

logger = logging.getLogger(__name__)

NOTHING = object()
"""Stands for a batch without rows."""

_BATCHES, _WAITING_BYTES = 2, 256 << 20
"""Batches that each worker makes ahead; one where all of them together would have more bytes than this."""


class WorkerError(RayH5Error, RuntimeError):
    """A worker process of a loader ended while it made batches; a RuntimeError, as a `DataLoader` raises it."""


class _Maker(Dataset[bytes]):
    """Makes batches in a worker. A `DataLoader` takes it for its dataset, of which each batch is a sample."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, task: Task) -> bytes:
        """Return the batch of a task in a list, or an empty list if it has no rows; pickled."""
        seed_generators(task.seed)
        dataset, made = self.dataset, []
        # Pickled here: torch waits for ever for what its own thread cannot pickle.
        try:
            if dataset.has_own_samples:
                made = [self.collate(dataset.__getitems__(task.indices))]
            else:
                (arrays,) = dataset._read_call(Call([task]))
                made = [self.collate(dataset.samples(arrays))] if has_rows(arrays) else []
        except Exception as exc:  # noqa: BLE001  raised again where batches are asked for
            return _of_error(exc)
        try:
            return bytes(ForkingPickler.dumps(made))
        except Exception as exc:  # noqa: BLE001  whatever the classes in a batch do
            text = f"a batch cannot be sent from a worker process of the loader: {type(exc).__name__}: {exc}"
            return _of_error(WorkerError(f"{text}; return tensors, arrays and text from transforms and collate_fn"))


def seed_generators(seed: Sequence[int]) -> None:
    """Seed the global generators of torch (on the CPU), `random` and NumPy."""
    words = np.random.SeedSequence([int(word) % (1 << 64) for word in seed]).generate_state(4)
    torch.default_generator.manual_seed(int(words[0]) << 32 | int(words[1]))
    random.seed(int(words[2]))
    np.random.seed(int(words[3]))  # noqa: NPY002  the generator that functions of users draw from


@contextlib.contextmanager
def seeded(seed: Sequence[int]) -> Iterator[None]:
    """Seed the global generators, and set them back at the end: the training loop draws from them, too."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    seed_generators(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


def _of_error(error: Exception) -> bytes:
    try:
        pickled = bytes(ForkingPickler.dumps(ExceptionWithTraceback(error, error.__traceback__)))
        if type(pickle.loads(pickled)) is type(error):  # noqa: S301  our own bytes
            return pickled
    except Exception:
        logger.debug("an error that cannot be pickled", exc_info=True)
    text = f"a worker process of the loader raised {type(error).__qualname__}: {error}"
    return bytes(ForkingPickler.dumps(ExceptionWithTraceback(WorkerError(text), error.__traceback__)))


def has_rows(arrays: Mapping[str, Any]) -> bool:
    """Return whether a batch has rows, or was asked for none."""
    return any(len(values) for values in arrays.values()) or not arrays


class Workers:
    """The processes that make the batches of a loader. They stay from epoch to epoch, until the loader is gone.

    An iteration that begins while another one is running has processes of its own.
    """

    def __init__(self) -> None:
        # By process: a fork inherits those of its parent, and must neither use nor end them.
        self._idle: dict[int, tuple[list[Any], DataLoader[bytes]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Workers, ()

    def batches(
        self, loader: Any, batch_rows: int, tasks: Iterator[Task], what: Callable[[], str]
    ) -> Iterator[tuple[Task, Any]]:
        """Yield each task of an `H5DataLoader`, and the batch that `collate_fn` made; NOTHING without rows.

        Errors of torch are those of `with_errors`.
        """
        dataset, workers = loader.dataset, loader.workers
        made_of = [dataset, getattr(dataset, "transform", None), loader.collate_fn]
        made_of += [workers, loader.prefetch_factor, loader.timeout]
        known, made_by = self._idle.pop(os.getpid(), ([], None))
        if made_by is None or any(a is not b for a, b in zip(known, made_of, strict=True)):
            few = _BATCHES if _BATCHES * workers * batch_rows * dataset.row_bytes <= _WAITING_BYTES else 1
            made_by = DataLoader(
                _Maker(dataset, loader.collate_fn),
                batch_size=None,
                sampler=_Tasks(),
                num_workers=workers,
                collate_fn=bytes,  # they are: it returns them as they are
                prefetch_factor=loader.prefetch_factor or few,
                timeout=loader.timeout,
                multiprocessing_context=start_method(from_store=bool(dataset.call_bytes)),
                persistent_workers=True,
                generator=torch.Generator(),  # that of the training loop stays as it is
            )
        waiting: deque[Task] = deque()
        made_by.sampler.tasks = (waiting.append(task) or task for task in tasks)  # type: ignore[func-returns-value]
        is_sound = False
        try:
            received = iter(made_by)
            while True:
                is_sound = False
                try:
                    message = next(received, None)
                    made = None if message is None else pickle.loads(message)  # noqa: S301  from our own worker
                except (OSError, EOFError) as exc:  # the memory of a batch that it sent has ended with it
                    raise _ended(exc, what) from exc
                is_sound = True
                if made is None:
                    return
                if isinstance(made, Exception):
                    raise made
                yield waiting.popleft(), made[0] if made else NOTHING
        finally:
            if is_sound:
                self._idle[os.getpid()] = made_of, made_by


class _Tasks:
    """The tasks of the next epoch, as a sampler."""

    tasks: Iterator[Task] = iter(())

    def __iter__(self) -> Iterator[Task]:
        return self.tasks


def with_errors(batches: Iterator[Any], timeout: float, what: Callable[[], str]) -> Iterator[Any]:
    """Yield batches that are made of what `Workers` yield.

    torch raises its error where the process is when a worker ends, so this stands around all that is done with them.

    Raises
    ------
    ReadTimeoutError
        If a batch takes longer than `timeout` seconds, if that is not 0.
    WorkerError
        If a worker ends.
    """
    try:
        yield from batches
    except RuntimeError as exc:
        if not str(exc).startswith("DataLoader "):
            raise
        if "timed out" in str(exc):
            raise ReadTimeoutError(
                f"no batch was made in {timeout} seconds (timeout={timeout}), of {what()}: see whether their disk "
                "or mount answers, or give it more time"
            ) from exc
        raise _ended(exc, what) from exc


def _ended(exc: Exception, what: Callable[[], str]) -> WorkerError:
    return WorkerError(
        f"{exc}: a worker process of the loader ended while it made batches of {what()}. The operating system "
        "ends processes when memory is short: take fewer workers=, or a larger /dev/shm"
    )


def start_method(*, from_store: bool) -> str | None:
    """Return how workers are started; None for the default.

    A process that is forked after its parent used the library for stores would wait for ever.
    """
    return "forkserver" if from_store and multiprocessing.get_start_method() == "fork" else None
