"""The ranks of a training run in one process, in each mode: of plain PyTorch, of a Ray dataset, and of Ray Train."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch.utils.data import DataLoader

from ray_h5.torch_data import H5Dataset, OrderBatchSampler, OrderSampler, loader
from tests.training_runs.data import BLOCK, PARTS

OF_TORCH = ("loader", "batch sampler", "sampler")
"""`loader` in threads, and DataLoaders with samplers; a DataLoader has no batches of its own for single indices."""

OF_RAY = ("ray loader", "workers", "tasks", "local")
"""`loader` of a Ray dataset; the shards that a trainer gives to its workers, with each way of reading; and what
`train_batches` makes in a trainer's local mode."""

OF_PROCESSES = ("processes", "split")
"""`loader` with workers; and what a trainer gives to its workers where tasks of Ray read, in Ray's processes."""


@dataclass(frozen=True)
class Leg:
    """How ranks read a part of an epoch."""

    mode: str = "loader"
    world: int = 1
    batch: int = 7
    drop_last: bool = False
    block_rows: int | None = None
    """Of a Ray dataset, whose tail is else that of a loader of files."""
    options: dict = field(default_factory=dict, compare=False)
    """What changes no row."""

    @property
    def advances(self):
        """Whether each iteration is the next epoch."""
        return self.mode not in ("batch sampler", "sampler")

    @property
    def lost(self):
        """At most so many rows are left out, and so many come twice."""
        if self.drop_last:
            return self.world * self.batch - 1, 0
        return (self.world - 1, 0) if self.keeps_tail else (0, self.world - 1)

    @property
    def keeps_tail(self):
        return self.block_rows is not None and self.mode != "ray loader"

    @property
    def like(self):
        """Ranks whose steps are those of these ranks."""
        if self.block_rows is not None:
            mode = "ray loader" if self.mode == "ray loader" else "workers"
        else:
            mode = self.mode if self.mode == "sampler" and self.drop_last else "loader"
        return Leg(mode, self.world, self.batch, self.drop_last, self.block_rows)


