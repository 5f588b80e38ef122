"""Values of storage options, as obstore takes them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

import numpy as np

from ray_h5.errors import OptionError

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
