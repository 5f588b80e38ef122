"""A store for tests, and what a process knows of files in it."""

import contextlib

from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.read.open_file import forget_all
from tests.kit.fault_server import FaultServer


def forget_files():
    """Forget what this process knows of files."""
    forget_all()
    MEMORY.clear()


@contextlib.contextmanager
def served(folder):
    """Serve the buckets in a folder; in the end, what was known of their files is forgotten."""
    with FaultServer(folder) as server:
        yield server
    forget_files()
