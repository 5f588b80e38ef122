"""Positions in an epoch: what a checkpoint stores, and how a run resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ray_h5.errors import OptionError, PositionError
from ray_h5.options import check_count
from ray_h5.planning.epoch.blocks import BlockLayout, Tail
from ray_h5.planning.epoch.fingerprint import Fingerprint
from ray_h5.planning.epoch.plan import ReadPlan
from ray_h5.planning.epoch.progress import RunExtent, RunProgress
from ray_h5.planning.epoch.reading import BlockRows, read_rows


@dataclass(frozen=True, slots=True)
class Position:
    """The point that a training run has reached in an epoch. Store it in the checkpoint.

    Attributes
    ----------
    seed, epoch : int
        The order. A dataset that has drawn its seed, as with ``shuffle=True``, takes over this seed when it resumes.
    rows : int
        Rows that each rank has done in this run.
    world_size : int
        Ranks.
    block_rows : int
        Rows of a block.
    plan_hash : str
        A hash of the files, the predicate and the shuffle.
    earlier : tuple of RunProgress
        What earlier runs have done of the epoch.
    tail : Tail, optional
        The treatment of the last rows in this run. The run that resumes may have another one.
    plan : Fingerprint, optional
        The parts of the hash: an error names those that differ. A position of an earlier version has none.
    """

    seed: int
    epoch: int
    rows: int
    world_size: int
    block_rows: int
    plan_hash: str
    earlier: tuple[RunProgress, ...] = ()
    tail: Tail | None = None
    plan: Fingerprint | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "rows", "world_size", "block_rows"):
            check_count(f"Position: {name}", getattr(self, name), 1 if name in {"world_size", "block_rows"} else 0)
        if not isinstance(self.plan_hash, str):
            raise PositionError(f"Position: plan_hash={self.plan_hash!r}: expected a string")

    @property
    def done(self) -> tuple[RunProgress, ...]:
        """What is done of the epoch, run by run."""
        done = RunProgress(self.rows, self.world_size, self.block_rows, self.tail) if self.rows else None
        return self.earlier if done is None else (*self.earlier, done)

    def to_dict(self) -> dict[str, Any]:
        """Return the position as plain values, for JSON or a checkpoint."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        earlier = [[done.rows, done.world_size, done.block_rows, _listed(done.tail)] for done in self.earlier]
        plan = None if self.plan is None else asdict(self.plan)
        return {**found, "earlier": earlier, "tail": _listed(self.tail), "plan": plan}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Position:
        """Return the position that `to_dict` described.

        Raises
        ------
        PositionError
            If `found` does not describe a position.
        """
        names = {each.name for each in fields(cls)}
        if not isinstance(found, Mapping) or not names - {"plan"} <= set(found) <= names:
            raise PositionError(f"Position: expected {', '.join(sorted(names))}, found {found!r}")
        earlier = found["earlier"]
        if not isinstance(earlier, (list, tuple)) or not all(
            isinstance(each, (list, tuple)) and len(each) == len(fields(RunProgress)) for each in earlier
        ):
            raise PositionError(
                f"Position: earlier={earlier!r}: expected a list of [rows, world_size, block_rows, tail]"
            )
        done = tuple(RunProgress(rows, ranks, block_rows, _tail_of(tail)) for rows, ranks, block_rows, tail in earlier)
        plan = found.get("plan")
        plan = None if plan is None else Fingerprint.from_dict(plan)
        return cls(**{**found, "earlier": done, "tail": _tail_of(found["tail"]), "plan": plan})


def _listed(tail: Tail | None) -> list[Any] | None:
    return None if tail is None else [tail.rule, tail.rows]


