"""Values that are drawn: each epoch has others, however a column is made of them, and no rows are chosen by them."""

import logging

import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

from ray_h5 import Grid, Groups, Shuffle, Windows, any_equal, balance, between, kfold, part, ragged
from ray_h5.errors import OptionError, PredicateError
from ray_h5.hash_and_permute import below
from ray_h5.index.file_options import FileOptions
from ray_h5.torch_data import H5Dataset, OrderSampler, Patches, loader, where
from tests.kit.files import save

WIDE = np.arange(40 * 60).reshape(40, 60)


@pytest.fixture
def path(tmp_path):
    groups = {f"g{i:02}/{name}": WIDE[4 * i : 4 * i + 4] for i in range(10) for name in ("x", "y")}
    ends = {"flat": WIDE.reshape(-1), "ends": 60 * np.arange(1, 41), "odd": np.cumsum([5, 115] * 20)}
    return save(tmp_path / "a.h5", {"x": WIDE, "y": np.arange(40), "z": np.float32(3), **ends, **groups})


MADE = {
    "part": ({"d": part("x", random=1), "y": "y"}, {}),
    "ragged": ({"d": part(ragged("flat", ends="ends"), random=1), "y": "y"}, {}),
    "window": ([part("x", random=1), "d", "y"], {"windows": Windows({"d": ("x", [0])})}),
    "groups": ({"d": part("x", {1: [0]}, random=1), "y": "y"}, {"rows": Groups("g*")}),
    "window of groups": ([part("x", random=1), "d"], {"windows": Windows({"d": ("x", [0])}), "rows": Groups("g*")}),
    "grid": ({"d": part("x", random=1), "y": "y"}, {"rows": Grid(1, of={"x": (0,)})}),
    "blocks": (["x", "corner"], {"rows": Patches({"x": (1, 1)}, per_file=40)}),
    "channels of a grid": ({"d": part("x", random=1)}, {"rows": Patches({"x": (1,)}, axes={"x": (1,)})}),
}


