"""Columns come from other files too: by external links, virtual datasets, external storage. Those may change."""

import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest

from ray_h5 import errors
from ray_h5.arrow_arrays import numbers_of
from ray_h5.index.facts.file_facts import SourceTable
from ray_h5.index.file_options import FileOptions
from ray_h5.index.folds import fold_predicates
from ray_h5.index.row_index import build_index
from ray_h5.index.scan_files import Lookup
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.row_source import read_rows
from ray_h5.predicates.virtual_names import virtual_name
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import FileIdentity, ObjectIdentity
from ray_h5.torch_data import Files, Grid, Groups, H5Dataset, Shuffle, Windows, any_equal, row_mask, where
from tests.hdf5.h5kit import by_h5py, numbered_column
from tests.index.kit import plan_files

ROWS = np.arange(6)


def write(path, **columns):
    """Write a file whole, and then give it its name, as programs do that others read from."""
    with h5py.File(f"{path}.new", "w", libver="latest") as file:
        for name, values in columns.items():
            if callable(values):
                values(file, name)
            else:
                file[name] = values
    os.replace(f"{path}.new", path)
    return str(path)


def link(source, name="x"):
    return lambda file, here: file.__setitem__(here, h5py.ExternalLink(source, name))


def virtual(*sources):
    def make(file, here):
        layout = h5py.VirtualLayout((6,), "i8")
        each = 6 // len(sources)
        for i, source in enumerate(sources):
            rows = slice(i * each, (i + 1) * each)
            layout[rows] = h5py.VirtualSource(source, "x", (6,))[rows]
        file.create_virtual_dataset(here, layout, fillvalue=-1)

    return make


def numbered(file, name):
    numbered_column(file, name, "n%b.h5", 6)


def raw(folder):
    def make(file, here):
        file.create_dataset(here, (6,), "i8", external=[(str(folder / "s.bin"), 0, 48)])

    return make


KINDS = {
    "link": ("s.h5", lambda _: link("s.h5")),
    "virtual": ("s.h5", lambda _: virtual("s.h5")),
    "virtual of two": ("s.h5", lambda _: virtual("t.h5", "s.h5")),
    "link to a virtual": ("s.h5", lambda _: link("v.h5")),
    "virtual of a virtual": ("s.h5", lambda _: virtual("v.h5")),
    "virtual of a link": ("s.h5", lambda _: virtual("l.h5")),
    "numbered": ("n0.h5", lambda _: numbered),
    "raw": ("s.bin", raw),
}


@pytest.fixture(params=KINDS)
def world(request, tmp_path):
    """Return a file whose column x comes from a source, and what changes this."""
    for name in ("s.h5", "t.h5", "n0.h5"):
        write(tmp_path / name, x=ROWS)
    write(tmp_path / "v.h5", x=virtual("s.h5"))
    write(tmp_path / "l.h5", x=link("s.h5"))
    (tmp_path / "s.bin").write_bytes(ROWS.tobytes())
    source, make = KINDS[request.param]
    main = write(tmp_path / "a.h5", x=make(tmp_path), own=ROWS)
    source = tmp_path / source

    def change(values):
        if source.suffix == ".bin":
            (tmp_path / "new").write_bytes(values.tobytes())
            os.replace(tmp_path / "new", source)
        else:
            write(source, x=values)

    return SimpleNamespace(main=main, source=str(source), change=change, folder=tmp_path)


def planned(world, columns=("x",), **options):
    return plan_files([world.main], columns=columns, allow_external=[str(world.folder)], **options)[1]


def rows_of(plan):
    """Read all selected rows as another process would, which gets the plan by pickling."""
    plan = pickle.loads(pickle.dumps(plan))
    return {
        name: each.tolist() for name, each in read_rows(plan, plan.row_ids(np.arange(plan.num_rows))).arrays.items()
    }


def check_named(caught, world, column="x"):
    for part in (world.main, f"column {column!r}", world.source):
        assert part in str(caught.value)


CHANGES = {
    "values": ROWS[::-1].copy(),
    "dtype": ROWS / 2,
    "text": np.array([b"a"] * 6),
    "shape": ROWS.reshape(6, 1),
    "fewer rows": ROWS[:3],
    "more rows": np.arange(9),
}


