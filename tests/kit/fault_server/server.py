"""The server: one thread a connection, bodies by ``sendfile``."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from tests.kit.fault_server.answers import Answer, answer
from tests.kit.fault_server.faults import Fault, Faults, Request

if TYPE_CHECKING:
    from typing_extensions import Self

_SMALL_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20


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

    Attributes
    ----------
    latency, clock_skew
        May be changed while it runs: seconds; seconds that its clock is ahead.
    before_answer
        Called with each request before it is answered, in the thread of its connection; None for no call.
    """

    def __init__(
        self, root: str | os.PathLike[str], latency: float = 0.0, rate: float | None = None, total: float | None = None
    ) -> None:
        self.root = os.fspath(root)
        self.latency = latency
        self.clock_skew = 0.0
        self.before_answer: Callable[[Request], object] | None = None
        self._rate, self._total, self._free_at = rate, total, 0.0
        self._port = 0
        self._faults = Faults()
        self._lock = threading.Lock()
        self._log: list[Request] = []
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

    @property
    def options(self) -> dict[str, Any]:
        """The storage options of a client that signs nothing."""
        return {"endpoint": self.url, "region": "us-east-1", "skip_signature": True, "allow_http": True}

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
        """Empty the log."""
        with self._lock:
            self._log = []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # it was closed
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with connection, connection.makefile("rb") as stream:
                while not self._stopping.is_set():
                    request = Request.read(stream)
                    if request is None or not self._answer(connection, request):
                        return
        except OSError:
            return  # the client went away, or the server was stopped
        finally:
            with self._lock:
                self._open.discard(connection)

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer a request; return whether the connection stays open."""
        faults = self._faults.hitting(request)
        request.faults = tuple(faults)
        with self._lock:
            self._log.append(request)
        if self.before_answer is not None:
            self.before_answer(request)
        if "stall" in faults:
            self._stopping.wait(faults["stall"].seconds)
            return False
        if self.latency:
            time.sleep(self.latency)
        made = answer(self.root, request, faults, self.clock_skew)
        try:
            return self._send(connection, request, made, faults)
        finally:
            made.close()

    def _send(self, connection: socket.socket, request: Request, made: Answer, faults: Mapping[str, Fault]) -> bool:
        request.status = made.status
        head = made.head(time.time() + self.clock_skew)
        if request.method == "HEAD":
            connection.sendall(head)
            return True
        stop = None
        if made.status < 400:  # what breaks off is the body of an object
            stop = next((faults[kind] for kind in ("cut", "stall_body", "reset") if kind in faults), None)
        nbytes = made.nbytes if stop is None else int(made.nbytes * stop.at)
        if "flip" in faults and made.fd is not None:
            body = bytearray(os.pread(made.fd, made.nbytes, made.span[0]))
            if body:
                body[len(body) // 2] ^= 1
            made.close()
            made.body = bytes(body)
        if "chunked" in faults and made.fd is not None:
            return _send_chunked(connection, request, made, head)
        self._send_body(
            connection, request, made, head, nbytes, faults["slow"].rate if "slow" in faults else self._rate
        )
        if stop is not None and stop.kind == "stall_body":
            self._stopping.wait(stop.seconds)
        if stop is not None and stop.kind == "reset":  # to close without lingering sends RST
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return stop is None and request.headers.get("connection", "").lower() != "close"

    def _send_body(
        self, connection: socket.socket, request: Request, made: Answer, head: bytes, nbytes: int, rate: float | None
    ) -> None:
        is_limited = rate is not None or self._total is not None
        if made.fd is None or (nbytes <= _SMALL_BYTES and not is_limited):
            body = made.body if made.fd is None else os.pread(made.fd, nbytes, made.span[0])
            request.nbytes = nbytes  # before it is sent: the client may look at the log at once
            connection.sendall(head + body[:nbytes])
            return
        connection.sendall(head)
        begin, sent = time.monotonic(), 0
        while sent < nbytes:
            # A slow stream sends about ten pieces a second. Each leaves at the time at which its last byte would.
            piece = 4 * _PIECE_BYTES if rate is None else min(_PIECE_BYTES, max(1, int(rate / 10)))
            end = min(sent + piece, nbytes)
            due = max(0.0 if rate is None else begin + end / rate, self._reserved(end - sent))
            time.sleep(max(0.0, due - time.monotonic()))
            request.nbytes = end
            while sent < end:
                done = os.sendfile(connection.fileno(), made.fd, made.span[0] + sent, end - sent)
                if done == 0:
                    raise ConnectionError("the file became shorter while it was sent")
                sent += done

    def _reserved(self, nbytes: int) -> float:
        """Return when the last of some bytes may leave, as far as the limit of all streams goes."""
        if self._total is None:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._total
            return self._free_at


def _send_chunked(connection: socket.socket, request: Request, made: Answer, head: bytes) -> bool:
    assert made.fd is not None
    body = os.pread(made.fd, made.nbytes, made.span[0])
    request.nbytes = len(body)
    pieces = [body[at : at + _SMALL_BYTES] for at in range(0, len(body), _SMALL_BYTES)]
    connection.sendall(head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
    return True


class ServerProcess:
    """A `FaultServer` in a process of its own, which takes no time of this one and ends with it."""

    def __init__(self, root: str | os.PathLike[str], **limits: float) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_in_process, args=(theirs, root, limits), daemon=True)
        self._process.start()
        theirs.close()
        self.url: str = self._pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def requests(self) -> list[Request]:
        """Return the requests so far."""
        return self._ask("requests")

    def forget(self) -> None:
        """Empty its log."""
        self._ask("forget")

    def _ask(self, method: str) -> Any:
        self._pipe.send(method)
        return self._pipe.recv()


def _in_process(pipe: Any, root: str, limits: Mapping[str, float]) -> None:
    with FaultServer(root, **limits) as server, contextlib.suppress(EOFError, KeyboardInterrupt):
        pipe.send(server.url)
        while True:
            pipe.send(getattr(server, pipe.recv())())
