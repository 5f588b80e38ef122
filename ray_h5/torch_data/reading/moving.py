"""Batches whose tensors move together: ``batch.to(device)`` and ``batch.pin_memory()``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing_extensions import Self


class Movable:
    """A container with `to` and `pin_memory`, which return a copy whose tensors are there."""

    __slots__ = ()

    def to(
        self,
        device: torch.device | str | int | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Return this batch with all its tensors on a device, also those inside lists, tuples and dicts.

        What is no tensor, such as text, stays as it is.

        Parameters
        ----------
        device : device, str or int, optional
            Where to; None leaves each tensor on its device.
        dtype : torch.dtype, optional
            Cast floating-point tensors to this, as ``nn.Module.to`` does; it may be given in place of `device`.
        non_blocking : bool
            Whether copies of pinned memory go on while the program does.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        return _mapped(self, partial(_moved, device=device, dtype=dtype, non_blocking=non_blocking), "to")

    def pin_memory(self) -> Self:
        """Return this batch with all its tensors in pinned memory; without a CUDA device, the batch as it is."""
        if not torch.cuda.is_available():
            return self
        return _mapped(self, _pinned, "pin_memory")


class MovableList(Movable, list[Any]):
    """A batch that is a list, such as inputs and targets."""


class MovableDict(Movable, dict[str, Any]):
    """A batch that is a dict."""


def movable(batch: Any) -> Any:
    """Return a batch with `to` and `pin_memory`, if it is a plain list or dict."""
    if type(batch) is list:
        return MovableList(batch)
    return MovableDict(batch) if type(batch) is dict else batch


def _moved(value: Any, **options: Any) -> Any:
    """Return a tensor, or another object with a method `to`, at its new place."""
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        options["dtype"] = None
    # Only what was asked for: `to` of other classes may have fewer options.
    return value.to(**{name: given for name, given in options.items() if given is not None and given is not False})


def _pinned(value: Any) -> Any:
    return value.pin_memory()


def _mapped(batch: Any, change: Callable[[Any], Any], method: str) -> Any:
    """Return a copy of a container with its values changed."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    changed = [_changed(value, change, method) for value in values]
    if isinstance(batch, Mapping):
        entries = dict(zip(batch, changed, strict=True))
        if not isinstance(batch, MutableMapping):
            return type(batch)(entries)  # type: ignore[call-arg]
        clone = copy.copy(batch)  # it may have more than its entries, as a defaultdict has
        clone.update(entries)
        return clone
    return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)


def _changed(value: Any, change: Callable[[Any], Any], method: str) -> Any:
    if isinstance(value, Movable):
        return _mapped(value, change, method)
    if callable(getattr(value, method, None)) and not isinstance(value, type):
        return change(value)
    return _mapped(value, change, method) if _holds_any(value, method) else value


def _holds_any(value: Any, method: str) -> bool:
    """Return whether a container holds anything to change: a list of text stays the same object."""
    if not isinstance(value, (Mapping, list, tuple)):
        return False
    values = value.values() if isinstance(value, Mapping) else value
    return any(callable(getattr(each, method, None)) or _holds_any(each, method) for each in values)
