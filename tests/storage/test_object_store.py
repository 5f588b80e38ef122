"""Files in stores: addresses, options, identities, ranges, errors; nothing secret in any message."""

import errno
import http.client
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import urlsplit

import fsspec.implementations.memory
import numpy as np
import pytest

from ray_h5 import H5Dataset, RayH5Error
from ray_h5.errors import (
    NotFoundError,
    NotHDF5Error,
    NotReadableError,
    OptionError,
    ReadFailedError,
    StaleIndexError,
    TransientIOError,
    UnknownOptionError,
)
from ray_h5.storage.addresses import StoreAddress, is_url, without_secrets
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.stores import object_store
from ray_h5.storage.stores.arguments import store_arguments
from ray_h5.storage.stores.errors import store_error
from ray_h5.storage.stores.file_systems import FileSystemStorage
from ray_h5.storage.stores.gate import Gate, host_of
from ray_h5.storage.stores.object_store import ObjectStorage
from ray_h5.storage.stores.options import StoreOptions
from tests.kit.fault_server import FaultServer

pytest.importorskip("obstore")

BODY = os.urandom(3_000_000)
FAST = {"max_retries": 2, "init_backoff": 0.001, "max_backoff": 0.002, "timeout": "5s", "read_timeout": "500ms"}
CANARY = "CANARY0123456789"


@pytest.fixture
def server(tmp_path):
    (tmp_path / "bkt/in").mkdir(parents=True)
    (tmp_path / "bkt" / "a.h5").write_bytes(BODY)
    (tmp_path / "bkt" / "in" / "b.h5").write_bytes(BODY[:100])
    (tmp_path / "bkt" / "empty.h5").write_bytes(b"")
    with FaultServer(tmp_path) as server:
        yield server


def options(server, **more):
    return {"endpoint": server.url, "region": "x", "skip_signature": True, "allow_http": True, **FAST, **more}


def storage(server, *urls, **more):
    return ObjectStorage(StoreOptions.of(options(server, **more), urls or ["s3://bkt/a.h5"]))


def opened(server, url="s3://bkt/a.h5", **more):
    store = storage(server, url, **more)
    return store.open(url, store.check(url))


def read(source, offset=0, count=1000):
    source.read_into(offset, memoryview(found := bytearray(count)))
    return bytes(found)


def test_addresses():
    assert StoreAddress.of("s3://b/k/a?b#c.h5") == StoreAddress("s3", "b", "k/a?b#c.h5")
    assert StoreAddress.of("S3A://b/k") == StoreAddress("s3", "b", "k")
    assert StoreAddress.of("s3://anonymous@b/k") == StoreAddress("s3", "b", "k", anonymous=True)
    assert StoreAddress.of("https://h:1/a%20b/c.h5") == StoreAddress("https", "https://h:1", "a b/c.h5")
    assert [is_url(each) for each in ("gs://b/k", "file:///k", "/a/b", "local:///k")] == [True, False, False, False]
    with pytest.raises(OptionError, match="hdfs://"):
        StoreAddress.of("hdfs://b/k")
    with pytest.raises(OptionError, match="expected a bucket"):
        StoreAddress.of("s3:///k")
    assert without_secrets("https://u:p@h/x.h5?sig=1")[0] == "https://h/x.h5"
    assert without_secrets("s3://b/x?y=1") == ("s3://b/x?y=1", "")
    with pytest.raises(OptionError, match="expected the URL of a file"):
        without_secrets("https://[::1/a.h5")


async def _later():
    return {}


class _Later:
    async def __call__(self):
        return {}


