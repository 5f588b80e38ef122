from unittest import mock

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.torch_data import (
    EpochShuffleSampler,
    RankMemCachedH5Dataset,
    _balanced_contiguous_shard,
    _interleaved_indices,
)


def silent(message):
    pass


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shards_part_all_samples_evenly(total, world_size):
    shards = [_balanced_contiguous_shard(total, world_size, rank) for rank in range(world_size)]
    assert [i for start, stop in shards for i in range(start, stop)] == list(range(total))
    sizes = [stop - start for start, stop in shards]
    assert max(sizes) - min(sizes) <= 1
    mixed = [_interleaved_indices(total, world_size, rank) for rank in range(world_size)]
    assert sorted(np.concatenate(mixed).tolist()) == list(range(total))
    assert all((np.diff(each) == world_size).all() for each in mixed)
    assert [len(each) for each in mixed] == sizes


def test_shards_of_no_rank():
    for shard in (_balanced_contiguous_shard, _interleaved_indices):
        for total, world_size, rank in ((5, 2, 2), (5, 0, 0), (-1, 1, 0), (5, 2, -1)):
            with pytest.raises(OptionError, match="from 0 to"):
                shard(total, world_size, rank)
    assert _interleaved_indices(7, 3, 1).dtype.kind == "i"


@pytest.mark.usefixtures("one_process")
class TestInOneProcess:
    def test_samples_are_in_memory(self, pairs):
        said = []
        dataset = RankMemCachedH5Dataset(pairs, "images", "labels", mode="contiguous", log_fn=said.append)
        assert len(dataset) == 50
        x, y = dataset[7]
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert (x[1, 4], y) == (7, 3)
        x.add_(1)  # a copy
        assert dataset[7][0][1, 4] == 7
        assert any("50 samples" in each for each in said)
        assert torch.cuda.is_available() or any("not pinned" in each for each in said)

    @pytest.mark.parametrize("none", [[], slice(0, 0), np.empty(0, np.int64)])
    def test_no_indices_are_an_empty_batch(self, pairs, none):
        alone = RankMemCachedH5Dataset(pairs, "images", log_fn=silent)
        x, y = RankMemCachedH5Dataset(pairs, "images", "labels", log_fn=silent)[none]
        assert (alone[none].shape, alone[none].dtype) == (x.shape, x.dtype) == ((0, *alone[0].shape), alone[0].dtype)
        assert y.shape == (0,)

    @pytest.mark.parametrize("share", [False, True])
    def test_batches(self, pairs, share):
        dataset = RankMemCachedH5Dataset(
            pairs, "images", "labels", dtype_x=np.float16, dtype_y=np.int32, share_memory=share, log_fn=silent
        )
        assert dataset.x.is_shared() is share
        sampler = EpochShuffleSampler(data_len=len(dataset), seed=42, shuffle=True)
        loader = DataLoader(dataset, batch_size=16, sampler=sampler, pin_memory=False)
        orders = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            orders.append([])
            for inputs, targets in loader:
                assert (inputs.dtype, targets.dtype) == (torch.float16, torch.int32)
                assert torch.equal(inputs[:, 0, 0].int() % 4, targets)
                orders[-1] += inputs[:, 0, 0].int().tolist()
        assert orders[0] != orders[1]
        assert sorted(orders[0]) == sorted(orders[1]) == list(range(50))

    def test_inputs_alone_and_transforms(self, pairs):
        dataset = RankMemCachedH5Dataset(pairs, "images", None, transform=lambda x: x.sum(), log_fn=silent)
        assert next(iter(DataLoader(dataset, batch_size=4))).tolist() == [0, 10, 20, 30]
        plain = RankMemCachedH5Dataset(pairs, "images", log_fn=silent)
        assert plain.y is None
        assert next(iter(DataLoader(plain, batch_size=4)))[:, 0, 0].tolist() == [0, 1, 2, 3]
        both = RankMemCachedH5Dataset(pairs, "images", "labels", target_transform=lambda y: y + 1, log_fn=silent)
        assert both[2][1] == 3

    def test_transforms_get_copies(self, pairs):
        dataset = RankMemCachedH5Dataset(pairs, "images", transform=lambda x: x.add_(1), log_fn=silent)
        for _ in range(3):
            assert dataset[4][0, 0] == 5
            assert next(iter(DataLoader(dataset, batch_size=4)))[:, 0, 0].tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize(("world_size", "rank", "length"), [(3, 0, 17), (3, 2, 16), (5, 1, 10)])
    def test_shards_of_several_lengths_say_so(self, pairs, monkeypatch, world_size, rank, length):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        said = []
        dataset = RankMemCachedH5Dataset(pairs, "images", log_fn=said.append)
        assert (len(dataset), dataset.common_length) == (length, 50 // world_size)
        assert any("50 samples do not divide among 3 ranks" in each for each in said) is (world_size == 3)

    @pytest.mark.parametrize("mode", ["contiguous", "interleave"])
    def test_it_knows_its_rows(self, pairs, monkeypatch, mode):
        """Each rank's samples are augmented otherwise, as their rows are others."""
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
        seen = []
        for rank in range(3):
            monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
            dataset = RankMemCachedH5Dataset(pairs, "images", mode=mode, log_fn=silent)
            rows = dataset.row_ids(range(len(dataset)))
            assert rows.tolist() == dataset.x[:, 0, 0].tolist()
            seen += rows.tolist()
        assert sorted(seen) == list(range(50))

    def test_it_equals_what_h5py_reads(self, pairs):
        for mode in ("contiguous", "interleave"):
            dataset = RankMemCachedH5Dataset(pairs, "nested/scores", "bytes", mode=mode, dtype_x=None, log_fn=silent)
            with h5py.File(pairs) as file:
                assert dataset.x.dtype == torch.float64
                np.testing.assert_array_equal(dataset.x.numpy(), file["nested/scores"][:])
                np.testing.assert_array_equal(dataset.y.numpy(), file["bytes"][:])

    @pytest.mark.parametrize(
        ("option", "says"),
        [("x_dtype", "dtype_x"), ("aux_keys", "H5Dataset"), ("restrict_to_indices", "predicate=")],
    )
    def test_options_that_went_say_what_to_write(self, pairs, option, says):
        with pytest.raises(OptionError, match=rf"there is no option '{option}'\. .*{says}"):
            RankMemCachedH5Dataset(pairs, "images", **{option: None})

    def test_pinning_falls_back(self, pairs, monkeypatch):
        said = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        refused = RuntimeError("cannot lock so much memory\nat some line of C++")
        monkeypatch.setattr(torch, "empty_like", mock.Mock(side_effect=refused))
        dataset = RankMemCachedH5Dataset(pairs, "images", log_fn=said.append)
        assert dataset[3][0, 0] == 3
        assert "pin_host_memory: cannot lock so much memory; the memory is not pinned" in said

    def test_bad_input(self, pairs):
        with pytest.raises(OptionError, match="mode='stripes': expected one of 'contiguous', 'interleave'"):
            RankMemCachedH5Dataset(pairs, "images", mode="stripes")
        with pytest.raises(UnsupportedColumnError, match="a tensor holds numbers"):
            RankMemCachedH5Dataset(pairs, "names", dtype_x=None, log_fn=silent)
        dataset = RankMemCachedH5Dataset(pairs, "images", log_fn=silent)
        for index in (50, -51):
            with pytest.raises(IndexError, match="rank 0: index"):
                dataset[index]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("one_process")
def test_pinned_on_a_gpu_machine(pairs):
    dataset = RankMemCachedH5Dataset(pairs, "images", "labels", log_fn=silent)
    assert dataset.x.is_pinned()
    inputs, _ = next(iter(DataLoader(dataset, batch_size=4)))
    assert inputs.is_pinned()
    assert torch.equal(inputs.cuda(non_blocking=True).cpu(), dataset.x[:4])
