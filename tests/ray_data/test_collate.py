import warnings

import numpy as np
import pytest
import torch

from ray_h5.errors import OptionError, UnknownColumnError, UnsupportedColumnError
from ray_h5.ray_data.collate import TorchCollate, as_device, to_device

BATCH = {
    "f4": np.arange(6, dtype="f4").reshape(2, 3),
    "f8": np.array([1.0, 2.0]),
    "f2": np.array([1, 2], "f2"),
    "u1": np.array([1, 255], "u1"),
    "i8": np.array([-1, 2**40]),
    "b": np.array([True, False]),
    "z": np.array([1j, 2], "c8"),
    "name": np.array(["a", "ä"], dtype=object),
    "text": np.array(["a", "ä"]),
    "time": np.array([1, 2], "M8[ns]"),
}


def test_dtypes_are_kept_and_what_torch_lacks_stays():
    found = TorchCollate()(BATCH)
    assert list(found) == list(BATCH)
    expected = {"f4": torch.float32, "f8": torch.float64, "f2": torch.float16, "u1": torch.uint8, "i8": torch.int64}
    expected |= {"b": torch.bool, "z": torch.complex64}
    assert {name: value.dtype for name, value in found.items() if isinstance(value, torch.Tensor)} == expected
    for name in expected:
        assert np.array_equal(found[name].numpy(), BATCH[name])
    for name in ("name", "text", "time"):
        assert found[name] is BATCH[name]


@pytest.mark.parametrize("name", ["name", "text", "time"])
def test_a_dtype_for_what_is_no_number_is_an_error(name):
    with pytest.raises(UnsupportedColumnError, match=f"dtypes: column '{name}' .* expected numbers"):
        TorchCollate({name: torch.float32})(BATCH)


def test_tensors_are_views():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for writeable in (True, False):
            array = np.arange(12, dtype="f4").reshape(3, 4)
            array.setflags(write=writeable)
            assert TorchCollate()({"x": array})["x"].data_ptr() == array.ctypes.data
            # Nothing is copied either where the dtype asked for is the one it has.
            assert TorchCollate(torch.float32)({"x": array})["x"].data_ptr() == array.ctypes.data
            assert TorchCollate()({"x": array[1:]})["x"].data_ptr() == array[1:].ctypes.data


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_one_dtype_is_for_all_that_floats(dtype):
    found = TorchCollate(dtype)(BATCH)
    assert [found[name].dtype for name in ("f4", "f8", "f2")] == [dtype] * 3
    assert [found[name].dtype for name in ("u1", "i8", "b")] == [torch.uint8, torch.int64, torch.bool]
    assert found["z"].dtype == torch.complex64
    assert found["f4"].tolist() == BATCH["f4"].tolist()


def test_dtypes_by_name():
    found = TorchCollate({"f4": torch.bfloat16, "u1": torch.float32, "b": torch.int64})(BATCH)
    assert [found[name].dtype for name in ("f4", "u1", "b", "f8")] == [
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.float64,
    ]
    assert found["u1"].tolist() == [1, 255]
    with pytest.raises(UnknownColumnError, match=r"dtypes: no column 'f44'.*Did you mean 'f4'"):
        TorchCollate({"f44": torch.float32})(BATCH)


def test_devices():
    batches = [TorchCollate()(BATCH) for _ in range(3)]
    assert list(to_device(iter(batches), torch.device("cpu"))) == batches
    moved = list(to_device(iter(batches), torch.device("meta")))
    assert len(moved) == 3
    assert moved[0]["f4"].device.type == "meta"
    assert moved[0]["name"] is BATCH["name"]
    assert as_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="device='cuda:0': torch finds no CUDA device"):
            as_device("cuda:0")
