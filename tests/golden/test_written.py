"""Files that a version wrote: today they are read, or refused by name; nothing wrong is ever read of them."""

import json
import shutil

import h5py
import numpy as np
import pytest

from ray_h5 import Standardize
from ray_h5.torch_data import Position, PositionError
from tests.golden.layouts import LAYOUTS
from tests.golden.written import FOLDER, LAYOUT, batches_of, in_store, rows_of

VERSIONS = sorted(path.name for path in FOLDER.iterdir())


@pytest.fixture(params=VERSIONS)
def written(request):
    return FOLDER / request.param


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    LAYOUTS[LAYOUT].write(folder)
    return folder


def test_a_position_goes_on_or_is_refused(written, data):
    state = json.loads((written / "position.json").read_text())
    batches = batches_of(str(data))
    whole = rows_of(batches)
    resumed = batches_of(str(data))
    try:
        resumed.load_state_dict(state)
    except PositionError:
        return
    assert rows_of(resumed) == whole[3:]
    assert Position.from_dict(state).to_dict() == resumed_state(data, state)


def resumed_state(data, state):
    batches = batches_of(str(data))
    batches.load_state_dict(state)
    return batches.state_dict()


def test_scalers_do_the_same(written, data):
    values = []
    for path in sorted(data.glob("*.h5")):
        with h5py.File(path) as file:
            values.append(file["x"][:])
    values = np.concatenate(values).astype("f8")
    expected = (values - values.mean((0, 1))) / values.std((0, 1))
    for scaler in (
        Standardize.load(written / "scaler.npz"),
        Standardize.from_json((written / "scaler.json").read_text()),
    ):
        found = scaler.transform_batch({"x": np.concatenate([values]).astype("f4")})["x"]
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_index_is_of_use_or_is_made_again(written, data, tmp_path):
    path, index = str(data / "run_0.h5"), tmp_path / "index"
    expected = rows_of(batches_of(path))
    shutil.copytree(written / "index", index)
    for _ in range(2):
        assert rows_of(batches_of(path, index_dir=str(index))) == expected
    assert 1 <= len([*index.iterdir()]) <= 2  # its own, and that of a version which it cannot read


def test_a_cache_folder_is_of_use_or_left_alone(written, data, tmp_path):
    pytest.importorskip("obstore")
    expected = rows_of(batches_of(str(data / "run_0.h5")))
    shutil.copytree(written / "cache", tmp_path / "cache")
    with in_store(data) as (url, options):
        cached = {"storage_options": options, "cache_dir": str(tmp_path / "cache"), "cache_bytes": "1GB"}
        for _ in range(2):
            assert rows_of(batches_of(f"{url}run_0.h5", **cached)) == expected
