"""Orders, values, states and public names are those that are pinned; a change is a decision: see `__main__.py`."""

import json

import pytest

from ray_h5.errors import RayH5Error
from ray_h5.index.file_options import FileOptions
from ray_h5.order.remaining_blocks import layout_of
from ray_h5.plan.blocks import read_block, start_of
from ray_h5.plan.read_plan import make_plan
from ray_h5.torch_data import loader
from tests.golden import uses
from tests.golden.__main__ import API, DRAWS, FOLDER, MAKERS, TASKS, USES, difference, layout_text
from tests.golden.api import names_text
from tests.golden.draws import DRAWN
from tests.golden.layouts import LAYOUTS
from tests.golden.makers import CF, IMG, IN_RAY, REV, SPECS, TABLE, files, table_of, wrong_in_ray
from tests.golden.orders import dataset_of, ids_of, long, rows_of_files, short, shuffles, values_of
from tests.golden.tasks import PINNED, delivered, ranks_of, read_tasks

HINT = "; if this is a decision, run python -m tests.golden --update, and write it into CHANGELOG.md"
KINDS = list(shuffles(8))


def assert_pinned(name, text, hint=HINT):
    shown = difference(name, text)
    assert not shown, f"tests/golden/pinned/{name} differs{hint}\n{shown}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name):
    assert_pinned(f"{name}.json", layout_text(name))


@pytest.mark.parametrize("name", DRAWN)
def test_draws(name, tmp_path):
    """What `python -m tests.golden draws.json` shows, piece by piece."""
    assert json.loads(json.dumps(DRAWN[name](tmp_path))) == json.loads((FOLDER / DRAWS).read_text())[name], HINT


def test_public_names():
    assert_pinned(API, names_text())


def assert_cells(lines):
    """Compare cells with those that are pinned; one that is wrong is never pinned."""
    known = dict(line.rsplit(" | ", 1) for line in (FOLDER / MAKERS).read_text().splitlines())
    found = dict(line.rsplit(" | ", 1) for line in lines)
    moved = {cell: said for cell, said in found.items() if said != known.get(cell) or said.startswith("WRONG")}
    assert not moved, f"{moved}{HINT}"


def test_makers_of_makers_a_part():
    """Each 13th cell: other row kinds of each column, and other columns of each row kind."""
    with files() as (folder, held):
        assert_cells(table_of(folder, held, slice(0, None, 13)))


def assert_uses(part):
    known = uses.cells_of((FOLDER / USES).read_text())
    with files() as (folder, held):
        found = uses.table_of(folder, held, part)
    moved = {cell: said for cell, said in found.items() if said != known.get(cell) or said == "WRONG"}
    assert not moved, f"{moved}{HINT}"


def test_uses_of_made_columns_a_part():
    assert_uses(slice(0, None, 7))


@pytest.mark.nightly
def test_uses_of_made_columns_all():
    assert_uses(slice(None))


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("use", uses.IN_RAY)
def test_uses_of_made_columns_in_ray(use):
    """Each cell is what it is in PyTorch."""
    known = uses.cells_of((FOLDER / USES).read_text())
    with files() as (folder, held):
        found = uses.table_of(folder, held, kind=uses.RayUse, uses=[use])
    differs = {cell: said for cell, said in found.items() if (said == "ok") != (known[cell] == "ok")}
    assert {known[cell].split(":")[1].strip() for cell in differs} <= {"no sample matches"}, differs
    assert "WRONG" not in found.values()


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
def test_made_columns_are_written_and_read_again(tmp_path):
    refused = set()
    with files() as (folder, held):
        for number, (name, spec) in enumerate(SPECS.items()):
            try:
                assert uses.RayUse(spec, folder, held).is_written(tmp_path / str(number)), name
            except RayH5Error:
                refused.add(name)
    without = {name for name in SPECS if not {"category", "nullable", "cf"} & {*name.replace("_", " ").split()}}
    assert refused & without == {"ragged of compound", "ragged of ragged", "ragged of vlen"}


def test_advice_of_refusals_is_no_refusal():
    """What a sentence of the table says to write instead is right for the same column."""
    known = uses.cells_of((FOLDER / USES).read_text())
    advised = {
        (column, said, advice): known[column, instead]
        for (column, _), said in known.items()
        for advice, instead in uses.ADVICE.items()
        if advice in said
    }
    assert advised
    of_rows = ("ok", *uses.ROWS_TO_FILTER)
    assert not {key: said for key, said in advised.items() if not any(part in said for part in of_rows)}


