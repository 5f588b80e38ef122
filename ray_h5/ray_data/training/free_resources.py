"""Check that the workers of a trainer leave the resources that read tasks need; without these Ray waits for ever."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import ray
from ray.data import Dataset
from ray.util import placement_group_table

from ray_h5.errors import OptionError
from ray_h5.ray_data.internals.cluster import may_grow
from ray_h5.ray_data.internals.logical_plans import TaskDemand, task_demands

logger = logging.getLogger(__name__)

Resources: TypeAlias = Mapping[str, float]
"""Amounts by the name of a resource, such as CPU."""
Bundles: TypeAlias = Sequence[tuple[str, Resources]]
"""The reservations of a placement group: a node, and the resources reserved on it."""

_RESOURCE_STEP = 1e-4
"""Ray counts resources in steps of this size."""

_ADVICE = (
    "Leave room: fewer workers, ScalingConfig(num_workers=...); less for each, ScalingConfig(resources_per_worker="
    "{'CPU': 0.5}); lighter tasks, read_h5(num_cpus=0.5) and map_batches(num_cpus=0.5); or more CPUs, "
    "ray.init(num_cpus=...) or another node."
)


def check_free_resources(name: str, ds: Dataset, worker_nodes: Sequence[str]) -> None:
    """Raise if the workers of a trainer leave no resources for the tasks of a dataset; warn if they may be too few.

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
        If no node has enough for one task besides the workers, whatever else ends, and no autoscaler adds nodes.
    """
    demands = task_demands(ds)
    if not demands:
        return  # data in memory needs no tasks
    cluster = _Cluster.now(worker_nodes)
    if _blocked_by_workers(name, demands, cluster) or _blocked_by_others(name, demands, cluster):
        return
    _check_actors(name, demands, cluster)


def check_free_resources_before(name: str, ds: Dataset, num_workers: int, per_worker: Resources) -> None:
    """Raise if workers that a trainer is about to start will leave no resources for the tasks of a dataset.

    Parameters
    ----------
    name : str
        The key of the dataset.
    ds : Dataset
        The dataset.
    num_workers : int
        The number of workers.
    per_worker : mapping of str to float
        What each reserves.

    Raises
    ------
    OptionError
        If all nodes together have less than the workers and one task need, and no autoscaler adds nodes.
    """
    if not ray.is_initialized() or not (demands := task_demands(ds)) or may_grow():
        return
    # Which nodes the workers will be on is not known yet: all nodes are taken for one.
    total = _sum(node["Resources"] for node in ray.nodes() if node["Alive"])
    own = [("", per_worker)] * num_workers
    _blocked_by_workers(name, demands, _Cluster({"": total}, [], own, num_workers))


@dataclass(frozen=True)
class _Cluster:
    """The nodes of the cluster, and what placement groups reserve on them."""

    nodes: Mapping[str, Resources]
    groups: Sequence[Bundles]
    own: Bundles
    """The reservations of the workers."""
    num_workers: int

    @classmethod
    def now(cls, worker_nodes: Sequence[str]) -> _Cluster:
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        groups = _placement_groups()
        return cls(nodes, groups, _reserved_by_workers(groups, worker_nodes), len(worker_nodes))

    def free_besides_workers(self) -> dict[str, dict[str, float]]:
        return _free(self.nodes, self.own)

    def free_besides_all(self) -> dict[str, dict[str, float]]:
        return _free(self.nodes, [bundle for group in self.groups for bundle in group])


def _blocked_by_workers(name: str, demands: Sequence[TaskDemand], cluster: _Cluster) -> bool:
    """Return whether tasks wait for as long as the workers run; raise if no new node can help."""
    # A task runs on one node, so the sum of what nodes have free does not help.
    free = cluster.free_besides_workers()
    blocked = [each for each in demands if not _fits(each.resources, free.values())]
    if not blocked:
        return False
    message = f"dataset {name!r}: {_needs(blocked)}. {_reserved(cluster, blocked)}"
    if not may_grow():
        raise OptionError(f"{message}: its tasks would wait for ever. {_ADVICE}")
    logger.warning("%s: its tasks wait until an autoscaler adds a node. %s", message, _ADVICE)
    return True


def _blocked_by_others(name: str, demands: Sequence[TaskDemand], cluster: _Cluster) -> bool:
    """Return whether tasks wait until another placement group of the cluster ends."""
    free = cluster.free_besides_all()
    blocked = [each for each in demands if not _fits(each.resources, free.values())]
    if not blocked:
        return False
    logger.warning(
        "dataset %r: %s. The %d workers, and other placement groups, such as those of other trainers and of the trials "
        "of a tuning run, leave less on each node: its tasks wait until one of them ends, or for ever. %s",
        name,
        _needs(blocked),
        cluster.num_workers,
        _ADVICE,
    )
    return True


def _check_actors(name: str, demands: Sequence[TaskDemand], cluster: _Cluster) -> None:
    """Warn if actors, which stay, and one task do not fit into the cluster together."""
    together, free = _actors_and_one_task(demands), _sum(cluster.free_besides_workers().values())
    if together and not _fits(together, [free]):
        logger.warning(
            "dataset %r: its actors and one task need %s at a time, found %s beside the %d workers: one may wait for "
            "the other for ever. %s",
            name,
            _text(together),
            _text({key: free.get(key, 0.0) for key in together}),
            cluster.num_workers,
            _ADVICE,
        )


def _placement_groups() -> list[Bundles]:
    """Return what each placement group of the cluster reserves now."""
    return [
        [(group["bundles_to_node_id"][i], bundle) for i, bundle in group["bundles"].items()]
        for group in placement_group_table().values()
        if group["state"] == "CREATED"
    ]


def _reserved_by_workers(groups: Iterable[Bundles], worker_nodes: Sequence[str]) -> Bundles:
    """Return the placement group of the workers: of those on the same nodes the smallest, as Ray does not name it."""
    # Ray Train does not pass the placement group of its workers, so it is found by the nodes of its bundles.
    wanted = Counter(worker_nodes)
    found = [group for group in groups if Counter(node for node, _ in group) == wanted]
    return min(found, key=lambda group: _sum(bundle for _, bundle in group).get("CPU", 0.0), default=[])


def _free(nodes: Mapping[str, Resources], bundles: Bundles) -> dict[str, dict[str, float]]:
    """Return the resources of each node that the bundles leave free."""
    free = {node: dict(resources) for node, resources in nodes.items()}
    for node, bundle in bundles:
        for key, amount in bundle.items():
            # The node may have ended meanwhile.
            if key in free.get(node, ()):
                free[node][key] -= amount
    return free


def _fits(wanted: Resources, free: Iterable[Resources]) -> bool:
    """Return whether one of the nodes has all resources that are wanted."""
    return any(all(node.get(key, 0.0) > amount - _RESOURCE_STEP for key, amount in wanted.items()) for node in free)


def _actors_and_one_task(demands: Sequence[TaskDemand]) -> dict[str, float]:
    """Return what all actors and the largest task need at a time; nothing where there are only tasks, or actors."""
    # Actors start first and hold their resources to the end; tasks come and go.
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


def _needs(demands: Sequence[TaskDemand]) -> str:
    return " and ".join(f"a task of {each.name} needs {_text(each.resources)}" for each in demands)


def _reserved(cluster: _Cluster, blocked: Sequence[TaskDemand]) -> str:
    """Return a sentence: what the workers reserve of the resources that the tasks need, and what is left on a node."""
    keys = sorted({key for each in blocked for key in each.resources})
    total, reserved = _sum(cluster.nodes.values()), _sum(bundle for _, bundle in cluster.own)
    free = cluster.free_besides_workers().values()
    most = {key: max((node.get(key, 0.0) for node in free), default=0.0) for key in keys}
    shares = ", ".join(f"{reserved.get(key, 0.0):g} of {total.get(key, 0.0):g} {key}" for key in keys)
    return (
        f"The {cluster.num_workers} workers of the trainer reserve {shares} of the cluster, which leaves {_text(most)} "
        "on a node"
    )


def _text(resources: Resources) -> str:
    return ", ".join(f"{max(amount, 0.0):g} {key}" for key, amount in sorted(resources.items()))
