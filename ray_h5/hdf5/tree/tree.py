"""libhdf5's view of one file, for a short while: lists, finds and describes the columns below a group."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import h5py

from ray_h5.errors import (
    CodecUnavailableError,
    ExternalDataError,
    MissingGroupError,
    MissingSourceError,
    RayH5Error,
    SchemaMismatchError,
    TransientIOError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.columns.dataset_header import describe_column, is_plain
from ray_h5.hdf5.columns.redirects import ValueSources, check_value_sources, find_redirect
from ray_h5.hdf5.files.external_policy import Access
from ray_h5.hdf5.files.links import LinkedFiles, Sources, Trail, as_object
from ray_h5.hdf5.files.metadata_replay import HeldBytes, has_missed
from ray_h5.hdf5.files.opening import open_h5, open_remote, translated
from ray_h5.hdf5.files.other_files import OtherFiles
from ray_h5.hdf5.format.file_bytes import FileBytes, ObjectId, Widths, address_of, widths_of
from ray_h5.hdf5.format.value_types import are_references
from ray_h5.hdf5.tree.encodings import Libraries, encoding_of, form_of
from ray_h5.hdf5.tree.walker import Bounds, walk
from ray_h5.manifest.file_state import SourceStates, check_same
from ray_h5.manifest.known_columns import Redirect
from ray_h5.manifest.layout import ColumnLayout, Encoding, Form
from ray_h5.messages import few, near_names
from ray_h5.per_process import cached_property
from ray_h5.storage.byte_source import FileIdentity, Identity, MissingBytes

if TYPE_CHECKING:
    from typing_extensions import Self

NAME_OF_LIBRARY = re.compile(r"(?:^|/)(?:_i_|axis\d|block\d)")
"""Begins the names of datasets that PyTables and pandas write for themselves; see `Libraries`."""

_ADVICE = "If the file is as it should be, name the columns to read, or choose a group that has fewer with group=."

FROM_ROOT = "//"
"""Begins the name of an object that a reference leads to and that is outside the group that names are relative to."""

Root: TypeAlias = "tuple[h5py.Group, Trail, SourceStates]"
"""A group of a file, the trail to it, and the file with its state if another one is read with it; () for the first."""


class H5Tree:
    """libhdf5's view of a file: finds columns by following links, and describes them.

    The file is opened when it is first needed, and closed at the end of the outermost block. Blocks of a thread share
    the view that has their `key`.

    Parameters
    ----------
    access : Access
        How the file is opened.
    identity : Identity
        The state that it has to have.
    held : HeldBytes, optional
        What is in memory of a file in a store.
    others : OtherFiles, optional
        The other files in the store of a remote file.
    states : dict, optional
        The states that other files have to have that it leads to; that of a further one is added.

    Attributes
    ----------
    sought : Sources
        Other files that decide which columns there are: those that links to groups lead to, and those of columns that
        cannot be read. They may be missing. If one of them changes, other columns may become readable.
    """

    def __init__(
        self,
        access: Access,
        identity: Identity,
        held: HeldBytes | None = None,
        others: OtherFiles | None = None,
        states: dict[str, Identity] | None = None,
    ) -> None:
        self.access, self.path, self.group = access, access.path, access.group
        self._identity, self._held, self.others = identity, held, others
        self.linked = LinkedFiles() if states is None else LinkedFiles(states)
        self.sought: Sources = {}
        self.encodings: dict[str, Encoding | None] = {}
        self._datasets: dict[str, h5py.Dataset] = {}
        self._layouts: dict[ObjectId, ColumnLayout] = {}
        self._value_sources: dict[ObjectId, ValueSources] = {}
        self.key: Hashable = None
        self.blocks = 0

    def __enter__(self) -> Self:
        self.blocks += 1
        now.opened[self.key] = self
        return self

    def __exit__(self, *_: object) -> None:
        self.blocks -= 1
        # What it could not read may look like damage to the next pass.
        if not self.blocks and (not now.stay_open or has_missed()):
            self.close()

    @cached_property
    def file(self) -> h5py.File:
        """The open file."""
        if self._held is not None:
            return open_remote(self.path, self._held)
        file = open_h5(self.path, self.access.swmr)
        try:
            state = FileIdentity.of(os.fstat(file.id.get_vfd_handle()))
            check_same(self.path, self._identity, state, swmr=self.access.swmr)
        except RayH5Error:
            file.close()
            raise
        return file

    def close(self) -> None:
        """Close the file, and those that links led to. The next block takes another view."""
        now.opened.pop(self.key, None)
        self._datasets = {}
        for file in [*([self.file] if "file" in self.__dict__ else []), *self.linked.opened.values()]:
            file.close()

    @cached_property
    def widths(self) -> Widths:
        """The widths of numbers in the file."""
        return widths_of(self.file.id)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return the dataset of column `name`; it stays open."""
        if name not in self._datasets:
            self._datasets[name] = as_object(self.find(name)[0])
        return self._datasets[name]

    def redirect(self, dataset: h5py.Dataset, layout: ColumnLayout) -> Redirect:
        """Return where the values of a dataset are that was described as a column."""
        return find_redirect(self.path, dataset, layout, self._trail())

    def column(self, name: str) -> ColumnLayout:
        """Describe column `name`. Every file that its values come from is checked first."""
        return self._describe(name, *self.find(name))

    def encoding(self, name: str) -> Encoding | None:
        """Return what a group, or a dataset, encodes; None if it is plain, or lies in another file."""
        identifier, trail = self._located(name)
        item = as_object(identifier)
        if {*trail.sources} - {self.access.beside} or not isinstance(item, (h5py.Group, h5py.Dataset)):
            return None
        return encoding_of(item, name.strip("/"), trail, self.group)

    @property
    def form(self) -> Form:
        """What kind of file it is, or else the one that is read beside it."""
        try:
            with translated(self.path, "looking at what its groups are"):
                forms = (
                    form_of(root, trail, (item for _, item, _ in walk(root, trail, self.bounds())))
                    for root, trail, _ in self.roots()
                )
                return next(filter(None, forms), "")
        except TransientIOError:
            raise
        except RayH5Error:
            return ""  # reported by what reads the group

    def describe(self) -> tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]:
        """Return the layouts of the columns that can be read, in file order, and the errors of others and of links."""
        listed: dict[str, ColumnLayout | RayH5Error] = {}
        for root in [self.root, *self._beside]:
            columns_of_one = dict(self._columns_of(*root))
            both = listed.keys() & columns_of_one.keys()
            listed |= columns_of_one | {name: in_both(self.path, name, self.access.beside) for name in both}
        columns = {name: column for name, column in listed.items() if isinstance(column, ColumnLayout)}
        return columns, {name: error for name, error in listed.items() if isinstance(error, RayH5Error)}

    def _columns_of(self, root: h5py.Group, to_root: Trail) -> Iterator[tuple[str, ColumnLayout | RayH5Error]]:
        """Yield what is below a group of the file, or of the one beside it."""
        with translated(self.path, "listing its columns"):
            self.sought.update(to_root.sources)
            missed = False
            libraries = Libraries(self.path, root)
            for name, item, trail in walk(root, to_root, self.bounds(), enters=libraries.enters):
                if isinstance(item, h5py.Group):
                    self.sought.update(trail.sources)
                    continue
                if (instead := libraries.instead_of(name)) is not None:
                    yield from instead
                    continue
                try:
                    described = item if isinstance(item, RayH5Error) else self._described(name, item, trail)
                    if isinstance(described, ColumnLayout):
                        described = libraries.why_no_rows(name, item) or described
                except MissingBytes:
                    missed = True  # go on, to miss the bytes of the other columns too
                    continue
                if isinstance(described, ColumnLayout):
                    yield name, described
                    yield from lost_fields(described)
                    continue
                self.sought.update(trail.sources)
                if isinstance(described, (MissingSourceError, ExternalDataError, CodecUnavailableError)):
                    # It concerns one column: the others can be read.
                    dot = "" if str(described).endswith(".") else "."
                    advised = type(described)(f"{described}{dot} columns=[...] without {name!r} reads the others.")
                    advised.__dict__.update(described.__dict__)
                    described = advised
                yield name, described
            if missed:
                raise MissingBytes

    def find(self, name: str) -> tuple[h5py.h5d.DatasetID, Trail]:
        """Return the identifier of the dataset of column `name`, and the trail to it."""
        identifier, trail = self._located(name)
        if isinstance(identifier, h5py.h5d.DatasetID):
            return identifier, trail
        encoding = self.encoding(name)
        if encoding is None or encoding.kind == "frame":
            raise UnsupportedColumnError(f"{self.path}: {name!r} is a group, not a column; its columns are below it")
        error = UnsupportedColumnError(
            f"{self.path}: {name!r} is a group that encodes a column ({encoding.said}), and no dataset. read_h5, "
            "H5Dataset and loader read such columns, where rows lie along the first axis: without axes='reversed'."
        )
        error.is_encoded = True
        raise error

    def _located(self, name: str) -> tuple[Any, Trail]:
        """Return the group, or the identifier of the dataset, of a name in the file, or in the one beside it."""
        top = (self.file["/"], self._trail()) if name.startswith(FROM_ROOT) else self.root
        located: list[tuple[Any, Trail]] = []
        unknown: UnknownColumnError | None = None
        for root, to_root in [top, *self._beside]:
            trail = to_root.branch()
            try:
                located.append((trail.follow(root, name), trail))
            except UnknownColumnError as exc:
                unknown = exc
        if unknown is not None and not located:
            raise unknown
        if len(located) > 1 and all(isinstance(identifier, h5py.h5d.DatasetID) for identifier, _ in located):
            raise in_both(self.path, name, self.access.beside)
        return located[0]

    def _trail(self) -> Trail:
        return Trail(self.access, self.linked, others=self.others)

    @cached_property
    def root(self) -> tuple[h5py.Group, Trail]:
        """The group that names are relative to, and the trail to it."""
        trail = self._trail()
        with translated(self.path, f"opening group {self.group!r}"):
            top = as_object(h5py.h5o.open(self.file.id, b"/"))
            try:
                root = trail.follow(top, self.group, where="in the file")
            except UnknownColumnError as exc:
                found = walk(top, trail, self.bounds(), enters=lambda *_: False)  # of what is damaged, its error
                groups = [name for name, item, _ in found if isinstance(item, h5py.Group)]
                near = near_names(self.group.strip("/"), groups) if groups else ""
                raise MissingGroupError(f"{exc}; group={self.group!r} names no group.{near}") from exc
        if not isinstance(root, h5py.Group):
            raise UnknownColumnError(f"{self.path}: group={self.group!r} is a dataset; name the group above it")
        return root, trail

    @cached_property
    def _beside(self) -> list[tuple[h5py.Group, Trail]]:
        """The group in the file that is read beside this one, and the trail to it; nothing if there is no such file."""
        if not self.access.beside:
            return []
        trail = self._trail()
        file = trail.open_other(self.access.beside, "zip_files")
        try:
            root = trail.follow(file["/"], self.group)
        except UnknownColumnError:
            root = None
        if not isinstance(root, h5py.Group):
            raise SchemaMismatchError(
                f"zip_files: {self.access.beside} has no group {self.group!r}, which is read of {self.path}"
            )
        return [(root, trail)]

    def roots(self) -> list[Root]:
        """Return the group, in the file and in the one that is read beside it."""
        roots: list[Root] = [(*self.root, ())]
        for root, to_it in self._beside:
            self.sought.update(to_it.sources)
            others = dict(to_it.sources)
            state = others.pop(path := self.access.beside)
            trail = Trail(replace(self.access, path=path, beside=""), self.linked, others, self.others)
            roots.append((root, trail, ((path, state),)))
        return roots

    def _described(self, name: str, dataset: h5py.h5d.DatasetID, trail: Trail) -> ColumnLayout | RayH5Error:
        try:
            return self._describe(name, dataset, trail)
        except TransientIOError:
            raise
        except RayH5Error as exc:
            return exc.with_traceback(None)  # its frames lead back to it, and would keep the file's objects

    def _describe(self, name: str, dataset: h5py.h5d.DatasetID, trail: Trail) -> ColumnLayout:
        """Describe a dataset, once: in a listing, it may have any number of names."""
        address = address_of(dataset)
        with translated(self.path, f"reading the header of column {name!r}"):
            if not trail.sources and address in self._layouts:
                return replace(self._layouts[address], name=name)  # a second name of the same dataset
            if trail.sources and are_references(dataset.get_type()):
                raise UnsupportedColumnError(
                    f"{self.path}: column {name!r} has references in another file, {few(list(trail.sources))}, to "
                    "objects of that file. Read that file itself."
                )
            properties = dataset.get_create_plist()
            if not is_plain(properties):
                check_value_sources(trail, as_object(dataset), f"column {name!r}", self._value_sources)
            # A link may lead to another file and from there back to this one.
            at_home = not trail.sources or as_object(dataset).file == self.file
            sources = tuple(trail.sources.items())
            widths = self.widths if at_home else None
            layout = describe_column(
                dataset, name, path=self.path, widths=widths, sources=sources, properties=properties
            )
            if sources and self.others is not None:
                self.redirect(as_object(dataset), layout)  # raises if they cannot be read
            # With sources, another name may lead through other links, and so have other sources.
            if not sources:
                self._layouts[address] = layout
            return layout

    def bounds(self, where: str = "", advice: str = _ADVICE, **options: Any) -> Bounds:
        """Return what bounds a walk through the groups of the file, and of those that it leads to."""

        def file_bytes() -> int:
            return FileBytes.of(self.file.id).end + sum(state.size for state in self.linked.states.values())

        return Bounds(self.path, file_bytes, where or f"group {self.group!r}", advice, **options)


