"""How many requests things take in a store, as docs/object-stores.md says; a server counts them."""

import re

import h5py
import numpy as np
import pytest

from ray_h5.index.file_options import FileOptions
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.read.file_cache import forget_all
from ray_h5.storage.stores.options import StoreOptions
from ray_h5.torch_data import H5Dataset
from tests.docs.pages import text_of
from tests.remote.kit import options_of

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
    forget_all()
    MEMORY.clear()
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
