"""Rows of equal values of a column: each is what NumPy cuts out of the columns."""

import pickle

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import ray_h5
from ray_h5 import Groups, RowReader, Shuffle, Windows, between, csr, kfold, part, where
from ray_h5.cli import main
from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.rows.kinds import equal_value_rows
from ray_h5.torch_data import H5Dataset, loader
from tests.kit.files import save

LENGTHS = [3, 1, 4, 2, 5]
IDS = [10, 11, 12, 15, 13]
EVENTS = Groups(by="event_id", attrs=["num_samples"])


@pytest.fixture
def path(tmp_path):
    """Hits of five events, as old files of KM3NeT have them, with a run number, beside a table of another length."""
    rng = np.random.default_rng(0)
    columns = {"event_id": np.repeat(IDS, LENGTHS), "time": rng.random(15), "pos": rng.random((15, 3)).astype("f4")}
    columns |= {"tag": [b"t%d" % i for i in range(15)], "run": 7, "others": np.arange(4)}
    return save(tmp_path / "hits.h5", columns)


@st.composite
def tables(draw):
    """Draw ids of runs, how long these are, and how they are stored."""
    lengths = draw(st.lists(st.integers(1, 9), max_size=12))
    kind = draw(st.sampled_from(["i8", "u2", "f4", "S3", "text", "i1"]))
    ids = np.random.default_rng(len(lengths)).permutation(len(lengths))
    values = [b"e%d" % i for i in ids.tolist()] if kind == "text" else ids.astype(kind)
    entries = [values[i] for i in np.repeat(np.arange(len(lengths)), lengths)]
    of_text = {"dtype": object} if kind == "text" else {"dtype": kind}
    rows = draw(st.lists(st.integers(0, max(0, len(lengths) - 1)), max_size=8 if lengths else 0))
    return lengths, np.array(entries, **of_text), draw(st.booleans()), rows


@given(tables())
def test_rows_equal_numpy(tmp_path_factory, drawn):
    lengths, ids, is_chunked, rows = drawn
    folder = tmp_path_factory.mktemp("runs")
    columns = {"id": ids, "x": np.arange(len(ids)), "y": np.arange(2.0 * len(ids)).reshape(-1, 2)}
    path = save(
        folder / "a.h5", columns, **({"chunks": True, "compression": "gzip"} if is_chunked and len(ids) else {})
    )
    starts = np.cumsum([0, *lengths])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_value_rows, "_BLOCK", 4)
        with RowReader(path, rows=Groups(by="id")) as reader:
            assert reader.num_rows == len(lengths)
            found = reader.read(["id", "x", "y"], rows)
    for place, row in enumerate(rows):
        cut = slice(starts[row], starts[row + 1])
        assert found["id"][place] == ids[starts[row]]
        assert np.array_equal(found["x"][place], columns["x"][cut])
        assert np.array_equal(found["y"][place], columns["y"][cut])


def test_columns_that_a_row_has(path, tmp_path, caplog):
    for _ in range(2):  # the second reads the index file
        kind = Groups(by="/event_id/", attrs=["num_samples"])
        rows = H5Dataset(path, rows=kind, index_dir=tmp_path / "index")
        assert rows.columns == ["event_id", "pos", "tag", "time", "run", "num_samples"]
        for row, event, length in zip(rows, IDS, LENGTHS, strict=True):
            assert (int(row["event_id"]), int(row["num_samples"]), int(row["run"])) == (event, length, 7)
            assert row["pos"].shape == (length, 3)
        assert rows[-1]["tag"] == [f"t{i}" for i in range(10, 15)]
    assert "others (has 4 values, and 'event_id' has 15" in caplog.text
    with pytest.raises(UnsupportedColumnError, match=r"'others' has 4 values, and 'event_id' has 15.* Leave it out"):
        H5Dataset(path, ["time", "others"], rows=EVENTS)
    first = H5Dataset(path, [part("pos", {0: [0], 1: [2]}), "event_id"], rows=EVENTS)
    assert first[2]["pos"].tolist() == RowReader(path).read(["pos"], [4])["pos"][:, 2:].tolist()


