"""Draws with weights in plain PyTorch: the same as in Ray, split over ranks, and resumed at every step."""

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler

import ray_h5
from ray_h5.errors import OptionError, PositionError
from ray_h5.torch_data import (
    H5Dataset,
    OrderBatchSampler,
    OrderSampler,
    Shuffle,
    WeightedSampler,
    balance,
    create_optimized_dataloader,
    loader,
    where,
)
from tests.index.kit import plan_files

from .conftest import ids_of

FALSE_ALARMS = 1e-4
"""How often a statistical test would fail for another seed."""

N = 60
SHUFFLES = {
    "column": Shuffle("rows", 7, weights="epoch", rows_per_epoch=53),
    "array": Shuffle("rows", 7, weights=np.arange(N) % 3, rows_per_epoch=47),
    "balance": Shuffle("rows", 7, weights=balance(["cs_label", "bg_label"])),
    "shares": Shuffle("rows", 7, weights=balance("cs_label", {1: 0.7}), rows_per_epoch=61),
    "by file": Shuffle("rows", 7, weights={"f0.h5": 0.25, "f[123].h5": 0.75}, rows_per_epoch=44),
    "virtual": Shuffle("rows", 7, rows_per_epoch=37),
}


@pytest.fixture(params=list(SHUFFLES))
def shuffle(request):
    return SHUFFLES[request.param]


@pytest.fixture(scope="module")
def dataset(files):
    return H5Dataset(files, ["fhr_st"])


def epoch_in_ray(files, shuffle, epoch, predicate=None):
    """The row ids of an epoch of a plan, which is what read tasks execute."""
    plan = plan_files(files, columns=["fhr_st"], shuffle=shuffle, predicate=predicate)[1]
    return plan.at(np.arange(plan.num_positions), epoch).tolist()


