"""Names and values of storage options: those of obstore, and ours."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

import numpy as np

from ray_h5.errors import OptionError, UnknownOptionError
from ray_h5.messages import few, near_names

CLIENT_NAMES = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
    "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
})  # fmt: skip
RETRY_NAMES = frozenset({"max_retries", "retry_timeout", "init_backoff", "max_backoff"})
OWN_NAMES = frozenset({"allow_redirects", "allow_unversioned", "cache_bytes", "cache_dir"})
STORE_NAMES = {
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
_SPANS = frozenset({"retry_timeout", "init_backoff", "max_backoff"})
_BOOLS = frozenset({
    "allow_http", "allow_invalid_certificates", "allow_redirects", "allow_unversioned", "imdsv1_fallback",
    "randomize_addresses", "request_payer", "s3_express", "skip_signature", "unsigned_payload", "use_azure_cli",
    "use_emulator", "use_fabric_endpoint", "virtual_hosted_style_request",
})  # fmt: skip
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_NUMBERS = _TIMES | _SPANS | {"max_retries"}
_LONGEST_S = 1e9
_URLS = frozenset({"endpoint", "endpoint_url", "base_url"})
_DOCUMENTS = frozenset({"proxy_ca_certificate", "root_certificate", "service_account_key", "user_agent"})
"""Options whose values may end with a line break."""

_NUMBER = re.compile(r"\d+(\.\d+)?")
_TIME = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|seconds?|minutes?|milliseconds?)( .*)?")


def plain_name(name: object, kinds: list[str]) -> str:
    """Return the name of an option without a prefix; `kinds` are those of the stores that are read.

    Raises
    ------
    OptionError
        If there is no such option for them.
    """
    if not isinstance(name, str):
        raise OptionError(f"storage_options: expected names of options, found {name!r}")
    plain = name.lower()
    known = frozenset().union(CLIENT_NAMES, RETRY_NAMES, OWN_NAMES, *(STORE_NAMES[kind] for kind in kinds))
    for prefix in ("", *(each for kind in kinds for each in _PREFIXES[kind])):
        if plain.startswith(prefix) and plain[len(prefix) :] in known:
            return plain[len(prefix) :]
    others = [kind for kind in STORE_NAMES if kind not in kinds and plain in STORE_NAMES[kind]]
    of = f", which are in {few([f'{kind}://' for kind in kinds])}" if others else ""
    raise UnknownOptionError(f"storage_options: unknown option {name!r} for these files{of}.{near_names(plain, known)}")


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


def checked_value(name: str, value: Any) -> Any:
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
