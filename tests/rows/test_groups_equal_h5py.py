"""Groups as rows: each row is what h5py reads of its datasets, whatever these hold and however they are stored."""

import gc
import itertools
import pickle
from collections import Counter
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import CorruptFileError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.hdf5.groups import column_of_groups, matching_groups
from ray_h5.hdf5.tree.tree import H5Tree
from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.index.stored.facts_as_bytes import FactsReader, FactsWriter, check_ranges
from ray_h5.manifest.joined_arrays import JoinedArray
from ray_h5.scope import Scope
from ray_h5.source import Source
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.torch_data import Groups, H5Dataset, Windows, between, part, where
from tests.kit.files import save
from tests.rows.kit import DTYPES, assert_value, make_dataset, open_rows, storages


@st.composite
def group_files(draw):
    """Draw some groups with the same columns, of which each has its own type; lengths and storage are as they come."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    columns = {}
    for name in ["x", "obs/y", "obs/deep/z"][: draw(st.integers(1, 3))]:
        dtype = draw(st.sampled_from(DTYPES))
        row_shape = draw(st.sampled_from([(), (), (3,), (2, 3), (0,), "single"]))
        shapes, options = [], []
        for length in lengths:
            if row_shape == "single":
                shapes.append(())
                options.append({"written": draw(st.sampled_from(["all", "none"])), "how": "contiguous", "fill": False})
                continue
            other = draw(st.sampled_from([row_shape, row_shape, tuple(n + 1 for n in row_shape)]))
            shapes.append((length, *other))
            options.append(draw(storages(other)))
        alike = draw(st.sampled_from(["all", "all but chunks", "nothing"]))
        if alike != "nothing":
            chunks = [each.get("chunks") if alike == "all but chunks" else None for each in options]
            options = [options[0] | ({"chunks": own} if own and "chunks" in options[0] else {}) for own in chunks]
        columns[name] = (dtype, shapes, options)
    rows = draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
    return lengths, columns, rows


def stored_and_loaded(table, path):
    """Return a table as it comes from an index file."""
    facts = FileFacts(f"{path}", FileIdentity.of(path.stat()), table=table)
    writer = FactsWriter()
    body = writer.facts(facts)
    found = replace(facts, **FactsReader(writer.pool).facts(body))
    check_ranges(found)
    return found.table


@given(group_files())
def test_rows_equal_h5py(tmp_path_factory, drawn):
    lengths, columns, rows = drawn
    path = tmp_path_factory.mktemp("groups") / "a.h5"
    expected = {}
    with h5py.File(path, "w") as file:
        for i in range(len(lengths)):
            group = file.create_group(f"data/demo_{i}")
            for seed, (name, (dtype, shapes, options)) in enumerate(columns.items()):
                chosen = dict(options[i])
                if "chunks" in chosen:
                    chosen["chunks"] = chosen["chunks"][: len(shapes[i])]
                    if 0 in shapes[i][1:]:
                        chosen["chunks"] = tuple(max(1, n) for n in chosen["chunks"])
                    if not chosen["growing"]:
                        chosen["chunks"] = tuple(
                            min(c, max(n, 1)) for c, n in zip(chosen["chunks"], shapes[i], strict=True)
                        )
                        if 0 in shapes[i]:
                            chosen["growing"] = True
                expected[name, i] = make_dataset(group, name, dtype, shapes[i], chosen, 10 * i + seed)
    kind = Groups("data/demo_*", key="demo")
    with open_rows(path, kind) as reader:
        assert set(reader.columns) == {*columns, "demo"}
        table = stored_and_loaded(reader.table, path)
        for name, joined in reader.table.groups.columns.items():
            found = str(table.groups.columns[name].layouts)
            assert found.replace("'s3://", "'/") == str(joined.layouts).replace("'s3://", "'/")  # in a store, a URL
    # What is known of the groups may come from an index file.
    with Scope.of(Source(path, rows=kind)).open(str(path), None, table if rows[:1] == [0] else None) as reader:
        found = reader.read([*columns, "demo"], rows)
        for name in columns:
            for place, row in enumerate(rows):
                assert_value(found[name][place], expected[name, row], f"{name} of row {row}")
        for name in columns:  # alone: rows that are whole datasets are read in another way
            for place, value in enumerate(reader.read([name], rows)[name]):
                assert_value(value, expected[name, rows[place]], f"{name} alone, of row {rows[place]}")
    assert found["demo"].tolist() == [f"data/demo_{row}".encode() for row in rows]


def test_a_dataset_beside_the_groups_is_offered_as_a_mask(tmp_path):
    save(tmp_path / "a.h5", {"data/demo_0/x": np.arange(3), "mask/train": [b"demo_0"]})
    message = r"no 'mask/train' in the groups .* There is: x. It is a dataset of the file: .*'mask/train': row_mask\(\)"
    with pytest.raises(UnknownColumnError, match=message):
        H5Dataset(tmp_path / "a.h5", rows=Groups("data/*"), predicate=where(**{"mask/train": True}))


def test_each_refusal_has_a_reason(tmp_path):
    """Groups are refused if they differ in the type of a column or in its axes, or lack it; others are delivered."""
    counts = Counter()

    @given(st.data())
    def check(data):
        path = tmp_path / f"{counts['files']}.h5"
        counts["files"] += 1
        groups = data.draw(st.integers(1, 4))
        missing = data.draw(st.sampled_from(["error", "null", "null"]))
        like = st.sampled_from([("<f4", 1)] * 8 + [("<f4", 2), ("<i8", 1), None])
        drawn = {name: [data.draw(like) for _ in range(groups)] for name in "xyz"}
        drawn["w"] = [("<f4", 1)] * groups
        expected = {}
        with h5py.File(path, "w") as file:
            for name, each in drawn.items():
                for i, how in enumerate(each):
                    if how is not None:
                        shape = (data.draw(st.integers(1, 5)),) * how[1]
                        chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
                        values = np.arange(np.prod(shape)).reshape(shape).astype(how[0]) + i
                        file.create_dataset(f"g{i}/{name}", data=values, chunks=chunks)
                    expected[name, i] = None if how is None else values
        there = {name: {*each} - {None} for name, each in drawn.items()}
        reasons = [
            *(["lacks? "] if missing == "error" and any(there[n] and None in drawn[n] for n in "xyz") else []),
            *(["Rows may differ in length"] if any(len(each) > 1 for each in there.values()) else []),
        ]
        with open_rows(path, Groups("g*", missing=missing)) as reader:
            if reasons:
                with pytest.raises(SchemaMismatchError, match="|".join(reasons)):
                    _ = reader.layout
                counts["refused"] += 1
                return
            layout = reader.layout
            assert layout.columns.keys() == {name for name, each in there.items() if each}
            assert not layout.refused
            counts["delivered"] += 1
            for name in layout.columns:
                for i, found in enumerate(reader.read([name])[name]):
                    if expected[name, i] is None:
                        assert found is None
                    else:
                        assert_value(found, expected[name, i])

    check()
    assert counts["delivered"] > 5, counts
    assert counts["refused"] > 5, counts


def write_incomplete(path):
    with h5py.File(path, "w") as file:
        for i in range(5):
            group = file.create_group(f"g{i}")
            group["x"] = np.arange(3.0) + i
            if i % 2:
                group["y"] = np.full((i, 2), i, "f4")
                group["z"] = np.full((4, 2), i, "i8")
                group["name"] = f"n{i}"


def test_groups_that_lack_a_column(tmp_path):
    write_incomplete(tmp_path / "a.h5")
    path = str(tmp_path / "a.h5")
    with pytest.raises(SchemaMismatchError, match=r"the groups before 'g1/name' lack name.*missing='null'"):
        H5Dataset(path, rows=Groups("g*"))
    rows = Groups("g*", missing="null")
    dataset = H5Dataset(path, rows=rows)
    for i, sample in enumerate(dataset):
        assert sample.x.tolist() == [i, i + 1, i + 2]
        if i % 2:
            assert sample.y.tolist() == [[i, i]] * i
            assert sample.z.tolist() == [[i, i]] * 4
            assert sample.name == f"n{i}"
        else:
            assert sample.y is None
            assert sample.z is None
            assert sample.name is None
    padded = dataset.with_padding(True).collate(dataset.read(np.arange(5)))
    assert padded["y_length"].tolist() == [0, 1, 0, 3, 0]
    assert padded["z"].shape == (5, 4, 2)
    index = tmp_path / "index"
    index.mkdir()
    for _ in range(2):
        again = H5Dataset(path, ["y"], rows=rows, index_dir=index)
        assert again[3].y.shape == (3, 2)
        assert again[2].y is None


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_links_back_to_groups_above(tmp_path, kind):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for i in range(3):
            group = file.create_group(f"data/demo_{i}")
            group["x"], group["obs/y"] = np.arange(3.0) + i, np.arange(i + 1)
        above = {"root": "/", "up": "/data", "obs/self": "/data/demo_1", "obs/here": "/data/demo_1/obs"}
        for name, target in above.items():
            file["data/demo_1"][name] = h5py.SoftLink(target) if kind == "soft" else file[target]
        file["data/top"] = h5py.SoftLink("/") if kind == "soft" else file["/"]
    patterns = ["data/demo_*", "data/*", "**/demo_*", "*/demo_*", "data/**/demo_*"]
    for pattern, columns in itertools.product(patterns, (None, ["demo", "obs/y", "x"])):
        dataset = H5Dataset(path, columns, rows=Groups(pattern, key="demo"))
        assert len(dataset) == 3
        for i, row in enumerate(dataset):
            assert {name: row[name] if name == "demo" else row[name].tolist() for name in row} == {
                "demo": f"data/demo_{i}",
                "obs/y": list(range(i + 1)),
                "x": [i, i + 1, i + 2],
            }
    named = H5Dataset(path, ["root/data/demo_2/x"], rows=Groups("data/demo_1"))  # a loop only if it is listed
    assert named[0]["root/data/demo_2/x"].tolist() == [2, 3, 4]


def test_groups_that_lack_an_attribute(tmp_path):
    values = {"n": (3, 5), "f": (0.5, np.float32(2)), "name": ("é", b"b"), "num_samples": (2, 2), "flag": (True, False)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(4):
            file[f"g{i}/x"] = np.arange(2) + i
            file[f"g{i}"].attrs.update({name: of[i // 2] for name, of in values.items() if i % 2})
    path = str(tmp_path / "a.h5")
    with pytest.raises(SchemaMismatchError, match=r"'g0' has no attribute 'n', which attrs= names"):
        H5Dataset(path, rows=Groups("g*", attrs=[*values]))
    rows = Groups("g*", attrs=[*values], missing="null")
    options = {"index_dir": tmp_path / "index"}
    options["index_dir"].mkdir()
    for _ in range(2):
        dataset = H5Dataset(path, rows=rows, **options)
        assert [row.name for row in dataset] == [None, "é", None, "b"]
        for name in ("n", "f", "num_samples", "flag"):
            first, second = map(float, values[name])
            assert np.array_equal(dataset[:][name].numpy(), [np.nan, first, np.nan, second], equal_nan=True)
        assert len(H5Dataset(path, ["x"], where(name="é") | where(name=None), rows=rows)) == 3
        assert len(H5Dataset(path, ["x"], where(n=between(4, None)), rows=rows)) == 1
    assert len(H5Dataset(path, rows=rows, windows=Windows({"x": [0]}))) == 8
    with pytest.raises(SchemaMismatchError, match=r"'g3' has no attribute 'nam', which attrs= names.*'name'"):
        H5Dataset(path, rows=Groups("g*", attrs=["nam"], missing="null"))


def test_attributes_of_files_are_not_those_of_groups(tmp_path):
    """Who writes attrs= beside Groups reads that the attributes of groups are named in Groups."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            file[f"g{number}/x"], file[f"g{number}"].attrs["n"] = np.zeros(2), number
    advice = r"'/' has no attribute 'n', which attrs= names.*Attributes of groups are read with rows=Groups\(.*attrs="
    for attrs in (["n"], {"number": "n"}):
        with pytest.raises(SchemaMismatchError, match=advice):
            H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("g*"), attrs=attrs)
    with pytest.raises(SchemaMismatchError, match=r"no attribute 'n', which attrs= names\. There is none\.$"):
        H5Dataset(tmp_path / "a.h5", ["g0/x"], attrs=["n"])


