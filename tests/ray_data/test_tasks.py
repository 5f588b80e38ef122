"""What a read task says when its node lacks a file; what is known without one."""

import os
import socket
from typing import ClassVar

import h5py
import numpy as np
import pytest
import ray
from ray.data import DataContext
from ray.data._internal.execution.execution_callback import ExecutionCallback

import ray_h5
from ray_h5.errors import NotFoundError, StaleIndexError
from ray_h5.ray_data import ray_internals, tasks
from tests.ray_data.kit import pushed

pytestmark = pytest.mark.usefixtures("ray_local")


def test_a_file_missing_on_a_node_says_where_and_what_to_mount(signals):
    ds = ray_h5.read_h5(signals, columns=["wide"], block_rows=8)
    os.rename(signals[2], signals[2] + ".away")
    with pytest.raises(NotFoundError) as caught:
        ds.materialize()
    message = str(caught.value)
    for words in (
        f"on host {socket.gethostname()}: ",
        signals[2],
        "mount the file system",
        "label_selector",
        "local://",
    ):
        assert words in message


def test_what_ranks_lose_is_known_without_reading(signals, monkeypatch, caplog):
    ds = ray_h5.read_h5(signals, columns=["wide"])
    ds = ds.map_batches(lambda batch: batch, udf_modifying_row_count=False)
    monkeypatch.setattr(ray.data.Dataset, "count", None)  # it would read and transform all rows
    ray_h5.data_config().configure({"counted": ds}, 3, None, None)
    assert "the last 2 of 50 rows do not divide among 3 workers" in caplog.text


def test_small_files_are_opened_once_by_a_process_not_once_a_block(tmp_path, monkeypatch):
    for number in range(100):  # more than stay open
        with h5py.File(tmp_path / f"{number:03}.h5", "w") as file:
            file["x"], file["text"] = np.arange(16) + 100 * number, [f"{number} {row}" for row in range(16)]
    expected = sorted((100 * n + row, f"{n} {row}") for n in range(100) for row in range(16))
    ds = ray_h5.read_h5(f"{tmp_path}/*.h5", shuffle=ray_h5.Shuffle("rows", seed=3))
    opened, open_file = [], os.open
    monkeypatch.setattr(
        os, "open", lambda path, *args, **named: (opened.append(path), open_file(path, *args, **named))[1]
    )

    def epoch():
        found = pushed(ds).get_read_tasks(1, data_context=DataContext.get_current())
        assert len(found) > 1
        tables = [table for task in found for table in task()]
        return [(row["x"], row["text"]) for table in tables for row in table.to_pylist()]

    rows = [epoch() for _ in range(3)]
    assert sum(str(tmp_path) in str(path) for path in opened) <= 100
    assert all(sorted(each) == expected for each in rows)
    assert rows[0] != rows[1] != rows[2]
    monkeypatch.undo()
    assert [(row["x"], row["text"]) for row in ds.iter_rows()] not in rows, "other processes read the next epoch"
    with h5py.File(tmp_path / "042.h5", "a") as file:
        file["x"][3] = 7
    with pytest.raises(StaleIndexError, match=r"042\.h5"):
        epoch()


class Limits(ExecutionCallback):
    """Whether Ray knew its resources when an execution started. It begins one task at a time while it knows none.

    How many it has depends on what else the cluster executes.
    """

    known: ClassVar[list[bool]] = []

    def before_execution_starts(self, executor):
        self.known.append(not executor._cluster_autoscaler.get_total_resources().is_zero())


@pytest.mark.slow
def test_an_epoch_begins_once_ray_knows_its_resources(monkeypatch, signals):
    monkeypatch.setattr(ray_internals, "_LIMITS_WAIT_SECONDS", 60.0)  # the machine may do much else
    ds = ray_h5.read_h5(signals, columns=["label"])
    ds.context.custom_execution_callback_classes = [*ds.context.custom_execution_callback_classes, Limits]
    Limits.known.clear()
    assert len(ds.take_all()) == len(ds.map_batches(lambda batch: batch).take_all()) == 50
    assert Limits.known == [True, True]


def test_the_context_of_the_user_stays_as_it_is(signals):
    before = list(ray.data.DataContext.get_current().custom_execution_callback_classes)
    ray_h5.read_h5(signals, columns=["label"]).take(1)
    assert ray.data.DataContext.get_current().custom_execution_callback_classes == before


@pytest.mark.parametrize(("seconds", "elsewhere"), [(60.0, 0), (-1.0, 2)])
def test_files_are_looked_up_in_tasks_once_that_takes_long(monkeypatch, seconds, elsewhere):
    monkeypatch.setattr(tasks, "_HERE_S", seconds)
    lists = [["a"], ["b"], ["c"]]
    found = list(tasks.in_tasks(lambda paths: [(path, os.getpid()) for path in paths], lists))
    assert [path for each in found for path, _ in each] == ["a", "b", "c"]
    assert sum(process != os.getpid() for each in found for _, process in each) == elsewhere
