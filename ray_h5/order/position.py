"""Positions in an epoch: what a checkpoint of Ray or of a sampler stores, and how a run of either resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from ray_h5.errors import OptionError, PositionError
from ray_h5.options import check_count, names_options
from ray_h5.order.block_layout import Left, Tail
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import Fingerprint

_MOST_RANKS = 1 << 20
"""Each of them has a block in what is left of a round."""


@names_options
@dataclass(frozen=True, slots=True)
class Position:
    """The point that a training run has reached in an epoch. Store it in the checkpoint.

    It is the same in Ray and in plain PyTorch: the state of a sampler or loader is the `to_dict` of its position.

    Attributes
    ----------
    seed, epoch : int
        The order. A dataset that has drawn its seed, as with ``shuffle=True``, takes over this seed when it resumes.
    rows : int
        Rows that each rank has done in this run.
    world_size : int
        Ranks.
    block_rows : int
        Rows of a block, which ranks take in turn: those of a read task, or the `run_length` of a sampler.
    plan : Fingerprint
        The files, what a row holds, the selected rows and the shuffle: an error names the parts that differ.
    left : Left, optional
        What was left of the epoch when this run began; None for all of it.
    tail : Tail, optional
        The treatment of the last rows in this run. The run that resumes may have another one.
    """

    seed: int
    epoch: int
    rows: int
    world_size: int
    block_rows: int
    plan: Fingerprint
    left: Left | None = None
    tail: Tail | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "rows", "world_size", "block_rows"):
            check_count(f"Position: {name}", getattr(self, name), 1 if name in {"world_size", "block_rows"} else 0)
        if self.world_size > _MOST_RANKS:
            raise PositionError(f"Position: world_size={self.world_size}: expected at most {_MOST_RANKS} ranks")
        if not isinstance(self.plan, Fingerprint):
            raise PositionError(f"Position: plan={self.plan!r}: expected a Fingerprint, as ReadPlan has")

    @property
    def has_begun(self) -> bool:
        """Whether something of the epoch is done."""
        return bool(self.rows) or self.left is not None

    def left_under(self, tail: Tail | None, epoch_rows: int) -> Left | None:
        """Return what a next run with a tail reads of an epoch of `epoch_rows` rows; None for all of it.

        Raises
        ------
        PositionError
            If more is done than there is.
        """
        left = Left.of(self.left, self.tail, epoch_rows).after(self.rows, self.world_size, self.block_rows)
        return Left.of(left, tail, epoch_rows) if self.has_begun else None

    def to_dict(self) -> dict[str, Any]:
        """Return the position as plain values, for JSON or a checkpoint; `load_state_dict` of a sampler takes them."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        left = None if self.left is None else self.left.to_dict()
        tail = None if self.tail is None else [self.tail.rule, self.tail.rows]
        return {**state, "left": left, "tail": tail, "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, found: PositionLike) -> Position:
        """Return the position that `to_dict`, or `state_dict` of a sampler or loader, described.

        Raises
        ------
        PositionError
            If `found` is neither that nor a position.
        """
        if isinstance(found, Position):
            return found
        names = {field.name for field in fields(cls)}
        if isinstance(found, Mapping) and (found.get("earlier") or "within" in found):
            raise PositionError(
                "Position: found a state that a sampler of an earlier version saved, or a run that it had resumed, "
                f"which does not say what is left. Begin the epoch again: set_epoch({found.get('epoch')!r})"
            )
        if isinstance(found, Mapping) and "left" not in found:
            found = {"left": None, **found} if "earlier" in found else found
        if not isinstance(found, Mapping) or names != set(found) - {"plan_hash", "earlier"}:
            raise PositionError(
                f"Position: expected a Position, or the dict of to_dict() or state_dict() with "
                f"{', '.join(sorted(names))}; found {found!r}"
            )
        others = {name: found[name] for name in ("seed", "epoch", "rows", "world_size", "block_rows")}
        plan = Fingerprint.from_dict(found["plan"])
        try:
            tail = None if found["tail"] is None else Tail(*found["tail"])
        except (TypeError, OptionError) as exc:
            raise PositionError(f"Position: tail={found['tail']!r}: expected None, or [rule, rows]: {exc}") from exc
        left = None if found["left"] is None else Left.from_dict(found["left"], tail)
        return cls(**others, plan=plan, left=left, tail=tail)

    def checked_order(self, plan: Fingerprint, order: Order) -> Order:
        """Return the order that the position is in: `order`, with the seed of the position if its own was drawn.

        Raises
        ------
        PositionError
            If the position is of other files, other data of rows, another selection or another shuffle; it says what
            differs.
        """
        order = order.with_drawn_seed(self.seed)
        changes = self.plan.differences(plan)
        if order.shuffle is not None and self.plan.unit is not None and self.seed != order.seed:
            changes.insert(0, f"seed {self.seed}, not {order.seed}")
        if changes:
            raise PositionError(
                "the position is of other files, other data of rows, another predicate or another shuffle than this "
                "dataset. What differs: "
                f"{'; '.join(changes)}. Read the data as the run before did, with "
                f"shuffle={self.plan.shuffle(self.seed)}, or start the epoch again without a position."
            )
        if self.left is not None:
            self.left.check(order.epoch_rows)
        self.left_under(self.tail, order.epoch_rows)
        return order


PositionLike: TypeAlias = Position | Mapping[str, Any]
"""A position, or its dict."""
