"""Damage files, read them, and judge what came of it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ray_h5 import errors
from tests.conformance.corpus import CASES
from tests.fuzz.children import Outcome, by_h5py, by_listed_chunks, by_ours, in_child
from tests.fuzz.mutate import Healthy, healthy, mutated

LARGEST_BYTES = 200_000
# Code that calls no libhdf5, and code that does.
OUR_READING = (
    "storage/",
    "codecs/",
    "read/arrays/",
    "read/stored_items.py",
    "buffers.py",
)
CALLS_LIBRARY = (
    "hdf5/tree/", "manifest/chunk_index.py", "read/open_file_base.py",
    "read/library_filters.py", "hdf5/format/object_headers.py", "read/virtual_columns.py",
)  # fmt: skip
IDENTICAL, OURS, BOTH, LIBRARY = "identical", "ours refused", "both refused", "libhdf5 crashed"
DIFFERENT = "different"
# Known: the chunks that libhdf5 lists are not always those that its look-up finds in a damaged B-tree.
LISTED = "as libhdf5 lists the chunks, and not as h5py finds them"


@dataclass
class Summary:
    """What has come of the files so far."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    contained: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Summary) -> None:
        """Take in what came of other files, read at the same time."""
        self.counts += other.counts
        self.reasons += other.reasons
        self.findings += other.findings
        self.contained += other.contained
        self.seconds = max(self.seconds, other.seconds)

    def __str__(self) -> str:
        files = sum(self.counts.values())
        rate = files / self.seconds if self.seconds else 0.0
        parts = ", ".join(f"{self.counts[kind]} {kind}" for kind in (IDENTICAL, OURS, BOTH, LIBRARY, LISTED, "finding"))
        return f"{files} files in {self.seconds:.0f} s ({rate:.0f}/s): {parts}"


def healthy_files(folder: Path) -> list[Healthy]:
    """Write the small files of the corpus that nothing is wrong with, and read each.

    All children then share what this imports and loads; otherwise each would do it again.
    """
    found = []
    for number, case in enumerate(case for case in CASES if case.healthy):
        path = folder / f"healthy{number}.h5"
        case.make(path)
        if path.stat().st_size <= LARGEST_BYTES:
            found.append(healthy(case.name, path))
            by_h5py(str(path), list(by_ours(str(path))))
        path.unlink()
    return found


def run_all(
    folder: Path, seed: int, numbers: Sequence[int], seconds: float, timeout_s: float, processes: int
) -> Summary:
    """Share the numbers among processes."""
    summary, folders = Summary(), [folder / str(part) for part in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        parts = [
            pool.submit(run, each, seed, numbers[part::processes], seconds, timeout_s)
            for part, each in enumerate(folders)
        ]
        for part in parts:
            summary.add(part.result())
    return summary


def run(folder: Path, seed: int, numbers: Iterable[int], seconds: float, timeout_s: float) -> Summary:
    """Read the damaged files of `seed` with these numbers, as long as there is time."""
    folder.mkdir(exist_ok=True)
    files, summary, start = healthy_files(folder), Summary(), time.monotonic()
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        file = files[number % len(files)]
        data, words = mutated(file, rng)
        path = folder / "damaged.h5"
        path.write_bytes(data)
        kind, why = judge(str(path), timeout_s)
        if kind in {OURS, BOTH}:
            summary.reasons.update(reasons := [reason_of(refusal) for refusal in why.split("; !")])
            kind = kind if all(reasons) else "finding"
        if kind == DIFFERENT:
            kind = LISTED if _as_listed(str(path), timeout_s) else "finding"
        path.unlink()
        summary.counts[kind] += 1
        line = f"--only {seed}:{number} ({file.name}; {words}): {why}"
        if kind == "finding":
            summary.findings.append(line)
            print("FINDING", line, flush=True)
        elif kind in {LIBRARY, LISTED}:
            summary.contained.append(line)
        summary.seconds = time.monotonic() - start
        if summary.seconds > seconds:
            break
    return summary


def judge(path: str, timeout_s: float) -> tuple[str, str]:
    """Read one file both ways, and return what kind of outcome it is and why."""
    ours = in_child(partial(by_ours, path), timeout_s)
    if ours.values is None:
        return _crashed(ours, path, timeout_s)
    for name, value in ours.values.items():
        if value.startswith("!unexpected"):
            return "finding", f"column {name!r}: {value[1:]}"
    read = [name for name, value in ours.values.items() if not value.startswith("!")]
    theirs = in_child(partial(by_h5py, path, list(ours.values)), timeout_s)
    if theirs.values is None:
        # h5py crashed on something that was refused here, or that was read without it.
        return LIBRARY, f"only h5py, {theirs.failure}"
    if "" not in ours.values:
        lost = [name for name in theirs.values if name and name not in ours.values]
        if lost:
            return "finding", f"columns {lost} are not listed"
    for name in read:
        if theirs.values.get(name) != ours.values[name]:
            return DIFFERENT, f"column {name!r}: {ours.values[name]} differs from h5py's {theirs.values.get(name)}"
    if len(read) == len(ours.values):
        return IDENTICAL, ""
    refused = [name for name in ours.values if name not in read]
    all_refused = "" in theirs.values or all(theirs.values.get(name, "!").startswith("!") for name in refused)
    return (BOTH if all_refused else OURS), "; ".join(ours.values[name] for name in refused)


def reason_of(refusal: str) -> str:
    """Return why a file or column was refused, without its names and numbers; empty if the error says nothing."""
    kind, _, said = refusal.lstrip("!").partition(": ")
    said = re.sub(r"(/[^ :]+)+|'[^']*'|\d+", "_", said).removeprefix("_: ").removeprefix("column _: ")
    is_ours = isinstance(getattr(errors, kind, None), type) and kind != "RayH5Error"
    return f"{kind}: {said[:70]}" if kind == "large rows" or (is_ours and len(said) > len("_")) else ""


def _as_listed(path: str, timeout_s: float) -> bool:
    """Tell whether each column that differs from h5py's holds what is in the chunks that libhdf5 lists."""
    ours = in_child(partial(by_ours, path), timeout_s).values or {}
    read = [name for name, value in ours.items() if not value.startswith("!")]
    theirs = in_child(partial(by_h5py, path, read), timeout_s).values or {}
    others = [name for name in read if ours[name] != theirs.get(name)]
    listed = in_child(partial(by_listed_chunks, path, others), timeout_s).values or {}
    return bool(others) and all(listed.get(name) == ours[name] for name in others)


def _crashed(ours: Outcome, path: str, timeout_s: float) -> tuple[str, str]:
    places = [line.strip() for line in ours.trace.splitlines() if line.strip().startswith("File ")]
    top = places[0] if places else "unknown"
    why = f"{ours.failure} at {top}"
    if any(f"ray_h5/{name}" in top for name in OUR_READING) or "imagecodecs" in top:
        return "finding", why
    theirs = in_child(partial(by_h5py, path, []), timeout_s)
    if theirs.failure or "h5py" in top or _calls_library(top):
        return LIBRARY, f"{why}; h5py: {theirs.failure or 'no failure'}"
    return "finding", why


def _calls_library(place: str) -> bool:
    return any(f"ray_h5/{name}" in place for name in CALLS_LIBRARY)
