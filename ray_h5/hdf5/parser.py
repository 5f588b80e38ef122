"""Open a file safely and describe it; the only place that follows links."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import h5py
import numpy as np

from ray_h5.errors import (
    CodecUnavailableError,
    ExternalDataError,
    MissingSourceError,
    RayH5Error,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.codecs import decodes
from ray_h5.hdf5.layout import ColumnLayout, FilterPipeline, FilterStep, Kind, Storage
from ray_h5.hdf5.opening import open_h5, translated
from ray_h5.hdf5.types import kind_of, plain_dtype, split_array

_MAX_LINK_HOPS = 32

_FILTER_NAMES = {
    1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset",
    32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd", 32026: "blosc2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """Which files outside the opened one may be read: those below `roots`."""

    roots: tuple[str, ...] = ()

    @classmethod
    def of(cls, allow_external: Iterable[str | os.PathLike[str]]) -> ExternalPolicy:
        return cls(tuple(os.path.realpath(os.fspath(root)) for root in allow_external))

    def resolve(self, name: str, *, source: str, where: str) -> str:
        """Return the real path of file `name` that `source` refers to, if it may be read."""
        path = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(source)), name))
        if not any(os.path.commonpath([root, path]) == root for root in self.roots):
            raise ExternalDataError(
                f"{source}: {where} leads to {path}, which is outside allow_external="
                f"{list(self.roots)}. If you trust it, pass allow_external=[{os.path.dirname(path)!r}]."
            )
        # HDF5 itself would fill in for a source that is missing, and say nothing.
        if "%" not in name and not os.path.exists(path):
            raise MissingSourceError(f"{source}: {where} leads to {path}, which does not exist")
        return path


@dataclass
class H5Tree:
    """The columns of one open file: finds them, follows their links, describes them.

    Parameters
    ----------
    file : h5py.File
        The open file; it belongs to the tree from now on.
    path : str
        Its path.
    group : str
        The group that column names are relative to.
    policy : ExternalPolicy
        Where links, virtual datasets and external storage may lead.
    """

    file: h5py.File
    path: str
    group: str
    policy: ExternalPolicy
    _linked_files: dict[str, h5py.File] = field(default_factory=dict)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of column `name`."""
        found = self._follow(self._root(), name, hops=0)
        if not isinstance(found, h5py.Dataset):
            raise UnsupportedColumnError(f"{self.path}: {name!r} is a group, not a column; its columns are below it")
        return found

    def column(self, name: str) -> ColumnLayout:
        """Describe column `name`."""
        dataset = self.dataset(name)
        with translated(self.path, f"reading the header of column {name!r}"):
            return _describe(dataset, name, self)

    def names(self) -> Iterator[str]:
        """Yield the name of every dataset and of every link that leads nowhere, in file order."""
        with translated(self.path, "listing its columns"):
            root = self._root()
            yield from self._walk(root, "", frozenset({_address(root)}))

    def close(self) -> None:
        """Close the file and those that links led to."""
        for file in [self.file, *self._linked_files.values()]:
            file.close()

    def _root(self) -> h5py.Group:
        root = self._follow(self.file, self.group.strip("/"), hops=0) if self.group.strip("/") else self.file["/"]
        if not isinstance(root, h5py.Group):
            raise UnknownColumnError(f"{self.path}: group={self.group!r} is a dataset; name the group above it")
        return root

    def _walk(self, group: h5py.Group, prefix: str, above: frozenset[Any]) -> Iterator[str]:
        for name in group:
            if not isinstance(name, str):
                continue
            path = prefix + name
            try:
                found = self._follow(group, name, hops=0)
            except (MissingSourceError, ExternalDataError):
                yield path
                continue
            if isinstance(found, h5py.Dataset):
                yield path
            elif isinstance(found, h5py.Group) and (address := _address(found)) not in above:
                # A group that is its own ancestor is a loop; one that is reached twice is an alias.
                yield from self._walk(found, path + "/", above | {address})

    def _follow(self, start: h5py.Group, path: str, hops: int) -> Any:
        here = start
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for depth, part in enumerate(parts):
            link = self._link(here, part, parts[:depth])
            if isinstance(link, h5py.HardLink):
                with translated(self.path, f"opening {path!r}"):
                    here = here[part]
            else:
                here = self._follow_link(here, link, part, hops)
            if not isinstance(here, h5py.Group) and depth < len(parts) - 1:
                raise UnknownColumnError(f"{self.path}: {'/'.join(parts[: depth + 1])!r} is not a group")
        return here

    def _link(self, group: h5py.Group, name: str, above: Sequence[str]) -> Any:
        with translated(self.path, f"looking up {name!r}"):
            if not group.id.links.exists(name.encode()):
                raise UnknownColumnError(f"{self.path}: no {'/'.join([*above, name])!r} below group {self.group!r}")
            # getlink answers from the link itself and opens nothing behind it.
            return group.get(name, getlink=True)

    def _follow_link(self, group: h5py.Group, link: Any, name: str, hops: int) -> Any:
        if hops >= _MAX_LINK_HOPS:
            raise MissingSourceError(
                f"{self.path}: link {name!r} leads through more than {_MAX_LINK_HOPS} links: a loop"
            )
        try:
            if isinstance(link, h5py.SoftLink):
                start = group.file if link.path.startswith("/") else group
                return self._follow(start, link.path, hops + 1)
            target = self.policy.resolve(link.filename, source=group.file.filename, where=f"external link {name!r}")
            if target not in self._linked_files:
                self._linked_files[target] = open_h5(target)
            return self._follow(self._linked_files[target], link.path, hops + 1)
        except UnknownColumnError as exc:
            raise MissingSourceError(
                f"{self.path}: link {name!r} leads to {link.path!r}, which does not exist"
            ) from exc


