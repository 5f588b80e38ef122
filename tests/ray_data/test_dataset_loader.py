"""`loader(ds, 64)`: a dataset of `read_h5` is read in threads of this process."""

import itertools

import pytest
import ray
import torch

import ray_h5
from ray_h5 import Shuffle, loader, set_epoch, where
from ray_h5.errors import OptionError
from ray_h5.loading import cursor
from tests.ray_data.kit import ids_of, write_chunked
from tests.ray_data.training.test_reading import assert_same
from tests.torch_data.batches.test_batcher import ADDED, KINDS, SHUFFLES, check_same, epochs_of, write_kinds

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.fixture
def ds(tmp_path):
    options = {"columns": ["x", "label", "guid"], "include_row_ids": True, "include_row_keys": True, "block_rows": 16}
    return ray_h5.read_h5(write_chunked(tmp_path), shuffle=Shuffle("auto", 7), **options)


def ids(batches):
    return [row for batch in batches for row in batch["row_id"].tolist()]


def test_it_has_the_filters_columns_functions_and_epochs_of_the_dataset(ds):
    ds = ds.filter(expr=where(label=[0, 1])).select_columns(["row_id", "row_key", "x"])
    ds = ds.map_batches(ray_h5.GaussianNoise("x"))
    made = loader(ds, 8, threads=1)
    assert len(made) == 13
    for epoch in range(2):
        set_epoch(ds, epoch)
        batches = list(made)
        expected = list(ds.iter_torch_batches(batch_size=8, collate_fn=ray_h5.TorchCollate()))
        assert_same(batches, expected)
    assert len(list(loader(ds, 8, drop_last=True))) == 12


def test_it_resumes(ds):
    made = loader(ds, 8)
    made.set_epoch(3)
    begun = ids(itertools.islice(made, 5))
    state = made.state_dict()
    assert (state["epoch"], state["rows"]) == (3, 40)
    other = loader(ds, 8)
    other.load_state_dict(state)
    assert other.state_dict() == state
    rest = ids(other)
    set_epoch(ds, 3)
    assert begun + rest == ids_of(ds)
    assert other.state_dict()["epoch"] == 4
    set_epoch(ds, 3, state)
    assert ids_of(ds) == rest


def test_it_begins_where_the_dataset_does(ds):
    set_epoch(ds, 5)
    made = loader(ds, 8)
    assert made.state_dict()["epoch"] == 5
    begun = ids(itertools.islice(made, 3))
    state = made.state_dict()
    assert (state["epoch"], state["rows"]) == (5, 24)
    set_epoch(ds, 5, state)
    rest = loader(ds, 8)
    assert rest.state_dict() == state
    rest = ids(rest)
    set_epoch(ds, 5)
    assert begun + rest == ids_of(ds)


