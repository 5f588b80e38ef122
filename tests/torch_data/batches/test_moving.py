import collections
import copy
import pickle
import threading

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ray_h5.errors import OptionError
from ray_h5.torch_data import H5DataLoader, H5Dataset, Sample, create_optimized_dataloader, loader
from tests.ray_data.training.test_device import Streams

META = torch.device("meta")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("moving") / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(40, dtype="f4").reshape(20, 2)
        file["y"] = np.arange(20)
        file["name"] = np.array([f"n{i}" for i in range(20)], dtype=h5py.string_dtype())
    return path


def test_all_tensors_of_a_batch_move_and_text_stays(path):
    batch = next(iter(loader(path, 4, shuffle=False)))
    moved = batch.to(META, non_blocking=True)
    assert type(moved) is Sample
    assert {name: moved[name].device for name in "xy"} == {"x": META, "y": META}
    assert (moved.y.dtype, moved.y.shape) == (torch.int64, (4,))
    assert moved.name is batch.name
    assert batch.x.device.type == "cpu"
    assert next(iter(loader(path, 4))).to("cpu").x.device.type == "cpu"


def test_a_collate_function_keeps_its_type(path):
    assert type(next(iter(loader(path, 4, collate_fn=list)))) is list
    assert type(next(iter(loader(path, 4, collate_fn=dict.fromkeys, transform=lambda s: int(s.y))))) is dict


def test_containers_keep_what_else_they_are():
    held = collections.defaultdict(list, a=torch.zeros(1))
    texts = ["a", ["b"], ("c",)]
    moved = Sample(held=held, texts=texts, nested=Sample(x=torch.zeros(2)), none=None, packed=_packed()).to(META)
    assert moved.held["a"].device == META
    assert moved.held["new"] == []
    assert moved.texts is texts
    assert type(moved.nested) is Sample
    assert moved.nested.x.device == META
    assert moved.none is None
    assert moved.packed.data.device == META


def _packed():
    return torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])


def test_batches_of_other_loaders_move_too(path):
    dataset = H5Dataset(path)
    for batches in (
        DataLoader(dataset, 4),
        DataLoader(dataset, 4, num_workers=1),
        DataLoader(dataset, batch_size=None),
    ):
        assert next(iter(batches)).to(META).x.device == META
    assert next(iter(create_optimized_dataloader(path, 4))).to(META).x.device == META


def test_moved_batches_are_copied_and_pickled(path):
    for transform in (None, lambda sample: (sample.x, sample.y)):
        batch = next(iter(loader(path, 4, transform=transform)))
        for again in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), copy.copy(batch)):
            assert type(again) is type(batch)
            assert again.to(META)[0 if transform else "x"].device == META


def test_without_a_device_nothing_is_pinned(path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    batch = next(iter(loader(path, 4)))
    assert batch.pin_memory() is batch


def test_pinning_goes_through_all_containers(monkeypatch):
    """The recursion, on machines without a device: only torch's own call needs one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    batch = Sample(x=torch.zeros(2), nested=[torch.zeros(1), {"a": (torch.zeros(1), "t")}], text=["a", "b"])
    pinned = batch.pin_memory()
    assert pinned.x.tolist() == [1, 1]
    assert pinned.nested[0] == pinned.nested[1]["a"][0] == 1
    assert pinned.text is batch.text
    assert batch.x.tolist() == [0, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_on_a_gpu_machine(path):
    pinned = next(iter(loader(path, 4))).pin_memory()
    assert pinned.x.is_pinned()
    assert pinned.to("cuda", non_blocking=True).y.is_cuda
    assert next(iter(DataLoader(H5Dataset(path), 4, num_workers=1, pin_memory=True))).x.is_pinned()


@pytest.mark.slow
def test_frameworks_move_them(path):
    send = pytest.importorskip("accelerate.utils").send_to_device
    move = pytest.importorskip("lightning.fabric.utilities").move_data_to_device
    for transform in (None, lambda sample: (sample.x, sample.y)):
        batch = next(iter(loader(path, 4, shuffle=False, transform=transform)))
        for moved in (send(batch, META, non_blocking=True), move(batch, META)):
            assert type(moved) is type(batch)
            assert all(value.device == META for value in (moved if transform else [moved.x, moved.y]))


def test_a_dtype_is_that_of_floats_as_in_a_module(path):
    batch = next(iter(loader(path, 4)))
    for moved in (batch.to(torch.float16), batch.to("cpu", torch.float16), batch.to(dtype=torch.float16)):
        assert (moved.x.dtype, moved.y.dtype) == (torch.float16, torch.int64)
    assert torch.equal(batch.to().x, batch.x)


def test_a_loader_moves_its_batches(path, monkeypatch):
    monkeypatch.setattr("ray_h5.torch_data.h5_data_loader.as_device", torch.device)
    dataset = H5Dataset(path)
    for options in ({}, {"threads": 0}, {"workers": 1}, {"transform": lambda sample: sample}):
        transform = options.pop("transform", None)
        made = loader(H5Dataset(path, transform=transform) if transform else dataset, 8, device="meta", **options)
        batches = list(made)
        assert [len(batch.x) for batch in batches] == [8, 8, 4]
        assert {batch[name].device for batch in batches for name in "xy"} == {META}
        assert all(type(batch) is Sample and type(batch.name) is list for batch in batches)
        next(iter(made))
        assert made.state_dict()["rows"] == 8  # and not those that are on their way
    collated = loader(dataset, 8, device="meta", collate_fn=lambda samples: (len(samples), samples[0].x))
    assert [(count, x.device) for count, x in collated] == [(8, META), (8, META), (4, META)]
    assert next(iter(H5DataLoader(dataset, None, device="meta"))).x.device == META


def test_functions_of_a_user_run_where_batches_are_asked_for(path, monkeypatch):
    """Also where copies run ahead: they draw from the generators that the training loop draws from."""
    monkeypatch.setattr("ray_h5.torch_data.h5_data_loader.as_device", torch.device)
    streams, threads = Streams(monkeypatch), set()
    dataset = H5Dataset(path, transform=lambda sample: threads.add(threading.get_ident()) or sample)
    for batch in loader(dataset, 8, device="cuda"):
        streams.seen.append(("step", len(batch.x)))
    assert threads == {threading.get_ident()}
    assert streams.copies == 3
    assert len(streams.recorded) == 6


def test_a_device_that_is_not_there_is_named(path):
    with pytest.raises(OptionError, match=r"device='nowhere': .*Expected 'auto', the accelerator that torch finds"):
        loader(path, 4, device="nowhere")
    with pytest.raises(OptionError, match="device='meta': it holds no values"):
        loader(path, 4, device="meta")
    expected = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert next(iter(loader(path, 4, device="auto"))).x.device.type == expected.type