class _Unhashable:
    """A source of credentials with a value of its own, such as a dataclass."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, _Unhashable)

    def __call__(self):
        raise RuntimeError(CANARY)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:{}@bucket/k", "s3://key:a/{}@bucket/k", "s3:/key:{}@bucket/k", "http:/u:{}@h/a.h5",
        "https://u:p/{}@h/a.h5", "https://u:p#{}@h/a.h5", "abfss://c:{}@acc/a.h5", "az://c/a.h5?sv=1&sig={}",
        "s3://b/a.h5?X-Amz-Signature={}", "s4://u:{}@b/a.h5", "ftp://u:{}@h/a.h5", "https://h/*.h5?{}",
    ],
)  # fmt: skip
def test_urls_that_are_refused_are_shown_without_secrets(url):
    for path in (url.format(CANARY), [url.format(CANARY)]):
        with pytest.raises(RayH5Error) as caught:
            H5Dataset(path, storage_options={"skip_signature": True} if url.startswith(("s3:", "az:")) else None)
        assert CANARY not in str(caught.value)
        assert CANARY not in repr(caught.value.__context__)


@pytest.mark.parametrize("query", [CANARY, f"a=(b)&sig={CANARY}", f"a='b'&sig={CANARY}", f"x={CANARY}?{CANARY}"])
def test_no_query_is_said(server, query):
    url = f"{server.url}/bkt/a.h5?{query}"
    store = ObjectStorage(StoreOptions.of({"allow_http": True, **FAST}, [url]))
    server.fail("status", status=400)
    with pytest.raises(ReadFailedError) as caught:
        store.check(without_secrets(url)[0])
    assert CANARY not in str(caught.value)
    assert "(status 400)" in str(caught.value)


def test_urls_that_differ_in_what_is_secret(server):
    urls = [f"{server.url}/bkt/a.h5?id={number}" for number in range(2)]
    StoreOptions.of({"allow_http": True}, [urls[0], urls[0]])
    with pytest.raises(OptionError, match="cannot be told apart"):
        StoreOptions.of({"allow_http": True}, urls)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"regoin": "x"}, "Did you mean 'region'"),
        ({"key": CANARY}, "unknown option 'key' for these files"),
        ({"account_name": "x"}, "unknown option 'account_name' for these files, which are in s3://"),
        ({"timeout": "soon"}, "expected seconds"),
        ({"timeout": float("inf")}, "expected seconds"),
        ({"retry_timeout": float("inf")}, "expected seconds"),
        ({"retry_timeout": "30 years"}, "expected seconds"),
        ({"endpoint": "minio.example.org:9000"}, "begins with https://"),
        ({"max_retries": -1}, "integer of 0 or more"),
        ({3: 4}, "names of options"),
        ({"default_headers": {"a": 1}}, "a dict of texts"),
        ({"skip_signature": "perhaps"}, "expected True or False"),
        ({"endpoint": " http://minio:9000"}, "begins with https://"),
        ({"endpoint": "http://minio :9000"}, "without spaces"),
        ({"secret_access_key": f"{CANARY}\n"}, "begins or ends with a space or a line break"),
        *(({"credential_provider": none}, "a function") for none in ({}, {"a": 1}, [CANARY], (CANARY,), CANARY)),
        ({"credential_provider": _later}, "not async"),
        ({"credential_provider": _Later()}, "not async"),
        ("region=x", "expected a dict"),
    ],
)
def test_options_that_are_refused(given, says):
    with pytest.raises(OptionError, match=says) as caught:
        StoreOptions.of(given, ["s3://b/k"])
    assert CANARY not in str(caught.value)


def test_options_of_other_stores_that_are_refused():
    with pytest.raises(OptionError, match="bearer_token"):
        StoreOptions.of({"token": CANARY}, ["gs://b/k"])
    for url in ("az://container/a.h5", "abfs://container/a.h5"):
        with pytest.raises(OptionError, match="account_name"):
            ObjectStorage(StoreOptions.of({"skip_signature": True}, [url])).identity(url)
    with pytest.raises(OptionError, match=r"access_key_id.*secret_access_key") as caught:
        StoreAddress.of(f"s3://AKIA:{CANARY}@bkt/a.h5")
    assert CANARY not in str(caught.value)


def test_values_of_options_as_texts_and_as_numbers_of_numpy():
    given = {
        "allow_unversioned": "false",
        "skip_signature": "yes",
        "max_retries": np.int64(3),
        "timeout": np.float32(2),
    }
    found = StoreOptions.of(given, ["s3://b/k"])
    assert not found.values["allow_unversioned"]
    assert found.values["skip_signature"] is True
    assert found.values["max_retries"] == 3
    assert found.values["timeout"] == "2000ms"
    for said, seconds in {"30s": 30, "1.5": 1.5, "250 ms": 0.25, "2min": 120, "1h": 3600, 4: 4}.items():
        assert StoreOptions.of({"retry_timeout": said}, ["s3://b/k"]).values["retry_timeout"].total_seconds() == seconds
        assert StoreOptions.of({"timeout": said}, ["s3://b/k"]).values["timeout"] == f"{round(seconds * 1000)}ms"


def test_names_of_options_with_prefixes():
    found = StoreOptions.of({"aws_access_key_id": "a", "AWS_REGION": "r", "timeout": 3}, ["s3://b/k"])
    assert found.values["access_key_id"] == "a"
    assert found.values["region"] == "r"
    assert found.values["timeout"] == "3000ms"
    with pytest.raises(UnknownOptionError):
        StoreOptions.of({"aws_region": "r"}, ["https://h/k"])


def test_the_environment_of_the_driver_goes_along(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    found = StoreOptions.of(None, ["s3://b/k"])
    assert dict(found.given) == {"endpoint": "http://127.0.0.1:9"}
    assert StoreOptions.of({"endpoint_url": "http://x"}, ["s3://b/k"]).given == (("endpoint_url", "http://x"),)


def keep(found, number, data):
    found[number] = bytes(data)


def test_bytes_and_identity(server):
    for url in ("s3://bkt/a.h5", "s3://anonymous@bkt/a.h5", f"{server.url}/bkt/a.h5"):
        store = ObjectStorage(StoreOptions.of(options(server) if url[0] == "s" else {"allow_http": True}, [url]))
        source = store.open(url, store.check(url))
        assert source.size == len(BODY)
        assert read(source, 10) == BODY[10:1010]
        found = {}
        source.read_ranges([(0, 5), (100, 7), (2_999_990, 10)], partial(keep, found))
        assert found == {0: BODY[:5], 1: BODY[100:107], 2: BODY[-10:]}
        assert pickle.loads(pickle.dumps(store)) == store
    assert all(each.if_match for each in server.requests() if each.range)


def test_what_is_not_there(server):
    assert storage(server).identity("s3://bkt/none.h5") is None
    with pytest.raises(NotFoundError, match="no such file"):
        storage(server).check("s3://bkt/none.h5")
    with pytest.raises(NotHDF5Error, match="0 bytes"):
        storage(server).check("s3://bkt/empty.h5")
    for name in ("a\0.h5", "a\n.h5", "\x1b[31m.h5"):
        with pytest.raises(OptionError, match="control character") as caught:
            storage(server).identity(f"s3://bkt/{name}")
        assert repr(name)[1:-1] in str(caught.value)
    with pytest.raises(OptionError, match=r"\\udcff.*UTF-8"):
        storage(server).identity("s3://bkt/a\udcff.h5")
    with pytest.raises(OptionError, match="between slashes"):
        storage(server).identity("s3://bkt/a//b.h5")


def test_a_changed_file(server, tmp_path):
    source = opened(server)
    (tmp_path / "bkt" / "a.h5").write_bytes(BODY[::-1])
    with pytest.raises(StaleIndexError, match="changed between planning and reading"):
        read(source)


def test_files_without_an_etag(server):
    server.fail("no_etag")
    with pytest.raises(OptionError, match="allow_unversioned"):
        opened(server)
    assert read(opened(server, allow_unversioned=True)) == BODY[:1000]


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ({"kind": "status", "status": 403}, NotReadableError, "credentials"),
        ({"kind": "status", "status": 401}, NotReadableError, "credentials"),
        ({"kind": "status", "status": 503}, TransientIOError, "after 3 tries"),
        ({"kind": "status", "status": 429}, TransientIOError, "throttles"),
        ({"kind": "status", "status": 500}, TransientIOError, "status 500"),
        ({"kind": "ignore_range"}, ReadFailedError, "ignores ranges"),
        ({"kind": "wrong_range"}, ReadFailedError, "another range"),
        ({"kind": "reset"}, TransientIOError, "cannot be reached|broke off"),
        ({"kind": "cut"}, TransientIOError, "broke off"),
    ],
)
def test_errors_of_requests(server, fault, error, says):
    source = opened(server)
    kind = fault.pop("kind")
    server.fail(kind, **fault)
    with pytest.raises(error, match=says) as caught:
        read(source)
    assert "s3://bkt/a.h5" in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("status", "code", "error", "says"),
    [
        (400, "ExpiredToken", NotReadableError, "have expired"),
        (403, "InvalidAccessKeyId", NotReadableError, "does not know access_key_id"),
        (403, "SignatureDoesNotMatch", NotReadableError, "secret_access_key is not the one"),
        (403, "AccessDenied", NotReadableError, r"\(status 403, AccessDenied\).*does not exist.*with it, other data"),
        (400, "AuthorizationHeaderMalformed", ReadFailedError, "AuthorizationHeaderMalformed.*region"),
        (301, "PermanentRedirect", OptionError, "'region': 'eu-west-1'"),
    ],
)
def test_reasons_that_a_store_gives(server, status, code, error, says):
    source = opened(server)
    server.fail("status", status=status, code=code)
    for work in (lambda: read(source), lambda: storage(server).list("s3://bkt/", below=False)):
        with pytest.raises(error, match=says):
            work()


def test_the_region_that_a_store_names():
    text = "status code: 400 Bad Request: <Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region>"
    found = store_error(Exception(text), "s3://bkt/a.h5", "listing it", text)
    assert isinstance(found, OptionError)
    assert "'region': 'eu-west-3'" in str(found)


def test_a_bare_refusal_says_what_to_check(server):
    server.fail("status", status=400)
    with pytest.raises(ReadFailedError, match=r"status 400.*region.*expired"):
        storage(server).identity("s3://bkt/a.h5")


def test_a_source_of_credentials_that_fails(server):
    store = storage(server, skip_signature=False, credential_provider=_Unhashable())
    for work in (lambda: store.identity("s3://bkt/a.h5"), lambda: store.list("s3://bkt/", below=False)):
        with pytest.raises(NotReadableError, match=r"credential_provider.*RuntimeError") as caught:
            work()
        assert CANARY not in str(caught.value)


@pytest.mark.parametrize("status", [400, 403, 404, 503])
def test_credentials_that_no_machine_gives(server, status):
    """Where there are none, the address that gives them in a cloud may answer anything."""
    server.fail("status", status=status)
    store = storage(server, skip_signature=False, metadata_endpoint=server.url, max_retries=0)
    for work in (lambda: store.identity("s3://bkt/a.h5"), lambda: store.list("s3://bkt/", below=False)):
        with pytest.raises(NotReadableError, match="no credentials were found"):
            work()
    assert all("api/token" in each.path for each in server.requests())


def test_an_endpoint_that_is_not_there(server):
    gone = server.url.rsplit(":", 1)[0] + ":9"
    with pytest.raises(TransientIOError, match=r"cannot be reached.*endpoint"):
        storage(server, endpoint=gone).identity("s3://bkt/a.h5")
    with pytest.raises(OptionError, match="allow_http"):
        storage(server, allow_http=False).identity("s3://bkt/a.h5")


def test_nothing_secret_is_said(server):
    secret = {"access_key_id": CANARY, "secret_access_key": CANARY, "session_token": CANARY, "skip_signature": False}
    store = storage(server, **secret)
    texts = [repr(store), str(store), repr(store.options)]
    server.fail("status", status=403)
    plain = server.url.replace("http://", f"http://user:{CANARY}@") + f"/bkt/a.h5?token={CANARY}"
    web = ObjectStorage(StoreOptions.of({"allow_http": True, **FAST}, [plain]))
    texts.append(repr(web))
    for each, url in ((store, "s3://bkt/a.h5"), (web, without_secrets(plain)[0])):
        for work in (each.identity, lambda u, e=each: e.list(u.rpartition("/")[0] + "/", below=True)):
            try:
                work(url)
            except RayH5Error as exc:
                texts += [str(exc), repr(exc.__context__), repr(exc.__cause__)]
    assert len(texts) > 6
    assert not [text for text in texts if CANARY in text]


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_url_that_is_signed_for_get_alone(server, status):
    """A presigned URL names the method that it allows."""
    server.fail("status", status=status, method="HEAD")
    for query in ("?X-Amz-Signature=abc", ""):
        url = f"{server.url}/bkt/a.h5{query}"
        web = ObjectStorage(StoreOptions.of({"allow_http": True, **FAST}, [url]))
        plain = url.partition("?")[0]
        found = web.check(plain)
        assert found.size == len(BODY)
        assert bytes(web.open(plain, found).get(5, 50)) == BODY[5:55]
        assert web.identity(f"{server.url}/bkt/none.h5") is None
    url = f"{server.url}/bkt/empty.h5"
    with pytest.raises(NotHDF5Error, match=r"bkt/empty.h5: .*empty one"):
        ObjectStorage(StoreOptions.of({"allow_http": True, **FAST}, [f"{url}?a=b"])).check(url)
    server.heal()
    server.fail("status", status=403)
    with pytest.raises(NotReadableError, match="may have expired"):
        ObjectStorage(StoreOptions.of({"allow_http": True, **FAST}, [f"{url}?a=b"])).check(url)


def test_lists(server):
    store = storage(server)
    files, folders = store.list("s3://bkt/", below=False)
    assert sorted(each.url for each in files) == ["s3://bkt/a.h5", "s3://bkt/empty.h5"]
    assert folders == ["in"]
    files, _ = store.list("s3://bkt/", below=True)
    assert "s3://bkt/in/b.h5" in [each.url for each in files]
    found = next(each for each in files if each.key == "a.h5")
    assert found.identity == store.check("s3://bkt/a.h5")
    assert isinstance(found.identity, ObjectIdentity)


@pytest.mark.slow
@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("kind", ["cut", "reset", "stall", "stall_body"])
def test_a_listing_that_breaks_off_is_repeated(server, kind, below):
    server.fail(kind, method="LIST", times=2)
    files, _ = storage(server).list("s3://bkt/", below=below)
    assert "s3://bkt/a.h5" in [each.url for each in files]
    server.fail(kind, method="LIST")
    with pytest.raises(TransientIOError, match=r"s3://bkt/: .*listing it"):
        storage(server).list("s3://bkt/", below=below)


@pytest.mark.parametrize("url", ["s3://bkt//a.h5", "s3://bkt/in//b.h5", "s3://bkt/a.h5//", "s3://bkt/in/../a.h5"])
def test_keys_that_obstore_would_change_are_refused(server, url):
    with pytest.raises(OptionError, match="empty part"):
        storage(server).identity(url)


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [(301, ReadFailedError, "elsewhere"), (401, NotReadableError, "Authorization"), (403, NotReadableError, "expired")],
)
def test_errors_of_servers_name_no_bucket(server, status, error, says):
    url = f"{server.url}/bkt/a.h5"
    server.fail("status", status=status)
    with pytest.raises(error, match=says) as caught:
        ObjectStorage(StoreOptions.of({"allow_http": True, **FAST}, [url])).identity(url)
    assert "region" not in str(caught.value)


_FORK = """
import os, sys
from ray_h5.storage.stores.file_systems import FileSystemStorage
from ray_h5.storage.stores.gate import Gate, host_of
from ray_h5.storage.stores.object_store import ObjectStorage
from ray_h5.storage.stores.options import StoreOptions
from ray_h5.errors import OptionError
options = {"endpoint": sys.argv[1], "region": "x", "skip_signature": True, "allow_http": True}
store = ObjectStorage(StoreOptions.of(options, ["s3://b/k"]))
store.identity("s3://bkt/a.h5")
child = os.fork()
if not child:
    try:
        store.identity("s3://bkt/a.h5")
    except OptionError as exc:
        os._exit(7 if "forkserver" in str(exc) else 1)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_is_told(server):
    done = subprocess.run([sys.executable, "-c", _FORK, server.url], timeout=30, check=False)
    assert done.returncode == 7


