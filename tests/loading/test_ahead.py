"""Threads that work ahead end when their results are no longer asked for, wherever that is noticed."""

import threading

import pytest

from ray_h5.loading.ahead import ahead, in_threads
from ray_h5.storage.stop import Stop


def threads_of_ours():
    return [each for each in threading.enumerate() if each.name.startswith("ray_h5_loader")]


class ClosesItself:
    """Closes the iteration in a thread of its own, as the garbage collector does when it runs there."""

    def __init__(self):
        self.asked, self.closed = threading.Event(), threading.Event()
        self.error = self.results = None

    def of(self, item):
        if item == 2:
            self.asked.wait(10)
            try:
                self.results.close()
            except RuntimeError as error:
                self.error = error
            self.closed.set()
        return item


def through_pool(closes):
    return in_threads(range(10), closes.of, 2, lambda: 2, Stop())


def through_one_thread(closes):
    return ahead((closes.of(each) for each in range(10)), lambda _: 1, Stop())


@pytest.mark.parametrize("through", [through_pool, through_one_thread])
def test_they_may_be_closed_by_one_of_them(through):
    closes = ClosesItself()
    closes.results = through(closes)
    assert next(closes.results) == 0
    closes.asked.set()
    assert closes.closed.wait(10)
    assert closes.error is None
    for each in threads_of_ours():
        each.join(10)
    assert not threads_of_ours()
