"""Whether the workers of a trainer leave room for the tasks that read: if not, Ray waits for ever without a word."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import ray
from ray.data import Dataset
from ray.util import placement_group_table

from ray_h5.errors import OptionError
from ray_h5.ray_data.internals import Demand, may_grow, task_demands

logger = logging.getLogger(__name__)

Resources: TypeAlias = Mapping[str, float]
Bundles: TypeAlias = Sequence[tuple[str, Resources]]
"""What a placement group reserves: nodes, and what of each."""

_LEAST = 1e-4
"""Ray counts resources in steps of this size."""

_ADVICE = (
    "Leave room: fewer workers, ScalingConfig(num_workers=...); less for each, ScalingConfig(resources_per_worker="
    "{'CPU': 0.5}); lighter tasks, read_h5(num_cpus=0.5) and map_batches(num_cpus=0.5); or more CPUs, "
    "ray.init(num_cpus=...) or another node."
)


def check_room(name: str, ds: Dataset, worker_nodes: Sequence[str]) -> None:
    """Raise if the workers of a trainer leave no room for the tasks of a dataset, and warn if it may lack.

    Parameters
    ----------
    name : str
        The key of the dataset.
    ds : Dataset
        The dataset.
    worker_nodes : sequence of str
        The id of the node of each worker.

    Raises
    ------
    OptionError
        If no node has enough for one task beside the workers, whatever else ends, and no autoscaler adds nodes.
    """
    demands = task_demands(ds)
    if not demands:
        return  # what is in memory needs no tasks
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    groups = _placement_groups()
    own = _of_workers(groups, worker_nodes)
    beside_workers = _left(nodes, own)
    stuck = [each for each in demands if not _fits(each.resources, beside_workers.values())]
    if stuck:
        message = f"dataset {name!r}: {_needs(stuck)}. {_reserved(nodes, own, stuck, len(worker_nodes))}"
        if not may_grow():
            raise OptionError(f"{message}: its tasks would wait for ever. {_ADVICE}")
        logger.warning("%s: its tasks wait until an autoscaler adds a node. %s", message, _ADVICE)
        return
    beside_all = _left(nodes, [bundle for group in groups for bundle in group])
    waiting = [each for each in demands if not _fits(each.resources, beside_all.values())]
    if waiting:
        logger.warning(
            "dataset %r: %s. The %d workers, and other placement groups, such as those of other trainers and of the "
            "trials of a tuning run, reserve all that is larger: its tasks wait until one of them ends, or for ever. "
            "%s",
            name,
            _needs(waiting),
            len(worker_nodes),
            _ADVICE,
        )
        return
    together = _together(demands)
    if together and not _fits(together, [_sum(beside_workers.values())]):
        logger.warning(
            "dataset %r: its actors and one task need %s at a time, found %s beside the %d workers: one may wait for "
            "the other for ever. %s",
            name,
            _text(together),
            _text({key: _sum(beside_workers.values()).get(key, 0.0) for key in together}),
            len(worker_nodes),
            _ADVICE,
        )


def _placement_groups() -> list[Bundles]:
    """Return what each placement group of the cluster reserves now."""
    return [
        [(group["bundles_to_node_id"][i], bundle) for i, bundle in group["bundles"].items()]
        for group in placement_group_table().values()
        if group["state"] == "CREATED"
    ]


def _of_workers(groups: Iterable[Bundles], worker_nodes: Sequence[str]) -> Bundles:
    """Return what the workers reserve, at least: of the groups that lie on their nodes, the smallest one."""
    wanted = Counter(worker_nodes)
    found = [group for group in groups if Counter(node for node, _ in group) == wanted]
    return min(found, key=lambda group: _sum(bundle for _, bundle in group).get("CPU", 0.0), default=[])


def _left(nodes: Mapping[str, Resources], bundles: Bundles) -> dict[str, dict[str, float]]:
    left = {node: dict(resources) for node, resources in nodes.items()}
    for node, bundle in bundles:
        for key, amount in bundle.items():
            if key in left.get(node, ()):
                left[node][key] -= amount
    return left


def _fits(wanted: Resources, left: Iterable[Resources]) -> bool:
    """Return whether one of the nodes has what is wanted."""
    return any(all(node.get(key, 0.0) > amount - _LEAST for key, amount in wanted.items()) for node in left)


def _together(demands: Sequence[Demand]) -> dict[str, float]:
    """Return what all actors and the largest task need at a time; nothing where there are only tasks, or actors."""
    actors = [each for each in demands if each.actors]
    tasks = [each.resources for each in demands if not each.actors]
    if not actors or not tasks:
        return {}
    found = _sum(resources for each in actors for resources in [each.resources] * each.actors)
    for key in {key for task in tasks for key in task}:
        found[key] = found.get(key, 0.0) + max(task.get(key, 0.0) for task in tasks)
    return found


def _sum(many: Iterable[Resources]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in many:
        for key, amount in each.items():
            found[key] = found.get(key, 0.0) + amount
    return found


def _needs(demands: Sequence[Demand]) -> str:
    return " and ".join(f"a task of {each.name} needs {_text(each.resources)}" for each in demands)


def _reserved(nodes: Mapping[str, Resources], own: Bundles, stuck: Sequence[Demand], workers: int) -> str:
    """Return what the workers reserve of what the tasks lack, and what is left."""
    keys = sorted({key for each in stuck for key in each.resources})
    total, taken = _sum(nodes.values()), _sum(bundle for _, bundle in own)
    left = _left(nodes, own).values()
    most = {key: max((node.get(key, 0.0) for node in left), default=0.0) for key in keys}
    shares = ", ".join(f"{taken.get(key, 0.0):g} of {total.get(key, 0.0):g} {key}" for key in keys)
    return f"The {workers} workers of the trainer reserve {shares} of the cluster, which leaves {_text(most)} on a node"


def _text(resources: Resources) -> str:
    return ", ".join(f"{max(amount, 0.0):g} {key}" for key, amount in sorted(resources.items()))
