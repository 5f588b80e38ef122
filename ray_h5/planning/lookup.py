"""How facts of many files are found: in memory, on disk, or by looking; spread over threads or tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ray_h5.planning.facts import ColumnFacts, FileFacts, Question, Scope, learn
from ray_h5.planning.store import MEMORY, is_current, recall, save

logger = logging.getLogger(__name__)

_GROUP_FILES = 64
_THREADS = 8
_PROGRESS_S = 5.0

Spread = Callable[[Callable[[list[str]], list[FileFacts]], Sequence[list[str]]], Iterable[list[FileFacts]]]
"""Applies a function to groups of paths, several at a time, and yields what it returns in their order."""


def in_threads(work: Callable[[list[str]], list[FileFacts]], groups: Sequence[list[str]]) -> Iterator[list[FileFacts]]:
    """Spread work over threads: they wait for a network's file system together, and for libhdf5 one by one."""
    with ThreadPoolExecutor(min(_THREADS, len(groups) or 1)) as pool:
        yield from pool.map(work, groups)


@dataclass(frozen=True, slots=True)
class Lookup:
    """How facts of files are found.

    Attributes
    ----------
    scope : Scope
        How the files are opened.
    index_dir : str, optional
        A folder in which to keep them.
    spread : callable
        What spreads the work.
    """

    scope: Scope = field(default_factory=Scope)
    index_dir: str | None = None
    spread: Spread = in_threads

    def ask(self, paths: Sequence[str], question: Question) -> list[FileFacts]:
        """Return the facts of each file; those known to this process are not looked up again."""
        known = {path: facts for path in paths if (facts := self._in_memory(path, question)) is not None}
        unknown = [path for path in paths if path not in known]
        groups = [unknown[i : i + _GROUP_FILES] for i in range(0, len(unknown), _GROUP_FILES)]
        work = partial(answer_files, question, self.scope, self.index_dir)
        specs: dict[ColumnFacts, ColumnFacts] = {}
        log = _Progress(len(unknown))
        for answers in self.spread(work, groups) if len(groups) > 1 else map(work, groups):
            for facts in answers:
                # Equal facts of many files become one object.
                facts.columns = {name: specs.setdefault(each, each) for name, each in facts.columns.items()}
                known[facts.path] = facts
                MEMORY.put(facts, self.scope)
            log.add(len(answers))
        return [known[path] for path in paths]

    def _in_memory(self, path: str, question: Question) -> FileFacts | None:
        facts = MEMORY.get(path, self.scope)
        return facts if facts is not None and facts.answers(question) and is_current(facts) else None


def answer_files(question: Question, scope: Scope, index_dir: str | None, paths: list[str]) -> list[FileFacts]:
    """Find out about some files, in whichever process."""
    found = []
    for path in paths:
        facts = recall(path, scope, index_dir, question)
        if facts is None or not facts.answers(question):
            facts = learn(facts, path, question, scope)
            if index_dir is not None:
                save(facts, scope, index_dir)
        found.append(facts)
    return found


class _Progress:
    """Says how far a long look-up has come."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._said = total, 0, time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._said > _PROGRESS_S:
            self._said = time.monotonic()
            logger.warning("index: %d of %d files", self._done, self._total)
