"""A proxy in this process that lets requests with secrets to the named hosts alone, compared whole, with their ports.

The client of obstore takes a list of hosts that it reaches without its proxy. It takes their subdomains for them, and
any port. So requests that carry secrets go through here, unless a cloud has all of that: see `Gate.for_hosts`.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from ray_h5.lru import LRU
from ray_h5.per_process import PerProcess

Host = tuple[str, int]
"""Name in lower case, and port."""

_MISDIRECTED = 421
"""The status of the answer for another host."""

_MOST_HEAD, _PIECE = 1 << 16, 1 << 18
_WAIT_S, _REST_S = 60.0, 0.05
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+) *\r\n", re.IGNORECASE)
_gates: PerProcess[LRU[Gate]] = PerProcess(lambda: LRU(64))


def host_of(address: str) -> Host | None:
    """Return the host and the port of a URL; None if it has none."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(address)
        if parts.hostname and parts.scheme in {"http", "https"}:
            return parts.hostname.lower(), parts.port or (443 if parts.scheme == "https" else 80)
    return None


def refused_by_a_gate(status: int | None, text: str) -> bool:
    """Return whether an error of obstore comes from a gate of this process that refused a host."""
    is_like_it = status == _MISDIRECTED or "TunnelUnsuccessful" in text
    return is_like_it and any(gate.has_refused for gate in _gates.value.values())


class Gate:
    """A proxy that answers requests to some hosts, and refuses those to others. Its threads end with the process.

    Parameters
    ----------
    hosts : collection of (str, int)
        The hosts, with their ports.
    """

    def __init__(self, hosts: Collection[Host]) -> None:
        self._hosts, self.has_refused = frozenset(hosts), False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        """Its address, for `proxy_url`."""
        threading.Thread(target=self._accept, daemon=True, name="ray_h5_gate").start()

    @classmethod
    def for_hosts(cls, hosts: Collection[Host]) -> Gate:
        """Return the gate of this process to some hosts."""
        return _gates.value.update(frozenset(hosts), lambda known: known or cls(hosts))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # no descriptor is left: connections wait in the backlog
                time.sleep(_REST_S)
                continue
            try:
                threading.Thread(target=self._serve, args=(client,), daemon=True, name="ray_h5_gate").start()
            except RuntimeError:  # no thread is left: obstore connects again
                client.close()

    def _serve(self, client: socket.socket) -> None:
        """Pass the requests of a connection on. All of them are for one host: clients keep connections by host."""
        with client, contextlib.ExitStack() as opened, contextlib.suppress(OSError, ValueError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server, reached, rest = None, None, b""
            while (head_and_rest := _head(client, rest)) is not None:
                head, rest = head_and_rest
                method, target, version = head.split(b"\r\n", 1)[0].split(b" ")
                is_tunnel = method == b"CONNECT"
                host = host_of(f"https://{target.decode()}" if is_tunnel else target.decode())
                # Before a name is looked up: that would already say to others where secrets were to go.
                if host not in self._hosts or (reached is not None and host != reached):
                    self.has_refused = True
                    client.sendall(b"HTTP/1.1 %d Misdirected\r\nContent-Length: 0\r\n\r\n" % _MISDIRECTED)
                    return
                if server is None:
                    reached = host
                    server = opened.enter_context(socket.create_connection(host, _WAIT_S))
                    opened.callback(_end, server)  # to close it would not end the thread that waits for its bytes
                    server.settimeout(None)
                    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if is_tunnel:
                        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    threading.Thread(target=_pass, args=(server, client), daemon=True, name="ray_h5_gate").start()
                # What is encrypted passes as it is: only the host was to be known.
                if is_tunnel:
                    server.sendall(rest)
                    _pass(client, server)
                    return
                # To a proxy, clients write the whole URL; servers expect a path.
                parts = urlsplit(target)
                path = (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
                server.sendall(b" ".join([method, path, version]) + head[head.index(b"\r\n") :])
                # obstore says how long each body is. The next head begins after it.
                length = int(found[1]) if (found := _LENGTH.search(head)) else 0
                server.sendall(rest[:length])
                length, rest = length - len(rest[:length]), rest[length:]
                while length and (piece := client.recv(min(length, _PIECE))):
                    server.sendall(piece)
                    length -= len(piece)


def _head(client: socket.socket, data: bytes) -> tuple[bytes, bytes] | None:
    """Return the next head of a request, and what came after it; None at the end."""
    while b"\r\n\r\n" not in data:
        if len(data) > _MOST_HEAD or not (piece := client.recv(_PIECE)):
            return None
        data += piece
    end = data.index(b"\r\n\r\n") + 4
    return data[:end], data[end:]


def _pass(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, until one side ends; then end the other."""
    with contextlib.suppress(OSError):
        buffer = memoryview(bytearray(_PIECE))
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
    _end(target)


def _end(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
