"""Names of storage options: those of obstore, and ours."""

from __future__ import annotations

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
