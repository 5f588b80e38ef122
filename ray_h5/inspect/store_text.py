"""The cost of files in a store as text."""

from __future__ import annotations

from collections.abc import Iterator

from ray_h5.inspect.store_cost import StoreReport
from ray_h5.inspect.table import size

_FEW_REQUESTS = 8
_FEW_ROUNDS = 3
"""A file that opens with more has its metadata in many places."""

_PAGES = [1 << 20, 2 << 20, 4 << 20, 8 << 20]


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
        page = _page_bytes(cost.nbytes)
        yield (
            f"its metadata is in many places. To gather it in pages: `h5repack -S PAGE -G {page} in.h5 out.h5`, or "
            f'write with h5py.File(path, "w", fs_strategy="page", fs_page_size={page})'
        )


def _page_bytes(nbytes: int) -> int:
    """Return the size of a page that holds the metadata of a file: each page is fetched by a request of its own."""
    return next((each for each in _PAGES if each >= nbytes), _PAGES[-1])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
