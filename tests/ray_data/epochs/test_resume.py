import contextlib
import itertools
import json
import logging
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.train_fn_utils import set_train_fn_utils

import ray_h5
from ray_h5 import Position, Shuffle, loader, set_epoch
from ray_h5.errors import OptionError, PositionError
from ray_h5.order.block_layout import Tail
from ray_h5.ray_data.epochs import in_words, running_epoch
from ray_h5.ray_data.ray_internals import datasources
from ray_h5.ray_data.training.train_batches import TrainBatches
from tests.index.kit import plan_files
from tests.ray_data.kit import consume_together, ids_of, position_at, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")

BATCH = 8


@pytest.fixture
def paths(tmp_path):
    return write_chunked(tmp_path)


def read(paths, block_rows=BATCH, **options):
    options = {"shuffle": Shuffle("auto", 7), "columns": ["x", "label"], **options}
    return ray_h5.read_h5(paths, include_row_ids=True, block_rows=block_rows, **options)


def shards_of(ds, world_size, **options):
    """What a trainer gives to its workers."""
    return [each["train"] for each in ray_h5.data_config(**options).configure({"train": ds}, world_size, None, None)]


def order_of(paths, epoch):
    _, plan = plan_files(paths, columns=["x", "label"], shuffle=Shuffle("auto", 7))
    return plan.at(np.arange(plan.num_rows), epoch).tolist()


def consumed(shards, steps):
    """Let each rank take `steps` batches; return their row ids."""

    def consume(shard):
        batches = shard.iter_batches(batch_size=BATCH, prefetch_batches=1)
        return [batch["row_id"].tolist() for batch in itertools.islice(batches, steps)]

    return consume_together(consume, shards)


def run(ds, world_size, steps, position=None, epoch=1, **options):
    """Let ranks take `steps` batches each; return the rows that each had, and where they are then."""
    shards = shards_of(ds, world_size, **options)
    for shard in shards:
        set_epoch(shard, epoch, position)
    found = consumed(shards, steps)
    had = [[row for batch in share for row in batch] for share in found]
    assert len({len(share) for share in had}) == 1
    return had, running_epoch(shards[0]).position(len(had[0]))


@pytest.mark.slow
def test_workers_that_disagree_are_named(paths):
    """Each of them gets the error, and the next epoch begins."""
    shards = shards_of(read(paths), 3)
    position = position_at(read(paths), 1, 16, 3)

    def begin(shard, setting):
        if setting is not None:
            set_epoch(shard, *setting)
        try:
            return [int(row) for batch in shard.iter_batches(batch_size=BATCH) for row in batch["row_id"]]
        except OptionError as exc:
            return str(exc)

    for settings, said in [
        (((1,), (2,), (1,)), "for epoch 2"),
        (((1, position), (1,), (1,)), "for epoch 1 after 16 rows of each of 3 ranks"),
        (((1, position), None, None), "2 others for nothing"),
    ]:
        for message in consume_together(begin, shards, settings):
            assert "the 3 workers that share a dataset ask for different epochs or positions of it" in message
            assert said in message
    agreed = consume_together(begin, shards, [(1, position)] * 3)
    assert sorted(row for rows in agreed for row in rows) == sorted(order_of(paths, 1)[48:])


def test_workers_agree_on_a_position_that_one_of_them_stored_with_sorted_names(paths):
    position = position_at(read(paths), 1, 16, 2)
    position = replace(position, plan=replace(position.plan, data={"windows": "x: 0, 1", "columns": "x"}))
    stored = Position.from_dict(json.loads(json.dumps(position.to_dict(), sort_keys=True)))
    assert stored == position
    assert repr(stored) != repr(position)
    assert in_words(stored) == in_words(position) != in_words(replace(position, rows=17))
    assert in_words(position) != in_words(replace(position, tail=Tail("pad", 2)))


