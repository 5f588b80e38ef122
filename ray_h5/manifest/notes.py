"""What a file says about its values: what groups encode, and how values are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

EncodingKind: TypeAlias = Literal[
    "csr", "csc", "compressed", "category", "optional", "frame", "ragged", "pandas", "references", "other"
]

Form: TypeAlias = Literal["", "anndata", "10x", "loom", "pandas", "ray_h5"]
"""What kind of file it is, as far as that decides what its rows are; empty for files of datasets."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a group, or a dataset, encodes.

    Attributes
    ----------
    kind : str
        ``csr`` and ``csc``: a sparse matrix, compressed along its rows or its columns. ``compressed``: one that does
        not say which. ``category``: codes, and the values that they stand for. ``optional``: values, and a mask of
        those that are missing. ``frame``: a table. ``ragged``: an array of varying length. ``references``: what other
        objects hold. ``other``: something else.
    said : str
        What the file calls it, for messages.
    shape : tuple of int
        Shape of a sparse matrix; empty if it is in a dataset ``shape``.
    values : str
        Dataset, below the group that the file was opened with, of the codes or values.
    other : str
        That of the categories, or the mask.
    index : str
        Name of the index of a table.
    text : str
        The form of an awkward array, or the columns of a table of pandas, as JSON.
    """

    kind: EncodingKind
    said: str
    shape: tuple[int, ...] = ()
    values: str = ""
    other: str = ""
    index: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ColumnNotes:
    """What the file says about the values of a column.

    Attributes
    ----------
    packing : mapping of str to str
        Attributes of the CF conventions that convert stored values to physical ones, such as ``scale_factor``.
    enum : mapping of str to int
        The names of the values, if they are an enum.
    bare_dimension : bool
        Whether it is a dimension of netCDF without coordinates. It has a length and no values.
    time : str
        What numbers count, if they are times: ``days since 2000-01-01``.
    """

    packing: Mapping[str, str] = field(default_factory=dict)
    enum: Mapping[str, int] = field(default_factory=dict)
    bare_dimension: bool = False
    time: str = ""

    @property
    def follows_cf(self) -> bool:
        """Whether stored values are others than the attributes mean."""
        return bool(self.packing or self.time)

    @property
    def conversion(self) -> str:
        """What to do with stored values to get the values that the attributes mean; empty if nothing."""
        packing = self.packing
        compute = "value"
        if "scale_factor" in packing:
            compute += f" * {packing['scale_factor']}"
        if "add_offset" in packing:
            compute += f" + {packing['add_offset']}"
        missing = list(dict.fromkeys(packing[name] for name in ("_FillValue", "missing_value") if name in packing))
        todo = [f"compute {compute}"] if compute != "value" else []
        todo += [f"take {' and '.join(missing)} for missing"] if missing else []
        todo += [f"count {self.time}"] if self.time else []
        return ", and ".join(todo)
