import pickle

import numpy as np
import pytest
import ray
from ray.data.expressions import col

import ray_h5
from ray_h5 import Position, Shuffle, set_epoch
from ray_h5.errors import OptionError, PositionError
from ray_h5.predicates.criteria import where as arrow_where
from tests.index.kit import plan_files
from tests.ray_data.kit import consume_together, ids_of, position_at, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")
AUTO = Shuffle("auto", 7)
COLUMNS = ["x", "label", "guid"]


@pytest.fixture
def paths(tmp_path):
    return write_chunked(tmp_path)


def read(paths, shuffle=AUTO, **options):
    return ray_h5.read_h5(paths, columns=COLUMNS, shuffle=shuffle, include_row_ids=True, block_rows=32, **options)


def orders(paths, epochs, shuffle=AUTO, predicate=None):
    """What plain planning says of the order of epochs."""
    _, plan = plan_files(paths, columns=COLUMNS, shuffle=shuffle, predicate=predicate)
    return [plan.at(np.arange(plan.num_rows), epoch).tolist() for epoch in range(epochs)]


@pytest.mark.parametrize("shuffle", [Shuffle("auto", 7), Shuffle("rows", 3), Shuffle("files", 1), None])
def test_each_iteration_is_the_next_epoch_in_the_order_that_is_planned(paths, shuffle):
    ds = read(paths, shuffle)
    found = [ids_of(ds) for _ in range(3)]
    assert found == orders(paths, 3, shuffle)
    assert sorted(found[0]) == list(range(150))
    assert (found[0] == found[1]) == (shuffle is None)


@pytest.mark.slow
def test_the_order_has_nothing_to_do_with_columns_blocks_and_tasks(paths):
    expected = orders(paths, 1)[0]
    assert ids_of(read(paths).select_columns(["row_id"])) == expected
    assert ids_of(read(paths).select_columns(["row_id", "x"]).rename_columns({"x": "y"})) == expected
    assert ids_of(read(paths).map_batches(lambda batch: batch)) == expected
    for options in ({"block_rows": 7}, {"override_num_blocks": 2}, {}, {"concurrency": 1}):
        ds = ray_h5.read_h5(paths, columns=COLUMNS, shuffle=Shuffle("auto", 7), include_row_ids=True, **options)
        assert ids_of(ds) == expected
    predicate = ray_h5.where(label=1)
    filtered = orders(paths, 1, predicate=arrow_where(label=1))[0]
    assert ids_of(read(paths).filter(expr=predicate)) == filtered
    assert ids_of(read(paths).filter(expr=predicate).select_columns(["row_id"])) == filtered
    assert ids_of(read(paths).select_columns(["row_id", "label"]).filter(expr=col("label") == 1)) == filtered


@pytest.mark.slow
def test_a_look_at_a_dataset_is_no_epoch(paths):
    ds = read(paths)
    expected = orders(paths, 3)
    assert ds.count() == 150
    assert ds.schema().names == [*COLUMNS, "row_id"]
    assert [row["row_id"] for row in ds.take(3)] == expected[0][:3]
    assert ids_of(ds) == expected[0]
    ds.take_batch(5)
    ds.count()
    ds.show(1)
    assert [row["row_id"] for row in ds.map(lambda row: row).take(3)] == expected[1][:3]
    assert ds.map_batches(lambda batch: batch).columns() == [*COLUMNS, "row_id"]
    assert [row["row_id"] for row in ds.limit(5).take(3)] == expected[1][:3]
    assert ids_of(ds) == expected[1]
    materialized = ds.materialize()
    first = ids_of(materialized)
    assert first in expected
    assert ids_of(materialized) == first
    batches = list(ds.select_columns(["row_id"]).iter_torch_batches(batch_size=16))
    assert [len(batch["row_id"]) for batch in batches] == [16] * 9 + [6]


def AggregateWrite(batch):  # noqa: N802  as operators of Ray are named
    return batch


def test_what_hands_out_rows_is_an_epoch_whatever_its_name_and_however_few(paths):
    expected, ds = orders(paths, 6), read(paths)
    for epoch, derived in enumerate((ds, ds.map_batches(AggregateWrite), ds, ds.limit(8), ds.limit(8), ds)):
        found = ids_of(derived)
        assert found == expected[epoch][: len(found)]
    limited = ds.map_batches(AggregateWrite).limit(8)
    set_epoch(limited, 3)
    assert [ids_of(limited) for _ in range(3)] == [order[:8] for order in expected[3:]]


