"""Whatever dies, every row arrives once and unchanged, or there is an error with a name."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.integration.conftest import start
from tests.integration.kit import wait_gone


def whole(rows):
    """What an epoch looks like that delivered each row once."""
    return {"rows": rows, "once": rows, "twice": 0, "differing": 0}


def parts(result, *names):
    return {name: result[name] for name in names}


@pytest.mark.nightly
@pytest.mark.parametrize(("kills", "blocks"), [pytest.param(3, 40, id="3"), pytest.param(20, 160, id="20")])
def test_workers_are_killed_amid_tasks(play, kills, blocks):
    result = play("worker_killed", limit_s=240, kills=kills, blocks=blocks)
    assert result.pop("killed") == kills
    assert result.items() >= whole(16 * blocks).items()


@pytest.mark.nightly
def test_a_node_is_lost_and_another_joins_three_times(play):
    result = play("node_lost", limit_s=300, times=3, blocks=80)
    assert result.pop("lost") == 3
    assert result == whole(1280)


def can_make_namespaces():
    if shutil.which("ip") is None or shutil.which("nsenter") is None or shutil.which("unshare") is None:
        return False
    probe = "ip link set lo up && ip link add name h5near type veth peer name h5far"
    return subprocess.run(["unshare", "--net", "sh", "-c", probe], capture_output=True, check=False).returncode == 0


@pytest.mark.nightly
@pytest.mark.skipif(not can_make_namespaces(), reason="this user cannot make network namespaces joined by veth")
def test_a_node_is_cut_off_the_network(play):
    result = play("partitioned", limit_s=300, prefix=["unshare", "--net"], blocks=40)
    assert result["alive"] == ["10.77.0.1"]
    assert result["seconds"] < 180
    assert result.items() >= whole(640).items()


@pytest.mark.nightly
def test_an_object_store_too_small_spills(play):
    result = play("spill", limit_s=180, mb=160)
    assert result["spilled_mb"] > 40, "hardly anything was spilled: the test does not test"
    assert result.items() >= whole(3200).items()


def test_a_file_that_kills_its_reader_is_an_error_soon(play):
    result = play("poison", limit_s=150)  # without an end it would be stopped
    assert "ReadFailedError" in result["errors"]
    assert parts(result, "twice", "differing") == {"twice": 0, "differing": 0}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"kinds": ["short", "EIO", "slow", "ESTALE"], "seconds": 0.1, "every": 15}, id="all"),
        pytest.param({"kinds": ["EIO"], "every": 50}, id="EIO"),
        pytest.param({"kinds": ["ESTALE"], "every": 50}, id="ESTALE"),
        pytest.param({"kinds": ["short"], "every": 2}, id="short"),
        pytest.param({"kinds": ["slow"], "seconds": 0.2, "every": 10}, id="slow"),
    ],
)
def test_reads_fail_or_are_short_or_slow(play, faults):
    result = play("bad_reads", limit_s=120, faults=faults)
    assert result.items() >= whole(256).items()


@pytest.mark.parametrize("how", ["replaced", pytest.param("truncated", marks=pytest.mark.nightly)])
def test_a_file_that_changes_amid_an_epoch_is_an_error(play, how):
    result = play("file_changed", limit_s=120, how=how)
    assert {"StaleIndexError", "TruncatedFileError"} & set(result["errors"])
    assert "part_1.h5" in result["message"]
    assert result["once"] < result["rows"]
    assert parts(result, "twice", "differing") == {"twice": 0, "differing": 0}


def test_ctrl_c_leaves_no_process(folder, capsys):
    child = start([sys.executable, "-m", "tests.integration.scenarios", "driver_loop", "{}", folder])
    process = psutil.Process(child.pid)
    assert "reading" in iter(child.stdout.readline, "").__next__()
    below = process.children(recursive=True)
    assert len(below) > 3
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    alive = wait_gone([process, *below], 10)
    seconds = time.monotonic() - began
    for each in [process, *below]:
        with contextlib.suppress(psutil.Error):
            each.kill()
    child.communicate()
    with capsys.disabled():
        print(f"\nctrl_c: {len(below)} processes gone in {seconds:.1f} s ", end="")
    assert alive == []


@pytest.mark.nightly
def test_soak(play, capsys):
    result = play("soak", limit_s=2100, nodes=2, epochs=200, kill_every=10)
    with capsys.disabled():
        print("\n" + "\n".join(map(str, result["samples"])))
    assert result["bad"] == []
    assert result["killed"] > 0
    settled = result["samples"][len(result["samples"]) // 4 :]
    grown = {"descriptors": 20, "read_descriptors": 4, "private_mb": 150, "cluster_mb": 600, "processes": 8}
    for what, allowed in grown.items():
        assert settled[-1][what] <= settled[0][what] + allowed, what


@pytest.mark.nightly
@pytest.mark.parametrize("by", ["tasks", "trainer"])
def test_readers_stay_on_their_nodes_and_leave_trainers_their_cpus(play, by):
    result = play("placement", limit_s=180, by=by)
    assert result["node_readers"] == ["reader"]
    assert 1 <= result["most_readers"] <= 2
    assert result.items() >= whole(640).items()
