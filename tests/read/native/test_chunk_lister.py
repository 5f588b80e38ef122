"""The compiled loop lists the chunks that h5py lists, or leaves it to h5py."""

import ctypes
import os
import threading

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.errors import CorruptFileError
from ray_h5.read.native import chunk_lister
from ray_h5.read.native.chunk_lister import list_chunks
from ray_h5.read.native.library import compiled_loop
from tests.hdf5.h5kit import flip

pytestmark = pytest.mark.skipif(compiled_loop() is None, reason="the loop is not compiled")

MOST = 1 << 20


def by_h5py(dataset):
    found = []
    dataset.id.chunk_iter(found.append)
    return [
        (*each.chunk_offset, each.filter_mask, each.byte_offset, each.size)
        for each in found
        if each.byte_offset is not None
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chunks")


@given(
    libver=st.sampled_from(["earliest", "latest"]),
    shape=st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple),
    unlimited=st.integers(0, 2),
    compression=st.sampled_from([None, "gzip"]),
    rows=st.lists(st.integers(0, 29), max_size=6),
    user_block=st.sampled_from([0, 512]),
    data=st.data(),
)
def test_the_chunks_are_those_that_h5py_lists(folder, libver, shape, unlimited, compression, rows, user_block, data):
    chunks = tuple(data.draw(st.integers(1, length)) for length in shape)
    most = tuple(None if axis < unlimited else length for axis, length in enumerate(shape))
    path = folder / "a.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=user_block) as file:
        made = file.create_dataset("x", shape, "i2", chunks=chunks, maxshape=most, compression=compression)
        for row in rows:  # the other chunks are never written
            made[row % shape[0]] = row
    with h5py.File(path) as file:
        listed = list_chunks(file["x"], MOST, MOST)
        assert listed is not None
        assert [tuple(row) for row in listed.tolist()] == by_h5py(file["x"])


def test_lists_of_more_bytes_than_the_file_are_left_to_h5py(folder):
    with h5py.File(folder / "b.h5", "w") as file:
        file.create_dataset("x", (10,), "f8", chunks=(1,))[:] = 1
    with h5py.File(folder / "b.h5") as file:
        assert list_chunks(file["x"], 80, 0) is not None
        assert list_chunks(file["x"], 79, 0) is None


def test_chunks_that_were_never_written_are_left_out_and_counted():
    add, found = compiled_loop().library.ray_h5_list_chunk, chunk_lister._List(axes=1, most_bytes=8, most_unwritten=2)
    corner, unwritten = (ctypes.c_uint64 * 1)(0), ctypes.c_uint64(2**64 - 1)
    stops = [add(corner, 0, unwritten, ctypes.c_uint64(9), ctypes.byref(found)) for _ in range(3)]
    assert stops == [0, 0, 1]
    assert (found.count, found.unwritten, found.stopped) == (0, 3, 1)


def test_files_that_are_not_on_disks_are_left_to_h5py():
    with h5py.File.in_memory() as file:
        assert list_chunks(file.create_dataset("x", data=np.ones(9), chunks=(3,)), MOST, MOST) is None


def test_another_libhdf5_is_left_to_h5py(folder, monkeypatch):
    with h5py.File(folder / "c.h5", "w") as file:
        file.create_dataset("x", data=np.ones(9), chunks=(3,))
        monkeypatch.setattr(chunk_lister, "_KNOWN_VERSIONS", ((1, 14), (1, 14)))
        chunk_lister._chunk_iter.cache_clear()
        try:
            assert list_chunks(file["x"], MOST, MOST) is None
        finally:
            chunk_lister._chunk_iter.cache_clear()


def test_a_list_that_libhdf5_cannot_read_prints_nothing(tmp_path, capfd):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=np.ones((400, 2)), chunks=(1, 2), maxshape=(None, 2))
    raw = path.read_bytes()
    for at in [place for place in range(len(raw)) if raw[place : place + 4] in {b"EASB", b"EADB", b"EAIB"}]:
        flip(path, at + 8)
    errors = []

    def read():
        with pytest.raises(CorruptFileError) as caught:
            RowReader(str(path)).read(["x"])
        errors.append(caught.value)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    read()
    assert len(errors) == 2
    assert capfd.readouterr() == ("", "")
    assert os.path.basename(path) in str(errors[0])
