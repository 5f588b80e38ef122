"""``hf://``: files of the Hugging Face Hub, on a server that answers as the Hub does."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.bench.server import FaultServer
from ray_h5.errors import NotFoundError, NotReadableError, OptionError, StaleIndexError
from ray_h5.storage.addresses import on_hub
from ray_h5.storage.hub import token_for
from ray_h5.torch_data import H5Dataset, H5LazyDataset, Sidecar

pytest.importorskip("obstore")

TOKEN = "hf_canary"
ROWS = np.arange(600.0).reshape(50, 12)
OPTIONS = {"storage_options": {"allow_http": True, "max_retries": 1}}


class Hub:
    """A Hub that redirects to another host, as for large files; and that host."""

    def __init__(self, cdn):
        self.cdn, self.asked, hub = cdn, [], self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                hub.asked.append((self.command, self.path, self.headers.get("Authorization")))
                if "/gated/" in self.path and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.send_response(401)
                    self.send_header("X-Error-Code", "GatedRepo")
                elif "/resolve/" in self.path:
                    self.send_response(302)
                    self.send_header("ETag", '"of-the-pointer"')
                    self.send_header("X-Linked-ETag", '"sha256-of-the-file"')
                    self.send_header("X-Linked-Size", "1")
                    self.send_header("X-Repo-Commit", "abc")
                    name = self.path.rpartition("/")[2]
                    self.send_header("Location", f"{hub.cdn.url.replace('127.0.0.1', 'localhost')}/lfs/{name}?sig=s")
                else:
                    self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = answer  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "lfs").mkdir()
    write(tmp_path / "lfs" / "a.h5")
    (tmp_path / "lfs" / "labels.csv").write_text("label\n" + "".join(f"{i}\n" for i in range(50)))
    with FaultServer(tmp_path) as cdn:
        made = Hub(cdn)
        thread = threading.Thread(target=made.server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def write(path, first=0.0):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=ROWS + first, chunks=(5, 12))
        file["label"] = np.arange(50)


def test_a_file_is_read_where_the_hub_redirects_to(hub):
    dataset = H5Dataset("hf://datasets/owner/name/data/a.h5", ["x"], **OPTIONS)
    assert np.array_equal(dataset[[3, 49]].x, ROWS[[3, 49]])
    assert {path for _, path, _ in hub.asked} == {"/datasets/owner/name/resolve/main/data/a.h5"}
    with RowReader("hf://datasets/owner/name@v1/a.h5", **OPTIONS) as reader:
        assert np.array_equal(reader.read(["x"], [7])["x"], ROWS[[7]])
    assert hub.asked[-1][1] == "/datasets/owner/name/resolve/v1/a.h5"
    pairs = H5LazyDataset("hf://owner/name/a.h5", "x", "label", **OPTIONS)
    assert pairs[2][1] == 2
    assert hub.asked[-1][1] == "/owner/name/resolve/main/a.h5"


@pytest.mark.usefixtures("hub")
def test_a_table_is_read_from_the_hub():
    table = Sidecar("hf://datasets/owner/name/labels.csv", on="row_id", prefix="table/")
    dataset = H5Dataset("hf://datasets/owner/name/a.h5", ["table/label"], sidecar=table, **OPTIONS)
    assert dataset[7]["table/label"] == 7


def test_the_token_reaches_the_hub_alone(hub, monkeypatch):
    url = "hf://datasets/owner/gated/a.h5"
    with pytest.raises(NotReadableError, match="HF_TOKEN"):
        H5Dataset(url, **OPTIONS)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert H5Dataset(url, ["x"], **OPTIONS)[1].x[0] == 12
    assert hub.asked[-1][2] == f"Bearer {TOKEN}"
    assert hub.cdn.requests()
    assert not any(TOKEN in repr((each.headers, each.query)) for each in hub.cdn.requests())
    assert token_for("https://example.org") == ""
    assert token_for(hub.url) == TOKEN
    given = {"storage_options": {**OPTIONS["storage_options"], "default_headers": {"Authorization": "Bearer other"}}}
    with pytest.raises(NotReadableError):  # what is given here comes before the environment
        H5Dataset(url, **given)


@pytest.mark.usefixtures("hub")
def test_a_file_that_changes_is_noticed(tmp_path):
    dataset = H5Dataset("hf://datasets/owner/name/a.h5", ["x"], **OPTIONS)
    write(tmp_path / "lfs" / "a.h5", first=1.0)
    with pytest.raises(StaleIndexError, match=r"resolve/main/a\.h5"):
        dataset[40]


@pytest.mark.usefixtures("hub")
def test_a_file_that_is_not_there():
    with pytest.raises(NotFoundError, match=r"resolve/main/none\.h5"):
        H5Dataset("hf://datasets/owner/name/none.h5", **OPTIONS)


@pytest.mark.parametrize("url", ["hf://datasets/a.h5", "hf://datasets/o/n/", "hf://datasets/o/n/*.h5", "hf://o/n"])
def test_urls_that_name_no_file(url):
    with pytest.raises(OptionError, match="hf://datasets/owner/name/"):
        H5Dataset(url)


def test_urls(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert on_hub("hf://datasets/o/n/a b#.h5") == "https://huggingface.co/datasets/o/n/resolve/main/a%20b%23.h5"
    assert on_hub("HF://o/n@refs%2Fpr%2F1/x/a.h5") == "https://huggingface.co/o/n/resolve/refs%2Fpr%2F1/x/a.h5"
    assert on_hub("s3://o/n/a.h5") == "s3://o/n/a.h5"
