"""Check that the workers of a trainer leave a CPU for the tasks that read; without one Ray waits for ever."""

from __future__ import annotations

import logging

import ray
from ray.data import Dataset
from ray.util import placement_group_table

from ray_h5.errors import OptionError
from ray_h5.ray_data.ray_internals import may_grow, task_cpus

logger = logging.getLogger(__name__)

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
