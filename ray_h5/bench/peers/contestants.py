"""The contestants of ``ray-h5 bench peers``, each written as its own documentation says.

A contestant converts the rows once, or reads the HDF5 files as they are. Its loader yields shuffled batches: each a
mapping of columns. Loaders that have `state_dict` are tried for resuming.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ray_h5.bench.measure import OURS
from ray_h5.torch_data import loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ray_h5.bench.peers.problems import Problem

__all__ = ["CONTESTANTS", "Contestant"]

_TABLES = ("signals", "images", "windows")
_SEED = 7
_LEAST_SHARDS = 8
"""Shards are what WebDataset shares among workers, and what it shuffles first."""


def _no_conversion(problem: Problem, out: str) -> None:
    """Read the HDF5 files as they are."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A library or format.

    Attributes
    ----------
    package, module
        The names under which it is installed and imported.
    load
        Returns a new loader of (problem, folder, workers).
    convert
        Writes (problem, folder).
    cases
        The cases that it takes part in.
    resumable
        Returns a loader with `state_dict`, where `load` returns one without.
    """

    package: str
    module: str
    load: Callable[[Problem, str, int], Iterable[Any]]
    convert: Callable[[Problem, str], None] = _no_conversion
    cases: tuple[str, ...] = _TABLES
    resumable: Callable[[Problem, str, int], Iterable[Any]] | None = None

    @property
    def converts(self) -> bool:
        """Whether it writes files of its own."""
        return self.convert is not _no_conversion


def _workers(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0}


def _shuffled(dataset: Any, problem: Problem, workers: int, **options: Any) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(_SEED)
    return DataLoader(dataset, problem.batch, shuffle=True, generator=order, **_workers(workers), **options)


def _stateful(load: Callable[..., DataLoader[Any]]) -> Callable[[Problem, str, int], Iterable[Any]]:
    """Return a function that makes the same loader with torchdata's drop-in replacement of a DataLoader."""

    def made(problem: Problem, out: str, workers: int) -> Iterable[Any]:
        plain = load(problem, out, workers)
        if importlib.util.find_spec("torchdata") is None:
            return plain
        from torchdata.stateful_dataloader import StatefulDataLoader

        order = torch.Generator().manual_seed(_SEED)
        how: dict[str, Any] = {"collate_fn": plain.collate_fn, "generator": order, "shuffle": True}
        if workers:
            how["multiprocessing_context"] = plain.multiprocessing_context
        return StatefulDataLoader(plain.dataset, problem.batch, **_workers(workers), **how)

    return made


def _ours(problem: Problem, _: str, workers: int, shuffle: bool | str = "rows") -> Iterable[Any]:
    options = {**problem.ours(), "kept_bytes": 0}
    return loader(list(problem.paths), problem.batch, shuffle=shuffle, seed=_SEED, threads=workers, **options)


def _h5py(problem: Problem, _: str, workers: int) -> DataLoader[Any]:
    return _shuffled(problem.dataset(), problem, workers)


def _litdata_rows(problem: Problem, part: int) -> Iterator[dict[str, Any]]:
    yield from problem.samples(part)


def _to_litdata(problem: Problem, out: str) -> None:
    import litdata

    litdata.optimize(
        fn=partial(_litdata_rows, problem),
        inputs=list(range(len(problem.parts))),
        output_dir=out,
        chunk_bytes="64MB",
        num_workers=min(2, len(problem.parts)),
        verbose=False,
    )


def _litdata(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import litdata

    dataset = litdata.StreamingDataset(out, shuffle=True, seed=_SEED, drop_last=False)
    return litdata.StreamingDataLoader(dataset, batch_size=problem.batch, **_workers(workers))


def _all_samples(problem: Problem) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    for part in range(len(problem.parts)):
        yield from problem.samples(part)


def _to_mosaicml(problem: Problem, out: str) -> None:
    from streaming import MDSWriter

    columns = {name: f"ndarray:{dtype}:{','.join(map(str, shape))}" for name, (dtype, shape) in problem.columns.items()}
    with MDSWriter(out=out, columns=columns) as writer:
        for sample in _all_samples(problem):
            writer.write({name: np.ascontiguousarray(values) for name, values in sample.items()})


def _mosaicml(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=out, shuffle=True, shuffle_seed=_SEED, batch_size=problem.batch)
    return StreamingDataLoader(dataset, batch_size=problem.batch, **_workers(workers))


def _to_webdataset(problem: Problem, out: str) -> None:
    import webdataset

    size = min(16e6, problem.rows * problem.row_bytes / _LEAST_SHARDS)
    with webdataset.ShardWriter(os.path.join(out, "shard-%06d.tar"), maxsize=size, verbose=0) as writer:
        for number, sample in enumerate(_all_samples(problem)):
            writer.write({"__key__": f"{number:08d}", **{f"{name}.npy": values for name, values in sample.items()}})


def _webdataset(problem: Problem, out: str, workers: int) -> Iterable[Any]:
    import webdataset

    names = sorted(os.listdir(out))
    shards = [os.path.join(out, name) for name in names]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=_SEED)
        .shuffle(1000)
        .decode()
        .map(partial(_without_endings, list(problem.columns)))
        .batched(problem.batch)
    )
    return webdataset.WebLoader(dataset, batch_size=None, **_workers(workers))


