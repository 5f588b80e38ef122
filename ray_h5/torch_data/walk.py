"""How far an epoch is done: what samplers keep, and what a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ray_h5.errors import PositionError
from ray_h5.options import as_integer, check_count

State = dict[str, Any]

_SHUFFLE = ("unit", "seed", "window_rows")


class Walk:
    """How far an epoch is done, and what it is an epoch of.

    Parameters
    ----------
    what : mapping
        What a state has to be of, by name. A shuffle is [unit, seed, window_rows].
    stretch : int
        Samples of a stretch.
    is_drawn : bool
        Whether the seed of the shuffle was drawn: that of a state that is loaded takes its place.
    """

    def __init__(self, what: Mapping[str, Any], stretch: int = 1, *, is_drawn: bool = False) -> None:
        self._what = dict(what)
        self._is_drawn = is_drawn
        self._split = [stretch, 1]  # samples of a stretch, and how many ranks `within` was counted among
        self._resume: tuple[int, int] | None = None  # done, within
        self.epoch = 0
        self.done = 0
        self.within = 0  # samples that this rank has done of the stretch that begins at `done`

    @property
    def seed(self) -> int | None:
        """The seed of the shuffle; None where nothing is shuffled."""
        return cast("int | None", _parts(self._what).get("seed"))

    def set_epoch(self, epoch: int) -> None:
        epoch = as_integer("set_epoch: epoch", epoch, 0)
        if epoch != self.epoch:
            self._resume = None
            self.end()
        self.epoch = epoch

    def begin(self, world_size: int = 1) -> int:
        """Return how much is done already of the epoch that an iteration of one of some ranks begins."""
        split = [self._split[0], world_size]
        if self._resume is not None and self._resume[1]:
            self._check_split(self._split, split)
        self._split = split
        (self.done, self.within), self._resume = self._resume or (0, 0), None
        return self.done

    def end(self) -> None:
        """Note that an iteration has come to its end: what follows is a whole epoch."""
        self.done = self.within = 0

    def state_dict(self) -> State:
        done, within = self._resume or (self.done, self.within)
        return {**self._what, "epoch": self.epoch, "done": done, "within": within, "split": self._split}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
            # Among how many ranks the next iteration is may not be known yet.
            split = list(state.get("split") or (None, None))
            self._check_split(split, [self._split[0], *split[1:]])
            self._split = split
        self._what = expected
        self.set_epoch(state["epoch"])
        self._resume = state["done"], state["within"]

    @staticmethod
    def _check_split(taken: list[Any], now: list[Any]) -> None:
        if taken != now:
            stretch, ranks = taken
            raise PositionError(
                f"load_state_dict: the state was taken inside a stretch of {stretch} samples of each of "
                f"{ranks} ranks; expected that stretch and world_size, found {now}"
            )

    def _with_seed_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a state has to be of: with its own seed, if the sampler drew the one that it has."""
        seed = _parts(state).get("seed")
        if not self._is_drawn or seed is None:
            return self._what
        check_count("load_state_dict: seed", seed, 0)
        unit, _, window_rows = self._what["shuffle"]
        return {**self._what, "shuffle": [unit, seed, window_rows]}


def _parts(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state, those of a shuffle by their names."""
    shuffle = what.get("shuffle")
    if not isinstance(shuffle, list) or len(shuffle) != len(_SHUFFLE):
        return dict(what)
    return {**what, "shuffle": True, **dict(zip(_SHUFFLE, shuffle, strict=True))}


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return what a state is of and the sampler is not, each as ``"seed 3, not 4"``."""
    are_shuffled = isinstance(found.get("shuffle"), list) and isinstance(expected.get("shuffle"), list)
    there, here = (_parts(found), _parts(expected)) if are_shuffled else (found, expected)
    return [f"{name} {there.get(name)!r}, not {value!r}" for name, value in here.items() if there.get(name) != value]


class Steps(Iterator[int]):
    """One iteration of a walk, which tells where it is also when the walk has come to its end.

    A batch that is smaller than the others has taken a sampler to its end before it is delivered; torchdata
    therefore asks what it iterates over, and not only the sampler, for a state.
    """

    def __init__(self, walk: Walk, indices: Iterator[int]) -> None:
        self._walk, self._indices = walk, indices
        self._at: tuple[int, int, int] | None = None  # epoch, done, within
        self._resume: Mapping[str, Any] | None = None

    def __next__(self) -> int:
        if self._resume is not None:
            self._walk.load_state_dict(self._resume)
            self._resume = None
        index = next(self._indices)
        self._at = self._walk.epoch, self._walk.done, self._walk.within
        return index

    def state_dict(self) -> State:
        if self._resume is not None:
            return dict(self._resume)
        at = {} if self._at is None else dict(zip(("epoch", "done", "within"), self._at, strict=True))
        return self._walk.state_dict() | at

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The walk takes it when the first sample is asked for: this may never be iterated over.
        self._resume = state
