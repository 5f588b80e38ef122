"""Loaders of datasets that `torch_data` does not know, such as those of Ray: each package registers its own."""

from __future__ import annotations

from functools import singledispatch
from typing import Any


@singledispatch
def loader_of(source: object, batch_size: int, ranks: Any, **options: Any) -> Any:  # noqa: ARG001  those of `loader`
    """Return a loader for a source of a type that was registered, None for others; `ranks` resolves the rank."""
    return None
