"""Run at the start of a Python process that has this folder on its path: its reads of files go wrong.

FAULTS is a JSON object: every `every`-th ``preadv`` of the process (by default each) meets the next of `kinds`:
"slow" waits `seconds`, "short" delivers a byte less than asked, "EIO" and "ESTALE" write half and then fail, "die"
kills the process if it reads the file `path`, "note" leaves a file named after the node in the folder `path`.
"""

import errno
import itertools
import json
import os
import signal
import time

preadv = os.preadv
faults = json.loads(os.environ.get("FAULTS", "{}"))
calls = itertools.count(1)
kinds = itertools.cycle(faults.get("kinds", []))


def faulty(fd, buffers, offset, *flags):
    if next(calls) % faults.get("every", 1):
        return preadv(fd, buffers, offset, *flags)
    kind = next(kinds)
    if kind == "die" and os.readlink(f"/proc/self/fd/{fd}") == faults["path"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "note":
        note()
    if kind in {"slow", "note"}:
        time.sleep(faults["seconds"])
    if kind in {"EIO", "ESTALE"}:
        half = len(buffers[0]) // 2
        buffers[0][:half] = b"\x55" * half
        raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))
    if kind == "short" and len(buffers[0]) > 1:
        return preadv(fd, [buffers[0][:-1]], offset, *flags)
    return preadv(fd, buffers, offset, *flags)


def note():
    import ray

    if ray.is_initialized():  # the driver reads too, when it plans
        open(os.path.join(faults["path"], ray.get_runtime_context().get_node_id()), "w").close()


if faults:
    os.preadv = faulty
    os.environ["RAY_H5_COMPILED"] = "0"  # the compiled loop does not call os.preadv
