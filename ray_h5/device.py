"""Batches on the device that trains: which device, containers that move as a whole, copies ahead of the training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ray_h5.errors import OptionError
from ray_h5.loading.prefetch_threads import ahead
from ray_h5.storage.request_pool import Stop

if TYPE_CHECKING:
    from typing_extensions import Self

Batch = TypeVar("Batch")


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
            Whether copies of pinned memory go on while the program does. Those to MPS do not: it would read the memory
            of a batch that may be gone by then.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        # Only what was asked for: `to` of other classes may have fewer options.
        options: dict[str, Any] = {} if device is None else {"device": device}
        if non_blocking and (device is None or torch.device(device).type != "mps"):
            options["non_blocking"] = True

        def moved(value: Any) -> Any:
            """Return a tensor, or another object with a method `to`; integers keep their dtype."""
            casts = dtype is not None and not (isinstance(value, torch.Tensor) and not value.is_floating_point())
            return value.to(**options, dtype=dtype) if casts else value.to(**options)

        return mapped(self, moved, "to")

    def pin_memory(self) -> Self:
        """Return this batch with all its tensors in pinned memory; without a CUDA device, the batch as it is."""
        if not torch.cuda.is_available():
            return self
        return mapped(self, methodcaller("pin_memory"), "pin_memory")

    def _with(self, entries: dict[str, Any]) -> Self:
        """Return a mapping like this one with other values."""
        return type(self)(entries)  # type: ignore[call-arg]


def mapped(batch: Any, change: Callable[[Any], Any], method: str) -> Any:
    """Return a value that has a method changed, and a copy of a container that holds such; others as they are."""
    if not isinstance(batch, Movable):
        if callable(getattr(batch, method, None)) and not isinstance(batch, type):
            return change(batch)
        if not _holds_any(batch, method):
            return batch
    changed = [mapped(value, change, method) for value in (batch.values() if isinstance(batch, Mapping) else batch)]
    if isinstance(batch, Mapping):
        entries = dict(zip(batch, changed, strict=True))
        if isinstance(batch, Movable):
            return batch._with(entries)
        if not isinstance(batch, MutableMapping):
            return type(batch)(entries)  # type: ignore[call-arg]
        clone = copy.copy(batch)  # it may have more than its entries, as a defaultdict has
        clone.update(entries)
        return clone
    return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)


def _holds_any(value: Any, method: str) -> bool:
    """Return whether a container holds anything to change: a list of text stays the same object."""
    if not isinstance(value, (Mapping, list, tuple)):
        return False
    values = value.values() if isinstance(value, Mapping) else value
    return any(callable(getattr(item, method, None)) or _holds_any(item, method) for item in values)


def to_device(batches: Iterable[Batch], device: torch.device, *, in_thread: bool = True) -> Iterator[Batch]:
    """Move batches to a device; to a GPU ahead of the training, in a thread: see `ahead` for how many batches.

    Copies overlap with computing if the tensors are in pinned memory. Without `in_thread` a batch is made, and its copy
    begun, when it is asked for: functions of a user that make batches run in the thread that asks.
    """
    if device.type == "cpu":
        yield from batches
        return
    if device.type != "cuda":
        # MPS reads the memory of a copy that does not wait later, when the batch may be gone.
        yield from (mapped(batch, lambda value: value.to(device), "to") for batch in batches)
        return
    side = torch.cuda.Stream(device)

    def copies() -> Iterator[tuple[Batch, bool, torch.cuda.Event]]:
        for batch in batches:
            others: list[Any] = []

            def copied(value: Any, others: list[Any] = others) -> Any:
                if isinstance(value, torch.Tensor):
                    # torch keeps pinned memory until its copy has ended, also if the batch is gone before.
                    return value.to(device, non_blocking=True)
                others.append(value)  # which tensors it has is not known
                return value

            with torch.cuda.stream(side):
                copy = mapped(batch, copied, "to"), bool(others), side.record_event()
            yield copy

    for batch, has_others, is_copied in ahead(copies(), Stop()) if in_thread else copies():
        # The stream of the training waits for this copy, not for the next one.
        current = torch.cuda.current_stream(device)
        current.wait_event(is_copied)
        for tensor in _tensors_in(batch):
            # Without this its memory could be reused while the training stream still computes with it.
            tensor.record_stream(current)
        yield mapped(batch, lambda value: value.to(device), "to") if has_others else batch


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of a batch, and the parts of those of compressed rows, which have no memory of their own."""
    if isinstance(value, torch.Tensor):
        is_csr = value.layout == torch.sparse_csr
        yield from (value.crow_indices(), value.col_indices(), value.values()) if is_csr else (value,)
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)


def can_pin() -> bool:
    """Return whether torch finds a device that copies from pinned memory; MPS does not."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type != "mps"


def as_device(
    device: str | int | torch.device,
    auto: Callable[[], torch.device] | None = None,
    hint: str = "'auto', the accelerator that torch finds, 'cpu', or a device that exists, such as 'cuda'",
) -> torch.device:
    """Return a device that exists; for ``"auto"`` what `auto` returns, by default the accelerator that torch finds.

    Raises
    ------
    OptionError
        If it is not a device, or torch does not find it; `hint` says what is expected.
    """
    if isinstance(device, str) and device == "auto":
        return _accelerator() if auto is None else auto()
    try:
        checked = torch.device(device)
        missing = checked.type == "cuda" and not torch.cuda.is_available()
        reason = "it holds no values" if checked.type == "meta" else "torch finds no CUDA device in this process"
        if checked.type != "meta" and not missing:
            torch.empty(0, device=checked)
            return checked
    # torch raises any of these for a backend that is missing.
    except (RuntimeError, TypeError, AssertionError, ImportError) as exc:
        reason = str(exc).split("\n", 1)[0].split(". ", 1)[0].rstrip(".")  # the rest lists all backends
    raise OptionError(
        f"device={str(device) if isinstance(device, torch.device) else device!r}: {reason}. Expected {hint}"
    )


def _accelerator() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if found is None else found
