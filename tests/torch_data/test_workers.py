"""Worker processes: the same samples by any start method, and nothing that piles up."""

import gc
import itertools
import multiprocessing
import os
import pickle
import random
import re
import signal
from collections import deque
from functools import partial
from pathlib import Path

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ray_h5 import H5DataLoader, H5Dataset, OrderBatchSampler, Sample, loader
from ray_h5.errors import OptionError, UnsupportedColumnError
from ray_h5.system import resident_bytes
from ray_h5.torch_data import CombinedHDF5Dataset, DecodeImage, H5LazyDataset, h5_worker_init_fn
from ray_h5.torch_data.batches.processes import WorkerError
from tests.kit.files import save

from .conftest import error_of, ids_of

# DataLoader advises against more workers than CPUs; here they have to be right, not fast.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Halved(H5Dataset):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "fhr_st": sample["fhr_st"] / 2}


def same(batch, expected):
    return all(
        torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] == value
        for name, value in expected.items()
    )


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(each, marks=pytest.mark.slow) for each in ("forkserver", "spawn"))]
)
def test_all_start_methods_deliver_the_same(files, pairs, method):
    combined, lazy = CombinedHDF5Dataset(files, cs_label=True), H5LazyDataset(pairs, "images", "labels")
    workers = {"num_workers": 1, "multiprocessing_context": method, "worker_init_fn": h5_worker_init_fn}
    for dataset in (combined, lazy):
        expected = list(DataLoader(dataset, batch_size=6))
        _ = dataset[0]  # handles and samples that a fork would inherit
        found = list(DataLoader(dataset, batch_size=6, **workers))
        for batch, other in zip(found, expected, strict=True):
            if dataset is combined:
                assert type(batch) is Sample
                assert same(batch, other)
            else:
                assert all(map(torch.equal, batch, other))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_the_functions_that_collate_samples_can_be_sent_to_a_worker(files, method):
    """A ``collate_fn`` that was given the map of ``default_collate`` takes our entries of it to the worker."""
    dataset = H5Dataset(files, ["fhr_st"])
    default_collate(dataset.__getitems__([0]))  # our entries are made now
    by_map = partial(collate, collate_fn_map=default_collate_fn_map)
    assert pickle.loads(pickle.dumps(by_map)).keywords == by_map.keywords
    batches = DataLoader(dataset, 60, num_workers=1, multiprocessing_context=method, collate_fn=by_map)
    assert [ids_of(batch) for batch in batches] == [list(range(60))]


def as_they_are(samples):
    return samples


@pytest.mark.parametrize("make", [partial(DataLoader, num_workers=1), partial(loader, workers=1, shuffle=False)])
def test_a_worker_sends_samples_that_are_not_collated(files, make):
    dataset = H5Dataset(files, ["fhr_st", "guid"])
    samples = dataset.__getitems__([3, 4])
    assert type(pickle.loads(pickle.dumps(samples))) is list
    found = [sample for batch in make(dataset, batch_size=7, collate_fn=as_they_are) for sample in batch]
    assert len(found) == 60
    for i, sample in enumerate(found):
        assert type(sample) is Sample
        assert same(sample, dataset[i])


def as_it_is(sample):
    return sample


@pytest.mark.parametrize(
    "make",
    [
        lambda data: DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True),
        lambda data: loader(data, 2, workers=1, shuffle=False),
    ],
)
@pytest.mark.parametrize("transform", [None, as_it_is])
def test_batches_that_are_kept_stay_as_they_are(files, make, transform):
    """Shared memory is used again only when nobody looks at it any more."""
    batches = make(H5Dataset(files, ["fhr_st", "fhr", "guid"], transform=transform))
    kept = list(batches)
    views = [batch["fhr_st"][1:, 0] for batch in batches]
    assert sorted(i for batch in batches for i in ids_of(batch)) == list(range(60))
    assert [ids_of(batch) for batch in kept] == [[i, i + 1] for i in range(0, 60, 2)]
    assert [view[0, 3].item() for view in views] == list(range(1, 60, 2))
    kept[0].fhr_st.zero_()
    assert kept[1].fhr_st[0, 0, 0] == 2


