"""A chmod, chown, rename or hard link changes the ctime of a file alone: a training goes on, and says so once."""

import logging
import os
from dataclasses import asdict, replace

import h5py
import numpy as np
import pytest

from ray_h5 import H5Dataset, RayH5Error, RowReader, Sidecar, loader
from ray_h5.errors import NotFoundError, StaleIndexError
from ray_h5.manifest.file_state import FileState, compare
from ray_h5.storage.byte_source import FileIdentity, ObjectIdentity
from ray_h5.storage.local import LocalFile

STORAGES = {
    "contiguous": {"fillvalue": np.nan},
    "chunked": {"chunks": (5, 3)},
    "gzip": {"chunks": (5, 3), "compression": "gzip"},
    "groups": {},
}


def chmod(path):
    os.chmod(path, 0o600 if os.stat(path).st_mode & 0o777 != 0o600 else 0o640)


def link(path):
    os.link(path, f"{path}.backup{len(os.listdir(os.path.dirname(path)))}")


def rename(path):
    os.rename(path, f"{path}.away")
    os.rename(f"{path}.away", path)


def chown(path):
    if os.getuid():
        pytest.skip("this user may not chown")
    os.chown(path, os.stat(path).st_uid + 1, -1)


@pytest.fixture
def paths(tmp_path, request):
    values = np.random.default_rng(0).standard_normal((90, 3))
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("x", data=values[30 * number : 30 * number + 30], **request.param)
            file.create_dataset("text", data=[f"row {row}" for row in range(30)], dtype=h5py.string_dtype())
    return [str(tmp_path / f"{number}.h5") for number in range(3)], values


all_storages = pytest.mark.parametrize("paths", [{}, *list(STORAGES.values())[1:3]], indirect=True)
contiguous = pytest.mark.parametrize("paths", [{}], indirect=True)


@pytest.mark.parametrize(
    ("paths", "touch", "kept_bytes"),
    [
        *((storage, chmod, kept) for storage in ({}, *list(STORAGES.values())[1:3]) for kept in (0, 1 << 20)),
        *((STORAGES["gzip"], touch, 0) for touch in (link, rename, chown)),
    ],
    indirect=["paths"],
)
def test_training_goes_on(paths, touch, kept_bytes, caplog):
    paths, values = paths
    with caplog.at_level(logging.WARNING, "ray_h5"):
        batches = loader(paths, 9, columns=["x", "text"], kept_bytes=kept_bytes, shuffle=False)
        for _ in range(2):
            rows = 0
            for number, batch in enumerate(batches):
                np.testing.assert_array_equal(batch["x"], values[9 * number : 9 * number + 9])
                rows += len(batch["x"])
                if number in {1, 4}:
                    for path in paths:
                        touch(path)
            assert rows == 90
    said = [each.getMessage() for each in caplog.records if "ctime" in each.getMessage()]
    assert sorted(path for each in said for path in paths if each.startswith(f"{path}: ")) == paths


@pytest.mark.parametrize("paths", [STORAGES["gzip"]], indirect=True)
def test_a_resumed_epoch_and_another_process_go_on(paths):
    paths, values = paths
    dataset = H5Dataset(paths, ["x"])
    batches = loader(dataset, 9, shuffle=True, workers=1)
    it = iter(batches)
    seen = [next(it)["x"] for _ in range(4)]
    state = batches.state_dict()
    del it
    for path in paths:
        chmod(path)
    again = loader(H5Dataset(paths, ["x"]), 9, shuffle=True, workers=1)
    again.load_state_dict(state)
    seen += [batch["x"] for batch in again]
    found = np.concatenate([np.asarray(each) for each in seen])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(values[:, 0]))


