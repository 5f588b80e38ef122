"""Images at several resolutions: the finest level is read, the others are named."""

import logging

import h5py
import numpy as np
import pytest

from ray_h5.torch_data import Files, Groups, H5Dataset, Patches

SHAPES = [(8, 16, 12), (8, 8, 6), (4, 4, 3)]


def levels(seed):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 999, shape).astype("i2") for shape in SHAPES]


@pytest.fixture
def viewer(tmp_path):
    """A file as BigDataViewer writes it."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for setup in range(2):
            file[f"s{setup:02}/resolutions"] = np.array([[1, 1, 1], [2, 2, 1], [4, 4, 2]], "f8")
            file[f"s{setup:02}/subdivisions"] = np.full((3, 3), 4, "i4")
            for time in range(2):
                for level, values in enumerate(levels(10 * setup + time)):
                    chunks = tuple(min(4, n) for n in values.shape)
                    file.create_dataset(f"t{time:05}/s{setup:02}/{level}/cells", data=values, chunks=chunks,
                                        compression="gzip")  # fmt: skip
    return tmp_path / "a.h5"


def test_the_finest_level_of_bigdataviewer(viewer, caplog):
    with caplog.at_level(logging.WARNING):
        dataset = H5Dataset(viewer)
    finest = [f"t{time:05}/s{setup:02}/0/cells" for time in range(2) for setup in range(2)]
    assert dataset.columns == finest
    np.testing.assert_array_equal(dataset[3]["t00001/s01/0/cells"].numpy(), levels(11)[0][3])
    assert "left out 12 of 16 columns" in caplog.text
    assert "is a coarser level of 't00000/s00/0/cells'" in caplog.text
    coarse = H5Dataset(viewer, ["t00000/s01/2/cells"])
    np.testing.assert_array_equal(coarse[1]["t00000/s01/2/cells"].numpy(), levels(10)[2][1])


def test_pyramids_as_rows(viewer, caplog):
    with caplog.at_level(logging.WARNING):
        images = H5Dataset(viewer, rows=Groups("t*/s*"))
    assert images.columns == ["0/cells"]
    assert "1/cells (is a coarser level of '0/cells')" in caplog.text
    np.testing.assert_array_equal(images[1]["0/cells"].numpy(), levels(10)[0])
    coarse = H5Dataset(viewer, rows=Groups("t*/s*/2"))
    np.testing.assert_array_equal(coarse[3]["cells"].numpy(), levels(11)[2])
    files = H5Dataset(viewer, rows=Files(), group="t00001/s00")
    assert files.columns == ["0/cells"]
    blocks = H5Dataset(viewer, rows=Patches({"t00000/s00/1/cells": (4, 4, 3)}, stride=4))
    np.testing.assert_array_equal(blocks[0]["t00000/s00/1/cells"].numpy(), levels(0)[1][:4, :4, :3])


def test_the_finest_level_of_imaris(tmp_path, caplog):
    with h5py.File(tmp_path / "a.ims", "w") as file:
        file.attrs["ImarisDataSet"] = np.frombuffer(b"ImarisDataSet", "S1")
        for level, values in enumerate(levels(0)):
            channel = file.create_group(f"DataSet/ResolutionLevel {level}/TimePoint 0/Channel 0")
            channel.create_dataset("Data", data=values, chunks=True, compression="gzip")
            channel["Histogram"] = np.zeros(256, "u8")
            for axis, count in zip("ZYX", values.shape, strict=True):
                channel.attrs[f"ImageSize{axis}"] = np.frombuffer(str(count).encode(), "S1")
        file["Thumbnail/Data"] = np.zeros((256, 1024), "u1")
        file.create_group("DataSetInfo/Image").attrs["X"] = np.frombuffer(b"12", "S1")
    with caplog.at_level(logging.WARNING):
        dataset = H5Dataset(tmp_path / "a.ims")
    name = "DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data"
    assert dataset.columns == [name]
    np.testing.assert_array_equal(dataset[7][name].numpy(), levels(0)[0][7])
    assert "left out 6 of 7 columns" in caplog.text
    coarse = name.replace("Level 0", "Level 2")
    np.testing.assert_array_equal(H5Dataset(tmp_path / "a.ims", [coarse])[0][coarse].numpy(), levels(0)[2][0])


def test_groups_that_are_no_levels(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file[f"t00000/s00/{number}/cells"] = np.full((4, 2), number)
    assert len(H5Dataset(tmp_path / "a.h5").columns) == 3
