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
from ray_h5.options import as_bytes, as_integer, require
from ray_h5.storage.addresses import SCHEMES, scheme_of, without_secrets
from ray_h5.storage.local import local_folder

_CLIENT_NAMES = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
    "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
})  # fmt: skip
_WAITS = frozenset({"retry_timeout", "init_backoff", "max_backoff"})
_OWN_NAMES = frozenset({"allow_redirects", "allow_unversioned", "cache_bytes", "cache_dir", "max_retries"}) | _WAITS
_STORE_NAMES = {
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
    "hf": frozenset(),
}  # fmt: skip
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_", "azure_storage_"), "https": (), "hf": ()}
"""Names with these prefixes are the same options."""

_TIMES = frozenset({"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout"})
_BOOLS = frozenset({
    "allow_http", "allow_invalid_certificates", "allow_redirects", "allow_unversioned", "imdsv1_fallback",
    "randomize_addresses", "request_payer", "s3_express", "skip_signature", "unsigned_payload", "use_azure_cli",
    "use_emulator", "use_fabric_endpoint", "virtual_hosted_style_request",
})  # fmt: skip
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_LONGEST_S = 1e9
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})?\s*")
"""A time as text: a number, and the unit that it is of."""

_PUBLIC = _BOOLS | _TIMES | _OWN_NAMES | {"default_region", "pool_max_idle_per_host", "region"}
"""Options whose values are no secret. The values of all others are in no message."""

_DEFAULTS: Mapping[str, Any] = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "60s"}
"""obstore has no limit for a body that stalls. A request that is ended is resumed at the byte where it was."""

_OWN_DEFAULTS: Mapping[str, Any] = {"allow_redirects": False, "allow_unversioned": False, "max_retries": 4}
"""Whether a store may redirect to another host, which gets what is secret; whether files without an ETag are read, of
which a change may not be noticed; and how often a request is repeated."""

_FROM_ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE")
_HIDDEN = "***"


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
        checked: dict[str, Any] = {}
        for name, value in (options or {}).items():
            plain = _plain_name(name, kinds or list(_STORE_NAMES))
            checked[plain] = _checked(plain, value)
        if "s3" in kinds:
            checked = {**_environment(checked), **checked}
        if ("cache_dir" in checked) != ("cache_bytes" in checked):
            raise OptionError(
                "cache_dir and cache_bytes: the cache needs both, a folder on a disk of each node and how much of it "
                "to take, such as cache_dir='/nvme', cache_bytes='200GB'"
            )
        return cls(tuple(sorted(checked.items(), key=lambda item: item[0])), _full_urls(urls))

    @property
    def values(self) -> dict[str, Any]:
        return {**_OWN_DEFAULTS, **dict(self.given)}

    @property
    def backoff(self) -> tuple[timedelta, timedelta]:
        """The first wait before a request is repeated, and the longest."""
        most = self.values.get("max_backoff", timedelta(seconds=5))
        # obstore panics if the first wait is longer than the longest.
        return min(self.values.get("init_backoff", timedelta(seconds=0.2)), most), most

    @property
    def place(self) -> str:
        """What says which store a bucket is in, if not the usual one."""
        return self.hidden(str(self.values.get("endpoint", self.values.get("endpoint_url", ""))))

    def for_store(self, kind: str) -> dict[str, Any]:
        """Return the arguments of a store of obstore, which checks and repeats what they say."""
        values = self.values
        client: dict[str, Any] = {**_DEFAULTS, **{name: values[name] for name in _CLIENT_NAMES & values.keys()}}
        client |= {name: dict(value) for name, value in client.items() if isinstance(value, tuple)}
        store = {name: values[name] for name in _STORE_NAMES[kind] & values.keys()}
        first, most = self.backoff
        retry = {
            "max_retries": values["max_retries"],
            "backoff": {"init_backoff": first, "max_backoff": most, "base": 2},
            "retry_timeout": values.get("retry_timeout", timedelta(seconds=120)),
        }
        return {**store, "client_options": client, "retry_config": retry}

    def hidden(self, text: str) -> str:
        """Return a text without the values of secrets."""
        for name, value in self.given:
            parts = [text_of_part for _, text_of_part in value] if isinstance(value, tuple) else [value]
            for part in parts if name not in _PUBLIC | {"endpoint", "endpoint_url"} else ():
                if isinstance(part, (str, bytes)) and len(part) > 3:
                    text = text.replace(os.fsdecode(part), _HIDDEN)
        text = re.sub(r"(?<=://)[^/\s@]*@(?!anonymous)", "", text)
        return re.sub(r"\S+", lambda word: _without_query(word[0]), text)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" if name in _PUBLIC else f"{name}={_HIDDEN}" for name, value in self.given]
        return f"StoreOptions({', '.join(shown)})"