def write_sources(folder, **options):
    """Two files, and one of which each column has values of these, or of a raw file."""
    for i in range(2):
        with h5py.File(folder / f"source{i}.h5", "w", libver="latest") as file:
            file.create_dataset("x", data=np.arange(10.0) + 10 * i, fillvalue=np.nan, **options)
            file.create_dataset("text", data=[f"{i} {row}" for row in range(10)], dtype=h5py.string_dtype())
            file["group/x"] = np.arange(20.0)

    def over(file, name, shape, sources):
        layout = h5py.VirtualLayout(shape, "f8")
        for at, source, length in sources:
            layout[at] = h5py.VirtualSource(str(folder / source), "x" if source != "main.h5" else "stack", (length,))
        file.create_virtual_dataset(name, layout, fillvalue=np.nan)

    with h5py.File(folder / "main.h5", "w", libver="latest") as file:
        over(file, "stack", (20,), [(np.s_[10 * i : 10 * i + 10], f"source{i}.h5", 10) for i in range(2)])
        over(file, "side", (10, 2), [(np.s_[:, i], f"source{i}.h5", 10) for i in range(2)])
        file["link"] = h5py.ExternalLink(str(folder / "source1.h5"), "text")
        file["linked"] = h5py.ExternalLink(str(folder / "source0.h5"), "group")
        raw = [(str(folder / "values.raw"), 0, 160)]
        file.create_dataset("raw", (20,), "f8", external=raw)[...] = np.arange(20.0)
        file.create_dataset("own", data=np.arange(20.0), fillvalue=np.nan, **options)
    with h5py.File(folder / "top.h5", "w", libver="latest") as file:
        over(file, "virtual", (20,), [(np.s_[:], "main.h5", 20)])
    return {
        "stack": "main",
        "side": "main",
        "link": "main",
        "linked/x": "main",
        "raw": "main",
        "own": "main",
        "virtual": "top",
    }


SOURCE_COLUMNS = ["stack", "side", "link", "linked/x", "raw", "own", "virtual"]


@pytest.mark.parametrize("which", ["*", "*.h5", "main.h5", "source*", "[mt]*.h5"])
@pytest.mark.parametrize("column", SOURCE_COLUMNS)
@pytest.mark.parametrize("entrance", ["reader", "held", "loader", "new readers"])
def test_the_ctimes_of_all_that_a_file_leads_to(entrance, column, which, tmp_path):
    path = tmp_path / f"{write_sources(tmp_path, chunks=(3,), compression='gzip')[column]}.h5"
    with h5py.File(path) as file:
        expected = file[column][()]
    options = {"allow_external": [tmp_path]}

    def read():
        if entrance == "new readers":
            return RowReader(path, expect=state, **options).read([column])[column]
        if entrance == "reader":
            return reader.read([column], slice(0, None))[column]
        if entrance == "held":
            return dataset.read(np.arange(len(dataset)))[column]
        batches = [np.asarray(batch[column]) for batch in loader(dataset, 5, shuffle=False)]
        return np.concatenate(batches)

    reader = RowReader(path, **options)
    state = FileState(reader.identity, {column: reader.column(column).sources})
    dataset = H5Dataset(str(path), [column], kept_bytes=None if entrance == "held" else 0, **options)
    for touch in (chmod, link, rename, chmod):
        found = [text.encode() if isinstance(text, str) else text for text in read()]
        np.testing.assert_array_equal(found, expected)
        for each in tmp_path.glob(which):
            if each.suffix in {".h5", ".raw"}:
                touch(each)
    assert len(read()) == len(expected)


@pytest.mark.parametrize("column", ["stack", "side", "link", "virtual"])
@pytest.mark.parametrize("change", ["values", "grown"])
def test_a_source_that_changed_is_an_error_although_all_ctimes_differ(change, column, tmp_path):
    path = tmp_path / f"{write_sources(tmp_path)[column]}.h5"
    reader = RowReader(path, allow_external=[tmp_path])
    reader.read([column])
    for each in [*tmp_path.glob("*.h5")]:
        chmod(each)
    with h5py.File(tmp_path / "source1.h5", "a") as file:
        if change == "grown":
            file["more"] = np.arange(1000)
        else:
            file["x"][3] = -1
    with pytest.raises(StaleIndexError, match=r"source1\.h5, which changed between planning and reading: expected "):
        reader.read([column])


