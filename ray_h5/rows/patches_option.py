"""Blocks of arrays as rows, as a user writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from ray_h5.errors import OptionError
from ray_h5.messages import few
from ray_h5.options import as_integer, is_integer, names_options, require
from ray_h5.rows.row_kind_options import RowKind, as_excluded, as_pattern, check_key, shown


@names_options
@dataclass(frozen=True, slots=True)
class Patches(RowKind):
    """Each row is a block of arrays with several axes: of volumes, images, fields.

    Files, or groups, may differ in the lengths of these axes. The blocks of a row are at one place in all arrays, which
    is the column ``corner``. Single values of a file, or of each group, are columns, too; arrays with fewer axes than
    blocks are columns if they are named: each block has all of them.

    Parameters
    ----------
    shapes : mapping of str to sequence of int
        The arrays, and the shape of a block: ``{"raw": (64, 64, 64), "label": (64, 64, 64)}``. The shapes are equal.
        Of an array of compound values, each field with numbers is a column, and `ray_h5.fields` joins several.
    stride : int or sequence of int, optional
        Steps between the blocks of a grid, along each axis; by default the shape of a block. The last block of an axis
        is moved inside the array.
    per_file : int, optional
        Instead of a grid: this many blocks a file, at corners that are drawn by (seed, epoch, row). Each epoch has
        others; the same in Ray and in plain PyTorch, after a resume, and for any number of workers.
    seed : int
        With `per_file`: the seed of the corners.
    align : bool
        With `per_file`: draw corners where chunks of the first array begin. Blocks of the shape of a chunk then decode
        exactly the bytes that are used.
    where_any : (str, sequence of int), optional
        An array with classes, and the classes of which a block has at least one: ``("label", [1, 2])``. The array is
        read once, while the rows are planned. On a grid, other blocks are no rows. Draws choose a small cell that holds
        a class first, each such cell equally often, and then a block around it. A file without these has no rows.
    axes : mapping of str to sequence of int, optional
        The axes that blocks cut, ascending, of arrays that have more: ``{"raw": (1, 2, 3)}`` for channels before them.
        By default those whose lengths are those of another array that has no more, if just one reading fits.
    pad : {"inside", "zero"}
        What happens to blocks that an array is too short for: they are moved inside, or have zeros past its end.
    key : str, optional
        Name of a column with the name of the file, as with `Files`; with `groups`, with the path of the group.
    groups : str, sequence of str, or mapping of str to str, optional
        Groups of each file that have the arrays in `shapes`, as a glob over paths like that of `Groups`, or several:
        ``"scans/*"``. Or a glob for each array, of datasets that belong together by name:
        ``{"raw": "images/*", "label": "masks/*"}``. They may differ in shape. `per_file` is then a number of blocks a
        group.
    exclude : str, or sequence of str
        Globs of groups that are left out, as those of `Groups`.

    Raises
    ------
    OptionError
        If an argument has a value that cannot be used.

    Examples
    --------
    >>> Patches({"raw": (64, 64, 64)}, stride=32).stride
    (32, 32, 32)
    """

    is_block: ClassVar[bool] = True

    shapes: Mapping[str, Sequence[int]]
    _: KW_ONLY
    stride: int | Sequence[int] | None = None
    per_file: int | None = None
    seed: int = 0
    align: bool = False
    where_any: tuple[str, Sequence[int]] | None = None
    axes: Mapping[str, Sequence[int]] | None = None
    pad: Literal["inside", "zero"] = "inside"
    key: str | None = None
    groups: str | Sequence[str] | Mapping[str, str] | None = None
    exclude: str | Sequence[str] = ()
    _folders: int = field(default=0, init=False, repr=False)

    corner: ClassVar[str] = "corner"
    """The column with the place of the block."""

    def __post_init__(self) -> None:
        put, names = partial(object.__setattr__, self), self.shapes if isinstance(self.shapes, Mapping) else ()
        is_right = names and all(isinstance(name, str) for name in names)
        require(is_right, "Patches: shapes", self.shapes, "{array: shape of a block}")
        shapes = {name.strip("/"): _integers("shapes", shape, 1) for name, shape in self.shapes.items()}
        require(len(set(shapes.values())) <= 1, "Patches: shapes", dict(self.shapes), "one shape for all arrays")
        block = next(iter(shapes.values()))
        put("shapes", shapes)
        if self.stride is not None:
            stride = (self.stride,) * len(block) if is_integer(self.stride) else self.stride
            put("stride", _integers("stride", stride, 1, len(block)))
        if self.per_file is not None:
            put("per_file", as_integer("Patches: per_file", self.per_file, 1))
        put("seed", as_integer("Patches: seed", self.seed, 0))
        self._check_draws()
        if self.where_any is not None:
            put("where_any", _classes(self.where_any))
        axes = {} if self.axes is None else self.axes
        if not isinstance(axes, Mapping) or (unknown := [name for name in axes if name.strip("/") not in shapes]):
            raise OptionError(
                f"Patches: axes={axes!r}: expected axes of {', '.join(shapes)}"
                + (f", found {unknown[0]!r}" if isinstance(axes, Mapping) else "")
            )
        checked = {name.strip("/"): _integers("axes", axis, 0, len(block)) for name, axis in axes.items()}
        for name, axes_of in checked.items():
            if list(axes_of) != sorted(set(axes_of)):
                raise OptionError(f"Patches: axes={{{name!r}: {axes_of}}}: expected axes that ascend")
        put("axes", checked or None)
        require(self.pad in ("inside", "zero"), "Patches: pad", self.pad, "'inside' or 'zero'")
        check_key("Patches: key", self.key)

    def _check_draws(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", as_pattern("Patches: groups", self.groups))
        object.__setattr__(self, "exclude", as_excluded("Patches: exclude", self.exclude))
        if self.exclude and self.groups is None:
            raise OptionError(f"Patches: exclude={self.exclude!r}: is of groups; pass groups= too, or leave it out")
        if self.stride is not None and self.per_file is not None:
            raise OptionError(
                f"Patches: stride={self.stride}, per_file={self.per_file}: blocks are on a grid, or drawn"
            )
        require(isinstance(self.align, bool), "Patches: align", self.align, "True or False")
        if self.align and (self.per_file is None or self.where_any is not None):
            raise OptionError(
                "Patches: align=True: is for corners that are drawn with per_file= alone; for a grid, pass a stride= "
                "that is a multiple of the chunks"
            )

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return shown(self)

    @property
    def block(self) -> tuple[int, ...]:
        """The shape of a block."""
        return tuple(next(iter(self.shapes.values())))

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that say which blocks there are."""
        return tuple(dict.fromkeys([*self.shapes, *([] if self.where_any is None else [self.where_any[0]])]))

    @property
    def has_groups(self) -> bool:
        return self.groups is not None

    @property
    def is_drawn(self) -> bool:
        return self.per_file is not None


