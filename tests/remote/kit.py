"""What the tests of stores share: files whose rows are known, and epochs that are compared with them."""

import h5py
import numpy as np

from ray_h5 import RayH5Error, loader

ROWS, WIDTH = 120, 600
QUICK = {"init_backoff": 0.01, "max_backoff": 0.05, "read_timeout": 0.3, "connect_timeout": 1, "retry_timeout": 20}
"""Retries that take no time."""


def options_of(server, **more):
    """Return the storage options that lead to a server."""
    given = {"endpoint": server.url, "region": "us-east-1", "skip_signature": True, "allow_http": True}
    return {**given, **QUICK, **more}


def values_of(row_ids, version=0):
    """Return what the column `x` has in some rows; no row and no version has a value of another one."""
    first = np.asarray(row_ids, np.uint64)[:, None] * np.uint64(WIDTH) + np.uint64(version) * np.uint64(1 << 40)
    return first + np.arange(WIDTH, dtype=np.uint64)


def write(path, first=0, rows=ROWS, version=0, chunk_rows=1, apart=0):
    """Write a file of `rows` rows, numbered from `first`; `apart` bytes lie between two chunks."""
    row_ids = np.arange(first, first + rows)
    temporary = path.with_suffix(".part")
    with h5py.File(temporary, "w", rdcc_nbytes=0) as file:
        chunks = None if chunk_rows is None else (chunk_rows, WIDTH)
        x = file.create_dataset("x", (rows, WIDTH), "u8", chunks=chunks)
        other = file.create_dataset("other", (rows, apart), "u1", chunks=(1, apart)) if apart else None
        for row, values in enumerate(values_of(row_ids, version)) if other is not None else ():
            x[row], other[row] = values, 0
        if other is None:
            x[:] = values_of(row_ids, version)
        file["id"] = row_ids
    temporary.replace(path)
    return path


def epoch_of(url, server, batch_size=16, **options):
    """Return a loader of shuffled rows; nothing stays in memory from epoch to epoch."""
    storage_options = options.pop("storage_options", None) or options_of(server)
    given = {"columns": ["x", "id"], "shuffle": True, "kept_bytes": 0, **options}
    return loader(url, batch_size, storage_options=storage_options, **given)


def check_epoch(batches, rows, version=0):
    """Take an epoch: each row comes once and right, or it ends in an error with a name, which is returned."""
    seen, error = [], None
    try:
        for batch in batches:
            ids = batch["id"].numpy()
            np.testing.assert_array_equal(batch["x"].numpy().astype(np.uint64), values_of(ids, version))
            seen += ids.tolist()
    except RayH5Error as exc:
        error = exc
    assert len(seen) == len(set(seen))
    if error is None:
        assert sorted(seen) == list(range(rows))
    return error
