"""The plans of a dataset, kept from epoch to epoch, and passed to other processes through Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import ray
from ray.exceptions import RayError

from ray_h5.order.read_plan import ReadPlan
from ray_h5.ray_data.internals.cluster import is_sent_by_ray

_MAX_PLANS = 4


@dataclass(slots=True)
class _CachedPlan:
    """A plan, or a reference to a plan that another process put into Ray's object store."""

    predicate: bytes | None
    """The fingerprint of the predicate. None if it has no fingerprint: the plan is then not found again."""
    names: tuple[str, ...]
    plan: ReadPlan | None = None
    reference: ray.ObjectRef[ReadPlan] | None = None
    session: str = ""
    """The session of Ray that the reference is valid in."""

    def put(self) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to the plan, which is put into Ray's object store once a session."""
        if self.reference is None or self.session != _session():
            self.reference, self.session = ray.put(self.plan), _session()
        return self.reference

    def get(self) -> ReadPlan | None:
        """Return the plan; None if it is no longer available."""
        if self.plan is None and self.session == _session():
            try:
                self.plan = ray.get(self.reference)
            except RayError:
                return None  # the process that made the plan has ended, and its objects with it
        return self.plan

    def by_reference(self) -> _CachedPlan | None:
        """Return a copy for another process of the cluster; None if the plan is no longer available."""
        return _CachedPlan(self.predicate, self.names, None, self.put()) if self.get() is not None else None


def _session() -> str:
    """Return an id of this process's connection to a cluster; another one after `ray.shutdown` and `ray.init`."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    # The worker id of a driver is made from its job id, and each new cluster numbers its jobs from 1.
    return str(context.get_node_id() + context.get_worker_id())


class PlanCache:
    """The last few plans of one datasource, shared by all datasources that Ray derives from it."""

    def __init__(self, cached: Sequence[_CachedPlan] = ()) -> None:
        self._cached = list(cached)
        for each in self._cached:
            each.session = _session()  # Ray made the references valid in this process

    def get(
        self,
        predicate: pc.Expression | None,
        names: tuple[str, ...],
        make: Callable[[tuple[str, ...]], ReadPlan],
    ) -> ReadPlan:
        """Return the plan for a predicate and columns; call `make` if it is not in the cache."""
        wanted: bytes | None = b""
        if predicate is not None:
            from ray_h5.predicates.evaluate import fingerprint

            wanted = fingerprint(predicate)
        for each in self._cached if wanted is not None else ():
            if each.names == names and each.predicate == wanted and (plan := each.get()) is not None:
                return plan
        plan = make(names)
        self._cached = [*self._cached[1 - _MAX_PLANS :], _CachedPlan(wanted, names, plan)]
        return plan

    def reference(self, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to a plan in Ray's object store; a cached plan is put there once."""
        cached = next((each for each in self._cached if each.plan is plan), None)
        # Another iteration may have made so many plans meanwhile that this one has left the cache.
        return ray.put(plan) if cached is None else cached.put()

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that a trainer or a splitter sends the dataset to does not plan again. Another cluster, which may
        # get the dataset by `Dataset.serialize_lineage`, has none of the objects of this one.
        cached = [each.by_reference() for each in self._cached] if is_sent_by_ray() else []
        return PlanCache, ([each for each in cached if each is not None],)
