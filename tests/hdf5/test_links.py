"""Which columns a file has: groups, links and names, and what cannot be read as rows."""

import itertools
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import (
    CorruptFileError,
    ExternalDataError,
    MissingSourceError,
    NotFoundError,
    OptionError,
    SchemaMismatchError,
    StaleIndexError,
    TruncatedFileError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.files.external_policy import as_roots
from ray_h5.hdf5.tree import walker
from ray_h5.manifest.file_state import FileState
from ray_h5.read import open_file
from ray_h5.torch_data import H5Dataset
from tests.hdf5.h5kit import assert_same, by_h5py, layout_of, numbered_column, plist_with
from tests.kit.files import save

ROWS = np.arange(5)


def file_with(path, fill):
    with h5py.File(path, "w") as file:
        file["ok"] = ROWS
        fill(file)
    return str(path)


# Inside one file ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "leaf", "message"),
    [
        ("gone", UnknownColumnError, "no 'gone' in the file; group='gone' names no group. There is: obs."),
        ("/osb/", UnknownColumnError, "no 'osb' in the file; group='/osb/' names no group. Did you mean 'obs'?"),
        ("obs/gone", UnknownColumnError, "no 'obs/gone' in the file"),
        ("ok", UnknownColumnError, "group='ok' is a dataset; name the group above it"),
        ("ok/x", UnknownColumnError, "'ok' is not a group"),
    ],
)
def test_groups_that_are_none(tmp_path, group, leaf, message):
    path = file_with(tmp_path / "a.h5", lambda file: file.create_group("obs"))
    for look in (lambda reader: reader.columns, lambda reader: reader.read(["x"])):
        with pytest.raises(leaf) as caught:
            look(RowReader(path, group=group))
        assert str(caught.value).startswith(f"{path}: ")
        assert message in str(caught.value)


@pytest.mark.parametrize("group", [["obs", "other"], None, 3])
def test_a_group_is_one_name(tmp_path, group):
    with pytest.raises(OptionError, match="expected the name of one group; columns of several"):
        RowReader(file_with(tmp_path / "a.h5", lambda file: file.create_group("obs")), group=group)


@pytest.mark.parametrize("given", ["/data", Path("/data"), ["/data"], (Path("/data"),), iter(["/data"])])
def test_one_folder_is_no_list_of_letters(given):
    # The first of them would be the root of everything.
    assert as_roots(given) == ("/data",)


@pytest.mark.parametrize("given", ["", [""], ["/data", ""]])
def test_a_folder_without_a_name_is_not_the_current_one(tmp_path, given):
    with pytest.raises(OptionError, match=r"allow_external=.*: expected folders, found an empty name"):
        RowReader(file_with(tmp_path / "a.h5", lambda file: file.create_group("obs")), allow_external=given)


def test_one_name_is_no_list_of_columns(tmp_path):
    reader = RowReader(file_with(tmp_path / "a.h5", lambda file: file.create_group("obs")))
    for look in (reader.read, reader.find, reader.stored_bytes):
        with pytest.raises(OptionError, match=r"columns=.ok.: expected .* found one; write columns=\['ok'\]"):
            look("ok")


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"bad": "/gone"}, "link 'bad' leads to '/gone', which does not exist"),
        ({"bad": "gone/x"}, "link 'bad' leads to 'gone/x', which does not exist"),
        ({"bad": "ok/x"}, "link 'bad' leads to 'ok/x', which does not exist"),
        ({"bad": "/next", "next": "/gone"}, "which does not exist"),
        ({"bad": "/bad"}, "a loop"),
        ({"bad": "/next", "next": "/bad"}, "a loop"),
        ({"bad": "/bad/x"}, "a loop"),
    ],
)
def test_soft_links_that_lead_nowhere(tmp_path, links, message):
    def fill(file):
        for name, target in links.items():
            file[name] = h5py.SoftLink(target)

    path = file_with(tmp_path / "a.h5", fill)
    reader = RowReader(path)
    with pytest.raises(MissingSourceError) as caught:
        reader.read(["bad"])
    assert isinstance(caught.value, FileNotFoundError)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert list(reader.columns) == ["ok"]
    assert set(reader.layout.refused) == set(links)
    assert reader.read(["ok"])["ok"].tolist() == ROWS.tolist()


@pytest.mark.parametrize("name", ["/ok", "./ok", "ok/", "//ok"])
def test_spellings_of_a_name(tmp_path, name):
    assert RowReader(save(tmp_path / "a.h5", {"ok": ROWS})).read([name], [2])[name].tolist() == [2]


