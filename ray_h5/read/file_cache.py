"""The open files of this process, in a bounded cache."""

from __future__ import annotations

from ray_h5.hdf5.files.external_policy import Access
from ray_h5.manifest.layout import FileState
from ray_h5.read.file_plan import JOINT_COLUMNS
from ray_h5.read.open_file import FILES, OTHERS, OpenFile, max_open
from ray_h5.storage.byte_source import ObjectIdentity, only_ctime_differs


def open_file(access: Access, expect: FileState | None = None) -> OpenFile:
    """Return an open file, from the cache if the file has not changed; otherwise a new one.

    Of a remote file in an expected state, nothing is asked: each request says which state it wants.
    """
    planned, sources = (None, None) if expect is None else (expect.identity, expect.sources.values())
    # With swmr too: a reader made after rows were added finds them.
    identity = planned if isinstance(planned, ObjectIdentity) else access.storage.check(access.path)
    opened = FILES.get(access)
    # The cache is not locked here: a source may be on a mount that does not answer.
    if opened is not None and only_ctime_differs(opened.identity, identity):
        opened.look_again(identity, is_planned=only_ctime_differs(planned, identity))
    if opened is None or opened.identity != identity or not opened.is_current(sources):
        opened = OpenFile(access, identity)
    FILES.max_items = max_open()
    # Readers that still hold an evicted file keep it open.
    FILES.put(access, opened)
    return opened


def forget_all() -> None:
    """Remove all files from the cache; those that readers hold stay open."""
    for cache in (FILES, OTHERS, JOINT_COLUMNS):
        cache.clear()