def samples_of(batch):
    """Return the rows of a batch as dicts of arrays."""
    columns = {name: list(values) for name, values in batch.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_array(value):
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def ranks_of(data, leg, state=None, epoch=0):
    return (OfRay if leg.mode in (*OF_RAY, "split") else Ranks)(data, leg, state, epoch)


class Ranks:
    """Each rank has a loader or sampler, over a dataset that all of them share."""

    def __init__(self, data, leg, state=None, epoch=0):
        self.data, self.leg, self.rows = data, leg, data.rows()
        self.holders = self.made(**leg.options)
        self.begin(epoch, state)
        self.has_state = leg.mode in ("loader", "batch sampler", "processes", "ray loader")
        """Whether a state can be asked for: not after a sampler was asked for more than there is, and not between an
        epoch that was left and the next one."""

    def made(self, threads=0, **options):
        data, leg = self.data, self.leg
        self.dataset = H5Dataset(
            data.folder, predicate=data.filter(), include_row_keys=True, **data.options(), **options
        )
        given = {"shuffle": data.as_shuffle(), "world_size": leg.world, "drop_last": leg.drop_last}
        if leg.mode in ("loader", "processes"):
            given |= {"threads": threads, "workers": int(leg.mode == "processes")}
            return [loader(self.dataset, leg.batch, rank=rank, **given) for rank in range(leg.world)]
        if leg.mode == "batch sampler":
            return [OrderBatchSampler(self.dataset, leg.batch, rank=rank, **given) for rank in range(leg.world)]
        return [OrderSampler(self.dataset, rank=rank, run_length=leg.batch, **given) for rank in range(leg.world)]

    def begin(self, epoch, state=None):
        """Begin an epoch, or the rest of it; None for what each iteration begins by itself."""
        for holder in self.holders:
            if epoch is not None:
                holder.set_epoch(epoch)
            if state is not None:
                holder.load_state_dict(state)
        self.has_begun, self.has_state, self.taken = False, False, 0
        self.iterators = [iter(self.batches(holder)) for holder in self.holders]

    def batches(self, holder):
        """Return the batches of a rank."""
        if self.leg.mode == "batch sampler":
            return DataLoader(self.dataset, batch_sampler=holder)
        return self._by_indices(holder) if self.leg.mode == "sampler" else holder

    def _by_indices(self, sampler):
        indices = iter(sampler)
        while wanted := list(itertools.islice(indices, self.leg.batch)):
            yield [self.dataset[index] for index in wanted]

    def step(self):
        """Take a batch of each rank; return the keys of their rows, or None at the end of the epoch."""
        self.has_begun = True
        taken = self.next_batches()
        assert len({batch is None for batch in taken}) == 1, "ranks have different numbers of batches"
        if taken[0] is None:
            return None
        rows = [batch if isinstance(batch, list) else samples_of(batch) for batch in taken]
        assert len({len(each) for each in rows}) == 1, "ranks have batches of different sizes"
        self.has_state = self.leg.mode != "sampler" or len(rows[0]) == self.leg.batch
        self.taken += len(rows[0])
        return [[self.checked(row) for row in each] for each in rows]

    def next_batches(self):
        return [next(iterator, None) for iterator in self.iterators]

    def checked(self, sample):
        """Return the key of a row, and what was drawn for it, once its values are those of the files as planned."""
        row_key = int(as_array(sample["row_key"]))
        if self.data.kind == "patches":
            number, corner = int(sample["number"]), tuple(sample["corner"].tolist())
            expected = self.rows[number][tuple(slice(at, at + size) for at, size in zip(corner, BLOCK, strict=True))]
            assert np.array_equal(as_array(sample["x"]), expected)
            return number, row_key, corner
        key, drawn = int(sample["id"]), ()
        for name, whole in self.rows[key].items():
            found = as_array(sample[name])
            expected = whole
            if name == "x" and self.data.part_seed is not None:  # entries that are drawn keep their order
                drawn = tuple(np.flatnonzero(np.isin(whole, found)).tolist())
                expected = whole[list(drawn)]
                assert len(found) == min(PARTS, len(whole))
            assert found.shape == np.shape(expected), (key, name)
            assert np.array_equal(found, expected), (key, name, found, expected)
        return key, row_key, drawn

    def state(self):
        states = [json.loads(json.dumps(each)) for each in self.states()]
        assert all(state == states[0] for state in states), "ranks have different states"
        return states[0]

    def states(self):
        return [each.state_dict() for each in self.holders]


class OfRay(Ranks):
    """Each rank reads a Ray dataset, or the shard of one that a trainer gives to its worker."""

    dataset = None

    def made(self, threads=0, kept_bytes=None, **options):  # noqa: ARG002  Ray's tasks keep what is small
        import ray_h5
        from ray_h5.ray_data.training.data_config import _for_workers, shard_of_one

        data, leg = self.data, self.leg
        if leg.block_rows is not None:
            options["block_rows"] = leg.block_rows
        else:
            options |= {"tail": "drop" if leg.drop_last else "pad", "tail_rows": leg.world}
        ds = ray_h5.read_h5(
            data.folder, shuffle=data.as_shuffle() or None, include_row_keys=True, **data.options(), **options
        )
        if (predicate := data.filter(ray_h5)) is not None:
            ds = ds.filter(expr=predicate)
        ranks = range(leg.world)
        if leg.mode == "ray loader":
            how = {"world_size": leg.world, "drop_last": leg.drop_last, "threads": threads}
            return [loader(ds, leg.batch, rank=rank, **how) for rank in ranks]
        if leg.mode in ("workers", "split"):
            config = ray_h5.data_config(reading="workers" if leg.mode == "workers" else "tasks", threads=threads)
            return [shards["train"] for shards in config.configure({"train": ds}, leg.world, None, None)]
        if leg.mode == "local":
            return [shard_of_one("train", ds)]
        self.shared = _for_workers("train", ds, leg.world)
        return [self.shared] * leg.world

    def begin(self, epoch, state=None):
        import ray_h5

        if self.leg.mode == "ray loader":
            super().begin(epoch, state)
            return
        if epoch is not None:
            for holder in self.holders:
                ray_h5.set_epoch(holder, epoch, state)
        self.has_begun, self.has_state, self.taken = False, False, 0
        if self.leg.mode == "tasks":
            blocks = _blocks_of(self.shared, self.leg.world)
            self.iterators = [self._of_blocks(blocks, rank) for rank in range(self.leg.world)]
        else:
            self.iterators = [iter(self.batches(holder)) for holder in self.holders]

    def batches(self, holder):
        import ray_h5

        if self.leg.mode == "ray loader":
            return holder
        leg = self.leg
        return holder.iter_torch_batches(
            batch_size=leg.batch, drop_last=leg.drop_last, collate_fn=ray_h5.TorchCollate(), device="cpu"
        )

    def _of_blocks(self, blocks, rank):
        """Yield the batches of a rank, of the blocks that it gets in turn with the others."""
        import pyarrow as pa

        import ray_h5

        collate, leg = ray_h5.TorchCollate(), self.leg
        left = None
        for block in itertools.chain(blocks(rank), [None]):
            if block is not None:
                left = block if left is None else pa.concat_tables([left, block])
            while left is not None and (left.num_rows >= leg.batch or (block is None and left.num_rows)):
                made, left = left.slice(0, leg.batch), left.slice(leg.batch)
                if made.num_rows == leg.batch or not leg.drop_last:
                    yield collate(made)

    def next_batches(self):
        if self.leg.mode != "split":
            return super().next_batches()
        with ThreadPoolExecutor(self.leg.world) as pool:  # ranks wait for each other
            return list(pool.map(lambda iterator: next(iterator, None), self.iterators))

    def states(self):
        from ray_h5.ray_data.epochs import running_epoch

        if self.leg.mode == "ray loader":
            return super().states()
        return [running_epoch(holder).position(self.taken).to_dict() for holder in self.holders]


def _blocks_of(ds, world):
    """Return a function that yields the blocks of a rank: what the tasks of one execution return, in turn."""
    from ray.data import DataContext

    from ray_h5.ray_data.ray_internals import datasources

    @cache
    def tasks():
        (source,) = datasources(ds)
        return source.get_read_tasks(1, data_context=DataContext.get_current())

    def of_rank(rank):
        left = sum(task.metadata.num_rows for task in tasks()) // world  # as Ray splits: each gets as many rows
        for task in tasks()[rank::world]:
            for block in task():
                yield block.slice(0, left)
                left -= min(left, block.num_rows)

    return of_rank
