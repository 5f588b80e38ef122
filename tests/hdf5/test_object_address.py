"""A chunk index that is damaged does not end the process."""

import subprocess
import sys

import h5py


def test_a_damaged_chunk_index_does_not_end_the_process(tmp_path):
    """libhdf5 2.0 is asked for the size of a B-tree that is damaged: the process ends with a segmentation fault."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", (300, 50), "u4", chunks=(1, 50), maxshape=(None, None))[:] = 1
    damaged = bytearray(path.read_bytes())
    at = damaged.find(b"BTHD")
    damaged[at + 9 : at + 11] = 66, 2  # sizes of nodes and of records
    path.write_bytes(damaged)
    code = f"from ray_h5.read.reader import RowReader; RowReader({str(path)!r}).read(['x'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "CorruptFileError" in ended.stderr
