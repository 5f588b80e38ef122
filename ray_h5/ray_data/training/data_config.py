"""`data_config`: the ``dataset_config`` of a trainer whose workers receive rows in the planned order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import ray
from ray.actor import ActorHandle
from ray.data import DataIterator, Dataset, ExecutionOptions
from ray.train import DataConfig
from ray.util import placement_group_table

from ray_h5.errors import OptionError
from ray_h5.messages import ensure_handler
from ray_h5.options import as_integer, require, takes_options_of
from ray_h5.ray_data.datasource import H5Datasource, sources_of
from ray_h5.ray_data.epochs import warn_of_lost_rows
from ray_h5.ray_data.ray_internals import may_grow, row_count_changers, task_cpus, with_datasources
from ray_h5.ray_data.training.worker_shard import RowFunction, WorkerShard, read_by_workers

logger = logging.getLogger(__name__)


Reading: TypeAlias = Literal["auto", "workers", "tasks"]


class OrderedDataConfig(DataConfig):
    """A `ray.train.DataConfig` whose workers receive rows in the planned order; see `data_config`."""

    def __init__(self, reading: Reading, threads: int | None, of_tasks: Sequence[str], *args: Any) -> None:
        super().__init__(*args)
        self._reading, self._threads, self._of_tasks = reading, threads, of_tasks

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: list[ActorHandle] | None,
        worker_node_ids: list[str] | None,
        **kwargs: Any,
    ) -> Any:
        """Return the shards of each worker, and warn of rows that this leaves out.

        Raises
        ------
        OptionError
            If workers should read a dataset themselves and cannot, or leave no CPU for the tasks that read.
        """
        ensure_handler()
        nodes = worker_node_ids or []
        threads = [self._threads or 1] * world_size
        if nodes and self._threads is None:  # the share of each worker of the CPUs of its node that do not train
            cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in ray.nodes()}
            threads = [int(min(8, max(1, cpus.get(node, 0.0) // nodes.count(node) - 1))) for node in nodes]
        shards: list[dict[str, DataIterator]] = [{} for _ in range(world_size)]
        in_tasks = {}
        for name, ds in sorted(datasets.items()):
            is_shared = self._datasets_to_split == "all" or name in self._datasets_to_split
            ranks = world_size if is_shared else 1
            if (read := self._read_by_workers(name, ds, nodes)) is not None:
                source, functions = read
                warn_of_lost_rows(f"dataset {name!r}", source.plan().num_positions, ranks)
                plan = source.reference()
                for rank, count in enumerate(threads):
                    own, epochs = rank if is_shared else 0, source.epochs.for_workers(ranks)
                    shards[rank][name] = WorkerShard(name, plan, source.names, functions, epochs, own, ranks, count)
                continue
            check_free_cpus(name, ds)
            in_tasks[name] = _for_workers(name, ds, ranks) if sources_of(ds) else ds
        if in_tasks:
            others = super().configure(in_tasks, world_size, worker_handles, worker_node_ids, **kwargs)
            for shard, other in zip(shards, others, strict=True):
                shard.update(other)
        return shards

    def _read_by_workers(
        self, name: str, ds: Dataset, nodes: list[str]
    ) -> tuple[H5Datasource, list[RowFunction]] | None:
        """Return what the workers read themselves; None if tasks read it. Say once which, and why."""
        answer = "reading='tasks'" if self._reading == "tasks" else read_by_workers(ds)
        if isinstance(answer, str) and self._reading == "workers":
            raise OptionError(
                f"data_config(reading='workers'): dataset {name!r} cannot be read in the workers: {answer}. Say "
                "reading='auto', and tasks of Ray read it."
            )
        if self._reading == "auto" and not isinstance(answer, str):
            # Nodes that have CPUs and train nothing: there tasks can read.
            alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            idle = [node["NodeManagerHostname"] for node in alive if node["NodeID"] not in nodes]
            if self._of_tasks:
                answer = f"{', '.join(self._of_tasks)}: for tasks"
            elif not nodes:
                answer = "it is not known where the workers run"
            elif idle:
                answer = f"{len(idle)} nodes have CPUs and no worker, such as {idle[0]}"
        if isinstance(answer, str):
            if self._reading == "auto":
                logger.info("dataset %r: read in tasks of Ray: %s", name, answer)
            return None
        logger.info("dataset %r: read in the workers, by %s threads each", name, self._threads or "their share of")
        return answer


_INSTEAD = {
    "preserve_order": "Blocks are always in order here; leave it out.",
    "dataset_checkpoint_configs": "Those of Ray keep ids of rows and no order: store train_batches(...).position().",
}


@takes_options_of(ExecutionOptions, instead=_INSTEAD)
def data_config(
    *,
    reading: Reading = "auto",
    threads: int | None = None,
    datasets_to_split: Literal["all"] | list[str] = "all",
    enable_shard_locality: bool = True,
    **execution_options: Any,
) -> DataConfig:
    """Return the ``dataset_config`` for a trainer whose workers receive rows in the planned order.

    Rows, their order and values, and positions for checkpoints do not depend on `reading`: a run may begin with one way
    and resume with the other. With a plain `ray.train.DataConfig` blocks overtake each other.

    Parameters
    ----------
    reading : {"auto", "workers", "tasks"}
        ``"workers"``: each worker reads its rows itself, in threads, about as fast as `ray_h5.loader`. Functions after
        `read_h5` have to be those of this package (`Standardize`, `SpecAugment`, `GaussianNoise`, `DecodeImage` with a
        size), or functions with an attribute ``row_by_row = True``, which change each row by itself. ``"tasks"``: tasks
        of Ray read, also on nodes that do not train, and run any function. ``"auto"``: workers, where that is possible
        and each node that has CPUs has a worker, unless options of tasks are given. A line of the log says which, and
        why.
    threads : int, optional
        Threads that read in each worker. By default its share of the CPUs of its node that do not train, at most 8.
    datasets_to_split : "all" or list of str
        The datasets that workers share; each worker reads the whole of the others.
    enable_shard_locality : bool
        For tasks: prefer to give a block to a worker on the node that read it, where the order allows it.
    resource_limits : ray.data.ExecutionResources, optional
        The most that tasks which read and transform may use, besides what the trainer reserves.
    label_selector : mapping of str to str, optional
        The nodes that read and transform.
    exclude_resources, actor_locality_enabled, verbose_progress
        As in `ray.data.ExecutionOptions`.
    **execution_options
        For tasks: the options of `ray.data.ExecutionOptions` that this release of Ray has.

    Notes
    -----
    For tasks the workers have to leave CPUs. That they reserve all is an `OptionError` in the training loop, or a
    warning where something else may free CPUs. A function after `read_h5` returns one block for each block that it
    receives, however large it becomes.

    Examples
    --------
    >>> TorchTrainer(loop, datasets={"train": ds}, dataset_config=data_config())  # doctest: +SKIP
    """
    require(reading in ("auto", "workers", "tasks"), "reading", reading, "'auto', 'workers' or 'tasks'")
    checked_threads = None if threads is None else as_integer("threads", threads, 0)
    options = ExecutionOptions(preserve_order=True, **execution_options)
    return OrderedDataConfig(
        reading, checked_threads, list(execution_options), datasets_to_split, options, enable_shard_locality
    )


_ALONE: WeakKeyDictionary[Dataset, DataIterator | Dataset] = WeakKeyDictionary()


def shard_of_one(name: str, ds: Dataset) -> DataIterator | Dataset:
    """Return what `data_config` gives to a worker that is alone: Ray's local mode gives it the dataset itself."""
    if ds not in _ALONE:
        ensure_handler()
        if not isinstance(read := read_by_workers(ds), str):
            source, functions = read
            epochs = source.epochs.for_workers(1)
            _ALONE[ds] = WorkerShard(name, source.plan(), source.names, functions, epochs, 0, 1, threads=1)
        elif sources_of(ds):
            _ALONE[ds] = _for_workers(name, ds, 1)
        else:
            return ds
    return _ALONE[ds]


