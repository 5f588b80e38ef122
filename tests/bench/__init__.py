"""Benchmarks: ray_h5 against plain ways to do the same, on generated files, in one run on one machine.

Importing this package is cheap: a bench imports what it measures when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from ray_h5.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.bench.measure import Result

__all__ = ["BENCHES", "BenchOptions"]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of a bench.

    Parameters
    ----------
    size
        Scales the number of rows of every workload; the goals are meant for 1.0.
    turns
        Timed turns of each contestant, at least five.
    folder
        The folder of the workloads; by default a folder of this user below the system's temporary folder.
    cases
        The cases to measure, of a bench that can leave some out; by default all.

    Raises
    ------
    OptionError
        If `size` is not positive, or `turns` is below five.
    """

    size: float = 1.0
    turns: int = 5
    folder: str | None = None
    cases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.size > 0:
            raise OptionError(f"size={self.size!r}: expected a number above 0")
        if self.turns < 5:
            raise OptionError(f"turns={self.turns!r}: expected 5 or more; a median of fewer says little")


def _bench(module: str, name: str) -> Callable[[BenchOptions], list[Result]]:
    def run(options: BenchOptions) -> list[Result]:
        results = list(getattr(import_module(f"tests.bench.cases.{module}"), f"bench_{name}")(options))
        # Smaller workloads measure what each call costs, not what the goals are about.
        return results if options.size >= 1 else [replace(result, ok=None) for result in results]

    return run


BENCHES: Mapping[str, Callable[[BenchOptions], list[Result]]] = MappingProxyType(
    {
        "augment": _bench("augment", "augment"),
        "cold": _bench("cold", "cold"),
        "draws": _bench("draws", "draws"),
        "fields": _bench("fields", "fields"),
        "filter": _bench("filtering", "filter"),
        "fit": _bench("fit", "fit"),
        "gpu": _bench("gpu", "gpu"),
        "groups": _bench("groups", "groups"),
        "images": _bench("images", "images"),
        "loader": _bench("loader", "loader"),
        "patches": _bench("patches", "patches"),
        "peers": _bench("peers", "peers"),
        "plan": _bench("plan", "plan"),
        "ray": _bench("ray_data", "ray"),
        "read": _bench("read", "read"),
        "remote": _bench("remote", "remote"),
        "repack": _bench("repack", "repack"),
        "scaling": _bench("scaling", "scaling"),
        "shuffle": _bench("shuffle", "shuffle"),
        "sparse": _bench("sparse", "sparse"),
        "train": _bench("train", "train"),
        "virtual": _bench("virtual", "virtual"),
        "windows": _bench("windows", "windows"),
    }
)
"""The benches by name, as ``python -m tests.bench NAME`` runs them."""
