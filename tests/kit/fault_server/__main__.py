"""``python -m tests.kit.fault_server FOLDER``: serve a folder until Ctrl-C. The first line printed is the endpoint."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading

from tests.kit.fault_server.server import FaultServer


def main() -> None:
    """Serve a folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.fault_server", description=__doc__)
    parser.add_argument("folder", help="folder/bucket/key is the object `key` of `bucket`")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, help="bytes a second of one stream")
    parser.add_argument("--total", type=float, help="bytes a second of all streams together")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end with the program that started this one")
    given = parser.parse_args()
    limits = {"latency": given.latency, "rate": given.rate, "total": given.total}
    with FaultServer(given.folder, port=given.port, **limits) as server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        if given.until_stdin_ends:
            sys.stdin.read()
        else:
            threading.Event().wait()


if __name__ == "__main__":
    main()
