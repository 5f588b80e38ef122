"""How facts of many files are found: in memory, in index files, or in the files; and what was looked up since."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec
from ray_h5.fork import PerProcess
from ray_h5.index.facts.answers import learn
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts, Question
from ray_h5.index.facts.source_files import Origin, SourceTable
from ray_h5.index.file_opener import Scope
from ray_h5.index.stored.memory import MEMORY
from ray_h5.storage.byte_source import FileIdentity, ObjectIdentity
from ray_h5.storage.storage_of_path import storage_of

logger = logging.getLogger(__name__)

_BATCH_FILES = 64
_TURNS = 4
"""A batch is done before the next one begins: of files that are opened side by side, it has several times so many."""

_THREADS = 8
_HEAD_BYTES = 64 << 10
_PROGRESS_S = 5.0
_WAITS_A_FILE = 0.25
"""Files in memory take next to no wait each, and others at least one."""

Spread = Callable[[Callable[[list[str]], list[FileFacts]], Sequence[list[str]]], Iterable[list[FileFacts]]]
"""Applies a function to lists of paths, several at a time, and yields the results in the order of the lists."""


def read_ahead(work: Callable[[list[str]], list[FileFacts]], batches: Sequence[list[str]]) -> Iterator[list[FileFacts]]:
    """Do the work in this process, list by list. Once it waits, threads read the beginnings of the next files.

    Files in memory need no threads, which cost more than the reading. To do the work itself in threads is two to three
    times slower (measured): they take turns with the lock of libhdf5 and with that of Python. But they can share the
    wait for a disk or a network.
    """
    waits = False
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch, following in zip_longest(batches, batches[1:], fillvalue=()):
            heads = deque(following if waits else ())
            for _ in range(min(_THREADS, len(heads))):
                pool.submit(_fetch_all, heads)
            before = _waits()
            found = work(list(batch))
            waits = waits or _waits() - before >= _WAITS_A_FILE * len(batch)  # threads make it wait, too
            yield found
            heads.clear()


def _waits() -> float:
    """Return how often this thread waited so far; more each time where the system does not say."""
    of_thread = getattr(resource, "RUSAGE_THREAD", None)
    return time.monotonic_ns() if of_thread is None else resource.getrusage(of_thread).ru_nvcsw


def _fetch_all(paths: deque[str]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            _fetch(paths.popleft())


def _fetch(path: str) -> None:
    """Bring the beginning of a file into the page cache. The work itself reports what is wrong with the file."""
    with contextlib.suppress(OSError):
        # O_NONBLOCK: if the path is a pipe, a plain open would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.read(descriptor, _HEAD_BYTES)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Lookup:
    """How facts of files are found.

    Attributes
    ----------
    scope : Scope
        How the files are opened.
    index_dir : str, optional
        The folder of index files.
    spread : callable
        Runs the work, here or in tasks.
    states : mapping of str to ObjectIdentity
        The states of remote files in the listing, by URL.
    leaves_out : bool
        Whether files that cannot be read are left out.
    """

    scope: Scope = field(default_factory=Scope)
    index_dir: str | None = None
    spread: Spread = read_ahead
    states: Mapping[str, ObjectIdentity] = field(default_factory=dict, repr=False)
    leaves_out: bool = False

    def ask(self, paths: Sequence[str], question: Question) -> list[FileFacts]:
        """Return the facts of each file. Facts that this process knows are not looked up again, only stored."""
        known: dict[str, FileFacts] = {}
        progress = _Progress(len(paths))
        joint = None
        if self.index_dir is not None:
            from ray_h5.index.stored.index_files import is_written
            from ray_h5.index.stored.joint import JointIndex

            joint = JointIndex(paths, self.scope, self.index_dir) if is_written(self.index_dir) else None
        for path in paths:
            facts = MEMORY.get(path, self.scope, self.states.get(path))
            if facts is None or not facts.answers(question):
                stored = None if joint is None else joint.get(path)
                if stored is None:
                    continue
                facts = stored if facts is None else facts.merged(stored)
                if not facts.answers(question):
                    MEMORY.put(facts, self.scope)  # for those that look up more
                    continue
            if joint is None or not joint.takes(facts):
                self._store(facts)
            known[path] = facts
            progress.add(1)
        unknown = [path for path in paths if path not in known]
        size = max(_BATCH_FILES, _TURNS * self.scope.storage.opened_at_once)
        batches = [unknown[i : i + size] for i in range(0, len(unknown), size)]
        work = partial(answer_files, question, self.scope, self.index_dir, self.states)
        if joint is not None and joint.is_of_all(unknown):
            work = partial(work, is_joint=True)
        columns: dict[tuple[tuple[str, ColumnFacts], ...], Mapping[str, ColumnFacts]] = {}
        origins: dict[Origin, Origin] = {}
        for answers in self.spread(work, batches) if len(batches) > 1 else map(work, batches):
            for facts in answers:
                # Equal facts of many files share one object, to save memory.
                shared = columns.setdefault(tuple(facts.columns.items()), facts.columns)
                sources = tuple(origins.setdefault(each, each) for each in facts.origins)
                known[facts.path] = found = replace(facts, columns=shared, origins=sources)
                MEMORY.put(found, self.scope, None if joint is not None and joint.takes(found) else self._stored(found))
            progress.add(len(answers))
        if joint is not None:
            joint.save()
        return [known[path] for path in paths]

    def _store(self, facts: FileFacts) -> None:
        """Store what this process knows of a file, unless the index file has it: it may have been found without one."""
        if self.index_dir is None:
            return
        from ray_h5.index.stored.index_files import get, is_written, put

        if is_written(self.index_dir) and not MEMORY.is_stored(facts.path, self.scope, self._stored(facts)):
            stored = get(facts.path, self.scope, self.index_dir, self.states.get(facts.path))
            put(facts, stored, self.scope, self.index_dir)
            MEMORY.put(facts, self.scope, self._stored(facts))

    def _stored(self, facts: FileFacts) -> Mapping[str, FileIdentity]:
        """Return the index file of a file and its state; nothing if there is none."""
        if self.index_dir is None:
            return {}
        from ray_h5.index.stored.index_files import state_of_index

        return state_of_index(facts.path, self.scope, self.index_dir)


def answer_files(
    question: Question,
    scope: Scope,
    index_dir: str | None,
    states: Mapping[str, ObjectIdentity],
    paths: list[str],
    *,
    is_joint: bool = False,
) -> list[FileFacts]:
    """Return the facts of some files, and store them in `index_dir`. This may run in a task.

    With `is_joint`, the caller stores those that have a place in an index file of their folder.
    """
    answer = partial(_answer, question, scope, index_dir, states)
    keep = partial(_kept, scope, index_dir, is_joint)
    at_once = min([len(paths), *(storage_of(path, scope.storage).opened_at_once for path in paths)])
    if at_once > 1:
        from ray_h5.storage.fetching import fetching_threads

        # Each waits for its requests, and holds no lock meanwhile. Index files are saved by one: they have a lock.
        with fetching_threads(at_once, "ray_h5_index") as pool:
            return list(map(keep, pool.map(answer, paths)))
    return list(map(keep, map(answer, paths)))


def _answer(
    question: Question, scope: Scope, index_dir: str | None, states: Mapping[str, ObjectIdentity], path: str
) -> tuple[FileFacts, FileFacts | None]:
    """Return the facts of a file, and those that were stored before."""
    if index_dir is not None:
        from ray_h5.index.stored import index_files
    listed = states.get(path)
    stored = None if index_dir is None else index_files.get(path, scope, index_dir, listed)
    facts = MEMORY.get(path, scope, listed)
    if stored is not None:
        facts = stored if facts is None else stored.merged(facts)
    if facts is None or not facts.answers(question):
        facts = learn(facts, path, question, scope, listed)
    return facts, stored


def _kept(scope: Scope, index_dir: str | None, is_joint: bool, found: tuple[FileFacts, FileFacts | None]) -> FileFacts:
    """Return the facts of a file; they are saved unless they are stored already, or the caller stores them."""
    facts, stored = found
    if is_joint:
        from ray_h5.index.stored.joint import is_light

        index_dir = None if is_light(facts) else index_dir
    if index_dir is not None:
        from ray_h5.index.stored import index_files

        index_files.put(facts, stored, scope, index_dir)
    return facts


class _Progress:
    """Logs the progress of a long look-up."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._said = total, 0, time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._said > _PROGRESS_S:
            self._said = time.monotonic()
            logger.warning("index: %d of %d files", self._done, self._total)


