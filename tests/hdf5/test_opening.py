"""Files that cannot be opened, files that are in use, files that change: what the errors say."""

import contextlib
import errno
import gzip
import logging
import os
import resource
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader, errors
from ray_h5.hdf5.files import opening
from ray_h5.hdf5.files.opening import open_h5, translated
from ray_h5.read import file_reads
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import LocalFile
from tests.hdf5.h5kit import assert_same, flip, in_fork, program, run_python
from tests.kit.files import save

VALUES = np.arange(80, dtype="i4").reshape(20, 4)
GZIP = {"chunks": (3, 4), "compression": "gzip"}
NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "a.h5", {"x": VALUES, "y": VALUES[:, 0]}, chunks=True, compression="gzip")


@pytest.fixture
def no_waits(monkeypatch):
    monkeypatch.setattr(file_reads, "_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(LocalFile, "descriptor", None)  # the compiled loop does not call os.preadv


# Nothing to open ---------------------------------------------------------------------------------


def empty_file(path):
    path.touch()


def text_file(path):
    path.write_text("x,y\n1,2\n" * 500)


def short_file(path):
    path.write_bytes(b"\x89HDF")


def zeros(path):
    path.write_bytes(bytes(100_000))


def named_pipe(path):
    os.mkfifo(path)


def unix_socket(path):
    # Names of sockets are short: bind to a relative one.
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def link_to_nothing(path):
    path.symlink_to(path.parent / "gone.h5")


def link_to_itself(path):
    path.symlink_to(path)


def nothing(_path):
    pass


UNOPENABLE = [
    (nothing, errors.NotFoundError, FileNotFoundError, "no such file"),
    (link_to_nothing, errors.NotFoundError, FileNotFoundError, "no such file"),
    (empty_file, errors.NotHDF5Error, OSError, "found an empty one (0 bytes)"),
    (text_file, errors.NotHDF5Error, OSError, "found no HDF5 signature"),
    (short_file, errors.NotHDF5Error, OSError, "found no HDF5 signature"),
    (zeros, errors.NotHDF5Error, OSError, "found no HDF5 signature"),
    (os.mkdir, errors.NotHDF5Error, OSError, "expected a file, found a directory"),
    (named_pipe, errors.NotHDF5Error, OSError, "expected a file, found a pipe"),
    (unix_socket, errors.NotHDF5Error, OSError, "expected a file, found a socket"),
]


@pytest.mark.parametrize(("make", "leaf", "builtin", "message"), UNOPENABLE)
@pytest.mark.parametrize("opened", [RowReader, open_h5])
def test_paths_that_are_no_hdf5_file(tmp_path, make, leaf, builtin, message, opened):
    make(tmp_path / "a.h5")
    with pytest.raises(leaf) as caught:
        opened(str(tmp_path / "a.h5"))
    assert isinstance(caught.value, builtin)
    assert str(caught.value).startswith(f"{tmp_path / 'a.h5'}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("head", "seems"),
    [
        (b"CDF\x01" + bytes(90), "netCDF-3 file: convert it with `nccopy -k nc4"),
        (b"CDF\x02" + bytes(90), "netCDF-3"),
        (b"CDF\x05" + bytes(90), "netCDF-3"),
        (b"\x0e\x03\x13\x01" + bytes(90), "HDF4 file: convert it with `h4toh5`"),
        (b"MATLAB 5.0 MAT-file, Platform: PCWIN64", "save(..., '-v7.3')"),
        (gzip.compress(bytes(99), mtime=0), "compressed by gzip: decompress it with `gunzip`"),
        (b"PK\x03\x04" + bytes(90), "a zip archive, as those of numpy's savez (.npz)"),
        (b"\x93NUMPY\x01\x00" + bytes(90), "a numpy file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "`git lfs pull`"),
        (b"<!DOCTYPE html>\n<title>404</title>", "download the file again"),
        (b"\n<html><body>", "a web page"),
        (b"PAR1\x15\x04\x15", "a table: pass one of labels as sidecar=Sidecar("),
        (b"patient,diagnosis\r\np1,benign\r\n", "a table"),
        (b"slide_id\tlabel\n", "a table"),
    ],
    ids=lambda each: each[:12] if isinstance(each, bytes) else "",
)
def test_what_a_file_seems_to_be(tmp_path, head, seems):
    (tmp_path / "a.h5").write_bytes(head)
    with pytest.raises(errors.NotHDF5Error) as caught:
        RowReader(tmp_path / "a.h5")
    assert str(caught.value).startswith(
        f"{tmp_path / 'a.h5'}: expected an HDF5 file, found no HDF5 signature in it. It "
    )
    assert seems in str(caught.value)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_the_first_part_of_a_family_of_files_is_named(tmp_path, libver):
    with h5py.File(tmp_path / "a%d.h5", "w", driver="family", memb_size=4096, libver=libver) as file:
        file["x"] = np.arange(6000)
    with pytest.raises(errors.NotHDF5Error, match=r"a0\.h5: .*one part of several.*h5repart -family_to_single"):
        RowReader(tmp_path / "a0.h5")
    with pytest.raises(errors.NotHDF5Error, match=r"found no HDF5 signature in it$"):
        RowReader(tmp_path / "a3.h5")


def test_a_device_is_no_hdf5_file():
    with pytest.raises(errors.NotHDF5Error, match="/dev/null: expected a file, found a device"):
        RowReader("/dev/null")


@pytest.mark.parametrize("opened", [RowReader, open_h5])
def test_no_descriptor_left(tmp_path, opened):
    path = save(tmp_path / "a.h5", {"x": VALUES})

    def without_descriptors():
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        with pytest.raises(errors.ReadFailedError, match=r"may have no more files open .*`ulimit -n`.*each RowReader"):
            opened(path)

    in_fork(without_descriptors)


@pytest.mark.parametrize(
    ("name", "leaf"),
    [("a.h5/b.h5", errors.NotFoundError), ("x" * 300, errors.NotFoundError), ("loop.h5", errors.NotFoundError)],
    ids=["below a file", "name too long", "link to itself"],
)
def test_paths_that_lead_nowhere_are_not_called_damaged(tmp_path, name, leaf):
    save(tmp_path / "a.h5", {"x": VALUES})
    link_to_itself(tmp_path / "loop.h5")
    with pytest.raises((leaf, errors.OptionError)) as caught:
        RowReader(tmp_path / name)
    assert name in str(caught.value)
    assert "damaged" not in str(caught.value)


def test_nul_in_a_path(path):
    # libhdf5 would open what is before the NUL.
    with pytest.raises(errors.OptionError, match=r"a\.h5\\x00\.txt.*NUL") as caught:
        RowReader(path + "\0.txt")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("where", ["file", "folder"])
def test_file_that_may_not_be_read(where):
    # Not tmp_path, which is closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = save(os.path.join(folder, "a.h5"), {"x": VALUES})
        os.chmod(path if where == "file" else folder, 0o000)

        def as_nobody():
            if os.geteuid() == 0:
                os.setegid(NOBODY)
                os.seteuid(NOBODY)
            return RowReader(path)

        with pytest.raises(errors.NotReadableError) as caught:
            in_fork(as_nobody)
        os.chmod(folder, 0o755)
    assert isinstance(caught.value, PermissionError)
    assert str(caught.value).startswith(f"{path}: this process may not read it")


def test_relative_paths_outlive_a_change_of_folder(path, monkeypatch):
    monkeypatch.chdir(os.path.dirname(path))
    opened = RowReader("a.h5")
    monkeypatch.chdir("/")
    assert opened.path == path
    assert_same(opened.read(["x"])["x"], VALUES)


# Damaged and cut short ---------------------------------------------------------------------------


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("kept", [0.999, 0.5, 0.1])
def test_truncated(tmp_path, libver, kept):
    path = save(tmp_path / "a.h5", {"x": np.zeros(5000)}, libver)
    size = os.path.getsize(path)
    os.truncate(path, int(size * kept))
    with pytest.raises(errors.TruncatedFileError) as caught:
        RowReader(path)
    assert str(caught.value) == (
        f"{path}: expected {size} bytes, found {int(size * kept)}. The file is cut short: copy it again."
    )
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize(("libver", "ends"), [("earliest", 96), ("latest", 48)])
@pytest.mark.parametrize("user_block", [0, 512])
def test_a_file_that_ends_in_its_superblock_is_cut_short(tmp_path, libver, ends, user_block):
    with h5py.File(tmp_path / "a.h5", "w", libver=libver, userblock_size=user_block) as file:
        file["x"] = VALUES
    whole = (tmp_path / "a.h5").read_bytes()
    for kept in range(user_block + 8, user_block + ends + 4):
        path = str(tmp_path / f"{kept}.h5")
        Path(path).write_bytes(whole[:kept])
        # libhdf5 goes on with bytes of memory that were never read: what it says differs from time to time.
        with pytest.raises(errors.TruncatedFileError) as caught:
            RowReader(path)
        assert path in str(caught.value)
        if kept < user_block + ends:
            assert f"bytes or more, found {kept}. The file is cut short" in str(caught.value)


@pytest.mark.parametrize("most", [1, 7, 100])
def test_short_reads_are_continued(path, monkeypatch, most):
    monkeypatch.setattr(LocalFile, "descriptor", None)  # the compiled loop does not call os.preadv
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:most]], offset))
    assert_same(RowReader(path).read(["x"])["x"], VALUES)


