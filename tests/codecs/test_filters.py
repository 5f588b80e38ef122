"""The ids and names of HDF5 filters."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ray_h5.codecs import filter_ids
from ray_h5.codecs.filter_ids import filter_name
from ray_h5.codecs.pipeline import CODECS

# As they are registered with The HDF Group.
REGISTERED = {
    "deflate": 1, "shuffle": 2, "fletcher32": 3, "szip": 4, "nbit": 5, "scaleoffset": 6, "lzf": 32000,
    "blosc": 32001, "lz4": 32004, "bitshuffle": 32008, "zstd": 32015, "blosc2": 32026,
}  # fmt: skip


@pytest.mark.parametrize(("name", "number"), REGISTERED.items())
def test_ids_and_names(name, number):
    assert getattr(filter_ids, name.upper()) == number
    # Files name filters as their writers like.
    assert filter_name(number, b"") == filter_name(number, b"HDF5 " + name.encode()) == name


def test_names_of_other_filters():
    assert filter_name(32013, b"zfp") == "zfp"
    assert filter_name(32013, b"") == "filter 32013"
    assert filter_name(32013, b"\xff") == "\ufffd"


def test_every_codec_is_of_a_known_filter():
    assert CODECS.keys() <= set(REGISTERED.values())


FOREIGN_PLUGINS = """
import sys
import ray_h5.hdf5.files.opening
import h5py
import hdf5plugin
import numpy as np

with h5py.File(sys.argv[1], "w") as file:
    for name, options in {"blosc": hdf5plugin.Blosc(), "zstd": hdf5plugin.Zstd(), "bzip2": hdf5plugin.BZip2()}.items():
        file.create_dataset(name, data=np.arange(100), chunks=(10,), **options)
"""


@pytest.mark.slow
def test_plugins_of_another_libhdf5_are_replaced(tmp_path):
    """`import netCDF4` names its plugins to child processes, which then cannot create datasets of blosc."""
    netcdf = pytest.importorskip("netCDF4")
    plugins = str(Path(netcdf.__file__).parent / "plugins")
    path = str(tmp_path / "a.h5")
    command = [sys.executable, "-c", FOREIGN_PLUGINS, path]
    environment = {**os.environ, "HDF5_PLUGIN_PATH": plugins}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with h5py.File(path) as file:
        assert all(np.array_equal(file[name], np.arange(100)) for name in ("blosc", "zstd", "bzip2"))
