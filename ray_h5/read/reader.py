"""Reads rows of one file."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from ray_h5.buffers import check_claim, empty
from ray_h5.errors import OptionError, RayH5Error, UnknownColumnError
from ray_h5.hdf5.files.external_policy import Access
from ray_h5.hdf5.files.metadata_replay import replay
from ray_h5.hdf5.files.opening import HEAD_BYTES
from ray_h5.likely_rows.length_errors import HasRows, hint_of
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.manifest.file_state import FileState, SourceStates, check_same
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, FileLayout, Form, ValueArray
from ray_h5.manifest.row_requests import request_of
from ray_h5.options import as_names, require
from ray_h5.per_process import PerProcess
from ray_h5.read.arguments import Rows, as_places, as_request, as_rows, check_fit, common_rows, fitted
from ray_h5.read.arrays.column import Column, JoinedColumn
from ray_h5.read.casting import Casting
from ray_h5.read.file_plan import jobs_of_parts
from ray_h5.read.file_reads import repeated, run_together
from ray_h5.read.jobs import Job, ReadStats
from ray_h5.read.native.job_table import new_times
from ray_h5.read.open_file import open_file
from ray_h5.read.open_file_base import OpenFile
from ray_h5.read.read_parts import FileRead, Part, outputs
from ray_h5.storage.byte_source import Identity

if TYPE_CHECKING:
    from typing_extensions import Self

Options = ParamSpec("Options")
Result = TypeVar("Result")

OBJECT_BYTES = 64
"""About what a text takes as an object of Python."""


def asked(
    method: Callable[Concatenate[OpenFile, Options], Result],
) -> Callable[Concatenate[FileReader, Options], Result]:
    """Return the method of a reader that asks its open file, and repeats what may pass."""

    @functools.wraps(method)
    def ask(reader: FileReader, /, *args: Options.args, **options: Options.kwargs) -> Result:
        return reader._ask(lambda file: method(file, *args, **options))

    return ask


class FileReader:
    """Reads rows of the columns of one HDF5 file.

    `ray_h5.RowReader` says what its users see, adds rows of other kinds, and checks what they write.

    Parameters
    ----------
    access : Access
        How the file is opened.
    threads : int
        Threads that one `read` may use.
    expect : FileState, optional
        The state that the file, and those that its columns come from, must have.
    known : Manifest, optional
        What is known of it.
    """

    def __init__(
        self, access: Access, threads: int = 1, *, expect: FileState | None = None, known: Manifest | None = None
    ) -> None:
        self._access, self.path, self.group, self.zip_file = access, access.path, access.group, access.beside
        self._known = known.copy() if known else Manifest()  # its own: values are added
        # What a store was asked is kept, for others to know it too.
        self._asked: dict[str, None] = {}
        self.threads, self.stats, self.is_fetched = threads, ReadStats(), access.storage.is_fetched
        self._expect = expect
        # The states of the files that columns have to come from: those of a plan, or before a retry.
        self._expected = {} if self._expect is None else dict(self._expect.sources)
        self._times = new_times()
        self._opened: PerProcess[OpenFile | None] = PerProcess(lambda: None)
        self._closed = False
        self._ask(self._look_at if self._expect is None else lambda _: None)

    @property
    def identity(self) -> Identity:
        """The state of the file."""
        return self.opened.identity

    @property
    def base(self) -> FileReader:
        """The reader of the file: this one."""
        return self

    @property
    def known_bytes(self) -> int:
        """Bytes of the chunk indexes of the columns that are known, once they are unpacked."""
        return sum(index.nbytes for column in self._known.columns.values() for index in column.indexes)

    @property
    def opened(self) -> OpenFile:
        """The open file."""
        if self._closed:
            raise OptionError(f"{self.path}: this reader is closed; make a new one")
        opened = self._opened.value
        if opened is None:
            opened = open_file(self._access, self._expect)
            if self._known:
                opened.adopt(self._known)
            if self._expect is not None:
                check_same(self.path, self._expect.identity, opened.identity, swmr=self._access.swmr)
                # Before libhdf5 opens any of them: a changed one may not be HDF5 any more, or have another shape.
                for name, states in self._expect.sources.items():
                    opened.check_sources(name, states)
            if self._access.swmr:
                opened.layout()  # all columns at one time: the writer does not wait
            self._opened.value = opened
        return opened

    @property
    def layout(self) -> FileLayout[ColumnLayout]:
        """The layout of every column, and the errors of those that cannot be read."""
        return self._ask(OpenFile.layout)

    @property
    def sought(self) -> SourceStates:
        """Other files that decide which columns there are, as far as columns were listed."""
        return self.opened.sought

    @property
    def columns(self) -> Mapping[str, ColumnLayout]:
        """The layouts of the columns that can be read, by name."""
        return self._ask(OpenFile.columns)

    @property
    def num_rows(self) -> int:
        """Length of the first axis that all columns share.

        Raises
        ------
        SchemaMismatchError
            If they do not share one.
        """
        return self.rows_of(self.columns)

    def rows_of(self, columns: Mapping[str, HasRows], sources: Mapping[str, SourceStates] | None = None) -> int:
        """Return the length of the first axis that some columns of the file share.

        `sources` are the other files that columns come from, if the columns do not say so.

        Raises
        ------
        SchemaMismatchError
            If they do not share one.
        """
        return common_rows(self.path, columns, self._head, sources)

    def _head(self) -> bytes:
        source = self.opened.byte_source
        head = bytearray(min(HEAD_BYTES, source.size))
        source.read_into(0, memoryview(head))
        return bytes(head)

    @property
    def form(self) -> Form:
        """What kind of file it is: AnnData, 10x, loom; empty for files of datasets."""
        return self._ask(lambda file: file.form)

    encoding = asked(OpenFile.encoding)

    def column(self, name: str) -> ColumnLayout:
        """Return the layout of one column; errors as in `find`."""
        return self.find([name])[name]

    def find(self, names: Sequence[str], *, missing_ok: bool = False) -> dict[str, ColumnLayout]:
        """Return the layouts of columns, by name.

        Parameters
        ----------
        names : sequence of str
            Names.
        missing_ok : bool
            Leave out names that do not exist.

        Raises
        ------
        UnknownColumnError
            If there is no column of that name; the message lists near names.
        UnsupportedColumnError, CodecUnavailableError, ExternalDataError, MissingSourceError
            If a column cannot be read.
        """
        wanted, opened, absent = as_names(names), self._opened.value, dict[str, UnknownColumnError]()
        # Fast path: layouts that are known are not asked for. In a store, what was held for others is dropped now.
        known = {} if opened is None or self._expected or self.is_fetched else opened.manifest.columns
        layouts = {name: known[name].layout for name in wanted if name in known}
        if not known or len(layouts) < len(wanted):
            layouts, absent = self._ask(lambda file: file.find(wanted, self._expected, missing_ok=missing_ok))
        if self.is_fetched:
            self._asked.update(dict.fromkeys(layouts))
        if absent and not missing_ok:
            name, error = next(iter(absent.items()))
            names = [*self.layout.columns, *self.layout.refused]
            raise UnknownColumnError(f"{error}.{hint_of(name, names, self.attribute_names())}") from None
        return layouts

    def read(self, columns: Sequence[str], rows: Rows = slice(None)) -> dict[str, np.ndarray]:
        """Read rows of columns.

        Parameters
        ----------
        columns : sequence of str
            Names.
        rows : slice, or sequence or array of int or bool
            Rows in the requested order; they may repeat. A boolean array has one entry for each row of the file.

        Returns
        -------
        dict of str to numpy.ndarray
            An array of shape ``(len(rows), *row_shape)`` a column, in the order of `columns`,
            equal to what h5py delivers, in native byte order.

        Raises
        ------
        RowIndexError
            If a row is not in the file.
        CorruptChunkError, TruncatedFileError, StaleIndexError, TransientIOError
            If the bytes cannot be read as they were written.
        """
        layouts = self.find(columns)
        if not layouts:
            return {}
        wanted = as_request(rows, common_rows(self.path, layouts, self._head), self.path)
        count = wanted.num_rows
        out = {
            name: empty((count, *layout.shape[1:]), layout.dtype, f"{self.path}: column {name!r}")
            for name, layout in layouts.items()
        }
        self.run(FileRead(self, [Part(name, wanted, array) for name, array in out.items()] if count else []))
        return out

    def read_whole(self, name: str, value_bytes: int = 0) -> np.ndarray:
        """Return all values of a column, for planning.

        Parameters
        ----------
        name : str
            The column.
        value_bytes : int
            Bytes of memory that are taken for a value, if they are more than the value itself takes.

        Raises
        ------
        OutOfMemoryError
            As `check_claim` does; and errors as in `read`.
        """
        layout = self.column(name)
        value_bytes = max(value_bytes, OBJECT_BYTES if layout.dtype.hasobject else layout.dtype.itemsize)
        self.check_claim([layout], math.prod(layout.shape) * value_bytes)
        return self.read([name])[name]

    def check_claim(self, layouts: Iterable[ValueArray], nbytes: int, values: str = "values") -> None:
        """Raise `OutOfMemoryError` if planning would take far more memory for columns than their files have bytes.

        `values` says what it takes the memory for; see `ray_h5.buffers.check_claim`.
        """
        layouts = list(layouts)
        sources = {path: state for layout in layouts for path, state in layout.sources if state is not None}
        stored = self.identity.size + sum(state.size for state in sources.values())
        names = ", ".join(repr(layout.name) for layout in layouts)
        what = f"{self.path}: column {names}, of shape {layouts[0].shape}: planning needs all of its {values}"
        check_claim(what, nbytes, stored)

    def read_into(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        *,
        casting: Casting | Mapping[str, Casting] = "checked",
    ) -> None:
        """Read rows into existing arrays.

        Parameters
        ----------
        out : mapping of str to numpy.ndarray
            An array for each column. If its dtype is another one than the column's, values are cast chunk by chunk.
            Fields of compound values go to the fields of the same names, of which an array may have some; text to bytes
            and to characters, as UTF-8.
        rows : slice, or sequence or array of int or bool
            Rows, as in `read`.
        places : sequence or array of int, optional
            ``rows[i]`` goes to ``out[column][places[i]]``; by default to place i.
        casting : {"checked", "unsafe"}, or mapping of str to it
            Whether a value that is lost in the dtype of its array, such as text that is longer, is an error, or is cast
            as by ``astype``. A float may be rounded to another float. A mapping has columns; the others are checked.

        Raises
        ------
        RowIndexError, OptionError
            If a row is not in the file, or the rows do not fit into an array.
        CastError
            If a value of one of the rows is lost, and the arrays then hold part of the rows; or if a dtype holds no
            value of the column.
        """
        require(isinstance(out, Mapping), "out", out, "an array for each column, by name")
        if out:
            self.run(self.planned(out, rows, places, casting=casting))

    def planned(
        self,
        out: Mapping[str, np.ndarray],
        rows: Rows,
        places: Sequence[int] | np.ndarray | None = None,
        *,
        casting: Casting | Mapping[str, Casting] = "checked",
    ) -> FileRead:
        """Return the read that `read_into` does, to be done later; parameters and errors as there."""
        layouts = self.find(list(out))
        # With places, rows are listed one by one: a slice would lose which place each has.
        places = None if places is None else as_places(places)
        wanted = (as_request if places is None else as_rows)(rows, common_rows(self.path, layouts), self.path)
        count = len(wanted) if isinstance(wanted, np.ndarray) else wanted.num_rows
        out = {name: fitted(array, layouts[name].row_shape) for name, array in out.items()}
        for name, array in out.items():
            check_fit(array, layouts[name].row_shape, count, places, f"{self.path}: column {name!r}")
        parts = []
        if count:
            request = request_of(wanted, places) if isinstance(wanted, np.ndarray) else wanted
            parts = [Part(name, request, array) for name, array in outputs(out, layouts, casting).items()]
        return FileRead(self, parts)

    def stored_bytes(self, columns: Sequence[str]) -> dict[str, int]:
        """Return how many bytes the values of columns take in the file.

        Values of varying length are in the global heap of the file; their addresses alone count.
        """
        names = list(self.find(columns))
        return self._ask(lambda file: file.stored_bytes(names))

    def notes(self, columns: Sequence[str]) -> dict[str, ColumnNotes]:
        """Return what the file says about the values of columns: the names of enums, and how values are packed."""
        names = list(self.find(columns))
        return self._ask(lambda file: file.notes(names))

    def close(self) -> None:
        """Release the file. It may stay open in the cache of the process."""
        self._opened.value = None
        self._closed = True

    def manifest(self, columns: Iterable[str] = ()) -> Manifest:
        """Return what another reader has to know of a remote file to ask for the data of columns alone.

        It has what was asked of this reader so far, and what reads of `columns` need.
        """
        if not self.is_fetched:
            return self._known
        self._asked.update(dict.fromkeys(columns))
        self._ask(lambda file: file.complete([*self._asked]))
        known = self.opened.manifest
        kept = {*self._asked, *self._known.columns, *(known.listing or ())}
        return self._known.merged(
            replace(known, columns={name: known.columns[name] for name in [*known.columns] if name in kept})
        )

    def fact(self, key: str, make: Callable[[], np.ndarray], *, of_file: bool = False) -> np.ndarray:
        """Return what `make` computes from the values of a few small datasets; further readers of a plan know it.

        Parameters
        ----------
        key : str
            Says what is computed, from which datasets.
        make : callable
            Returns numbers, or texts as bytes.
        of_file : bool
            Whether it is the same however the file is read, so that all readers of this process know it.
        """
        known = self._known.values
        if not self.is_fetched:
            known = self.opened.manifest.values if of_file and not self.opened.access.swmr else {}
        if key not in known:
            known[key] = make()
        return known[key]

    def look_again(self) -> None:
        """Open the file again if other files that its columns come from have changed since."""
        opened = self.opened
        if not opened.is_current():
            opened.forget()
            self._opened.value = None

    def _look_at(self, file: OpenFile) -> None:
        """Find out now whether the file is HDF5."""
        try:
            file.look()
        except (RayH5Error, OSError):
            file.forget()  # the cache would keep its descriptor
            self._opened.value = None
            raise

    group_table = asked(OpenFile.group_table)
    single = asked(OpenFile.single)
    attribute_names = asked(OpenFile.attribute_names)
    attributes = asked(OpenFile.attributes)
    values_of_attributes = asked(OpenFile.values_of_attributes)

    def run(self, read: FileRead) -> None:
        """Fill the arrays of a planned read."""
        if read.parts and self.is_fetched:
            self.stats.add(run_together([read], self._times))
        elif read.parts:
            self._ask(lambda _: self.stats.add(run_together([read], self._times)))
        if read.finish is not None:
            read.finish()

    def jobs_of(self, read: FileRead) -> list[Job]:
        """Return the work of a read of this file."""
        file = self.opened
        file.check_unchanged()
        # Fast path: of whole columns of this file alone that were read before, nobody else is asked.
        plain: list[Column | JoinedColumn] = []
        for part in read.parts:
            if isinstance(part.address, str):
                column = file.readers.get(("", part.address))
                plain += [] if column is None or column.source.layout.sources else [column]
            elif isinstance(part.address, JoinedArray) and not file.is_pinned and not file.access.beside:
                joined = file.joined_columns.get(part.address)
                plain += [] if joined is None else [joined]
        if len(plain) == len(read.parts) and not self._expected:
            parts = zip(plain, read.parts, strict=True)
            return [job for column, part in parts for job in column.jobs(part.request, part.out)]

        def plan() -> list[Job]:
            read.finish_steps.clear()  # what an earlier pass, or try, added
            read.sources.clear()
            return jobs_of_parts(file, read, read.parts, self._expected)

        return replay(plan) if file.is_pinned else plan()

    def _ask(self, action: Callable[[OpenFile], Result]) -> Result:
        """Return the result of `action`, which asks the open file; it is repeated after errors that may pass."""
        if self.is_fetched:  # requests to a store were repeated already
            result = replay(lambda: action(self.opened))
            self.opened.trim()
            return result
        try:
            return action(self.opened)
        except OSError as exc:
            return repeated(exc, lambda: action(self.opened), self.path, self._reopen, swmr=self._access.swmr)

    def _reopen(self) -> None:
        opened = self._opened.value
        if opened is not None:
            # After a retry, the file must be the one that was described before.
            self._expect = self._expect or FileState(opened.identity)
            described = {name: known.layout.sources for name, known in dict(opened.manifest.columns).items()}
            self._expected = {**described, **self._expected}
            opened.forget()
            self._opened.value = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_opened"}
        if self.is_fetched and self._opened.value is not None:
            state["_known"] = self._known.merged(self._opened.value.manifest)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = PerProcess(lambda: None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, group={self.group!r}, threads={self.threads})"
