"""DecodeImage in plain PyTorch: images are decoded where batches are read, and what cannot be decoded is named."""

import io

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from ray_h5.errors import ImageError, OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.torch_data import DecodeImage, H5Dataset, Windows, loader

KINDS = ["JPEG", "PNG", "WEBP", "TIFF"]
COUNT = 20


def encode(image, kind):
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def pictures():
    rng = np.random.default_rng(0)
    small = [Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype="u1")) for _ in range(COUNT)]
    return [each.resize((40 + i, 30 + i), Image.Resampling.BICUBIC) for i, each in enumerate(small)]


def write(path, images):
    longest = max(map(len, images))
    padded = [each.ljust(longest, b"\0") for each in images]
    with h5py.File(path, "w") as file:
        vlen = file.create_dataset("image", (len(images),), h5py.vlen_dtype("u1"))
        for i, each in enumerate(images):
            vlen[i] = np.frombuffer(each, "u1")
        file["opaque"] = np.array(padded, f"V{longest}")
        file["padded"] = np.stack([np.frombuffer(each, "u1") for each in padded])
        file["label"] = np.arange(len(images))
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    images = [encode(each, KINDS[i % 4]) for i, each in enumerate(pictures())]
    bad = list(images)
    bad[3], bad[4] = bad[3][:50], bad[4][:-30]
    return write(folder / "good.h5", images), write(folder / "bad.h5", bad), images


COLUMNS = ["image", "opaque", "padded"]


@pytest.mark.parametrize("column", COLUMNS)
def test_loaders_deliver_the_same(made, column):
    options = {"columns": [column, "label"], "transform": DecodeImage(column, size=16)}
    whole = H5Dataset(made[0], **options)[:][column]
    for batches in (
        loader(made[0], 8, shuffle=False, **options),
        loader(made[0], 8, shuffle=False, threads=0, **options),
        DataLoader(H5Dataset(made[0], **options), 8),
        DataLoader(H5Dataset(made[0], **options), 8, num_workers=1),
    ):
        assert torch.equal(torch.cat([batch[column] for batch in batches]), whole)
    shuffled = list(loader(made[0], 8, **options))
    assert all(torch.equal(batch[column][0], whole[batch["label"][0]]) for batch in shuffled)


def test_options_of_the_result(made):
    samples = H5Dataset(made[0], ["image"], transform=DecodeImage("image", size=8, mode="L", channels_last=True))
    assert samples[:]["image"].shape == (COUNT, 8, 8, 1)
    with pytest.raises(ImageError, match=r"good.h5, row 0: .* claims 30 x 40 pixels; expected at most max_pixels=1000"):
        H5Dataset(made[0], ["image"], transform=DecodeImage("image", max_pixels=1000))[0]


def test_a_transform_after_the_images_are_decoded(made):
    def mean(sample):
        return {**sample, "image": sample["image"].float().mean()}

    samples = H5Dataset(made[0], ["image", "label"], transform=[DecodeImage("image"), mean])
    assert samples[2]["image"].ndim == 0
    assert next(iter(loader(made[0], 4, columns=["image"], transform=[DecodeImage("image"), mean])))["image"].shape == (
        4,
    )


def test_it_is_a_function_of_a_sample(made):
    sample = H5Dataset(made[0], ["image", "label"])[1]
    found = DecodeImage("image", size=8)(sample)
    assert found["image"].shape == (3, 8, 8)
    assert sample["image"].ndim == 1
    assert DecodeImage("image")({"image": made[2][0]})["image"].shape == (3, 30, 40)


@pytest.mark.parametrize("column", COLUMNS)
def test_an_image_that_cannot_be_decoded_names_file_and_row(made, column):
    batches = loader(made[1], 8, shuffle=False, columns=[column], transform=DecodeImage(column, size=8))
    with pytest.raises(ImageError, match=rf"bad.h5, row 3: column '{column}': the image cannot be decoded: it"):
        list(batches)


