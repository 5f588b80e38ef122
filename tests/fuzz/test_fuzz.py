"""A short run; `python -m tests.fuzz` makes long ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ray_h5
from ray_h5 import RowReader
from tests.fuzz import campaign, pipelines
from tests.fuzz.campaign import BOTH, CALLS_LIBRARY, IDENTICAL, OUR_READING, judge, run, run_all
from tests.kit.files import save


@pytest.mark.parametrize(
    "files", [pytest.param(74, marks=pytest.mark.slow), pytest.param(210, marks=pytest.mark.nightly)]
)
def test_damage_is_refused_or_harmless(tmp_path: Path, files: int) -> None:
    """With 74 each healthy file is damaged once. A new process forks many times faster than one with all tests."""
    summary = run_all(tmp_path, 0, range(files), seconds=300, timeout_s=10, processes=1)
    assert not summary.findings
    assert sum(summary.counts.values()) == files, str(summary)
    assert {BOTH, IDENTICAL} <= set(summary.counts), str(summary)


@pytest.mark.slow
def test_processes_share_the_files(tmp_path: Path) -> None:
    alone = run(tmp_path, seed=3, numbers=range(12), seconds=300, timeout_s=10)
    shared = run_all(tmp_path, 3, range(12), seconds=300, timeout_s=10, processes=2)
    assert shared.counts == alone.counts
    assert sorted(shared.contained) == sorted(alone.contained)


# What the long runs rely on: a fault is seen -----------------------------------------------------


def test_places_of_crashes_exist() -> None:
    package = Path(ray_h5.__file__).parent
    assert all((package / name).exists() for name in (*OUR_READING, *CALLS_LIBRARY))


def _wrong_values(path: str) -> dict[str, str]:
    return {"x": "<i8 (5,) of other values"} if path else {}


def _lost_column(path: str) -> dict[str, str]:
    return {} if path else {"x": ""}


def _unexpected(path: str) -> dict[str, str]:
    return {"x": f"!unexpected ZeroDivisionError in {path}"}


def _crash(path: str) -> dict[str, str]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {"x": path}


def _hang(path: str) -> dict[str, str]:
    time.sleep(60)
    return {"x": path}


@pytest.mark.parametrize("fault", [_wrong_values, _lost_column, _unexpected, _crash, _hang])
def test_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[str], object]) -> None:
    path = save(tmp_path / "a.h5", {"x": np.arange(5)})
    assert judge(path, 5) == ("identical", "")
    monkeypatch.setattr(campaign, "by_ours", fault)
    assert judge(path, 1)[0] in {"finding", campaign.DIFFERENT}


def test_errors_that_are_not_ours_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    path = save(tmp_path / "a.h5", {"x": np.arange(5)})
    monkeypatch.setattr(RowReader, "read", broken)
    kind, why = judge(path, 5)
    assert kind == "finding"
    assert "ZeroDivisionError" in why


@pytest.mark.slow
def test_random_pipelines_read_what_h5py_reads() -> None:
    counts, wrong = pipelines.run(seed=1, seconds=300, most=40)
    assert not wrong
    assert counts["read"] > 10, counts
