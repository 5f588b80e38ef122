import contextlib
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_h5 import device
from ray_h5.device import can_pin, to_device
from ray_h5.ray_data.training.collate import TorchCollate
from ray_h5.transforms.sparse_tensors import csr_tensor


class Streams:
    """What `to_device` asks of CUDA, written down in its order; a copy is an event of the side stream."""

    def __init__(self, monkeypatch):
        self.seen, self.copies = [], 0
        side = SimpleNamespace(record_event=self._record)
        current = SimpleNamespace(wait_event=lambda event: self.seen.append(("wait", event)))
        monkeypatch.setattr(torch.cuda, "Stream", lambda _: side)
        monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
        self.recorded = recorded = []
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, _: recorded.append(tensor))
        monkeypatch.setattr(device, "mapped", lambda batch, *_: batch)

    def _record(self):
        self.copies += 1
        self.seen.append(("copied", self.copies))
        return self.copies


def test_a_gpu_waits_for_the_copy_of_its_batch_alone(monkeypatch):
    streams = Streams(monkeypatch)
    for number, batch in enumerate(to_device(({"x": torch.tensor([n])} for n in (1, 2, 3)), torch.device("cuda")), 1):
        streams.seen.append(("step", int(batch["x"])))
        assert number == batch["x"]
    for number in (1, 2, 3):
        copied, waited, stepped = (streams.seen.index((what, number)) for what in ("copied", "wait", "step"))
        assert copied < waited < stepped
    assert len(streams.seen) == 9


def test_each_tensor_of_a_batch_is_recorded_for_the_stream_that_uses_it(monkeypatch):
    streams = Streams(monkeypatch)
    csr = csr_tensor(np.array([0, 1, 2]), np.array([0, 2], "i4"), np.array([1.0, 2.0]), 3)
    plain, inner = torch.zeros(1), torch.ones(1)
    batch = {"csr": csr, "plain": plain, "lists": [[inner, None], "text"], "names": np.array(["a"], object)}
    (found,) = to_device([batch], torch.device("cuda"))
    assert list(found) == list(batch)
    parts = [csr.crow_indices(), csr.col_indices(), csr.values(), plain, inner]
    assert [each.data_ptr() for each in streams.recorded] == [part.data_ptr() for part in parts]


def test_only_copies_to_cuda_go_on_while_the_program_does(monkeypatch):
    """MPS reads the memory later, when the batch may be gone (pytorch/pytorch#189690)."""
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda _, *where, **how: asked.append((where, how)))
    mps = torch.device("mps")
    list(to_device([{"x": torch.zeros(1), "rows": [torch.zeros(1)]}], mps))
    assert asked == [((mps,), {})] * 2


@pytest.mark.parametrize(("kind", "pins"), [("cuda", True), ("xpu", True), ("mps", False), (None, False)])
def test_memory_is_pinned_for_devices_that_copy_from_it(kind, pins, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: kind and torch.device(kind))
    assert can_pin() is pins


def test_compressed_rows_are_pinned_too(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    parts = [pa.array([[0]]), pa.array([[1.0]]), pa.array([3])]
    table = pa.table({"x": pa.StructArray.from_arrays(parts, ["indices", "data", "length"])})
    for dtypes, found in ((None, torch.float64), ("float32", torch.float32)):
        collate = TorchCollate(dtypes, pin_memory=True)
        assert collate(table)["x"].dtype == found
    assert [each.layout for each in pinned] == [torch.sparse_csr] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_have_the_values_of_the_host():
    collate = TorchCollate(pin_memory=True)
    batches = [collate({"x": np.full((256, 1024), n, "f4"), "n": np.arange(256) + n}) for n in range(20)]
    csr = csr_tensor(np.array([0, 1, 2]), np.array([0, 2], "i4"), np.array([1.0, 2.0]), 3)
    batches = [{**batch, "csr": csr.pin_memory(), "lists": [[batch["n"]]]} for batch in batches]
    cuda = torch.device("cuda")
    for number, batch in enumerate(to_device(iter(batches), cuda)):
        assert batch["x"].is_cuda
        assert (batch["x"] == number).all()
        assert torch.equal(batch["lists"][0][0].cpu(), torch.arange(256) + number)
        assert torch.equal(batch["csr"].to_dense().cpu(), csr.to_dense())
