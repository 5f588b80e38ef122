"""Files that programs write in their own way, and tables and images that everybody has."""

import h5py
import numpy as np
import pandas as pd
import tables

from tests.layouts.kit import Want, as_matlab, layout, numbers, put


@layout("PyTables, with an index")
def pytables(folder):
    class Row(tables.IsDescription):
        energy = tables.Float32Col()
        run = tables.Int32Col()

    with tables.open_file(folder / "a.h5", "w") as file:
        table = file.create_table("/events", "muons", Row, createparents=True)
        for i in range(20):
            table.row["energy"], table.row["run"] = i, 7
            table.row.append()
        table.flush()
        table.cols.run.create_index()
    return Want(20, {"events/muons": (3, np.array((3, 7), [("energy", "f4"), ("run", "i4")]))})


@layout("pandas, fixed")
def pandas_fixed(folder):
    pd.DataFrame({"a": numbers(7), "b": np.arange(7)}).to_hdf(folder / "a.h5", key="df")
    return Want(7, {"df/a": (3, np.float32(3)), "df/b": (3, 3)})


@layout("pandas, table, with an index")
def pandas_table(folder):
    frame = pd.DataFrame({"a": numbers(7), "when": pd.date_range("2020-01-01", periods=7)})
    frame.to_hdf(folder / "a.h5", key="df", format="table", data_columns=["a"])
    return Want(7, {"df/a": (3, np.float32(3)), "df/when": (3, frame["when"].values[3])})


@layout("MATLAB v7.3", "refused", "axes='reversed'")
def matlab(folder):
    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        file["X"], file["y"] = numbers(4, 9), numbers(1, 9)
        file["#refs#/a"] = numbers(1, 2)
        cells = file.create_dataset("names", (1, 2), h5py.ref_dtype)
        cells[0] = [file["#refs#/a"].ref] * 2
    as_matlab(folder / "a.mat")
    return Want(9, {"X": (2, numbers(4, 9)[:, 2]), "y": (2, np.float32([2]))})


@layout("rows along the last axis", "refused", "axes='reversed'")
def last_axis(folder):
    put(folder / "a.h5", {"signals": (4, 9), "images": (5, 6, 9), "labels": np.arange(9)})
    return Want(9, {"signals": (2, numbers(4, 9)[:, 2])})


@layout("NYU depth: images and references", "refused", "columns=['depths', 'images']")
def nyu(folder):
    with h5py.File(folder / "nyu.mat", "w", userblock_size=512) as file:
        file["images"], file["depths"] = numbers(5, 3, 8, 6, dtype="u1"), numbers(5, 8, 6)
        file["accelData"] = numbers(4, 5)
        for i in range(5):
            file[f"#refs#/{i}"] = np.zeros((1, 3 + i), "u2")
    as_matlab(folder / "nyu.mat")
    return Want(5, {"images": (2, numbers(5, 3, 8, 6, dtype="u1")[2])})


@layout("SVHN: structs behind references", "warned", "rows=ray_h5.Groups('digitStruct/bbox')")
def digit_struct(folder):
    with h5py.File(folder / "digitStruct.mat", "w", userblock_size=512) as file:
        boxes = file.create_dataset("digitStruct/bbox", (4, 1), h5py.ref_dtype)
        names = file.create_dataset("digitStruct/name", (4, 1), h5py.ref_dtype)
        for i in range(4):
            file[f"#refs#/box{i}/height"], file[f"#refs#/box{i}/label"] = np.array([[1.0 * i]]), np.array([[5.0]])
            file[f"#refs#/name{i}"] = np.array([[ord(each)] for each in f"{i}.png"], "u2")
            boxes[i, 0], names[i, 0] = file[f"#refs#/box{i}"].ref, file[f"#refs#/name{i}"].ref
    as_matlab(folder / "digitStruct.mat")
    return Want(4, {"height": (2, [[2.0]])}, "digitStruct.mat")


