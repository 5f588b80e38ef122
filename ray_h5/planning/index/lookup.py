"""How facts of many files are found: in memory, in index files, or in the files themselves."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

from ray_h5.planning.index.cache import MEMORY, get, put
from ray_h5.planning.index.file_facts import ColumnFacts, FileFacts, Question
from ray_h5.planning.index.learn import learn
from ray_h5.planning.index.scope import Scope
from ray_h5.planning.index.sources import Origin
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.fetching import fetching_threads

logger = logging.getLogger(__name__)

_BATCH_FILES = 64
_THREADS = 8
_REMOTE_THREADS = 16
_HEAD_BYTES = 64 << 10
_PROGRESS_S = 5.0

Spread = Callable[[Callable[[list[str]], list[FileFacts]], Sequence[list[str]]], Iterable[list[FileFacts]]]
"""Applies a function to lists of paths, several at a time, and yields the results in the order of the lists."""


def read_ahead(work: Callable[[list[str]], list[FileFacts]], batches: Sequence[list[str]]) -> Iterator[list[FileFacts]]:
    """Do the work in this process, list by list, while threads read the beginnings of the next files.

    To do the work in threads is two to three times slower (measured): they take turns with the lock of libhdf5 and
    with that of Python. But they can share the wait for a disk or a network.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch, following in zip_longest(batches, batches[1:], fillvalue=()):
            fetched = [pool.submit(_fetch, path) for path in following if not is_url(path)]
            yield work(list(batch))
            for each in fetched:
                each.cancel()


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
    """

    scope: Scope = field(default_factory=Scope)
    index_dir: str | None = None
    spread: Spread = read_ahead
    states: Mapping[str, ObjectIdentity] = field(default_factory=dict, repr=False)

    def ask(self, paths: Sequence[str], question: Question) -> list[FileFacts]:
        """Return the facts of each file. Facts that this process knows are not looked up again, only stored."""
        known: dict[str, FileFacts] = {}
        progress = _Progress(len(paths))
        for path in paths:
            facts = MEMORY.get(path, self.scope, self.states.get(path))
            if facts is not None and facts.answers(question):
                self._store(facts)
                known[path] = facts
                progress.add(1)
        unknown = [path for path in paths if path not in known]
        batches = [unknown[i : i + _BATCH_FILES] for i in range(0, len(unknown), _BATCH_FILES)]
        work = partial(answer_files, question, self.scope, self.index_dir, self.states)
        specs: dict[ColumnFacts, ColumnFacts] = {}
        origins: dict[Origin, Origin] = {}
        for answers in self.spread(work, batches) if len(batches) > 1 else map(work, batches):
            for facts in answers:
                # Equal facts of many files share one object, to save memory.
                shared = {name: specs.setdefault(each, each) for name, each in facts.columns.items()}
                sources = tuple(origins.setdefault(each, each) for each in facts.origins)
                known[facts.path] = replace(facts, columns=shared, origins=sources)
                MEMORY.put(known[facts.path], self.scope, self.index_dir)
            progress.add(len(answers))
        return [known[path] for path in paths]

    def _store(self, facts: FileFacts) -> None:
        """Store what this process knows of a file, unless the index file has it: it may have been found without one."""
        if self.index_dir is not None and not MEMORY.is_stored(facts.path, self.scope, self.index_dir):
            stored = get(facts.path, self.scope, self.index_dir, self.states.get(facts.path))
            put(facts, stored, self.scope, self.index_dir)
            MEMORY.put(facts, self.scope, self.index_dir)


def answer_files(
    question: Question, scope: Scope, index_dir: str | None, states: Mapping[str, ObjectIdentity], paths: list[str]
) -> list[FileFacts]:
    """Return the facts of some files, and store them in `index_dir`. This may run in a task."""
    answer = partial(_answer, question, scope, index_dir, states)
    if len(paths) > 1 and all(map(is_url, paths)):
        # Each waits for its requests, and holds no lock meanwhile.
        with fetching_threads(min(_REMOTE_THREADS, len(paths)), "ray_h5_index") as pool:
            return list(pool.map(answer, paths))
    return list(map(answer, paths))


def _answer(
    question: Question, scope: Scope, index_dir: str | None, states: Mapping[str, ObjectIdentity], path: str
) -> FileFacts:
    listed = states.get(path)
    stored = None if index_dir is None else get(path, scope, index_dir, listed)
    facts = MEMORY.get(path, scope, listed)
    if stored is not None:
        facts = stored if facts is None else stored.merged(facts)
    if facts is None or not facts.answers(question):
        facts = learn(facts, path, question, scope, listed)
    if index_dir is not None:
        put(facts, stored, scope, index_dir)
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
