"""State that a fork must not share: locks, caches and open files of a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")

_instances: WeakSet[PerProcess[Any]] = WeakSet()


class PerProcess(Generic[Value]):
    """A value that belongs to one process: after a fork, the child has a new one, and so has a copy.

    Another thread may hold a lock at the fork, or be in the middle of a change. In the child that thread does not
    exist: the lock would never be free, and the change never complete.

    Parameters
    ----------
    make : callable
        Returns a new value.

    Its attribute `value` is that of this process.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self.value = make()
        _instances.add(self)

    def renew(self) -> None:
        """Replace the value by a new one."""
        self.value = self._make()

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)


def _renew_all() -> None:
    # The child has one thread yet: nobody else asks for a value meanwhile.
    for instance in list(_instances):
        instance.renew()


os.register_at_fork(after_in_child=_renew_all)
