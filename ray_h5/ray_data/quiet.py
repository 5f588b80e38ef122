"""Less of what Ray prints, so that the messages of a program and of this package are seen."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import ray

from ray_h5 import errors
from ray_h5.errors import RayH5Error
from ray_h5.ray_data.internals.noise import own_error, own_message, turn_down

_TENSORS = os.path.join("ray", "data", "util", "torch_utils.py")

_WITHOUT_TENSORS = "OSUM"
"""Kinds of NumPy's types that torch does not have."""

_ADVICE: dict[type[BaseException], str] = {
    TypeError: "Text and such values have no tensors: leave the column out with columns=[...], deliver numbers of "
    "classes with labels={{{0!r}: 'auto'}}, or keep arrays of text with "
    "iter_torch_batches(collate_fn=ray_h5.TorchCollate()), as train_batches does.",
    RuntimeError: "Its rows differ in shape: pad them with "
    "iter_torch_batches(collate_fn=ray_h5.TorchCollate(padding=True)) or train_batches(..., pad=True), or keep a list "
    "of tensors with TorchCollate(). Encoded images are decoded by "
    "ds.map_batches(ray_h5.DecodeImage({0!r}, size=(224, 224))).",
}
"""What to do about a column that Ray cannot make a tensor of, by the error of Ray."""

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def quiet() -> None:
    """Turn down what Ray prints: progress bars, logs below warnings, lines that are shown twice, and stack traces.

    Call it once, before `ray.init` and before datasets are made. What the program prints stays, in the workers
    too. An error of this package that ends the program is shown with the lines of the program alone, in a terminal and
    in a notebook; its type, and what ``except`` catches, stay. So is the error of `iter_torch_batches` about a column
    of text or of rows that differ in shape, with the name of the column. Ray's log files keep everything.

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
    """Return the text of an error of this package: the lines of the program, then the error; None for other errors.

    A column that Ray cannot make a tensor of has such a text, too: Ray's own error does not name it.
    """
    own = own_error(error)
    column = None if own is not None else _column_without_tensor(error, trace)
    if own is None and column is None:
        return None
    # Frames in these folders say nothing about the program of a user.
    others = _folders(ray, errors, concurrent.futures, sys.modules.get("IPython"))
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(others)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    if own is None:
        advice = _ADVICE[type(error)].format(column)
        return "".join([*lines, f"{type(error).__name__}: column {column!r}: {error}\n{advice}\n"])
    return "".join([*lines, f"{type(own).__module__}.{type(own).__qualname__}: {own_message(own)}\n"])


def _column_without_tensor(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the column of which Ray made a tensor when such an error was raised; None if it did not."""
    if type(error) not in _ADVICE:
        return None
    found = None
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_code.co_filename.endswith(_TENSORS):
            # From Python 3.12 on, frames do not show the variables of comprehensions.
            arrays = frame.f_locals.get("numpy_batch") or {}
            without = next((name for name, array in arrays.items() if array.dtype.kind in _WITHOUT_TENSORS), found)
            found = frame.f_locals.get("col_name", without)
    return found


def _folders(*modules: ModuleType | None) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.dirname(str(each.__file__)), "") for each in modules if each is not None)


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
        shell._showtraceback(type(own_error(error)), error, text.splitlines())
