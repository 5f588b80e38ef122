"""`storage_options` as a user writes them -> options of obstore's stores; their values stay out of messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ray_h5.errors import OptionError
from ray_h5.options import as_bytes
from ray_h5.storage.addresses import SCHEMES, scheme_of, without_secrets
from ray_h5.storage.block_cache import CacheOptions
from ray_h5.storage.local import local_folder
from ray_h5.storage.stores.checked_options import CLIENT_NAMES, STORE_NAMES, checked_value, plain_name

_MAX_RETRIES = 4
_DEFAULTS: Mapping[str, Any] = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "60s"}
"""obstore has no limit for a body that stalls. A request that is ended is resumed at the byte where it was."""

_PUBLIC = frozenset({
    "allow_http", "allow_invalid_certificates", "allow_redirects", "allow_unversioned", "cache_bytes", "cache_dir",
    "connect_timeout", "default_region", "imdsv1_fallback", "init_backoff", "max_backoff", "max_retries",
    "pool_idle_timeout", "pool_max_idle_per_host", "randomize_addresses", "read_timeout", "region", "request_payer",
    "retry_timeout", "s3_express", "skip_signature", "timeout", "unsigned_payload", "use_azure_cli", "use_emulator",
    "virtual_hosted_style_request",
})  # fmt: skip
"""Options whose values are no secret. The values of all others are in no message."""

_FROM_ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE")
_HIDDEN = "***"


def _without_query(word: str) -> str:
    """Return a word without the query of a URL, or what looks like one."""
    begin, scheme, rest = word.partition("://")
    word = begin + scheme + rest.partition("?")[0] if scheme else word
    for found in re.finditer(r"(?<=[^\"'])\?", word):
        if word.rfind("=") > found.start():
            return word[: found.start()]
    return word


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How stores are reached, checked. It is sent to tasks with all secrets in it; `repr` has none of their values.

    Attributes
    ----------
    given : tuple of (str, value)
        The options, by their names without prefix.
    full_urls : tuple of (str, str)
        URLs that hold something secret: without it, and as they are requested.
    """

    given: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    full_urls: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: object, urls: Iterable[str] = ()) -> StoreOptions:
        """Return the options of a user for files at some URLs.

        Raises
        ------
        OptionError
            If an option is unknown, or of the wrong type.
        """
        urls = list(urls)
        kinds = sorted({SCHEMES[scheme] for url in urls if (scheme := scheme_of(url)) in SCHEMES})
        if options is not None and not isinstance(options, Mapping):
            raise OptionError(
                f"storage_options: expected a dict, such as {{'region': 'eu-west-1'}}, found {type(options).__name__}"
            )
        found = {}
        for name, value in (options or {}).items():
            plain = plain_name(name, kinds or list(STORE_NAMES))
            found[plain] = _checked_cache(plain, value) if plain.startswith("cache_") else checked_value(plain, value)
        if "s3" in kinds:
            found = {**_environment(found), **found}
        _check_cache(found)
        return cls(tuple(sorted(found.items(), key=lambda item: item[0])), _full_urls(urls))

    @property
    def values(self) -> dict[str, Any]:
        return dict(self.given)

    @property
    def allow_unversioned(self) -> bool:
        """Whether files without an ETag are read: a change of such a file may not be noticed."""
        return bool(self.values.get("allow_unversioned", False))

    @property
    def allow_redirects(self) -> bool:
        """Whether a store may redirect to another host, and get there what is secret."""
        return bool(self.values.get("allow_redirects", False))

    @property
    def max_retries(self) -> int:
        """How often a request is repeated."""
        return int(self.values.get("max_retries", _MAX_RETRIES))

    @property
    def backoff(self) -> tuple[timedelta, timedelta]:
        """The first wait before a request is repeated, and the longest."""
        most = self.values.get("max_backoff", timedelta(seconds=5))
        # obstore panics if the first wait is longer than the longest.
        return min(self.values.get("init_backoff", timedelta(seconds=0.2)), most), most

    @property
    def cache(self) -> CacheOptions | None:
        """The cache on a disk of the node, if there is one."""
        values = self.values
        return CacheOptions(values["cache_dir"], values["cache_bytes"]) if "cache_dir" in values else None

    @property
    def place(self) -> str:
        """What says which store a bucket is in, if not the usual one."""
        return self.hidden(str(self.values.get("endpoint", self.values.get("endpoint_url", ""))))

    def full_url(self, url: str) -> str:
        """Return the URL that is requested."""
        return dict(self.full_urls).get(url, url)

    def for_store(self, kind: str) -> dict[str, Any]:
        """Return the arguments of a store of obstore."""
        values = self.values
        client: dict[str, Any] = {**_DEFAULTS, **{name: values[name] for name in CLIENT_NAMES & values.keys()}}
        if isinstance(client.get("default_headers"), tuple):
            client["default_headers"] = dict(client["default_headers"])
        store = {name: values[name] for name in STORE_NAMES[kind] & values.keys()}
        first, most = self.backoff
        backoff = {"init_backoff": first, "max_backoff": most, "base": 2}
        retry = {
            "max_retries": self.max_retries,
            "backoff": backoff,
            "retry_timeout": values.get("retry_timeout", timedelta(seconds=120)),
        }
        return {**store, "client_options": client, "retry_config": retry}

    def hidden(self, text: str) -> str:
        """Return a text without the values of secrets."""
        for name, value in self.given:
            parts = [each for _, each in value] if isinstance(value, tuple) else [value]
            for each in parts:
                if name not in _PUBLIC and isinstance(each, (str, bytes)) and len(each) > 3:
                    text = (
                        text.replace(each if isinstance(each, str) else os.fsdecode(each), _HIDDEN)
                        if name not in {"endpoint", "endpoint_url"}
                        else text
                    )
        text = re.sub(r"(?<=://)[^/\s@]*@(?!anonymous)", "", text)
        return re.sub(r"\S+", lambda word: _without_query(word[0]), text)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" if name in _PUBLIC else f"{name}={_HIDDEN}" for name, value in self.given]
        return f"StoreOptions({', '.join(shown)})"


def _full_urls(urls: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return URLs that hold something secret, by what they are without it."""
    found: dict[str, str] = {}
    for plain, full in map(without_secrets, urls):
        if found.setdefault(plain, full) != full:
            raise OptionError(
                f"{plain}: two URLs have this path, with different users or queries (what follows '?'). These may be "
                "secret, so that they are in no plan, and the files cannot be told apart. Read one of them, or give "
                "them different paths."
            )
    return tuple((plain, full) for plain, full in found.items() if full)


def _checked_cache(name: str, value: Any) -> Any:
    if name == "cache_bytes":
        return as_bytes(name, value)
    return local_folder("cache_dir", value)


def _check_cache(found: Mapping[str, Any]) -> None:
    """Raise for a cache that has a folder alone, or a size alone."""
    if ("cache_dir" in found) != ("cache_bytes" in found):
        raise OptionError(
            "cache_dir and cache_bytes: the cache needs both, a folder on a disk of each node and how much of it to "
            "take, such as cache_dir='/nvme', cache_bytes='200GB'"
        )


def _environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the environment of this process says about S3, except secrets: other nodes may lack it."""
    found = {}
    for variable in _FROM_ENVIRONMENT:
        name = variable.removeprefix("AWS_").lower()
        if os.environ.get(variable) and not {name, name.removesuffix("_url"), name.removeprefix("default_")} & {*given}:
            plain = "endpoint" if name == "endpoint_url" else name
            found[plain] = checked_value(plain, os.environ[variable])
    return found
