"""What processes tell each other about epochs outlives each of them, and is between the processes of one job."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import ray
from ray import tune

import ray_h5
from ray_h5 import Shuffle, set_epoch
from ray_h5.errors import OptionError
from ray_h5.ray_data.epochs.job_store import JobStore
from ray_h5.ray_data.epochs.set_epoch import running_epoch
from ray_h5.ray_data.internals.cluster import stored_keys
from tests.index.kit import plan_files
from tests.ray_data.kit import ids_of, write_chunked

pytestmark = [pytest.mark.usefixtures("ray_local"), pytest.mark.slow]
SHUFFLE = Shuffle("rows", 7)


@pytest.fixture
def paths(tmp_path):
    return write_chunked(tmp_path)


def read(paths, name):
    return ray_h5.read_h5(paths, columns=["x"], shuffle=SHUFFLE, include_row_ids=True, block_rows=32, name=name)


def order_of(paths, epoch):
    _, plan = plan_files(paths, columns=["x"], shuffle=SHUFFLE)
    return plan.at(np.arange(plan.num_rows), epoch).tolist()


@ray.remote(num_cpus=0)
class Process:
    """A process of the job that has a dataset, made there or elsewhere."""

    def read(self, paths, name):
        self.ds = read(paths, name)

    def take(self, ds):
        self.ds = ds

    def set(self, name, epoch):
        set_epoch(name, epoch)

    def ids(self):
        return ids_of(self.ds)

    def train(self, name, epoch, workers):
        """Do as the worker of a trainer does; return its rows, and the epoch that it knows to be in."""
        import torch  # here: the processes of other tests need not import it

        from ray_h5.ray_data.training.train_batches import TrainBatches

        (shard,) = ray_h5.data_config(datasets_to_split=workers).configure({name: self.ds}, 1, None, None)
        batches = TrainBatches(shard[name], name, epoch, None, torch.device("cpu"), {"batch_size": 10})
        ids = []
        for batch in batches:
            ids += batch["row_id"].tolist()
            time.sleep(0.02)
        return ids, batches.position().epoch

    def die(self):
        os._exit(1)


def ended(process):
    process.die.remote()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(process.ids.remote())


def test_names_outlive_the_process_that_read_the_first(paths):
    first, second = Process.remote(), Process.remote()
    ray.get(first.read.remote(paths, "of the first"))
    ray.get(second.read.remote(paths, "of the second"))
    ds = read(paths, "of the driver")
    ended(first)
    ray.get(second.set.remote("of the driver", 2))
    set_epoch("of the second", 3)
    assert ids_of(ds) == order_of(paths, 2)
    assert running_epoch("of the driver").start.epoch == 2
    assert ray.get(second.ids.remote()) == order_of(paths, 3)
    assert len(ids_of(read(paths, "later"))) == 150


def test_processes_that_read_by_the_same_name_have_each_their_own(paths):
    one, other = Process.remote(), Process.remote()
    ray.get([each.read.remote(paths, "twofold") for each in (one, other)])
    ray.get([one.set.remote("twofold", 1), other.set.remote("twofold", 4)])
    assert ray.get([one.ids.remote(), other.ids.remote()]) == [order_of(paths, 1), order_of(paths, 4)]
    ended(other)
    assert ray.get(one.ids.remote()) == order_of(paths, 2)


def test_who_reads_none_of_a_name_means_the_one_read_last(paths):
    one, other = Process.remote(), Process.remote()
    ray.get(one.read.remote(paths, "meant"))
    ray.get(other.read.remote(paths, "meant"))
    set_epoch("meant", 3)
    assert ray.get(other.ids.remote()) == order_of(paths, 3)
    with pytest.raises(OptionError, match="Give each a name of its own"):
        ray.get(one.ids.remote())


@pytest.mark.parametrize(("split", "is_shared"), [("all", True), ([], False)])
def test_two_trainers_have_each_a_dataset_of_that_name(paths, split, is_shared):
    """They read it themselves, or share what the driver read; the workers of each share it, or read all of it."""
    one, other = Process.remote(), Process.remote()
    name, ds = f"train{split}{is_shared}", None
    if is_shared:
        ds = read(paths, name)
        ray.get([each.take.remote(ds) for each in (one, other)])
    else:
        ray.get([each.read.remote(paths, name) for each in (one, other)])
    for first, second in ((0, 5), (1, 6)):
        found = ray.get([one.train.remote(name, first, split), other.train.remote(name, second, split)])
        assert found == [(order_of(paths, first), first), (order_of(paths, second), second)]


def trial(config, ds):
    """Go through two epochs, beginning with another one in each trial."""
    own = read(config["paths"], "tuned")
    found = []
    for epoch in (config["first"], config["first"] + 1):
        set_epoch("tuned", epoch)
        set_epoch("tuned together", epoch)
        time.sleep(1)
        found += [ids_of(own), ids_of(ds)]
    tune.report({"found": found})


def test_trials_that_train_by_themselves_are_each_in_an_epoch_of_their_own(paths, tmp_path):
    ds = read(paths, "tuned together")
    run = tune.with_resources(tune.with_parameters(trial, ds=ds), {"CPU": 0.25})
    space = {"first": tune.grid_search([0, 3]), "paths": paths}
    storage = tune.RunConfig(storage_path=str(tmp_path / "results"), verbose=0)
    results = tune.Tuner(run, param_space=space, run_config=storage).fit()
    for result in results:
        orders = [order_of(paths, result.config["first"] + i) for i in (0, 0, 1, 1)]
        assert result.metrics["found"] == orders, result.error


DRIVER = """
import json, sys, time, ray, ray_h5
paths, address, epoch, folder = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), sys.argv[4]
ray.init(address=address, namespace="shared", log_to_driver=False, logging_level="ERROR")
ds = ray_h5.read_h5(paths, columns=["x"], shuffle=ray_h5.Shuffle("rows", 7), include_row_ids=True, name="train")