@pytest.mark.slow
def test_epochs_go_on_after_ray_has_held_the_blocks_of_one(paths):
    expected = orders(paths, 8)
    for hold in (lambda ds: ds.split(2), lambda ds: ds.train_test_split(0.2), lambda ds: ds.to_arrow_refs()):
        ds = read(paths)
        parts = hold(ds)
        assert expected.index(ids_of(ds)) < expected.index(ids_of(ds))
        del parts
    derived = ds.map_batches(lambda batch: batch)
    hold(derived)
    assert ids_of(derived) != ids_of(derived)
    whole = ds.materialize()
    assert ids_of(whole) == ids_of(whole)


def test_an_epoch_left_early_is_over(paths):
    ds = read(paths)
    for _ in ds.iter_batches(batch_size=8):
        break
    assert ids_of(ds) == orders(paths, 2)[1]


def test_set_epoch_is_exact(paths):
    ds = read(paths)
    expected = orders(paths, 5)
    assert ids_of(ds) == expected[0]
    for epoch in (3, 3, 0):
        set_epoch(ds, epoch)
        assert ids_of(ds) == expected[epoch]
    set_epoch(ds, 2)
    set_epoch(ds, np.int64(2))
    ds.take(1)
    ds.count()
    assert [ids_of(ds) for _ in range(2)] == expected[2:4]


@pytest.mark.slow
@pytest.mark.versions
def test_what_is_made_of_one_read_has_its_epoch(paths):
    ds = read(paths)
    mapped, filtered = ds.map_batches(lambda batch: batch), ds.filter(expr=ray_h5.where(label=1))
    expected, chosen = orders(paths, 5), orders(paths, 5, predicate=arrow_where(label=1))
    for epoch in (3, 1):
        set_epoch(mapped, epoch)
        copy = pickle.loads(pickle.dumps(ds))
        assert ray.get(ray.remote(num_cpus=0)(ids_of).remote(mapped)) == expected[epoch]
        # Other rows, or columns, are counted apart; a map of the same rows is the next iteration of them.
        assert ids_of(ds) == ids_of(copy) == expected[epoch]
        assert ids_of(filtered) == chosen[epoch]
        assert ids_of(mapped) == expected[epoch + 1]
        assert ids_of(filtered.map_batches(lambda batch: batch)) == chosen[epoch + 1]


def test_what_has_no_epoch(paths):
    for other in (ray.data.range(8), read(paths).materialize()):
        for dataset in (other, other.iterator()):
            with pytest.raises(OptionError, match="the dataset reads no files by read_h5"):
                set_epoch(dataset, 1)


@pytest.mark.filterwarnings("ignore:This API is deprecated")
def test_a_dataset_beside_itself_has_one_order(paths):
    ds = read(paths)
    both = ds.select_columns(["row_id"]).zip(ds.select_columns(["row_id"]).rename_columns({"row_id": "other"}))
    rows = both.take_all()
    assert len(rows) == 150
    assert [row["row_id"] for row in rows] == [row["other"] for row in rows]


def test_epochs_and_positions_that_cannot_be_used(paths):
    ds = read(paths)
    for epoch in (-1, 1.0, True, "1"):
        with pytest.raises(OptionError, match=r"epoch=.*: expected an integer of 0 or more"):
            set_epoch(ds, epoch)
    with pytest.raises(PositionError, match=r"expected a Position, or the dict of to_dict\(\) or state_dict\(\)"):
        set_epoch(ds, 3, position={"epoch": 3})
    position = position_at(read(paths[1:]), 3, 8)
    with pytest.raises(PositionError, match="the position is of epoch 3, not of 2"):
        set_epoch(ds, 2, position=position)
    set_epoch(ds, 3, position=position)
    with pytest.raises(PositionError, match="of other files, other data of rows, another predicate or another shuffle"):
        ids_of(ds)


