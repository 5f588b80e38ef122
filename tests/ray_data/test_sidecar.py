"""Tables beside the files in Ray: the rows, types and orders of plain PyTorch."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_h5
from ray_h5 import H5Datasource, Sidecar, where
from ray_h5.errors import SchemaMismatchError
from ray_h5.ray_data.ray_internals import datasources

pytestmark = pytest.mark.usefixtures("ray_local")

FILES, ROWS = 3, 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    guids = []
    for number in range(FILES):
        mine = [f"{number:02d}-{row}" for row in range(ROWS)]
        guids += mine
        with h5py.File(folder / f"f{number}.h5", "w") as file:
            file["x"] = np.arange(ROWS) + ROWS * number
            file["guid"] = np.array([each.encode() for each in mine], object)
            file.attrs["patient"] = f"p{number}"
    order = np.random.default_rng(0).permutation(len(guids))[:50]
    columns = {
        "guid": [guids[i] for i in order],
        "number": order,
        "label": order % 4,
        "name": [f"n{i}" for i in order],
        "when": pa.array(order, pa.timestamp("us")),
        "vector": pa.FixedSizeListArray.from_arrays(np.repeat(order, 2).astype("f4"), 2),
        "points": pa.array([[float(i)] * (i % 3) for i in order]),
    }
    pq.write_table(pa.table(columns), folder / "table.parquet")
    return folder, np.sort(order)


def options(made, missing="drop"):
    return {"sidecar": Sidecar(str(made[0] / "table.parquet"), on="guid", missing=missing), "attrs": ["patient"]}


COLUMNS = ["x", "label", "name", "when", "vector", "points", "patient"]


def test_rows_have_the_values_of_their_lines(made):
    ds = ray_h5.read_h5(str(made[0]), columns=COLUMNS, block_rows=16, **options(made))
    assert str(ds.schema().base_schema.field("when").type) == "timestamp[us]"
    rows = ds.take_all()
    assert [row["x"] for row in rows] == made[1].tolist()
    for row in rows:
        x = int(row["x"])
        assert (row["label"], row["name"], row["patient"]) == (x % 4, f"n{x}", f"p{x // ROWS}")
        assert row["vector"].tolist() == [x, x]
        assert np.asarray(row["points"]).tolist() == [x] * (x % 3)


def test_rows_without_a_line_are_null(made):
    rows = ray_h5.read_h5(str(made[0]), columns=["x", "label", "name"], **options(made, "null")).take_all()
    assert len(rows) == FILES * ROWS
    known = set(made[1].tolist())
    for row in rows:
        x = int(row["x"])
        assert (row["label"], row["name"]) == ((x % 4, f"n{x}") if x in known else (None, None))
    with pytest.raises(SchemaMismatchError, match="10 of 60 rows have no line"):
        ray_h5.read_h5(str(made[0]), **options(made, "error"))


def test_a_filter_on_a_table_is_pushed_into_the_reading(made):
    ds = ray_h5.read_h5(str(made[0]), columns=["x"], **options(made)).filter(expr=where(label=1))
    (source,) = datasources(ds)
    assert isinstance(source, H5Datasource)
    assert sorted(row["x"] for row in ds.take_all()) == [i for i in made[1].tolist() if i % 4 == 1]


def test_folds_by_an_attribute(made):
    folds = ray_h5.kfold(str(made[0]), 3, group="patient", stratify="label", **options(made))
    ds = ray_h5.read_h5(str(made[0]), columns=["patient"], **options(made))
    for train, valid in folds:
        patients = [{row["patient"] for row in ds.filter(expr=each).take_all()} for each in (train, valid)]
        assert [len(each) for each in patients] == [2, 1]
        assert not patients[0] & patients[1]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Questions of images: a column has the number of the image in another file, whose chunks hold three."""
    folder = tmp_path_factory.mktemp("joined")
    of = np.random.default_rng(0).integers(0, 12, 40)
    with h5py.File(folder / "features.h5", "w") as file:
        file.create_dataset("features", data=np.arange(24.0).reshape(12, 2), chunks=(3, 2))
        file["name"], file["level"] = [f"n{i}" for i in range(12)], np.arange(12) % 3
        file["pair"] = np.arange(12)[:, None] * [1, 2]
        points = file.create_dataset("points", (12,), h5py.vlen_dtype("i4"))
        for i in range(12):
            points[i] = np.arange(i % 4)
    for part, rows in enumerate(np.split(np.arange(40), [15])):
        with h5py.File(folder / f"q{part}.h5", "w") as file:
            file["q"], file["image"] = rows, of[rows]
    return folder, of


def test_rows_of_another_file_in_tasks_and_workers(joined):
    folder, of = joined
    options = {"sidecar": Sidecar(folder / "features.h5", on="image", key="row_id"), "columns": ["q", *IMAGE]}
    ds = ray_h5.read_h5(str(folder / "q*.h5"), shuffle=ray_h5.Shuffle(seed=1), block_rows=8, **options)
    order = check_images(ds.iter_rows(), of)
    assert sorted(order) == [*range(40)]
    assert order != sorted(order)
    chosen = check_images(ds.filter(expr=where(level=1)).iter_rows(), of)
    assert sorted(chosen) == [q for q in range(40) if of[q] % 3 == 1]
    assert sorted(row["name"] for row in ds.select_columns(["name"]).iter_rows()) == sorted(f"n{i}" for i in of)
    batches = ray_h5.torch_data.loader(ds, 8, drop_last=False)
    assert sorted(q for batch in batches for q in batch["q"].tolist()) == sorted(order)
    shards = ray_h5.data_config(reading="workers").configure({"train": ds}, 2, None, None)
    read = [batch for shard in shards for batch in shard["train"].iter_batches(batch_size=8, batch_format="numpy")]
    rows = [{name: batch[name][i] for name in batch} for batch in read for i in range(len(batch["q"]))]
    assert sorted(check_images(rows, of)) == [*range(40)]


IMAGE = ["features", "name", "points", "level"]


def check_images(rows, of):
    """Compare rows with the images that they are of; return the questions."""
    questions = []
    for row in rows:
        image = int(of[int(row["q"])])
        assert row["features"].tolist() == [2 * image, 2 * image + 1]
        assert (row["name"], int(row["level"])) == (f"n{image}", image % 3)
        assert np.asarray(row["points"]).tolist() == [*range(image % 4)]
        questions.append(int(row["q"]))
    return questions


def test_rows_without_a_row_there_are_null(joined, tmp_path):
    with h5py.File(tmp_path / "q.h5", "w") as file:
        file["q"], file["image"] = np.arange(3), [5, 12, 0]
    table = Sidecar(joined[0] / "features.h5", on="image", key="row_id", missing="null")
    columns = ["q", "name", "features", "points", "level", "pair"]
    ds = ray_h5.read_h5(tmp_path / "q.h5", columns=columns, sidecar=table)
    rows = ds.take_all()
    assert [row["name"] for row in rows] == ["n5", None, "n0"]
    assert [np.isnan(row["features"]).all() for row in rows] == [False, True, False]
    assert [row["points"] is None for row in rows] == [False, True, False]
    assert [row["level"] for row in rows] == [5 % 3, None, 0]
    assert [row["pair"] if row["pair"] is None else row["pair"].tolist() for row in rows] == [[5, 10], None, [0, 0]]
    with_row = ds.filter(expr=~where(level=None)).take_all()
    assert [(row["q"], row["level"], row["pair"].tolist()) for row in with_row] == [(0, 2, [5, 10]), (2, 0, [0, 0])]
