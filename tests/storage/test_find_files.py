import itertools
import os
import pathlib
import re
from types import SimpleNamespace

import fsspec
import h5py
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from ray_h5 import RowReader
from ray_h5.errors import NotFoundError, NotReadableError, OptionError
from ray_h5.hdf5.files.external_policy import as_roots
from ray_h5.storage.find_files import find_files, is_local_only
from ray_h5.storage.local import LOCAL
from ray_h5.storage.natural_order import natural_key
from ray_h5.storage.stores.file_systems import FileSystemStorage


@pytest.fixture
def folder(tmp_path):
    for name in ("f10.h5", "f2.h5", "f1.hdf5", "notes.txt", "sub/f3.H5", "sub/deep/f4.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def expand_paths(*args, **options):
    return find_files(*args, **options).paths


def names(found, folder):
    return [str(pathlib.Path(path).relative_to(folder)) for path in found]


def test_a_directory_is_searched_to_the_bottom_and_sorted_naturally(folder):
    expected = ["f1.hdf5", "f2.h5", "f10.h5", "sub/deep/f4.h5", "sub/f3.H5"]
    assert names(expand_paths(folder), folder) == expected
    assert names(expand_paths(str(folder)), folder) == expected
    assert names(expand_paths([f"file://{folder}"]), folder) == expected
    assert names(expand_paths([f"FILE://{folder}", f"file://localhost{folder}"]), folder) == expected


@pytest.mark.parametrize("name", ["a b", "ä%41", "%41", os.fsdecode(b"\xff")])
def test_uris_with_escapes(tmp_path, name):
    path = tmp_path / name / "a.h5"
    path.parent.mkdir()
    path.touch()
    assert expand_paths(path.as_uri()) == [str(path)]
    assert expand_paths(path.parent.as_uri() + "/*.h5") == [str(path)]
    assert expand_paths(f"file://{path}") == [str(path)]  # a path that is written as it is
    with pytest.raises(NotFoundError, match=r"1 path does not exist:\n  .*%20none\.h5"):
        expand_paths((tmp_path / " none.h5").as_uri())


def test_duplicates_are_taken_once(folder):
    given = [folder / "f2.h5", f"{folder}/f*.h5", f"{folder}/./f2.h5"]
    assert names(expand_paths(given), folder) == ["f2.h5", "f10.h5"]


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize("pattern", ["", "*", "**", "**/*.h5", "*/*.h5", "**/run*/*"])
def test_a_link_beside_a_folder_adds_nothing(tmp_path, pattern):
    touch(tmp_path / "run5/x.h5", tmp_path / "run10/y.h5")
    (tmp_path / "latest").symlink_to("run5")
    (tmp_path / "run1").symlink_to("run5")
    assert names(expand_paths(f"{tmp_path}/{pattern}"), tmp_path) == ["run5/x.h5", "run10/y.h5"]
    # What is named is taken.
    given = [tmp_path / "run5", tmp_path / "latest"]
    assert names(expand_paths(given), tmp_path) == ["latest/x.h5", "run5/x.h5"]
    given = [tmp_path / "run5/x.h5", tmp_path / "latest/x.h5"]
    assert names(expand_paths(given), tmp_path) == ["latest/x.h5", "run5/x.h5"]


@pytest.mark.parametrize("pattern", ["", "*", "**", "**/*.h5"])
@pytest.mark.parametrize("more", [[], ["b2"], ["b2", "b3"]])
def test_links_that_lead_to_each_other_come_to_an_end(tmp_path, pattern, more):
    touch(tmp_path / "a/x.h5", tmp_path / "c/deep/y.h5")
    for name in ("b", *more):
        (tmp_path / "a" / name).symlink_to("../c")
    (tmp_path / "c" / "d").symlink_to("../a")
    (tmp_path / "c" / "deep" / "e").symlink_to("../../a")
    assert names(expand_paths(f"{tmp_path}/{pattern}"), tmp_path) == ["a/x.h5", "c/deep/y.h5"]


def test_of_several_links_the_first_in_order_counts(tmp_path):
    touch(tmp_path / "elsewhere/deep/x.h5", tmp_path / "elsewhere/y.h5", tmp_path / "here/z.h5")
    for name in ("run10", "run9", "sub/run1"):
        (tmp_path / "here" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "here" / name).symlink_to(tmp_path / "elsewhere")
    found = names(expand_paths(tmp_path / "here"), tmp_path / "here")
    assert found == ["run9/deep/x.h5", "run9/y.h5", "z.h5"]
    # A way by one link comes before one by two, whatever their names.
    (tmp_path / "elsewhere/deep/all").symlink_to(tmp_path / "other")
    touch(tmp_path / "other/w.h5")
    (tmp_path / "here/z").symlink_to(tmp_path / "other")
    found = names(expand_paths(tmp_path / "here"), tmp_path / "here")
    assert found == ["run9/deep/x.h5", "run9/y.h5", "z.h5", "z/w.h5"]


def test_links_that_lead_nowhere_are_named(tmp_path):
    touch(tmp_path / "x.h5")
    (tmp_path / "gone.h5").symlink_to("nothing.h5")
    (tmp_path / "circle.h5").symlink_to("circle.h5")
    (tmp_path / "above").symlink_to("..")
    for pattern in ("", "*", "**"):
        assert names(expand_paths(f"{tmp_path}/{pattern}"), tmp_path) == ["circle.h5", "gone.h5", "x.h5"]


def test_a_file_that_is_named_needs_no_extension(folder):
    assert names(expand_paths(folder / "notes.txt"), folder) == ["notes.txt"]


def test_a_name_that_looks_like_a_glob_is_a_name_first(tmp_path):
    (tmp_path / "a[1].h5").touch()
    assert names(expand_paths(tmp_path / "a[1].h5"), tmp_path) == ["a[1].h5"]


def test_extensions_can_be_chosen(folder):
    assert names(expand_paths(folder, ["txt"]), folder) == ["notes.txt"]
    assert len(expand_paths(folder, None)) == 6
    with pytest.raises(OptionError, match=r"write file_extensions=\['txt'\]"):
        expand_paths(folder, "txt")


@pytest.mark.parametrize("given", [[], (), [""], ["."], [5], 5, b"h5", iter(["h5"])])
def test_endings_are_named_one_by_one(tmp_path, given):
    (tmp_path / "a.h5").touch()
    with pytest.raises(OptionError, match=r"file_extensions=.*: expected at least one ending.* or None for all"):
        expand_paths(tmp_path, file_extensions=given)


def test_a_glob_that_names_an_extension_takes_what_it_matches(folder):
    assert names(expand_paths(f"{folder}/*.txt"), folder) == ["notes.txt"]
    assert names(expand_paths(f"{folder}/**/no*.txt"), folder) == ["notes.txt"]
    assert names(expand_paths([f"{folder}/*.txt", f"{folder}/*"]), folder) == names(
        sorted([*expand_paths(folder), str(folder / "notes.txt")], key=natural_key), folder
    )
    # The default endings are the same however they are written.
    for extensions in (("h5", "hdf5", "h5ad"), ["hdf5", ".H5", "h5ad"]):
        assert names(expand_paths(f"{folder}/*.txt", extensions), folder) == ["notes.txt"]
    # Not if others were asked for, nor of a folder that a glob matches, nor where the ending is left open.
    with pytest.raises(NotFoundError, match="1 file there does not end in h5"):
        expand_paths(f"{folder}/*.txt", ["h5"])
    (folder / "run.txt").mkdir()
    for name in ("a.txt", "b.h5"):
        (folder / "run.txt" / name).touch()
    assert names(expand_paths(f"{folder}/run*.txt"), folder) == ["run.txt/b.h5"]
    with pytest.raises(NotFoundError, match=r"1 file there does not end in h5 or hdf5 or h5ad\. .*, such as '\*\.nc'"):
        expand_paths(f"{folder}/notes.*")


def test_all_missing_paths_are_listed(folder):
    given = [folder / "f2.h5", folder / "gone.h5", f"{folder}/no*.h5"]
    with pytest.raises(NotFoundError) as caught:
        expand_paths(given)
    message = str(caught.value)
    assert "2 paths do not exist" in message
    assert f"no*.h5 (a glob that matches nothing, '{folder}' has " in message
    assert "gone.h5" in message
    assert "no*.h5" in message
    assert "ignore_missing_paths=True" in message
    assert names(expand_paths(given, ignore_missing_paths=True), folder) == ["f2.h5"]


def test_of_a_relative_path_it_is_said_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        expand_paths(["dta/*.h5", "a.h5", f"{tmp_path}/b.h5"])
    assert str(caught.value).splitlines()[1:4] == [
        f"  dta/*.h5 (a glob that matches nothing, there is no 'dta', looked in {tmp_path})",
        f"  a.h5 (looked in {tmp_path})",
        f"  {tmp_path}/b.h5",
    ]


def test_nothing_found_says_what_was_passed_over(folder):
    with pytest.raises(NotFoundError, match=r"1 file there does not\s+end in .*file_extensions"):
        expand_paths(f"{folder}/n*")
    with pytest.raises(NotFoundError, match="all of these are missing"):
        expand_paths(folder / "gone.h5", ignore_missing_paths=True)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ([], "empty list"),
        ("a\0b.h5", "NUL"),
        ([b"x.h5"], "str or path-like"),
        (["x.h5", 3], "found 3"),
        ("", "found ''"),
        (None, "paths=None: expected a file"),
        (3, "paths=3: expected a file"),
        (b"x.h5", "expected a file"),
        ({"x": 1}, "expected a file"),  # as an open h5py.File, whose items would be paths
        (SimpleNamespace(filename="a.h5"), "found an open file; pass its name, 'a.h5'"),
        ([SimpleNamespace(filename="a.h5")], "found an open file; pass its name, 'a.h5'"),
        (SimpleNamespace(file=SimpleNamespace(filename="a.h5")), "found an open file; pass its name, 'a.h5'"),
    ],
)
def test_what_is_no_path_is_refused(paths, says):
    with pytest.raises(OptionError, match=says):
        expand_paths(paths)


