"""`Standardize` of plain PyTorch: NumPy is the oracle."""

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from ray_h5.errors import CorruptFileError, NonFiniteError, NotFittedError, OptionError, UnknownColumnError
from ray_h5.torch_data import Groups, H5Dataset, Standardize, Windows, loader, where
from tests.kit.files import save

ROWS = 90


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).normal(3, [[1], [10]], (ROWS, 2, 7)).astype("f4")


@pytest.fixture(scope="module")
def paths(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("files")
    for number, rows in enumerate((slice(0, 40), slice(40, ROWS))):
        save(folder / f"{number}.h5", {"signal": values[rows], "label": np.arange(ROWS)[rows] % 3})
    return [folder / "0.h5", folder / "1.h5"]


def scaled(array, fitted, axis):
    mean, std = fitted.mean(axis=axis, keepdims=True), fitted.std(axis=axis, keepdims=True)
    return (array - mean) / (std + 1e-8)


@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
@pytest.mark.parametrize("kind", ["dataset", "loader", "subset", "concatenated", "selected"])
def test_samples_and_batches_are_standardized_by_the_rows_of_the_fit(paths, values, axis, kind):
    dataset, chosen = H5Dataset(paths, ["signal", "label"]), np.arange(ROWS)
    data = dataset
    if kind == "loader":
        data = loader(dataset, 16)
    elif kind == "subset":
        chosen = np.arange(70, 10, -3)
        data = Subset(dataset, chosen.tolist())
    elif kind == "concatenated":
        data = ConcatDataset([H5Dataset(path, ["signal", "label"]) for path in paths])
    elif kind == "selected":
        chosen = np.flatnonzero(np.arange(ROWS) % 3 == 1)
        data = H5Dataset(paths, ["signal"], where(label=1))
    standardize = Standardize(["signal"], axis=axis).fit(data)
    expected = scaled(values.astype("f8"), values[chosen].astype("f8"), axis)
    dataset.transform = standardize
    for batches in (loader(dataset, 16, shuffle=False), DataLoader(dataset, 16)):
        found = list(batches)
        assert found[0].signal.dtype == torch.float32
        np.testing.assert_allclose(torch.cat([each.signal for each in found]), expected, rtol=2e-5, atol=2e-5)
        assert torch.cat([each.label for each in found]).tolist() == (np.arange(ROWS) % 3).tolist()
    batch = standardize.transform_batch({"signal": torch.from_numpy(values)})
    np.testing.assert_allclose(batch["signal"], expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(standardize.inverse_transform_batch(batch)["signal"], values, rtol=1e-4, atol=1e-4)


def test_a_transform_may_call_it(paths):
    dataset = H5Dataset(paths, ["signal", "label"])
    scale = Standardize(["signal"]).fit(dataset)
    pairs = H5Dataset(paths, ["signal", "label"], transform=lambda row: (scale(row).signal, row.label))
    assert torch.equal(pairs[3][0], scale(dataset[3])["signal"])
    assert scale.transform_batch(next(iter(loader(dataset, 4)))).label.shape == (4,)


@pytest.mark.parametrize("predicate", [None, where(kind=1)])
@pytest.mark.parametrize("pad", ["edge", "zero", "drop", ("drop", "zero")])
@pytest.mark.parametrize("offsets", [[0], [-2, 1], range(-4, 1)])
def test_a_step_of_windows_counts_once(tmp_path, offsets, pad, predicate):
    x = np.random.default_rng(1).normal(size=(61, 3))
    first = 1
    for number, lengths in enumerate([(9, 6, 1), (12, 7, 25)]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for episode, length in enumerate(lengths):
                ids = np.arange(first, first + length)
                file[f"g{episode}/x"], file[f"g{episode}/id"], file[f"g{episode}/kind"] = x[ids], ids, ids // 4 % 2
                first += length
    options = {"rows": Groups("g*"), "windows": Windows({"x": offsets, "id": offsets}, pad=pad)}
    dataset = H5Dataset(tmp_path, ["x", "id"], predicate, **options)
    held = sorted({step for ids in dataset[:]["id"].tolist() for step in ids} - {0})
    scaler = Standardize(["x"], axis=(0, 1)).fit(dataset).scalers["x"]
    np.testing.assert_allclose(np.ravel(scaler.mean), x[held].mean(axis=0))
    np.testing.assert_allclose(np.ravel(scaler.scale), x[held].std(axis=0) + 1e-8)


def test_it_is_saved_for_plain_pytorch_and_for_ray(paths, tmp_path):
    standardize = Standardize(["signal"], axis=(0, 2), constant="one").fit(H5Dataset(paths))
    standardize.save(tmp_path / "s.npz")
    again = Standardize.load(tmp_path / "s.npz")
    assert repr(again) == repr(standardize)
    import ray_h5

    of_ray = ray_h5.Standardize.load(tmp_path / "s.npz")
    of_ray.save(tmp_path / "r.npz")
    for each in (of_ray, Standardize.load(tmp_path / "r.npz")):
        assert each.to_dict()["scalers"] == standardize.to_dict()["scalers"]


@pytest.mark.parametrize(("at", "value"), [(10, 99), (8, 1)], ids=["method of compression", "encrypted"])
def test_a_damaged_file_of_scalers_is_said_so(paths, tmp_path, at, value):
    path = tmp_path / "s.npz"
    fitted = Standardize(["signal"]).fit(H5Dataset(paths))
    fitted.save(path)
    data = bytearray(path.read_bytes())
    data[data.find(b"PK\1\2") + at] = value
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="a damaged one; save it again"):
        Standardize.load(path)
    state = fitted.to_dict()
    state["scalers"]["signal"]["moments"]["count"] = [10**400]
    with pytest.raises(OptionError, match=r"expected a result of Standardize\.to_dict"):
        Standardize.from_dict(state)


def test_bad_input(paths, tmp_path):
    dataset = H5Dataset(paths, ["signal", "label"])
    with pytest.raises(UnknownColumnError, match=r"noise.*signal"):
        Standardize(["noise"]).fit(dataset)
    with pytest.raises(OptionError, match="expected an H5Dataset"):
        Standardize(["signal"]).fit(range(3))
    with pytest.raises(OptionError, match=r"columns='signal': expected a list of names"):
        Standardize("signal")
    with pytest.raises(NotFittedError, match=r"call fit\(training_dataset\) first"):
        Standardize(["signal"])(dataset[0])
    with pytest.raises(NotFittedError, match="no samples"):
        Standardize(["signal"]).fit(Subset(dataset, []))
    with pytest.raises(UnknownColumnError, match="signal"):
        Standardize(["signal"]).fit(dataset)({"label": 1})
    save(tmp_path / "nan.h5", {"x": np.array([1.0, np.nan, 3.0])})
    with pytest.raises(NonFiniteError, match="column 'x'"):
        Standardize(["x"]).fit(H5Dataset(tmp_path / "nan.h5"))
    assert Standardize(["x"], nan_policy="omit").fit(H5Dataset(tmp_path / "nan.h5")).scalers["x"].mean == 2


def test_a_path_is_no_dataset(tmp_path):
    for path in ("a.h5", tmp_path / "a.h5"):
        with pytest.raises(OptionError, match=r"found the path '.*a\.h5'; write H5Dataset\('.*a\.h5'\)"):
            Standardize(["x"]).fit(path)
