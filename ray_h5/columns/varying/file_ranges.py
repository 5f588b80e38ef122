"""The columns of one file whose rows are ranges of longer arrays, and where these begin and end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from ray_h5.columns.made_columns import Csr, Ragged
from ray_h5.columns.values import Values, read_all
from ray_h5.columns.varying.bounds import (
    Bounds,
    ChunkedBy,
    bounds_in,
    bounds_of_offsets,
    bounds_of_pairs,
    check_bounds,
    episodes_key,
    pairs_of,
)
from ray_h5.columns.varying.csr_groups import sparse_rows
from ray_h5.columns.varying.range_columns import RaggedRows, SparseRows
from ray_h5.errors import UnsupportedColumnError
from ray_h5.manifest.layout import Encoding
from ray_h5.read.reader import RowReader


class FileRanges:
    """Makes such columns of one file.

    Parameters
    ----------
    reader : RowReader
        The open file.
    made : container of str
        The names of columns that the user described.
    values : callable
        Returns the values of a column.
    of_dataset : callable
        Returns the values of a dataset, or of a field of one, however the user described a column of its name.
    bounds, chunked : dict
        What is known of such columns; what is found is added.
    """

    def __init__(
        self,
        reader: RowReader,
        made: Container[str],
        values: Callable[[str], Values],
        of_dataset: Callable[[str], Values],
        bounds: dict[str, Bounds],
        chunked: dict[str, ChunkedBy],
    ) -> None:
        self._reader = reader
        self._made = made
        self._values = values
        self._of_dataset = of_dataset
        self._bounds = bounds
        self._chunked = chunked

    def ragged(self, made: Ragged) -> RaggedRows:
        """Return the values of a column made by `ragged`."""
        content = self._content(made.content)
        key, bounds = self._bounds_of(made)
        check_bounds(bounds, made, content.array.num_rows, self._reader.path)
        self._chunked[made.name] = ChunkedBy(key, content.array.chunk_rows)
        return RaggedRows(made.name, content, bounds)

    def csr(self, made: Csr, encoding: Encoding | None) -> SparseRows:
        """Return the rows of a sparse matrix."""
        found, self._chunked[made.name] = sparse_rows(self._reader, made, encoding, self._offsets, self._values)
        return found

    def awkward(self, name: str, encoding: Encoding) -> RaggedRows:
        """Return an array of awkward with one level of lists."""
        keys: list[str] = []
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            form: Any = json.loads(encoding.text)
            if form["class"] == "ListOffsetArray" and form["content"]["class"] == "NumpyArray":
                keys = [f"{form['form_key']}", f"{form['content']['form_key']}"]
        if not keys:
            raise UnsupportedColumnError(
                f"{self._reader.path}: {name!r} is an awkward array of another form than one level of lists of "
                "numbers. Write it as such arrays, or leave it out with columns=[...]."
            )
        made = Ragged(f"{name}/{keys[1]}-data", f"{name}/{keys[0]}-offsets")
        found = self.ragged(made)
        self._chunked[name] = self._chunked.pop(made.name)
        return RaggedRows(name, found.content, found.bounds)

    def episodes(self, name: str) -> Bounds:
        """Return where episodes begin and end, as pairs say."""
        if (key := episodes_key(name)) not in self._bounds:
            where = f"{self._reader.path}: {name!r}"
            self._bounds[key] = bounds_of_pairs(*pairs_of(self._whole(name), where), where)
        return self._bounds[key]

    def _bounds_of(self, made: Ragged) -> tuple[str, Bounds]:
        """Return where rows begin and end, and the key of that."""
        if made.offsets is not None and not made.base:
            return self._offsets(made.offsets)
        key = made.bounds_key
        if key in self._bounds:
            return key, self._bounds[key]
        where = f"{self._reader.path}: column {made.name!r}, {' and '.join(map(repr, made.given.values()))}"
        bounds = bounds_in({option: self._whole(name) for option, name in made.given.items()}, made, where)
        self._bounds[key] = bounds
        return key, bounds

    def _offsets(self, name: str) -> tuple[str, Bounds]:
        if name not in self._bounds:
            layout = self._of_dataset(name).array
            if any(length != 1 for length in layout.row_shape) or layout.dtype.kind not in "iu":
                raise UnsupportedColumnError(
                    f"{layout.where} has {layout.dtype} of shape {layout.shape}; expected integers along one axis, the "
                    "first value of each row and the end of the last one"
                )
            self._bounds[name] = bounds_of_offsets(self._whole(name), f"{self._reader.path}: {name!r}")
        return name, self._bounds[name]

    def _whole(self, name: str) -> np.ndarray:
        """Return all values of a dataset, or of a field of one, without axes of one."""
        found = read_all(self._reader, self._of_dataset(name))
        return found.reshape(len(found)) if all(length == 1 for length in found.shape[1:]) else found

    def _content(self, name: str) -> Values:
        """Return the values of all rows of a ragged column: of a dataset, or of a field of one."""
        found = self._of_dataset(name) if name in self._made else self._values(name)
        if isinstance(found, (RaggedRows, SparseRows)):
            raise UnsupportedColumnError(
                f"{self._reader.path}: ragged({name!r}): it has rows of varying length itself; expected a dataset"
            )
        return found
