"""What libraries write: sparse matrices, categories and missing values, as AnnData and 10x do, and tables of pandas.

It also says which datasets hold no rows, as libraries write them for themselves. What a file says of itself is material
to check: shapes and lengths are compared where the values are read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pickletools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import CorruptFileError, UnsupportedColumnError
from ray_h5.hdf5.files.links import Trail
from ray_h5.hdf5.files.opening import translated
from ray_h5.hdf5.format.value_types import are_references, without_rows
from ray_h5.hdf5.tree.attributes import TextGuard, is_bare_dimension, text_attribute
from ray_h5.manifest.layout import Encoding, EncodingKind, Form
from ray_h5.storage.byte_source import MissingBytes

_INDEX, _BLOCK = re.compile("_i_."), re.compile(r"(?:axis|block)\d+(?:_\w+)?")
"""Names of groups and of datasets that PyTables and pandas may have written for themselves."""

_MOST_REFERENCES = 1 << 16

_MAX_TEXT = 1 << 20
_MAX_BLOCKS = 1 << 10
_MAX_LEVELS = 32
_WORDS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "STRING", "SHORT_BINSTRING", "INT", "BININT", "BININT1"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PANDAS = {"frame", "frame_table", "appendable_frame", "series_table"}
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


def encoding_of(
    item: h5py.Group | h5py.Dataset, name: str, trail: Trail, root: str, guard: TextGuard | None = None
) -> Encoding | None:
    """Return what the object at `name` encodes; None if it is a plain dataset, or a plain group.

    Parameters
    ----------
    item : h5py.Group or h5py.Dataset
        The object.
    name : str
        Its path below the group that the file was opened with, which is `root` in the file.
    trail : Trail
        The trail to it.
    guard : TextGuard, optional
        The guard of the file, if many of its groups are looked at.
    """
    path = trail.path
    with translated(path, f"reading the attributes of {name!r}"):
        if isinstance(item, h5py.Dataset):
            return _of_dataset(item, name, path, root)
        said = text_attribute(item, "encoding-type", guard)
        if not said and text_attribute(item, "pandas_type", guard) in _PANDAS:
            return _of_pandas(item, name, trail)
        if not said:
            return _by_structure(item, name, path)
        kind = _ENCODED.get(said, "other")
        if kind in {"csr", "csc"}:
            return Encoding(kind, said, _shape(item, "shape", name, path))
        if kind == "category":
            return Encoding(kind, said, values=f"{name}/codes", other=f"{name}/categories")
        if kind == "optional":
            return Encoding(kind, said, values=f"{name}/values", other=f"{name}/mask")
        return Encoding(kind, said, index=text_attribute(item, "_index"), text=text_attribute(item, "form"))


def _of_dataset(dataset: h5py.Dataset, name: str, path: str, root: str) -> Encoding | None:
    """Return the encoding of references, or of codes with one to their categories, as AnnData 0.7 wrote them."""
    if are_references(dataset.id.get_type()):
        return Encoding("references", "references")
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


# Its parts are looked up by hard links alone, as pandas writes them.
def _of_pandas(group: h5py.Group, name: str, trail: Trail) -> Encoding:
    """Return the columns of a table that pandas wrote: for each its dataset, its field or place, and what it means."""
    said, below = text_attribute(group, "pandas_type"), f"{name}/".lstrip("/")
    columns: dict[str, dict[str, object]] = {}
    if said == "frame":
        columns = _index_of(group, below, trail)
        for number in range(_MAX_BLOCKS):
            block = f"block{number}"
            if not _has(group, (f"{block}_values",)):
                break
            values = trail.hard_target(group, f"{block}_values".encode())
            # In the place of an array without values, pandas writes one with a single value, and its shape.
            is_empty = isinstance(values, h5py.Dataset) and h5py.h5a.exists(values.id, b"shape")
            for at, item in enumerate(_names_of_block(group, block, trail) or []):
                dtype = text_attribute(values, "value_type") if isinstance(values, h5py.Dataset) else ""
                columns[item] = _column(f"{below}{block}_values", "", at, "no" if is_empty else dtype)
        return Encoding("pandas", said, text=json.dumps(columns))
    path, table = trail.path, trail.hard_target(group, b"table")
    if not isinstance(table, h5py.Dataset) or table.dtype.names is None:
        raise CorruptFileError(f"{path}: {name!r} is a table of pandas, and has no dataset 'table' of compound values")
    for field in table.dtype.names:
        dtype, meta = (text_attribute(table, f"{field}_{what}") for what in ("dtype", "meta"))
        categories = f"{below}meta/{field}/meta/table" if meta == "category" else ""
        if field == "index":
            kind = text_attribute(table, "index_kind")
            columns["index"] = _column(f"{below}table", "index", None, kind if kind.startswith("datetime") else "")
            continue
        names = pickled_names(text_attribute(table, f"{field}_kind"))
        if names is None:
            raise CorruptFileError(f"{path}: table {name!r}: the names of the columns in field {field!r} are damaged")
        is_block = table.dtype[field].shape != ()
        for at, item in enumerate(names):
            place = f"{field}[{at}]" if is_block else field
            columns[item] = _column(f"{below}table", place, None, dtype, categories)
    return Encoding("pandas", said, text=json.dumps(columns))


def _index_of(group: h5py.Group, below: str, trail: Trail) -> dict[str, dict[str, object]]:
    """Return the index of a frame in the fixed format: one column, or one for each of its levels, by their names."""
    columns: dict[str, dict[str, object]] = {}
    axis = trail.hard_target(group, b"axis1")
    if isinstance(axis, h5py.Dataset) and not h5py.h5a.exists(axis.id, b"shape"):
        columns["index"] = _column(f"{below}axis1", "", None, _kind_of(axis))
    for number in range(_MAX_LEVELS if axis is None else 0):
        level, label = f"axis1_level{number}", f"axis1_label{number}"
        values = trail.hard_target(group, level.encode())
        if not isinstance(values, h5py.Dataset) or trail.hard_target(group, label.encode()) is None:
            break
        called = text_attribute(values, "name")
        name = f"level_{number}" if called in {"", "N."} else called  # the latter is None, pickled
        columns[name] = _column(f"{below}{label}", "", None, _kind_of(values) and "no", f"{below}{level}")
    return columns


def _kind_of(axis: h5py.Dataset) -> str:
    """Return what the values of an index are: times, with their unit; "" for those that mean themselves; "no"."""
    kind, class_ = text_attribute(axis, "kind"), text_attribute(axis, "index_class")
    if kind.startswith("datetime"):
        return kind
    return "" if kind in {"integer", "float", "string"} and class_ != "period" else "no"


def _column(dataset: str, field: str, at: int | None, dtype: str, categories: str = "") -> dict[str, object]:
    return {"dataset": dataset, "field": field, "at": at, "dtype": dtype, "categories": categories}


def pickled_names(text: str) -> list[str] | None:
    """Return a list of names that PyTables pickled, those of several levels as paths; None for anything else."""
    try:
        names = _unpickled(text)
        if not isinstance(names, list) or not all(isinstance(name, (str, tuple)) for name in names):
            return None
        levels = [(name,) if isinstance(name, str) else name for name in names]
        if sum(len(word) for level in levels for word in level) > _MAX_TEXT:  # a reference may repeat words
            return None
        return ["/".join(level) for level in levels]
    except (ValueError, UnicodeError, IndexError, KeyError, TypeError, AttributeError):
        return None


def _unpickled(text: str) -> Any:
    """Return the words, tuples and lists of a pickle; nothing is loaded."""
    mark, stack, memo = object(), list[Any](), dict[int, Any]()
    for code, value, _ in pickletools.genops(text.encode("latin-1")):
        name = code.name
        if name in _WORDS:
            stack.append(str(value))
        elif name in {"MARK", "EMPTY_LIST"}:
            stack.append(mark if name == "MARK" else [])
        elif name in {"LIST", "TUPLE", "APPENDS"}:
            at = len(stack) - 1 - stack[::-1].index(mark)
            items = stack[at + 1 :]
            del stack[at:]
            if name == "APPENDS":
                stack[-1].extend(items)
            else:
                stack.append(items if name == "LIST" else tuple(items))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "APPEND":
            stack[-2].append(stack.pop())
        elif name in {"PUT", "BINPUT", "MEMOIZE"}:
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in {"GET", "BINGET"}:
            stack.append(memo[int(value or 0)])
        elif name not in {"PROTO", "FRAME", "STOP"}:
            raise ValueError(name)
    (items,) = stack
    return items


def _names_of_block(group: h5py.Group, block: str, trail: Trail) -> list[str] | None:
    """Return the columns of a block of a frame in the fixed format, those of several levels as paths."""
    items = trail.hard_target(group, f"{block}_items".encode())
    if items is None and text_attribute(group, f"{block}_items_variety") == "multi":
        levels = []
        for number in range(_MAX_LEVELS):
            level, label = (
                trail.hard_target(group, f"{block}_items_{word}{number}".encode()) for word in ("level", "label")
            )
            if level is None or label is None:
                break
            words, codes = _items(level), label[()] if _is_short(label, "iu") else None
            if words is None or codes is None or not all(0 <= code < len(words) for code in codes.tolist()):
                return None
            levels.append([words[code] for code in codes.tolist()])
        return ["/".join(level) for level in zip(*levels, strict=True)]
    return _items(items)


def _items(item: object) -> list[str] | None:
    """Return the names in a dataset; none if they are Python objects, and None if it is no such dataset."""
    if not _is_short(item, "SiuO"):
        return None
    assert isinstance(item, h5py.Dataset)
    names = [] if text_attribute(item, "kind") not in {"string", "integer"} else item[()].tolist()
    return [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name) for name in names]


def _is_short(item: object, kinds: str) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in kinds and item.size <= _MAX_TEXT


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
    return Encoding("compressed", "data, indices, indptr and shape") if _has(group, ("shape",)) else None


def form_of(root: h5py.Group, trail: Trail, below: Iterable[object]) -> Form:
    """Return what kind of file it is, given the group that is read, the trail to it and what is below it."""
    has_attributes = h5py.h5a.get_num_attrs(root.id) > 0
    said = text_attribute(root, "encoding-type") if has_attributes else ""
    if said in {"anndata", "MuData", "raw"}:
        return "anndata"
    if said == "ray_h5":
        return "ray_h5"
    obs = trail.hard_target(root, b"obs") if _has(root, ("var", "X")) else None
    if isinstance(obs, h5py.Group) and text_attribute(obs, "encoding-type") == "dataframe":
        return "anndata"
    # Before version 0.8, AnnData wrote tables as compound values.
    if isinstance(obs, h5py.Dataset) and obs.id.get_type().get_class() == h5py.h5t.COMPOUND:
        return "anndata"
    if has_attributes and text_attribute(root, "pandas_type") in _PANDAS:
        return "pandas"
    if has_attributes and h5py.h5a.exists(root.id, b"PYTABLES_FORMAT_VERSION"):
        groups = (item for item in itertools.islice(below, _MAX_BLOCKS) if isinstance(item, h5py.Group))
        if any(text_attribute(group, "pandas_type") in _PANDAS for group in groups):
            return "pandas"
    if _has(root, ("matrix", "row_attrs", "col_attrs")):
        return "loom"
    matrix = trail.hard_target(root, b"matrix")
    is_10x = isinstance(matrix, h5py.Group) and _has(matrix, ("barcodes", "shape", *_PARTS))
    return "10x" if is_10x else ""


def _has(group: h5py.Group, names: Iterable[str]) -> bool:
    links = group.id.links
    return all(links.exists(name.encode()) for name in names)


def _shape(group: h5py.Group, attribute: str, name: str, path: str) -> tuple[int, ...]:
    """Return the shape of a sparse matrix that an attribute holds; () if there is none, and the user may say it."""
    where = f"{path}: sparse matrix {name!r}: attribute {attribute!r}"
    if not h5py.h5a.exists(group.id, attribute.encode()):
        return ()
    stored = group.attrs.get_id(attribute)
    if stored.shape != (2,) or stored.dtype.kind not in "iu":
        raise CorruptFileError(f"{where} has {stored.dtype} of shape {stored.shape}; expected two integers")
    return matrix_shape(group.attrs[attribute], where)


def matrix_shape(values: Sequence[Any] | np.ndarray, where: str) -> tuple[int, ...]:
    """Return the shape of a matrix, checked."""
    shape = tuple(int(length) for length in values)
    if len(shape) != 2 or any(not 0 <= length < 1 << 62 for length in shape):
        raise CorruptFileError(f"{where} is {shape}; expected two lengths from 0 on")
    return shape


# Datasets that hold no rows --------------------------------------------------------------


class Libraries:
    """Says of the datasets of a file which ones hold no rows.

    Parameters
    ----------
    path : str
        The file, for messages.
    root : h5py.Group
        The group that names are relative to.
    """

    def __init__(self, path: str, root: h5py.Group) -> None:
        self._path, self._root = path, root
        self._frames: dict[str, bool] = {}  # frames of pandas in the fixed format, and whether their error is listed
        self.enters("", root)

    def enters(self, name: str, group: h5py.Group) -> bool:
        """Return whether a group is listed: one that is an index of PyTables, which pandas writes, is not."""
        with contextlib.suppress(MissingBytes):  # the listing is made again
            if text_attribute(group, "pandas_type") in {"frame", "wide"}:
                self._frames.setdefault(name, False)
            return not (_INDEX.match(name.rpartition("/")[2]) and text_attribute(group, "CLASS") == "TINDEX")
        return True

    def instead_of(self, name: str) -> list[tuple[str, UnsupportedColumnError]] | None:
        """Return what is listed instead of a dataset: an error for a frame of pandas; None for a dataset of its own."""
        frame, _, last = name.rpartition("/")
        if frame not in self._frames or not _BLOCK.fullmatch(last):
            return None
        if self._frames[frame]:
            return []
        self._frames[frame] = True
        shown, block = frame or self._root.name.strip("/"), f"{frame}/block0_values".lstrip("/")
        error = UnsupportedColumnError(
            f"{self._path}: column {shown!r} is a DataFrame that pandas wrote in the fixed format: its columns are in "
            "blocks by type, and those of text are pickled. Write it with to_hdf(..., format='table', "
            f"data_columns=True); or read the numbers of a block with columns=[{block!r}]."
        )
        return [(frame or name, error)]

    def why_no_rows(self, name: str, item: object) -> UnsupportedColumnError | None:
        """Return the error of a dataset that is described, and holds no rows; None for others."""
        if not isinstance(item, h5py.h5d.DatasetID) or not h5py.h5a.get_num_attrs(item):
            return None
        dataset = h5py.Dataset(item, readonly=True)
        where = f"{self._path}: column {name!r}"
        if text_attribute(dataset, "CLASS") == "DIMENSION_SCALE" and not _is_of_rows(dataset):
            if is_bare_dimension(dataset):
                return without_rows(
                    f"{where} is a dimension of netCDF without a coordinate: it has a length and no values"
                )
            return without_rows(
                f"{where} is a dimension scale: coordinates of an axis that is not the row axis. Name it in "
                "columns=[...] to read it by itself."
            )
        if text_attribute(dataset, "PSEUDOATOM") == "object":
            return UnsupportedColumnError(
                f"{where} holds Python objects that PyTables pickled, which are never loaded. Write them as numbers "
                "or text."
            )
        return None


def _is_of_rows(scale: h5py.Dataset) -> bool:
    """Return whether a dimension scale is that of the first axis of a dataset."""
    if is_bare_dimension(scale):
        return False
    try:
        if not h5py.h5a.exists(scale.id, b"REFERENCE_LIST"):
            return True  # no dataset has it: it is a column of its own
        references = scale.attrs.get_id("REFERENCE_LIST")
        if len(references.shape) != 1 or references.shape[0] > _MOST_REFERENCES or not references.dtype.names:
            return False
        return bool((scale.attrs["REFERENCE_LIST"][references.dtype.names[1]] == 0).any())
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        return False
