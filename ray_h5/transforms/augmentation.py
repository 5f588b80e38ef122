"""The base class of augmentations: one column of a batch, changed by the keys of its rows; and how strong they are."""

from __future__ import annotations

import hashlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from ray_h5.errors import MissingRowKeyError, OptionError, SchemaMismatchError, UnknownColumnError
from ray_h5.hash_and_permute import Words, is_tensor, mix
from ray_h5.messages import no_column
from ray_h5.options import is_integer, is_number, names_options, require

ROW_KEY: Final = "row_key"
"""The column of a batch that holds the keys of its rows."""


class Augmentation(ABC):
    """A random change of one column. It depends on the options and the keys of the rows alone.

    It is called with a batch (``ds.map_batches(augmentation)``), or used through `apply` and `apply_batch`. It never
    changes its arguments in place. For its batches of arrays Ray makes floats of integers that are missing, in all
    columns; with ``batch_format="pyarrow"`` the other columns stay as they are.
    """

    __slots__ = ()

    keeps_rows: ClassVar[bool] = True
    """The number of rows of a batch stays the same; a run can then resume within an epoch."""

    kind: ClassVar[str]
    """Names the stream of random numbers. Ray derives classes with other names, which draw the same numbers."""

    column: str
    p: float
    salt: int

    def _check_options(self) -> None:
        """Raise an OptionError unless there is one column and a probability."""
        if not isinstance(self.column, str):
            raise OptionError(
                f"column={self.column!r}: expected the name of one column; augment several one after another"
            )
        require(is_number(self.p) and 0 <= self.p <= 1, "p", self.p, "a probability, 0 to 1")

    def __call__(self, batch: Any) -> Any:
        """Return the batch with the column augmented; the other columns are the same objects.

        Parameters
        ----------
        batch : mapping of str to ndarray or tensor, or pyarrow.Table
            Holds `column`, shape (n, ...), and ``row_key``, uint64 of shape (n,).

        Raises
        ------
        OptionError
            If `batch` is not a batch of arrays.
        UnknownColumnError
            If the batch does not have the column.
        MissingRowKeyError
            If the batch does not have the column ``row_key``.
        """
        if isinstance(batch, pa.Table):
            own = (self.column, ROW_KEY)
            arrays = {name: _array_of(batch, name) if name in own else None for name in batch.column_names}
            # Tensors are of Ray's or of Arrow's class.
            kind, array = type(batch[self.column].combine_chunks()), self(arrays)[self.column]
            make = getattr(kind, "from_numpy", getattr(kind, "from_numpy_ndarray", pa.array))
            return batch.set_column(batch.column_names.index(self.column), self.column, make(array))
        if not isinstance(batch, Mapping):
            raise self._not_a_batch(type(batch).__name__)
        if self.column not in batch:
            raise UnknownColumnError(f"{type(self).__name__}: {no_column([self.column], batch)}")
        if ROW_KEY not in batch:
            raise MissingRowKeyError(
                f"{type(self).__name__}({self.column!r}) needs the column {ROW_KEY!r}, which the batch does not have; "
                "read with read_h5(..., include_row_keys=True) and keep that column until here. In plain PyTorch, "
                "WorkerSafeAugmentedDataset augments samples"
            )
        if not np.ndim(batch[ROW_KEY]):
            raise self._not_a_batch("one row")
        return {**batch, self.column: self.apply_batch(batch[self.column], batch[ROW_KEY])}

    def apply(self, sample: Any, key: Any) -> Any:
        """Return one sample augmented, with the same result as in any batch.

        Parameters
        ----------
        sample : ndarray or tensor
            One row, without a batch axis.
        key : int, or an integer of numpy or torch
            The key of the row.
        """
        self._check_array(sample)
        try:
            # operator.index of a tensor takes only int64, and keys are uint64.
            word = operator.index(key.item() if is_tensor(key) and key.ndim == 0 else key) % 2**64
        except TypeError as exc:
            raise OptionError(f"key={key!r}: expected an integer, the key of the row") from exc
        return self.apply_batch(sample[None], np.asarray([word], dtype=np.uint64))[0]

    def apply_batch(self, array: Any, keys: Any) -> Any:
        """Return the rows of a batch augmented.

        Parameters
        ----------
        array : ndarray or tensor, shape (n, ...)
            The rows.
        keys : ndarray or tensor of uint64, shape (n,)
            The key of each row.

        Returns
        -------
        ndarray or tensor
            Of the same shape, dtype and device; `array` itself if there is nothing to do, as where ``p`` is 0.
        """
        self._check_array(array)
        if not self._changes(array):
            return array
        shared = as_numpy(array) if is_tensor(array) else array
        drawn = self._draw(self._states(array, keys), array.shape)
        if shared is None:
            return self._of_tensor(array, drawn)
        made = self._of_array(shared, drawn)
        if shared is array:
            return made
        import torch

        return torch.from_numpy(made)

    @abstractmethod
    def _changes(self, array: Any) -> bool:
        """Return whether there is anything to do; raise if the rows cannot be augmented."""

    @abstractmethod
    def _draw(self, states: Words, shape: Sequence[int]) -> Any:
        """Return what is drawn for the rows of a batch of this shape."""

    @abstractmethod
    def _of_array(self, array: np.ndarray[Any, Any], drawn: Any) -> np.ndarray[Any, Any]:
        """Return rows of an array augmented."""

    @abstractmethod
    def _of_tensor(self, array: Any, drawn: Any) -> Any:
        """Return rows of a tensor augmented that numpy does not have: on a GPU, of bfloat16, or with a gradient."""

    def _not_a_batch(self, shown: str) -> OptionError:
        return OptionError(
            f"{type(self).__name__}({self.column!r}): expected a batch, {{column: array}}, found {shown}; use "
            'ds.map_batches(it), batch_format="numpy" or "pyarrow", and not ds.map(it)'
        )

    def _check_array(self, array: object) -> None:
        """Raise an OptionError unless `array` is an array or a tensor."""
        if not (is_tensor(array) or isinstance(array, (np.ndarray, np.generic))):
            raise OptionError(
                f"{type(self).__name__}({self.column!r}): expected an array or a tensor, found "
                f"{type(array).__name__}; in a dataset, ds.map_batches(it) gives it batches of arrays"
            )

    def _states(self, array: Any, keys: Any) -> Words:
        """Return the states of the generators of the rows. Each transform has its own."""
        words = _as_words(keys)
        if words.shape != array.shape[:1]:
            raise SchemaMismatchError(
                f"{type(self).__name__}({self.column!r}): {array.shape[0] if array.ndim else 'no'} rows, but keys of "
                f"shape {tuple(words.shape)}; expected one key for each row"
            )
        digest = hashlib.blake2b(f"{self.kind}\0{self.column}\0{self.salt}".encode(), digest_size=8).digest()
        return mix(words ^ np.uint64(int.from_bytes(digest, "little")))


