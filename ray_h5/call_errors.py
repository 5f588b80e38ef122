"""Errors of calls: an option that a function lacks, a value without a name, an argument that is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ray_h5.errors import UnknownOptionError
from ray_h5.messages import counted, near_names

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
    "part": "part('fields', {0: [0, 5, 7]})",
    "ragged": "ragged('events/x', offsets='events/offsets')",
    "read_h5": "read_h5('data/*.h5', columns=['image'])",
    "set_epoch": "set_epoch(ds, epoch)",
    "train_batches": "train_batches('train', epoch, batch_size=32)",
    "write_h5": "write_h5(ds, 'out/')",
}
"""A call with all that a function needs."""


def missing(taker: str, absent: Sequence[str], entries: Mapping[str, str]) -> UnknownOptionError:
    """Return the error of a call without arguments that the function `taker` needs.

    `absent` are those that the call lacks, `entries` the entries of its docstring, by name.
    """
    kinds = {name: entries.get(name, "").split("\n", 1)[0].partition(" : ")[2] for name in absent}
    said = " and ".join(f"{name} ({kind})" if kind else name for name, kind in kinds.items())
    call = f" Write {_CALLS[taker]}." if taker in _CALLS else ""
    return UnknownOptionError(f"{taker}: it needs {said}.{call}")


def refusal(
    taker: str, known: Iterable[str], instead: Mapping[str, str], options: Iterable[str], too_many: int
) -> UnknownOptionError:
    """Return the error of a call with an option that the function `taker` lacks, or with values without a name.

    `known` are the options that it has, `options` those of the call; `instead` says what to write for options that have
    another name here. If `too_many` is above 0, as many values without a name are too many.
    """
    names = [name for name in known if name != "self"]
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        advice = f" {instead[unknown]}" if unknown in instead else near_names(unknown, names, len(names))
        return UnknownOptionError(f"{taker}: there is no option {unknown!r}.{advice}")
    count = counted(too_many, "value")
    call = f" Write {_CALLS[taker]}." if taker in _CALLS else ""
    named = "columns" if "columns" in names else names[-1]
    return UnknownOptionError(f"{taker}: {count} too many without a name. Options have names, such as {named}=.{call}")
