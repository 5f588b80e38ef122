"""What the scenarios share: files whose rows are known by their number, and a look at processes."""

import contextlib
import json
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import psutil

FAULTY = str(Path(__file__).parent / "faulty")
SHAPE = (43, 300)  # 52 KB a row


def values_of(row_ids):
    """Return what the column `wide` holds in these rows."""
    size = int(np.prod(SHAPE))
    first = row_ids.astype("u4")[:, None] * np.uint32(2654435761)
    return (first + np.arange(size, dtype="u4")).view("f4").reshape(-1, *SHAPE)


def write_files(folder, files, rows):
    """Write `files` files of `rows` rows each, one chunk a row; return their paths."""
    paths = []
    for i in range(files):
        path = Path(folder) / f"part_{i}.h5"
        write_file(path, np.arange(i * rows, (i + 1) * rows))
        paths.append(str(path))
    return paths


def write_file(path, row_ids):
    with h5py.File(path, "w", libver="latest") as file:
        column = file.create_dataset(
            "wide", (len(row_ids), *SHAPE), "f4", chunks=(1, *SHAPE), maxshape=(None, *SHAPE), fletcher32=True
        )
        for start in range(0, len(row_ids), 100):
            column[start : start + 100] = values_of(row_ids[start : start + 100])
        file.create_dataset("label", data=(row_ids % 4).astype("u1"))


class Epoch:
    """Counts the rows that arrive and compares their bytes."""

    def __init__(self, rows):
        self.seen = np.zeros(rows, dtype=int)
        self.differing = 0

    def add(self, batch):
        row_ids = batch["row_id"]
        np.add.at(self.seen, row_ids, 1)
        same = batch["wide"].view("u4") == values_of(row_ids).view("u4")
        self.differing += int((~same.all(axis=(1, 2))).sum())

    def consume(self, ds, at=None):
        """Take a whole epoch; `at` maps a number of blocks to what is done when they have arrived."""
        for blocks, batch in enumerate(ds.iter_batches(batch_size=None), start=1):
            self.add(batch)
            (at or {}).get(blocks, _nothing)()
        return self

    def result(self):
        return {
            "rows": len(self.seen),
            "once": int((self.seen == 1).sum()),
            "twice": int((self.seen > 1).sum()),
            "differing": self.differing,
        }


def _nothing():
    pass


def start_ray(faults=None, **options):
    """Start Ray here, with faults in all its workers."""
    import ray

    if faults:
        inject(faults)
    ray.init(
        **{"address": "local", "num_cpus": 2, "include_dashboard": False, "object_store_memory": 128 << 20, **options},
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    quiet()


def join_ray():
    """Join the cluster that `cluster/local.py` has started for this job."""
    import ray

    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    quiet()


def quiet():
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def inject(faults):
    os.environ["FAULTS"] = json.dumps(faults)
    os.environ["PYTHONPATH"] = os.pathsep.join([FAULTY, os.environ.get("PYTHONPATH", "")])


def processes():
    """Return the processes below this one; for a job of `cluster/local.py`, all of that cluster."""
    me = psutil.Process()
    above = [each for each in me.parents() if any(word.endswith("cluster/local.py") for word in each.cmdline())]
    return (above or [me])[-1].children(recursive=True)


def read_workers():
    """Return those of `processes` that run a read task now."""
    found = []
    for process in processes():
        with contextlib.suppress(psutil.Error):
            # One that has just been killed has no words left.
            if "".join(process.cmdline()[:1]).startswith("ray::ReadH5"):
                found.append(process)
    return found


class Killer(threading.Thread):
    """Kills workers amid read tasks, `count` times, no process twice."""

    def __init__(self, count, pause):
        super().__init__(daemon=True)
        self.left, self.pause = count, pause
        self.killed = []
        self.stopped = threading.Event()

    def run(self):
        pause = self.pause
        while self.left and not self.stopped.wait(pause):
            found = read_workers()
            # Between tasks there is none: look again soon.
            pause = self.pause if found else 0.05
            for process in random.sample(found, min(1, len(found))):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
                    self.killed.append(process.pid)
                    self.left -= 1


def held_files(paths):
    """Return how often this process has each of `paths` open; ray_h5 keeps some files, once each."""
    opened = [each.path for each in psutil.Process().open_files()]
    return [opened.count(path) for path in paths]


def wait_gone(processes, seconds):
    """Return the command lines of those still alive after `seconds`."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [each.cmdline() for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def finish(paths=()):
    """Shut Ray down; return what is left of it: processes, and open data files."""
    import ray

    held = held_files(paths)
    processes = psutil.Process().children(recursive=True)
    ray.shutdown()
    began = time.monotonic()
    return {"left": wait_gone(processes, 15), "held": held, "shutdown_s": time.monotonic() - began}
