"""Facts of many files of one folder in one index file: 10^5 small files are not found one by one."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ray_h5.arrow_arrays import numbers_of
from ray_h5.columns.row_table import RowTable
from ray_h5.columns.schema import ColumnSpec
from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.file_opener import Scope
from ray_h5.index.stored import index_files
from ray_h5.index.stored.memory import is_current
from ray_h5.index.stored.serialize import (
    FOREIGN,
    column_from_json,
    from_stream,
    spec_from_json,
    spec_to_json,
    to_stream,
)
from ray_h5.index.stored.values_as_json import check
from ray_h5.lru import LRU
from ray_h5.storage.byte_source import FileIdentity

LEAST_FILES = 65
"""So many files of a folder that are looked up together have one index file. Fewer have one each."""

_FEW_EPISODES = 8

_SAVED_S = 60.0
"""What was found is saved after so long, in case that the look-up of many files is stopped."""


@dataclass(eq=False)
class _Folder:
    """What one index file says of the files of a folder, and what was found since.

    Attributes
    ----------
    state : FileIdentity, optional
        The state of the index file; None if there is none.
    files : dict of str to list
        For each path the number of its layout, and its state.
    layouts : list
        What files are alike in: columns, listing, what is left out, lengths. As JSON, or as made of it.
    values : dict of str to dict
        Values of columns, by path.
    facts : dict of str to FileFacts
        What was made of all this, or was found since.
    """

    state: FileIdentity | None = None
    files: dict[str, list[int]] = field(default_factory=dict)
    layouts: list[Any] = field(default_factory=list)
    specs: list[ColumnSpec] = field(default_factory=list)
    values: dict[str, dict[ColumnSpec, pa.Array]] = field(default_factory=dict)
    facts: dict[str, FileFacts] = field(default_factory=dict)

    def get(self, path: str) -> FileFacts | None:
        """Return the facts of a file; None if there are none, or they cannot be true."""
        if path not in self.facts and path in self.files:
            with contextlib.suppress(ValueError, *FOREIGN):
                self.facts[path] = self._made(path)
        return self.facts.get(path)

    def _made(self, path: str) -> FileFacts:
        number, *state = self.files[path]
        if not isinstance(layout := self.layouts[number], FileFacts):
            layout = self.layouts[number] = self._layout(path, *layout)
        return FileFacts(
            path,
            FileIdentity(*state),
            layout.columns,
            layout.listing,
            layout.left_out,
            values=self.values.get(path, {}),
            table=layout.table,
        )

    def _layout(self, path: str, columns: Any, listing: Any, left_out: Any, rows: Any) -> FileFacts:
        """Return facts of a file of this layout."""
        found = [column_from_json(self.specs[number], *parts) for number, *parts in columns]
        table = None
        if rows is not None:
            entries, lengths, num_steps = rows
            steps = None if lengths is None else np.array(lengths, np.int64)
            table = RowTable(episode_lengths=steps, num_steps=num_steps, entries=entries)
        return FileFacts(
            path,
            FileIdentity(0, 0, 0, 0),
            {column.spec.name: column for column in found},
            None if listing is None else tuple(listing),
            tuple((name, why) for name, why in left_out),
            table=table,
        )


FOLDERS: LRU[_Folder] = LRU(16)
"""Folders of this process, by the path of their index file."""


class JointIndex:
    """The index files of folders that have many of the files that are looked up.

    Parameters
    ----------
    paths : sequence of str
        The files that are looked up.
    scope : Scope
        How they are opened.
    index_dir : str
        The folder of index files.
    """

    def __init__(self, paths: Sequence[str], scope: Scope, index_dir: str) -> None:
        self._scope, self._index_dir = scope, index_dir
        self._counts = Counter(os.path.dirname(path) for path in paths)
        for folder, count in [*self._counts.items()]:
            self._counts[f"{os.path.dirname(folder)}/*"] += count
        self._above: dict[str, str] = {}
        self._where: dict[str, str] = {}
        self._folders: dict[str, _Folder] = {}
        self._found: dict[str, dict[str, FileFacts]] = {}
        self._saved = time.monotonic()

    def _names(self, path: str) -> tuple[str, str]:
        """Return the folder of a file, and the one above it, in which folders of few files are together."""
        folder = os.path.dirname(path)
        if folder not in self._above:
            self._above[folder] = f"{os.path.dirname(folder)}/*"
        return folder, self._above[folder]

    def get(self, path: str) -> FileFacts | None:
        """Return what is stored of a file in its present state."""
        for name in self._names(path):
            facts = self._folder(name).get(path)
            if facts is not None and is_current(facts, None, self._scope.storage):
                return facts
        return None

    def takes(self, facts: FileFacts) -> bool:
        """Store facts with those of other files, by the next `save`; return False if they have a file of their own."""
        for name in self._names(facts.path):
            known = self._folder(name).get(facts.path)
            if known is facts or (known is not None and known.holds(facts)):
                return True
        name = self._place(facts.path)
        if not name or not is_light(facts):
            return False
        self._found.setdefault(name, {})[facts.path] = facts
        if time.monotonic() - self._saved > _SAVED_S:
            self.save()
        return True

    def is_of_all(self, paths: Sequence[str]) -> bool:
        """Return whether facts of all these files may be stored with those of others."""
        return bool(paths) and all(map(self._place, paths))

    def _place(self, path: str) -> str:
        """Return the folder whose index file has facts of a file; empty if it has one of its own."""
        return next((each for each in self._names(path) if self._counts[each] >= LEAST_FILES), "")

    def save(self) -> None:
        """Write the index files of folders of which more was found."""
        for name, found in self._found.items():
            with index_files.alone_in(self._index_dir):
                folder = self._folder(name, again=True)  # another process may have saved meanwhile
                others = [path for path in {**folder.files, **folder.facts} if path not in found]
                kept = {path: facts for path in others if os.path.lexists(path) and (facts := folder.get(path))}
                merged = {path: facts if (known := folder.get(path)) is None else known.merged(facts)
                          for path, facts in found.items()}  # fmt: skip
                where = self._index_path(name)
                index_files.write_body(where, _to_body({**kept, **merged}, self._named(name)), self._index_dir, name)
                new = _Folder(index_files.state_of(where), facts={**kept, **merged})
                FOLDERS.put(where, new)
                self._folders[name] = new
        self._found, self._saved = {}, time.monotonic()

    def _named(self, name: str) -> list[Any]:
        return ["folder", *index_files.named(name, self._scope)]

    def _index_path(self, name: str) -> str:
        if name not in self._where:
            self._where[name] = index_files.path_of(self._named(name), self._index_dir)
        return self._where[name]

    def _folder(self, name: str, *, again: bool = False) -> _Folder:
        if name in self._folders and not again:
            return self._folders[name]
        where = self._index_path(name)
        state, known = index_files.state_of(where), FOLDERS.get(where)
        if known is None or known.state != state:
            known = _Folder() if state is None else self._loaded(where, name, state)
            FOLDERS.put(where, known)
        self._folders[name] = known
        return known

    def _loaded(self, where: str, name: str, state: FileIdentity) -> _Folder:
        try:
            found = _from_body(index_files.read_body(where, self._index_dir), self._named(name))
        except FileNotFoundError:
            return _Folder()
        except (OSError, ValueError) as exc:
            index_files.distrust(where, str(exc))
            return _Folder()
        found.state = state
        return found


def is_light(facts: FileFacts) -> bool:
    """Return whether facts are few and plain, so that those of many files are together in one index file."""
    table = facts.table
    tables = table is not None and (table.groups or table.bounds or table.chunked_by or table.times)
    many = table is not None and (table.chosen is not None or len(table.lengths) > _FEW_EPISODES)
    others = facts.origins or facts.sought or facts.attributes or facts.known
    return not (tables or many or others) and isinstance(facts.identity, FileIdentity)


def _to_body(known: Mapping[str, FileFacts], named: list[Any]) -> bytes:
    specs: dict[ColumnSpec, int] = {}
    layouts: dict[str, int] = {}
    files, values = {}, dict[ColumnSpec, list[tuple[int, pa.Array]]]()
    for file, (path, facts) in enumerate(known.items()):
        columns = [[specs.setdefault(c.spec, len(specs)), c.num_rows, c.chunk_rows, c.enum]
                   for c in facts.columns.values()]  # fmt: skip
        table, rows = facts.table, None
        if table is not None:
            lengths = None if table.episode_lengths is None else table.episode_lengths.tolist()
            rows = [dict(table.entries), lengths, table.num_steps]
        layout = json.dumps([columns, facts.listing, facts.left_out, rows])
        identity = facts.identity
        assert isinstance(identity, FileIdentity)
        state = [identity.size, identity.mtime_ns, identity.ctime_ns, identity.inode]
        files[path] = [layouts.setdefault(layout, len(layouts)), *state]
        for spec, array in facts.values.items():
            values.setdefault(spec, []).append((file, array))
    described = {"of": named, "files": files, "specs": [spec_to_json(each) for each in specs],
                 "values": [spec_to_json(each) for each in values]}  # fmt: skip
    layout_json = f'"layouts": [{", ".join(layouts)}]'
    text = f"{json.dumps(described)[:-1]}, {layout_json}}}"
    parts = []
    for found in values.values():
        numbers = np.array([[file, len(array)] for file, array in found], np.int64)
        parts += [pa.array(numbers.reshape(-1)), pa.concat_arrays([array for _, array in found])]
    return to_stream(parts, text)


def _from_body(body: memoryview, named: list[Any]) -> _Folder:
    """Return what `_to_body` was given; raise a ValueError if the bytes are something else."""
    try:
        arrays, described = from_stream(body)
        check(described["of"] == named, "it is of", described["of"])
        found = _Folder(files=described["files"], layouts=described["layouts"])
        found.specs = [spec_from_json(each) for each in described["specs"]]
        paths = list(found.files)
        specs = [spec_from_json(each) for each in described["values"]]
        for spec, numbers, values in zip(specs, arrays[::2], arrays[1::2], strict=True):
            pairs = numbers_of(numbers).reshape(-1, 2)
            ends = np.cumsum(pairs[:, 1])
            for (file, count), end in zip(pairs.tolist(), ends.tolist(), strict=True):
                found.values.setdefault(paths[file], {})[spec] = values[end - count : end]
    except FOREIGN as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    return found
