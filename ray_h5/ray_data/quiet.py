"""Less of what Ray prints, so that the messages of a program and of this package are seen."""

from __future__ import annotations

import logging
import os

from ray.data import DataContext

from ray_h5.ray_data.ray_internals import skip_lines

_LEVELS = {
    "ray._private.worker": logging.WARNING,  # the level of "ray" itself is set again by `ray.init`
    "ray.data._internal.progress": logging.ERROR,  # it warns that there are no progress bars
    "ray.train": logging.WARNING,
    "ray.tune": logging.WARNING,
    "ray.widgets": logging.WARNING,
    "ray._private.authentication.authentication_token_setup": logging.ERROR,  # it warns at each start
}

_VARIABLES = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # Ray Train prints a line twice in a terminal, once as a log
    "RAY_COLOR_PREFIX": "0",
}
"""Environment variables, which workers get too."""

_SKIPPED = "Failed to query Ray Train Controller actor state"
"""Without a dashboard, a helper of each training fails each second to ask for the state of the controller."""

QUIET = "ray_h5.quiet"
"""The key in a `DataContext`, which travels to the processes that execute a dataset."""


def quiet() -> None:
    """Turn down what Ray prints: no progress bars, and no logs below warnings.

    Call it once, before or after ``import ray``, but before `ray.init` and before datasets are made. It sets options of
    progress, levels of loggers, environment variables and a pattern of lines that Ray does not show, and no more. What
    the program prints stays, in the workers too. Ray's log files keep everything. A trainer has an option of its own
    for what its controller says: ``RunConfig(logging_config=ray.train.LoggingConfig("WARNING"))``.

    Examples
    --------
    >>> import ray_h5
    >>> ray_h5.quiet()  # doctest: +SKIP
    >>> ds = ray_h5.read_h5("data/*.h5")  # doctest: +SKIP
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    skip_lines(_SKIPPED)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    context.set_config(QUIET, True)
    turn_down_logs(context)


def turn_down_logs(context: DataContext) -> None:
    """Turn down loggers in this process, if `quiet` was called in this one or in that of the driver."""
    if not context.get_config(QUIET, False):
        return
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    for handler in logging.getLogger("ray.data").handlers:
        # What Ray prints. Its files keep everything, and the handlers of others are theirs.
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("ray."):
            handler.setLevel(logging.WARNING)
