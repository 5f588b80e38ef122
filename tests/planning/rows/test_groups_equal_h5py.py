"""Groups as rows: each row is what h5py reads of its datasets, whatever these hold and however they are stored."""

import json

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_h5.errors import SchemaMismatchError, UnsupportedColumnError
from ray_h5.planning.index import serialize
from ray_h5.planning.index.scope import Scope
from ray_h5.planning.index.serialize_rows import table_from_parts, table_to_parts
from ray_h5.planning.rows.kinds import Groups
from ray_h5.planning.rows.windows import Windows
from ray_h5.torch_data import H5Dataset
from tests.planning.rows.kit import DTYPES, assert_value, make_dataset, open_rows, storages


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
        alike = draw(st.booleans())
        columns[name] = (dtype, shapes, [options[0]] * len(options) if alike else options)
    rows = draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
    return lengths, columns, rows


def stored_and_loaded(table, path):
    """Return a table as it comes from an index file."""
    described, arrays = table_to_parts(table, serialize._dtype_to_json)
    described = json.loads(json.dumps(described))
    return table_from_parts(described, arrays, serialize._dtype_from_json, path.stat().st_size)


@settings(max_examples=120)
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
    # What is known of the groups may come from an index file.
    with Scope.of("/", (), 1, kind).open(str(path), None, table if rows[:1] == [0] else None) as reader:
        found = reader.read([*columns, "demo"], rows)
        for name in columns:
            for place, row in enumerate(rows):
                assert_value(found[name][place], expected[name, row], f"{name} of row {row}")
    assert found["demo"].tolist() == [f"data/demo_{row}".encode() for row in rows]


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


def test_single_numbers_cannot_be_missing(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g0/x"], file["g1/x"], file["g0/n"] = np.zeros(2), np.zeros(2), 3
    with pytest.raises(UnsupportedColumnError, match=r"a single value of numbers cannot be None"):
        H5Dataset(str(tmp_path / "a.h5"), ["x", "n"], rows=Groups("g*", missing="null"))


def test_windows_need_their_columns_in_each_group(tmp_path):
    write_incomplete(tmp_path / "a.h5")
    with pytest.raises(SchemaMismatchError, match=r"group 'g0' lacks column 'y', which has offsets"):
        H5Dataset(str(tmp_path / "a.h5"), rows=Groups("g*", missing="null"), windows=Windows({"y": [0, 1]}))
