"""What a read task says when its node lacks a file; what is known without one."""

import os
import socket
import time

import numpy as np
import pytest
import ray

import ray_h5
from ray_h5.errors import NotFoundError

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
    ds = ray_h5.read_h5(signals, columns=["wide"], name="counted")
    ds = ds.map_batches(lambda batch: batch, udf_modifying_row_count=False)
    monkeypatch.setattr(ray.data.Dataset, "count", None)  # it would read and transform all rows
    ray_h5.data_config().configure({"counted": ds}, 3, None, None)
    assert "the last 2 of 50 rows do not divide among 3 workers" in caplog.text


def test_an_epoch_runs_as_many_tasks_as_there_are_cpus_from_its_start(signals):
    ds = ray_h5.read_h5(signals, columns=["label"], override_num_blocks=2)
    ds.materialize()  # Ray starts what it needs once for all executions

    def hours(batch):
        start = time.time()
        time.sleep(0.8)  # less than the second that Ray left to itself lets a single task run for
        return {"start": np.array([start]), "stop": np.array([time.time()]), "rows": np.array([len(batch["label"])])}

    times = ds.map_batches(hours, batch_size=None).take_all()
    assert len(times) == 2
    assert max(each["start"] for each in times) < min(each["stop"] for each in times)


def test_the_context_of_the_user_stays_as_it_is(signals):
    before = list(ray.data.DataContext.get_current().custom_execution_callback_classes)
    ray_h5.read_h5(signals, columns=["label"]).take(1)
    assert ray.data.DataContext.get_current().custom_execution_callback_classes == before
