"""DecodeImage in Ray: the images of plain PyTorch; what cannot be decoded is null."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import ray_h5
from ray_h5 import DecodeImage, H5Dataset, Windows
from ray_h5.errors import ImageError, UnknownColumnError
from tests.torch_data.test_images import COLUMNS, COUNT, made  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
def test_images_are_those_of_plain_pytorch(made, column):  # noqa: F811
    ds = ray_h5.read_h5(made[0], columns=[column]).map_batches(DecodeImage(column, size=(24, 32)))
    (batch,) = ds.iter_torch_batches(batch_size=COUNT)
    samples = H5Dataset(made[0], [column], transform=DecodeImage(column, size=(24, 32)))
    assert torch.equal(batch[column], samples[:][column])


def test_images_of_each_step(made):  # noqa: F811
    options = {"columns": ["image"], "windows": Windows({"image": [-1, 0]}, pad="drop")}
    ds = ray_h5.read_h5(made[0], **options).map_batches(DecodeImage("image", size=8))
    samples = H5Dataset(made[0], transform=DecodeImage("image", size=8), **options)
    (batch,) = ds.iter_torch_batches(batch_size=COUNT)
    assert torch.equal(batch["image"], samples[:]["image"])


def test_images_of_spans_of_time(made):  # noqa: F811
    for column in ("image", "opaque"):
        options = {"columns": [column], "windows": Windows({column: slice(-1, 1)}, at="label")}
        ds = ray_h5.read_h5(made[0], **options).map_batches(DecodeImage(column, size=8))
        samples = H5Dataset(made[0], transform=DecodeImage(column, size=8), **options)
        for row, sample in zip(ds.take_all(), samples, strict=True):
            assert np.array_equal(row[column], sample[column].numpy())


def test_images_that_cannot_be_decoded_are_null(made):  # noqa: F811
    read = ray_h5.read_h5(made[1], columns=["image", "label"], block_rows=8)
    for size in (None, 16):
        ds = read.map_batches(DecodeImage("image", size=size, on_error="null")).materialize()  # decoded once
        rows = ds.take_all()
        assert [row["label"] for row in rows if row["image"] is None] == [3, 4]
        assert [row["label"] for row in rows if row["image_is_null"]] == [3, 4]
    batches = list(ds.iter_torch_batches(batch_size=10))
    assert [batch["image"].shape for batch in batches] == [(10, 3, 16, 16)] * 2


def test_the_other_columns_of_a_table_stay_as_they_are(made):  # noqa: F811
    ds = ray_h5.read_h5(made[1], columns=["image", "label"], include_paths=True, include_row_ids=True)
    decode = DecodeImage("image", size=16, on_error="null")
    (table,) = ds.limit(8).iter_batches(batch_size=8, batch_format="pyarrow")
    table = table.append_column("n", pa.array([2**53 + 1, None] * 4))
    found = decode(table)
    assert found.column_names == [*table.column_names, "image_is_null"]
    assert found.drop_columns(["image", "image_is_null"]) == table.drop_columns(["image"])
    expected = ds.limit(8).map_batches(decode).take_all()
    for row, other in zip(found.select(["image", "image_is_null"]).to_pylist(), expected, strict=True):
        assert row["image_is_null"] == other["image_is_null"]
        assert np.array_equal(row["image"], other["image"]) or row["image"] is other["image"] is None
    with pytest.raises(UnknownColumnError, match=r"no column 'image'\. There is: label, path, row_id"):
        decode(table.drop_columns(["image", "n"]))


def test_an_error_names_file_and_row(made):  # noqa: F811
    ds = ray_h5.read_h5(made[1], columns=["image"], include_paths=True, include_row_ids=True)
    with pytest.raises(ImageError, match=r"bad.h5, row id [34]: column 'image': the image cannot be decoded"):
        ds.map_batches(DecodeImage("image")).materialize()
    ds = ray_h5.read_h5(made[1], columns=["image"]).map_batches(DecodeImage("image"))
    with pytest.raises(ImageError, match=r"row \d of this batch \(read with include_paths=True"):
        ds.materialize()


def test_an_error_of_a_function_of_the_user_arrives_as_what_it_is(made):  # noqa: F811
    ds = ray_h5.read_h5(made[0], columns=["label"])
    with pytest.raises(KeyError, match="no label"):
        ds.map_batches(fail).materialize()


def fail(_):
    raise KeyError("no label")