def _address(group: h5py.Group) -> tuple[int, int]:
    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr


def _describe(dataset: h5py.Dataset, name: str, tree: H5Tree) -> ColumnLayout:
    where = f"{tree.path}: column {name!r}"
    if dataset.shape is None or dataset.ndim == 0:
        found = "an empty (null) dataspace" if dataset.shape is None else "a single value"
        raise UnsupportedColumnError(f"{where} has {found}; a column needs a first axis of rows")
    element, array_shape = split_array(dataset.dtype)
    kind = kind_of(element, where)
    pipeline = _pipeline(dataset)
    storage = _storage(dataset)
    _check_outside(dataset, tree, where, storage)
    direct = _is_direct(dataset, kind, storage, pipeline, tree)
    if not direct:
        _check_codecs(pipeline, where)
    return ColumnLayout(
        name=name,
        kind=kind,
        shape=tuple(int(n) for n in (*dataset.shape, *array_shape)),
        stored_dtype=plain_dtype(element),
        storage=storage,
        chunk_shape=dataset.chunks,
        pipeline=pipeline,
        offset=dataset.id.get_offset() if storage == "contiguous" else None,
        fill=_fill(dataset) if direct else None,
        element=np.dtype(h5py.check_vlen_dtype(element)) if kind == "list" else None,
        direct=direct,
    )


def _fill(dataset: h5py.Dataset) -> np.ndarray:
    dtype = plain_dtype(dataset.dtype)
    if dataset.id.get_create_plist().get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        # libhdf5 then leaves what was never written as it is in the caller's buffer: h5py's is zero.
        return np.zeros((), dtype)
    return np.asarray(dataset.fillvalue, dtype=dtype)


def _storage(dataset: h5py.Dataset) -> Storage:
    if dataset.is_virtual:
        return "virtual"
    if dataset.external:
        return "external"
    layouts = {h5py.h5d.CHUNKED: "chunked", h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.COMPACT: "compact"}
    return cast("Storage", layouts[dataset.id.get_create_plist().get_layout()])


def _pipeline(dataset: h5py.Dataset) -> FilterPipeline:
    plist = dataset.id.get_create_plist()
    steps = []
    for i in range(plist.get_nfilters()):
        filter_id, _, client_data, name = plist.get_filter(i)
        shown = _FILTER_NAMES.get(filter_id) or name.decode("ascii", "replace") or f"filter {filter_id}"
        steps.append(FilterStep(filter_id, shown, tuple(int(v) for v in client_data)))
    return FilterPipeline(tuple(steps))


def _is_direct(dataset: h5py.Dataset, kind: Kind, storage: Storage, pipeline: FilterPipeline, tree: H5Tree) -> bool:
    if (
        kind not in {"number", "bool"}
        or dataset.dtype.subdtype
        or dataset.file != tree.file
        or tree.file.userblock_size
    ):
        # Offsets under a user block differ between versions of libhdf5.
        return False
    stored_as_numpy_has_it = dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))
    if not stored_as_numpy_has_it:
        return False
    if storage == "contiguous":
        # No offset: nothing was ever written, all rows are the fill value.
        return dataset.id.get_offset() is not None
    return storage == "chunked" and decodes(pipeline) and _lists_its_chunks(dataset)


def _lists_its_chunks(dataset: h5py.Dataset) -> bool:
    # Where one axis can grow and it is not the first, libhdf5 (2.0) keeps the chunks in an extensible
    # array with that axis in front, and lists them under the coordinates of another chunk.
    growing = [axis for axis, length in enumerate(dataset.maxshape) if length is None]
    return len(growing) != 1 or growing == [0]


def _check_codecs(pipeline: FilterPipeline, where: str) -> None:
    if any(step.id > 255 for step in pipeline.steps):
        import hdf5plugin  # noqa: F401  registers its filters with libhdf5
    for step in pipeline.steps:
        if not h5py.h5z.filter_avail(step.id):
            raise CodecUnavailableError(
                f"{where} was written with filter {step.id} ({step.name}), which neither ray_h5, h5py nor "
                "hdf5plugin decodes here. Install the HDF5 plugin of that filter and point HDF5_PLUGIN_PATH to it."
            )


def _check_outside(dataset: h5py.Dataset, tree: H5Tree, where: str, storage: Storage) -> None:
    source = dataset.file.filename
    if storage == "external":
        for name, _, _ in dataset.external:
            tree.policy.resolve(os.fsdecode(name), source=source, where=f"external storage of {where}")
    elif storage == "virtual":
        for name in {virtual.file_name for virtual in dataset.virtual_sources()} - {"."}:
            tree.policy.resolve(name, source=source, where=f"virtual dataset {where}")


def describe(tree: H5Tree) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
    """Describe every column of a tree: those that can be read, and why the others cannot."""
    columns: dict[str, ColumnLayout] = {}
    refused: dict[str, RayH5Error] = {}
    for name in tree.names():
        try:
            columns[name] = tree.column(name)
        except (
            UnsupportedColumnError, CodecUnavailableError, ExternalDataError, MissingSourceError
        ) as exc:  # fmt: skip
            refused[name] = exc
    return columns, refused
