"""What tasks of Ray deliver of a layout: each rank of a dataset that is split evenly."""

from concurrent.futures import ThreadPoolExecutor

import ray_h5
from tests.golden.layouts import LAYOUTS
from tests.golden.orders import BATCH, dataset_of, rows_of_files, short, shuffles, values_of

BLOCK_ROWS = 8

PINNED = [("axis_16", kind, world) for kind in ("rows", "chunks", "files") for world in (2, 5)]
"""Which rows a rank gets is a function of positions alone, so that one layout pins it."""


def read_tasks(name, folder, kind, world=1):
    """Read a layout as Ray does; return its dataset of plain PyTorch, the shuffle, and the batches of each rank."""
    dataset, (paths, options) = dataset_of(name, folder)
    shuffle = shuffles(rows_of_files(dataset))[kind]
    ds = ray_h5.read_h5(
        paths,
        shuffle=shuffle,
        include_row_ids=True,
        block_rows=BLOCK_ROWS,
        tail="keep" if world == 1 else "pad",
        tail_rows=None if world == 1 else world * BATCH,
        **options,
    )
    if LAYOUTS[name].image:
        ds = ds.map_batches(ray_h5.DecodeImage(LAYOUTS[name].image))
    shards = [ds] if world == 1 else ds.streaming_split(world, equal=True)
    with ThreadPoolExecutor(world) as pool:
        return dataset, shuffle, list(pool.map(_batches, shards))


def ranks_of(name, folder, kind, world):
    """Return the row ids of each rank, as texts."""
    batches = read_tasks(name, folder, kind, world)[2]
    return [short(row for batch in rank for row in batch["row_id"]) for rank in batches]


def delivered(batches):
    """Return (row ids, values by column) of some batches."""
    ids = [int(row) for batch in batches for row in batch["row_id"]]
    return ids, values_of([{name: batch[name] for name in batch if name != "row_id"} for batch in batches])


def _batches(shard):
    return list(shard.iter_torch_batches(batch_size=None, collate_fn=ray_h5.TorchCollate()))
