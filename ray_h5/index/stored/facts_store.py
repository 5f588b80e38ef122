"""Where facts of files are: in the memory of the process, and in a folder of index files.

One index file has what a run of planning found.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ray_h5.arrow_arrays import binary_array
from ray_h5.errors import NotFoundError, RayH5Error
from ray_h5.index.facts.file_facts import FileFacts, Question
from ray_h5.index.stored import index_files
from ray_h5.index.stored.facts_as_bytes import FOREIGN, FactsReader, FactsWriter, check_ranges
from ray_h5.lru import LRU, first_time
from ray_h5.scope import Scope, how_opened
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.local import LOCAL, identity_now
from ray_h5.storage.request_pool import each_waiting
from ray_h5.storage.storage_of_path import Storage, storage_of

logger = logging.getLogger(__name__)

_NOT_USED = "%s: not used, and made again: %s"
_MOST_FILES = 16
"""With so many index files of one scope, the next one takes what they hold, and they go."""

_SAVED_S = 60.0
"""What was found is saved after so long, in case that the look-up of many files is stopped."""

MEMORY: LRU[FileFacts] = LRU(200_000, 1 << 30, lambda facts: facts.value_bytes)
"""The facts that this process used last, by file and how it is opened."""


class IndexFile:
    """The facts of one index file. They are made of its bytes when they are asked for.

    It is an Arrow record batch with a row for each file: its key (see `FactsStore`), its state, what it may be like
    other files in, and for each column or attribute of which values are known a list of these. Its metadata say how the
    files were opened, what facts share, and which columns and attributes the lists are of.
    """

    def __init__(
        self, where: str, state: Identity | None, batch: pa.RecordBatch, made: Mapping[str, FileFacts]
    ) -> None:
        self.where, self.state, self._made = where, state, dict(made)
        shared = batch.schema.metadata
        self.scope = shared[b"scope"].decode()
        self._reader = FactsReader(msgspec.msgpack.decode(shared[b"pool"]))
        self._common = dict[int, dict[str, Any]]()
        keys, self._states, self._alike, *lists = batch.columns
        self.keys = {os.fsdecode(key): number for number, key in enumerate(keys.to_pylist())}
        self._values = list(zip(map(self._reader.value, msgspec.msgpack.decode(shared[b"lists"])), lists, strict=True))

    @classmethod
    def of_body(cls, where: str, state: Identity | None, body: memoryview | bytes) -> IndexFile:
        """Read the body of an index file; raise a `pyarrow.ArrowException`, or one of `FOREIGN`, if it is none."""
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            batch = next(iter(reader), None)
        if batch is None:
            raise ValueError("nothing is in it")
        batch.validate(full=True)
        return cls(where, state, batch, {})

    def get(self, key: str) -> FileFacts | None:
        """Return the facts of a file, if there are any; raise one of `FOREIGN` if they cannot be true."""
        number = self.keys.get(key)
        if number is None or key in self._made:
            return self._made.get(key)
        common = self._alike.indices[number].as_py()
        if common not in self._common:
            self._common[common] = self._reader.facts(self._alike.dictionary[common].as_py())
        state, path = self._reader.value(self._states[number].as_py()), key.partition("\0")[0]
        values = {column: lists[number].values for column, lists in self._values if lists[number].is_valid}
        facts = FileFacts(path, state, **self._common[common], values=values)
        if facts.known or facts.table is not None:
            check_ranges(facts)
        return self._made.setdefault(key, facts)


_LOADED: LRU[IndexFile] = LRU(64)
"""Index files of this process, by their paths."""


def _batch_of(scope: str, facts_by_key: Mapping[str, FileFacts]) -> pa.RecordBatch:
    """Return what an index file holds; see `IndexFile`."""
    writer, common = FactsWriter(), dict[bytes, int]()
    numbers, states = [], []
    values: dict[Any, dict[int, pa.Array]] = {}
    for number, facts in enumerate(facts_by_key.values()):
        numbers.append(common.setdefault(writer.facts(facts), len(common)))
        states.append(writer.value(facts.identity))
        for key, array in facts.values.items():
            values.setdefault((key, array.type), {})[number] = array
    facts_of_files = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), binary_array([*common]))
    columns = [binary_array([os.fsencode(key) for key in facts_by_key]), binary_array(states), facts_of_files]
    for arrays in values.values():  # as lists of all files; null for those without
        lengths, is_there = np.zeros(len(states), np.int64), np.zeros(len(states), bool)
        lengths[[*arrays]], is_there[[*arrays]] = [len(array) for array in arrays.values()], True
        ends, held = pa.array(np.concatenate([[0], np.cumsum(lengths)])), pa.concat_arrays([*arrays.values()])
        columns.append(pa.LargeListArray.from_arrays(ends, held, mask=pa.array(~is_there)))
    names = [writer.value(key) for key, _ in values]
    shared = {"scope": scope, "pool": msgspec.msgpack.encode(writer.pool), "lists": msgspec.msgpack.encode(names)}
    return pa.record_batch(columns, [str(place) for place in range(len(columns))], metadata=shared)


class FactsStore:
    """What is known of files that are opened in one way, in memory and in the index files of a folder.

    A file is found by its path and, if it has them, its store and the file that is read beside it.

    Parameters
    ----------
    scope : Scope
        How the files are opened.
    index_dir : str, optional
        The folder.
    """

    def __init__(self, scope: Scope, index_dir: str | None = None) -> None:
        self._scope, self._index_dir = scope, index_dir or ""
        self._is_written = index_dir is not None and not is_url(index_dir)  # one in a store is only read
        self._named = how_opened(scope)
        self._digest = hashlib.blake2b(self._named.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        self._opened: list[IndexFile] | None = None if index_dir is not None else []
        self._useless: list[str] = []
        self._found: dict[str, FileFacts] = {}
        self._saved = time.monotonic()

    def _key(self, path: str) -> str:
        place, beside = storage_of(path, self._scope.storage).place, self._scope.zipped.get(path, "")
        return "\0".join([path, *([place, beside] if place or beside else [])])

    def _in_memory(self, path: str) -> tuple[object, ...]:
        return path, self._scope.zipped.get(path, ""), storage_of(path, self._scope.storage), self._named

    @property
    def _files(self) -> list[IndexFile]:
        """The index files, the oldest first."""
        if self._opened is None:
            opened = [self._load(where, state) for where, state in sorted(self._listed().items())]
            self._opened = [index_file for index_file in opened if index_file is not None]
        return self._opened

    def _listed(self) -> dict[str, Identity]:
        if not self._is_written:
            storage, mine = storage_of(self._index_dir, self._scope.storage), f"{self._index_dir}/{self._digest}-"
            try:
                files, _ = storage.list(f"{self._index_dir}/", below=False)  # type: ignore[union-attr]  # it has URLs
            except NotFoundError:
                return {}
            return {file.url: file.identity for file in files if file.url.startswith(mine)}
        states: dict[str, Identity] = {}
        for entry in os.scandir(self._index_dir):
            if not entry.name.endswith(index_files.ENDING):
                continue
            if "-" not in entry.name and first_time("index", self._index_dir):
                logger.warning(_NOT_USED, entry.path, "an earlier version wrote it; it may be deleted")
            if entry.name.startswith(f"{self._digest}-"):
                try:
                    state = identity_now(entry.path)
                except OSError as exc:  # such as a link to itself
                    self._distrust(entry.path, exc)
                    continue
                if state is not None:  # otherwise another process took what it held
                    states[entry.path] = state
        return states

    def _load(self, where: str, state: Identity) -> IndexFile | None:
        known = _LOADED.get(where)
        if known is not None and known.state == state:
            return known
        try:
            if self._is_written:
                raw = index_files.read_body(where, self._index_dir)
            else:
                raw = index_files.body_in_store(where, state, self._scope.storage)
            index_file = IndexFile.of_body(where, state, raw)
            if index_file.scope != self._named:
                raise ValueError(f"it is of {index_file.scope}")
        except FileNotFoundError:
            return None  # another process took what it held
        except (OSError, pa.ArrowException, RayH5Error, *FOREIGN) as exc:
            self._distrust(where, exc)
            return None
        _LOADED.put(where, index_file)
        return index_file

    def _distrust(self, where: str, exc: Exception) -> None:
        self._useless.append(where)
        why = str(exc) if isinstance(exc, (OSError, ValueError)) else f"{type(exc).__name__}: {exc}"
        logger.warning(_NOT_USED, where, why)

    def get(self, path: str, question: Question | None = None, listed: Identity | None = None) -> FileFacts | None:
        """Return what is known of a file in its present state, if anything; `listed` as in `is_current`.

        Index files are not asked if what the memory has answers the question.
        """
        place, storage = self._in_memory(path), self._scope.storage
        facts = MEMORY.get(place)
        if facts is not None and not is_current(facts, listed, storage):
            MEMORY.drop(place, facts)
            facts = None
        if facts is not None and question is not None and facts.answers(question):
            return facts
        stored = self._stored(self._key(path)) if self._files or self._found else None
        if stored is not None and not is_current(stored, listed, storage):
            logger.info("%s: its facts in index_dir are outdated and are found again", path)
        elif stored is not None:
            facts = stored.merged(facts)
            if not self._is_written:
                self.remember(facts)  # it takes requests to ask the store again
        return facts

    def remember(self, facts: FileFacts, begun: FileFacts | None = None) -> None:
        """Add facts to the memory; those that other threads found meanwhile stay.

        `begun` is what was known before these were found, all of which they have, too.
        """
        place = self._in_memory(facts.path)
        owned = facts.owned(MEMORY.get(place))
        MEMORY.update(place, lambda known: owned if known is None or known is begun else known.merged(owned))

    def _stored(self, key: str) -> FileFacts | None:
        """Return what all index files say of a file; that of the later ones, if they are of other states."""
        facts = self._found.get(key)
        # From the latest to the oldest: what an older one says of another state of the file is replaced.
        for file in reversed(self._files):
            try:
                stored = file.get(key)
            except FOREIGN as exc:
                self._distrust(file.where, exc)
                self._opened = [other for other in self._files if other is not file]
                continue
            if stored is not None:
                facts = stored if facts is None else stored.merged(facts)
        return facts

    def add(self, facts: FileFacts) -> None:
        """Store facts by the next `save`, unless all of them are stored."""
        if not self._is_written:
            return
        key = self._key(facts.path)
        stored = self._stored(key)
        if stored is facts or (stored is not None and stored.holds(facts)):
            return
        self._found[key] = facts if stored is None else stored.merged(facts)
        if time.monotonic() - self._saved > _SAVED_S:
            self.save()

    def save(self) -> None:
        """Write what was added into a new index file. Those whose files are all in it go.

        Two processes that save at a time each write one, and the next one that saves has the facts of both.

        Raises
        ------
        OptionError
            If it cannot be written. The index files of before stay.
        """
        self._saved = time.monotonic()
        if not self._found:
            return
        new_facts = self._found
        # An index file is never changed, so that a process that reads it needs no lock: it is replaced by another one.
        if len(self._files) >= _MOST_FILES:
            keys = dict.fromkeys(key for file in self._files for key in file.keys if key not in new_facts)
            others = {key: self._stored(key) for key in keys if os.path.lexists(key.partition("\0")[0]) or "://" in key}
            new_facts = {**{key: facts for key, facts in others.items() if facts is not None}, **new_facts}
        name = f"{self._digest}-{time.time_ns():016x}{secrets.token_hex(2)}{index_files.ENDING}"
        where, body = os.path.join(self._index_dir, name), pa.BufferOutputStream()
        batch = _batch_of(self._named, new_facts)
        with pa.ipc.new_stream(body, batch.schema) as stream:
            stream.write_batch(batch)
        if index_files.write_body(where, body.getvalue().to_pybytes()):
            new = IndexFile(where, identity_now(where), batch, new_facts)
            _LOADED.put(where, new)
            # What `add` was given holds all that these say of its files.
            old = [file for file in self._files if new_facts.keys() >= {*file.keys} or len(self._files) >= _MOST_FILES]
            for useless in [*(file.where for file in old), *self._useless]:
                with contextlib.suppress(OSError):  # a folder in its place is removed, too, if it is empty
                    Path(useless).rmdir() if os.path.isdir(useless) else Path(useless).unlink()
            self._opened, self._useless = [*(file for file in self._files if file not in old), new], []
        self._found = {}


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
