"""Facts of files in the memory of the process."""

from __future__ import annotations

from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.file_opener import Scope, how_opened
from ray_h5.lru import LRU
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.local import LOCAL
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.storage_of_path import Storage, storage_of

_MAX_FILES = 200_000
_MAX_VALUE_BYTES = 1 << 30


class Memory:
    """The facts that this process used last, by file and scope; safe to use from several threads."""

    def __init__(self) -> None:
        self.entries: LRU[FileFacts] = LRU(_MAX_FILES, _MAX_VALUE_BYTES, lambda facts: facts.value_bytes)

    def get(self, path: str, scope: Scope, listed: Identity | None = None) -> FileFacts | None:
        """Return what is known of a file in its present state, if anything; `listed` as in `is_current`."""
        key = _key(path, scope)
        facts = self.entries.get(key)
        if facts is None:
            return None
        if not is_current(facts, listed, scope.storage):
            self.entries.drop(key, facts)
            return None
        return facts

    def put(self, facts: FileFacts, scope: Scope) -> None:
        """Add facts to what is known of a file; facts that other threads found meanwhile stay."""
        key = _key(facts.path, scope)
        owned = facts.owned(self.entries.get(key))
        self.entries.update(key, lambda known: owned if known is None else known.merged(owned))

    def clear(self) -> None:
        self.entries.clear()


MEMORY = Memory()
"""The facts of this process."""


def is_current(facts: FileFacts, listed: Identity | None = None, storage: Storage = LOCAL) -> bool:
    """Return whether the file, and those that its columns come from, did not change.

    Of a remote file, `listed` is the state in the listing. Its later states are not asked for: each read says which
    state it wants. The other files in its `storage` that it refers to are in no listing, so these are looked at.
    """
    path, planned, others = facts.path, facts.identity, [source for source in facts.others if source[0] != facts.path]
    storage = storage_of(path, storage)
    try:
        if (listed is not None and planned != listed) or storage.seen(path, planned) != planned:
            return False
        if not others:
            return True
        return all(each_waiting(lambda source: storage.identity(source[0]) == source[1], others))
    except OSError:
        return False  # opening the file reports what is wrong


def _key(path: str, scope: Scope) -> tuple[object, ...]:
    return path, scope.beside(path), storage_of(path, scope.storage), how_opened(scope)