@layout("Eiger: frames in several files", "refused")
def eiger(folder):
    with h5py.File(folder / "scan_master.h5", "w") as master:
        for i, n in enumerate((3, 2)):
            put(folder / f"scan_data_{i:06d}.h5", {"entry/data/data": numbers(n, 4, 4, start=i)})
            master[f"entry/data/data_{i:06d}"] = h5py.ExternalLink(f"scan_data_{i:06d}.h5", "/entry/data/data")
        master["entry/instrument/detector/threshold"] = 5000.0
        master["entry/sample/goniometer/omega"] = numbers(5)
    return Want(5, {"entry/data/data": (3, numbers(2, 4, 4, start=1)[0])}, "scan_master.h5")


@layout("Imaris: a pyramid", "refused", said="Choose columns of one length")
def imaris(folder):
    for level, n in enumerate((8, 4)):
        arrays = {"Data": numbers(n, n, n, dtype="u1"), "Histogram": np.zeros(256, "u8")}
        put(folder / "a.ims", arrays, below=f"DataSet/ResolutionLevel {level}/TimePoint 0/Channel 0")
    put(folder / "a.ims", {"DataSetInfo/Log": np.array([b"a"]), "Thumbnail/Data": np.zeros((4, 4), "u1")})
    return Want(8, {"DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data": (3, numbers(8, 8, 8, dtype="u1")[3])})


@layout("BigDataViewer: a pyramid", "refused")
def big_data_viewer(folder):
    for setup in ("s00", "s01"):
        put(folder / "a.h5", {"resolutions": np.ones((2, 3)), "subdivisions": np.ones((2, 3), "i4")}, below=setup)
        for level, n in enumerate((8, 4)):
            put(folder / "a.h5", {f"t00000/{setup}/{level}/cells": numbers(n, n, n, dtype="i2")})
    return Want(8, {"t00000/s00/0/cells": (3, numbers(8, 8, 8, dtype="i2")[3])})


@layout("Keras weights", "refused")
def keras(folder):
    put(folder / "a.weights.h5", {"0": (8, 4), "1": (4,)}, below="layers/dense/vars")
    put(folder / "a.weights.h5", {"0": (4, 2), "1": (2,)}, below="layers/dense_1/vars")


@layout("Keras weights, old", "refused")
def old_keras(folder):
    with h5py.File(folder / "model.h5", "w") as file:
        root = file.create_group("model_weights")
        root.attrs["layer_names"], root.attrs["backend"] = [b"conv1", b"fc"], b"tensorflow"
        for name, shape in (("conv1", (3, 3, 1, 4)), ("fc", (4, 2))):
            layer = root.create_group(name)
            layer.attrs["weight_names"] = [f"{name}/gamma".encode(), f"{name}/beta".encode()]
            layer[f"{name}/gamma"], layer[f"{name}/beta"] = numbers(*shape), numbers(shape[-1])


@layout("fastMRI: a volume a file")
def fastmri(folder):
    for i in range(2):
        volume = {"kspace": numbers(4 + i, 2, 9, 8, start=i).astype("c8"), "reconstruction_rss": (4 + i, 8, 8)}
        put(folder / f"file100000{i}.h5", volume | {"ismrmrd_header": "<xml/>"}, acquisition="CORPD_FBK")
    return Want(9, {"reconstruction_rss": (4, numbers(5, 8, 8)[0])})


@layout("MNIST-like")
def mnist(folder):
    put(folder / "mnist.h5", {"image": numbers(6, 8, 8, dtype="u1"), "label": np.arange(6)})
    return Want(6, {"image": (2, numbers(6, 8, 8, dtype="u1")[2]), "label": (2, 2)})


@layout("splits by name: train_set_x, test_set_x", "refused", "columns=['train_set_x', 'train_set_y']")
def cats(folder):
    for split, n in (("train", 6), ("test", 3)):
        put(folder / "catvnoncat.h5", {f"{split}_set_x": (n, 8, 8, 3), f"{split}_set_y": np.arange(n)})
    put(folder / "catvnoncat.h5", {"list_classes": np.array([b"non-cat", b"cat"])})
    return Want(6, {"train_set_x": (2, numbers(6, 8, 8, 3)[2])})