def places_of_metadata(path):
    data = Path(path).read_bytes()
    headers = [at for at in range(len(data)) if data.startswith(b"OHDR", at)]
    return {"superblock": 9, "root group": headers[0] + 8, "header of the first column": headers[1] + 12}


@pytest.mark.parametrize("place", ["superblock", "root group", "header of the first column"])
def test_damaged_metadata(tmp_path, place):
    path = save(tmp_path / "a.h5", {"x": VALUES, "y": VALUES}, "latest")
    flip(path, places_of_metadata(path)[place])
    with pytest.raises(errors.CorruptFileError) as caught:
        RowReader(path).read(["x"])
    assert str(caught.value).startswith(f"{path}: ")
    assert "damaged" in str(caught.value)
    assert not isinstance(caught.value, KeyError), "a KeyError would say that the column is absent"
    if place == "header of the first column":
        assert "'x'" in str(caught.value)
        assert_same(RowReader(path).read(["y"])["y"], VALUES)


# Writers -----------------------------------------------------------------------------------------

WRITES = """
import sys, h5py
file = h5py.File(sys.argv[1], sys.argv[2], libver=sys.argv[3])
file.create_dataset("z" if sys.argv[2] == "r+" else "x", data=range(10))
"""


@pytest.mark.parametrize(("mode", "libver"), [("r+", "earliest"), ("w", "latest")])
def test_live_writer(tmp_path, mode, libver):
    path = save(tmp_path / "a.h5", {"x": VALUES}, libver)
    with program(WRITES, path, mode, libver):
        with pytest.raises(errors.WriterActiveError) as caught:
            RowReader(path)
        assert str(caught.value).startswith(f"{path}: open for writing elsewhere")
        assert "Close the writer" in str(caught.value)
        assert isinstance(caught.value, BlockingIOError)
    assert RowReader(path).column("x").num_rows == (20 if mode == "r+" else 10)