# Outside the file --------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    """Two folders: columns of ``inside/a.h5`` lead to what ``outside`` holds."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    secret = save(outside / "secret.h5", {"s": ROWS + 100})
    raw = outside / "raw.bin"
    raw.write_bytes((ROWS + 100).tobytes())

    def fill(file):
        file["link"] = h5py.ExternalLink(secret, "/s")
        file["up"] = h5py.ExternalLink("../outside/secret.h5", "/s")
        file["all"] = h5py.ExternalLink(secret, "/")
        file["soft"] = h5py.SoftLink("/link")
        file.create_virtual_dataset("virtual", layout_of(secret, "s"))
        file.create_dataset("raw", (5,), "i8", external=[(str(raw), 0, 40)])
        file.create_dataset("parts", (5,), "i8", external=[(str(raw), 0, 16), (str(raw), 16, 24)])

    path = file_with(inside / "a.h5", fill)
    return SimpleNamespace(path=path, inside=str(inside), outside=str(outside), secret=secret, raw=str(raw))


OUTSIDE = {
    "link": ("external link 'link'", "secret.h5"),
    "up": ("external link 'up'", "secret.h5"),
    "all/s": ("external link 'all'", "secret.h5"),
    "soft": ("external link 'link'", "secret.h5"),
    "virtual": ("virtual dataset", "secret.h5"),
    "raw": ("external storage", "raw.bin"),
    "parts": ("external storage", "raw.bin"),
}


def test_outside_is_refused(world):
    # Nothing is allowed; another folder; a folder whose name begins alike.
    for roots in ([], [world.inside], [world.outside[:-1]]):
        reader = RowReader(world.path, allow_external=roots)
        for column, (kind, target) in OUTSIDE.items():
            with pytest.raises(ExternalDataError) as caught:
                reader.read([column])
            assert isinstance(caught.value, PermissionError)
            for part in (world.path, kind, os.path.join(world.outside, target), f"allow_external={roots}"):
                assert part in str(caught.value)
            assert f"pass allow_external=[{world.outside!r}]" in str(caught.value)
        assert reader.read(["ok"])["ok"].tolist() == ROWS.tolist()


@pytest.mark.parametrize("spelling", ["plain", "slash", "relative", "through a link", "path-like", "above"])
def test_outside_that_is_allowed(world, tmp_path, monkeypatch, spelling):
    (tmp_path / "way").symlink_to(world.outside)
    monkeypatch.chdir(tmp_path)
    root = {
        "plain": world.outside, "slash": world.outside + "/", "relative": "outside", "through a link": "way",
        "path-like": tmp_path / "outside", "above": tmp_path,
    }[spelling]  # fmt: skip
    reader = RowReader(world.path, allow_external=[root])
    assert reader.layout.refused == {}
    for column in OUTSIDE:
        assert column in reader.columns
        for rows in (slice(None), [4, 0, 4]):
            assert_same(reader.read([column], rows)[column], by_h5py(world.path, column, rows))
        assert reader.read([column], [1])[column].tolist() == [101]


def test_links_of_the_folder_do_not_widen_it(world):
    os.symlink(world.outside, os.path.join(world.inside, "innocent"))
    with h5py.File(world.path, "r+") as file:
        file["hidden"] = h5py.ExternalLink("innocent/secret.h5", "/s")
    with pytest.raises(ExternalDataError, match="outside/secret"):
        RowReader(world.path, allow_external=[world.inside]).read(["hidden"])


@pytest.mark.parametrize("target", ["/link", "/soft", "/all/s", "/virtual", "/raw"])
def test_nothing_leads_outside_in_two_steps(world, target):
    """In both files the targets lead outside; a link leads to them, and virtual columns of this and the other file."""
    with h5py.File(world.path, "r+") as file:
        file["by a link"] = h5py.ExternalLink("b.h5", target)
        file.create_virtual_dataset("over this file", layout_of(".", target))
        file.create_virtual_dataset("over another file", layout_of("b.h5", target))
    shutil.copy(world.path, os.path.join(world.inside, "b.h5"))
    for column in ("by a link", "over this file", "over another file"):
        assert by_h5py(world.path, column).tolist() == (ROWS + 100).tolist(), "h5py follows it"
        with pytest.raises(ExternalDataError, match="outside"):
            RowReader(world.path, allow_external=[world.inside]).read([column])
        reader = RowReader(world.path, allow_external=[world.inside, world.outside])
        assert reader.read([column])[column].tolist() == (ROWS + 100).tolist()