def test_a_loader_resumes_what_ray_began_and_ray_what_a_loader_began(paths):
    def ids_of_loader(batches):
        return [int(row) for batch in batches for row in batch["x"][:, 0]]

    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(h5py.File(path)) for path in paths]
        values = {int(value): row for row, value in enumerate(np.concatenate([file["x"][:, 0] for file in files]))}
    expected = order_of(paths, 1)
    had, position = run(read(paths, 16), 2, 3, reading="workers")

    def made(batch_size):
        return loader(paths, batch_size, columns=["x", "label"], shuffle=Shuffle("auto", 7), rank=0, world_size=1)

    batches = made(10)
    batches.load_state_dict(position)
    more = ids_of_loader(itertools.islice(batches, 4))
    rest = read(paths)
    set_epoch(rest, 1, position=json.loads(json.dumps(batches.state_dict())))
    rest = ids_of(rest)
    assert ids_of_loader(batches)[: len(more)] != more, "an iteration after the resumed one is of the whole next epoch"
    rows = [*itertools.chain(*had), *(values[value] for value in more), *rest]
    assert len(more) == 40
    assert sorted(rows) == sorted(expected)
    assert [row for row in expected if row not in rows[:88]] == rest


def merged(ds):
    return ds.map_batches(lambda batch: batch, batch_size=40, udf_modifying_row_count=False)


def cut(ds):
    ds.context.target_max_block_size = 256  # bytes, of about 600 that a block has
    return ds.map_batches(lambda batch: batch, udf_modifying_row_count=False)


def cut_row_by_row(ds):
    ds.context.target_max_block_size = 256
    return ds.map(lambda row: row)


@pytest.mark.slow
@pytest.mark.parametrize("work", [merged, cut, cut_row_by_row])
def test_a_run_goes_on_exactly_where_ray_would_merge_or_cut_blocks(paths, work):
    had, position = run(work(read(paths, 16)), 2, 3)
    rest, _ = run(work(read(paths, 16)), 2, 100, position)
    assert [len(share) for share in had] == [24, 24]
    assert sorted(row for share in had + rest for row in share) == list(range(150))


# Ray Train ---------------------------------------------------------------------------------------


def loop(config):
    """Train for two epochs; log the rows of each step, and die once amid the second."""
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    start, checkpoint = None, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start = Position.from_dict(json.loads((Path(folder) / "position.json").read_text()))
    try:
        next(iter(ray_h5.train_batches("train", rank, batch_size=BATCH)))  # each of another epoch
    except OptionError as exc:
        (Path(config["log"]) / f"{rank}.said").write_text(str(exc))
    for epoch in range(start.epoch if start else 0, 2):
        position = start if start is not None and epoch == start.epoch else None
        batches = ray_h5.train_batches("train", epoch, batch_size=BATCH, position=position)
        for step, batch in enumerate(batches):
            ids = batch["row_id"].tolist()
            line = {"run": checkpoint is not None, "epoch": epoch, "step": step, "rank": rank, "ids": ids}
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    state = batches.position().to_dict()
                    (Path(folder) / "position.json").write_text(json.dumps(state))
                    (Path(folder) / "line.json").write_text(json.dumps(line))
                    ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))
                else:
                    ray.train.report({"step": step})
            with open(f"{config['log']}/{checkpoint is not None}_{rank}", "a") as log:
                log.write(json.dumps({**line, "from": start and start.to_dict(), "world": world_size}) + "\n")
            if config["die"] == (epoch, step) and checkpoint is None and rank == 1:
                time.sleep(1)  # what was reported becomes durable, or not
                os._exit(1)


def train(ds, folder, die=None, **options):
    trainer = TorchTrainer(
        loop,
        train_loop_config={"log": str(folder), "die": die},
        datasets={"train": ds},
        dataset_config=ray_h5.data_config(),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.25}),
        run_config=RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=1)),
        **options,
    )
    trainer.fit()
    lines = [json.loads(line) for path in folder.glob("*_?") for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["run"], line["epoch"], line["step"], line["rank"]))


@pytest.mark.slow
def test_a_run_whose_worker_dies_goes_on_exactly_where_it_was(paths, tmp_path):
    lines = train(read(paths), tmp_path, die=(1, 3))
    first = [line for line in lines if not line["run"]]
    second = [line for line in lines if line["run"]]
    assert [row for line in first if line["epoch"] == 0 for row in line["ids"]][: 9 * 2 * BATCH] == (
        order_of(paths, 0)[: 9 * 2 * BATCH]
    )
    registered = Position.from_dict(second[0]["from"])
    assert registered.epoch == 1
    assert registered.rows in (3 * BATCH, 4 * BATCH)
    steps = registered.rows // BATCH
    effective = [row for line in first if line["epoch"] == 1 and line["step"] < steps for row in line["ids"]]
    effective += [row for line in second for row in line["ids"]]
    assert effective[: 9 * 2 * BATCH] == order_of(paths, 1)[: 9 * 2 * BATCH]
    assert sorted(effective) == list(range(150))
    said = [path.read_text() for path in tmp_path.glob("*.said")]
    assert said  # of the rank that asks last, in each of both runs
    parts = ["different epochs ", "rank 0 for epoch 0, of digest ", "rank 1 for epoch 1, of digest ", "Pass the"]
    assert all(part in text for text in said for part in parts), said


