"""Files as libraries write them, and sets of data that many people have."""

import io

import numpy as np
import pandas as pd
import pytest

from tests.kit.files import save
from tests.layouts.kit import Want, layout, numbers, put


def _jpeg(number):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((6 + number, 8, 3), 20 * number, "u1")).save(made := io.BytesIO(), "JPEG")
    return np.frombuffer(made.getvalue(), "u1")


@layout("ISIC: an image under each name", "refused", "rows=ray_h5.Groups('")
def isic(folder):
    put(folder / "train-image.hdf5", {f"ISIC_{i:07d}": np.void(_jpeg(i).tobytes()) for i in range(5)})
    return Want(5, {"value": (3, _jpeg(3))})


@layout("images under names, as texts of bytes", "refused", "rows=ray_h5.Groups('")
def images_as_bytes(folder):
    save(folder / "a.h5", {f"img_{i:05d}": np.bytes_(b"abc" * (i + 1)) for i in range(3)})
    return Want(3, {"value": (2, "abcabcabc")})


@layout("Federated EMNIST: a client a group", "refused")
def emnist(folder):
    for i, n in enumerate((5, 7, 6)):
        client = {"pixels": numbers(n, 4, 4, start=100 * i), "label": np.arange(n) + 100 * i}
        put(folder / "fed_emnist_train.h5", client, below=f"examples/f{i:04d}_4{i}")
    return Want(18, {"label": (13, 201), "pixels": (13, numbers(6, 4, 4, start=200)[1])})


@layout("robomimic with masks of splits", "refused", "rows=ray_h5.Groups('data/demo_*')")
def masks(folder):
    put(folder / "demos.hdf5", {f"data/demo_{i}/actions": numbers(4 + i, 2, start=i) for i in range(5)})
    put(folder / "demos.hdf5", {"mask/train": ["demo_0", "demo_1", "demo_2"], "mask/valid": ["demo_3", "demo_4"]})
    return Want(5, {"actions": (2, numbers(6, 2, start=2))})


@layout("NWB: units and their spikes", "refused", "ray_h5.ragged('units/spike_times', ends='units/spike_times_index')")
def units(folder):
    spikes = {"id": np.arange(3), "spike_times": (12,), "spike_times_index": np.array([4, 6, 12], "u1")}
    electrodes = {"electrodes": np.arange(3), "electrodes_index": np.array([1, 2, 3], "u1")}
    put(folder / "session.nwb.h5", spikes | electrodes, below="units")
    put(folder / "session.nwb.h5", {"acquisition/speed/data": (40,)})
    return Want(3, {"units/spike_times": (1, numbers(12)[4:6]), "units/electrodes": (2, [2]), "units/id": (2, 2)})


@layout("METR-LA: a frame of sensors, by their numbers")
def metr_la(folder):
    pytest.importorskip("tables")
    speeds = numbers(6, 40, dtype="f8")
    when = pd.date_range("2012-03-01", periods=6, freq="5min")
    frame = pd.DataFrame(speeds, index=when, columns=[str(773869 + i) for i in range(40)])
    frame.to_hdf(folder / "metr-la.h5", key="df")
    return Want(6, {"df/773870": (3, speeds[3, 1])})


@layout("splits by name, with a mean image", "refused", "columns=['train_img', 'train_labels']")
def splits_with_a_mean(folder):
    arrays = {"train_mean": (6, 6)}
    for split, n in (("train", 12), ("val", 4), ("test", 4)):
        arrays |= {f"{split}_img": (n, 6, 6), f"{split}_labels": np.arange(n)}
    put(folder / "data.hdf5", arrays)
    return Want(12, {"train_labels": (7, 7)})


@layout("BraTS: a volume a file, with channels first", "refused", "rows=ray_h5.Files()")
def brats_volumes(folder):
    for i in range(2):
        image = numbers(2, 40, 40, 36, start=i)
        put(folder / f"BraTS{i:03}.h5", {"image": image, "label": np.zeros((40, 40, 36), "u1")})
    return Want(2, {"image": (1, numbers(2, 40, 40, 36, start=1))})


@layout("CT with its spacing: a scan a file", "refused", "rows=ray_h5.Files()")
def spacing(folder):
    for i in range(2):
        put(folder / f"scan{i}.h5", {"ct": (10 + i, 40, 40), "spacing": np.ones(3), "case_id": f"c{i}"})
    return Want(2, {"ct": (1, numbers(11, 40, 40)), "case_id": (1, "c1")})


@layout("splits of data, labels and windows of patients", "refused", "columns=['data/train', 'labels/train']")
def splits_of_groups(folder):
    for split, n in (("train", 12), ("val", 5)):
        windows = np.array([[0, n, 1], [n, n, 2]])
        arrays = {f"data/{split}": (n, 5), f"labels/{split}": (n, 2), f"patient_windows/{split}": windows}
        put(folder / "icu.h5", arrays)
    return Want(12, {"labels/train": (3, numbers(12, 2)[3])})


@layout("MATLAB: labels of shape (rows, 1) with axes as stored")
def labels_with_an_axis(folder):
    put(folder / "a.h5", {"x": (9, 4), "y": np.arange(9).reshape(9, 1)})
    return Want(9, {"y": (3, [3])})


@layout("a subject a file, in a group with its name", "refused", "columns=[ray_h5.joined('S*/eeg', name='eeg'), ")
def subjects(folder):
    for i, n in ((1, 5), (2, 7), (12, 4)):
        put(folder / f"s{i:02}.h5", {"eeg": numbers(n, 4, start=i), "label": np.arange(n)}, below=f"S{i:02}")
    return Want(16, {"eeg": (13, numbers(4, 4, start=12)[1]), "label": (6, 1)})
