"""axes="reversed": rows along the last axis, as MATLAB and loom write them."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.errors import OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.torch_data import Groups, H5Dataset, Windows, part, where
from tests.properties import few

ROWS = 12


@pytest.fixture
def matlab(tmp_path):
    """A file as MATLAB 7.3 writes it, and the arrays that MATLAB has: their axes are reversed in the file."""
    rng = np.random.default_rng(0)
    names = ["ab  ", "cde ", "f   ", "éß漢 "] * 3
    arrays = {
        "signal": rng.standard_normal((ROWS, 5, 3)),
        "label": np.arange(ROWS, dtype="f8")[:, None],
        "flag": (np.arange(ROWS) % 2).astype("u1")[:, None],
        "wave": rng.standard_normal((ROWS, 4)) + 1j * rng.standard_normal((ROWS, 4)),
        "name": np.array([[ord(each) for each in name] for name in names], "u2"),
    }
    classes = {"signal": "double", "label": "double", "flag": "logical", "wave": "double", "name": "char"}
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            stored = array.T
            if array.dtype.kind == "c":
                pairs = np.zeros(stored.shape, [("real", "f8"), ("imag", "f8")])
                pairs["real"], pairs["imag"] = stored.real, stored.imag
                stored = pairs
            options = (
                {"chunks": tuple(min(n, 2) for n in stored.shape), "compression": "gzip"} if name == "signal" else {}
            )
            file.create_dataset(name, data=stored, **options)
            file[name].attrs["MATLAB_class"] = np.bytes_(classes[name])
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\x02IM")
    return str(path), arrays, names


OPTIONS = {"axes": "reversed", "file_extensions": ["mat"]}


@pytest.mark.parametrize("dtype", ["u1", ">i2", "f8"])
@pytest.mark.parametrize("apart", [1, 3, 40, 3000])
def test_rows_that_are_close_or_far_apart(tmp_path, dtype, apart):
    values = np.random.default_rng(0).integers(0, 100, (3, 2, 9000)).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = values, values[0]
    rows = H5Dataset(tmp_path / "a.h5", axes="reversed", kept_bytes=0)
    wanted = np.array([*range(7, 9000, apart)])[:70][::-1]
    wanted = np.concatenate([wanted, [7, 7, 8999, 11, 12, 13]])
    found = rows.read(wanted)
    assert np.array_equal(found["x"], values.T[wanted])
    assert np.array_equal(found["y"], values[0].T[wanted])


def test_an_empty_array_of_matlab_is_no_column(tmp_path, caplog):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["x"] = np.arange(6.0).reshape(3, 2)
        file["empty"] = np.array([0, 2], "u8")  # its shape, as MATLAB writes it
        file["empty"].attrs.update({"MATLAB_class": np.bytes_("double"), "MATLAB_empty": np.uint8(1)})
    rows = H5Dataset(tmp_path / "a.mat", axes="reversed")
    assert [*rows.columns] == ["x"]
    assert "empty (is an empty array of MATLAB" in caplog.text
    with pytest.raises(UnsupportedColumnError, match="column 'empty' is an empty array of MATLAB"):
        H5Dataset(tmp_path / "a.mat", ["empty"], axes="reversed")


def test_rows_are_those_of_matlab(matlab):
    path, arrays, names = matlab
    samples = H5Dataset(path, **OPTIONS)
    found = samples.read(np.arange(ROWS))
    assert np.array_equal(found["signal"], arrays["signal"])
    assert np.array_equal(found["label"], arrays["label"][:, 0])  # a vector
    assert found["flag"].tolist() == [i % 2 == 1 for i in range(ROWS)]
    assert np.array_equal(found["wave"], arrays["wave"])
    assert [samples[i]["name"] for i in range(ROWS)] == names
    some = np.array([7, 3, 3, 11])
    assert np.array_equal(samples.read(some)["signal"], arrays["signal"][some])


def test_without_it_the_error_says_so(matlab):
    with pytest.raises(SchemaMismatchError, match=r"axes='reversed'"):
        H5Dataset(matlab[0], file_extensions=["mat"])


def test_cells_of_loom(tmp_path):
    rng = np.random.default_rng(0)
    matrix = rng.random((30, 20)).astype("f4")
    with h5py.File(tmp_path / "a.loom", "w") as file:
        file.create_dataset("matrix", data=matrix, chunks=(8, 8), compression="gzip", maxshape=(30, None))
        file["layers/spliced"] = matrix * 2
        file["row_attrs/Gene"] = np.array([f"g{i}".encode() for i in range(30)])
        file["col_attrs/CellID"] = np.array([f"c{i}".encode() for i in range(20)])
        file["col_attrs/Clusters"] = np.arange(20) % 3
        file.create_group("row_graphs")
        file.create_group("col_graphs")
    samples = H5Dataset(str(tmp_path / "a.loom"), axes="reversed")
    assert sorted(samples.columns) == ["col_attrs/CellID", "col_attrs/Clusters", "layers/spliced", "matrix"]
    found = samples.read(np.array([19, 0, 7]))
    assert np.array_equal(found["matrix"], matrix.T[[19, 0, 7]])
    assert np.array_equal(found["layers/spliced"], 2 * matrix.T[[19, 0, 7]])
    chosen = H5Dataset(str(tmp_path / "a.loom"), ["matrix"], where(**{"col_attrs/Clusters": 1}), axes="reversed")
    assert np.array_equal(chosen.read(np.arange(len(chosen)))["matrix"], matrix.T[1::3])


@few(20)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    rows=st.integers(1, 40),
    chunked=st.booleans(),
    data=st.data(),
)
def test_rows_are_those_of_h5py(tmp_path_factory, shape, rows, chunked, data):
    path = str(tmp_path_factory.mktemp("reversed") / "a.h5")
    whole = np.arange(np.prod(shape) * rows, dtype="i4").reshape(*shape, rows)
    with h5py.File(path, "w") as file:
        chunks = tuple(data.draw(st.integers(1, n)) for n in whole.shape) if chunked else None
        file.create_dataset("x", data=whole, chunks=chunks)
    wanted = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=20)), np.int64)
    samples = H5Dataset(path, axes="reversed")
    assert len(samples) == rows
    assert np.array_equal(samples.read(wanted)["x"], whole.T[wanted])


def test_what_cannot_be_used(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", (2, 3), h5py.vlen_dtype("i4"))
        file["x"] = np.zeros((2, 3))
    path = str(tmp_path / "a.h5")
    with pytest.raises(UnsupportedColumnError, match="'v' has values of varying length"):
        H5Dataset(path, ["v"], axes="reversed")
    with pytest.raises(OptionError, match="axes='back'"):
        H5Dataset(path, axes="back")
    with pytest.raises(OptionError, match=r"rows lie along the last axis; leave it out, or decode_cf=True"):
        H5Dataset(path, axes="reversed", decode_cf=True)


def test_reversed_axes_are_not_advised_where_they_are_passed(matlab):
    path, arrays, _ = matlab
    with h5py.File(path, "r+") as file:
        file["other"] = np.zeros((2, ROWS + 1))
    with pytest.raises(SchemaMismatchError, match=f"{ROWS + 1} rows: columns=\\['other'\\]") as caught:
        H5Dataset(path, axes="reversed", file_extensions=["mat"])
    assert "axes=" not in str(caught.value)
    assert f"columns={sorted(arrays)!r}" in str(caught.value)  # it is tried with reversed axes


def structs(path, lengths, rng):
    """Write a struct for each trial, as MATLAB does, and return what MATLAB has in each."""
    trials = []
    with h5py.File(path, "w") as file:
        for i, n in enumerate(lengths):
            trial = {
                "signal": rng.standard_normal((n, 3)),
                "video": rng.integers(0, 99, (n, 2, 1 + i % 2)).astype("u1"),
                "pressed": rng.integers(0, 2, (n, 1)).astype(bool),
                "wave": rng.standard_normal((n, 1)) + 1j * rng.standard_normal((n, 1)),
                "gain": np.full((1, 1), float(i)),
                "side": ["left", "right", "é"][i % 3],
                "notes": [f"{k:03d}" for k in range(n)],
            }
            for name, values in trial.items():
                lines = [values] if isinstance(values, str) else values if isinstance(values, list) else None
                kind = "char" if lines else {"b": "logical"}.get(values.dtype.kind, "double")
                stored = (np.array([[*map(ord, line)] for line in lines], "u2") if lines else values).T
                if name == "wave":
                    pairs = np.zeros(stored.shape, [("real", "f8"), ("imag", "f8")])
                    pairs["real"], pairs["imag"] = stored.real, stored.imag
                    stored = pairs
                dataset = file.create_dataset(
                    f"trial_{i}/{name}", data=stored.astype("u1") if kind == "logical" else stored
                )
                dataset.attrs["MATLAB_class"] = np.bytes_(kind)
            trials.append({name: of_matlab(values) for name, values in trial.items()})
    return trials


def of_matlab(values):
    """Return a value of MATLAB: vectors have one axis, and text is one."""
    if not hasattr(values, "shape"):
        return values
    values = np.asarray(values)
    return (values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values).tolist()


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@few(2)
@given(st.lists(st.integers(2, 5), min_size=2, max_size=4), st.integers(0, 99), st.booleans())
def test_groups_are_structs_of_matlab(tmp_path_factory, lengths, seed, is_planned):
    path = tmp_path_factory.mktemp("structs") / "a.mat"
    trials = structs(path, lengths, np.random.default_rng(seed))
    names = ["signal", "video", "pressed", "wave", "gain", "side", "notes"]
    options = {"rows": Groups("trial_*"), "axes": "reversed", "index_dir": path.parent / "index"}
    columns = names if is_planned else None
    whole = H5Dataset(path, columns, **options)
    assert {*whole.columns} == {*names}
    for row, trial in zip(whole, trials, strict=True):
        assert {name: plain(row[name]) for name in names} == trial
    chosen = H5Dataset(path, ["signal", "side"], where(gain=1.0), **options)
    assert [plain(row["side"]) for row in chosen] == [trial["side"] for trial in trials if trial["gain"] == [1.0]]
    parts = {"x": part("signal", {1: [2, 0]}), "y": "pressed"}
    for row, trial in zip(H5Dataset(path, parts, **options), trials, strict=True):
        assert (plain(row["x"]), plain(row["y"])) == ([[r[2], r[0]] for r in trial["signal"]], trial["pressed"])
    # Steps of trials are rows of MATLAB, and what has one value is a constant of its trial.
    windows = Windows(
        {"signal": [-1, 0, 1], "notes": [0]}, pad="edge", constants=["gain"], per_step=["video", "pressed"]
    )
    steps = [*H5Dataset(path, ["signal", "notes", "pressed", "video", "gain", "side"], windows=windows, **options)]
    at = iter(steps)
    for trial, n in zip(trials, lengths, strict=True):
        for t in range(n):
            row, near = next(at), [min(max(t + k, 0), n - 1) for k in (-1, 0, 1)]
            assert plain(row["signal"]) == [trial["signal"][k] for k in near]
            assert plain(row["notes"]) == [trial["notes"][t]]
            assert plain(row["pressed"]) == trial["pressed"][t]
            assert plain(row["video"]) == trial["video"][t]
            assert (plain(row["gain"]), row["side"]) == (trial["gain"], trial["side"])
    assert len(steps) == sum(lengths)


def test_groups_of_matlab_that_lack_a_field_or_differ(tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        for i in range(3):
            file[f"t{i}/x"] = np.arange(6.0).reshape(2, 3) + i
            file[f"t{i}/kind"] = np.array([[104], [105]], "u2")
            file[f"t{i}/kind"].attrs["MATLAB_class"] = np.bytes_("char" if i else "uint16")
            cells = file.create_dataset(f"t{i}/cells", (2, 1), h5py.ref_dtype)
            cells[:] = file[f"t{i}/x"].ref
        del file["t1/x"]
    rows = H5Dataset(tmp_path / "a.mat", ["x"], rows=Groups("t*", missing="null"), axes="reversed")
    expected = np.arange(6.0).reshape(2, 3).T
    assert [None if row["x"] is None else row["x"].tolist() for row in rows] == [
        expected.tolist(),
        None,
        (expected + 2).tolist(),
    ]
    options = {"rows": Groups("t*", missing="null"), "axes": "reversed"}
    with pytest.raises(
        SchemaMismatchError, match="MATLAB says number values in 't0/kind', and string values in 't1/kind'"
    ):
        H5Dataset(tmp_path / "a.mat", ["kind"], **options)
    with pytest.raises(UnsupportedColumnError, match="'cells' has references in each group"):
        H5Dataset(tmp_path / "a.mat", ["cells"], **options)


def test_empty_arrays_of_matlab_in_groups(tmp_path):
    """A trial without events has an empty array, of which the file holds the shape; it is the first one, too."""
    with h5py.File(tmp_path / "a.mat", "w") as file:
        for i in range(4):
            trial = {"times": np.arange(2.0 + i)[None], "xy": np.arange(6.0).reshape(2, 3) + i, "note": [[104], [105]]}
            for name, stored in trial.items():
                none = i in {"times": {0, 2}, "xy": {3}, "note": {1}}[name]
                values = np.array([0, 0], "u8") if none else np.array(stored, "u2" if name == "note" else "f8")
                attributes = file.create_dataset(f"t{i}/{name}", data=values).attrs
                attributes["MATLAB_class"] = np.bytes_("char" if name == "note" else "double")
                if none:
                    attributes["MATLAB_empty"] = np.uint8(1)
    options = {"rows": Groups("t*"), "axes": "reversed"}
    xy = np.arange(6.0).reshape(2, 3).T
    for _ in range(2):
        found = [
            {name: plain(value) for name, value in row.items()} for row in H5Dataset(tmp_path / "a.mat", **options)
        ]
        assert [row["times"] for row in found] == [[], [0, 1, 2], [], [0, 1, 2, 3, 4]]
        assert [row["xy"] for row in found] == [(xy + i).tolist() for i in range(3)] + [[]]
        assert [row["note"] for row in found] == ["hi", None, "hi", "hi"]
    windows = Windows({"xy": [0, 1]}, pad="drop", constants=["note"])
    steps = H5Dataset(tmp_path / "a.mat", ["xy", "note"], windows=windows, **options)
    assert [row["xy"][0].tolist() for row in steps] == [(xy + i)[k].tolist() for i in range(3) for k in range(2)]
