"""The cluster: ids of its processes and jobs, its key-value store, and whether it can grow."""

from __future__ import annotations

import sys

import ray
from ray._private import state
from ray._private.worker import global_worker
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.experimental import internal_kv

_STORE = b"ray_h5"
"""Our part of the key-value store of the GCS."""


def process_id() -> str:
    """Return the id of this process in the cluster: that of its actor, if it runs one, or of its worker."""
    context = ray.get_runtime_context()
    return context.get_actor_id() or context.get_worker_id()


def cluster_id() -> str:
    """Return an id of this cluster. Ids of jobs do not identify it: each cluster numbers its jobs from 1."""
    ray.get_runtime_context()  # starts Ray, if it is not running
    return str(global_worker.gcs_client.cluster_id.hex())


def trial_id() -> str | None:
    """Return the id of the trial of Ray Tune that runs in this process, if there is one."""
    # Not imported here: a process that runs a trial has imported it.
    session = sys.modules.get("ray.train._internal.session")
    found = session.get_session() if session is not None else None
    return getattr(found, "trial_id", None)


def task_attempts() -> int:
    """Return how often the calling task was started before: its worker, or its node, died each time."""
    if not ray.is_initialized():
        return 0
    return int(global_worker.core_worker.get_current_task_attempt_number())


def is_sent_by_ray() -> bool:
    """Return whether Ray pickles for a process of this cluster, where references to objects are valid.

    They are not valid in bytes that are stored for later, as by `Dataset.serialize_lineage`.
    """
    return ray.is_initialized() and global_worker.get_serialization_context().is_in_band_serialization()


def may_grow() -> bool:
    """Return whether an autoscaler may add nodes: only nodes that an autoscaler started have a named type."""
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    nodes = [*status.active_nodes, *status.idle_nodes]
    return any(node.ray_node_type_name not in ("", f"node_{node.node_id}") for node in nodes)


# The key-value store --------------------------------------------------------------------------------


def stored(key: str) -> bytes | None:
    """Return a value of the cluster's key-value store."""
    return internal_kv._internal_kv_get(key, namespace=_STORE)


def store(key: str, value: bytes, overwrite: bool = True) -> bool:
    """Put a value into the cluster's key-value store, and return whether the key was new; atomic."""
    return not internal_kv._internal_kv_put(key, value, overwrite, namespace=_STORE)


def forget(key: str, is_prefix: bool = False) -> None:
    """Delete a key of the cluster's key-value store, or all keys with that prefix."""
    internal_kv._internal_kv_del(key, del_by_prefix=is_prefix, namespace=_STORE)


def stored_keys(prefix: str) -> list[str]:
    """Return the keys of the cluster's key-value store that have a prefix."""
    return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=_STORE)]


def has_ended(job: str, processes: set[str]) -> bool:
    """Return whether a job's driver has ended, and those of its actors whose ids are among `processes`.

    Detached actors outlive their driver. Ray Data makes some of its own; they belong to the first job that uses it.
    """
    if any(each["JobID"] == job and not each["IsDead"] for each in state.jobs()):
        return False
    # Only actors that have entries count, and not those that Ray Data has left running.
    actors = state.actors(job_id=ray.JobID.from_hex(job))
    return all(each["State"] == "DEAD" for each in actors.values() if each["ActorID"] in processes)