def test_slots_of_shared_memory_are_used_again(files):
    dataset = CombinedHDF5Dataset(files, ["fhr_st"])
    for batches in (
        DataLoader(dataset, batch_size=5, num_workers=1, persistent_workers=True),
        loader(H5Dataset(files, ["fhr_st"]), 5, workers=1),
    ):
        places = {batch.fhr_st.data_ptr() for _ in range(4) for batch in batches}
        assert len(places) <= 6


def descriptors(*pids):
    """Return how many descriptors this process and others have open, and how many pieces of memory they share."""
    maps = Path("/proc/self/maps").read_text().count("memfd:")
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in ("self", *pids)), maps


TORCH_BATCHES = partial(DataLoader, num_workers=2, persistent_workers=True)


@pytest.mark.parametrize("make", [TORCH_BATCHES, partial(loader, workers=2, shuffle=False)])
@pytest.mark.parametrize("transform", [None, as_it_is])
def test_epochs_that_are_left_anywhere_leave_nothing_behind(files, make, transform):
    """After 0, 1 or more batches; some of them are kept. The next epoch is whole, and nothing piles up."""
    batches = make(H5Dataset(files, ["fhr_st", "guid"], transform=transform), batch_size=4)
    rng, kept = random.Random(0), deque(maxlen=2)
    next(iter(batches))
    pids = [child.pid for child in multiprocessing.active_children()]
    counts = []
    for epoch in range(60):
        kept.extend(itertools.islice(batches, rng.randrange(9)))
        if epoch % 20 == 0:
            assert [i for batch in batches for i in ids_of(batch)] == [*range(60)]
            counts.append(descriptors(*pids))
    assert {child.pid for child in multiprocessing.active_children()} >= {*pids}  # they are still the same
    assert counts[-1][0] <= counts[0][0] + 4
    assert counts[-1][1] <= counts[0][1] + 2


class Boxes(torch.Tensor):
    """A tensor with a type, and a format beside it."""


def odd_values(samples):
    """Return what transforms may put into a batch, as numbers of the first sample."""
    base = torch.arange(24.0).reshape(2, 3, 4) + samples[0]["x"]
    boxes = base.clone().as_subclass(Boxes)
    boxes.format = "XYXY"
    whole = torch.arange(6)
    return {
        "gradient": base.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(base.clone()),
        "subclass": boxes,
        "dtypes": [
            torch.ones(3).to(dtype)
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.half, torch.complex32)
        ],
        "numbers": [torch.ones(3, dtype=dtype) for dtype in (torch.complex128, torch.bool, torch.uint16, torch.uint64)],
        "large": torch.ones(20_000, dtype=torch.float16),
        "coo": base.to_sparse(),
        "csr": base[0].to_sparse_csr(),
        "nested": torch.nested.as_nested_tensor([base[0], base[1, :2]]),
        "empty": [torch.empty(0), torch.empty(3, 0, dtype=torch.int16)],
        "scalar": [torch.tensor(4.0), 3, 2.5, True, None, "text", b"bytes", 1 + 2j],
        "strides": [base.transpose(0, 2), base[:, ::2], base.expand(5, 2, 3, 4), base[0, 0, 0]],
        "one memory": [whole, whole[2:], whole],
        "arrays": [np.arange(6).reshape(2, 3).T, np.array("text"), np.array([1, "a", None], object), np.float32(2)],
        "read only": np.broadcast_to(np.arange(3), (2, 3)),
        "meta": torch.empty(2, device="meta"),
        "rows": samples[0],
    }