@layout("CIFAR: splits in groups", "refused")
def cifar(folder):
    for split, n in (("train", 6), ("test", 3)):
        put(folder / "cifar10.h5", {"images": (n, 8, 8, 3), "labels": np.arange(n)}, below=split)
    return Want(6, {"images": (2, numbers(6, 8, 8, 3)[2])})


@layout("ModelNet40")
def modelnet(folder):
    for i in range(2):
        shapes = {"data": numbers(5, 16, 3, start=i), "normal": (5, 16, 3)}
        shapes |= {"faceId": np.zeros((5, 16), int), "label": np.arange(5)[:, None]}
        put(folder / f"ply_data_train{i}.h5", shapes)
    return Want(10, {"data": (5, numbers(5, 16, 3, start=1)[0])})


@layout("features by the number of an image", "warned", "rows=ray_h5.Groups('*'")
def features_of_images(folder):
    put(folder / "trainval36.h5", {str(1000 + 37 * i): numbers(9, 16, start=i) for i in range(40)})
    return Want(40, {"value": (2, numbers(9, 16, start=2))})


@layout("audio by its hash", "refused", "rows=ray_h5.Groups('*'")
def audio(folder):
    put(folder / "audio.h5", {f"{i * 7919:08x}": numbers(30 + i, start=i) for i in range(1, 40)})
    return Want(39, {"value": (0, numbers(36, start=6))})  # sorted as numbers: 0000b99a is first


@layout("a wide table: a column a feature")
def wide_table(folder):
    put(folder / "a.h5", {f"gene_{chr(97 + i % 26)}{i}": numbers(9, start=i) for i in range(300)} | {"target": (9,)})
    return Want(9, {"gene_a0": (3, np.float32(3))})


@layout("songs: a file each", "refused", "rows=ray_h5.Files()")
def songs(folder):
    for i in range(3):
        analysis = {"segments_start": numbers(8 + i, start=i), "bars_start": (3,)}
        put(folder / f"TR{i}.h5", analysis, below="analysis")
        put(folder / f"TR{i}.h5", {"metadata/songs": np.zeros(1, [("tempo", "f4")])})
    return Want(3, {"analysis/segments_start": (1, numbers(9, start=1))})


@layout("fibre: channels over time")
def das(folder):
    put(folder / "a.h5", {"RawData": (20, 8), "RawDataTime": np.arange(20)}, below="Acquisition/Raw[0]")
    return Want(20, {"Acquisition/Raw[0]/RawData": (2, numbers(20, 8)[2])})


@layout("images in groups by class", "warned", "rows=ray_h5.Groups('*/img_*')")
def by_class(folder):
    for kind in ("cat", "dog", "owl"):
        put(folder / "a.h5", {f"img_{i}": numbers(40, 40, 3, start=i) for i in range(5)}, below=kind)
    return Want(15, {"value": (6, numbers(40, 40, 3, start=1))})


@layout("one image")
def one_image(folder):
    put(folder / "a.h5", {"image": (1, 3, 40, 40)})
    return Want(1, {"image": (0, numbers(3, 40, 40))})


@layout("one volume and its label")
def one_volume(folder):
    put(folder / "a.h5", {"ct": (1, 12, 40, 40), "label": np.zeros(1, int)})
    return Want(1, {"ct": (0, numbers(12, 40, 40))})


@layout("plates, wells and fields of a microscope", "refused", "rows=ray_h5.Groups('plate1/*/f*')")
def plates(folder):
    for well in ("A01", "A02", "B01", "B02"):
        for i in range(2):
            field = {"image": numbers(5, 16, 16, start=i), "mask": np.zeros((16, 16), "u1")}
            put(folder / "a.h5", field, below=f"plate1/{well}/f{i}")
    return Want(8, {"image": (1, numbers(5, 16, 16, start=1))})