def plain_loop(config):
    """Say the epoch of what the trainer has; ask for a position that the options of Ray do not give."""
    shard = ray.train.get_dataset_shard("train")
    set_epoch(shard, 3)
    found = {"ids": [int(i) for batch in shard.iter_batches(batch_size=None) for i in batch["row_id"]]}
    batches = ray_h5.train_batches("half", 1, batch_size=BATCH)
    for _ in batches:
        try:
            batches.position()
        except PositionError as exc:
            found["says"] = str(exc)
    for name in ("trian", ""):
        try:
            ray_h5.train_batches(name, 0, batch_size=np.int64(4))
        except OptionError as exc:
            found[f"of {name!r}"] = str(exc)
    (Path(config["log"]) / "found.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_a_trainer_with_options_of_ray(paths, tmp_path):
    trained = {"train": read(paths), "half": half(read(paths))}
    TorchTrainer(
        plain_loop,
        train_loop_config={"log": str(tmp_path)},
        datasets=trained,
        dataset_config=ray.train.DataConfig(execution_options=ray.data.ExecutionOptions(preserve_order=True)),
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.25}),
        run_config=RunConfig(storage_path=str(tmp_path)),
    ).fit()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ids"] == order_of(paths, 3)
    assert "Pass dataset_config=ray_h5.data_config() to the trainer" in found["says"]
    assert "the trainer has no dataset 'trian'" in found["of 'trian'"]
    assert "expected the key of a dataset of the trainer" in found["of ''"]


def warnings_of(caplog):
    """Return what is said, except of the file without rows."""
    said = [record.message for record in caplog.records if record.name.startswith("ray_h5")]
    return [each for each in said if "have no rows" not in each]


def configured(ds, caplog, world_size, split="all"):
    """Return what is said of a trainer's dataset. Ray starts a process for each that is split."""
    config = ray_h5.data_config(datasets_to_split=split)
    with caplog.at_level(logging.WARNING, "ray_h5"):
        shards = config.configure({"train": ds}, world_size, None, None)
    assert len(shards) == world_size
    return warnings_of(caplog)


def twice(batch):
    return {name: np.concatenate([values, values]) for name, values in batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["all", []])
def test_with_rows_that_change_a_run_begins_its_epoch_anew_and_says_so(paths, caplog, split):
    ds = read(paths).map_batches(twice)
    with caplog.at_level(logging.WARNING, "ray_h5"):
        (shard,) = shards_of(ds, 1, datasets_to_split=split)
    messages = warnings_of(caplog)
    assert len(messages) == 1
    assert "may change the number of rows" in messages[0]
    batches = batches_of(shard, 1)
    begun = iter(batches)
    assert sum(len(batch["row_id"]) for batch in itertools.islice(begun, 2)) == 2 * BATCH
    assert batches.position().rows == 0
    # To its end: Ray's coordinator of splits may crash when an iteration is left while tasks come to theirs.
    assert sum(len(batch["row_id"]) for batch in begun) == 300 - 2 * BATCH
    batches = batches_of(shard, 1, Position(7, 1, 16, 1, BATCH, batches.position().plan))
    assert sum(len(batch["row_id"]) for batch in batches) == 300
    other = position_at(read(paths, shuffle=Shuffle("auto", 8)), 1, 16)
    with pytest.raises(PositionError, match="seed 8, not 7"):
        next(iter(batches_of(shard, 1, other)))


def half(ds):
    return ds.filter(lambda row: row["row_id"] % 2 == 0)


@pytest.mark.slow
def test_what_is_in_memory_cannot_go_on(paths):
    ds = read(paths)
    (shard,) = shards_of(ds.materialize(), 1)
    with pytest.raises(PositionError, match=r"a dataset in memory, as by materialize\(\), has no position"):
        next(iter(batches_of(shard, 1, position_at(ds, 1, 8))))
    next(iter(batches_of(shard, 1)))


