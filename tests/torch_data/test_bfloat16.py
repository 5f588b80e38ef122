"""Columns of uint16 that hold the bits of bfloat16: torch sees the numbers."""

import numpy as np
import pytest
import torch

import ray_h5
from ray_h5 import Groups, TorchCollate, Windows, ragged
from ray_h5.errors import OptionError, RayH5Error, UnsupportedColumnError
from ray_h5.torch_data import H5Dataset, Standardize, loader
from tests.kit.files import save

NUMBERS = torch.randn(12, 3, generator=torch.manual_seed(0)).to(torch.bfloat16)
BITS = NUMBERS.view(torch.int16).numpy().view(np.uint16)
AS_NUMBERS = {"x": "bfloat16"}


@pytest.fixture
def path(tmp_path):
    """Embeddings as programs of JAX and torch write them: HDF5 has no bfloat16."""
    columns = {"x": BITS, "big": BITS.astype(">u2"), "label": np.arange(12), "ends": [3, 3, 8, 12]}
    return save(tmp_path / "a.h5", {**columns, "groups/a/x": BITS[:5], "groups/b/x": BITS[5:]}, chunks=True)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_tensors_are_the_numbers(path, workers, dtype):
    dtypes = {"x": dtype, "big": dtype}
    batches = [*loader(path, 5, columns=["x", "big", "label"], dtypes=dtypes, workers=workers, shuffle=None)]
    for name in ("x", "big"):
        found = torch.cat([batch[name] for batch in batches])
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, NUMBERS)
    assert torch.equal(H5Dataset(path, ["x"], dtypes=AS_NUMBERS)[7]["x"], NUMBERS[7])
    windows = H5Dataset(path, ["x"], dtypes=AS_NUMBERS, windows=Windows({"x": [-1, 0]}))
    assert torch.equal(windows[0]["x"], NUMBERS[[0, 0]])


@pytest.mark.parametrize("pad", [None, True])
def test_rows_of_varying_length(path, pad):
    options = {"columns": [ragged("x", ends="ends")], "dtypes": AS_NUMBERS, "pad": pad, "shuffle": None}
    (batch,) = loader(path, 4, **options)
    for begin, end, row in zip([0, 3, 3, 8], [3, 3, 8, 12], batch["x"], strict=True):
        assert row.dtype == torch.bfloat16
        assert torch.equal(row[: end - begin], NUMBERS[begin:end])
        assert not row[end - begin :].any()
    groups = H5Dataset(path, rows=Groups("groups/*"), dtypes=AS_NUMBERS, pad=pad)
    assert torch.equal(groups[1]["x"], NUMBERS[5:])


@pytest.mark.usefixtures("ray_local")
def test_ray(path):
    rows = ray_h5.read_h5(path, columns=["x", "label"], dtypes=AS_NUMBERS)
    assert rows.take(1)[0]["x"].tolist() == BITS[0].tolist()  # NumPy and Arrow lack it
    for dtypes, expected in [(None, torch.bfloat16), ({"x": torch.float32}, torch.float32)]:
        batches = [*rows.iter_torch_batches(batch_size=12, collate_fn=TorchCollate(dtypes))]
        found = torch.cat([batch["x"] for batch in batches])
        assert found.dtype == expected
        assert torch.equal(found.to(torch.bfloat16), NUMBERS)
    with pytest.raises(UnsupportedColumnError, match="'x' holds bits of bfloat16"):
        ray_h5.Standardize(["x"]).fit(rows)
    (shard,) = ray_h5.data_config(reading="workers").configure({"train": rows}, 1, None, None)
    of_worker = [*shard["train"].iter_torch_batches(batch_size=5)]
    assert torch.equal(torch.cat([batch["x"] for batch in of_worker]), NUMBERS)
    assert torch.equal(next(iter(loader(rows, 12)))["x"], NUMBERS)


def test_they_are_standardized_as_numbers(path):
    rows = H5Dataset(path, ["x"], dtypes=AS_NUMBERS)
    scaled = Standardize(["x"], axis=0).fit(rows)
    found = torch.stack([scaled(row)["x"].double() for row in rows])
    assert torch.allclose(found.mean(0), torch.zeros(3, dtype=torch.float64), atol=0.02)
    assert torch.allclose(found.std(0, unbiased=False), torch.ones(3, dtype=torch.float64), atol=0.02)


def test_other_columns_are_refused_by_name(path, tmp_path):
    for name, held in [("label", "int64"), ("text", "string")]:
        other = path if name == "label" else save(tmp_path / "b.h5", {"text": [b"a", b"b"]})
        with pytest.raises(OptionError, match=f"dtypes: column '{name}' holds {held}; 'bfloat16' is for uint16"):
            H5Dataset(other, [name], dtypes={name: "bfloat16"})
    floats = save(tmp_path / "c.h5", {"x": np.zeros((4, 3), "f4")})
    with pytest.raises(RayH5Error, match="bfloat16"):
        H5Dataset([path, floats], ["x"], dtypes=AS_NUMBERS)
