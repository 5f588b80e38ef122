"""Index files of folders: facts of many files in one."""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from ray_h5 import Files, Groups, Windows, where
from ray_h5.index.file_opener import Scope
from ray_h5.index.stored import index_files, joint
from ray_h5.index.stored.memory import MEMORY
from ray_h5.index.stored.serialize import from_stream, to_stream
from ray_h5.torch_data import H5Dataset

COUNT = joint.LEAST_FILES + 5


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    for i in range(COUNT):
        write(folder / f"s{i}.h5", i)
    return folder


def write(path, i):
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(2.0 * (i % 4 + 1)).reshape(-1, 2) + i
        file["label"] = i % 3
        file["g/t"] = np.arange(3)


@pytest.fixture
def opened(monkeypatch):
    found = []
    really = Scope.open
    monkeypatch.setattr(Scope, "open", lambda self, path, *given, **options: found.append(os.path.basename(path))
                        or really(self, path, *given, **options))  # fmt: skip
    return found


def planned(folder, index_dir, columns=("x", "label"), **options):
    """Plan as a new process would: nothing is in memory."""
    MEMORY.clear()
    joint.FOLDERS.clear()
    index = H5Dataset(folder, list(columns), index_dir=index_dir, **{"rows": Files(), **options})._index
    known = [table and (dict(table.entries), table.lengths.tolist(), table.num_steps) for table in index.tables]
    return index.files.starts.tolist(), index.files.identities.tolist(), dict(index.columns), known


def test_one_index_file_for_the_files_of_a_folder(written, tmp_path, opened):
    expected = planned(written, None)
    assert planned(written, tmp_path / "i") == expected
    assert len(list((tmp_path / "i").iterdir())) == 1
    opened.clear()
    assert planned(written, tmp_path / "i") == expected
    assert opened == []
    some = [written / f"s{i}.h5" for i in range(3)]
    assert planned(some, tmp_path / "i")[0] == [0, 1, 2, 3]
    assert "s1.h5" not in opened  # warnings look at the first and the last file
    assert len(list((tmp_path / "i").iterdir())) == 1


def test_values_of_predicates_are_there_too(written, tmp_path, opened):
    options = {"predicate": where(label=1), "rows": Files(key="name")}
    expected = planned(written, tmp_path / "i", **options)
    opened.clear()
    assert planned(written, tmp_path / "i", **options) == expected
    assert opened == []
    found = H5Dataset(written, ["name"], index_dir=tmp_path / "i", **options)
    assert sorted(row["name"] for row in found) == sorted(f"s{i}" for i in range(COUNT) if i % 3 == 1)


def test_more_files_and_more_columns_are_added(tmp_path, opened):
    for i in range(2 * COUNT):
        write(tmp_path / "data" / f"s{i}.h5", i)
    first, second = ([tmp_path / "data" / f"s{i}.h5" for i in range(at, at + COUNT)] for at in (0, COUNT))
    planned(first, tmp_path / "i")
    planned(second, tmp_path / "i", ["x"])
    planned(second, tmp_path / "i", ["label"])
    opened.clear()
    planned(tmp_path / "data", tmp_path / "i")
    assert len(opened) <= 2  # by warnings
    assert len(list((tmp_path / "i").iterdir())) == 1


def test_two_processes_that_save_keep_what_both_found(tmp_path, opened):
    for i in range(2 * COUNT):
        write(tmp_path / "data" / f"s{i}.h5", i)
    paths = [str(tmp_path / "data" / f"s{i}.h5") for i in range(2 * COUNT)]
    planned(tmp_path / "data", tmp_path / "i")
    scope = Scope(rows=Files())
    facts = [joint.JointIndex(paths, scope, str(tmp_path / "i")).get(path) for path in paths]
    next((tmp_path / "i").iterdir()).unlink()
    both = []
    for half in (facts[:COUNT], facts[COUNT:]):
        joint.FOLDERS.clear()
        both.append(joint.JointIndex(paths, scope, str(tmp_path / "i")))
        assert both[-1].get(half[0].path) is None  # it has looked at the folder
        assert all(map(both[-1].takes, half))
    for each in both:
        joint.FOLDERS.clear()
        each.save()
    opened.clear()
    planned(tmp_path / "data", tmp_path / "i")
    assert opened == []


def test_a_file_that_changed_is_looked_at_again_alone(tmp_path, opened):
    for i in range(COUNT):
        write(tmp_path / "data" / f"s{i}.h5", i)
    planned(tmp_path / "data", tmp_path / "i")
    write(tmp_path / "data" / "s7.h5", 2)
    (tmp_path / "data" / "s9.h5").unlink()
    opened.clear()
    found = planned(tmp_path / "data", tmp_path / "i")
    assert opened[0] == "s7.h5"
    assert len(opened) <= 3  # two by warnings
    assert found == planned(tmp_path / "data", None)
    opened.clear()
    planned(tmp_path / "data", tmp_path / "i")
    assert opened == []


def test_folders_of_few_files_are_together(tmp_path, opened):
    for i in range(COUNT):
        write(tmp_path / f"e{i}" / "data.h5", i)
    paths = [tmp_path / f"e{i}" / "data.h5" for i in range(COUNT)]
    windows = Windows({"g/t": range(2)})
    options = {"rows": None, "columns": ["g/t"], "windows": windows}
    expected = planned(paths, tmp_path / "i", **options)
    assert len(list((tmp_path / "i").iterdir())) == 1
    opened.clear()
    assert planned(paths, tmp_path / "i", **options) == expected
    assert opened == []


def test_facts_of_many_groups_have_a_file_of_their_own(written, tmp_path, opened):
    expected = planned(written, tmp_path / "i", ["t"], rows=Groups("g"))
    assert len(list((tmp_path / "i").iterdir())) == COUNT
    opened.clear()
    assert planned(written, tmp_path / "i", ["t"], rows=Groups("g")) == expected
    assert opened == []


def resealed(path, change):
    """Change what an index file says, with a right checksum."""
    body = path.read_bytes()[index_files._HEADER.size :]
    arrays, described = from_stream(memoryview(body))
    body = to_stream(arrays, json.dumps(change(described)))
    path.write_bytes(
        index_files._HEADER.pack(index_files._MAGIC, index_files._VERSION, len(body), index_files._checksum([body]))
        + body
    )


def first_file(described, value):
    path = next(iter(described["files"]))
    return {**described, "files": {**described["files"], path: value(described["files"][path])}}


LIES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "a folder of another": lambda path: resealed(path, lambda found: {**found, "of": ["folder", "/"]}),
    "no files": lambda path: resealed(path, lambda found: {**found, "files": 3}),
    "no layouts": lambda path: resealed(path, lambda found: {**found, "layouts": []}),
    "another layout": lambda path: resealed(path, lambda found: first_file(found, lambda of: [10**6, *of[1:]])),
    "no state": lambda path: resealed(path, lambda found: first_file(found, lambda of: of[:3])),
    "text": lambda path: resealed(path, lambda found: first_file(found, lambda _: "12345")),
    "specs": lambda path: resealed(path, lambda found: {**found, "specs": [["x", "number"]]}),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_trusted_is_made_again(written, tmp_path, opened, lie):
    folder = tmp_path / "i"
    expected = planned(written, folder)
    (path,) = folder.iterdir()
    LIES[lie](Path(path))
    assert planned(written, folder) == expected
    opened.clear()
    assert planned(written, folder) == expected
    assert opened == []
    assert list(folder.iterdir()) == [path]