def test_they_compose(path):
    long = H5Dataset(path, ["event_id"], where(num_samples=between(3, None)), rows=EVENTS)
    assert [int(row["event_id"]) for row in long] == [10, 12, 13]
    folds = [
        H5Dataset(path, ["event_id"], own, rows=EVENTS)
        for _, own in kfold(path, 5, group="event_id", stratify=None, rows=EVENTS)
    ]
    assert sorted(int(row["event_id"]) for fold in folds for row in fold) == sorted(IDS)
    by_length = Shuffle(by_length="pos", batch_values=6, seed=1)
    batches = [*loader(path, 4, columns=["pos", "event_id"], rows=EVENTS, shuffle=by_length, pad=True)]
    assert sorted(length for batch in batches for length in batch["pos_length"].tolist()) == sorted(LENGTHS)
    assert all(batch["pos_length"].sum() <= 6 for batch in batches)
    shuffled = loader(path, 2, columns=["time", "event_id"], shuffle=Shuffle("chunks", seed=0), rows=EVENTS)
    epoch = [batch["event_id"].tolist() for batch in shuffled]
    again = loader(path, 2, columns=["time", "event_id"], shuffle=Shuffle("chunks", seed=0), rows=EVENTS)
    iterator = iter(again)
    next(iterator)
    position = again.state_dict()
    del iterator
    resumed = loader(path, 2, columns=["time", "event_id"], shuffle=Shuffle("chunks", seed=0), rows=EVENTS)
    resumed.load_state_dict(pickle.loads(pickle.dumps(position)))
    assert [batch["event_id"].tolist() for batch in resumed] == epoch[1:]
    windows = {"time": [-1, 0], "pos": [0]}
    found = H5Dataset(path, columns=["time", "pos", "tag"], rows=Groups(by="event_id"), windows=Windows(windows))
    same = H5Dataset(path, columns=["time", "pos", "tag"], windows=Windows(windows, episode="event_id"))
    assert [str(row) for row in found] == [str(row) for row in same]


def test_sets_of_cells(tmp_path):
    """Cells of a donor are a set: sparse counts are dense, categories and missing values are what they stand for."""
    anndata, pandas, sparse = map(pytest.importorskip, ("anndata", "pandas", "scipy.sparse"))
    obs = {"donor": list("aabbbc"), "cell": ["T", "B", "T", None, "B", "B"]}
    table = pandas.DataFrame(obs, index=list("uvwxyz"), dtype="category").assign(n=pandas.array([1, None, 3, 4, 5, 6]))
    counts = np.arange(24.0).reshape(6, 4)
    anndata.AnnData(sparse.csr_matrix(counts), obs=table).write_h5ad(tmp_path / "a.h5ad")
    options = {"rows": Groups(by="obs/donor"), "dtypes": {"obs/n": "float32"}}
    sets = H5Dataset(tmp_path / "a.h5ad", ["X", "obs/donor", "obs/cell", "obs/n"], **options)
    assert [row["obs/donor"] for row in sets] == ["a", "b", "c"]
    for row, (begin, end) in zip(sets, [(0, 2), (2, 5), (5, 6)], strict=True):
        assert row["X"].tolist() == counts[begin:end].tolist()
        assert [*row["obs/cell"]] == obs["cell"][begin:end]
    assert np.array_equal(sets[0]["obs/n"], [1, np.nan], equal_nan=True)
    classes = H5Dataset(tmp_path / "a.h5ad", ["obs/cell"], rows=options["rows"], labels={"obs/cell": {"T": 0, None: 9}})
    assert classes[1]["obs/cell"].tolist() == [0, 9, 9]


