"""Where in an epoch the readers are, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ray_h5.errors import OptionError, PositionError
from ray_h5.options import check_count
from ray_h5.planning.fingerprint import Fingerprint
from ray_h5.planning.plan import BlockRows, ReadPlan, Tail, read_rows
from ray_h5.planning.progress import Cut, Done, Run


@dataclass(frozen=True, slots=True)
class Position:
    """Where a training run is in an epoch; goes into its checkpoint.

    Attributes
    ----------
    seed, epoch : int
        The order. A dataset whose seed was drawn, as by ``shuffle=True``, takes over this seed when it resumes.
    rows : int
        Rows that each rank has done since the epoch, or this run, began.
    world_size : int
        Ranks.
    block_rows : int
        Rows of a block.
    plan_hash : str
        Tells the files, the predicate and the shuffle from others.
    earlier : tuple of Done
        What runs before this one had done of the epoch.
    tail : Tail, optional
        What becomes of the last rows in this run. Another run may do otherwise.
    plan : Fingerprint, optional
        Files, predicate and shuffle part by part, to name what differs; a position of an earlier version has none.
    """

    seed: int
    epoch: int
    rows: int
    world_size: int
    block_rows: int
    plan_hash: str
    earlier: tuple[Done, ...] = ()
    tail: Tail | None = None
    plan: Fingerprint | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "epoch", "rows", "world_size", "block_rows"):
            check_count(f"Position: {name}", getattr(self, name), 1 if name in {"world_size", "block_rows"} else 0)
        if not isinstance(self.plan_hash, str):
            raise PositionError(f"Position: plan_hash={self.plan_hash!r}: expected a string")

    @property
    def done(self) -> tuple[Done, ...]:
        """All that is done of the epoch, run by run."""
        done = Done(self.rows, self.world_size, self.block_rows, self.tail) if self.rows else None
        return self.earlier if done is None else (*self.earlier, done)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON or a checkpoint."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        earlier = [[done.rows, done.world_size, done.block_rows, _listed(done.tail)] for done in self.earlier]
        plan = None if self.plan is None else asdict(self.plan)
        return {**found, "earlier": earlier, "tail": _listed(self.tail), "plan": plan}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Position:
        """Return what `to_dict` described.

        Raises
        ------
        PositionError
            If it is something else.
        """
        names = {each.name for each in fields(cls)}
        if not isinstance(found, Mapping) or not names - {"plan"} <= set(found) <= names:
            raise PositionError(f"Position: expected {', '.join(sorted(names))}, found {found!r}")
        earlier = found["earlier"]
        if not isinstance(earlier, (list, tuple)) or not all(
            isinstance(each, (list, tuple)) and len(each) == len(fields(Done)) for each in earlier
        ):
            raise PositionError(
                f"Position: earlier={earlier!r}: expected a list of [rows, world_size, block_rows, tail]"
            )
        done = tuple(Done(rows, ranks, block_rows, _tail_of(tail)) for rows, ranks, block_rows, tail in earlier)
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
class Stretch:
    """An epoch, or what is left of one: small, and all that tasks need beside the plan.

    Attributes
    ----------
    epoch : int
        The epoch.
    done : tuple of Done
        What is done of it.
    world_size : int
        Ranks that take its blocks in turn.
    seed : int, optional
        The seed of the run that is resumed: it replaces one that the plan has drawn.
    """

    epoch: int = 0
    done: tuple[Done, ...] = ()
    world_size: int = 1
    seed: int | None = None

    def cut(self, plan: ReadPlan) -> Cut:
        """Return how what is left is cut into blocks."""
        return Cut(self.runs(plan)[-1].num_positions, plan.block_rows, self.world_size)

    def positions(self, plan: ReadPlan, block: int, limit: int | None = None) -> np.ndarray:
        """Return the positions of a block in the epoch; at most the first `limit`."""
        start, stop = self.cut(plan).bounds(block)
        left = np.arange(start, stop if limit is None else min(stop, start + limit), dtype=np.int64)
        *runs, own = self.runs(plan)
        times, left = own.rows_at(left)
        for done, run in zip(reversed(self.done), reversed(runs), strict=True):
            again, left = run.rows_at(done.positions(left, run.num_positions))
            times += again
        # What is repeated stands behind all rows of the epoch.
        return left + times * plan.num_rows

    def runs(self, plan: ReadPlan) -> list[Run]:
        """Return what there was for each run that is done, and what there is for this one.

        As long as the tail is the same, a run goes on with the positions of the one before it: together
        they do what one run would have done. Another tail is that of the rows that are left.
        """
        tails = [*(done.tail for done in self.done), plan.tail]
        runs = [Run.of(plan.num_rows, tails[0])]
        for done, tail, before in zip(self.done, tails[1:], tails[:-1], strict=True):
            left = done.left(runs[-1])
            runs.append(left if tail == before else Run.of(left.rows, tail))
        return runs


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What one read task yields.

    Attributes
    ----------
    rows : BlockRows
        Row ids and the columns of the files.
    positions : numpy.ndarray
        int64: where in the epoch the rows stand.
    epoch : int
        The epoch.
    seed : int
        The seed of its order.
    """

    rows: BlockRows
    positions: np.ndarray
    epoch: int
    seed: int = 0


def read_block(plan: ReadPlan, stretch: Stretch, block: int, limit: int | None = None) -> Block:
    """Read one block of an epoch: a pure function, the same each time it is called."""
    plan = plan.with_drawn_seed(stretch.seed)
    positions = stretch.positions(plan, block, limit)
    return Block(read_rows(plan, plan.at(positions, stretch.epoch)), positions, stretch.epoch, plan.seed)


def position_of(plan: ReadPlan, stretch: Stretch, rows: int = 0) -> Position:
    """Return where an epoch is after `rows` rows a rank; `resume` goes on from there."""
    plan = plan.with_drawn_seed(stretch.seed)
    return Position(
        plan.seed,
        stretch.epoch,
        rows,
        stretch.world_size,
        plan.block_rows,
        plan.hash,
        stretch.done,
        plan.tail,
        plan.fingerprint,
    )


def resume(plan: ReadPlan, position: Position, world_size: int) -> Stretch:
    """Return what is left of the epoch that a run was in; a seed that was drawn gives way to that of the position.

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
    stretch = Stretch(position.epoch, position.done, world_size, plan.seed)
    if min(run.num_positions for run in stretch.runs(plan)) < 0:
        raise PositionError(f"the position {position} has more rows done than the {plan.num_rows} there are")
    return stretch


def _differences(position: Position, plan: ReadPlan) -> list[str]:
    """Return what a position is of and a plan is not."""
    found = [] if position.plan is None else position.plan.differences(plan.fingerprint)
    both_shuffled = plan.order.shuffle is not None and (position.plan is None or position.plan.unit is not None)
    if position.seed != plan.seed and both_shuffled:
        found.insert(0, f"seed {position.seed}, not {plan.seed}")
    if found:
        return found
    here = f"{len(plan.files)} files, {plan.num_rows} selected rows, {plan.order.shuffle}"
    return [f"plan_hash {position.plan_hash}, not {plan.hash} (of {here}); the position does not say more"]


def _instead(position: Position) -> str:
    """Return what to write for the shuffle of the run before, as far as the position says."""
    if position.plan is None:
        return ""
    return f", with shuffle={position.plan.shuffle(position.seed)}"
