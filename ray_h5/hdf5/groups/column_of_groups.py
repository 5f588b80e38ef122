"""The datasets of one column in many groups -> a joined array.

To describe each of 10^5 datasets from its header takes too long, so a dataset is compared with those that were
described before: if type and creation properties are equal, only its shape and place are its own.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from functools import partial

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.columns.dataset_header import MAX_FILL_BYTES, describe_column, is_plain, offset_of, storage_of
from ray_h5.hdf5.format.file_bytes import Widths
from ray_h5.manifest.chunk_index import UNALLOCATED
from ray_h5.manifest.file_state import SourceStates
from ray_h5.manifest.joined_arrays import MISSING, GroupTable, JoinedArray, Paths
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.value_type import ValueType

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
    is_of_bytes: bool

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

    def of_text(self, type_id: h5py.h5t.TypeID, properties: h5py.h5p.PropDCID, growing: tuple[bool, ...]) -> bool:
        """Return whether datasets of a type are as those of the class, except for the length of their texts."""
        is_text = type_id.get_class() == h5py.h5t.STRING and not type_id.is_variable_str()
        return is_text and growing == self.growing and self.has(properties)

    def with_length(self, name: str, type_id: h5py.h5t.TypeID) -> _Class:
        """Return the class of a dataset for which `of_text` is true, as `describe_column` would describe it."""
        text = np.dtype(("S", type_id.get_size()))
        fill = None if text.itemsize > MAX_FILL_BYTES else np.zeros((), text)
        layout = self.layout.with_type(
            replace(self.layout.type, dtype=text), name=name, item_bytes=text.itemsize, fill=fill
        )
        return replace(self, type_id=type_id, layout=layout)

    def shown(self, axes: int) -> str:
        array = f" of shape {self.array_shape}" if self.array_shape else ""
        return f"{self.layout.dtype}{array} with {axes} {'axis' if axes == 1 else 'axes'}"


MATLAB_EMPTY = "MATLAB_empty"
"""An attribute that MATLAB writes: an array is empty, and the dataset holds its shape."""

_Alike = tuple[tuple[bool, ...], tuple[int, ...] | None, int | None]
"""Which axes of a dataset can grow, the shape of a chunk, and the size of a value: datasets of one class agree in them.

