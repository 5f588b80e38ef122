"""Tables beside the files, in the same store."""

import gzip
import pickle

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.data.expressions import col

import ray_h5
from ray_h5.errors import NotFoundError, StaleIndexError, TableError, TransientIOError
from ray_h5.storage.stores.object_store import ObjectStorage
from ray_h5.storage.stores.options import StoreOptions
from ray_h5.tables.table_bytes import TableFiles
from ray_h5.tables.table_files import open_table
from ray_h5.torch_data import H5Dataset, Sidecar, where
from tests.kit.stores import forget_files
from tests.remote.kit import ROWS, options_of

pytestmark = pytest.mark.usefixtures("files")

URL = "s3://bkt/run_*.h5"
LABELS = np.arange(2 * ROWS) % 7


def write_table(bucket, name):
    ids = np.random.default_rng(0).permutation(2 * ROWS)
    table = pa.table({"id": ids, "label": LABELS[ids], "site": [f"s{each % 3}" for each in ids]})
    text = "id,label,site\n" + "".join(f"{each},{LABELS[each]},s{each % 3}\n" for each in ids)
    if name.endswith(".parquet"):
        pq.write_table(table, bucket / name)
    elif name.endswith(".gz"):
        (bucket / name).write_bytes(gzip.compress(text.encode()))
    else:
        (bucket / name).write_text(text.replace(",", "\t") if name.endswith(".tsv") else text)
    return f"s3://bkt/{name}"


def opened(server, table, paths=URL, **more):
    return H5Dataset(
        paths, ["id", "label"], sidecar=Sidecar(table, on="id"), storage_options=options_of(server), **more
    )


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_tables_of_all_kinds(server, bucket, name):
    found = opened(server, write_table(bucket, name), predicate=where(site="s1"))[:]
    assert sorted(found["id"].tolist()) == [each for each in range(2 * ROWS) if each % 3 == 1]
    assert found["label"].tolist() == LABELS[found["id"]].tolist()
    asked = server.requests(f"/bkt/{name}", method="GET")
    assert asked
    assert all(each.if_match for each in asked)


def test_files_in_a_store_with_a_local_table(server, bucket):
    write_table(bucket, "t.csv")
    assert len(opened(server, bucket / "t.csv")) == 2 * ROWS


def test_tables_by_a_glob(server, bucket):
    write_table(bucket, "t.csv")
    lines = (bucket / "t.csv").read_text().splitlines(keepends=True)
    (bucket / "part_0.csv").write_text("".join(lines[:100]))
    (bucket / "part_1.csv").write_text(lines[0] + "".join(lines[100:]))
    found = opened(server, "s3://bkt/part_*.csv")[:]
    assert found["label"].tolist() == LABELS[found["id"]].tolist()


def test_a_table_for_each_file(server, bucket):
    for number, name in enumerate(sorted(path.stem for path in bucket.glob("run_*.h5"))):
        (bucket / f"{name}.csv").write_text("label\n" + f"{number}\n" * ROWS)
    sidecar = Sidecar("{stem}.csv", on="row")
    found = H5Dataset(URL, ["id", "label"], sidecar=sidecar, storage_options=options_of(server))[:]
    assert found["label"].tolist() == [0] * ROWS + [1] * ROWS


@pytest.mark.parametrize("place", ["s3://bkt/beside/f_*.h5", "beside on the disk"])
def test_rows_of_files_in_a_store(server, bucket, tmp_path, place):
    """Planning reads the keys; then no metadata is asked for, and rows that no row takes are not fetched."""
    folder = bucket / "beside" if "://" in place else tmp_path / place
    folder.mkdir()
    ids, rng = np.random.default_rng(0).permutation(2 * ROWS), np.random.default_rng(1)
    for part, rows in enumerate(np.split(ids, 2)):
        with h5py.File(folder / f"f_{part}.h5", "w") as file:
            file["id"] = rows
            noise = rng.integers(0, 256, (len(rows), 4096), np.uint8)
            noise[:, 0] = rows % 200
            file.create_dataset("vector", data=noise, chunks=(1, 4096))
    sidecar = Sidecar(place if "://" in place else folder, on="id")
    given = {"sidecar": sidecar, "storage_options": options_of(server), "index_dir": tmp_path / "index"}
    samples = H5Dataset(URL, ["id", "vector"], **given)
    forget_files()
    server.forget()
    samples = H5Dataset(URL, ["id", "vector"], **given)
    keys = [each for each in server.requests(method="GET") if not each.is_listing]
    assert len(keys) <= 2 * ("://" in place), "of each file beside, its ids"
    server.forget()
    rows = [5, 3, 7, 5]
    found = samples[rows]
    assert found["vector"][:, 0].tolist() == [int(each) % 200 for each in found["id"]]
    if "://" in place:
        asked = [each for part in (0, 1) for each in server.requests(f"/bkt/beside/f_{part}.h5")]
        sizes = [each.span(1 << 40) for each in asked]
        assert 0 < sum(stop - start for start, stop in sizes) <= 3 * 4096


@pytest.mark.usefixtures("ray_local")
def test_ray_reads_what_a_table_selects(server, bucket):
    table = Sidecar(write_table(bucket, "t.parquet"), on="id")
    ds = ray_h5.read_h5(URL, columns=["id", "label"], sidecar=table, storage_options=options_of(server))
    found = ds.filter(expr=col("label") == 3).to_pandas()
    assert sorted(found["id"]) == np.flatnonzero(LABELS == 3).tolist()


def test_a_table_that_changes_before_its_columns_are_read(server, bucket):
    url = write_table(bucket, "t.parquet")
    sidecar, storage = Sidecar(url, on="id"), ObjectStorage(StoreOptions.of(options_of(server), [url]))
    table = open_table(sidecar, TableFiles.of(sidecar, storage))
    other = pickle.loads(pickle.dumps(table))
    write_table(bucket, "t.parquet")
    for each in (table, other):
        with pytest.raises(StaleIndexError, match=r"t\.parquet"):
            each.column("label")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_faults(server, bucket, name):
    url = write_table(bucket, name)
    server.fail("cut", path=f"/bkt/{name}", times=3)
    assert len(opened(server, url)) == 2 * ROWS
    server.fail("status", status=503, path=f"/bkt/{name}")
    with pytest.raises(TransientIOError, match=name):
        opened(server, url)


def test_tables_that_cannot_be_read(server, bucket):
    (bucket / "empty.csv").touch()
    (bucket / "half.parquet").write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(TableError, match=r"empty\.csv: is empty"):
        opened(server, "s3://bkt/empty.csv")
    with pytest.raises(TableError, match=r"half\.parquet: cannot be read as Parquet"):
        opened(server, "s3://bkt/half.parquet")
    write_table(bucket, "t.csv")
    with pytest.raises(NotFoundError, match=r"s3://bkt/t\.csvv \(Did you mean") as caught:
        opened(server, "s3://bkt/t.csvv")
    assert "ignore_missing_paths" not in str(caught.value)
