"""Options of stores -> arguments of obstore, which keep what is secret on the hosts that a user named.

Redirects to other hosts are refused where something secret would go along.
The client of obstore follows each redirect. To another host it sends everything except ``Authorization`` and cookies:
the session token of S3, headers of the user, and, as ``Referer``, the query of the URL. It has no option for that, but
one for proxies: hosts that are excluded from a proxy are reached directly, and a proxy at port 0 cannot be reached.
With a host it excludes all below it, at any port. That does for hosts of clouds; other requests pass a `Gate`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from ray_h5.errors import OptionError
from ray_h5.storage.addresses import StoreAddress
from ray_h5.storage.stores.gate import Gate, Host, host_of
from ray_h5.storage.stores.options import StoreOptions

REFUSED = "127.0.0.1:0"
"""Where requests to other hosts go. No server can listen there; errors of obstore name it."""

_KEPT_BACK = frozenset({
    "authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate",
    "accept", "accept-encoding", "accept-language", "cache-control", "user-agent",
})  # fmt: skip
"""Headers that the client does not send to another host, and those that hold no secret."""

_CREDENTIAL_HOSTS = {
    "s3": ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23", "sts.{region}.amazonaws.com"),
    "gs": ("googleapis.com", "metadata.google.internal", "metadata", "169.254.169.254"),
    "az": ("login.microsoftonline.com", "169.254.169.254"),
    "https": (),
}
"""Hosts that give credentials, without what options and the environment name."""

_CLOUDS = (
    ".amazonaws.com", ".amazonaws.com.cn", ".googleapis.com", ".core.windows.net", ".fabric.microsoft.com",
)  # fmt: skip
_HTTP, _HTTPS = 80, 443

_PREFIXES = {"s3": ("AWS_",), "gs": ("GOOGLE_", "GCE_"), "az": ("AZURE_", "IDENTITY_ENDPOINT", "MSI_"), "https": ()}
"""How variables of the environment begin that a store looks at."""


def store_arguments(options: StoreOptions, address: StoreAddress, root: str, token: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a store of obstore, which send nothing secret to hosts that are not named.

    Parameters
    ----------
    options : StoreOptions
        How stores are reached.
    address : StoreAddress
        Where a file of it is.
    root : str
        Of ``https://``, scheme and host, with what is secret.
    token : str
        The token for it, if there is one.

    Raises
    ------
    OptionError
        If requests go through a proxy, where that is not possible.
    """
    kind, name, arguments = address.kind, address.root, options.for_store(address.kind)
    client = arguments["client_options"]
    if address.anonymous:
        arguments["skip_signature"] = True
    if kind == "https":
        name = root
        client.setdefault("allow_http", False)
        headers = client.get("default_headers", {})
        if token and "authorization" not in map(str.lower, headers):
            client["default_headers"] = {**headers, "Authorization": f"Bearer {token}"}
    elif kind == "s3":
        arguments.setdefault("region", arguments.pop("default_region", None) or "us-east-1")
        if "endpoint" in arguments or "endpoint_url" in arguments:
            arguments.setdefault("virtual_hosted_style_request", False)
        # Stores that do not know it copy all the same.
        arguments["copy_if_not_exists"] = "header-with-status:If-None-Match:*:412"
    elif kind == "az":
        name, at, host = name.partition("@")  # abfss://container@account.dfs.core.windows.net/key
        if at:
            arguments.setdefault("account_name", host.partition(".")[0])
    url = _url_of(kind, name, arguments)
    if not url.startswith("http://"):
        client["allow_http"] = False  # a redirect could lead there
    secret = None if options.values["allow_redirects"] else _secret(kind, name, arguments)
    if secret is not None and _has_proxy(kind, url, client):
        raise OptionError(
            f"storage_options: requests to {urlsplit(url).hostname} go through a proxy (of proxy_url, or of the "
            f"environment). A redirect to another host cannot be refused there, and {secret} would go along. If the "
            "host does not need the proxy, name it in proxy_excludes, or in NO_PROXY on every node. If the store is "
            "trusted not to redirect to others, pass storage_options={'allow_redirects': True}."
        )
    if secret is not None:
        hosts = {*_hosts(kind, name, url, arguments)}
        client["proxy_url"], excludes = f"http://{REFUSED}", ",".join(sorted(host for host, _ in hosts))
        if not _is_of_cloud(url) or client.get("allow_invalid_certificates"):
            client["proxy_url"], excludes = Gate.for_hosts(hosts).url, ""
        client["proxy_excludes"] = excludes
    return name, arguments


