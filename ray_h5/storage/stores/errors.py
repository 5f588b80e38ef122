"""Errors of object stores -> `RayH5Error`. None has a cause: its text could hold something secret."""

from __future__ import annotations

import re

from ray_h5.errors import (
    NotFoundError,
    NotReadableError,
    OptionError,
    OutputExistsError,
    RayH5Error,
    ReadFailedError,
    StaleIndexError,
    TransientIOError,
)
from ray_h5.storage.addresses import scheme_of
from ray_h5.storage.stores.arguments import REFUSED
from ray_h5.storage.stores.gate import refused_by_a_gate

_STATUS = re.compile(r"status(?: code)?:? (\d{3})|\b(4\d\d|5\d\d) [A-Z][a-z]+|client error \((\d{3})|error \((\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{3,60})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{2,40})</Region>")
_PROVIDER = re.compile(r"credential provider: (\w+)")
_RETRIES = re.compile(r"after (\d+) retries")
_CREDENTIALS = (
    "169.254.169.254", "169.254.170.2", "/latest/api/token", "/latest/meta-data/", "metadata.google.internal",
    "/computemetadata/v1/", "/metadata/identity/oauth2/token",
)  # fmt: skip
"""Parts of the URLs that give the credentials of a machine in a cloud."""

_MOST_CHARACTERS = 300
_TLS_WORDS = ("certificate", "tls", "ssl", "badscheme", "invalidcontenttype", "handshake", "unknownissuer")

_REASONS = {
    "ExpiredToken": "the credentials have expired. Get others, and pass or export them on every node",
    "InvalidAccessKeyId": "it does not know access_key_id. Check the credentials, and the endpoint",
    "SignatureDoesNotMatch": "secret_access_key is not the one of access_key_id, or has a character too many",
    "InvalidToken": "it does not know the session_token. Those of a role come and go with both keys",
    "RequestTimeTooSkewed": "the clock of this machine is wrong. Set it, for example by NTP",
}
"""Codes of S3 for what it refuses, and what they mean."""

CHANGED = "Make the dataset again; if something still writes to the file, wait for it."


def option_error(text: str) -> OptionError:
    """Return the error for options that obstore refuses; its text is without anything secret."""
    if "account must be specified" in text.lower():
        return OptionError(
            "storage_options: expected account_name for az://, or AZURE_STORAGE_ACCOUNT_NAME on every node"
        )
    return OptionError(f"storage_options: {_short(text)}")


def changed(url: str) -> StaleIndexError:
    """Return the error for a file that is not the one that was planned."""
    return StaleIndexError(f"{url}: the file changed between planning and reading: its ETag is another one. {CHANGED}")


def output_exists(url: str) -> OutputExistsError:
    """Return the error for an object that was to be new."""
    return OutputExistsError(f"{url}: there is an object with this name. Write elsewhere, or overwrite it.")


def store_error(exc: BaseException, url: str, doing: str, text: str) -> RayH5Error:
    """Return the error for what a store, or the way to it, did.

    Parameters
    ----------
    exc : BaseException
        What obstore raised.
    url : str
        The file, without anything secret.
    doing : str
        What failed, such as ``"reading it"``.
    text : str
        Its text, without anything secret.
    """
    kind, lowered = type(exc).__name__, text.lower()
    status = status_of(exc)
    if kind == "AlreadyExistsError":
        return output_exists(url)
    if kind == "PreconditionError" or "precondition fail" in lowered or status == 412:
        return changed(url)
    if REFUSED in text or refused_by_a_gate(status, text):
        return ReadFailedError(
            f"{url}: the store redirects to another host ({doing}), and credentials or headers of storage_options, or "
            "the query of the URL, would go along. Pass the host that has the file, as endpoint or in the URL; or, if "
            "the other host may get them, storage_options={'allow_redirects': True}."
        )
    if "error following redirect" in lowered and "badscheme" in lowered:
        return ReadFailedError(
            f"{url}: the store redirects to http:// ({doing}), where others can read what is sent. That is refused. "
            "Read from a store that keeps to https://."
        )
    if any(word in lowered and word not in url.lower() for word in _CREDENTIALS):  # whatever its status is
        return NotReadableError(
            f"{url}: no credentials were found. Give them in storage_options or in the environment of every node, or "
            "write storage_options={'skip_signature': True} for public data. ~/.aws is not read: for what it has, run "
            "`eval $(aws configure export-credentials --format env)`."
        )
    if match := _PROVIDER.search(text):  # its text may hold something secret
        return NotReadableError(f"{url}: credential_provider of storage_options raised {match[1]}")
    is_web = scheme_of(url) in {"http", "https"}
    if isinstance(exc, FileNotFoundError) or status in {404, 410}:
        status = 404
    refused = _of_server(url, doing, status, lowered) if is_web else _of_bucket(url, doing, status, text)
    return refused or _of_status(url, doing, status, lowered, text) or _of_connection(url, doing, lowered, kind, text)


