"""The page of ``ray-h5 inspect --html``."""

import re
from html.parser import HTMLParser

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5.cli import main
from ray_h5.columns.sparse_rows import Entries, SparseRow
from ray_h5.inspect.page import drawn, png
from tests.kit.files import save

HOSTILE = "<img src=x onerror=alert(1)>\"'&]]>"
EMPTY, CELLS = {"meta", "img", "rect", "polyline"}, {"td", "th", "li", "b"}


class Page(HTMLParser):
    """The elements of a page; fails unless they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.cells = [], [], [], []
        self.is_cell = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_startendtag(self, name, attributes):
        self.tags.append((name, dict(attributes)))

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in EMPTY:
            self.open.append(name)
        if name in CELLS:
            self.is_cell = True
            self.cells.append("")

    def handle_endtag(self, name):
        assert self.open.pop() == name
        self.is_cell = self.is_cell and name not in CELLS

    def handle_data(self, data):
        self.texts.append(data)
        if self.is_cell:
            self.cells[-1] += data


@pytest.fixture
def inspected(tmp_path, capsys):
    def run(*arguments):
        page = tmp_path / "report.html"
        status = main(["inspect", *map(str, arguments), "--html", str(page)])
        return status, page.read_text("utf-8"), capsys.readouterr().out

    return run


@pytest.fixture
def path(tmp_path):
    """Write a file with a column of each kind, and names and texts that are HTML."""
    path, rows = tmp_path / f"{HOSTILE.replace('/', '')}.h5", 300
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file[HOSTILE] = np.arange(rows)
        file["text"] = np.array([f"{HOSTILE}\x1b[31m {i}" for i in range(rows)], h5py.string_dtype())
        file["fixed"] = np.full(rows, b"<b>")
        file["flag"] = np.arange(rows) % 2 == 0
        file["complex"] = np.arange(rows) * 1j
        file["compound"] = np.zeros(rows, [("a", "f4"), ("b", "S3")])
        file["raw"] = np.zeros(rows, "V4")
        file["when"] = np.arange(rows).astype("M8[s]").astype(h5py.opaque_dtype("M8[s]"))
        file["kind"] = np.zeros(rows, h5py.enum_dtype({HOSTILE: 0}))
        file["signal"] = rng.random((rows, 900)).astype("f4")
        file["nothing"] = np.full((rows, 5), np.nan)
        file["matrix"] = rng.random((rows, 20, 30))
        file["volume"] = rng.random((rows, 2, 8, 8))
        file.create_dataset(
            "image", data=rng.integers(0, 255, (rows, 64, 64, 3), "u1"), chunks=(150, 64, 64, 3), compression=1
        )
        file.create_dataset("split", data=rng.random((rows, 40, 40)), chunks=(4, 20, 20))
        file.create_dataset("tiny", data=np.arange(rows), chunks=(1,))
        encoded = file.create_dataset("encoded", (rows,), h5py.vlen_dtype("u1"))
        ragged = file.create_dataset("ragged", (rows,), h5py.vlen_dtype("f4"))
        for i in range(rows):
            encoded[i] = np.frombuffer(png(np.zeros((3, 5, 3), np.uint8)), np.uint8)
            ragged[i] = np.arange(i % 7, dtype="f4")
    return path


def test_the_page_has_each_kind_of_column_and_asks_for_nothing(path, inspected):
    status, text, printed = inspected(path)
    assert status == 0
    page = Page(text)
    shown = "".join(page.texts)
    with h5py.File(path) as file:
        for name in file:
            assert name in page.cells, name  # in the tables, unescaped again by the parser
    assert "<script" not in text
    assert "\x1b" not in text
    # Nothing is asked for: no address but those of images that are in the page.
    addresses = [
        value for _, given in page.tags for key, value in given.items() if key in {"src", "href", "xlink:href"}
    ]
    assert addresses
    assert all(each.startswith("data:image/") for each in addresses)
    assert not re.search(r"https?:|url\(|@import", text)
    assert not [key for _, given in page.tags for key in given if key.startswith("on")]
    policies = [given.get("content", "") for name, given in page.tags if name == "meta"]
    assert any("default-src 'none'" in each for each in policies)
    for title in ("The call", "Advice", "Some rows", "Layout", "What a shuffle costs", "What a repack would give"):
        assert title in page.texts
    # What is printed is on the page, too.
    for line in printed[printed.index("Advice:") :].split("\n")[1:3]:
        assert line.strip() in shown
    assert sum(name == "polyline" for name, _ in page.tags) >= 5
    assert "prefers-color-scheme: dark" in text


def test_the_call_reads_what_was_inspected(path, inspected):
    _, text, _ = inspected(path, "--columns", "signal", "tiny", "--dtypes", "signal=float16")
    code = next(each for each in Page(text).texts if "torch_data.loader" in each)
    scope = {}
    exec(code, scope)
    batch = next(iter(scope["batches"]))
    assert {name: str(values.dtype) for name, values in batch.items()} == {
        "signal": "torch.float16",
        "tiny": "torch.int64",
    }


def test_the_call_has_row_kinds_windows_and_tables(tmp_path, inspected):
    path = save(tmp_path / "demos.h5", {f"data/demo_{i}/actions": np.arange(20.0).reshape(10, 2) + i for i in range(3)})
    (tmp_path / "t.csv").write_text("path,site\ndemos.h5,4\n")
    given = ["--groups", "data/demo_*", "--windows", "actions=0:4", "--key", "demo"]
    _, text, _ = inspected(path, *given, "--sidecar", tmp_path / "t.csv", "path")
    code = next(each for each in Page(text).texts if "torch_data.loader" in each)
    scope = {"ray_h5": ray_h5}
    exec(code, scope)
    batch = next(iter(scope["batches"]))
    assert batch["actions"].shape[1:] == (4, 2)
    assert set(batch["site"].tolist()) == {4}
    assert "missing=" not in code  # defaults are left out


def test_files_that_are_refused_have_a_page(tmp_path, inspected):
    path = save(tmp_path / "a.h5", {"a": np.arange(3), "b": np.arange(4)})
    status, text, printed = inspected(path)
    assert status == 0  # a call is shown that reads one of them
    page = Page(text)
    assert "read_h5 refuses this" in page.texts
    assert "read_h5(\n" not in text
    assert printed.strip().split("\n")[-1].strip()[:60] in "".join(page.texts)


def test_rows_that_cannot_be_read_are_errors_in_their_cells(tmp_path, inspected):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("good", data=np.arange(10.0))
        file.create_dataset("bad", data=np.zeros((10, 100)), chunks=(5, 100), compression="gzip")
        offset = file["bad"].id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 8)
    status, text, _ = inspected(path)
    page = Page(text)
    assert status == 0
    assert any("Error" in cell and "bad" in cell for cell in page.cells)
    assert "9.0" in page.cells  # the last row of the good one


def test_rows_of_classes_are_shown_as_numbers(tmp_path, inspected):
    path = save(tmp_path / "a.h5", {"kind": np.array([b"dog", b"cat", b"dog"], object)})
    status, page, _ = inspected(path, "--labels", "kind=auto")
    assert status == 0
    assert "StaleIndexError" not in page
    assert "0=cat, 1=dog" in page


def test_a_page_replaces_no_file_that_is_read(path, capsys):
    before = path.read_bytes()
    assert main(["inspect", str(path), "--html", str(path)]) == 1
    assert "OptionError: --html" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_what_a_repack_would_give_is_what_it_gives(path, inspected, tmp_path):
    _, text, _ = inspected(path)
    page = Page(text)
    start = page.cells.index("decoded for a row")
    line = page.cells[page.cells.index("image", start) :]
    ray_h5.repack(str(path), str(tmp_path / "out.h5"), measure=False)
    with h5py.File(tmp_path / "out.h5") as file:
        assert line[1:3] == ["150", f"{file['image'].chunks[0]:,}"]
        unchanged = [name for name in file if file[name].chunks and name not in page.cells[start:]]
        with h5py.File(path) as before:
            assert all(file[name].chunks == before[name].chunks for name in unchanged)


def test_layouts_fill_the_chunks_of_one_row(path, inspected):
    page = Page(inspected(path, "--columns", "split")[1])
    boxes = [given.get("class") for name, given in page.tags if name == "rect"]
    assert (len(boxes), boxes.count("read")) == (4 * 12, 4)


@pytest.mark.parametrize(
    "value",
    [np.zeros((0, 3)), np.zeros((3, 0, 2)), np.array([], object), np.array([None, "<b>"], object), b"<i>", "<i>", None,
     np.float64("nan"), np.array([np.inf, -np.inf]), np.full((4, 4), np.nan), np.zeros((2, 2, 2, 2, 2)),
     np.void(b"<i>"), np.datetime64("2024-01-01"), SparseRow(Entries(np.array([3, 1]), np.array([1.0, np.nan])), 0, 2),
     SparseRow(Entries(np.array([], int), np.array([])), 0, 0)],
    ids=repr,
)  # fmt: skip
def test_every_value_is_drawn_or_written(value):
    with np.errstate(all="raise"):
        assert drawn(value).text
