"""Advice for names of options that people know from elsewhere: from PyTorch, scikit-learn, pandas and Ray."""

__all__ = ["ADVICE"]

_BY_SEED = "The order is a function of seed= and the epoch: write seed=7."
_ORDER_OF_READING = "The order is that of read_h5(..., shuffle=ray_h5.Shuffle(seed=7)), without a buffer."
_OFFSETS = "Write the offsets of each column first: Windows({'signal': range(100)}, stride=50)."
_SHAPES = "Write the shape of each block first: Patches({'raw': (64, 64, 64)})."

ADVICE = {
    "H5Dataset": {
        "batch_size": "Batches are made by loader(paths, 64), or by DataLoader(H5Dataset(...), 64).",
        "shuffle": "Samples are shuffled by loader(paths, shuffle=True), by OrderSampler, or by a DataLoader.",
        "seed": "The order of an epoch is that of loader(paths, seed=7), or of OrderSampler(dataset, seed=7).",
        "num_workers": "Processes belong to the loader: DataLoader(H5Dataset(...), num_workers=2).",
        "target_transform": "A transform gets the whole sample: write transform=.",
    },
    "kfold": {
        "n_splits": "Write k=5.",
        "groups": "Write group='patient', the name of a column.",
        "random_state": "Write seed=0.",
        "shuffle": "Rows and groups are drawn by seed=.",
        "y": "Write stratify='label', the name of a column.",
    },
    "loader": {
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
        "num_replicas": "Write world_size=2; by default torch.distributed is asked.",
    },
    "Patches": {
        "size": _SHAPES,
        "patch_size": _SHAPES,
        "overlap": "Write stride=: how far blocks are apart.",
        "num_samples": "Write per_file=8, the blocks that are drawn in each file.",
        "samples_per_volume": "Write per_file=8, the blocks that are drawn in each file.",
    },
    "read_h5": {
        "batch_size": "Ray makes the batches later: ds.iter_torch_batches(batch_size=32).",
        "parallelism": "concurrency= limits how many tasks read at once; override_num_blocks= sets the blocks.",
        "include_row_hash": "Write include_row_ids=True.",
        "label_selector": "Write ray_remote_args={'label_selector': {...}}.",
        "resources": "Write ray_remote_args={'resources': {...}}.",
        "num_workers": "Ray reads in tasks, on all CPUs; concurrency= limits how many run at once.",
        "transform": "Write ds.map_batches(function).",
        "predicate": "Write ds.filter(expr=ray_h5.where(...)), which is pushed into the reading.",
        "seed": "Write shuffle=ray_h5.Shuffle(seed=7).",
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
        "delta_timestamps": "Write the offsets first, in seconds: Windows({'image': [-0.1, 0.0]}, fps=10).",
        "size": _OFFSETS,
        "length": _OFFSETS,
        "window_size": _OFFSETS,
        "overlap": _OFFSETS,
        "step": "Write stride=10, the steps from one row to the next.",
    },
    "write_h5": {
        "compression": "Write codec='zstd'.",
        "chunks": "Write chunk_rows=1, the rows of a chunk.",
    },
}
"""What to write instead, by the function and the name of the option."""
