"""The values of several datasets end to end: rows of datasets in several files, blocks of those of several groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from ray_h5.buffers import objects
from ray_h5.columns.made_columns import JoinedColumn
from ray_h5.columns.stored_values import Stored
from ray_h5.columns.values import OneAxis, Reading, Taken, Units, Values, keyed, keys_in
from ray_h5.errors import MissingSourceError, RayH5Error, SchemaMismatchError, UnsupportedColumnError
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.row_requests import by_part
from ray_h5.messages import few
from ray_h5.read.reader import RowReader
from ray_h5.storage.local import natural_key

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
    missing : tuple of str
        Files that links lead to, and that do not exist. Their datasets are parts once they do.
    """

    name: str
    parts: tuple[Values, ...]
    starts: np.ndarray
    missing: tuple[str, ...] = ()

    @property
    def array(self) -> ColumnLayout:
        layouts = [each.array for each in self.parts]
        dtypes = {each.dtype for each in layouts}
        sources = dict.fromkeys(source for each in layouts for source in each.sources)
        sources.update(dict.fromkeys((path, None) for path in self.missing))
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

    def take(self, taken: tuple[np.ndarray | None, ...]) -> Taken:
        """Return the values at some positions along the axes of a unit."""
        return Taken(self, taken)

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


def joined_values(
    reader: RowReader, made: JoinedColumn, datasets: Callable[[str, str], GroupTable], *, is_known: bool
) -> Values:
    """Return the values of several datasets, end to end.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : JoinedColumn
        The column, as the user describes it.
    datasets : callable
        Returns for a column and its pattern the datasets that match, if all of them are in the file.
    is_known : bool
        Whether it is known that they are.
    """
    if not is_known and len(names := _in_other_files(reader, made, datasets)):
        return _end_to_end(reader, made, names)
    table = datasets(made.name, made.pattern)
    joined = table.columns.get(made.name)
    if joined is None:
        why = f"these are groups, such as {table.names[0]!r}, and not datasets"
        raise UnsupportedColumnError(f"{reader.path}: {made}: {why}")
    shape = joined.unit_shape
    if shape is None or joined.single:
        found = "single values" if joined.single else "rows of several shapes"
        raise UnsupportedColumnError(
            f"{reader.path}: {made}: the datasets have {found}; expected rows of one shape. For a row a dataset, pass "
            f"rows=ray_h5.Groups({made.pattern!r})."
        )
    layout = replace(joined.unit, name=made.name, shape=(int(joined.starts[-1]), *shape))
    return Stored(layout, joined, name=made.name)


def _in_other_files(reader: RowReader, made: JoinedColumn, datasets: Callable[[str, str], GroupTable]) -> np.ndarray:
    """Return the names of datasets that a column consists of, if links to other files are among them."""

    def names() -> np.ndarray:
        try:
            datasets(made.name, made.pattern)
        except (UnsupportedColumnError, MissingSourceError) as exc:
            return _linked_datasets(reader, made, exc)
        return np.empty(0, object)

    return reader.fact(f"{made}: datasets in other files{' that exist' if made.missing_ok else ''}", names)


def _linked_datasets(reader: RowReader, made: JoinedColumn, error: RayH5Error) -> np.ndarray:
    """Return the datasets that match a pattern, of which some are in other files: their names, as bytes.

    With `missing_ok`, links whose files do not exist are left out, with a warning. Rows of other columns would then be
    beside others than those that they belong to, so it is an error without.

    Parameters
    ----------
    reader : RowReader
        The file.
    made : JoinedColumn
        The pattern.
    error : RayH5Error
        Why they cannot be read as datasets of the file. It is raised if none of them is in another file.
    """
    layout, parts = reader.layout, made.pattern.split("/")
    matched = [
        name
        for name in (*layout.columns, *layout.refused)
        if len(name.split("/")) == len(parts) and all(map(fnmatchcase, name.split("/"), parts))
    ]
    names, refused = (sorted({*matched} & {*each}, key=natural_key) for each in (layout.columns, layout.refused))
    missing = [name for name in refused if isinstance(layout.refused[name], MissingSourceError)]
    if not names or not (missing or any(layout.columns[name].sources for name in names)):
        raise error
    for name in refused:
        if name not in missing:
            raise layout.refused[name]
    if missing and not made.missing_ok:
        raise MissingSourceError(
            f"{reader.path}: {made}: {len(missing)} of {len(matched)} datasets are in files that do not exist: "
            f"{few(missing)}. Restore the files, or pass ignore_missing_paths=True to leave out the rows of these "
            "datasets; a column of other datasets, such as labels, then has a row for each of the others alone."
        )
    if missing:

        def warn() -> np.ndarray:
            said = "%s: %s: left out %d of %d datasets, whose files do not exist: %s"
            logger.warning(said, reader.path, made, len(missing), len(matched), few(missing))
            return np.empty(0, np.int64)

        reader.fact(f"{made} lacks {missing}", warn, of_file=True)  # once, and not for each reader
    return objects(name.encode("utf-8", "surrogateescape") for name in names)


def _end_to_end(reader: RowReader, made: JoinedColumn, names: np.ndarray) -> EndToEnd:
    """Return the rows of datasets of these names.

    Raises
    ------
    SchemaMismatchError
        If they differ in dtype or in the shape of a row.
    """
    found = reader.find([name.decode("utf-8", "surrogateescape") for name in names])
    first, *others = found.values()
    for each in others:
        if (each.dtype, each.kind, each.row_shape, each.enum) != (first.dtype, first.kind, first.row_shape, first.enum):
            raise SchemaMismatchError(
                f"{reader.path}: {made}: {first.name!r} has rows of {first.dtype} of shape {first.row_shape}, and "
                f"{each.name!r} of {each.dtype} of shape {each.row_shape}; expected rows of one dtype and shape. "
                "Choose datasets that agree with the pattern."
            )
    lengths = [0, *(each.num_rows for each in found.values())]
    starts = np.cumsum(np.array(lengths, np.int64))
    return EndToEnd(made.name, tuple(map(Stored.of, found.values())), starts, _missing_files(reader, made))


def _missing_files(reader: RowReader, made: JoinedColumn) -> tuple[str, ...]:
    """Return the files that links of a local file lead to, and that do not exist.

    Those in stores are not looked for: that would be a request for each, whenever the file is planned.
    """
    if reader.is_fetched:
        return ()

    def paths() -> np.ndarray:
        missing = sorted(path for path, state in reader.layout.sought if state is None)
        return objects(path.encode("utf-8", "surrogateescape") for path in missing)

    found = reader.fact(f"{made}: files that do not exist", paths)
    return tuple(each.decode("utf-8", "surrogateescape") for each in found.tolist())