_MAX_CARRIED_BYTES = 32 << 20
"""Values up to this size are pickled. Of more, another process reads what it needs."""


@dataclass(frozen=True, slots=True)
class Found:
    """Columns, values and sources that were looked up.

    Attributes
    ----------
    columns : mapping of str to ColumnSpec
        Virtual columns, and columns that are not in the schema of the index.
    values : mapping of ColumnSpec to pyarrow.ChunkedArray
        The values of small columns, of all rows.
    sources : tuple of SourceTable
        The other files that columns come from; no column is in two tables.
    """

    columns: Mapping[str, ColumnSpec] = field(default_factory=dict)
    values: Mapping[ColumnSpec, pa.ChunkedArray] = field(default_factory=dict)
    sources: tuple[SourceTable, ...] = ()

    @property
    def all_sources(self) -> SourceTable:
        """The sources of all columns."""
        return reduce(SourceTable.joined, self.sources, SourceTable())

    def with_columns(self, columns: Mapping[str, ColumnSpec]) -> Found:
        return replace(self, columns={**self.columns, **columns})

    def with_values(self, values: Mapping[ColumnSpec, pa.ChunkedArray]) -> Found:
        return replace(self, values={**self.values, **values})

    def with_sources(self, found: SourceTable) -> Found:
        """Add the sources of columns that no table has yet."""
        new = found.only(name for name in found.columns if not any(name in known.columns for known in self.sources))
        return replace(self, sources=(*self.sources, new)) if new.columns else self


class FoundCell:
    """Holds the present `Found` of a row index. Threads add to it one after the other; readers never see half a change.

    Attributes
    ----------
    value : Found
        What was found so far.
    """

    def __init__(self, value: Found | None = None) -> None:
        self.value = value or Found()
        self._lock = PerProcess(threading.Lock)

    def update(self, change: Callable[[Found], Found]) -> None:
        """Replace the value by what `change` returns for it."""
        with self._lock.value:
            self.value = change(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        value = self.value
        is_small = sum(values.nbytes for values in value.values.values()) <= _MAX_CARRIED_BYTES
        return FoundCell, (value if is_small else replace(value, values={}),)