def test_single_numbers_cannot_be_missing(tmp_path):
    save(tmp_path / "a.h5", {"g0/x": np.zeros(2), "g1/x": np.zeros(2), "g0/n": 3})
    with pytest.raises(UnsupportedColumnError, match=r"a single value of numbers cannot be None"):
        H5Dataset(str(tmp_path / "a.h5"), ["x", "n"], rows=Groups("g*", missing="null"))


def test_windows_need_their_columns_in_each_group(tmp_path):
    write_incomplete(tmp_path / "a.h5")
    with pytest.raises(SchemaMismatchError, match=r"group 'g0' lacks column 'y', which has offsets"):
        H5Dataset(str(tmp_path / "a.h5"), rows=Groups("g*", missing="null"), windows=Windows({"y": [0, 1]}))


@pytest.mark.parametrize(("mask", "group"), [(np.array([0, 1], bool), 1), (np.zeros(3), 0)])
def test_masks_of_groups_that_do_not_fit(tmp_path, mask, group):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            made = file.create_group(f"g{number}/n")
            made.attrs.update({"encoding-type": "nullable-integer", "encoding-version": "0.1.0"})
            made["values"], made["mask"] = np.arange(3), np.zeros(3, bool) if number < group else mask
    said = rf"'n', dataset 'g{group}/n/values': expected as many values as entries of its mask, found"
    with pytest.raises(CorruptFileError, match=said):
        H5Dataset(tmp_path, ["n"], rows=Groups("g*"))[1]


