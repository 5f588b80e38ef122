"""Arguments of `read_h5`, checked and converted to values of planning and of Ray."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
from ray.data import FileShuffleConfig

from ray_h5.errors import OptionError
from ray_h5.messages import near_names
from ray_h5.options import as_integer, is_number, require
from ray_h5.order.block_layout import Tail
from ray_h5.order.draws import shuffle as shuffling
from ray_h5.order.draws.shuffle import Shuffle

logger = logging.getLogger(__name__)

_TAILS = ("keep", "drop", "pad")

ShuffleLike: TypeAlias = "bool | str | Shuffle | FileShuffleConfig | None"


def as_shuffle(shuffle: ShuffleLike) -> Shuffle | None:
    """Return the value of the argument `shuffle`; True draws a seed."""
    if isinstance(shuffle, FileShuffleConfig):
        if shuffle.seed is not None and not shuffle.reseed_after_execution:
            raise OptionError(
                f"shuffle={shuffle}: each iteration is an epoch with its own order; for the same order each time, call "
                "set_epoch(ds, 0) before each iteration"
            )
        return Shuffle("files", seed=shuffle.seed)
    if shuffle is not True:
        checked = shuffling.as_shuffle(shuffle)
        if checked is not None and checked.batch_values is not None:
            raise OptionError(
                f"Shuffle: batch_values={checked.batch_values}: batches of Ray Data have equally many rows. It is for "
                "loader(...) and OrderBatchSampler in plain PyTorch; leave it out, by_length still brings rows of "
                "similar length together."
            )
        return checked
    drawn = Shuffle(seed=None)
    logger.info("shuffle=True: seed %d; pass shuffle=Shuffle(seed=%d) for the same orders", *[drawn.seed] * 2)
    return drawn


def as_tail(rule: str, rows: int | None) -> Tail | None:
    """Return the value of the arguments `tail` and `tail_rows`."""
    require(rule in _TAILS, "tail", rule, f"'keep', 'drop' or 'pad'.{near_names(str(rule), _TAILS)}")
    if rule != "keep" and rows is None:
        raise OptionError(f"tail={rule!r}: needs tail_rows, usually workers * batch size")
    if rule == "keep" and rows is not None:
        raise OptionError(f"tail_rows={rows}: is used only with tail='drop' or tail='pad'")
    return None if rule == "keep" else Tail(cast("Any", rule), as_integer("tail_rows", rows, 1))


def as_flag(name: str, value: object) -> bool:
    """Return an option that is True or False."""
    require(isinstance(value, (bool, np.bool_)), name, value, "True or False")
    return bool(value)


def as_resources(concurrency: object, num_cpus: object, memory: object, ray_remote_args: object) -> dict[str, Any]:
    """Return the options of tasks that are there, as Python numbers: Ray does not take those of numpy."""
    is_dict = ray_remote_args is None or isinstance(ray_remote_args, dict)
    require(is_dict, "ray_remote_args", ray_remote_args, "a dict, such as {'scheduling_strategy': ...}")
    options: dict[str, Any] = {"num_cpus": num_cpus, "memory": memory}
    for name, value in options.items():
        if value is not None:
            require(is_number(value) and 0 <= value < math.inf, name, value, "a number of 0 or more")
            options[name] = float(value)
    options["memory"] = options["memory"] or None  # Ray runs a step that reserves 0 bytes apart from one without
    options["concurrency"] = None if concurrency is None else as_integer("concurrency", concurrency, 1)
    options |= cast("dict[str, Any]", ray_remote_args or {})
    return {name: value for name, value in options.items() if value is not None}


def remote_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of tasks as arguments of a function of Ray: by name where it has such a parameter.

    Ray has named parameters for some options, and is going to remove ``ray_remote_args``, which takes all of them.

    Raises
    ------
    OptionError
        If this release of Ray takes one in no way.
    """
    parameters = inspect.signature(function).parameters
    named = {name: value for name, value in options.items() if name in parameters}
    others = {name: value for name, value in options.items() if name not in parameters}
    if others and "ray_remote_args" not in parameters:
        raise OptionError(
            f"ray_remote_args: {', '.join(others)}: this release of Ray has no such option for {function.__name__}; "
            f"expected some of {', '.join(parameters)}"
        )
    return {**named, "ray_remote_args": others} if others else named
