"""Benches run for their cases, and not for their figures."""

from tests.bench import BenchOptions


def one_turn(size: float, folder: object) -> BenchOptions:
    """Return options of one turn, where people get five at least: a median of fewer says little."""
    options = BenchOptions(size, folder=str(folder))
    object.__setattr__(options, "turns", 1)
    return options