def test_writer_that_died(tmp_path):
    path = str(tmp_path / "a.h5")
    child = run_python(WRITES + "file.flush()\nimport os\nos._exit(0)", path, "w", "latest")
    assert child.returncode == 0
    before = Path(path).read_bytes()
    with pytest.raises(errors.WriterActiveError, match=r"its writer died before closing it.*`h5clear -s` on a copy"):
        RowReader(path)
    assert Path(path).read_bytes() == before, "flags are never cleared for the user"


# Locks and other openings of the same file -------------------------------------------------------

LOCKINGS = [None, True, False, "best-effort"]


@pytest.mark.parametrize("locking", LOCKINGS)
def test_file_that_this_process_has_open(path, locking):
    with h5py.File(path, "r", locking=locking) as file:
        opened = RowReader(path)
        assert_same(opened.read(["x"], [19, 0])["x"], VALUES[[19, 0]])
        assert opened.stats.chunks_decoded > 0, "our own path is taken nevertheless"
        assert_same(file["x"][:], VALUES)
        assert set(RowReader(path).columns) == {"x", "y"}
        assert_same(file["y"][:], VALUES[:, 0])


@pytest.mark.parametrize("locking", LOCKINGS)
@pytest.mark.parametrize("mode", ["r", "r+", "a", "w"])
def test_our_cache_is_in_nobodys_way(path, mode, locking):
    opened = RowReader(path)
    opened.read(["x"])
    assert set(opened.columns) == {"x", "y"}
    with h5py.File(path, mode, locking=locking) as file:
        assert set(file) == (set() if mode == "w" else {"x", "y"})


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks(path, monkeypatch, caplog, code):
    opened_by_library = h5py.h5f.open

    def without_locks(*args, fapl):
        if fapl.get_file_locking()[0]:
            raise OSError(code, f"Unable to open file (unable to lock file, errno = {code}, message = 'no locks')")
        return opened_by_library(*args, fapl=fapl)

    monkeypatch.setattr(opening.h5py.h5f, "open", without_locks)
    with caplog.at_level(logging.INFO, "ray_h5"):
        opened = RowReader(path)
        assert_same(opened.read(["x"])["x"], VALUES)
        assert_same(opened.read(["y"])["y"], VALUES[:, 0])
    said = [record.getMessage() for record in caplog.records if "lock" in record.getMessage()]
    assert len(said) == 1, "once a file is enough"
    assert path in said[0]


