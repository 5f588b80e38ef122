import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ray_h5 import hashing
from ray_h5.errors import OptionError
from ray_h5.hashing import make_key, permute, unpermute
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


@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 1000))
def test_the_network_is_a_bijection_also_where_a_table_is_used_instead(n, seed, epoch):
    key = make_key(seed, epoch)
    positions = np.arange(n)
    values = hashing._walk(positions, n, key, backwards=False)
    assert np.array_equal(np.sort(values), positions)
    assert np.array_equal(hashing._walk(values, n, key, backwards=True), positions)
    assert np.array_equal(positions, np.arange(n))  # the argument is left as it was


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


@pytest.mark.parametrize("draw", ["table", "network"])
@pytest.mark.parametrize("n", [8, 24])
def test_each_value_is_as_likely_at_each_position(draw, n):
    draws = 4000
    cells = np.zeros((n, n), int)
    for seed in range(draws):
        key = make_key(seed, 0)
        values = permute(np.arange(n), n, key) if draw == "table" else hashing._walk(np.arange(n), n, key, False)
        cells[np.arange(n), values] += 1
    expected = draws / n
    chi_square = ((cells - expected) ** 2 / expected).sum()
    # Of n * n cells, whose rows and columns each have a known sum.
    assert 1e-4 < stats.chi2.sf(chi_square, (n - 1) ** 2) < 1 - 1e-4


@pytest.mark.parametrize("n", [6])
def test_all_orders_of_a_few_are_drawn(n):
    draws = 10_000
    orders = np.array([permute(np.arange(n), n, make_key(seed, 1)) for seed in range(draws)])
    _, counts = np.unique(orders @ 10 ** np.arange(n), return_counts=True)
    assert len(counts) == 720
    assert 1e-4 < stats.chisquare(counts).pvalue < 1 - 1e-4


PAIRS = [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((42, 1), (43, 0)), ((7, 3), (7, 4)), ((5, 1), (5 + 2**32, 0))]


@pytest.mark.parametrize("n", [50_000, 100_000])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_epochs_and_seeds_know_nothing_of_each_other(n, one, other):
    first, second = (permute(np.arange(n), n, make_key(*each)) for each in (one, other))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(n)
    assert (first == second).sum() < 12  # Poisson of mean 1
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(first[lag:], second[:-lag])[0, 1]) < 4.5 / np.sqrt(n)


@pytest.mark.parametrize("n", [40_000, 200_000])
def test_neighbours_know_nothing_of_each_other(n):
    for seed in range(5):
        values = permute(np.arange(n), n, make_key(seed, 0))
        for lag in (1, 2, 3, 256, 512):
            assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 4.5 / np.sqrt(n)
        gaps = np.diff(values)
        assert (np.abs(gaps) == 1).sum() < 15  # Poisson of mean 2
        bins = np.histogram2d(values[:-1], values[1:], bins=16, range=[[0, n], [0, n]])[0]
        assert stats.chisquare(bins.ravel()).pvalue > 1e-4


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
