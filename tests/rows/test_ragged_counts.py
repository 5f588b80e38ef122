"""ragged(counts=...): rows that follow each other, of which the file has the number of values alone."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import OptionError, SchemaMismatchError
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.torch_data import H5Dataset, Windows, loader, ragged, where
from tests.properties import few


def write(path, counts, values, axes=()):
    with h5py.File(path, "w") as file:
        file["njet"] = np.array(counts).reshape(-1, *axes)
        file["jet_pt"], file["label"] = values, np.arange(len(counts)) % 2
    return str(path)


@few(20)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=30), rows=st.lists(st.integers(0, 1000), min_size=1))
def test_rows_equal_those_of_numpy(tmp_path_factory, counts, rows):
    values = np.random.default_rng(0).random((sum(counts), 2)).astype("f4")
    path = write(tmp_path_factory.mktemp("a") / "a.h5", np.array(counts, "u1"), values)
    wanted = np.split(values, np.cumsum(counts)[:-1])
    dataset = H5Dataset(path, [ragged("jet_pt", counts="njet"), "njet"])
    assert len(dataset) == len(counts)
    for row in (each % len(counts) for each in rows):
        np.testing.assert_array_equal(dataset[row]["jet_pt"], wanted[row])


def test_batches_predicates_and_a_stored_index(tmp_path):
    counts, values = [2, 0, 3, 1], np.arange(6.0)
    path = write(tmp_path / "a.h5", counts, values, axes=(1,))
    column = ragged("jet_pt", counts="njet")
    for _ in range(2):
        MEMORY.clear()
        rows = H5Dataset(path, [column], where(label=0), index_dir=str(tmp_path / "index"))
        assert [row["jet_pt"].tolist() for row in rows] == [[0, 1], [2, 3, 4]]
    (batch,) = loader(path, 4, columns=[column, "label"], pad=True, shuffle=False)
    assert batch["jet_pt_length"].tolist() == counts


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        ([2, 1], SchemaMismatchError, "'njet': rows go from 0 to 3; expected 0 to 6, all values.*.*starts="),
        ([2, 9], SchemaMismatchError, "jet_pt"),
        ([9, -3], SchemaMismatchError, "row 1 goes from 9 to 6"),
        ([2**62, 2**62, 2**62, 6], SchemaMismatchError, "njet|jet_pt"),
    ],
)
def test_counts_that_do_not_fit(tmp_path, counts, error, message):
    with pytest.raises(error, match=message):
        H5Dataset(write(tmp_path / "a.h5", counts, np.arange(6.0)), [ragged("jet_pt", counts="njet")])[0]


def test_other_options_are_refused():
    with pytest.raises(OptionError, match="base=1: counts= alone"):
        ragged("x", counts="n", base=1)
    with pytest.raises(OptionError, match="found offsets=, counts="):
        ragged("x", counts="n", offsets="o")


def test_a_wrong_option_is_no_damage_of_a_file(tmp_path):
    """Files that cannot be read are left out; sound ones are not, whatever option is wrong about them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["n"], file["f"], file["pairs"] = np.arange(9.0), [2, 12], [0.0, 9.0], [[0, 4], [6, 12]]
    for option in ({"ends": "n"}, {"offsets": "n"}, {"offsets": "f"}, {"bounds": "pairs"}, {"counts": "n"}):
        with pytest.raises(SchemaMismatchError, match=r"options of ragged|expected 0 to 9"):
            H5Dataset(tmp_path, [ragged("x", **option)], ignore_unreadable_files=True)
    windows = Windows({"x": [0]}, episode_bounds="pairs")
    with pytest.raises(SchemaMismatchError, match="If it does, the file is wrong"):
        H5Dataset(tmp_path, ["x"], windows=windows, ignore_unreadable_files=True)
