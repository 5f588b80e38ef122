"""Files in a store whose bytes stay on a local disk."""

import os
from pathlib import Path

import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import OptionError, RayH5Error
from ray_h5.torch_data import H5Dataset
from tests.remote.kit import ROWS, check_epoch, epoch_of, options_of, values_of, write

pytestmark = pytest.mark.usefixtures("files")

URL = "s3://bkt/*.h5"
ALL = 2 * ROWS


@pytest.fixture
def cached(tmp_path):
    return {"cache_dir": tmp_path / "nvme", "cache_bytes": "1GB"}


def test_a_second_epoch_makes_no_requests_for_data(server, cached):
    options = options_of(server, **cached)
    batches = epoch_of(URL, server, storage_options=options)
    assert check_epoch(batches, ALL) is None
    server.forget()
    assert check_epoch(batches, ALL) is None
    assert server.requests() == []
    # Nor does another run, which looks at the states of the files by one listing.
    assert check_epoch(epoch_of(URL, server, storage_options=options), ALL) is None
    assert [each.is_listing for each in server.requests(method="LIST")] == [True]
    assert not any(each.nbytes for each in server.requests(method="GET"))


def test_a_file_that_is_written_again_is_read_again(server, cached, bucket):
    options = options_of(server, **cached)
    batches = epoch_of(URL, server, storage_options=options)
    assert check_epoch(batches, ALL) is None
    for number in range(2):
        write(bucket / f"run_{number}.h5", number * ROWS, version=1)
    # This plan is of the old state, of which all bytes are there.
    assert check_epoch(batches, ALL) is None
    assert check_epoch(epoch_of(URL, server, storage_options=options), ALL, version=1) is None
    with RowReader("s3://bkt/run_0.h5", storage_options=options) as reader:
        np.testing.assert_array_equal(reader.read(["x"])["x"], values_of(range(ROWS), 1))


def test_a_store_that_fails_fills_the_cache_with_nothing_wrong(server, cached):
    options = options_of(server, max_retries=0, **cached)
    for kind in ("cut", "reset", "wrong_range", "short", "ignore_range", "chunked", "new_etag"):
        batches = epoch_of(URL, server, storage_options=options)
        server.fail(kind, method="GET", share=0.5)
        check_epoch(batches, ALL)
        server.heal()
    assert check_epoch(epoch_of(URL, server, storage_options=options), ALL) is None


def test_nothing_secret_is_on_the_disk(server, cached):
    canary = "CANARYSECRETCANARY"
    options = {**options_of(server, **cached), "secret_access_key": canary, "access_key_id": canary, "token": canary}
    del options["skip_signature"]
    assert check_epoch(epoch_of(URL, server, storage_options=options), ALL) is None
    assert all("authorization" in each.headers for each in server.requests())
    for folder, _, names in os.walk(cached["cache_dir"]):
        for name in names:
            assert canary not in name
            assert canary.encode() not in Path(folder, name).read_bytes()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cache_dir": "/nvme"}, "the cache needs both"),
        ({"cache_bytes": 10}, "the cache needs both"),
        ({"cache_dir": "s3://bkt/cache", "cache_bytes": 10}, "cache_dir='s3://bkt/cache'.*found a URL"),
        ({"cache_dir": 3, "cache_bytes": 10}, "cache_dir=3: expected a folder"),
        ({"cache_dir": "", "cache_bytes": 10}, "cache_dir='': expected a folder"),
        ({"cache_dir": "/nvme", "cache_bytes": "200 apples"}, "cache_bytes='200 apples': expected a number of bytes"),
        ({"cache_dir": "/nvme", "cache_bytes": 0}, "cache_bytes=0: expected"),
        ({"cache_dir": "/dev/null/x", "cache_bytes": "1GB"}, "cache_dir='/dev/null/x': the folder cannot be made"),
        ({"cache_dirs": "/nvme"}, "cache_dir"),
    ],
)
def test_options_that_cannot_be_used(server, given, message):
    with pytest.raises((OptionError, RayH5Error), match=message):
        H5Dataset(URL, storage_options=options_of(server, **given))


def test_it_is_given_by_keywords_or_in_storage_options(server, tmp_path, cached):
    nvme = {"cache_dir": str(tmp_path / "nvme"), "cache_bytes": "1GB"}
    dataset = H5Dataset(URL, columns=["id"], storage_options=options_of(server), **nvme)
    assert [int(dataset[row]["id"]) for row in range(ALL)] == list(range(ALL))
    assert check_epoch(epoch_of(URL, server, **nvme), ALL) is None
    server.forget()
    assert check_epoch(epoch_of(URL, server, storage_options=options_of(server, **cached)), ALL) is None
    assert not any(each.nbytes for each in server.requests(method="GET"))
    with pytest.raises(OptionError, match="cache_dir, cache_bytes: in storage_options, too"):
        H5Dataset(URL, storage_options=options_of(server, **cached), **nvme)
    with pytest.raises(OptionError, match="they are for files in stores"):
        H5Dataset(str(tmp_path / "bkt"), **nvme)
