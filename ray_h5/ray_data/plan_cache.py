"""The plans of a dataset, kept from epoch to epoch, and passed to other processes through Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import ray

from ray_h5.lru import LRU
from ray_h5.order.read_plan import ReadPlan

_MAX_PLANS = 4


Key: TypeAlias = "tuple[bytes | None, tuple[str, ...]]"
"""What identifies a plan: the fingerprint of the predicate, empty without one, None if it has none; and the columns."""


def _session() -> str:
    """Return an id of this process's connection to a cluster; another one after `ray.shutdown` and `ray.init`."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    # The worker id of a driver is made from its job id, and each new cluster numbers its jobs from 1.
    return str(context.get_node_id() + context.get_worker_id())


class PlanCache:
    """The last few plans of one datasource, shared by all datasources that Ray derives from it.

    A process that a trainer or a splitter sends the dataset to gets the plans with it, and does not plan again.
    """

    def __init__(self, plans: Iterable[tuple[Key, ReadPlan]] = ()) -> None:
        self._plans: LRU[tuple[Key, ReadPlan]] = LRU(_MAX_PLANS)
        self._references: LRU[ray.ObjectRef[ReadPlan]] = LRU(_MAX_PLANS)
        for key, plan in plans:
            self._plans.put(key, (key, plan))

    def get(self, key: Key, make: Callable[[], ReadPlan]) -> ReadPlan:
        """Return a plan; call `make` if it is not in the cache, or if its predicate has no fingerprint."""
        plan_of_key = None if key[0] is None else self._plans.get(key)
        if plan_of_key is None:
            plan_of_key = key, make()
            self._plans.put(key, plan_of_key)
        return plan_of_key[1]

    def reference(self, key: Key, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to a plan in Ray's object store, where it is put once a session."""
        place = _session(), key
        stored = None if key[0] is None else self._references.get(place)
        if stored is None:
            stored = ray.put(plan)
            self._references.put(place, stored)
        return stored

    def __reduce__(self) -> tuple[Any, ...]:
        # Without references, which are valid in this process, or in its cluster, alone.
        return PlanCache, (self._plans.values(),)
