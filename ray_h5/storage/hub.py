"""Files of the Hugging Face Hub: ``hf://`` -> the URL that the Hub answers, the token for it, and lists of files.

The Hub redirects requests for large files to another host, by URLs that are signed for a short time. So each request
begins at the Hub; the ETag is that of the host that has the bytes. The client of obstore sends ``Authorization`` to no
other host.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, unquote

from ray_h5.errors import MissingDependencyError, NotFoundError, NotReadableError, OptionError, ReadFailedError
from ray_h5.storage.addresses import has_magic

Path = TypeVar("Path", bound="str | os.PathLike[str]")

_NAME = r"[\w.-]+"
_HUB = re.compile(rf"(datasets/|spaces/)?(?!(?:datasets|spaces)/)({_NAME}/{_NAME})(?:@([^/*?[]+))?(?:/(.*))?")


def endpoint() -> str:
    """Return the URL of the Hub: HF_ENDPOINT of the environment names another one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


@dataclass(frozen=True, slots=True)
class HubPath:
    """A file, folder or glob of a repository.

    Attributes
    ----------
    kind
        ``"datasets/"``, ``"spaces/"``, or nothing for a model.
    repository, revision
        Owner and name; a branch, tag or commit.
    path
        The path in the repository.
    """

    kind: str
    repository: str
    revision: str
    path: str

    @classmethod
    def of(cls, url: str) -> HubPath:
        """Return the parts of a URL.

        Raises
        ------
        OptionError
            If it names no repository.
        """
        match = _HUB.fullmatch(url[len("hf://") :])
        if match is None:
            raise OptionError(
                f"{url}: expected hf://datasets/owner/name/data/run.h5, a folder with a slash at its end, or a glob; "
                "owner/name@revision for another branch, tag or commit than main"
            )
        kind, repository, revision, path = match.groups()
        return cls(kind or "", repository, revision or "main", path or "")

    def url(self, path: str) -> str:
        """Return the URL of a file of the repository, as the Hub answers it."""
        return f"{endpoint()}/{self.kind}{self.repository}/resolve/{self.revision}/{quote(path)}"


def on_hub(path: Path, *, listed: bool = False) -> Path | str:
    """Return a path; of one of ``hf://``, the URL of ``https://``.

    Parameters
    ----------
    path
        The path or URL.
    listed
        Whether folders and globs are listed later: they stay as they are, a repository with a slash at its end.

    Raises
    ------
    OptionError
        If the URL names no file.
    """
    if not isinstance(path, str) or path[:5].lower() != "hf://":
        return path
    hub_path = HubPath.of(path)
    # In the name of one file, brackets and question marks stand for themselves.
    is_glob = has_magic(hub_path.path) if listed else "*" in hub_path.path
    if hub_path.path and not hub_path.path.endswith("/") and not is_glob:
        return hub_path.url(hub_path.path)
    if not listed:
        raise OptionError(f"{path}: expected one file, such as hf://datasets/owner/name/data/run.h5")
    return f"hf://{path[len('hf://') :]}" + ("" if hub_path.path else "/" * (not path.endswith("/")))


def token_for(url: str) -> str:
    """Return the token for requests to a URL: HF_TOKEN of the environment, for the host of the Hub alone."""
    is_hub = endpoint().split("/")[:3] == url.split("/")[:3]
    return os.environ.get("HF_TOKEN", "") if is_hub else ""


def files_below(url: str) -> list[str]:
    """Return the paths in the repository of all files below a folder; none if there is no such folder.

    Parameters
    ----------
    url
        The folder, of ``hf://``.

    Raises
    ------
    MissingDependencyError
        If huggingface_hub is not installed.
    NotFoundError, NotReadableError, ReadFailedError
        If the Hub does not list it.
    """
    try:
        from huggingface_hub import HfApi, RepoFile
        from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RevisionNotFoundError
    except ImportError:
        raise MissingDependencyError(
            f"{url}: folders and globs of hf:// need huggingface_hub: pip install 'ray_h5[hub]'"
        ) from None
    path = HubPath.of(url)
    api = HfApi(endpoint=endpoint(), token=token_for(endpoint()) or False)
    try:
        entries = api.list_repo_tree(
            path.repository,
            path.path.rstrip("/") or None,
            recursive=True,
            revision=unquote(path.revision),
            repo_type=path.kind.rstrip("s/") or None,
        )
        return [entry.path for entry in entries if isinstance(entry, RepoFile)]
    except RevisionNotFoundError:
        error: Exception = NotFoundError(f"{url}: the Hub has no branch, tag or commit {path.revision!r} of it")
    except EntryNotFoundError:
        return []
    except HfHubHTTPError as exc:
        status = exc.response.status_code
        if isinstance(exc, GatedRepoError) or status in {401, 403, 404}:
            error = NotReadableError(
                f"{url}: the Hub does not list its files ({status}). There may be no such repository; or it is private "
                "or gated: set HF_TOKEN in the environment of every node, and ask for access on its page."
            )
        else:
            error = ReadFailedError(f"{url}: the Hub answers {status} for its list of files. Try again later.")
    except Exception as exc:  # noqa: BLE001  its client has errors of its own, whose texts may hold what is secret
        error = ReadFailedError(f"{url}: the Hub gives no list of files: {type(exc).__name__}. Try again later.")
    raise error
