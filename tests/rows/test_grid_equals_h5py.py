"""Leading axes as rows: each row is what h5py gives at its indices, and which axes a column has is never a guess."""

import itertools
import math
from collections import Counter

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.torch_data import Grid, H5Dataset, RayH5Error, Sidecar, Windows, between, where
from tests.kit.files import save
from tests.rows.kit import DTYPES, PIPELINES, assert_value, make_dataset, open_rows


@st.composite
def grids(draw):
    axes = draw(st.sampled_from([1, 2, 2, 3]))
    lengths = tuple(draw(st.integers(0 if i == 0 else 1, 6)) for i in range(axes))
    dtype = draw(st.sampled_from(DTYPES))
    row_shape = draw(st.sampled_from([(), (4,), (3, 2)]))
    shape = (*lengths, *row_shape)
    how = draw(st.sampled_from(["chunked", "chunked", "chunked", "contiguous", "compact"]))
    options = {
        "how": how,
        "written": draw(st.sampled_from(["all", "all", "none", "part"])),
        "fill": draw(st.booleans()),
    }
    if how == "chunked":
        options["chunks"] = tuple(draw(st.integers(1, max(1, n))) for n in shape)
        options["growing"] = draw(st.booleans()) or 0 in shape
        options["pipeline"] = draw(st.sampled_from(PIPELINES))
    count = math.prod(lengths)
    rows = draw(st.lists(st.integers(0, count - 1), max_size=20)) if count else []
    return axes, shape, dtype, options, rows


@given(grids())
def test_rows_equal_h5py(tmp_path_factory, drawn):
    axes, shape, dtype, options, rows = drawn
    path = tmp_path_factory.mktemp("grid") / "a.h5"
    with h5py.File(path, "w") as file:
        values = make_dataset(file, "u", dtype, shape, options, 0)
    lengths = shape[:axes]
    with open_rows(path, Grid(axes, include_axes=True)) as reader:
        assert reader.num_rows == math.prod(lengths)
        found = reader.read(["u", *(f"axis_{i}" for i in range(axes))], rows)
        for place, row in enumerate(rows):
            at = np.unravel_index(row, lengths)
            assert_value(found["u"][place], values[at], f"row {row}")
            assert [found[f"axis_{i}"][place] for i in range(axes)] == list(at)


# Which row axes a column has ------------------------------------------------------------------

MAIN = {"u": (5, 20, 8, 6)}


def grid_of(tmp_path, shapes, grid):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, shape in shapes.items():
            file[name] = np.arange(math.prod(shape), dtype="f4").reshape(shape)
    return open_rows(tmp_path / "a.h5", grid)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"u": (5, 5, 8), "c": (5,)}, r"\(0,\) or \(1,\)"),  # as many trajectories as steps
        ({"u": (5, 20, 5), "c": (5,)}, r"\(\) or \(0,\)"),  # as many trajectories as places
        ({"u": (5, 8, 8), "c": (8,)}, r"\(\) or \(1,\)"),
        ({"u": (5, 5, 5), "c": (5, 5)}, r"\(0,\) or \(1,\) or \(0, 1\)"),
        ({"u": (5, 5, 5, 5), "c": (5, 5, 5)}, "or"),
        ({"u": (5, 20, 20, 5), "c": (5, 20)}, r"\(\) or|or \(0, 1\)|\(0,\) or"),
        ({**MAIN, "c": (5, 5)}, r"\(0,\)"),
        ({**MAIN, "c": (9, 9)}, r"of=\{'c': \(\)\}"),
    ],
)
def test_ambiguous_columns_are_refused(tmp_path, shapes, said):
    with grid_of(tmp_path, shapes, Grid(2)) as reader:
        assert "c" not in reader.columns
        with pytest.raises(UnsupportedColumnError, match=said) as error:
            reader.read(["c"])
        assert "of={'c': " in str(error.value)


def test_each_refusal_has_a_reason(tmp_path):
    """A column is refused if its shape can be read in several ways; each other one is read in the way that fits."""
    counts = Counter()

    @given(st.data())
    def check(data):
        axes = data.draw(st.integers(1, 3))
        lengths = tuple(data.draw(st.integers(1, 6)) for _ in range(axes))
        values = tuple(data.draw(st.integers(1, 6)) for _ in range(data.draw(st.integers(1, 2))))
        drawn = st.lists(st.sampled_from([*lengths, *values, 7]), min_size=1, max_size=axes + len(values) - 1)
        shapes = {"u": lengths + values, **{name: tuple(data.draw(drawn)) for name in "cd"}}
        with grid_of(tmp_path, shapes, Grid(axes)) as reader:
            layout = reader.layout
            rows = np.unravel_index(np.arange(math.prod(lengths)), lengths)
            for name, shape in shapes.items():
                stored = np.arange(math.prod(shape), dtype="f4").reshape(shape)
                fits = [
                    chosen
                    for size in range(min(axes, len(shape)) + 1)
                    for chosen in itertools.combinations(range(axes), size)
                    if shape[:size] == tuple(lengths[axis] for axis in chosen)
                ]
                if name in layout.refused:
                    assert len(fits) > 1 or len(shape) > 1, (shapes, name)
                    assert "Say which with Grid" in str(layout.refused[name])
                    counts["refused"] += 1
                    continue
                counts["delivered"] += 1
                found = reader.read([name])[name]
                ways = [
                    stored[tuple(rows[axis] for axis in chosen)] if chosen else np.stack([stored] * reader.num_rows)
                    for chosen in fits
                ]
                assert any(np.array_equal(found, each) for each in ways), (shapes, name)

    check()
    assert counts["delivered"] > counts["refused"] > 10, counts