def wait_for(others):
    import os
    open(f"{folder}/{others}_{epoch}", "w").close()
    while len([each for each in os.listdir(folder) if each.startswith(others)]) < 2:
        time.sleep(0.02)

wait_for("read")
ray_h5.set_epoch("train", epoch)
wait_for("set")
found = [[row for batch in ds.iter_batches() for row in batch["row_id"].tolist()]]
if epoch == 1:
    ray.shutdown()
else:
    while ray_h5.ray_data.internals.cluster.state.jobs()[0] and sum(not each["IsDead"] for each in
            ray_h5.ray_data.internals.cluster.state.jobs()) > 2:
        time.sleep(0.02)
    found.append([row for batch in ds.iter_batches() for row in batch["row_id"].tolist()])
print(json.dumps(found))
"""


def test_two_drivers_in_one_namespace_and_nothing_is_left_of_them(paths, tmp_path):
    address = ray.get_runtime_context().gcs_address
    (tmp_path / "signs").mkdir()
    command = [sys.executable, "-c", DRIVER, ",".join(paths), address]
    drivers = [
        subprocess.Popen(
            [*command, str(epoch), str(tmp_path / "signs")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for epoch in (1, 3)
    ]
    answers = [driver.communicate(timeout=120) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], answers
    one, other = [json.loads(output.splitlines()[-1]) for output, _ in answers]
    assert one == [order_of(paths, 1)]
    assert other == [order_of(paths, 3), order_of(paths, 4)]
    here = ray.get_runtime_context().get_job_id()
    ds = read(paths, "kept")
    set_epoch("kept", 2)
    began = time.monotonic()
    while (jobs := {key.partition("/")[0] for key in stored_keys("")}) != {here} and time.monotonic() < began + 20:
        time.sleep(0.1)  # until Ray knows that the drivers have ended
        JobStore(here).delete_ended_jobs()
    assert jobs == {here}
    assert ids_of(ds) == order_of(paths, 2)
