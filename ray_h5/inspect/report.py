"""The report of `ray-h5 inspect` as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ray_h5.inspect.store_cost import StoreReport
from ray_h5.likely_rows.suggestions import Suggestion


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column of one file.

    Attributes
    ----------
    rows, row_shape : int, and tuple of int or None
        Length of the first axis, and shape of the others.
    storage, chunk_shape, pipeline : str, tuple of int, tuple of str
        Layout class of the dataset, empty with `rows` or `windows`; shape of a chunk, and the HDF5 filters with their
        levels.
    stored_bytes, real_bytes : int
        Bytes in the file, None if its rows are in several datasets; and in memory, None where only reading would show
        it. For values of varying length only their references are counted.
    direct : bool
        Whether it is decoded without libhdf5 and its lock.
    advice : tuple of str
        What is slow about its layout, and values that need a conversion; with what to do.
    enum : mapping of str to int
        The names of the values of an enum.
    left_out : str, optional
        Why `read_h5` and `H5Dataset` leave it out. `RowReader` reads it.
    follows_cf : bool
        Whether ``decode_cf=True`` gives its values, which are stored in another way.
    is_slow : bool
        Whether its chunks are slow to read, and a repack mends it.
    integer_fields : tuple of str
        Of compound values, the fields that hold one integer.
    """

    name: str
    kind: str
    dtype: str
    rows: int
    row_shape: tuple[int | None, ...]
    storage: str
    chunk_shape: tuple[int, ...] | None
    pipeline: tuple[str, ...]
    stored_bytes: int | None
    real_bytes: int | None
    direct: bool
    advice: tuple[str, ...] = ()
    enum: Mapping[str, int] = field(default_factory=dict)
    left_out: str | None = None
    follows_cf: bool = False
    is_slow: bool = False
    integer_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A column or a file that cannot be read, and why."""

    name: str
    error: str
    message: str
    is_single: bool = False

    @classmethod
    def of(cls, name: str, error: Exception) -> Unreadable:
        return cls(name, type(error).__name__, str(error), getattr(error, "has_rows", True) is None)


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: what can be read, and what cannot. Values of attributes are those of a file on a disk, as text."""

    path: str
    group: str
    file_bytes: int
    columns: tuple[ColumnReport, ...]
    refused: tuple[Unreadable, ...]
    attributes: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What `read_h5` delivers with no options except `columns`: columns, and rows in blocks."""

    columns: Mapping[str, str]
    rows: int
    row_bytes: int
    block_rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Report:
    """The files, and what `read_h5` delivers from them.

    Attributes
    ----------
    files, unreadable : tuple
        The files that can be opened, and those that cannot.
    delivery, problem : optional
        What `read_h5` delivers from `files`, or why it refuses them.
    shuffle, store : optional
        What a shuffle costs, if one was given; and what files in a store cost, if there are any.
    suggestions : tuple of Suggestion
        What rows of the first file probably are, if they are along the first axis.
    """

    files: tuple[FileReport, ...]
    unreadable: tuple[Unreadable, ...]
    delivery: Delivery | None
    problem: Unreadable | None
    shuffle: str | None = None
    store: StoreReport | None = None
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether `read_h5` takes all files as they are."""
        return not self.unreadable and self.problem is None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as types that JSON has."""
        return {"ok": self.ok, **asdict(self)}
