"""Bytes of remote files on a local disk, shared by the processes of a node."""

from ray_h5.storage.disk_cache.cache import CacheOptions, DiskCache, cache_for
from ray_h5.storage.disk_cache.cached_file import BLOCK_BYTES
from ray_h5.storage.disk_cache.getter import CachedGetter

__all__ = ["BLOCK_BYTES", "CacheOptions", "CachedGetter", "DiskCache", "cache_for"]
