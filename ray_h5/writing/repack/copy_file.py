"""Copies a file object by object. Arrays whose layout changes are decoded and encoded; all else is copied as it is.

Groups, attributes, links inside the file, types, fill values, dimension scales and references stay what they are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from ray_h5.buffers import empty
from ray_h5.codecs.encode import CodecName, Encoder
from ray_h5.codecs.filter_ids import BLOSC, BZIP2, DEFLATE, FLETCHER32, LZ4, SHUFFLE, ZSTD
from ray_h5.codecs.pipeline import ChunkDecoder, DecodeError
from ray_h5.errors import CorruptFileError, RayH5Error, UnsupportedColumnError, VerifyError
from ray_h5.hdf5.columns.chunk_lists import listed_in_tree
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.hdf5.files.links import LinkedFiles, Trail
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.format.file_bytes import ObjectId, address_of
from ray_h5.hdf5.tree.attributes import TextGuard
from ray_h5.manifest.known_columns import num_chunks
from ray_h5.manifest.layout import ColumnLayout, FilterPipeline
from ray_h5.manifest.row_requests import Request
from ray_h5.messages import few
from ray_h5.read.library_filters import decode_by_library
from ray_h5.read.read_parts import FileRead, Part
from ray_h5.read.reader import FileReader
from ray_h5.storage.local import absolute_path
from ray_h5.writing.copy_objects import (
    NamedTypes,
    copy_attribute,
    copy_object,
    copy_references,
    copy_userblock,
    dtype_of,
    layout_of,
    new_links,
    new_properties,
    pipeline_of,
    raw_values,
    refers,
    slabs,
    stored_chunks,
)
from ray_h5.writing.file_writer import OutputFile, new_chunked, sum_of_objects

SLAB_BYTES = 64 << 20
"""Bytes of rows that are read at a time; one input chunk, if it is larger."""

PIECE = 8 << 20
_SUPERBLOCK_1_8 = 2
_MOST_ROW_BYTES = 1 << 31
_CODECS: dict[int, CodecName] = {ZSTD: "zstd", LZ4: "lz4", DEFLATE: "gzip", BLOSC: "blosc"}


@dataclass(frozen=True, slots=True)
class NewLayout:
    """How an array is written: rows of a chunk, and the codec."""

    chunk_rows: int
    codec: CodecName


Rule = Callable[[ColumnLayout], "NewLayout | None"]
"""Returns how an array is laid out; None to copy it as it is."""


@dataclass(slots=True)
class Copied:
    """What a copy did."""

    rewritten: int = 0
    dropped: list[str] = field(default_factory=list)
    chunks_before: int = 0
    chunks_after: int = 0
    file_bytes: int = 0
    """The size of the copy."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    what: Literal["group", "array", "type", "soft", "hard"]
    target: str = ""
    layout: NewLayout | None = None