def described(value):
    """Return a value as what compares by all that matters of a tensor."""
    if isinstance(value, torch.Tensor):
        facts = type(value), value.dtype, value.layout, value.requires_grad, getattr(value, "format", None)
        if value.layout is not torch.strided or value.is_nested or value.device.type == "meta":
            values = [] if value.device.type == "meta" or value.is_nested else value.to_dense().tolist()
            values = [described(each) for each in value.unbind()] if value.is_nested else values
            return *facts, tuple(value.size()) if not value.is_nested else (), values
        plain = value.detach().as_subclass(torch.Tensor)
        plain = plain.to(torch.complex64 if plain.is_complex() else torch.float64)
        return *facts, tuple(value.shape), value.stride(), plain.tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return (
            type(value),
            value.dtype,
            value.shape,
            value.tolist(),
            isinstance(value, np.generic) or value.flags.writeable,
        )
    if isinstance(value, dict):
        return type(value), [(name, described(each)) for name, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(each) for each in value]
    return type(value), value


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Sparse", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("make", [partial(DataLoader, num_workers=1, timeout=60), partial(loader, workers=1)])
def test_what_a_worker_sends_is_what_torch_sends(path, make):
    """Types, dtypes, strides and values are those of torch's own path, and tensors of one memory share it."""
    dataset = H5Dataset(path)
    expected = next(iter(DataLoader([dataset[i] for i in range(4)], 4, collate_fn=odd_values, num_workers=1)))
    found = next(iter(make(dataset, batch_size=4, collate_fn=odd_values, shuffle=False)))
    for name in expected:
        assert described(found[name]) == described(expected[name]), name
    found["one memory"][0][3] = 7
    assert [values.tolist() for values in found["one memory"]] == [[0, 1, 2, 7, 4, 5], [2, 7, 4, 5], [0, 1, 2, 7, 4, 5]]


def test_a_loader_with_workers_needs_no_dev_shm(path, monkeypatch):
    def refuse_memory(*_, **__):
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refuse_memory)
    batches = loader(path, 4, transform=as_it_is, workers=1, shuffle=False)
    assert [batch["x"].tolist() for batch in batches] == [[*range(i, i + 4)] for i in range(0, 60, 4)]


