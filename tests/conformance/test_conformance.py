"""Each file of the corpus is as h5py has it, or refused by name at the step where that belongs."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import RayH5Error
from tests.conformance.case import Case, selections
from tests.conformance.corpus import CASES
from tests.hdf5.h5kit import assert_same, in_fork


def columns_of(path: Path, case: Case) -> set[str]:
    """Return the columns that h5py knows of, without those that cannot be read."""
    if case.columns is not None:
        return set(case.columns)
    with h5py.File(path, "r") as file:
        return set(_walk(file, "", (file.id,))) - {name for name, _ in case.refused}


def _walk(group: h5py.Group, prefix: str, above: tuple[Any, ...]) -> Iterator[str]:
    for name in group:
        try:
            found = group[name] if isinstance(name, str) else None
        except (KeyError, OSError, RuntimeError):
            continue
        if isinstance(found, h5py.Dataset):
            yield prefix + name
        elif isinstance(found, h5py.Group) and found.id not in above:
            yield from _walk(found, f"{prefix}{name}/", (*above, found.id))


def values_of(path: Path, name: str, rows: Any, case: Case) -> np.ndarray:
    with h5py.File(path, "r") as file:
        dataset = file[name]
        if case.rows is None:
            values = dataset[:][rows]
        else:
            values = dataset[rows] if isinstance(rows, slice) else np.array([dataset[row] for row in rows])
    return values if values.dtype.hasobject else values.astype(values.dtype.newbyteorder("="))


def assert_alike(found: np.ndarray, expected: np.ndarray) -> None:
    if expected.dtype.hasobject and any(isinstance(value, np.ndarray) for value in expected.flat):
        assert found.shape == expected.shape
        for ours, theirs in zip(found.flat, expected.flat, strict=True):
            assert_same(ours, theirs)
    else:
        assert_same(found, expected)


def check_equal(case: Case, path: Path, allowed: list[Path]) -> None:
    reader = RowReader(path, threads=2, allow_external=allowed)
    if case.columns is None:
        assert set(reader.columns) == columns_of(path, case)
        assert {name: type(error) for name, error in reader.layout.refused.items()} == dict(case.refused)
    for name in sorted(columns_of(path, case)):
        for rows in case.rows or selections(reader.column(name).num_rows):
            assert_alike(reader.read([name], rows)[name], values_of(path, name, rows, case))


def check_refused(case: Case, path: Path, allowed: list[Path]) -> None:
    """Assert that the error is raised at its step, and that all steps before go well."""
    assert case.error is not None
    assert issubclass(case.error, RayH5Error)
    if case.where == "opening":
        with pytest.raises(case.error) as caught:
            RowReader(path, allow_external=allowed)
    else:
        reader = RowReader(path, allow_external=allowed)
        if case.where == "column":
            assert type(reader.layout.refused["x"]) is case.error
            with pytest.raises(case.error) as caught:
                reader.column("x")
            with pytest.raises(case.error):
                reader.read(["x"])
        else:
            assert reader.column("x").num_rows > 0
            if case.disturb is not None:
                case.disturb(path)
            with pytest.raises(case.error) as caught:
                reader.read(["x"])
    assert type(caught.value) is case.error
    assert str(path) in str(caught.value)


def check(case: Case, path: Path) -> int:
    """Check one file and return how much the memory of this process has grown at most, in bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    allowed = [path.parent / name for name in case.allow]
    (check_equal if case.error is None else check_refused)(case, path, allowed)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_corpus(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "a.h5"
    case.make(path)
    if case.child:
        grown = in_fork(lambda: check(case, path))
        assert case.growth_mb is None or grown < case.growth_mb << 20
    else:
        check(case, path)
    if case.after is not None:
        case.after(tmp_path)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 65