def _without_endings(names: list[str], sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(sample[f"{name}.npy"]) for name in names}


def _to_datasets(problem: Problem, out: str) -> None:
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


def _datasets(problem: Problem, out: str, workers: int) -> DataLoader[Any]:
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


def _lance(problem: Problem, out: str, workers: int) -> DataLoader[Any]:
    from ray_h5.bench.peers.lance_rows import Rows

    rows = Rows(os.path.join(out, "rows.lance"), {name: shape for name, (_, shape) in problem.columns.items()})
    # Lance runs threads, which a fork would lose.
    how = {"multiprocessing_context": "spawn"} if workers else {}
    return _shuffled(rows, problem, workers, collate_fn=_as_it_is, **how)


def _as_it_is(batch: Any) -> Any:
    return batch


def _dense(view: Any) -> dict[str, torch.Tensor]:
    return {"X": torch.from_numpy(np.asarray(view.to_adata().X.toarray()))}


def _collection(problem: Problem) -> Any:
    import anndata
    from anndata.experimental import AnnCollection

    return AnnCollection([anndata.read_h5ad(path, backed="r") for path in problem.paths])


def _scdataset(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    from scdataset import BlockShuffling, MultiIndexable, scDataset

    dataset = scDataset(
        _collection(problem),
        BlockShuffling(block_size=16),
        batch_size=problem.batch,
        fetch_factor=16,
        fetch_transform=lambda view: MultiIndexable(**_dense(view)),
        batch_transform=lambda rows: {"X": rows["X"]},
        seed=_SEED,
    )
    return DataLoader(dataset, batch_size=None, **_workers(workers))


def _anndata(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    from anndata.experimental import AnnLoader

    torch.manual_seed(_SEED)  # its sampler has no generator of its own
    # With workers it makes samples, which it cannot collate.
    how = {"collate_fn": lambda views: {"X": torch.cat([_strided(view.X) for view in views])}} if workers else {}
    loader = AnnLoader(_collection(problem), batch_size=problem.batch, shuffle=True, **_workers(workers), **how)
    return loader if workers else _Mapped(loader, lambda view: {"X": _strided(view.X)})


def _strided(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, values.shape[-1]) if values.layout == torch.strided else values.to_dense()


class _Mapped:
    """A loader, each batch through a function."""

    def __init__(self, batches: Iterable[Any], function: Callable[[Any], Any]) -> None:
        self._batches, self._function = batches, function

    def __iter__(self) -> Iterator[Any]:
        return map(self._function, self._batches)


def _read_volume(name: str, path: str) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    import h5py

    with h5py.File(path) as file:
        return torch.from_numpy(file[name][:][None]), np.eye(4)


def _torchio(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    import torchio

    subject = torchio.Subject(
        raw=torchio.ScalarImage(problem.paths[0], reader=partial(_read_volume, "raw")),
        label=torchio.LabelMap(problem.paths[0], reader=partial(_read_volume, "label")),
    )
    shape = problem.columns["raw"][1]
    sampler = torchio.GridSampler(subject, shape, tuple(each // 2 for each in shape))
    order = torch.Generator().manual_seed(_SEED)
    batches = torchio.SubjectsLoader(
        sampler, batch_size=problem.batch, shuffle=True, generator=order, **_workers(workers)
    )
    return _Mapped(batches, lambda batch: {name: batch[name]["data"][:, 0] for name in problem.names})


_ALL = (*_TABLES, "cells", "patches")

CONTESTANTS: dict[str, Contestant] = {
    OURS: Contestant("ray_h5", "ray_h5", _ours, cases=_ALL),
    f"{OURS}, default": Contestant("ray_h5", "ray_h5", partial(_ours, shuffle=True), cases=_ALL),
    "h5py": Contestant("h5py", "h5py", _h5py, cases=_ALL, resumable=_stateful(_h5py)),
    "litdata": Contestant("litdata", "litdata", _litdata, _to_litdata),
    "mosaicml": Contestant("mosaicml-streaming", "streaming", _mosaicml, _to_mosaicml),
    "webdataset": Contestant("webdataset", "webdataset", _webdataset, _to_webdataset),
    "datasets": Contestant("datasets", "datasets", _datasets, _to_datasets, resumable=_stateful(_datasets)),
    "lance": Contestant("pylance", "lance", _lance, _to_lance, resumable=_stateful(_lance)),
    "scdataset": Contestant("scdataset", "scdataset", _scdataset, cases=("cells",)),
    "anndata": Contestant("anndata", "anndata", _anndata, cases=("cells",)),
    "torchio": Contestant("torchio", "torchio", _torchio, cases=("patches",)),
}
"""The contestants by name. Ours shuffles rows exactly, or as it does by default; `h5py` is the usual Dataset."""
