import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_h5
from ray_h5.errors import OptionError
from ray_h5.torch_data import make_train_val_indices


@given(st.integers(0, 300), st.floats(0, 1), st.integers(0, 5))
def test_each_item_is_on_one_side(n_items, fraction, seed):
    train, val = make_train_val_indices(n_items, fraction, seed)
    assert sorted([*train, *val]) == list(range(n_items))
    assert len(val) == round(fraction * n_items)
    for side in (train, val):
        assert (np.diff(side) > 0).all()
        assert side.dtype == np.int64
    np.testing.assert_equal(make_train_val_indices(n_items, fraction, seed), (train, val))


def test_the_draw_is_numpys():
    """So a split drawn before, with the same seed, is drawn again."""
    mixed = np.random.default_rng(1234).permutation(40)
    train, val = make_train_val_indices(40)
    np.testing.assert_array_equal(val, np.sort(mixed[:4]))
    np.testing.assert_array_equal(train, np.sort(mixed[4:]))
    assert ray_h5.make_train_val_indices is make_train_val_indices


@pytest.mark.parametrize("name", ["split.npz", "split"])
def test_a_saved_split_is_used_again(tmp_path, name):
    path = str(tmp_path / name)
    first = make_train_val_indices(30, 0.2, 1, path)
    assert (tmp_path / "split.npz").exists()
    np.testing.assert_equal(make_train_val_indices(30, 0.5, 2, path), first)
    second = make_train_val_indices(30, 0.5, 2, path, True)
    assert len(second[1]) == 15
    np.testing.assert_equal(make_train_val_indices(30, save_path=path), second)
    with pytest.raises(OptionError, match=r"expected a split of 31 items, found one of 30 others.*overwrite"):
        make_train_val_indices(31, save_path=path)


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "a.npz"
    for arrays in ({"train": np.arange(5)}, {"train_idx": np.array([{}], object), "val_idx": np.arange(5)}):
        np.savez(path, **arrays)
        with pytest.raises(OptionError, match=r"a\.npz: expected indices train_idx and val_idx"):
            make_train_val_indices(5, save_path=path)
    np.savez(path, train_idx=np.arange(4), val_idx=np.arange(3, 5))
    with pytest.raises(OptionError, match="expected a split of 5 items"):
        make_train_val_indices(5, save_path=path)


def test_a_url_is_no_file():
    with pytest.raises(OptionError, match="s3://bucket/split: expected a path of the local file system"):
        make_train_val_indices(5, save_path="s3://bucket/split")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_items": -1}, "n_items=-1"),
        ({"val_fraction": 1.5}, "val_fraction=1.5: expected a number from 0 to 1"),
        ({"val_fraction": float("nan")}, "val_fraction=nan"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_input(options, said):
    with pytest.raises(OptionError, match=said):
        make_train_val_indices(**{"n_items": 5, **options})


TWO_RANKS = """
import sys, torch
from ray_h5.torch_data import make_train_val_indices

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
_, val = make_train_val_indices(20, 0.2, seed=rank, save_path=f"{folder}/split")
print(val.tolist())
try:
    make_train_val_indices(21, save_path=f"{folder}/split" if rank == 0 else None)
except ValueError as exc:
    print(type(exc).__name__)
"""


@pytest.mark.slow
def test_all_ranks_have_the_indices_of_the_first_and_its_errors(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", TWO_RANKS]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    first, second = (each.communicate(timeout=100)[0].splitlines() for each in ranks)
    assert first == second == [str(make_train_val_indices(20, 0.2, seed=0)[1].tolist()), "OptionError"]