def test_ranks_share_an_epoch(ds):
    shares = [ids(loader(ds, 8, rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(150))
    with pytest.raises(OptionError, match="Pass world_size= too"):
        loader(ds, 8, rank=1)


def test_what_it_cannot_read_says_so(ds):
    for other in (ds.map_batches(lambda batch: batch), ds.union(ds), ds.limit(3), ray.data.range(8)):
        with pytest.raises(OptionError, match=r"cannot be read without tasks of Ray: .*Write ds\."):
            loader(other, 8)
    for options in (
        {"shuffle": False},
        {"seed": 3},
        {"workers": 2},
        {"collate_fn": torch.stack},
        {"columns": ["x"]},
        {"device": "nowhere"},
    ):
        with pytest.raises(OptionError):
            loader(ds, 8, **options)


@pytest.mark.parametrize(
    ("options", "rows", "lost", "warns"),
    [
        ({}, 76, 0, False),
        ({"drop_last": True}, 72, 7, False),  # 75 rows of each, in whole batches
        ({"tail": "pad", "tail_rows": 3}, 76, 0, True),  # of 153, of which the last one has come before
        ({"tail": "drop", "tail_rows": 149}, 74, 3, True),
    ],
)
def test_rows_that_do_not_divide_among_ranks_come_again_or_are_spoken_of(tmp_path, options, rows, lost, warns, caplog):
    drop_last, paths = options.pop("drop_last", False), write_chunked(tmp_path, (50, 101))
    added = {"include_row_ids": True, "include_padding": True}
    ds = ray_h5.read_h5(paths, columns=["x"], shuffle=Shuffle("auto", 7), **added, **options)
    made = [loader(ds, 8, rank=rank, world_size=2, drop_last=drop_last) for rank in range(2)]
    epoch = [list(batches) for batches in made]
    shares = [ids(batches) for batches in epoch]
    again = torch.cat([batch["is_padding"] for share in epoch for batch in share]).sum()
    assert again == 2 * rows - len({*shares[0], *shares[1]})  # those alone that came before are marked
    assert any(ds.to_pandas()["is_padding"]) == (options.get("tail") == "pad")
    assert [len(share) for share in shares] == [rows] * 2
    assert [len(batches) for batches in made] == [-(-rows // 8)] * 2
    assert len(set(range(151)) - {*shares[0], *shares[1]}) == lost
    assert ("do not divide among 2 workers" in caplog.text) == warns
    state = made[0].state_dict()  # of the next epoch
    assert (state["epoch"], state["rows"]) == (1, 0)


def test_it_has_the_rank_of_the_epoch_that_begins(ds, monkeypatch):
    """A framework initialises torch.distributed after a loader is made, and may end it."""
    made = loader(ds, 8)
    for world_size in (1, 2, 3):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda world_size=world_size: world_size)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda world_size=world_size: world_size - 1)
        assert len(made) == -(-(150 // world_size) // 8)
        made.set_epoch(0)
        assert len(ids(made)) == 150 // world_size


def test_ranks_that_drew_seeds_of_their_own_are_told(ds, monkeypatch, tmp_path):
    """A dataset that ranks got from one process has one seed, also a drawn one."""
    drawn = [ray_h5.read_h5(ds.input_files(), shuffle=True, include_row_ids=True) for _ in range(2)]
    shares = [ids(loader(drawn[0], 8, rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(150))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        for rank, each in enumerate((drawn[0], drawn[0], drawn[1])):
            monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank % 2)
            cursor._BEGUN.clear()
            if rank < 2:
                assert ids(loader(each, 8)) == shares[rank]
            else:
                with pytest.raises(OptionError, match=r"orders of their own: seed \d+ on rank 0, seed \d+ on rank 0"):
                    ids(loader(each, 8))
    finally:
        torch.distributed.destroy_process_group()


def test_iterations_count_for_themselves(ds):
    made = loader(ds, 8)
    first, second = iter(made), iter(made)
    begun = ids(itertools.islice(first, 2))
    assert made.state_dict()["rows"] == 16
    assert ids(itertools.islice(second, 1)) != begun[:8]
    assert (made.state_dict()["epoch"], made.state_dict()["rows"]) == (1, 8)
    next(first)
    assert (made.state_dict()["epoch"], made.state_dict()["rows"]) == (0, 24)
    state = made.state_dict()
    for _ in range(2):  # as frameworks do after they have loaded a state
        made.load_state_dict(state)
        made.set_epoch(0)
        assert made.state_dict() == state
    assert len(ids(made)) == 150 - 24


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_loader_of_files(tmp_path, kind):
    """In training workers and by tasks; with padding, paths, ids, keys and steps."""
    paths = f"{write_kinds(tmp_path)}/*.h5"
    options = {"columns": ["x", "y"], **KINDS[kind], **ADDED}
    of_ray = {name: value for name, value in options.items() if name not in {"pad", "predicate"}}
    for shuffle in map(SHUFFLES.get, ("chunks", "weights") if kind == "rows" else ("chunks",)):
        ds = ray_h5.read_h5(paths, shuffle=shuffle, tail="pad", tail_rows=3, **of_ray)
        ds = ds.filter(expr=options["predicate"]) if "predicate" in options else ds
        for rank in range(3):
            expected = epochs_of(
                loader(paths, 16, shuffle=shuffle, rank=rank, world_size=3, include_padding=True, **options), 1
            )
            made = loader(ds, 16, rank=rank, world_size=3, pad=options.get("pad"))
            batches = epochs_of(made, 1)
            assert {*batches[0]} == {*expected[0]}
            check_same(batches, expected)
        set_epoch(ds, 1)
        collate = ray_h5.TorchCollate(padding=options.get("pad"))
        whole = epochs_of(loader(ds, 16, pad=options.get("pad")), 1)
        check_same(ds.iter_torch_batches(batch_size=16, collate_fn=collate), whole)
