"""Less of what Ray prints, so that the messages of a program and of this package are seen."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import ray

from ray_h5 import errors
from ray_h5.errors import RayH5Error
from ray_h5.ray_data.internals.noise import own_error, turn_down

_OTHERS = tuple(os.path.join(os.path.dirname(str(each.__file__)), "") for each in (ray, errors))
"""Frames in these folders say nothing about the program of a user."""

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def quiet() -> None:
    """Turn down what Ray prints: progress bars, logs below warnings, lines that are shown twice, and stack traces.

    Call it once, before `ray.init` and before datasets are made. What the program prints stays, in the workers
    too. An error of this package that ends the program is shown with the lines of the program alone, in a terminal and
    in a notebook; its type, and what ``except`` catches, stay. Ray's log files keep everything.

    Examples
    --------
    >>> import ray_h5
    >>> ray_h5.quiet()  # doctest: +SKIP
    >>> ds = ray_h5.read_h5("data/*.h5")  # doctest: +SKIP
    """
    turn_down()
    if not getattr(sys.excepthook, "of_ray_h5", False):
        sys.excepthook = _hook(sys.excepthook)
    if (shell := _notebook()) is not None:
        shell.set_custom_exc((RayH5Error,), _show_in_notebook)


def short_text(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the text of an error of this package: the lines of the program, then the error; None for other errors."""
    own = own_error(error)
    if own is None:
        return None
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_OTHERS)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*lines, *traceback.format_exception_only(type(own), own)])


def _hook(before: Hook) -> Hook:
    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = short_text(error, trace)
        if text is None:
            before(kind, error, trace)
        else:
            sys.stderr.write(text)

    show.of_ray_h5 = True  # type: ignore[attr-defined]
    return show


def _notebook() -> Any:
    """Return the running IPython shell; None if there is none."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _show_in_notebook(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: Any = None) -> None:
    text = short_text(error, trace)
    if text is None:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    else:
        shell._showtraceback(kind, error, text.splitlines())
