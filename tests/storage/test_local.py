"""Files of the local file system: bytes, identity, paths, and errors of the operating system."""

import errno
import os

import pytest

from ray_h5.errors import (
    NotFoundError,
    NotHDF5Error,
    OptionError,
    ReadFailedError,
    TransientIOError,
    TruncatedFileError,
)
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import LocalFile, absolute_path, check_regular_file, identity_now


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"12345678")
    return str(tmp_path / "a.bin")


@pytest.mark.parametrize(("offset", "had"), [(5, 3), (8, 0), (100, 0)])
def test_a_file_that_is_shorter_than_asked(path, offset, had):
    with pytest.raises(TruncatedFileError) as caught:
        LocalFile.open(path).read_into(offset, memoryview(bytearray(6)))
    assert f"a.bin: expected 6 bytes at offset {offset}, found {had}" in str(caught.value)
    assert "now has 8 bytes" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EIO, TransientIOError), (errno.ESTALE, TransientIOError), (errno.EINVAL, ReadFailedError)],
)
def test_errors_of_reading(path, monkeypatch, code, error):
    def failing(*_):
        raise OSError(code, os.strerror(code))

    source = LocalFile.open(path)
    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(error, match=r"a\.bin: reading 4 bytes at offset 2 failed"):
        source.read_into(2, memoryview(bytearray(4)))


def test_identity(path, tmp_path):
    known = identity_now(path)
    assert known == LocalFile.open(path).identity() == FileIdentity.of(os.stat(path))
    (tmp_path / "b.bin").write_bytes(b"12345678")
    os.replace(tmp_path / "b.bin", path)
    assert identity_now(path) != known


def test_identity_of_no_file(path, tmp_path):
    assert identity_now(str(tmp_path / "none")) is None
    assert identity_now(f"{path}/below") is None
    for name in ["x" * 300, "a\0b", "\ud800"]:
        with pytest.raises(NotFoundError, match="no such file"):
            identity_now(str(tmp_path / name))


def test_files_that_cannot_be_hdf5(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, error in {".": NotHDF5Error, "pipe": NotHDF5Error, "empty": NotHDF5Error, "none": NotFoundError}.items():
        with pytest.raises(error):
            check_regular_file(str(tmp_path / name))
    with pytest.raises(OptionError, match="NUL"):
        check_regular_file("a\0b")


def test_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "far" / "below").mkdir(parents=True)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "below")
    monkeypatch.chdir(tmp_path / "near")
    assert absolute_path("a.h5") == str(tmp_path / "near" / "a.h5")
    assert absolute_path("../a.h5") == str(tmp_path / "a.h5")
    # The parent of a link is the parent of the folder that it leads to.
    assert absolute_path("link/../a.h5") == str(tmp_path / "far" / "a.h5")
    assert absolute_path("link/..") == str(tmp_path / "far")
