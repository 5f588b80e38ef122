"""`repack`: HDF5 files -> HDF5 files that train fast."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.compute as pc
from joblib import cpu_count

from ray_h5.codecs.encode import CodecName, as_codec
from ray_h5.errors import OptionError, PredicateError, UnsupportedColumnError
from ray_h5.hdf5.checks.changed_files import check_state
from ray_h5.index.facts.answers import readable
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.index.select_rows import select
from ray_h5.manifest.layout import FileState
from ray_h5.messages import few
from ray_h5.options import as_integer, takes_options_of
from ray_h5.order.plan_reads import read_rows
from ray_h5.order.read_plan import ReadPlan, make_plan
from ray_h5.source import Source, SourceOptions
from ray_h5.storage.addresses import is_url
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import check_regular_file
from ray_h5.writing.beside_rows import Rest, enum_dtype, texts_of_columns
from ray_h5.writing.copying import (
    ArrayFacts,
    FileCopy,
    NewLayout,
    as_keepable,
    creation_of,
)
from ray_h5.writing.file_arrays import Form, TableWriter
from ray_h5.writing.layouts import GOOD_BYTES, TINY_BYTES, TINY_CHUNKS, Layout, holds_many_rows
from ray_h5.writing.output import OutputFile
from ray_h5.writing.predicate_text import parse_where
from ray_h5.writing.row_batches import Batch, Rows, cut, shuffled
from ray_h5.writing.target import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.storage.local import PathLike

Progress = Callable[[int, int], object]
"""Called with the bytes, or rows, that are done, and with all of them."""

_SAMPLED_ROWS, _SAMPLED_SECONDS, _BATCH_ROWS = 256, 3.0, 16
_PIECE = 8 << 20
_OF_CF = ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "_Unsigned", "valid_range")
_BY_ROWS = {"rows", "windows", "sidecar", "attrs", "decode_cf", "axes", "dtypes", "columns", "group"}
"""Options of `Source` that say what rows are."""


@dataclass(frozen=True, slots=True)
class Repacked:
    """What a repack did.

    Attributes
    ----------
    paths : list of str
        The outputs.
    kept : list of str
        Those that an earlier repack had written.
    rows : int, optional
        Rows that were written; None if files were copied array by array.
    bytes_before, bytes_after : int
        Size of the files.
    chunks_before, chunks_after : int
        Chunks of all arrays; 0 if they are not known.
    rate_before, rate_after : float
        Rows a second of a shuffled epoch, measured on a sample; 0 if it was not measured.
    dropped : tuple of str
        What was left out.
    """

    paths: list[str]
    kept: list[str]
    rows: int | None
    bytes_before: int
    bytes_after: int
    chunks_before: int = 0
    chunks_after: int = 0
    rate_before: float = 0.0
    rate_after: float = 0.0
    dropped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return what was gained, in lines."""
        lines = [f"{len(self.paths)} files, {_size(self.bytes_before)} before, {_size(self.bytes_after)} after"]
        if self.kept:
            lines[0] += f"; {len(self.kept)} of them were there"
        if self.rows is not None:
            lines.append(f"rows: {self.rows}")
        if self.chunks_before:
            lines.append(f"chunks: {self.chunks_before} before, {self.chunks_after} after")
        if self.rate_before and self.rate_after:
            gain = self.rate_after / self.rate_before
            lines.append(
                f"shuffled epoch, on a sample: {self.rate_before:.0f} rows/s before, {self.rate_after:.0f} after "
                f"({gain:.1f}x)"
            )
        if self.dropped:
            lines.append(f"left out: {few(list(self.dropped))}")
        return "\n".join(lines)


