"""Groups, or datasets, that match a pattern -> a table of their datasets and attributes.

A file may have 10^5 of them. To describe each dataset from its header takes too long, so a dataset is compared with
those that were described before: if type and creation properties are equal, only its shape and place are its own.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, RayH5Error, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.column import describe_column
from ray_h5.hdf5.metadata.links import Trail, open_object, stored_name
from ray_h5.hdf5.metadata.opening import translated
from ray_h5.hdf5.metadata.tree import H5Tree
from ray_h5.hdf5.segments import NOT_WRITTEN, GroupTable, Segments
from ray_h5.messages import few, near_names

_MAX_DEPTH = 32
"""Depth of groups below a matching group, or of a pattern."""

_MAX_ALIASES = 1 << 13
"""Names in groups that are listed again under another name. A few dozen links can make any number of these."""

_MAX_VALUES = 1 << 62
"""Values of a column, in all groups: above this, int64 cannot number them."""

_DIGITS = re.compile(r"([0-9]+)")
_MAX_SHOWN = 5
_PROBED_NAMES = 1000


def natural_key(name: str) -> tuple[Any, ...]:
    """Return a key that sorts ``demo_2`` before ``demo_10``. No two names have the same key."""
    parts = _DIGITS.split(name)
    # Text and digits alternate, so parts at one position are of one type. A number with more digits is larger; Python
    # refuses to convert thousands of digits.
    return tuple((len(part.lstrip("0")), part.lstrip("0")) if i % 2 else part for i, part in enumerate(parts)), name


@dataclass(frozen=True, slots=True)
class GroupPattern:
    """Which groups, or datasets, are rows.

    Attributes
    ----------
    pattern : str
        A glob over paths in the file: ``*`` stands for any text in one name, ``**`` for any number of groups.
    order : {"name", "creation"}
        Their order: by name, where ``demo_2`` is before ``demo_10``, or by the time when they were made.
    attrs : tuple of str
        Attributes that are read.
    name : str
        The column of datasets that match the pattern themselves.
    """

    pattern: str
    order: str = "name"
    attrs: tuple[str, ...] = ()
    name: str = "value"


def read_group_table(
    tree: H5Tree, pattern: GroupPattern, columns: Sequence[str] | None, file_bytes: int
) -> tuple[GroupTable, dict[str, RayH5Error]]:
    """Return the groups that match a pattern, and the errors of columns that cannot be read.

    Parameters
    ----------
    tree : H5Tree
        The open file.
    pattern : GroupPattern
        Which groups.
    columns : sequence of str, optional
        The columns that are looked at; None for all.
    file_bytes : int
        Size of the file.

    Raises
    ------
    UnknownColumnError
        If nothing matches.
    SchemaMismatchError
        If the groups have other columns, or a column has other dtypes or numbers of axes, or an attribute is missing.
    """
    walk = _Walk(tree, pattern, None if columns is None else frozenset(columns))
    with translated(tree.path, f"listing the groups {pattern.pattern!r}"):
        table = walk.table()
    _check_places(tree.path, table, file_bytes)
    return table, walk.refused


@dataclass(slots=True, eq=False)
class _Class:
    """Datasets of one column that were described together."""

    type_id: h5py.h5t.TypeID
    properties: h5py.h5p.PropDCID
    layout: ColumnLayout
    array_shape: tuple[int, ...]
    number: int

    def holds(self, dataset: h5py.h5d.DatasetID, properties: h5py.h5p.PropDCID) -> bool:
        return bool(dataset.get_type().equal(self.type_id)) and bool(properties.equal(self.properties))


_Alike = tuple[tuple[bool, ...], tuple[int, ...] | None]
"""Which axes of a dataset can grow, and the shape of a chunk: datasets of one class agree in them."""


@dataclass(slots=True, eq=False)
class _Builder:
    """One column that is being collected."""

    path: str
    name: str
    paths: list[str | None] = field(default_factory=list)
    class_of: list[int] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    classes: dict[_Alike, list[_Class]] = field(default_factory=dict)
    first: _Class | None = None
    axes: int = 0
    by_unit: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    layouts: list[ColumnLayout] = field(default_factory=list)

    def add(self, path: str, dataset: h5py.h5d.DatasetID) -> None:
        """Add a dataset as the next segment."""
        properties = dataset.get_create_plist()
        if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
            # Before its shape is asked for: libhdf5 would open the other files.
            raise UnsupportedColumnError(
                f"{self.path}: {path!r} has its values in other datasets or files (virtual dataset or external "
                "storage), which rows that are groups cannot have. Copy them into the file, or leave the column out."
            )
        space = dataset.get_space()
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            raise UnsupportedColumnError(f"{self.path}: {path!r} has an empty (null) dataspace, and no values")
        dims = space.get_simple_extent_dims()
        growing = tuple(n == h5py.h5s.UNLIMITED for n in space.get_simple_extent_dims(maxdims=True))
        chunked = properties.get_layout() == h5py.h5d.CHUNKED
        alike = (growing, properties.get_chunk()) if chunked else ((False,) * len(dims), None)
        candidates = self.classes.setdefault(alike, [])
        found = next((each for each in candidates if each.holds(dataset, properties)), None)
        if found is None:
            found = self._described(path, dataset, len(dims))
            candidates.append(found)
        shape = (*dims, *found.array_shape)
        row_shape = shape[1:] if dims else shape
        unit = (found.number, row_shape)
        if unit not in self.by_unit:
            self.by_unit[unit] = len(self.layouts)
            self.layouts.append(replace(found.layout, name=self.name, shape=(1, *row_shape), offset=None))
        self.paths.append(path)
        self.class_of.append(self.by_unit[unit])
        self.shapes.append(shape)
        offset = dataset.get_offset() if found.layout.storage == "contiguous" else None
        self.offsets.append(NOT_WRITTEN if offset is None else offset)

    def _described(self, path: str, dataset: h5py.h5d.DatasetID, axes: int) -> _Class:
        opened = h5py.Dataset(dataset, readonly=True)
        layout = describe_column(opened, path, path=self.path, at_home=True, sources=(), single_ok=True)
        array_shape = layout.shape[max(1, axes) :]
        number = sum(map(len, self.classes.values()))
        found = _Class(dataset.get_type(), dataset.get_create_plist(), layout, array_shape, number)
        if self.first is None:
            self.first, self.axes = found, axes
        self._check_same(found, axes, path)
        return found

    def _check_same(self, found: _Class, axes: int, path: str) -> None:
        assert self.first is not None
        one, other = self.first.layout, found.layout
        # Texts of other lengths are texts.
        alike = one.kind == other.kind and (one.dtype == other.dtype or one.kind == "string")
        if alike and axes == self.axes and len(found.array_shape) == len(self.first.array_shape):
            self._check_enum(other, path)
            return
        raise SchemaMismatchError(
            f"{self.path}: column {self.name!r}: expected {_described_type(self.first, self.axes)}, as in "
            f"{self._first_path!r}, found {_described_type(found, axes)} in {path!r}. Rows may differ in length, not "
            "in dtype or number of axes: choose groups that agree with the pattern, or leave the column out with "
            "columns=[...]."
        )

    def _check_enum(self, layout: ColumnLayout, path: str) -> None:
        assert self.first is not None
        if sorted(layout.enum) != sorted(self.first.layout.enum):
            raise SchemaMismatchError(
                f"{self.path}: column {self.name!r}: the enum of {path!r} is {dict(layout.enum)}, that of "
                f"{self._first_path!r} is {dict(self.first.layout.enum)}: their integers mean other things. Leave the "
                "column out with columns=[...], or write one enum."
            )

    @property
    def _first_path(self) -> str:
        return next(path for path in self.paths if path is not None)

    def segments(self) -> Segments:
        shapes = np.array(self.shapes, np.int64).reshape(len(self.shapes), len(self.shapes[0]))
        single = not self.axes
        if not single and shapes[:, 0].astype(np.float64).sum() >= _MAX_VALUES:
            raise CorruptFileError(
                f"{self.path}: column {self.name!r}: its datasets have {shapes[:, 0].astype(np.float64).sum():.0f} "
                "values along the first axis, more than a file can hold: its metadata is damaged"
            )
        return Segments(
            self.name,
            tuple(self.paths),
            tuple(self.layouts),
            np.array(self.class_of, np.int32),
            shapes,
            np.array(self.offsets, np.int64),
            single,
        )


def _described_type(found: _Class, axes: int) -> str:
    array = f" of shape {found.array_shape}" if found.array_shape else ""
    return f"{found.layout.dtype}{array} with {axes} {'axis' if axes == 1 else 'axes'}"


class _Listed:
    """Counts groups that are listed again by another name: links may lead to a group on very many ways."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._groups: set[int] = set()
        self._aliases = 0

    def add(self, group: h5py.h5g.GroupID, prefix: str, depth: int, names: int) -> None:
        """Count the names in a group; raise if links lead on without end."""
        address = h5py.h5o.get_info(group).addr
        if address in self._groups:
            self._aliases += names
        self._groups.add(address)
        if depth > _MAX_DEPTH or self._aliases > _MAX_ALIASES:
            what = f"{_MAX_DEPTH} nested groups" if depth > _MAX_DEPTH else f"{_MAX_ALIASES} names by other names"
            raise CorruptFileError(
                f"{self._path}: more than {what} at {prefix[:200]!r}: a link leads back to a group above it, or many "
                "links to the same groups. Write the levels of the pattern one by one, without '**', and name columns "
                "with columns=[...]."
            )


