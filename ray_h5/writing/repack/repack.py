"""`repack`: HDF5 files -> HDF5 files that train fast."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from joblib import cpu_count

from ray_h5.codecs.encode import as_codec
from ray_h5.errors import OptionError, SchemaMismatchError
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.file_options import FileOptions
from ray_h5.index.scan_files import Lookup, unreadable_files, warn_of_unreadable
from ray_h5.manifest.file_table import shared_folder
from ray_h5.options import as_integer, takes_options_of
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.row_source import read_rows
from ray_h5.source import Source, SourceOptions
from ray_h5.storage.addresses import split_urls
from ray_h5.storage.find_files import list_paths
from ray_h5.writing.destination import Destination
from ray_h5.writing.layouts import Layout
from ray_h5.writing.output_places import output_of
from ray_h5.writing.repack.work import Outputs, Progress, Repacked, Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.storage.local import PathLike


_SAMPLED_ROWS, _BATCH_ROWS = 256, 16
_LEAST_SECONDS, _SAMPLED_SECONDS = 0.2, 1.5
"""A sample that is read faster than the first is read again; one that takes longer than the second is cut off."""

_OF_ROWS = (
    "zip_files", "columns", "group", "rows", "windows", "sidecar", "attrs", "decode_cf", "axes", "labels", "dtypes",
    "casting",
)  # fmt: skip

_INSTEAD = {name: f"ray_h5.write_h5(ray_h5.read_h5(..., {name}=...), 'out')" for name in _OF_ROWS} | {
    "where": "ray_h5.write_h5(ray_h5.read_h5(...).filter(expr=...), 'out')",
    "shuffle_rows": "ray_h5.write_h5(ray_h5.read_h5(..., shuffle=True), 'out')",
    "rows_per_file": "ray_h5.write_h5(ray_h5.read_h5(...), 'out', rows_per_file=...)",
    "files": "ray_h5.write_h5(ray_h5.read_h5(...), 'out', rows_per_file=...)",
}


@takes_options_of(
    Source, instead={name: f"A copy keeps all rows as they are. Write {call}." for name, call in _INSTEAD.items()}
)
def repack(
    paths: PathLike | Sequence[PathLike],
    out: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    chunk_bytes: int | str | None = None,
    codec: str | None = None,
    page: int | str | None = None,
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

    Each file is copied array by array: groups, attributes, types, links and dimension scales stay. Arrays whose layout
    is good are copied without decoding. Rows that are chosen, ordered or made are written by `write_h5`.

    Memory is bounded: 64 MiB of rows, or those that share one input chunk, and 32 MiB of chunks that are encoded.

    Parameters
    ----------
    **options
        The options of `ray_h5.source.Source` that say which files are read, and how they are reached.
    out : str or path-like
        A file, if it has an extension of HDF5 files or that of the input, or a folder; or the URL of one in a store.
    chunk_rows : int, optional
        Rows of a chunk of each array. By default, arrays that are slow to read get chunks of 64 KiB, and others stay:
        slow are encoded chunks of several rows and 128 KiB or more, rows that are divided, many tiny chunks, and
        filters that only libhdf5 decodes. If there are none, the result says that nothing is gained.
    chunk_bytes : int or str, optional
        Bytes of a chunk before it is encoded, instead of `chunk_rows`. A row is never divided.
    codec : {"zstd", "lz4", "gzip", "blosc", "none", "keep"}, optional
        How the chunks of each array are encoded, after a byte shuffle. ``"keep"`` takes that of the input. By default
        zstd for arrays that get other chunks, and others stay as they are.
    page : int or str, optional
        Bytes of a page of paged file space, such as ``"4MiB"``: metadata lie together, at the front. Planning a file in
        a store then takes few requests.
    drop : bool
        Leave out what cannot be kept, such as links to other files, instead of raising.
    verify : bool
        Read all that was written back, and compare it with what was read, before it gets its name.
    resume : bool
        Go on with a repack that was interrupted: outputs that are complete stay. On a disk, their list is kept in a
        hidden folder beside them, so that a job that always passes it can also start again when all is done.
    overwrite : bool
        Replace outputs that are there.
    measure : bool
        Measure a shuffled epoch before and after, on a sample of rows, unless all arrays are copied as they are.
    out_storage_options : mapping of str to object, optional
        How the store of `out` is reached; by default as `storage_options` say.
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
    workers = cpu_count() if threads is None else as_integer("threads", threads, 1)
    paths = list_paths(paths)
    options_of_store = options.get("storage_options") if out_storage_options is None else out_storage_options
    urls, _ = split_urls(os.fspath(path) for path in (out, *paths))
    if "filesystem" not in options and urls == [os.fspath(out)]:  # nothing that is read can be in a store
        options.pop("storage_options", None)
    readable = _readable(FileOptions.of(paths, threads=workers, **options))
    folder, name = output_of(out, options_of_store, {Path(path).suffix for path in readable.paths} - {""})
    work = Work(readable, layout, bool(drop), bool(verify), workers)
    inputs_as_bytes = [os.fsencode(path) for path in readable.paths]
    cut = len(shared_folder(inputs_as_bytes))
    names = [name] if name else [os.fsdecode(path[cut:]) for path in inputs_as_bytes]
    if len(names) < len(readable.paths):
        raise OptionError(
            f"out={folder.place(name)!r}: {len(readable.paths)} files would be written; expected the name of a folder"
        )
    if shared := folder.input_among(names, readable.paths, readable.scope.storage):
        raise OptionError(
            f"out: {shared} is an input, too. Write to another place, and rename it when you are content."
        )
    work.survey()
    with Outputs(folder, names, work.fingerprint(options)) as outputs:
        outputs.begin(resume=bool(resume), overwrite=bool(overwrite))
        result = work.run(outputs, progress or (lambda _done, _total: None))
    return _measured(result, readable, folder) if measure and not result.gains_nothing else result


def _readable(files: FileOptions) -> FileOptions:
    """Return the files without those that cannot be read, if the user leaves these out."""
    if not files.source.ignore_unreadable_files:
        return files
    errors = unreadable_files(files.paths, Lookup(files.scope, states=files.states), Question(None))
    if errors and len(errors) < len(files.paths):
        warn_of_unreadable(errors, len(files.paths))
        return replace(files, paths=[path for path in files.paths if path not in errors])
    return files


def _measured(result: Repacked, files: FileOptions, folder: Destination) -> Repacked:
    """Return the result with the rows a second of a shuffled epoch, before and after."""
    after = FileOptions.of(result.paths, storage_options=folder.storage_options)
    try:
        for file in (files, after):
            file.index()
    except SchemaMismatchError as exc:
        return replace(result, not_measured=str(exc).partition("\n")[0].rstrip(":."))  # the outputs are complete
    # The first turn also pays for what a process does once, and for pages that are not in memory.
    first, *turns = (_shuffled_rate(file) for file in (files, after, after, files))
    return replace(result, rate_before=max(first, turns[-1]), rate_after=max(turns[:-1]))


def _shuffled_rate(files: FileOptions) -> float:
    """Return rows a second, read in batches in a random order, measured on a sample."""
    index = files.index()
    plan = make_plan(index, [index.outputs[name] for name in index.names])
    drawn = np.random.default_rng(0).permutation(plan.num_rows)[:_SAMPLED_ROWS]
    starts = range(0, len(drawn), _BATCH_ROWS)
    began, count, seconds = time.perf_counter(), 0, 0.0
    for number, start in enumerate(itertools.cycle(starts), 1):
        rows = drawn[start : start + _BATCH_ROWS]
        read_rows(plan, rows)
        count, seconds = count + len(rows), time.perf_counter() - began
        if seconds > (_SAMPLED_SECONDS if number < len(starts) else _LEAST_SECONDS):
            break
    return count / max(seconds, 1e-9)
