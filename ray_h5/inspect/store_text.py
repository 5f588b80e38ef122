"""The cost of files in a store as text."""

from __future__ import annotations

from collections.abc import Iterator

from ray_h5.inspect.store_cost import StoreReport
from ray_h5.inspect.table import size

_FEW_REQUESTS = 8
_FEW_ROUNDS = 3
"""A file that opens with more has its metadata in many places."""


def lines_of(report: StoreReport) -> Iterator[str]:
    """Yield the report as text."""
    cost = report.opening
    yield (
        f"opened with {_many(cost.requests, 'request')} of {size(cost.nbytes)} in all, in {_many(cost.rounds, 'round')}"
        f" ({report.path}); none with index_dir, from the second run on"
    )
    for each in report.epochs:
        yield (
            f"an epoch {each.order}: about {_many(each.requests, 'request')}, {size(each.nbytes)}, {each.waste:.1f} "
            "times the bytes of the rows"
        )
    if cost.requests > _FEW_REQUESTS or cost.rounds > _FEW_ROUNDS:
        yield (
            "its metadata is in many places. To gather it in pages: `h5repack -S PAGE -G 1048576 in.h5 out.h5`, or "
            'write with h5py.File(path, "w", fs_strategy="page", fs_page_size=1 << 20)'
        )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
