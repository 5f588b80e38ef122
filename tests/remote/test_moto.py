"""A second opinion on the dialect of S3, the server of moto: files that are read, and written."""

import logging
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from ray.data.datasource.datasink import WriteResult

from ray_h5 import H5Datasink, RayH5Error, repack
from ray_h5.errors import NotFoundError, OutputExistsError, StaleIndexError
from ray_h5.storage.find_files import find_files
from ray_h5.storage.storage_of_path import storage_for
from ray_h5.storage.stores import object_store
from tests.index.kit import read_all
from tests.remote.kit import QUICK, ROWS, check_epoch, epoch_of
from tests.remote.kit import write as write_file

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # moto starts slowly


@pytest.fixture(scope="module")
def endpoint():
    moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3,server]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    client = pytest.importorskip("boto3").client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="bkt")
    _empty(client)  # all moto servers of a process have the same objects
    yield client
    _empty(client)


def _empty(client):
    for each in client.list_objects_v2(Bucket="bkt").get("Contents", []):
        client.delete_object(Bucket="bkt", Key=each["Key"])


@pytest.fixture
def options(endpoint):
    return {
        "endpoint": endpoint, "region": "us-east-1", "allow_http": True, "access_key_id": "testing",
        "secret_access_key": "testing", "session_token": "it lets all pass a gate", **QUICK, "read_timeout": 10,
    }  # fmt: skip


def keys(s3):
    return sorted(each["Key"] for each in s3.list_objects_v2(Bucket="bkt").get("Contents", []))


def write(sink, tasks):
    sink.on_write_start(None)
    found = [sink.write(blocks, SimpleNamespace(task_idx=task)) for task, blocks in enumerate(tasks)]
    sink.on_write_complete(WriteResult(0, 0, found))


def test_a_dataset_into_a_store(s3, options):
    blocks = [[pa.table({"x": np.arange(5)})], [pa.table({"x": np.arange(5, 9)})]]
    write(H5Datasink("s3://bkt/out", storage_options=options), blocks)
    assert keys(s3) == ["out/part-0-0.h5", "out/part-1-0.h5"]
    assert read_all("s3://bkt/out/", storage_options=options)["x"].tolist() == list(range(9))
    with pytest.raises(OutputExistsError):
        H5Datasink("s3://bkt/out", storage_options=options)
    write(H5Datasink("s3://bkt/out/", storage_options=options, mode="overwrite"), blocks[:1])
    assert keys(s3) == ["out/part-2-0.h5"]
    sink = H5Datasink("s3://bkt/out", storage_options=options, mode="append")
    sink.on_write_start()
    sink.write(blocks[1], SimpleNamespace(task_idx=0))
    sink.on_write_failed(ValueError())
    assert keys(s3) == ["out/part-2-0.h5"]


def test_files_from_a_store_into_it(s3, options, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(60000.0).reshape(600, 100), chunks=(600, 100), compression="gzip")
        file.attrs["title"] = "kept"
    s3.upload_file(str(tmp_path / "a.h5"), "bkt", "in/a.h5")
    found = repack("s3://bkt/in/a.h5", "s3://bkt/fast", storage_options=options, chunk_rows=10, page="64KiB")
    assert found.paths == ["s3://bkt/fast/a.h5"]
    assert (read_all(found.paths, storage_options=options)["x"].ravel() == np.arange(60000)).all()
    s3.download_file("bkt", "fast/a.h5", str(tmp_path / "b.h5"))
    with h5py.File(tmp_path / "b.h5") as file:
        assert file.attrs["title"] == "kept"
        assert file["x"].chunks == (10, 100)
    with pytest.raises(OutputExistsError, match=r"fast/a\.h5"):
        repack("s3://bkt/in/a.h5", "s3://bkt/fast", storage_options=options)
    (tmp_path / "b.h5").unlink()
    there = repack(tmp_path / "a.h5", "s3://bkt/from_disk", storage_options=options, chunk_rows=10)
    assert (read_all(there.paths, storage_options=options)["x"].ravel() == np.arange(60000)).all()
    back = repack("s3://bkt/in/a.h5", tmp_path / "back", storage_options=options)
    assert (read_all(back.paths)["x"].ravel() == np.arange(60000)).all()


def test_a_failed_upload_leaves_nothing(s3, options, tmp_path, monkeypatch):
    """Of a large file, parts are uploaded; when one fails, the others are given up."""
    monkeypatch.setattr(object_store, "_PART_BYTES", 5 << 20)
    path = tmp_path / "a.h5"
    path.write_bytes(bytes(12 << 20))
    storage = storage_for(options, ["s3://bkt/a.h5"])
    storage.put_file("s3://bkt/a.h5", str(path))
    assert s3.head_object(Bucket="bkt", Key="a.h5")["ContentLength"] == 12 << 20

    class Breaks:
        def __init__(self):
            self.left = 7 << 20

        def __enter__(self):
            return self

        def __exit__(self, *given):
            pass

        def read(self, n=-1):
            if self.left <= 0:
                raise OSError(5, "Input/output error")
            self.left -= (found := min(n, self.left)) if n > 0 else (found := self.left)
            return bytes(found)

    monkeypatch.setattr("builtins.open", lambda *_: Breaks())
    with pytest.raises((RayH5Error, OSError)):
        storage.put_file("s3://bkt/b.h5", str(path))
    monkeypatch.undo()
    assert keys(s3) == ["a.h5"]
    assert s3.list_multipart_uploads(Bucket="bkt").get("Uploads", []) == []


RUNS = ["runs/run_0.h5", "runs/run 1+#.h5", "runs/ü=%.h5"]


def test_an_epoch_of_a_glob(s3, options, tmp_path):
    for number, key in enumerate(RUNS):
        s3.upload_file(str(write_file(tmp_path / "a.h5", number * ROWS)), "bkt", key)
    batches = epoch_of("s3://bkt/runs/*.h5", None, storage_options=options)
    assert check_epoch(batches, len(RUNS) * ROWS) is None
    assert check_epoch(epoch_of("s3://bkt/", None, storage_options=options), len(RUNS) * ROWS) is None
    with pytest.raises(NotFoundError, match="bkt"):
        epoch_of("s3://bkt/runs/run_7.h5", None, storage_options=options)
    s3.upload_file(str(write_file(tmp_path / "a.h5", version=1)), "bkt", RUNS[0])
    assert isinstance(check_epoch(batches, len(RUNS) * ROWS), StaleIndexError)


def test_a_key_that_is_a_file_and_a_folder(s3, options):
    for key in ("x.h5", "run", "run/a.h5", "run/b.h5"):
        s3.put_object(Bucket="bkt", Key=key, Body=b"not read")
    urls = ["s3://bkt/*.h5", "s3://bkt/run"]
    for given in (urls, urls[::-1], urls[1:]):
        paths = find_files(given, storage=storage_for(options, given)).paths
        inside = ["s3://bkt/run/a.h5", "s3://bkt/run/b.h5"]
        assert paths == (inside if given == urls[1:] else [*inside, "s3://bkt/x.h5"])
