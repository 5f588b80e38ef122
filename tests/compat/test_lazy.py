import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset

from ray_h5.errors import NotFoundError, OptionError, SchemaMismatchError, UnknownColumnError
from ray_h5.torch_data import H5LazyDataset, RankMemCachedH5Dataset, h5_worker_init_fn
from tests.kit.files import save


def test_pairs_are_tensors_with_the_dtypes_of_the_file(pairs):
    dataset = H5LazyDataset(pairs, "images", "labels")
    assert len(dataset) == 50
    x, y = dataset[7]
    assert (x.dtype, x.shape, y.dtype, y.shape) == (torch.float32, (2, 5), torch.int64, ())
    assert (x[0, 0], y) == (7, 3)
    assert dataset[-1][1] == 1
    assert H5LazyDataset(pairs, "nested/scores")[3] == 3.0


def test_dtypes_are_cast(pairs):
    dataset = H5LazyDataset(pairs, "images", "labels", np.float16, np.float64)
    assert [each.dtype for each in dataset[7]] == [torch.float16, torch.float64]
    same = H5LazyDataset(pairs, "labels", "labels", "int8", "float32")
    assert [each.dtype for each in same[7]] == [torch.int8, torch.float32]
    assert [each.tolist() for each in next(iter(DataLoader(same, batch_size=5)))] == [[0, 1, 2, 3, 0]] * 2


def test_text_is_str(pairs):
    x, y = H5LazyDataset(pairs, "names", "names")[3]
    assert x == y == "n3"
    assert next(iter(DataLoader(H5LazyDataset(pairs, "names"), batch_size=2))) == ["n0", "n1"]


