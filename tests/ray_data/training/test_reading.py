"""Tasks of Ray and workers that read themselves: the same rows, values and positions, in the same steps."""

import itertools
import json
import time
from dataclasses import replace

import h5py
import numpy as np
import pyarrow.compute as pc
import pytest
import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchTrainer

import ray_h5
from ray_h5 import Position, Shuffle, TorchCollate, between, device, set_epoch, where
from ray_h5.errors import CorruptChunkError, OptionError, PositionError
from ray_h5.loading import read_calls
from ray_h5.loading.rank_shares import Share
from ray_h5.plan import row_source
from ray_h5.predicates.criteria import where as criteria
from ray_h5.ray_data.epochs import running_epoch
from ray_h5.ray_data.ray_internals import datasources
from ray_h5.ray_data.training.train_batches import TrainBatches
from ray_h5.read.jobs import ReadStats
from ray_h5.read.joint_columns import JointColumns
from tests.golden.layouts import encoded
from tests.golden.orders import dataset_of
from tests.index.kit import plan_files, resume
from tests.ray_data.kit import consume_together, position_at, write_chunked
from tests.ray_data.training.test_device import Streams

pytestmark = pytest.mark.usefixtures("ray_local")

BATCH = 8
SHUFFLE = Shuffle("auto", 7)


def shards_of(ds, reading, world_size=1, **options):
    """What a trainer gives to its workers."""
    config = ray_h5.data_config(reading=reading, **options)
    return [each["train"] for each in config.configure({"train": ds}, world_size, None, None)]


def taken(shard, epoch=1, position=None, steps=None, batch_size=BATCH, **collate):
    """The batches that `train_batches` gives to a worker, and the position after them."""
    options = {"batch_size": batch_size, "collate_fn": TorchCollate(**collate)}
    batches = TrainBatches(shard, "train", epoch, position, torch.device("cpu"), options)
    found = list(itertools.islice(batches, steps))
    return found, batches.position()


def by_reading(ds, reading, world_size=1, *, epoch=1, position=None, steps=None, split="all", **collate):
    """The batches of each rank, and its position."""
    shards = shards_of(ds, reading, world_size, datasets_to_split=split)
    return consume_together(lambda shard: taken(shard, epoch, position, steps, **collate), shards)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_workers_together_decode_each_chunk_once(tmp_path, monkeypatch, world_size):
    rows, chunk_rows, counted, run_reads = 4096, 16, ReadStats(), row_source.run_reads
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = np.arange(rows, dtype="i4")[:, None, None] + np.arange(64, dtype="i4").reshape(8, 8)
        file.create_dataset("image", data=values, chunks=(chunk_rows, 8, 8), compression="gzip")
    monkeypatch.setattr(JointColumns, "of_files", lambda *_: None)  # it counts nothing
    monkeypatch.setattr(read_calls, "cpu_count", lambda: 1)  # counts of two threads that read one file mix
    monkeypatch.setattr(row_source, "run_reads", lambda *given, **more: counted.add(run_reads(*given, **more)))
    ds = ray_h5.read_h5(tmp_path / "a.h5", shuffle=Shuffle("chunks", 7))
    images = []
    for shard in shards_of(ds, "workers", world_size, threads=1):
        images += [batch["image"][:, 0, 0] for batch in taken(shard, batch_size=64)[0]]
    assert sorted(torch.cat(images).tolist()) == [*range(rows)]
    assert counted.chunks_decoded == rows // chunk_rows


def ids(batches):
    return [row for batch in batches for row in batch["row_id"].tolist()]


