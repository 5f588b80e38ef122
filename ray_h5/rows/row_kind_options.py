"""Row kinds as a user writes them: groups as rows, leading axes as rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, as_names, is_integer, names_options, require

if TYPE_CHECKING:
    from ray_h5.hdf5.groups.matching_groups import GroupPattern
    from ray_h5.rows.windows_option import Windows


NUM_SAMPLES = "num_samples"
"""An attribute with the number of steps of a group, as robomimic writes it; with `by`, how many entries a row has."""


class RowKind:
    """What a row is."""

    __slots__ = ()

    episode: ClassVar[str] = ""
    """What a row is a whole of, and so an episode of windows: a group, a file."""

    is_block: ClassVar[bool] = False
    """Whether a row is a block of arrays as they are stored, with no units of its own."""

    @property
    def has_groups(self) -> bool:
        """Whether rows are groups of a file, or belong to them."""
        return False

    @property
    def is_drawn(self) -> bool:
        """Whether each epoch has other values of the same rows."""
        return False


_Kind = TypeVar("_Kind", bound=RowKind)


def naming_files(kind: _Kind, paths: Sequence[str]) -> _Kind:
    """Return the kind whose column with the names of files has as many folders before each as tell these apart."""
    if (key := getattr(kind, "key", None)) is None or kind.has_groups:
        return kind
    names = [(*path.parts[:-1], path.stem) for path in map(PurePosixPath, {*paths})]
    for folders in range(max(map(len, names), default=0)):
        if len({name[-1 - folders :] for name in names}) == len(names):
            object.__setattr__(named := replace(kind), "_folders", folders)  # type: ignore[type-var]
            return named
    twice = next(name for name in names if names.count(name) > 1)
    raise OptionError(f"key={key!r}: two files {'/'.join(twice)!r} differ only by extension. Rename or leave out one")


def check_key(option: str, key: Any) -> None:
    """Raise `OptionError` unless a key is the name of a column, or None."""
    require(key is None or (isinstance(key, str) and key), option, key, "the name of a column")


def as_pattern(option: str, pattern: Any) -> str | tuple[str, ...] | dict[str, str]:
    """Return a glob over paths, several, or a mapping of columns to globs.

    Raises
    ------
    OptionError
        If it is none of these.
    """
    if not isinstance(pattern, Mapping):
        globs = as_globs(option, pattern, "a glob over paths, such as 'data/demo_*', or several")
        return globs[0] if len(globs) == 1 else globs
    require(pattern, option, pattern, "{column: glob}, such as {'image': 'images/*'}")
    if not all(isinstance(text, str) and text.strip("/") for pair in pattern.items() for text in pair):
        raise OptionError(f"{option}={pattern!r}: expected {{column: glob}}, such as {{'image': 'images/*'}}")
    signs = {tuple(re.findall(r"\*+|\?|\[", glob)) for glob in pattern.values()}
    if len(signs) > 1 or not (pattern_signs := signs.pop()) or "**" in pattern_signs:
        raise OptionError(
            f"{option}={pattern!r}: expected the same signs in each glob, one or more of *, ? and [...], such as "
            "{'image': 'images/*', 'mask': 'masks/*'}: what they stand for names a row. '**' is for one pattern alone."
        )
    return dict(pattern)


def group_pattern(pattern: Any, **how: Any) -> GroupPattern:
    """Return what `as_pattern` returned, as what decides which groups of a file are rows."""
    from ray_h5.hdf5.groups.matching_groups import GroupPattern

    return GroupPattern(tuple(pattern.items()) if isinstance(pattern, Mapping) else pattern, **how)


def shown(kind: Any) -> str:
    """Return a row kind as text, without the globs of what is no row if it has none: index files are named by it."""
    shown_if_given = {"exclude", "by"} if getattr(kind, "by", None) is None else {one.name for one in fields(kind)}
    of = {one.name: (getattr(kind, one.name), one.default) for one in fields(kind) if one.repr}
    names = [name for name, (value, default) in of.items() if name not in shown_if_given or value != default]
    return f"{type(kind).__name__}({', '.join([f'{name}={of[name][0]!r}' for name in names])})"


def as_globs(option: str, globs: Any, expected: str) -> tuple[str, ...]:
    """Return one glob or several, each once; raise `OptionError` for other values."""
    listed = (globs,) if isinstance(globs, str) or not isinstance(globs, Sequence) else tuple(globs)
    require(listed and all(isinstance(glob, str) and glob.strip("/") for glob in listed), option, globs, expected)
    return tuple(dict.fromkeys(map(str, listed)))


def as_excluded(option: str, exclude: Any) -> tuple[str, ...]:
    """Return the globs of what is no row; () for none."""
    is_none = exclude is None or (isinstance(exclude, Sequence) and not len(exclude))
    return () if is_none else as_globs(option, exclude, "a glob over paths, such as 'meta*', or several")


@names_options
@dataclass(frozen=True, slots=True)
class Groups(RowKind):
    """Each HDF5 group that matches a pattern is a row, or each dataset that does; or rows of equal values together.

    The datasets of a group are its columns: ``actions``, ``obs/eef``. Rows may differ in length. If datasets match,
    they are one column. Datasets with the same name in several groups are columns of one row with a mapping of
    patterns: ``Groups({"image": "images/*", "mask": "masks/*"})``.

    With ``Groups(by="event_id")``, indices of the first axis that follow each other and have one value in that column
    are a row. It has this value, and of each column of the same length, what it has there.

    Parameters
    ----------
    pattern : str, sequence of str, or mapping of str to str; or None with `by`
        A glob over paths in the file, below `group`: ``*`` stands for any text in one name, ``**`` for any number of
        groups. Or several: what matches one of them is a row, once. Or columns, each with a glob of its datasets: a row
        has one dataset of each, in which ``*`` stands for the same text.
    attrs : sequence of str
        Attributes of the groups, or datasets, that are columns: each holds numbers or one text. ``"../magnitude"`` is
        one of the group above; so is a name that only the groups above have. With `by`, ``"num_samples"`` is how many
        entries a row has.
    key : str, optional
        Name of a column with the path of the group.
    order : {"name", "creation"}
        The order of rows in a file: by name, where ``demo_2`` is before ``demo_10``, or as they were made, if the file
        records that.
    name : str
        The column, if the pattern matches datasets.
    missing : {"error", "null"}
        What happens if groups have different columns: an error, or None where a group lacks one, or all groups of a
        file do. Single numbers that only some groups of a file have cannot be None; attributes that hold a number are
        NaN.
    exclude : str, or sequence of str
        Globs of what is no row, and of groups in which nothing is one: ``"meta*"``. A glob without a slash is of a name
        at any level, others are of paths, as those of `pattern`. With columns, a row is left out if its name or one of
        its datasets matches.
    by : str, optional
        Instead of a pattern: a column with one number or text an entry, where equal values follow each other. It is
        read while planning. Datasets of another length, unless they have a single value, are no columns.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Groups("data/demo_*", attrs=("num_samples",), key="demo")
    Groups(pattern='data/demo_*', attrs=('num_samples',), key='demo', order='name', name='value', missing='error')
    >>> Groups(["[0-9]*", "x*"], exclude="x_meta").exclude
    ('x_meta',)
    """

    episode = "group"

    pattern: str | Sequence[str] | Mapping[str, str] | None = None
    attrs: Sequence[str] = ()
    key: str | None = None
    order: Literal["name", "creation"] = "name"
    name: str = "value"
    missing: Literal["error", "null"] = "error"
    exclude: str | Sequence[str] = field(default=(), kw_only=True)
    by: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.by is None:
            object.__setattr__(self, "pattern", as_pattern("Groups: pattern", self.pattern))
        object.__setattr__(self, "exclude", as_excluded("Groups: exclude", self.exclude))
        attrs: Any = self.attrs
        object.__setattr__(self, "attrs", () if attrs is None else tuple(as_names(attrs, "Groups: attrs")))
        check_key("Groups: key", self.key)
        own = [*self.attrs, *([] if self.key is None else [self.key])]
        require(len(set(own)) == len(own), f"Groups: attrs={self.attrs}, key", self.key, "names that differ")
        require(self.order in ("name", "creation"), "Groups: order", self.order, "'name' or 'creation'")
        if isinstance(self.pattern, Mapping) and (self.attrs or self.order != "name"):
            raise OptionError(
                f"Groups: pattern={self.pattern!r}: attrs= and order= are of groups, or datasets, of one column; "
                "leave them out"
            )
        require(isinstance(self.name, str) and self.name, "Groups: name", self.name, "the name of a column")
        require(self.missing in ("error", "null"), "Groups: missing", self.missing, "'error' or 'null'")
        self._check_by()

    def _check_by(self) -> None:
        if self.by is None:
            return
        require(isinstance(self.by, str) and self.by.strip("/"), "Groups: by", self.by, "the name of a column")
        others = [one.name for one in fields(self) if one.name not in {"by", "attrs", "missing"}]
        if given := [name for name in others if getattr(self, name) != self.__dataclass_fields__[name].default]:
            raise OptionError(
                f"Groups: by={self.by!r} and {given[0]}={getattr(self, given[0])!r}: rows are of equal values of a "
                f"column, or groups; leave one of both out. The column {self.by!r} has the value of each row."
            )
        object.__setattr__(self, "by", self.by.strip("/"))
        require({*self.attrs} <= {NUM_SAMPLES}, "Groups: by=, attrs", self.attrs, f"[{NUM_SAMPLES!r}], or none")

    def __hash__(self) -> int:
        return hash((self.by, tuple(self.attrs)) if self.by is not None else (self.in_file, self.key))

    def __repr__(self) -> str:
        return shown(self)

    @property
    def has_groups(self) -> bool:
        return self.by is None

    @property
    def in_file(self) -> GroupPattern:
        """The part of it that decides what is read from a file."""
        how: dict[str, Any] = {"order": self.order, "attrs": tuple(self.attrs), "name": self.name}
        return group_pattern(self.pattern, **how, missing=self.missing, exclude=tuple(self.exclude))


@names_options
@dataclass(frozen=True, slots=True)
class Grid(RowKind):
    """The leading axes of datasets together are the rows, in C order.

    With ``axes=2``, a dataset of shape (trajectory, time, x, y) has trajectory * time rows of shape (x, y).

    Parameters
    ----------
    axes : int
        How many leading axes are rows.
    of : mapping of str to sequence of int, optional
        Row axes of columns that do not have all of them: ``{"dimensions/time": (1,), "dimensions/x": ()}`` says that
        a row has the value at its index of axis 1, or the whole dataset, which is a constant of the file.
    include_axes : bool
        Add the columns ``axis_0``, ``axis_1``, ...: the index of a row along each axis.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.
    """

    axes: int
    of: Mapping[str, Sequence[int]] | None = None
    include_axes: bool = False
    _named: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", as_integer("Grid: axes", self.axes, 1))
        axes_of = {} if self.of is None else self.of
        require(isinstance(axes_of, Mapping), "Grid: of", axes_of, "{column: row axes}, such as {'time': (1,)}")
        known: dict[str, tuple[int, ...]] = {}
        for name, axes in axes_of.items():
            require(isinstance(name, str), "Grid: of", axes_of, f"names of columns, found {name!r}")
            wanted: tuple[Any, ...] = tuple(axes) if isinstance(axes, Iterable) else (axes,)
            if list(wanted) != sorted({axis for axis in wanted if isinstance(axis, int) and 0 <= axis < self.axes}):
                raise OptionError(
                    f"Grid: of={{{name!r}: {axes!r}}}: expected row axes from 0 to {self.axes - 1}, ascending, such as "
                    "(1,); () for a constant"
                )
            known[name.strip("/")] = wanted
        object.__setattr__(self, "of", None if self.of is None else known)

    def __hash__(self) -> int:
        return hash((self.axes, frozenset(self.row_axes.items()), self.include_axes, self._named))

    @property
    def row_axes(self) -> dict[str, tuple[int, ...]]:
        """The row axes of the columns that were named."""
        return {name: tuple(axes) for name, axes in (self.of or {}).items()}

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that are asked for, which say what rows are where others differ; () for all."""
        return self._named

    def naming(self, columns: Iterable[str]) -> Grid:
        """Return the grid of these columns."""
        grid = replace(self)
        object.__setattr__(grid, "_named", tuple(sorted({name.strip("/") for name in columns})))
        return grid