def test_threads_are_few_and_daemons(server):
    opened(server).read_ranges([(i * 100, 100) for i in range(200)], lambda _i, _data: None)
    mine = [each for each in threading.enumerate() if each.name == "ray_h5_fetch"]
    assert 0 < len(mine) <= 64
    assert all(each.daemon for each in mine)


class Sent:
    """A server that redirects to another one, and what that one got."""

    def __init__(self, server, other):
        self.server, self.other = server, other

    def redirect(self, status):
        self.server.heal()
        location = self.other.url.replace("127.0.0.1", "localhost")
        self.server.fail("redirect", status=status, location=location)

    def check(self):
        """Raise if something secret arrived where it does not belong."""
        for each in self.other.requests():
            assert CANARY not in repr((each.headers, each.query))
        assert any(CANARY in repr((each.headers, each.query)) for each in self.server.requests())


@pytest.fixture
def sent(server, tmp_path):
    with FaultServer(tmp_path) as other:
        yield Sent(server, other)


SECRETS = {
    "s3": ("s3://bkt/a.h5", {"access_key_id": "a", "secret_access_key": "b", "session_token": CANARY}),
    "s3, headers": ("s3://bkt/a.h5", {"skip_signature": True, "default_headers": {"X-Api-Key": CANARY}}),
    "gs": ("gs://bkt/a.h5", {"bearer_token": "b", "default_headers": {"X-Api-Key": CANARY}}),
    "az": ("az://bkt/a.h5", {"account_name": "a", "sas_token": f"sv=1&sig={CANARY}"}),
    "https": ("{url}/bkt/a.h5?sig=" + CANARY, {}),
    "https, headers": ("{url}/bkt/a.h5", {"default_headers": {"X-Api-Key": CANARY, "Authorization": CANARY}}),
}


