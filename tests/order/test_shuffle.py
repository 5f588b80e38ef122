import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import OptionError
from ray_h5.hash_and_permute import make_key, permute, unpermute
from ray_h5.order.draws.shuffle import Shuffle

TABLE = 1 << 16
SIZES = [1, 2, 3, 7, 1000, TABLE - 1, TABLE, TABLE + 1, TABLE + 77, 3 * TABLE, (1 << 18) + 1, 300_007]


@pytest.mark.parametrize("n", SIZES)
def test_a_permutation_and_its_inverse(n):
    key = make_key(n, 3)
    values = permute(np.arange(n), n, key)
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), np.arange(n))
    assert np.array_equal(unpermute(values, n, key), np.arange(n))


@given(st.data())
def test_huge_permutations_are_walked_to_and_fro(data):
    n = data.draw(st.integers(1, 2**62))
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50, unique=True)))
    key = make_key(data.draw(st.integers(0, 2**64)), 0)
    values = permute(positions, n, key)
    assert values.min() >= 0
    assert values.max() < n
    assert len(np.unique(values)) == len(positions)
    assert np.array_equal(unpermute(values, n, key), positions)


PAIRS = [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((42, 1), (43, 0)), ((7, 3), (7, 4)), ((5, 1), (5 + 2**32, 0))]


@pytest.mark.parametrize("n", [50_000, 100_000])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_epochs_and_seeds_know_nothing_of_each_other(n, one, other):
    first, second = (permute(np.arange(n), n, make_key(*each)) for each in (one, other))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(n)
    assert (first == second).sum() < 12  # Poisson of mean 1
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(first[lag:], second[:-lag])[0, 1]) < 4.5 / np.sqrt(n)


@pytest.mark.parametrize(
    "options",
    [
        {"unit": "blocks"},
        {"unit": None},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"seed": "1"},
        {"window_rows": 0},
        {"window_rows": 2.0},
        {"window_rows": True},
        {"unit": "rows", "window_rows": 4},
        {"unit": "files", "window_rows": 4},
        {"unit": ["rows"]},
    ],
)
def test_what_is_no_shuffle_is_refused(options):
    with pytest.raises(OptionError, match="Shuffle"):
        Shuffle(**options)


def test_a_seed_is_drawn_once_and_kept():
    drawn = Shuffle(seed=None)
    assert drawn.seed == drawn.seed
    assert len({Shuffle(seed=None).seed for _ in range(20)}) > 15
    assert Shuffle(seed=np.int64(3)) == Shuffle(seed=3)
    assert isinstance(Shuffle(seed=np.int64(3), window_rows=np.int64(5)).window_rows, int)
