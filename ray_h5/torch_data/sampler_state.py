"""How much of an epoch is done: the state of a sampler, and of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ray_h5.errors import PositionError
from ray_h5.options import as_integer, check_count

State = dict[str, Any]

_SHUFFLE = ("unit", "seed", "window_rows", "rows_per_epoch", "weights", "by_length")
_LENGTHS = (3, 5, 6)
"""How many of these entries a shuffle has: without draws, with draws, by length."""


class SamplerState:
    """How much of which epoch is done, and of which order.

    Parameters
    ----------
    described : mapping
        Describes the order: a state can only be loaded if it has the same entries. A shuffle is
        [unit, seed, window_rows], with draws [..., rows_per_epoch, digest of the weights], and by
        length [..., digest of the lengths].
    run_length : int
        Samples of a run.
    is_drawn : bool
        Whether the seed of the shuffle was drawn. The seed of a state that is loaded then replaces it.

    Attributes
    ----------
    advances : bool
        Whether each iteration is of the epoch after that of the iteration before it. If not, it is of the epoch that
        was set last.
    epoch : int
        The epoch of the next iteration, or of the running one.
    done : int
        Samples that all ranks together have done, whole runs only.
    within : int
        Samples that this rank has done of the run that begins at `done`.
    """

    def __init__(self, described: Mapping[str, Any], run_length: int = 1, *, is_drawn: bool = False) -> None:
        self._described = dict(described)
        self._is_drawn = is_drawn
        self._split = [run_length, 1]  # samples of a run, and the number of ranks when `within` was counted
        self._resume: tuple[int, int] | None = None  # done and within of a state that was loaded
        self._next_epoch = 0  # of the next iteration, if it advances
        self.advances = False
        self.epoch = 0
        self.done = 0
        self.within = 0

    @property
    def seed(self) -> int | None:
        """The seed of the shuffle; None if nothing is shuffled."""
        return cast("int | None", _parts(self._described).get("seed"))

    def set_epoch(self, epoch: int) -> None:
        epoch = as_integer("set_epoch: epoch", epoch, 0)
        if epoch != self.epoch:
            self._resume = None
            self.done = self.within = 0
        self.epoch = self._next_epoch = epoch

    def begin(self, world_size: int = 1) -> int:
        """Begin an iteration on one of `world_size` ranks; return how many samples are done already."""
        split = [self._split[0], world_size]
        if self._resume is not None and self._resume[1]:
            self._check_split(self._split, split)
        self._split = split
        if self.advances:
            self.epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        (self.done, self.within), self._resume = self._resume or (0, 0), None
        return self.done

    def count(self, epoch: int, done: int, within: int = 0) -> None:
        """Note how far an iteration of `epoch` is."""
        self.done, self.within = done, within
        if self.advances:  # another iteration, of another epoch, may have begun since
            self.epoch = epoch

    def end(self) -> None:
        """Note that an iteration has ended: the next one is of a whole epoch."""
        self.done = self.within = 0
        if self.advances:
            self.epoch = self._next_epoch

    def state_dict(self) -> State:
        done, within = self._resume or (self.done, self.within)
        return {**self._described, "epoch": self.epoch, "done": done, "within": within, "split": self._split}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_is_state(state)
        expected = self._with_seed_of(state)
        found = {name: state.get(name) for name in expected}
        if found != expected:
            raise PositionError(
                f"load_state_dict: expected the state of a sampler of {expected}, found one of {found}. What differs: "
                f"{'; '.join(_differences(found, expected))}"
            )
        for name in ("epoch", "done", "within"):
            check_count(f"load_state_dict: {name}", state.get(name), 0)
        if state["within"]:
            # The number of ranks of the next iteration may not be known yet: `begin` checks it.
            split = list(state.get("split") or (None, None))
            self._check_split(split, [self._split[0], *split[1:]])
            self._split = split
        self._described = expected
        self.set_epoch(state["epoch"])
        self._resume = state["done"], state["within"]

    @staticmethod
    def _check_split(taken: list[Any], now: list[Any]) -> None:
        if taken != now:
            run_length, ranks = taken
            raise PositionError(
                f"load_state_dict: the state was taken inside a run of {run_length} samples of each of {ranks} ranks; "
                f"expected that run_length and world_size, found {now}"
            )

    def _with_seed_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return how a state must be described: with its own seed, if the seed of the sampler was drawn."""
        seed = _parts(state).get("seed")
        if not self._is_drawn or seed is None:
            return self._described
        check_count("load_state_dict: seed", seed, 0)
        unit, _, *others = self._described["shuffle"]
        return {**self._described, "shuffle": [unit, seed, *others]}


def check_is_state(state: object) -> None:
    """Raise a PositionError if a state is no dict, such as the None of a checkpoint without one."""
    if not isinstance(state, Mapping):
        raise PositionError(
            f"load_state_dict: expected the dict that state_dict() returned, found a {type(state).__name__}"
        )


def _parts(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state, those of a shuffle by their names."""
    shuffle = described.get("shuffle")
    if not isinstance(shuffle, list) or len(shuffle) not in _LENGTHS:
        return dict(described)
    return {**described, "shuffle": True, **dict(zip(_SHUFFLE, shuffle, strict=False))}


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the entries in which a state differs from the sampler, each as ``"seed 3, not 4"``."""
    are_shuffled = isinstance(found.get("shuffle"), list) and isinstance(expected.get("shuffle"), list)
    there, here = (_parts(found), _parts(expected)) if are_shuffled else (found, expected)
    names = dict.fromkeys([*here, *there])  # one of them may have draws, and the other none
    return [
        f"{name} {there.get(name)!r}, not {here.get(name)!r}" for name in names if there.get(name) != here.get(name)
    ]


class ResumableIndices(Iterator[int]):
    """One iteration of a sampler, with a state of its own that stays when the sampler has come to its end.

    For a last batch that is smaller than the others, a `DataLoader` takes the sampler to its end before the batch is
    delivered. torchdata therefore asks the iterator for a state, and not only the sampler.
    """

    def __init__(self, state: SamplerState, indices: Iterator[int]) -> None:
        self._state, self._indices = state, indices
        self._at: tuple[int, int, int] | None = None  # epoch, done, within
        self._resume: Mapping[str, Any] | None = None

    def __next__(self) -> int:
        if self._resume is not None:
            self._state.load_state_dict(self._resume)
            self._resume = None
        index = next(self._indices)
        self._at = self._state.epoch, self._state.done, self._state.within
        return index

    def state_dict(self) -> State:
        if self._resume is not None:
            return dict(self._resume)
        at = {} if self._at is None else dict(zip(("epoch", "done", "within"), self._at, strict=True))
        return self._state.state_dict() | at

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Loaded when the first sample is asked for: this iterator may never be iterated over.
        self._resume = state
