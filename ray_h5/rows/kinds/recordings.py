"""Recordings, whose columns have times of their own: where the samples of a column are, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ray_h5.columns.dataset_columns import DatasetColumn
from ray_h5.columns.file_columns import FileColumns
from ray_h5.columns.row_table import Listing, RowTable
from ray_h5.columns.times import Times
from ray_h5.columns.values import read_units
from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.read.reader import RowReader
from ray_h5.rows.row_columns import RowColumn
from ray_h5.rows.row_kinds import Samples
from ray_h5.rows.windows import Windows

_RATES = ("rate", "sampling_rate", "sample_rate", "fs", "frequency")
_STEPS = ("Xspacing", "dt", "delta")
_STARTS = ("starting_time", "Xstart", "start_time", "t0", "start")
"""Attributes that say the rate of a column, the seconds between its samples, and when it begins."""

_NWB_START = "starting_time"
"""A dataset of NWB beside a column: its value is the first time, and its attribute the rate."""


class Recordings(Protocol):
    """The recordings of one file: the file itself, or its groups."""

    @property
    def table(self) -> RowTable:
        """What was found out so far."""

    def listing(self) -> Listing:
        """Return the columns."""

    def prepare(self, names: Iterable[str]) -> None:  # noqa: ARG002
        """Find out about columns, several at once; nothing where the reader describes them one by one."""
        return

    def dataset_of(self, name: str) -> str:
        """Return the dataset that a column is of."""

    def has(self, name: str) -> bool:
        """Return whether the recordings have a dataset."""

    def samples(self, name: str) -> Samples:
        """Return where the samples of a column are; raise `UnknownColumnError` if there is none."""

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return for each recording those attributes of a dataset that are short numbers or one text."""

    def is_constant(self, name: str) -> bool:
        """Return whether a column has one value for each recording."""

    def constant(self, name: str) -> RowColumn | DatasetColumn:
        """Return a column with one row for each recording."""

    def episode_names(self) -> np.ndarray:
        """Return a name for each recording, as bytes."""


class OneRecording(Recordings):
    """A file that is one recording.

    Parameters
    ----------
    reader : RowReader
        The open file.
    columns : FileColumns
        Its columns.
    """

    def __init__(self, reader: RowReader, columns: FileColumns) -> None:
        self._reader = reader
        self._columns = columns

    @property
    def table(self) -> RowTable:
        return self._columns.table()

    def listing(self) -> Listing:
        return self._columns.listing()

    def dataset_of(self, name: str) -> str:
        return self._columns.dataset_of(name)

    def has(self, name: str) -> bool:
        try:
            return self._columns.single(name) is not None or bool(self._reader.find([name], missing_ok=True))
        except UnsupportedColumnError:
            return False

    def samples(self, name: str) -> Samples:
        single = self._columns.single(name)
        values = self._columns.part_of(name, self._columns.values(name)) if single is None else single
        count = 1 if single is not None else values.array.num_rows
        return Samples(values, np.zeros(1, np.int64), np.array([count]), is_single=single is not None)

    def attributes_of(self, name: str, attributes: Sequence[str]) -> list[Mapping[str, Any]]:
        return [self._reader.values_of_attributes(dataset_of_field(self, name), attributes)]

    def is_constant(self, name: str) -> bool:
        return self._columns.single(name) is not None

    def constant(self, name: str) -> RowColumn | DatasetColumn:
        single = self._columns.single(name)
        assert single is not None
        return RowColumn(name, single)

    def episode_names(self) -> np.ndarray:
        return np.array([b"0"], object)


def dataset_of_field(recordings: Recordings, name: str) -> str:
    """Return the dataset that a column is of: of a field of compound values, the one above it."""
    found = recordings.dataset_of(name).strip("/")
    parts = found.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return next(filter(recordings.has, above), found)


