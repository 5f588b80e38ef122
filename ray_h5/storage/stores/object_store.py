"""Files in object stores: S3, Google Cloud, Azure, and servers of HTTP. The only importer of obstore."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from ray_h5.errors import MissingDependencyError, OptionError, RayH5Error, ReadFailedError
from ray_h5.lru import LRU
from ray_h5.per_process import PerProcess
from ray_h5.storage.addresses import StoreAddress, check_key
from ray_h5.storage.block_cache import CachedFile, cache_for
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.hub import HubPath, files_below, token_for
from ray_h5.storage.stores.arguments import store_arguments
from ray_h5.storage.stores.errors import changed, option_error, output_exists, status_of, store_error
from ray_h5.storage.stores.options import StoreOptions
from ray_h5.storage.stores.store_base import PANIC, Found, InStore

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

Result = TypeVar("Result")

_MAX_STORES = 64
_PAGE = 1000
_PART_BYTES = 16 << 20
_LONG_LISTING_S, _LONGEST_LISTING_S = 5.0, 3600.0
_SAME_KEYS = 8
_LIST_BODY = "list response body"
"""What obstore says where the answer of a listing broke off."""

_MOST_COPIED_BYTES = 5 << 30
"""S3 copies no larger object: these come here and go back in parts."""

_NOT_IMPLEMENTED = 501
_REFUSES_HEAD = frozenset({401, 403, 405, 501})
_NO_SUCH_RANGE = 416
_EMPTY = {"size": 0, "e_tag": '"empty"'}
_UNESCAPED = frozenset("[]|^")
"""obstore does not escape these in a name, and follows no redirect then: the file has a store for the whole URL."""

_stores: PerProcess[LRU[Any]] = PerProcess(lambda: LRU(_MAX_STORES))
_user_pid: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectStorage(InStore):
    """Files in object stores.

    Attributes
    ----------
    options : StoreOptions
        How stores are reached.
    """

    options: StoreOptions

    @property
    def place(self) -> str:
        return self.options.place

    def look(self, url: str) -> ObjectIdentity | None:
        store, key = self._store(url)
        try:
            return self._identity(url, _look(store, key, StoreAddress.of(url).kind == "https"))
        except FileNotFoundError:
            return None

    def error(self, exc: BaseException, url: str, doing: str) -> RayH5Error:
        return store_error(exc, url, doing, self.options.hidden(str(exc)))

    def cached(self, url: str, expect: ObjectIdentity) -> CachedFile | None:
        values = self.options.values
        if "cache_dir" not in values:
            return None
        cache = cache_for(values["cache_dir"], values["cache_bytes"])
        place, state = f"{self.options.place} {url}", f"{expect.etag} {expect.modified_ns}"
        return CachedFile(cache, partial(self.get, url, expect), place, state, expect.size)

    def entries(self, url: str, *, below: bool) -> tuple[list[Found], list[str]]:
        address = StoreAddress.of(url)
        if address.kind == "hf":
            of = HubPath.of(url)
            above = address.key.removesuffix(of.path)
            # All files below the folder, without states: see `StoreSearch`.
            return [Found(of.url(path), above + path, ObjectIdentity("", 0)) for path in files_below(url)], []
        store, prefix = self._store(url)
        listed = self._repeated(lambda: asyncio.run(_listed(store, url, prefix or None, below=below)))
        pages, folders = ([listed["objects"]], listed["common_prefixes"]) if not below else (listed, ())
        named = [(address.url(meta["path"]), meta) for page in pages for meta in page]
        return [Found(name, meta["path"], self._identity(name, meta)) for name, meta in named], [
            folder.rstrip("/") for folder in folders
        ]

    def read(self, url: str, expect: ObjectIdentity, offset: int, nbytes: int) -> memoryview:
        store, key = self._store(url)
        options: GetOptions = {"range": (offset, offset + nbytes)}
        if expect.etag:
            options["if_match"] = expect.etag
        answer = store.get(key, options=options)
        # A server that does not know If-Match sends what it has.
        if _state(answer.meta) != expect:
            raise changed(url)
        return memoryview(answer.bytes())

    def put_file(self, url: str, path: str, *, is_new: bool = False) -> None:
        """Upload a local file; with `is_new`, where there is no object. If that fails, there is no part of it."""
        store, key = self._store(url)

        def upload() -> None:
            is_small = Path(path).stat().st_size <= _PART_BYTES
            if is_new and not is_small and self.look(url) is not None:
                raise output_exists(url)
            with open(path, "rb") as file:  # a large file in parts, which are given up together
                store.put(key, file, chunk_size=_PART_BYTES, mode="create" if is_new and is_small else None)

        self.asking(url, "writing it", upload)

    def put_bytes(self, url: str, data: bytes) -> None:
        """Make a small object, or put it in the place of another one, at once."""
        store, key = self._store(url)
        self.asking(url, "writing it", lambda: store.put(key, data, use_multipart=False))

    def copy(self, old: str, new: str) -> None:
        """Give an object of the same store a second name that is free. The store copies it."""
        (store, key), (_, to) = self._store(old), self._store(new)

        def copied() -> None:
            try:
                store.copy(key, to, overwrite=False)
            except Exception as exc:
                if type(exc).__name__ == "NotSupportedError" or status_of(exc) == _NOT_IMPLEMENTED:
                    store.copy(key, to)
                elif type(exc).__name__ == "AlreadyExistsError":
                    if store.head(to)["e_tag"] != store.head(key)["e_tag"]:  # of an answer that was lost, it is ours
                        raise
                elif (size := store.head(key)["size"]) > _MOST_COPIED_BYTES:
                    store.put(to, _pieces(store, key, size), chunk_size=_PART_BYTES)
                else:
                    raise

        self.asking(new, "giving it its name", copied)

    def delete(self, urls: Sequence[str]) -> None:
        """Delete objects of one store; one that does not exist is none."""
        if urls:
            store = self._store(urls[0])[0]
            self.asking(urls[0], "deleting it", lambda: store.delete([self._store(url)[1] for url in urls]))

    def _identity(self, url: str, meta: Any) -> ObjectIdentity:
        identity = _state(meta)
        if not identity.etag and not self.options.values["allow_unversioned"]:
            raise OptionError(
                f"{url}: the server gives no ETag for it (or a weak one), so a file that is written again while it is "
                "read would not be noticed, and rows of both could be mixed. If nobody writes to these files, pass "
                "storage_options={'allow_unversioned': True}: size and time of the last change are compared instead."
            )
        return identity

    def _repeated(self, work: Callable[[], Result]) -> Result:
        """List a folder; list it again if an answer breaks off: obstore repeats requests, but not this."""
        wait, most = self.options.backoff
        for _ in range(self.options.values["max_retries"]):
            try:
                return work()
            except Exception as exc:
                if _LIST_BODY not in str(exc):
                    raise
            time.sleep(wait.total_seconds())
            wait = min(2 * wait, most)
        return work()

    def _store(self, url: str) -> tuple[ObjectStore, str]:
        """Return the store of a file, and its key there."""
        check_fork()
        address = StoreAddress.of(url)
        check_key(url, address.key)
        root, name, token = address.root, address.key, ""
        if address.kind == "https":
            full = dict(self.options.full_urls).get(url, url)
            root = "/".join(full.split("/")[:3])
            token = token_for(root)
            query = full.partition("?")[2] if full != url else ""
            if not _UNESCAPED.isdisjoint(name):
                root, name = f"{root}/{quote(name)}", ""
            elif query:
                root += "/"
            root += query and f"?{query}"
        key = (self, address.kind, root, address.anonymous, token)
        store = _stores.value.get(key)
        if store is None:
            store = _new_store(self.options, address, root, token)
            _stores.value.put(key, store)
        return store, name


def _state(meta: Any) -> ObjectIdentity:
    etag = meta["e_tag"] or ""
    if etag and not etag.startswith("W/"):
        return ObjectIdentity(etag, int(meta["size"]))
    return ObjectIdentity("", int(meta["size"]), round(meta["last_modified"].timestamp() * 1e9))


def _look(store: Any, key: str, is_web: bool) -> Any:
    """Return what a store says about a file. A URL that is signed for GET, and some servers, refuse HEAD."""
    try:
        return store.head(key)
    except Exception as exc:  # for obstore, 405 is a file that is not found
        if not is_web or status_of(exc) not in _REFUSES_HEAD:
            raise
    try:
        return store.get(key, options={"range": (0, 1)}).meta
    except Exception as exc:
        if status_of(exc) == _NO_SUCH_RANGE:
            return _EMPTY
        raise


def _pieces(store: Any, key: str, size: int) -> Iterator[Any]:
    """Yield the bytes of an object. They come in another thread: obstore cannot get what it is about to put."""
    with ThreadPoolExecutor(1, "ray_h5_copy") as pool:
        for start in range(0, size, _PART_BYTES):
            yield pool.submit(store.get_range, key, start=start, end=min(start + _PART_BYTES, size)).result()


async def _listed(store: Any, url: str, prefix: str | None, *, below: bool) -> Any:
    """Return what a store lists, in pages with `below`; raise if that has no end.

    obstore follows tokens to the next page for ever. What takes long is looked at: do the same keys come again?
    """

    async def pages() -> list[Any]:
        return [page async for page in store.list(prefix, chunk_size=_PAGE)]

    task = asyncio.ensure_future(pages() if below else store.list_with_delimiter_async(prefix))
    try:
        if not (await asyncio.wait({task}, timeout=_LONG_LISTING_S))[0]:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_check_ends(store, url, prefix), _LONG_LISTING_S)
        if not (await asyncio.wait({task}, timeout=_LONGEST_LISTING_S))[0]:
            raise _endless(url, f"it has not ended after {_LONGEST_LISTING_S} s")
        return task.result()
    finally:
        task.cancel()


async def _check_ends(store: Any, url: str, prefix: str | None) -> None:
    """Raise if one of the first keys of a listing comes again and again. A key and its folder may have one name."""
    seen: Counter[str] = Counter()
    async for page in store.list(prefix, chunk_size=_SAME_KEYS):
        seen.update(meta["path"] for meta in page)
        key, times = seen.most_common(1)[0]
        if times >= _SAME_KEYS:
            raise _endless(url, f"{key!r} comes again and again")
        if len(seen) > _PAGE:
            return


def _endless(url: str, why: str) -> ReadFailedError:
    return ReadFailedError(
        f"{url}: the store says that its listing goes on and on: {why}. Name the files one by one, or read from "
        "another store."
    )


def check_fork() -> None:
    """Raise in a process that was forked from one that used a store: every request of it would hang for ever."""
    global _user_pid  # noqa: PLW0603
    if _user_pid is None:
        _user_pid = os.getpid()
    elif _user_pid != os.getpid():
        raise OptionError(
            "remote files cannot be read in a process that was forked after its parent read remote files. Start it "
            "another way: DataLoader(..., multiprocessing_context='forkserver'), or multiprocessing.get_context("
            "'spawn')."
        )


def _new_store(options: StoreOptions, address: StoreAddress, root: str, token: str) -> Any:
    """Return a new store. It asks for nothing."""
    try:
        from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
    except ImportError:
        raise MissingDependencyError(
            "files in object stores need obstore: pip install 'ray_h5[remote]' on every node"
        ) from None
    stores: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore, "https": HTTPStore}
    try:
        name, arguments = store_arguments(options, address, root, token)
        return stores[address.kind](name, **arguments)
    except BaseException as exc:
        if isinstance(exc, OptionError) or not (isinstance(exc, Exception) or type(exc).__name__ == PANIC):
            raise
        error = option_error(options.hidden(str(exc)))
    raise error  # without a context, which could hold something secret
