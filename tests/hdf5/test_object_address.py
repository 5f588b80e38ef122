"""The address of an object, without a walk through the index of its chunks."""

import io
import subprocess
import sys

import h5py
import numpy as np
import pytest

from ray_h5.hdf5.files.file_bytes import address_of


class Counting(io.FileIO):
    reads = 0

    def readinto(self, buffer):
        self.reads += 1
        return super().readinto(buffer)


@pytest.mark.parametrize("userblock", [0, 512])
def test_it_is_that_of_h5py(tmp_path, userblock):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=userblock) as file:
        file["g/x"] = file["y"] = np.arange(4)
        file["link"] = file["g"]
        file["elsewhere"] = h5py.ExternalLink("b.h5", "/z")
        with h5py.File(tmp_path / "b.h5", "w") as other:
            other["z"] = np.arange(4)
        for name in ("/", "g", "g/x", "y", "link", "elsewhere"):
            found = file[name]
            info = h5py.h5o.get_info(found.id)
            assert address_of(found.id) == (info.fileno, info.addr)
        assert address_of(file.id) == address_of(file["/"].id)


def test_it_reads_no_index(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (5000, 4), "u4", chunks=(1, 4))[:] = 1
    with Counting(tmp_path / "a.h5") as raw, h5py.File(raw, "r") as file:
        opened, before = file["x"].id, raw.reads
        address_of(opened)
        assert raw.reads - before <= 2


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
