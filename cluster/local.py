"""Run a Ray program on a cluster on this machine: a head and some nodes, each with processes of its own.

    python cluster/local.py --nodes 3 -- examples/train.py --epochs 2

Every node has its own ports, object store and share of CPUs, so the program runs as on several machines: rows travel
between object stores, and workers start on nodes without the driver. Access to the cluster needs its token, which is in
a file that only this user can read. The dashboard listens on a loopback address, other ports of Ray on all interfaces,
so use this inside a firewall. The program is submitted as a Ray job; its output is shown, and this command exits with
its status. At the end all processes started here are stopped, also after Ctrl-C; other Ray clusters on this machine are
not touched.
"""

# This folder holds programs and configuration, no package.
# ruff: noqa: INP001

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib.util
import ipaddress
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

HOST = "127.0.0.2"
"""The address of the head; nodes get the next ones. Ray replaces 127.0.0.1 by the address that other machines see."""
MIB = 1 << 20
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 10
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class ClusterError(Exception):
    """The cluster did not start, or did not stop."""


class LocalCluster:
    """A head and some nodes on this machine, between `__enter__` and `__exit__`.

    The process that makes one must have no other children: all its descendants are stopped at the end.

    Parameters
    ----------
    nodes : int
        Nodes besides the head.
    cpus_per_node : int
        CPUs of each node. Ray only counts them; no cores are reserved.
    head_cpus : int
        CPUs of the head.
    object_store_mb : int
        Size of each object store in MiB.
    """

    def __init__(self, nodes: int, *, cpus_per_node: int = 1, head_cpus: int = 1, object_store_mb: int = 256) -> None:
        self._nodes = nodes
        self._cpus = cpus_per_node
        self._head_cpus = head_cpus
        self._store_bytes = object_store_mb * MIB
        self._running: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self.folder = Path()
        self.address = ""
        self.dashboard = ""

    def __enter__(self) -> LocalCluster:  # noqa: PYI034  typing.Self needs Python 3.11
        adopt_orphans()
        # Not below TMPDIR: paths of Unix sockets have at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="ray_h5_", dir="/tmp"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that joins this cluster, and no other one."""
        kept = {name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "RAY_AUTH_TOKEN"}}
        return {**kept, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "token")}

    def add_node(self) -> int:
        """Start one more node and return the process id of its ``ray start``."""
        process = self._ray_start("--address", self.address, "--num-cpus", str(self._cpus))
        self._wait_started(len(self._running) - 1)
        return process.pid

    def stop(self) -> None:
        """Stop all processes of the cluster and remove its folder; raise if one survives."""
        for process in reversed(self._running):
            process.terminate()
        _wait_until(lambda: all(process.poll() is not None for process in self._running), STOP_TIMEOUT_S / 2)
        gone = _wait_until(_kill_descendants, STOP_TIMEOUT_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        if not gone:
            raise ClusterError(f"processes {descendants(os.getpid())} of the cluster do not end, not even by SIGKILL")

    def _start(self) -> None:
        write_token(self.folder / "token")
        port, dashboard_port = free_ports(2)
        self.address = f"{HOST}:{port}"
        self.dashboard = f"http://{HOST}:{dashboard_port}"
        self._ray_start(
            "--head", f"--port={port}", f"--num-cpus={self._head_cpus}", "--include-dashboard=true",
            f"--dashboard-host={HOST}", f"--dashboard-port={dashboard_port}", "--disable-usage-stats",
        )  # fmt: skip
        self._wait_started(0)
        for _ in range(self._nodes):
            self._ray_start(f"--address={self.address}", f"--num-cpus={self._cpus}")
        for node in range(self._nodes):
            self._wait_started(1 + node)

    def _ray_start(self, *options: str) -> subprocess.Popen[bytes]:
        node = len(self._running)
        client_port, agent_port = free_ports(2)
        # Each node has its own folder: nodes that start at the same time would use the same sockets.
        folder = self.folder / str(node)
        log = self.folder / f"{node}.log"
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options,
            f"--node-ip-address={_host(node)}", f"--temp-dir={folder}", f"--object-store-memory={self._store_bytes}",
            # The default ports are fixed, and another node on this machine may use them.
            "--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={agent_port}",
            *([f"--ray-client-server-port={client_port}"] if node == 0 else []),
        ]  # fmt: skip
        with open(log, "wb") as output:
            process = subprocess.Popen(  # noqa: S603  all arguments are from this file
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process alone, which stops the nodes in order
                preexec_fn=_end_with_parent,  # noqa: PLW1509  no thread runs yet
            )
        self._running.append(process)
        self._logs.append(log)
        return process

    def _wait_started(self, node: int) -> None:
        process, log = self._running[node], self._logs[node]

        def started() -> bool:
            return process.poll() is not None or b"Ray runtime started" in log.read_bytes()

        done = _wait_until(started, START_TIMEOUT_S)
        if not done or process.poll() is not None:
            text = log.read_text(errors="replace")[-3000:]
            raise ClusterError(
                f"{'the head' if node == 0 else f'node {node}'} did not start. `ray start` said:\n{text}"
            )


