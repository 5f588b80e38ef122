"""The cursor: where a run is in its epochs, for samplers, loaders, and workers of a trainer that read themselves."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from ray_h5.errors import OptionError
from ray_h5.loading.agreement import first_said
from ray_h5.options import as_integer
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import Fingerprint
from ray_h5.order.position import Position, PositionLike
from ray_h5.order.remaining_blocks import continued, layout_of

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")

Begun: TypeAlias = tuple[Position, Iterator[_Item]]
"""Where an iteration began, and its items."""

LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}
"""The packages that lightning has been published as."""

_BEGUN: Counter[str] = Counter()
"""How many cursors have begun in this process, by their plan: ranks compare those of one number."""

_FIT_LOOPS = {f"{package}.loops.fit_loop" for package in LIGHTNING}


class Cursor:
    """Where a run is: the position at which its iteration began, and the rows handed out since.

    ::

        set_epoch, resume ──> begin ──> advance ... advance ──> end
                                ^                                │  the next epoch, if iterations advance
                                └────────────────────────────────┘

    Whatever shares an epoch shares a cursor, such as samplers that a framework makes of another.

    Attributes
    ----------
    order : Order
        The order. A seed that was drawn is replaced by that of a position that is loaded.
    epoch : int
        The epoch of the next iteration, or of the running one if iterations advance.
    advances : bool
        Whether each iteration is of the epoch after that of the iteration before it. If not, it is of the epoch that
        was set last.
    """

    def __init__(self, order: Order, plan: Fingerprint, *, advances: bool = False) -> None:
        self.order, self.plan, self.advances = order, plan, advances
        self.epoch = self.next_epoch = 0
        self.loaded: Position | None = None
        """Where the next iteration begins, if not at the first row of an epoch."""
        self.is_ahead = False
        """Whether the iteration that began last counts rows when they are asked for, before they are delivered."""
        self.run: tuple[Position, int] | None = None
        """Where the iteration that was asked last began, and how many rows of this rank are done now."""
        self.num_begun = 0
        """How many iterations have begun."""
        self._has_agreed = False

    def set(self, setting: int | Position) -> None:
        """Let the next iteration begin with an epoch, or at a position, whatever was chosen before."""
        self.loaded = self.run = None
        if isinstance(setting, Position):
            self.resume(setting)
        else:
            self.set_epoch(setting)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position in it stays, as frameworks set the epoch after it."""
        epoch = as_integer("set_epoch: epoch", epoch, 0)
        if epoch != self.epoch:
            self.loaded = self.run = None
        self.epoch = self.next_epoch = epoch

    def resume(self, state: PositionLike) -> None:
        """Let the next iteration begin at a position; raise a PositionError if it is of another order."""
        position = Position.from_dict(state)
        self.order = position.checked_order(self.plan, self.order)
        self.set_epoch(position.epoch)
        self.loaded = position

    def begin(self, whole: Callable[[int], Position], batch_rows: int | None = None) -> Position:
        """Begin an iteration, and return where; `whole` returns where a whole epoch begins, on the ranks of now.

        It continues the run of a position that was loaded if that has the same ranks and blocks, and if it ended
        between two batches of `batch_rows` rows, if that is known. Otherwise the rows that are left are cut again.
        """
        epoch, self.num_begun = self.epoch, self.num_begun + 1
        if self.advances:
            epoch = self.epoch = self.next_epoch
            self.next_epoch = epoch + 1
        start = whole(epoch)  # not self.epoch: another thread may have begun the next one
        loaded, self.loaded = self.loaded, None
        if loaded is not None:
            whole_epoch, start = start, continued(start, loaded, batch_rows or 1)
            if batch_rows is not None:
                _check_lightning(_batches_of(start, batch_rows), _batches_of(whole_epoch, batch_rows))
        self.run, self.is_ahead = (start, start.rows), False
        return start

    def agree(self, own: tuple[int, int]) -> None:
        """Raise if another rank has begun the same rows with another seed; no rank waits for another.

        Parameters
        ----------
        own : (int, int)
            The rank of this process, and how many ranks there are.

        Raises
        ------
        OptionError
            If the seeds differ.
        """
        if self._has_agreed:
            return
        plan = hashlib.blake2b(json.dumps(self.plan.to_dict(), sort_keys=True).encode(), digest_size=16).hexdigest()
        _BEGUN[plan] += 1  # ranks make the loaders of the same rows in the same order
        seed, (rank, ranks) = str(self.order.seed), own
        first = first_said(f"order/{plan}/{_BEGUN[plan]}", f"{seed} {rank}", ranks) or f"{seed} {rank}"
        other_seed, other_rank = first.split()
        if other_seed != seed:
            raise OptionError(
                f"ranks that share an epoch have orders of their own: seed {other_seed} on rank {other_rank}, seed "
                f"{seed} on rank {rank}. Rows would come twice or never. Pass the same seed on all ranks. For "
                "different data on each rank, and to a loader that one rank alone makes, pass rank=0, world_size=1."
            )
        self._has_agreed = True

    def advance(self, rows: int, run: tuple[Position, int]) -> tuple[Position, int]:
        """Count rows of an iteration as done; return where it is."""
        self.run = now = run[0], run[1] + rows
        if self.advances:
            self.epoch = run[0].epoch
        return now

    def end(self) -> None:
        """End the iteration that was asked last: the next one is of a whole epoch."""
        self.run = None
        if self.advances:
            self.epoch = self.next_epoch

    def position(self, run: tuple[Position, int] | None = None) -> Position:
        """Return where the iteration that was asked last is, or the iteration `run`."""
        if self.loaded is not None and run is None:
            return self.loaded
        run = run or self.run
        if run is None:
            return Position(self.order.seed, self.epoch, 0, 1, 1, self.plan, None, None)
        return replace(run[0], rows=run[1])