def test_bad_input(pairs):
    with pytest.raises(NotFoundError, match=r"missing\.h5"):
        H5LazyDataset("missing.h5", "images")
    with pytest.raises(UnknownColumnError, match="Did you mean 'images'"):
        H5LazyDataset(pairs, "image")
    with pytest.raises(SchemaMismatchError, match=r"7 rows: columns=\['short'\]\n  50 rows: columns=\['images'\]"):
        H5LazyDataset(pairs, "images", "short")
    with pytest.raises(OptionError, match="column 'names' holds strings; only bytes can be asked for"):
        H5LazyDataset(pairs, "names", x_dtype=np.float32)
    with pytest.raises(OptionError, match="no dtype"):
        H5LazyDataset(pairs, "images", x_dtype="nonsense")
    with pytest.raises(
        OptionError, match=r"torch.float16 for column 'images' in dtypes is no dtype of numpy. Write 'float16'"
    ):
        H5LazyDataset(pairs, "images", x_dtype=torch.float16)
    with pytest.raises(OptionError, match="rdcc_w0=2"):
        H5LazyDataset(pairs, "images", rdcc_w0=2)
    with pytest.raises(OptionError, match=r"path=\[.*expected one file, found list; H5Dataset\(paths\)"):
        H5LazyDataset([pairs, pairs], x_key="images", y_key="labels")
    dataset = H5LazyDataset(pairs, "images")
    for index in (50, -51):
        with pytest.raises(IndexError, match="0 to 49"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset["0"]


def test_reading_after_close_opens_the_file_again(pairs):
    dataset = H5LazyDataset(pairs, "images")
    dataset[0]
    dataset.close()
    dataset.close()
    assert dataset[4][0, 0] == 4
    assert next(iter(DataLoader(dataset, batch_size=3)))[:, 0, 0].tolist() == [0, 1, 2]


def test_options_that_went_say_what_to_write(pairs):
    with pytest.raises(OptionError, match=r"there is no option 'aux_keys'\. Read more columns with H5Dataset"):
        H5LazyDataset(pairs, "images", aux_keys="names")


@pytest.mark.parametrize("fails", [lambda x: x.unsqueeze(0), lambda x: x.sum(dim=0), lambda x: x.size(0)])
def test_a_transform_that_expects_tensors(pairs, fails):
    with pytest.raises(OptionError, match=r"pairs.h5: transform raised .* float32 of shape \(2, 5\).*as_tensors=True"):
        H5LazyDataset(pairs, "images", "labels", transform=fails)[3]
    with pytest.raises(OptionError, match=r"target_transform raised AttributeError: .*int64 of shape \(\)"):
        H5LazyDataset(pairs, "images", "labels", target_transform=lambda y: y.long())[3]
    dataset = H5LazyDataset(pairs, "images", "labels", transform=fails, as_tensors=True)
    assert fails(torch.full((2, 5), 3.0)) == pytest.approx(dataset[3][0])
    with pytest.raises(AttributeError, match="'str' object"):  # no option would help
        H5LazyDataset(pairs, "names", transform=lambda x: x.unsqueeze(0))[3]


WRITER = """
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w", libver="latest") as writer:
    data = writer.create_dataset("x", data=np.arange(8.0), maxshape=(None,), chunks=(4,))
    writer.create_dataset("y", data=np.arange(8), maxshape=(None,), chunks=(4,))
    writer.swmr_mode = True
    data.flush()
    print("there", flush=True)
    sys.stdin.readline()
    data.resize((12,))
    data[8:] = -1
    data.flush()
    print("more", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.usefixtures("one_process")
def test_a_live_writer_in_swmr_mode(tmp_path):
    path = str(tmp_path / "live.h5")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WRITER, path], **pipes) as writer:
        assert writer.stdout.readline() == "there\n"
        dataset, paired = H5LazyDataset(path, "x"), H5LazyDataset(path, "x", "y")
        assert dataset[5] == 5
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "more\n"
        # By now there are more inputs than targets.
        for pairs in (paired, H5LazyDataset(path, "x", "y"), RankMemCachedH5Dataset(path, "x", "y", log_fn=str)):
            assert len(pairs) == 8
            assert [tuple(map(float, pairs[i])) for i in (0, 7)] == [(0, 0), (7, 7)]
            x, y = next(iter(DataLoader(pairs, batch_size=8, num_workers=1)))
            assert x.tolist() == y.tolist() == list(range(8))
        assert len(dataset) == 8
        assert next(iter(DataLoader(dataset, batch_size=8))).tolist() == list(range(8))
        assert len(H5LazyDataset(path, "x")) == 12
        with pytest.raises(BlockingIOError):
            H5LazyDataset(path, "x", swmr=False)
        writer.communicate("\n")


def test_single_numbers_of_any_type(tmp_path):
    path = tmp_path / "numbers.h5"
    kinds = ("u1", "u2", "u4", "u8", "i1", "i8", "f2", ">u8", "?")
    save(path, {kind: np.arange(2).astype(kind) for kind in kinds})
    for kind in kinds:
        value = H5LazyDataset(path, kind)[1]
        assert (value.shape, value.item()) == ((), 1)
        assert value.numpy().dtype == np.dtype(kind).newbyteorder("=")


@pytest.mark.parametrize(
    "put_together",
    [
        ConcatDataset,
        lambda parts: StackDataset(*parts),
        lambda parts: StackDataset(a=parts[0], b=parts[1]),
    ],
    ids=["concat", "stack", "named"],
)
def test_the_worker_init_function_closes_what_was_inherited(pairs, monkeypatch, put_together):
    h5_worker_init_fn(0)  # in no worker: nothing to do
    released = []
    monkeypatch.setattr(H5LazyDataset, "release", lambda self: released.append(self.x_key))
    parts = [H5LazyDataset(pairs, name) for name in ("images", "labels")]
    info = type("Info", (), {"dataset": Subset(put_together(parts), [1, 2])})
    monkeypatch.setattr("ray_h5.compat.lazy_dataset.get_worker_info", lambda: info)
    h5_worker_init_fn(1)
    assert sorted(released) == ["images", "labels"]
