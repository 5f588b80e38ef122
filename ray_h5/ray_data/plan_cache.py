"""The plans of a dataset, kept from epoch to epoch, and passed to other processes through Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow.compute as pc
import ray

from ray_h5.order.read_plan import ReadPlan
from ray_h5.predicates.evaluate import fingerprint

_MAX_PLANS = 4


Key: TypeAlias = "tuple[bytes | None, tuple[str, ...]]"
"""What identifies a plan: the fingerprint of the predicate, None if it has none; and the columns."""


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

    def __init__(self, plans: Sequence[tuple[Key, ReadPlan]] = ()) -> None:
        self._plans = list(plans)
        self._references: dict[int, tuple[str, ray.ObjectRef[ReadPlan]]] = {}
        """By the id of a plan: the session of Ray that it was put into the object store in, and the reference."""

    @staticmethod
    def key(predicate: pc.Expression | None, names: tuple[str, ...]) -> Key:
        """Return what identifies a plan. One whose predicate has no fingerprint is not found again."""
        return b"" if predicate is None else fingerprint(predicate), names

    def get(
        self, predicate: pc.Expression | None, names: tuple[str, ...], make: Callable[[tuple[str, ...]], ReadPlan]
    ) -> ReadPlan:
        """Return the plan for a predicate and columns; call `make` if it is not in the cache."""
        wanted = self.key(predicate, names)
        for key, plan in self._plans:
            if key == wanted and key[0] is not None:
                return plan
        plan = make(names)
        self._plans = [*self._plans[1 - _MAX_PLANS :], (wanted, plan)]
        kept = {id(each) for _, each in self._plans}
        self._references = {key: each for key, each in self._references.items() if key in kept}
        return plan

    def reference(self, plan: ReadPlan) -> ray.ObjectRef[ReadPlan]:
        """Return a reference to a plan in Ray's object store; a cached plan is put there once a session."""
        session, reference = self._references.get(id(plan), ("", None))
        if reference is None or session != _session():
            reference = ray.put(plan)
            # Another iteration may have made so many plans meanwhile that this one has left the cache.
            if any(each is plan for _, each in self._plans):
                self._references[id(plan)] = _session(), reference
        return reference

    def __reduce__(self) -> tuple[Any, ...]:
        # Without references, which are valid in this process, or in its cluster, alone.
        return PlanCache, (self._plans,)
