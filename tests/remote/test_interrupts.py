"""Ctrl-C, the end of a process, and forks, while requests are under way. Each runs in a process with a time limit."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.remote.kit import ROWS, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("files")]

HEAD = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    from tests.remote.kit import check_epoch, epoch_of, options_of
    from ray_h5.errors import RayH5Error
    from ray_h5 import RowReader
    from ray_h5.torch_data import H5Dataset, create_optimized_dataloader

    class server:
        url = sys.argv[1]
"""


def program(server, code, **options):
    text = textwrap.dedent(HEAD) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", text, server.url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options,
    )  # fmt: skip


def ends(child, limit_s):
    """Return what a program printed; if it hangs, kill it and its children."""
    try:
        return child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, errors = child.communicate()
        pytest.fail(f"it hangs\n{out}\n{errors}")


STALLED = {
    "listing": 'H5Dataset("s3://bkt/*.h5", storage_options=options)',
    "reader": 'RowReader("s3://bkt/run_0.h5", storage_options=options).read(["x"])',
    "loader": """
        batches = iter(epoch_of("s3://bkt/*.h5", server, storage_options=options))
        next(batches)
        urllib.request.urlopen(server.url + "/bkt/run_0.h5?stall")
        for _ in batches:
            pass
    """,
}


@pytest.mark.parametrize("what", STALLED)
def test_ctrl_c_ends_a_stalled_request(server, what):
    if what == "loader":  # planning goes well
        server.before_answer = lambda request: "stall" in request.query and server.fail("stall")
    else:
        server.fail("stall")
    code = f"""
import urllib.request
options = options_of(server, read_timeout=60, timeout=60)
try:
    {textwrap.indent(textwrap.dedent(STALLED[what]), " " * 4)}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    child = program(server, code)
    deadline = time.monotonic() + 30
    while not any("stall" in each.faults for each in server.requests()) and time.monotonic() < deadline:
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    begin = time.monotonic()
    ready = select.select([child.stdout], [], [], 10)[0]
    assert ready, ends(child, 0.1)
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - begin < 1.5
    _, errors = ends(child, 10)  # nothing waits for the requests at the end, either
    assert (child.returncode, errors) == (0, "")


def test_a_process_ends_while_requests_stall(server):
    code = """
    epoch = iter(epoch_of("s3://bkt/*.h5", server, storage_options=options_of(server, read_timeout=60)))
    next(epoch)
    import urllib.request
    urllib.request.urlopen(server.url + "/bkt/run_0.h5?stall")
    next(epoch)
    print("done", flush=True)
    """
    server.latency = 0.02
    server.before_answer = lambda request: "stall" in request.query and server.fail("stall", after=2)
    child = program(server, code)
    assert child.stdout.readline() == "done\n"
    _, errors = ends(child, 10)
    assert (child.returncode, errors) == (0, "")
    assert any("stall" in each.faults for each in server.requests())


def test_what_a_fork_may_do(server):
    code = """
    from torch.utils.data import DataLoader
    dataset = H5Dataset("s3://bkt/*.h5", columns=["id"], storage_options=options_of(server))
    dataset[0]
    try:
        next(iter(DataLoader(dataset, num_workers=1, multiprocessing_context="fork")))
    except Exception as exc:
        print("forkserver" in str(exc) or repr(exc), flush=True)
    given = {"load_fields": ["id"], "storage_options": options_of(server)}
    if __name__ == "__main__":
        batches = create_optimized_dataloader("s3://bkt/*.h5", batch_size=8, num_workers=1, **given)
        print(sum(len(batch["id"]) for batch in batches))
    """
    out, errors = ends(program(server, code), 60)
    assert out.split() == ["True", str(2 * ROWS)], errors


def test_a_fork_before_the_first_request_reads(server, bucket):
    write(bucket / "run_0.h5")
    code = """
    child = os.fork()
    if not child:
        found = RowReader("s3://bkt/run_0.h5", storage_options=options_of(server)).read(["id"])["id"]
        os._exit(len(found))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    out, errors = ends(program(server, code), 30)
    assert out.split() == [str(ROWS)], errors
