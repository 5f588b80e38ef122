"""Files of a repository of the Hugging Face Hub as it lists them: pages of a tree, each with a link to the next."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from ray_h5.errors import NotFoundError, NotReadableError, OptionError, ReadFailedError
from ray_h5.storage.hub import HubPath, endpoint, token_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray_h5.storage.stores.options import StoreOptions

__all__ = ["files_below"]

_TIMEOUT_S = 30
_PAGE_BYTES = 64 << 20
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


def files_below(url: str, options: StoreOptions) -> Iterator[tuple[str, int]]:
    """Yield the path in the repository and the size of each file below a folder; none if there is no such folder.

    Parameters
    ----------
    url
        The folder, of ``hf://``.
    options
        How stores are reached. Of the client, `allow_http`, `default_headers` and `proxy_url` count here.

    Raises
    ------
    NotFoundError, NotReadableError, ReadFailedError
        If the Hub does not list it.
    """
    of = HubPath.of(url)
    if endpoint().startswith("http://") and not options.values.get("allow_http"):
        raise OptionError(f"{url}: HF_ENDPOINT is of http://; pass storage_options={{'allow_http': True}}")
    folder = f"/{quote(of.path.rstrip('/'))}" if of.path else ""
    page = f"{endpoint()}/api/{of.kind or 'models/'}{of.repository}/tree/{of.revision}{folder}?recursive=true"
    while page:
        entries, page = _page(url, page, options)
        for each in entries:
            if each["type"] == "file":
                yield each["path"], int(each["size"])


def _page(url: str, page: str, options: StoreOptions) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of a page, and the URL of the next one; "" if it is the last."""
    headers = {"Authorization": f"Bearer {token}"} if (token := token_for(_root(page))) else {}
    request = Request(page)  # noqa: S310  of https, or http if that is allowed
    for name, value in (headers | dict(options.values.get("default_headers", ()))).items():
        request.add_unredirected_header(name, value)  # another host gets no secret
    proxy = options.values.get("proxy_url")
    opener = build_opener(*([ProxyHandler({"https": proxy, "http": proxy})] if proxy else []))
    wait, most = options.backoff
    for attempt in range(options.max_retries + 1):
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                entries, link = json.loads(answer.read(_PAGE_BYTES)), answer.headers.get("Link", "")
            break
        except HTTPError as exc:
            if exc.code == 404 and exc.headers.get("X-Error-Code") == "EntryNotFound":
                return [], ""
            if exc.code not in _AGAIN or attempt == options.max_retries:
                raise _refusal(url, exc.code) from None
        except (URLError, TimeoutError, ConnectionError, ValueError) as exc:  # ValueError: the answer broke off
            if attempt == options.max_retries:
                raise ReadFailedError(f"{url}: the Hub gives no list of files: {options.hidden(str(exc))}") from None
        time.sleep(min(wait, most).total_seconds())
        wait *= 2
    found = _NEXT.search(link)
    if found and _root(found[1]) != _root(page):
        raise ReadFailedError(f"{url}: the Hub continues its list of files at another host, which is refused")
    return entries, found[1] if found else ""


def _root(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _refusal(url: str, status: int) -> NotFoundError | NotReadableError | ReadFailedError:
    if status in {401, 403}:
        return NotReadableError(
            f"{url}: the Hub does not list its files ({status}). It may be private or gated: set HF_TOKEN in the "
            "environment of every node, and ask for access on its page. There may be no such repository, too."
        )
    if status == 404:
        return NotFoundError(f"{url}: the Hub has no such repository, or no such branch, tag or commit in it")
    return ReadFailedError(f"{url}: the Hub answers {status} for its list of files. Try again later.")