def test_local_only(folder):
    assert is_local_only(f"local://{folder}")
    assert is_local_only(f"LOCAL://{folder}")
    assert not is_local_only([folder])
    assert len(expand_paths(f"local://{folder}")) == 5


def test_file_systems(folder):
    assert len(expand_paths(str(folder), filesystem=LocalFileSystem())) == 5
    assert len(expand_paths(str(folder), filesystem=fsspec.filesystem("file"))) == 5
    subtree = SubTreeFileSystem(str(folder), LocalFileSystem())
    assert names(expand_paths(["f2.h5", "sub"], filesystem=subtree), folder) == ["f2.h5", "sub/deep/f4.h5", "sub/f3.H5"]
    local = fsspec.filesystem("file")
    wrapped = PyFileSystem(FSSpecHandler(local))
    for top in (
        SubTreeFileSystem("sub", subtree),
        SubTreeFileSystem(str(folder / "sub"), wrapped),
        DirFileSystem(str(folder / "sub"), local),
        DirFileSystem("/sub", DirFileSystem(str(folder), local)),
        PyFileSystem(FSSpecHandler(DirFileSystem(str(folder / "sub"), local))),
    ):
        assert names(expand_paths(["deep"], filesystem=top), folder) == ["sub/deep/f4.h5"]
    assert len(expand_paths(str(folder), filesystem=wrapped)) == 5
    memory = fsspec.filesystem("memory")
    for other in (memory, "s3", PyFileSystem(FSSpecHandler(memory)), DirFileSystem("/", memory)):
        with pytest.raises(OptionError, match="expected a local one"):
            expand_paths(str(folder), filesystem=other)


