"""The batches of a share of an epoch, read ahead in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ray_h5.loading.prefetch_threads import ahead
from ray_h5.loading.rank_shares import Share
from ray_h5.loading.read_calls import Call, Calls, Task, finished
from ray_h5.loading.row_source import RowSource
from ray_h5.order.execute_plan import BlockRows
from ray_h5.order.remaining_blocks import Block
from ray_h5.storage.stop_waiting import Stop


@dataclass(frozen=True)
class BatchReader:
    """The batches of a share of an epoch, read ahead in threads of this process.

    Each iteration reads the share from its beginning. A batch is a `Block`, with the columns of the files as arrays,
    its row ids, positions, epoch and seed, or what `make` and `finish` make of it. Columns of tables beside the files
    are not in it.

    Attributes
    ----------
    source : RowSource
        What reads rows. It has the open files and the rows in memory, and serves all epochs.
    share : Share
        Which rows.
    batch_rows : int
        Rows of a batch; the last one may have fewer.
    threads : int
        Threads that read; 0 reads in the thread that asks.
    drop_last : bool
        Whether a last batch that is smaller is left out.
    make : callable, optional
        Called with each batch in a thread that reads: in any order, several at a time.
    finish : callable, optional
        Called with what `make` returned, in order, one after the other, in one more thread that works ahead.
    """

    source: RowSource
    share: Share
    batch_rows: int
    threads: int = 2
    drop_last: bool = False
    make: Callable[[Block], Any] = lambda block: block
    finish: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        stop, plan, share = Stop(), self.source.plan, self.share
        full, rest = divmod(len(share), self.batch_rows)
        batches = share.batches(self.batch_rows, whole=self.drop_last)
        calls = Calls(
            source=self.source,
            batches=(Task(indices, positions=positions) for positions, indices in batches),
            num_batches=full + bool(rest and not self.drop_last),
            batch_rows=self.batch_rows,
            row_bytes=lambda: plan.row_bytes,
            order=share.order,
            threads=self.threads,
            what=plan.__repr__,
            stop=stop,
        )
        made = finished(calls.read(self._read), self.finish or (lambda batch: batch))
        return made if self.finish is None or not self.threads else ahead(made, stop)

    def _read(self, call: Call) -> list[Any]:
        """Read some batches by one call."""
        source, share, made = self.source, self.share, []
        arrays = call.read(source.new_arrays, source.read_into)
        row_ids, _ = source.split(call.indices)
        keys = source.step_numbers(row_ids)
        for task, at in zip(call.batches, call.parts, strict=True):
            assert task.positions is not None
            of_batch = {name: values[at] for name, values in arrays.items()}
            rows = BlockRows(row_ids[at], of_batch, key_numbers=None if keys is None else keys[at])
            made.append(self.make(Block(rows, task.positions, share.start.epoch, share.order.seed)))
        return made
