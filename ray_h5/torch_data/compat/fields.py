"""How a `CombinedHDF5Dataset` delivers fields: trimmed, standardised, cast, with channels last."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from ray_h5.columns.schema import TENSOR_KINDS, ColumnSpec
from ray_h5.errors import OptionError, SchemaMismatchError
from ray_h5.messages import near_names
from ray_h5.options import is_number
from ray_h5.torch_data.compat.field_stats import FieldStats, StatsFile, read_stats

logger = logging.getLogger(__name__)

_RAW = ("fhr", "up")
_DECIMATED = ("fhr_st", "fhr_ph", "fhr_up_ph")
_SAMPLES_PER_MINUTE = 4 * 60
_DECIMATION = 16

_NO_SIGNALS = ("guid", "cs_label", "bg_label", "epoch", "target", "weight")
"""Never standardised nor transposed unless they are named."""

_NEVER = ("guid", "cs_label", "bg_label")


@dataclass(frozen=True)
class Fields:
    """What is done to the values of each field after they are read.

    Parameters
    ----------
    dtype : torch.dtype
        What all of them are cast to.
    stats_path : str or path-like, optional
        The file of `stats`; None standardises nothing.
    normalize_fields : sequence of str, optional
        Fields to standardise; None takes all that have statistics.
    trim_minutes : float, optional
        What is cut off both ends of the signals in time.
    channels_last : bool or sequence of str
        Fields of (channels, time) to deliver as (time, channels).
    """

    dtype: torch.dtype
    stats_path: str | os.PathLike[str] | None = None
    normalize_fields: Iterable[str] | None = None
    trim_minutes: float | None = None
    channels_last: bool | Sequence[str] = False
    stats: dict[str, FieldStats] = field(init=False)
    unusable: dict[str, str] = field(init=False)
    trimmed_before: float | None = field(init=False)

    def __post_init__(self) -> None:
        if self.trim_minutes is not None and not (is_number(self.trim_minutes) and 0 <= self.trim_minutes < 1e6):
            raise OptionError(f"trim_minutes={self.trim_minutes!r}: expected minutes of 0 or more, or None")
        if isinstance(self.normalize_fields, str):
            raise OptionError(
                f"normalize_fields={self.normalize_fields!r}: expected a list; write [{self.normalize_fields!r}]"
            )
        if isinstance(self.channels_last, str):
            raise OptionError(f"channels_last={self.channels_last!r}: expected a list; write [{self.channels_last!r}]")
        if self.normalize_fields is not None:
            object.__setattr__(self, "normalize_fields", frozenset(self.normalize_fields))
        if self.normalize_fields and self.stats_path is None:
            logger.warning(
                "normalize_fields=%s: nothing is standardised without stats_path=, the file of means and deviations",
                sorted(self.normalize_fields),
            )
        file = StatsFile() if self.stats_path is None else read_stats(self.stats_path)
        object.__setattr__(self, "stats", file.stats)
        object.__setattr__(self, "unusable", file.unusable)
        object.__setattr__(self, "trimmed_before", file.trimmed)

    def standardises(self, name: str) -> bool:
        """Return whether a field is standardised."""
        return name in self.stats and self._is_wanted(name)

    def _is_wanted(self, name: str) -> bool:
        if name in _NEVER:
            return False
        return name not in _NO_SIGNALS if self.normalize_fields is None else name in self.normalize_fields

    def check(self, delivered: Iterable[ColumnSpec], has: Callable[[str], bool]) -> None:
        """Raise unless the options make sense for the fields of samples; `has` says what the files have."""
        specs = {spec.name: spec for spec in delivered}
        if self.stats_path is not None:
            self._check_normalize_fields(specs, has)
        for name, spec in specs.items():
            if name in self.unusable and self._is_wanted(name):
                raise SchemaMismatchError(self.unusable[name])
            if self.standardises(name) and spec.kind in TENSOR_KINDS:
                self.stats[name].check(name, spec.row_shape)
            cut = self._cut(name)
            if cut and spec.row_shape and spec.row_shape[-1] <= 2 * cut:
                raise OptionError(
                    f"trim_minutes={self.trim_minutes!r} cuts {cut} values off both ends of column {name!r}; its rows "
                    f"have shape {spec.row_shape}: nothing is left; expected a smaller number"
                )
        if not isinstance(self.channels_last, bool):
            self._check_channels_last(specs, has)

    def __call__(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return the values of a field of several samples as they are delivered."""
        cut = self._cut(name)
        if cut and values.ndim > 1:
            values = values[..., cut:-cut]
        if self.standardises(name):
            values = torch.from_numpy(self.stats[name].apply(values.numpy()))
        values = values.to(self.dtype)
        return (values.transpose(1, 2) if self._is_transposed(name, values.ndim) else values).contiguous()

    def _cut(self, name: str) -> int:
        """Return how many values are cut off each end of a field."""
        raw = int(_SAMPLES_PER_MINUTE * (self.trim_minutes or 0))
        if name in _RAW:
            return raw
        return raw // _DECIMATION if name in _DECIMATED else 0

    def _is_transposed(self, name: str, ndim: int) -> bool:
        if isinstance(self.channels_last, bool):
            return self.channels_last and ndim == 3 and name not in _NO_SIGNALS
        return name in self.channels_last

    def _check_normalize_fields(self, specs: dict[str, ColumnSpec], has: Callable[[str], bool]) -> None:
        for name in sorted(self.normalize_fields or ()):
            if name in specs and name not in self.stats and name not in self.unusable:
                raise OptionError(
                    f"normalize_fields: {self.stats_path} has no statistics of {name!r}.{near_names(name, self.stats)}"
                )
            if name not in self.stats and name not in self.unusable and not has(name):
                known = [*specs, *self.stats]
                raise OptionError(f"normalize_fields: there is no field {name!r}.{near_names(name, known)}")

    def _check_channels_last(self, specs: dict[str, ColumnSpec], has: Callable[[str], bool]) -> None:
        for name in self.channels_last if not isinstance(self.channels_last, bool) else ():
            if name not in specs and not has(name):
                raise OptionError(f"channels_last: there is no field {name!r}.{near_names(name, specs)}")
            if name in specs and len(specs[name].row_shape) != 2:
                raise OptionError(
                    f"channels_last: expected a field of (channels, time), found {name!r} with rows of shape "
                    f"{specs[name].row_shape}"
                )
