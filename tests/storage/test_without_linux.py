"""Other systems lack calls that Linux has, such as macOS: the same rows come without them."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

# What Python has on Linux alone (or, as preadv, not in each macOS), and hints of the kernel.
REMOVED = """
import os, sys
for name in ("preadv", "preadv2", "pwritev", "posix_fadvise", "posix_fallocate", "memfd_create", "sched_getaffinity",
             "copy_file_range", "sendfile", "splice", "eventfd", "O_DIRECT", "O_TMPFILE", "O_NOATIME", "pidfd_open"):
    if hasattr(os, name):
        delattr(os, name)
import resource
from ray_h5 import system
del resource.RUSAGE_THREAD
system.PROCESS = "/no/such/folder"
"""

PROGRAM = """
import numpy as np
import h5py
import ray_h5
from ray_h5 import RowReader
from ray_h5.torch_data import create_optimized_dataloader, DataLoaderPerformanceMonitor, loader

batches = loader("a.h5", 16, seed=1, threads=2)
rows = [int(row) for batch in batches for row in batch.row]
assert sorted(rows) == list(range(100)), rows
with RowReader("a.h5") as reader:
    found = reader.read(["x"], [7, 3, 99])["x"]
with h5py.File("a.h5") as file:
    assert np.array_equal(found, file["x"][:][[7, 3, 99]])
ray_h5.repack("a.h5", "fast", chunk_rows=2, measure=True)
assert sorted(int(row) for batch in loader("fast", 16) for row in batch.row) == list(range(100))
again = list(create_optimized_dataloader("a.h5", 16, num_workers=2, load_fields=["row"]))
assert DataLoaderPerformanceMonitor().time_batch_loading(batches)["mean_batch_time"] > 0
assert system.resident_bytes() > 2**20
print(ray_h5.read_h5)
"""


@pytest.mark.slow
def test_rows_come_without_calls_of_linux(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(400.0).reshape(100, 4), chunks=(10, 4), compression="gzip")
        file.create_dataset("plain", data=np.arange(300.0).reshape(100, 3))
        file["row"] = np.arange(100)
    for compiled in ("0", "1"):
        code = f"import os; os.environ['RAY_H5_COMPILED'] = '{compiled}'\n{REMOVED}{PROGRAM}"
        subprocess.run(["rm", "-rf", "fast"], cwd=tmp_path, check=True)
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_windows_is_refused_when_the_package_is_imported():
    code = "import sys; sys.platform = 'win32'; import ray_h5"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: ray_h5 needs Linux or macOS. On Windows, run it in WSL" in done.stderr


@pytest.mark.slow
def test_the_loop_is_compiled_without_hints(tmp_path, monkeypatch):
    """Without ``posix_fadvise``, reads of cold files are not announced; all else is the same loop."""
    from ray_h5.read.native import build

    source = (build.HERE / "loop.c").read_text()
    assert source.count("posix_fadvise") == source.count("#if defined(POSIX_FADV_WILLNEED)") == 1
    (tmp_path / "loop.c").write_text(
        source.replace("#include <fcntl.h>", "#include <fcntl.h>\n#undef POSIX_FADV_WILLNEED")
    )
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.compile_loop() == tmp_path / build.compiled_path().name
