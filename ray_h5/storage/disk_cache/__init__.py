"""Bytes of remote files on a local disk, shared by the processes of a node."""

from ray_h5.storage.disk_cache.block_file import BLOCK_BYTES
from ray_h5.storage.disk_cache.cache import CacheOptions, DiskCache, cache_for
from ray_h5.storage.disk_cache.evictions import LATER, NEVER, Due, RunningOrder
from ray_h5.storage.disk_cache.getter import CachedGetter

__all__ = [
    "BLOCK_BYTES", "LATER", "NEVER", "CacheOptions", "CachedGetter", "DiskCache", "Due", "RunningOrder", "cache_for",
]  # fmt: skip
