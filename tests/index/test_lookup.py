"""How files are looked up: what is read ahead, and how often each is opened."""

import gc
import itertools
import os
import threading

import h5py
import numpy as np
import pytest

from ray_h5.hdf5.files import opening
from ray_h5.index import scan_files
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.file_options import FileOptions
from ray_h5.index.scan_files import Lookup, read_ahead
from ray_h5.rows.row_kind_options import Files, Groups
from tests.kit.files import save


def test_a_pipe_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(scan_files, "waits_of_thread", itertools.count(0, 1000).__next__)
    pipe = str(tmp_path / "pipe.h5")
    os.mkfifo(pipe)
    groups = [["first"], ["second"], [pipe, str(tmp_path), str(tmp_path / "gone.h5")]]
    done = []
    thread = threading.Thread(target=lambda: done.extend(read_ahead(lambda group: group, groups)), daemon=True)
    thread.start()
    thread.join(20)
    assert done == groups
    assert not thread.is_alive()


@pytest.mark.parametrize("waits", [0, 1000])
def test_beginnings_are_read_ahead_once_the_work_waits(monkeypatch, waits):
    monkeypatch.setattr(scan_files, "waits_of_thread", itertools.count(0, waits).__next__)
    groups = [[f"{group}{number}" for number in range(3)] for group in "abc"]
    fetched, is_done = [], threading.Event()

    def fetch(path):
        fetched.append(path)
        if len(fetched) == len(groups[2]):
            is_done.set()

    def work(group):
        assert not waits or group != groups[1] or is_done.wait(20)
        return group

    monkeypatch.setattr(scan_files, "_fetch", fetch)
    assert list(read_ahead(work, groups)) == groups
    assert sorted(fetched) == (groups[2] if waits else [])


def test_planning_leaves_no_circles_of_objects(tmp_path):
    for number in range(3):
        save(tmp_path / f"{number}.h5", {"x": np.zeros((3, 2)), "label": 1, "null": h5py.Empty("f4")})
    FileOptions.of(str(tmp_path / "0.h5"), rows=Files()).index()  # imports
    gc.collect()
    gc.disable()
    try:
        for number in (1, 2):
            FileOptions.of(str(tmp_path / f"{number}.h5"), rows=Files()).index()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        # They would keep what libhdf5 has open until they are collected.
        kept = [each for each in gc.garbage if isinstance(each, (h5py.h5d.DatasetID, h5py.h5f.FileID, BaseException))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kept == []


@pytest.mark.parametrize("columns", [None, ("x",)])
def test_files_that_are_alike_share_what_is_known_of_them(tmp_path, columns):
    paths = [save(tmp_path / f"{number}.h5", {"x": np.zeros((3, 2)), "y": np.arange(3)}) for number in range(3)]
    answers = Lookup().ask(paths, Question(columns))
    for name in ("columns", "listing", "sources", "values", "known"):
        assert len({id(getattr(facts, name)) for facts in answers}) == 1, name
    assert [facts.path for facts in answers] == paths


@pytest.mark.parametrize("columns", [None, ["x", "label"], ["anndata"], ["group"]])
def test_libhdf5_opens_each_file_once_to_plan_it(tmp_path, monkeypatch, columns):
    paths, opens, opened = [], [], opening._opened
    monkeypatch.setattr(opening, "_opened", lambda path, swmr: opens.append(path) or opened(path, swmr))
    for number in range(5):
        paths.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file.create_dataset("x", data=np.arange(12.0).reshape(6, 2), chunks=(4, 2), compression="gzip")
            file["label"] = np.arange(6) % 2
            if columns == ["anndata"]:
                file.attrs["encoding-type"] = "anndata"
                file["obs/label"] = np.arange(6)
                file["obs"].attrs.update({"encoding-type": "dataframe", "_index": "label"})
                file["X"] = np.zeros((6, 2))
            if columns == ["group"]:
                file["demo_0/x"] = np.zeros(3)
    names = {"anndata": None, "group": ["x"]}.get((columns or [""])[0], columns)
    rows = Groups("demo_*") if columns == ["group"] else None
    options = FileOptions.of(paths, rows=rows)
    index = options.index(names)
    # Of datasets that are like those of a file before, it is not asked again.
    assert sorted(opens) == (paths if (columns or [""])[0] in {"anndata", "group"} else paths[:1])
    opens.clear()
    small = "obs/label" if columns == ["anndata"] else "label"
    if rows is None:
        assert len(index.values([small])[small]) == 30
    assert len(opens) == len(set(opens))


def test_a_file_is_closed_when_its_facts_are_known(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.arange(3)})
    FileOptions.of(path).index()
    with h5py.File(path, "a") as file:  # libhdf5 refuses to open a file for writing that is open for reading
        file["y"] = np.arange(3)
    index = FileOptions.of(path).index()
    assert [*index.columns] == ["x", "y"]
