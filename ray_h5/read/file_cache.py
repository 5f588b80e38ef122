"""The open files of this process, in a bounded cache."""

from __future__ import annotations

from collections.abc import Iterable

from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.manifest.layout import SourceStates
from ray_h5.read.file_plan import JOINT_COLUMNS
from ray_h5.read.open_file import FILES, OTHERS, OpenFile, max_open
from ray_h5.storage.byte_source import Identity, ObjectIdentity, only_ctime_differs
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import Storage


def open_file(
    path: str,
    group: str,
    policy: ExternalPolicy,
    swmr: bool = False,
    storage: Storage = LOCAL,
    expect: Identity | None = None,
    sources: Iterable[SourceStates] = (),
    beside: str = "",
) -> OpenFile:
    """Return the open file at `path`, from the cache if the file has not changed; otherwise a new one.

    Of a remote file in an expected state, nothing is asked: each request says which state it wants. `sources` are the
    expected states of other files that its columns come from.
    """
    access = Access(path, group, policy, swmr, storage, beside)
    # With swmr too: a reader made after rows were added finds them.
    identity = expect if isinstance(expect, ObjectIdentity) else access.storage.check(access.path)
    opened = FILES.get(access)
    # The cache is not locked here: a source may be on a mount that does not answer.
    if opened is not None and only_ctime_differs(opened.identity, identity):
        opened.look_again(identity, is_planned=only_ctime_differs(expect, identity))
    if opened is None or opened.identity != identity or not opened.is_usable(None if expect is None else sources):
        opened = OpenFile(access, identity)
    FILES.max_items = max_open()
    # Readers that still hold an evicted file keep it open.
    FILES.put(access, opened)
    return opened


def forget_all() -> None:
    """Remove all files from the cache; those that readers hold stay open."""
    for cache in (FILES, OTHERS, JOINT_COLUMNS):
        cache.clear()