@pytest.mark.parametrize("how", MADE)
def test_what_is_made_of_drawn_values_is_drawn(path, how):
    columns, options = MADE[how]
    drawn = "x" if how == "blocks" else "d"
    specs = FileOptions.of(path, columns=columns, **options).index().columns
    assert {name for name, spec in specs.items() if spec.type.drawn} == {"x", "d", "corner"} & {*specs}
    batches = loader(path, 40, columns=columns, shuffle=False, **options)
    epochs = [np.concatenate([np.ravel(batch[drawn]) for batch in batches]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    batches.set_epoch(0)
    assert np.concatenate([np.ravel(batch[drawn]) for batch in batches]).tolist() == epochs[0]
    for make in (
        lambda: H5Dataset(path, columns, where(**{drawn: between(0, 50)}), **options),
        lambda: H5Dataset(path, columns, where(**{drawn: [1, 2]}), **options),
        lambda: H5Dataset(path, columns, where(**{drawn: any_equal(3)}), **options),
        lambda: loader(path, 4, columns=columns, shuffle=Shuffle(weights=balance(drawn)), **options),
        lambda: loader(path, 4, columns=columns, shuffle=Shuffle(weights=drawn), **options),
        lambda: kfold(path, 2, group=drawn, columns=columns, **options),
        lambda: kfold(path, 2, stratify=drawn, columns=columns, **options),
        lambda: H5Dataset(path, columns, labels={drawn: "auto"}, **options),
    ):
        with pytest.raises((PredicateError, OptionError), match=f"'{drawn}'.* is drawn"):
            make()


def test_what_is_not_drawn_chooses_rows_beside_it(path):
    assert len(H5Dataset(path, MADE["part"][0], where(y=between(3, 5)))) == 3
    lengths = Shuffle(by_length="flat", batch_values=70)  # a draw of a row has as many values as another
    batches = loader(path, 40, columns=[part(ragged("flat", ends="odd"), random=7)], shuffle=lengths, pad=True)
    assert {batch["flat"].shape[1] for batch in batches} == {5, 7}
    blocks = {"rows": Patches({"x": (1, 1)}, per_file=5, key="file")}
    dataset = H5Dataset(path, ["file", "z"], where(file="a", z=3), **blocks)
    assert (len(dataset), dataset.is_drawn, H5Dataset(path, ["x", "file"], **blocks).is_drawn) == (5, False, True)


def test_a_sampler_that_counts_no_epochs_is_warned_of(path, caplog):
    dataset = H5Dataset(path, ["x"], rows=Patches({"x": (2, 2)}, per_file=6))
    with caplog.at_level(logging.WARNING, "ray_h5"):
        dataset[[1, 2]]
        for sampled in (H5Dataset(path, ["x"], rows=Patches({"x": (2, 2)}, per_file=5)), H5Dataset(path, ["x"])):
            list(DataLoader(sampled, 3, sampler=OrderSampler(sampled)))
        list(loader(dataset, 3))
        assert not caplog.records
        for of in (
            H5Dataset(path, ["x"], rows=Patches({"x": (2, 2)}, per_file=7)),
            Subset(H5Dataset(path, ["x"], rows=Patches({"x": (3, 2)}, per_file=4)), [0, 3]),
        ):
            caplog.clear()
            batches = DataLoader(of, 3, shuffle=True)
            for _ in range(2):
                list(batches)
            assert [record.getMessage().count("OrderSampler(dataset)") for record in caplog.records] == [1]


@pytest.mark.parametrize("bound", [1, 7, 2**32 - 1, 2**32, 3 * 2**32 + 5, 2**62 + 1])
def test_numbers_below_a_bound_are_uniform(bound):
    words = np.random.default_rng(0).integers(0, 2**64, 3000, np.uint64)
    found = below(words, bound)
    bits = 32 if bound < 2**32 else 64
    assert found.tolist() == [(int(word) >> 64 - bits) * bound >> bits for word in words]
    mixed = below(words[:, None], np.array([5, bound]))
    assert (mixed[:, 0].tolist(), mixed[:, 1].tolist()) == (below(words, 5).tolist(), found.tolist())


@pytest.mark.parametrize(("rows", "count"), [(10, 7), (10, 4), (10, 5), (10, 10), (10, 13)])
def test_a_row_that_an_epoch_has_twice_is_drawn_twice(tmp_path, rows, count):
    path = save(tmp_path / "a.h5", {"x": np.arange(rows * 5000).reshape(rows, 5000)})
    shuffle = Shuffle("rows", 3, rows_per_epoch=count)
    batches = loader(path, count, columns=[part("x", random=1)], shuffle=shuffle)
    drawn = [value for _ in range(5) for batch in batches for value in batch["x"].ravel().tolist()]
    assert len({*drawn}) > len(drawn) - 3  # of 5000 entries a row
    order = batches.dataset.epoch_order(shuffle)
    for epoch in range(5):
        positions = np.arange(count)
        pairs = zip(
            order.selected_indices(positions, epoch).tolist(), order.draw_numbers(positions, epoch), strict=True
        )
        assert len({*pairs}) == count


@pytest.mark.parametrize("beside", [["x"], ["corner"], ["x", "corner", "y"]])
def test_a_draw_does_not_depend_on_what_else_is_read(path, beside):
    """A part of each block's target is drawn by row and epoch, whether or not the blocks are read with it."""
    blocks, epochs = {"rows": Patches({"x": (1, 1)}, per_file=5)}, []
    for others in ([], beside):
        columns = {"d": part("flat", random=3), **{name: name for name in others}}
        batches = loader(path, 5, columns=columns, shuffle=False, **blocks)
        epochs.append([[batch["d"].tolist() for batch in batches] for _ in range(3)])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1] != epochs[0][2]
