"""What `ray-h5 inspect` says of files as other libraries write them, and how it counts."""

import re

import h5py
import numpy as np
import pytest

import ray_h5
from ray_h5 import Files, Groups, H5Dataset, csr
from ray_h5.cli import main


def shown(capsys, *argv):
    status = main(["inspect", *map(str, argv)])
    return status, capsys.readouterr().out


def test_names_with_commas_between_them_are_told_apart(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"], file["label"] = np.zeros((4, 2)), np.arange(4)
    status, text = shown(capsys, tmp_path / "a.h5", "--columns", "image,label")
    assert status == 1
    assert "'image', 'label'" in text
    assert shown(capsys, tmp_path / "a.h5", "--columns", "image", "label")[0] == 0


def test_a_table_of_pandas_takes_what_it_takes_in_the_file(tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    frame = pandas.DataFrame({"n": np.zeros(5000, "i8"), "when": pandas.to_datetime(np.zeros(5000, "i8"))})
    frame.to_hdf(tmp_path / "a.h5", key="df", format="table", data_columns=True, complib="blosc", complevel=5)
    status, text = shown(capsys, tmp_path / "a.h5")
    assert status == 0
    assert "saves nothing" not in text
    with h5py.File(tmp_path / "a.h5") as file:
        stored = file["df/table"].id.get_storage_size()
    assert stored < 5000 * 8  # less than one of the three fields takes in memory
    taken = re.findall(r"    (?:index|n) .* (\d+) B +40 kB", text)
    assert taken == [str(round(stored / 3))] * 2


def test_columns_beside_a_sparse_matrix_take_what_they_take_in_the_file(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        matrix = file.create_group("matrix")  # as 10x writes it
        matrix["data"], matrix["indices"] = np.ones(9, "i4"), np.arange(9)
        matrix["indptr"], matrix["shape"] = np.minimum(np.arange(3001), 9), np.array([20, 3000])
        barcodes = matrix.create_dataset("barcodes", data=np.array([b"A" * 18] * 3000), compression="gzip")
        stored = barcodes.id.get_storage_size()
    status, text = shown(capsys, tmp_path / "a.h5")
    assert status == 0
    assert "saves nothing" not in text
    assert f"deflate 4        {stored} B " in text


def test_a_sparse_matrix_that_says_its_shape_in_an_attribute_is_one_call(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (20, 30)})
        group["data"], group["indices"] = np.ones(40, "f4"), np.tile([1, 5], 20)
        group["indptr"] = np.arange(0, 41, 2)
    assert "columns=[ray_h5.csr('X')]" in shown(capsys, tmp_path / "a.h5")[1]
    assert len(H5Dataset(tmp_path / "a.h5", [csr("X")])) == 20


def test_attributes_of_several_files_are_compared(tmp_path, capsys):
    for i in range(6):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"] = np.arange(3)
            file.attrs.update({"site": "north", "rate": 500.0 if i == 4 else 250.0, "patient": f"p{i}", "list": [i, i]})
            if i in {1, 2}:
                file.attrs["note"] = "x" * 50
    text = shown(capsys, tmp_path)[1]
    found = text.split("Attributes that differ:\n")[1].split("\nread_h5")[0].splitlines()
    assert sorted(line.strip() for line in found) == [
        f"note: {'x' * 40}... (2 files), none (4 files)",
        "patient: another value in each file, such as p0",
        "rate: 250.0 (5 files), 500.0 (1 file)",
    ]
    assert "Attributes that differ" not in shown(capsys, tmp_path / "1.h5")[1]


def test_recordings_of_other_lengths_are_samples(tmp_path, capsys):
    """The axis of time is not the first one: without advice, channels are rows."""
    for i in range(4):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["eeg"], file.attrs["label"] = np.zeros((8, 500 + 100 * i), "f4"), i % 2
    text = shown(capsys, tmp_path)[1]
    assert (
        "rows differ in shape from file to file. If each file is a sample, write read_h5(paths, rows=ray_h5.Files())"
        in text
    )
    assert "; all have the columns of the first (3 with rows of other shapes), which is shown below" in text
    assert [row["eeg"].shape[1] for row in H5Dataset(tmp_path, rows=Files(), attrs=["label"])] == [500, 600, 700, 800]
    assert "shape from file to file" not in shown(capsys, tmp_path / "1.h5")[1]


def test_attributes_that_can_be_columns_are_named(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs.update(
            {"site": "north", "rate": 250.0, "list": np.arange(3), "CLASS": "GROUP", "_NCProperties": "x"}
        )
        for i in range(4):
            trace = file.create_dataset(f"data/trace_{i}", data=np.zeros((20 + i, 3)))
            trace.attrs.update({"arrival": 1.5, "end": np.array([[7]]), "snr": np.zeros(3), "none": h5py.Empty("f4")})
    text = shown(capsys, tmp_path / "a.h5")[1]
    assert "\n2 attributes with one value, which attrs=[...] makes columns: rate, site\n" in text
    assert "attributes of each, such as arrival, end, are columns with attrs=['arrival'] in Groups(...)" in text
    rows = H5Dataset(tmp_path / "a.h5", rows=Groups("data/*", attrs=["arrival", "end"]), attrs=["rate", "site"])
    assert (rows[3]["arrival"], rows[3]["end"], rows[3]["rate"], rows[3]["site"]) == (1.5, 7, 250, "north")


def write(path, **columns):
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file.update({name: np.asarray(values) for name, values in columns.items()})


IMAGES = np.arange(8) * 10
OF = np.array([3, 7, 0, 0, 5])


@pytest.mark.parametrize("given", ["questions.h5", "features.h5 questions.h5", ""])
def test_a_file_with_the_rows_that_numbers_name_is_joined(tmp_path, capsys, monkeypatch, given):
    write(tmp_path / "questions.h5", image_idx=OF, question=np.arange(5))
    write(tmp_path / "features.h5", features=IMAGES)
    if given:
        write(tmp_path / "unlike.h5", z=np.arange(3))
    monkeypatch.chdir(tmp_path)
    assert joined(capsys, given.split() or [tmp_path])[:]["features"].tolist() == IMAGES[OF].tolist()


def joined(capsys, given):
    """Return the dataset of the call that joins a file, as it is printed."""
    status, text = shown(capsys, *given)
    assert status == 0
    (call,) = re.findall(r"write (read_h5\(.*\)): see docs/tables.md", text)
    return eval(call, {"read_h5": H5Dataset, "paths": list(given), "ray_h5": ray_h5})


def test_a_file_with_the_same_ids_is_joined(tmp_path, capsys):
    folder = tmp_path / "of"
    write(folder / "a.h5", id=[b"x", b"y", b"z"], time=np.arange(3), label=[1, 1, 2])
    write(folder / "b.h5", id=[b"z", b"y", b"w", b"x"], label=[5, 6, 7, 8])
    assert joined(capsys, [folder / "a.h5"])[:]["b/label"].tolist() == [8, 6, 5]
    write(folder / "b.h5", id=[b"z", b"y", b"w"], label=[5, 6, 7])  # x is missing
    assert "Sidecar" not in shown(capsys, folder / "a.h5")[1]


@pytest.mark.parametrize(("folder", "name"), [("x", "run{}_labels.hdf5"), ("labels", "run{}.h5")])
def test_files_of_one_name_are_joined_row_by_row(tmp_path, capsys, folder, name):
    for number in range(3):
        write(tmp_path / "x" / f"run{number}.h5", x=np.arange(4) + 4 * number)
        write(tmp_path / folder / name.format(number), label=np.arange(4) + 100 * number)
    paths = [tmp_path / "x" / f"run{number}.h5" for number in range(3)]
    for given in (paths, paths[1:2] if folder == "x" else paths[:2]):
        found = joined(capsys, given)[:]
        assert found["label"].tolist() == (found["x"] // 4 * 100 + found["x"] % 4).tolist()
    write(tmp_path / folder / name.format(1), label=np.arange(5))  # another number of rows
    assert "Sidecar" not in shown(capsys, *paths)[1]


def test_files_of_one_name_in_each_of_many_folders_are_no_tables(tmp_path, capsys):
    for patient in range(12):
        for number in range(2):
            write(tmp_path / f"patient{patient}" / f"{number}.h5", **{f"x{patient}": np.arange(4)})
    for given in (tmp_path / "patient0", tmp_path / "patient0" / "0.h5"):
        assert "Sidecar" not in shown(capsys, given)[1]


def test_columns_that_files_lack_are_none(tmp_path, capsys):
    for number in range(3):
        write(tmp_path / "of" / f"{number}.h5", x=np.arange(4), **({} if number == 1 else {"second": np.arange(4) * 2}))
    status, text = shown(capsys, tmp_path / "of")
    assert status == 0
    (call,) = re.findall(r"1 of 3 files lack .*: 'second'.*write (read_h5\(.*\)): see docs/files.md", text)
    rows = eval(call, {"read_h5": H5Dataset, "paths": tmp_path / "of"})
    assert [row["second"] for row in rows] == [0, 2, 4, 6, *[None] * 4, 0, 2, 4, 6]


@pytest.mark.parametrize("base", [0, 1])
def test_rows_of_varying_length_of_groups_that_are_alike_follow_each_other(tmp_path, capsys, base):
    # As GEDI writes its beams: where each waveform begins in those of its beam, counted from 1.
    waveforms = []
    for number in range(2):
        columns = {}
        for beam, counts in {"BEAM0000": [3, 2, 4], "BEAM0001": [2, 2], "BEAM0010": [5, 1], "BEAM0101": [4]}.items():
            starts, values = np.cumsum([0, *counts[:-1]]) + base, np.arange(sum(counts)) + 100 * len(waveforms)
            columns[f"{beam}/rx_sample_start_index"], columns[f"{beam}/rx_sample_count"] = starts, counts
            columns[f"{beam}/rxwaveform"], columns[f"{beam}/shot"] = values, np.arange(len(counts)) + len(waveforms)
            waveforms += np.split(values, starts[1:] - base)
        write(tmp_path / "of" / f"{number}.h5", **columns)
    _, text = shown(capsys, tmp_path / "of")
    (call,) = re.findall(r"For the rows of all groups, write (read_h5\(.*?\)): see docs/rows.md", text)
    rows = eval(call, {"read_h5": H5Dataset, "paths": tmp_path / "of", "ray_h5": ray_h5})
    assert [row["rxwaveform"].tolist() for row in rows] == [values.tolist() for values in waveforms]
    assert [row["shot"] for row in rows] == list(range(16))


def test_the_channels_of_volumes_are_no_rows(tmp_path, capsys):
    # As CosmoFlow writes its simulations: four redshifts, and four parameters.
    for number in range(2):
        columns = {"full": np.ones((20, 20, 20, 4), "i2"), "physPar": np.arange(4.0), "unitPar": np.arange(4.0)}
        write(tmp_path / "of" / f"{number}.h5", **columns)
    _, text = shown(capsys, tmp_path / "of")
    assert re.findall(r"write read_h5\(paths, (.*?)\): see", text)[0] == "rows=ray_h5.Files()"


def test_attributes_of_the_group_that_has_a_sample_are_named(tmp_path, capsys):
    # As QuakeFlow writes waveforms: what stations picked is with them, and the event above.
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for event in range(6):
            for station in range(2):
                waveform = file.create_dataset(f"nc{event + 7_000_000}/NC.S{station}.HH", data=np.zeros((3, 40)))
                waveform.attrs["phase_index"] = np.arange(event % 3 + 1)
                waveform.parent.attrs["magnitude"] = event / 2
    _, text = shown(capsys, tmp_path / "a.h5")
    assert "are columns with attrs=['phase_index', '../magnitude'] in Groups(...)" in text
    rows = H5Dataset(tmp_path / "a.h5", rows=Groups("nc*/*", attrs=["phase_index", "../magnitude"]))
    assert [rows[4]["phase_index"].tolist(), rows[4]["../magnitude"]] == [[0, 1, 2], 1.0]