def test_sparse_rows_are_dense_and_cut_as_others_are(tmp_path):
    dense = np.random.default_rng(0).integers(0, 3, (6, 5)).astype("f4")
    matrix = sp.csr_matrix(dense)
    parts = {f"X/{name}": getattr(matrix, name) for name in ("data", "indices", "indptr")}
    path = save(tmp_path / "a.h5", {"donor": [1, 1, 2, 2, 2, 3], **parts})
    with h5py.File(path, "a") as file:
        file["X"].attrs.update({"encoding-type": "csr_matrix", "shape": (6, 5)})
    cells = dense[2:5]
    for column, expected in [
        ("X", cells),
        (csr("X", take=[3, 1]), cells[:, [3, 1]]),
        (part("X", {1: [4, 0]}), cells[:, [4, 0]]),
        (part(csr("X"), {0: [2, 0], 1: slice(1, 3)}), cells[[2, 0], 1:3]),
    ]:
        found = H5Dataset(path, [column], rows=Groups(by="donor"))[1]["X"]
        assert np.array_equal(found, expected), column
    drawn = H5Dataset(path, [part("X", random=2)], rows=Groups(by="donor"))
    assert [row["X"].shape for row in drawn] == [(2, 5), (2, 5), (1, 5)]
    with pytest.raises(UnsupportedColumnError, match="leave dense=False out"):
        H5Dataset(path, [csr("X", dense=False)], rows=Groups(by="donor"))


@pytest.mark.usefixtures("ray_local")
def test_ray(path):
    rows = ray_h5.read_h5(path, columns=["time", "event_id", "num_samples"], rows=EVENTS)
    expected = [*H5Dataset(path, ["time", "event_id"], rows=EVENTS)]
    found = rows.filter(expr=where(num_samples=between(2, 4))).take_all()
    assert [row["event_id"] for row in found] == [10, 12, 15]
    assert [row["time"].tolist() for row in found] == [expected[i]["time"].tolist() for i in (0, 2, 3)]


def test_the_call_is_printed(path, capsys):
    assert main(["inspect", path]) == 0
    said = capsys.readouterr().out
    assert "event_id: rows may be entries of events. For a row an event, write read_h5(paths, " in said
    call = said.partition("For a row an event, write read_h5(paths, ")[2].partition("): see")[0]
    assert len(eval(f"H5Dataset(path, {call})", {"ray_h5": ray_h5, "H5Dataset": H5Dataset, "path": path})) == 5
    assert main(["inspect", path, "--by", "event_id"]) == 0
    assert "5 rows" in capsys.readouterr().out
    assert main(["inspect", path, "--by", "event_id", "--groups", "*"]) == 1


def test_what_is_refused(path, tmp_path):
    again = save(tmp_path / "again.h5", {"id": [1, 1, 2, 2, 1, 2], "x": np.arange(6), "nan": [1, 1, 2, 2, np.nan, 3.0]})
    with pytest.raises(SchemaMismatchError, match="value 1 is in row 0 and again in row 4, with other values between"):
        H5Dataset(again, rows=Groups(by="id"))
    with pytest.raises(SchemaMismatchError, match="found a missing value in row 4"):
        H5Dataset(again, rows=Groups(by="nan"))
    with pytest.raises(UnsupportedColumnError, match=r"values of shape \(3,\); expected one number or text"):
        H5Dataset(path, rows=Groups(by="pos"))
    for wrong, message in [
        ({}, "Groups: pattern=None: expected a glob"),
        ({"by": ""}, "Groups: by='': expected the name"),
        ({"pattern": "*", "by": "id"}, r"Groups: by='id' and pattern='\*'"),
        ({"by": "id", "key": "id"}, "Groups: by='id' and key='id'"),
        ({"by": "id", "attrs": ["charge"]}, r"expected \['num_samples'\], or none"),
    ]:
        with pytest.raises(OptionError, match=message):
            Groups(**wrong)
    with pytest.raises(OptionError, match="Windows: episode_ends='others' is for rows along the first axis"):
        H5Dataset(path, rows=EVENTS, windows=Windows({"time": [0]}, episode_ends="others"))
    with pytest.raises(
        OptionError, match="with windows=, a row is a step, and has no number of them; leave attrs= out"
    ):
        H5Dataset(path, rows=EVENTS, windows=Windows({"time": [0]}))