def test_threads_that_have_a_file_open_together(tmp_path):
    # libhdf5 reads texts in compound values through the file that the dataset was opened in first.
    rows = np.array([(i, b"text %d" % i) for i in range(50)], [("i", "i4"), ("text", h5py.string_dtype())])
    path = save(tmp_path / "a.h5", {"c": rows})
    first, second = open_h5(path), open_h5(path)
    assert first.id == second.id, "one open file"
    assert first["c"][0] == second["c"][0]
    first.close()
    first.close()
    other = open_h5(save(tmp_path / "b.h5", {"x": VALUES}))  # it may take the memory of the file that was closed
    assert second["c"][:].tolist() == rows.tolist()
    second.close()
    other.close()
    with h5py.File(path, "r+") as again:  # nobody has it open
        again["d"] = 1
    with open_h5(path) as last:
        assert {*last} == {"c", "d"}


# Files that change -------------------------------------------------------------------------------


@pytest.mark.parametrize("read_before", [True, False])
def test_file_that_is_replaced(tmp_path, read_before):
    path = save(tmp_path / "a.h5", {"x": VALUES}, **GZIP)
    opened = RowReader(path)
    if read_before:
        opened.read(["x"])
    os.replace(save(tmp_path / "b.h5", {"x": VALUES + 1}, **GZIP), path)
    # The old reader may go on with the old file, which it still has, but never mixes the two.
    with contextlib.suppress(errors.StaleIndexError):
        assert_same(opened.read(["x"])["x"], VALUES)
    assert_same(RowReader(path).read(["x"])["x"], VALUES + 1)


def test_expected_state(path):
    state = RowReader(path).identity
    assert_same(RowReader(path, expect=state).read(["x"])["x"], VALUES)
    touched = replace(state, ctime_ns=state.ctime_ns + 1)  # as by a chmod
    assert_same(RowReader(path, expect=touched).read(["x"])["x"], VALUES)
    for change in ("size", "mtime_ns", "inode"):
        values = {name: getattr(state, name) + (name == change) for name in FileIdentity.__slots__}
        with pytest.raises(errors.StaleIndexError) as caught:
            RowReader(path, expect=FileIdentity(**values))
        differs = f"reading: expected {change} {values[change]}, found {getattr(state, change)}. "
        assert differs in str(caught.value)  # and nothing that is as it was
        assert path in str(caught.value)


# Errors that pass --------------------------------------------------------------------------------

PASSING = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT]


class Flaky:
    """Fails `times` times with one error, then calls the function that it replaces."""

    def __init__(self, does, times, code, kind=OSError):
        self.does, self.left, self.code, self.kind = does, times, code, kind
        self.calls = 0

    def __call__(self, *args, **options):
        self.calls += 1
        if self.left:
            self.left -= 1
            if self.kind is OSError:
                raise OSError(self.code, os.strerror(self.code))
            raise self.kind(f"Unable to open object (file read failed: errno = {self.code}, error message = '...')")
        return self.does(*args, **options)


