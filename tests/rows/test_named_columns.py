"""Columns under names that a user gives, several of one dataset: what numpy takes of what h5py reads."""

import h5py
import numpy as np
import pytest

from ray_h5 import (
    Files,
    Grid,
    Groups,
    Patches,
    RowReader,
    Shuffle,
    Windows,
    balance,
    between,
    csr,
    fields,
    joined,
    part,
    ragged,
    where,
)
from ray_h5.errors import OptionError, RayH5Error, UnknownColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.torch_data import H5Dataset, loader
from tests.hdf5.h5kit import by_h5py

EVENT = np.dtype([("pt", "<f4"), ("id", "<i4")])


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=rng.integers(0, 99, (40, 6)).astype("i4"), chunks=(8, 6), compression="gzip")
        file["y"] = np.arange(40) % 3
        event = np.zeros(40, EVENT)
        event["pt"], event["id"] = np.arange(40) / 2, np.arange(40)
        file["event"] = event
        file["ends"], file["hits"] = np.arange(1, 41) * 2, np.arange(80)
        file["volume"] = rng.integers(0, 9, (2, 8, 9))
        for i in range(4):
            file[f"g{i}/x"] = rng.integers(0, 99, (3 + i, 5))
            file[f"g{i}/t"] = np.arange(3 + i) / 10
    return tmp_path / "a.h5"


COLUMNS = {
    "first": part("x", {0: slice(2)}),
    "last": part("x", {0: [5]}),
    "whole": "x",
    "x": "x",
    "pt": "event/pt",
    "both": fields("event", ["id", "pt"]),
    "hits": ragged("hits", ends="ends"),
    "second": part(ragged("hits", ends="ends"), {0: [1]}),
}


def test_columns_of_one_dataset_are_its_parts(path, tmp_path):
    x, event = by_h5py(path, "x"), by_h5py(path, "event")
    options = {"dtypes": {"whole": "f8"}, "index_dir": tmp_path / "index"}
    for _ in range(2):  # the second time from the index
        found = H5Dataset(path, COLUMNS, where(pt=between(2, None), y=[1]), **options)
        rows = [i for i in range(40) if event["pt"][i] >= 2 and i % 3 == 1]
        batch = found[list(range(len(rows)))]
        np.testing.assert_array_equal(batch["first"], x[rows][:, :2])
        np.testing.assert_array_equal(batch["last"], x[rows][:, [5]])
        assert batch["whole"].numpy().dtype == "f8"
        np.testing.assert_array_equal(batch["whole"], x[rows])
        np.testing.assert_array_equal(batch["x"], x[rows])
        np.testing.assert_array_equal(batch["pt"], event["pt"][rows])
        np.testing.assert_array_equal(batch["both"], np.stack([rows, event["pt"][rows]], axis=1))
        assert [each.tolist() for each in batch["hits"]] == [[2 * i, 2 * i + 1] for i in rows]
        assert [each.tolist() for each in batch["second"]] == [[2 * i + 1] for i in rows]
    batches = loader(path, 8, columns={"label": "y", "x": "x"}, shuffle=Shuffle(seed=0, weights=balance("label")))
    assert {name for batch in batches for name in batch} == {"label", "x"}


def test_parts_of_one_dataset_decode_each_chunk_once(path):
    scope = FileOptions.of(str(path), columns={"a": part("x", {0: [0]}), "b": part("x", {0: [5, 1]})}).scope
    with scope.open(str(path)) as reader:
        found = reader.read(["a", "b"])
        assert reader.stats.chunks_decoded == 5
    np.testing.assert_array_equal(found["b"], by_h5py(path, "x")[:, [5, 1]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            [part("x", {0: [0]}), part("x", {0: [1]})],
            r"'x' is listed more than once.*columns=\{'a': part\('x', \{0: \[0\]",
        ),
        ({"a": "emb_*"}, r"'a': 'emb_\*': expected one column, not a pattern"),
        ({"": "x"}, "expected the name of a dataset"),
        ({"a": 3}, "'a'=3: expected the name of a dataset"),
        ({"ends": "x", "hits": ragged("hits", ends="ends")}, "'ends' is also the name of a dataset that ragged"),
        ({"x": "y", "y": "x"}, "Call the column otherwise"),
        ({"a": "xx"}, "Did you mean 'x'"),
        ({"a": "g0"}, "group"),
        ({"a": part("x", {3: [0]})}, r"'a': part\('x', .* takes axis 3 of rows"),
    ],
)
def test_what_is_refused(path, columns, message):
    with pytest.raises(RayH5Error, match=message):
        H5Dataset(path, columns)
    if isinstance(columns, dict):
        with pytest.raises(RayH5Error):
            H5Dataset(path, columns, rows=Groups("g*"))
    assert issubclass(OptionError, RayH5Error)


