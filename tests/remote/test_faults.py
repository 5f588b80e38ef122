"""Whatever a store does, each row of an epoch comes once and right, or there is an error with a name."""

import os
import shutil
import threading
import time

import numpy as np
import pytest

from ray_h5.errors import NotReadableError, OptionError, RayH5Error, ReadFailedError, StaleIndexError
from ray_h5.torch_data import H5Dataset
from tests.remote.kit import ROWS, check_epoch, epoch_of, options_of, write

URL = "s3://bkt/*.h5"
ALL = 2 * ROWS


def some_of(server, kind, **options):
    """Let requests for data fail from now on, but not those that plan."""
    server.fail(kind, method="GET", **options)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("status", {"status": 503, "share": 0.05}),
        ("status", {"status": 429, "share": 0.05}),
        ("status", {"status": 500, "share": 0.05}),
        ("cut", {"share": 0.05}),
        ("cut", {"share": 0.05, "at": 0.0}),
        ("reset", {"share": 0.05}),
        ("stall", {"times": 2, "after": 3}),
        ("stall_body", {"times": 2, "after": 3}),
        ("slow", {"times": 2, "after": 3, "rate": 1e6}),
    ],
)
def test_faults_that_pass_are_not_seen(server, kind, options):
    batches = epoch_of(URL, server)
    some_of(server, kind, **options)
    assert check_epoch(batches, ALL) is None
    assert check_epoch(batches, ALL) is None
    assert any(kind in each.faults for each in server.requests())


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("ignore_range", RayH5Error),
        ("wrong_range", RayH5Error),
        ("short", RayH5Error),
        ("chunked", RayH5Error),
        ("no_etag", StaleIndexError),
        ("weak_etag", StaleIndexError),
        ("new_etag", StaleIndexError),
        ("status", ReadFailedError),
    ],
)
def test_answers_that_cannot_be_used_are_errors(server, kind, error):
    batches = epoch_of(URL, server)
    some_of(server, kind, **({"status": 400} if kind == "status" else {}))
    found = check_epoch(batches, ALL)
    assert isinstance(found, error), found
    assert "s3://bkt/run_" in str(found)
    server.heal()
    assert check_epoch(batches, ALL) is None


@pytest.mark.slow
def test_files_that_change_at_40_moments(server, bucket):
    """The file is replaced before a request of an epoch, each time another one: never a row of the new file."""
    random, errors = np.random.default_rng(0), []
    old, new = (write(bucket.parent / f"{version}.h5", 0, 24, version, apart=100_000) for version in (0, 1))
    for turn in range(41):
        _replace(old, bucket / "a.h5")
        batches = epoch_of("s3://bkt/a.h5", server, batch_size=2)
        if not turn:
            server.forget()
            assert check_epoch(batches, 24) is None
            assert len(server.requests()) >= 24
            continue
        server.before_answer = _Change(int(random.integers(0, 20)), new, bucket / "a.h5")
        errors.append(check_epoch(batches, 24))
        server.before_answer = None
    assert [type(each) for each in errors] == [StaleIndexError] * 40
    assert {"s3://bkt/a.h5" in str(each) for each in errors} == {True}


class _Change:
    """Replaces a file before a request."""

    def __init__(self, moment, new, path):
        self.left, self.new, self.path, self.lock = moment, new, path, threading.Lock()

    def __call__(self, _):
        with self.lock:
            self.left -= 1
            if self.left == -1:
                _replace(self.new, self.path)


def _replace(source, path):
    shutil.copy(source, path.with_suffix(".part")).replace(path)


@pytest.mark.usefixtures("files")
def test_a_server_that_ignores_if_match(server, bucket):
    batches = epoch_of(URL, server)
    server.fail("ignore_if_match")
    assert check_epoch(batches, ALL) is None
    write(bucket / "run_1.h5", ROWS, version=1)
    assert isinstance(check_epoch(batches, ALL), StaleIndexError)


@pytest.mark.usefixtures("files")
def test_a_server_that_dies_and_comes_back(server):
    batches = epoch_of(URL, server)
    answered = []

    def die(request):
        answered.append(request)
        if len(answered) == 5:
            server.stop()
            threading.Timer(0.1, server.start).start()

    server.before_answer = die
    error = check_epoch(batches, ALL)
    assert error is None or "s3://bkt/run_" in str(error)
    time.sleep(0.2)
    assert check_epoch(batches, ALL) is None


@pytest.mark.usefixtures("files")
def test_a_server_that_stays_away(server):
    batches = epoch_of(URL, server, storage_options=options_of(server, max_retries=1))
    server.stop()
    begin = time.monotonic()
    error = check_epoch(batches, ALL)
    assert isinstance(error, RayH5Error)
    assert "s3://bkt/run_" in str(error)
    assert time.monotonic() - begin < 5
    with pytest.raises(RayH5Error, match="bkt"):
        H5Dataset(URL, storage_options=options_of(server, max_retries=1))


@pytest.mark.usefixtures("files")
def test_retries_are_not_multiplied(server):
    batches = epoch_of("s3://bkt/run_0.h5", server, storage_options=options_of(server, max_retries=2))
    server.forget()
    some_of(server, "status", status=503)
    assert check_epoch(batches, ROWS) is not None
    # Each range is asked for once, and twice again.
    by_range = [each.range for each in server.requests()]
    assert max(by_range.count(each) for each in by_range) == 3


@pytest.mark.usefixtures("files")
def test_clock_skew(server):
    server.clock_skew = -86400.0
    assert check_epoch(epoch_of(URL, server), ALL) is None
    server.fail("status", status=403, code="RequestTimeTooSkewed")
    with pytest.raises(NotReadableError, match="clock of this machine"):
        epoch_of(URL, server)


@pytest.mark.usefixtures("files")
def test_a_bucket_in_another_region(server):
    server.fail("status", status=301, code="PermanentRedirect")
    with pytest.raises(OptionError, match="another region"):
        epoch_of(URL, server)


def test_keys_with_odd_characters(server, bucket):
    names = ["a b.h5", "a#b.h5", "a?b.h5", "a+b.h5", "a%20b.h5", "a=b.h5", "ü.h5", "r&n<1>.h5"]
    for number, name in enumerate(names):
        write(bucket / name, number * 4, 4)
    for number, name in enumerate(names):
        if "?" not in name:  # in a path, it is a glob
            dataset = H5Dataset(f"s3://bkt/{name}", columns=["id"], storage_options=options_of(server))
            assert [int(dataset[row]["id"]) for row in range(4)] == list(range(number * 4, number * 4 + 4))
    assert check_epoch(epoch_of("s3://bkt/*.h5", server), 4 * len(names)) is None
    assert check_epoch(epoch_of("s3://bkt/", server), 4 * len(names)) is None


@pytest.mark.slow
def test_2001_files_of_a_listing(server, bucket):
    first = write(bucket / "run_0000.h5", rows=2)
    for number in range(1, 2001):
        os.link(first, bucket / f"run_{number:04}.h5")
    server.forget()
    dataset = H5Dataset(URL, columns=["id"], storage_options=options_of(server))
    assert len(dataset) == 4002
    asked = server.requests()
    assert sum(each.is_listing for each in asked) == 3
    assert len(asked) - 3 <= 2001 * 3
    assert sum(each.method == "HEAD" for each in asked) <= 2
