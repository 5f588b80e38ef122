"""`data_config`: the ``dataset_config`` of a trainer whose workers receive rows in the planned order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from ray.data import Dataset, ExecutionOptions
from ray.train import DataConfig

from ray_h5.options import takes_options_of
from ray_h5.ray_data.datasource import H5Datasource
from ray_h5.ray_data.ray_internals import datasources, in_whole_blocks, operators, row_count_changers, with_datasources
from ray_h5.ray_data.training.free_cpus import check_free_cpus

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from ray_h5.order.read_plan import ReadPlan

logger = logging.getLogger(__name__)


class OrderedDataConfig(DataConfig):
    """A `ray.train.DataConfig` that keeps the order of the blocks; see `data_config`."""

    def __init__(self, datasets_to_split: Literal["all"] | list[str], *args: Any) -> None:
        super().__init__(datasets_to_split, *args)
        self._shared_datasets = datasets_to_split

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: list[ActorHandle] | None,
        worker_node_ids: list[str] | None,
        **kwargs: Any,
    ) -> Any:
        """Split the datasets among the workers, and warn of rows that this leaves out.

        Raises
        ------
        OptionError
            If the workers leave no CPU for the tasks that read.
        """
        datasets = dict(datasets)
        for name, ds in sorted(datasets.items()):
            check_free_cpus(name, ds)
            if any(isinstance(each, H5Datasource) for each in datasources(ds)):
                is_shared = self._shared_datasets == "all" or name in self._shared_datasets
                datasets[name] = _for_workers(name, ds, world_size if is_shared else 1)
        return super().configure(datasets, world_size, worker_handles, worker_node_ids, **kwargs)


@takes_options_of(ExecutionOptions, instead={"preserve_order": "Blocks are always in order here; leave it out."})
def data_config(
    *,
    datasets_to_split: Literal["all"] | list[str] = "all",
    enable_shard_locality: bool = True,
    **execution_options: Any,
) -> DataConfig:
    """Return the ``dataset_config`` for a trainer whose workers receive rows in the planned order.

    Blocks then go to the workers in turn, in the order of the epoch. The order can be repeated, and a run can resume
    within an epoch. With a plain `ray.train.DataConfig` blocks overtake each other. A function after `read_h5` returns
    one block for each block that it receives, however large it becomes.

    A trainer whose workers reserve all CPUs leaves none for the tasks that read, and Ray waits for them without end.
    That is an `OptionError` in the training loop, or a warning where something else may free CPUs.

    Parameters
    ----------
    datasets_to_split : "all" or list of str
        The datasets that workers share; each worker reads the whole of the others.
    enable_shard_locality : bool
        Prefer to give a block to a worker on the node that read it, where the order allows it.
    resource_limits : ray.data.ExecutionResources, optional
        The most that tasks which read and transform may use, besides what the trainer reserves.
    label_selector : mapping of str to str, optional
        The nodes that read and transform.
    exclude_resources, actor_locality_enabled, verbose_progress
        As in `ray.data.ExecutionOptions`.
    **execution_options
        The options of `ray.data.ExecutionOptions` that this release of Ray has.

    Examples
    --------
    >>> TorchTrainer(loop, datasets={"train": ds}, dataset_config=data_config())  # doctest: +SKIP
    """
    options = ExecutionOptions(preserve_order=True, **execution_options)
    return OrderedDataConfig(datasets_to_split, options, enable_shard_locality)


def _for_workers(name: str, ds: Dataset, world_size: int) -> Dataset:
    """Return a copy whose workers receive the planned rows; `ds` itself stays as it is."""
    changers = row_count_changers(operators(ds))
    if changers:
        # Rows that a worker receives are then no longer rows that were read, so no position counts them.
        _warn_of_row_count_changers(name, changers)
        return with_datasources(ds, lambda each: _shared(each, world_size, is_resumable=False))
    _warn_of_lost_rows(name, ds, world_size)
    # The workers receive blocks in turn: with whole blocks each gets exactly its planned rows.
    return in_whole_blocks(ds, lambda each: _shared(each, world_size, is_resumable=True))


def _shared(source: Any, world_size: int, is_resumable: bool) -> Any:
    return source.for_workers(world_size, is_resumable) if isinstance(source, H5Datasource) else source


def _warn_of_row_count_changers(name: str, changers: list[str]) -> None:
    logger.warning(
        "dataset %r: %s may change the number of rows, or of rows in a block, after the reading: a run that resumes "
        "begins its epoch again. If a function keeps them, pass map_batches(..., udf_modifying_row_count=False).",
        name,
        ", ".join(changers),
    )


def _warn_of_lost_rows(name: str, ds: Dataset, world_size: int) -> None:
    rows = _num_rows(ds)
    lost = rows % world_size
    if lost:
        logger.warning(
            "dataset %r: the last %d of %d rows do not divide among %d workers, and are left out of each epoch. Choose "
            "what happens to them: read_h5(..., tail='drop' or 'pad', tail_rows=workers * batch size).",
            name,
            lost,
            rows,
            world_size,
        )


def _num_rows(ds: Dataset) -> int:
    """Return the rows of an epoch; from the plan, since Ray would read and transform all of them to count."""
    plans = _plans(ds)
    return sum(plan.num_positions for plan in plans) if plans else ds.count()


def _plans(ds: Dataset) -> list[ReadPlan]:
    return [each.plan() for each in datasources(ds) if isinstance(each, H5Datasource)]