def secretive(server, name):
    """Return a storage whose requests have a secret in them, and a URL there."""
    url, given = SECRETS[name]
    url = url.format(url=server.url)
    place = {"s3": {"endpoint": server.url}, "gs": {"base_url": server.url}, "az": {"endpoint": server.url}, "ht": {}}
    given = {"allow_http": True, **FAST, **place[url[:2]], **given}
    return ObjectStorage(StoreOptions.of(given, [url])), without_secrets(url)[0]


@pytest.mark.parametrize("name", SECRETS)
def test_nothing_secret_goes_to_another_host(sent, name):
    store, url = secretive(sent.server, name)
    expect = store.check(url)
    folder = url.rpartition("/")[0] + "/"
    for status in (301, 302, 303, 307, 308):
        sent.redirect(status)
        calls = [lambda: store.check(url), lambda: store.get(url, expect, 0, 100)]
        if not name.startswith("https"):  # servers list nothing
            calls += [lambda below=below: store.list(folder, below=below) for below in (False, True)]
        for call in calls:
            with pytest.raises(ReadFailedError, match=r"redirects to another host.*allow_redirects"):
                call()
    sent.check()
    assert not sent.other.requests()


@pytest.mark.parametrize(
    "location", ["http://localhost:{port}", "http://evil.localhost:{port}", "http://127.0.0.1:{port}"]
)
@pytest.mark.parametrize("name", SECRETS)
def test_named_hosts_are_compared_whole_and_with_their_port(sent, name, location):
    store, url = secretive(SimpleNamespace(url=sent.server.url.replace("127.0.0.1", "localhost")), name)
    expect = store.check(url)
    sent.server.fail("redirect", status=302, location=location.format(port=sent.other.url.rpartition(":")[2]))
    for call in (lambda: store.check(url), lambda: store.get(url, expect, 0, 100)):
        with pytest.raises(ReadFailedError, match="redirects to another host"):
            call()
    sent.check()
    assert not sent.other.requests()
    sent.server.heal()
    ranges = [(at, 30_000) for at in range(0, len(BODY) - 30_000, 60_000)]
    store.open(url, expect).read_ranges(ranges, lambda i, data: check_equal(data, BODY[ranges[i][0] :][:30_000]))


