"""Writes one HDF5 file: chunks are encoded in threads, without libhdf5, and written as they are."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import zlib
from array import array as numbers
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import h5py
import numpy as np

from ray_h5.buffers import as_bytes
from ray_h5.codecs.encode import CodecName, Encoder
from ray_h5.codecs.pipeline import ChunkDecoder, DecodeError
from ray_h5.errors import RayH5Error, VerifyError, WriteFailedError
from ray_h5.hdf5.files import opening  # noqa: F401  registers with libhdf5 the filters of the datasets that are made
from ray_h5.manifest.layout import FilterStep
from ray_h5.storage.local import write_at
from ray_h5.system import read_at
from ray_h5.writing.copy_objects import new_links, pipeline_of, raw_fill

if TYPE_CHECKING:
    from typing_extensions import Self

IN_FLIGHT_BYTES = 32 << 20
"""Bytes of chunks that wait to be encoded or written. A chunk for each thread is allowed in any case."""

_WAITING_BYTES = 2 << 10
"""What a chunk takes that waits, beside its values."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OPTIONAL = h5py.h5z.FLAG_OPTIONAL
_MOST_KEPT_BYTES = 64 << 20
_METADATA_BYTES = 64 << 10

TEXT = h5py.string_dtype()
"""The dtype of texts of any length, in UTF-8."""

Attributes: TypeAlias = Mapping[str, Any]
Corner: TypeAlias = tuple[int, ...]