def assert_same(found, expected):
    """Compare values of batches: classes, dtypes and bits."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.layout, found.shape) == (expected.dtype, expected.layout, expected.shape)
        found, expected = (each.to_dense() if each.layout != torch.strided else each for each in (found, expected))
        assert found.contiguous().numpy().tobytes() == expected.contiguous().numpy().tobytes()
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    else:
        assert found == expected


@pytest.fixture
def paths(tmp_path):
    return write_chunked(tmp_path)


def read(paths, block_rows=16, **options):
    options = {"shuffle": SHUFFLE, "columns": ["x", "label"], **options}
    return ray_h5.read_h5(paths, include_row_ids=True, block_rows=block_rows, **options)


def plan_of(ds):
    return datasources(ds)[0].plan()


def expected_of(ds, share):
    """The row ids that a loader of plain PyTorch has of a share."""
    return [row for _, indices in share.pieces() for row in plan_of(ds).row_ids(indices).tolist()]


def order_of(paths, epoch, **options):
    _, plan = plan_files(paths, columns=["x", "label"], shuffle=SHUFFLE, **options)
    return plan.at(np.arange(plan.num_rows), epoch).tolist()


def ids_slowly(shard, seconds):
    set_epoch(shard, 1)
    for batch in shard.iter_batches(batch_size=BATCH):
        yield from batch["row_id"].tolist()
        time.sleep(seconds)


class TestTasks:
    """What holds for each way of reading."""

    reading = "tasks"
    other = "workers"

    @pytest.mark.slow
    @pytest.mark.parametrize(("world_size", "tail"), [(1, {}), (3, {}), (2, {"tail": "pad", "tail_rows": 32})])
    def test_ranks_take_the_blocks_of_the_order_in_turn(self, paths, world_size, tail):
        """Also where one of them is slower than the others."""
        shards = shards_of(read(paths, **tail), self.reading, world_size)
        ranks = consume_together(lambda shard: [*ids_slowly(shard, 0.02 * (shard is shards[0]))], shards)
        order = order_of(paths, 1)
        order = (order + order)[:160] if tail else order
        blocks = [order[i : i + 16] for i in range(0, len(order), 16)]
        full = len(blocks) // world_size * world_size - (0 if tail else world_size)
        for rank, rows in enumerate(ranks):
            expected = [row for block in blocks[rank:full:world_size] for row in block]
            assert rows[: len(expected)] == expected
        assert len({len(rows) for rows in ranks}) == 1
        assert sorted(row for rows in ranks for row in rows) == sorted(order)

    @pytest.mark.slow
    def test_a_dataset_that_is_not_split_is_there_for_each_worker(self, paths):
        for batches, position in by_reading(read(paths), self.reading, 2, split=[]):
            assert ids(batches) == order_of(paths, 1)
            assert (position.world_size, position.rows) == (1, 150)

    @pytest.mark.slow
    def test_filters_columns_and_epochs(self, paths):
        ds = read(paths).filter(expr=where(label=[0, 1])).select_columns(["row_id", "x"])
        (shard,) = shards_of(ds, self.reading)
        found = [[batch["row_id"].tolist() for batch in shard.iter_batches(batch_size=BATCH)] for _ in range(2)]
        expected = [order_of(paths, epoch, predicate=criteria(label=[0, 1])) for epoch in range(2)]
        assert [[row for batch in epoch for row in batch] for epoch in found] == expected
        set_epoch(shard, 5)
        assert ids(shard.iter_torch_batches(batch_size=BATCH)) == order_of(paths, 5, predicate=criteria(label=[0, 1]))
        assert [row["row_id"] for row in shard.iter_rows()] == order_of(paths, 6, predicate=criteria(label=[0, 1]))
        assert shard.schema().names == ["row_id", "x"]

    @pytest.mark.slow
    @pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 2), (2, 5)])
    def test_a_run_goes_on_in_the_other_way_of_reading(self, paths, first, second, caplog):
        ds = read(paths, include_row_keys=True)
        begun = by_reading(ds, self.reading, first, steps=3)
        position = Position.from_dict(json.loads(json.dumps(begun[0][1].to_dict())))
        assert position.rows == 3 * BATCH
        rest = by_reading(ds, self.other, second, position=position)
        rows = [row for batches, _ in (*begun, *rest) for row in ids(batches)]
        lost = (150 - 3 * BATCH * first) % second
        assert len(rows) == len(set(rows)) == 150 - lost
        if self.other == "workers":  # tasks say so in another process
            said = (
                f"the rest of epoch 1: the last {lost} of {150 - 3 * BATCH * first} rows do not divide among {second}"
            )
            assert (said in caplog.text) == (lost > 0)

    @pytest.mark.parametrize("rows", [5, 16, 21])
    def test_each_rank_resumes_with_the_rows_that_it_would_have_had(self, paths, rows):
        """Also inside a block; and what ends between two batches of a loader."""
        ds = read(paths)
        position = position_at(ds, 1, rows, 2)
        for resumed in (position, replace(position, block_rows=8)):  # cut alike, or cut again
            found = by_reading(ds, self.reading, 2, position=resumed)
            shares = [Share.of(plan_of(ds), resume(plan_of(ds), resumed, 2), rank) for rank in range(2)]
            assert [ids(batches) for batches, _ in found] == [expected_of(ds, share) for share in shares]

    def test_workers_may_not_disagree(self, paths):
        """A worker that is alone agrees with itself; in a trainer all do, or none begins."""
        (shard,) = shards_of(read(paths), self.reading, datasets_to_split=[])
        set_epoch(shard, 2, position_at(read(paths), 2, 32))
        assert ids(shard.iter_batches(batch_size=BATCH)) == order_of(paths, 2)[32:]
        with pytest.raises(PositionError, match="of epoch 2, not of 3"):
            set_epoch(shard, 3, position_at(read(paths), 2, 32))

    @pytest.mark.slow
    def test_an_error_of_the_reading_is_ours(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", data=np.arange(64), chunks=(8,), compression="gzip")
            offset = file["x"].id.get_chunk_info(3).byte_offset
        with open(tmp_path / "a.h5", "r+b") as file:
            file.seek(offset)
            file.write(b"\xff" * 8)
        (shard,) = shards_of(ray_h5.read_h5(tmp_path / "a.h5"), self.reading, datasets_to_split=[])
        with pytest.raises(CorruptChunkError, match="column 'x'"):
            taken(shard)


class TestWorkers(TestTasks):
    reading = "workers"
    other = "tasks"

    @pytest.mark.parametrize("world_size", [1, 2, 5])
    def test_a_run_resumes_at_each_step_with_the_batches_that_it_would_have_had(self, paths, world_size):
        ds = read(paths, include_row_keys=True)
        whole = by_reading(ds, "workers", world_size)
        for steps in range(1, len(whole[0][0])):
            position = by_reading(ds, "workers", world_size, steps=steps)[0][1]
            for (batches, end), (expected, expected_end) in zip(
                by_reading(ds, "workers", world_size, position=position), whole, strict=True
            ):
                assert_same(batches, expected[steps:])
                assert end == expected_end

    def test_each_iteration_is_an_epoch(self, paths):
        (shard,) = shards_of(read(paths), "workers")
        set_epoch(shard, 0, position := shard.state_dict())  # of an epoch that has not begun
        assert shard.state_dict() == position
        assert (position["epoch"], position["rows"]) == (0, 0)
        for batch in shard.iter_batches(batch_size=BATCH):
            assert len(batch["x"]) == BATCH
            break
        state = shard.state_dict()
        assert (state["epoch"], state["rows"]) == (0, BATCH)
        assert ids(shard.iter_batches(batch_size=None)) == order_of(paths, 1)
        set_epoch(shard, 0, state)
        assert ids(shard.iter_torch_batches(batch_size=BATCH, drop_last=True)) == order_of(paths, 0)[BATCH : BATCH * 18]
        assert running_epoch(shard).start.epoch == 0

    def test_it_has_handed_out_what_train_batches_has_where_copies_run_ahead(self, paths, monkeypatch):
        Streams(monkeypatch)
        monkeypatch.setattr(device, "as_device", lambda wanted, *_: torch.device(wanted))
        (shard,) = shards_of(read(paths), "workers")
        options = {"batch_size": BATCH, "collate_fn": TorchCollate()}
        batches = TrainBatches(shard, "train", 1, None, torch.device("cuda"), options)
        for step, _ in enumerate(batches, 1):
            time.sleep(0.01)  # so that copies are ahead
            assert shard.state_dict() == batches.position().to_dict()
            assert batches.position().rows == min(step * BATCH, 150)

    def test_formats(self, paths):
        (shard,) = shards_of(read(paths), "workers")
        by_format = [next(iter(shard.iter_batches(batch_format=each))) for each in ("default", "pandas", "pyarrow")]
        assert [type(each).__name__ for each in by_format] == ["dict", "DataFrame", "Table"]
        batch = next(iter(shard.iter_torch_batches(dtypes=torch.float64)))
        assert {each.dtype for each in batch.values()} == {torch.float64}
        batch = next(iter(shard.iter_torch_batches(dtypes={"x": torch.float16})))
        assert [batch["x"].dtype, batch["label"].dtype] == [torch.float16, torch.uint8]
        batch = next(iter(shard.iter_torch_batches(collate_fn=sorted)))
        assert batch == ["label", "row_id", "x"]
        assert "read in 1 threads of this process" in shard.stats()

    @pytest.mark.parametrize(
        "use",
        [
            lambda shard: shard.materialize(),
            lambda shard: shard.to_tf("x", "label"),
            lambda shard: list(shard.iter_batches(local_shuffle_buffer_size=8)),
            lambda shard: list(shard.iter_torch_batches(local_shuffle_buffer_size=8)),
        ],
    )
    def test_what_only_tasks_can_do_says_so(self, paths, use):
        (shard,) = shards_of(read(paths), "workers")
        with pytest.raises(OptionError, match=r"data_config\(reading='tasks'\)"):
            use(shard)


# Columns of all kinds, read in both ways -----------------------------------------------------------------


def of_all_kinds(signals):
    return ray_h5.read_h5(signals, include_paths=True, include_row_ids=True, include_row_keys=True, shuffle=SHUFFLE)


def augmented(signals):
    ds = ray_h5.read_h5(
        signals, columns=["wide", "label"], include_row_keys=True, include_row_ids=True, shuffle=SHUFFLE
    )
    ds = ray_h5.Standardize(["wide"], axis=(0, 2)).fit(ds).transform(ds)
    return ds.map_batches(ray_h5.SpecAugment("wide", 8, 2)).map_batches(ray_h5.GaussianNoise("wide"))


def padded(signals):
    ds = ray_h5.read_h5(signals, columns=["wide", "guid"], include_row_ids=True, tail="pad", tail_rows=16)
    return ds.filter(expr=where(epoch=between(0, 40)))


def in_a_frame(batch):
    return batch.assign(epoch=batch["epoch"] + 1)


def in_a_table(batch):
    return batch.append_column("twice", pc.multiply(batch["epoch"], 2))


in_a_frame.row_by_row = in_a_table.row_by_row = True


def in_other_formats(signals):
    ds = ray_h5.read_h5(signals, columns=["epoch", "label", "guid", "wide"], include_row_ids=True)
    ds = ds.map_batches(in_a_frame, batch_format="pandas", udf_modifying_row_count=False)
    return ds.map_batches(in_a_table, batch_format="pyarrow", udf_modifying_row_count=False)


VARYING = ["groups", "ragged_rows", "windows_over_groups"]
"""Layouts whose rows vary in shape: padding is about them."""
LAYOUTS = ["categories", "compound", "csr_rows", "table_beside", *VARYING]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "collate"),
    [
        *((made, {}) for made in (of_all_kinds, augmented, padded, in_other_formats, *LAYOUTS)),
        *((made, {"padding": True}) for made in VARYING),
    ],
)
def test_values_are_the_same_in_both_ways(signals, made, collate, tmp_path_factory):
    if made in LAYOUTS:
        _, (paths, options) = dataset_of(made, tmp_path_factory.mktemp(made))
        ds = ray_h5.read_h5(paths, include_row_ids=True, include_row_keys=True, shuffle=SHUFFLE, **options)
    else:
        ds = made(signals)
    by_tasks = by_reading(ds, "tasks", 2, **collate)
    by_workers = by_reading(ds, "workers", 2, **collate)
    for (found, position), (expected, expected_position) in zip(by_workers, by_tasks, strict=True):
        assert_same(found, expected)
        assert position == expected_position
        assert found


@pytest.mark.parametrize("reading", ["tasks", "workers"])
def test_functions_of_ours_leave_the_other_columns_of_tables_as_they_are(tmp_path, reading):
    """Integers that are missing are no floats, which round above 2**53."""
    values, missing = 2**53 + 1 + np.arange(12), np.arange(12) % 5 == 2
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(0).standard_normal((12, 4, 6)).astype("f4")
        encoded(file, "n", "nullable-integer", values=values, mask=missing)
    ds = ray_h5.read_h5(tmp_path / "a.h5", columns=["x", "n"], include_row_keys=True)
    scale = ray_h5.Standardize(["x"], axis=(0, 2)).fit(ds)
    mask, noise = ray_h5.SpecAugment("x", 3, 2), ray_h5.GaussianNoise("x")
    plain = [batch for shard in shards_of(ds, "workers") for batch in taken(shard)[0]]
    ds = scale.transform(ds).map_batches(mask, batch_format="pyarrow").map_batches(noise, batch_format="pyarrow")
    ((batches, _),) = by_reading(ds, reading)
    found = [number for batch in batches for number in batch["n"]]
    assert found == [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)]
    for batch, before in zip(batches, plain, strict=True):
        assert torch.equal(batch["x"], noise(mask(scale.transform_batch(before)))["x"])
        assert not torch.equal(batch["x"], before["x"])


# Which way ---------------------------------------------------------------------------------------------


def own(batch):
    return batch


def by_row(batch):
    return {**batch, "x": batch["x"] + 1}


by_row.row_by_row = True


def test_what_workers_cannot_read_names_the_step(paths):
    ds = read(paths)
    for other, said in [
        (ds.map_batches(own), r"MapBatches\(own\) is no function of ray_h5, and does not say row_by_row = True"),
        (ds.limit(8), "rows are moved after the reading"),
        (ds.union(ds), "rows are moved after the reading"),
        (ray.data.range(8), "it is not the dataset of one read_h5"),
    ]:
        with pytest.raises(OptionError, match=rf"dataset 'train' cannot be read in the workers: .*{said}"):
            shards_of(other, "workers")
    checked = read(paths)
    checked.context.checkpoint_config = {"id_column": "row_id", "checkpoint_path": str(paths[0]) + ".rows"}
    with pytest.raises(OptionError, match=r"DataContext\.checkpoint_config is set"):
        shards_of(checked, "workers")
    with pytest.raises(OptionError, match="reading='threads': expected 'auto', 'workers' or 'tasks'"):
        ray_h5.data_config(reading="threads")
    (shard,) = shards_of(ds.map_batches(by_row), "workers")
    batch = next(iter(shard.iter_batches(batch_size=150)))
    assert batch["x"][:, 0].tolist() == [row + 1 for row in batch["row_id"]]


@pytest.mark.slow
def test_auto_reads_in_workers_where_each_node_trains(paths, caplog):
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    for ds, where_they_run, options, workers in [
        (read(paths), nodes, {}, True),
        (read(paths).map_batches(own), nodes, {}, False),
        (read(paths), ["another"], {}, False),
        (read(paths), nodes, {"label_selector": {"role": "reader"}}, False),
    ]:
        caplog.clear()
        with caplog.at_level("INFO", "ray_h5"):
            config = ray_h5.data_config(datasets_to_split=[], **options)
            shard = config.configure({"train": ds}, 1, None, where_they_run)[0]["train"]
        assert (type(shard).__name__ == "WorkerShard") is workers
        assert f"dataset 'train': read in {'the workers' if workers else 'tasks of Ray: '}" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", None])
def test_workers_that_read_themselves_and_disagree_end_the_run(paths, tmp_path, backend):
    """Each compares its epoch with that of the first one; without torch.distributed all wait for rank 0."""

    def loop(backend):
        rank = ray.train.get_context().get_world_rank()
        if backend is None:
            torch.distributed.destroy_process_group()
        for epoch in (0, 1, 2 + rank):
            rows = ids(ray_h5.train_batches("train", epoch, batch_size=BATCH))
            (tmp_path / f"{epoch}-{rank}.json").write_text(json.dumps(rows))

    trainer = TorchTrainer(
        loop,
        train_loop_config=backend,
        datasets={"train": read(paths)},
        dataset_config=ray_h5.data_config(reading="workers"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.25}),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(TrainingFailedError, match=r"the 2 workers that share a dataset ask for different epochs"):
        trainer.fit()
    for epoch in (0, 1):
        shares = [json.loads((tmp_path / f"{epoch}-{rank}.json").read_text()) for rank in (0, 1)]
        assert sorted(shares[0] + shares[1]) == list(range(150))
    assert not all((tmp_path / f"{2 + rank}-{rank}.json").exists() for rank in (0, 1))