def test_what_one_trainer_does_to_the_rows_is_nothing_to_the_dataset_itself(paths, caplog):
    ds = read(paths)
    configured(ds.map_batches(twice), caplog, 2, split=[])
    assert [source.epochs.resumes for source in datasources(ds)] == ["nowhere"]


def test_a_plain_filter_or_one_to_one_map_is_no_change(paths, caplog):
    ds = read(paths).filter(expr=ray_h5.where(label=[0, 1])).map_batches(lambda batch: batch, batch_size=4)
    messages = configured(ds.select_columns(["row_id"]), caplog, 2, split=[])
    assert all("may change" in message for message in messages)  # Ray cannot know what the function does
    caplog.clear()
    assert configured(read(paths).map(lambda row: row).select_columns(["row_id"]), caplog, 2, split=[]) == []
    (message,) = configured(read(paths).repartition(target_num_rows_per_block=10), caplog, 2, split=[])
    assert "or of rows in a block" in message


def batches_of(shard, epoch, position=None):
    """What `train_batches` returns for a shard."""
    return TrainBatches(shard, "train", epoch, position, torch.device("cpu"), {"batch_size": BATCH})


@pytest.mark.slow
def test_a_position_is_of_the_epoch_that_is_iterated(paths):
    (shard,) = shards_of(read(paths), 1, datasets_to_split=[])
    first, second = batches_of(shard, 0), batches_of(shard, 1)
    steps = iter(first)
    next(steps)
    assert (first.position().epoch, first.position().rows) == (0, BATCH)
    # Another epoch runs; this one has done nothing.
    with pytest.raises(PositionError, match="'train' is not in epoch 1: call position"):
        second.position()
    assert sum(len(batch["row_id"]) for batch in steps) == 150 - BATCH
    again = batches_of(shard, 0)
    list(again)
    next(iter(second))
    assert (again.position().epoch, again.position().rows) == (0, 150)  # also when another epoch has begun
    assert (second.position().epoch, second.position().rows) == (1, BATCH)


# Seeds that were drawn ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_seed_of_a_resumed_run_is_that_of_its_later_epochs_and_of_no_other_dataset(paths):
    first = read(paths, shuffle=True)
    set_epoch(first, 1)
    expected = [ids_of(first), ids_of(first)]
    position = position_at(first, 1, 64)
    second = read(paths, shuffle=True)
    set_epoch(second, 1, position=position)
    assert [ids_of(second), ids_of(second)] == [expected[0][64:], expected[1]]
    set_epoch(second, 2)
    assert ids_of(second) == expected[1]
    third = read(paths, shuffle=True)
    set_epoch(third, 2)
    assert ids_of(third) != expected[1]


@pytest.fixture
def of_local_mode():
    """Afterwards, this process is no worker of a trainer: Ray leaves the context of the local mode there."""
    yield
    set_train_fn_utils(None)


@pytest.mark.slow
@pytest.mark.usefixtures("of_local_mode")
@pytest.mark.parametrize("way", ["by a worker", "by tasks", "rows may change", "in memory"])
def test_a_trainer_of_the_local_mode_has_the_positions_of_one_worker(paths, tmp_path, way):
    """``num_workers=0`` trains in this process, for debugging."""
    ds = read(paths)
    if way != "by a worker":
        ds = ds.map_batches(lambda batch: batch, udf_modifying_row_count=way == "rows may change")
    ds = ds.materialize() if way == "in memory" else ds
    found = []

    def loop():
        for position in (None, 16):
            batches = ray_h5.train_batches("train", 1, batch_size=BATCH, position=position and found[-1])
            for number, batch in enumerate(batches):
                found.append(batch["row_id"].tolist())
                if number == 1:
                    found.append(batches.position())
                    break

    trainer = TorchTrainer(
        loop,
        datasets={"train": ds},
        dataset_config=ray_h5.data_config(),
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    if way == "in memory":
        with pytest.raises(PositionError, match="is not in epoch 1"):
            trainer.fit()
        return
    trainer.fit()
    order, first, second = order_of(paths, 1), found.pop(2), found.pop()
    if way == "rows may change":
        assert (first.rows, second.rows) == (0, 0)
        assert found == [order[:8], order[8:16]] * 2
    else:
        assert (first.rows, second.rows) == (16, 32)
        assert found == [order[i : i + 8] for i in range(0, 32, 8)]