def assert_right_in_ray(kind):
    """Read all columns whose cell is "ok", those with the same options at once."""
    cells = (line.split(" | ") for line in (FOLDER / MAKERS).read_text().splitlines())
    names = [name for name, of, said in cells if (of, said) == (kind, "ok") and "dense=False" not in name]
    with files() as (folder, held):
        for options in ({}, CF, REV, IMG, TABLE):
            chosen = [name for name in names if SPECS[name].options == options]
            assert not chosen or wrong_in_ray(kind, options, chosen, folder, held) == {}


@pytest.mark.usefixtures("ray_local")
def test_makers_of_makers_in_ray():
    assert_right_in_ray("first axis")


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("kind", IN_RAY)
def test_makers_of_makers_in_ray_by_row_kind(kind):
    assert_right_in_ray(kind)


@pytest.mark.nightly
def test_makers_of_makers_all():
    with files() as (folder, held):
        assert_cells(table_of(folder, held))


def test_nothing_is_pinned_that_is_not_compared():
    assert {path.name for path in FOLDER.iterdir()} == {
        API,
        DRAWS,
        MAKERS,
        TASKS,
        USES,
        *(f"{name}.json" for name in LAYOUTS),
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_pinned_orders_are_epochs(name):
    """Ranks have equally many rows, and each selected row once, except for those that fill up the last step."""
    found = json.loads((FOLDER / f"{name}.json").read_text())
    rows = long(found["rows"])
    for kind, order in found["orders"].items():
        (whole,) = map(long, order["world 1"])
        assert kind == "weights" or sorted(whole) == rows
        for world in (2, 5):
            ranks = list(map(long, order[f"world {world}"]))
            assert len({len(rank) for rank in ranks}) == 1
            assert 0 <= sum(map(len, ranks)) - len(whole) < world
            assert kind == "weights" or set().union(*ranks) == set(rows)


def test_short_texts_of_row_ids():
    ids = [3, 4, 5, 9, 8, 7, 1, 2, 0]
    assert short(ids) == "3-5 9 8 7 1 2 0"
    assert long(short(ids)) == ids
    assert long(short([])) == []


def assert_tasks_equal(name, kind, folder):
    """Tasks of Ray deliver the rows of plain PyTorch in the same order, with the same values."""
    dataset, shuffle, (batches,) = read_tasks(name, folder, kind)
    ids, values = delivered(batches)
    expected, indices = ids_of(dataset, shuffle)
    assert ids == expected
    samples = dataset.__getitems__(indices)
    _, wanted = delivered([{name: [each[name] for each in samples] for name in dataset.columns} | {"row_id": []}])
    assert values == wanted


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_hold_what_loaders_deliver(name, tmp_path):
    """Blocks are what tasks of Ray read."""
    dataset, (paths, options) = dataset_of(name, tmp_path)
    index = FileOptions.of(paths, **options).index()
    shuffle = shuffles(rows_of_files(dataset))["rows"]
    plan = make_plan(index, list(index.outputs.values()), shuffle=shuffle, block_rows=8)
    for epoch in (0, 1):
        remainder = start_of(plan, epoch)
        blocks = [read_block(plan, remainder, i).rows for i in range(layout_of(remainder).num_blocks)]
        batches = loader(paths, 4, shuffle=shuffle, rank=0, world_size=1, threads=0, **options)
        batches.set_epoch(epoch)
        expected = values_of(batches)
        numbers = [{name: each for name, each in block.arrays.items() if each.dtype.kind in "biuf"} for block in blocks]
        for column, values in values_of(numbers).items():
            assert values == expected[column], (column, epoch)


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(("name", "kind"), [(name, KINDS[i % len(KINDS)]) for i, name in enumerate(LAYOUTS)])
def test_tasks_deliver_what_plain_pytorch_does(name, kind, tmp_path):
    assert_tasks_equal(name, kind, tmp_path)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_tasks_of_each_shuffle(name, kind, tmp_path):
    assert_tasks_equal(name, kind, tmp_path)


def assert_ranks_pinned(name, kind, world, folder):
    expected = json.loads((FOLDER / TASKS).read_text())[f"{name}, {kind}, world {world}"]
    assert ranks_of(name, folder, kind, world) == expected, f"run python -m tests.golden --update --ray {TASKS}"


@pytest.mark.usefixtures("ray_local")
def test_ranks_of_tasks(tmp_path):
    assert_ranks_pinned(*PINNED[2], tmp_path)


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(("name", "kind", "world"), PINNED)
def test_ranks_of_tasks_of_each_shuffle(name, kind, world, tmp_path):
    assert_ranks_pinned(name, kind, world, tmp_path)
