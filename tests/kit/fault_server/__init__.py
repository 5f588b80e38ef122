"""A server of files for benches and tests: path-style S3 and plain HTTP, with latency, limits and faults.

It needs the standard library alone, and runs in the process that uses it or as a program::

    with FaultServer("folder") as server:  # folder/bucket/key
        server.fail("status", status=503, share=0.05)
        ...
        assert len(server.requests()) <= 12
"""

from tests.kit.fault_server.faults import Fault
from tests.kit.fault_server.program import ServerProcess
from tests.kit.fault_server.requests import Request
from tests.kit.fault_server.server import FaultServer

__all__ = ["Fault", "FaultServer", "Request", "ServerProcess"]
