"""The bench of GPUs, on a CPU: all of it but the calls of CUDA, and the trainer, which `bench train` runs, too."""

import contextlib

import pytest
import torch

from ray_h5.errors import OptionError
from tests.bench import BENCHES, BenchOptions, measure
from tests.bench.cases import gpu
from tests.bench.training import sending, steps
from tests.benchkit import one_turn

CPU = torch.device("cpu")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(gpu, "_STEPS_S", {0.0002: 0.01})
    monkeypatch.setattr(gpu, "cpu_count", lambda: 1)
    monkeypatch.setattr(gpu, "_LARGE_BATCH", 128)
    # These take seconds on a busy machine, and only matter for figures.
    monkeypatch.setattr(measure.os, "sync", lambda: None)
    monkeypatch.setattr(measure.gc, "collect", lambda: None)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_bench_gpu_measures_waiting_copies_and_what_is_sent(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(gpu, "ray_session", lambda _: contextlib.nullcontext())
    waits = {0.0002: [(0.5, 0.2), (0.5, 0.3)]}
    monkeypatch.setattr(gpu, "waits_of_workers", lambda *given: asked.append(given) or waits)
    found = gpu.bench_gpu(one_turn(0.005, tmp_path), CPU)
    assert [(each.case, each.baseline, each.unit) for each in found] == [
        ("signals, batches of 64, copies", "one pinned copy", "GB/s"),
        ("signals, batches of 64, copies", "pageable", "GB/s"),
        ("signals, batches of 128, copies", "one pinned copy", "GB/s"),
        ("signals, batches of 128, copies", "pageable", "GB/s"),
        ("cells, compressed rows", "dense", "rows/s"),
        ("cells, compressed rows, sent", "dense", "B/row"),
        ("images, uint8", "float32", "rows/s"),
        ("images, uint8, sent", "float32", "B/row"),
        ("loader, steps of 0.2 ms: waiting", "-", "share"),
        ("loader, one ahead, steps of 0.2 ms: waiting", "-", "share"),
        ("DataLoader, 1 workers, steps of 0.2 ms: waiting", "-", "share"),
        ("train_batches, steps of 0.2 ms: waiting", "-", "share"),
    ]
    by_case = {each.case: each for each in found}
    assert by_case["cells, compressed rows, sent"].ratio > 10
    assert by_case["images, uint8, sent"].ratio == 4
    assert by_case["train_batches, steps of 0.2 ms: waiting"].ours == 0.25
    assert not by_case["train_batches, steps of 0.2 ms: waiting"].ok
    assert all(0 <= each.ours <= 1 for each in found if each.unit == "share")
    assert asked[0][-1].num_workers == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_bench_gpu_says_what_it_lacks():
    with pytest.raises(OptionError, match="bench gpu: torch finds no CUDA device here"):
        BENCHES["gpu"](BenchOptions())


def test_waiting_is_what_no_step_takes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(steps.time, "perf_counter", lambda: now[0])

    def passed(seconds):
        now[0] += seconds

    def batches():
        for waits in (3, 1, 0):
            passed(waits)
            yield None
        passed(1)

    assert steps.waits_of(batches(), lambda _: passed(2), CPU) == (3, 2 / 8)
    assert steps.waits_of(iter(()), passed, CPU) == (0, 0)


def test_values_that_differ_on_the_device_are_an_error():
    class Rows:
        dataset = range(2)

        def set_epoch(self, epoch):
            assert epoch == 0

        def __iter__(self):
            return iter([{"x": torch.ones(2, 3)}])

    one, other = (sending.Sent(name, Rows(), "x", lambda sent, by=by: by * sent) for by, name in ((1, "a"), (2, "b")))
    with pytest.raises(RuntimeError, match="rows: a leads to other values than b"):
        sending.against_used("rows", one, other, CPU, 1)


def test_a_step_multiplies_for_as_long_as_was_asked(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(steps.time, "perf_counter", lambda: now[0])

    class Counted(steps.Multiply):
        def _multiply(self):
            now[0] += 0.001 * self._repeats
            return super()._multiply()

    step = Counted(0.02, CPU)
    assert step._repeats == 20
    step(None)
