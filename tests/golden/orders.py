"""Rows, values, orders and states of a layout, as a value that JSON holds."""

import zlib

import numpy as np
import torch

import ray_h5
from ray_h5.torch_data import DecodeImage, H5Dataset, OrderSampler, RayH5Error, Shuffle, loader
from tests.golden.layouts import LAYOUTS

BATCH = 4
SEED = 7
WORLDS = (1, 2, 5)


def shuffles(rows):
    """Return each way to shuffle; `rows` are the rows of all files."""
    numbers = np.arange(rows)
    return {
        "none": None,
        "rows": Shuffle("rows", SEED),
        "chunks": Shuffle("chunks", SEED, window_rows=16),
        "files": Shuffle("files", SEED),
        "weights": Shuffle("rows", SEED, weights=numbers % 3 + 0.5),
        "by_length": Shuffle("rows", SEED, by_length=numbers * 5 % 11 + 1, window_rows=24, run_rows=BATCH),
    }


def dataset_of(name, folder):
    """Write a layout to a folder, and return (dataset, arguments that read it)."""
    layout = LAYOUTS[name]
    options = dict(layout.write(folder))
    paths = options.pop("paths", str(folder))
    transform = DecodeImage(layout.image) if layout.image else None
    return H5Dataset(paths, transform=transform, **options), (paths, options)


def rows_of_files(dataset):
    """Return how many rows the files have; the last one is selected in each layout."""
    return int(dataset.row_ids([-1])[0]) + 1


# Values -----------------------------------------------------------------------------------------


def as_bytes(value):
    """Return what a value is as bytes: its type, shape and content, the same for tensors, arrays and Python's own."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(as_bytes, value)) + b"]"
    array = np.asarray(value)
    if array.dtype.kind in "OUSM" and not array.shape:
        array = array.astype("M8[ns]") if array.dtype.kind == "M" else array
        return repr(array.item()).encode()
    if array.dtype.hasobject:
        return as_bytes(array.tolist())
    if array.dtype.kind == "c":  # Ray has pairs of numbers
        array = np.stack([array.real, array.imag], -1)
    array = array.astype(array.dtype.newbyteorder("<"))
    return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()


def values_of(batches):
    """Return, by column, the values of rows as bytes, of some batches one after the other."""
    found = {}
    for batch in batches:
        for name in batch:
            found.setdefault(name, []).extend(map(as_bytes, batch[name]))
    return found


def digest(values):
    return f"{zlib.crc32(b';'.join(values)):08x}"


def column_text(values, first):
    """Return the type and row shape of a column, and a checksum of all its values."""
    if isinstance(first, torch.Tensor):
        kind = f"{first.dtype} {tuple(first.shape)}".removeprefix("torch.")
    else:
        kind = type(first).__name__
    return f"{kind} {digest(values)}"


# Row ids ----------------------------------------------------------------------------------------


def short(ids):
    """Return row ids as a short text: runs as first-last."""
    ids, parts, first = list(map(int, ids)), [], 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            run = ids[first:i]
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
            first = i
    return " ".join(parts)


def long(text):
    """Return the row ids of such a text."""
    found = []
    for part in text.split():
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


def ids_of(dataset, shuffle, rank=0, world=1, epoch=0, state=None):
    """Return the row ids of a rank, in order."""
    sampler = OrderSampler(dataset, shuffle=shuffle or False, rank=rank, world_size=world, run_length=BATCH)
    sampler.set_epoch(epoch)
    if state is not None:
        sampler.load_state_dict(state)
    indices = list(sampler)
    return dataset.row_ids(indices).tolist(), indices


def loader_of(dataset, shuffle, rank=0, world=1):
    return loader(dataset, BATCH, shuffle=shuffle or False, rank=rank, world_size=world, threads=0)


def order_of(dataset, shuffle, values):
    """Return the rows of each rank; check that loaders of one and of two ranks deliver their values."""
    found = {}
    places = {row: i for i, row in enumerate(dataset.row_ids(np.arange(len(dataset))).tolist())}
    for world in WORLDS:
        ranks = [ids_of(dataset, shuffle, rank, world)[0] for rank in range(world)]
        found[f"world {world}"] = list(map(short, ranks))
        for rank, ids in enumerate(ranks if values and world < 5 else []):
            delivered = values_of(loader_of(dataset, shuffle, rank, world))
            for name, column in values.items():
                assert delivered.get(name, []) == [column[places[row]] for row in ids], (name, world, rank)
    found["epoch 1"] = short(ids_of(dataset, shuffle, epoch=1)[0])
    return found


def draws_of(dataset, shuffle):
    """Return checksums of the first two epochs of values that are drawn."""
    batches, found = loader_of(dataset, shuffle), {}
    for _ in range(2):
        for name, values in values_of(batches).items():
            found.setdefault(name, []).append(digest(values))
    return {name: " ".join(digests) for name, digests in found.items()}


def states_of(dataset, shuffle):
    """Return a state, how those of other places differ, and the rows that five ranks resume with."""
    states = []
    for world, batches in zip(WORLDS, (1, len(dataset) // (4 * BATCH), None), strict=True):
        of_ranks = []
        for rank in range(world):
            rows = loader_of(dataset, shuffle, rank, world)
            iterator = iter(rows)
            for _ in range(len(rows) if batches is None else batches):
                next(iterator)
            of_ranks.append(rows.state_dict())
        assert all(each == of_ranks[0] for each in of_ranks), world
        states.append(of_ranks[0])
    first, inside = states[:2]
    differences = [{key: value for key, value in each.items() if value != first.get(key)} for each in states[1:]]
    resumed = [short(ids_of(dataset, shuffle, rank, 5, inside["epoch"], inside)[0]) for rank in range(5)]
    return {"state": first, "later": differences, "resumed": resumed}


def facts_of(name, folder):
    """Return all that is pinned of a layout."""
    dataset, _ = dataset_of(name, folder)
    layout, rows = LAYOUTS[name], np.arange(len(dataset))
    samples = [dataset[i] for i in rows.tolist()]
    values = values_of([{column: [each[column] for each in samples] for column in dataset.columns}])
    columns = {column: column_text(values[column], samples[0][column]) for column in values}
    found = {
        "written by": f"ray_h5 {ray_h5.__version__}",
        "rows": short(dataset.row_ids(rows)),
        "columns": columns,
        "orders": {},
    }
    for kind, shuffle in shuffles(rows_of_files(dataset)).items():
        try:
            order = order_of(dataset, shuffle, {} if layout.is_drawn else values)
        except RayH5Error as error:
            order = {"refused": type(error).__name__}
        else:
            order |= states_of(dataset, shuffle)
            order |= {"draws": draws_of(dataset, shuffle)} if layout.is_drawn else {}
        found["orders"][kind] = order
    return found
