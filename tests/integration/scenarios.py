"""The scenarios, each in a process of its own: ``python -m tests.integration.scenarios NAME JSON FOLDER``.

The last line of the output is a JSON object that says what happened; the test asserts on it.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.integration import kit

BLOCK = 16  # rows of a block, about 0.8 MB


def read(paths, **options):
    import ray_h5

    options = {"include_row_ids": True, "block_rows": BLOCK, **options}
    return ray_h5.read_h5(paths, columns=["wide"], **options)


def worker_killed(folder, kills, blocks):
    """Workers are killed amid their tasks."""
    paths = kit.write_files(folder, 2, blocks // 2 * BLOCK)
    kit.start_ray({"kinds": ["slow"], "seconds": 0.06})
    # A task takes half a second: were each of its tries hit, it would fail after six, as it should.
    killer = kit.Killer(kills, pause=1.2)
    epoch = kit.Epoch(blocks * BLOCK).consume(read(paths), at={1: killer.start})
    killer.stopped.set()
    return {**epoch.result(), "killed": len(killer.killed), **kit.finish(paths)}


def node_lost(folder, times, blocks):
    """A node is cut down amid an epoch and another one joins."""
    import ray
    from ray.cluster_utils import Cluster

    kit.inject({"kinds": ["slow"], "seconds": 0.03})
    paths = kit.write_files(folder, 2, blocks // 2 * BLOCK)
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False},
    )
    nodes = [cluster.add_node(**node) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    kit.quiet()
    cluster.wait_for_nodes()
    lost = []

    def lose():
        # In the main thread: a new node sets signal handlers.
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        lost.append(time.monotonic())
        nodes.append(cluster.add_node(**node))

    at = {4 + 12 * i: lose for i in range(times)}
    epoch = kit.Epoch(blocks * BLOCK).consume(read(paths), at=at)
    result = {**epoch.result(), "lost": len(lost), "held": kit.held_files(paths)}
    processes = psutil.Process().children(recursive=True)
    ray.shutdown()
    cluster.shutdown()
    return {**result, "left": kit.wait_gone(processes, 15)}


def partitioned(folder, blocks):
    """The other node is cut off the network amid an epoch. Runs in a network namespace of its own."""
    # Ray looks at these when it is imported.
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        # The default takes about a minute to give a node up.
        RAY_health_check_period_ms="1000",
        RAY_health_check_timeout_ms="2000",
        RAY_health_check_failure_threshold="3",
    )
    import ray

    paths = kit.write_files(folder, 2, blocks // 2 * BLOCK)
    with joined_namespace() as far:
        kit.start_ray({"kinds": ["slow"], "seconds": 0.03}, num_cpus=1, _node_ip_address=HERE)
        node = start_far_node(far, ray.get_runtime_context().gcs_address, folder)
        result = read_while_cut_off(paths, blocks)
        # All of it: cut off, its agents wait for the head for minutes before they end.
        for process in [*node.children(recursive=True), node]:
            with contextlib.suppress(psutil.Error):
                process.kill()
    return {**result, **kit.finish(paths)}


def read_while_cut_off(paths, blocks):
    """Read an epoch, and take the link down amid it."""
    import ray

    cut = []

    def cut_off():
        subprocess.run(["ip", "link", "set", "h5near", "down"], check=True)
        cut.append(time.monotonic())

    epoch = kit.Epoch(blocks * BLOCK).consume(read(paths), at={6: cut_off})
    seconds = time.monotonic() - cut[0]
    alive = [each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"]]
    return {**epoch.result(), "alive": alive, "seconds": seconds}


HERE, THERE = "10.77.0.1", "10.77.0.2"


@contextlib.contextmanager
def joined_namespace():
    """Join this network namespace to a new one by a pair of virtual interfaces; give its process."""
    far = subprocess.Popen(["unshare", "--net", "sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while os.readlink(f"/proc/{far.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.05)
        inside = ["nsenter", f"--net=/proc/{far.pid}/ns/net"]
        for command in [
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "name", "h5near", "type", "veth", "peer", "name", "h5far", "netns", str(far.pid)],
            ["ip", "address", "add", f"{HERE}/24", "dev", "h5near"],
            ["ip", "link", "set", "h5near", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "ip", "address", "add", f"{THERE}/24", "dev", "h5far"],
            [*inside, "ip", "link", "set", "h5far", "up"],
        ]:
            subprocess.run(command, check=True)
        yield far
    finally:
        far.kill()
        far.wait()


def start_far_node(far, address, folder):
    """Start a node in the other namespace and wait until it has joined."""
    import ray

    command = [
        *["nsenter", f"--net=/proc/{far.pid}/ns/net", sys.executable, "-m", "ray.scripts.scripts", "start", "--block"],
        *[f"--address={address}", f"--node-ip-address={THERE}", "--num-cpus=1", f"--object-store-memory={100 << 20}"],
        f"--temp-dir={folder}/far",
    ]
    node = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len([each for each in ray.nodes() if each["Alive"]]) < 2:
        assert node.poll() is None, "ray start failed"
        time.sleep(0.2)
    return node


def spill(folder, mb):
    """The whole dataset is kept in an object store that is too small for it."""
    rows = mb * 20 // BLOCK // 2 * BLOCK
    paths = kit.write_files(folder, 2, rows)
    spilled = Path(folder) / "spilled"
    spilled.mkdir()
    kit.start_ray(object_store_memory=80 << 20, object_spilling_directory=str(spilled))
    kept = read(paths, block_rows=128).materialize()
    epoch = kit.Epoch(2 * rows).consume(kept)
    spilled_mb = sum(path.stat().st_size for path in spilled.rglob("*") if path.is_file()) >> 20
    return {**epoch.result(), "spilled_mb": spilled_mb, **kit.finish(paths)}


def poison(folder):
    """Reading one of the files kills the process that reads it, each time."""
    paths = kit.write_files(folder, 3, 4 * BLOCK)
    kit.start_ray({"kinds": ["die"], "path": paths[1]})
    epoch = kit.Epoch(12 * BLOCK)
    began = time.monotonic()
    error = caught(lambda: epoch.consume(read(paths)))
    return {**epoch.result(), **error, "seconds": time.monotonic() - began, **kit.finish(paths)}


def placement(folder, by):
    """Readers are bound to labelled nodes, two at a time, while four trainers hold the other node."""
    import ray
    from ray.cluster_utils import Cluster

    import ray_h5

    seen = Path(folder) / "seen"
    seen.mkdir()
    kit.inject({"kinds": ["note"], "path": str(seen), "seconds": 0.01})
    paths = kit.write_files(folder, 2, 20 * BLOCK)
    store = 100 << 20
    head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=4, object_store_memory=store, labels={"role": "reader"})
    cluster.add_node(num_cpus=4, num_gpus=4, object_store_memory=store, labels={"role": "trainer"})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    kit.quiet()
    cluster.wait_for_nodes()
    roles = {each["NodeID"]: each["Labels"].get("role") for each in ray.nodes()}
    bound = {"label_selector": {"role": "reader"}}
    ds = read(paths, concurrency=2, ray_remote_args=bound if by == "tasks" else None)
    config = ray_h5.data_config(**(bound if by == "trainer" else {}))
    shards = [each["train"] for each in config.configure({"train": ds}, 4, None, None)]

    @ray.remote(num_cpus=1, num_gpus=1)
    def train(shard):
        rows = [batch["row_id"] for batch in shard.iter_batches(batch_size=None)]
        return [int(row) for part in rows for row in part], ray.get_runtime_context().get_node_id()

    trainers = [train.remote(shard) for shard in shards]
    most = 0
    while ray.wait(trainers, num_returns=4, timeout=0.05)[1]:
        most = max(most, len(kit.read_workers()))
    results = ray.get(trainers)
    rows = [row for part, _ in results for row in part]
    result = {
        "rows": 40 * BLOCK,
        "once": sum(rows.count(row) == 1 for row in range(40 * BLOCK)),
        "twice": len(rows) - len(set(rows)),
        "differing": sum(roles[node] != "trainer" for _, node in results),
        "node_readers": sorted({roles[name] for name in os.listdir(seen)}),
        "most_readers": most,
        "held": kit.held_files(paths),
    }
    processes = psutil.Process().children(recursive=True)
    ray.shutdown()
    cluster.shutdown()
    return {**result, "left": kit.wait_gone(processes, 15)}


def bad_reads(folder, faults):
    """Reads fail, come short or are slow, again and again."""
    paths = kit.write_files(folder, 2, 8 * BLOCK)
    kit.start_ray(faults)
    epoch = kit.Epoch(16 * BLOCK).consume(read(paths))
    return {**epoch.result(), **kit.finish(paths)}


def file_changed(folder, how):
    """A file is replaced, or cut short where it lies, amid an epoch."""
    paths = kit.write_files(folder, 2, 16 * BLOCK)
    kit.start_ray({"kinds": ["slow"], "seconds": 0.02})
    epoch = kit.Epoch(32 * BLOCK)
    ds = read(paths)
    error = caught(lambda: epoch.consume(ds, at={1: lambda: change(paths[1], how)}))
    return {**epoch.result(), **error, **kit.finish(paths)}


def change(path, how):
    import numpy as np

    if how == "truncated":
        os.truncate(path, os.path.getsize(path) // 2)
        return
    kit.write_file(path + ".new", np.arange(16 * BLOCK) + 7)
    os.replace(path + ".new", path)


def driver_loop(folder):
    """Reads without end, until somebody interrupts."""
    # Whoever runs the tests in the background may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = kit.write_files(folder, 2, 8 * BLOCK)
    kit.start_ray({"kinds": ["slow"], "seconds": 0.02})
    ds = read(paths)
    while True:
        kit.Epoch(16 * BLOCK).consume(ds, at={1: lambda: print("reading", flush=True)})


def soak(folder, epochs, kill_every):
    """Many epochs on a cluster of several nodes, a worker killed now and then; descriptors and memory are watched."""
    paths = kit.write_files(folder, 2, 8 * BLOCK)
    kit.join_ray()
    ds = read(paths)
    killed, samples, bad = 0, [], []
    for i in range(epochs):
        killer = kit.Killer(int(i % kill_every == kill_every - 1), pause=0.02)
        killer.start()
        result = kit.Epoch(16 * BLOCK).consume(ds).result()
        killer.stopped.set()
        killer.join()
        killed += len(killer.killed)
        if result != {"rows": 16 * BLOCK, "once": 16 * BLOCK, "twice": 0, "differing": 0}:
            bad.append((i, result))
        samples.append(usage())
    return {"bad": bad, "killed": killed, "samples": samples[:: max(1, epochs // 20)], **kit.finish(paths)}


def usage():
    """Return descriptors and memory of this process, and what the processes of the cluster have in all."""
    me = psutil.Process()
    memory = me.memory_info()
    below = kit.processes()
    return {
        "descriptors": me.num_fds(),
        "private_mb": (memory.rss - memory.shared) >> 20,
        "shared_mb": memory.shared >> 20,
        "processes": len(below),
        "cluster_mb": sum(map(private_bytes, below)) >> 20,
        "read_descriptors": max((sum(f.path.endswith(".h5") for f in files_of(each)) for each in below), default=0),
    }


def private_bytes(process):
    with contextlib.suppress(psutil.Error):
        memory = process.memory_info()
        return memory.rss - memory.shared
    return 0


def files_of(process):
    try:
        return process.open_files()
    except psutil.Error:
        return []


def caught(action):
    """Return the errors that `action` raised, from the outermost to the causes, as names and text."""
    try:
        action()
    except Exception as exc:  # noqa: BLE001  whatever it is, the test judges it
        error, names = exc, []
        while error is not None:
            names += [each.__name__ for each in type(error).__mro__]
            error = getattr(error, "cause", None) or error.__cause__
        return {"errors": names, "message": str(exc)[-3000:]}
    return {"errors": [], "message": ""}


def main():
    name, arguments, folder = sys.argv[1:]
    result = globals()[name](folder, **json.loads(arguments))
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
