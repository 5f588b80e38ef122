"""A server of files for benches and tests: path-style S3 and plain HTTP, with latency, limits and faults.

It needs the standard library alone, and runs in the process that uses it, or in one of its own::

    with FaultServer("folder") as server:  # folder/bucket/key
        server.fail("status", status=503, share=0.05)
        ...
        assert len(server.requests()) <= 12
"""

from tests.kit.fault_server.faults import Fault, Request
from tests.kit.fault_server.server import FaultServer, ServerProcess

__all__ = ["Fault", "FaultServer", "Request", "ServerProcess"]
