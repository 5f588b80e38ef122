"""Copies each file, array by array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from ray_h5.codecs.encode import CodecName
from ray_h5.errors import OptionError
from ray_h5.manifest.layout import FileState
from ray_h5.writing.layouts import GOOD_BYTES, TINY_BYTES, TINY_CHUNKS, WORTH_BYTES
from ray_h5.writing.output import OutputFile
from ray_h5.writing.repack.copying import ArrayFacts, FileCopy, NewLayout, as_keepable, creation_of
from ray_h5.writing.repack.result import Repacked
from ray_h5.writing.repack.work import Progress, Work

_PIECE = 8 << 20


class FileWork(Work):
    """Each file, array by array."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._chunks = [0, 0]
        self._rewritten = 0
        self._states = {path: self._state(path) for path in self._files.paths}

    def names(self) -> list[str]:
        return self._input_names()

    def survey(self) -> None:
        for path in self._on_disk(self._files.paths):
            self._copy(path).survey()
            self._creation(path)

    def _copy(self, path: str) -> FileCopy:
        return FileCopy(path, self._rule, drop=self._drop, threads=self._threads)

    def _rule(self, facts: ArrayFacts) -> NewLayout | None:
        """Return how an array is laid out; None if it stays as it is."""
        layout = self._layout
        says_chunks = layout.chunk_rows is not None or layout.chunk_bytes is not None
        if not says_chunks and layout.codec in {None, "keep"} and not is_slow(facts):
            return None
        if facts.shape[0] * facts.row_bytes <= GOOD_BYTES and facts.chunks is None:
            return None  # a small array is read as a whole
        keeps_chunks = facts.chunks is not None and not facts.is_split and not says_chunks and not is_slow(facts)
        rows = facts.chunks[0] if keeps_chunks and facts.chunks else layout.rows_of_chunk(facts.row_bytes)
        codec = as_keepable(facts) if layout.codec == "keep" else cast(CodecName, layout.codec or "zstd")
        return NewLayout(rows, codec)

    def run(self, kept: Sequence[str], verify: bool, progress: Progress) -> None:
        total = sum(self._states[path].size for path in self._files.paths)
        done, on_disk = 0, set(self._on_disk(self._files.paths))
        for path, name in zip(self._files.paths, self.names(), strict=True):
            size = self._states[path].size
            self._before += size
            if name in kept:
                self._after += Path(self._target.place(name)).stat().st_size
            else:
                local = path if path in on_disk else self._fetched(path, name)
                try:
                    self._copy_file(path, local, name, verify, partial(_advance, progress, done, total))
                finally:
                    if local != path:
                        Path(local).unlink()
            done += size
            progress(done, total)

    def _copy_file(self, path: str, local: str, name: str, verify: bool, progress: Callable[[int], object]) -> None:
        copy, done = self._copy(local), 0
        copy.survey()

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done)

        def check(written: str) -> None:
            copy.verify(written)

        def write(file: OutputFile) -> None:
            copy.write(file, advance)
            self._check_unchanged({path: FileState(self._states[path])})

        self._write(name, write, check if verify else None, self._creation(local))
        self._dropped += copy.result.dropped
        self._rewritten += copy.result.rewritten
        self._chunks[0] += copy.result.chunks_before
        self._chunks[1] += copy.result.chunks_after

    def _creation(self, path: str) -> dict[str, Any]:
        """Return with which properties the copy of a file is created."""
        found = creation_of(path)
        if found["userblock_size"] and self._layout.page is not None:
            if not self._drop:
                raise OptionError(
                    f"page={self._layout.page}: {path} begins with {found['userblock_size']} bytes that are not HDF5, "
                    "as MATLAB writes them, and files of pages have none. Leave page= out, or pass drop=True."
                )
            found["userblock_size"] = 0
        return found

    def _fetched(self, url: str, name: str) -> str:
        """Return a local copy of a file in a store."""
        source = self._files.scope.storage.open(url, self._states[url])
        path = self._target.temporary(f"{name}.source")
        with open(path, "xb") as file:
            for start in range(0, source.size, _PIECE):
                piece = bytearray(min(_PIECE, source.size - start))
                source.read_into(start, memoryview(piece))
                file.write(piece)
        return path

    def result(self) -> Repacked:
        before, after = self._chunks
        found = Repacked([], [], None, self._before, self._after, before, after, dropped=tuple(self._dropped))
        return replace(found, rewritten=self._rewritten)


def is_slow(facts: ArrayFacts) -> bool:
    """Return whether shuffled rows of an array are slow to read, and other chunks mend it."""
    if facts.chunks is None:
        return False
    is_tiny = facts.chunk_bytes < TINY_BYTES and facts.num_chunks >= TINY_CHUNKS
    # Half of it or less is then decoded for a row. Images of 3 KiB, gzip, 64 a chunk: 5.5 times the rows/s.
    is_large = bool(facts.steps) and facts.chunks[0] > 1 and facts.chunk_bytes >= WORTH_BYTES
    return is_tiny or is_large or facts.is_split or not facts.is_decoded_here


def _advance(progress: Progress, before: int, total: int, done: int) -> None:
    progress(min(before + done, total), total)
