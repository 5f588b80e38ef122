"""The adapter for stable-worldmodel reads what its own HDF5 reader does, from files that its own writer makes."""

from itertools import product

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, random_split

swm = pytest.importorskip("stable_worldmodel.data")

import worldmodel_h5  # noqa: E402

# JAX warns of forks once another test of the process has imported it.
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")]

LENGTHS = [7, 3, 12, 6, 20]


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "pusht.h5"
    with swm.HDF5Writer(path) as writer:
        for length in LENGTHS:
            episode = {
                "pixels": rng.integers(0, 256, (length, 8, 6, 3), "u1"),
                "proprio": rng.standard_normal((length, 4)).astype("f4"),
                "state": rng.standard_normal((length, 3)),
                "action": rng.standard_normal((length, 2)).astype("f4"),
                "reward": rng.standard_normal(length),
                "task": np.array([b"push %d" % length] * length),
            }
            writer.write_episode(episode)
    return path


def both(path, **options):
    return [swm.load_dataset(str(path), format=name, **options) for name in ("hdf5", "ray_h5")]


def check_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert (value.shape, value.dtype) == (other[name].shape, other[name].dtype), name
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


OPTIONS = [
    {},
    {"num_steps": 3},
    {"num_steps": 2, "frameskip": 3},
    {"num_steps": 3, "keys_to_load": ["pixels", "action"], "keys_to_cache": ["action"]},
    {"num_steps": 2, "frameskip": 2, "keys_to_merge": {"observation": ["proprio", "state"], "both": "(pro|sta)"}},
    {"num_steps": 2, "keys_to_load": ["reward", "action"], "keys_to_cache": ["reward", "action"]},
    {"num_steps": 2, "transform": lambda steps: {"sum": steps["action"].sum(), "action": steps["action"] * 2}},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_samples_and_parts_of_episodes_are_those_of_its_own_reader(path, options):
    theirs, ours = both(path, **options)
    assert sorted(theirs.column_names) == sorted(ours.column_names)
    assert theirs.clip_indices == ours.clip_indices
    assert len(theirs) == len(ours.windows)
    for i in range(len(theirs)):
        check_equal(theirs[i], ours[i])
    for i in (*range(len(LENGTHS)),):
        check_equal(theirs.load_episode(i), ours.load_episode(i))
    chunk = np.array([0, 4]), np.array([1, 2]), np.array([7, 14])
    for one, other in zip(theirs.load_chunk(*chunk), ours.load_chunk(*chunk), strict=True):
        check_equal(one, other)
    for name in theirs.column_names:
        assert np.array_equal(theirs.get_col_data(name), ours.get_col_data(name))
        assert theirs.get_dim(name) == ours.get_dim(name)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_script_gets_the_same_batches(path, workers):
    batches = []
    for dataset in both(path, num_steps=2, frameskip=2, keys_to_load=["pixels", "proprio", "action"]):
        train, _ = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(1))
        generator = torch.Generator().manual_seed(2)
        batches.append([*DataLoader(train, 8, shuffle=True, generator=generator, num_workers=workers)])
    assert len(batches[0]) == len(batches[1]) > 1
    for one, other in zip(*batches, strict=True):
        check_equal(one, other)


def test_its_wrappers_take_the_dataset(path):
    def made(dataset):
        goals = swm.dataset.GoalDataset(dataset, seed=3)
        joined = swm.ConcatDataset([dataset, dataset])
        return [goals[i] for i in range(len(goals))] + joined.__getitems__([0, len(dataset) + 1])

    for one, other in zip(*map(made, both(path, num_steps=2)), strict=True):
        check_equal(one, other)
    rows = [dataset.get_row_data([2, 9]) for dataset in both(path)]
    assert all(np.array_equal(rows[0][name], rows[1][name]) for name in rows[0])


@pytest.mark.parametrize(("shuffle", "frameskip"), [*product([False, True], [1, 2])])
def test_the_loader_has_the_batches_of_a_dataloader(path, shuffle, frameskip):
    merged = {"both": ["proprio", "state"]}
    ours = worldmodel_h5.RayH5Dataset(path, num_steps=2, frameskip=frameskip, keys_to_merge=merged)
    found = [*ours.loader(8, shuffle=shuffle, seed=1)]
    expected = [*DataLoader(ours, 8)]
    if not shuffle:
        for one, other in zip(found, expected, strict=True):
            check_equal(one, other)
    rewards = [torch.cat([batch["reward"] for batch in batches]) for batches in (found, expected)]
    assert torch.equal(rewards[0].sort(dim=0)[0], rewards[1].sort(dim=0)[0])
    assert torch.equal(*rewards) != shuffle


def test_a_file_that_can_be_opened_is_still_theirs(path):
    assert swm.detect_format(path).name == "hdf5"


def test_gaps_between_episodes_are_refused(path):
    with h5py.File(path, "r+") as file:
        file["ep_offset"][1:] += 1
    with pytest.raises(ValueError, match="expected episodes without gaps"):
        worldmodel_h5.RayH5Dataset(path)
