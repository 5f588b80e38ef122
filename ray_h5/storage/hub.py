"""Files of the Hugging Face Hub: ``hf://`` -> the URL that the Hub answers, and the token for it.

The Hub redirects requests for large files to another host, by URLs that are signed for a short time. So each request
begins at the Hub; the ETag is that of the host that has the bytes. The client of obstore sends ``Authorization`` to no
other host.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from ray_h5.errors import OptionError

_NAME = r"[\w.-]+"
_HUB = re.compile(rf"(datasets/|spaces/)?({_NAME}/{_NAME})(?:@([^/]+))?/(.+)")


def endpoint() -> str:
    """Return the URL of the Hub: HF_ENDPOINT of the environment names another one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def url_of(path: str) -> str:
    """Return the URL of ``https://`` for one of ``hf://``.

    Raises
    ------
    OptionError
        If the URL names no file.
    """
    found = _HUB.fullmatch(path[len("hf://") :])
    if found is None or found[4].endswith("/") or re.search(r"[*?[]", found[4]):
        raise OptionError(
            f"{path}: expected one file, such as hf://datasets/owner/name/data/run.h5, or owner/name@revision for "
            "another branch, tag or commit than main. Files of the Hub are not listed: name each of them."
        )
    kind, repository, revision, file = found.groups()
    return f"{endpoint()}/{kind or ''}{repository}/resolve/{revision or 'main'}/{quote(file)}"


def token_for(root: str) -> str:
    """Return the token for requests to a scheme and host: HF_TOKEN of the environment, for the Hub alone."""
    is_hub = "/".join(endpoint().split("/")[:3]) == root.rstrip("/").partition("/?")[0]
    return os.environ.get("HF_TOKEN", "") if is_hub else ""
