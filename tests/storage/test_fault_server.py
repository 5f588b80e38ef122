"""The server of faults, seen through obstore: what is right, and each fault."""

import contextlib
import os
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

from tests.kit.fault_server import Fault, FaultServer, ServerProcess

obstore = pytest.importorskip("obstore")
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, PreconditionError  # noqa: E402
from obstore.store import HTTPStore, S3Store  # noqa: E402

BODY = os.urandom(200_000)
ODD_KEYS = ["a b.h5", "a#b.h5", "a?b.h5", "a+b.h5", "a%20b.h5", "a=b.h5", "ü/ß.h5", "ru&n<1>.h5", 'it\'s "x".h5']
RETRIES = {
    "max_retries": 2,
    "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2},
    "retry_timeout": timedelta(seconds=10),
}


@pytest.fixture
def server(tmp_path):
    (tmp_path / "bkt").mkdir()
    (tmp_path / "bkt" / "a.h5").write_bytes(BODY)
    with FaultServer(tmp_path) as server:
        yield server


def s3(server, **client):
    return S3Store(
        "bkt",
        endpoint=server.url,
        region="us-east-1",
        skip_signature=True,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "20s", "read_timeout": "500ms", **client},
        retry_config=RETRIES,
    )


def http(server):
    options = {"allow_http": True, "timeout": "5s", "read_timeout": "500ms"}
    return HTTPStore(f"{server.url}/bkt", client_options=options, retry_config=RETRIES)


@pytest.fixture(params=[s3, http])
def store(server, request):
    return request.param(server)


def get(store, first=0, end=200_000, **options):
    return bytes(obstore.get(store, "a.h5", options={"range": (first, end), **options}).bytes())


def test_objects_and_ranges(server, store):
    head = obstore.head(store, "a.h5")
    assert head["size"] == len(BODY)
    assert get(store) == BODY
    assert get(store, 10, 20, if_match=head["e_tag"]) == BODY[10:20]
    assert get(store, len(BODY) - 5, len(BODY) + 100) == BODY[-5:]
    assert bytes(obstore.get(store, "a.h5", options={"range": {"suffix": 7}}).bytes()) == BODY[-7:]
    assert bytes(obstore.get(store, "a.h5").bytes()) == BODY
    asked = server.requests("/bkt/a.h5", method="GET")
    assert [each.status for each in asked] == [206] * 4 + [200]
    assert [each.nbytes for each in asked] == [len(BODY), 10, 5, 7, len(BODY)]
    assert [each.range for each in asked][:2] == [f"bytes=0-{len(BODY) - 1}", "bytes=10-19"]
    assert [each.if_match for each in asked][:2] == [None, head["e_tag"]]
    assert server.connections <= 2  # the client may open one before the other is free


def test_what_is_not_there(store):
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "b.h5")
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "b.h5")
    with pytest.raises(GenericError, match="416"):
        get(store, len(BODY), len(BODY) + 1)
    with pytest.raises(PreconditionError):
        get(store, if_match='"another"')


def test_a_file_that_is_written_again_has_another_etag(store, tmp_path):
    before = obstore.head(store, "a.h5")["e_tag"]
    (tmp_path / "new").write_bytes(BODY)
    (tmp_path / "new").replace(tmp_path / "bkt" / "a.h5")
    assert obstore.head(store, "a.h5")["e_tag"] != before
    with pytest.raises(PreconditionError):
        get(store, if_match=before)


@pytest.mark.parametrize("key", ODD_KEYS)
def test_keys_with_odd_characters(store, key, tmp_path):
    (tmp_path / "bkt" / "ü").mkdir()
    (tmp_path / "bkt" / key).write_bytes(key.encode())
    assert bytes(obstore.get(store, key).bytes()) == key.encode()


def test_listing(server, tmp_path):
    (tmp_path / "bkt" / "ü").mkdir()
    for key in ODD_KEYS:
        (tmp_path / "bkt" / key).write_bytes(key.encode())
    found = obstore.list(s3(server)).collect()
    keys = [each["path"] for each in found]
    assert keys == sorted([*ODD_KEYS, "a.h5"], key=str.encode)
    assert {each["path"]: each["size"] for each in found}["a+b.h5"] == 6
    assert {each["path"]: each["e_tag"] for each in found}["a.h5"] == obstore.head(s3(server), "a.h5")["e_tag"]
    below = obstore.list_with_delimiter(s3(server))
    assert below["common_prefixes"] == ["ü"]
    assert sorted(each["path"] for each in below["objects"]) == sorted(set(keys) - {"ü/ß.h5"})
    assert [each["path"] for each in obstore.list(s3(server), "ü").collect()] == ["ü/ß.h5"]


def test_a_listing_of_2500_keys_in_pages(server, tmp_path):
    names = [f"runs/{number % 7}/run_{number:04}.h5" for number in range(2500)]
    for number in range(7):
        (tmp_path / "bkt" / "runs" / str(number)).mkdir(parents=True)
    for name in names:
        (tmp_path / "bkt" / name).touch()
    store = s3(server, read_timeout="20s")
    found = [each["path"] for each in obstore.list(store, "runs").collect()]
    assert found == sorted(names)
    assert len(server.requests(method="LIST")) == 3
    later = obstore.list(store, "runs", offset="runs/6/run_2000.h5").collect()
    assert [each["path"] for each in later] == [name for name in sorted(names) if name > "runs/6/run_2000.h5"]
    server.page_keys = 2  # pages of folders, too
    below = obstore.list_with_delimiter(store, "runs")
    assert below["common_prefixes"] == [f"runs/{number}" for number in range(7)]


