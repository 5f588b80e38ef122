"""Samples of several HDF5 files, chosen by patient, label, epoch and class."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch

from ray_h5.columns.schema import TENSOR_KINDS, Cast, ColumnSpec
from ray_h5.errors import OptionError, PredicateError, UnknownColumnError, UnsupportedColumnError
from ray_h5.options import as_integer, require, takes_options_of
from ray_h5.predicates.criteria import any_equal, between, where
from ray_h5.predicates.evaluate import evaluate
from ray_h5.storage.find_files import PathLike
from ray_h5.torch_data.batches.batcher import Batcher
from ray_h5.torch_data.batches.tensors import Sample, row_tensor
from ray_h5.torch_data.dataset import DatasetOptions, H5Dataset

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.columns.ragged.padding import Padding

_BOOLS = ("cs_label", "bg_label")
_WEIGHT = "weight"
_GUID = "guid"

_NUMPY_DTYPES = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


_STANDARDIZE = "Pass transform=Standardize(['fhr_st'], ...).fit(dataset), whose scaler is a file of its own."
_TRANSFORM = "Change samples with transform=."


@takes_options_of(
    H5Dataset,
    instead={
        "columns": "It is called load_fields here.",
        "stats_path": _STANDARDIZE,
        "normalize_fields": _STANDARDIZE,
        "trim_minutes": _TRANSFORM,
        "channels_last": _TRANSFORM,
    },
)
class CombinedHDF5Dataset(H5Dataset):
    """Samples of several HDF5 files, filtered, with a cache of samples.

    A sample is a dict whose entries are attributes too: ``guid`` is a str (also where the files hold
    numbers), ``cs_label`` and ``bg_label`` are bools, everything else is a tensor of `dtype`.

    Parameters
    ----------
    paths : str or sequence of str
        HDF5 files, directories or globs.
    load_fields : sequence of str, optional
        Columns that a sample holds; None takes all.
    allowed_guids : sequence of str, optional
        Only samples of these patients, as str; a column of numbers is compared as numbers.
    cs_label, bg_label : bool, optional
        Only samples with this label: True is any value but 0.
    epoch_min, epoch_max : float, optional
        Only samples whose ``epoch`` is not below, and not above; both ends are included.
    label : int, optional
        Only samples in whose ``target`` this class occurs, as an id or as the entry of a one-hot
        vector, at a time step whose ``weight`` is above zero. Without a column ``weight`` every
        time step counts.
    cache_size : int
        Rows of the columns that do not fit into `kept_bytes` that stay in memory, in each process: those that were read
        first. 0 keeps none, and counts none. If all columns stay in memory by `kept_bytes`, `get_stats` counts their
        rows, and its ``cache_capacity`` is that of all samples.
    pin_memory : bool
        Whether `create_optimized_dataloader` pins batches, if there is a GPU. A `DataLoader` has an option
        of its own.
    dtype : torch.dtype
        float16, bfloat16, float32 or float64. Integers are rounded to it; a value that is too large for it is an
        error, unless ``casting="unsafe"``.
    predicate : expression of pyarrow or Ray, optional
        It has to hold too, for the values as the files store them: such as a fold of `kfold`.
    dtypes : mapping of str to dtype, optional
        ``bytes`` for columns of text that is not UTF-8. Numbers are cast to `dtype`.
    **options
        The other options of `H5Dataset`.

    Raises
    ------
    NotFoundError
        If a path does not exist: to leave a file out would lose data.
    PredicateError
        A ValueError: if no sample matches. It names the criterion that left none.
    UnknownColumnError
        If a field is in no file.
    UnsupportedColumnError
        If a field holds values that cannot be cast to `dtype`, such as complex numbers.

    Examples
    --------
    >>> dataset = CombinedHDF5Dataset(["a.h5", "b.h5"], cs_label=True, label=1)  # doctest: +SKIP
    >>> dataset[0].fhr_st.dtype  # doctest: +SKIP
    torch.float32
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        load_fields: Sequence[str] | None = None,
        allowed_guids: Sequence[str] | None = None,
        cs_label: bool | None = None,
        bg_label: bool | None = None,
        epoch_min: float | None = None,
        epoch_max: float | None = None,
        label: int | None = None,
        cache_size: int = 1000,
        pin_memory: bool = True,
        dtype: torch.dtype = torch.float32,
        **options: Unpack[DatasetOptions],
    ) -> None:
        if dtype not in (*_NUMPY_DTYPES, torch.bfloat16):
            raise OptionError(f"dtype={dtype}: expected torch.float16, bfloat16, float32 or float64")
        require(not isinstance(load_fields, str), "load_fields", load_fields, f"a list; write [{load_fields!r}]")
        for name, value in (("cs_label", cs_label), ("bg_label", bg_label)):
            require(value is None or value in (True, False), name, value, "True, False or None")
        is_list = not isinstance(allowed_guids, str)
        require(is_list, "allowed_guids", allowed_guids, f"a list; write [{allowed_guids!r}]")
        self.paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self.dtype, self.pin_memory = dtype, pin_memory
        load_fields = None if load_fields is None else list(load_fields)
        self.load_fields = None if load_fields is None else set(load_fields)
        self.cache_size = self._kept_rows = as_integer("cache_size", cache_size, 0)
        self.cs_label, self.bg_label, self.label = cs_label, bg_label, label
        self.epoch_min, self.epoch_max = epoch_min, epoch_max
        self.allowed_guids = None if allowed_guids is None else set(allowed_guids)
        if epoch_min is not None and epoch_max is not None and epoch_min > epoch_max:
            raise PredicateError(f"no sample matches: epoch_min={epoch_min!r} is above epoch_max={epoch_max!r}")
        self._makes = partial(_BatcherOfOneDtype, dtype=dtype)
        super().__init__(self.paths, load_fields, **options)

    @property
    def access_count(self) -> int:
        """Samples that were asked for."""
        cache = self._source.row_cache
        return cache.hits + cache.misses

    @property
    def _cache(self) -> Sequence[int]:
        """A number for each sample in memory; programs ask for ``len(dataset._cache)``."""
        return range(self._source.num_held() if self.cache_size else 0)

    def get_stats(self) -> dict[str, Any]:
        """Return what lies in the memory of this process, and how often samples were found there.

        Returns
        -------
        dict
            ``total_samples``; ``cache_size``, ``cache_bytes``: samples in memory now, and their bytes;
            ``cache_capacity``: how many samples memory holds at most; ``cache_hits``, ``cache_misses``,
            ``cache_hit_rate``: samples found in memory, and not; ``access_count``: samples asked for;
            ``dtype``; ``num_files``; ``fields``; ``pin_memory``. Loader workers count for themselves.
        """
        source, counts = self._source, bool(self.cache_size)
        hits, held = counts * source.row_cache.hits, len(self._cache)
        return {
            "total_samples": len(self),
            "cache_size": held,
            "cache_capacity": len(self) if counts and source.keeps_all else self.cache_size,
            "cache_bytes": held * self.row_bytes,
            "cache_hits": hits,
            "cache_misses": counts * source.row_cache.misses,
            "cache_hit_rate": hits / max(1, self.access_count),
            "access_count": self.access_count,
            "dtype": self.dtype,
            "num_files": len(self._index.files),
            "fields": self.columns,
            "pin_memory": self.pin_memory,
        }

    def clear_cache(self) -> None:
        """Free the memory of all samples that this process has read, and set its counts to 0."""
        self.release()

    def _build_index(self, predicate: pc.Expression | None, padding: Padding | None) -> None:
        floats = _NUMPY_DTYPES.get(self.dtype, np.float32)
        cast = _FloatsOrBool(self._files.cast.dtypes, self._files.cast.casting, floats)
        self._files = replace(self._files, cast=cast)
        super()._build_index(predicate, padding)

    def _select(self, predicate: pc.Expression | None) -> np.ndarray | None:
        num_rows = self._index.num_rows
        passes, notes, emptied = np.ones(num_rows, bool), [], "the files are empty"
        for words, alone in self._passing(predicate):
            before = np.count_nonzero(passes)
            passes &= np.bincount(alone, minlength=num_rows).astype(bool)
            notes.append(f"{words} keeps {len(alone)}")
            if before and not passes.any():
                emptied = f"{words} left none of the {before} rows before it"
        if notes and not passes.any():
            raise PredicateError(f"no sample matches: {emptied} (of {num_rows} rows, each alone: {'; '.join(notes)})")
        return np.flatnonzero(passes) if notes else None

    def _passing(self, predicate: pc.Expression | None) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each criterion in the user's terms, and the row ids that pass it alone."""
        guids = self.allowed_guids
        if guids is not None:
            spec = self._index.find([_GUID])[_GUID]
            yield f"allowed_guids ({len(guids)} of them)", self._rows_with(_GUID, where(guid=_values_of(guids, spec)))
        for name in _BOOLS:
            wanted = getattr(self, name)
            if wanted is not None:
                is_zero = where(**{name: 0})
                yield f"{name}={wanted!r}", self._rows_with(name, ~is_zero if wanted else is_zero)
        for name, bounds in (("epoch_min", (self.epoch_min, None)), ("epoch_max", (None, self.epoch_max))):
            if bounds != (None, None):
                yield f"{name}={getattr(self, name)!r}", self._rows_with("epoch", where(epoch=between(*bounds)))
        if self.label is not None:
            try:
                valid = next(iter(self._index.find([_WEIGHT])))
            except UnknownColumnError:
                valid = None
            classes = where(target=any_equal(self.label, valid=valid))
            yield f"label={self.label!r}", self._index.select(classes, stored=True)
        if predicate is not None:
            yield "predicate", self._index.select(predicate, self._places_in(predicate), stored=True)

    def _rows_with(self, column: str, criterion: pc.Expression) -> np.ndarray:
        """Return the row ids that pass a criterion; a row may be an array of one value."""
        spec = self._index.find([column])[column]
        if spec.row_shape != (1,):
            return self._index.select(criterion, stored=True)
        return evaluate(criterion, self._index.values([column], stored=True), self._index.num_rows)


