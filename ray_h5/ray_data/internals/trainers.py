"""Trainers of Ray Train: the one that is about to start, and the error that leaves ``fit()``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

import ray.train
from ray.data import Dataset

from ray_h5.errors import RayH5Error
from ray_h5.ray_data.internals.noise import own_error


class StartingTrainer(NamedTuple):
    """A trainer whose ``fit()`` runs on the driver, before it starts workers."""

    datasets: Mapping[str, Dataset]
    num_workers: int
    resources_per_worker: Mapping[str, float]


def starting_trainer() -> StartingTrainer | None:
    """Return the trainer that calls this; None if there is none, or its workers may be of any number.

    Ray passes it to no hook, but the trainer is the object further up the stack that copies its data config.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        trainer: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "fit" and hasattr(trainer, "scaling_config") and hasattr(trainer, "datasets"):
            scaling = trainer.scaling_config
            resources = getattr(scaling, "_resources_per_worker_not_none", None)
            if not isinstance(scaling.num_workers, int) or resources is None:
                return None
            # Those that are functions are made for the workers, each time that these start.
            datasets = {name: each for name, each in trainer.datasets.items() if isinstance(each, Dataset)}
            return StartingTrainer(datasets, scaling.num_workers, resources)
        frame = frame.f_back
    return None


def let_own_errors_leave_fit() -> None:
    """Let the error of ``fit()`` be an error of this package, too, if such an error made the training fail.

    Ray makes a `WorkerGroupError`, or a `ControllerError`, of what workers raised, and makes it again on the driver out
    of its arguments. Here it becomes an instance of that class and of the class of the error, which is its cause.
    """
    base = ray.train.TrainingFailedError
    if "__new__" not in base.__dict__:
        base.__new__ = _new_error


def _new_error(kind: type[BaseException], *args: Any, **options: Any) -> BaseException:
    # Errors of workers are in a dict by rank.
    given = [*args, *options.values()]
    failures = [each for value in given for each in (value.values() if isinstance(value, dict) else [value])]
    own = next((found for each in failures if isinstance(each, BaseException) and (found := own_error(each))), None)
    if own is None or issubclass(kind, RayH5Error):
        return BaseException.__new__(kind, *args)
    # A MemoryError makes its instances in a way of its own, which no other class can share.
    own_kind = RayH5Error if isinstance(own, MemoryError) else type(own)
    made: BaseException = own_kind.__new__(type(kind.__name__, (_Failed, kind, own_kind), {"of": kind}))
    made.__cause__ = own
    return made


class _Failed:
    """What the classes have that are made of a class of Ray and one of this package."""

    of: type[BaseException]

    def __init__(self, *args: Any, **options: Any) -> None:
        of: Any = self.of
        of.__init__(self, *args, **options)
        # An OSError takes its text when it is made, not here.
        plain = BaseException.__new__(self.of)
        of.__init__(plain, *args, **options)
        self.args, self.given = plain.args, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.of, self.given