def test_a_gate_outlives_errors_and_its_threads_end_with_connections(server, monkeypatch):
    class Listener(socket.socket):
        def accept(self):
            if not failed:
                failed.append(1)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    failed, others = [], {*threading.enumerate()}
    made = Listener()
    made.bind(("127.0.0.1", 0))
    made.listen()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "create_server", lambda *_, **__: made)
        through = urlsplit(Gate([host_of(server.url)]).url)
    for _ in range(10):
        client = http.client.HTTPConnection(through.hostname, through.port, timeout=20)
        client.request("GET", f"{server.url}/bkt/a.h5")
        check_equal(client.getresponse().read(), BODY)
        client.close()
    deadline = time.monotonic() + 20
    while len(of_gate := [t for t in {*threading.enumerate()} - others if t.name == "ray_h5_gate"]) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (len(failed), len(of_gate)) == (1, 1)  # what accepts stays


def check_equal(found, expected):
    assert bytes(found) == expected


def test_hosts_of_clouds_are_reached_directly():
    """They have all that is below their hosts, and the certificates for all ports."""
    token = {"access_key_id": "a", "secret_access_key": "b", "session_token": CANARY}
    for url, given, direct in [
        ("s3://bkt/a.h5", token, "s3.us-east-1.amazonaws.com"),
        ("az://bkt/a.h5", {"account_name": "me", "sas_token": f"sig={CANARY}"}, "me.blob.core.windows.net"),
        ("https://bkt.s3.amazonaws.com/a.h5?sig=a", {}, "bkt.s3.amazonaws.com"),
        ("https://s3.amazonaws.com.evil.test/a.h5?sig=a", {}, None),
        ("https://s3.amazonaws.com:8443/a.h5?sig=a", {}, None),
        ("http://s3.amazonaws.com/a.h5?sig=a", {"allow_http": True}, None),
        ("https://xamazonaws.com/a.h5?sig=a", {}, None),
    ]:
        options = StoreOptions.of(given, [url])
        address = StoreAddress.of(without_secrets(url)[0])
        root = url.replace("/a.h5", "") if url.startswith("http") else address.root
        client = store_arguments(options, address, root, "")[1]["client_options"]
        assert (client["proxy_url"] == "http://127.0.0.1:0") == (direct is not None), url
        assert (direct in client["proxy_excludes"].split(",")) if direct else client["proxy_excludes"] == "", url


