"""What the tests run on a local cluster: reads files of its own and says what it saw, as JSON."""

import json
import os
import stat
import sys
import time

import ray

import ray_h5
from tests.integration import kit

command, folder = sys.argv[1:]


@ray.remote(num_cpus=1)
def where():
    time.sleep(1)
    return ray.get_runtime_context().get_node_id()


print("started", flush=True)
if command == "fail":
    sys.exit(3)
if command == "wait":
    time.sleep(600)
ray.init(log_to_driver=False)
kit.quiet()

paths = kit.write_files(folder, 2, 64)
ds = ray_h5.read_h5(paths, columns=["wide"], include_row_ids=True, block_rows=16)
result = kit.Epoch(128).consume(ds).result()
token = os.stat(os.environ["RAY_AUTH_TOKEN_PATH"])
result["nodes"] = len([node for node in ray.nodes() if node["Alive"]])
result["used"] = len(set(ray.get([where.remote() for _ in range(6)])))
result["token_mode"] = oct(stat.S_IMODE(token.st_mode))
print("result", json.dumps(result), flush=True)