def _of_bucket(url: str, doing: str, status: int | None, whole: str) -> RayH5Error | None:
    """Return the error for a bucket or a key that is not given out."""
    text, code = whole.lower(), match[1] if (match := _CODE.search(whole)) else ""
    if "nosuchbucket" in text or "containernotfound" in text:
        return NotFoundError(
            f"{url.rstrip('/')}: there is no such bucket. Check its name, and endpoint and region in storage_options; "
            "other nodes may have others in their environment."
        )
    if status == 404:
        return NotFoundError(f"{url}: no such file, or no such bucket ({doing})")
    region = _REGION.search(whole)
    if region or ("redirect" in text and "region" in text):
        name = region[1] if region else "eu-west-1"
        return OptionError(
            f"{url}: the bucket is in another region ({doing}). Pass it: storage_options={{'region': {name!r}}}"
        )
    if status in {400, 401, 403} and (reason := _REASONS.get(code)):
        return NotReadableError(f"{url}: the store refuses {doing} ({code}): {reason}.")
    if status in {401, 403}:
        return NotReadableError(
            f"{url}: the store refuses {doing} (status {status}{code and f', {code}'}). Check the name of the bucket "
            "and the region, and that the credentials may read and list it; other nodes may have other credentials in "
            "their environment. If they may not list it, a file that does not exist is refused like this, too. Public "
            "data need storage_options={'skip_signature': True}; with it, other data are refused."
        )
    if status == 400:
        return ReadFailedError(
            f"{url}: {doing} failed (status 400{code and f', {code}'}). Check region and endpoint in storage_options, "
            "and the credentials, which may have expired."
        )
    return None


def _of_server(url: str, doing: str, status: int | None, text: str) -> RayH5Error | None:
    """Return the error for a file of ``https://`` that is not given out."""
    if status == 404:
        return NotFoundError(f"{url}: no such file ({doing})")
    if "redirect" in text:
        return ReadFailedError(
            f"{url}: the server says that the file is elsewhere ({doing}), but not where. Pass the URL that a browser "
            "ends at, or s3://, gs:// or az:// for a file in a bucket."
        )
    if status in {401, 403}:
        return NotReadableError(
            f"{url}: the server refuses {doing} (status {status}). A presigned URL may have expired: make another one. "
            "If the server wants a token, pass storage_options={'default_headers': {'Authorization': 'Bearer ...'}}. "
            "For the Hugging Face Hub, export HF_TOKEN on every node, and accept the conditions on the dataset's page. "
            "For a file in a bucket that is not public, pass s3://, gs:// or az://, and credentials."
        )
    return None


def _of_status(url: str, doing: str, status: int | None, text: str, whole: str) -> RayH5Error | None:
    tries = int(match[1]) + 1 if (match := _RETRIES.search(text)) else None
    after = f" after {tries} tries" if tries else ""
    if status in {429, 503} or "slowdown" in text or "slow down" in text:
        return TransientIOError(
            f"{url}: the store throttles this reader, or is not available (status {status or 503}): {doing} still "
            f"failed{after}. Read with fewer workers, or raise max_retries and retry_timeout in storage_options."
        )
    if status is not None and status >= 500:
        return TransientIOError(f"{url}: the store failed (status {status}): {doing} still failed{after}")
    if "non-partial response" in text or "range request not supported" in text:
        return ReadFailedError(
            f"{url}: the server ignores ranges and sends the whole file. Copy the files to a store or server that "
            "answers range requests."
        )
    if "requested" in text and "got" in text:
        return ReadFailedError(f"{url}: the server sent another range than was asked for. Read from another server.")
    if "content-length" in text:
        return ReadFailedError(
            f"{url}: the server does not say how long the file is. Copy the files to a store or server that does."
        )
    if status is not None:
        return ReadFailedError(f"{url}: {doing} failed (status {status}): {_short(whole)}")
    return None


def _of_connection(url: str, doing: str, text: str, kind: str, whole: str) -> RayH5Error:
    if any(word in text.replace(" ", "") for word in _TLS_WORDS):
        if "badscheme" in text.replace(" ", ""):
            return OptionError(
                f"{url}: an endpoint of http:// is refused. Write storage_options={{'allow_http': True, ...}} if what "
                "is sent to it may be read on the way."
            )
        return ReadFailedError(
            f"{url}: no secure connection (TLS): {_short(whole)}. Check the host name, the clock of this machine, and "
            "root_certificate in storage_options."
        )
    was_there = "response body" in text
    if not was_there and any(word in text for word in ("dns", "connect", "refused", "error sending request")):
        return TransientIOError(
            f"{url}: the store cannot be reached: {doing} failed: {_short(whole)}. Check the URL, endpoint "
            "and region in storage_options, and the network of this node."
        )
    if any(word in text for word in ("body", "timed out", "timeout")):
        return TransientIOError(f"{url}: {doing} broke off, also when it was repeated: {_short(whole)}")
    if kind in {"UnknownConfigurationKeyError", "ValueError"}:
        return OptionError(f"{url}: {_short(whole)}")
    return ReadFailedError(f"{url}: {doing} failed: {_short(whole)}")


def status_of(exc: BaseException) -> int | None:
    """Return the status of an answer that obstore made an error of; None if there is none."""
    match = _STATUS.search(str(exc))
    if match:
        return int(next(group for group in match.groups() if group))
    return {"UnauthenticatedError": 401, "PermissionDeniedError": 403}.get(type(exc).__name__)


def _short(text: str) -> str:
    """Return the part of a text of obstore that says what happened: not its debug form, nor an answer of the server."""
    text = " ".join(re.split(r"Debug source|<\?xml|<Error>|<html", text, flags=re.IGNORECASE)[0].split())
    return text[:_MOST_CHARACTERS].rstrip(" :,.")