class FileCopy:
    """The copy of one file into another. A new one looks at the file, and decides about each array.

    Parameters
    ----------
    file : h5py.File
        The file, which stays open.
    source : str
        Its path.
    rule : callable
        How each array is laid out.
    drop : bool
        Whether to leave out what cannot be kept, instead of raising.
    threads : int
        Threads that decode and encode.

    Raises
    ------
    UnsupportedColumnError
        If something cannot be kept, and `drop` is False.
    """

    def __init__(self, file: h5py.File, source: str, rule: Rule, *, drop: bool = False, threads: int = 1) -> None:
        self._file, self._source, self._rule, self._threads = file, source, rule, threads
        self.result = Copied()
        self._type_paths: dict[int, str] = {}
        with translated(source, "listing what it holds"):
            plist, root = file.id.get_create_plist(), file["/"].id.get_create_plist()
            is_ordered = bool(root.get_link_creation_order() | root.get_attr_creation_order())
            # Attributes above 64 KiB, and names in the order of creation, need the format of HDF5 1.8.
            version = ("v108", "latest") if plist.get_version()[0] >= _SUPERBLOCK_1_8 else None
            self.creation: dict[str, Any] = {
                "track_order": is_ordered,
                "userblock_size": file.userblock_size,
                "libver": version,
            }
            """With which properties the copy is created: those of `h5py.File`."""
            self._entries = list(self._listed())
            # In the order of their creation, types come first.
            if self._type_paths and not root.get_link_creation_order():
                self._entries.sort(key=lambda entry: entry.what not in {"group", "type"})
        if self.result.dropped and not drop:
            raise UnsupportedColumnError(
                f"{source}: a copy cannot keep {few(self.result.dropped)}. Pass drop=True to leave it out."
            )

    def write(self, out: OutputFile, progress: Callable[[int], object] = lambda _: None) -> None:
        """Write the copy. `progress` is called with the bytes of each part of the input that is done."""
        self._progress, self._types = progress, NamedTypes(self._type_paths, out.file)
        with FileReader(Access(absolute_path(self._source)), self._threads) as reader, contextlib.ExitStack() as stack:
            # A local copy of a file in a store is removed: the cache of open files would keep its bytes on the disk.
            stack.callback(reader.opened.forget)
            with out.writing():
                copy_userblock(self._file, out.path, out.file.userblock_size)
            for entry in self._entries:
                self._copy(entry, out, reader)
            for path in ["/", *(entry.path for entry in self._entries if not entry.target)]:
                self._finish(self._file[path], out.file[path], out)

    def verify(self, path: str) -> None:
        """Compare the arrays that were copied as they are, byte by byte, as they are stored.

        Raises
        ------
        VerifyError
            If one differs.
        """
        with h5py.File(path, locking=False) as other:
            for name in (entry.path for entry in self._entries if entry.what == "array" and not entry.layout):
                if not _stored_alike(self._file[name], other[name]):
                    raise VerifyError(
                        f"{path}: {name!r} read back differs from {self._source}. The disk or its driver changes "
                        "data; nothing was put in place. Try another disk."
                    )

    # What there is ---------------------------------------------------------------------------------

    def _listed(self) -> Iterator[_Entry]:
        """Yield all that is in the file, each object once, groups before what is in them."""
        file, root_size, lose = self._file, Path(self._source).stat().st_size, self.result.dropped.append
        self._survey_attributes("/", file)
        trail = Trail(Access(self._source, "/", ExternalPolicy()), LinkedFiles())
        seen: dict[ObjectId, str] = {address_of(file.id): "/"}  # an empty name for what a copy cannot keep
        groups: list[tuple[str, h5py.Group]] = [("", file)]
        while groups:
            prefix, group = groups.pop()
            for name in group:
                path = f"{prefix}{name}"
                if isinstance(name, bytes):
                    lose(f"{name!r} in {prefix or '/'!r}, a name that is not UTF-8")
                    continue
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    lose(f"{path!r}, a link to another file ({link.filename})")
                    continue
                if isinstance(link, h5py.SoftLink):  # its path is not the one that is stored, if that is not UTF-8
                    yield _Entry(path, "soft", group.id.links.get_val(name.encode()).decode("utf-8", "surrogateescape"))
                    continue
                item = trail.hard_target(group, name.encode(), path) or group[name]  # if it is not found, it raises
                key = address_of(item.id)
                if (first := seen.get(key)) is not None:
                    if first:
                        yield _Entry(path, "hard", first)
                    continue
                seen[key] = path
                self._survey_attributes(path, item)
                if isinstance(item, h5py.Group):
                    yield _Entry(path, "group")
                    groups.append((f"{path}/", item))
                elif isinstance(item, h5py.Datatype):
                    self._type_paths[key[1]] = path
                    yield _Entry(path, "type")
                elif (entry := self._array(path, item, root_size)) is not None:
                    yield entry
                else:
                    seen[key] = ""

    def _array(self, path: str, dataset: h5py.Dataset, file_bytes: int) -> _Entry | None:
        """Return how an array is laid out; None, and note it, if a copy cannot keep it."""
        plist, dtype, stored = dataset.id.get_create_plist(), dtype_of(dataset.id), dataset.id.get_storage_size()
        layout, why = plist.get_layout(), "whose type h5py cannot read" if dtype is None else ""
        if layout == h5py.h5d.VIRTUAL:
            why = "a virtual dataset of other files"
        elif layout == h5py.h5d.CONTIGUOUS and plist.get_external_count():
            why = "whose values are in other files"
        if why or dtype is None:
            self.result.dropped.append(f"{path!r}, {why}")
            return None
        if stored > file_bytes and dtype.kind != "O":
            raise CorruptFileError(
                f"{self._source}: {path!r} takes {stored} bytes, and the file has {file_bytes}. Restore it from a copy."
            )
        array = layout_of(dataset)
        chunks = num_chunks(array) if array.chunk_shape else 1
        self.result.chunks_before += chunks
        has_rows = bool(dataset.shape) and all(dataset.shape) and not dtype.hasobject
        # An array that was not written takes no bytes, and all of them in other chunks. libhdf5 makes no new arrays of
        # integers that have many bits less than their bytes.
        is_written = stored > 0 and (dataset.chunks is None or 2 * dataset.id.get_num_chunks() >= chunks)
        type_ = dataset.id.get_type()
        has_unused_bits = isinstance(type_, h5py.h5t.TypeIntegerID) and type_.get_precision() != 8 * type_.get_size()
        may_change = has_rows and is_written and not has_unused_bits and array.row_bytes < _MOST_ROW_BYTES
        new = self._rule(array) if may_change else None
        # Levels of codecs do not count.
        is_new = new is not None and (
            array.chunk_shape != (min(new.chunk_rows, array.num_rows), *array.row_shape)
            or codec_of(array.pipeline) != new.codec
        )
        if new is None or not is_new:
            self.result.chunks_after += chunks
            return _Entry(path, "array")
        self.result.rewritten += 1
        self.result.chunks_after += -(-dataset.shape[0] // new.chunk_rows)
        return _Entry(path, "array", layout=new)

    def _survey_attributes(self, path: str, item: Any) -> None:
        guard: TextGuard | None = None
        for name in item.attrs:
            dtype = dtype_of(item.attrs.get_id(name))
            if dtype is None:
                self.result.dropped.append(f"attribute {name!r} of {path!r}, whose type h5py cannot read")
            elif h5py.check_string_dtype(dtype) is not None and dtype.hasobject and isinstance(name, str):
                guard = guard or TextGuard(item.file)
                guard.check(item.id, path, name)

    # Writing it ------------------------------------------------------------------------------------

    def _copy(self, entry: _Entry, out: OutputFile, reader: FileReader) -> None:
        path, item = entry.path, None if entry.target else self._file[entry.path]
        if entry.layout is not None:
            self._rewrite(path, item, entry.layout, out, reader)
            return
        if isinstance(item, h5py.Dataset):
            self._look_at_values(path, item, reader)
        # The disk has errors of its own: those of h5py are about the source.
        with out.writing(), translated(self._source, f"copying {path!r}"):
            if entry.what == "soft":
                out.file.id.links.create_soft(
                    path.encode(), entry.target.encode("utf-8", "surrogateescape"), lcpl=new_links()
                )
            elif item is None:
                out.file[path] = out.file[entry.target]
            elif isinstance(item, h5py.Group):
                properties = new_properties(item.id.get_create_plist())
                h5py.h5g.create(out.file.id, path.encode(), lcpl=new_links(), gcpl=properties)
            else:
                copy_object(item, out.file, path, self._types)
        if isinstance(item, h5py.Dataset):
            self._progress(item.id.get_storage_size())

    def _look_at_values(self, path: str, dataset: h5py.Dataset, reader: FileReader) -> None:
        """Raise if values are not where their chunks or references say: libhdf5 may crash when it copies them."""
        with translated(self._source, f"reading {path!r}"):
            if dataset.chunks is not None:
                listed_in_tree(dataset, f"{self._source}: {path!r}")
        if dataset.dtype.hasobject:
            self._check_bzip2(path, dataset)
        if not dataset.dtype.hasobject or refers(dataset.dtype) or not dataset.size:
            return
        # Other values of varying length are no column: libhdf5 says what is wrong with them.
        with contextlib.suppress(UnsupportedColumnError):
            if dataset.shape:
                rows = max(1, PIECE // layout_of(dataset).row_bytes)
                for first in range(0, dataset.shape[0], rows):
                    reader.read([path], slice(first, first + rows))
            elif (joined := reader.single(path)) is not None:
                out = np.empty((1, *joined.layouts[0].row_shape), object)
                reader.run(FileRead(reader, [Part(joined, Request.range(0, 0, 1), out)]))

    def _check_bzip2(self, path: str, dataset: h5py.Dataset) -> None:
        """Raise if a bzip2 stream is damaged: its plugin, in which libhdf5 decodes it, may never return."""
        pipeline = pipeline_of(dataset)
        if all(step.id != BZIP2 for step in pipeline.steps):
            return
        where = f"{self._source}: {path!r}"
        out = empty((layout_of(dataset).chunk_bytes,), np.dtype(np.uint8), where)
        decoder = ChunkDecoder(pipeline, len(out), decode_by_library)
        with translated(self._source, f"reading {path!r}"):
            for corner, mask, data in stored_chunks(dataset):
                try:
                    decoder.decode(np.frombuffer(data, np.uint8), mask, out)
                except DecodeError as exc:
                    raise CorruptFileError(f"{where}: its chunk at {corner} cannot be decoded: {exc}") from None

    def _rewrite(self, path: str, dataset: h5py.Dataset, new: NewLayout, out: OutputFile, reader: FileReader) -> None:
        rows, limits = dataset.shape[0], dataset.maxshape
        chunks = (min(new.chunk_rows, rows if limits[0] is not None else new.chunk_rows), *dataset.shape[1:])
        item = dataset.id.get_type().get_size()
        has_checksum = any(step.id == FLETCHER32 for step in pipeline_of(dataset).steps)  # h5py's own may fail
        steps, plist = Encoder(new.codec, item, checksum=has_checksum).steps, dataset.id.get_create_plist()
        with out.writing():
            type_ = self._types.of(dataset.id)
            made = new_chunked(out.file, path, dataset.shape, type_, chunks, steps, limits, plist)
        step = dataset.chunks[0] if dataset.chunks else 1  # so that each chunk is decoded once
        slab = -(-max(1, SLAB_BYTES // max(1, item * math.prod(dataset.shape[1:]))) // step) * step
        layout = None
        with contextlib.suppress(RayH5Error):  # what is no column of rows is read by libhdf5
            layout = reader.column(path)
        is_direct = layout is not None and layout.direct and layout.shape == dataset.shape
        stored = layout.stored_dtype if is_direct and layout is not None else np.dtype((np.void, item))
        array = out.array_of(made, stored, new.codec)
        if not is_direct:
            self._check_bzip2(path, dataset)
        for part in slabs(dataset, slab):
            with translated(self._source, f"reading {path!r}"):
                values = reader.read([path], part)[path] if is_direct else raw_values(dataset, part)
            array.append(values)
            self._progress(len(values) * dataset.id.get_storage_size() // max(rows, 1))

    # Attributes and references ---------------------------------------------------------------------

    def _finish(self, item: Any, made: Any, out: OutputFile) -> None:
        """Copy what refers to other objects, now that all are there, and the attributes that a copy lacks."""
        for name in item.attrs:
            dtype = dtype_of(item.attrs.get_id(name))
            if dtype is not None and (refers(dtype) or name not in made.attrs):
                with out.writing(f"writing attribute {name!r} of {item.name!r}"):
                    copy_attribute(item, made, name, self._types)
        if isinstance(item, h5py.Dataset) and refers(item.dtype) and item.size:
            with out.writing():
                copy_references(item, made)


def codec_of(pipeline: FilterPipeline) -> CodecName | None:
    """Return the codec of chunks by its name; None for one that is not encoded here."""
    codecs = [step.id for step in pipeline.steps if step.id not in {SHUFFLE, FLETCHER32}]
    return "none" if not codecs else _CODECS.get(codecs[0]) if len(codecs) == 1 else None


def _stored_alike(one: h5py.Dataset, other: h5py.Dataset) -> bool:
    """Return whether two datasets have the same stored bytes; for texts and lists, the same values.

    References are others in each file.
    """
    if one.shape is None or refers(one.dtype):
        return True
    if one.dtype.hasobject:
        return one.shape == other.shape and all(
            sum_of_objects(one[part]) == sum_of_objects(other[part]) for part in slabs(one)
        )
    if one.chunks is None:
        if not one.id.get_storage_size():
            return bool(other.id.get_storage_size() == 0)
        parts = slabs(one, max(1, PIECE // max(1, layout_of(one).row_bytes)))
        return all(raw_values(one, part).tobytes() == raw_values(other, part).tobytes() for part in parts)
    return (
        pipeline_of(one) == pipeline_of(other)
        and other.id.get_num_chunks() == one.id.get_num_chunks()
        and all(other.id.read_direct_chunk(corner) == (mask, data) for corner, mask, data in stored_chunks(one))
    )