@names_options
@dataclass(frozen=True, slots=True)
class Files(RowKind):
    """Each file is a row: a bag of features, a volume, a spectrum, a molecule.

    All datasets of a file, below `group`, are its columns, each as a whole. Files may differ in the lengths of their
    axes. A dataset with a single value is a scalar column.

    Parameters
    ----------
    missing : {"error", "null"}
        What happens if files have different columns: an error, or None in the row of a file that lacks one.
    key : str, optional
        Name of a column with the name of the file, without its extension: ``scan``, or ``patient_3/scan`` with as many
        folders as it takes to tell all files apart.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Files(key="slide")
    Files(key='slide')
    """

    episode = "file"

    _: KW_ONLY
    key: str | None = None
    missing: Literal["error", "null"] = field(default="error", repr=False)  # which rows there are does not depend on it
    _folders: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_key("Files: key", self.key)
        require(self.missing in ("error", "null"), "Files: missing", self.missing, "'error' or 'null'")


def as_kind(rows: Any) -> RowKind | None:
    """Return the value of the argument `rows`."""
    if rows is None or isinstance(rows, RowKind):
        return rows
    if isinstance(rows, type) and issubclass(rows, RowKind):
        raise OptionError(f"rows={rows.__name__}: expected a value; write {rows.__name__}(...)")
    hint = f"; write Groups({rows!r})" if isinstance(rows, str) else f"; write Grid({rows})" if is_integer(rows) else ""
    raise OptionError(f"rows={rows!r}: expected Groups(...), Grid(...), Files() or Patches(...){hint}")


