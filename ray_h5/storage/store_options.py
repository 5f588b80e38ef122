"""`storage_options` as a user writes them -> options of obstore's stores; their values stay out of messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

import numpy as np

from ray_h5.errors import OptionError, UnknownOptionError
from ray_h5.messages import few, near_names
from ray_h5.options import as_bytes
from ray_h5.storage.addresses import SCHEMES, scheme_of, without_secrets
from ray_h5.storage.disk_cache import CacheOptions
from ray_h5.storage.local import local_folder

_CLIENT = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
    "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
})  # fmt: skip
_RETRY = frozenset({"max_retries", "retry_timeout", "init_backoff", "max_backoff"})
_OWN = frozenset({"allow_unversioned", "cache_bytes", "cache_dir"})
_STORE = {
    "s3": frozenset({
        "access_key_id", "checksum_algorithm", "container_authorization_token_file",
        "container_credentials_full_uri", "container_credentials_relative_uri", "credential_provider",
        "default_region", "endpoint", "endpoint_url", "imdsv1_fallback", "metadata_endpoint", "region",
        "request_payer", "role_arn", "role_session_name", "s3_express", "secret_access_key", "session_token",
        "skip_signature", "sts_endpoint", "token", "unsigned_payload", "virtual_hosted_style_request",
        "web_identity_token_file",
    }),
    "gs": frozenset({
        "application_credentials", "base_url", "bearer_token", "credential_provider", "service_account",
        "service_account_key", "skip_signature",
    }),
    "az": frozenset({
        "access_key", "account_key", "account_name", "authority_host", "authority_id", "bearer_token", "client_id",
        "client_secret", "credential_provider", "endpoint", "federated_token_file",
        "msi_endpoint", "msi_resource_id", "object_id", "sas_key", "sas_token", "skip_signature", "tenant_id",
        "token", "use_azure_cli", "use_emulator", "use_fabric_endpoint",
    }),
    "https": frozenset(),
}  # fmt: skip
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_", "azure_storage_"), "https": ()}
"""Names with these prefixes are the same options."""

_ELSEWHERE = {
    "anon": "skip_signature=True", "key": "access_key_id", "secret": "secret_access_key",
    "access_key": "access_key_id", "secret_key": "secret_access_key", "endpoint_override": "endpoint",
    "use_ssl": "allow_http=True, and an endpoint of http://", "client_kwargs": "endpoint, region",
    "config_kwargs": "timeout, read_timeout", "profile": "access_key_id and secret_access_key",
    "anonymous": "skip_signature=True", "verify": "allow_invalid_certificates", "retries": "max_retries",
    "connection_string": "account_name and account_key", "bucket": "the bucket in the URL",
    "bucket_name": "the bucket in the URL",
    "region_name": "region", "profile_name": "access_key_id and secret_access_key",
    "requester_pays": "request_payer=True", "scheme": "allow_http=True, and an endpoint of http://",
    "addressing_style": "virtual_hosted_style_request=True, or False for the bucket in the path",
    "force_path_style": "virtual_hosted_style_request=False", "config": "timeout, read_timeout, max_retries",
    "url_style": "virtual_hosted_style_request=True, or False for the bucket in the path",
    "force_virtual_addressing": "virtual_hosted_style_request=True",
    "proxies": "proxy_url", "proxy_options": "proxy_url", "request_timeout": "timeout",
    "token": "application_credentials, a path, or bearer_token", "headers": "default_headers",
    "container_name": "the container in the URL", "container": "the container in the URL",
}  # fmt: skip
"""Names of s3fs, boto3, pyarrow and others, and ours for the same."""

_TIMES = frozenset({"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout"})
_SPANS = frozenset({"retry_timeout", "init_backoff", "max_backoff"})
_BOOLS = frozenset({
    "allow_http", "allow_invalid_certificates", "allow_unversioned", "imdsv1_fallback", "randomize_addresses",
    "request_payer", "s3_express", "skip_signature", "unsigned_payload", "use_azure_cli", "use_emulator",
    "use_fabric_endpoint", "virtual_hosted_style_request",
})  # fmt: skip
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_NUMBERS = _TIMES | _SPANS | {"max_retries"}
_LONGEST_S = 1e9
_MAX_RETRIES = 4
_DEFAULTS: Mapping[str, Any] = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "60s"}
"""obstore has no limit for a body that stalls. A request that is ended is resumed at the byte where it was."""

_PUBLIC = frozenset({
    "allow_http", "allow_invalid_certificates", "allow_unversioned", "cache_bytes", "cache_dir", "connect_timeout",
    "default_region", "imdsv1_fallback", "init_backoff", "max_backoff", "max_retries", "pool_idle_timeout",
    "pool_max_idle_per_host", "randomize_addresses", "read_timeout", "region", "request_payer", "retry_timeout",
    "s3_express", "skip_signature", "timeout", "unsigned_payload", "use_azure_cli", "use_emulator",
    "virtual_hosted_style_request",
})  # fmt: skip
"""Options whose values are no secret. The values of all others are in no message."""

_FROM_ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE")
_HIDDEN = "***"
_URLS = frozenset({"endpoint", "endpoint_url", "base_url"})
_DOCUMENTS = frozenset({"proxy_ca_certificate", "root_certificate", "service_account_key", "user_agent"})
"""Options whose values may end with a line break."""

_NUMBER = re.compile(r"\d+(\.\d+)?")
_TIME = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|seconds?|minutes?|milliseconds?)( .*)?")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How stores are reached, checked. It is sent to tasks with all secrets in it; `repr` has none of their values.

    Attributes
    ----------
    given : tuple of (str, value)
        The options, by their names without prefix.
    full_urls : tuple of (str, str)
        URLs that hold something secret: without it, and as they are requested.
    dataset : str
        The files as the user names them, if their bytes stay on a disk.
    """

    given: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    full_urls: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    dataset: str = field(default="", repr=False, compare=False)

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
            plain = _plain_name(name, kinds or list(_STORE))
            found[plain] = _checked_cache(plain, value) if plain.startswith("cache_") else _checked(plain, value)
        if "s3" in kinds:
            found = {**_environment(found), **found}
        secret = _full_urls(urls)
        dataset = " ".join(sorted(plain for plain, _ in map(without_secrets, urls))) if _check_cache(found) else ""
        return cls(tuple(sorted(found.items(), key=lambda item: item[0])), secret, dataset)

    @property
    def values(self) -> dict[str, Any]:
        return dict(self.given)

    @property
    def allow_unversioned(self) -> bool:
        """Whether files without an ETag are read: a change of such a file may not be noticed."""
        return bool(self.values.get("allow_unversioned", False))

    @property
    def max_retries(self) -> int:
        """How often a request is repeated."""
        return int(self.values.get("max_retries", _MAX_RETRIES))

    @property
    def cache(self) -> CacheOptions | None:
        """The cache on a disk of the node, if there is one."""
        values = self.values
        return CacheOptions(values["cache_dir"], values["cache_bytes"], self.dataset) if "cache_dir" in values else None

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
        client: dict[str, Any] = {**_DEFAULTS, **{name: values[name] for name in _CLIENT & values.keys()}}
        if isinstance(client.get("default_headers"), tuple):
            client["default_headers"] = dict(client["default_headers"])
        store = {name: values[name] for name in _STORE[kind] & values.keys()}
        most = values.get("max_backoff", timedelta(seconds=5))
        # obstore panics if the first wait is longer than the longest.
        first = min(values.get("init_backoff", timedelta(seconds=0.2)), most)
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
        text = re.sub(r"(://[^\s?]*)\?\S*", r"\1", text)
        return re.sub(r"(?<=[^\s\"'])\?\S*=\S*", "", text)

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


