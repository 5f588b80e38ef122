"""Columns of other files, which change after the dataset was made: Ray Data."""

import os

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import where
from ray_h5.errors import ExternalDataError, StaleIndexError
from tests.hdf5.h5kit import layout_of
from tests.kit.files import save
from tests.ray_data.kit import ids_of

pytestmark = pytest.mark.usefixtures("ray_local")

LABELS = np.arange(60) % 4


def put(path, values):
    os.replace(save(f"{path}.new", {"label": values}), path)


@pytest.fixture(params=["link", "virtual"])
def world(request, tmp_path):
    """Return a file whose labels are in another one, and this one."""
    main, source = str(tmp_path / "a.h5"), str(tmp_path / "labels.h5")
    put(source, LABELS)
    link = h5py.ExternalLink("labels.h5", "label")
    save(
        main, {"x": np.arange(60), "label": link if request.param == "link" else layout_of("labels.h5", "label", (60,))}
    )
    return main, source


def read(world, columns=("x", "label"), **options):
    folder = os.path.dirname(world[0])
    return ray_h5.read_h5(world[0], columns=list(columns), allow_external=folder, include_row_ids=True, **options)


def check_stale(world, ds, error=StaleIndexError):
    with pytest.raises(Exception, match="column 'label' leads to") as caught:
        ids_of(ds)
    assert isinstance(caught.value, error)
    for part in world:
        assert part in str(caught.value)


@pytest.mark.parametrize("columns", [("x", "label"), ("x",)])
def test_a_filtered_dataset_iterated_again(world, tmp_path, columns):
    ds = read(world, columns, index_dir=str(tmp_path / "index")).filter(expr=where(label=2))
    assert ids_of(ds) == np.flatnonzero(LABELS == 2).tolist()
    put(world[1], LABELS[::-1].copy())
    check_stale(world, ds)
    check_stale(world, ds.select_columns(["x"]))
    check_stale(world, ds.select_columns(["row_id"]))
    again = read(world, columns, index_dir=str(tmp_path / "index")).filter(expr=where(label=2))
    assert ids_of(again) == np.flatnonzero(LABELS[::-1] == 2).tolist()


def test_a_source_that_changes_amid_an_epoch(world):
    ds = read(world, block_rows=4)
    seen = []

    def iterate():
        for batch in ds.iter_batches(batch_size=4, prefetch_batches=0):
            if not seen:
                put(world[1], LABELS + 10)
            seen.extend(batch["label"].tolist())

    with pytest.raises(Exception, match="column 'label' leads to") as caught:
        iterate()
    assert isinstance(caught.value, StaleIndexError)
    assert max(seen) < 4


def test_a_relative_folder_is_that_of_the_driver(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    ds = ray_h5.read_h5(world[0], allow_external=tmp_path.name)
    monkeypatch.chdir("/")
    assert [row["label"] for row in ds.take_all()] == LABELS.tolist()
    with pytest.raises(ExternalDataError, match=r"labels\.h5"):
        ray_h5.read_h5(world[0], allow_external=[tmp_path / "elsewhere"])
