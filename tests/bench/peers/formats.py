"""The formats that contestants of the bench `peers` convert to, and their loaders, as their documentation says."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tests.bench.peers.data_loaders import SEED, shuffled, worker_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.bench.peers.problems import Problem

__all__ = [
    "from_datasets",
    "from_lance",
    "from_litdata",
    "from_mosaicml",
    "from_webdataset",
    "to_datasets",
    "to_lance",
    "to_litdata",
    "to_mosaicml",
    "to_webdataset",
]

_LEAST_SHARDS = 8
"""Shards are what WebDataset shares among workers, and what it shuffles first."""


def _litdata_rows(problem: Problem, part: int) -> Iterator[dict[str, Any]]:
    yield from problem.samples(part)


def to_litdata(problem: Problem, out: str) -> None:
    """Write LitData's chunks."""
    import litdata

    litdata.optimize(
        fn=partial(_litdata_rows, problem),
        inputs=list(range(len(problem.parts))),
        output_dir=out,
        chunk_bytes="64MB",
        num_workers=min(2, len(problem.parts)),
        verbose=False,
    )


def from_litdata(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    """Return LitData's loader."""
    import litdata

    how = {"shuffle": True, "seed": SEED, "drop_last": False, "cache_dir": problem.kept(out)}
    dataset = litdata.StreamingDataset(problem.url(out), **how)
    return litdata.StreamingDataLoader(dataset, batch_size=problem.batch, **worker_options(workers))


def _all_samples(problem: Problem) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    for part in range(len(problem.parts)):
        yield from problem.samples(part)


def to_mosaicml(problem: Problem, out: str) -> None:
    """Write the shards of MosaicML Streaming."""
    from streaming import MDSWriter

    columns = {name: f"ndarray:{dtype}:{','.join(map(str, shape))}" for name, (dtype, shape) in problem.columns.items()}
    with MDSWriter(out=out, columns=columns) as writer:
        for sample in _all_samples(problem):
            writer.write({name: np.ascontiguousarray(values) for name, values in sample.items()})


def from_mosaicml(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    """Return the loader of MosaicML Streaming."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    where = {"remote": problem.url(out), "local": problem.kept(out)} if problem.store else {"local": out}
    dataset = StreamingDataset(**where, shuffle=True, shuffle_seed=SEED, batch_size=problem.batch)
    return StreamingDataLoader(dataset, batch_size=problem.batch, **worker_options(workers))


def to_webdataset(problem: Problem, out: str) -> None:
    """Write tar files."""
    import webdataset

    size = min(16e6, problem.rows * problem.row_bytes / _LEAST_SHARDS)
    with webdataset.ShardWriter(os.path.join(out, "shard-%06d.tar"), maxsize=size, verbose=0) as writer:
        for number, sample in enumerate(_all_samples(problem)):
            writer.write({"__key__": f"{number:08d}", **{f"{name}.npy": values for name, values in sample.items()}})


def from_webdataset(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    """Return WebDataset's loader."""
    import webdataset

    shards = [os.path.join(out, name) for name in sorted(os.listdir(out)) if name.endswith(".tar")]
    if problem.store:  # it reads http by a program, curl
        server = os.environ["AWS_ENDPOINT_URL"]
        shards = [problem.url(path).replace("s3://", f"pipe:curl -s -f {server}/") for path in shards]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=SEED)
        .shuffle(1000)
        .decode()
        .map(partial(_without_endings, list(problem.columns)))
        .batched(problem.batch)
    )
    return webdataset.WebLoader(dataset, batch_size=None, **worker_options(workers))


def _without_endings(names: list[str], sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(sample[f"{name}.npy"]) for name in names}


def to_datasets(problem: Problem, out: str) -> None:
    """Write Arrow files."""
    import datasets

    array = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D, 5: datasets.Array5D}
    features = {
        name: array[len(shape)](shape, dtype)
        if len(shape) > 1
        else datasets.Sequence(datasets.Value(dtype), length=shape[0])
        for name, (dtype, shape) in problem.columns.items()
    }
    made = datasets.Dataset.from_generator(
        partial(_samples_of_parts, problem),
        features=datasets.Features(features),
        gen_kwargs={"parts": list(range(len(problem.parts)))},
        cache_dir=os.path.join(out, "cache"),
    )
    made.save_to_disk(os.path.join(out, "saved"))


def _samples_of_parts(problem: Problem, parts: list[int]) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield from problem.samples(part)


def from_datasets(problem: Problem, out: str, workers: int) -> DataLoader[Any]:
    """Return a loader of the Arrow files of Hugging Face datasets."""
    import datasets

    dataset = datasets.load_from_disk(os.path.join(out, "saved")).with_format("torch")
    return shuffled(dataset, problem, workers)


def to_lance(problem: Problem, out: str) -> None:
    """Write a Lance dataset."""
    import lance
    import pyarrow as pa

    types = {
        name: pa.list_(pa.from_numpy_dtype(dtype), int(np.prod(shape)))
        for name, (dtype, shape) in problem.columns.items()
    }
    schema = pa.schema(list(types.items()))

    def batches() -> Iterator[pa.RecordBatch]:
        held: list[dict[str, Any]] = []
        for sample in _all_samples(problem):
            held.append(sample)
            if len(held) == 256:
                yield _as_arrow(held, types, schema)
                held = []
        if held:
            yield _as_arrow(held, types, schema)

    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), os.path.join(out, "rows.lance"))


def _as_arrow(samples: list[dict[str, Any]], types: dict[str, Any], schema: Any) -> Any:
    import pyarrow as pa

    flat = {name: np.concatenate([sample[name].ravel() for sample in samples]) for name in types}
    arrays = [pa.FixedSizeListArray.from_arrays(pa.array(values), type=types[name]) for name, values in flat.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_lance(problem: Problem, out: str, workers: int) -> DataLoader[Any]:
    """Return a loader of a Lance dataset."""
    from tests.bench.peers.lance_rows import Rows

    rows = Rows(
        problem.url(os.path.join(out, "rows.lance")), {name: shape for name, (_, shape) in problem.columns.items()}
    )
    # Lance runs threads, which a fork would lose.
    how = {"multiprocessing_context": "spawn"} if workers else {}
    return shuffled(rows, problem, workers, collate_fn=_as_it_is, **how)


def _as_it_is(batch: Any) -> Any:
    return batch
