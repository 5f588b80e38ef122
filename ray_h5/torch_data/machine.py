"""What this process may use of the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Return how many CPUs this process may keep busy: its affinity, bounded by its cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the CPUs that a container is limited to, by version 2 or 1 of the interface; None for no limit."""
    both = _words(cgroup / "cpu.max")
    if len(both) == 2:
        return None if both[0] == "max" else int(both[0]) / int(both[1])
    quota, period = (_words(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if not quota or not period or int(quota[0]) <= 0:
        return None
    return int(quota[0]) / int(period[0])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # no such file: another version of the interface, or none
        return []


def free_shared_memory(folder: str = "/dev/shm") -> int | None:  # noqa: S108  where Linux has it
    """Return the free bytes of shared memory, which loader workers send batches through; None without it."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
