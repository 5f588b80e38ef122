"""The open files of this process, with a table of all that reads keep in memory."""

# In a child after a fork, each `LRU` and `PerProcess` below is empty, and readers open their files again: what hangs on
# a file is not used there. `forget_all` empties the first three.
#
#   what                      key                        bound                     when the file changes
#   FILES                     how it is opened           MAX_OPEN_FILES,           `open_file` opens it again
#                                                        MAX_INDEX_BYTES
#   OTHERS                    how it is opened           MAX_OTHERS, as above      `_other_file` opens it again
#   JOINT_COLUMNS             VirtualColumn              64, 256 MiB               not found: its file is another one
#   of an OpenFile:
#     manifest                columns, other names       with the file; counted    goes with the file
#     _indexes                dataset                    with the file; counted    goes with the file
#     readers, virtual        address; dataset           with the file             goes; at a new ctime, readers too
#     joined_columns          JoinedArray, weak          the plan that has it      as readers
#     held (in a store)       block of the file          `trim`, 64 MiB a reader   never: each request names the state
#     others (in a store)     URL and group              with the first file       never: as held
#   now.opened                OpenFile, in a thread      the outermost block       closed at the end of the block
#   _open_now                 device, inode, swmr        those that are in use     another inode; or closed by then
#   HELD                      number of libhdf5          weak                      goes with the bytes
#   _known, KNOWN_NOTES       bytes of a header          1024                      never: the key says all of it
#   _types                    bytes of a type            1024, 64 MiB              never: as above
#   _collections (heaps)      file, its state, address   bytes                     not found: the key has the state
#   HeldChunks                file, its state, chunk     bytes of a RowSource      not found: as above
#   PIPELINES                 filter pipeline            _MAX_PIPELINES            never: as above
#   lru_cache, nine of them   types, shapes, pipelines   1 to 1024                 never: they are functions of the key

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray_h5.lru import LRU
from ray_h5.system import max_open_files

if TYPE_CHECKING:
    from ray_h5.read.arrays.column import Column

MAX_OPEN_FILES = 64
"""Most files in the cache. Each needs a descriptor, of which a process usually has 1024; the cache takes at most a
quarter of them."""

MAX_OTHERS = 256
"""Most local files in the cache that values of other files come from."""

MAX_INDEX_BYTES = 256 << 20
"""Most bytes of the chunk indexes of the cached files; a chunk takes 28. The file used last stays in any case."""


def max_open(most: int | None = None) -> int:
    """Return how many files a cache may hold: at most a quarter of the descriptors of this process."""
    most = MAX_OPEN_FILES if most is None else most
    limit = max_open_files()
    return most if limit is None else max(1, min(most, limit // 4))


FILES: LRU[Any] = LRU(MAX_OPEN_FILES, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
"""The open files of this process that were asked for: each an `OpenFile`, whose module imports this one."""

OTHERS: LRU[Any] = LRU(MAX_OTHERS, MAX_INDEX_BYTES, lambda opened: opened.cached_bytes, keeps_last=True)
"""Those that values of other files come from."""


def _share(columns: Sequence[Column]) -> int:
    """Return the bytes of the index of a joint column, or its share of the descriptors, if that is more."""
    of_file = MAX_INDEX_BYTES // max_open(MAX_OTHERS)
    return max([column.source.table.nbytes + len(column.source.table) * of_file for column in columns], default=0)


JOINT_COLUMNS: LRU[Sequence[Column]] = LRU(64, 256 << 20, _share, keeps_last=True)
"""Of virtual datasets, in all files, whose sources are read as one column: that, or nothing."""
