"""State that a fork must not share: locks, caches and open files of a process."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")
INSTANCES: WeakSet[PerProcess[Any]] = WeakSet()


class PerProcess(Generic[Value]):
    """A value that belongs to one process: after a fork, the child has a new one, and so has a copy.

    Another thread may hold a lock at the fork, or be in the middle of a change. In the child that thread does not
    exist: the lock would never be free, and the change never complete. The attribute `value` is that of this process;
    `make` returns a new one.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self.value = make()
        INSTANCES.add(self)

    def renew(self) -> None:
        """Replace the value by a new one."""
        self.value = self._make()

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)


def cached_property(function: Callable[[Any], Value]) -> functools.cached_property[Value]:
    """Return one as of Python 3.12, without the lock for all objects: at a fork, another thread may hold it."""
    made = functools.cached_property(function)
    vars(made)["lock"] = nullcontext()
    return made


# The child has one thread yet: nobody else asks for a value meanwhile. Garbage stays: `ray_internals` says why.
os.register_at_fork(after_in_child=gc.freeze)
os.register_at_fork(after_in_child=lambda: [*map(PerProcess.renew, list(INSTANCES))])
