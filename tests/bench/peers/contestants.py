"""The contestants of the bench `peers`, each written as its own documentation says.

A contestant converts the rows once, or reads the HDF5 files as they are. Its loader yields shuffled batches: each a
mapping of columns. Loaders that have `state_dict` are tried for resuming.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ray_h5.torch_data import loader
from tests.bench.measure import OURS
from tests.bench.peers.data_loaders import SEED, shuffled, stateful, worker_options
from tests.bench.peers.floor import bare_read, plan
from tests.bench.peers.formats import (
    from_datasets,
    from_lance,
    from_litdata,
    from_mosaicml,
    from_webdataset,
    to_datasets,
    to_lance,
    to_litdata,
    to_mosaicml,
    to_webdataset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.bench.peers.problems import Problem

__all__ = ["BARE", "CONTESTANTS", "Contestant"]

_TABLES = ("signals", "images", "windows")
_KEPT_BYTES = 64 << 30


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
    prepare
        Is called once, before any clock starts.
    """

    package: str
    module: str
    load: Callable[[Problem, str, int], Iterable[Any]]
    convert: Callable[[Problem, str], None] = _no_conversion
    cases: tuple[str, ...] = _TABLES
    resumable: Callable[[Problem, str, int], Iterable[Any]] | None = None
    prepare: Callable[[Problem], object] | None = None

    @property
    def converts(self) -> bool:
        """Whether it writes files of its own."""
        return self.convert is not _no_conversion


def _ours(problem: Problem, out: str, workers: int, shuffle: bool | str = "rows") -> Iterable[Any]:
    options = {**problem.ours(), "kept_bytes": 0}
    if kept := problem.kept(out):  # where its store is, the environment says
        options |= {"cache_dir": kept, "cache_bytes": _KEPT_BYTES}
    return loader(
        [problem.url(path) for path in problem.paths],
        problem.batch,
        shuffle=shuffle,
        seed=SEED,
        threads=workers,
        **options,
    )


def _h5py(problem: Problem, _: str, workers: int) -> DataLoader[Any]:
    return shuffled(problem.dataset(), problem, workers)


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
        seed=SEED,
    )
    return DataLoader(dataset, batch_size=None, **worker_options(workers))


def _anndata(problem: Problem, _: str, workers: int) -> Iterable[Any]:
    from anndata.experimental import AnnLoader

    torch.manual_seed(SEED)  # its sampler has no generator of its own
    # With workers it makes samples, which it cannot collate.
    how = {"collate_fn": lambda views: {"X": torch.cat([_strided(view.X) for view in views])}} if workers else {}
    loader = AnnLoader(_collection(problem), batch_size=problem.batch, shuffle=True, **worker_options(workers), **how)
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
    order = torch.Generator().manual_seed(SEED)
    batches = torchio.SubjectsLoader(
        sampler, batch_size=problem.batch, shuffle=True, generator=order, **worker_options(workers)
    )
    return _Mapped(batches, lambda batch: {name: batch[name]["data"][:, 0] for name in problem.names})


_STREAMS = (*_TABLES, "store")
_ON_DISK = (*_TABLES, "cells", "patches")
_ALL = (*_ON_DISK, "store")

BARE = "bare read"
"""The contestant that reads and decodes each chunk once, and does nothing else."""

CONTESTANTS: dict[str, Contestant] = {
    OURS: Contestant("ray_h5", "ray_h5", _ours, cases=_ALL),
    f"{OURS}, default": Contestant("ray_h5", "ray_h5", partial(_ours, shuffle=True), cases=_ALL),
    BARE: Contestant("ray_h5", "ray_h5", bare_read, cases=_ON_DISK, prepare=plan),
    "h5py": Contestant("h5py", "h5py", _h5py, cases=_ON_DISK, resumable=stateful(_h5py)),
    "litdata": Contestant("litdata", "litdata", from_litdata, to_litdata, _STREAMS),
    "mosaicml": Contestant("mosaicml-streaming", "streaming", from_mosaicml, to_mosaicml, _STREAMS),
    "webdataset": Contestant("webdataset", "webdataset", from_webdataset, to_webdataset, _STREAMS),
    "datasets": Contestant("datasets", "datasets", from_datasets, to_datasets, resumable=stateful(from_datasets)),
    "lance": Contestant("pylance", "lance", from_lance, to_lance, _STREAMS, resumable=stateful(from_lance)),
    "scdataset": Contestant("scdataset", "scdataset", _scdataset, cases=("cells",)),
    "anndata": Contestant("anndata", "anndata", _anndata, cases=("cells",)),
    "torchio": Contestant("torchio", "torchio", _torchio, cases=("patches",)),
}
"""The contestants by name. Ours shuffles rows exactly, or as it does by default; `h5py` is the usual Dataset."""