def _integers(option: str, value: Any, least: int, count: int | None = None) -> tuple[int, ...]:
    wanted = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else ()
    is_right = wanted and all(is_integer(number) and number >= least for number in wanted)
    if not is_right or (count is not None and len(wanted) != count):
        many = "one or more" if count is None else f"{count}"
        raise OptionError(
            f"Patches: {option}={value!r}: expected {many} integers of {least} or more, one for each axis"
        )
    return tuple(map(int, wanted))


def _classes(value: Any) -> tuple[str, tuple[int, ...]]:
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], str):
        raise OptionError(f"Patches: where_any={value!r}: expected an array and its classes, such as ('label', [1, 2])")
    name, classes = value
    listed = [classes] if is_integer(classes) else classes
    chosen = tuple(listed) if isinstance(listed, Iterable) and not isinstance(listed, (str, bytes)) else ()
    if not chosen or not all(is_integer(class_) for class_ in chosen):
        raise OptionError(f"Patches: where_any={value!r}: expected a list of integers as classes, such as [1, 2]")
    return name.strip("/"), tuple(sorted({int(class_) for class_ in chosen}))


def check_any_block(paths: Sequence[str], kind: RowKind) -> None:
    """Raise if `where_any` leaves no block of any file."""
    if isinstance(kind, Patches) and kind.where_any is not None:
        name, classes = kind.where_any
        raise OptionError(
            f"Patches: where_any=({name!r}, {list(classes)}): no block of {few(paths)} holds one of these. Name "
            "classes that the labels have, or leave where_any= out."
        )
