"""Datasets of many groups -> one column. Those that are alike are described once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.hdf5.layout import ColumnLayout
from ray_h5.hdf5.metadata.column import describe_column
from ray_h5.hdf5.segments import NOT_WRITTEN, Segments

_MAX_VALUES = 1 << 62
"""Values of a column, in all groups: above this, int64 cannot number them."""


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
class ColumnBuilder:
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
                f"{self.path}: column {self.name!r}: {path!r} has values in other datasets or files (virtual "
                "dataset or external storage), which rows that are groups cannot have. Copy them into the file, or "
                "leave the column out."
            )
        space = dataset.get_space()
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            raise UnsupportedColumnError(
                f"{self.path}: column {self.name!r}: {path!r} has an empty (null) dataspace, and no values"
            )
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
    return f"{found.layout.dtype}{array} with {axes} axes"