def _plain_name(name: object, kinds: list[str]) -> str:
    if not isinstance(name, str):
        raise OptionError(f"storage_options: expected names of options, found {name!r}")
    plain = name.lower()
    known = frozenset().union(_CLIENT, _RETRY, _OWN, *(_STORE[kind] for kind in kinds))
    for prefix in ("", *(each for kind in kinds for each in _PREFIXES[kind])):
        if plain.startswith(prefix) and plain[len(prefix) :] in known:
            return plain[len(prefix) :]
    hint = f" For it, write {_ELSEWHERE[plain]}." if plain in _ELSEWHERE else near_names(plain, known)
    others = [kind for kind in _STORE if kind not in kinds and plain in _STORE[kind]]
    of = f", which are in {few([f'{kind}://' for kind in kinds])}" if others else ""
    raise UnknownOptionError(f"storage_options: unknown option {name!r} for these files{of}.{hint}")


def _checked_time(name: str, value: Any) -> Any:
    """Return a time as obstore takes it."""
    if name in _TIMES and isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _LONGEST_S:
        return f"{round(value * 1000)}ms"
    if name in _SPANS and isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _LONGEST_S:
        return timedelta(seconds=value)
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds() * 1000)}ms" if name in _TIMES else value
    if name in _TIMES and isinstance(value, str) and _TIME.fullmatch(value):
        return value
    raise OptionError(f"storage_options: {name}={value!r}: expected seconds, such as 30, or '30s'")


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option as obstore takes it. A message does not show it."""
    if isinstance(value, np.generic):
        value = value.item()
    if name in _NUMBERS and isinstance(value, str) and _NUMBER.fullmatch(value):  # from the command line
        value = float(value) if "." in value else int(value)
    if name in _TIMES | _SPANS:
        return _checked_time(name, value)
    if name in _BOOLS:
        return _checked_bool(name, value)
    if name in {"default_headers", "credential_provider"}:
        return _checked_headers(value) if name == "default_headers" else _checked_provider(value)
    if isinstance(value, str):
        _check_text(name, value)
    if name == "max_retries":
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise OptionError(f"storage_options: max_retries={value!r}: expected an integer of 0 or more")
        return value
    return _checked_text(name, value)


def _checked_text(name: str, value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # obstore takes texts alone
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, (str, bytes, bool)):
        raise OptionError(f"storage_options: {name}: expected a text, a number or a bool, found {type(value).__name__}")
    return value


def _check_text(name: str, value: str) -> None:
    if name not in _DOCUMENTS and value != value.strip():
        raise OptionError(
            f"storage_options: {name}: it begins or ends with a space or a line break. A text that was read from a "
            "file often does: strip() it."
        )
    if name in _URLS and "://" not in value:
        raise OptionError(f"storage_options: {name}: expected a URL that begins with https:// or http://")
    if name in _URLS and any(each.isspace() for each in value):
        raise OptionError(f"storage_options: {name}: expected a URL, found a space in a URL")


def _checked_provider(value: Any) -> Any:
    if not callable(value):
        raise OptionError(
            "storage_options: credential_provider: expected a function that returns a dict of credentials, or an "
            f"object of obstore.auth, found {type(value).__name__}"
        )
    if iscoroutinefunction(value) or iscoroutinefunction(type(value).__call__):
        raise OptionError("storage_options: credential_provider: expected a function that is not async")
    return value if isinstance(value, Hashable) else _Provider(value)


@dataclass(frozen=True, slots=True, eq=False)
class _Provider:
    """What gives credentials, with a hash."""

    function: Callable[[], Any]

    def __call__(self) -> Any:
        return self.function()


def _checked_bool(name: str, value: Any) -> bool:
    found = _WORDS.get(str(value).strip().lower()) if isinstance(value, (bool, int, str)) else None
    if found is None:
        raise OptionError(f"storage_options: {name}={value!r}: expected True or False")
    return found


def _checked_headers(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for item in value.items() for each in item):
        raise OptionError(
            "storage_options: default_headers: expected a dict of texts, such as {'x-team': 'seismology'}"
        )
    return tuple(sorted(value.items()))


def _checked_cache(name: str, value: Any) -> Any:
    if name == "cache_bytes":
        return as_bytes(name, value)
    return local_folder("cache_dir", value)


def _check_cache(found: Mapping[str, Any]) -> bool:
    """Return whether there is a cache; raise unless it has a folder and a size."""
    if ("cache_dir" in found) != ("cache_bytes" in found):
        raise OptionError(
            "cache_dir and cache_bytes: the cache needs both, a folder on a disk of each node and how much of it to "
            "take, such as cache_dir='/nvme', cache_bytes='200GB'"
        )
    return "cache_dir" in found


def _environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the environment of this process says about S3, except secrets: other nodes may lack it."""
    found = {}
    for variable in _FROM_ENVIRONMENT:
        name = variable.removeprefix("AWS_").lower()
        if os.environ.get(variable) and not {name, name.removesuffix("_url"), name.removeprefix("default_")} & {*given}:
            plain = "endpoint" if name == "endpoint_url" else name
            found[plain] = _checked(plain, os.environ[variable])
    return found
