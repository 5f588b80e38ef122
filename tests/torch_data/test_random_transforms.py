"""Transforms that draw from global generators: the same seeds give the same data, and the same numbers in the loop."""

import random

import numpy as np
import pytest
import torch

from ray_h5 import H5DataLoader, H5Dataset, loader
from tests.kit.files import save

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(tmp_path_factory.mktemp("random") / "a.h5", {"x": np.arange(60.0)})


def draw(sample):
    return {"x": sample["x"], "drawn": torch.rand(()).double() + random.random() + np.random.random()}  # noqa: NPY002


class Drawing(H5Dataset):
    def __getitem__(self, index):
        return draw(super().__getitem__(index))


def run(batches, epochs=2):
    """Return what was drawn for the samples, and what a training loop drew meanwhile."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    data, own = [], []
    for _ in range(epochs):
        for batch in batches:
            data.append(torch.stack([batch["x"], batch["drawn"]]).tolist())
            own.append((torch.rand(()).item(), random.random(), np.random.random()))  # noqa: NPY002
    return data, own


HOW = [{"threads": 0}, {"threads": 2}, {"workers": 2}]


def test_the_same_seeds_give_the_same_data_and_the_loop_draws_for_itself(path):
    runs = [run(loader(path, 8, transform=draw, **how)) for how in (*HOW, {}, {})]
    assert all(each == runs[0] for each in runs)
    data, own = runs[0]
    assert len({value for batch in data for value in batch[1]}) == 120
    assert own == run([{"x": torch.zeros(1), "drawn": torch.zeros(1)}] * 8)[1]
    assert run(loader(path, 8, transform=draw, seed=1))[0] != data


def test_a_subclass_and_a_collate_function_draw_in_the_same_way(path):
    expected = run(loader(path, 8, transform=draw))[0]
    for how in HOW:
        assert run(loader(Drawing(path), 8, **how))[0] == expected
    collated = run(loader(path, 8, collate_fn=collate_drawing, threads=2))[0]
    assert collated == expected


def collate_drawing(samples):
    drawn = [draw(sample) for sample in samples]
    return {name: torch.stack([torch.as_tensor(each[name]) for each in drawn]) for name in ("x", "drawn")}


@pytest.mark.parametrize("how", HOW)
def test_a_run_that_goes_on_draws_what_it_would_have_drawn(path, how):
    whole, _ = run(loader(path, 8, transform=draw, **how), epochs=1)
    batches = loader(path, 8, transform=draw, **how)
    running = iter(batches)
    for _ in range(3):
        next(running)
    state = batches.state_dict()
    assert state["rows"] == 24  # what was read ahead does not count
    again = loader(path, 8, transform=draw, **how)
    again.load_state_dict(state)
    assert run(again, epochs=1)[0] == whole[3:]


@pytest.mark.parametrize("how", HOW)
def test_samplers_of_torch_are_repeated_by_their_own_seed(path, how):
    def drawn(seed):
        torch.manual_seed(seed)
        batches = H5DataLoader(H5Dataset(path, transform=draw), 8, shuffle=True, **how)
        return [batch["drawn"].tolist() for batch in batches]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