class _Walk:
    def __init__(self, tree: H5Tree, pattern: GroupPattern, wanted: frozenset[str] | None) -> None:
        self._tree = tree
        self._pattern = pattern
        self._wanted = wanted
        self._kinds: dict[str, type] = {}
        self._builders: dict[str, _Builder] = {}
        self._listed = _Listed(tree.path)
        self.refused: dict[str, RayH5Error] = {}

    @property
    def _path(self) -> str:
        return self._tree.path

    def table(self) -> GroupTable:
        root, trail = self._tree.enter()
        given = [part for part in self._pattern.pattern.split("/") if part]
        parts = [part for i, part in enumerate(given) if part != "**" or given[i - 1 : i] != ["**"]]
        if len(parts) > _MAX_DEPTH:
            raise UnknownColumnError(f"{self._path}: a pattern of {len(parts)} levels; expected at most {_MAX_DEPTH}")
        found = list(dict(self._matches(root, trail, "", parts, 0)).items())
        if not found:
            raise self._nothing(root)
        if self._pattern.order == "name":
            found.sort(key=lambda each: natural_key(each[0]))
        attributes = {name: _Attribute(self._path, name) for name in self._pattern.attrs}
        datasets = self._is_dataset(*found[0])
        for number, (name, parent) in enumerate(found):
            opened = self._open(parent, name, datasets=datasets)
            if datasets:
                self._add(self._pattern.name, name, opened, number)
            else:
                self._add_group(name, opened, number)
            for attribute in attributes.values():
                attribute.add(name, opened)
        columns = {name: builder.segments() for name, builder in self._builders.items() if name not in self.refused}
        return GroupTable(
            tuple(name for name, _ in found), columns, {name: each.values() for name, each in attributes.items()}
        )

    # Which groups match -------------------------------------------------------------------

    def _matches(
        self, group: h5py.Group, trail: Trail, prefix: str, parts: Sequence[str], depth: int
    ) -> Iterator[tuple[str, tuple[h5py.Group, Trail]]]:
        """Yield the paths that match, each with the group that has its last name."""
        part, rest = parts[0], parts[1:]
        if part == "**":
            if rest:
                yield from self._matches(group, trail, prefix, rest, depth)
            for name, below, to_it in self._groups_in(group, trail, prefix, depth):
                if not rest:
                    yield prefix + name, (group, trail)
                yield from self._matches(below, to_it, f"{prefix}{name}/", parts, depth + 1)
            return
        if _is_glob(part):
            names = [name for name in self._names(group, prefix) if fnmatch.fnmatchcase(name, part)]
        else:
            stored = stored_name(part)
            names = [part] if stored is not None and group.id.links.exists(stored) else []
        for name in names:
            if not rest:
                yield prefix + name, (group, trail)
                continue
            to_it = trail.branch()
            below = to_it.take(group, name, prefix + name)
            if isinstance(below, h5py.Group):
                yield from self._matches(below, to_it, f"{prefix}{name}/", rest, depth + 1)

    def _groups_in(
        self, group: h5py.Group, trail: Trail, prefix: str, depth: int
    ) -> Iterator[tuple[str, h5py.Group, Trail]]:
        names = self._names(group, prefix)
        self._listed.add(group.id, prefix, depth, len(names))
        for name in names:
            to_it = trail.branch()
            found = to_it.take(group, name, prefix + name)
            if isinstance(found, h5py.Group):
                yield name, found, to_it

    def _names(self, group: h5py.Group, prefix: str) -> list[str]:
        links = group.id.links
        found: list[bytes] = []
        if self._pattern.order == "creation":
            if not group.id.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED:
                raise UnsupportedColumnError(
                    f"{self._path}: group {'/' + prefix.strip('/')!r} does not record the order in which its members "
                    "were made. Use order='name'."
                )
            links.iterate(found.append, idx_type=h5py.h5.INDEX_CRT_ORDER)
        else:
            links.iterate(found.append)
        return [_decoded(self._path, group.id, name) for name in found]

    def _nothing(self, root: h5py.Group) -> UnknownColumnError:
        there: list[str] = []

        def note(name: bytes) -> int | None:
            there.append(name.decode("utf-8", "backslashreplace"))
            return 1 if len(there) >= _PROBED_NAMES else None

        h5py.h5o.visit(root.id, note)
        return UnknownColumnError(
            f"{self._path}: nothing matches the pattern {self._pattern.pattern!r} below group {self._tree.group!r}."
            f"{near_names(self._pattern.pattern, _patterns(there))}"
        )

    # What is in them ----------------------------------------------------------------------

    def _is_dataset(self, name: str, parent: tuple[h5py.Group, Trail]) -> bool:
        group, trail = parent
        return isinstance(self._at_home(group, trail, name), h5py.Dataset)

    def _at_home(self, group: h5py.Group, trail: Trail, path: str) -> Any:
        """Return the object of a link, of whatever kind; raise if it is in another file."""
        to_it = trail.branch()
        found = to_it.take(group, path.rsplit("/", 1)[-1], path)
        if to_it.sources:
            raise UnsupportedColumnError(
                f"{self._path}: {path!r} leads to another file, {few(list(to_it.sources))}. Groups in other files "
                "cannot be rows: read those files themselves."
            )
        return found

    def _open(self, parent: tuple[h5py.Group, Trail], path: str, *, datasets: bool) -> Any:
        group, trail = parent
        name = path.rsplit("/", 1)[-1].encode()
        if not trail.sources and group.id.links.get_info(name).type == h5py.h5l.TYPE_HARD:
            opened = open_object(group, name).id
        else:
            opened = self._at_home(group, trail, path).id
        if isinstance(opened, h5py.h5d.DatasetID) != datasets or isinstance(opened, h5py.h5t.TypeID):
            raise SchemaMismatchError(
                f"{self._path}: the pattern {self._pattern.pattern!r} matches groups and datasets, such as {path!r}. "
                "Choose one kind with a narrower pattern."
            )
        return opened

    def _add_group(self, name: str, group: h5py.h5g.GroupID, number: int) -> None:
        found = 0
        for column, dataset in self._members(group, "", 0, _Listed(self._path)):
            self._add(column, f"{name}/{column}", dataset, number)
            found += 1
        if not found and self._wanted is None:
            raise UnsupportedColumnError(
                f"{self._path}: group {name!r} has no dataset. Choose groups that have some with the pattern."
            )
        self._check_complete(name, number)

    def _add(self, column: str, path: str, dataset: h5py.h5d.DatasetID, number: int) -> None:
        if column in self.refused:
            return
        builder = self._builders.get(column)
        if builder is None:
            if number:
                raise self._differs(f"the groups before {path!r} lack {column}")
            builder = self._builders[column] = _Builder(self._path, column)
        try:
            builder.add(path, dataset)
        except UnsupportedColumnError as exc:
            if self._wanted is not None and column in self._wanted:
                raise
            self.refused[column] = exc

    def _check_complete(self, name: str, number: int) -> None:
        missing = [
            column
            for column, builder in self._builders.items()
            if len(builder.paths) <= number and column not in self.refused
        ]
        if missing and number:
            raise self._differs(f"{name!r} lacks {few(missing)}")

    def _differs(self, what: str) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"{self._path}: the groups {self._pattern.pattern!r} have different columns: {what}. Choose columns "
            "that all of them have with columns=[...], or groups that agree with the pattern."
        )

    def _members(
        self, group: h5py.h5g.GroupID, prefix: str, depth: int, listed: _Listed
    ) -> Iterator[tuple[str, h5py.h5d.DatasetID]]:
        """Yield the datasets below a group, with their names."""
        found: list[tuple[bytes, int]] = []
        group.links.iterate(lambda name, info: found.append((name, info.type)), info=True)
        if depth:
            listed.add(group, prefix, depth, len(found))
        for raw, link_type in found:
            path = prefix + _decoded(self._path, group, raw)
            if not self._leads_to_wanted(path):
                continue
            opened = self._member(group, raw, path, hard=link_type == h5py.h5l.TYPE_HARD)
            self._kinds[path] = type(opened)
            if isinstance(opened, h5py.h5g.GroupID):
                yield from self._members(opened, path + "/", depth + 1, listed)
            elif isinstance(opened, h5py.h5d.DatasetID) and (self._wanted is None or path in self._wanted):
                yield path, opened

    def _member(self, group: h5py.h5g.GroupID, name: bytes, path: str, *, hard: bool) -> Any:
        if not hard:
            return self._at_home(h5py.Group(group), self._tree.enter()[1], path).id
        if self._kinds.get(path) is h5py.h5d.DatasetID:
            try:
                return h5py.h5d.open(group, name)  # faster than to ask for the kind of object first
            except (KeyError, TypeError, ValueError):
                pass  # of another kind in this group
        return open_object(h5py.Group(group), name).id

    def _leads_to_wanted(self, path: str) -> bool:
        return self._wanted is None or any(each == path or each.startswith(path + "/") for each in self._wanted)


