"""`joined`: the rows of several datasets, end to end, as h5py reads them."""

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import MissingSourceError, OptionError, RayH5Error
from ray_h5.torch_data import Groups, H5Dataset, Shuffle, Windows, joined, loader, where
from tests.kit.fault_server import FaultServer
from tests.properties import few


@pytest.fixture(params=["chunked", "contiguous", "text"])
def frames(request, tmp_path):
    """Two files of 11 datasets, of 0 to 4 rows: frames_10 is after frames_9."""
    rng = np.random.default_rng(0)
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            lengths = rng.integers(0, 5, 11)
            for i, length in enumerate(lengths):
                values = rng.random((length, 3, 2))
                options = (
                    {"chunks": (2, 3, 2), "maxshape": (None, 3, 2), "compression": "gzip"}
                    if request.param == "chunked"
                    else {}
                )
                if request.param == "text":
                    values = np.array([f"{i} {row}" for row in range(length)], "S8")
                file.create_dataset(f"data/frames_{i}", data=values, **options)
            file["label"] = np.arange(lengths.sum())
    return tmp_path


def oracle(folder):
    parts = []
    for number in range(2):
        with h5py.File(folder / f"{number}.h5") as file:
            parts += [file[f"data/frames_{i}"][()] for i in range(11)]
    return np.concatenate(parts)


def test_rows_are_those_of_h5py(frames):
    dataset = H5Dataset(frames, [joined("data/frames_*"), "label"])
    expected = oracle(frames)
    assert len(dataset) == len(expected)
    found = dataset[list(range(len(dataset)))]["data/frames"]
    if expected.dtype.kind == "S":
        assert [each.encode() for each in found] == expected.tolist()
        return
    np.testing.assert_array_equal(found.numpy(), expected)
    order = np.random.default_rng(1).permutation(len(expected))
    np.testing.assert_array_equal(dataset[order.tolist()]["data/frames"].numpy(), expected[order])
    batches = loader(dataset, 5, shuffle=Shuffle("chunks", seed=2))
    assert sum(len(batch["label"]) for batch in batches) == len(expected)
    chosen = H5Dataset(frames, [joined("data/frames_*", name="x")], where(label=[0, 2]))
    assert torch.equal(chosen[0]["x"], dataset[0]["data/frames"])
    windows = H5Dataset(frames, [joined("data/frames_*", name="x")], windows=Windows({"x": [0, 1]}, pad="drop"))
    np.testing.assert_array_equal(windows[0]["x"].numpy(), expected[:2])


def test_what_cannot_be_joined(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a_0"], file["a_1"] = np.zeros((2, 3)), np.zeros((2, 4))
        file["one_0"] = 1.0
        file["g_0/x"] = np.zeros(2)
        file["x_0"] = np.zeros(2)
        file["x_1"] = h5py.ExternalLink("gone.h5", "x")
    wrong = {"a": "rows of several shapes", "one": "single values", "g": "these are groups", "z": "nothing matches"}
    for begin, says in wrong.items():
        pattern = f"{begin}_*"
        with pytest.raises(RayH5Error, match=says):
            H5Dataset(tmp_path / "a.h5", [joined(pattern)])
    with pytest.raises(RayH5Error, match=r"gone\.h5"):
        H5Dataset(tmp_path / "a.h5", [joined("x_*")])
    with pytest.raises(OptionError, match="expected a glob"):
        joined("data")
    with pytest.raises(OptionError, match="leave rows="):
        H5Dataset(tmp_path / "a.h5", [joined("a_*")], rows=Groups("g_*"))


# Datasets in other files ------------------------------------------------------------------------


def write_master(folder, lengths, *, linked, options):
    """Write a file of links to files beside it, some of them missing; return the rows that are there."""
    rng = np.random.default_rng(0)
    parts = []
    with h5py.File(folder / "master.h5", "w") as master:
        for i, length in enumerate(lengths):
            values = rng.integers(0, 999, (length, 3, 2)).astype("u2")
            name = f"entry/data/data_{i}"
            if not linked[i % len(linked)]:
                master.create_dataset(name, data=values, **options)
            else:
                with h5py.File(folder / f"data_{i}.h5", "w") as file:
                    file.create_dataset("entry/data/data", data=values, **options)
                master[name] = h5py.ExternalLink(f"data_{i}.h5", "/entry/data/data")
            parts.append(values)
        master["entry/threshold"] = 5.0
        master["omega"] = np.arange(sum(lengths))
    return np.concatenate(parts)


@few(4)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=2, max_size=12).filter(any),
    linked=st.lists(st.booleans(), min_size=1, max_size=3).filter(any),
    options=st.sampled_from([{}, {"chunks": (2, 3, 1), "maxshape": (None, 3, 2), "compression": "gzip"}]),
    seed=st.integers(0, 99),
)
def test_rows_in_other_files_are_those_of_h5py(tmp_path_factory, lengths, linked, options, seed):
    folder = tmp_path_factory.mktemp("master")
    expected = write_master(folder, lengths, linked=linked, options=options)
    column = joined("entry/data/data_*")
    dataset = H5Dataset(folder / "master.h5", [column, "omega"], allow_external=folder, dtypes={"omega": "f4"})
    assert len(dataset) == len(expected)
    rows = np.random.default_rng(seed).permutation(len(expected))
    found = dataset[rows.tolist()]
    np.testing.assert_array_equal(found["entry/data/data"].numpy(), expected[rows])
    np.testing.assert_array_equal(found["omega"].numpy(), rows)
    batches = loader(dataset, 3, shuffle=Shuffle("chunks", seed=seed))
    seen = [(int(n), row) for batch in batches for n, row in zip(batch["omega"], batch["entry/data/data"], strict=True)]
    assert sorted(n for n, _ in seen) == list(range(len(expected)))
    for n, row in seen:
        np.testing.assert_array_equal(row, expected[n])
    windows = Windows({"x": [0, 1]}, pad="edge")
    named = H5Dataset(
        folder / "master.h5", [joined("entry/data/data_*", name="x")], windows=windows, allow_external=folder
    )
    np.testing.assert_array_equal(named[len(expected) - 1]["x"].numpy(), expected[[-1, -1]])