@pytest.mark.parametrize("read", [True, False], ids=["read before", "not read before"])
def test_a_source_that_changes_after_planning_is_an_error(world, read):
    plan = planned(world)
    for values in CHANGES.values():
        if read:
            assert rows_of(plan) == {"x": ROWS.tolist()}
        world.change(values)
        for _ in range(2):
            with pytest.raises(errors.StaleIndexError, match=r"Make the dataset again") as caught:
                rows_of(plan)
            check_named(caught, world)
        world.change(ROWS)
        plan = planned(world)


def test_a_source_that_is_no_hdf5_file_any_more(world):
    plan = planned(world)
    with open(world.source + ".new", "wb") as file:
        file.write(b"none" * 100)
    os.replace(world.source + ".new", world.source)
    with pytest.raises(errors.StaleIndexError) as caught:
        rows_of(plan)
    check_named(caught, world)


def test_a_source_that_vanishes(world):
    plan = planned(world)
    os.unlink(world.source)
    with pytest.raises(errors.MissingSourceError) as caught:
        rows_of(plan)
    check_named(caught, world)


def test_a_dataset_made_again_reads_the_new_source(world):
    for read in (True, False):
        plan = planned(world)
        if read:
            rows_of(plan)
        world.change(ROWS + 6)
        assert rows_of(planned(world))["x"][-1] == 11
        with pytest.raises(errors.StaleIndexError, match="column 'x' leads to"):
            rows_of(plan)  # though this process has the new one open
        assert rows_of(planned(world, predicate=where(x=11))) == {"x": [11]}
        world.change(ROWS)
        assert rows_of(planned(world, predicate=where(x=[0, 5]))) == {"x": [0, 5]}


@pytest.mark.parametrize("predicate", ["plain", "derived", "mask"])
@pytest.mark.parametrize("columns", [("own",), ("x",), ("own", "x"), ()])
def test_a_selection_is_of_the_source_that_it_was_made_of(tmp_path, predicate, columns):
    write(tmp_path / "s.h5", x=ROWS, mask=ROWS % 2 == 0)
    main = write(tmp_path / "a.h5", own=ROWS, x=link("s.h5"), m=link("s.h5", "mask"))
    criterion = {"plain": where(x=[0, 2, 4]), "derived": where(x=any_equal(4)), "mask": where(m=row_mask())}[predicate]
    world = SimpleNamespace(main=main, source=str(tmp_path / "s.h5"), folder=tmp_path)

    def planned_anew():
        index, _ = plan_files([main], columns=["own", "x"], allow_external=[str(tmp_path)])
        selection = index.select(criterion)
        return make_plan(index, [index.columns[name] for name in columns], selection)

    plan, expected = planned_anew(), [4] if predicate == "derived" else [0, 2, 4]
    assert rows_of(plan) == dict.fromkeys(columns, expected)
    write(tmp_path / "s.h5", x=ROWS[::-1].copy(), mask=ROWS % 2 == 1)
    with pytest.raises(errors.StaleIndexError) as caught:
        rows_of(plan)
    check_named(caught, world, "x" if predicate != "mask" or "x" in columns else "m")
    assert planned_anew().selection.tolist() == ([1] if predicate == "derived" else [1, 3, 5])


@pytest.mark.parametrize("option", ["weights", "by_length"])
def test_an_order_is_of_the_source_that_it_was_made_of(tmp_path, option):
    write(tmp_path / "s.h5", x=ROWS + 1)
    main = write(tmp_path / "a.h5", own=ROWS, x=link("s.h5"))
    options = {"columns": ["own"], "allow_external": [str(tmp_path)], "shuffle": Shuffle("rows", **{option: "x"})}
    plan = plan_files([main], **options)[1]
    assert {*rows_of(plan)["own"]} <= {*ROWS.tolist()}
    write(tmp_path / "s.h5", x=ROWS + 2)
    with pytest.raises(errors.StaleIndexError, match="column 'x' leads to"):
        rows_of(plan)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by", ["column of the index", "another column", "derived"])
def test_a_source_that_changes_between_index_and_values(tmp_path, change, by):
    write(tmp_path / "s.h5", x=ROWS)
    main = write(tmp_path / "a.h5", own=ROWS, x=link("s.h5"))
    lookup = Lookup(Scope(allow_external=(str(tmp_path),)))
    index = build_index([main], ["own", "x"] if by != "another column" else ["own"], lookup)
    if by == "another column":
        index.find(["x"])
    write(tmp_path / "s.h5", x=CHANGES[change])
    name = "x" if by != "derived" else virtual_name("x", any_equal(3))
    with pytest.raises(errors.StaleIndexError) as caught:
        index.values([name])
    for part in (main, "column 'x'", str(tmp_path / "s.h5")):
        assert part in str(caught.value)