def _for_workers(name: str, ds: Dataset, world_size: int) -> Dataset:
    """Return a copy whose workers receive the planned rows; `ds` itself stays as it is.

    Here it is decided where a run resumes: at its rows, if those that a worker receives are those that were read.
    """
    changers = row_count_changers(ds)
    if changers:
        said = (
            "dataset %r: %s may change the number of rows, or of rows in a block, after the reading: a run that "
            "resumes begins its epoch again. If a function keeps them, pass "
            "map_batches(..., udf_modifying_row_count=False)."
        )
        logger.warning(said, name, ", ".join(changers))
    else:
        # From the plan: Ray would read and transform all rows to count them.
        rows = sum(source.plan().num_positions for source in sources_of(ds))
        warn_of_lost_rows(f"dataset {name!r}", rows, world_size)
    # The workers receive blocks in turn: with whole blocks each gets exactly its planned rows.
    is_exact = not changers
    change = methodcaller("for_workers", world_size, is_exact)
    return with_datasources(ds, H5Datasource, change, whole_blocks=is_exact)


_CPU_STEP = 1e-4
"""Ray counts resources in steps of this size."""

_ADVICE = (
    "Leave room: fewer workers, ScalingConfig(num_workers=...); less for each, ScalingConfig(resources_per_worker="
    "{'CPU': 0.5}); lighter tasks, read_h5(num_cpus=0.5) and map_batches(num_cpus=0.5); or more CPUs, "
    "ray.init(num_cpus=...) or another node."
)


def check_free_cpus(name: str, ds: Dataset) -> None:
    """Raise if the workers of a trainer leave less of the cluster's CPUs than a task of a dataset needs.

    Raises
    ------
    OptionError
        If nothing else reserves CPUs, and no autoscaler adds nodes; otherwise it is a warning.
    """
    needed = task_cpus(ds)
    total = ray.cluster_resources().get("CPU", 0.0)
    groups = [group["bundles"] for group in placement_group_table().values() if group["state"] == "CREATED"]
    reserved = sum(bundle.get("CPU", 0.0) for bundles in groups for bundle in bundles.values())
    if total - reserved > needed - _CPU_STEP:
        return
    message = (
        f"dataset {name!r}: a task that reads needs {needed:g} CPU, and workers reserve {reserved:g} of the {total:g} "
        "CPUs of the cluster: its tasks would wait for ever"
    )
    if len(groups) == 1 and not may_grow():
        raise OptionError(f"{message}. {_ADVICE}")
    logger.warning("%s, unless another trainer ends or a node is added. %s", message, _ADVICE)
