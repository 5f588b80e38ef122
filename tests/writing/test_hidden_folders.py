"""Hidden folders and temporary files: made new or known as ours; nothing else is ever followed or removed."""

import os
import signal
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest

import ray_h5
from ray_h5.errors import OutputExistsError, RayH5Error

DEAD = ".ray_h5-0123456789ab"


@pytest.fixture
def source(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = np.arange(100.0).reshape(25, 4)
    return tmp_path / "in.h5"


@pytest.fixture
def home(tmp_path):
    """A folder of somebody, with a file that is called as ours are."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("thesis.tex", "lock", "journal.json"):
        (folder / name).write_text("mine")
    return folder


def held(folder):
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder))}


def place_of(tmp_path, kind):
    """Return where a repack writes, and where its hidden folder is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return (
        (folder, folder / ".ray_h5_repack") if kind == "folder" else (folder / "o.h5", folder / ".ray_h5_repack-o.h5")
    )


def write(folder, mode="error"):
    """Do what Ray does."""
    sink = ray_h5.H5Datasink(folder, mode=mode)
    sink.on_write_start()
    parts = sink.write([pa.table({"x": np.arange(3)})], SimpleNamespace(task_idx=0))
    sink.on_write_complete(SimpleNamespace(write_returns=[parts]))


def killed(work, at):
    """Run a function in a child that is killed when it calls `at`, a function of `os`."""
    child = os.fork()
    if not child:
        setattr(os, at, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_repack_follows_no_link(tmp_path, source, home, kind, options):
    out, hidden = place_of(tmp_path, kind)
    hidden.symlink_to(home)
    before = held(home)
    with pytest.raises(OutputExistsError, match="link or a file"):
        ray_h5.repack(source, out, **options)
    assert held(home) == before
    assert os.path.islink(hidden)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_repack_takes_no_folder_of_others(tmp_path, source, home, kind):
    out, hidden = place_of(tmp_path, kind)
    home.rename(hidden)
    before = held(hidden)
    with pytest.raises(OutputExistsError, match=r"thesis\.tex"):
        ray_h5.repack(source, out)
    assert held(hidden) == before
    (hidden / "thesis.tex").unlink()
    if os.getuid() == 0:
        os.chown(hidden, 12345, 12345)
        os.chmod(hidden, 0o777)
        with pytest.raises(OutputExistsError, match="another user"):
            ray_h5.repack(source, out)
        assert held(hidden) == {"journal.json": "mine", "lock": "mine"}
        os.chown(hidden, 0, 0)
    ray_h5.repack(source, out)
    assert not hidden.exists()


def test_repack_follows_no_link_of_a_lock(tmp_path, source, home):
    out, hidden = place_of(tmp_path, "file")
    hidden.mkdir()
    (hidden / "lock").symlink_to(home / "new")
    with pytest.raises(RayH5Error):
        ray_h5.repack(source, out)
    assert not (home / "new").exists()


def test_an_empty_folder_that_was_there_stays(tmp_path, source):
    (tmp_path / "out").mkdir()
    for out in (tmp_path / "out", tmp_path / "new"):
        with pytest.raises(RayH5Error):
            ray_h5.repack(source, out, page="1MiB", progress=lambda *_: os.utime(source, ns=(1, time.time_ns())))
    assert sorted(os.listdir(tmp_path)) == ["in.h5", "out"]


@pytest.mark.parametrize("at", ["unlink", "rmdir"])
def test_a_write_that_is_killed_while_it_cleans_up_leaves_nothing_for_ever(tmp_path, at):
    killed(lambda: write(tmp_path / "out"), at)
    assert [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]
    write(tmp_path / "out", "append")
    assert sorted(os.listdir(tmp_path / "out")) == ["part-0-0.h5", "part-1-0.h5"]


def test_a_write_removes_no_folder_of_others(tmp_path, home):
    out = tmp_path / "out"
    out.mkdir()
    (out / DEAD).symlink_to(home)
    home_before = held(home)
    (out / ".ray_h5-notes").mkdir()
    (out / ".ray_h5-notes/lock").write_text("mine")
    (out / ".ray_h5-ba9876543210").mkdir()
    for name in ("lock", "part-0-0.h5.12345678.tmp", "thesis.tex"):
        (out / ".ray_h5-ba9876543210" / name).write_text("mine")
    others = held(out / ".ray_h5-ba9876543210")
    write(out, "append")
    assert held(home) == home_before
    assert held(out / ".ray_h5-notes") == {"lock": "mine"}
    assert held(out / ".ray_h5-ba9876543210") == others
    assert sorted(os.listdir(out)) == [DEAD, ".ray_h5-ba9876543210", ".ray_h5-notes", "part-0-0.h5"]


def test_a_running_write_keeps_its_folder(tmp_path):
    running = ray_h5.H5Datasink(tmp_path, mode="append")
    running.on_write_start()
    parts = running.write([pa.table({"x": np.arange(3)})], SimpleNamespace(task_idx=7))
    write(tmp_path, "append")
    running.on_write_complete(SimpleNamespace(write_returns=[parts]))
    assert sorted(os.listdir(tmp_path)) == ["part-0-0.h5", "part-8-0.h5"]
