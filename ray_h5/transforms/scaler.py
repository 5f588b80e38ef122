"""Standardization of one column, (x - mean) / (std + epsilon), and back; of several, without Ray and torch."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from ray_h5.atomic import written_whole
from ray_h5.errors import (
    ConstantColumnError,
    CorruptFileError,
    NonFiniteError,
    NotFittedError,
    NotFoundError,
    OptionError,
    RayH5Error,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hash_and_permute import is_tensor
from ray_h5.messages import few, no_column
from ray_h5.options import is_number, require
from ray_h5.storage.local import absolute_path
from ray_h5.transforms.moments import Axis, Moments, NanPolicy, check_axis, check_nan_policy

if TYPE_CHECKING:
    from typing_extensions import Self

_Value = TypeVar("_Value")

ConstantPolicy: TypeAlias = Literal["raise", "one"]

_BLOCK_VALUES = 65_536
"""Values scaled at a time, so that they stay in a core's cache."""

_MAX_SHOWN = 4
"""The most columns whose fitted values are shown."""

_OF_RAY = ("sample_rows", "seed")
"""Options that the class of Ray has and that of plain PyTorch has not; each class reads the files of the other."""

_NO_STATE = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""The errors of what is no state of a `Standardize`."""

_FORMAT = "ray_h5.scalers"
_VERSION = 3
_READ = (2, _VERSION)


def check_scaling(epsilon: float, constant: str) -> None:
    """Raise an OptionError unless the options of a Scaler can be used."""
    require(is_number(epsilon) and 0 <= epsilon < float("inf"), "epsilon", epsilon, "0 or more, and finite")
    require(constant in ("raise", "one"), "constant", constant, "'raise' or 'one'")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scaler:
    """The standardization of one column, from its moments.

    Parameters
    ----------
    moments : Moments
        Moments of the rows to fit on. Take the rows of the training split, or validation leaks into training.
    epsilon : float
        Added to the standard deviation.
    constant : {"raise", "one"}
        Whether a deviation of 0 raises an error, or counts as 1, so that all these values become 0.

    Raises
    ------
    ConstantColumnError
        If a deviation is 0 and `constant` is "raise".
    NonFiniteError
        If all values at a place of the row are NaN.
    NotFittedError
        If there are no values.
    OptionError
        If an option cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> scaler = Scaler(Moments.of(np.array([[1.0, 2.0], [3.0, 4.0]])), epsilon=0)
    >>> scaler.transform(np.array([2.5, 3.5]))
    array([0.        , 0.89442719])
    """

    moments: Moments
    epsilon: float = 1e-8
    constant: ConstantPolicy = "raise"
    mean: np.ndarray[Any, np.dtype[np.float64]] = field(init=False, repr=False)
    scale: np.ndarray[Any, np.dtype[np.float64]] = field(init=False, repr=False)
    _fits: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_scaling(self.epsilon, self.constant)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        empty = self.moments.count == 0
        if empty.size and empty.all():
            raise NotFittedError("no value was counted: the data has no rows, or only NaN; fit on rows with values")
        if empty.any():
            raise NonFiniteError(f"all values are NaN at {_places(self.moments, empty)}; leave these out of the column")
        constant = self.moments.constant()
        if self.constant == "raise" and constant.any():
            value = float(self.moments.mean[constant].flat[0])
            where = f"all values are {value:g}"
            if constant.size > 1:
                where = f"all values are the same at {_places(self.moments, constant)}; the first is {value:g}"
            raise ConstantColumnError(
                f"standard deviation 0: {where}; expected values that differ; leave these out, reduce over more axes, "
                "or use constant='one', which makes them 0"
            )
        object.__setattr__(self, "mean", self.moments.mean)
        object.__setattr__(self, "scale", np.where(constant, 1.0, self.moments.std() + self.epsilon))
        # A scale that becomes 0 or infinite in float32 makes all values NaN.
        least, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
        fits = (self.scale >= least) & (self.scale <= most) & (abs(self.mean) <= most)
        object.__setattr__(self, "_fits", bool(fits.all()))

    def transform(self, array: Any, *, batched: bool = False) -> Any:
        """Return (array - mean) / (std + epsilon).

        Parameters
        ----------
        array : ndarray or tensor
            One row, or a batch of rows. Axes that were reduced may have another length than the rows fitted on.
        batched : bool
            Accept only a batch. Without this, a batch whose rows lack an axis may look like one row.

        Returns
        -------
        ndarray or tensor
            A new array of the same shape, of the same floating dtype, or of float32 for integers and booleans.

        Raises
        ------
        SchemaMismatchError
            If the rows have another shape than those it was fitted on.
        """
        return self._scaled(array, batched, forward=True)

    def inverse(self, array: Any, *, batched: bool = False) -> Any:
        """Return array * (std + epsilon) + mean; arguments, result and errors as in `transform`."""
        return self._scaled(array, batched, forward=False)

    @property
    def summary(self) -> str:
        """Mean and standard deviation in a few words; of several, the lowest and the highest."""
        return f"mean {_range_of(self.mean)}, std {_range_of(self.moments.std())}"

    def __repr__(self) -> str:
        return f"Scaler({self.summary}, axis={self.moments.axis})"

    def _scaled(self, array: Any, batched: bool, *, forward: bool) -> Any:
        """Return an array or a tensor, or a number as one, scaled or with the scaling undone."""
        of_torch = is_tensor(array)
        array = array if of_torch else np.asarray(array)
        shape, expected, reduced = tuple(array.shape), self.mean.shape, self.moments.axis
        # An axis that was reduced has length 1 in `expected`, and may have any length here.
        fits = all(
            length == size if axis not in reduced else size in (1, length)
            for axis, (size, length) in enumerate(zip(expected, shape[len(shape) - len(expected) :], strict=False), 1)
        )
        if len(shape) - len(expected) not in ((1,) if batched else (0, 1)) or not fits:
            wanted = ["any" if axis in reduced else str(size) for axis, size in enumerate(expected, 1)]
            either = "one axis more, for a batch of them" if batched else "that, or one axis more for a batch of them"
            raise SchemaMismatchError(
                f"shape {shape} does not fit: fitted on rows of shape ({', '.join(wanted)}), so expected {either}; fit "
                "again if the rows have changed"
            )
        kind = array.dtype.kind if not of_torch else "f" if array.is_floating_point() else "i"
        if of_torch and array.is_complex():
            kind = "c"
        if kind not in "biuf":
            raise UnsupportedColumnError(f"dtype {array.dtype}: expected real numbers or booleans")
        # float32 holds float16 and integers of up to 16 bits exactly, and other integers not.
        is_short = array.dtype.itemsize <= (4 if kind == "f" else 2)
        work = np.float32 if is_short and self._fits else np.float64
        # The mean in two parts: rounding to float32 is off by 6e-8 of it, which is several units for a mean of 1e8.
        upper: Any = self.mean.astype(work)
        parts: list[Any] = [upper, np.asarray(self.mean - upper, dtype=work), self.scale.astype(work)]
        if of_torch:
            import torch

            parts = [torch.from_numpy(part).to(array.device) for part in parts]
            values = _step(array.to(parts[0].dtype, copy=True), parts, forward)
            return values.to(array.dtype if array.is_floating_point() else torch.float32)
        out = np.empty(array.shape, dtype=array.dtype if array.dtype.kind == "f" else np.float32)
        if array.ndim == self.mean.ndim:
            out[...] = _step(array.astype(work), parts, forward)
            return out
        # In blocks of rows, so that the three passes over the values stay in the cache.
        rows = max(1, _BLOCK_VALUES // max(1, array[:1].size))
        for row in range(0, len(array), rows):
            out[row : row + rows] = _step(array[row : row + rows].astype(work), parts, forward)
        return out


def _range_of(values: np.ndarray[Any, Any]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if values.size == 1 else f"{low:.4g} to {high:.4g} at {values.size} places"


def _step(values: Any, parts: Sequence[Any], forward: bool) -> Any:
    """Scale values in place, or undo it, by the two parts of the mean and the scale."""
    upper, lower, scale = parts
    if forward:
        values -= upper
        values -= lower
        values /= scale
    else:
        values *= scale
        values += lower
        values += upper
    return values


def _places(moments: Moments, mask: np.ndarray[Any, Any]) -> str:
    """Return text that names places of a row by their indices along the axes that are not reduced."""
    kept = [axis - 1 for axis in range(1, mask.ndim + 1) if axis not in moments.axis]
    if not kept:
        return "every place"
    places = [tuple(int(place[axis]) for axis in kept) for place in np.argwhere(mask)]
    shown = few([str(place[0] if len(place) == 1 else place) for place in places], 8)
    return f"{len(places)} of {mask.size} places along axis {', '.join(str(axis + 1) for axis in kept)}: {shown}"


def with_column(values: Mapping[str, Any], name: str, call: Callable[[Any], _Value]) -> _Value:
    """Return `call` of the values of a column; the message of an error begins with the name of the column."""
    if name not in values:
        raise UnknownColumnError(no_column([name], values))
    try:
        return call(values[name])
    except RayH5Error as exc:
        raise type(exc)(f"column {name!r}: {exc}") from exc


def _scaler_of(state: Mapping[str, Any]) -> Scaler:
    return Scaler(Moments.from_dict(state["moments"]), state["epsilon"], state["constant"])


class Standardization:
    """Columns that are standardized, and their scalers once they are fitted; the base of both `Standardize`.

    Parameters
    ----------
    columns : sequence of str
        The columns, each of numbers or booleans.
    axis : int, tuple of int or None
        The axes that mean and deviation are taken over, as in numpy's ``mean`` of a batch; axis 0 is the rows. 0
        scales each element of a row separately, (0, 2) each channel of (n, channels, time); None uses one mean and one
        deviation for the whole column.
    epsilon : float
        Added to the deviation.
    nan_policy : {"raise", "omit"}
        A NaN raises an error while fitting, or is left out. Samples keep NaN.
    constant : {"raise", "one"}
        A deviation of 0 raises an error, or counts as 1, so that all values of the column become 0.
    """

    _names: ClassVar[tuple[str, ...]] = ("columns", "axis", "epsilon", "nan_policy", "constant")
    """Options, as they are saved."""
    _not_fitted: ClassVar[type[NotFittedError]] = NotFittedError

    def __init__(
        self,
        columns: Sequence[str],
        *,
        axis: Axis = None,
        epsilon: float = 1e-8,
        nan_policy: NanPolicy = "raise",
        constant: ConstantPolicy = "raise",
    ) -> None:
        check_scaling(epsilon, constant)
        check_nan_policy(nan_policy)
        listed = list(columns) if isinstance(columns, (list, tuple, np.ndarray)) and np.ndim(columns) else []
        if not listed or not all(isinstance(name, str) for name in listed):
            raise OptionError(f"columns={columns!r}: expected a list of names, at least one")
        require(len(set(listed)) == len(listed), "columns", columns, "each name once")
        # Python's types, which JSON has.
        self.columns, self.axis, self.epsilon = list(map(str, listed)), check_axis(axis), float(epsilon)
        self.nan_policy: NanPolicy = nan_policy
        self.constant: ConstantPolicy = constant
        self.stats_: dict[str, Scaler] = {}

    @property
    def scalers(self) -> dict[str, Scaler]:
        """The fitted scalers by column."""
        if not self.stats_:
            raise self._not_fitted(f"{self!r} has not been fitted; call fit(training_dataset) first")
        return dict(self.stats_)

    def to_dict(self) -> dict[str, Any]:
        """Return options and fitted moments as types of JSON, without loss."""
        scalers = {
            name: {"moments": stats.moments.to_dict(), "epsilon": stats.epsilon, "constant": stats.constant}
            for name, stats in self.stats_.items()
        }
        return {**self._options(), "scalers": scalers}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Return the object that `to_dict` was called on.

        Raises
        ------
        OptionError
            If `state` is not a result of `to_dict`.
        """
        try:
            options = {name: value for name, value in state.items() if name != "scalers"}
            return cls._made(options, {name: _scaler_of(scaler) for name, scaler in state["scalers"].items()})
        except (*_NO_STATE, RayH5Error) as exc:
            raise OptionError(f"expected a result of Standardize.to_dict, found something else: {exc}") from exc

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the object that `to_json` was called on; an OptionError if `text` is something else."""
        try:
            state = json.loads(text)
        except (TypeError, ValueError) as exc:
            raise OptionError(f"expected a result of Standardize.to_json, found no JSON: {exc}") from exc
        return cls.from_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to an npz file, without pickle, which `Standardize.load` reads with Ray and without."""
        if os.path.isdir(absolute_path(os.fspath(path))):
            raise OptionError(f"{os.fspath(path)}: expected the name of a file, found a folder; add one such as s.npz")
        scalers = self.scalers
        parts = [
            {"column": name, "epsilon": scaler.epsilon, "constant": scaler.constant, "axis": scaler.moments.axis}
            for name, scaler in scalers.items()
        ]
        header = {"format": _FORMAT, "version": _VERSION, "options": self._options(), "scalers": parts}
        moments = [scaler.moments for scaler in scalers.values()]
        arrays: dict[str, Any] = {
            str(i): np.stack([moment.count, moment.mean, moment.m2]) for i, moment in enumerate(moments)
        }
        try:
            with written_whole(path) as file:
                np.savez(file, header=np.array(json.dumps(header)), **arrays)
        except FileNotFoundError as exc:
            raise NotFoundError(f"{os.fspath(path)}: the folder to write it to is missing; make it first") from exc

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of `save`; NotFoundError if it is missing, CorruptFileError if it is something else."""
        name = os.fspath(path)
        try:
            with np.load(absolute_path(name), allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                if header["format"] != _FORMAT or header["version"] not in _READ:
                    raise CorruptFileError(
                        f"{name}: expected {_FORMAT} version {_VERSION}, found {header['format']} version "
                        f"{header['version']}; save it again with this version of ray_h5"
                    )
                scalers = {}
                for number, part in enumerate(header["scalers"]):
                    # Version 2 has a fourth array, the rounding error of the mean, before the last.
                    count, mean, *_, m2 = file[str(number)]
                    moments = {"count": count, "mean": mean, "m2": m2, "shape": mean.shape, "axis": part["axis"]}
                    scalers[part["column"]] = _scaler_of({**part, "moments": moments})
            return cls._made(header["options"], scalers)
        except FileNotFoundError as exc:
            raise NotFoundError(f"{name}: no such file; expected one that Standardize.save wrote") from exc
        # numpy's own messages for such files advise to allow pickle. zipfile raises RuntimeError, or
        # NotImplementedError, which is one, for a part that another program would have to read.
        except (*_NO_STATE, RuntimeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as exc:
            if isinstance(exc, CorruptFileError) or "://" in name:
                raise
            raise CorruptFileError(
                f"{name}: expected an npz file that Standardize.save wrote, found another one, or a damaged one; save "
                "it again"
            ) from exc

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    @classmethod
    def _made(cls, options: Mapping[str, Any], scalers: dict[str, Scaler]) -> Self:
        made = cls(**{name: value for name, value in options.items() if name in cls._names or name not in _OF_RAY})
        if scalers and set(scalers) != set(made.columns):
            raise OptionError(f"columns are {made.columns}, but there are scalers for {list(scalers)}")
        made.stats_ = scalers
        return made

    def _fit_to(self, moments: Mapping[str, Moments]) -> None:
        make = partial(Scaler, epsilon=self.epsilon, constant=self.constant)
        self.stats_ = {name: with_column(moments, name, make) for name in self.columns}

    def _scaled(self, step: Callable[..., Any], values: Mapping[str, Any], *, batched: bool) -> dict[str, Any]:
        """Return the values of columns after a method of their scalers."""
        calls = {name: partial(step, self.stats_[name], batched=batched) for name in values}
        return {name: with_column(values, name, call) for name, call in calls.items()}

    def _check_there(self, names: Iterable[str]) -> None:
        """Raise unless it is fitted, and all columns are there."""
        known = list(names)
        if missing := [name for name in self.scalers if name not in known]:
            raise UnknownColumnError(no_column(missing, known))

    def __repr__(self) -> str:
        fitted = "; ".join(f"{name}: {scaler.summary}" for name, scaler in list(self.stats_.items())[:_MAX_SHOWN])
        more = f"; and {len(self.stats_) - _MAX_SHOWN} more" if len(self.stats_) > _MAX_SHOWN else ""
        return f"Standardize({self.columns!r}, axis={self.axis!r}, {fitted + more or 'not fitted'})"
