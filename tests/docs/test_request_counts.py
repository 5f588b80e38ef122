"""Where a page says how many requests something takes, a server counts them."""

import re
import shutil

import h5py
import numpy as np
import pytest

from ray_h5.index.file_options import FileOptions
from ray_h5.index.stored.memory import MEMORY
from ray_h5.read.open_files import forget_all
from ray_h5.storage.stores.options import StoreOptions
from ray_h5.torch_data import H5Dataset
from tests.docs.pages import text_of
from tests.kit.fault_server import FaultServer
from tests.remote.kit import check_epoch, epoch_of, options_of, write

pytest.importorskip("obstore")

WORDS = {"no": 0, "a": 1, "one": 1, "two": 2, "three": 3}
FILES = 3
PADDING = 8 << 20
"""Bytes of data that make a file too large to be fetched as a whole."""


@pytest.fixture(autouse=True)
def nothing_stays():
    forget_all()
    MEMORY.clear()
    yield
    forget_all()
    MEMORY.clear()


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bkt").mkdir()
    return tmp_path / "bkt"


@pytest.fixture
def server(tmp_path, bucket):  # noqa: ARG001  the folder is served
    with FaultServer(tmp_path) as server:
        yield server


def said(page, pattern):
    """Return the numbers that a page says, in digits or as words."""
    (found,) = re.findall(pattern, " ".join(text_of(page).split()))
    return [WORDS[each] if each in WORDS else int(each) for each in ([found] if isinstance(found, str) else found)]


def files_with(bucket, **options):
    """Write files whose metadata lies together; `options` are those of `h5py.File`."""
    for number in range(FILES):
        with h5py.File(bucket / f"run_{number}.h5", "w", **options) as file:
            for name in ("x", "deep/y"):
                file.create_dataset(name, data=np.arange(400.0).reshape(40, 10), chunks=(4, 10), compression="gzip")
            file["padding"] = np.zeros((40, PADDING // 40), np.uint8)


def counts(server):
    """Return how many listings there were, requests for states of files, and requests for bytes; and forget them."""
    asked = server.requests()
    server.forget()
    listings = sum(each.is_listing for each in asked)
    states = sum(each.method == "HEAD" for each in asked)
    return listings, states, len(asked) - listings - states


PAGE = "docs/object-stores.md"
PLANNING = (
    r"takes (\w+) listing for each (\d+) files, or (\w+) request for each file that is named itself, and "
    r"(\w+) to (\w+) requests a file if its metadata lies together"
)


def test_planning_takes_a_listing_for_each_thousand_files(bucket, server):
    listings, files, *_ = said(PAGE, PLANNING)
    for number in range(files + 1):
        (bucket / f"{number}.h5").write_bytes(b"x")
    assert len(FileOptions.of("s3://bkt/*.h5", storage_options=options_of(server)).paths) == files + 1
    assert counts(server) == (2 * listings, 0, 0)


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"fs_strategy": "page", "fs_page_size": 1 << 20}])
def test_a_file_is_planned_with_the_requests_that_a_page_says(options, bucket, server):
    listings, _, each, least, most = said(PAGE, PLANNING)
    files_with(bucket, **options)
    H5Dataset("s3://bkt/*.h5", storage_options=options_of(server))
    listed, states, planned = counts(server)
    assert (listed, states) == (listings, 0)
    assert least * FILES <= planned <= most * FILES
    forget_all()
    MEMORY.clear()
    H5Dataset([f"s3://bkt/run_{number}.h5" for number in range(FILES)], storage_options=options_of(server))
    assert counts(server) == (0, each * FILES, planned)


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        (PAGE, r"Such a file opens with (\w+) or (\w+) requests"),
        (PAGE, r"each costs (\w+) request or (\w+) to open"),
    ],
)
def test_a_file_of_pages_opens_with_the_requests_that_a_page_says(page, pattern, bucket, server):
    *least, most = said(page, pattern)
    files_with(bucket, fs_strategy="page", fs_page_size=1 << 20)
    H5Dataset("s3://bkt/*.h5", storage_options=options_of(server))
    assert min(least, default=1) * FILES <= counts(server)[2] <= most * FILES


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        (PAGE, r"in the store, too: then each file costs (\w+) requests, whatever its layout is"),
        (
            "docs/choosing-rows.md",
            r"It is only read there, (\w+) requests a file, and then (\w+) file is opened to plan",
        ),
    ],
)
def test_an_index_in_the_store_takes_the_requests_that_a_page_says(page, pattern, bucket, server, tmp_path):
    each, *opened = said(page, pattern)
    files_with(bucket)
    given = {"storage_options": options_of(server)}
    H5Dataset("s3://bkt/*.h5", index_dir=tmp_path / "index", **given)
    shutil.copytree(tmp_path / "index", bucket / "index")
    MEMORY.clear()
    server.forget()
    H5Dataset("s3://bkt/*.h5", index_dir="s3://bkt/index/", **given)
    asked = [request for request in server.requests() if not request.is_listing]
    assert len(asked) == each * FILES
    assert sum(request.path.endswith(".h5") for request in asked) == sum(opened)


def test_an_epoch_from_the_cache_makes_the_requests_that_a_page_says(bucket, server, tmp_path):
    (requests,) = said(PAGE, r"An epoch of which all bytes are there makes (\w+) requests")
    write(bucket / "a.h5", rows=120)
    batches = epoch_of("s3://bkt/a.h5", server, cache_dir=tmp_path / "cache", cache_bytes="1GB")
    check_epoch(batches, 120)
    server.forget()
    check_epoch(batches, 120)
    assert len(server.requests()) == requests


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "read_timeout", "max_retries", "retry_timeout"])
def test_the_limits_of_requests_are_those_of_the_code(name):
    (number,) = said(PAGE, rf"[ (]`{name}`\s\((\d+)")
    options = StoreOptions.of({})
    found = options.for_store("s3")
    limits = {**found["client_options"], **found["retry_config"]}
    value = limits[name]
    assert float(str(value).removesuffix("s")) == number if isinstance(value, (str, int)) else value.seconds == number