def test_attributes_that_are_named_as_columns_say_how_they_become_columns(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file.attrs["site"] = np.zeros((5, 2)), "north"
        for i in range(3):
            file[f"demo_{i}/x"] = np.zeros((5, 2))
            file[f"demo_{i}"].attrs["success"] = i
    with pytest.raises(UnknownColumnError, match=r"'site' is an attribute: pass attrs=\['site'\]"):
        H5Dataset(tmp_path / "a.h5", ["x", "site"])
    with pytest.raises(UnknownColumnError, match=r"'success' is an attribute: pass attrs=\['success'\] to Groups"):
        H5Dataset(tmp_path / "a.h5", ["x", "success"], rows=Groups("demo_*"))
    assert H5Dataset(tmp_path / "a.h5", ["x", "site"], attrs=["site"])[0]["site"] == "north"
    assert H5Dataset(tmp_path / "a.h5", ["x", "success"], rows=Groups("demo_*", attrs=["success"]))[2]["success"] == 2


def test_with_each_row_kind(path):
    x, volume = by_h5py(path, "x"), by_h5py(path, "volume")
    columns = {"a": part("volume", {0: [1]}), "b": "volume"}
    found = H5Dataset(path, columns, rows=Patches({"volume": (4, 3)}, axes={"volume": (1, 2)}))[1]
    np.testing.assert_array_equal(found["a"], volume[[1], :4, 3:6])
    np.testing.assert_array_equal(found["b"], volume[:, :4, 3:6])
    named = H5Dataset(path, columns, rows=Patches({"b": (4, 3)}, axes={"b": (1, 2)}, where_any=("volume", [1])))
    assert "a" in named.columns
    with h5py.File(path, "a") as file:
        cells = np.zeros((3, 3, 2), EVENT)
        cells["id"], cells["pt"] = np.arange(18).reshape(3, 3, 2), -np.arange(18).reshape(3, 3, 2)
        file["cells"] = cells
    rows = Patches({"id": (2, 2)}, axes={"id": (0, 1)}, where_any=("cells/id", [17]), stride=1)
    found = H5Dataset(path, {"id": "cells/id", "pt": part("cells/pt", {2: [1]})}, rows=rows)
    assert len(found) == 1  # the axes of one field are those of the others
    np.testing.assert_array_equal(found[0]["pt"], cells["pt"][1:, 1:, [1]])
    groups = H5Dataset(path, {"a": part("x", {0: [0]}), "b": part("x", {1: [4]}), "c": "x"}, rows=Groups("g*"))
    for i in range(4):
        values = by_h5py(path, f"g{i}/x")
        np.testing.assert_array_equal(groups[i]["a"], values[[0]])
        np.testing.assert_array_equal(groups[i]["b"], values[:, [4]])
        np.testing.assert_array_equal(groups[i]["c"], values)
    windows = Windows({"past": [-1, 0], "next": ("x", [1])}, pad="drop", per_step=["now"])
    steps = H5Dataset(
        path, {"past": part("x", {0: [1]}), "next": "next", "now": "x"}, rows=Groups("g*"), windows=windows
    )
    values = by_h5py(path, "g0/x")
    np.testing.assert_array_equal(steps[0]["past"], values[:2, [1]])
    np.testing.assert_array_equal(steps[0]["next"], values[[2]])
    np.testing.assert_array_equal(steps[0]["now"], values[1])
    timed = Windows({"past": [-0.1, 0.0], "now": [0.0]}, at="t", pad="drop")
    seconds = H5Dataset(path, {"past": part("x", {0: [1]}), "now": "x"}, rows=Groups("g*"), windows=timed)
    np.testing.assert_array_equal(seconds[0]["past"], values[:2, [1]])
    np.testing.assert_array_equal(seconds[0]["now"], values[[1]])
    file = H5Dataset(path, {"a": part("x", {0: slice(3)}), "b": part("x", {1: [0]})}, rows=Files(key="file"))[0]
    np.testing.assert_array_equal(file["a"], x[:3])
    np.testing.assert_array_equal(file["b"], x[:, [0]])
    cells = H5Dataset(path, {"a": part("volume", {0: [3]}), "b": "volume"}, rows=Grid(2))[9]
    np.testing.assert_array_equal(cells["a"], volume[1, 1, [3]])
    np.testing.assert_array_equal(cells["b"], volume[1, 1])
    ends = H5Dataset(path, {"t": joined("g*/t"), "name/of": joined("g*/x")})
    np.testing.assert_array_equal(ends[4]["name/of"], by_h5py(path, "g1/x")[1])


ADDED = {  # what a row kind adds, and the same name in the file
    "time": {"windows": Windows({"x": [0.0]}, at={"x": "t"})},
    "x_is_pad": {"windows": Windows({"x": [0, 1]})},
    "w": {"windows": Windows({"w": ("x", [0, 1])})},
    "axis_0": {"rows": Grid(1, include_axes=True)},
    "corner": {"rows": Patches({"x": (1,)})},
    "name": {"rows": Groups("g/*", key="name")},
    "kind": {"rows": Groups("g/*", attrs=["kind"])},
    "scan": {"rows": Files(key="scan")},
    "id": {"rows": Groups("g/*", key="id"), "windows": Windows({"x": [0]})},
    "of": {"rows": Patches({"x": (1,)}, groups="g/*", key="of")},
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("is_made", [False, True])
def test_a_name_that_a_row_kind_adds_is_no_column_of_the_file(tmp_path, name, is_made):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["t"], file["y"] = np.arange(6.0), np.arange(6) / 4, np.arange(6)
        for k in range(2):
            file[f"g/{k}/x"] = file[f"g/{k}/y"] = np.arange(3)
            file[f"g/{k}"].attrs["kind"] = k
    options = ADDED[name]
    found = H5Dataset(tmp_path / "a.h5", ["x", name] if name != "w" else [name], **options)
    assert found.columns[-1] == name
    assert found[0][name] is not None
    if not is_made:
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file[name], file[f"g/1/{name}"], file[f"g/0/{name}"] = 900 + np.arange(6), 1, 1
    columns = {"x": "x", name: "y"} if is_made else ["x", name]
    path = tmp_path / "a.h5"
    makers = [lambda: H5Dataset(path, columns, **options), lambda: loader(path, 2, columns=columns, **options)]
    if not is_made:
        makers += [lambda: H5Dataset(path, **options), lambda: RowReader(path, **options).read([name])]
        makers += [lambda: H5Dataset(path, ["x"], where(**{name: 0}), **options)]
        assert len(H5Dataset(path, ["x"], **options)) == len(found)  # where it is not asked for
    for make in makers:
        with pytest.raises(OptionError, match=f"'{name}' is a column of the file, and one that .* adds"):
            make()


def test_columns_that_a_row_kind_adds_have_other_names(path):
    with h5py.File(path, "a") as file:
        for i in range(4):
            file[f"g{i}"].attrs["ok"] = i % 2
    groups = {"rows": Groups("g*", attrs=["ok"], key="name")}
    steps, x = {**groups, "windows": Windows({"x": [0, 1]}, pad="drop")}, {"x": "x"}
    names = {"good": "ok", "again": "ok", "who": "name", "of": "episode", "where": "group"}
    expected = [(f"g{i}", 2 + i) for i in range(4) if i % 2]
    for options, counts in ((groups, [1, 1]), (steps, [count for _, count in expected])):
        rows = H5Dataset(path, x | names, where(good=1, who=["g0", "g1", "g3"]), labels={"again": [1, 0]}, **options)
        found = [(row["who"], row["where"], row["of"], int(row["good"]), int(row["again"])) for row in rows]
        groups_of = np.repeat(["g1", "g3"], counts).tolist()
        assert found == [(name, name, f"{path}:{name}", 1, 0) for name in groups_of]
    axes = H5Dataset(path, {"v": "volume", "t": "axis_1"}, rows=Grid(2, include_axes=True))
    assert [int(row["t"]) for row in axes] == [*range(8)] * 2
    blocks = H5Dataset(
        path, {"volume": "volume", "at": "corner", "scan": "key"}, rows=Patches({"volume": (2, 4, 9)}, key="key")
    )
    assert [(row["at"].tolist(), row["scan"]) for row in blocks] == [([0, 0, 0], "a"), ([0, 4, 0], "a")]
    events = H5Dataset(path, {"n": "num_samples", "y": "y"}, rows=Groups(by="ends", attrs=["num_samples"]))
    assert int(events[0]["n"]) == 1
    assert H5Dataset(path, {"stem": "key", "pt": "event/pt"}, rows=Files(key="key"))[0]["stem"] == "a"


def test_a_pattern_stands_for_the_column_of_each_match(tmp_path):
    """As a list of all of them does: parts, fields, ragged rows with bounds of the same stars, sparse matrices."""
    event = np.array([(1, 2, 3), (4, 5, 6)], [("pt", "f4"), ("eta", "f4"), ("id", "i4")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in (10, 9, 2):
            file[f"emb_{k}"], file[f"jets_{k}"] = k + np.arange(6.0).reshape(2, 3), event
            file[f"ev/{k}/x"], file[f"ev/{k}/ends"], file[f"ev/{k}/pairs"] = np.arange(5), [k % 5, 5], [[0, 2], [1, 5]]
            file[f"m{k}/indptr"], file[f"m{k}/indices"], file[f"m{k}/data"] = [0, 1, 2], [0, k % 3], [1.0, k]
        file["off"], file["names"], file["flux [Jy]"] = [0, 2, 5], ["a", "b", "c"], np.arange(6.0).reshape(2, 3)
        for k in range(2):
            file[f"g/{k}/emb_0"] = file[f"g/{k}/emb_1"] = np.arange(6).reshape(3, 2)
    makers = [
        lambda k: part(f"emb_{k}", {0: ["c", "a"]}, names="names"),
        lambda k: part(f"emb_{k}", random=2),
        lambda k: fields(f"jets_{k}", ["id", "pt"]),
        lambda k: part(fields(f"jets_{k}", ["id", "pt"]), {0: [1]}),
        lambda k: ragged(f"ev/{k}/x", ends=f"ev/{k}/ends"),
        lambda k: part(ragged(f"ev/{k}/x", offsets="off"), {0: slice(1, None)}),
        lambda k: csr(f"m{k}", shape=(None, 3)),
    ]
    for make in makers:
        listed = H5Dataset(tmp_path / "a.h5", [*map(make, (10, 2, 9))])
        for pattern in ("*", "[0-9]*"):
            found = H5Dataset(tmp_path / "a.h5", [make(pattern)])
            assert {*found.columns} == {*listed.columns}
            for i in range(2):
                for name in listed.columns:
                    np.testing.assert_array_equal(np.asarray(found[i][name]), np.asarray(listed[i][name]))
    both = loader(tmp_path / "a.h5", 2, columns=[part("emb_*", {0: [0]})], shuffle=False)
    assert [{*batch} for batch in both] == [{"emb_10", "emb_9", "emb_2"}]
    assert H5Dataset(tmp_path / "a.h5", [part("flux [Jy]", {0: [1]})])[1]["flux [Jy]"].tolist() == [4]
    groups = H5Dataset(tmp_path / "a.h5", [part("emb_*", {1: [1]})], rows=Groups("g/*"))
    assert groups[1]["emb_1"].tolist() == [[1], [3], [5]]
    for columns, error in (
        ([part("zz_*", {0: [0]})], "no column matches 'zz_.'"),
        ({"a": part("emb_*", {0: [0]})}, "expected one column, not a pattern"),
        ([ragged("ev/*/x", ends="ev/*/e*")], "has 2 stars, and 'ev/.*' has 1"),
        ([part("emb_*", {0: [0]}), part("*_10", {0: [1]})], "'emb_10' is listed more than once"),
    ):
        with pytest.raises((OptionError, UnknownColumnError), match=error):
            H5Dataset(tmp_path / "a.h5", columns)
