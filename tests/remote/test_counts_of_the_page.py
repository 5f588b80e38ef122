"""How many requests things take in a store, as docs/object-stores.md says; a server counts them."""

import re
import shutil

import h5py
import numpy as np
import pytest

from ray_h5.index.file_options import FileOptions
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.storage.stores.options import StoreOptions
from ray_h5.torch_data import H5Dataset
from tests.docs.pages import text_of
from tests.kit.stores import forget_files
from tests.remote.kit import check_epoch, epoch_of, options_of, write

pytestmark = pytest.mark.usefixtures("nothing_stays")

FILES = 3
PADDING = 8 << 20
"""Bytes of data that make a file too large to be fetched as a whole."""


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


LISTED = 1000
"""Files of a listing."""


def test_planning_takes_a_listing_for_each_thousand_files(bucket, server):
    for number in range(LISTED + 1):
        (bucket / f"{number}.h5").write_bytes(b"x")
    assert len(FileOptions.of("s3://bkt/*.h5", storage_options=options_of(server)).paths) == LISTED + 1
    assert counts(server) == (2, 0, 0)


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"fs_strategy": "page", "fs_page_size": 1 << 20}])
def test_a_file_whose_metadata_lies_together_is_planned_with_three_requests_at_most(options, bucket, server):
    files_with(bucket, **options)
    H5Dataset("s3://bkt/*.h5", storage_options=options_of(server))
    listed, states, planned = counts(server)
    assert (listed, states) == (1, 0)
    assert FILES <= planned <= (2 if "fs_strategy" in options else 3) * FILES
    forget_files()
    H5Dataset([f"s3://bkt/run_{number}.h5" for number in range(FILES)], storage_options=options_of(server))
    assert counts(server) == (0, FILES, planned)


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "read_timeout", "max_retries", "retry_timeout"])
def test_the_limits_of_requests_are_those_of_the_code(name):
    (number,) = re.findall(rf"`{name}` \((\d+)", " ".join(text_of("docs/object-stores.md").split()))
    found = StoreOptions.of({}).for_store("s3")
    value = {**found["client_options"], **found["retry_config"]}[name]
    assert float(number) == (
        float(str(value).removesuffix("s")) if isinstance(value, (str, int)) else value.total_seconds()
    )


def test_an_index_in_the_store_takes_a_listing_and_a_request_for_all_files(bucket, server, tmp_path):
    files_with(bucket)
    options = {"storage_options": options_of(server)}
    H5Dataset("s3://bkt/*.h5", index_dir=tmp_path / "index", **options)
    shutil.copytree(tmp_path / "index", bucket / "index")
    MEMORY.clear()
    server.forget()
    H5Dataset("s3://bkt/*.h5", index_dir="s3://bkt/index/", **options)
    asked = [request for request in server.requests() if not request.is_listing]
    assert len(server.requests()) - len(asked) == 2  # of the files, and of the index
    assert len(asked) == 1
    assert not any(request.path.endswith(".h5") for request in asked)


def test_an_epoch_from_the_cache_makes_no_requests(bucket, server, tmp_path):
    write(bucket / "a.h5", rows=120)
    batches = epoch_of("s3://bkt/a.h5", server, cache_dir=tmp_path / "cache", cache_bytes="1GB")
    check_epoch(batches, 120)
    server.forget()
    check_epoch(batches, 120)
    assert server.requests() == []
