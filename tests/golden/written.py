"""Files that a version writes, and that later ones meet: `python -m tests.golden.written` makes them.

Those of a version that was released stay as they are, in a folder of its own below `written/`.
"""

import json
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import ray_h5
from ray_h5 import H5Dataset, Shuffle, Standardize, loader
from tests.golden.layouts import LAYOUTS

FOLDER = Path(__file__).parent / "written"
LAYOUT = "axis_16"
SHUFFLE = Shuffle("chunks", 11, window_rows=16)


def batches_of(paths, **options):
    return loader(paths, 8, shuffle=SHUFFLE, threads=0, **options)


def rows_of(batches):
    """Return the values of an epoch, or of what is left of it."""
    return [batch["x"].numpy().tobytes() + batch["label"].numpy().tobytes() for batch in batches]


def position_after(folder, batches):
    found = batches_of(str(folder))
    iterator = iter(found)
    for _ in range(batches):
        next(iterator)
    return found.state_dict()


@contextmanager
def in_store(folder):
    """Serve a folder as a bucket; yield its URL and storage options."""
    from tests.kit.fault_server import FaultServer

    with FaultServer(folder.parent) as server:
        yield f"s3://{folder.name}/", server.options


def write_all(where):
    """Write one file of each kind."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        data = Path(made) / "data"
        data.mkdir()
        LAYOUTS[LAYOUT].write(data)
        (where / "position.json").write_text(json.dumps(position_after(data, 3)) + "\n")
        H5Dataset(str(data / "run_0.h5"), index_dir=str(where / "index"))
        scaler = Standardize(["x"], axis=(0, 1)).fit(ray_h5.read_h5(str(data)))
        scaler.save(where / "scaler.npz")
        (where / "scaler.json").write_text(scaler.to_json() + "\n")
        with in_store(data) as (url, options):
            cached = {"cache_dir": str(where / "cache"), "cache_bytes": "1GB"}
            rows_of(batches_of(f"{url}run_0.h5", storage_options=options, **cached))


if __name__ == "__main__":
    write_all(FOLDER / ray_h5.__version__)
    sys.exit()