@pytest.mark.parametrize("index_dir", [None, "index"])
def test_links_that_lead_nowhere_are_an_error_unless_the_rest_is_enough(tmp_path, caplog, index_dir):
    expected = write_master(tmp_path, [2, 3, 4], linked=[True], options={})
    (tmp_path / "data_0.h5").unlink()
    with h5py.File(tmp_path / "master.h5", "a") as file:
        file["seven"] = np.arange(7)  # as long as what is left, and of other frames
    columns, where = [joined("entry/data/data_*"), "seven"], {"allow_external": tmp_path}
    where["index_dir"] = index_dir and tmp_path / index_dir
    for names in (columns, columns[:1]):
        with pytest.raises(
            MissingSourceError, match=r"1 of 3 datasets are in files that do not exist: entry/data/data_0"
        ):
            H5Dataset(tmp_path / "master.h5", names, **where)
        dataset = H5Dataset(tmp_path / "master.h5", names, **where, ignore_missing_paths=True)
        with pytest.raises(MissingSourceError, match="pass ignore_missing_paths=True to leave out the rows"):
            H5Dataset(tmp_path / "master.h5", names, **where)
    np.testing.assert_array_equal(dataset[list(range(7))]["entry/data/data"].numpy(), expected[2:])
    (said,) = [each for each in caplog.messages if "left out 1 of 3 datasets" in each]
    assert said.endswith("whose files do not exist: entry/data/data_0")
    for number in (1, 2):
        (tmp_path / f"data_{number}.h5").unlink()
    for ignore in (False, True):
        with pytest.raises(RayH5Error, match="does not exist"):
            H5Dataset(tmp_path / "master.h5", columns[:1], **where, ignore_missing_paths=ignore)


def test_what_cannot_be_joined_from_other_files(tmp_path):
    write_master(tmp_path, [2, 3], linked=[True], options={})
    column = joined("entry/data/data_*")
    with pytest.raises(RayH5Error, match=r"outside allow_external=\[\].*pass allow_external="):
        H5Dataset(tmp_path / "master.h5", [column])
    (tmp_path / "other").mkdir()
    with pytest.raises(RayH5Error, match=r"outside allow_external="):
        H5Dataset(tmp_path / "master.h5", [column], allow_external=tmp_path / "other")
    for values, says in [(np.zeros((3, 3, 3), "u2"), r"\(3, 2\), and .*\(3, 3\)"), (np.zeros((3, 3, 2)), "float64")]:
        with h5py.File(tmp_path / "data_1.h5", "w") as file:
            file["entry/data/data"] = values
        with pytest.raises(RayH5Error, match=says):
            H5Dataset(tmp_path / "master.h5", [column], allow_external=tmp_path)
    with h5py.File(tmp_path / "master.h5", "a") as file:
        file["g"] = h5py.ExternalLink("data_1.h5", "/entry")
    assert len(H5Dataset(tmp_path / "master.h5", [joined("g*/data/data")], allow_external=tmp_path)) == 3


def test_rows_in_other_files_of_a_store(tmp_path):
    pytest.importorskip("obstore")
    (tmp_path / "bkt").mkdir()
    expected = write_master(tmp_path / "bkt", [2, 3, 4], linked=[True, True, False], options={"chunks": (1, 3, 2)})
    with FaultServer(tmp_path) as server:
        options = {"endpoint": server.url, "region": "x", "skip_signature": True, "allow_http": True}
        dataset = H5Dataset(
            "s3://bkt/master.h5",
            [joined("entry/data/data_*"), "omega"],
            allow_external="s3://bkt/",
            storage_options=options,
        )
        found = dataset[[8, 0, 3]]
    np.testing.assert_array_equal(found["entry/data/data"].numpy(), expected[[8, 0, 3]])
