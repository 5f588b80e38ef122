"""Batches as JAX arrays, by the lines of docs/adapters.md: the same memory, and values that stay."""

import h5py
import numpy as np
import pytest

from ray_h5.torch_data import loader

jax = pytest.importorskip("jax")

pytestmark = pytest.mark.nightly

ROWS, BATCH = 2048, 64


@pytest.fixture
def columns(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "image": rng.integers(0, 256, (ROWS, 3, 7, 9), "u1"),
        "signal": rng.standard_normal((ROWS, 33), "f4"),
        "half": rng.standard_normal((ROWS, 17)).astype("f2"),
        "flags": rng.random((ROWS, 51)) < 0.5,
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in columns.items():
            file.create_dataset(name, data=values, chunks=(100, *values.shape[1:]), compression="lzf")
        file["row"] = np.arange(ROWS, dtype="i4")
    return columns


@pytest.mark.parametrize("how", [{"threads": 0}, {"threads": 2}])
def test_arrays_are_the_memory_of_the_tensors(columns, how, tmp_path):
    held = []
    for batch in loader(str(tmp_path / "a.h5"), BATCH, seed=1, **how):
        arrays = {name: jax.dlpack.from_dlpack(tensor) for name, tensor in batch.items()}
        same = {name for name in columns if arrays[name].unsafe_buffer_pointer() == batch[name].data_ptr()}
        assert same == set(columns)
        held.append(arrays)
        del batch
    rows = np.concatenate([arrays["row"] for arrays in held])  # memory of earlier batches was not used again
    assert sorted(rows) == list(range(ROWS))
    for name, values in columns.items():
        assert np.array_equal(np.concatenate([arrays[name] for arrays in held]), values[rows])