@pytest.mark.parametrize("paths", [STORAGES["gzip"]], indirect=True)
def test_a_file_that_is_touched_while_it_is_described_again(paths, monkeypatch):
    paths, values = paths
    opened, reader = LocalFile.open, RowReader(paths[0])
    reader.read(["x"])
    chmod(paths[0])
    monkeypatch.setattr(LocalFile, "open", lambda path: chmod(path) or opened(path))
    for _ in range(2):
        np.testing.assert_array_equal(reader.read(["x"], [3, 1])["x"], values[[3, 1]])


STATE = FileIdentity(100, 1, 2, 3)
CHANGES = [
    (STATE, STATE, False, "same"),
    (None, None, False, "same"),
    (STATE, replace(STATE, ctime_ns=9), False, "ctime"),
    (STATE, replace(STATE, size=101, mtime_ns=5, ctime_ns=9), False, "grown"),
    (STATE, replace(STATE, size=99, mtime_ns=5), False, "changed"),
    (STATE, replace(STATE, mtime_ns=5), False, "changed"),
    (STATE, replace(STATE, size=101, inode=4), False, "changed"),
    (STATE, None, False, "gone"),
    (None, STATE, False, "appeared"),
    (STATE, replace(STATE, size=101, mtime_ns=5), True, "same"),
    (STATE, replace(STATE, inode=4), True, "changed"),
    (None, STATE, True, "same"),
    (STATE, None, True, "gone"),
    (ObjectIdentity("a", 1), ObjectIdentity("a", 1), False, "same"),
    (ObjectIdentity("a", 1), ObjectIdentity("b", 1), False, "changed"),
    (ObjectIdentity("a", 1), STATE, False, "changed"),
]


@pytest.mark.parametrize(("expected", "found", "swmr", "kind"), CHANGES)
def test_the_comparison_of_two_states(expected, found, swmr, kind):
    change = compare(expected, found, swmr=swmr)
    assert (change.kind, change.is_none) == (kind, kind in {"same", "ctime"})
    if type(expected) is type(found) is FileIdentity and kind != "same":
        names = [name for name, value in asdict(expected).items() if value != getattr(found, name)]
        assert [part.split()[1] for part in change.why.split("expected")[1:]] == [
            f"{getattr(expected, name)}," for name in names
        ]


@contiguous
def test_a_table_beside_the_files(paths, tmp_path):
    paths, _ = paths
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + "".join(f"{path},{number}\n" for number, path in enumerate(paths)))
    dataset = H5Dataset(paths, ["x", "label"], sidecar=Sidecar(table, on="path"))
    chmod(table)
    assert dataset[40]["label"] == 1


@all_storages
def test_a_changed_file_is_still_an_error(paths):
    paths, _ = paths
    dataset = H5Dataset(paths, ["x"], kept_bytes=0)
    dataset.read(np.arange(90))
    before = os.stat(paths[1])
    with h5py.File(paths[1], "a") as file:
        del file["x"]  # the same name and size, and other places
        file.create_dataset("x", data=np.zeros((30, 3)), chunks=(6, 3))
    os.truncate(paths[1], before.st_size)
    os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(RayH5Error):
        dataset.read(np.arange(90))


@contiguous
def test_a_removed_file_says_so(paths):
    paths, _ = paths
    readers = RowReader(paths[0]), RowReader(paths[1])
    assert readers[0].read(["x"], [3])["x"].shape == (1, 3)
    state = RowReader(paths[2]).identity
    for path in paths[:2]:
        os.rename(path, f"{path}.away")
    for reader in readers:
        with pytest.raises(StaleIndexError, match="removed or renamed"):
            reader.read(["x"])
    os.unlink(paths[2])
    with pytest.raises(NotFoundError, match="no such file"):
        RowReader(paths[2], expect=state)
