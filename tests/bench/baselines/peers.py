"""Other formats and libraries, each written as its own documentation says.

A contestant converts the rows once, or reads the HDF5 files as they are. Its loader yields shuffled batches: each a
mapping of columns. Libraries are imported by the process that uses them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ray_h5.torch_data import loader
from tests.bench.measure import OURS

SEED = 7


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows of HDF5 files that every contestant delivers, shuffled, in batches.

    Attributes
    ----------
    paths, file_rows, batch
        The files, the rows of each, and of a batch.
    columns
        The dtype and shape of a row, by column.
    row
        Reads row `index` of an open file by h5py.
    options
        Of our loader.
    store
        The folder that a server of S3 has: its first folders are buckets. Empty if files are read from the disk.
    """

    paths: tuple[str, ...]
    file_rows: int
    batch: int
    columns: Mapping[str, tuple[str, tuple[int, ...]]]
    row: Callable[[h5py.File, int], dict[str, Any]]
    options: Mapping[str, Any]
    store: str = ""

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return self.file_rows * len(self.paths)

    def url(self, path: str) -> str:
        """Return where a file or folder is read."""
        return f"s3://{os.path.relpath(path, self.store)}" if self.store else path

    def copies(self, out: str) -> str | None:
        """Return a new folder for what a reader of a store keeps; None if files are read from the disk."""
        return tempfile.mkdtemp(prefix="kept-", dir=out) if self.store else None

    def samples(self, parts: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of some files, by number: what a conversion writes."""
        for part in parts:
            with h5py.File(self.paths[part]) as file:
                for index in range(self.file_rows):
                    yield self.row(file, index)

    def every(self) -> Iterator[dict[str, Any]]:
        """Yield all rows."""
        return self.samples(range(len(self.paths)))


@dataclass(frozen=True, slots=True)
class Peer:
    """A library or format: its module, its loader of (problem, folder, workers), and its conversion, if it has one."""

    module: str
    load: Callable[[Problem, str, int], Iterable[Any]]
    convert: Callable[[Problem, str], None] | None = None
    cases: tuple[str, ...] = ("signals", "images", "cells", "patches", "store")


def _workers(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0}


def _shuffled(dataset: Any, problem: Problem, workers: int, **options: Any) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(SEED)
    return DataLoader(dataset, problem.batch, shuffle=True, generator=order, **_workers(workers), **options)


class _Rows(Dataset[Any]):
    """The usual Dataset: a row a call, of files that each process opens at its first row."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._files: dict[int, h5py.File] = {}

    def __len__(self) -> int:
        return self._problem.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, row = divmod(index, self._problem.file_rows)
        if number not in self._files:
            self._files[number] = h5py.File(self._problem.paths[number])
        return self._problem.row(self._files[number], row)


def _ours(problem: Problem, out: str, workers: int, shuffle: bool | str = "rows") -> Iterable[Any]:
    options = {**problem.options, "kept_bytes": 0, "threads": workers, "seed": SEED, "shuffle": shuffle}
    if problem.store:  # where it is, the environment says
        options |= {"cache_dir": problem.copies(out), "cache_bytes": 64 << 30}
    return loader([problem.url(path) for path in problem.paths], problem.batch, **options)


def _h5py(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    return _shuffled(_Rows(problem), problem, workers)


def _litdata_rows(problem: Problem, part: int) -> Iterator[dict[str, Any]]:
    yield from problem.samples([part])


def _to_litdata(problem: Problem, out: str) -> None:
    import litdata

    parts = list(range(len(problem.paths)))
    how = {"chunk_bytes": "64MB", "num_workers": min(2, len(parts)), "verbose": False}
    litdata.optimize(fn=partial(_litdata_rows, problem), inputs=parts, output_dir=out, **how)


def _from_litdata(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import litdata

    how = {"shuffle": True, "seed": SEED, "drop_last": False, "cache_dir": problem.copies(out)}
    dataset = litdata.StreamingDataset(problem.url(out), **how)
    return litdata.StreamingDataLoader(dataset, batch_size=problem.batch, **_workers(workers))


def _to_mosaicml(problem: Problem, out: str) -> None:
    from streaming import MDSWriter

    columns = {name: f"ndarray:{dtype}:{','.join(map(str, shape))}" for name, (dtype, shape) in problem.columns.items()}
    with MDSWriter(out=out, columns=columns) as writer:
        for sample in problem.every():
            writer.write({name: np.ascontiguousarray(values) for name, values in sample.items()})


def _from_mosaicml(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    where = {"remote": problem.url(out), "local": problem.copies(out)} if problem.store else {"local": out}
    dataset = StreamingDataset(**where, shuffle=True, shuffle_seed=SEED, batch_size=problem.batch)
    return StreamingDataLoader(dataset, batch_size=problem.batch, **_workers(workers))


def _to_webdataset(problem: Problem, out: str) -> None:
    import webdataset

    row_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in problem.columns.values())
    size = min(16e6, problem.rows * row_bytes / 8)  # shards are what it shares among workers, and shuffles first
    with webdataset.ShardWriter(os.path.join(out, "shard-%06d.tar"), maxsize=size, verbose=0) as writer:
        for number, sample in enumerate(problem.every()):
            writer.write({"__key__": f"{number:08d}", **{f"{name}.npy": values for name, values in sample.items()}})


def _from_webdataset(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import webdataset

    shards = [os.path.join(out, name) for name in sorted(os.listdir(out)) if name.endswith(".tar")]
    if problem.store:  # it reads http by a program, curl
        server = os.environ["AWS_ENDPOINT_URL"]
        shards = [problem.url(path).replace("s3://", f"pipe:curl -s -f {server}/") for path in shards]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=SEED).shuffle(1000).decode()
    batches = dataset.map(partial(_without_endings, list(problem.columns))).batched(problem.batch)
    return webdataset.WebLoader(batches, batch_size=None, **_workers(workers))


def _without_endings(names: list[str], sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(sample[f"{name}.npy"]) for name in names}


def _to_datasets(problem: Problem, out: str) -> None:
    import datasets

    arrays = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D}
    features = {
        name: arrays[len(shape)](shape, dtype)
        if len(shape) > 1
        else datasets.Sequence(datasets.Value(dtype), length=shape[0])
        for name, (dtype, shape) in problem.columns.items()
    }
    how = {"features": datasets.Features(features), "cache_dir": os.path.join(out, "cache")}
    parts = {"parts": list(range(len(problem.paths)))}
    datasets.Dataset.from_generator(problem.samples, gen_kwargs=parts, **how).save_to_disk(os.path.join(out, "saved"))


def _from_datasets(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import datasets

    dataset = datasets.load_from_disk(os.path.join(out, "saved")).with_format("torch")
    return _shuffled(dataset, problem, workers)


def _to_lance(problem: Problem, out: str) -> None:
    import lance
    import pyarrow as pa

    types = {
        name: pa.list_(pa.from_numpy_dtype(dtype), int(np.prod(shape)))
        for name, (dtype, shape) in problem.columns.items()
    }
    schema = pa.schema(list(types.items()))

    def batches() -> Iterator[Any]:
        for sample in problem.every():
            arrays = [pa.array([sample[name].ravel()], type=each) for name, each in types.items()]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), os.path.join(out, "rows.lance"))


class _LanceRows(Dataset[Any]):
    """Rows of a Lance dataset as tensors, by one call a batch; each process opens it."""

    def __init__(self, uri: str, problem: Problem) -> None:
        self._uri, self._rows, self._columns = uri, problem.rows, problem.columns
        self._opened: Any = None

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        if self._opened is None:
            import lance

            self._opened = lance.dataset(self._uri)
        taken = self._opened.take(indices).combine_chunks()
        return {
            name: torch.from_numpy(taken[name].chunk(0).flatten().to_numpy().reshape(-1, *shape))
            for name, (_, shape) in self._columns.items()
        }


def _from_lance(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    rows = _LanceRows(problem.url(os.path.join(out, "rows.lance")), problem)
    # Lance runs threads, which a fork would lose.
    how = {"multiprocessing_context": "spawn"} if workers else {}
    return _shuffled(rows, problem, workers, collate_fn=_as_it_is, **how)


def _as_it_is(batch: Any) -> Any:
    return batch


def _scdataset(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    import anndata
    from anndata.experimental import AnnCollection
    from scdataset import BlockShuffling, MultiIndexable, scDataset

    def dense(view: Any) -> Any:
        return MultiIndexable(X=torch.from_numpy(np.asarray(view.to_adata().X.toarray())))

    collection = AnnCollection([anndata.read_h5ad(path, backed="r") for path in problem.paths])
    how = {"batch_size": problem.batch, "fetch_factor": 16, "fetch_transform": dense, "seed": SEED}
    dataset = scDataset(collection, BlockShuffling(block_size=16), batch_transform=lambda rows: {"X": rows["X"]}, **how)
    return DataLoader(dataset, batch_size=None, **_workers(workers))


def _read_volume(name: str, path: str) -> tuple[torch.Tensor, np.ndarray]:
    with h5py.File(path) as file:
        return torch.from_numpy(file[name][:][None]), np.eye(4)


class _Blocks:
    """The batches of torchio as mappings of tensors."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return ({name: batch[name]["data"][:, 0] for name in ("raw", "label")} for batch in self._batches)


def _torchio(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    import torchio

    kinds = {"raw": torchio.ScalarImage, "label": torchio.LabelMap}
    images = {name: kind(problem.paths[0], reader=partial(_read_volume, name)) for name, kind in kinds.items()}
    sampler = torchio.GridSampler(torchio.Subject(**images), (64,) * 3, (32,) * 3)
    how = {"shuffle": True, "generator": torch.Generator().manual_seed(SEED), **_workers(workers)}
    return _Blocks(torchio.SubjectsLoader(sampler, batch_size=problem.batch, **how))


_TABLES = ("signals", "images")
_ON_DISK = (*_TABLES, "cells", "patches")

PEERS: Mapping[str, Peer] = {
    OURS: Peer("ray_h5", _ours),
    f"{OURS}, default": Peer("ray_h5", partial(_ours, shuffle=True)),
    "h5py": Peer("h5py", _h5py, cases=_ON_DISK),
    "litdata": Peer("litdata", _from_litdata, _to_litdata, (*_TABLES, "store")),
    "mosaicml": Peer("streaming", _from_mosaicml, _to_mosaicml, (*_TABLES, "store")),
    "webdataset": Peer("webdataset", _from_webdataset, _to_webdataset, (*_TABLES, "store")),
    "datasets": Peer("datasets", _from_datasets, _to_datasets, _TABLES),
    "lance": Peer("lance", _from_lance, _to_lance, (*_TABLES, "store")),
    "scdataset": Peer("scdataset", _scdataset, cases=("cells",)),
    "torchio": Peer("torchio", _torchio, cases=("patches",)),
}
"""The contestants by name. Ours shuffles rows exactly, or as it does by default; `h5py` is the usual Dataset."""
