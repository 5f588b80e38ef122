"""How far an epoch is done: what samplers keep, and what a checkpoint keeps of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray_h5.errors import PositionError
from ray_h5.options import as_integer
from ray_h5.planning.progress import check_count

State = dict[str, Any]


class Walk:
    """How far an epoch is done, and what it is an epoch of."""

    def __init__(self, what: Mapping[str, Any], split: Sequence[int] = (1, 1)) -> None:
        self._what = dict(what)
        self._split = list(split)
        self._resume: tuple[int, int, int] | None = None  # done, within, rows of a step of those who did them
        self.epoch = 0
        self.done = 0
        self.within = 0  # samples of this rank, of the stretch that begins at `done`

    def set_epoch(self, epoch: int) -> None:
        epoch = as_integer("set_epoch: epoch", epoch, 0)
        if epoch != self.epoch:
            self._resume = None
            self.done = self.within = 0
        self.epoch = epoch

    def begin(self, rows: int, length: Callable[[int], int] = int) -> int:
        """Return how much is done already of an epoch of `rows`; `length` tells what there is to yield of the rest."""
        (self.done, self.within, least), self._resume = self._resume or (0, 0, 0), None
        # Ranks that repeat a few rows, for all to have as many, have done more than there are; with drop_last some are
        # left at the end. If those who did them had left no less than a step of theirs, it was not the end: what is
        # too little for a step now is dropped then.
        left = rows - self.done
        if left <= 0 or (not length(left) and (not self.done or left < least)):
            # A state that was taken at the end of an epoch goes on with a whole one.
            self.done = self.within = 0
        return self.done

    def state_dict(self) -> State:
        done, within = self._resume[:2] if self._resume else (self.done, self.within)
        return {**self._what, "epoch": self.epoch, "done": done, "within": within, "split": self._split}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        found = {name: state.get(name) for name in self._what}
        if found != self._what:
            raise PositionError(
                f"load_state_dict: expected the state of a sampler of {self._what}, found one of {found}"
            )
        for name in ("epoch", "done", "within"):
            check_count(f"load_state_dict: {name}", state.get(name), 0)
        if state["within"] and state.get("split") != self._split:
            stretch, ranks = state.get("split") or (None, None)
            raise PositionError(
                f"load_state_dict: the state was taken inside a stretch of {stretch} samples of each of "
                f"{ranks} ranks; expected that stretch and world_size, found {self._split}"
            )
        self.set_epoch(state["epoch"])
        self._resume = state["done"], state["within"], math.prod(state.get("split") or (1,))
