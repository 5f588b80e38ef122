"""`OutputFile`: what h5py and libhdf5's own filters read is what was written."""

import errno

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.codecs.encode import CODEC_NAMES
from ray_h5.errors import VerifyError, WriteFailedError
from ray_h5.writing.file_writer import DiskFile, OutputFile, writing
from tests.properties import few

DTYPES = ["u1", "i2", "f4", "c16", "?", "S5", "f2", "V3", [("a", "i4"), ("b", "f8", (2,))], "S40"]


def values_of(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    found = np.zeros(shape, dtype)
    found.view("u1")[...] = rng.integers(0, 2 if dtype == "?" else 100, found.view("u1").shape)
    return found


@few(12)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from([(), (3,), (5, 7), (2, 0)]),
    st.integers(0, 30),
    st.integers(1, 12),
    st.sampled_from(CODEC_NAMES),
    st.lists(st.integers(0, 30), max_size=3),
    st.sampled_from([None, 4096]),
)
def test_h5py_reads_what_was_appended(tmp_path_factory, dtype, row_shape, rows, chunk_rows, codec, cuts, page):
    path = tmp_path_factory.mktemp("out") / "a.h5"
    values = values_of(dtype, (rows, *row_shape))
    with OutputFile(str(path), threads=2, page=page, keeps_sums=True) as file:
        array = file.array("g/x", values.dtype, row_shape, chunk_rows, codec)
        for part in np.split(values, sorted(min(cut, rows) for cut in cuts)):
            array.append(part)
    file.verify()
    with h5py.File(path) as found:
        assert found["g/x"].dtype == values.dtype
        assert found["g/x"][()].tobytes() == values.tobytes()
    if rows and values.size:
        with RowReader(str(path)) as reader:
            assert reader.read(["g/x"])["g/x"].tobytes() == values.tobytes()


def test_texts(tmp_path):
    path = str(tmp_path / "a.h5")
    texts = np.array(["a", "ü" * 40, ""], object)
    with OutputFile(path) as file:
        file.array("t", h5py.string_dtype(), (), 2).append(texts)
    with h5py.File(path) as found:
        assert found["t"].asstr()[:].tolist() == texts.tolist()


def test_a_changed_byte_is_found(tmp_path):
    path = str(tmp_path / "a.h5")
    with OutputFile(path, keeps_sums=True) as file:
        file.array("x", np.dtype("u4"), (), 10, "none").append(np.arange(30, dtype="u4"))
    with h5py.File(path) as found:
        at = found["x"].id.get_chunk_info(1).byte_offset
    with open(path, "r+b") as raw:
        raw.seek(at)
        raw.write(b"\xff")
    with pytest.raises(VerifyError, match=r"'x'.*chunk at \(10,\)"):
        file.verify()


def test_errors_of_the_disk_have_names(tmp_path):
    with pytest.raises(WriteFailedError, match="No such file"):
        OutputFile(str(tmp_path / "none/a.h5"))
    for code, said in ((errno.ENOSPC, "disk is full"), (errno.EIO, "Input/output error")):
        with pytest.raises(WriteFailedError, match=said), writing("a.h5"):
            raise OSError(code, "x")


def test_methods_of_io_read_what_was_written(tmp_path):
    with DiskFile(str(tmp_path / "a")) as file:
        file.write(b"hello")
        file.seek(0)
        assert file.read(5) == b"hello"
