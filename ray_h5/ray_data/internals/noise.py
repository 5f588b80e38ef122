"""What Ray prints: its progress, its logs, and its errors."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray.train
from ray._private import worker
from ray.data import DataContext
from ray.exceptions import RayTaskError
from ray.util.debug import log_once

from ray_h5.errors import RayH5Error

_CHATTER = re.compile(r"Reporting training result \d+: |Actor with class name: 'PreemptionWatcher'")
"""Lines that workers print whatever the level of their logs is."""

_HARMLESS = re.compile(
    r"Failed to (stop|launch) PlacementGroupCleaner|PlacementGroupCleaner not available|with cleaner: |"
    r"Failed to query Ray Train Controller actor state"
)
"""Lines about a helper that frees what a trainer reserved if its controller dies. Without the dashboard of
``ray[default]`` it says every second that it cannot look."""

_QUIET = "ray_h5.quiet"
"""The key in a `DataContext`, which travels to the processes that execute a dataset."""

_ADVICE = "\nFailed to apply UDF transform after "

_CHATTY = ("ray._private.worker", "ray.tune", "ray.train", "ray.widgets")
_WARNS_AT_EACH_START = "ray._private.authentication.authentication_token_setup"


def turn_down() -> None:
    """Turn down what Ray prints on the driver, and what the processes print that it starts."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    context.set_config(_QUIET, True)
    _turn_down_logs()
    # The level of "ray" itself is set again by `ray.init`.
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(_WARNS_AT_EACH_START).setLevel(logging.ERROR)
    # Ray Train prints a line twice in a terminal, once as a log. Workers get these variables.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    if not hasattr(worker.print_to_stdstream, "of_ray_h5"):
        worker.print_to_stdstream = _without_chatter(worker.print_to_stdstream)
    # The logs of the controller and the workers, unless a `RunConfig` asks for another level.
    ray.train.LoggingConfig.__init__.__defaults__ = ("WARNING",)


def turn_down_here(context: DataContext) -> None:
    """Do the same in another process that executes a dataset, if the driver asked for it."""
    if context.get_config(_QUIET, False):
        _turn_down_logs()


def own_error(error: BaseException | None) -> RayH5Error | None:
    """Return the error of this package that Ray wraps into `error`; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RayH5Error) and not isinstance(error, (RayTaskError, ray.train.TrainingFailedError)):
            return error
        error = getattr(error, "cause", None) or _failure_of(error) or error.__cause__
    return None


def _failure_of(error: BaseException) -> BaseException | None:
    """Return what made a training fail, as the error says that a trainer raises; None for other errors."""
    failures = getattr(error, "worker_failures", None) or {}
    return next(iter(failures.values()), getattr(error, "controller_failure", None))


class OwnErrors:
    """True while an error of this package is handled, else False.

    Ray wraps each error of a function of ``map_batches`` into a `UserCodeException`, unless an option says that it
    is raised as it is. As the value of that option, this lets only errors of this package be raised as they are.
    """

    def __bool__(self) -> bool:
        return own_error(sys.exc_info()[1]) is not None


def raise_own_errors(context: DataContext) -> None:
    """Let errors of this package in functions of ``map_batches`` arrive as what they are; others as Ray wraps them."""
    if not context.raise_original_map_exception:
        context.raise_original_map_exception = OwnErrors()


def _without_chatter(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints the lines of a worker, except chatter."""

    def show_others(data: Mapping[str, Any], *args: Any, **options: Any) -> None:
        lines = _without_harmless(line for line in data.get("lines", []) if not _CHATTER.search(line))
        if lines:
            show({**data, "lines": lines}, *args, **options)

    show_others.of_ray_h5 = True  # type: ignore[attr-defined]
    return show_others


def _without_harmless(lines: Iterable[str]) -> list[str]:
    """Return lines without harmless messages and the tracebacks that follow them."""
    kept: list[str] = []
    follows = in_frames = False
    for line in lines:
        if _HARMLESS.search(line):
            follows, in_frames = True, False
        elif follows and line.startswith("Traceback "):
            in_frames = True
        elif follows and in_frames:
            in_frames = line.startswith((" ", "\t"))  # the first other line is the error
        elif not (follows and (not line.strip() or line.startswith(("The above exc", "During handling")))):
            follows = False
            kept.append(line)
    return kept


def own_message(error: RayH5Error) -> str:
    """Return the message of an error, without the advice to repeat that Ray appends to every error of a task."""
    return str(error).partition(_ADVICE)[0]


class _DropOwnErrors(logging.Filter):
    """Drops what Ray logs about an error of this package: it is raised too."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        return record.levelno < logging.ERROR or own_error(error) is None


def _turn_down_logs() -> None:
    log_once("ray_data_progress_manager_disabled")  # or Ray warns that there are no progress bars
    for handler in logging.getLogger("ray.data").handlers:
        if _is_console(handler):
            handler.setLevel(logging.WARNING)
            if not any(isinstance(each, _DropOwnErrors) for each in handler.filters):
                handler.addFilter(_DropOwnErrors())


def _is_console(handler: Any) -> bool:
    return isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
