"""Files and helpers that the tests of epochs, filters and resuming share."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import h5py
import numpy as np
from ray.data import DataContext
from ray.data._internal.logical.optimizers import LogicalOptimizer

from ray_h5.plan.blocks import start_of
from ray_h5.ray_data.ray_internals import datasources


def write_chunked(folder, sizes=(50, 30, 0, 70), chunk=8):
    """Files whose columns tell which row they are; `x` has chunks of `chunk` rows."""
    paths, first = [], 0
    for i, rows in enumerate(sizes):
        ids = np.arange(first, first + rows)
        path = str(folder / f"f{i}.h5")
        with h5py.File(path, "w") as file:
            data = np.repeat(ids[:, None], 6, axis=1).astype("f4")
            file.create_dataset("x", data=data, chunks=(chunk, 6), maxshape=(None, 6), compression="gzip")
            file["label"] = (ids % 3).astype("u1")
            file["guid"] = np.array([f"g{k // 10}" for k in ids], dtype=h5py.string_dtype())
        paths.append(path)
        first += rows
    return paths


def pushed(ds):
    """Return the datasource into which all filters went; fail if one did not."""
    operator = LogicalOptimizer().optimize(ds._logical_plan).dag
    assert operator.name == "ReadH5", operator
    return operator.datasource


def ids_read(ds):
    """Return what `ids_of` does, by the functions of the read tasks: for datasets whose filters all went there."""
    tasks = pushed(ds).get_read_tasks(1, data_context=DataContext.get_current())
    tables = [table for task in tasks for table in task()]
    return [row for table in tables if table.num_rows for row in table["row_id"].to_pylist()]


def position_at(ds, epoch, rows, world_size=1):
    """Return the position of a dataset after `rows` rows of each rank."""
    (source,) = datasources(ds)
    return replace(start_of(source.plan(), epoch, world_size), rows=rows)


def ids_of(ds):
    return [row for batch in ds.iter_batches(batch_size=None) for row in batch.get("row_id", np.empty(0)).tolist()]


def consume_together(consume, *arguments):
    """Call `consume` for each rank at one time, in a thread: a worker of Ray for each rank takes seconds to start."""
    with ThreadPoolExecutor(len(arguments[0])) as pool:
        return list(pool.map(consume, *arguments))