Opaque values have no size here, as a class may have several. So a dataset is compared with few classes: where each
group has a text of fixed length, there may be a class for each length.
"""


@dataclass(slots=True, eq=False)
class GroupColumn:
    """One column that is being collected."""

    path: str
    name: str
    widths: Widths
    sources: SourceStates = ()
    class_of: array[int] = field(default_factory=partial(array, "i"))
    shapes: array[int] = field(default_factory=partial(array, "q"))
    offsets: array[int] = field(default_factory=partial(array, "q"))
    classes: dict[_Alike, list[_Class]] = field(default_factory=dict)
    first: _Class | None = None
    last: _Class | None = None
    text: _Class | None = None
    axes: int = 0
    by_unit: dict[tuple[_Class, tuple[int, ...]], int] = field(default_factory=dict)
    layouts: list[ColumnLayout] = field(default_factory=list)
    empties: set[int] = field(default_factory=set)
    first_empty: tuple[str, h5py.h5d.DatasetID] | None = None

    def __len__(self) -> int:
        return len(self.class_of)

    def add(self, path: str, dataset: h5py.h5d.DatasetID, type_id: h5py.h5t.TypeID | None = None) -> None:
        """Add the next dataset; `type_id` is its type, if it was opened before, which takes a while."""
        properties, type_id = dataset.get_create_plist(), type_id or dataset.get_type()
        # Most datasets are like the one before, and their properties say the same.
        class_ = self.last if self.last is not None and self.last.has(properties) else None
        if class_ is None and not is_plain(properties):
            # Before its shape is asked for: libhdf5 would open the other files.
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {path!r} has values in other datasets or files (virtual "
                "dataset or external storage), which rows that are groups, and joined(...), cannot have. Copy them "
                "into the file, or leave the column out."
            )
        space = dataset.get_space()
        dims = space.get_simple_extent_dims()
        if not dims and space.get_simple_extent_type() == h5py.h5s.NULL:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {path!r} has an empty (null) dataspace, and no values"
            )
        if dims == (0,) and self._is_unlike(type_id):
            # No values are none of any type and number of axes, as of a molecule without conformations.
            self._add_none(path, dataset)
            return
        # The last one says it, if it has these properties.
        storage = storage_of(properties) if class_ is None else class_.layout.storage
        growing = (False,) * len(dims)
        if storage == "chunked":
            growing = tuple(n == h5py.h5s.UNLIMITED for n in space.get_simple_extent_dims(maxdims=True))
        if class_ is None or class_.growing != growing or not class_.has_type(type_id):
            if len(dims) == 1 and self._is_unlike(type_id) and is_empty_of_matlab(dataset):
                self._add_none(path, dataset)
                return
            self.last = class_ = self._class_of(path, dataset, type_id, properties, growing)
        if class_.is_of_bytes:
            dims = (type_id.get_size(),)
        shape = (*dims, *class_.array_shape)
        row_shape = shape[1:] if dims else shape
        if (unit := (class_, row_shape)) not in self.by_unit:
            self.by_unit[unit] = len(self.layouts)
            of_unit = {"name": self.name, "offset": None, "sources": self.sources}
            self.layouts.append(class_.layout.with_shape((1, *row_shape), **of_unit))
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

    def _is_unlike(self, type_id: h5py.h5t.TypeID) -> bool:
        """Return whether an array without values is unlike those before, in type or number of axes, or the first."""
        return self.first is None or self.axes != 1 or not self.first.has_type(type_id)

    def _add_none(self, path: str, dataset: h5py.h5d.DatasetID) -> None:
        self.first_empty = self.first_empty or (path, dataset)
        self.add_empty()

    def add_missing(self, count: int) -> None:
        """Add groups that lack the column next."""
        self.class_of.extend([MISSING] * count)
        self.offsets.extend([UNALLOCATED] * count)

    def add_empty(self) -> None:
        """Add a dataset without values, whatever the dataset holds."""
        self.empties.add(len(self))
        self.add_missing(1)

    def _class_of(
        self,
        path: str,
        dataset: h5py.h5d.DatasetID,
        type_id: h5py.h5t.TypeID,
        properties: h5py.h5p.PropDCID,
        growing: tuple[bool, ...],
    ) -> _Class:
        """Return the class of a dataset; describe one that is unlike all before, and check that it is alike enough."""
        chunk = properties.get_chunk() if storage_of(properties) == "chunked" else None
        size = None if type_id.get_class() == h5py.h5t.OPAQUE else type_id.get_size()
        candidates = self.classes.setdefault((growing, chunk, size), [])
        for candidate in candidates:
            if candidate.has_type(type_id) and candidate.has(properties):
                return candidate
        if self.text is not None and self.text.of_text(type_id, properties, growing):
            candidates.append(class_ := self.text.with_length(path, type_id))
            return class_
        layout, axes = describe_column(dataset, path, path=self.path, widths=self.widths, single_ok=True), len(growing)
        # A single value that is the bytes of something, such as an image: np.void(data) as h5py writes it. Each is a
        # type of its own, as long as the data, and is read as the array of its bytes.
        is_of_bytes = not axes and layout.kind == "binary" and layout.direct and layout.storage != "chunked"
        is_of_bytes = is_of_bytes and not any(layout.fill_value.tobytes())
        if is_of_bytes:
            axes, size, byte = 1, layout.stored_dtype.itemsize, np.dtype("u1")
            fill = np.zeros((), byte)
            layout = layout.with_type(ValueType("number", byte), num_rows=size, item_bytes=1, fill=fill)
        array_shape = layout.shape[max(1, axes) :]
        class_ = _Class(type_id, properties, growing, layout, array_shape, is_of_bytes)
        if self.first is None:
            self.first, self.axes = class_, axes
        first = self.first.layout
        # Texts of other lengths are texts.
        is_alike = first.kind == layout.kind and (first.dtype == layout.dtype or first.kind == "string")
        if not is_alike or axes != self.axes or len(array_shape) != len(self.first.array_shape):
            raise SchemaMismatchError(
                f"{self.path}: column {self.name!r}: expected {self.first.shown(self.axes)}, as in "
                f"{first.name!r}, found {class_.shown(axes)} in {path!r}. Rows may differ in length, not "
                "in dtype or number of axes: choose groups that agree with the pattern, or leave the column out with "
                "columns=[...]."
            )
        if sorted(layout.type.enum) != sorted(first.type.enum):
            raise SchemaMismatchError(
                f"{self.path}: column {self.name!r}: the enum of {path!r} is {dict(layout.type.enum)}, that of "
                f"{first.name!r} is {dict(first.type.enum)}: their integers mean other things. Leave the "
                "column out with columns=[...], or write one enum."
            )
        candidates.append(class_)
        is_text = layout.kind == "string" and layout.direct and layout.storage == "contiguous"
        if is_text and not array_shape and not layout.fill_value.tobytes().strip(b"\0"):
            self.text = class_  # a group may have a text of any length: the next ones are not described
        return class_

    def joined(self, paths: Paths) -> JoinedArray:
        """Return the column; `paths` are those of its datasets."""
        if not self.layouts and self.first_empty is not None:  # all are empty, and of the type of the first one
            path, dataset = self.first_empty
            layout = describe_column(dataset, path, path=self.path, widths=self.widths, single_ok=True)
            shape = 1, *layout.shape[1:]
            self.axes, self.layouts = (
                1,
                [layout.with_shape(shape, name=self.name, offset=None, sources=self.sources)],
            )
        if (empties := [*self.empties]) and (not self.layouts or not self.axes):
            problem = "single values beside empty arrays" if self.layouts else "empty arrays alone, of no type"
            raise UnsupportedColumnError(f"{self.path}: column {self.name!r} has {problem}; expected arrays")
        class_of = np.array(self.class_of, np.int32)
        there = class_of != MISSING
        axes = -1 if there.any() else len(self.layouts[0].shape)
        shapes_there = np.array(self.shapes, np.int64).reshape(np.count_nonzero(there), axes)
        shapes = np.zeros((len(self), shapes_there.shape[1]), np.int64)
        shapes[there] = shapes_there
        if empties:
            class_of[empties] = 0
            shapes[empties] = self.layouts[0].shape
            shapes[empties, 0] = 0
        single = not self.axes
        if not single and (values := shapes[:, 0].astype(np.float64).sum()) >= _MAX_VALUES:
            raise CorruptFileError(
                f"{self.path}: column {self.name!r}: its datasets have {values:.0f} values along the first axis, more "
                "than a file can hold: its metadata is damaged"
            )
        offsets = np.array(self.offsets, np.int64)
        return JoinedArray(self.name, paths, tuple(self.layouts), class_of, shapes, single, offsets=offsets)


def is_empty_of_matlab(dataset: h5py.h5d.DatasetID) -> bool:
    """Return whether a dataset is an empty array of MATLAB, whose values are its shape."""
    return bool(h5py.h5a.exists(dataset, MATLAB_EMPTY.encode()))


def _bytes_in_file(layout: ColumnLayout) -> int:
    """Return the size in the file of what shapes count: the elements of an array type, whose axes they have, too."""
    if not layout.file_type:
        return layout.stored_dtype.itemsize
    type_id, elements = h5py.h5t.decode(layout.file_type[2:]), 1
    while type_id.get_class() == h5py.h5t.ARRAY:
        elements *= math.prod(type_id.get_array_dims())
        type_id = type_id.get_super()
    return layout.item_bytes // elements


def check_places(path: str, table: GroupTable, file_bytes: int) -> None:
    """Raise unless contiguous datasets are in the file, and share no bytes."""
    columns = list(table.columns.values())
    parts = [np.empty((4, 0), np.int64)]
    for owner, column in enumerate(columns):
        item = np.array([_bytes_in_file(layout) for layout in column.layouts], np.int64)
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