def test_a_bucket_that_is_not_there(server):
    store = S3Store("other", endpoint=server.url, region="x", skip_signature=True, client_options={"allow_http": True})
    with pytest.raises(BaseError, match="NoSuchBucket"):
        obstore.list(store).collect()


@pytest.mark.parametrize(("status", "requests"), [(503, 3), (429, 3), (500, 3), (403, 1)])
def test_status(server, store, status, requests):
    server.fail("status", status=status)
    with pytest.raises(PermissionDeniedError if status == 403 else GenericError):
        get(store)
    assert len(server.requests()) == requests


def test_which_requests_a_fault_hits(server, store):
    server.fail("status", after=2, times=2, path="*/a.h5", method="GET")
    assert [get(store, 0, 10) for _ in range(3)] == [BODY[:10]] * 3
    assert [each.status for each in server.requests()] == [206, 206, 503, 503, 206]
    assert [each.faults for each in server.requests()] == [(), (), ("status",), ("status",), ()]
    server.heal()
    server.fail("status", path="*/b.h5")
    server.fail("status", method="LIST")
    assert get(store, 0, 10) == BODY[:10]
    server.forget()
    server.heal()
    server.fail("status", share=0.5)
    for _ in range(100):
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{server.url}/bkt/a.h5").close()
    assert 30 < sum(each.status == 503 for each in server.requests()) < 70


@pytest.mark.parametrize("kind", ["cut", "reset", "stall", "stall_body"])
def test_bodies_that_do_not_arrive_are_resumed(server, store, kind):
    server.fail(kind, times=2, at=0.5)
    assert get(store, if_match=obstore.head(store, "a.h5")["e_tag"]) == BODY
    assert sum(kind in each.faults for each in server.requests()) == 2


@pytest.mark.parametrize("kind", ["ignore_range", "wrong_range", "chunked", "short"])
def test_answers_to_other_questions(server, store, kind):
    server.fail(kind)
    with pytest.raises(BaseError):
        get(store, 100, 200)
    assert len(server.requests()) == 1


def test_a_flipped_bit_is_not_noticed(server, store):
    server.fail("flip")
    found = get(store, 0, 1000)
    assert sum(one != other for one, other in zip(found, BODY[:1000], strict=True)) == 1


def test_etags(server, store):
    etag = obstore.head(store, "a.h5")["e_tag"]
    server.fail("new_etag", times=1)
    with pytest.raises(PreconditionError):
        get(store, if_match=etag)
    assert get(store, if_match=etag) == BODY
    server.fail("weak_etag", times=1)
    assert obstore.head(store, "a.h5")["e_tag"] == f"W/{etag}"
    server.fail("no_etag", times=1)
    assert obstore.head(store, "a.h5")["e_tag"] is None
    server.fail("ignore_if_match", times=1)
    assert get(store, 0, 5, if_match='"another"') == BODY[:5]


def test_a_server_that_dies_and_comes_back(server, store):
    assert get(store) == BODY
    server.stop()
    with pytest.raises(GenericError):
        get(store)
    server.start()
    assert get(store) == BODY


def test_latency_and_rates(server, store):
    def seconds(of):
        begin = time.perf_counter()
        of()
        return time.perf_counter() - begin

    # On a busy machine anything may take longer.
    server.latency = 0.2
    assert seconds(lambda: get(store)) > 0.2
    server.latency, server.pace.rate = 0.0, 1e6
    assert seconds(lambda: get(store)) > 0.19
    server.pace.rate, server.pace.total = None, 2e6
    threads = [threading.Thread(target=get, args=(store,)) for _ in range(4)]

    def together():
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

    assert seconds(together) > 0.39
    assert server.most_active > 1


def test_the_calls_before_answers(server, store):
    seen = []
    server.before_answer = seen.append
    get(store, 3, 9)
    assert [each.range for each in seen] == ["bytes=3-8"]


def test_clock_skew(server, store):
    right = obstore.head(store, "a.h5")["last_modified"]
    server.clock_skew = 3600.0
    assert obstore.head(store, "a.h5")["last_modified"] - right == timedelta(hours=1)


def test_a_kind_that_there_is_not():
    with pytest.raises(ValueError, match="expected one of status, cut"):
        Fault("cutt")


def test_nothing_outside_the_folder_is_served(server, tmp_path):
    (tmp_path.parent / "secret").write_bytes(b"secret")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server.url}/bkt/..%2f..%2fsecret")


def test_as_a_program(tmp_path):
    (tmp_path / "bkt").mkdir()
    (tmp_path / "bkt" / "a.h5").write_bytes(BODY)
    with ServerProcess(tmp_path, latency=0.01) as server:
        assert get(s3(server)) == BODY
        assert [each["nbytes"] for each in server.log()["requests"]] == [len(BODY)]
        server.forget()
        assert server.log()["requests"] == []
    with pytest.raises(GenericError):
        get(s3(server))