class Now(threading.local):
    """The files that this thread has open, by their keys, and whether they stay so until that of `opened_once` ends."""

    def __init__(self) -> None:
        self.opened: dict[Hashable, H5Tree] = {}
        self.stay_open = False


now = Now()


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
    """Have libhdf5 open each file that this thread asks at most once, until the block ends.

    A file in a store is opened again after a pass that missed bytes.
    """
    before, now.stay_open = now.stay_open, True
    try:
        yield
    finally:
        now.stay_open = before
        for opened in [] if before else list(now.opened.values()):
            if not opened.blocks:
                opened.close()


def in_both(path: str, name: str, beside: str) -> UnsupportedColumnError:
    """Return the error of a column that two files have which are read together."""
    return UnsupportedColumnError(
        f"{path}: column {name!r} is in {beside}, too. Rename one of them, or leave it out with columns=[...]."
    )


def lost_fields(layout: ColumnLayout) -> Iterator[tuple[str, UnsupportedColumnError]]:
    """Yield the fields that a column of compound values is delivered without, and why."""
    for field_name in layout.lost_fields:
        name = f"{layout.name}/{field_name}"
        yield (
            name,
            UnsupportedColumnError(
                f"{layout.path}: column {name!r} is a field of HDF5's own time (H5T_TIME), of references, of arrays of "
                "varying length or of numbers that numpy lacks, which no column has. Write a time, such as PyTables' "
                "Time64Col, as int64 or float64, and such arrays as a column of their own."
            ),
        )
