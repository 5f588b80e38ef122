"""How facts of many files are found: in memory, in index files, or in the files; what was looked up, and left out."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import CorruptFileError, MissingGroupError, NotHDF5Error, RayH5Error, TruncatedFileError
from ray_h5.index.facts.file_facts import FileFacts, Question, Sources
from ray_h5.index.facts.scan_file import learn
from ray_h5.index.stored.facts_store import FactsStore
from ray_h5.manifest.file_state import FileState
from ray_h5.messages import few
from ray_h5.per_process import PerProcess
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.request_pool import each_waiting, fetching_threads
from ray_h5.storage.storage_of_path import storage_of
from ray_h5.system import waits_of_thread
from ray_h5.tables.table_columns import TableColumn

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
            heads = [pool.submit(_fetch, path) for path in (following if waits else ())]
            before = waits_of_thread()
            facts = work(list(batch))
            waits = waits or waits_of_thread() - before >= _WAITS_A_FILE * len(batch)  # threads make it wait, too
            yield facts
            for head in heads:
                head.cancel()


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
        begun: dict[str, FileFacts] = {}
        store = FactsStore(self.scope, self.index_dir)
        for path in paths:
            facts = store.get(path, question, self.states.get(path))
            if facts is not None and facts.answers(question):
                store.add(facts)
                known[path] = facts
            elif facts is not None:
                # The task that looks at the file goes on from here: it asks a store for less.
                begun[path] = facts
        unknown = [path for path in paths if path not in known]
        size = max(_BATCH_FILES, _TURNS * self.scope.storage.opened_at_once)
        batches = [unknown[i : i + size] for i in range(0, len(unknown), size)]
        work = partial(answer_files, question, self.scope, self.states, begun)
        shared: dict[Hashable, Any] = {}
        said = time.monotonic()
        for answers in self.spread(work, batches) if len(batches) > 1 else map(work, batches):
            for facts in answers:
                known[facts.path] = kept = facts.sharing(shared)
                store.remember(kept, begun.get(facts.path))
                store.add(kept)
            if time.monotonic() - said > _PROGRESS_S:
                said = time.monotonic()
                logger.info("index: %d of %d files", len(known), len(paths))
        store.save()
        return [known[path] for path in paths]


def answer_files(
    question: Question,
    scope: Scope,
    states: Mapping[str, ObjectIdentity],
    begun: Mapping[str, FileFacts],
    paths: list[str],
) -> list[FileFacts]:
    """Return the facts of some files, of which `begun` has a part. This may run in a task."""

    def answer(path: str) -> FileFacts:
        return learn(begun.get(path), path, question, scope, states.get(path))

    at_once = min([len(paths), *(storage_of(path, scope.storage).opened_at_once for path in paths)])
    if at_once > 1:
        with fetching_threads(at_once, "ray_h5_index") as pool:  # each waits for its requests
            return list(pool.map(answer, paths))
    return list(map(answer, paths))


_MAX_CARRIED_BYTES = 32 << 20
"""Values up to this size are pickled. Of more, another process reads what it needs."""


class Found:
    """Columns, values and sources that were looked up for a row index.

    Threads add to it one after the other. What it holds is replaced and never changed, so that others can go on with
    what they have.

    Attributes
    ----------
    columns : mapping of str to ColumnSpec
        Columns that are not in the schema of the index.
    values : mapping of ColumnSpec to pyarrow.ChunkedArray
        The values of columns of one value a row, of all rows.
    sources : mapping of str to sequence of SourceStates
        The other files that columns come from.
    beside : mapping of str to TableColumn
        Columns of tables that are not in those of the index.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnSpec] = MappingProxyType({}),
        values: Mapping[ColumnSpec, pa.ChunkedArray] = MappingProxyType({}),
        sources: Sources = MappingProxyType({}),
        beside: Mapping[str, TableColumn] = MappingProxyType({}),
    ) -> None:
        self.columns, self.values, self.sources, self.beside = columns, values, sources, beside
        self._lock = PerProcess(threading.Lock)

    def add(self, **more: Mapping[Any, Any]) -> None:
        """Add columns, values or sources. What is there stays as it was first."""
        with self._lock.value:
            for name, entries in more.items():
                setattr(self, name, {**entries, **getattr(self, name)})

    def without_values(self) -> Found:
        """Return the same without values."""
        return Found(self.columns, sources=self.sources, beside=self.beside)

    def __reduce__(self) -> tuple[Any, ...]:
        is_small = sum(values_of_one.nbytes for values_of_one in self.values.values()) <= _MAX_CARRIED_BYTES
        values = dict(self.values) if is_small else {}
        return Found, (dict(self.columns), values, dict(self.sources), dict(self.beside))


