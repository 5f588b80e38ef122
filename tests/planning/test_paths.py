import pathlib

import fsspec
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ray_h5.errors import NotFoundError, OptionError
from ray_h5.planning.paths import expand_paths, is_local_only, natural_key


@pytest.fixture
def folder(tmp_path):
    for name in ("f10.h5", "f2.h5", "f1.hdf5", "notes.txt", "sub/f3.H5", "sub/deep/f4.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(found, folder):
    return [str(pathlib.Path(path).relative_to(folder)) for path in found]


def test_a_directory_is_searched_to_the_bottom_and_sorted_naturally(folder):
    expected = ["f1.hdf5", "f2.h5", "f10.h5", "sub/deep/f4.h5", "sub/f3.H5"]
    assert names(expand_paths(folder), folder) == expected
    assert names(expand_paths(str(folder)), folder) == expected
    assert names(expand_paths([f"file://{folder}"]), folder) == expected


def test_a_glob_takes_what_matches(folder):
    assert names(expand_paths(f"{folder}/f*.h5"), folder) == ["f2.h5", "f10.h5"]
    assert names(expand_paths(f"{folder}/**/*.h5"), folder) == ["f2.h5", "f10.h5", "sub/deep/f4.h5"]


def test_duplicates_are_taken_once(folder):
    given = [folder / "f2.h5", f"{folder}/f*.h5", f"{folder}/./f2.h5"]
    assert names(expand_paths(given), folder) == ["f2.h5", "f10.h5"]


def test_a_file_that_is_named_needs_no_extension(folder):
    assert names(expand_paths(folder / "notes.txt"), folder) == ["notes.txt"]


def test_a_name_that_looks_like_a_glob_is_a_name_first(tmp_path):
    (tmp_path / "a[1].h5").touch()
    assert names(expand_paths(tmp_path / "a[1].h5"), tmp_path) == ["a[1].h5"]


def test_extensions_can_be_chosen(folder):
    assert names(expand_paths(folder, ["txt"]), folder) == ["notes.txt"]
    assert len(expand_paths(folder, None)) == 6


def test_all_missing_paths_are_listed(folder):
    given = [folder / "f2.h5", folder / "gone.h5", f"{folder}/no*.h5"]
    with pytest.raises(NotFoundError) as caught:
        expand_paths(given)
    message = str(caught.value)
    assert "2 of the paths do not exist" in message
    assert "gone.h5" in message
    assert "no*.h5" in message
    assert "ignore_missing_paths=True" in message
    assert names(expand_paths(given, ignore_missing_paths=True), folder) == ["f2.h5"]


def test_nothing_found_says_what_was_passed_over(folder):
    with pytest.raises(NotFoundError, match=r"1 files there do not\s+end in .*file_extensions"):
        expand_paths(f"{folder}/*.txt")
    with pytest.raises(NotFoundError, match="1 paths do not exist"):
        expand_paths(folder / "gone.h5", ignore_missing_paths=True)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ([], "empty list"),
        ("a\0b.h5", "NUL"),
        ("s3://bucket/x.h5", "s3://"),
        ([b"x.h5"], "str or path-like"),
    ],
)
def test_what_is_no_path_is_refused(paths, says):
    with pytest.raises(OptionError, match=says):
        expand_paths(paths)


def test_local_only(folder):
    assert is_local_only(f"local://{folder}")
    assert not is_local_only([folder])
    assert len(expand_paths(f"local://{folder}")) == 5


def test_natural_order_is_total():
    assert sorted(["b", "a10", "a9", "a09", "10", "9"], key=natural_key) == ["9", "10", "a09", "a9", "a10", "b"]


def test_file_systems(folder):
    assert len(expand_paths(str(folder), filesystem=LocalFileSystem())) == 5
    assert len(expand_paths(str(folder), filesystem=fsspec.filesystem("file"))) == 5
    subtree = SubTreeFileSystem(str(folder), LocalFileSystem())
    assert names(expand_paths(["f2.h5", "sub"], filesystem=subtree), folder) == ["f2.h5", "sub/deep/f4.h5", "sub/f3.H5"]
    for other in (fsspec.filesystem("memory"), "s3"):
        with pytest.raises(OptionError, match="expected a local one"):
            expand_paths(str(folder), filesystem=other)