def test_values_made_of_stored_items_are_read_when_the_file_is_closed_again(tmp_path):
    """The chunks of one column are looked up while the read is planned; those of the other one are needed later."""
    stored = {"written": "all", "how": "chunked", "chunks": (2,), "fill": False, "growing": False, "pipeline": {}}
    path, dtype, values = tmp_path / "a.h5", np.dtype(("<f4", (3,))), {"x": [], "y": []}
    with h5py.File(path, "w") as file:
        for seed, name in enumerate("ab"):
            values["x"].append(make_dataset(file.create_group(name), "x", dtype, (6,), stored, seed))
            values["y"].append(make_dataset(file[name], "y", "i4", (6,), stored, seed))
    with open_rows(path, Groups("*"), Windows({"x": [0], "y": [0]})) as reader:
        rows = [7, 0, 11, 3]
        found = reader.read(["x", "y"], rows)
    for name, parts in values.items():
        np.testing.assert_array_equal(found[name][:, 0], np.concatenate(parts)[rows])


def test_parts_of_a_dataset_that_begins_a_byte_before_whole_rows(tmp_path):
    path = tmp_path / "a.h5"
    values = np.arange(1, 31, dtype="u1").reshape(10, 3)
    for before in range(3):
        with h5py.File(path, "w") as file:
            file.create_group("g/g_0")
            file["before"] = np.zeros(before, "u1")
            file["g/g_1/x"] = values
            file.flush()
            offset = file["g/g_1/x"].id.get_offset()
            file["g/g_0/x"] = np.full(((offset + 1) // 3, 3), 7, "u1")
        dataset = H5Dataset(path, {"x": part("x", {1: [0, 2]})}, rows=Groups("g/*"))
        assert dataset[1]["x"].tolist() == values[:, [0, 2]].tolist(), offset


def test_an_open_file_keeps_no_columns_of_readers_that_are_gone(tmp_path):
    path = save(tmp_path / "a.h5", {f"demo_{number}/x": np.arange(4.0) for number in range(3)})
    rows = H5Dataset(path, rows=Groups("demo_*"))

    def count_after(copies):
        for _ in range(copies):
            assert len(pickle.loads(pickle.dumps(rows))[1]["x"]) == 4
        gc.collect()
        return sum(type(each) is JoinedArray for each in gc.get_objects())

    assert count_after(1) == count_after(10)


@pytest.mark.parametrize("cast", [False, True])
def test_steps_of_datasets_with_chunks_of_their_own(tmp_path, cast):
    """Some are contiguous, and no two others need have chunks of one shape: parts of them are read in one go."""
    rng, steps = np.random.default_rng(0), []
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(30):
            rows = int(rng.integers(1, 12))
            steps.append(rng.random((rows, 6)).astype(">f4"))
            chunks = (int(rng.integers(1, rows + 1)), int(rng.integers(1, 7))) if number % 5 else None
            stored = {"compression": "gzip"} if chunks and number % 3 == 0 else {}
            file.create_dataset(f"g_{number}/x", data=steps[-1], chunks=chunks, **stored)
    values = np.concatenate(steps).astype("f8" if cast else "f4")
    columns = {"whole": "x", "one": part("x", {0: [4]}), "three": part("x", {0: [5, 0, 1]})}
    dtypes = dict.fromkeys(columns, "float64") if cast else {}
    dataset = H5Dataset(
        tmp_path / "a.h5", columns, rows=Groups("g_*"), windows=Windows({name: [0] for name in columns}), dtypes=dtypes
    )
    assert len(dataset) == len(values)
    for rows in (np.arange(len(values)), rng.integers(0, len(values), 80)):
        batch = dataset.read(rows)
        for name, expected in {"whole": values, "one": values[:, [4]], "three": values[:, [5, 0, 1]]}.items():
            np.testing.assert_array_equal(np.asarray(batch[name])[:, 0], expected[rows], err_msg=name)


def test_a_single_text_of_a_fixed_length_that_a_group_lacks_is_empty(tmp_path):
    save(tmp_path / "a.h5", {"g0/x": np.bytes_(b"abc"), "g1/y": 1})
    with open_rows(tmp_path / "a.h5", Groups("g*", missing="null")) as reader:
        assert reader.read(["x"])["x"].tolist() == [b"abc", b""]
    assert H5Dataset(tmp_path / "a.h5", ["x"], rows=Groups("g*", missing="null"))[:]["x"] == ["abc", None]


def counted(monkeypatch, owner, name):
    """Return a list that grows with each call of a function."""
    calls, function = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **options: calls.append(name) or function(*args, **options))
    return calls


def test_texts_of_other_lengths_are_described_once(tmp_path, monkeypatch):
    """Each text is compared with few before it, and what is known of one is what a description of it says."""
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for group in range(300):
            text = (b"ab\0cde" * 60)[: 1 + group]
            kind = h5py.string_dtype(["ascii", "utf-8"][group % 2], len(text) + group % 3)
            fill = {"fillvalue": np.array(b"fill", kind)} if group % 7 == 5 else {}
            dataset = file.create_dataset(f"g{group:03d}/x", (), kind, **fill)
            if group % 5:
                dataset[()] = text
        expected = [bytes(file[f"g{group:03d}/x"][()]) for group in range(300)]
    columns = []
    for _ in range(2):
        described = counted(monkeypatch, column_of_groups, "describe_column")
        compared = counted(monkeypatch, column_of_groups._Class, "has")
        with open_rows(tmp_path / "a.h5", Groups("g*")) as reader:
            assert reader.read(["x"])["x"].tolist() == expected
            columns.append(reader.table.groups.columns["x"])
        if len(columns) == 1:
            assert len(described) < 100
            assert len(compared) < 1500
        monkeypatch.setattr(column_of_groups._Class, "of_text", lambda *_: False)
    assert len(described) > 150
    assert columns[0].layouts == columns[1].layouts
    assert np.array_equal(columns[0].class_of, columns[1].class_of)


def test_groups_with_encoded_columns_are_passed_over_twice(tmp_path, monkeypatch):
    """Once to see that columns are encoded in groups, and once for their datasets, however many groups there are."""
    passes = counted(monkeypatch, matching_groups._Walk, "table_of")
    looked_up = counted(monkeypatch, H5Tree, "encoding")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group, name in itertools.product(range(40), "abc"):
            column = file.create_group(f"g{group}/{name}")
            column.attrs["encoding-type"] = "nullable-integer"
            column["values"], column["mask"] = np.arange(group, group + 3), np.array([False, True, False])
    rows = H5Dataset(tmp_path / "a.h5", ["a", "b", "c"], rows=Groups("g*", order="name"))
    assert len(passes) == 2
    assert not looked_up
    assert rows[7] == {name: [7, None, 9] for name in "abc"}
