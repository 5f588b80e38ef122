"""The server as a program of its own, so that it takes no time of the process that is measured."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from typing_extensions import Self

__all__ = ["ServerProcess"]


class ServerProcess:
    """Run `FaultServer` in a process that ends with this one.

    Parameters
    ----------
    root
        The folder that it serves.
    latency, rate, total
        As in `FaultServer`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        latency: float = 0.0,
        rate: float | None = None,
        total: float | None = None,
    ) -> None:
        limits = {"--latency": latency, "--rate": rate, "--total": total}
        arguments = [text for name, value in limits.items() if value is not None for text in (name, str(value))]
        command = [sys.executable, "-m", "tests.kit.fault_server", str(root), *arguments, "--until-stdin-ends"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the server of {root} did not start; see its error above")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def log(self) -> dict[str, Any]:
        """Return its ``requests`` (fields of `Request`), ``most_active`` and ``connections``."""
        return self._ask("log")

    def forget(self) -> None:
        """Empty its log."""
        self._ask("forget")

    def _ask(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/-/{what}") as given:
            return dict(json.load(given))