def test_the_order_is_that_of_ray(files, dataset, shuffle):
    sampler = OrderSampler(dataset, shuffle=shuffle)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        expected = epoch_in_ray(files, shuffle, epoch)
        assert dataset.row_ids(list(sampler)).tolist() == expected
        assert len(sampler) == len(expected)
        batches = OrderBatchSampler(dataset, 8, shuffle=shuffle)
        batches.set_epoch(epoch)
        assert list(chain(*batches)) == list(sampler)
        assert len(batches) == -(-len(expected) // 8)
    loaded = loader(dataset, 8, shuffle=shuffle, threads=1)
    optimized = create_optimized_dataloader(files, 8, shuffle=shuffle, num_workers=1)
    for epoch in range(2):
        for batches in (loaded, optimized):
            found = [ids_of(batch) for batch in batches]
            assert list(chain(*found)) == epoch_in_ray(files, shuffle, epoch)
            assert len(found) == len(batches)


def test_a_predicate_chooses_what_is_drawn(files):
    predicate = where(bg_label=0)
    for shuffle in (Shuffle("rows", 7, weights="epoch", rows_per_epoch=53), Shuffle(weights=balance("cs_label"))):
        dataset = H5Dataset(files, ["fhr_st"], predicate)
        found = dataset.row_ids(list(OrderSampler(dataset, shuffle=shuffle))).tolist()
        assert found == epoch_in_ray(files, shuffle, 0, predicate)
        assert not [row for row in found if row % 7 == 0]


@pytest.mark.parametrize(("world_size", "run_length"), [(1, 4), (2, 1), (5, 4)])
def test_ranks_share_the_draws_and_resume_at_every_step(dataset, shuffle, world_size, run_length):
    def samplers(ranks, shuffle=shuffle):
        options = {"shuffle": shuffle, "world_size": ranks, "run_length": run_length, "drop_last": True}
        made = [OrderSampler(dataset, rank=rank, **options) for rank in range(ranks)]
        for sampler in made:
            sampler.set_epoch(2)
        return made

    whole = list(samplers(1)[0])
    shares = [list(sampler) for sampler in samplers(world_size)]
    assert len({len(share) for share in shares}) == 1
    kept = Counter(chain(*shares))
    assert kept <= Counter(whole)
    assert kept.total() == len(whole) // world_size * world_size
    for step in range(len(shares[0]) + 1):
        running = samplers(world_size)
        heads = [list(islice(sampler, step)) for sampler in running]
        states = [sampler.state_dict() for sampler in running]
        resumed = samplers(world_size)
        for sampler, state in zip(resumed, states, strict=True):
            sampler.load_state_dict(state)
        assert [head + list(sampler) for head, sampler in zip(heads, resumed, strict=True)] == shares
        if step % run_length == 0 and step < len(shares[0]):
            others = samplers(2)
            for sampler in others:
                sampler.load_state_dict(states[0])
            rest = Counter(chain(*map(list, others)))
            assert rest + Counter(chain(*heads)) <= Counter(whole)
            assert rest.total() + step * world_size >= len(whole) - 1


def test_a_state_of_other_draws_is_refused(dataset, shuffle):
    state = OrderSampler(dataset, shuffle=shuffle).state_dict()
    plain = OrderSampler(dataset, shuffle=Shuffle("rows", 7))
    with pytest.raises(PositionError, match=r"What differs: .*rows_per_epoch \d+, not None"):
        plain.load_state_dict(state)
    with pytest.raises(PositionError, match=r"What differs: .*rows_per_epoch None, not \d+"):
        OrderSampler(dataset, shuffle=shuffle).load_state_dict(plain.state_dict())
    if shuffle.weights is not None:
        other = Shuffle("rows", 7, weights=np.arange(N), rows_per_epoch=state["plan"]["rows_per_epoch"])
        with pytest.raises(PositionError, match=r"What differs: weights of digest \w+, not weights of digest"):
            OrderSampler(dataset, shuffle=other).load_state_dict(state)


def test_a_drawn_seed_is_taken_over(dataset):
    first, second = (OrderSampler(dataset, shuffle=Shuffle(seed=None, weights=balance("cs_label"))) for _ in range(2))
    whole = list(first)
    next(running := iter(first))
    second.load_state_dict(first.state_dict())
    assert [whole[0], *second] == whole == [whole[0], *running]


def test_datasets_of_which_only_the_length_is_known(dataset):
    weights = np.arange(120) % 2
    for other in (range(120), ConcatDataset([dataset, dataset])):
        found = list(OrderSampler(other, shuffle=Shuffle(weights=weights, rows_per_epoch=500)))
        assert len(found) == 500
        assert set(found) <= set(range(1, 120, 2))
        for named in ("epoch", balance("cs_label"), {"f0.h5": 1.0}):
            with pytest.raises(OptionError, match="only an H5Dataset knows its columns and files"):
                OrderSampler(other, shuffle=Shuffle("rows", weights=named))
        with pytest.raises(OptionError, match="expected 120, one for each row of the dataset"):
            OrderSampler(other, shuffle=Shuffle("rows", weights=np.ones(60)))


# WeightedSampler --------------------------------------------------------------------------------

WEIGHTS = [0.1, 0.9, 0.4, 0.7, 3.0, 0.0]


def test_it_takes_the_arguments_of_pytorch():
    for kind in (WeightedRandomSampler, WeightedSampler):
        sampler = kind(WEIGHTS, 20_000, True, torch.Generator().manual_seed(5))
        assert len(sampler) == 20_000
        counts = np.bincount(list(sampler), minlength=6)
        assert counts[5] == 0
        expected = np.array(WEIGHTS[:5]) / sum(WEIGHTS) * 20_000
        assert stats.chisquare(counts[:5], expected).pvalue > FALSE_ALARMS
        assert list(sampler) != list(sampler)  # the next epoch


def test_it_has_no_limit_of_rows():
    weights = torch.ones(2**24 + 5)
    with pytest.raises(RuntimeError, match="2\\^24"):
        list(WeightedRandomSampler(weights, 10))
    found = list(WeightedSampler(weights, 10))
    assert len(set(found)) == 10
    assert max(found) < 2**24 + 5


def test_a_generator_is_a_seed():
    def epochs(**options):
        sampler = WeightedSampler(WEIGHTS, 50, **options)
        return [list(sampler) for _ in range(2)]

    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    assert epochs(generator=generator) == epochs(seed=5) != epochs(seed=6)
    assert torch.equal(before, generator.get_state())
    assert epochs() == epochs(seed=0)
    assert epochs(generator=torch.Generator().manual_seed(-5))[0] != epochs()[0]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_it_is_split_over_ranks_and_resumes_at_every_step(world_size):
    whole = list(WeightedSampler(WEIGHTS, 40, seed=3))
    shares = [list(WeightedSampler(WEIGHTS, 40, seed=3, rank=r, world_size=world_size)) for r in range(world_size)]
    assert list(chain(*zip(*shares, strict=True))) == whole
    for step in range(40 // world_size):
        sampler = WeightedSampler(WEIGHTS, 40, seed=3, rank=0, world_size=world_size)
        head = list(islice(sampler, step))
        resumed = WeightedSampler(WEIGHTS, 40, seed=3, rank=0, world_size=world_size)
        resumed.load_state_dict(sampler.state_dict())
        assert head + list(resumed) == shares[0]
    with pytest.raises(PositionError, match="What differs: weights"):
        WeightedSampler(WEIGHTS[::-1], 40, seed=3).load_state_dict(WeightedSampler(WEIGHTS, 40, seed=3).state_dict())


def test_it_is_a_sampler_of_data_loaders(dataset):
    weights = np.arange(N) % 4
    expected = list(WeightedSampler(weights, 40))
    found = list(DataLoader(dataset, 8, sampler=WeightedSampler(weights, 40)))
    assert [row for batch in found for row in ids_of(batch)] == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1, -1], 3), r"weights\[1\]=-1"),
        (([0, 0], 3), "sum of the weights of 2 selected rows is 0"),
        (([1, 1], 0), "num_samples=0: expected an integer of 1 or more"),
        (([1, 0], 2, False), "replacement=False: OrderSampler draws each sample once"),
        (([], 3), "expected a number for each sample"),
        (("label", 3), "expected a number for each sample. Classes and columns"),
        ((balance("label"), 3), "expected a number for each sample. Classes and columns"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, said):
    with pytest.raises(OptionError, match=said):
        WeightedSampler(*arguments)


def test_the_names_are_one():
    assert ray_h5.balance is balance
    assert ray_h5.WeightedSampler is WeightedSampler