@pytest.fixture
def opens(monkeypatch):
    """Record the paths that are opened."""
    found = []
    check = opening.check_regular_file

    def recording(path):
        found.append(path)
        return check(path)

    monkeypatch.setattr(opening, "check_regular_file", recording)
    return found


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.usefixtures("no_waits")
def test_reads_that_fail_for_a_while(path, monkeypatch, opens, caplog, code, times):
    opened = RowReader(path)
    opened.read(["x"])
    before = len(opens)
    flaky = Flaky(os.preadv, times, code)
    monkeypatch.setattr(os, "preadv", flaky)
    assert_same(opened.read(["x"])["x"], VALUES)
    assert len(opens) >= before + times, "it is opened again before each try"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * times
    assert path in caplog.text


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.usefixtures("no_waits")
def test_reads_that_fail_for_good(path, monkeypatch, code):
    opened = RowReader(path)
    flaky = Flaky(os.preadv, 1000, code)
    monkeypatch.setattr(os, "preadv", flaky)
    with pytest.raises(errors.TransientIOError) as caught:
        opened.read(["x"])
    assert flaky.calls == 4
    assert isinstance(caught.value, OSError)
    for part in (path, "after 4 tries", os.strerror(code)):
        assert part in str(caught.value)
    monkeypatch.undo()
    assert_same(opened.read(["x"])["x"], VALUES)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EBADF, errno.EINVAL])
@pytest.mark.usefixtures("no_waits")
def test_other_errors_are_not_tried_again(path, monkeypatch, code):
    opened = RowReader(path)
    flaky = Flaky(os.preadv, 1000, code)
    monkeypatch.setattr(os, "preadv", flaky)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        opened.read(["x"])
    assert flaky.calls == 1
    assert isinstance(caught.value, errors.RayH5Error)
    assert path in str(caught.value)


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.usefixtures("no_waits")
def test_opening_that_fails_for_a_while(path, monkeypatch, code):
    other = save(path + "2", {"x": VALUES})
    flaky = Flaky(h5py.h5f.open, 3, code)
    monkeypatch.setattr(opening.h5py.h5f, "open", flaky)
    assert_same(RowReader(path).read(["x"])["x"], VALUES)
    flaky.left = 1000
    with pytest.raises(errors.TransientIOError, match="after 4 tries"):
        RowReader(other)


@pytest.mark.usefixtures("no_waits")
def test_file_that_is_replaced_between_two_tries(tmp_path, monkeypatch):
    path = save(tmp_path / "a.h5", {"x": VALUES}, **GZIP)
    other = save(tmp_path / "b.h5", {"x": VALUES + 1}, **GZIP)
    opened = RowReader(path)
    preadv = os.preadv

    def failing(*args):
        if os.path.exists(other):
            os.replace(other, path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return preadv(*args)

    monkeypatch.setattr(os, "preadv", failing)
    for _ in range(3):  # the plan was made for the old file, however often it is asked
        with pytest.raises(errors.StaleIndexError, match="the file changed between planning and reading"):
            opened.read(["x"])


def test_what_libhdf5_finds_out_when_it_closes_a_file_is_an_error_of_that_file(tmp_path):
    file = open_h5(save(tmp_path / "a.h5", {"x": VALUES}))
    os.close(file.id.get_vfd_handle())  # as when a disk fails
    with pytest.raises(errors.CorruptFileError, match=r"a\.h5: closing failed.*decrement id ref count") as caught:
        file.close()
    assert not isinstance(caught.value, RuntimeError)
    with RowReader(tmp_path / "a.h5") as reader:
        assert_same(reader.read(["x"])["x"], VALUES)


def test_a_key_that_this_package_misses_is_no_damage(tmp_path):
    path = save(tmp_path / "a.h5", {"x": VALUES})
    with h5py.File(path) as file:
        with pytest.raises(errors.CorruptFileError, match="opening failed, its metadata is damaged"), translated(path):
            file["nothing"]
        with pytest.raises(errors.CorruptFileError, match="looking failed"), translated(path, "looking"):
            file.attrs["nothing"]
    ours = {"__name__": "ray_h5.anything"}
    exec("def missing():\n    return {}['nothing']", ours)
    with pytest.raises(KeyError, match="nothing"), translated(path):
        ours["missing"]()
