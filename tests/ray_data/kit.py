"""Files and helpers that the tests of epochs, filters and resuming share."""

import h5py
import numpy as np


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


def ids_of(ds):
    return [row for batch in ds.iter_batches(batch_size=None) for row in batch.get("row_id", np.empty(0)).tolist()]
