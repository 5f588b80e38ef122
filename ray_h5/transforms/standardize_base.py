"""`Standardization`: the part of both `Standardize`: options, scalers, JSON and npz files, without Ray and torch."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from ray_h5.atomic import written_whole
from ray_h5.errors import CorruptFileError, NotFittedError, NotFoundError, OptionError, RayH5Error, UnknownColumnError
from ray_h5.messages import no_column
from ray_h5.options import require
from ray_h5.storage.local import absolute_path
from ray_h5.transforms.moments import Axis, Moments, NanPolicy, check_axis, check_nan_policy
from ray_h5.transforms.scaler import ConstantPolicy, Scaler, check_scaling

if TYPE_CHECKING:
    from typing_extensions import Self

_Value = TypeVar("_Value")

_MAX_SHOWN = 4
"""The most columns whose fitted values are shown."""

_OF_RAY = ("sample_rows", "seed")
"""Options that the class of Ray has and that of plain PyTorch has not; each class reads the files of the other."""

_FORMAT = "ray_h5.scalers"
_VERSION = 3
_READ = (2, _VERSION)


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
    """Columns that are standardized, and their scalers once they are fitted; the base of both `Standardize`."""

    _names: ClassVar[tuple[str, ...]] = ("columns", "axis", "epsilon", "nan_policy", "constant")
    """Options, as they are saved."""
    _not_fitted: ClassVar[type[NotFittedError]] = NotFittedError

    def _set(self, columns: Any, axis: Axis, epsilon: float, nan_policy: NanPolicy, constant: ConstantPolicy) -> None:
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
        except (AttributeError, KeyError, TypeError, ValueError, RayH5Error) as exc:
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
        # numpy's own messages for such files advise to allow pickle.
        except (AttributeError, KeyError, TypeError, ValueError, EOFError, OSError, zipfile.BadZipFile) as exc:
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