def test_storage_by_a_relative_name_is_not_looked_up_elsewhere(tmp_path, monkeypatch):
    # libhdf5 takes it relative to the current folder, not to the file: what is checked must be what is read.
    for folder in ("data", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "data" / "raw.bin").write_bytes(ROWS.tobytes())
    (tmp_path / "here" / "raw.bin").write_bytes((ROWS + 666).tobytes())
    with h5py.File(tmp_path / "data" / "a.h5", "w") as file:
        file.create_dataset("raw", (5,), "i8", external=[("raw.bin", 0, 40)])
    monkeypatch.chdir(tmp_path / "here")
    reader = RowReader(tmp_path / "data" / "a.h5", allow_external=[tmp_path / "data"])
    try:
        assert reader.read(["raw"])["raw"].tolist() == ROWS.tolist()
    except (ExternalDataError, MissingSourceError) as exc:
        assert "raw.bin" in str(exc)  # noqa: PT017  either is right


SEGMENTS = {
    # (offset, size) of each file, and how long the last of them has to be.
    "one": ([(0, 40)], 40),
    "offset": ([(24, 40)], 64),
    "unlimited": ([(8, h5py.h5s.UNLIMITED)], 48),
    "more room than rows": ([(0, 400)], 40),
    "several": ([(0, 16), (16, 16), (4, 100)], 12),
    "rows that take two elements": ([(0, 16), (4, 100)], 68),
}


@pytest.mark.parametrize("what", SEGMENTS)
@pytest.mark.parametrize("whole", [True, False])
def test_storage_that_is_cut_short(tmp_path, what, whole):
    # libhdf5 makes zeros of what is not there.
    segments, needed = SEGMENTS[what]
    paths = [tmp_path / f"{i}.bin" for i in range(len(segments))]
    external = [(str(path), *segment) for path, segment in zip(paths, segments, strict=True)]
    shape = (5, 2) if "two" in what else (5,)
    for path in paths:
        path.write_bytes(b"\1" * 500)
    path = file_with(tmp_path / "a.h5", lambda file: file.create_dataset("raw", shape, "i8", external=external))
    os.truncate(paths[-1], needed if whole else needed - 1)
    reader = RowReader(path, allow_external=[tmp_path])
    if whole:
        assert_same(reader.read(["raw"])["raw"], by_h5py(path, "raw"))
        return
    with pytest.raises(TruncatedFileError, match=f"expected {needed} bytes or more, found {needed - 1}") as caught:
        reader.read(["raw"])
    assert f"external storage of column 'raw' is in {paths[-1]}" in str(caught.value)
    assert list(reader.layout.refused) == ["raw"]


