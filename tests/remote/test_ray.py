"""Ray reads files in stores: on this node, on several, and while workers die."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ray_h5
from ray_h5.ray_data.ray_internals import operators
from tests.remote.kit import ROWS, options_of, values_of, write

URL = "s3://bkt/*.h5"
FILES = 4
ROOT = Path(__file__).parents[2]


@pytest.fixture
def bucket_of_four(bucket):
    for number in range(FILES):
        write(bucket / f"run_{number}.h5", number * ROWS)


def check(batches):
    seen = []
    for batch in batches:
        np.testing.assert_array_equal(batch["x"].astype(np.uint64), values_of(batch["id"]))
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(FILES * ROWS))


@pytest.mark.usefixtures("ray_local", "bucket_of_four")
def test_an_epoch(server):
    server.fail("status", status=503, share=0.05)
    server.fail("cut", share=0.05)
    ds = ray_h5.read_h5(URL, columns=["x", "id"], shuffle=True, storage_options=options_of(server), block_rows=60)
    check(ds.iter_batches(batch_size=50))
    check(ds.iter_batches(batch_size=50))


@pytest.mark.usefixtures("ray_local", "bucket_of_four")
def test_a_second_epoch_comes_from_the_disk(server, tmp_path):
    nvme = {"cache_dir": tmp_path / "nvme", "cache_bytes": "1GB"}
    ds = ray_h5.read_h5(URL, columns=["x", "id"], shuffle=True, storage_options=options_of(server), **nvme)
    check(ds.iter_batches(batch_size=50))
    server.forget()
    check(ds.iter_batches(batch_size=50))
    assert server.requests(method="GET") == []


@pytest.mark.usefixtures("ray_local", "bucket_of_four")
def test_no_secret_is_in_what_a_dataset_prints(server):
    canary = "CANARYSECRETCANARY"
    options = {**options_of(server), "secret_access_key": canary, "access_key_id": canary}
    ds = ray_h5.read_h5(URL, columns=["id"], storage_options=options)
    assert ds.count() == FILES * ROWS
    assert canary not in f"{ds!r} {ds} {ds.stats()} {ds.schema()} {ds.input_files()}"


@pytest.mark.slow
@pytest.mark.usefixtures("bucket_of_four")
def test_two_nodes_of_which_a_worker_is_killed(server):
    server.latency = 0.02
    command = ["cluster/local.py", "--nodes", "2", "--object-store-mb", "100", "--", "-m", "tests.remote.program"]
    done = subprocess.run(
        [sys.executable, *command, server.url, "1"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("result")]
    result = json.loads(line.partition(" ")[2])
    assert result == {"once": FILES * ROWS, "differing": 0, "killed": 1, "nodes": result["nodes"]}
    assert result["nodes"] >= 2


@pytest.mark.slow
@pytest.mark.usefixtures("ray_local", "bucket_of_four")
def test_tasks_reserve_memory_for_their_requests(server, bucket, caplog):
    def reserved(paths=URL, **given):
        if str(paths).startswith("s3"):
            given["storage_options"] = options_of(server)
        ds = ray_h5.read_h5(paths, columns=["id"], **given)
        mapped = ds.map_batches(lambda batch: batch)
        assert mapped.count() == FILES * ROWS
        (read,) = (each for each in operators(ds) if hasattr(each, "datasource"))
        return read.ray_remote_args.get("memory"), "->MapBatches" in mapped.materialize().stats()

    # In workers of its own: one of an earlier test may have grown beyond what these tasks take.
    memory, is_fused = reserved(ray_remote_args={"runtime_env": {"env_vars": {"RAY_H5_TEST": "memory"}}})
    assert 256 << 20 < memory < 300 << 20
    assert not is_fused
    assert "logical memory" not in caplog.text  # Ray warns if a task takes more
    assert reserved(memory=0) == (None, True)
    assert reserved(memory=1000) == (1000, False)
    assert reserved(bucket) == (None, True)
