"""The values of several datasets end to end: rows of datasets that match a pattern, blocks of those of groups."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.columns.derived_columns import JoinedColumn
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import OneAxis, Reading, Units, Values, keyed, keys_in
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import by_part

if TYPE_CHECKING:
    from ray_h5.manifest.joined_arrays import GroupTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class EndToEnd(OneAxis):
    """Values of several datasets, one after the other.

    Attributes
    ----------
    name : str
        The column.
    parts : tuple of Values
        The values of each dataset, of one kind and shape. Those of datasets that attributes decode may differ in dtype.
    starts : numpy.ndarray
        int64: the first unit of each dataset, and the end of the last one.
    """

    name: str
    parts: tuple[Values, ...]
    starts: np.ndarray

    @property
    def array(self) -> ColumnLayout:
        layouts = [each.array for each in self.parts]
        dtypes = {each.dtype for each in layouts}
        sources = dict.fromkeys(source for each in layouts for source in each.sources)
        return replace(
            layouts[0],
            name=self.name,
            shape=(int(self.starts[-1]), *layouts[0].row_shape),
            stored_dtype=np.result_type(*dtypes) if len(dtypes) > 1 else layouts[0].stored_dtype,
            sources=tuple(sources),
            direct=all(each.direct for each in layouts),
            fill=None,
            offset=None,
        )

    def reading(self, units: Units, out: np.ndarray) -> Reading:
        wanted = units.listed()
        keys = keys_in(wanted)
        of = np.searchsorted(self.starts, wanted.rows, side="right") - 1
        readings = []
        for part, chosen in by_part(of):
            own = None if keys is None else keys[chosen]
            request = keyed(wanted.rows[chosen] - self.starts[part], wanted.places[chosen], own)
            readings.append(self.parts[part].reading(request, out))
        return Reading.together(readings)


def joined_values(path: str, made: JoinedColumn, table: GroupTable) -> Values:
    """Return the values of several datasets of a file, end to end, given those that match the pattern of a column."""
    joined = table.columns.get(made.name)
    if joined is None:
        raise UnsupportedColumnError(f"{path}: {made}: these are groups, such as {table.names[0]!r}, and not datasets")
    shape = joined.unit_shape
    if shape is None or joined.single:
        found = "single values" if joined.single else "rows of several shapes"
        raise UnsupportedColumnError(
            f"{path}: {made}: the datasets have {found}; expected rows of one shape. For a row a dataset, pass "
            f"rows=ray_h5.Groups({made.pattern!r})."
        )
    layout = replace(joined.unit, name=made.name, shape=(int(joined.starts[-1]), *shape))
    return Stored(layout, joined, name=made.name)
