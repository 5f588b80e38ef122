"""Columns made of columns under windows: spans and ranges of rows of varying length, equal to numpy."""

import itertools
import tracemalloc

import h5py
import numpy as np
import pytest
import torch

from ray_h5 import H5Dataset, RayH5Error, Windows, csr, loader, part, ragged, where

LENGTHS = [1, 3, 0, 2, 4]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
ROWS = [list(range(begin, end)) for begin, end in itertools.pairwise(OFFSETS)]


def write(path, lengths=tuple(LENGTHS)):
    """Write rows of these lengths in four ways, the times of rows, and ranges of five rows."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    with h5py.File(path, "w") as file:
        file["flat"], file["offsets"], file["time"] = np.arange(offsets[-1]), offsets, np.arange(float(len(lengths)))
        cells = file.create_dataset("cells", (len(lengths),), h5py.ref_dtype)
        vlen = file.create_dataset("vlen", (len(lengths),), h5py.vlen_dtype("i8"))
        for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
            file[f"own/{i}"] = np.arange(begin, end)
            cells[i], vlen[i] = file[f"own/{i}"].ref, np.arange(begin, end)
        file["m/data"], file["m/indices"] = np.arange(1.0, offsets[-1] + 1), np.arange(offsets[-1]) % 6
        file["m/indptr"], file["of_rows"] = offsets, [0, 2, 2, len(lengths)]


def plain(value):
    value = value.tolist() if isinstance(value, (np.ndarray, torch.Tensor)) else value
    return list(map(plain, value)) if isinstance(value, list) else value


COLUMNS = {"flat": ragged("flat", offsets="offsets"), "vlen": "vlen", "cells": "cells"}


@pytest.mark.parametrize("name", COLUMNS)
def test_spans_of_rows_of_varying_length(tmp_path, name):
    write(tmp_path / "a.h5")
    windows = Windows({"time": [0.0], name: slice(-1.25, 0.25)}, at={"time": "time", name: "time"})
    rows = H5Dataset(tmp_path / "a.h5", ["time", COLUMNS[name]], windows=windows)
    expected = [ROWS[max(t - 1, 0) : t + 1] for t in range(len(ROWS))]
    assert [plain(rows[t][name]) for t in range(len(ROWS))] == expected
    (batch,) = loader(rows, 5, shuffle=False, pad=True)
    assert [plain(row) for row in batch[name]] == expected


@pytest.mark.parametrize("span", [(-1.25, 0.25), (-9.0, -1.5), (0.0, 9.0)])
def test_spans_of_rows_of_a_sparse_matrix_are_dense(tmp_path, span):
    write(tmp_path / "a.h5")
    dense = np.zeros((5, 6))
    for row, cells in enumerate(ROWS):
        dense[row, [cell % 6 for cell in cells]] = [cell + 1 for cell in cells]
    windows = Windows({"time": [0.0], "m": slice(*span)}, at={"time": "time", "m": "time"})
    rows = H5Dataset(tmp_path / "a.h5", ["time", csr("m", shape=(None, 6))], windows=windows)
    time = np.arange(5)
    expected = [dense[(time >= t + span[0]) & (time < t + span[1])] for t in time]
    found = [rows[t]["m"] for t in range(5)]
    assert all(
        isinstance(row, torch.Tensor) and np.array_equal(row, dense) for row, dense in zip(found, expected, strict=True)
    )
    (batch,) = loader(rows, 5, shuffle=False, pad=True)
    assert batch["m_length"].tolist() == list(map(len, expected))


def test_ranges_of_rows_of_varying_length(tmp_path):
    write(tmp_path / "a.h5")
    columns = [ragged("vlen", offsets="of_rows")]
    expected = [ROWS[:2], [], ROWS[2:]]
    rows = H5Dataset(tmp_path / "a.h5", columns)
    assert [plain(rows[i]["vlen"]) for i in range(3)] == expected
    (batch,) = loader(rows, 3, shuffle=False, pad=True)
    assert [plain(row) for row in batch["vlen"]] == expected
    windows = H5Dataset(tmp_path / "a.h5", columns, windows=Windows({"vlen": [-1, 0]}, pad="drop"))
    assert [plain(windows[i]["vlen"]) for i in range(2)] == [expected[:2], expected[1:]]
    with pytest.raises(RayH5Error, match="holds a list a row"):
        H5Dataset(tmp_path / "a.h5", columns, where(vlen=0))


@pytest.mark.parametrize("width", [0, 3])
def test_lists_of_arrays_are_cast(tmp_path, width):
    values = np.arange(10 * width, dtype="f8").reshape(10, width)
    write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["wide"] = values
    column = ragged(ragged("wide", offsets="offsets"), offsets="of_rows")
    rows = H5Dataset(tmp_path / "a.h5", [column], dtypes={"wide": "float32"})[[0, 1, 2]]["wide"]
    expected = [[values[OFFSETS[row] : OFFSETS[row + 1]] for row in of] for of in ([0, 1], [], [2, 3, 4])]
    for row, arrays in zip(rows, expected, strict=True):
        assert [each.dtype for each in row] == [np.float32] * len(arrays)
        assert all(map(np.array_equal, row, arrays))


@pytest.mark.parametrize(
    "lengths",
    [([1, 3, 2], [2, 2, 2]), ([2, 2, 2], [1, 3, 2]), ([1, 1], [1, 2]), ([2, 2], [3, 3], [1, 2]), ([2], [2, 2])],
)
@pytest.mark.parametrize("name", ["cells", "flat"])
def test_rows_of_one_file_may_be_equally_long(tmp_path, name, lengths):
    for number, of in enumerate(lengths):
        write(tmp_path / f"{number}.h5", of)
    column, most = ("cells", 9) if name == "cells" else (part(COLUMNS["flat"], random=2), 2)
    windows = Windows({name: [-1, 0]})
    cut = [[min(n, most) for n in of] for of in lengths]
    expected = [[of[max(t - 1, 0)], of[t]] for of in cut for t in range(len(of))]
    rows = H5Dataset(tmp_path, [column], windows=windows)
    assert [list(map(len, rows[i][name])) for i in range(len(rows))] == expected


@pytest.mark.parametrize("has_windows", [False, True])
@pytest.mark.parametrize("column", ["csr", "ragged", "part", "random"])
def test_a_sample_looks_at_its_own_bounds_alone(tmp_path, column, has_windows):
    count = 100_000
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["m/data"], file["m/indices"], file["m/indptr"] = (
            np.ones(count),
            np.zeros(count, "i4"),
            np.arange(count + 1),
        )
        file["flat"], file["offsets"] = np.arange(count), np.arange(count + 1)
    made = {
        "csr": csr("m", shape=(None, 8)),
        "ragged": COLUMNS["flat"],
        "part": part(COLUMNS["flat"], {0: slice(0, 1)}),
        "random": part(COLUMNS["flat"], random=1),
    }[column]
    windows = Windows({made.name: [0]}, pad="drop") if has_windows else None
    rows = H5Dataset(tmp_path / "a.h5", [made], windows=windows, kept_bytes=0)
    rows[0]
    tracemalloc.start()
    rows[7]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count  # bytes: a look at all bounds makes eight a row
