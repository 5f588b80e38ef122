"""Facts of files in the memory of the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.file_opener import Scope
from ray_h5.lru import LRU
from ray_h5.storage.byte_source import FileIdentity, Identity
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import Storage, storage_of

_MAX_FILES = 200_000
_MAX_VALUE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Entry:
    """Facts of one file, and where on disk they are.

    Attributes
    ----------
    facts : FileFacts
        The facts.
    stored : mapping of str to FileIdentity
        The index files that hold all of these facts, and their states when they did. Checking a state is one ``stat``.
        Without it each plan of a process would read the index files again: 62 s of CPU for 100,000 files (measured).
    """

    facts: FileFacts
    stored: Mapping[str, FileIdentity]


class Memory:
    """The facts that this process used last, by file and scope; safe to use from several threads."""

    def __init__(self) -> None:
        self.entries: LRU[_Entry] = LRU(_MAX_FILES, _MAX_VALUE_BYTES, lambda entry: entry.facts.value_bytes)

    def get(self, path: str, scope: Scope, listed: Identity | None = None) -> FileFacts | None:
        """Return what is known of a file in its present state, if anything; `listed` as in `is_current`."""
        key = _key(path, scope)
        entry = self.entries.get(key)
        if entry is None:
            return None
        if not is_current(entry.facts, listed, scope.storage):
            self.entries.drop(key, entry)
            return None
        return entry.facts

    def put(self, facts: FileFacts, scope: Scope, stored: Mapping[str, FileIdentity] | None = None) -> None:
        """Add facts to what is known of a file; facts that other threads found meanwhile stay.

        Parameters
        ----------
        facts : FileFacts
            The facts.
        scope : Scope
            How the file was opened.
        stored : mapping of str to FileIdentity, optional
            An index file that holds all of these facts, and its state.
        """
        key = _key(facts.path, scope)
        found = facts.owned(entry.facts if (entry := self.entries.get(key)) is not None else None)
        stored = stored or {}

        def add(known: _Entry | None) -> _Entry:
            if known is None:
                return _Entry(found, stored)
            merged = known.facts.merged(found)
            # An index file holds the sum only if it holds the part that the other lacks.
            before = known.stored if known.facts.holds(merged) else {}
            return _Entry(merged, {**before, **(stored if found.holds(merged) else {})})

        self.entries.update(key, add)

    def is_stored(self, path: str, scope: Scope, index_file: Mapping[str, FileIdentity]) -> bool:
        """Return whether an index file in some state holds all that is known of a file."""
        entry = self.entries.get(_key(path, scope))
        return entry is not None and bool(index_file) and index_file.items() <= entry.stored.items()

    def clear(self) -> None:
        self.entries.clear()


MEMORY = Memory()
"""The facts of this process."""


def is_current(facts: FileFacts, listed: Identity | None = None, storage: Storage = LOCAL) -> bool:
    """Return whether the file, and those that its columns come from, did not change.

    Of a remote file, `listed` is the state in the listing. Its later states are not asked for: each read says which
    state it wants. The other files in its `storage` that it refers to are in no listing, so these are looked at.
    """
    path, planned, others = facts.path, facts.identity, [each for each in facts.sources if each[0] != facts.path]
    storage = storage_of(path, storage)
    try:
        if (listed is not None and planned != listed) or storage.seen(path, planned) != planned:
            return False
        if not others:
            return True
        from ray_h5.storage.fetching import each_waiting

        return all(each_waiting(lambda each: storage.identity(each[0]) == each[1], others))
    except OSError:
        return False  # opening the file reports what is wrong


def _key(path: str, scope: Scope) -> tuple[object, ...]:
    return path, _token(scope, storage_of(path, scope.storage))  # type: ignore[arg-type]  # storages have hashes


@lru_cache(maxsize=1024)
def _token(scope: Scope, storage: Storage) -> object:
    """Return an object that stands for what matters of a scope, and is compared faster."""
    return _token_of(replace(scope, threads=1, storage=storage))


@lru_cache(maxsize=1024)
def _token_of(scope: Scope) -> object:  # noqa: ARG001  one for each
    return object()