def _plain_name(name: object, kinds: list[str]) -> str:
    """Return the name of an option without a prefix; `kinds` are those of the stores that are read.

    Raises
    ------
    OptionError
        If there is no such option for them.
    """
    if not isinstance(name, str):
        raise OptionError(f"storage_options: expected names of options, found {name!r}")
    plain = name.lower()
    known = frozenset().union(_CLIENT_NAMES, _OWN_NAMES, *(_STORE_NAMES[kind] for kind in kinds))
    for prefix in ("", *(prefix_of_kind for kind in kinds for prefix_of_kind in _PREFIXES[kind])):
        if plain.startswith(prefix) and plain[len(prefix) :] in known:
            return plain[len(prefix) :]
    others = [kind for kind in _STORE_NAMES if kind not in kinds and plain in _STORE_NAMES[kind]]
    of = f", which are in {few([f'{kind}://' for kind in kinds])}" if others else ""
    raise UnknownOptionError(f"storage_options: unknown option {name!r} for these files{of}.{near_names(plain, known)}")


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option as obstore takes it, which checks the others. No message shows a secret value."""
    value = value.item() if isinstance(value, np.generic) else value
    what = f"storage_options: {name}"
    if name == "cache_bytes":
        return as_bytes(name, value)
    if name == "cache_dir":
        return local_folder(name, value)
    if name in _TIMES | _WAITS:
        return _checked_time(what, value, is_wait=name in _WAITS)
    if name in _BOOLS:
        flag = _WORDS.get(str(value).strip().lower()) if isinstance(value, (bool, int, str)) else None
        require(flag is not None, what, value, "True or False")
        return flag
    if name == "max_retries":
        is_digits = isinstance(value, str) and value.isdigit()  # from the command line
        return as_integer(what, int(value) if is_digits else value, 0)
    if name == "credential_provider":
        if not callable(value):
            raise OptionError(
                f"{what}: expected a function that returns a dict of credentials, or an object of obstore.auth, found "
                f"{type(value).__name__}"
            )
        if iscoroutinefunction(value) or iscoroutinefunction(type(value).__call__):
            raise OptionError(f"{what}: expected a function that is not async")
        return value if isinstance(value, Hashable) else _Provider(value)
    if name == "default_headers":
        if not isinstance(value, Mapping) or not all(isinstance(text, str) for item in value.items() for text in item):
            raise OptionError(f"{what}: expected a dict of texts, such as {{'x-team': 'seismology'}}")
        return tuple(sorted(value.items()))
    return _checked_text(name, what, value)


def _checked_text(name: str, what: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, (str, int, float, bytes)):
        raise OptionError(f"{what}: expected a text, a number or a bool, found {type(value).__name__}")
    if name in {"endpoint", "endpoint_url", "base_url"} and not re.match(r"[a-z]+://\S+$", str(value)):
        raise OptionError(f"{what}: expected a URL that begins with https:// or http://, without spaces")
    if name.endswith(("key", "key_id", "token")) and str(value) != str(value).strip():
        raise OptionError(f"{what}: it begins or ends with a space or a line break, as texts of files do: strip() it.")
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _checked_time(what: str, value: Any, *, is_wait: bool) -> Any:
    """Return seconds as obstore takes them: a text of milliseconds for a request, a timedelta for a wait."""
    said = _TIME.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and said is None and not is_wait and re.match(r"\d+(\.\d+)?\s*[a-z]", value):
        return value  # such as 1m 30s, which obstore checks
    try:
        number = value.total_seconds() if isinstance(value, timedelta) else float(value if said is None else said[1])
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    seconds = number * (1 if said is None else _UNITS[said[2] or "s"])
    if isinstance(value, bool) or not (0 <= seconds < _LONGEST_S) or (not seconds and not is_wait):
        raise OptionError(f"{what}={value!r}: expected seconds, such as 30, or '30s'")
    return timedelta(seconds=seconds) if is_wait else f"{round(seconds * 1000)}ms"


@dataclass(frozen=True, slots=True, eq=False)
class _Provider:
    """What gives credentials, with a hash."""

    function: Callable[[], Any]

    def __call__(self) -> Any:
        return self.function()


def _without_query(word: str) -> str:
    """Return a word without the query of a URL, or what looks like one."""
    begin, scheme, rest = word.partition("://")
    word = begin + scheme + rest.partition("?")[0] if scheme else word
    for question_mark in re.finditer(r"(?<=[^\"'])\?", word):
        if word.rfind("=") > question_mark.start():
            return word[: question_mark.start()]
    return word


def _full_urls(urls: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return URLs that hold something secret, by what they are without it."""
    secret_urls: dict[str, str] = {}
    for plain, full in map(without_secrets, urls):
        if secret_urls.setdefault(plain, full) != full:
            raise OptionError(
                f"{plain}: two URLs have this path, with different users or queries (what follows '?'). These may be "
                "secret, so that they are in no plan, and the files cannot be told apart. Read one of them, or give "
                "them different paths."
            )
    return tuple((plain, full) for plain, full in secret_urls.items() if full)


def _environment(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the environment of this process says about S3, except secrets: other nodes may lack it."""
    settings = {}
    for variable in _FROM_ENVIRONMENT:
        name = variable.removeprefix("AWS_").lower()
        if os.environ.get(variable) and not {name, name.removesuffix("_url"), name.removeprefix("default_")} & {
            *options
        }:
            plain = "endpoint" if name == "endpoint_url" else name
            settings[plain] = _checked(plain, os.environ[variable])
    return settings