def test_redirects_that_are_followed(sent):
    url = f"{sent.server.url}/bkt/a.h5"
    token = {"allow_http": True, "default_headers": {"Authorization": CANARY}}
    for given in (
        {"allow_http": True},
        token,
        {**token, "default_headers": {"X-Api-Key": "a"}, "allow_redirects": True},
    ):
        store = ObjectStorage(StoreOptions.of(given, [url]))
        sent.redirect(302)
        assert store.check(url).size == len(BODY)
    sent.check()
    # On the same host, everything goes along.
    sent.server.heal()
    sent.server.fail("redirect", status=302, location=sent.server.url, times=1)
    store = ObjectStorage(StoreOptions.of({"allow_http": True, "default_headers": {"X-Api-Key": CANARY}}, [url]))
    assert store.check(url).size == len(BODY)


def test_redirects_through_a_proxy_are_refused_before_a_request(sent, monkeypatch):
    proxy = "http://127.0.0.1:9"
    given = {"default_headers": {"X-Api-Key": CANARY}}
    url = "https://example.org/a.h5"
    for option in ({"proxy_url": proxy}, {}):
        if not option:
            monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(OptionError, match=r"X-Api-Key.*NO_PROXY.*allow_redirects") as caught:
            ObjectStorage(StoreOptions.of({**given, **option}, [url])).identity(url)
        assert CANARY not in str(caught.value)
    # A host that is reached without the proxy is read as ever; Authorization alone may go through it.
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,127.0.0.0/8")
    store, url = secretive(sent.server, "https, headers")
    assert store.check(url).size == len(BODY)
    StoreOptions.of({"default_headers": {"Authorization": CANARY}, "proxy_url": proxy}, ["https://example.org/a.h5"])


