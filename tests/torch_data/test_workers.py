"""Worker processes: the same samples by any start method, and nothing that piles up."""

import gc
import multiprocessing
import os
import pickle
import random
import re
import time
from functools import partial
from pathlib import Path

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ray_h5 import H5DataLoader, H5Dataset, OrderBatchSampler, OrderSampler, Sample, loader
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


def test_batches_that_are_kept_stay_as_they_are(files):
    """Shared memory is used again only when nobody looks at it any more."""
    dataset = CombinedHDF5Dataset(files, ["fhr_st", "fhr", "guid"])
    loader = DataLoader(dataset, batch_size=2, num_workers=1, persistent_workers=True)
    kept = list(loader)
    views = [batch["fhr_st"][1:, 0] for batch in loader]
    assert sorted(i for batch in loader for i in ids_of(batch)) == list(range(60))
    assert [ids_of(batch) for batch in kept] == [[i, i + 1] for i in range(0, 60, 2)]
    assert [view[0, 3].item() for view in views] == list(range(1, 60, 2))
    kept[0].fhr_st.zero_()
    assert kept[1].fhr_st[0, 0, 0] == 2


def test_slots_of_shared_memory_are_used_again(files):
    dataset = CombinedHDF5Dataset(files, ["fhr_st"])
    loader = DataLoader(dataset, batch_size=5, num_workers=1, persistent_workers=True)
    places = {batch.fhr_st.data_ptr() for _ in range(4) for batch in loader}
    assert len(places) <= 12  # six slots, mapped anew at most when no batch was left of the old mapping


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


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
            before = descriptors(), resident_bytes()
    gc.collect()
    assert descriptors() <= before[0] + 2
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
    """What lies in memory of a worker that has ended: it cannot be fetched from there."""

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


# The iterator of torch raises, too, when it is collected after one of its processes ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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
        (return_what_is_gone, "^gone: .*ended while it made batches of 60 samples"),
        (end_process, "ended while it made batches of 60 samples"),
    ):
        error = error_of(loader(files, 7, columns=["fhr_st"], transform=transform, workers=1, collate_fn=list))
        assert type(error) is WorkerError
        assert re.search(message, str(error))
    with pytest.raises(OptionError, match=r"workers=1: .* expected a batch_size"):
        H5DataLoader(H5Dataset(files), None, workers=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_may_end_while_its_batches_are_used(files, monkeypatch):
    counted = OrderSampler.counted

    def slowly(self, batches, count):
        for each in counted(self, batches, count):
            time.sleep(10)  # torch raises here
            yield each

    monkeypatch.setattr(OrderSampler, "counted", slowly)
    error = error_of(loader(files, 7, columns=["fhr_st"], transform=end_process, workers=1, shuffle=False))
    assert type(error) is WorkerError
    assert "ended while it made batches of 60 samples" in str(error)


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


def test_the_processes_end_with_the_loader(path):
    batches = loader(path, 4, transform=with_process, workers=2)
    pids = processes(batches)
    assert pids <= {each.pid for each in multiprocessing.active_children()}
    del batches
    gc.collect()
    deadline = time.monotonic() + 60
    while pids & {each.pid for each in multiprocessing.active_children()} and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not pids & {each.pid for each in multiprocessing.active_children()}


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