@pytest.mark.parametrize("threads", [0, 2])
def test_rows_that_cannot_be_decoded_are_left_out(made, threads, caplog):
    decode = DecodeImage("image", size=8, on_error="skip")
    batches = loader(
        made[1], 4, shuffle=False, threads=threads, columns=["image", "label"], transform=decode, dtypes={"label": "i4"}
    )
    found = [batch["label"].tolist() for batch in batches]
    assert found == [[0, 1, 2], [5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert (decode.counts.decoded, decode.counts.failed) == (18, 2)
    assert "row 3: column 'image': the image cannot be decoded" in caplog.text
    assert batches.dataset[[2, 3]]["label"].tolist() == [2]
    with pytest.raises(
        ImageError, match=r"row 3: column 'image': .*on_error='skip' leaves rows out of batches, and this"
    ):
        batches.dataset[3]


def test_a_batch_of_which_nothing_is_left_is_none(made):
    options = {"columns": ["image", "label"], "transform": DecodeImage("image", size=8, on_error="skip")}
    with pytest.raises(OptionError, match="2 ranks would then have different numbers of batches"):
        next(iter(loader(made[1], 2, rank=0, world_size=2, **options)))
    found = [batch["label"].tolist() for batch in loader(made[1], 1, shuffle=False, **options)]
    assert found == [[i] for i in range(COUNT) if i not in (3, 4)]
    with pytest.raises(ImageError, match=r"none of the 2 rows of this batch.*row 3.*on_error='null'"):
        H5Dataset(made[1], **options)[[3, 4]]


def test_images_of_each_step_of_an_episode(made, tmp_path):
    path = write(tmp_path / "episode.h5", made[2])
    windows = Windows({"padded": range(3)}, pad="drop")
    samples = H5Dataset(path, ["padded"], windows=windows, transform=DecodeImage("padded", size=(9, 7)))
    assert samples[2]["padded"].shape == (3, 3, 9, 7)
    single = H5Dataset(path, ["padded"], transform=DecodeImage("padded", size=(9, 7)))
    assert torch.equal(samples[2]["padded"][1], single[3]["padded"])


WRONG = [
    ({"column": ""}, "column=''"),
    ({"column": "a", "size": (1, 2, 3)}, "size="),
    ({"column": "a", "size": 0}, "size=0"),
    ({"column": "a", "mode": "BGR"}, "mode='BGR'"),
    ({"column": "a", "on_error": "ignore"}, "on_error='ignore'"),
    ({"column": "a", "on_error": ["skip"]}, "on_error=.'skip'"),
    ({"column": "a", "max_pixels": 0}, "max_pixels"),
]


@pytest.mark.parametrize(("options", "match"), WRONG)
def test_options_that_cannot_be_used(options, match):
    with pytest.raises(OptionError, match=match):
        DecodeImage(**options)


def test_columns_that_hold_no_images(made):
    with pytest.raises(UnknownColumnError, match=r"no column 'imgae'. Did you mean 'image'"):
        H5Dataset(made[0], ["image"], transform=DecodeImage("imgae"))
    with pytest.raises(UnsupportedColumnError, match="'label' holds int64 values of shape"):
        H5Dataset(made[0], ["label"], transform=DecodeImage("label"))[0]


def test_windows_over_files_whose_images_are_filled_up_to_other_lengths(tmp_path):
    images = [encode(each, KINDS[i % 2]) for i, each in enumerate(pictures())]
    parts = [images[:8], images[8:]]
    files = [write(tmp_path / f"{i}.h5", part) for i, part in enumerate(parts)]
    assert len({max(map(len, part)) for part in parts}) == 2
    windows = Windows({"padded": range(-1, 1)})
    decoder = DecodeImage("padded", size=(24, 32))
    single = H5Dataset(files, ["image"], transform=DecodeImage("image", size=(24, 32)))
    expected = [single[i].image for i in range(COUNT)]
    batches = loader(files, 5, columns=["padded", "label"], shuffle=False, windows=windows, transform=decoder, pad=True)
    assert "padded_length" not in next(iter(batches))
    found = torch.cat([batch.padded for batch in batches])
    firsts = [max(i - 1, 0 if i < 8 else 8) for i in range(COUNT)]
    assert torch.equal(found, torch.stack([torch.stack([expected[i], expected[k]]) for k, i in enumerate(firsts)]))
    with pytest.raises(UnsupportedColumnError, match=r"one number of images each, found rows of bytes, uint8 \(2, 4\)"):
        DecodeImage("x")({"x": [np.zeros((2, 4), "u1"), b"abcd"]})


@pytest.mark.parametrize("pad", [True, {"image": 7}])
@pytest.mark.parametrize("through", ["loader", "DataLoader", "cropped"])
def test_images_of_several_sizes_are_padded(made, pad, through):
    steps = [DecodeImage("image"), lambda sample: {**sample, "image": sample["image"][:, :33]}]
    transform = steps if through == "cropped" else steps[0]
    samples = H5Dataset(made[0], ["image", "label"], transform=transform, pad=pad)
    whole = H5Dataset(made[0], ["image"], transform=transform)
    batches = loader(samples, 8) if through == "loader" else DataLoader(samples, 8)
    for batch in batches:
        assert batch["image"].shape[2:] == tuple(batch["image_length"].amax(dim=0)[1:])
        for image, shape, row in zip(batch["image"], batch["image_length"].tolist(), batch["label"], strict=True):
            inside = (slice(None), slice(shape[1]), slice(shape[2]))
            assert torch.equal(image[inside], whole[int(row)]["image"])
            image[inside] = 0 if pad is True else 7
            assert (image == (0 if pad is True else 7)).all()


def test_padding_leaves_images_of_one_size_and_of_windows_as_they_are(made):
    resized = H5Dataset(made[0], ["image"], transform=DecodeImage("image", size=(8, 8)), pad=True)
    assert "image_length" not in resized[[0, 1]]
    windows = Windows({"image": [0, 1]})
    assert isinstance(
        H5Dataset(made[0], ["image"], transform=DecodeImage("image"), windows=windows, pad=True)[[0, 1]]["image"], list
    )
    with pytest.raises(UnknownColumnError, match="no column 'picture'"):
        H5Dataset(made[0], ["image"], transform=DecodeImage("image"), pad={"picture": 0})
    lacking = H5Dataset(made[1], ["image"], transform=DecodeImage("image", on_error="null"), pad=True)[[2, 3, 5]]
    assert lacking["image_is_null"].tolist() == [False, True, False]
    assert lacking["image_length"].tolist()[1] == [0, 0, 0]
    assert not lacking["image"][1].any()


def test_rows_of_several_images_may_be_empty():
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    image = np.frombuffer(stream.getvalue(), np.uint8)
    rows = np.empty(2, object)
    rows[:] = [np.zeros((2, 0), np.uint8), np.stack([image, image])]
    batch = DecodeImage("x", on_error="null")({"x": rows})
    assert batch["x_is_null"].tolist() == [True, False]


@pytest.mark.parametrize("column", COLUMNS)
def test_images_of_spans_of_time_are_several_a_row(made, column):
    windows = Windows({column: slice(-1, 1)}, at="label")
    one = H5Dataset(made[0], [column], transform=DecodeImage(column, size=8))[:][column]
    spans = H5Dataset(made[0], [column], windows=windows, transform=DecodeImage(column, size=8))
    expected = [one[max(i - 1, 0) : i + 1] for i in range(COUNT)]
    (batch,) = loader(spans, COUNT, shuffle=None)
    for found in ([row[column] for row in spans], batch[column]):
        assert all(torch.equal(row, images) for row, images in zip(found, expected, strict=True))


def test_rows_of_spans_with_an_image_that_cannot_be_decoded(made):
    spans = Windows({"image": slice(-1, 1)}, at="label")
    null = DecodeImage("image", size=8, on_error="null")
    (batch,) = loader(H5Dataset(made[1], ["image"], transform=null, windows=spans), COUNT, shuffle=None)
    assert torch.as_tensor(batch["image_is_null"]).nonzero().flatten().tolist() == [3, 4, 5]
    assert [row.shape[0] for row in batch["image"]] == [1, *[2] * (COUNT - 1)]
    with pytest.raises(ImageError, match=r"bad.h5, row \d: column 'image': the image cannot be decoded"):
        list(loader(H5Dataset(made[1], ["image"], transform=DecodeImage("image"), windows=spans), COUNT, shuffle=None))
