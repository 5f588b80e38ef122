"""Errors of this package inside the errors that Ray makes of them."""

from __future__ import annotations

from ray.exceptions import RayTaskError
from ray.train import TrainingFailedError

from ray_h5.errors import RayH5Error


def own_error(error: BaseException | None) -> RayH5Error | None:
    """Return the error of this package that Ray wraps into `error`; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RayH5Error) and not isinstance(error, (RayTaskError, TrainingFailedError)):
            return error
        error = getattr(error, "cause", None) or _failure_of(error) or error.__cause__
    return None


def _failure_of(error: BaseException) -> BaseException | None:
    """Return what made a training fail, as the error says that a trainer raises; None for other errors."""
    failures = getattr(error, "worker_failures", None) or {}
    return next(iter(failures.values()), getattr(error, "controller_failure", None))
