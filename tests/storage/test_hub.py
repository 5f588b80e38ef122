"""``hf://``: files of the Hugging Face Hub, on a server that answers as the Hub does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

import h5py
import numpy as np
import pytest

from ray_h5.errors import NotFoundError, NotReadableError, OptionError, ReadFailedError, StaleIndexError
from ray_h5.index.file_options import FileOptions
from ray_h5.storage.hub import token_for
from ray_h5.torch_data import H5Dataset, H5LazyDataset, RowReader, Sidecar
from tests.kit.fault_server import FaultServer

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
                headers, body = {}, b""
                if "/gated/" in self.path and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.send_response(401)
                    self.send_header("X-Error-Code", "GatedRepo")
                elif "/resolve/" in self.path:
                    self.send_response(302)
                    self.send_header("ETag", '"of-the-pointer"')
                    self.send_header("X-Linked-ETag", '"sha256-of-the-file"')
                    self.send_header("X-Linked-Size", "1")
                    self.send_header("X-Repo-Commit", "abc")
                    name = quote(unquote(self.path.rpartition("/")[2]))
                    self.send_header("Location", f"{hub.cdn.url.replace('127.0.0.1', 'localhost')}/lfs/{name}?sig=s")
                elif self.path.startswith("/api/datasets/owner/"):
                    status, headers, body = hub.tree(self.path)
                    self.send_response(status)
                else:
                    self.send_response(404)
                for name, value in {**headers, "Content-Length": len(body)}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = answer  # noqa: N815

            def log_message(self, *_):
                pass

        self.files, self.failures = ["a.h5"], []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def tree(self, path):
        """Answer for `files`, two a page, or with the next failure."""
        if self.failures:
            status, headers = self.failures.pop(0)
            return status, headers, b""
        asked = urlsplit(path)
        below = asked.path.partition("/tree/main")[2].strip("/")
        assert "recursive=true" in asked.query.lower()
        files = [each for each in self.files if each.startswith(f"{below}/" if below else "")]
        if below and not files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        start = int(parse_qs(asked.query).get("cursor", ["0"])[0])
        entries = [{"type": "file", "path": each, "size": 1, "oid": "x"} for each in files[start : start + 2]]
        entries += [{"type": "directory", "path": "folder.h5", "oid": "x"}]
        link = f'<{self.url}{asked.path}?recursive=true&cursor={start + 2}>; rel="next"'
        return 200, {"Link": link} if start + 2 < len(files) else {}, json.dumps(entries).encode()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "lfs").mkdir()
    for name in ("a.h5", "b.h5", "c 1.h5"):
        write(tmp_path / "lfs" / name)
    (tmp_path / "lfs" / "labels.csv").write_text("label\n" + "".join(f"{i}\n" for i in range(50)))
    with FaultServer(tmp_path) as cdn:
        made = Hub(cdn)
        thread = threading.Thread(target=made.server.serve_forever, args=(0.01,), daemon=True)  # it ends at once
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


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *(("", name) for name in ("a[1].h5", "a|b^c.h5", "{a}`b.h5", "a%20b#c.h5", "a?b.h5", "é+&=;@.h5")),
        ("data [x]/", "a[1].h5"),
        ("data [x]/", "a?b.h5"),
    ],
)
def test_a_name_with_any_characters_is_redirected_too(name, folder, hub, tmp_path):
    write(tmp_path / "lfs" / name, first=1.0)
    hub.files = [f"{folder}a1.h5", f"{folder}{name}"]
    url = f"hf://datasets/owner/name/{folder}{name}"
    dataset = H5Dataset(url, ["x"], **OPTIONS)
    assert np.array_equal(dataset[[3, 49]].x, ROWS[[3, 49]] + 1)
    with RowReader(url, **OPTIONS) as reader:
        assert np.array_equal(reader.read(["x"], [7])["x"], ROWS[[7]] + 1)
    with RowReader(f"{hub.url}/datasets/owner/name/resolve/main/{quote(folder + name)}", **OPTIONS) as reader:
        assert np.array_equal(reader.read(["x"], [8])["x"], ROWS[[8]] + 1)


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


FILES = ["a.h5", "b.h5", "data/a.h5", "data/b.h5", "data/c 1.h5", "data/deep/a.h5", "data/.hidden.h5", "notes.md"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ["a.h5", "b.h5", "data/a.h5", "data/b.h5", "data/c 1.h5", "data/deep/a.h5"]),
        ("/", ["a.h5", "b.h5", "data/a.h5", "data/b.h5", "data/c 1.h5", "data/deep/a.h5"]),
        ("/*.h5", ["a.h5", "b.h5"]),
        ("/data/", ["data/a.h5", "data/b.h5", "data/c 1.h5", "data/deep/a.h5"]),
        ("/data/[ab].h5", ["data/a.h5", "data/b.h5"]),
        ("/data/?.h5", ["data/a.h5", "data/b.h5"]),
        ("/**/a.h5", ["a.h5", "data/a.h5", "data/deep/a.h5"]),
    ],
)
def test_folders_and_globs_are_listed_page_by_page(path, expected, hub):
    hub.files = FILES
    found = FileOptions.of(f"hf://datasets/owner/name{path}", **OPTIONS)
    base = f"{hub.url}/datasets/owner/name/resolve/main/"
    assert found.paths == [base + quote(each) for each in expected]
    assert all(found.states[each].etag for each in found.paths)
    listed = len([each for each in FILES if each.startswith("data/")]) if path.startswith("/data") else len(FILES)
    assert len([1 for _, asked, _ in hub.asked if asked.startswith("/api/datasets/")]) == -(-listed // 2)


def test_the_rows_of_a_glob(hub):
    hub.files = FILES
    dataset = H5Dataset("hf://datasets/owner/name/data/*.h5", ["x"], **OPTIONS)
    assert len(dataset) == 150
    assert np.array_equal(dataset[149].x, ROWS[49])


@pytest.mark.parametrize(
    ("path", "failure", "error", "said"),
    [
        ("name/*.nc", None, NotFoundError, "a glob that matches nothing"),
        ("name/none/", None, NotFoundError, "the folder is empty"),
        ("name/none/*.h5", None, NotFoundError, "a glob that matches nothing"),
        ("gated/*.h5", None, NotReadableError, "HF_TOKEN"),
        ("name/*.h5", (404, {"X-Error-Code": "RevisionNotFound"}), NotFoundError, "no branch, tag or commit"),
        ("name/*.h5", (418, {}), ReadFailedError, "418"),
    ],
)
def test_what_is_not_listed_is_an_error_that_says_why(path, failure, error, said, hub):
    hub.failures = [failure] if failure else []
    with pytest.raises(error, match=said):
        FileOptions.of(f"hf://datasets/owner/{path}", **OPTIONS)


@pytest.mark.parametrize("url", ["hf://datasets/a.h5", "hf://o", "hf://datasets/o/*/a.h5"])
def test_urls_that_name_no_repository(url):
    with pytest.raises(OptionError, match="hf://datasets/owner/name/"):
        FileOptions.of(url)


def test_a_reader_of_one_file_takes_no_glob():
    with pytest.raises(OptionError, match="expected one file"):
        RowReader("hf://datasets/o/n/*.h5")