@takes_options_of(Source)
def repack(
    paths: PathLike | Sequence[PathLike],
    out: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    chunk_bytes: int | str | None = None,
    codec: str | None = None,
    page: int | str | None = None,
    where: str | pc.Expression | None = None,
    shuffle_rows: int | None = None,
    rows_per_file: int | None = None,
    files: int | None = None,
    drop: bool = False,
    verify: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    measure: bool = False,
    out_storage_options: Mapping[str, object] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[SourceOptions],
) -> Repacked:
    """Rewrite files so that shuffled rows are read fast from them.

    Without options that choose or order rows, each file is copied array by array: groups, attributes, types, links and
    dimension scales stay. Arrays whose layout is good are copied without decoding. With such options, rows are read as
    `read_h5` reads them, and written as columns.

    Memory is bounded: 64 MiB of rows, or those that share one input chunk, and 32 MiB of chunks that are encoded. With
    `shuffle_rows` also the rows of a run: 128 MiB, or a 256th of all rows if that is more.

    Parameters
    ----------
    **options
        The options of `ray_h5.source.Source`, for the input.
    out : str or path-like
        A file, if it has an extension of HDF5 files or that of the input, or a folder; or the URL of one in a store.
    chunk_rows : int, optional
        Rows of a chunk of each array. By default, arrays that are slow to read get chunks of 64 KiB, and others stay:
        slow are chunks of several rows and over 1 MiB, rows that are divided, many tiny chunks, and filters that only
        libhdf5 decodes.
    chunk_bytes : int or str, optional
        Bytes of a chunk before it is encoded, instead of `chunk_rows`. A row is never divided.
    codec : {"zstd", "lz4", "gzip", "blosc", "none", "keep"}, optional
        How the chunks of each array are encoded, after a byte shuffle. ``"keep"`` takes that of the input. By default
        zstd for arrays that get other chunks, and others stay as they are.
    page : int or str, optional
        Bytes of a page of paged file space, such as ``"4MiB"``: metadata lie together, at the front. Planning a file in
        a store then takes few requests.
    where : str or expression, optional
        Which rows to take: ``"label == 1 and quality >= 0.5"``, or an expression as `H5Dataset` takes it.
    shuffle_rows : int, optional
        A seed: rows are in a random order over all outputs, so that reading in path order is mixed already.
    rows_per_file, files : int, optional
        The rows of an output, or the number of outputs. By default one for each input.
    drop : bool
        Leave out what cannot be kept, such as links to other files, instead of raising.
    verify : bool
        Read all that was written back, and compare it with what was read, before it gets its name.
    resume : bool
        Go on with a repack that was interrupted: outputs that are complete stay.
    overwrite : bool
        Replace outputs that are there.
    measure : bool
        Measure a shuffled epoch before and after, on a sample of rows.
    out_storage_options : mapping of str to object, optional
        How the store of `out` is reached; by default as that of `paths`.
    threads : int, optional
        Threads that decode and encode; by default one for each CPU.
    progress : callable, optional
        Called with how much is done, and of how much.

    Returns
    -------
    Repacked
        The outputs, and what was gained.

    Raises
    ------
    OutputExistsError
        If an output is there, or another repack writes to it.
    UnsupportedColumnError
        If something cannot be kept, and `drop` is False.
    VerifyError
        If what was read back differs.
    WriteFailedError
        If the disk is full, or cannot be written to. The part that was written is removed.
    StaleIndexError
        If an input changes meanwhile.

    Examples
    --------
    >>> import ray_h5
    >>> print(ray_h5.repack("raw/*.h5", "fast", codec="lz4"))  # doctest: +SKIP
    """
    layout = Layout(chunk_rows, chunk_bytes, None if codec is None else as_codec(codec, "keep"), page)
    seed = None if shuffle_rows is None else as_integer("shuffle_rows", shuffle_rows, 0)
    if rows_per_file is not None and files is not None:
        raise OptionError(f"rows_per_file={rows_per_file!r} and files={files!r}: expected one of them")
    per_file = None if rows_per_file is None else as_integer("rows_per_file", rows_per_file, 1)
    count = None if files is None else as_integer("files", files, 1)
    workers = cpu_count() if threads is None else as_integer("threads", threads, 1)
    found = FileOptions.of(paths, threads=workers, **options)
    given_options = options.get("storage_options")
    is_to_store = isinstance(out, str) and is_url(out)
    out_options = (given_options if out_storage_options is None else out_storage_options) if is_to_store else None
    extensions = {Path(path).suffix for path in found.paths} - {""}
    target = Target(out, out_options, extensions)
    chosen = {name for name in _BY_ROWS if options.get(name, _DEFAULTS[name]) != _DEFAULTS[name]}
    work: _Work
    if chosen or where is not None or seed is not None or per_file or count:
        work = _RowWork(found, target, layout, where, seed, per_file, count, drop, workers, names=chosen)
    else:
        work = _ArrayWork(found, target, layout, drop, workers)
    names = work.names()
    _check_apart(found.paths, [target.place(name) for name in names])
    if target.is_file and len(names) > 1:
        raise OptionError(
            f"out={target.path!r}: {len(names)} files would be written; expected the name of a folder, or files=1"
        )
    work.survey()
    with target:
        kept = target.begin(names, work.fingerprint(options), resume=bool(resume), overwrite=bool(overwrite))
        work.run(kept, bool(verify), progress or _no_progress)
    result = replace(work.result(), paths=[target.place(name) for name in names], kept=[target.place(n) for n in kept])
    return _measured(result, found, out_options) if measure else result


