"""A job on several nodes that reads files of a store; the arguments are the endpoint, and how many workers die."""

import json
import sys
import time

import numpy as np
import ray

import ray_h5
from tests.integration.kit import Killer, join_ray
from tests.remote.kit import options_of, values_of


class Server:
    url = sys.argv[1]


def main() -> None:
    join_ray()
    killer = Killer(int(sys.argv[2]), 0.2)
    killer.start()
    options = options_of(Server)
    ds = ray_h5.read_h5("s3://bkt/*.h5", columns=["x", "id"], shuffle=True, storage_options=options, block_rows=20)

    def node(batch):
        time.sleep(0.1)
        batch["node"] = np.array([ray.get_runtime_context().get_node_id()] * len(batch["id"]))
        return batch

    seen, nodes, differing = [], set(), 0
    for batch in ds.map_batches(node, batch_size=None).iter_batches(batch_size=None):
        seen += batch["id"].tolist()
        nodes |= set(batch["node"].tolist())
        differing += int((batch["x"].astype(np.uint64) != values_of(batch["id"])).sum())
    assert len(seen) == len(set(seen))
    killer.stopped.set()
    found = {"once": len(seen), "differing": differing, "killed": len(killer.killed), "nodes": len(nodes)}
    print("result", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
