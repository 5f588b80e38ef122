"""The ids and names of HDF5 filters."""

import pytest

from ray_h5.hdf5.codecs import filters
from ray_h5.hdf5.codecs.filters import filter_name
from ray_h5.hdf5.codecs.pipeline import CODECS

# As they are registered with The HDF Group.
REGISTERED = {
    "deflate": 1, "shuffle": 2, "fletcher32": 3, "szip": 4, "nbit": 5, "scaleoffset": 6, "lzf": 32000,
    "blosc": 32001, "lz4": 32004, "bitshuffle": 32008, "zstd": 32015, "blosc2": 32026,
}  # fmt: skip


@pytest.mark.parametrize(("name", "number"), REGISTERED.items())
def test_ids_and_names(name, number):
    assert getattr(filters, name.upper()) == number
    # Files name filters as their writers like.
    assert filter_name(number, b"") == filter_name(number, b"HDF5 " + name.encode()) == name


def test_names_of_other_filters():
    assert filter_name(307, b"bzip2") == "bzip2"
    assert filter_name(307, b"") == "filter 307"
    assert filter_name(307, b"\xff") == "\ufffd"


def test_every_codec_is_of_a_known_filter():
    assert CODECS.keys() <= set(REGISTERED.values())