_DEFAULTS = {
    "rows": None, "windows": None, "sidecar": None, "attrs": (), "decode_cf": False, "axes": "stored", "dtypes": None,
    "columns": None, "group": "/",
}  # fmt: skip


class _Work:
    """What a repack does; `_ArrayWork` and `_RowWork`."""

    def __init__(self, files: FileOptions, target: Target, layout: Layout, drop: bool, threads: int) -> None:
        self._files, self._target, self._layout = files, target, layout
        self._drop, self._threads = drop, threads
        self._before = self._after = 0
        self._dropped: list[str] = []

    def names(self) -> list[str]:
        """Return the names of the outputs."""
        raise NotImplementedError

    def survey(self) -> None:
        """Raise for what cannot be kept, before something is written."""
        raise NotImplementedError

    def run(self, kept: Sequence[str], verify: bool, progress: Progress) -> None:
        """Write the outputs, except those that are there."""
        raise NotImplementedError

    def result(self) -> Repacked:
        """Return what was done."""
        raise NotImplementedError

    def fingerprint(self, options: Mapping[str, Any]) -> str:
        """Return what decides the contents of the outputs."""
        states = [(path, repr(self._state(path))) for path in self._files.paths]
        said = {name: value for name, value in options.items() if name not in {"storage_options", "cache_dir"}}
        text = repr((states, self._layout, self._drop, sorted(said.items(), key=str), self._further()))
        return hashlib.sha256(text.encode()).hexdigest()

    def _further(self) -> Any:
        return None

    def _state(self, path: str) -> Any:
        if is_url(path):
            return self._files.states.get(path) or self._files.scope.storage.identity(path)
        return FileIdentity.of(check_regular_file(path))

    def _input_names(self) -> list[str]:
        """Return a name for each input: its path below the folder that all of them share."""
        paths = self._files.paths
        if len(paths) == 1:
            return [os.path.basename(paths[0])]
        folders = [path.split("/")[:-1] for path in paths]
        shared = 0
        while all(len(each) > shared for each in folders) and len({each[shared] for each in folders}) == 1:
            shared += 1
        return ["/".join(path.split("/")[shared:]) for path in paths]

    def _write(
        self,
        name: str,
        write: Callable[[OutputFile], object],
        check: Callable[[str], object] | None,
        creation: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write an output, look at it, and give it its name."""
        temporary = self._target.temporary(name)
        page = cast("int | None", self._layout.page)
        with OutputFile(temporary, threads=self._threads, page=page, **creation) as file:
            write(file)
            file.close()
            if check is not None:
                file.verify()
                check(temporary)
            self._after += Path(temporary).stat().st_size
            self._target.put(temporary, name)


class _ArrayWork(_Work):
    """Each file, array by array."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._chunks = [0, 0]
        self._states = {path: self._state(path) for path in self._files.paths}

    def names(self) -> list[str]:
        return self._input_names()

    def survey(self) -> None:
        for path in self._files.paths:
            if not is_url(path):
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
        total = sum(_size_of(self._states[path]) for path in self._files.paths)
        done = 0
        for path, name in zip(self._files.paths, self.names(), strict=True):
            size = _size_of(self._states[path])
            self._before += size
            if name in kept:
                self._after += Path(self._target.place(name)).stat().st_size
            else:
                local = self._fetched(path, name) if is_url(path) else path
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
            if local == path:
                check_state(path, FileState(self._states[path]), self._files.scope.storage)

        self._write(name, write, check if verify else None, self._creation(local))
        self._dropped += copy.result.dropped
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
        with open(path, "wb") as file:
            for start in range(0, source.size, _PIECE):
                piece = bytearray(min(_PIECE, source.size - start))
                source.read_into(start, memoryview(piece))
                file.write(piece)
        return path

    def result(self) -> Repacked:
        before, after = self._chunks
        return Repacked([], [], None, self._before, self._after, before, after, dropped=tuple(self._dropped))


class _RowWork(_Work):
    """Rows of all files, chosen and ordered."""

    def __init__(
        self,
        files: FileOptions,
        target: Target,
        layout: Layout,
        where: str | pc.Expression | None,
        seed: int | None,
        per_file: int | None,
        count: int | None,
        drop: bool,
        threads: int,
        *,
        names: set[str],
    ) -> None:
        super().__init__(files, target, layout, drop, threads)
        if layout.codec == "keep":
            raise OptionError("codec='keep': rows that are chosen or ordered are encoded again; expected a codec")
        self._seed, self._where, self._chosen = seed, where, names
        self._index = files.index()
        predicate = parse_where(where) if isinstance(where, str) else where
        self._plan = self._planned(predicate)
        self._by_input = seed is None and per_file is None and count is None and not target.is_file
        self._sizes = self._sizes_of(per_file, count or (1 if target.is_file else None))
        self._rows = Rows(self._plan, self._forms(), self._index.chunk_group_rows if self._index.scope.by_axis else 1)

    def _planned(self, predicate: pc.Expression | None) -> ReadPlan:
        index: RowIndex = self._index
        selection = None
        if predicate is not None:
            from ray_h5.predicates.evaluate import as_expression

            selection = select(index, index.delivered, as_expression(predicate))
            if not len(selection):
                raise PredicateError(f"where={self._where!r}: none of {index.num_rows} rows passes")
        delivered = index.delivered
        return make_plan(index, [delivered[name] for name in index.names], selection)

    def _sizes_of(self, per_file: int | None, count: int | None) -> list[int]:
        """Return the rows of each output."""
        total, starts = self._plan.num_rows, self._plan.files.starts
        if self._by_input:
            chosen = starts if self._plan.selection is None else np.searchsorted(self._plan.selection, starts)
            return [int(n) for n in np.diff(chosen)]
        if per_file is None:
            per_file = -(-total // (count or len(self._files.paths)))
        return [min(per_file, total - first) for first in range(0, total, per_file)] if total else [0]

    def names(self) -> list[str]:
        if self._by_input:
            paths = self._plan.files.all_paths()
            by_path = dict(zip(self._files.paths, self._input_names(), strict=True))
            return [by_path[path] for path, size in zip(paths, self._sizes, strict=True) if size]
        return [f"part-{number:05d}.h5" for number in range(len(self._sizes))]

    def _forms(self) -> dict[str, Form]:
        """Return what columns are written as: with the types that the files have for them, where these are alike."""
        forms = {spec.name: Form.of(spec) for spec in self._plan.columns}
        paths = self._plan.files.all_paths()
        if not self._index.scope.by_axis or is_url(paths[0]) or self._chosen & {"axes", "decode_cf"}:
            return forms
        specs = {spec.name: spec for spec in self._plan.columns}
        of_text = [name for name, form in forms.items() if form.kind == "text" and not specs[name].as_bytes]
        group = self._files.scope.group
        texts = [texts_of_columns(path, of_text, group) for path in paths] if of_text else [{}]
        for name in of_text:
            found = [each.get(name) for each in texts]
            if None not in found:
                longest = max(cast("list[np.dtype]", found), key=lambda each: each.itemsize)
                forms[name] = Form("plain", longest, forms[name].shape)
        with self._plan.open(0) as reader:
            plain = [name for name, form in forms.items() if form.kind == "plain" and name not in self._joined]
            for name, layout in reader.find(plain).items():
                form, spec = forms[name], specs[name]
                if name in self._plan.cast or layout.kind != spec.kind:
                    continue
                values = dict(layout.enum)
                if values and spec.kind == "number" and not form.dtype.names:
                    form = replace(form, dtype=enum_dtype(values, form.dtype))
                forms[name] = (
                    form if layout.fill is None or layout.fill.dtype.names else replace(form, fill=layout.fill)
                )
        return forms

    @property
    def _joined(self) -> Mapping[str, Any]:
        return {} if self._plan.joined is None else self._plan.joined.specs

    def survey(self) -> None:
        for sources in self._sources() if self._by_input else [list(self._plan.files.all_paths())]:
            self._lost(sources)
        if self._dropped and not self._drop:
            raise UnsupportedColumnError(
                f"{self._plan.files.path(0)}: rows that are chosen or ordered cannot keep {few(self._dropped)}. Pass "
                "drop=True to leave it out."
            )

    def _sources(self) -> list[list[str]]:
        return [[path] for path, size in zip(self._plan.files.all_paths(), self._sizes, strict=True) if size]

    def _lost(self, sources: list[str]) -> None:
        for what in self._rest(sources, None):
            if what not in self._dropped:
                self._dropped.append(what)

    def _rest(self, sources: list[str], file: OutputFile | None) -> list[str]:
        """Copy what files hold beside the rows; return what is lost."""
        if any(is_url(path) for path in sources):
            return ["attributes of files in a store"] if file is None else []
        forms = self._rows.forms
        columns = {
            name: name if form.kind in {"plain", "text"} and name not in self._joined else ""
            for name, form in forms.items()
        }
        left_out = [*self._files.attrs.keys(), *self._files.attrs.values()]  # they are columns
        left_out += _OF_CF if "decode_cf" in self._chosen else ()
        rest = Rest(sources, columns, self._files.scope.group, ("encoding-type", "encoding-version", *left_out))
        by_axis = self._index.scope.by_axis and "axes" not in self._chosen
        if "columns" in self._chosen:  # who names columns leaves the rest
            rest.only_columns = True
        elif len(sources) == 1:
            rest.unread = self._unread(sources[0])
        return rest.keep(None if file is None else file.file, attributes_alone=not by_axis)

    def _unread(self, path: str) -> dict[str, int]:
        """Return what has rows in a file and is no column, and how many rows its columns have."""
        number = list(self._plan.files.all_paths()).index(path)
        with self._plan.open(number) as reader:
            rows = int(np.diff(self._plan.files.starts)[number])
            return dict.fromkeys((name for name, _ in readable(reader.layout)[1]), rows)

    def run(self, kept: Sequence[str], verify: bool, progress: Progress) -> None:
        total, done = self._plan.num_rows, 0
        self._before = sum(_size_of(self._state(path)) for path in self._plan.files.all_paths())

        def written(file: OutputFile, batches: Iterator[Batch], sources: list[str]) -> None:
            nonlocal done
            table = TableWriter(file, self._rows.forms, self._layout)
            for columns, count in batches:
                table.append(columns, count)
                done += count
                progress(done, total)
            table.finish()
            file.finish()
            self._rest(sources, file)
            self._check_unchanged(sources)

        everything = list(self._plan.files.all_paths())
        for name, batches, sources in self._outputs(everything):
            if name in kept:
                if not self._by_input:
                    done += sum(count for _, count in batches)  # they lie before those of the next one
                self._after += Path(self._target.place(name)).stat().st_size
                continue
            check = (lambda _: None) if verify else None
            self._write(name, partial(written, batches=batches, sources=sources), check)

    def _outputs(self, everything: list[str]) -> Iterator[tuple[str, Iterator[Batch], list[str]]]:
        if self._by_input:
            starts = self._plan.files.starts.tolist()
            filled = [file for file, size in enumerate(self._sizes) if size]
            for file, name, sources in zip(filled, self.names(), self._sources(), strict=True):
                yield name, self._rows.of_files(starts[file], starts[file + 1]), sources
            return
        if self._seed is None:
            batches = self._rows.all()
        else:
            batches = shuffled(self._rows, self._seed, self._target.temporary, self._threads)
        for name, part in zip(self.names(), cut(batches, self._sizes), strict=True):
            yield name, part, everything

    def _check_unchanged(self, paths: Sequence[str]) -> None:
        numbers = {path: number for number, path in enumerate(self._plan.files.all_paths())}
        for path in paths:
            if not is_url(path):
                check_state(path, self._plan.state(numbers[path]), self._files.scope.storage)

    def _further(self) -> Any:
        return str(self._where), self._seed, self._sizes

    def result(self) -> Repacked:
        return Repacked([], [], self._plan.num_rows, self._before, self._after, dropped=tuple(self._dropped))


def is_slow(facts: ArrayFacts) -> bool:
    """Return whether shuffled rows of an array are slow to read, and other chunks mend it."""
    if facts.chunks is None:
        return False
    is_tiny = facts.chunk_bytes < TINY_BYTES and facts.num_chunks >= TINY_CHUNKS
    is_large = bool(facts.steps) and holds_many_rows(facts.chunks[0], facts.chunk_bytes, facts.shape[0])
    return is_tiny or is_large or facts.is_split or not facts.is_decoded_here


def _check_apart(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    real = {path if is_url(path) else os.path.realpath(path) for path in inputs}
    for path in outputs:
        if (path if is_url(path) else os.path.realpath(path)) in real:
            raise OptionError(
                f"out: {path} is an input, too. Write to another place, and rename it when you are content."
            )


def _no_progress(done: int, total: int) -> None:
    """Show nothing."""


def _advance(progress: Progress, before: int, total: int, done: int) -> None:
    progress(min(before + done, total), total)


def _size_of(state: Any) -> int:
    return int(state.size)


def _measured(result: Repacked, files: FileOptions, out_options: Mapping[str, object] | None) -> Repacked:
    """Return the result with the rows a second of a shuffled epoch, before and after."""
    after = FileOptions.of(result.paths, storage_options=out_options)
    return replace(result, rate_before=_rate(files), rate_after=_rate(after))


def _rate(files: FileOptions) -> float:
    """Return rows a second, read in batches in a random order."""
    index = files.index()
    delivered = index.delivered
    plan = make_plan(index, [delivered[name] for name in index.names])
    drawn = np.random.default_rng(0).permutation(plan.num_rows)[:_SAMPLED_ROWS]
    began, count = time.perf_counter(), 0
    for start in range(0, len(drawn), _BATCH_ROWS):
        rows = drawn[start : start + _BATCH_ROWS]
        read_rows(plan, rows)
        count += len(rows)
        if time.perf_counter() - began > _SAMPLED_SECONDS:
            break
    return count / max(time.perf_counter() - began, 1e-9)


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