def _batches_of(start: Position, batch_rows: int) -> int:
    """Return how many batches a rank has from a position on."""
    rows = layout_of(start).num_rows // start.world_size - start.rows
    is_whole = start.tail is not None and start.tail.rule == "drop"
    return rows // batch_rows if is_whole else -(-rows // batch_rows)


def _check_lightning(left: int, whole: int) -> None:
    """Warn if lightning is among the callers, and counts other batches of a resumed epoch than there are."""
    frame: FrameType | None = inspect.currentframe() if LIGHTNING & sys.modules.keys() else None
    while frame is not None and frame.f_globals.get("__name__") not in _FIT_LOOPS:
        frame = frame.f_back
    try:
        done = None if frame is None else frame.f_locals["self"].epoch_loop.batch_progress.current.ready
    except (AttributeError, KeyError):  # of another release
        return
    if done is not None and done + left != whole:
        logger.warning(
            "lightning counts on from the %d batches of the run before, and ends this epoch after %d; %d batches are "
            "left. If it ends too early, rows of this epoch are left out; if too late, its validation is. Resume with "
            "the batch size and the number of ranks of the run before, or from the end of an epoch.",
            done,
            whole,
            left,
        )


class Counted(Iterator[_Item]):
    """One iteration, which counts the rows of each item as done when it is asked for.

    When the first item is asked for, `begin` begins the iteration in the cursor, and returns where, and the items. It
    counts for itself: another one, of another epoch, may begin, also in another thread. It has a position of its own
    that stays when the sampler has come to its end: for a last batch that is smaller than the others, a `DataLoader`
    takes the sampler to its end before the batch is delivered. torchdata therefore asks the iterator for a state, and
    not only the sampler.
    """

    def __init__(self, cursor: Cursor, begin: Callable[[], Begun[_Item]], size: Callable[[_Item], int]) -> None:
        self._cursor, self._begin, self._size = cursor, begin, size
        self._begun: Begun[_Item] | None = None
        self._run: tuple[Position, int] | None = None
        self._loaded: PositionLike | None = None

    def __next__(self) -> _Item:
        cursor = self._cursor
        if self._loaded is not None:
            cursor.resume(self._loaded)
            self._loaded = None
        if self._begun is None:
            self._begun = self._begin()
        start, items = self._begun
        try:
            item = next(items)
        except StopIteration:
            cursor.end()
            raise
        self._run = cursor.advance(self._size(item), self._run or (start, start.rows))
        return item

    def state_dict(self) -> dict[str, Any]:
        position = self._cursor.position(self._run) if self._loaded is None else Position.from_dict(self._loaded)
        return position.to_dict()

    def load_state_dict(self, state: PositionLike) -> None:
        # Loaded when the first item is asked for: this iterator may never be iterated over.
        self._loaded = state
