"""Groups and datasets that encode something: sparse matrices, categories, missing values, as AnnData and 10x write it.

What a file says of itself is material to check: shapes and lengths are compared where the values are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError
from ray_h5.hdf5.metadata.opening import translated

EncodingKind: TypeAlias = Literal["csr", "csc", "compressed", "category", "optional", "frame", "ragged", "other"]

Form: TypeAlias = Literal["", "anndata", "10x", "loom"]
"""What kind of file it is, as far as that decides what its rows are; empty for files of datasets."""

_MAX_TEXT = 1 << 20
_PARTS = ("data", "indices", "indptr")
_ENCODED: dict[str, EncodingKind] = {
    "csr_matrix": "csr",
    "csc_matrix": "csc",
    "categorical": "category",
    "nullable-integer": "optional",
    "nullable-boolean": "optional",
    "nullable-string-array": "optional",
    "dataframe": "frame",
    "awkward-array": "ragged",
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a group, or a dataset, encodes.

    Attributes
    ----------
    kind : str
        ``csr`` and ``csc``: a sparse matrix, compressed along its rows or its columns. ``compressed``: one that does
        not say which. ``category``: codes, and the values that they stand for. ``optional``: values, and a mask of
        those that are missing. ``frame``: a table. ``ragged``: an array of varying length. ``other``: something else.
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
        The form of an awkward array, as JSON.
    """

    kind: EncodingKind
    said: str
    shape: tuple[int, ...] = ()
    values: str = ""
    other: str = ""
    index: str = ""
    text: str = ""


def encoding_of(found: h5py.Group | h5py.Dataset, name: str, path: str, root: str) -> Encoding | None:
    """Return what the object at `name` encodes; None if it is a plain dataset, or a plain group.

    Parameters
    ----------
    found : h5py.Group or h5py.Dataset
        The object.
    name : str
        Its path below the group that the file was opened with, which is `root` in the file.
    path : str
        The file, for messages.
    """
    with translated(path, f"reading the attributes of {name!r}"):
        if isinstance(found, h5py.Dataset):
            return _of_dataset(found, name, path, root)
        said = text_attribute(found, "encoding-type")
        if not said:
            return _by_structure(found, name, path)
        kind = _ENCODED.get(said, "other")
        if kind in {"csr", "csc"}:
            return Encoding(kind, said, _shape(found, "shape", name, path))
        if kind == "category":
            return Encoding(kind, said, values=f"{name}/codes", other=f"{name}/categories")
        if kind == "optional":
            return Encoding(kind, said, values=f"{name}/values", other=f"{name}/mask")
        return Encoding(kind, said, index=text_attribute(found, "_index"), text=text_attribute(found, "form"))


def _of_dataset(dataset: h5py.Dataset, name: str, path: str, root: str) -> Encoding | None:
    """Return the encoding of a dataset of codes with a reference to its categories, as AnnData 0.7 wrote it."""
    if not h5py.h5a.exists(dataset.id, b"categories"):
        return None
    attribute = dataset.attrs.get_id("categories")
    if h5py.check_ref_dtype(attribute.dtype) is not h5py.Reference or attribute.shape not in {(), (1,)}:
        return None
    reference = np.asarray(dataset.attrs["categories"], object).reshape(-1)[0]
    target = h5py.h5r.get_name(reference, dataset.file.id) if reference else None
    if target is None:
        raise CorruptFileError(f"{path}: column {name!r}: its attribute 'categories' refers to nothing")
    there, home = target.decode("utf-8", "surrogateescape"), f"/{root.strip('/')}/".replace("//", "/")
    if not there.startswith(home):
        raise CorruptFileError(
            f"{path}: column {name!r}: its categories are at {there!r}, outside group {root!r}. Choose a group that "
            "holds both with group=."
        )
    return Encoding("category", "categorical", values=name, other=there[len(home) :])


def _by_structure(group: h5py.Group, name: str, path: str) -> Encoding | None:
    """Return the encoding of a group that does not name it."""
    if not _has(group, _PARTS):
        return None
    said = text_attribute(group, "h5sparse_format")
    if said:
        kind: EncodingKind = "csr" if said == "csr" else "csc" if said == "csc" else "other"
        return Encoding(kind, f"{said} (h5sparse_format)", _shape(group, "h5sparse_shape", name, path))
    for attribute in ("shape", "h5sparse_shape"):
        if h5py.h5a.exists(group.id, attribute.encode()):
            return Encoding("compressed", "data, indices and indptr", _shape(group, attribute, name, path))
    if not _has(group, ("shape",)):
        return None
    return Encoding("compressed", "data, indices, indptr and shape")


def form_of(root: h5py.Group) -> Form:
    """Return what kind of file it is."""
    if text_attribute(root, "encoding-type") in {"anndata", "MuData", "raw"}:
        return "anndata"
    if _has(root, ("obs", "var", "X")) and _is_table(root, b"obs"):
        return "anndata"
    if not _has(root, ("matrix",)):
        return ""
    if _has(root, ("row_attrs", "col_attrs")):
        return "loom"
    is_hard = root.id.links.get_info(b"matrix").type == h5py.h5l.TYPE_HARD
    matrix = root["matrix"] if is_hard else None
    return "10x" if isinstance(matrix, h5py.Group) and _has(matrix, ("barcodes", "shape", *_PARTS)) else ""


def _is_table(root: h5py.Group, name: bytes) -> bool:
    """Return whether a name is a table, as AnnData before 0.8 wrote it: a group that says so, or compound values."""
    if root.id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
        return False
    found = h5py.h5o.open(root.id, name)
    if isinstance(found, h5py.h5g.GroupID):
        return text_attribute(h5py.Group(found), "encoding-type") == "dataframe"
    return isinstance(found, h5py.h5d.DatasetID) and found.get_type().get_class() == h5py.h5t.COMPOUND


def _has(group: h5py.Group, names: Iterable[str]) -> bool:
    links = group.id.links
    return all(links.exists(each.encode()) for each in names)


def text_attribute(found: h5py.Group | h5py.Dataset, name: str) -> str:
    """Return an attribute that is one text; an empty text if it is missing, or something else."""
    if not h5py.h5a.exists(found.id, name.encode()):
        return ""
    attribute = found.attrs.get_id(name)
    if attribute.shape not in {(), (1,)} or h5py.check_string_dtype(attribute.dtype) is None:
        return ""
    if attribute.get_storage_size() > _MAX_TEXT:
        return ""
    value: Any = found.attrs[name]
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _shape(group: h5py.Group, attribute: str, name: str, path: str) -> tuple[int, ...]:
    """Return the shape of a sparse matrix that an attribute holds."""
    where = f"{path}: sparse matrix {name!r}: attribute {attribute!r}"
    if not h5py.h5a.exists(group.id, attribute.encode()):
        raise CorruptFileError(f"{where} is missing; expected the two lengths of the matrix")
    found = group.attrs.get_id(attribute)
    if found.shape != (2,) or found.dtype.kind not in "iu":
        raise CorruptFileError(f"{where} has {found.dtype} of shape {found.shape}; expected two integers")
    return matrix_shape(group.attrs[attribute], where)


def matrix_shape(values: Sequence[Any] | np.ndarray, where: str) -> tuple[int, ...]:
    """Return the shape of a matrix, checked."""
    shape = tuple(int(each) for each in values)
    if len(shape) != 2 or any(not 0 <= each < 1 << 62 for each in shape):
        raise CorruptFileError(f"{where} is {shape}; expected two lengths from 0 on")
    return shape
