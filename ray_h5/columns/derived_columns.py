"""Columns that say how they are made: ragged values, rows of sparse matrices, fields, parts, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.globs import WILDCARD, is_glob, texts_of
from ray_h5.hash_and_permute import word_at
from ray_h5.manifest.indices import runs_of
from ray_h5.manifest.partition import Partition
from ray_h5.options import as_names


class _OfColumn:
    """A column that is made of another one, its first field: a path, or what is made itself.

    It has the name of that column, unless the user calls it otherwise.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    called: str

    @property
    def argument(self) -> ColumnLike:
        """The column that it is made of."""
        argument: ColumnLike = getattr(self, next(iter(self.__dataclass_fields__)))
        return argument

    @property
    def dataset(self) -> str:
        """The dataset, or the group, that all of it is made of."""
        return dataset_of(self.argument)

    @property
    def name(self) -> str:
        if self.called:
            return self.called
        argument = self.argument
        return argument if isinstance(argument, str) else argument.name

    def __repr__(self) -> str:
        """Return how the column is made, as the user writes it: values without their names, and options."""
        shown = []
        for name, field in self.__dataclass_fields__.items():
            value, is_option = getattr(self, name), field.default is not MISSING
            if name == "called" or (is_option and value == field.default):
                continue
            if name == "axes":
                value = {axis: list(at) if isinstance(at, tuple) else at for axis, at in value}
            elif isinstance(value, tuple) and name != "shape":
                value = list(value)
            shown.append(f"{name}={value!r}" if is_option and name != "axes" else repr(value))
        said = f"{type(self).__name__.lower().removeprefix('row')}({', '.join(shown)})"
        if isinstance(self, RowPart) and self.is_whole:
            said = repr(self.of)
        return f"{self.called!r}: {said}" if self.called else said


@dataclass(frozen=True, slots=True, repr=False)
class Ragged(_OfColumn):
    """A column made by `ragged`: `content`, the datasets that say where rows begin and end, and how they count."""

    content: ColumnLike
    offsets: BoundsLike | None = None
    starts: BoundsLike | None = None
    counts: BoundsLike | None = None
    ends: BoundsLike | None = None
    bounds: BoundsLike | None = None
    base: int = 0
    inclusive: bool = False
    called: str = ""

    @property
    def given(self) -> dict[str, BoundsLike]:
        """The datasets that say where rows begin and end, or what is taken of them, by option."""
        options = ("offsets", "starts", "counts", "ends", "bounds")
        return {option: name for option in options if (name := getattr(self, option)) is not None}

    @property
    def bounds_only(self) -> Ragged:
        """Where rows begin and end, of whatever content: columns that share it have the same rows."""
        is_of_content = {*self.given} == {"starts"}  # the last row ends with the values
        return replace(self, content=self.content if is_of_content else "", called="")


@dataclass(frozen=True, slots=True, repr=False)
class Csr(_OfColumn):
    """A column made by `csr`."""

    group: str
    dense: bool = True
    take: tuple[int, ...] | tuple[str, ...] | None = None
    names: str | None = None
    shape: tuple[int | None, int] | None = None
    called: str = ""

    @property
    def rows(self) -> Ragged:
        """What says where the rows of the matrix begin and end."""
        return Ragged(f"{self.group}/indices", offsets=f"{self.group}/indptr")


