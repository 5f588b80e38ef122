"""`allow_external` means the same folders wherever it is passed: one alone is no list of its letters."""

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5.errors import ExternalDataError, OptionError
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.measure import inspect_files

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.fixture
def linked(tmp_path):
    """Return a file whose label lies in the folder `outside`, next to the folder `allowed`."""
    for name in ("data", "outside", "allowed"):
        (tmp_path / name).mkdir()
    with h5py.File(tmp_path / "outside" / "labels.h5", "w") as file:
        file["label"] = np.arange(4)
    path = tmp_path / "data" / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4)
        file["label"] = h5py.ExternalLink("../outside/labels.h5", "label")
    return path


def inspected(path, allow_external):
    report = inspect_files(FileOptions.of([str(path)], allow_external=allow_external))
    if report.problem is not None:
        raise ExternalDataError(report.problem.message)


WAYS = {"read_h5": lambda path, roots: ray_h5.read_h5(path, allow_external=roots), "inspect": inspected}


@pytest.mark.parametrize("way", WAYS)
def test_one_folder_alone(linked, tmp_path, monkeypatch, way):
    for roots in (str(tmp_path / "allowed"), tmp_path / "allowed", [str(tmp_path / "allowed")]):
        with pytest.raises(ExternalDataError, match="outside"):
            WAYS[way](linked, roots)
    for roots in (str(tmp_path / "outside"), tmp_path / "outside", [tmp_path / "outside"]):
        WAYS[way](linked, roots)
    monkeypatch.chdir(tmp_path)
    WAYS[way](linked, "outside")
    with pytest.raises(OptionError, match="found an empty name"):
        WAYS[way](linked, "")


def test_a_relative_folder_is_that_of_the_driver(linked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ds = ray_h5.read_h5(linked, allow_external="outside")
    monkeypatch.chdir("/")
    assert sorted(row["label"] for row in ds.take_all()) == [0, 1, 2, 3]