def _is_of_cloud(url: str) -> bool:
    """Return whether one cloud has a host and all below it, so that what the client takes for the host is the cloud's.

    At another port, nobody else has a certificate for the host.
    """
    host, port = host_of(url) or ("", 0)
    return url.startswith("https://") and port == _HTTPS and host.endswith(_CLOUDS)


def _secret(kind: str, root: str, arguments: Mapping[str, Any]) -> str | None:
    """Return what the client would send to another host; None if nothing there is secret."""
    named = arguments["client_options"].get("default_headers", {})
    if headers := sorted(header for header in named if header.lower() not in _KEPT_BACK):
        return f"default_headers ({', '.join(headers)})"
    if kind == "https":
        return "the query of the URL" if "?" in root else None
    if arguments.get("skip_signature") or kind == "gs":
        return None
    names_set = arguments.keys() | {
        variable.partition("_")[2].lower() for variable in os.environ if variable.startswith(_PREFIXES[kind])
    }
    if kind == "az":
        names = {"sas_key", "sas_token", "storage_sas_key", "storage_sas_token", "credential_provider"}
        return "the SAS token" if names_set & names else None
    is_static = {"access_key_id", "secret_access_key"} <= names_set and not arguments.get("s3_express")
    has_token = {"session_token", "token", "credential_provider"} & names_set
    return "the session token" if has_token or not is_static else None


def _url_of(kind: str, root: str, arguments: Mapping[str, Any]) -> str:
    """Return a URL of the host that has the files."""
    names: tuple[str, ...]
    variables: tuple[str, ...]
    if kind == "https":
        return root
    if kind == "s3":
        names, variables = ("endpoint", "endpoint_url"), ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        region = arguments["region"]
        usual = f"https://s3.{region}.amazonaws.com"
        if arguments.get("s3_express"):
            zone = root.removesuffix("--x-s3").rpartition("--")[2]
            usual = f"https://{root}.s3express-{zone}.{region}.amazonaws.com"
    elif kind == "gs":
        names, variables, usual = ("base_url",), ("GOOGLE_BASE_URL",), "https://storage.googleapis.com"
    elif arguments.get("use_emulator"):
        return os.environ.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000")
    else:
        names, variables = ("endpoint",), ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        account = arguments.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        service = "fabric.microsoft.com" if arguments.get("use_fabric_endpoint") else "core.windows.net"
        usual = f"https://{account}.blob.{service}"
    endpoints = [arguments.get(name) for name in names] + [os.environ.get(variable) for variable in variables]
    return next((endpoint for endpoint in endpoints if endpoint), usual)


def _hosts(kind: str, root: str, url: str, arguments: Mapping[str, Any]) -> Iterator[Host]:
    """Yield the hosts that a store may send requests to: those that the user names, and those that give credentials."""
    named = [argument for argument in arguments.values() if isinstance(argument, str)]
    named += [value for name, value in os.environ.items() if _PREFIXES[kind] and name.startswith(_PREFIXES[kind])]
    for address in (url, *named):
        if (host := host_of(address)) is not None:
            yield host
            if arguments.get("virtual_hosted_style_request"):
                yield f"{root}.{host[0]}", host[1]
    for name in _CREDENTIAL_HOSTS[kind]:
        yield from ((name.format(region=arguments.get("region")), port) for port in (_HTTP, _HTTPS))


def _has_proxy(kind: str, url: str, client: Mapping[str, Any]) -> bool:
    """Return whether requests to a URL go through a proxy."""
    host = urlsplit(url).hostname or ""
    if client.get("proxy_url"):
        return not _is_excluded(host, str(client.get("proxy_excludes", "")))
    if any(name.upper().endswith("_PROXY_URL") and name.upper().startswith(_PREFIXES[kind]) for name in os.environ):
        return True
    proxies = getproxies_environment()
    proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all")
    return bool(proxy) and not _is_excluded(host, proxies.get("no", ""))


def _is_excluded(host: str, excludes: str) -> bool:
    if proxy_bypass_environment(host, {"no": excludes}):
        return True
    try:
        address = ipaddress.ip_address(host)
        return any(
            address in ipaddress.ip_network(exclude.strip(), strict=False)
            for exclude in excludes.split(",")
            if "/" in exclude
        )
    except ValueError:
        return False
