"""What it costs to send batches to a GPU: against one large copy, and as they are stored against as they are used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ray_h5.torch_data.batches.tensors import nbytes_of
from tests.bench.measure import OURS, Contest, Result, run_turns
from tests.bench.training.steps import synchronize

if TYPE_CHECKING:
    from ray_h5.torch_data.h5_data_loader import H5DataLoader

__all__ = ["Sent", "against_link", "against_used"]

_HELD = 64
_LINK, _PAGEABLE = "one pinned copy", "pageable"


def against_link(case: str, batches: H5DataLoader, device: torch.device, turns: int, goal: float) -> list[Result]:
    """Compare copies of pinned batches with one copy of as many bytes, and with copies of pageable batches."""
    held = list(itertools.islice(batches, _HELD))
    nbytes = nbytes_of(held)
    whole = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    pageable = [{name: value.clone() for name, value in batch.items()} for batch in held]
    contestants = {
        OURS: partial(_copied, held, device),
        _LINK: partial(_copied, [{"all": whole}], device),
        _PAGEABLE: partial(_copied, pageable, device),
    }
    contest = Contest("gpu", case, run_turns(contestants, turns))
    return [
        contest.against(name, amount=nbytes / 1e9, unit="GB/s", goal=least)
        for name, least in ((_LINK, goal), (_PAGEABLE, None))
    ]


def _copied(batches: Sequence[Mapping[str, torch.Tensor]], device: torch.device) -> object:
    # With copy=True: on a CPU, where tests run, nothing would be done otherwise.
    found = [value.to(device, non_blocking=True, copy=True) for batch in batches for value in batch.values()]
    synchronize(device)
    return found


@dataclass(frozen=True, slots=True)
class Sent:
    """A column that is sent in one form and used in another one.

    Parameters
    ----------
    name
        Name of the form.
    batches
        The loader.
    column
        The column.
    finish
        Makes what is used of what was sent, on the device.
    """

    name: str
    batches: H5DataLoader
    column: str
    finish: Callable[[torch.Tensor], torch.Tensor]

    def first(self) -> torch.Tensor:
        """Return the column of the first batch of the first epoch."""
        self.batches.set_epoch(0)
        first: torch.Tensor = next(iter(self.batches))[self.column]
        return first

    def epoch(self, device: torch.device) -> None:
        """Send an epoch, and make what is used."""
        for batch in self.batches:
            self.finish(batch[self.column].to(device, non_blocking=True))
        synchronize(device)


def against_used(
    case: str, stored: Sent, used: Sent, device: torch.device, turns: int, fewer: float | None = None
) -> list[Result]:
    """Compare rows that are sent as stored with the same rows sent as used: in rows/s, and in bytes.

    Parameters
    ----------
    case
        What is sent.
    stored, used
        The same rows in the same order.
    device
        The device.
    turns
        Timed epochs.
    fewer
        How many times fewer bytes `stored` has to send.

    Raises
    ------
    RuntimeError
        If they lead to other values.
    """
    firsts = {each.name: each.first() for each in (stored, used)}
    made, expected = (each.finish(firsts[each.name].to(device)) for each in (stored, used))
    if not torch.equal(made, expected):
        raise RuntimeError(f"{case}: {stored.name} leads to other values than {used.name}")
    ours, theirs = (nbytes_of(first) / first.shape[0] for first in firsts.values())
    rows = len(stored.batches.dataset)
    contestants = {OURS: partial(stored.epoch, device), used.name: partial(used.epoch, device)}
    speed = Contest("gpu", f"{case}, {stored.name}", run_turns(contestants, turns))
    ratio = theirs / ours
    ok = None if fewer is None else ratio >= fewer
    return [
        speed.against(used.name, amount=rows, unit="rows/s", goal=None),
        Result("gpu", f"{speed.case}, sent", used.name, "B/row", ours, theirs, ratio, (ratio, ratio), fewer, ok),
    ]
