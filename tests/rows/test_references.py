"""Datasets of references, as MATLAB's cell arrays and NWB's tables: rows are what they refer to."""

import logging
import pickle

import h5py
import numpy as np
import pytest

from ray_h5.cli import main
from ray_h5.columns.ragged import range_columns
from ray_h5.errors import CorruptFileError, RayH5Error, UnsupportedColumnError
from ray_h5.hdf5.groups import references
from ray_h5.torch_data import Groups, H5Dataset, Shuffle, Windows, loader, ragged, where


def matlab(path, cells, **plain):
    """Write cell arrays as MATLAB 7.3 does: what they hold is in ``#refs#``, with its axes in reverse."""
    with h5py.File(path, "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        empty = refs.create_dataset("a", data=np.zeros(2, np.uint64))
        empty.attrs["MATLAB_class"], empty.attrs["MATLAB_empty"] = np.bytes_("canonical empty"), np.uint8(1)
        for name, values in cells.items():
            cell = file.create_dataset(name, (len(values), 1), h5py.ref_dtype)
            cell.attrs["MATLAB_class"] = np.bytes_("cell")
            for row, value in enumerate(values):
                cell[row, 0] = empty.ref if value is None else _cell(refs, value).ref
        for name, values in plain.items():
            file.create_dataset(name, data=values).attrs["MATLAB_class"] = np.bytes_("double")
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\x02IM")
    return path


def _cell(refs, value):
    name = f"x{len(refs)}"
    if isinstance(value, str):
        found = refs.create_dataset(name, data=np.frombuffer(value.encode("utf-16-le"), "<u2")[:, None])
        found.attrs["MATLAB_class"], found.attrs["MATLAB_int_decode"] = np.bytes_("char"), np.int32(2)
        return found
    if isinstance(value, dict):
        found = refs.create_group(name)
        for field, values in value.items():
            found.create_dataset(field, data=values.T).attrs["MATLAB_class"] = np.bytes_("double")
        found.attrs["MATLAB_class"] = np.bytes_("struct")
        return found
    chunks = {"chunks": True, "compression": "gzip"} if value.size > 40 else {}
    found = refs.create_dataset(name, data=value.T, **chunks)
    found.attrs["MATLAB_class"] = np.bytes_("double")
    return found


@pytest.fixture
def trials(tmp_path):
    rng = np.random.default_rng(0)
    cells = {
        "spikes": [rng.random((1, n)) for n in (3, 1, 50, 4, 2, 7)],
        "frames": [rng.random((4, 3)) for _ in range(6)],
        "of_shapes": [rng.random((n, n + 1)) for n in (3, 1, 9, 4, 2, 7)],
        "words": ["go", "", "nö 𝄞", "a", "bc", "go"],
        "some": [rng.random((1, 2)), None, rng.random((1, 3)), None, None, rng.random((1, 1))],
    }
    cells["words"][1] = None
    matlab(tmp_path / "session.mat", cells, x=np.arange(6.0)[:, None])
    return tmp_path / "session.mat", cells


def test_cells_are_rows(trials):
    path, cells = trials
    dataset = H5Dataset(path)
    assert sorted(dataset.columns) == ["frames", "of_shapes", "some", "spikes", "words", "x"]
    for row in range(6):
        found = dataset[row]
        for name in ("spikes", "frames", "of_shapes"):
            np.testing.assert_array_equal(found[name].numpy(), cells[name][row].T)
        assert found["words"] == (cells["words"][row] or "")
        expected = np.empty((0, 1)) if cells["some"][row] is None else cells["some"][row].T
        np.testing.assert_array_equal(found["some"].numpy(), expected)
    assert dataset[[0, 5]]["frames"].shape == (2, 3, 4)
    turned = H5Dataset(path, ["spikes", "frames", "of_shapes"], axes="reversed")
    for row in range(6):
        for name in ("spikes", "frames", "of_shapes"):
            np.testing.assert_array_equal(turned[row][name].numpy(), cells[name][row])


def test_cells_under_predicates_shuffles_and_windows(trials):
    path, cells = trials
    chosen = H5Dataset(path, ["spikes", "words", "x"], where(words=["go", "a"]))
    assert [each["words"] for each in (chosen[0], chosen[1], chosen[2])] == ["go", "a", "go"]
    np.testing.assert_array_equal(chosen[1]["spikes"].numpy(), cells["spikes"][3].T)
    batches = loader(H5Dataset(path, ["frames", "x"]), 4, shuffle=Shuffle(seed=3))
    for batch in batches:
        for frame, x in zip(batch["frames"].numpy(), batch["x"].numpy(), strict=True):
            np.testing.assert_array_equal(frame, cells["frames"][int(x[0])].T)
    windows = H5Dataset(path, ["frames"], windows=Windows({"frames": [-1, 0]}))
    expected = np.stack([cells["frames"][1].T, cells["frames"][2].T])
    np.testing.assert_array_equal(windows[2]["frames"].numpy(), expected)
    padded = loader(H5Dataset(path, ["spikes"]), 6, shuffle=False, pad={"spikes": 50})
    np.testing.assert_array_equal(next(iter(padded))["spikes"][1, :1].numpy(), cells["spikes"][1].T)


def test_a_row_of_texts_looks_at_no_other_cell(tmp_path, monkeypatch):
    matlab(tmp_path / "a.mat", {"names": [f"text {number}" for number in range(50)]})
    rows, looked_at = H5Dataset(tmp_path / "a.mat", ["names"], kept_bytes=0), []
    assert rows[3] == {"names": "text 3"}
    for name in ("common_shape", "array_of_ragged_rows"):  # of all rows
        monkeypatch.setattr(range_columns, name, lambda *_, name=name: looked_at.append(name))
    assert [rows[at]["names"] for at in (7, 8, 49)] == ["text 7", "text 8", "text 49"]
    assert not looked_at


def test_structs_are_rows_that_are_groups(tmp_path):
    rng = np.random.default_rng(1)
    structs = [{"pose": rng.random((7, n)), "gain": rng.random((1, 1))} for n in (3, 5, 2)]
    path = matlab(tmp_path / "s.mat", {"trials": structs})
    dataset = H5Dataset(path, rows=Groups("trials"))
    assert len(dataset) == 3
    for row, each in enumerate(structs):
        np.testing.assert_array_equal(dataset[row]["pose"].numpy(), each["pose"].T)
    steps = H5Dataset(path, ["pose"], rows=Groups("trials"), windows=Windows({"pose": [0, 1]}, pad="drop"))
    assert len(steps) == 7
    np.testing.assert_array_equal(steps[2]["pose"].numpy(), structs[1]["pose"].T[:2])
    with pytest.raises(UnsupportedColumnError, match=r"lead to groups.*Groups\('trials'\)"):
        H5Dataset(path, ["trials"])


def boxes(path, rows):
    """Write a struct of MATLAB as SVHN has it: a group a row, with one number, or references to several numbers."""
    with h5py.File(path, "w") as file:
        bbox = file.create_dataset("digitStruct/bbox", (len(rows), 1), h5py.ref_dtype)
        for row, of_row in enumerate(rows):
            group = file.create_group(f"#refs#/box{row}")
            bbox[row, 0] = group.ref
            for name, values in of_row.items():
                if len(values) == 1:
                    group[name] = np.array([values])
                    continue
                several = group.create_dataset(name, (len(values), 1), h5py.ref_dtype)
                for at, value in enumerate(values):
                    number = file.create_dataset(f"#refs#/{name}_{row}_{at}", data=np.array([[value]]))
                    several[at, 0] = number.ref
    return path


BOXES = Groups("digitStruct/bbox")


def labels_of(rows, columns=("label", "top")):
    return [{name: row[name].tolist() for name in columns} for row in rows]


@pytest.mark.parametrize("first", [[5.0], [7.0, 8.0], []])
def test_references_in_groups_that_references_lead_to(tmp_path, first):
    digits = [first, [2.0, 3.0], [1.0, 9.0, 2.0], [4.0]]
    path = boxes(tmp_path / "digits.mat", [{"label": row, "top": row[::-1], "id": [1.0]} for row in digits])
    expected = [{"label": [[n] for n in row], "top": [[n] for n in row[::-1]]} for row in digits]
    rows = H5Dataset(path, rows=BOXES)
    assert sorted(rows.columns) == ["id", "label", "top"]
    assert labels_of(rows) == labels_of(H5Dataset(path, ["top", "label"], rows=BOXES)) == expected
    assert labels_of([rows[3], rows[1]], ["label"]) == [{"label": expected[at]["label"]} for at in (3, 1)]
    again = pickle.loads(pickle.dumps(rows))
    assert labels_of(again) == expected
    batch = next(iter(loader(H5Dataset(path, ["label"], rows=BOXES), 4, shuffle=False, pad={"label": 3})))
    assert batch["label"][2].tolist() == expected[2]["label"]
    steps = H5Dataset(path, ["label"], rows=BOXES, windows=Windows({"label": [0]}))
    assert [step["label"].item() for step in steps] == [n for row in digits for n in row]


def test_references_in_groups_are_followed_once_a_file(tmp_path, monkeypatch):
    path = boxes(tmp_path / "digits.mat", [{"label": [1.0] * (1 + row % 3)} for row in range(30)])
    walks, named = [], references.hard_links
    monkeypatch.setattr(references, "hard_links", lambda *given: walks.append(given) or named(*given))
    rows = H5Dataset(path, ["label"], rows=BOXES)
    assert [len(row["label"]) for row in rows] == [1, 2, 3] * 10
    assert len(walks) == 3  # of the rows, twice, and of the numbers


def test_bad_references_in_groups_name_column_and_group(tmp_path):
    path = boxes(tmp_path / "bad.mat", [{"label": [1.0, 2.0]}, {"label": [3.0]}])
    with h5py.File(path, "r+") as file:
        for name, (target, shape) in {
            "null": (None, (2, 1)),
            "nested": (file["#refs#/box0/label"], (2, 1)),
            "grouped": (file["#refs#/box1"], (2, 1)),
            "arrays": (file.create_dataset("#refs#/long", data=np.zeros((3, 1))), (2, 1)),
            "table": (file["#refs#/label_0_0"], (2, 2)),
            "texts": (file.create_dataset("#refs#/word", data=np.zeros((1, 1), "<u2")), (2, 1)),
            "mixed": (file.create_dataset("#refs#/number", data=np.zeros((1, 1), "i2")), (2, 1)),
        }.items():
            several = file["#refs#/box0"].create_dataset(name, shape, h5py.ref_dtype)
            if target is not None:
                several[...] = np.full(shape, target.ref, h5py.ref_dtype)
            file["#refs#/box1"][name] = np.array([[1.0]])
        file["#refs#/word"].attrs["MATLAB_class"] = np.bytes_("char")
        file["#refs#/box0"].create_dataset("lacking", (1, 1), h5py.ref_dtype)[0, 0] = file["#refs#/label_0_0"].ref
    for name, why in {
        "null": "lead nowhere",
        "nested": "references itself",
        "grouped": "is a group; expected a single value",
        "arrays": r"shape \(3, 1\).*single value",
        "table": "along one axis",
        "texts": "char",
        "mixed": "int16",
        "lacking": "box1' lacks",
    }.items():
        with pytest.raises(RayH5Error, match=why) as error:
            H5Dataset(path, [name], rows=BOXES)
        assert name in str(error.value)
    kept = H5Dataset(path, ["lacking"], rows=Groups("digitStruct/bbox", missing="null"))
    assert [kept[0]["lacking"].tolist(), kept[1]["lacking"]] == [[[1.0]], None]


def test_targets_of_matlab_are_listed_nowhere(trials, caplog, capsys):
    path, _ = trials
    assert main(["inspect", str(path)]) == 0
    assert "#refs#" not in capsys.readouterr().out
    with caplog.at_level(logging.WARNING), pytest.raises(RayH5Error) as error:
        H5Dataset(path, rows=Groups("nothing_*"))
    assert "#refs#" not in str(error.value) + caplog.text
    with pytest.raises(RayH5Error) as error:
        H5Dataset(path, rows=Groups("*/*"))
    assert "#refs#" not in str(error.value)


def test_what_is_no_column_is_left_out_by_name(tmp_path, caplog):
    path = matlab(tmp_path / "m.mat", {"mixed": [np.zeros((1, 2)), "text"], "good": [np.ones((1, 2)), np.ones((1, 3))]})
    with h5py.File(path, "r+") as file:
        nested = file.create_dataset("nested", (2, 1), h5py.ref_dtype)
        nested[0, 0], nested[1, 0] = file["good"].ref, file["mixed"].ref
        table = file.create_dataset("of_axes", (2, 2), h5py.ref_dtype)
        table[...] = [[file["good"].ref] * 2] * 2
        file.create_dataset("regions", (2,), h5py.regionref_dtype)
    with caplog.at_level(logging.WARNING):
        dataset = H5Dataset(path)
    assert dataset.columns == ["good"]
    for name, why in {
        "mixed": "char",
        "nested": "references itself",
        "of_axes": "along one axis",
        "regions": "region",
    }.items():
        assert name in caplog.text
        with pytest.raises(UnsupportedColumnError, match=why):
            H5Dataset(path, [name])


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_bad_references_name_column_and_row(tmp_path, chunks):
    path = tmp_path / "bad.h5"
    with h5py.File(path, "w") as file:
        good = file.create_dataset("targets/good", data=np.arange(3))
        for name, count in {"null": 3, "circle": 2, "gone": 2, "outer": 2}.items():
            file.create_dataset(name, (count,), h5py.ref_dtype, chunks=chunks)
        gone = file.create_dataset("targets/gone", data=np.arange(3))
        file["null"][0] = file["null"][2] = good.ref
        file["circle"][0], file["circle"][1] = good.ref, file["outer"].ref
        file["outer"][0] = file["outer"][1] = file["circle"].ref
        file["gone"][0], file["gone"][1] = good.ref, gone.ref
        del file["targets/gone"]
    for name, row in {"null": "row 1: a null reference", "gone": "row 1.*address"}.items():
        with pytest.raises(CorruptFileError, match=f"'{name}', {row}"):
            H5Dataset(path, [name])
    with pytest.raises(UnsupportedColumnError, match=r"'circle', row 1.*has references itself"):
        H5Dataset(path, ["circle"])
    with pytest.raises(CorruptFileError, match="column"):
        H5Dataset(path)
    with pytest.raises(CorruptFileError, match="'null', row 1"):
        H5Dataset(path, group="/", rows=Groups("null"))


def test_references_outside_of_the_group_and_the_file(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["elsewhere"] = np.arange(3)
        refs = file.create_dataset("inner/refs", (1,), h5py.ref_dtype)
        refs[0] = file["elsewhere"].ref
    np.testing.assert_array_equal(H5Dataset(path, ["refs"], group="inner")[0]["refs"].numpy(), np.arange(3))
    np.testing.assert_array_equal(H5Dataset(path, ["inner/refs"])[0]["inner/refs"].numpy(), np.arange(3))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["refs"] = h5py.ExternalLink("a.h5", "/inner/refs")
    with pytest.raises(RayH5Error, match="outside allow_external"):
        H5Dataset(tmp_path / "b.h5", ["refs"])
    with pytest.raises(UnsupportedColumnError, match="another file"):
        H5Dataset(tmp_path / "b.h5", ["refs"], allow_external=tmp_path)


def nwb(path):
    """Write tables as pynwb does: columns of references to groups, regions of a table, and text."""
    with h5py.File(path, "w") as file:
        shank = file.create_group("general/extracellular_ephys/shank0")
        electrodes = file.create_group("general/extracellular_ephys/electrodes")
        electrodes.create_dataset("id", data=np.arange(4), maxshape=(None,))
        electrodes.create_dataset("x", data=np.arange(4.0), maxshape=(None,))
        group = electrodes.create_dataset("group", (4,), h5py.ref_dtype, maxshape=(None,))
        group[:] = [shank.ref] * 4
        trials = file.create_group("intervals/trials")
        trials.create_dataset("id", data=np.arange(3), maxshape=(None,))
        trials.create_dataset("start_time", data=np.arange(3.0), maxshape=(None,))
        series = file.create_group("acquisition/series")
        series.create_dataset("data", data=np.arange(30.0))
        kind = np.dtype([("idx_start", "<i4"), ("count", "<i4"), ("timeseries", h5py.ref_dtype)])
        spans = trials.create_dataset("timeseries", (3,), kind, maxshape=(None,))
        for row in range(3):
            spans[row] = (10 * row, 10, series.ref)
        units = file.create_group("units")
        units.create_dataset("id", data=np.arange(3), maxshape=(None,))
        units.create_dataset("spike_times", data=np.arange(9.0), maxshape=(None,))
        index = units.create_dataset("spike_times_index", data=np.array([2, 5, 9], "u1"), maxshape=(None,))
        index.attrs["target"] = units["spike_times"].ref
        units.create_dataset("electrodes", data=np.array([0, 1, 1, 3]), maxshape=(None,)).attrs["table"] = (
            electrodes.ref
        )
        units.create_dataset("electrodes_index", data=np.array([1, 2, 4], "u1"), maxshape=(None,))
        waves = units.create_dataset("waveforms", (3,), h5py.ref_dtype, maxshape=(None,))
        for row in range(3):
            waves[row] = file.create_dataset(f"processing/waves/unit{row}", data=np.full((row + 2, 5), row, "f4")).ref
    return path


def test_tables_of_nwb(tmp_path, caplog):
    path = nwb(tmp_path / "session.nwb")
    columns = ["id", ragged("spike_times", ends="spike_times_index"), ragged("electrodes", ends="electrodes_index")]
    units = H5Dataset(path, [*columns, "waveforms"], group="units")
    row = units[2]
    np.testing.assert_array_equal(row["spike_times"].numpy(), np.arange(5.0, 9.0))
    np.testing.assert_array_equal(row["electrodes"].numpy(), [1, 3])
    np.testing.assert_array_equal(row["waveforms"].numpy(), np.full((4, 5), 2, "f4"))
    with caplog.at_level(logging.WARNING):
        trials = H5Dataset(path, group="intervals/trials")
    assert trials.columns == ["id", "start_time", "timeseries"]
    assert "timeseries/timeseries" in caplog.text
    assert trials[2]["timeseries"].tolist() == (20, 10)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        electrodes = H5Dataset(path, group="general/extracellular_ephys/electrodes")
    assert electrodes.columns == ["id", "x"]
    assert "group (its references lead to groups" in caplog.text


def test_windows_of_arrays_that_differ_along_several_axes_are_refused(tmp_path):
    # Padding and Ray would lose all axes but the first.
    with h5py.File(tmp_path / "a.h5", "w") as file:
        cells = file.create_dataset("cells", (3,), h5py.ref_dtype)
        for row in range(3):
            cells[row] = file.create_dataset(f"#refs#/{row}", data=np.full((row + 1, 4 - row), row)).ref
        file["y"] = np.arange(3)
    with pytest.raises(
        UnsupportedColumnError, match=r"'cells' holds arrays that differ along several axes, \(None, None\)"
    ):
        H5Dataset(tmp_path / "a.h5", ["cells", "y"], windows=Windows({"cells": [0, 1]}))
    found = H5Dataset(tmp_path / "a.h5", windows=Windows({"y": [0, 1]}))
    assert [row["cells"].shape for row in found] == [(1, 4), (2, 3), (3, 2)]
