"""Classes that are integers: which value has which number, and values -> numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import CastError, OptionError
from ray_h5.manifest.layout import ValueArray
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.value_type import ValueType
from ray_h5.messages import few, near_names
from ray_h5.options import require
from ray_h5.per_process import cached_property

Value: TypeAlias = str | int | bool | float

LabelsLike: TypeAlias = Literal["auto"] | Sequence[Value] | Mapping[Value | None, int]
"""``"auto"``, the values in the order of their numbers, or the number of each; None stands for all other values."""

_MAX_SHOWN = 12
_VARYING = {"ragged", "list"}
_HELD = {"string", "category", "optional", "number", "bool", *_VARYING}


def levels_of(values: ValueArray | ColumnSpec) -> int:
    """Return how many levels of arrays in arrays rows of varying shape are; 0 for rows of one shape."""
    deep = len(values.type.ragged_shape) if values.kind == "list" else 1
    return max(1, deep) if values.kind in _VARYING else 0


@dataclass(frozen=True)
class Classes:
    """The numbers of the values of a column.

    Attributes
    ----------
    name : str
        The column.
    values : tuple
        The values: text, integers, or booleans.
    numbers : tuple of int
        The number of each.
    others : int, optional
        The number of all other values, and of missing ones; None if these are errors.
    """

    name: str
    values: tuple[Value, ...]
    numbers: tuple[int, ...]
    others: int | None = None

    @property
    def by_value(self) -> dict[Value | None, int]:
        """The number of each value; None stands for all others."""
        numbers: dict[Value | None, int] = dict(zip(self.values, self.numbers, strict=True))
        return numbers if self.others is None else {**numbers, None: self.others}

    @cached_property
    def _known(self) -> dict[object, int]:
        known: dict[object, int] = dict(zip(self.values, self.numbers, strict=True))
        return known | {value.encode(): known[value] for value in self.values if isinstance(value, str)}

    def of(self, values: np.ndarray, where: Callable[[int], str], levels: int = 0) -> np.ndarray:
        """Return the numbers of values as int64; ``where(i)`` names the place of value i along the first axis.

        With `levels`, values are arrays of several lengths, or arrays of such; None, of a file that has none, stays.

        Raises
        ------
        CastError
            If a value has none.
        """
        if levels:
            return self._of_arrays(values, where, levels)
        return self._of_values(values, where, has_one=values.ndim == 1)

    def _of_values(self, values: np.ndarray, where: Callable[[int], str], *, has_one: bool) -> np.ndarray:
        """Return the numbers of values; `has_one` says that a row has one, so that a predicate can choose rows."""
        if values.dtype.kind == "O":
            listed, at = values.ravel().tolist(), None
        else:
            different, at = np.unique(values, return_inverse=True)
            listed = different.tolist()
        class_numbers = [self._known.get(value, self.others) for value in listed]
        if self.others is None and None in class_numbers:
            wrong = class_numbers.index(None)
            first = wrong if at is None else int(np.argmax(at.ravel() == wrong))
            place = where(first // max(int(np.prod(values.shape[1:])), 1))
            raise self._unknown(listed[wrong], place, has_one=has_one)
        numbers = np.array(class_numbers, np.int64)
        return (numbers if at is None else numbers[at]).reshape(values.shape)

    def _of_arrays(self, values: np.ndarray, where: Callable[[int], str], levels: int) -> np.ndarray:
        flat = values.reshape(-1)
        there = [i for i, value in enumerate(flat) if value is not None]
        rows, per_row = [np.asarray(flat[i]) for i in there], max(int(np.prod(values.shape[1:])), 1)
        parts = Partition.of(np.array([row.size for row in rows], np.int64))

        def where_of(i: int) -> str:
            return where(there[int(parts.part_of(i))] // per_row)

        whole = _joined(rows)
        inner = levels > 1
        numbers = self.of(whole, where_of, levels - 1) if inner else self._of_values(whole, where_of, has_one=False)
        out = np.full(len(flat), None, object)
        for i, row, begin, end in zip(there, rows, parts.starts[:-1], parts.starts[1:], strict=True):
            out[i] = numbers[begin:end].reshape(row.shape)
        return out.reshape(values.shape)

    def _unknown(self, value: object, where: str, *, has_one: bool) -> CastError:
        text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        is_missing = value is None or value != value
        problem = "the value is missing" if is_missing else f"{text!r} is none of the {len(self.values)} classes"
        near = "" if is_missing else near_names(str(text), [str(class_value) for class_value in self.values])
        entry = "..." if len(self.values) > _MAX_SHOWN else ", ".join(f"{v!r}: {n}" for v, n in self.by_value.items())
        rows = f"~where(**{{{self.name!r}: None}})" if is_missing else f"where(**{{{self.name!r}: [...]}})"
        ways = f"Leave such rows out with the predicate {rows}; or pass" if has_one else "Pass"
        return CastError(
            f"{where}: column {self.name!r}: {problem} of labels: {self}.{near} {ways} "
            f"labels={{{self.name!r}: {{{entry}, None: -1}}}}, which gives -1 to all other values and to missing ones."
        )

    def spec(self, stored: ColumnSpec) -> ColumnSpec:
        """Return the spec of the column as it is delivered.

        Raises
        ------
        OptionError
            If it holds no text, no categories and no integers.
        """
        held = stored.element.base if stored.element is not None else stored.dtype
        if stored.kind not in _HELD or held.kind not in "biuOSU" or stored.as_bytes:
            raise OptionError(
                f"labels={{{self.name!r}: ...}}: the column holds {stored}; labels are for text, categories and "
                "integers"
            )
        is_number = held.kind in "biu"
        is_other = bool(self.values) and all(isinstance(value, str) == is_number for value in self.values)
        if stored.kind != "category" and is_other:  # no class can be a value of the column
            said = f"numbers: name its texts, such as [{str(self.values[0])!r}], or write 'auto'"
            if is_number:
                said = f"text: name its integers, such as [0, 1], in place of {self.values[0]!r}"
            raise OptionError(f"labels={{{self.name!r}: ...}}: the column holds {stored}, and the classes are {said}")
        if stored.kind in _VARYING:
            return stored.with_elements(np.dtype(np.int64))
        return ColumnSpec(stored.name, self._type_of(stored.type))

    def layout(self, stored: ValueArray) -> ValueArray:
        """Return the array of the column as it is delivered."""
        if stored.kind not in _VARYING:
            return stored.made(self._type_of(stored.type))
        spec = ColumnSpec.of(stored).with_elements(np.dtype(np.int64))
        return stored.made(replace(spec.type, row_shape=stored.row_shape, nullable=False), item_bytes=spec.mean_bytes)

    @staticmethod
    def _type_of(stored: ValueType) -> ValueType:
        """Return the type of the numbers of values that have no elements."""
        return ValueType("number", np.dtype(np.int64), stored.row_shape, drawn=stored.drawn)

    def __str__(self) -> str:
        shown = [f"{number}={value}" for value, number in zip(self.values, self.numbers, strict=True)]
        return ", ".join(shown[:_MAX_SHOWN]) + (f" and {len(shown) - _MAX_SHOWN} more" if shown[_MAX_SHOWN:] else "")


def _joined(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([row.reshape(-1) for row in rows]) if rows else np.empty(0, np.int64)


def different(values: np.ndarray, levels: int) -> set[Value | None]:
    """Return the different values in arrays, with `levels` as `Classes.of` takes them; None for one that is missing."""
    for _ in range(levels):
        values = _joined([np.asarray(value) for value in values.reshape(-1) if value is not None])
    listed = values.reshape(-1).tolist() if values.dtype.kind == "O" else np.unique(values).tolist()
    found = {*listed}
    return {value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in found}


def as_labels(labels: Any) -> tuple[Classes, ...]:
    """Return the option `labels`, checked; those without values take the classes of the files.

    Raises
    ------
    OptionError
        If the option cannot be used.
    """
    expected = "{column: classes}, such as {'cell_type': ['B', 'T']} or {'cell_type': 'auto'}"
    require(isinstance(labels, Mapping), "labels", labels, expected)
    return tuple(_classes(name, value) for name, value in labels.items())


def _classes(name: object, choice: object) -> Classes:
    if not isinstance(name, str) or not name.strip("/"):
        raise OptionError(f"labels: expected names of columns as keys, found {name!r}")
    where = f"labels={{{name!r}: ...}}"
    if isinstance(choice, str) and choice == "auto":
        return Classes(name.strip("/"), (), ())
    pairs = _numbered(where, choice)
    values = [value for value, _ in pairs if value is not None]
    if len({*values}) < len(values):
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        raise OptionError(f"{where}: {few(twice)} twice; expected each class once")
    others = next((number for value, number in pairs if value is None), None)
    if not values and others is None:
        raise OptionError(f"{where}: expected at least one class, found none; 'auto' takes those of the files")
    numbers = tuple(number for value, number in pairs if value is not None)
    return Classes(name.strip("/"), tuple(values), numbers, others)


def _numbered(where: str, choice: object) -> list[tuple[Value | None, int]]:
    """Return the classes of a list or a mapping, each with its number; None stands for all others."""
    if isinstance(choice, Mapping):
        for value, number in choice.items():
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
                raise OptionError(f"{where}: expected an integer as the number of {value!r}, found {number!r}")
        return [(_value(where, value), int(number)) for value, number in choice.items()]
    if isinstance(choice, str) or not isinstance(choice, (Sequence, np.ndarray)):
        raise OptionError(f"{where}: expected 'auto', a list of values, or {{value: number}}, found {choice!r}")
    pairs = [(_value(where, value), number) for number, value in enumerate(choice)]
    if any(value is None for value, _ in pairs):
        raise OptionError(f"{where}: None is no class; for -1 as the number of all others, pass {{..., None: -1}}")
    return pairs


def _value(where: str, value: Any) -> Value | None:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        with contextlib.suppress(UnicodeDecodeError):  # other bytes are refused
            plain = plain.decode()
    if plain is not None and not isinstance(plain, (str, int)):
        raise OptionError(f"{where}: expected text or integers as classes, found {value!r}")
    return plain


def classes_of(name: str, values: Iterable[Value], others: int | None) -> Classes:
    """Return the classes of a column whose values are these: numbered from 0 on, sorted."""
    different = {*values}
    if len({isinstance(value, str) for value in different}) > 1:
        raise OptionError(f"labels={{{name!r}: ...}}: the files hold text and numbers; pass the classes in a list")
    ordered = sorted(different)
    return Classes(name, tuple(ordered), tuple(range(len(ordered))), others)