def _tail_of(listed: Any) -> Tail | None:
    if listed is None:
        return None
    try:
        return Tail(*listed)
    except (TypeError, OptionError) as exc:
        raise PositionError(f"Position: tail={listed!r}: expected None, or [rule, rows]: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Remainder:
    """The positions of an epoch that a run has to read: all, or what earlier runs have not done.

    It is small, and tasks need nothing else beside the plan.

    Attributes
    ----------
    epoch : int
        The epoch.
    done : tuple of RunProgress
        What earlier runs have done of it.
    world_size : int
        Ranks that take its blocks in turn.
    seed : int, optional
        The seed of the run that is resumed. It replaces a seed that the plan has drawn.
    """

    epoch: int = 0
    done: tuple[RunProgress, ...] = ()
    world_size: int = 1
    seed: int | None = None

    def block_layout(self, plan: ReadPlan) -> BlockLayout:
        """Return how these positions are cut into blocks."""
        return BlockLayout(self.extents(plan)[-1].num_positions, plan.block_rows, self.world_size)

    def positions(self, plan: ReadPlan, block: int, limit: int | None = None) -> np.ndarray:
        """Return the positions of a block; at most the first `limit`."""
        start, stop = self.block_layout(plan).bounds(block)
        found = np.arange(start, stop if limit is None else min(stop, start + limit), dtype=np.int64)
        *earlier, own = self.extents(plan)
        repeats, found = own.rows_at(found)
        # From this run back to the first: ordinals among the rows that a run left become positions of that run.
        for done, extent in zip(reversed(self.done), reversed(earlier), strict=True):
            more, found = extent.rows_at(done.positions(found, extent.num_positions))
            repeats += more
        # Repeated rows come after all rows of the epoch.
        return found + repeats * plan.epoch_rows

    def extents(self, plan: ReadPlan) -> list[RunExtent]:
        """Return the extents of the earlier runs, and of this one.

        With the same tail, a run continues the positions of the run before it: together they do what one run would have
        done. Another tail applies to the rows that are not done.
        """
        tails = [*(done.tail for done in self.done), plan.tail]
        found = [RunExtent.of(plan.epoch_rows, tails[0])]
        for done, tail, before in zip(self.done, tails[1:], tails[:-1], strict=True):
            remaining = done.remaining(found[-1])
            found.append(remaining if tail == before else RunExtent.of(remaining.rows, tail))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The result of one read task.

    Attributes
    ----------
    rows : BlockRows
        Row ids and the columns of the files.
    positions : numpy.ndarray
        int64: the positions of the rows in the epoch.
    epoch : int
        The epoch.
    seed : int
        The seed of the order.
    """

    rows: BlockRows
    positions: np.ndarray
    epoch: int
    seed: int = 0


def read_block(plan: ReadPlan, remainder: Remainder, block: int, limit: int | None = None) -> Block:
    """Read one block of an epoch: a pure function, with the same result at each call."""
    plan = plan.with_drawn_seed(remainder.seed)
    positions = remainder.positions(plan, block, limit)
    return Block(read_rows(plan, plan.at(positions, remainder.epoch)), positions, remainder.epoch, plan.seed)


def position_of(plan: ReadPlan, remainder: Remainder, rows: int = 0) -> Position:
    """Return the position after `rows` rows of each rank; `resume` continues from there."""
    plan = plan.with_drawn_seed(remainder.seed)
    return Position(
        plan.seed,
        remainder.epoch,
        rows,
        remainder.world_size,
        plan.block_rows,
        plan.hash,
        remainder.done,
        plan.tail,
        plan.fingerprint,
    )


def resume(plan: ReadPlan, position: Position, world_size: int) -> Remainder:
    """Return the rest of the epoch of a position. The seed of the position replaces one that the plan has drawn.

    Raises
    ------
    PositionError
        If the position is of other files, another selection or another shuffle; it says what differs.
    """
    plan = plan.with_drawn_seed(position.seed)
    if (position.plan_hash, position.seed) != (plan.hash, plan.seed):
        raise PositionError(
            "the position is of other files, another predicate or another shuffle than this dataset. What differs: "
            f"{'; '.join(_differences(position, plan))}. Read the data as the run before did{_instead(position)}, or "
            "start the epoch again without a position."
        )
    remainder = Remainder(position.epoch, position.done, world_size, plan.seed)
    if min(extent.num_positions for extent in remainder.extents(plan)) < 0:
        raise PositionError(f"the position {position} has more rows done than the {plan.epoch_rows} of the epoch")
    return remainder


def _differences(position: Position, plan: ReadPlan) -> list[str]:
    """Return what differs between a position and a plan."""
    found = [] if position.plan is None else position.plan.differences(plan.fingerprint)
    both_shuffled = plan.order.shuffle is not None and (position.plan is None or position.plan.unit is not None)
    if position.seed != plan.seed and both_shuffled:
        found.insert(0, f"seed {position.seed}, not {plan.seed}")
    if found:
        return found
    here = f"{len(plan.files)} files, {plan.num_rows} selected rows, {plan.order.shuffle}"
    return [f"plan_hash {position.plan_hash}, not {plan.hash} (of {here}); the position does not say more"]


def _instead(position: Position) -> str:
    """Return how to write the shuffle of the run before, if the position has it."""
    if position.plan is None:
        return ""
    return f", with shuffle={position.plan.shuffle(position.seed)}"
