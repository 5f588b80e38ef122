"""Read damaged files: ``python -m tests.fuzz --files N [--seed S] [--seconds T] [--only S:NUMBER]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import run_all


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Read damaged files, with h5py as oracle."
    )
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=10, help="seconds that reading one file may take")
    parser.add_argument("--only", metavar="SEED:NUMBER", help="one file, as a finding names it")
    parser.add_argument("--verbose", action="store_true", help="list the crashes of libhdf5 too")
    given = parser.parse_args()
    seed, numbers = given.seed, range(given.files)
    if given.only:
        seed, number = (int(part) for part in given.only.split(":"))
        numbers = range(number, number + 1)
    with tempfile.TemporaryDirectory() as folder:
        summary = run_all(Path(folder), seed, numbers, given.seconds, given.timeout, given.processes)
    if given.verbose or given.only:
        print(*summary.contained, sep="\n")
    print(*(f"{count:6} {reason}" for reason, count in summary.reasons.most_common()), sep="\n")
    print(summary)
    return bool(summary.findings)


if __name__ == "__main__":
    sys.exit(main())
