"""Columns whose rows begin and end where the same datasets say, over contents of other lengths: NumPy is the oracle."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import Groups, Shuffle, Windows, fields, loader, part, ragged
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.manifest.partition import Partition
from ray_h5.manifest.row_requests import Request
from ray_h5.torch_data import H5Dataset
from tests.kit.files import save
from tests.properties import few


@few(40)
@given(st.lists(st.integers(0, 4), max_size=12))
def test_a_partition_is_where_numpy_splits(lengths):
    parts = Partition.of(np.array(lengths, np.int64))
    units = np.arange(sum(lengths))
    split = np.split(units, np.cumsum(lengths)[:-1]) if lengths else []
    assert (len(parts), parts.num_units, parts.lengths.tolist()) == (len(lengths), sum(lengths), lengths)
    assert parts.firsts.tolist() == [sum(lengths[:number]) for number in range(len(lengths))]
    of = np.array([number for number, part in enumerate(split) for _ in part], np.int64)
    local = np.array([at for part in split for at in range(len(part))], np.int64)
    assert parts.part_of(units).tolist() == parts.spread(np.arange(len(lengths))).tolist() == of.tolist()
    for found, expected in zip(parts.local(units[::-1]), (of[::-1], local[::-1]), strict=True):
        assert found.tolist() == expected.tolist()
    some = np.flatnonzero(np.arange(len(lengths)) % 3 != 1)
    assert parts.units(some).tolist() == [unit for number in some for unit in split[number]]


@few(60)
@given(st.data(), st.lists(st.integers(0, 4), min_size=1, max_size=12).filter(any))
def test_runs_are_cut_where_parts_begin(data, lengths):
    parts, total = Partition.of(np.array(lengths, np.int64)), sum(lengths)
    runs = sorted(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=6)))
    counts = [data.draw(st.integers(1, total - first)) for first in runs]
    ends = np.cumsum(counts)
    cut, of = parts.cut(Request(np.array(runs), ends - counts, np.array(counts)))
    assert (of[1:] >= of[:-1]).all()
    assert np.array_equal(of, parts.part_of(cut.firsts))
    assert np.array_equal(of, parts.part_of(cut.firsts + cut.lengths - 1))
    cut_units = sorted(zip(cut.listed().places.tolist(), cut.listed().rows.tolist(), strict=True))
    assert [unit for _, unit in cut_units] == [
        first + at for first, n in zip(runs, counts, strict=True) for at in range(n)
    ]
    pairs = {
        (run, parts.part_of(first + at))
        for run, (first, n) in enumerate(zip(runs, counts, strict=True))
        for at in range(n)
    }
    assert len(cut.lengths) == len(pairs)  # no more pieces than parts that a run touches
    listed, of = parts.cut(units := Request(np.array(runs), ends - counts))
    assert listed is units
    assert of.tolist() == parts.part_of(np.array(runs)).tolist()


def test_a_partition_of_ten_million_parts_is_one_array():
    parts = Partition.of(np.arange(10_000_000) % 3)
    assert parts.starts.nbytes < 81 << 20
    assert parts.part_of(parts.num_units - 1) == 9_999_998
    assert [int(at) for at in parts.local(5)] == [5, 1]


OPTIONS = {"bounds": "pairs", "offsets": "offsets", "ends": "ends", "counts": "counts"}
OPTIONS |= {"bounds of fields": fields("table", ["a", "b"]), "bounds of a wider array": part("wide", {0: slice(1, 3)})}


@pytest.mark.parametrize("option", [*OPTIONS, "starts"])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_groups_whose_contents_differ_in_length(tmp_path, option, is_indexed):
    rng, file, expected = np.random.default_rng(0), {}, []
    for group in range(4):
        counts = rng.integers(0, 4, rng.integers(1, 6))
        stops = np.cumsum(counts)
        said = {"counts": counts, "offsets": np.append(0, stops), "ends": stops, "starts": stops - counts}
        said["pairs"] = np.stack([stops - counts, stops], axis=1)
        said["wide"] = np.insert(said["pairs"], 0, -9, axis=1)
        said["table"] = np.array([*map(tuple, said["pairs"])], [("a", "i4"), ("b", "u2")])
        file |= {f"g{group}/{name}": values for name, values in said.items()}
        longer = option.startswith(("bounds", "starts"))  # the others are of all values
        own = {name: rng.random(int(stops[-1]) + longer * int(rng.integers(0, 9))) for name in "xyz"}
        file |= {f"g{group}/{name}": values for name, values in own.items()}
        expected += [
            {name: own[name][b - n : b].tolist() for name in "xyz"} for b, n in zip(stops, counts, strict=True)
        ]
    path = save(tmp_path / "a.h5", file)
    said = {"starts": "starts", "counts": "counts"} if option == "starts" else {option.split()[0]: OPTIONS[option]}
    for names in ("xy", "yx", "zyx"):
        MEMORY.clear()
        options = {"rows": Groups("g*"), "windows": Windows({name: [0] for name in names})}
        options |= {"index_dir": str(tmp_path / "index")} if is_indexed else {}
        columns = [ragged(name, **said) for name in names]
        dataset = pickle.loads(pickle.dumps(H5Dataset(path, columns, **options)))
        wanted = [{name: row[name] for name in names} for row in expected]
        assert [{name: row[name][0].tolist() for name in names} for row in dataset] == wanted
        batches = loader(path, 3, columns=columns, shuffle=None, pad=True, **options)
        lengths = [length for batch in batches for length in batch[f"{names[0]}_length"].reshape(-1).tolist()]
        assert lengths == [len(row[names[0]]) for row in expected]


INNER = "ragged('x', offsets='inner')"
LIKE_KEYS = [f"{INNER} of units", "x of units", "offsets inner", "inner\n1\nTrue", "episodes inner"]


@pytest.mark.parametrize("name", LIKE_KEYS)
@pytest.mark.parametrize("groups", [[""], ["a/", "b/"]], ids=["axis", "groups"])
def test_no_name_of_a_column_is_taken_for_what_others_are_made_of(tmp_path, name, groups):
    x, inner, own = np.arange(12), np.array([0, 2, 5, 5, 12]), np.array([0, 4, 12])
    datasets = {"x": x, "inner": inner, "outer": np.array([0, 1, 4]), "own": own}
    path = save(tmp_path / "a.h5", {f"{group}{of}": values for group in groups for of, values in datasets.items()})
    columns = {name: ragged("x", offsets="own"), "nested": ragged(ragged("x", offsets="inner"), offsets="outer")}
    expected = {name: [x[:4].tolist(), x[4:].tolist()], "nested": [[[0, 1]], [[2, 3, 4], [], [*range(5, 12)]]]}
    options = {"rows": Groups("*"), "windows": Windows({column: [0] for column in columns})} if len(groups) > 1 else {}
    in_window = 0 if options else slice(None)
    for order in (columns, dict(reversed(columns.items()))):
        MEMORY.clear()
        rows = [*H5Dataset(path, order, **options)]
        own = [row[name][in_window].tolist() for row in rows]
        nested = [[part.tolist() for part in row["nested"][in_window]] for row in rows]
        assert {name: own, "nested": nested} == {column: rows * len(groups) for column, rows in expected.items()}


def test_any_name_of_a_column_has_chunk_groups(tmp_path):
    starts = np.arange(401) * 7
    path = save(tmp_path / "a.h5", {"x": np.arange(2800), "offsets": starts}, chunks=(100,))
    orders = []
    for name in ("n", "n of units"):
        columns = {name: ragged("x", offsets="offsets")}
        batches = loader(path, 8, columns=columns, shuffle=Shuffle("chunks", seed=0), pad=True)
        orders.append([int(row[0]) for batch in batches for row in batch[name]])
    assert orders[0] == orders[1]
