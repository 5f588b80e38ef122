"""Keys that name parts of datasets, as SeisBench writes them."""

import re

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import Groups, H5Dataset, Sidecar
from ray_h5.errors import SchemaMismatchError

BUCKETS = {"bucket0": (8, 600), "bucket1": (5, 900), "bucket2": (8, 1200)}


@pytest.fixture
def seisbench(tmp_path):
    """Return the waveforms, by their names in the CSV beside them; each fills its part of a bucket."""
    rng = np.random.default_rng(0)
    traces = {}
    with h5py.File(tmp_path / "waveforms.hdf5", "w") as file:
        for name, (count, samples) in BUCKETS.items():
            bucket = np.zeros((count, 3, samples), "f4")
            for row in range(count):
                length = samples - 7 * row
                bucket[row, :, :length] = rng.standard_normal((3, length))
                traces[f"{name}${row},:3,:{length}"] = bucket[row, :, :length]
            file[f"data/{name}"] = bucket
        file["data_format/dimension_order"] = "CW"
    names = rng.permutation(list(traces))
    lines = [f'{i},"{name}",{i / 2}' for i, name in enumerate(names)]
    (tmp_path / "metadata.csv").write_text("\n".join(["index,trace_name,source_magnitude", *lines, ""]))
    magnitudes = {name: i / 2 for i, name in enumerate(names)}
    return tmp_path, traces, magnitudes


@pytest.mark.parametrize("group", ["/", "data"])
def test_each_bucket_has_the_lines_of_its_rows(seisbench, group):
    folder, traces, magnitudes = seisbench
    sidecar = Sidecar(str(folder / "metadata.csv"), on="trace_name")
    found = {}
    for name in BUCKETS:
        column = name if group == "data" else f"data/{name}"
        columns = [column, f"{column}_length", "source_magnitude"]
        samples = H5Dataset(str(folder / "waveforms.hdf5"), columns, group=group, sidecar=sidecar)
        for row in range(len(samples)):
            sample = samples[row]
            length = int(sample[f"{column}_length"])
            found[f"{name}${row},:3,:{length}"] = sample
            assert np.array_equal(sample[column][:, :length], traces[f"{name}${row},:3,:{length}"])
    assert found.keys() == traces.keys()
    assert {name: sample["source_magnitude"].item() for name, sample in found.items()} == magnitudes


CALLS = [
    {},
    {"columns": ["data/bucket0", "data/bucket2"]},
    {"columns": ["source_magnitude"]},
    {"rows": Groups("data/*")},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_the_error_for_all_buckets_prints_calls_that_run(seisbench, options, monkeypatch):
    folder, *_ = seisbench
    table = Sidecar(str(folder / "metadata.csv"), on="group" if "rows" in options else "trace_name", key="trace_name")
    with pytest.raises(SchemaMismatchError, match="are rows of 3 datasets") as caught:
        H5Dataset(str(folder / "waveforms.hdf5"), sidecar=table, **options)
    if "rows" in options:
        return
    calls = re.findall(r"ray_h5\.read_h5\(.*\)", str(caught.value))
    monkeypatch.setattr(ray_h5, "read_h5", H5Dataset, raising=False)
    assert [len(eval(call, {"ray_h5": ray_h5})) for call in calls] == [8, 5, 8]


@pytest.mark.parametrize("tables", [1, 2, 3])
def test_calls_of_several_tables_have_tables_that_are_there(seisbench, tables):
    folder, *_ = seisbench
    text = (folder / "metadata.csv").read_text()
    names = [str(folder / f"metadata{number}.csv") for number in range(tables)]
    for name in names:
        with open(name, "w") as file:
            file.write(text)
    (folder / "waveforms2.hdf5").write_bytes((folder / "waveforms.hdf5").read_bytes())
    with pytest.raises(SchemaMismatchError, match="of the first of 2 files; each has calls of its own") as caught:
        H5Dataset(folder, file_extensions=["hdf5"], sidecar=Sidecar(names, on="trace_name"))
    assert ("with its own table" in str(caught.value)) == (tables == 2)
    said = re.findall(r"Sidecar\((.*), on=", str(caught.value))
    assert said == [repr(names if tables == 3 else names[0])] * 3


def test_a_bucket_with_rows_that_have_no_line(seisbench):
    folder, *_ = seisbench
    path = folder / "metadata.csv"
    text = [line for line in path.read_text().splitlines() if "bucket1$3" not in line]
    path.write_text("\n".join([*text, ""]))
    columns = ["data/bucket1", "source_magnitude"]
    with pytest.raises(SchemaMismatchError, match="1 of 5 rows have no line; their keys: 3; the first is"):
        H5Dataset(str(folder / "waveforms.hdf5"), columns, sidecar=Sidecar(str(path), on="trace_name"))
    path.write_text("\n".join([*text, text[1], ""]))
    with pytest.raises(SchemaMismatchError, match=r"1 keys \('trace_name', 'row'\) are in more than one line"):
        H5Dataset(str(folder / "waveforms.hdf5"), columns, sidecar=Sidecar(str(path), on="trace_name"))
