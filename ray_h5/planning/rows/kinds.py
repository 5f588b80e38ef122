"""Row kinds as a user writes them: groups as rows, leading axes as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ray_h5.errors import OptionError
from ray_h5.hdf5.metadata.groups import GroupPattern
from ray_h5.options import as_integer, is_integer
from ray_h5.planning.rows.windows import Windows


@dataclass(frozen=True, slots=True)
class Groups:
    """Each HDF5 group that matches a pattern is a row, or each dataset that does.

    The datasets of a group are its columns: ``actions``, ``obs/eef``. Rows may differ in length. If datasets match,
    they are one column.

    Parameters
    ----------
    pattern : str
        A glob over paths in the file, below `group`: ``*`` stands for any text in one name, ``**`` for any number of
        groups.
    attrs : sequence of str
        Attributes of the groups that are columns: each holds one number or one text.
    key : str, optional
        Name of a column with the path of the group.
    order : {"name", "creation"}
        The order of rows in a file: by name, where ``demo_2`` is before ``demo_10``, or as they were made, if the file
        records that.
    name : str
        The column, if the pattern matches datasets.
    missing : {"error", "null"}
        What happens if groups have different columns: an error, or None where a group lacks one. Single numbers cannot
        be None.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Groups("data/demo_*", attrs=("num_samples",), key="demo")
    Groups(pattern='data/demo_*', attrs=('num_samples',), key='demo', order='name', name='value', missing='error')
    """

    pattern: str
    attrs: Sequence[str] = ()
    key: str | None = None
    order: Literal["name", "creation"] = "name"
    name: str = "value"
    missing: Literal["error", "null"] = "error"

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern.strip("/"):
            raise OptionError(f"Groups: pattern={self.pattern!r}: expected a glob over paths, such as 'data/demo_*'")
        if isinstance(self.attrs, str):
            raise OptionError(f"Groups: attrs={self.attrs!r}: expected a list of names; write attrs=[{self.attrs!r}]")
        object.__setattr__(self, "attrs", tuple(self.attrs))
        for each in self.attrs:
            if not isinstance(each, str):
                raise OptionError(f"Groups: attrs: expected names of attributes, found {each!r}")
        if self.key is not None and not (isinstance(self.key, str) and self.key):
            raise OptionError(f"Groups: key={self.key!r}: expected the name of a column")
        own = [*self.attrs, *([] if self.key is None else [self.key])]
        if len(set(own)) < len(own):
            raise OptionError(f"Groups: attrs={self.attrs}, key={self.key!r}: expected names that differ")
        if self.order not in {"name", "creation"}:
            raise OptionError(f"Groups: order={self.order!r}: expected 'name' or 'creation'")
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"Groups: name={self.name!r}: expected the name of a column")
        if self.missing not in {"error", "null"}:
            raise OptionError(f"Groups: missing={self.missing!r}: expected 'error' or 'null'")

    @property
    def in_file(self) -> GroupPattern:
        """The part of it that decides what is read from a file."""
        return GroupPattern(self.pattern, self.order, tuple(self.attrs), self.name, self.missing)


@dataclass(frozen=True, slots=True)
class Grid:
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
    _of: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", as_integer("Grid: axes", self.axes, 1))
        given = {} if self.of is None else self.of
        if not isinstance(given, Mapping):
            raise OptionError(f"Grid: of={given!r}: expected {{column: row axes}}, such as {{'time': (1,)}}")
        known = []
        for name, axes in given.items():
            if not isinstance(name, str):
                raise OptionError(f"Grid: of={given!r}: expected names of columns, found {name!r}")
            wanted: tuple[Any, ...] = tuple(axes) if isinstance(axes, Iterable) else (axes,)
            if list(wanted) != sorted({each for each in wanted if isinstance(each, int) and 0 <= each < self.axes}):
                raise OptionError(
                    f"Grid: of={{{name!r}: {axes!r}}}: expected row axes from 0 to {self.axes - 1}, ascending, such as "
                    "(1,); () for a constant"
                )
            known.append((name.strip("/"), wanted))
        object.__setattr__(self, "_of", tuple(known))
        object.__setattr__(self, "of", None if self.of is None else dict(known))

    def __hash__(self) -> int:
        return hash((self.axes, self._of, self.include_axes))

    @property
    def row_axes(self) -> dict[str, tuple[int, ...]]:
        """The row axes of the columns that were named."""
        return dict(self._of)


RowKind: TypeAlias = Groups | Grid


def as_kind(rows: Any) -> RowKind | None:
    """Return the value of the argument `rows`."""
    if rows is None or isinstance(rows, (Groups, Grid)):
        return rows
    hint = f"; write Groups({rows!r})" if isinstance(rows, str) else f"; write Grid({rows})" if is_integer(rows) else ""
    raise OptionError(f"rows={rows!r}: expected Groups(...) or Grid(...){hint}")


def check_episodes(rows: RowKind | None, windows: Windows | None) -> None:
    """Raise `OptionError` for an option of windows that means nothing for these rows."""
    if windows is None:
        return
    given = {"episode": windows.episode, "episode_ends": windows.episode_ends}
    if rows is not None and (named := next((name for name, value in given.items() if value is not None), None)):
        what = "each group is an episode" if isinstance(rows, Groups) else "the last row axis is the time of an episode"
        raise OptionError(
            f"Windows: {named}={given[named]!r} is for rows along the first axis; with rows={rows}, {what}. Leave it "
            "out."
        )
    if windows.episode_length is not None and not isinstance(rows, Groups):
        raise OptionError(
            f"Windows: episode_length={windows.episode_length!r} is for rows=Groups(...); other columns have one length"
        )
