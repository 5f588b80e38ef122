"""Datasets that go on in another cluster."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import ray_h5
from ray_h5 import Shuffle, where
from tests.index.kit import plan_files
from tests.ray_data.kit import ids_of, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")

ELSEWHERE = """
import json, sys
import ray, ray_h5

def start():
    ray.init(address="local", num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)

def ids(batches):
    return [row for batch in batches for row in batch["row_id"].tolist()]

def say(rows):
    print("rows", json.dumps(rows), flush=True)

start()
restored = [ray.data.Dataset.deserialize_lineage(bytes.fromhex(line)) for line in sys.stdin.read().split()]
for ds in restored:
    say(ids(ds.iter_batches(batch_size=None)))
ray.shutdown()
start()
ray_h5.set_epoch(restored[0], 3)
for ds in restored:
    say(ids(ds.iter_batches(batch_size=None)))
    say(ids(ds.streaming_split(1)[0].iter_batches(batch_size=None)))
"""


@pytest.mark.slow
def test_a_dataset_goes_on_in_other_clusters(tmp_path):
    """It is restored in a new cluster, and used again after `ray.shutdown` and `ray.init`."""
    paths = write_chunked(tmp_path)
    options = {"columns": ["x", "label"], "include_row_ids": True, "shuffle": Shuffle(seed=7)}
    named = ray_h5.read_h5(paths, **options).filter(expr=where(label=[0, 1]))
    plain = ray_h5.read_h5(paths, **options).map_batches(lambda batch: batch)
    assert len(ids_of(named)) == 100  # its plan lies in this cluster's object store
    lines = "\n".join(ds.serialize_lineage().hex() for ds in (named, plain))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    program = [sys.executable, "-c", ELSEWHERE]
    ended = subprocess.run(program, input=lines, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = [json.loads(line[5:]) for line in ended.stdout.splitlines() if line.startswith("rows ")]
    _, plan = plan_files(paths, columns=["x", "label"], shuffle=Shuffle(seed=7), predicate=where(label=[0, 1]))
    assert sorted(found[0]) == sorted(plan.at(np.arange(100), 0).tolist())
    assert [found[2], found[3]] == [plan.at(np.arange(100), epoch).tolist() for epoch in (3, 4)]
    _, plan = plan_files(paths, columns=["x", "label"], shuffle=Shuffle(seed=7))
    assert found[1] == plan.at(np.arange(150), 0).tolist()
    assert sorted(found[4]) == sorted(found[5]) == list(range(150))
