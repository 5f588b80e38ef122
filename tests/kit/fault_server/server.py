"""The server: one thread a connection, bodies by ``sendfile``."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tests.kit.fault_server.answers import Answer, answer
from tests.kit.fault_server.faults import Fault, Faults
from tests.kit.fault_server.pace import Pace
from tests.kit.fault_server.requests import Request, read_request

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FaultServer"]

_SMALL_BYTES = 64 << 10


class FaultServer:
    """Serve the files of a folder on the loopback address, in threads of this process.

    A file ``root/bucket/key`` is the object ``key`` of ``bucket`` for clients of S3 (path-style; signatures are
    not checked), and ``url/bucket/key`` for clients of HTTP. An ETag changes when a file is written or replaced.

    Parameters
    ----------
    root
        The folder.
    latency
        Seconds to the first byte of each answer.
    rate
        Bytes a second of one stream; None for no limit.
    total
        Bytes a second of all streams together; None for no limit.
    port
        The port; 0 for a free one.
    seed
        Seed of the draws of faults with a `share`.

    Attributes
    ----------
    latency, page_keys, clock_skew
        May be changed while it runs: seconds; keys of a page of a listing; seconds that its clock is ahead.
    pace
        Its `rate` and `total` may be changed while it runs.
    before_answer
        Called with each request before it is answered, in the thread of its connection; None for no call.
    most_active
        The greatest number of requests that were answered at the same time.
    connections
        How many connections were accepted.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        latency: float = 0.0,
        rate: float | None = None,
        total: float | None = None,
        port: int = 0,
        seed: int = 0,
    ) -> None:
        self.root = os.fspath(root)
        self.latency = latency
        self.pace = Pace(rate, total)
        self.page_keys = 1000
        self.clock_skew = 0.0
        self.before_answer: Callable[[Request], object] | None = None
        self.most_active = 0
        self.connections = 0
        self._port = port
        self._faults = Faults(seed)
        self._lock = threading.Lock()
        self._log: list[Request] = []
        self._active = 0
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, at the same port as before if it was stopped."""
        listener = socket.create_server(("127.0.0.1", self._port), backlog=512)
        self._port = listener.getsockname()[1]
        self._listener = listener
        self._stopping = threading.Event()
        threading.Thread(target=self._accept, args=(listener,), daemon=True, name="fault-server").start()

    def stop(self) -> None:
        """Close the port and all connections, as a server that dies does."""
        self._stopping.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            self._listener.close()
        with self._lock:
            opened = list(self._open)
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        """The endpoint, such as ``"http://127.0.0.1:40001"``."""
        return f"http://127.0.0.1:{self._port}"

    def fail(self, kind: str, **options: Any) -> None:
        """Make a fault from now on; see `Fault`."""
        self._faults.add(Fault(kind, **options))

    def heal(self) -> None:
        """Make no faults from now on."""
        self._faults.clear()

    def requests(self, path: str | None = None, *, method: str | None = None) -> list[Request]:
        """Return the requests so far; `path` and `method` as in `Fault`."""
        wanted = Fault("status", path=path or "*", method=method)
        with self._lock:
            return [request for request in self._log if wanted.concerns(request)]

    def forget(self) -> None:
        """Empty the log, and count from here on."""
        with self._lock:
            self._log, self.most_active, self.connections = [], self._active, 0

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # it was closed
            with self._lock:
                self.connections += 1
                number = self.connections
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with connection, connection.makefile("rb") as stream:
                while not self._stopping.is_set():
                    request = read_request(stream, number)
                    if request is None or not self._answer(connection, request):
                        return
        except OSError:
            return  # the client went away, or the server was stopped
        finally:
            with self._lock:
                self._open.discard(connection)

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer a request; return whether the connection stays open."""
        if request.path.startswith("/-/"):
            return self._control(connection, request)
        faults = self._faults.hitting(request)
        request.faults = tuple(faults)
        with self._lock:
            self._log.append(request)
            self._active += 1
            self.most_active = max(self.most_active, self._active)
        try:
            if self.before_answer is not None:
                self.before_answer(request)
            if "stall" in faults:
                self._stopping.wait(faults["stall"].seconds)
                return False
            if self.latency:
                time.sleep(self.latency)
            given = answer(self.root, request, faults, self.page_keys, self.clock_skew)
            try:
                return self._send(connection, request, given, faults)
            finally:
                given.close()
        finally:
            with self._lock:
                self._active -= 1

    def _control(self, connection: socket.socket, request: Request) -> bool:
        """Answer the process that started this one as a program: the log, or its end."""
        with self._lock:
            seen = {"most_active": self.most_active, "connections": self.connections}
            body = json.dumps(seen | {"requests": [each.as_json() for each in self._log]}).encode()
        if request.path == "/-/forget":
            self.forget()
        connection.sendall(Answer(200, body=body).head(time.time()) + body)
        return True

    def _send(self, connection: socket.socket, request: Request, given: Answer, faults: Mapping[str, Fault]) -> bool:
        request.status = given.status
        head = given.head(time.time() + self.clock_skew)
        if request.method == "HEAD":
            connection.sendall(head)
            return True
        stop = None
        if given.status < 400:  # what breaks off is the body of an object
            stop = next((faults[kind] for kind in ("cut", "stall_body", "reset") if kind in faults), None)
        nbytes = given.nbytes if stop is None else int(given.nbytes * stop.at)
        if "flip" in faults and given.fd is not None:
            _flip(given)
        rate = faults["slow"].rate if "slow" in faults else None
        if "chunked" in faults and given.fd is not None:
            return _send_chunked(connection, request, given, head)
        self._send_body(connection, request, given, head, nbytes, rate)
        if stop is not None:
            self._end(connection, stop)
        return stop is None and request.headers.get("connection", "").lower() != "close"

    def _send_body(
        self, connection: socket.socket, request: Request, given: Answer, head: bytes, nbytes: int, rate: float | None
    ) -> None:
        stream = self.pace.stream(rate)
        if given.fd is None or (nbytes <= _SMALL_BYTES and not stream.is_limited):
            body = given.body if given.fd is None else os.pread(given.fd, nbytes, given.span[0])
            request.nbytes = nbytes  # before it is sent: the client may look at the log at once
            connection.sendall(head + body[:nbytes])
            return
        connection.sendall(head)
        sent = 0
        while sent < nbytes:
            piece = stream.piece(nbytes - sent)
            stream.wait(piece)
            request.nbytes = sent + piece
            end = sent + piece
            while sent < end:
                done = os.sendfile(connection.fileno(), given.fd, given.span[0] + sent, end - sent)
                if done == 0:
                    raise ConnectionError("the file became shorter while it was sent")
                sent += done

    def _end(self, connection: socket.socket, fault: Fault) -> None:
        if fault.kind == "stall_body":
            self._stopping.wait(fault.seconds)
        if fault.kind == "reset":  # to close without lingering sends RST
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _flip(given: Answer) -> None:
    assert given.fd is not None
    body = bytearray(os.pread(given.fd, given.nbytes, given.span[0]))
    if body:
        body[len(body) // 2] ^= 1
    given.close()
    given.body = bytes(body)


def _send_chunked(connection: socket.socket, request: Request, given: Answer, head: bytes) -> bool:
    assert given.fd is not None
    body = os.pread(given.fd, given.nbytes, given.span[0])
    request.nbytes = len(body)
    pieces = [body[at : at + _SMALL_BYTES] for at in range(0, len(body), _SMALL_BYTES)]
    connection.sendall(head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
    return True