@pytest.mark.parametrize("where_known", ["memory", "disk", "both"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_of_a_source_is_not_used_once_it_changed(tmp_path, where_known, change):
    write(tmp_path / "s.h5", x=ROWS)
    main = write(tmp_path / "a.h5", x=link("s.h5"))
    world = SimpleNamespace(main=main, folder=tmp_path)
    folder = None if where_known == "memory" else str(tmp_path / "index")
    plan = planned(world, index_dir=folder, predicate=where(x=1))
    assert rows_of(plan) == {"x": [1]}
    if where_known == "disk":
        MEMORY.clear()
    write(tmp_path / "s.h5", x=CHANGES[change])
    expected = by_h5py(main, "x").tolist()
    assert rows_of(planned(world, index_dir=folder))["x"] == expected
    if change not in ("text", "shape"):
        wanted = [i for i, value in enumerate(expected) if value == 1]
        assert planned(world, index_dir=folder, predicate=where(x=1)).selection.tolist() == wanted
    # What was found with leave to follow links is nothing to those without.
    with pytest.raises(errors.ExternalDataError):
        plan_files([main], columns=["x"], predicate=where(x=1), index_dir=folder)


@pytest.mark.slow
def test_what_another_process_kept_of_a_source_is_not_used_once_it_changed(tmp_path):
    write(tmp_path / "s.h5", x=ROWS)
    world = SimpleNamespace(main=write(tmp_path / "a.h5", x=link("s.h5")), folder=tmp_path)
    code = (
        "import sys\nfrom ray_h5.predicates.criteria import where\nfrom tests.index.kit import plan_files\n"
        "options = {'allow_external': [sys.argv[2]], 'index_dir': sys.argv[3], 'predicate': where(x=1)}\n"
        "print(plan_files([sys.argv[1]], columns=['x'], **options)[1].selection)"
    )
    command = [sys.executable, "-c", code, world.main, str(tmp_path), str(tmp_path / "index")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[1]\n"
    write(tmp_path / "s.h5", x=ROWS[::-1].copy())
    assert planned(world, index_dir=str(tmp_path / "index"), predicate=where(x=1)).selection.tolist() == [4]


@pytest.mark.parametrize("where_known", ["memory", "disk", "both"])
def test_a_source_that_appears(tmp_path, where_known):
    """One more of those that are counted: there are more rows now."""
    write(tmp_path / "n0.h5", x=ROWS)
    world = SimpleNamespace(main=write(tmp_path / "a.h5", x=numbered), source=str(tmp_path / "n1.h5"), folder=tmp_path)
    options = {"index_dir": None if where_known == "memory" else str(tmp_path / "index"), "predicate": where(x=[1, 7])}
    plan = planned(world, **options)
    assert rows_of(plan) == {"x": [1]}
    if where_known == "disk":
        MEMORY.clear()
    write(tmp_path / "n1.h5", x=ROWS + 6)
    with pytest.raises(errors.StaleIndexError, match="did not exist when the column was described") as caught:
        rows_of(plan)
    check_named(caught, world)
    assert rows_of(planned(world, **options)) == {"x": [1, 7]}


def test_a_column_that_is_not_there_is_still_said_to_be(tmp_path):
    write(tmp_path / "s.h5", x=ROWS)
    main = write(tmp_path / "a.h5", own=ROWS, x=link("s.h5"), short=ROWS[:2])
    index = build_index([main], ["own", "x"], Lookup(Scope(allow_external=(str(tmp_path),))))
    with pytest.raises(errors.UnknownColumnError):
        index.find(["nothing"])
    with pytest.raises(errors.SchemaMismatchError):
        index.find(["short"])
    write(tmp_path / "s.h5", x=ROWS + 1)
    with pytest.raises(errors.StaleIndexError):
        index.find(["short"])


def test_folds_are_of_the_source_as_it_is(tmp_path):
    main = write(tmp_path / "a.h5", x=link("s.h5"))

    def tested():
        files = FileOptions.of([main], allow_external=[tmp_path])
        return sorted(str(test) for _, test in fold_predicates(files, 2, "x", None, 0, where))

    for values in ([1, 1, 2, 2, 1, 2], [3, 3, 4, 4, 3, 4]):
        write(tmp_path / "s.h5", x=np.array(values))
        assert tested() == sorted(str(where(x=[value])) for value in set(values))


def test_tables_of_sources_in_stores():
    local = ("/a.h5", FileIdentity(1, 2, 3, 2**63 + 4)), ("/none.h5", None)
    remote = ("s3://bkt/a.h5", ObjectIdentity('"tag"', 5)), ("s3://bkt/b.h5", ObjectIdentity("", 5, 7))
    table = SourceTable.of({"x": [local, remote, ()], "y": [(), remote, ()]})
    assert [table.of_file(file) for file in range(3)] == [{"x": local}, {"x": remote, "y": remote}, {}]
    assert pickle.loads(pickle.dumps(table)) == table
    changed = ("s3://bkt/a.h5", ObjectIdentity('"other"', 5)), remote[1]
    assert SourceTable.of({"y": [(), changed, ()]}) != SourceTable.of({"y": [(), remote, ()]})


def test_each_file_is_named_by_its_own_column(tmp_path):
    """Two files, two sources: only what is read of the changed one fails."""
    for i in range(2):
        write(tmp_path / f"s{i}.h5", x=ROWS + 10 * i)
    paths = [write(tmp_path / f"a{i}.h5", x=link(f"s{i}.h5")) for i in range(2)]
    plan = plan_files(paths, allow_external=[str(tmp_path)])[1]
    write(tmp_path / "s1.h5", x=ROWS)
    assert read_rows(plan, np.arange(6)).arrays["x"].tolist() == ROWS.tolist()
    with pytest.raises(errors.StaleIndexError, match=rf"{paths[1]}: column 'x' leads to {tmp_path}/s1\.h5"):
        read_rows(plan, np.array([2, 8]))


@pytest.mark.parametrize("values", [pa.array([1, None]), pa.array(["a"]), pa.array([True])])
def test_only_numbers_that_are_there_are_numbers(values):
    with pytest.raises(ValueError, match="expected numbers, found"):
        numbers_of(values)


@pytest.mark.parametrize("has_index_dir", [False, True])
@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({}, (["data_0"], 6), (["data_0", "data_1"], 6)),
        ({"rows": Files()}, (["data_0"], 1), (["data_0", "data_1"], 1)),
        ({"rows": Grid(1)}, (["data_0"], 6), (["data_0", "data_1"], 6)),
        ({"windows": Windows({"data_0": [0]}, pad="drop")}, (["data_0"], 6), (["data_0", "data_1"], 6)),
    ],
    ids=["axis", "files", "grid", "windows"],
)
def test_a_file_that_appears_where_a_link_leads_is_noticed(tmp_path, options, before, after, has_index_dir):
    write(tmp_path / "a.dat", x=ROWS)
    path = write(tmp_path / "master.h5", data_0=link("a.dat"), data_1=link("b.dat"))
    options = {**options, "allow_external": tmp_path, "index_dir": tmp_path / "index" if has_index_dir else None}

    def found():
        if has_index_dir:
            MEMORY.clear()
        dataset = H5Dataset(path, **options)
        return sorted(dataset.columns), len(dataset)

    assert found() == before
    assert found() == before
    write(tmp_path / "b.dat", x=ROWS)
    assert found() == after


@pytest.mark.parametrize("has_index_dir", [False, True])
def test_a_file_that_appears_where_a_link_of_a_group_leads_is_noticed(tmp_path, has_index_dir):
    with h5py.File(tmp_path / "master.h5", "w") as file:
        for i in range(2):
            file[f"g{i}/z"] = ROWS
        file["g0/x"], file["g1/x"] = ROWS, h5py.ExternalLink("b.dat", "x")
    options = {"allow_external": tmp_path, "index_dir": tmp_path / "index" if has_index_dir else None}
    options["rows"] = Groups("g*", missing="null")
    assert list(H5Dataset(tmp_path / "master.h5", **options).columns) == ["z"]
    write(tmp_path / "b.dat", x=ROWS)
    if has_index_dir:
        MEMORY.clear()
    with pytest.raises(errors.UnsupportedColumnError, match="'x' leads to another file"):
        H5Dataset(tmp_path / "master.h5", **options)
