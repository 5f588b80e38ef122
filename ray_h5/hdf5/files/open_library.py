"""libhdf5's view of one file, for a short while."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

import h5py

from ray_h5.hdf5.checks.changed_files import check_identity
from ray_h5.hdf5.files.external_policy import Access
from ray_h5.hdf5.files.links import LinkedFiles
from ray_h5.hdf5.files.metadata_replay import HeldBytes, has_missed
from ray_h5.hdf5.files.opening import open_h5, open_remote
from ray_h5.hdf5.files.other_files import OtherFiles
from ray_h5.hdf5.tree.tree import H5Tree
from ray_h5.storage.byte_source import FileIdentity, Identity

if TYPE_CHECKING:
    from typing_extensions import Self


class OpenLibrary:
    """libhdf5's view of a file. It is opened when first needed, and closed at the end of the outermost block.

    `states` are those that other files have to have that it leads to; the state of a further one is added. Blocks of a
    thread share the view that has their `key`.
    """

    def __init__(
        self,
        access: Access,
        identity: Identity,
        held: HeldBytes | None = None,
        others: OtherFiles | None = None,
        states: dict[str, Identity] | None = None,
    ) -> None:
        self._access = access
        self._others = others
        self._identity = identity
        self._held = held
        self._linked = LinkedFiles() if states is None else LinkedFiles(states)
        self._tree: H5Tree | None = None
        self._datasets: dict[str, h5py.Dataset] = {}
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

    @property
    def tree(self) -> H5Tree:
        if self._tree is None:
            path, swmr = self._access.path, self._access.swmr
            if self._held is not None:
                self._tree = H5Tree(open_remote(path, self._held), self._access, self._others)
                return self._tree
            file = open_h5(path, swmr)
            self._tree = H5Tree(file, self._access, linked=self._linked)
            state = FileIdentity.of(os.fstat(file.id.get_vfd_handle()))
            check_identity(path, self._identity, state, swmr=swmr)
        return self._tree

    def dataset(self, name: str) -> h5py.Dataset:
        if name not in self._datasets:
            self._datasets[name] = self.tree.dataset(name)
        return self._datasets[name]

    def close(self) -> None:
        """Close the file; the next block opens it again."""
        now.opened.pop(self.key, None)
        self._datasets = {}
        if self._tree is not None:
            self._tree.close()
            self._tree = None


class Now(threading.local):
    """The files that this thread has open, by their keys, and whether they stay so until that of `opened_once` ends."""

    def __init__(self) -> None:
        self.opened: dict[Hashable, OpenLibrary] = {}
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