@pytest.mark.parametrize(("tail", "rows"), [("drop", 128), ("pad", 160)])
def test_tails(paths, tail, rows):
    ds = read(paths, tail=tail, tail_rows=32)
    assert ds.count() == rows
    batches = list(ds.iter_batches(batch_size=32))
    assert [len(batch["row_id"]) for batch in batches] == [32] * (rows // 32)
    ids = np.concatenate([batch["row_id"] for batch in batches])
    expected = orders(paths, 1)[0]
    assert ids.tolist() == (expected + expected)[:rows]
    if tail == "pad":
        padding = np.concatenate([batch["is_padding"] for batch in batches])
        assert padding.tolist() == [False] * 150 + [True] * 10
        assert sorted(ids[~padding]) == list(range(150))


def test_a_tail_that_leaves_nothing_is_an_error(paths):
    ds = read(paths, tail="drop", tail_rows=100)
    assert ds.count() == 100
    few = ds.filter(expr=col("row_id") < 50)
    for use in (few.count, few.materialize, lambda: few.take(1)):
        with pytest.raises(OptionError, match="only 50 rows are selected, and all of them are dropped"):
            use()
    assert ds.filter(expr=col("row_id") < 0).count() == 0
    with pytest.raises(OptionError, match="only 150 rows are selected"):
        read(paths, tail="drop", tail_rows=1000).count()


def resumed(paths):
    """Return a dataset that goes on after 32 rows, and the rows that it has then."""
    ds = read(paths)
    order = ids_of(ds)
    set_epoch(ds, 0, position_at(ds, 0, 32))
    return ds, order[32:]


@pytest.mark.slow
def test_a_position_is_for_one_iteration_of_whatever_is_made_of_the_dataset(paths):
    ds, rest = resumed(paths)
    assert [row["row_id"] for row in ds.take(3)] == rest[:3]  # a look does not use it up
    assert ds.schema().names
    assert ids_of(ds) == rest
    assert len(set(ids_of(ds))) == 150
    for _ in range(2):
        assert len(set(ids_of(ds.map_batches(lambda batch: batch)))) == 150
    assert ds.sum("row_id") == sum(range(150))
    splits = ds.streaming_split(2, equal=False)
    assert sum(consume_together(lambda split: sum(1 for _ in split.iter_rows()), splits)) == 150
    set_epoch(ds, 0, position_at(ds, 0, 32))
    assert ids_of(ds.map_batches(lambda batch: batch)) == rest
    assert len(ids_of(ds)) == 150


def test_validation_rows_of_the_same_dataset_are_all_read_when_training_went_on(paths):
    ds = read(paths)
    train, valid = ds.filter(expr=col("label") == 1), ds.filter(expr=col("label") != 1)
    order = ids_of(train)
    _, plan = plan_files(paths, columns=COLUMNS, shuffle=AUTO, predicate=arrow_where(label=1), block_rows=32)
    set_epoch(ds, 0, position=Position(7, 0, 32, 1, 32, plan.fingerprint))
    assert ids_of(train) == order[32:]
    assert sorted(ids_of(valid) + order) == list(range(150))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This API is deprecated")
def test_what_puts_a_dataset_together_with_others_is_no_iteration_that_goes_on(paths):
    ds, rest = resumed(paths)
    ids = ds.select_columns(["row_id"])
    other = ray_h5.read_h5(paths, columns=COLUMNS, include_row_ids=True)
    combined = [ds.union(ds), ds.union(other), ids.zip(ids.rename_columns({"row_id": "again"}))]
    for each in combined:
        for use in (ids_of, lambda ds: ds.take(3)):
            with pytest.raises(PositionError, match="one iteration of this dataset alone; found an execution with "):
                use(each)
    assert ids_of(ds.map_batches(lambda batch: batch)) == rest
    assert [len(ids_of(each)) for each in combined] == [300, 300, 150]


@pytest.mark.slow
def test_what_counts_or_writes_takes_no_part_of_an_epoch(paths, tmp_path):
    ds, rest = resumed(paths)
    mapped = ds.map_batches(lambda batch: batch).select_columns(["row_id"])
    uses = [mapped.count, lambda: mapped.sum("row_id"), lambda: mapped.write_parquet(str(tmp_path / "rows"))]
    for use in uses:
        with pytest.raises(PositionError, match="one iteration of this dataset alone; found an execution with "):
            use()
    assert ds.count() == 150  # known from the plan
    assert ids_of(ds) == rest
    for use in uses:
        use()
    assert ray.data.read_parquet(str(tmp_path / "rows")).count() == 150
    assert ids_of(ds) == orders(paths, 2)[1]


def test_a_position_of_other_rows_is_an_error_each_time_and_stays(paths):
    ds, rest = resumed(paths)
    chosen = ds.filter(expr=ray_h5.where(label=1))
    for _ in range(2):
        with pytest.raises(PositionError, match="another predicate"):
            ids_of(chosen)
    assert chosen.count() == 50
    assert ids_of(ds) == rest
    assert len(ids_of(chosen)) == 50