MISSING = {
    "file of a link": (lambda file, _: file.__setitem__("bad", h5py.ExternalLink("gone.h5", "/x")), "gone.h5"),
    "file of a link, with %": (lambda file, _: file.__setitem__("bad", h5py.ExternalLink("100%.h5", "/x")), "100%.h5"),
    "target of a link": (lambda file, _: file.__setitem__("bad", h5py.ExternalLink("b.h5", "/gone")), "'/gone'"),
    "file of a virtual column": (
        lambda file, _: file.create_virtual_dataset("bad", layout_of("gone.h5", "ok"), fillvalue=-1),
        "gone.h5",
    ),
    "target of a virtual column": (
        lambda file, _: file.create_virtual_dataset("bad", layout_of("b.h5", "gone"), fillvalue=-1),
        "gone",
    ),
    "target of a virtual column in its own file": (
        lambda file, _: file.create_virtual_dataset("bad", layout_of(".", "gone"), fillvalue=-1),
        "gone",
    ),
    "external storage": (
        lambda file, folder: file.create_dataset("bad", (5,), "i8", external=[(str(folder / "gone.bin"), 0, 40)]),
        "gone.bin",
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_sources_that_are_missing(tmp_path, what):
    make, target = MISSING[what]
    save(tmp_path / "b.h5", {"ok": ROWS})
    path = file_with(tmp_path / "a.h5", lambda file: make(file, tmp_path))
    reader = RowReader(path, allow_external=[tmp_path])
    with pytest.raises(MissingSourceError) as caught:
        reader.read(["bad"])
    assert isinstance(caught.value, FileNotFoundError)
    assert not isinstance(caught.value, NotFoundError), "that is for the file itself"
    assert path in str(caught.value)
    assert target in str(caught.value)
    assert list(reader.columns) == ["ok"]
    assert isinstance(reader.layout.refused["bad"], MissingSourceError)


def test_what_was_missing_is_found_once_it_is_there(tmp_path):
    raw = tmp_path / "raw.bin"

    def fill(file):
        file["linked"] = h5py.ExternalLink("b.h5", "/x")
        file["nowhere"] = h5py.SoftLink("/gone")
        file.create_dataset("raw", (5,), "i8", external=[(str(raw), 0, 40)])

    path = file_with(tmp_path / "a.h5", fill)
    raw.write_bytes(bytes(39))
    assert set(RowReader(path, allow_external=[tmp_path]).columns) == {"ok"}
    held = open_file.open_file(RowReader(path, allow_external=[tmp_path])._access)
    assert held is open_file.open_file(RowReader(path, allow_external=[tmp_path])._access), "nothing changed"
    save(tmp_path / "b.h5", {"x": np.arange(5)})
    assert set(RowReader(path, allow_external=[tmp_path]).columns) == {"ok", "linked"}
    raw.write_bytes(np.arange(5).tobytes())
    assert RowReader(path, allow_external=[tmp_path]).read(["raw", "linked"])["raw"].tolist() == [0, 1, 2, 3, 4]
    assert set(RowReader(path, allow_external=[tmp_path]).layout.refused) == {"nowhere"}


def not_hdf5(path):
    path.write_text("no HDF5 at all\n" * 100)


def cut_short(path):
    save(path, {"x": np.zeros(5000)})
    os.truncate(path, 9000)


@pytest.mark.parametrize("make", [not_hdf5, cut_short, os.mkdir])
def test_a_bad_file_behind_a_link_hides_no_column(tmp_path, make):
    make(tmp_path / "b.h5")
    path = file_with(tmp_path / "a.h5", lambda file: file.__setitem__("bad", h5py.ExternalLink("b.h5", "/x")))
    reader = RowReader(path, allow_external=[tmp_path])
    with pytest.raises(OSError, match=r"b\.h5"):
        reader.read(["bad"])
    assert list(reader.columns) == ["ok"]
    assert list(reader.layout.refused) == ["bad"]


def test_virtual_columns_that_lead_to_each_other(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        save(tmp_path / f"{name}.h5", {"ok": ROWS, "x": layout_of(f"{other}.h5", "x")})
    reader = RowReader(tmp_path / "a.h5", allow_external=[tmp_path])
    with pytest.raises(
        MissingSourceError, match=r"virtual dataset of column 'x' leads back to '/x', which it comes from: a loop"
    ):
        reader.read(["x"])
    assert list(reader.columns) == ["ok"]


def test_a_virtual_column_that_leads_to_a_group(tmp_path):
    file_with(tmp_path / "b.h5", lambda file: file.create_group("x"))
    path = save(tmp_path / "a.h5", {"ok": ROWS, "x": layout_of("b.h5", "x")})
    with pytest.raises(MissingSourceError, match=r"leads to 'x' of .*b\.h5, which is a group"):
        RowReader(path, allow_external=[tmp_path]).read(["x"])


def test_more_names_than_there_is_time_for(tmp_path, monkeypatch):
    monkeypatch.setattr(walker, "_MOST_NAMES", 3)
    path = file_with(tmp_path / "a.h5", lambda file: [file.create_dataset(name, data=ROWS) for name in "xyz"])
    with pytest.raises(CorruptFileError, match=r"more than 3 names below group .* name the columns to read"):
        RowReader(path).layout  # noqa: B018  it is found when asked for
    assert sorted(RowReader(path).read(["x", "y", "z", "ok"], [1])) == ["ok", "x", "y", "z"]


def chain(group, length):
    """Make groups one in the other, each by two names, and return the innermost."""
    for _ in range(length):
        below = group.create_group("a")
        group["b"] = below
        group = below
    return group


@pytest.mark.parametrize("name", ["ok\0zzz", "\0", "ok\udcff", "\ud800/x", "obs/x\0"])
def test_names_that_no_file_can_hold(tmp_path, name):
    path = file_with(tmp_path / "a.h5", lambda file: file.create_dataset("obs/x", data=ROWS))
    for look in (lambda: RowReader(path).column(name), lambda: RowReader(path).read(["ok", name])):
        with pytest.raises(UnknownColumnError, match=r"a\.h5: no '.*' below group '/'\."):
            look()
    with pytest.raises(UnknownColumnError, match="names no group"):
        RowReader(path, group=name).layout  # noqa: B018  it is found when asked for


@pytest.fixture
def numbered(tmp_path):
    """Make a virtual column over part0.h5, part1.h5 ..., as many as there are."""
    inside = tmp_path / "inside"
    inside.mkdir()
    for i in range(3):
        save(inside / f"part{i}.h5", {"x": np.array([10 * i, 10 * i + 1], "i4")})
    with h5py.File(inside / "a.h5", "w", libver="latest") as file:
        numbered_column(file, "x", "part%b.h5", 2, h5py.h5t.STD_I32LE)
    return inside / "a.h5"


def test_numbered_sources(numbered):
    with pytest.raises(ExternalDataError, match="part"):
        RowReader(numbered).read(["x"])
    reader = RowReader(numbered, allow_external=[numbered.parent])
    assert_same(reader.read(["x"], [5, 0, 2])["x"], by_h5py(numbered, "x", [5, 0, 2]))


@pytest.mark.parametrize("what", ["file", "dataset of a file that there is"])
def test_numbered_sources_that_are_added(numbered, what):
    if what != "file":
        save(numbered.parent / "part3.h5", {"other": ROWS})
    reader = RowReader(numbered, allow_external=[numbered.parent])
    assert len(reader.read(["x"])["x"]) == 6
    save(numbered.parent / "part3.h5", {"x": np.array([30, 31], "i4")})
    with pytest.raises(StaleIndexError, match=r"part3\.h5"):
        reader.read(["x"])
    found = RowReader(numbered, allow_external=[numbered.parent]).read(["x"])["x"]
    assert found.tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    assert_same(found, by_h5py(numbered, "x"))


def test_numbered_sources_that_lead_to_what_is_missing(numbered):
    # libhdf5 would count the source, and return fill values for its rows.
    save(numbered.parent / "part3.h5", {"x": layout_of("gone.h5", "x", (2,))})
    with pytest.raises(MissingSourceError, match=r"gone\.h5"):
        RowReader(numbered, allow_external=[numbered.parent]).read(["x"])


def test_numbered_sources_do_not_lead_outside(numbered, tmp_path):
    os.unlink(numbered.parent / "part1.h5")
    os.symlink(save(tmp_path / "secret.h5", {"x": np.array([666, 667], "i4")}), numbered.parent / "part1.h5")
    with pytest.raises(ExternalDataError, match=r"secret\.h5|part"):
        RowReader(numbered, allow_external=[numbered.parent]).read(["x"])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_numbered_columns_do_not_lead_outside(world, number):
    # Numbers may stand in the names of datasets too: each of them may be a link.
    with h5py.File(world.path, "r+", libver="latest") as file:
        for i in range(3):
            file[f"d{i}"] = h5py.ExternalLink(world.secret, "/s") if i == number else ROWS
        space = h5py.h5s.create_simple((15,), (h5py.h5s.UNLIMITED,))
        space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (5,), (5,))
        plist = plist_with()
        plist.set_virtual(space, b".", b"d%b", h5py.h5s.create_simple((5,)))
        whole = h5py.h5s.create_simple((15,), (h5py.h5s.UNLIMITED,))
        h5py.h5d.create(file.id, b"chained", h5py.h5t.STD_I64LE, whole, plist)
    expected = [100 * (i == number) + row for i in range(3) for row in range(5)]
    assert by_h5py(world.path, "chained").tolist() == expected, "h5py follows it"
    with pytest.raises(ExternalDataError, match=r"secret\.h5"):
        RowReader(world.path).read(["chained"])
    assert RowReader(world.path, allow_external=[world.outside]).read(["chained"])["chained"].tolist() == expected


PLACES = {"absolute": 1, "beside": 2, "current": 3, "real": 4}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Four folders where b.h5 may be; "beside" has a symbolic link a.h5 to the one in "real"."""
    for folder in PLACES:
        (tmp_path / folder).mkdir()
    os.symlink(tmp_path / "real" / "a.h5", tmp_path / "beside" / "a.h5")
    monkeypatch.chdir(tmp_path / "current")
    return tmp_path


@pytest.mark.parametrize("name", ["b.h5", "absolute/b.h5"])
@pytest.mark.parametrize("there", [there for n in range(5) for there in itertools.combinations(PLACES, n)], ids=str)
def test_sources_are_those_that_libhdf5_finds(places, name, there):
    source = name if name == "b.h5" else str(places / name)
    save(places / "beside" / "b0.h5", {"x": np.full(5, 9)})
    for folder in there:
        for each in ("b.h5", "b1.h5"):
            save(places / folder / each, {"x": np.full(5, PLACES[folder])})
    with h5py.File(places / "real" / "a.h5", "w", libver="latest") as file:
        file["link"] = h5py.ExternalLink(source, "/x")
        file.create_virtual_dataset("virtual", layout_of(source, "x"))
        numbered_column(file, "numbered", source.replace("b.h5", "b%b.h5"), 5)
    reader = RowReader(places / "beside" / "a.h5", allow_external=[places])
    looked = there if name != "b.h5" else [folder for folder in there if folder != "absolute"]
    for column in ("link", "virtual", "numbered"):
        if looked and looked[0] == "current":
            with pytest.raises(ExternalDataError, match="in the current folder of each process"):
                reader.read([column])
        elif looked or column == "numbered":
            expected = [9] * 5 * (column == "numbered") + [PLACES[folder] for folder in looked[:1]] * 5
            assert reader.read([column])[column].tolist() == expected
            assert_same(reader.read([column])[column], by_h5py(places / "beside" / "a.h5", column))
        else:
            with pytest.raises(MissingSourceError, match=r"b\.h5, which does not exist"):
                reader.read([column])


def test_what_a_symbolic_link_leads_to_is_looked_for_where_the_link_is(places):
    # libhdf5 opens the source by the name of the link.
    (places / "beside" / "a.h5").unlink()
    save(places / "beside" / "c.h5", {"x": ROWS})
    save(places / "real" / "c.h5", {"x": ROWS + 1})
    save(places / "real" / "b.h5", {"ok": ROWS, "x": layout_of("c.h5", "x")})
    os.symlink(places / "real" / "b.h5", places / "beside" / "b.h5")
    path = file_with(
        places / "beside" / "a.h5",
        lambda file: [
            file.create_virtual_dataset("virtual", layout_of("b.h5", "x")),
            file.__setitem__("link", h5py.ExternalLink("b.h5", "/x")),
        ],
    )
    for column in ("virtual", "link"):
        reader = RowReader(path, allow_external=[places])
        assert reader.read([column])[column].tolist() == by_h5py(path, column).tolist() == ROWS.tolist()
        reader = RowReader(path, allow_external=[places / "real"])
        with pytest.raises(ExternalDataError, match=r"beside/c\.h5"):
            reader.read([column])


@pytest.mark.parametrize("folder", ["beside", "current"])
def test_a_source_that_comes_to_be_where_libhdf5_looks_first(places, monkeypatch, folder):
    save(places / "real" / "b.h5", {"x": ROWS})
    save(places / "real" / "a.h5", {"ok": ROWS, "x": layout_of("b.h5", "x")})
    reader = RowReader(places / "beside" / "a.h5", allow_external=[places])
    assert reader.read(["x"])["x"].tolist() == ROWS.tolist()
    monkeypatch.chdir(places / "absolute")
    save(places / ("absolute" if folder == "current" else folder) / "b.h5", {"x": ROWS + 1})
    with pytest.raises(StaleIndexError, match=r"b\.h5, which did not exist"):
        reader.read(["x"])


@pytest.mark.parametrize("variable", ["HDF5_VDS_PREFIX", "HDF5_EXT_PREFIX", "HDF5_EXTFILE_PREFIX"])
def test_prefixes_of_the_environment_do_not_lead_outside(tmp_path, monkeypatch, variable):
    # libhdf5 looks below these first, so that what is checked would not be what is read.
    for folder, values in (("inside", ROWS), ("outside", ROWS + 666)):
        (tmp_path / folder).mkdir()
        save(tmp_path / folder / "b.h5", {"x": values})
        (tmp_path / folder / "raw.bin").write_bytes(values.tobytes())

    def fill(file):
        file["link"] = h5py.ExternalLink("b.h5", "/x")
        file.create_virtual_dataset("virtual", layout_of("b.h5", "x"))
        file.create_virtual_dataset("virtual over a link", layout_of(".", "/link"))
        file.create_dataset("raw", (5,), "i8", external=[("raw.bin", 0, 40)])

    path = file_with(tmp_path / "inside" / "a.h5", fill)
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.setenv(variable, str(tmp_path / "outside"))
    for column in ("link", "virtual", "virtual over a link", "raw"):
        try:
            found = RowReader(path, allow_external=[tmp_path / "inside"]).read([column])[column]
        except ExternalDataError as exc:
            assert variable in str(exc) or "raw.bin" in str(exc)  # noqa: PT017  either is right
        else:
            assert found.tolist() == ROWS.tolist()


def test_the_state_of_sources_can_be_expected(tmp_path):
    """Also of columns that are not read."""
    save(tmp_path / "b.h5", {"x": ROWS})
    path = file_with(tmp_path / "a.h5", lambda file: file.__setitem__("x", h5py.ExternalLink("b.h5", "/x")))
    first = RowReader(path, allow_external=[tmp_path])
    state = FileState(first.identity, {"x": first.column("x").sources})
    for turn in range(2):
        reader = pickle.loads(pickle.dumps(RowReader(path, allow_external=[tmp_path], expect=state)))
        assert reader.read(["x"])["x"].tolist() == ROWS.tolist()
        os.utime(tmp_path / "b.h5", ns=(1, turn))
        for use in (
            lambda state=state: RowReader(path, allow_external=[tmp_path], expect=state),
            lambda reader=reader: reader.read(["x"]),
        ):
            with pytest.raises(StaleIndexError, match=r"column 'x' leads to .*b\.h5, which changed"):
                use()
        state = FileState(first.identity, {"x": RowReader(path, allow_external=[tmp_path]).column("x").sources})
    os.unlink(tmp_path / "b.h5")
    with pytest.raises(MissingSourceError, match=r"column 'x' leads to .*b\.h5, which no longer exists"):
        RowReader(path, allow_external=[tmp_path], expect=state)
    assert RowReader(path, expect=first.identity).read(["ok"])["ok"].tolist() == ROWS.tolist()


# Columns that are none ---------------------------------------------------------------------------


def time_type(file):
    h5py.h5d.create(file.id, b"bad", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((5,)))


VLEN_INSIDE = np.dtype([("b", h5py.vlen_dtype("i4"))])

UNSUPPORTED = {
    "scalar": (lambda file: file.create_dataset("bad", data=3.0), "a single value"),
    "scalar string": (lambda file: file.create_dataset("bad", data="text"), "a single value"),
    "null": (lambda file: file.create_dataset("bad", data=h5py.Empty("f4")), "an empty (null) dataspace"),
    "reference": (lambda file: file.create_dataset("bad", (5,), h5py.ref_dtype), "reference"),
    "region reference": (lambda file: file.create_dataset("bad", (5,), h5py.regionref_dtype), ""),
    "arrays of references": (lambda file: file.create_dataset("bad", (5,), h5py.vlen_dtype(h5py.ref_dtype)), ""),
    "compound with a list": (lambda file: file.create_dataset("bad", (5,), VLEN_INSIDE), ""),
    "time": (time_type, ""),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_unsupported_columns_are_refused_by_name(tmp_path, kind):
    make, message = UNSUPPORTED[kind]
    path = file_with(tmp_path / "a.h5", lambda file: make(file) and None)
    reader = RowReader(path)
    for look in (lambda: reader.column("bad"), lambda: reader.read(["ok", "bad"])):
        with pytest.raises(UnsupportedColumnError) as caught:
            look()
        assert isinstance(caught.value, TypeError)
        assert str(caught.value).startswith(f"{path}: column 'bad'")
        assert message in str(caught.value)
    assert list(reader.columns) == ["ok"]
    assert str(reader.layout.refused["bad"]) == str(caught.value)
    assert reader.num_rows == 5
    assert reader.read(["ok"], [4])["ok"].tolist() == [4]


def test_a_field_is_no_column(tmp_path):
    def fill(file):
        file["obs/jets"] = np.array([(1.5, (2,)), (2.5, (3,))], [("pt", "f4"), ("id", [("n", "i4")])])

    reader = RowReader(file_with(tmp_path / "a.h5", fill))
    for name, field in (("obs/jets/pt", "['pt']"), ("obs/jets/id/n", "['id']['n']")):
        with pytest.raises(UnsupportedColumnError) as caught:
            reader.read([name])
        message = str(caught.value)
        assert f"{name!r} is a field of compound values" in message
        assert f"RowReader.read(['obs/jets'])['obs/jets']{field}" in message
    assert reader.read(["obs/jets"])["obs/jets"]["id"]["n"].tolist() == [2, 3]
    with pytest.raises(UnknownColumnError, match=r"'obs/jets' is no group, but .* whose fields are pt, id"):
        reader.read(["obs/jets/pt_"])


def test_a_listing_says_how_to_do_without_what_leads_nowhere(tmp_path):
    def fill(file):
        file["gone"] = h5py.SoftLink("/nothing")
        file["outside"] = h5py.ExternalLink("/somewhere/else.h5", "x")

    refused = RowReader(file_with(tmp_path / "a.h5", fill)).layout.refused
    for name in ("gone", "outside"):
        assert str(refused[name]).endswith(f". columns=[...] without {name!r} reads the others.")


def test_a_group_is_no_column(tmp_path):
    path = file_with(tmp_path / "a.h5", lambda file: file.create_group("obs").create_dataset("x", data=ROWS))
    with pytest.raises(
        UnsupportedColumnError, match=r"a\.h5: 'obs' is a group, not a column; its columns are below it"
    ):
        RowReader(path).read(["obs"])


# Names that are none, rows that differ -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("signl", "Did you mean 'signal'?"),
        ("imgae", "Did you mean 'image'"),
        ("SIGNAL", None),
        ("bad_scalar2", "'bad_scalar'"),
        ("qqq", "There is: bad_scalar, image, obs/state, signal."),
    ],
)
def test_unknown_columns_get_near_names(tmp_path, name, offered):
    path = save(tmp_path / "a.h5", {"signal": ROWS, "image": ROWS, "obs/state": ROWS, "bad_scalar": 1.0})
    for look in (RowReader.column, lambda reader, name: reader.read(["signal", name])):
        with pytest.raises(UnknownColumnError) as caught:
            look(RowReader(path), name)
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, SchemaMismatchError)
        assert str(caught.value).startswith(f"{path}: no '{name}' below group '/'.")
        assert offered is None or offered in str(caught.value)


def test_unknown_column_in_a_file_of_none(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    reader = RowReader(tmp_path / "a.h5")
    with pytest.raises(UnknownColumnError, match="There is none"):
        reader.read(["x"])
    with pytest.raises(SchemaMismatchError, match="found no column; is group="):
        _ = reader.num_rows


def test_columns_of_different_lengths(tmp_path):
    path = save(tmp_path / "a.h5", {"x": ROWS, "y": ROWS, "z": np.arange(7)})
    reader = RowReader(path)
    for look in (lambda: reader.num_rows, lambda: reader.read(["x", "y", "z"])):
        with pytest.raises(SchemaMismatchError) as caught:
            look()
        assert str(caught.value).startswith(f"{path}: expected columns with one common first axis, found 2 lengths:")
        for part in ("\n  5 rows: columns=['x', 'y']\n", "\n  7 rows: columns=['z']\n", "group="):
            assert part in str(caught.value)
    assert set(reader.read(["x", "y"])) == {"x", "y"}
    assert reader.read(["z"], [6])["z"].tolist() == [6]


def test_the_lengths_of_many_columns_are_not_all_listed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(90):
            file[f"data/demo_{i}/actions"] = np.zeros((10 + i, 7))
            file[f"data/demo_{i}/obs/pose"] = np.zeros((10 + i, 3))
    with pytest.raises(SchemaMismatchError) as caught:
        H5Dataset(tmp_path / "a.h5")
    message = str(caught.value)
    assert "found 90 lengths:\n  10 rows: columns=['data/demo_0/actions', 'data/demo_0/obs/pose'" in message
    assert "\n  and 87 more lengths\n" in message
    assert len(message) < 4000
    assert "data/demo_0 ... demo_89: 90 groups alike. If each is a sample, pass rows=" in message
    assert "rows=ray_h5.Groups('data/demo_*')" in message


@pytest.mark.parametrize(
    "columns",
    [
        {"train/x": ROWS, "test/y": ROWS[1:]},
        {"train/x": ROWS, "test/x": ROWS, "z": ROWS[1:]},
        {"train/x": ROWS, "train/y": ROWS[1:], "test/x": ROWS, "test/y": ROWS[1:]},
    ],
    ids=["other columns", "of one length", "of several lengths"],
)
def test_groups_that_are_not_alike_are_not_said_to_be(tmp_path, columns):
    with pytest.raises(SchemaMismatchError) as caught:
        RowReader(save(tmp_path / "a.h5", columns)).num_rows  # noqa: B018  it is found when asked for
    assert "The groups" not in str(caught.value)


def test_lengths_of_a_file_by_matlab(tmp_path):
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["X"] = np.zeros((3, 50))
        file["y"] = np.zeros((1, 50))
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan  1 00:00:00 2024 HDF5 schema 1.00 ."
    with open(path, "r+b") as file:
        file.write(head)
    with pytest.raises(SchemaMismatchError, match=r"MATLAB wrote this file(.|\n)*axes='reversed'"):
        H5Dataset(path)