@dataclass(frozen=True, eq=False)
class _BatcherOfOneDtype(Batcher):
    dtype: torch.dtype = torch.float32

    def whole(self, arrays: Mapping[str, np.ndarray]) -> Sample:
        whole = super().whole(arrays)
        for name, values in whole.items():
            if name in self.fills:
                whole[name] = self._cast(values)
            elif isinstance(values, torch.Tensor) and name in (*_BOOLS, _GUID):
                labels = values[:, 0] if tuple(values.shape[1:]) == (1,) else values
                whole[name] = list(map(str, labels.tolist())) if name == _GUID and labels.ndim == 1 else labels
            elif isinstance(values, torch.Tensor) and name not in self.origins:
                whole[name] = values.to(self.dtype)
        return whole

    def _cast(self, rows: Any) -> Any:
        """Return rows that are padded later in the dtype of the dataset; one may be several arrays, or missing."""
        if isinstance(rows, list):
            return [self._cast(row) for row in rows]
        return None if rows is None else row_tensor(rows).to(self.dtype)


def _values_of(guids: Iterable[Any], spec: ColumnSpec) -> list[Any]:
    """Return patients in the dtype of a column, without those that it cannot hold."""
    if spec.kind == "string":
        return [guid if isinstance(guid, bytes) else str(guid) for guid in guids]
    if spec.kind != "number":
        return list(guids)
    numbers = [guid for guid in guids if not isinstance(guid, str)]
    for guid in (guid for guid in guids if isinstance(guid, str)):
        with contextlib.suppress(ValueError):
            number = float(guid) if spec.dtype.kind == "f" else int(guid)
            if isinstance(number, float) or abs(number) < 2**64:
                numbers.append(number)
    return numbers


@dataclass(frozen=True)
class _FloatsOrBool(Cast):
    floats: npt.DTypeLike = np.float32

    def __call__(self, spec: ColumnSpec) -> ColumnSpec:
        if spec.kind not in TENSOR_KINDS:
            return super().__call__(spec)
        if spec.name in self.dtypes:
            raise OptionError(
                f"dtypes: column {spec.name!r}: a CombinedHDF5Dataset casts all numbers to one dtype; expected "
                "dtype=torch.float64 or the like, or H5Dataset(..., dtypes=...), which casts one column"
            )
        if spec.name == _GUID:
            return spec
        if spec.dtype.kind == "c" and spec.name not in _BOOLS:
            raise UnsupportedColumnError(
                f"column {spec.name!r} holds complex numbers, which a CombinedHDF5Dataset cannot cast to its dtype; "
                "leave it out of load_fields, or take an H5Dataset, whose tensors are complex"
            )
        if spec.name in _BOOLS:
            return spec.cast(bool, "unsafe")  # a label that is not 0 is True, whatever it is
        return spec.cast(self.floats, "rounded" if self.casting == "checked" else self.casting)
