"""Damaged files whose groups are rows: refused, or read as h5py reads them; never other values, and never a crash."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from ray_h5 import Groups, RayH5Error, Windows
from ray_h5.scope import Scope
from ray_h5.source import Source
from tests.fuzz.campaign import _calls_library
from tests.fuzz.children import _caught, digest, in_child
from tests.fuzz.mutate import Healthy, healthy, mutated

KIND = Groups("data/*", attrs=("count", "title"), key="path")
NAMES = [f"data/g{i}/{name}" for i in range(5) for name in ("count", "title", "x", "sub/y", "words", "scale")]
FILES = int(os.environ.get("RAY_H5_FUZZ_GROUPS", "37"))


def write(path: Path, libver: str, options: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", libver=libver) as file:
        for i, length in enumerate([4, 0, 9, 2, 6]):
            group = file.create_group(f"data/g{i}")
            group.attrs["count"], group.attrs["title"] = length, f"title {i}"
            growing = {"maxshape": (None, 3)} if options else {}
            group.create_dataset("x", data=rng.integers(0, 99, (length, 3), "i4"), **growing, **options)
            group.create_dataset("sub/y", data=rng.random(length).astype("f4"))
            group["words"] = np.array([f"w{i}{t}" for t in range(length)], h5py.string_dtype())
            group["scale"] = 0.5 * i


def by_ours(path: str) -> dict[str, str]:
    """Read each dataset and attribute of the groups as rows."""
    found: dict[str, str] = {}
    with _caught(found, "", RayH5Error), Scope.of(Source(path, rows=KIND)).open(path) as reader:
        layout = reader.layout
        found.update({f"*{name}": f"!{error}" for name, error in layout.refused.items()})
        names = [name.decode() for name in reader.read(["path"])["path"]]
        for column in layout.columns:
            with _caught(found, f"*{column}", RayH5Error):
                for name, value in zip(names, reader.read([column])[column], strict=True):
                    found[f"{name}/{column}"] = said(value)
    with _caught(found, "windows", RayH5Error):
        windows = Windows({"x": range(-2, 3)})
        with Scope.of(Source(path, rows=KIND, windows=windows)).open(path) as reader:
            values = reader.read(["x", "path"])
            groups = values["path"].tolist()
            for i, name in enumerate(groups):
                if i == 0 or groups[i - 1] != name:
                    found[f"{name.decode()}/first"] = said(values["x"][i, 2])
    return found


def by_h5py(path: str, names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    with _caught(found, "", Exception), h5py.File(path, "r") as file:
        for name in names:
            if name.startswith("*") or name in {"", "windows"}:
                continue
            with _caught(found, name, Exception):
                above, _, last = name.rpartition("/")
                if last in {"count", "title"}:
                    found[name] = said(file[above].attrs[last])
                elif last == "path":
                    found[name] = said(above)
                else:
                    found[name] = said(file[f"{above}/x"][0] if last == "first" else file[name][()])
    return found


def said(value: object) -> str:
    value = value.encode() if isinstance(value, str) else value
    array = np.asarray(value)
    return repr(array.tolist()) if array.ndim == 0 else digest(array)


def judge(path: str) -> str:
    """Return what is wrong; nothing if all is well."""
    ours = in_child(partial(by_ours, path), 20)
    if ours.values is None:
        places = [line.strip() for line in ours.trace.splitlines() if line.strip().startswith("File ")]
        top = places[0] if places else "unknown"
        # What libhdf5 does to h5py too is not ours: it loops in some damaged heaps.
        theirs = in_child(partial(by_h5py, path, NAMES), 20)
        return "" if theirs.failure and _calls_library(top) else f"{ours.failure} at {places[:4]}"
    for name, value in ours.values.items():
        if value.startswith("!unexpected"):
            return f"{name}: {value}"
    theirs = in_child(partial(by_h5py, path, list(ours.values)), 20)
    if theirs.values is None:
        return ""
    for name, value in ours.values.items():
        if not value.startswith("!") and name[:1] != "*" and theirs.values.get(name) != value:
            return f"{name}: {value} differs from h5py's {theirs.values.get(name)}"
    return ""


@pytest.mark.parametrize(
    "files", [pytest.param(10, marks=pytest.mark.slow), pytest.param(FILES, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 3), "compression": "gzip"}], ids=["contiguous", "gzip"])
def test_damage_is_refused_or_harmless(tmp_path: Path, libver: str, options: dict[str, object], files: int) -> None:
    write(tmp_path / "healthy.h5", libver, options)
    file: Healthy = healthy("groups", tmp_path / "healthy.h5")
    assert not judge(str(tmp_path / "healthy.h5"))
    found = []
    for number in range(files):
        data, words = mutated(file, np.random.default_rng([0, number]))
        (tmp_path / "damaged.h5").write_bytes(data)
        if why := judge(str(tmp_path / "damaged.h5")):
            found.append(f"{number} ({words}): {why}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, keep: float) -> None:
    write(tmp_path / "a.h5", "earliest", {})
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data[: int(len(data) * keep)])
    found = by_ours(str(tmp_path / "a.h5"))
    assert found[""].startswith("!TruncatedFileError"), found
