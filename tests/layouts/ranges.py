"""Rows that are ranges of datasets, datasets end to end, and files side by side."""

import numpy as np

from tests.layouts.kit import Want, layout, numbers, put


@layout("tokens and offsets", "refused", "columns=[ray_h5.ragged('tokens', offsets='offsets'), 'labels']")
def tokens(folder):
    put(folder / "a.h5", {"tokens": np.arange(100), "offsets": [0, 30, 55, 100], "labels": np.arange(3)})
    return Want(3, {"tokens": (1, np.arange(30, 55)), "labels": (1, 1)})


@layout("graphs end to end", "refused", "ray_h5.ragged('pos', offsets='ptr'), ray_h5.ragged('x', offsets='ptr'), 'y'")
def graphs(folder):
    put(folder / "a.h5", {"x": (100, 7), "pos": (100, 3), "ptr": np.array([0, 30, 55, 100]), "y": (3,)})
    return Want(3, {"x": (1, numbers(100, 7)[30:55]), "y": (1, np.float32(1))})


@layout("boxes of images, pairs", "refused", "ray_h5.ragged('image_bb', bounds='pos_boxes')")
def boxes(folder):
    bounds = np.array([[0, 30], [30, 55], [55, 100]])
    put(folder / "train.hdf5", {"image_features": (100, 8), "image_bb": (100, 4), "pos_boxes": bounds})
    return Want(3, {"image_bb": (1, numbers(100, 4)[30:55])})


@layout("starts and lengths in a group", "refused", "starts='index/start', counts='index/length'), 'label']")
def starts(folder):
    put(folder / "a.h5", {"start": np.array([0, 30, 55]), "length": np.array([30, 25, 45])}, below="index")
    put(folder / "a.h5", {"events/x": (100,), "label": np.arange(3)})
    return Want(3, {"events/x": (1, numbers(100)[30:55]), "label": (1, 1)})


@layout(
    "European XFEL: an index of each source",
    "refused",
    "ray_h5.ragged('INSTRUMENT/DET:xtdf/image/data', starts='INDEX/DET:xtdf/image/first', counts='INDEX/DET:",
)
def xfel(folder):
    counts = np.array([3, 0, 2, 4, 1])
    sources = {"A_XGM:output/data": np.ones(5, int), "DET:xtdf/image": counts}
    for source, count in sources.items():
        index = {"first": np.cumsum(count) - count, "count": count}
        put(folder / "RAW-R0001.h5", index, below=f"INDEX/{source}")
    put(folder / "RAW-R0001.h5", {"INDEX/trainId": np.arange(10000, 10005)})
    data = {"A_XGM:output/data/intensity": (5,), "DET:xtdf/image/data": numbers(10, 4, 4, dtype="u2")}
    put(folder / "RAW-R0001.h5", data, below="INSTRUMENT")
    images = {"INSTRUMENT/DET:xtdf/image/data": (3, numbers(10, 4, 4)[5:9])}
    return Want(5, images | {"INDEX/trainId": (3, np.int64(10003))})


@layout("a world model: lengths and starts of episodes", "refused", "episode_lengths='ep_len')")
def world_model(folder):
    put(folder / "a.h5", {"action": (20, 2), "pixels": (20, 12), "ep_len": [7, 4, 9], "ep_offset": [0, 7, 11]})
    steps = np.r_[0:9, [8] * 7] * 2  # the last one again, to the end of the window
    return Want(20, {"action": (11, numbers(20, 2)[11:12].repeat(16, 0) + steps[:, None])})


@layout("SpliceAI: X0, Y0, X1, Y1", "refused")
def splice_ai(folder):
    for i, n in enumerate((6, 5, 7)):
        put(folder / "a.h5", {f"X{i}": np.full((n, 50, 4), i, "i1"), f"Y{i}": np.zeros((1, n, 30, 3), "i1")})
    return Want(18, {"X": (7, np.full((50, 4), 1, "i1"))})


@layout("d3rlpy: datasets of each episode", "refused")
def d3rlpy(folder):
    for i in range(3):
        episode = {f"observations_{i}": numbers(5 + i, 4, start=i), f"actions_{i}": (5 + i, 2)}
        put(folder / "a.h5", episode | {f"rewards_{i}": (5 + i, 1), f"terminated_{i}": False})
    put(folder / "a.h5", {"total_size": 3, "version": "2.0"})
    return Want(18, {"observations": (5, numbers(4, start=1)), "actions": (5, numbers(2))})


@layout("splits in each class", "refused")
def splits_of_classes(folder):
    for i, name in enumerate(("02691156", "02958343", "03001627")):
        for split, n in (("train", 6), ("val", 3), ("test", 14)):
            put(folder / "shapenet.h5", {f"{name}/{split}": numbers(n + i, 20, 3, start=i)})
    return Want(21, {"train": (6, numbers(20, 3, start=1))})


@layout("Transition1x: splits of molecules", "refused")
def transition1x(folder):
    formulas = ("C2H2N2O", "C2H4O2", "C3H6", "C4H8")
    for split, some in (("data", formulas), ("train", formulas[:2]), ("val", formulas[2:3]), ("test", formulas[3:])):
        for j, formula in enumerate(some):
            for i in range(2):
                reaction = {"atomic_numbers": np.ones(7 + j, int), "positions": numbers(5 + i, 7 + j, 3, start=i)}
                reaction |= {"wB97x_6-31G(d).energy": (5 + i,), "reactant/positions": (1, 7 + j, 3)}
                put(folder / "a.h5", reaction, below=f"{split}/{formula}/rxn{100 * j + i:04d}")
    return Want(4, {"positions": (3, numbers(6, 8, 3, start=1))})


@layout("PCam: images and labels in files of their own", "refused", said="and zip_files=")
def pcam_files(folder):
    put(folder / "split_train_x.h5", {"x": numbers(6, 8, 8, 3, dtype="u1")})
    put(folder / "split_train_y.h5", {"y": np.arange(6).reshape(6, 1, 1, 1)})


@layout("TROPOMI: a leading axis of one", "refused")
def tropomi(folder):
    product = {"methane": (1, 30, 8), "latitude": (1, 30, 8), "scanline": np.arange(30), "ground_pixel": np.arange(8)}
    product |= {"delta_time": np.zeros((1, 30), "i4"), "time": np.zeros(1, "i4")}
    put(folder / "a.h5", product, below="PRODUCT")
    return Want(30, {"PRODUCT/methane": (3, numbers(30, 8)[3])})


@layout("ilastik: one volume with axes of one before it", "odd")
def ilastik(folder):
    put(folder / "a.h5", {"exported_data": numbers(1, 1, 20, 70, 70, dtype="u1")})
    return Want(4, {"exported_data": (0, numbers(1, 1, 20, 70, 70, dtype="u1")[..., :64, :64])})