def _host(node: int) -> str:
    """Return the address of a node: every address in 127.0.0.0/8 is this machine."""
    return str(ipaddress.ip_address(HOST) + node)


def write_token(path: Path) -> None:
    """Write a new random token that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


# Processes ------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux), so that `descendants` finds all of them.

    Ray starts workers and jobs in process groups of their own, which signals to the group of a node do not reach.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ClusterError(f"prctl: {os.strerror(ctypes.get_errno())}")


def _end_with_parent() -> None:
    """Get SIGTERM when the parent ends: it may be killed before it can stop its nodes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return the process ids below `root`; zombies do not count."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, parent = _state_and_parent(int(entry))
            if state != "Z":
                children.setdefault(parent, []).append(int(entry))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "Z", 0  # the process has ended meanwhile
    # The name of the program is in parentheses and may hold any character.
    state, parent = text[text.rindex(")") + 1 :].split()[:2]
    return state, int(parent)


def _kill_descendants() -> bool:
    """Send SIGKILL to all descendants; return whether there was none."""
    pids = descendants(os.getpid())
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return not pids


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until `condition` is true; return whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# The job --------------------------------------------------------------------------------------


def run_job(cluster: LocalCluster, command: list[str]) -> int:
    """Submit a Python program as a Ray job, show its output, and return its exit status."""
    os.environ.update({name: cluster.environment[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")})
    client = _connect(cluster.dashboard)
    program = shlex.join([sys.executable, *command])
    # Relative paths among the arguments start from the current folder of this process.
    job = client.submit_job(entrypoint=f"cd {shlex.quote(str(Path.cwd()))} && exec {program}")
    return asyncio.run(_follow(client, job))


def _connect(url: str) -> JobSubmissionClient:
    from ray.job_submission import JobSubmissionClient

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return JobSubmissionClient(url)
        except (ConnectionError, RuntimeError) as error:  # the dashboard starts a little later than the node
            if time.monotonic() > deadline:
                raise ClusterError(f"the job server at {url} does not answer: {error}") from error
        time.sleep(0.5)


async def _follow(client: JobSubmissionClient, job: str) -> int:
    shown = 0
    while True:
        read = 0
        async for text in client.tail_job_logs(job):
            # After an interruption the log comes from its beginning again.
            print(text[max(0, shown - read) :], end="", flush=True)
            read += len(text)
            shown = max(shown, read)
        info = client.get_job_info(job)
        if info.status.is_terminal():
            break
        await asyncio.sleep(0.5)
    if info.status == "SUCCEEDED":
        return 0
    # The message ends with the last lines of the output, which were shown already.
    print(f"the job {info.status.lower()}: {(info.message or '').partition(', last available')[0]}", file=sys.stderr)
    return info.driver_exit_code or 1


# The command ----------------------------------------------------------------------------------


def main() -> int:
    """Run the command line; return its exit status."""
    arguments = parse_arguments()
    if importlib.util.find_spec("aiohttp_cors") is None or importlib.util.find_spec("opencensus") is None:
        raise SystemExit("Ray's job server is not installed: python -m pip install 'ray[default]'")
    signal.signal(signal.SIGTERM, _interrupt)
    cpus = arguments.head_cpus + arguments.nodes * arguments.cpus_per_node
    print(f"starting a head and {arguments.nodes} nodes with {cpus} CPUs in all", flush=True)
    try:
        with LocalCluster(
            arguments.nodes,
            cpus_per_node=arguments.cpus_per_node,
            head_cpus=arguments.head_cpus,
            object_store_mb=arguments.object_store_mb,
        ) as cluster:
            return run_job(cluster, arguments.command)
    except KeyboardInterrupt:
        print("interrupted; the cluster is stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except ClusterError as error:
        raise SystemExit(str(error)) from error


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Run a Python program on a Ray cluster of several nodes on this machine.",
        usage="%(prog)s [options] -- program.py [arguments]",
    )
    parser.add_argument("--nodes", type=_count, default=2, help="nodes besides the head (default: %(default)s)")
    parser.add_argument("--cpus-per-node", type=_count, default=1, help="CPUs of a node (default: %(default)s)")
    parser.add_argument(
        "--head-cpus", type=int, default=1, help="CPUs of the head: room for one training worker (default: %(default)s)"
    )
    parser.add_argument("--object-store-mb", type=_count, default=256, help="of each node (default: %(default)s)")
    parser.add_argument("command", nargs="+", help="a Python program and its arguments, after --")
    return parser.parse_args()


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