def test_hidden_files_are_found_by_name_alone(tmp_path):
    for name in ("a.h5", "._a.h5", ".trash/b.h5"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for paths in (tmp_path, f"{tmp_path}/*.h5", f"{tmp_path}/**/*.h5", f"{tmp_path}/**"):
        assert expand_paths(paths) == [str(tmp_path / "a.h5")]
    assert expand_paths(tmp_path / ".trash") == [str(tmp_path / ".trash/b.h5")]
    assert expand_paths(tmp_path / "._a.h5") == [str(tmp_path / "._a.h5")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"found no file in '.*empty': there are no files"):
        expand_paths(tmp_path / "empty")


@pytest.fixture
def closed(folder, monkeypatch):
    """A folder that may not be listed, also by who runs the tests as root."""
    scan, path = os.scandir, str(folder / "sub")

    def checked(where="."):
        if os.fspath(where) == path:
            raise PermissionError(13, "Permission denied", path)
        return scan(where)

    monkeypatch.setattr(os, "scandir", checked)
    return path


def test_a_folder_that_cannot_be_listed_is_an_error(closed):
    with pytest.raises(NotReadableError, match=f"{closed}: this folder cannot be listed: Permission denied"):
        expand_paths(closed)


@pytest.mark.parametrize("pattern", ["", "/*", "/**/*.h5"])
def test_a_folder_below_that_cannot_be_listed_is_not_left_out_silently(folder, closed, caplog, pattern):
    assert names(expand_paths(f"{folder}{pattern}", None), folder)[-1].startswith(("f10.h5", "notes.txt"))
    assert f"{closed}: this folder cannot be listed, and is left out: Permission denied" in caplog.text


def test_a_way_up_behind_a_link_leads_to_where_the_system_says(tmp_path, monkeypatch):
    for folder, value in (("data", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        with h5py.File(tmp_path / folder / "m.h5", "w") as file:
            file["x"] = [value]
    (tmp_path / "data" / "run").mkdir()
    (tmp_path / "here" / "run").symlink_to(tmp_path / "data" / "run")
    monkeypatch.chdir(tmp_path)
    behind = "here/run/../m.h5"
    assert expand_paths([behind]) == [str(tmp_path / "data" / "m.h5")]
    assert RowReader(behind).read(["x"])["x"].tolist() == [1]
    assert as_roots("here/run/..") == (str(tmp_path / "data"),)
    assert expand_paths(["data/run/../m.h5"]) == [str(tmp_path / "data" / "m.h5")]
    assert RowReader("data/run/../../here/m.h5").path == str(tmp_path / "here" / "m.h5")


def test_a_store_has_the_folders_and_globs_of_a_disk(folder):
    touch(folder / ".hidden/f5.h5", folder / "sub/.h6.h5", folder / "x[1].h5")
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", "/bkt/", recursive=True)
    patterns = (
        " / /* /*/ /** /**/ /**/*.h5 /sub/*.h5 /s*/ /s*/*/ /*/deep /.* /.*/*.h5 /**/.h* /f[12]* /*.txt /notes.* "
        "/**/none /**/deep/* /sub/**/* /x[[]1].h5 /x[1].h5 /*/**/f4.h5"
    )
    for pattern, extensions in itertools.product(patterns.split(" "), [("h5", "hdf5", "h5ad"), None, ["txt"]]):
        found = []
        for top, storage in ((str(folder), LOCAL), ("memory://bkt", FileSystemStorage.of(memory))):
            try:
                found.append(names(expand_paths(top + pattern, extensions, storage=storage), top))
            except NotFoundError as exc:
                found.append(re.sub(r"\(.*\)", "", str(exc).replace(top, "")))
        assert found[0] == found[1], pattern
    memory.rm("/bkt", recursive=True)


def test_a_missing_path_offers_near_ones(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run_1.h5").touch()
    with pytest.raises(NotFoundError, match=r"did you mean '.*data/run_1\.h5'\?\)\nCorrect it\.$"):
        find_files([tmp_path / "data" / "run1.h5"])
    with pytest.raises(NotFoundError, match=r"there is no '.*/dta'; did you mean '.*/data'\?"):
        find_files([tmp_path / "dta" / "run_1.h5"])
    with pytest.raises(NotFoundError, match="Correct it, or pass ignore_missing_paths=True to go on without"):
        find_files([tmp_path / "data" / "run_2.h5", tmp_path / "data" / "run_1.h5"])
