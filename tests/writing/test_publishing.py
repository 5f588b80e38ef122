"""The steps of `Destination.publish`, over files that are names in a dict: whatever stops it, one dataset counts."""

import contextlib
from dataclasses import dataclass, field
from itertools import count

import pytest

from ray_h5.errors import OutputExistsError, RayH5Error, WriteFailedError
from ray_h5.storage.write_notes import uncounted
from ray_h5.writing.destination import Destination, is_hdf5_name

OLD, NEW = {"a.h5": "old a", "b.h5": "old b"}, {"c.h5": "new c", "d.h5": "new d"}


class Killed(BaseException):
    """The process is gone: nothing more is done."""


@dataclass
class Folder:
    """What all writes and readers see."""

    files: dict = field(default_factory=dict)
    notes: dict = field(default_factory=dict)
    written: list = field(default_factory=list)
    steps: int = 0
    stops_at: int = 0
    error: type = OSError
    has_effect: bool = False
    seen: list = field(default_factory=list)

    @contextlib.contextmanager
    def step(self):
        self.steps += 1
        is_last = self.steps == self.stops_at
        if (is_last and not self.has_effect) or (self.error is Killed and 0 < self.stops_at < self.steps):
            raise self.error
        yield
        self.seen.append(self.counting())
        if is_last:
            raise self.error

    def counting(self):
        """What a reader sees."""
        left_out = uncounted(dict(self.notes))
        return {name: value for name, value in self.files.items() if f"/f/{name}" not in left_out}


class InMemory(Destination):
    """A destination without a disk and without a store: each method of the contract is one step."""

    def __init__(self, folder, hidden=".ray_h5-000000000000"):
        super().__init__("/f", hidden)
        self.all, self.complete = folder, {}

    def _real_places(self, paths, storage=None):
        return [path.lower() for path in paths if storage != "another store"]

    def _look(self):
        return [*self.all.files], dict(self.all.notes)

    def has(self, name):
        return name in self.all.files

    def is_empty(self):
        return not self.all.files

    def begin(self): ...

    def temporary(self, name):
        return f"{name}.tmp"

    def keep(self, temporary):
        return temporary

    def put(self, temporary, name, *, replaces): ...

    def abandon(self, *, keep_journal=False): ...

    def _write_note(self, note):
        self._has_note = True
        with self.all.step():
            self.all.notes[self._hidden_folder] = note
            self.all.written.append(note.is_committed)

    def _remove_note(self):
        if self._has_note:
            with self.all.step():
                self.all.notes.pop(self._hidden_folder, None)
            self._has_note = False

    def _give(self, token, name):
        with self.all.step():
            is_free = name not in self.all.files
            self.all.files.setdefault(name, self.complete[token])
        return is_free

    def _named(self):
        with self.all.step():
            ...

    def _remove(self, files):
        for name in files:
            with self.all.step():
                self.all.files.pop(name, None)

    def write(self, new, old):
        self.complete = {self.keep(self.temporary(name)): value for name, value in new.items()}
        self.publish({token: token.removesuffix(".tmp") for token in self.complete}, old)


@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("error", [OSError, RayH5Error, Killed])
@pytest.mark.parametrize("old", [OLD, {}, None])
@pytest.mark.parametrize("new", [NEW, {"c.h5": "new c"}])
def test_at_whatever_step_it_stops_one_dataset_counts(has_effect, error, old, new):
    seen = []
    for at in count(1):
        folder = Folder(
            {**(OLD if old is None else old), "notes.txt": "x"}, stops_at=at, error=error, has_effect=has_effect
        )
        before = folder.counting()
        after = {"notes.txt": "x", **new, **(OLD if old is None else {})}
        failed = None
        try:
            InMemory(folder).write(new, None if old is None else [*old])
        except (error, WriteFailedError) as exc:
            failed = type(exc)
        if failed is None:
            assert folder.counting() == folder.files == after
            assert not folder.notes
            assert folder.steps < at
            break
        seen.append(folder.counting())
        assert all(found in (before, after) for found in (*folder.seen, seen[-1]))
        assert error is Killed or (failed is WriteFailedError) == (seen[-1] == after)  # it says what there is
        if error is not Killed and seen[-1] == before:
            assert (folder.files, folder.notes) == (before, {})  # it was undone
    assert seen == sorted(seen, key=lambda found: found == after)  # first the old ones, then the new ones
    assert after in seen or not old
    assert folder.written == [False] * bool(old or len(new) > 1) + [True] * bool(old)


def test_a_single_new_file_appears_at_once():
    folder = Folder()
    InMemory(folder).write({"c.h5": "new c"}, [])
    assert (folder.written, folder.steps) == ([], 2)


def test_if_its_note_cannot_be_removed_the_new_files_count():
    folder = Folder(dict(OLD), stops_at=6, has_effect=True)  # after the first removal
    with pytest.raises(WriteFailedError, match=r"(?s)^/f: the new files have .*/f/\.ray_h5-0{12}/note\.json"):
        InMemory(folder).write(NEW, [*OLD])
    assert folder.counting() == NEW
    writer = InMemory(folder, ".ray_h5-000000000001")
    assert writer.names() == [*NEW]
    assert writer.taken_names() == {*OLD, *NEW}  # the others may go at any time


@pytest.mark.parametrize("old", [OLD, {}, None])
def test_what_others_write_meanwhile_stays(old):
    """A name that another write has taken, and, unless all stays, a file that comes before the commit."""
    there = dict(old or {})
    folder = Folder({**there, "d.h5": "theirs"})
    with pytest.raises(OutputExistsError, match=r"^/f/d\.h5: another write made it meanwhile"):
        InMemory(folder).write(NEW, None if old is None else [*old])
    assert (folder.files, folder.notes) == ({**there, "d.h5": "theirs"}, {})
    folder = Folder({**there, "e.h5": "theirs", ".hidden.h5": "", "notes.txt": ""})
    if old is None:
        InMemory(folder).write(NEW, None)
        assert folder.counting() == {**folder.files, **NEW, "e.h5": "theirs"}
        return
    with pytest.raises(OutputExistsError, match="/f: something wrote there meanwhile"):
        InMemory(folder).write(NEW, [*old])
    assert (folder.files, folder.notes) == ({**there, "e.h5": "theirs", ".hidden.h5": "", "notes.txt": ""}, {})


def test_which_files_count():
    folder = Folder({"b.h5": "", "a.hdf5": "", "x.txt": "", ".c.h5": "", "A.H5": ""})
    writer = InMemory(folder)
    assert writer.names() == ["A.H5", "a.hdf5", "b.h5"]
    assert [is_hdf5_name(name) for name in ("a.h5", "a.H5", "a.h5.gz", "a")] == [True, True, False, False]
    assert (writer.place("b.h5"), writer.path) == ("/f/b.h5", "/f")


def test_inputs_that_would_be_written_over():
    writer = InMemory(Folder())
    assert writer.input_among(["a.h5", "b.h5", "c.h5"], ["/F/B.h5", "/f/c.h5"], None) == "/f/b.h5"
    assert writer.input_among(["a.h5"], ["/f/b.h5"], None) is None
    assert writer.input_among(["a.h5"], [], None) is None
    assert writer.input_among(["a.h5"], ["/f/a.h5"], "another store") is None
