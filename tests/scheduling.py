"""Which process of pytest-xdist runs which tests, also when one of them ends amid a test.

With `--dist loadgroup`, pytest-xdist 3.8 waits for ever then: it gives the process that takes the place of the ended
one a single test, which runs when the next one is known; and the test that ended the first process runs again.
"""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Scheduling(LoadGroupScheduling):
    """Tests of a group run in one process, in order; what a process leaves when it ends goes to the others."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a process; return the test that ended it, if it has not done all that it was given."""
        units = self.assigned_work.pop(node)
        waiting = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if not waiting:
            return None
        unit, ended_in = waiting[0]
        unit[ended_in] = True  # or it would end the next process, too
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in list(self.assigned_work):
            self._reschedule(other)
        return ended_in

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:  # it is still being started
            return
        super()._reschedule(node)
        # A test runs when its process knows the next one, or that none will come.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
