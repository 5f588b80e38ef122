"""The plans of a dataset, kept from epoch to epoch, and passed to other processes through Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import ray

from ray_h5.order.read_plan import ReadPlan

_MAX_PLANS = 4


@dataclass(slots=True)
class _CachedPlan:
    """A plan, and a reference to it in Ray's object store once tasks need it."""

    predicate: bytes | None
    """The fingerprint of the predicate. None if it has no fingerprint: the plan is then not found again."""
    names: tuple[str, ...]
    plan: ReadPlan
    reference: ray.ObjectRef[ReadPlan] | None = None
    session: str = ""
    """The session of Ray that the reference is valid in."""

    def put(self) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to the plan, which is put into Ray's object store once a session."""
        if self.reference is None or self.session != _session():
            self.reference, self.session = ray.put(self.plan), _session()
        return self.reference


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

    def __init__(self, cached: Sequence[_CachedPlan] = ()) -> None:
        self._cached = list(cached)

    @staticmethod
    def key(predicate: pc.Expression | None, names: tuple[str, ...]) -> tuple[bytes | None, tuple[str, ...]]:
        """Return what identifies a plan: the fingerprint of the predicate, None if it has none, and the columns."""
        if predicate is None:
            return b"", names
        from ray_h5.predicates.evaluate import fingerprint

        return fingerprint(predicate), names

    def get(
        self,
        predicate: pc.Expression | None,
        names: tuple[str, ...],
        make: Callable[[tuple[str, ...]], ReadPlan],
    ) -> ReadPlan:
        """Return the plan for a predicate and columns; call `make` if it is not in the cache."""
        wanted, _ = self.key(predicate, names)
        for each in self._cached if wanted is not None else ():
            if each.names == names and each.predicate == wanted:
                return each.plan
        plan = make(names)
        self._cached = [*self._cached[1 - _MAX_PLANS :], _CachedPlan(wanted, names, plan)]
        return plan

    def reference(self, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to a plan in Ray's object store; a cached plan is put there once."""
        cached = next((each for each in self._cached if each.plan is plan), None)
        # Another iteration may have made so many plans meanwhile that this one has left the cache.
        return ray.put(plan) if cached is None else cached.put()

    def __reduce__(self) -> tuple[Any, ...]:
        # Without references, which are valid in this process, or in its cluster, alone.
        return PlanCache, ([_CachedPlan(each.predicate, each.names, each.plan) for each in self._cached],)
