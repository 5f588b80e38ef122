"""Advice for names of options that people know from elsewhere: from PyTorch, scikit-learn, pandas and Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ray_h5.errors import UnknownOptionError
from ray_h5.messages import counted, near_names

__all__ = ["missing", "refusal"]

_BY_SEED = "The order is a function of seed= and the epoch: write seed=7."
_ORDER_OF_READING = "The order is that of read_h5(..., shuffle=ray_h5.Shuffle(seed=7)), without a buffer."
_OFFSETS = "Write the offsets of each column first: Windows({'signal': range(100)}, stride=50)."
_SHAPES = "Write the shape of each block first: Patches({'raw': (64, 64, 64)})."
_PATHS = "Write the paths first, without a name."
_COLUMNS = "Write columns=['image', 'label']."
_PUSHED = "Write ds.filter(expr=ray_h5.where(...)), which is pushed into the reading."
_PREDICATE = "Write predicate=where(label=1)."
_OF_RAY = "It is for Ray, in read_h5: leave it out."
_FULL_BATCHES = "Ranks get equally many batches in any case; loader(..., drop_last=True) has full ones alone."
_ORIGIN = "H5Dataset has row_ids(indices), and origins(indices) for the file and the row there."
_DEVICE = "Batches are in CPU memory: move them in the loop. pin_memory=True makes that faster."
_FOLDS = "Write k=5: each of five folds holds out a fifth of the rows."
_BY_RAY_TRAIN = "Workers of a trainer get their rows from train_batches(...); other processes by ds.streaming_split(n)."
_THREADS = "Tasks read side by side on all CPUs; num_cpus=2 gives each of them two threads."
_PINNED = "Write train_batches(..., pin_memory=True)."
_CODEC = "Write codec='zstd'."
_NO_LEVEL = "Each codec has one level; write codec='gzip', 'zstd', 'lz4' or 'blosc'."

_IN_PLAIN_PYTORCH = {
    "files": _PATHS,
    "filter": _PREDICATE,
    "where": _PREDICATE,
    "keys": _COLUMNS,
    "fields": _COLUMNS,
    "x_key": _COLUMNS,
    "y_key": _COLUMNS,
    "device": _DEVICE,
    "to": _DEVICE,
    "include_row_ids": _ORIGIN,
    "include_paths": _ORIGIN,
    "tail": _FULL_BATCHES,
    "tail_rows": _FULL_BATCHES,
    "num_cpus": "loader(...) reads in threads of this process: write threads=2 there.",
    "concurrency": "loader(...) reads in threads of this process: write threads=2 there.",
    **dict.fromkeys(("block_rows", "memory", "name", "override_num_blocks", "preserve_order"), _OF_RAY),
    **dict.fromkeys(("include_row_keys", "ray_remote_args"), _OF_RAY),
}
"""For `H5Dataset` and `loader`."""

_ADVICE: Mapping[str, Mapping[str, str]] = {
    "H5Dataset": {
        **_IN_PLAIN_PYTORCH,
        "batch_size": "Batches are made by loader(paths, 64), or by DataLoader(H5Dataset(...), 64).",
        "shuffle": "Samples are shuffled by loader(paths, shuffle=True), by OrderSampler, or by a DataLoader.",
        "seed": "The order of an epoch is that of loader(paths, seed=7), or of OrderSampler(dataset, seed=7).",
        "num_workers": "Processes belong to the loader: DataLoader(H5Dataset(...), num_workers=2).",
        "target_transform": "A transform gets the whole sample: write transform=.",
    },
    "kfold": {
        **dict.fromkeys(("n_splits", "n_folds", "folds"), "Write k=5."),
        **dict.fromkeys(("test_size", "train_size", "val_size"), _FOLDS),
        "files": _PATHS,
        "by": "Write group='patient', the name of a column.",
        "groups": "Write group='patient', the name of a column.",
        "random_state": "Write seed=0.",
        "shuffle": "Rows and groups are drawn by seed=.",
        "y": "Write stratify='label', the name of a column.",
    },
    "loader": {
        **_IN_PLAIN_PYTORCH,
        "num_workers": "It reads in threads of this process: write threads=2; or, for processes, workers=2.",
        "sampler": "It shuffles by itself: shuffle=, seed=, rank= and world_size=. For a sampler of your own, write "
        "DataLoader(H5Dataset(...), sampler=...).",
        "batch_sampler": "It cuts batches by itself: batch_size= and drop_last=. For a sampler of your own, write "
        "DataLoader(H5Dataset(...), batch_sampler=...).",
        "generator": _BY_SEED,
        "prefetch_factor": "Its threads read ahead by themselves: leave it out.",
        "persistent_workers": "Its threads stay by themselves: leave it out.",
        "epochs": "Each pass over the loader is an epoch: write `for epoch in range(3): for batch in batches:`.",
        "cache_size": "Rows that were read stay in memory, up to kept_bytes=.",
    },
    "OrderSampler": {
        "batch_size": "Write OrderBatchSampler(dataset, 64).",
        "num_replicas": "Write world_size=2; by default torch.distributed is asked.",
    },
    "Patches": {
        "": _SHAPES,
        "size": _SHAPES,
        "patch_size": _SHAPES,
        "overlap": "Write stride=: how far blocks are apart.",
        "num_samples": "Write per_file=8, the blocks that are drawn in each file.",
        "samples_per_volume": "Write per_file=8, the blocks that are drawn in each file.",
    },
    "read_h5": {
        "files": _PATHS,
        **dict.fromkeys(("dataset", "fields", "keys"), _COLUMNS),
        **dict.fromkeys(("filter", "predicate", "where"), _PUSHED),
        **dict.fromkeys(("rank", "world_size"), _BY_RAY_TRAIN),
        **dict.fromkeys(("threads", "workers"), _THREADS),
        "limit": "Write ds.limit(10), which is pushed into the reading.",
        "split": "Write ds.filter(expr=ray_h5.where(split='train')) if rows have that column, or kfold(paths, 5).",
        "drop_last": "Write tail='drop', tail_rows=workers * batch_size.",
        "pad": "Rows that differ in length are padded later: train_batches(..., pad=True), or "
        "ds.iter_torch_batches(collate_fn=ray_h5.TorchCollate(padding=True)).",
        "kept_bytes": "Tasks of Ray keep no rows in memory; ds.materialize() does, if all rows fit.",
        "collate_fn": "Write ds.iter_torch_batches(collate_fn=...).",
        "pin_memory": _PINNED,
        "batch_size": "Ray makes the batches later: ds.iter_torch_batches(batch_size=32).",
        "parallelism": "concurrency= limits how many tasks read at once; override_num_blocks= sets the blocks.",
        "include_row_hash": "Write include_row_ids=True.",
        "label_selector": "Write ray_remote_args={'label_selector': {...}}.",
        "resources": "Write ray_remote_args={'resources': {...}}.",
        "num_workers": "Ray reads in tasks, on all CPUs; concurrency= limits how many run at once.",
        "transform": "Write ds.map_batches(function).",
        "seed": "Write shuffle=ray_h5.Shuffle(seed=7).",
    },
    "repack": {
        "compression": _CODEC,
        **dict.fromkeys(("compression_opts", "level"), _NO_LEVEL),
        **dict.fromkeys(("filter", "predicate"), "Write where='label == 1'."),
        **dict.fromkeys(("num_workers", "workers"), "Write threads=2."),
    },
    "Shuffle": {
        "buffer_size": "Rows are drawn from all files, without a buffer; window_rows= says how many of chunks mix.",
        "generator": _BY_SEED,
        "num_samples": "Write rows_per_epoch=1000.",
    },
    "Sidecar": {
        "how": "Rows that the table lacks: write missing='null' to keep them, or missing='drop' to leave them out.",
        "left_on": "Write on='patient', the column of the files.",
        "right_on": "Write key='patient', the column of the table.",
        "columns": "Name columns of the table in columns= of the call that reads the files.",
        "sep": "Write delimiter=';'.",
        "dtype": "Write types={'zip': str}.",
    },
    "train_batches": {
        "shuffle": _ORDER_OF_READING,
        "local_shuffle_buffer_size": _ORDER_OF_READING,
        "local_shuffle_seed": _ORDER_OF_READING,
        "collate_fn": "Batches are dicts of tensors: change them in the loop, or the rows by ds.map_batches(function).",
    },
    "Windows": {
        "": _OFFSETS,
        "delta_timestamps": "Write the offsets first, in seconds: Windows({'image': [-0.1, 0.0]}, fps=10).",
        "size": _OFFSETS,
        "length": _OFFSETS,
        "window_size": _OFFSETS,
        "overlap": _OFFSETS,
        "step": "Write stride=10, the steps from one row to the next.",
    },
    "write_h5": {
        "compression": _CODEC,
        **dict.fromkeys(("compression_opts", "level"), _NO_LEVEL),
        "dtypes": "Cast before: read_h5(..., dtypes={'image': 'float16'}), or ds.map_batches(function).",
        "num_files": "Write rows_per_file=1000.",
        "overwrite": "Write mode='overwrite'.",
        "shuffle": "Rows are written in the order of the dataset: read_h5(..., shuffle=True).",
        "chunks": "Write chunk_rows=1, the rows of a chunk.",
    },
}
"""What to write instead, by the function and the name of the option; "" for a value too many without a name."""


_CALLS = {
    "DecodeImage": "DecodeImage('photo')",
    "Grid": "Grid(2)",
    "Groups": "Groups('demo_*')",
    "H5Dataset": "H5Dataset('data/*.h5')",
    "OrderBatchSampler": "OrderBatchSampler(dataset, 64)",
    "OrderSampler": "OrderSampler(dataset)",
    "Patches": "Patches({'raw': (64, 64, 64)})",
    "RowReader": "RowReader('data/run_1.h5')",
    "Sidecar": "Sidecar('labels.csv', on='patient')",
    "Standardize": "Standardize(['image'])",
    "Windows": "Windows({'actions': range(0, 16)})",
    "any_equal": "any_equal(2)",
    "balance": "balance('label')",
    "between": "between(0.5, None)",
    "build_index": "build_index('data/*.h5', index_dir='index/')",
    "create_optimized_dataloader": "create_optimized_dataloader('data/*.h5', 64)",
    "csr": "csr('X')",
    "fields": "fields('jets', ['pt', 'eta'])",
    "joined": "joined('data/frames_*')",
    "kfold": "kfold('data/*.h5', 5)",
    "loader": "loader('data/*.h5', 64)",
    "mix": "mix({'real': one, 'simulated': other})",
    "part": "part('fields', {0: [0, 5, 7]})",
    "ragged": "ragged('events/x', offsets='events/offsets')",
    "read_h5": "read_h5('data/*.h5')",
    "set_epoch": "set_epoch('train', epoch)",
    "train_batches": "train_batches('train', epoch, batch_size=32)",
    "write_h5": "write_h5(ds, 'out/')",
}
"""A call with all that a function needs."""


def missing(taker: str, absent: Sequence[str], entries: Mapping[str, str]) -> UnknownOptionError:
    """Return the error of a call without arguments that the function needs.

    Parameters
    ----------
    taker : str
        The name of the function.
    absent : sequence of str
        The arguments that the call lacks.
    entries : mapping of str to str
        The entries of its docstring, by name.
    """
    kinds = {name: entries.get(name, "").split("\n", 1)[0].partition(" : ")[2] for name in absent}
    said = " and ".join(f"{name} ({kind})" if kind else name for name, kind in kinds.items())
    call = f" Write {_CALLS[taker]}." if taker in _CALLS else ""
    return UnknownOptionError(f"{taker}: it needs {said}.{call}")


def refusal(
    taker: str, known: Iterable[str], instead: Mapping[str, str], options: Iterable[str], too_many: int
) -> UnknownOptionError:
    """Return the error of a call with an option that the function lacks, or with too many values without a name.

    Parameters
    ----------
    taker : str
        The name of the function.
    known : iterable of str
        The options that it has.
    instead : mapping of str to str
        Advice of its own, by the name of an option.
    options : iterable of str
        The names of the call.
    too_many : int
        How many values without a name are too many, if that is above 0.
    """
    names = [name for name in known if name != "self"]
    advice = {**_ADVICE.get(taker, {}), **instead}
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        said = f" {advice[unknown]}" if unknown in advice else near_names(unknown, names, len(names))
        return UnknownOptionError(f"{taker}: there is no option {unknown!r}.{said}")
    said = advice.get("") or f"Options have names, such as {names[-1]}=."
    return UnknownOptionError(f"{taker}: {counted(too_many, 'value')} too many without a name. {said}")
