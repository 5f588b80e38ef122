"""Worker processes of a loader stay from epoch to epoch."""

import gc
import multiprocessing
import os
import time

import h5py
import numpy as np
import pytest

from ray_h5.torch_data import loader
from ray_h5.torch_data.batches.processes import WorkerError

from .conftest import error_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("workers") / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(60)
    return path


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
