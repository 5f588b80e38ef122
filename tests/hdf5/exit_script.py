"""Ends in several ways with open files, each in a fork of its own: python exit_script.py FILE CASE...

Prints a line for each case: its status, and what it said.
"""

import json
import os
import sys
import threading

from torch.utils.data import DataLoader

from ray_h5 import RowReader
from ray_h5.read import file_caches
from ray_h5.torch_data import H5Dataset, H5LazyDataset, loader


def to_the_end(*kept):
    """Keep objects, and the modules of their classes, until the interpreter has cleared these modules."""
    ours = [module for name, module in sys.modules.items() if name.startswith("ray_h5")]
    # Modules that are still used are cleared in the opposite order of their imports: os after ours, and sys last.
    os.kept = kept
    sys.kept = [*ours, os]


def read(path):
    reader = RowReader(path)
    reader.read(["row"])
    return reader, file_caches.FILES.values()


def ordinary(path):
    read(path)


def late(path):
    to_the_end(read(path))


def datasets(path):
    first, second = H5Dataset(path), H5LazyDataset(path, x_key="row", y_key="row")
    to_the_end(first, first[0], second, second[0])


def loader_in_the_middle(path):
    batches = iter(loader(path, 8, threads=2))
    to_the_end(batches, next(batches))


def slots(path, start):
    batches = iter(DataLoader(H5Dataset(path), 8, num_workers=1, multiprocessing_context=start))
    to_the_end(batches, next(batches), H5LazyDataset(path, x_key="row", y_key="row"))


def threads_that_read(path):
    reader, _ = read(path)

    def go_on():
        while True:
            reader.read(["row"])
            begun.set()

    begun = threading.Event()
    for _ in range(3):
        threading.Thread(target=go_on, daemon=True).start()
    begun.wait()
    to_the_end(reader)


def forked(path):
    kept = read(path)
    child = os.fork()
    to_the_end(kept, read(path) if child == 0 else None)
    if child:
        assert os.waitpid(child, 0)[1] == 0


def descriptors_closed_by_others(path):
    """As a process does that becomes a daemon."""
    to_the_end(read(path))
    os.closerange(3, 256)


def begin(case, path):
    """Run a case in a fork, which goes on to its exit; return its status and its words to the parent alone."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(send, 1)
        os.dup2(send, 2)
        os.closerange(3, 256)
        name, *more = case.split()
        globals()[name](path, *more)
        return None
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        words = pipe.read().decode()
    return case, os.waitpid(child, 0)[1], words


if __name__ == "__main__":
    for each in sys.argv[2:]:
        found = begin(each, sys.argv[1])
        if found is None:
            break
        print(json.dumps(found), flush=True)
