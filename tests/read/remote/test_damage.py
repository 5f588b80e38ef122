"""Damaged files in a store: the values or the errors that the same file on a local disk gives."""

import random

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import RayH5Error
from ray_h5.read.open_file import forget_all
from tests.kit.fault_server import FaultServer

pytest.importorskip("obstore")

FILES = 40


def outcome(*arguments, **options):
    """Return the values of each column, or the names of errors."""
    try:
        reader = RowReader(*arguments, **options)
        found = {name: type(error).__name__ for name, error in reader.layout.refused.items()}
        for name in reader.columns:
            try:
                found[name] = repr(reader.read([name])[name].tolist())
            except RayH5Error as exc:
                found[name] = type(exc).__name__
    except RayH5Error as exc:
        return type(exc).__name__
    return found


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_flipped_bytes_and_cut_files(tmp_path, libver):
    folder = tmp_path / "bkt"
    folder.mkdir()
    with h5py.File(tmp_path / "whole.h5", "w", libver=libver) as file:
        file["x"] = np.arange(60.0).reshape(20, 3)
        file.create_dataset("z", data=np.arange(400).reshape(100, 4), chunks=(1, 4), compression="gzip")
        file.create_dataset("grows", data=np.arange(90).reshape(30, 3), chunks=(2, 3), maxshape=(None, 3))
        file["group/label"] = np.arange(20)
    whole, drawn = (tmp_path / "whole.h5").read_bytes(), random.Random(libver)
    with FaultServer(tmp_path) as server:
        for number in range(FILES):
            damaged = bytearray(whole)
            for _ in range(drawn.choice([1, 2, 5])):
                damaged[drawn.randrange(drawn.choice([3000, len(whole)]))] = drawn.randrange(256)
            if number % 8 == 0:
                damaged = damaged[: drawn.randrange(1, len(whole))]
            (folder / f"{number}.h5").write_bytes(damaged)
            local = outcome(folder / f"{number}.h5")
            assert outcome(f"s3://bkt/{number}.h5", storage_options=server.options) == local, number
            forget_all()