def test_a_fork_disturbs_no_iteration(path):
    """A child has copies of loader and iterator: it does not end, read or answer for its parent."""
    batches = loader(path, 4, workers=2, shuffle=False)
    running = iter(batches)
    found = [next(running)["x"].tolist()]

    def child():
        assert type(error_of(running)) is WorkerError
        assert sum(len(batch["x"]) for batch in batches) == 60

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    found += [batch["x"].tolist() for batch in running]
    assert found == [[*range(i, i + 4)] for i in range(0, 60, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_twelve_epochs_leave_nothing_behind(files, workers):
    dataset = CombinedHDF5Dataset(files, cache_size=10)
    loader = DataLoader(
        dataset,
        batch_sampler=OrderBatchSampler(dataset, 8),
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=h5_worker_init_fn,
    )
    before = None
    for epoch in range(12):
        loader.batch_sampler.set_epoch(epoch)
        assert sorted(i for batch in loader for i in ids_of(batch)) == list(range(60))
        if epoch == 3:
            gc.collect()
            before = descriptors()[0], resident_bytes()
    gc.collect()
    assert descriptors()[0] <= before[0] + 2
    assert resident_bytes() < before[1] + (8 << 20)


def fail_at_20(sample):
    if sample["fhr_st"][0, 0] == 20:
        raise UnsupportedColumnError("at 20")
    return sample


def end_process(sample):
    if sample["fhr_st"][0, 0] == 20:
        os._exit(3)
    return sample


def fail_oddly(_sample):
    class OddError(Exception):
        pass

    raise OddError("odd")


class Gone:
    """What cannot be made again where it arrives."""

    def __reduce__(self):
        return refuse, ("gone",)


def refuse(message):
    raise ConnectionResetError(message)


def return_what_is_gone(_sample):
    return Gone()


def return_oddly(sample):
    return lambda: sample


@pytest.mark.parametrize("make", [H5Dataset, Halved])
def test_workers_of_a_loader_make_what_its_threads_make(files, make):
    dataset = make(files, ["fhr_st", "guid"])
    expected = list(loader(dataset, 7, threads=0))
    found = list(loader(dataset, 7, workers=2))
    assert [type(batch) for batch in found] == [type(batch) for batch in expected]
    assert all(same(*both) for both in zip(found, expected, strict=True))


def test_errors_in_workers_are_those_of_threads(files):
    batches = loader(files, 7, columns=["fhr_st"], transform=fail_at_20, workers=2, shuffle=False)
    running = iter(batches)
    assert [ids_of(next(running))[0] for _ in range(2)] == [0, 7]
    with pytest.raises(UnsupportedColumnError, match=r"^at 20(\n|$)") as caught:  # and a note
        next(running)
    assert "in fail_at_20" in str(caught.value.__cause__)
    assert batches.state_dict()["rows"] == 14
    for transform, message in (
        (fail_oddly, "raised .*OddError: odd"),
        (return_oddly, "cannot be sent .* Can't (pickle|get local object)"),
        (return_what_is_gone, "cannot be made again: ConnectionResetError: gone"),
        (end_process, "exit code 3: .*ended while it made batches of 60 samples"),
    ):
        error = error_of(loader(files, 7, columns=["fhr_st"], transform=transform, workers=1, collate_fn=list))
        assert type(error) is WorkerError
        assert re.search(message, str(error))
    with pytest.raises(OptionError, match=r"workers=1: .* expected a batch_size"):
        H5DataLoader(H5Dataset(files), None, workers=1)


def test_a_worker_may_be_killed_at_any_time(files):
    """Batches that it sent arrive. What comes between two epochs is no error: other processes make the next one."""
    batches = loader(files, 7, columns=["fhr_st", "guid"], transform=with_process, workers=1, shuffle=False)
    running = iter(batches)
    (pid,) = processes([next(running)])
    os.kill(pid, signal.SIGKILL)
    error = error_of(running)
    assert type(error) is WorkerError
    assert re.search(r"SIGKILL: .*ended while it made batches of 60 samples", str(error))
    (pid,) = processes(batches)
    os.kill(pid, signal.SIGKILL)
    gone = [process for process in multiprocessing.active_children() if process.pid == pid]
    for process in gone:
        process.join()
    assert [ids_of(batch)[0] for batch in batches] == [*range(0, 60, 7)]


def test_workers_decode_images_and_leave_batches_out(tmp_path):
    path = tmp_path / "images.h5"
    rng = np.random.default_rng(0)
    images = [imagecodecs.png_encode(rng.integers(0, 255, (4, 4, 3)).astype("u1")) for _ in range(12)]
    with h5py.File(path, "w") as file:
        column = file.create_dataset("image", 12, h5py.vlen_dtype("u1"))
        for i, image in enumerate(images):
            column[i] = np.frombuffer(b"no" if 4 <= i < 8 or i == 9 else image, "u1")
        file["label"] = np.arange(12)
    decode = DecodeImage("image", on_error="skip")
    options = {"columns": ["image", "label"], "transform": decode, "shuffle": False}
    batches = loader(path, 4, workers=1, **options)
    found = list(batches)
    assert [batch["label"].tolist() for batch in found] == [[0, 1, 2, 3], [8, 10, 11]]
    assert all(same(*both) for both in zip(found, loader(path, 4, **options), strict=True))


# Processes that stay from epoch to epoch ------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(tmp_path_factory.mktemp("workers") / "a.h5", {"x": np.arange(60)})


def with_process(sample):
    return {**sample, "pid": os.getpid()}


def fail_at_30(sample):
    if sample["x"] == 30:
        raise ValueError("at 30")
    return with_process(sample)


def end_at_30(sample):
    if sample["x"] == 30:
        os._exit(3)
    return with_process(sample)


def processes(batches):
    return {pid for batch in batches for pid in batch["pid"].tolist()}


def test_epochs_have_the_same_processes_and_other_orders(path):
    batches = loader(path, 4, transform=with_process, workers=2)
    rows, pids = [], set()
    for _ in range(3):
        epoch = list(batches)
        rows.append([x for batch in epoch for x in batch["x"].tolist()])
        pids |= processes(epoch)
    assert len(pids) == 2
    assert all(sorted(each) == [*range(60)] for each in rows)
    assert rows[0] != rows[1] != rows[2]
    threads = loader(path, 4)
    assert rows == [[x for batch in threads for x in batch["x"].tolist()] for _ in range(3)]


def test_an_epoch_that_was_left_disturbs_no_other(path):
    batches = loader(path, 4, transform=with_process, workers=2)
    running = iter(batches)
    pids = processes([next(running), next(running)])
    del running
    epoch = list(batches)
    assert sorted(x for batch in epoch for x in batch["x"].tolist()) == [*range(60)]
    assert processes(epoch) == pids


def test_two_epochs_at_once_have_processes_of_their_own(path):
    batches = loader(path, 4, transform=with_process, workers=1)
    pairs = list(zip(batches, batches, strict=True))
    for side in zip(*pairs, strict=True):
        assert sorted(x for batch in side for x in batch["x"].tolist()) == [*range(60)]
    assert not processes(one for one, _ in pairs) & processes(other for _, other in pairs)


def test_what_changes_in_the_loader_reaches_the_processes(path):
    batches = loader(path, 4, workers=1)
    assert "pid" not in next(iter(batches))
    batches.dataset.transform = with_process
    assert len(processes(batches)) == 1


def test_an_error_of_a_transform_keeps_the_processes_and_one_that_ends_is_replaced(path):
    batches = loader(path, 4, transform=fail_at_30, workers=1, shuffle=False)
    running = iter(batches)
    pids = processes([next(running)])
    assert type(error_of(running)) is ValueError
    assert processes([next(iter(batches))]) == pids
    batches = loader(path, 4, transform=end_at_30, workers=1, shuffle=False)
    running = iter(batches)
    pids = processes([next(running)])
    assert type(error_of(running)) is WorkerError
    assert processes([next(iter(batches))]) != pids


@pytest.mark.parametrize("is_left", [False, True])
def test_the_processes_end_with_the_loader(path, is_left):
    """They end by themselves, at once: nothing waits for the garbage collector."""
    batches = loader(path, 4, transform=with_process, workers=2)
    pids = processes(itertools.islice(batches, 2) if is_left else batches)
    workers = [each for each in multiprocessing.active_children() if each.pid in pids]
    gc.disable()
    try:
        del batches
        assert [each.exitcode for each in workers] == [0, 0]
    finally:
        gc.enable()


def test_the_state_of_a_loader_with_workers_is_that_after_the_last_batch_delivered(files):
    whole = [ids_of(batch) for batch in loader(files, 7, columns=["fhr_st"], workers=2)]
    batches = loader(files, 7, columns=["fhr_st"], workers=2)
    running = iter(batches)
    head = [ids_of(next(running)) for _ in range(3)]
    state = batches.state_dict()
    assert state["rows"] == 21
    del running
    resumed = loader(files, 7, columns=["fhr_st"], threads=2)
    resumed.load_state_dict(state)
    assert head + [ids_of(batch) for batch in resumed] == whole
    assert [ids_of(batch) for batch in batches] != whole  # the next epoch


def draw(sample):
    return {"drawn": torch.rand(1)[0].double() + random.random() + np.random.random(), **sample}  # noqa: NPY002


@pytest.mark.slow
def test_random_numbers_in_workers_depend_on_seed_epoch_and_samples_alone(files):
    def drawn(workers, **options):
        batches = loader(files, 7, columns=["fhr_st"], transform=draw, workers=workers, **options)
        return [[batch["drawn"].tolist() for batch in batches] for _ in range(2)]

    one = drawn(1)
    assert drawn(2) == one
    assert one[0] != one[1]
    assert drawn(1, seed=1) != one