# What an index leaves out, and what it cannot be made of ---------------------------------------------------------

_MAX_LOOKED_AT = 1000
"""A look for empty files looks at this many files."""

_MAX_LISTED = 5
_MAX_UNREADABLE = 100

UNREADABLE = NotHDF5Error, TruncatedFileError, CorruptFileError, MissingGroupError
"""The errors of files that are not HDF5, cut short or damaged, or lack the group that is read."""


def empty_files(paths: Sequence[str], lookup: Lookup) -> dict[str, str]:
    """Return those of the first files that are without a byte, or without a dataset, and which of both."""
    empty = {}
    for path in paths[:_MAX_LOOKED_AT]:
        listed = lookup.states.get(path)
        with contextlib.suppress(RayH5Error, OSError):  # what else is wrong with a file is reported for all files
            if (os.stat(path).st_size if listed is None else listed.size) == 0:
                empty[path] = "0 bytes"
                continue
            with lookup.scope.open(path, None if listed is None else FileState(listed)) as reader:
                if not reader.layout.columns and not reader.layout.refused:
                    empty[path] = "no dataset"
    return empty


def unreadable_files(paths: Sequence[str], lookup: Lookup, question: Question) -> dict[str, RayH5Error]:
    """Return the files that are not HDF5, cut short or damaged, or lack the group, and the error of each."""
    alone = replace(lookup, index_dir=None)

    def error_of(path: str) -> RayH5Error | None:
        try:
            alone.ask([path], question)
        except UNREADABLE as exc:
            return exc
        except RayH5Error:
            pass  # it appears once these files are gone
        return None

    errors = each_waiting(error_of, paths) if lookup.states else map(error_of, paths)
    return {path: error for path, error in zip(paths, errors, strict=True) if error is not None}


def error_of_unreadable(errors: Mapping[str, RayH5Error], first: RayH5Error, count: int) -> RayH5Error:
    """Return the error that names the files that cannot be read, of `count` files."""
    # Nothing is found if the error is of a file that a link leads to.
    lacking = [error for error in errors.values() if isinstance(error, MissingGroupError)]
    if count == 1 or not errors or len(lacking) == count:
        return first
    listed = [f"  {error}" for error in errors.values()]
    more = [f"  and {len(listed) - _MAX_UNREADABLE} more"] if len(listed) > _MAX_UNREADABLE else []
    advice = "Restore them from a copy."
    if len(lacking) == len(errors):
        advice = "Pass ignore_unreadable_files=True to leave them out: they have no rows of this group."
    elif len(errors) < count:
        advice = "Restore them from a copy, or move them away; or pass ignore_unreadable_files=True to leave them out."
    lines = [f"{len(errors)} of {count} files cannot be read:", *listed[:_MAX_UNREADABLE], *more, advice]
    return type(first)("\n".join(lines))


def warn_of_unreadable(errors: Mapping[str, RayH5Error], count: int) -> None:
    """Log the files that are left out of `count` files, as the user asked."""
    listed = "\n".join(f"  {error}" for error in errors.values())
    logger.warning("left out %d of %d files, which cannot be read:\n%s", len(errors), count, listed)


def warn_of_left_out(facts: Sequence[FileFacts]) -> None:
    """Log the columns that cannot be read as rows, and why."""
    left_out = {name: why for file_facts in facts for name, why in file_facts.left_out}
    shown = few([f"{name} ({why})" for name, why in left_out.items()], _MAX_LISTED)
    columns = left_out.keys() | {name for file_facts in facts for name in file_facts.listing or ()}
    logger.warning("left out %d of %d columns: %s; name columns=[...] to choose", len(left_out), len(columns), shown)
