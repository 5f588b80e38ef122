"""The state of a file and of all that it leads to: what goes on, what is an error, and what is said."""

import contextlib
import logging
import os
import re
from dataclasses import replace

import pytest

from ray_h5.errors import MissingSourceError, StaleIndexError
from ray_h5.manifest.file_state import FileState, are_same_sources, check_same, check_sources
from ray_h5.storage.byte_source import FileIdentity, ObjectIdentity
from ray_h5.storage.local import identity_now

OTHER = ObjectIdentity("a", 1)


@pytest.fixture
def states(tmp_path):
    """A file, its state, and those after a chmod, and after more bytes were written."""
    path = tmp_path / "a.h5"
    path.write_bytes(b"12")
    state = identity_now(str(path))
    return str(path), state, replace(state, ctime_ns=0), replace(state, size=3, mtime_ns=0)


def test_a_changed_ctime_is_said_once(states, caplog):
    path, state, touched, grown = states
    with caplog.at_level(logging.WARNING, "ray_h5"):
        kinds = [check_same(path, touched, state).kind for _ in range(3)]
    assert kinds == ["ctime"] * 3
    assert [record.getMessage().startswith(f"{path}: its ctime changed") for record in caplog.records] == [True]
    assert check_same(path, state, state).kind == "same"
    with pytest.raises(StaleIndexError, match=f"{path}: the file changed between.* expected size 3, found 2"):
        check_same(path, grown, state)


def test_a_file_without_its_name_is_an_error(states):
    """Another file may have the name of one that is open: its ctime changed, as its last name was removed."""
    path, state, touched, _ = states
    os.rename(path, f"{path}.away")
    with pytest.raises(StaleIndexError, match="removed or renamed"):
        check_same(path, touched, state)
    assert check_same(f"x leads to {path}", touched, state, leads=True).kind == "ctime"
    with open(path, "w") as file:
        file.write("12")
    with pytest.raises(StaleIndexError, match="the file changed between planning and reading: expected ctime_ns 0"):
        check_same(path, touched, state)


@pytest.mark.parametrize("leads", [False, True])
def test_files_that_come_and_go(leads):
    with pytest.raises(MissingSourceError, match="no longer exists"):
        check_same("a.h5", OTHER, None, leads=leads)
    with pytest.raises(StaleIndexError, match="did not exist when"):
        check_same("a.h5", None, OTHER, leads=leads)
    assert check_same("a.h5", None, None, leads=leads).kind == "same"
    assert check_same("a.h5", None, OTHER, leads=leads, swmr=True).kind == "same"
    said = "a.h5, which changed" if leads else "a.h5: the file changed"
    with pytest.raises(StaleIndexError, match=said):
        check_same("a.h5", OTHER, replace(OTHER, size=2), leads=leads)


SOURCES = (("x.h5", OTHER), ("gone.h5", None))
CHANGED = replace(OTHER, size=2)
OTHERS = "leads to other files than when the dataset was made: expected x.h5, found "
X_CHANGED = "a.h5: column 'c' leads to x.h5, which changed between planning and reading: expected size 1, found 2"


@pytest.mark.parametrize(
    ("found", "now", "says"),
    [
        (None, SOURCES, None),
        (SOURCES, (("x.h5", CHANGED),), None),  # what was found when the column was described is what its values are of
        (None, (("x.h5", CHANGED),), X_CHANGED),
        ((("x.h5", CHANGED), SOURCES[1]), SOURCES, X_CHANGED),
        ((("y.h5", OTHER), ("x.h5", CHANGED)), SOURCES, X_CHANGED),
        (SOURCES[:1], SOURCES, f"{OTHERS}x.h5"),
        (SOURCES[1:], SOURCES, f"{OTHERS}none"),
        ((SOURCES[0], ("y.h5", OTHER)), SOURCES, f"{OTHERS}x.h5"),
        (SOURCES[::-1], SOURCES, None),
    ],
)
def test_the_sources_of_a_column(found, now, says):
    looked = []

    def look(path):
        looked.append(path)
        return dict(now).get(path)

    with contextlib.nullcontext() if says is None else pytest.raises(StaleIndexError, match=re.escape(says)):
        check_sources("a.h5", "c", SOURCES, found, look=look)
    assert found != SOURCES or not looked


def test_sources_that_a_writer_changes():
    file = FileIdentity(1, 2, 3, 4)
    written = (("x.h5", replace(file, size=9)),)
    for found in (None, written):
        check_sources("a.h5", "c", (("x.h5", file),), found, look=dict(written).get, swmr=True)
        with pytest.raises(StaleIndexError, match="expected size 1, found 9"):
            check_sources("a.h5", "c", (("x.h5", file),), found, look=dict(written).get)


def test_the_same_sources(states):
    _, state, touched, grown = states
    sources = (("x.h5", state), ("gone.h5", None))
    assert are_same_sources(sources, (("x.h5", touched), ("gone.h5", None)))
    for others in ((("x.h5", grown), sources[1]), sources[:1], (("y.h5", state), sources[1]), sources[::-1]):
        assert not are_same_sources(sources, others)


def test_the_state_of_now(states):
    path, state, touched, grown = states
    FileState(state).check_now(path)
    FileState(touched, {"c": ((path, state),)}).check_now(path)
    with pytest.raises(StaleIndexError, match="expected size 3, found 2"):
        FileState(grown).check_now(path)
    with pytest.raises(StaleIndexError, match=f"column 'c' leads to {path}, which changed"):
        FileState(state, {"c": ((path, grown),)}).check_now(path)
    with pytest.raises(MissingSourceError, match="column 'c' leads to"):
        FileState(state, {"c": ((f"{path}.none", state),)}).check_now(path)