@dataclass(frozen=True, slots=True, repr=False)
class Fields(_OfColumn):
    """A column made by `fields`."""

    compound: str
    names: tuple[str, ...]
    called: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice of an axis, as a value."""

    start: int | None
    stop: int | None
    step: int | None

    def positions(self, length: int) -> np.ndarray:
        """Return the positions of an axis of this length."""
        return np.arange(*slice(self.start, self.stop, self.step).indices(length), dtype=np.int64)

    def __repr__(self) -> str:
        parts = [self.start, self.stop] if self.step is None else [self.start, self.stop, self.step]
        return f"slice({', '.join(map(repr, parts))})"


@dataclass(frozen=True, slots=True, eq=False)
class RowEntries:
    """Which entries along its first axis a row has, whose length may be another one than that of other rows.

    Attributes
    ----------
    at : numpy.ndarray, Cut or int
        Positions, a slice, or how many are drawn.
    where : str
        File and column, for messages.
    seed : int, optional
        The seed of the draw; None if entries are not drawn.
    of : RowEntries, optional
        The entries that these are some of.
    """

    at: np.ndarray | Cut | int
    where: str
    seed: int | None = None
    of: RowEntries | None = None

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many entries rows of these lengths have."""
        lengths = lengths if self.of is None else self.of.counts(lengths)
        if isinstance(self.at, int):
            return np.minimum(lengths, self.at)
        known, of = np.unique(lengths, return_inverse=True)
        return np.array([len(self._positions(int(n))) for n in known], np.int64)[of.reshape(-1)]

    def runs(self, lengths: np.ndarray, keys: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries of rows of these lengths as runs: the row of each, its first entry, and its length."""
        known, of = lengths, np.arange(len(lengths))
        if self.seed is None:  # rows of one length have the same entries
            known, of = np.unique(lengths, return_inverse=True)
        runs = [*map(runs_of, self.of_each(known, keys))]
        parts, of = Partition.of(np.array([len(run) for run in runs], np.int64)), of.reshape(-1)
        firsts, sizes = np.concatenate([*runs, np.empty((0, 2), np.int64)])[parts.units(of)].T
        return np.repeat(np.arange(len(lengths)), parts.lengths_of(of)), firsts, sizes

    def of_each(self, lengths: np.ndarray, keys: np.ndarray | None) -> list[np.ndarray]:
        """Return the entries of each row, given the keys of rows by which they are drawn: uint64."""
        before = None if self.of is None else self.of.of_each(lengths, keys)
        lengths = lengths if before is None else np.array([len(of_row) for of_row in before], np.int64)
        own = self.drawn(lengths, keys) if isinstance(self.at, int) else [*map(self._positions, lengths.tolist())]
        return own if before is None else [of_row[at] for of_row, at in zip(before, own, strict=True)]

    def drawn(self, lengths: np.ndarray, keys: np.ndarray | None) -> list[np.ndarray]:
        """Return the entries that are drawn of rows, ascending, by the key of each row: uint64."""
        assert isinstance(self.at, int)
        assert keys is not None
        draws = []
        for length, key in zip(lengths.tolist(), keys, strict=True):
            if length <= self.at:
                draws.append(np.arange(length))
                continue
            words = word_at(key, np.arange(length))
            draws.append(np.sort(np.argpartition(words, self.at)[: self.at]))
        return draws

    def _positions(self, length: int) -> np.ndarray:
        if isinstance(self.at, Cut):
            return self.at.positions(length)
        assert isinstance(self.at, np.ndarray)
        if len(self.at) and int(self.at.max()) >= length:
            raise UnknownColumnError(
                f"{self.where}: part() takes entry {self.at.max()} of each row, and a row has {length} entries"
            )
        return self.at


Positions: TypeAlias = tuple[int, ...] | tuple[str, ...] | Cut
"""What is taken of an axis: positions, names, or a slice."""


@dataclass(frozen=True, slots=True, repr=False)
class RowPart(_OfColumn):
    """A column made by `part`: what is taken of each axis of a row, and how many entries are drawn.

    Without both it is the whole of a dataset under another name.
    """

    of: ColumnLike
    axes: tuple[tuple[int, Positions], ...] = ()
    names: str | None = None
    random: int | None = None
    seed: int = 0
    called: str = ""

    @property
    def whole(self) -> ColumnLike:
        """The column that it is a part of, or a part of a part, under its name."""
        inner = self.of.whole if isinstance(self.of, RowPart) else self.of
        return renamed(inner, self.called) if self.called and not isinstance(inner, str) else inner

    @property
    def parts(self) -> list[RowPart]:
        """The parts that are taken of the whole, each of the one before; itself is the last."""
        own = [] if self.is_whole else [self]
        return [*self.of.parts, *own] if isinstance(self.of, RowPart) else own

    @property
    def is_whole(self) -> bool:
        return not self.axes and self.random is None

    def entries(self, where: str, of: RowEntries | None = None) -> RowEntries | None:
        """Return what is taken of the first axis of rows of varying length, or `of` some entries; None for all."""
        at = dict(self.axes).get(0) if self.random is None else self.random
        if isinstance(at, tuple) and isinstance(at[0], str):
            raise UnsupportedColumnError(
                f"{where}: rows of varying length have no names along axis 0; part() got {at[0]!r}"
            )
        positions = np.array(at, np.int64) if isinstance(at, tuple) else at
        if positions is None:
            return of
        seed = None if of is None else of.seed
        return RowEntries(positions, where, seed if self.random is None else self.seed, of)


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column made by `joined`: a column of each match of the pattern that it is made of, end to end."""

    argument: ColumnLike
    name: str

    @property
    def dataset(self) -> str:
        """The pattern of the datasets, or groups."""
        return dataset_of(self.argument)

    def of_match(self, path: str) -> ColumnLike:
        """Return the column of a path that the pattern matches; the stars of others stand for what its own do."""
        column: ColumnLike = _filled(self.argument, self.dataset, texts_of(path, self.dataset) or (), path)
        return column

    def below(self, group: str) -> JoinedColumn:
        """Return the same column of what matches below a group."""
        return replace(self, argument=_below(self.argument, group))

    def __repr__(self) -> str:
        return f"joined({self.argument!r}, name={self.name!r})"


MadeColumn: TypeAlias = Ragged | Csr | Fields | RowPart | JoinedColumn
"""Columns that say how they are made."""

ColumnLike: TypeAlias = str | MadeColumn
"""An entry of ``columns=[...]``, and what a column is made of."""


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """What is known of columns beside those that the user names, whose keys are their names.

    The same dataset may be a column, and what others are made of, with other rows.

    Attributes
    ----------
    what : str
        ``"units"``: the rows of what a column is made of; ``"datasets"``: those that are end to end, or that references
        lead to; the name of a dataset in each of what is end to end, such as ``"indices"`` of sparse matrices.
    of : ColumnLike
        The column, or the dataset of references.
    in_each_group : bool
        Whether they are those of each group that is a row.
    """

    what: str
    of: ColumnLike
    in_each_group: bool = False


BoundsLike: TypeAlias = ColumnLike
"""What says where rows begin or end: a dataset, or any column with an integer, or a pair of them, for each unit."""

Columns: TypeAlias = Sequence[ColumnLike] | Mapping[str, ColumnLike]
"""What ``columns=`` takes."""


def dataset_of(column: ColumnLike) -> str:
    """Return the dataset, or the group, that a column is made of; of datasets end to end, their pattern."""
    return column if isinstance(column, str) else column.dataset


def links_of(column: ColumnLike) -> list[MadeColumn]:
    """Return the makers that a column is made by, from the outer one to that of a path."""
    return [] if isinstance(column, str) else [column, *links_of(column.argument)]


def joined_in(column: ColumnLike) -> JoinedColumn | None:
    """Return the datasets end to end that a column is made of, however often; None if it is of one."""
    return next((link for link in links_of(column) if isinstance(link, JoinedColumn)), None)


def joined_below(column: Any, group: str) -> Any:
    """Return a column whose datasets end to end are below a group; what else it names is found there otherwise."""
    if isinstance(column, JoinedColumn):
        return column.below(group)
    return column if joined_in(column) is None else made_of(column, joined_below(column.argument, group))


def whole_of(column: ColumnLike) -> ColumnLike:
    """Return the column that another one is a part of, however often it is cut; others as they are."""
    return whole_of(column.of) if isinstance(column, RowPart) else column


def is_range(column: MadeColumn) -> bool:
    """Return whether the rows of a column are ranges of a longer array."""
    return any(isinstance(link, (Ragged, Csr)) for link in links_of(column))


def made_of(column: MadeColumn, argument: ColumnLike) -> MadeColumn:
    """Return what makes a column, applied to another one."""
    options: dict[str, Any] = {next(iter(column.__dataclass_fields__)): argument}
    return replace(column, **options)


def is_drawn(column: ColumnLike) -> bool:
    """Return whether entries of the rows of a column, or of what these are made of, are drawn."""
    return any(isinstance(link, RowPart) and link.random is not None for link in links_of(column))


def renamed(column: MadeColumn, name: str) -> MadeColumn:
    """Return the same column under another name."""
    if isinstance(column, JoinedColumn):
        return replace(column, name=name)
    return replace(column, called="" if replace(column, called="").name == name else name)


def split_columns(columns: Any) -> tuple[list[str] | None, tuple[MadeColumn, ...]]:
    """Return the names in the argument `columns`, and the columns in it that say how they are made.

    Raises
    ------
    OptionError
        If it is no list of names and columns and no mapping of them, or one is made in two ways.
    """
    if columns is None:
        return None, ()
    if isinstance(columns, MadeColumn):
        raise OptionError(f"columns={columns}: expected a list; write columns=[...]")
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        return as_names(columns), ()
    listed = [_called(*column) for column in columns.items()] if isinstance(columns, Mapping) else list(columns)
    names = [column.name if isinstance(column, MadeColumn) else column for column in listed]
    made = [(name, column) for name, column in zip(names, listed, strict=True) if isinstance(column, MadeColumn)]
    for name, column in made:
        if names.count(name) > 1:
            other = f"Pass a mapping for two columns of one dataset: columns={{'a': {column!r}, 'b': ...}}"
            if joined_in(column) is not None:
                other = "Pass joined(..., name=) for another name"
            raise OptionError(f"columns: {name!r} is listed more than once; a column is made in one way. {other}")
    read = {dataset: column for _, column in made for dataset in _read_by(column)}
    for name, column in made:
        if name in read and name != column.dataset and joined_in(column) is None:
            raise OptionError(
                f"columns: {column!r}: {name!r} is also the name of a dataset that {read[name]!r} is made of. Call the "
                "column otherwise."
            )
    return as_names(names), tuple(column for _, column in made)


def is_of_pattern(column: MadeColumn) -> bool:
    """Return whether a column may stand for one of each dataset that matches a pattern."""
    return joined_in(column) is None and is_glob(column.dataset)


def of_each_match(column: MadeColumn, paths: Sequence[str]) -> list[MadeColumn]:
    """Return the column of each path that the pattern of a column matches; itself if it has the name of a path.

    The stars of other datasets that it names, such as offsets, stand for what those of the pattern stand for.

    Raises
    ------
    OptionError
        If the user calls the column otherwise, or another dataset has more stars than the pattern.
    """
    if column.dataset in paths:
        return [column]
    matches = [texts for path in paths if (texts := texts_of(path, column.dataset)) is not None]
    if matches and column.name != column.dataset:
        raise OptionError(f"columns: {column!r}: expected one column, not a pattern; leave out the name to read each")
    return [_filled(column, column.dataset, texts) for texts in matches]


def _filled(column: Any, pattern: str, texts: Sequence[str], path: str | None = None) -> Any:
    """Return a column, or the path of one, with texts in the place of the stars of a pattern, or `path` in its own."""
    if isinstance(column, str):
        if path is not None and (column == pattern or not is_glob(column)):
            return path if column == pattern else column
        parts = WILDCARD.split(column)
        if len(parts) not in {1, 2 * len(texts) + 1}:
            raise OptionError(
                f"columns: {column!r} has {len(parts) // 2} stars, and {pattern!r} has {len(texts)}: expected equally "
                "many, which stand for the same"
            )
        parts[1::2] = texts[: len(parts) // 2]
        return "".join(parts)
    if not isinstance(column, (Ragged, Csr, Fields, RowPart)):
        return column
    held = {name: getattr(column, name) for name in column.__dataclass_fields__ if name != "called"}
    return replace(column, **{name: _filled(value, pattern, texts, path) for name, value in held.items()})


def _below(column: Any, group: str) -> Any:
    """Return what columns are made of with the paths of datasets below a group; names of positions are of the file."""
    return with_paths(column, lambda path: f"{group}/{path}")


def with_paths(column: Any, path_of: Callable[[str], str]) -> Any:
    """Return what columns are made of with other paths of datasets; names of positions stay."""
    if isinstance(column, str):
        return path_of(column)
    if isinstance(column, JoinedColumn):
        return replace(column, argument=with_paths(column.argument, path_of))
    if not isinstance(column, (Ragged, Csr, Fields, RowPart)):
        return column
    first = next(iter(column.__dataclass_fields__))
    bounds = ("offsets", "starts", "counts", "ends", "bounds") if isinstance(column, Ragged) else ()
    return replace(column, **{name: with_paths(getattr(column, name), path_of) for name in (first, *bounds)})


def _called(name: Any, column: Any) -> str | MadeColumn:
    """Return a column under the name that a user calls it."""
    path = as_path("columns: a name", name)
    if isinstance(column, MadeColumn):
        return column if column.name == path else renamed(column, path)
    of = as_path(f"columns: {name!r}", column)
    if "*" in of or "*" in path:
        raise OptionError(f"columns: {name!r}: {column!r}: expected one column, not a pattern")
    return name if of == path else RowPart(of, called=path)


def _read_by(column: ColumnLike) -> list[str]:
    """Return the datasets that a column is made of, as far as it says so."""
    if isinstance(column, str):
        return [column]
    read = _read_by(column.argument)
    if isinstance(column, Ragged):
        read += [dataset for bounds in column.given.values() for dataset in _read_by(bounds)]
    names = getattr(column, "names", None)
    return [*read, *([names] if isinstance(names, str) else [])]


def as_path(option: str, value: Any) -> str:
    """Return the name of a dataset or group; raise `OptionError` if it is none."""
    if not isinstance(value, str) or not value.strip("/"):
        raise OptionError(f"{option}={value!r}: expected the name of a dataset or group, such as 'events/x'")
    return value.strip("/")