@dataclass(slots=True, eq=False)
class _Attribute:
    """One attribute of all groups, as it is collected."""

    path: str
    name: str
    _values: list[Any] = field(default_factory=list)
    _read: Callable[[h5py.h5a.AttrID], Any] | None = None
    _type: h5py.h5t.TypeID | None = None

    def add(self, group: str, opened: Any) -> None:
        name = self.name.encode()
        if not h5py.h5a.exists(opened, name):
            raise SchemaMismatchError(
                f"{self.path}: {group!r} has no attribute {self.name!r}, which attrs= names."
                f"{near_names(self.name, _attribute_names(opened))}"
            )
        found = h5py.h5a.open(opened, name)
        if found.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} is empty; expected one number or one text. "
                "Leave it out of attrs=[...]."
            )
        if self._type is None or not found.get_type().equal(self._type):
            self._prepare(group, found)
        assert self._read is not None
        self._values.append(self._read(found))

    def _prepare(self, group: str, found: h5py.h5a.AttrID) -> None:
        dtype = found.dtype
        if found.shape not in {(), (1,)} or not _is_plain(dtype):
            raise UnsupportedColumnError(
                f"{self.path}: attribute {self.name!r} of {group!r} has dtype {dtype} and shape {found.shape}; "
                "expected one number or one text. Leave it out of attrs=[...]."
            )
        self._type = found.get_type()
        native = dtype.newbyteorder("=") if dtype.kind in "biuf" else dtype

        def read(attribute: h5py.h5a.AttrID) -> Any:
            value = np.zeros(attribute.shape, native)
            attribute.read(value)
            return value.reshape(-1)[0]

        self._read = read

    def values(self) -> np.ndarray:
        texts = [isinstance(value, (bytes, str)) for value in self._values]
        if all(texts):
            return np.array([_text(value) for value in self._values] + [None], object)[:-1]
        if any(texts):
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} is a text in some groups and a number in others; leave it out"
            )
        dtype = np.result_type(*{value.dtype for value in self._values})
        values = np.array(self._values, dtype)
        if values.tolist() != [value.item() for value in self._values] and not np.isnan(values).any():
            raise SchemaMismatchError(
                f"{self.path}: attribute {self.name!r} has integers in some groups that {dtype} cannot hold, the dtype "
                "of all of them together; leave it out"
            )
        return values


