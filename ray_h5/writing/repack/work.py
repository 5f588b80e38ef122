"""Copies files array by array: inputs, the names of outputs, which of them are complete, and how one is written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ray_h5.atomic import written_whole
from ray_h5.codecs.encode import CODEC_NAMES, CodecName
from ray_h5.codecs.pipeline import decodes
from ray_h5.errors import OptionError, OutputExistsError, UnsupportedColumnError
from ray_h5.hdf5.files.opening import open_h5
from ray_h5.index.file_options import FileOptions
from ray_h5.manifest.file_state import FileState
from ray_h5.manifest.known_columns import num_chunks
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.messages import counted, few, size
from ray_h5.storage.storage_of_path import storage_of, whole_path
from ray_h5.writing.destination import Destination
from ray_h5.writing.file_writer import OutputFile, writing
from ray_h5.writing.layouts import GOOD_BYTES, Layout, chunk_faults
from ray_h5.writing.repack.copy_file import PIECE, Copied, FileCopy, NewLayout, codec_of

if TYPE_CHECKING:
    import h5py
    from typing_extensions import Self

Progress = Callable[[int, int], object]
"""Called with the bytes that are done, and with all of them."""


@dataclass(frozen=True, slots=True)
class Repacked:
    """What a repack did.

    Attributes
    ----------
    paths : list of str
        The outputs.
    kept : list of str
        Those that an earlier repack had written.
    bytes_before, bytes_after : int
        Size of the files.
    chunks_before, chunks_after : int
        Chunks of all arrays; 0 if they are not known.
    rate_before, rate_after : float
        Rows a second of a shuffled epoch, measured on a sample; 0 if it was not measured.
    not_measured : str
        Why these are 0, if the files cannot be read without more options.
    dropped : tuple of str
        What was left out.
    rewritten : int
        Arrays that got another layout.
    """

    paths: list[str]
    kept: list[str]
    bytes_before: int
    bytes_after: int
    chunks_before: int = 0
    chunks_after: int = 0
    rate_before: float = 0.0
    rate_after: float = 0.0
    not_measured: str = ""
    dropped: tuple[str, ...] = ()
    rewritten: int = 0

    @property
    def gains_nothing(self) -> bool:
        """Whether all arrays were copied as they are."""
        return self.rewritten == 0 and not self.kept

    def __str__(self) -> str:
        """Return what was gained, in lines."""
        sizes = f"{size(self.bytes_before)} before, {size(self.bytes_after)} after"
        lines = [f"{counted(len(self.paths), 'file')}, {sizes}"]
        if self.kept:
            lines[0] += f"; {len(self.kept)} of them were there"
        if self.chunks_before:
            lines.append(f"chunks: {self.chunks_before} before, {self.chunks_after} after")
        if self.gains_nothing:
            lines.append(
                "no array changed: from the layouts that they have, other chunks make a shuffled epoch no faster. "
                "chunk_rows, chunk_bytes or codec write others; lz4 decodes fastest."
            )
        if self.rate_before and self.rate_after:
            gain = self.rate_after / self.rate_before
            lines.append(
                f"shuffled epoch, on a sample: {self.rate_before:.0f} rows/s before, {self.rate_after:.0f} after "
                f"({gain:.1f}x)"
            )
        if self.not_measured:
            lines.append(
                f"a shuffled epoch was not measured, as files need more options to be read: {self.not_measured}. "
                "ray-h5 bench takes such options, and measures inputs and outputs."
            )
        if self.dropped:
            lines.append(f"left out: {few(list(self.dropped))}")
        return "\n".join(lines)


class Outputs:
    """The outputs of a repack. On a disk, a journal in the hidden folder lists those that are complete.

    Parameters
    ----------
    folder : Destination
        Where they are.
    names : sequence of str
        Their names in it.
    plan : str
        What decides their contents.
    """

    def __init__(self, folder: Destination, names: Sequence[str], plan: str) -> None:
        self.names, self.folder, self._plan = names, folder, plan
        self._done: dict[str, list[int]] = {}
        self._has_begun = self._replaces = self._keeps_list = False

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Take the lock, and look what is there.

        Parameters
        ----------
        resume : bool
            Whether to leave the outputs that an earlier repack of the same plan has written.
        overwrite : bool
            Whether to replace files that are there.

        Raises
        ------
        OutputExistsError
            If one is there, or another repack writes to the same place.
        """
        if resume and self.folder.journal is None:
            raise OptionError(
                "files in a store cannot be resumed; write to a disk, and copy them", option="resume", value=True
            )
        self._replaces, self._keeps_list = overwrite, resume
        self.folder.begin()
        done = self._journal() if resume else {}
        self._done = {
            name: done[name] for name in self.names if done.get(name) == _state(self.folder.place(name)) != []
        }
        there = [self.folder.place(name) for name in self.names if name not in self._done and self.folder.has(name)]
        if there and not overwrite:
            why = "exists already, and no list of a repack that was interrupted has it" if resume else "exists already"
            go_on = "" if resume else "resume=True to go on with a repack that was interrupted, "
            raise OutputExistsError(
                f"{few([whole_path(path) for path in there])} {why}. Pass overwrite=True to replace it, {go_on}"
                "or write elsewhere."
            )
        self._write_journal()
        self._has_begun = True
        self.kept = list(self._done)

    def _journal(self) -> dict[str, list[int]]:
        try:
            with open(self.folder.journal or "", "rb") as file:
                journal = json.load(file)
            plan, done = journal["plan"], dict(journal["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        if plan != self._plan:
            said = (
                f"{self.folder.path} was begun with other options, or the files changed since. Pass the same options; "
                "or overwrite=True to begin again."
            )
            raise OptionError(said, option="resume", value=True)
        return done

    def _write_journal(self) -> None:
        if (path := self.folder.journal) is not None:
            with writing(path), written_whole(path) as file:
                file.write(json.dumps({"plan": self._plan, "done": self._done}).encode())

    def put(self, temporary: str, name: str) -> None:
        """Give a complete file its name."""
        # First the list: a kill in between leaves a file that is not there, and not one that is not in the list.
        self._done[name] = _state(temporary)
        self._write_journal()
        try:
            self.folder.put(temporary, name, replaces=self._replaces)
        except BaseException:
            del self._done[name]
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove what is not needed: all but the list of complete files, if it failed or may be resumed again."""
        is_resumable = bool(self._done) if self._has_begun else os.path.exists(self.folder.journal or "")
        self.folder.abandon(keep_journal=is_resumable and (kind is not None or self._keeps_list))


def _state(path: str) -> list[int]:
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ino]


class Work:
    """The copies of some files.

    Parameters
    ----------
    files : FileOptions
        The inputs.
    layout : Layout
        What the user says of chunks, codecs and pages.
    drop : bool
        Whether to leave out what cannot be kept, instead of raising.
    verify : bool
        Whether to read back what was written, and to compare it.
    threads : int
        Threads that decode and encode.
    """

    def __init__(self, files: FileOptions, layout: Layout, drop: bool, verify: bool, threads: int) -> None:
        self._paths, self._storage = files.paths, files.scope.storage
        self._layout, self._drop, self._verify, self._threads = layout, drop, verify, threads
        storages = {path: storage_of(path, self._storage) for path in files.paths}
        self._states = {path: files.states.get(path) or storages[path].check(path) for path in files.paths}
        self._on_disk = [path for path in files.paths if not storages[path].is_fetched]

    def survey(self) -> None:
        """Raise for what cannot be kept, before something is written. Files in stores are looked at in their turn."""
        for path in self._on_disk:
            with open_h5(path) as file:
                self._copy_of(file, path)

    def fingerprint(self, options: Mapping[str, Any]) -> str:
        """Return what decides the contents of the outputs."""
        states = [(path, repr(self._states[path])) for path in self._paths]
        said = {name: value for name, value in options.items() if name not in {"storage_options", "cache_dir"}}
        text = repr((states, self._layout, self._drop, sorted(said.items(), key=str)))
        return hashlib.sha256(text.encode()).hexdigest()

    def run(self, outputs: Outputs, progress: Progress) -> Repacked:
        """Write the outputs, except those that are there; return what was done."""
        total, before, done = sum(state.size for state in self._states.values()), 0, 0
        copies: list[Copied] = []

        def advance(nbytes: int) -> None:
            nonlocal done
            done = min(done + nbytes, total)
            progress(done, total)

        for path, name in zip(self._paths, outputs.names, strict=True):
            if name not in outputs.kept:
                copies.append(self._copy_file(path, outputs, name, advance))
            before += self._states[path].size
            done = before  # what is stored of the arrays is not all of a file
            progress(done, total)
        there = [outputs.folder.place(name) for name in outputs.kept]
        return Repacked(
            [outputs.folder.place(name) for name in outputs.names],
            there,
            total,
            sum(copy.file_bytes for copy in copies) + sum(Path(path).stat().st_size for path in there),
            sum(copy.chunks_before for copy in copies),
            sum(copy.chunks_after for copy in copies),
            dropped=tuple(what for copy in copies for what in copy.dropped),
            rewritten=sum(copy.rewritten for copy in copies),
        )

    def _copy_of(self, file: h5py.File, path: str) -> FileCopy:
        """Return the copy of a file, if all of it can be kept, or the user says that it may be left out."""
        copy = FileCopy(file, path, self._rule, drop=self._drop, threads=self._threads)
        before = copy.creation["userblock_size"]
        if before and self._layout.page is not None:
            if not self._drop:
                said = (
                    f"{path} begins with {before} bytes that are not HDF5, as MATLAB writes them, and files of pages "
                    "have none. Leave page= out, or pass drop=True."
                )
                raise OptionError(said, option="page", value=self._layout.page)
            copy.creation["userblock_size"] = 0
        return copy

    def _rule(self, array: ColumnLayout) -> NewLayout | None:
        """Return how an array is laid out; None if it stays as it is."""
        layout, chunks, pipeline = self._layout, array.chunk_shape, array.pipeline
        is_slow, is_split = False, chunks is not None and chunks[1:] != array.row_shape
        if chunks is not None:  # shuffled rows are slow, and other chunks mend it
            faults = chunk_faults(chunks[0], array.chunk_bytes, num_chunks(array), bool(pipeline.steps), is_split)
            is_slow = bool(faults) or not decodes(pipeline)
        says_chunks = layout.chunk_rows is not None or layout.chunk_bytes is not None
        if not says_chunks and layout.codec in {None, "keep"} and not is_slow:
            return None
        if array.num_rows * array.row_bytes <= GOOD_BYTES and chunks is None:
            return None  # a small array is read as a whole
        keeps_chunks = not (chunks is None or is_split or says_chunks or is_slow)
        rows = chunks[0] if keeps_chunks and chunks else layout.rows_of_chunk(array.row_bytes)
        codec = codec_of(pipeline) if layout.codec == "keep" else cast(CodecName, layout.codec or "zstd")
        if codec is None:
            raise UnsupportedColumnError(
                f"codec='keep': {array.name!r} went through {pipeline}, which is not encoded here. Expected one "
                f"of {', '.join(CODEC_NAMES)}: pass codec= to encode it in another way."
            )
        return NewLayout(rows, codec)

    def _copy_file(self, path: str, outputs: Outputs, name: str, progress: Callable[[int], object]) -> Copied:
        """Write an output, look at it, and give it its name."""
        temporary = outputs.folder.temporary(name)
        creation: dict[str, Any] = {"threads": self._threads, "page": self._layout.page, "keeps_sums": self._verify}
        with self._on_a_disk(path, outputs, name) as local, open_h5(local) as source:
            copy = self._copy_of(source, local)
            with OutputFile(temporary, **creation, **copy.creation) as file:
                copy.write(file, progress)
                if path in self._on_disk:  # requests to a store say which state they want
                    FileState(self._states[path]).check_now(path, self._storage)
                file.close()
                if self._verify:
                    file.verify()
                    copy.verify(temporary)
                copy.result.file_bytes = Path(temporary).stat().st_size
                outputs.put(temporary, name)
        return copy.result

    @contextlib.contextmanager
    def _on_a_disk(self, path: str, outputs: Outputs, name: str) -> Iterator[str]:
        """Yield the path of an input; of a file in a store, that of a copy, which is removed afterwards."""
        if path in self._on_disk:
            yield path
            return
        local = outputs.folder.temporary(f"{name}.source")
        source = self._storage.open(path, self._states[path])
        try:
            with open(local, "xb") as file:
                for start in range(0, source.size, PIECE):
                    piece = bytearray(min(PIECE, source.size - start))
                    source.read_into(start, memoryview(piece))
                    file.write(piece)
            yield local
        finally:
            Path(local).unlink(missing_ok=True)