def check_episodes(rows: RowKind | None, windows: Windows | None) -> None:
    """Raise `OptionError` for an option of windows that means nothing for these rows."""
    if windows is None:
        return
    if isinstance(windows.episode, Mapping):
        raise OptionError(f"Windows: episode={{file: episode}} is for rows=Files(); with rows={rows}, name a column")
    if rows is not None and rows.is_block:
        raise OptionError("windows=: are of steps of episodes, and rows=Patches(...) are blocks; leave one of both out")
    if rows is not None and windows.at is not None and not rows.episode:
        raise OptionError(
            f"Windows: at={windows.at!r} is for rows along the first axis, Groups and Files; with rows={rows}, leave "
            "it out."
        )
    options = windows.episodes
    if rows is not None and (named := next(iter(options), None)):
        what = f"each {rows.episode} is an episode" if rows.episode else "the last row axis is the time of an episode"
        raise OptionError(
            f"Windows: {named}={options[named]!r} is for rows along the first axis; with rows={rows}, {what}. Leave it "
            "out."
        )
    for option in ("per_step", "constants"):
        if getattr(windows, option) and (rows is None or not rows.episode):
            instead = "of= of Grid says it" if isinstance(rows, Grid) else "here each column has a value for each step"
            raise OptionError(
                f"Windows: {option}={list(getattr(windows, option))} is for rows=Groups(...) or Files(); {instead}"
            )
    if windows.episode_length is not None and (rows is None or not rows.episode):
        raise OptionError(
            f"Windows: episode_length={windows.episode_length!r} is for rows=Groups(...) or Files(); other columns "
            "have one length"
        )