def _is_plain(dtype: np.dtype) -> bool:
    """Return whether values are numbers or texts."""
    return dtype.kind in "biufS" or h5py.check_string_dtype(dtype) is not None


def _patterns(names: Sequence[str]) -> list[str]:
    """Return names, with a glob instead of those that differ in a number: ``demo_*`` for demo_1 and demo_2."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return [pattern if len(of) > 1 else of[0] for pattern, of in alike.items()]


def _attribute_names(opened: Any) -> list[str]:
    names: list[bytes] = []
    h5py.h5a.iterate(opened, names.append)
    return [name.decode("utf-8", "backslashreplace") for name in names]


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _is_glob(part: str) -> bool:
    return any(each in part for each in "*?[")


def _decoded(path: str, group: h5py.h5g.GroupID, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        above = (h5py.h5i.get_name(group) or b"/").decode(errors="backslashreplace")
        raise UnsupportedColumnError(
            f"{path}: group {above!r} has a name that is not UTF-8, {name!r}. Rename it with h5py: "
            f"file[{above!r}].move({name!r}, 'new name')."
        ) from None


def _check_places(path: str, table: GroupTable, file_bytes: int) -> None:
    """Raise unless contiguous datasets are in the file, and share no bytes."""
    begins, sizes, names = [], [], []
    for name, column in table.columns.items():
        item = np.array([layout.stored_dtype.itemsize for layout in column.layouts], np.int64)
        there = (column.offsets != NOT_WRITTEN) & (column.class_of >= 0)
        # As float first: a damaged shape may not fit into int64.
        size = column.shapes[there].astype(np.float64).prod(axis=1) * item[column.class_of[there]]
        outside = np.flatnonzero(column.offsets[there] + size > file_bytes)
        if len(outside):
            at = int(np.flatnonzero(there)[outside[0]])
            raise CorruptFileError(
                f"{path}: dataset {column.paths[at]!r} ({name}) is at offset {column.offsets[at]}, and its "
                f"{size[outside[0]]:.0f} bytes end past the file's end at {file_bytes}"
            )
        begins.append(column.offsets[there])
        sizes.append(size.astype(np.int64))
        names += [column.paths[i] for i in np.flatnonzero(there).tolist()]
    begin, size = np.concatenate([*begins, np.empty(0, np.int64)]), np.concatenate([*sizes, np.empty(0, np.int64)])
    order = np.lexsort((size, begin))
    begin, size = begin[order], size[order]
    # Two names of one dataset have the same bytes.
    again = (begin[1:] == begin[:-1]) & (size[1:] == size[:-1])
    overlaps = np.flatnonzero((begin[:-1] + size[:-1] > begin[1:]) & ~again)
    if len(overlaps):
        one, other = names[order[overlaps[0]]], names[order[overlaps[0] + 1]]
        raise CorruptFileError(f"{path}: datasets {one!r} and {other!r} overlap in the file: its metadata is damaged")