class TimesOf:
    """Finds the times of columns.

    Parameters
    ----------
    reader : RowReader
        The open file.
    recordings : Recordings
        Its recordings.
    windows : Windows
        Windows with `at`.
    known : mapping of str to Times
        The times that were found before.
    """

    def __init__(self, reader: RowReader, recordings: Recordings, windows: Windows, known: Mapping[str, Times]) -> None:
        self._reader = reader
        self._recordings = recordings
        self._windows = windows
        self.known = dict(known)

    def __call__(self, column: str) -> Times:
        """Return the times of the samples of a column."""
        if column not in self.known:
            self.known[column] = self._find(column)
        return self.known[column]

    def _find(self, column: str) -> Times:
        samples, said = self._recordings.samples(column), self._windows.times_of(column)
        if samples.is_single:
            raise UnsupportedColumnError(
                f"{self._reader.path}: Windows: column {column!r} has a single value, and no axis of time. Leave it "
                "out of the offsets: each row then has the value of its recording."
            )
        counts = samples.lengths
        if isinstance(said, tuple):
            return _regular(counts, np.full(len(counts), said[0]), np.full(len(counts), said[1]))
        parent, own = dataset_of_field(self._recordings, column).rpartition("/")[0], said.strip("/")
        for name in dict.fromkeys([f"{parent}/{own}".strip("/"), own]) if own else ():
            if self._recordings.has(name) and (found := self._listed(column, name, counts, is_own=name == own)):
                return found
        rates, starts = self._said_rates(column, parent)
        rates = np.where(np.isnan(rates) & (counts == 0), 1.0, rates)  # of no samples
        if (lacking := np.flatnonzero(np.isnan(rates))).size:
            looked = f"a dataset {said!r} beside it" if said else "at= names none for it"
            raise UnsupportedColumnError(
                f"{self.where(int(lacking[0]))}: Windows: column {column!r} has no times: {looked}, and no attribute "
                f"says its rate ({', '.join([*_RATES, *_STEPS])}). Name them: at={{{column!r}: 'dataset'}}, or "
                f"at={{{column!r}: (rate, first time)}}."
            )
        if (wrong := np.flatnonzero(~((rates > 0) & (rates < math.inf)))).size:
            raise CorruptFileError(
                f"{self.where(int(wrong[0]))}: column {column!r}: its rate is {rates[wrong[0]]}; expected one above 0"
            )
        return _regular(counts, rates, starts)

    def where(self, recording: int) -> str:
        """Return which recording is meant, for the beginning of a message."""
        groups = self._recordings.table.groups
        return self._reader.path if groups is None else f"{self._reader.path}: group {groups.names[recording]!r}"

    def _listed(self, column: str, name: str, counts: np.ndarray, *, is_own: bool) -> Times | None:
        """Return the times that a dataset lists; None if they are of another column."""
        samples = self._recordings.samples(name)
        array = samples.values.array
        if array.row_shape or array.kind not in {"number", "time"} or samples.is_single:
            raise UnsupportedColumnError(f"{array.where} has {array.kind} values of shape {array.shape}, and no times")
        if (differ := np.flatnonzero(samples.lengths != counts)).size:
            if is_own and name != column and isinstance(self._windows.at, str):
                return None
            at = int(differ[0])
            raise UnsupportedColumnError(
                f"{self.where(at)}: {name!r} has {samples.lengths[at]} times, and {column!r} has {counts[at]} "
                "samples; expected equally many"
            )

        times = read_units(self._reader, samples.values, int(counts.sum()))
        lost = np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times)
        ends = np.cumsum(counts)
        if (wrong := np.flatnonzero(lost)).size:
            recording, at = int(np.searchsorted(ends, wrong[0], side="right")), int(wrong[0])
            raise CorruptFileError(
                f"{self.where(recording)}: {name!r}: time {at - ends[recording] + counts[recording]} is {times[at]}; "
                f"expected a finite time for each sample of {column!r}. Write the times again, or pass "
                f"at={{{column!r}: (rate, first time)}}."
            )
        times = times.astype("M8[ns]").astype(np.int64) / 1e9 if times.dtype.kind == "M" else times.astype(np.float64)
        gaps = np.diff(times)
        is_within = np.ones(len(gaps), bool)
        is_within[ends[(ends > 0) & (ends < len(times))] - 1] = False
        if (wrong := np.flatnonzero(is_within & ~(gaps >= 0))).size:
            recording = int(np.searchsorted(ends, wrong[0], side="right"))
            at = int(wrong[0])
            raise CorruptFileError(
                f"{self.where(recording)}: {name!r}: time {at + 1 - ends[recording] + counts[recording]} is "
                f"{times[at + 1]}, after {times[at]}; expected times that ascend"
            )
        steps = [np.median(gaps[end - n : end - 1]) if n > 1 else 0.0 for n, end in zip(counts, ends, strict=True)]
        return Times(counts, np.array(steps, np.float64), listed=times)

    def _said_rates(self, column: str, parent: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rates and the first times that attributes say, or NWB's ``starting_time`` beside the column.

        A rate is NaN where none is said.
        """
        said = self._recordings.attributes_of(column, [*_STARTS, *_RATES, *_STEPS])
        starts, rates, steps = (np.array([_number(each, of) for each in said]) for of in (_STARTS, _RATES, _STEPS))
        with np.errstate(divide="ignore"):
            rates = np.where(np.isnan(rates) & (steps != 0), 1 / steps, rates)
        name = f"{parent}/{_NWB_START}".strip("/")
        if (lacks := np.isnan(rates)).any() and self._recordings.has(name):
            first, of = self._recordings.samples(name), self._recordings.attributes_of(name, ["rate"])
            if first.is_single:
                rates = np.where(lacks, [_number(each, ["rate"]) for each in of], rates)
                lacks &= first.lengths > 0
                starts[lacks] = read_units(self._reader, first.values, int(first.lengths.sum()))[
                    lacks[first.lengths > 0]
                ]
        if (wrong := np.flatnonzero(np.isinf(starts))).size:
            raise CorruptFileError(
                f"{self.where(int(wrong[0]))}: column {column!r}: its first time is {starts[wrong[0]]}; expected a "
                f"finite one. Pass at={{{column!r}: (rate, first time)}}."
            )
        return rates, np.nan_to_num(starts)


def _number(said: Mapping[str, Any], names: Sequence[str]) -> float:
    """Return the first of some attributes that is one number; NaN if there is none."""
    numbers = [np.ravel(said[each]) for each in names if each in said]
    return next((float(each[0]) for each in numbers if len(each) == 1 and each.dtype.kind in "iuf"), math.nan)


def _regular(counts: np.ndarray, rates: np.ndarray, starts: np.ndarray) -> Times:
    return Times(counts, 1 / rates, rates, starts)