@pytest.fixture
def secure(tmp_path):
    """A server of https:// that redirects each request to http://."""
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x", *files]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("openssl is not there")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}{self.path}")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815  the name is that of http.server

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_redirect_from_https_to_http_is_refused(secure):
    trust = {"allow_invalid_certificates": True, "allow_http": True, **FAST}
    url = f"{secure}/a.h5"
    with pytest.raises(ReadFailedError, match="redirects to http://"):
        ObjectStorage(StoreOptions.of({**trust, "default_headers": {"Authorization": "a"}}, [url])).identity(url)
    given = {**trust, "endpoint": secure, "access_key_id": "a", "secret_access_key": "b", "region": "x"}
    with pytest.raises(ReadFailedError, match="redirects to http://"):
        ObjectStorage(StoreOptions.of(given, ["s3://bkt/a.h5"])).identity("s3://bkt/a.h5")


def test_a_listing_of_other_folders_is_refused(server, tmp_path):
    store = storage(server)
    server.fail("any_prefix")
    (tmp_path / "bkt" / "other").mkdir()
    (tmp_path / "bkt" / "other" / "c.h5").write_bytes(b"")
    for below in (False, True):
        with pytest.raises(ReadFailedError, match=r"s3://bkt/in/: the store lists .* not in that folder"):
            store.list("s3://bkt/in/", below=below)
    with pytest.raises(ReadFailedError, match="not in that folder"):
        H5Dataset("s3://bkt/in/*.h5", storage_options=options(server))


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize(("folder", "says"), [("in/", "'in/b.h5' comes again"), ("none/", "not ended after 1 s")])
def test_a_listing_without_an_end(server, monkeypatch, folder, says, below):
    monkeypatch.setattr(object_store, "_LONG_LISTING_S", 0.5)
    monkeypatch.setattr(object_store, "_LONGEST_LISTING_S", 1)
    server.fail("endless")
    with pytest.raises(ReadFailedError, match=f"goes on and on: .*{says}"):
        storage(server).list(f"s3://bkt/{folder}", below=below)
    time.sleep(0.1)
    asked = len(server.requests())
    time.sleep(0.3)
    assert len(server.requests()) == asked


