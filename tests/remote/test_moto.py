"""A second opinion on the dialect of S3: the server of moto."""

import logging

import pytest

from ray_h5.errors import NotFoundError, StaleIndexError
from tests.remote.kit import QUICK, ROWS, check_epoch, epoch_of, write

moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3,server]'")
boto3 = pytest.importorskip("boto3")
KEYS = ["runs/run_0.h5", "runs/run 1+#.h5", "runs/ü=%.h5"]


@pytest.fixture
def endpoint():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    # It would look for credentials elsewhere.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="bkt")
    return client


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_epoch_of_a_glob(s3, endpoint, tmp_path):
    for number, key in enumerate(KEYS):
        s3.upload_file(str(write(tmp_path / "a.h5", number * ROWS)), "bkt", key)
    options = {
        "endpoint": endpoint, "region": "us-east-1", "allow_http": True, "access_key_id": "testing",
        "secret_access_key": "testing", **QUICK,
    }  # fmt: skip
    batches = epoch_of("s3://bkt/runs/*.h5", None, storage_options=options)
    assert check_epoch(batches, len(KEYS) * ROWS) is None
    assert check_epoch(epoch_of("s3://bkt/", None, storage_options=options), len(KEYS) * ROWS) is None
    with pytest.raises(NotFoundError, match="bkt"):
        epoch_of("s3://bkt/runs/run_7.h5", None, storage_options=options)
    s3.upload_file(str(write(tmp_path / "a.h5", version=1)), "bkt", KEYS[0])
    assert isinstance(check_epoch(batches, len(KEYS) * ROWS), StaleIndexError)