@pytest.mark.parametrize(
    ("shapes", "grid", "error", "said"),
    [
        ({"u": (5, 20)}, Grid(3), UnsupportedColumnError, r"no column has 3 axes or more: u \(5, 20\)"),
        ({"u": (5, 20, 8), "v": (6, 20, 8)}, Grid(2), SchemaMismatchError, "row axes differ"),
        ({"u": (5, 20, 8), "c": (7,)}, Grid(2, of={"c": (1,)}), SchemaMismatchError, r"begins with \(20,\)"),
        ({"u": (5, 20, 8)}, Grid(2, of={"dimension": ()}), SchemaMismatchError, "no 'dimension'"),
    ],
)
def test_grids_that_no_file_has(tmp_path, shapes, grid, error, said):
    with grid_of(tmp_path, shapes, grid) as reader, pytest.raises(error, match=said) as found:
        reader.read(list(shapes)[-1:])
    assert isinstance(found.value, RayH5Error)


def test_single_values_are_constants(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = np.arange(2 * 3 * 4, dtype="f4").reshape(2, 3, 4)
        file["scalars/nu"], file["scalars/name"] = 0.5, "flow"
    path = str(tmp_path / "a.h5")
    for options in ({}, {"windows": Windows({"u": [0, 1]})}):
        for rows in (Grid(2), Grid(2, of={"scalars/nu": ()})):
            dataset = H5Dataset(path, rows=rows, **options)
            assert {"scalars/nu", "scalars/name"} < {*dataset.columns}
            assert all(sample["scalars/nu"].item() == 0.5 and sample["scalars/name"] == "flow" for sample in dataset)
    chosen = H5Dataset(path, ["u", "scalars/nu"], rows=Grid(2), predicate=where(**{"scalars/nu": 0.5}))
    assert len(chosen) == 6
    with pytest.raises(UnsupportedColumnError, match="has a single value"):
        H5Dataset(path, rows=Grid(2), windows=Windows({"scalars/nu": [0]}))


def test_the_columns_that_are_asked_for_say_what_rows_are(tmp_path):
    shapes = {
        "x": (4, 5, 3), "t": (5,), "mean": (4, 5), "y": (7, 8, 2), "other/y": (7, 8), "z": (3, 3, 3, 3), "time": (3, 4)
    }  # fmt: skip
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, shape in shapes.items():
            file[name] = np.arange(math.prod(shape), dtype="f4").reshape(shape)
        x, y = file["x"][()], file["y"][()]
    path = str(tmp_path / "a.h5")
    for index_dir in (None, tmp_path, tmp_path):
        found = H5Dataset(path, ["x", "t"], rows=Grid(2), index_dir=index_dir)
        assert np.array_equal(np.stack([each.x for each in found]), x.reshape(-1, 3))
        assert [each.t for each in found] == [*range(5)] * 4
        found = H5Dataset(path, ["y"], rows=Grid(2), index_dir=index_dir)
        assert np.array_equal(np.stack([each.y for each in found]), y.reshape(-1, 2))
    windowed = H5Dataset(path, ["now", "mean"], rows=Grid(2), windows=Windows({"now": ("x", [0])}))
    assert np.array_equal(np.stack([each.now[0] for each in windowed]), x.reshape(-1, 3))
    assert [each.mean for each in windowed] == [*range(20)]
    assert len(H5Dataset(path, ["x"], rows=Grid(2), predicate=where(mean=between(7, None)))) == 13
    with pytest.raises(SchemaMismatchError, match=r"'x' has shape .*'y' has .* columns="):
        H5Dataset(path, ["x", "y"], rows=Grid(2))
    # A name alone does not change what rows are where all columns agree.
    save(path, {"u": np.zeros((4, 20, 8)), "same": np.zeros((20, 8))})
    assert len(H5Dataset(path, ["same"], rows=Grid(2))) == 80


def test_columns_that_are_in_no_file_may_be_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = np.arange(60.0).reshape(4, 3, 5)
        file.attrs["site"] = "north"
    (tmp_path / "t.csv").write_text("row,diagnosis\n" + "".join(f"{i},{i * 2}\n" for i in range(12)))
    options = {"rows": Grid(2), "attrs": ["site"], "sidecar": Sidecar(tmp_path / "t.csv", on="row")}
    found = H5Dataset(tmp_path / "a.h5", ["u", "site", "diagnosis"], **options)
    assert [(each.site, each.diagnosis.item()) for each in found] == [("north", i * 2) for i in range(12)]
    windows = Windows({"u": [0, 1]})
    found = H5Dataset(tmp_path / "a.h5", ["u", "u_is_pad", "diagnosis"], windows=windows, **options)
    assert [each.u_is_pad.tolist() for each in found] == [[False, i % 3 == 2] for i in range(12)]
    assert [each.diagnosis for each in found] == [i * 2 for i in range(12)]
    with pytest.raises(UnknownColumnError, match="no 'v' below"):
        H5Dataset(tmp_path / "a.h5", ["u", "v"], **options)
    with pytest.raises(UnknownColumnError, match="no 'v' below"):
        H5Dataset(tmp_path / "a.h5", ["u"], rows=Grid(2, of={"v": ()}))


def test_a_dataset_with_the_name_of_an_axis(tmp_path):
    save(tmp_path / "a.h5", {"u": np.zeros((4, 3, 5)), "axis_0": np.full((4, 3), 7)})
    with pytest.raises(OptionError, match="'axis_0' is a column of the file, and one that include_axes=True"):
        H5Dataset(tmp_path / "a.h5", rows=Grid(2, include_axes=True))
    assert H5Dataset(tmp_path / "a.h5", rows=Grid(2))[0].axis_0 == 7