def _as_words(keys: Any) -> Words:
    """Return keys as words; an OptionError unless they are integers of 64 bits."""
    if is_tensor(keys):
        keys = keys.cpu().numpy() if kind_of(keys) in "iu" else keys.tolist()
    array = np.asarray(keys)
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu":
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.uint64:
        return array
    if array.dtype == np.int64 and (array.ndim or int(array) >= 0):
        # Keys that come from torch are int64 with the same bits.
        return array.view(np.uint64)
    raise OptionError(
        f"keys have dtype {array.dtype}: expected uint64 (or the same bits as int64), one for "
        "each row; read_h5(..., include_row_keys=True) adds them as the column row_key"
    )


def _array_of(table: pa.Table, name: str) -> np.ndarray[Any, Any]:
    column = table[name].combine_chunks()
    if column.null_count:
        raise SchemaMismatchError(f"column {name!r} lacks {column.null_count} values; leave such rows out before")
    to_numpy = getattr(column, "to_numpy_ndarray", None)
    array: np.ndarray[Any, Any] = to_numpy() if to_numpy else column.to_numpy(zero_copy_only=False)
    return array


def on_device_of(tensor: Any, *drawn: np.ndarray[Any, Any]) -> list[Any]:
    """Return what was drawn as tensors on the device of a tensor. Random numbers are drawn on the CPU, a few a row."""
    import torch

    return [torch.from_numpy(array).to(tensor.device) for array in drawn]