class OutputFile:
    """A new HDF5 file. It is complete after `close`; the disk has it after `sync`.

    Parameters
    ----------
    path : str
        The file. There must be none.
    threads : int
        Threads that encode.
    page : int, optional
        Bytes of a page of paged file space. Metadata then lie together, at the front of the file.
    keeps_sums : bool
        Whether to keep a checksum of the values of each chunk, for `verify`.
    **creation
        Further properties of the file, for `h5py.File`.
    """

    def __init__(
        self, path: str, *, threads: int = 1, page: int | None = None, keeps_sums: bool = False, **creation: Any
    ) -> None:
        self.path, self.keeps_sums = path, keeps_sums
        self._arrays: dict[str, OutputArray] = {}
        self._waiting: deque[tuple[OutputArray, Corner, Future[tuple[Any, int, int]], int]] = deque()
        self._waiting_bytes = 0
        self._threads = threads
        paged = {} if page is None else {"fs_strategy": "page", "fs_page_size": page, "fs_persist": False}
        with writing(path):
            self._disk = DiskFile(path)
            self.file = h5py.File(self._disk, "w", **paged, **creation)
        self._pool = ThreadPoolExecutor(threads, "ray_h5-encode")
        self._is_open = True

    @contextlib.contextmanager
    def writing(self, doing: str = "writing it") -> Iterator[None]:
        """Raise errors of h5py and of the disk as a `WriteFailedError` that says what to do."""
        with writing(self.path, doing):
            try:
                yield
            finally:
                if self._disk.error is not None:
                    raise self._disk.error

    # What is in it -------------------------------------------------------------------------------

    def group(self, name: str, attributes: Attributes | None = None) -> h5py.Group:
        """Return a group, which is made if it is not there; set attributes of it."""
        with self.writing():
            group = self.file.require_group(name or "/")
            for attribute, value in (attributes or {}).items():
                group.attrs[attribute] = value
        return group

    def array(
        self, name: str, dtype: np.dtype, row_shape: tuple[int, ...], chunk_rows: int, codec: CodecName = "zstd"
    ) -> OutputArray:
        """Add an array that grows along its first axis.

        Parameters
        ----------
        name : str
            Its path.
        dtype : numpy.dtype
            The type of its values, as h5py has it. Texts of variable length are `h5py.string_dtype()`.
        row_shape : tuple of int
            Shape of a row.
        chunk_rows : int
            Rows of a chunk; fewer if the array has fewer rows.
        codec : str
            How chunks are encoded; see `Encoder`.
        """
        encoder = Encoder(codec, max(1, dtype.itemsize))
        self._arrays[name] = OutputArray(self, name, dtype, row_shape, chunk_rows, encoder)
        return self._arrays[name]

    def array_of(self, dataset: h5py.Dataset, dtype: np.dtype, codec: CodecName) -> OutputArray:
        """Return what writes the rows of a chunked dataset of this file, whose chunks are whole rows."""
        name = str(dataset.name).strip("/")
        encoder = Encoder(codec, max(1, dtype.itemsize), checksum=bool(dataset.fletcher32))
        self._arrays[name] = OutputArray(self, name, dtype, dataset.shape[1:], dataset.chunks[0], encoder, dataset)
        return self._arrays[name]

    def submit(self, array: OutputArray, corner: Corner, chunk: np.ndarray) -> None:
        """Encode a chunk, in another thread if there are several. Chunks are written in this one, in their order."""
        if self._threads == 1:
            self._write(array, corner, *array.encoded(chunk))
            return
        nbytes = chunk.nbytes + _WAITING_BYTES
        self._waiting.append((array, corner, self._pool.submit(array.encoded, chunk), nbytes))
        self._waiting_bytes += nbytes
        while self._waiting_bytes > IN_FLIGHT_BYTES and len(self._waiting) > self._threads:
            self._write_next()
        while self._waiting and self._waiting[0][2].done():
            self._write_next()

    def _write_next(self) -> None:
        array, corner, future, nbytes = self._waiting.popleft()
        self._waiting_bytes -= nbytes
        self._write(array, corner, *future.result())

    def _write(self, array: OutputArray, corner: Corner, data: Any, mask: int, crc: int) -> None:
        """Write the stored bytes of a chunk."""
        if self.keeps_sums:
            array.sums.append(crc)
        assert array.dataset is not None
        with self.writing():
            array.dataset.id.write_direct_chunk(corner, data, mask)

    # Its end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the rows that are left, and close the file."""
        for array in self._arrays.values():
            array.finish()
        while self._waiting:
            self._write_next()
        with self.writing():
            self.file.close()
            self._is_open = False
        self._disk.close()
        self._pool.shutdown()

    def abandon(self) -> None:
        """Close and remove the file."""
        self._pool.shutdown(cancel_futures=True)
        if self._is_open:
            self._is_open = False
            self._disk.error = self._disk.error or OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            with contextlib.suppress(Exception):
                self.file.close()
        self._disk.close()
        with contextlib.suppress(OSError):
            Path(self.path).unlink()

    def verify(self) -> None:
        """Read all chunks back, and compare them with the sums of what was to be written; the file is closed.

        Raises
        ------
        VerifyError
            If one differs.
        """
        assert self.keeps_sums
        with (
            writing(self.path, "reading it back"),
            h5py.File(self.path, "r", locking=False) as file,
            ThreadPoolExecutor(self._threads, "ray_h5-verify") as pool,
        ):
            for name, array in self._arrays.items():
                if what := array.difference(file[name], pool):
                    raise VerifyError(
                        f"{self.path}: column {name!r}: read back, {what} differs from what was written. The disk or "
                        "its driver changes data; nothing was put in place. Try another disk."
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._is_open:
            try:
                self.close()
            except BaseException:
                self.abandon()
                raise
        elif kind is not None:
            self.abandon()


class OutputArray:
    """An array of an `OutputFile`; `OutputFile.array` makes it, and `OutputFile.array_of` that of a dataset."""

    def __init__(
        self,
        file: OutputFile,
        name: str,
        dtype: np.dtype,
        row_shape: tuple[int, ...],
        chunk_rows: int,
        encoder: Encoder,
        dataset: h5py.Dataset | None = None,
    ) -> None:
        self.name, self.dtype, self.row_shape = name, dtype, row_shape
        self.rows = 0
        self._submitted = 0  # chunks
        self._extent = 0 if dataset is None else int(dataset.shape[0])
        self.sums = numbers("I")
        """The checksums of the values of the chunks, in their order."""
        self.dataset = dataset
        self._file = file
        self._is_direct = not dtype.hasobject
        self._row_bytes = dtype.itemsize * math.prod(row_shape)
        self._chunk_rows = max(1, chunk_rows)
        self._encoder = encoder
        self._rest = np.empty((0, *row_shape), dtype)
        self._fill: Any = np.zeros((), dtype) if dataset is None else raw_fill(dataset).view(dtype)

    def append(self, values: np.ndarray) -> None:
        """Add rows. Their memory must not change before the file is closed."""
        count, start = len(values), self.rows
        self.rows += count
        if not self._is_direct:
            dataset = self._made()
            with self._file.writing():
                dataset.resize(self.rows, axis=0)
                if count:
                    dataset[start:] = values
            return
        if not self._row_bytes:
            return
        values = np.ascontiguousarray(values, self.dtype)
        at = 0
        if len(self._rest):
            at = min(count, self._chunk_rows - len(self._rest))
            self._rest = np.concatenate([self._rest, values[:at]], dtype=self.dtype)  # it would turn big-endian values
            if len(self._rest) == self._chunk_rows:
                self._submit(self._rest)
                self._rest = self._rest[:0]
        while count - at >= self._chunk_rows:
            self._submit(values[at : at + self._chunk_rows])
            at += self._chunk_rows
        if at < count:
            self._rest = values[at:].copy()

    def _submit(self, chunk: np.ndarray) -> None:
        dataset = self._made()
        start = self._submitted * self._chunk_rows
        self._submitted += 1
        if self._extent < min(start + self._chunk_rows, self.rows):
            # Never beyond the rows that there are: to shrink a dataset, libhdf5 decodes its last chunk.
            with self._file.writing():
                dataset.resize(self.rows, axis=0)
            self._extent = self.rows
        self._file.submit(self, self._corner(start), chunk)

    def _corner(self, row: int) -> Corner:
        return (row, *(0 for _ in self.row_shape))

    def encoded(self, chunk: np.ndarray) -> tuple[Any, int, int]:
        """Return the stored bytes of a chunk, its filter mask, and the checksum of its values, or 0 if none is kept."""
        data = as_bytes(chunk)
        return *self._encoder.encode(data), zlib.crc32(data.data) if self._file.keeps_sums else 0

    def finish(self) -> None:
        """Submit the rows of the last chunk, which is filled up."""
        if len(self._rest):
            if self.dataset is None:
                self._chunk_rows = len(self._rest)
            chunk = np.empty((self._chunk_rows, *self.row_shape), self.dtype)
            chunk[len(self._rest) :] = self._fill  # what rows begin with that the array grows by later
            chunk[: len(self._rest)] = self._rest
            self._rest = self._rest[:0]
            self._submit(chunk)
        dataset = self._made()
        with self._file.writing():
            if dataset.shape[0] != self.rows:
                dataset.resize(self.rows, axis=0)

    def _made(self) -> h5py.Dataset:
        """Return the dataset. It is made late: an array of few rows gets a chunk of its own size."""
        if self.dataset is None:
            file, row_shape = self._file.file, self.row_shape
            with self._file.writing():
                if all(row_shape):
                    type_ = h5py.h5t.py_create(self.dtype, logical=True)
                    chunks, steps = (self._chunk_rows, *row_shape), self._encoder.steps if self._is_direct else ()
                    self.dataset = new_chunked(file, self.name, (0, *row_shape), type_, chunks, steps)
                else:  # rows without values cannot be chunked
                    self.dataset = file.create_dataset(self.name, (self.rows, *row_shape), self.dtype)
        return self.dataset

    def difference(self, dataset: h5py.Dataset, pool: ThreadPoolExecutor) -> str:
        """Return what of the shape and the chunks that a file holds is not what was appended; "" if all is."""
        expected_shape = (self.rows, *self.row_shape)
        if dataset.shape != expected_shape:
            return f"shape {dataset.shape}, expected {expected_shape},"
        size = self._chunk_rows * self._row_bytes
        decoder = ChunkDecoder(pipeline_of(dataset), size)

        def checksum(stored: tuple[int, bytes]) -> int | None:
            (mask, data), out = stored, np.empty(size, np.uint8)
            with contextlib.suppress(DecodeError):
                decoder.decode(np.frombuffer(data, np.uint8), mask, out)
                return zlib.crc32(out.data)
            return None

        most = max(2, IN_FLIGHT_BYTES // (size + _WAITING_BYTES))
        for start in range(0, len(self.sums), most):
            part = self.sums[start : start + most]
            corners = [self._corner((start + number) * self._chunk_rows) for number in range(len(part))]
            stored = [dataset.id.read_direct_chunk(corner) for corner in corners]
            for corner, expected, found in zip(corners, part, pool.map(checksum, stored), strict=True):
                if found != expected:
                    return f"the chunk at {corner}"
        return ""


class DiskFile(io.RawIOBase):
    """A new file, as h5py takes it. libhdf5 does not see that a write failed.

    If one fails while libhdf5 writes metadata, as on a full disk, it cannot close the file any more, and the process
    crashes when it tries. So what cannot be written stays in memory, and is read from there, until libhdf5 has closed
    the file; `error` says why the file is of no use.

    Parameters
    ----------
    path : str
        The file. There must be none.
    """

    _fd = -1

    def __init__(self, path: str) -> None:
        self.error: OSError | None = None
        """Once there is one, nothing more is written to the disk."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._at = self._size = 0
        self._kept: list[tuple[int, bytes]] = []
        self._kept_bytes = 0

    def write(self, data: Any) -> int:
        """Write at the current offset; after an error, keep it in memory."""
        if self.error is None:
            try:
                write_at(self._fd, data, self._at)
            except OSError as exc:
                self.error = exc
        if self.error is not None:
            if self._kept_bytes > _MOST_KEPT_BYTES and len(data) > _METADATA_BYTES:
                raise self.error  # values: libhdf5 can fail to write those
            self._kept.append((self._at, bytes(data)))
            self._kept_bytes += len(data)
        self._at += len(data)
        self._size = max(self._size, self._at)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the current offset; with zeros past the end."""
        done, buffer = 0, memoryview(buffer)  # a slice of a bytearray would be a copy
        while done < len(buffer) and (more := read_at(self._fd, buffer[done:], self._at + done)):
            done += more
        buffer[done:] = bytes(len(buffer) - done)
        end = self._at + len(buffer)
        for start, data in self._kept:
            first, stop = max(start, self._at), min(start + len(data), end)
            if first < stop:
                buffer[first - self._at : stop - self._at] = data[first - start : stop - start]
        self._at = end
        return len(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the current offset."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        size = self._at if size is None else size
        if self.error is None:
            try:
                os.ftruncate(self._fd, size)
            except OSError as exc:
                self.error = exc
        self._size = size
        return size

    def close(self) -> None:
        """Close the file, after libhdf5 did."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __repr__(self) -> str:
        return self._path  # h5py takes it for the name of the file


def new_chunked(
    parent: h5py.Group,
    name: str,
    shape: tuple[int, ...],
    type_: h5py.h5t.TypeID,
    chunks: tuple[int, ...],
    steps: tuple[FilterStep, ...],
    maxshape: tuple[int | None, ...] | None = None,
    plist: h5py.h5p.PropDCID | None = None,
) -> h5py.Dataset:
    """Return a new chunked dataset. Its first axis can grow, unless `maxshape` says otherwise.

    `plist` has further properties, such as a fill value.
    """
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE) if plist is None else plist.copy()
    made.remove_filter(h5py.h5z.FILTER_ALL)
    made.set_chunk(chunks)
    made.set_fill_time(h5py.h5d.FILL_TIME_IFSET)
    made.set_alloc_time(h5py.h5d.ALLOC_TIME_INCR)  # others allocate all chunks at the first write
    for step in steps:
        if step.id == h5py.h5z.FILTER_SHUFFLE:
            made.set_shuffle()
        elif step.id == h5py.h5z.FILTER_DEFLATE:
            made.set_deflate(*step.client_data)
        elif step.id == h5py.h5z.FILTER_FLETCHER32:
            made.set_fletcher32()
        else:
            made.set_filter(step.id, _OPTIONAL, step.client_data)
    limits = (None, *shape[1:]) if maxshape is None else maxshape
    space = h5py.h5s.create_simple(shape, tuple(h5py.h5s.UNLIMITED if n is None else n for n in limits))
    return h5py.Dataset(h5py.h5d.create(parent.id, name.encode(), type_, space, dcpl=made, lcpl=new_links()))


def sum_of_objects(values: np.ndarray) -> int:
    """Return a checksum of texts, of arrays of varying length, or of compound values of them."""
    values, total = np.asarray(values), 0
    if values.dtype.names is not None:
        for name in values.dtype.names:
            total = zlib.crc32(sum_of_objects(values[name]).to_bytes(4, "little"), total)
        return total
    if not values.dtype.hasobject:
        return zlib.crc32(np.ascontiguousarray(values).tobytes())
    for value in values.reshape(-1).tolist():
        data = value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, bytes) else None
        if data is None:  # an array of varying length
            data = sum_of_objects(value).to_bytes(4, "little")
        total = zlib.crc32(data, zlib.crc32(len(data).to_bytes(8, "little"), total))
    return total


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """Return a dtype as h5py stores it: times are opaque values that say what they are."""
    return h5py.opaque_dtype(dtype) if dtype.kind in "Mm" else dtype


def sync(path: str) -> None:
    """Wait until the disk has a file, or the entries of a folder."""
    with writing(path, "writing it to the disk"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def writing(path: str, doing: str = "writing it") -> Iterator[None]:
    """Raise errors of h5py and of the operating system as a `WriteFailedError` that says what to do."""
    try:
        yield
    except RayH5Error:
        raise
    except (OSError, RuntimeError, ValueError) as exc:
        code = getattr(exc, "errno", None)
        reason = os.strerror(code) if code else " ".join(str(exc).split())
        if code in _FULL:
            raise WriteFailedError(
                f"{path}: the disk is full, or the file larger than is allowed ({reason}). The part that was written "
                "is removed. Make space, or write elsewhere."
            ) from exc
        raise WriteFailedError(f"{path}: {doing} failed: {reason}. The part that was written is removed.") from exc