class _Astray(fsspec.implementations.memory.MemoryFileSystem):
    """A file system that lists files of another folder, too."""

    protocol = "astray"

    def ls(self, path, detail=True, **more):
        return super().ls(path, detail, **more) + super().ls("/other", detail, **more)


def test_a_listing_of_a_file_system_with_other_folders_is_refused():
    files = _Astray()
    for name in ("/in/a.h5", "/other/b.h5"):
        files.pipe(name, BODY[:10])
    with pytest.raises(ReadFailedError, match=r"lists 'astray://other/b.h5', which is not in that folder"):
        FileSystemStorage.of(files).list("astray://in/", below=False)


@pytest.mark.parametrize(
    ("fault", "says"),
    [("wrong_range", "another range"), ("ignore_range", "ignores ranges"), ("short", "another range")],
)
def test_a_file_system_of_http_compares_the_range(server, fault, says):
    pytest.importorskip("aiohttp")
    files = FileSystemStorage.of(fsspec.filesystem("http", skip_instance_cache=True))
    url = f"{server.url}/bkt/a.h5"
    state = files.check(url)
    assert bytes(files.get(url, state, 5, 50)) == BODY[5:55]
    assert bytes(files.get(url, state, 0, len(BODY))) == BODY
    assert bytes(files.get(url, state, len(BODY) - 1, 1)) == BODY[-1:]
    server.fail(fault, **({"at": 0.5} if fault == "short" else {}))
    with pytest.raises(ReadFailedError, match=rf"bkt/a\.h5: the server .*{says}"):
        files.get(url, state, 5, 50)