def as_numpy(array: Any) -> np.ndarray[Any, Any] | None:
    """Return a tensor in the memory of the CPU as an array: a view, except of a tensor with torch's negative bit.

    None for tensors on other devices, of bfloat16 or with gradients: numpy has none of these.
    """
    import torch

    if array.device.type != "cpu" or array.dtype == torch.bfloat16 or (array.requires_grad and torch.is_grad_enabled()):
        return None
    return array.detach().resolve_neg().numpy()


def kind_of(array: Any) -> str:
    """Return the kind of a dtype by numpy's letter; "V" for dtypes that only torch has, such as float8."""
    if not is_tensor(array):
        return str(array.dtype.kind)
    name = str(array.dtype).removeprefix("torch.")
    try:
        return "f" if name == "bfloat16" else np.dtype(name).kind
    except TypeError:
        return "V"


def chance(words: Words, probability: float) -> np.ndarray[Any, Any]:
    """Return True with `probability` for each word, from its upper 53 bits."""
    # 53 bits, the digits of a float: the bound is then exact for every probability.
    return words >> np.uint64(11) < np.uint64(round(probability * 2**53))


# Default strengths for a number of training samples --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AugmentationDefaults:
    """Options to start a search from: ``SpecAugment("x", **defaults.spec_augment)``, and the same for the noise.

    Parameters
    ----------
    spec_augment : dict
        Keyword arguments of `SpecAugment`.
    gaussian_noise : dict
        Keyword arguments of `GaussianNoise`, for columns of unit variance.
    """

    spec_augment: dict[str, Any]
    gaussian_noise: dict[str, Any]


_STRENGTHS = (
    # below samples a class: parts of time and frequency that a mask covers, masks, p of both, std of the noise
    (50, 0.2, 0.2, 2, 0.9, 0.03),
    (200, 0.15, 0.15, 2, 0.8, 0.02),
    (1000, 0.125, 0.1, 1, 0.8, 0.02),
    (float("inf"), 0.08, 0.07, 1, 0.5, 0.01),
)
"""Rules of thumb, not measured on anyone's data: the third is SpecAugment(40, 15) on a 320 x 150 spectrogram."""


@names_options
def augmentation_defaults(samples_per_class: float, shape: Sequence[int]) -> AugmentationDefaults:
    """Return options for SpecAugment and GaussianNoise: the fewer samples, the stronger.

    They are rules of thumb to start a search from.

    Parameters
    ----------
    samples_per_class : float
        Training samples of the smallest class that matters.
    shape : sequence of int
        The shape of one sample: (..., freq, time). Masks are a part of these axes, and never greater.

    Raises
    ------
    OptionError
        If `samples_per_class` is not a number above 0, or `shape` does not have two axes of length 1 or more.
    """
    if not (is_number(samples_per_class) and 0 < samples_per_class < float("inf")):
        raise OptionError(f"samples_per_class={samples_per_class!r}: expected a finite number above 0")
    if np.ndim(shape) != 1 or len(shape) < 2 or not all(is_integer(size) and size >= 1 for size in shape):
        raise OptionError(f"shape={shape!r}: expected the shape of a sample, (..., freq, time), integers of 1 or more")
    time_part, freq_part, masks, p, std = next(rest for below, *rest in _STRENGTHS if samples_per_class < below)
    freqs, times = shape[-2:]
    return AugmentationDefaults(
        spec_augment={
            "time_mask_param": int(times * time_part),
            "freq_mask_param": int(freqs * freq_part),
            "num_time_masks": masks,
            "num_freq_masks": masks,
            "p": p,
        },
        gaussian_noise={"std": std, "p": p},
    )
