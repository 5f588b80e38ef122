"""The datasets of one column in many groups -> a joined array.

To describe each of 10^5 datasets from its header takes too long, so a dataset is compared with those that were
described before: if type and creation properties are equal, only its shape and place are its own.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from functools import partial

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.columns.dataset_header import describe_column, is_plain, offset_of
from ray_h5.hdf5.columns.value_types import Shared
from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.joined_arrays import MISSING, GroupTable, JoinedArray, Paths
from ray_h5.manifest.layout import ColumnLayout, SourceStates

_MAX_VALUES = 1 << 62
"""Values of a column, in all groups: above this, int64 cannot number them."""


@dataclass(slots=True, eq=False)
class _Class:
    """Datasets of one column that were described together."""

    type_id: h5py.h5t.TypeID
    properties: h5py.h5p.PropDCID
    growing: tuple[bool, ...]
    layout: ColumnLayout
    array_shape: tuple[int, ...]
    number: int
    is_of_bytes: bool = False

    def holds(self, dataset: h5py.h5d.DatasetID, properties: h5py.h5p.PropDCID) -> bool:
        return self.has_type(dataset.get_type()) and self.has(properties)

    def has_type(self, type_id: h5py.h5t.TypeID) -> bool:
        """Return whether a type is that of the class; opaque values that are arrays of bytes may differ in length."""
        if self.is_of_bytes:
            return type_id.get_class() == h5py.h5t.OPAQUE and bool(type_id.get_tag() == self.type_id.get_tag())
        return bool(type_id.equal(self.type_id))

    def has(self, properties: h5py.h5p.PropDCID) -> bool:
        """Return whether creation properties are those of the class."""
        if not properties.equal(self.properties):
            return False
        # H5Pequal does not compare the last dimension of a chunk.
        return self.layout.storage != "chunked" or properties.get_chunk() == self.layout.chunk_shape


_Alike = tuple[tuple[bool, ...], tuple[int, ...] | None]
"""Which axes of a dataset can grow, and the shape of a chunk: datasets of one class agree in them."""


@dataclass(slots=True, eq=False)
class GroupColumn:
    """One column that is being collected."""

    path: str
    name: str
    shared: Shared
    sources: SourceStates = ()
    class_of: array[int] = field(default_factory=partial(array, "i"))
    shapes: array[int] = field(default_factory=partial(array, "q"))
    offsets: array[int] = field(default_factory=partial(array, "q"))
    classes: dict[_Alike, list[_Class]] = field(default_factory=dict)
    first: _Class | None = None
    first_path: str = ""
    last: _Class | None = None
    axes: int = 0
    described: int = 0
    by_unit: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    layouts: list[ColumnLayout] = field(default_factory=list)
    empties: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.class_of)

    def add(self, path: str, dataset: h5py.h5d.DatasetID) -> None:
        """Add the next dataset."""
        properties = dataset.get_create_plist()
        # Most datasets are like the one before, and their properties say the same.
        known = self.last if self.last is not None and self.last.has(properties) else None
        if known is None:
            self._check_here(path, properties)
        space = dataset.get_space()
        dims = space.get_simple_extent_dims()
        if not dims and space.get_simple_extent_type() == h5py.h5s.NULL:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {path!r} has an empty (null) dataspace, and no values"
            )
        growing = (False,) * len(dims)
        if known is None or known.layout.storage == "chunked":
            growing = tuple(n == h5py.h5s.UNLIMITED for n in space.get_simple_extent_dims(maxdims=True))
        if known is None or known.growing != growing or not known.has_type(dataset.get_type()):
            known = self._class_of(path, dataset, properties, growing)
        self._add((dataset.get_type().get_size(),) if known.is_of_bytes else dims, known, dataset)

    def add_missing(self, count: int) -> None:
        """Add groups that lack the column next."""
        self.class_of.extend([MISSING] * count)
        self.offsets.extend([UNALLOCATED] * count)

    def add_empty(self) -> None:
        """Add a dataset without values, whatever the dataset holds."""
        self.empties.add(len(self))
        self.add_missing(1)

    def _check_here(self, path: str, properties: h5py.h5p.PropDCID) -> None:
        if not is_plain(properties):
            # Before its shape is asked for: libhdf5 would open the other files.
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {path!r} has values in other datasets or files (virtual "
                "dataset or external storage), which rows that are groups, and joined(...), cannot have. Copy them "
                "into the file, or leave the column out."
            )

    def _class_of(
        self, path: str, dataset: h5py.h5d.DatasetID, properties: h5py.h5p.PropDCID, growing: tuple[bool, ...]
    ) -> _Class:
        chunked = properties.get_layout() == h5py.h5d.CHUNKED
        if not chunked:
            growing = (False,) * len(growing)
        candidates = self.classes.setdefault((growing, properties.get_chunk() if chunked else None), [])
        class_ = next((candidate for candidate in candidates if candidate.holds(dataset, properties)), None)
        if class_ is None:
            class_ = self._described(path, dataset, growing)
            candidates.append(class_)
        self.last = class_
        return class_

    def _add(self, dims: tuple[int, ...], class_: _Class, dataset: h5py.h5d.DatasetID) -> None:
        shape = (*dims, *class_.array_shape)
        row_shape = shape[1:] if dims else shape
        unit = (class_.number, row_shape)
        if unit not in self.by_unit:
            self.by_unit[unit] = len(self.layouts)
            unit_layout = replace(class_.layout, name=self.name, shape=(1, *row_shape), offset=None)
            self.layouts.append(replace(unit_layout, sources=self.sources))
        offset = offset_of(dataset, class_.layout.storage, class_.layout.user_block)
        try:
            self.shapes.extend(shape)
            self.offsets.append(UNALLOCATED if offset is None else offset)
        except OverflowError:
            raise CorruptFileError(
                f"{self.path}: column {self.name!r}: a dataset of shape {shape} at offset {offset}, larger than a file "
                "can hold: its metadata is damaged"
            ) from None
        self.class_of.append(self.by_unit[unit])

    def _described(self, path: str, dataset: h5py.h5d.DatasetID, growing: tuple[bool, ...]) -> _Class:
        axes = len(growing)
        layout = describe_column(dataset, path, path=self.path, shared=self.shared, single_ok=True)
        if is_of_bytes := not axes and is_bytes(layout):
            axes, layout = 1, as_bytes(layout)
        array_shape = layout.shape[max(1, axes) :]
        properties = dataset.get_create_plist()
        class_ = _Class(dataset.get_type(), properties, growing, layout, array_shape, self.described, is_of_bytes)
        self.described += 1
        if self.first is None:
            self.first, self.first_path, self.axes = class_, path, axes
        self._check_same(class_, axes, path)
        return class_

    def _check_same(self, class_: _Class, axes: int, path: str) -> None:
        assert self.first is not None
        one, other = self.first.layout, class_.layout
        # Texts of other lengths are texts.
        alike = one.kind == other.kind and (one.dtype == other.dtype or one.kind == "string")
        if alike and axes == self.axes and len(class_.array_shape) == len(self.first.array_shape):
            self._check_enum(other, path)
            return
        raise SchemaMismatchError(
            f"{self.path}: column {self.name!r}: expected {_described_type(self.first, self.axes)}, as in "
            f"{self.first_path!r}, found {_described_type(class_, axes)} in {path!r}. Rows may differ in length, not "
            "in dtype or number of axes: choose groups that agree with the pattern, or leave the column out with "
            "columns=[...]."
        )

    def _check_enum(self, layout: ColumnLayout, path: str) -> None:
        assert self.first is not None
        if sorted(layout.enum) != sorted(self.first.layout.enum):
            raise SchemaMismatchError(
                f"{self.path}: column {self.name!r}: the enum of {path!r} is {dict(layout.enum)}, that of "
                f"{self.first_path!r} is {dict(self.first.layout.enum)}: their integers mean other things. Leave the "
                "column out with columns=[...], or write one enum."
            )

    def joined(self, paths: Paths) -> JoinedArray:
        """Return the column; `paths` are those of its datasets."""
        if (empties := [*self.empties]) and (not self.layouts or not self.axes):
            problem = "single values beside empty arrays" if self.layouts else "empty arrays alone, of no type"
            raise UnsupportedColumnError(f"{self.path}: column {self.name!r} has {problem}; expected arrays")
        class_of = np.array(self.class_of, np.int32)
        there = class_of != MISSING
        shapes_there = np.array(self.shapes, np.int64).reshape(np.count_nonzero(there), -1)
        shapes = np.zeros((len(self), shapes_there.shape[1]), np.int64)
        shapes[there] = shapes_there
        if empties:
            class_of[empties] = 0
            shapes[empties] = self.layouts[0].shape
            shapes[empties, 0] = 0
        single = not self.axes
        if not single and shapes[:, 0].astype(np.float64).sum() >= _MAX_VALUES:
            raise CorruptFileError(
                f"{self.path}: column {self.name!r}: its datasets have {shapes[:, 0].astype(np.float64).sum():.0f} "
                "values along the first axis, more than a file can hold: its metadata is damaged"
            )
        offsets = np.array(self.offsets, np.int64)
        return JoinedArray(self.name, paths, tuple(self.layouts), class_of, shapes, offsets, single)


def is_bytes(layout: ColumnLayout) -> bool:
    """Return whether a single value is the bytes of something, such as an image: ``np.void(data)`` as h5py writes it.

    Each is a type of its own, as long as the data.
    """
    return layout.kind == "binary" and layout.direct and layout.storage != "chunked"


def as_bytes(layout: ColumnLayout) -> ColumnLayout:
    """Return an opaque value as the array of its bytes."""
    size, byte = layout.stored_dtype.itemsize, np.dtype("u1")
    fill = np.zeros((), byte)
    return replace(layout, kind="number", shape=(size,), stored_dtype=byte, item_bytes=1, fill=fill)


def _described_type(class_: _Class, axes: int) -> str:
    array = f" of shape {class_.array_shape}" if class_.array_shape else ""
    return f"{class_.layout.dtype}{array} with {axes} {'axis' if axes == 1 else 'axes'}"


def check_places(path: str, table: GroupTable, file_bytes: int) -> None:
    """Raise unless contiguous datasets are in the file, and share no bytes."""
    columns = list(table.columns.values())
    parts = [np.empty((4, 0), np.int64)]
    for owner, column in enumerate(columns):
        item = np.array([layout.stored_dtype.itemsize for layout in column.layouts], np.int64)
        there = np.flatnonzero((column.offsets != UNALLOCATED) & (column.class_of >= 0))
        # As float first: a damaged shape may not fit into int64.
        size = column.shapes[there].astype(np.float64).prod(axis=1) * item[column.class_of[there]]
        outside = np.flatnonzero(column.offsets[there] + size > file_bytes)
        if len(outside):
            at = int(there[outside[0]])
            raise CorruptFileError(
                f"{path}: dataset {column.paths[at]!r} ({column.name}) is at offset {column.offsets[at]}, and its "
                f"{size[outside[0]]:.0f} bytes end past the file's end at {file_bytes}"
            )
        parts.append(np.stack([column.offsets[there], size.astype(np.int64), np.full(len(there), owner), there]))
    begin, size, owner_of, place = np.concatenate(parts, axis=1)
    order = np.lexsort((size, begin))
    begin, size = begin[order], size[order]
    # Two names of one dataset have the same bytes.
    again = (begin[1:] == begin[:-1]) & (size[1:] == size[:-1])
    overlaps = np.flatnonzero((begin[:-1] + size[:-1] > begin[1:]) & ~again)
    if len(overlaps):
        pair = order[overlaps[0] : overlaps[0] + 2].tolist()
        one, other = (columns[owner_of[at]].paths[int(place[at])] for at in pair)
        raise CorruptFileError(f"{path}: datasets {one!r} and {other!r} overlap in the file: its metadata is damaged")
