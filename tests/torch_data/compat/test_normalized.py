"""`CombinedHDF5Dataset` with statistics, trimming and channels last; NumPy and h5py say what samples are."""

import logging
import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from ray_h5.errors import NotFoundError, NotHDF5Error, OptionError, SchemaMismatchError, UnsupportedColumnError
from ray_h5.torch_data import CombinedHDF5Dataset, create_optimized_dataloader, loader

ROWS, RAW, STEPS = 9, 1920, 120
CHANNELS = {"fhr_st": 5, "fhr_ph": 4, "fhr_up_ph": 3}
LOG = {"fhr_st": [1, 2, 3, 4]}
ASINH = {"fhr_ph": [0, 1, 2, 3], "fhr_up_ph": [0, 2]}
SIGNALS = ["fhr", "up", *CHANNELS]


@pytest.fixture(scope="module")
def signals(tmp_path_factory):
    """Two files of 9 rows, and all their rows as arrays."""
    folder, rng = tmp_path_factory.mktemp("signals"), np.random.default_rng(0)
    paths, parts = [], []
    for name in ("a.h5", "b.h5"):
        arrays = {
            "fhr": rng.normal(140, 20, (ROWS, RAW)),
            "up": rng.normal(30, 9, (ROWS, RAW)),
            **{field: rng.normal(0.5, 3, (ROWS, count, STEPS)) for field, count in CHANNELS.items()},
            "target": rng.integers(0, 3, (ROWS, STEPS)),
            "weight": np.ones((ROWS, STEPS)),
            "epoch": np.arange(ROWS) + len(paths) * ROWS,
        }
        arrays = {field: values.astype("f4") for field, values in arrays.items()}
        arrays |= {label: (np.arange(ROWS) % 2).astype("u1") for label in ("cs_label", "bg_label")}
        with h5py.File(folder / name, "w") as file:
            for field, values in arrays.items():
                file.create_dataset(field, data=values, chunks=(1, *values.shape[1:]), compression="lzf")
            file["guid"] = np.array([f"{name}{i}" for i in range(ROWS)], h5py.string_dtype())
        paths.append(str(folder / name))
        parts.append(arrays)
    return paths, {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}


def transformed(field, values, epsilon, log=None, asinh=None):
    """Values in float64, channels on axis 1, before mean and deviation."""
    values = values.astype("f8")
    for channel in (LOG if log is None else log).get(field, []):
        values[:, channel] = np.log(np.maximum(values[:, channel], 0) + epsilon)
    for channel in (ASINH if asinh is None else asinh).get(field, []):
        values[:, channel] = np.arcsinh(values[:, channel])
    return values


def trimmed(field, values, minutes):
    cut = int(4 * 60 * (minutes or 0))
    cut = cut if field in ("fhr", "up") else cut // 16 if field in CHANNELS else 0
    return values[..., cut : values.shape[-1] - cut] if cut else values


def write_stats(path, arrays, minutes=None, epsilon=1e-6, fields=SIGNALS):
    """A file as people's own calculation of statistics leaves it; returns mean and deviation of each field."""
    found = {}
    with h5py.File(path, "w") as file:
        file.create_group("metadata").attrs["made_by"] = "a test"
        file.attrs["created_at"] = "2024-01-01"
        file.attrs["trim_minutes"] = -1.0 if minutes is None else minutes
        file.attrs["log_epsilon"] = epsilon
        for field in fields:
            values = transformed(field, trimmed(field, arrays[field], minutes), epsilon)
            group = file.create_group(field)
            group.attrs["shape"], group.attrs["count"] = values.shape[1:], values.size
            if field in CHANNELS:
                mean, std = (each.astype("f4") for each in (values.mean((0, 2)), values.std((0, 2))))
                group.attrs["n_channels"] = len(mean)
                for name, which in (("log", LOG), ("asinh", ASINH)):
                    group.attrs[f"{name}_channels"] = which.get(field, [])
                    group.attrs[f"uses_{name}_transform"] = bool(which.get(field))
                others = {*LOG.get(field, ()), *ASINH.get(field, ())}
                group.attrs["regular_channels"] = [c for c in range(len(mean)) if c not in others]
                found[field] = mean[:, None].astype("f8"), std[:, None].astype("f8")
            else:
                mean, std = found[field] = values.mean(), values.std()
                for name, value in (("mean", mean), ("variance", std**2), ("std", std)):
                    group.attrs[f"{name}_scalar"] = value
            group["mean"], group["std"] = np.asarray(mean, "f4"), np.asarray(std, "f4")
            group["variance"] = np.asarray(std, "f4") ** 2
    return found


def expected(arrays, field, moments, minutes=None, epsilon=1e-6):
    mean, std = moments[field]
    return (transformed(field, trimmed(field, arrays[field], minutes), epsilon) - mean) / (std + 1e-8)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("minutes", "epsilon"), [(None, 1e-6), (1.5, 1e-3), (2, 1e-6)])
def test_fields_are_standardised_as_numpy_does(signals, tmp_path, minutes, epsilon, channels_last):
    paths, arrays = signals
    moments = write_stats(tmp_path / "stats.h5", arrays, minutes, epsilon)
    dataset = CombinedHDF5Dataset(
        paths, stats_path=str(tmp_path / "stats.h5"), trim_minutes=minutes, channels_last=channels_last
    )
    batch = next(iter(DataLoader(dataset, 2 * ROWS)))
    threads = list(loader(dataset, 5, shuffle=False))
    for field in SIGNALS:
        values = expected(arrays, field, moments, minutes, epsilon)
        turned = channels_last and field in CHANNELS
        values = values.transpose(0, 2, 1) if turned else values
        np.testing.assert_allclose(batch[field].numpy(), values, rtol=2e-5, atol=2e-5)
        assert batch[field].dtype == torch.float32
        assert batch[field].is_contiguous()
        assert torch.equal(torch.cat([each[field] for each in threads]), batch[field])
        assert torch.equal(dataset[11][field], batch[field][11])
    for field in ("target", "weight", "epoch"):
        np.testing.assert_array_equal(batch[field].numpy(), arrays[field])
    assert batch.cs_label.tolist() == arrays["cs_label"].astype(bool).tolist()
    if minutes == 2:
        assert (dataset[0].fhr.shape, dataset[0].fhr_ph.shape) == ((960,), (60, 4) if channels_last else (4, 60))


def test_all_arguments_of_today_by_position(signals, tmp_path):
    paths, arrays = signals
    moments = write_stats(tmp_path / "stats.h5", arrays, 1.0)
    stats = str(tmp_path / "stats.h5")
    fields = ["fhr", "fhr_st", "up", "guid", "target"]
    dataset = CombinedHDF5Dataset(
        paths, fields, ["a.h51", "b.h53", "b.h54"], True, True, 0.0, 13.0, None, 2000, True, torch.float32,
        stats, ["fhr", "fhr_st"], 1.0,
    )  # fmt: skip
    assert [each.guid for each in dataset] == ["a.h51", "b.h53"]
    rows = dataset.row_ids(range(len(dataset)))
    sample = dataset[-1]
    for field in ("fhr", "fhr_st"):
        values = expected(arrays, field, moments, 1.0)[rows[-1]]
        np.testing.assert_allclose(sample[field].numpy(), values, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(sample.up.numpy(), arrays["up"][rows[-1], 240:-240])  # trimmed, not standardised
    assert (dataset.paths, dataset.stats_path, dataset.trim_minutes) == (paths, stats, 1.0)
    assert dataset.allowed_guids == {"a.h51", "b.h53", "b.h54"}
    assert dataset.normalize_fields == {"fhr", "fhr_st"}
    assert dataset.load_fields == set(fields)
    assert (dataset.cs_label, dataset.bg_label, dataset.epoch_min, dataset.epoch_max) == (True, True, 0.0, 13.0)
    plain = CombinedHDF5Dataset(paths[0])
    assert plain.paths == [paths[0]]
    assert plain.stats_path is plain.allowed_guids is plain.normalize_fields is plain.load_fields is None


@pytest.mark.parametrize("workers", [0, 2])
def test_the_optimized_loader_by_position(signals, tmp_path, workers):
    paths, arrays = signals
    moments = write_stats(tmp_path / "stats.h5", arrays)
    batches = create_optimized_dataloader(
        paths,
        4,
        workers,
        0,
        1,
        str(tmp_path / "stats.h5"),
        ["fhr_ph"],
        load_fields=["fhr_ph", "epoch"],
        channels_last=True,
    )
    rows = []
    for batch in batches:
        here = batch.epoch.int().numpy()
        values = expected(arrays, "fhr_ph", moments)[here].transpose(0, 2, 1)
        np.testing.assert_allclose(batch.fhr_ph.numpy(), values, rtol=2e-5, atol=2e-5)
        rows += here.tolist()
    assert sorted(rows) == list(range(2 * ROWS))
    assert batches.dataset.is_normalization_enabled()
    by_name = create_optimized_dataloader(hdf5_files=paths, stats_path=None, normalize_fields=["fhr"], num_workers=0)
    assert not by_name.dataset.is_normalization_enabled()


def test_statistics_are_returned(signals, tmp_path):
    paths, arrays = signals
    moments = write_stats(tmp_path / "stats.h5", arrays)
    dataset = CombinedHDF5Dataset(paths, stats_path=tmp_path / "stats.h5")
    assert dataset.is_normalization_enabled()
    stats = dataset.get_normalization_stats()
    assert sorted(stats) == sorted(SIGNALS)
    for field, (mean, std) in moments.items():
        np.testing.assert_allclose(np.asarray(stats[field]["mean"]), np.squeeze(mean))
        np.testing.assert_allclose(np.asarray(stats[field]["std"]), np.squeeze(std))
        assert stats[field]["shape"] == arrays[field].shape[1:]
        assert stats[field]["count"] == arrays[field].size
        assert stats[field]["mean_tensor"].shape == ((CHANNELS[field], 1) if field in CHANNELS else ())
    assert stats["fhr_st"]["log_channels"] == [1, 2, 3, 4]
    assert stats["fhr_st"]["regular_channels"] == [0]
    assert (stats["fhr_up_ph"]["asinh_channels"], stats["fhr_up_ph"]["uses_asinh_transform"]) == ([0, 2], True)
    assert dataset.get_stats()["normalization_enabled"] is True
    assert dataset.get_stats()["stats_path"] == tmp_path / "stats.h5"
    plain = CombinedHDF5Dataset(paths)
    assert not plain.is_normalization_enabled()
    assert plain.get_normalization_stats() is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_values_are_standardised_before_they_are_cast(tmp_path, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([[1e5], [2e5], [3e5]], "f8").repeat(4, 1)[:, None]
        file["y"] = np.arange(3.0)
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file.create_group("x").attrs.update({"mean": 2e5, "std": 1e5})
    dataset = CombinedHDF5Dataset(tmp_path / "a.h5", dtype=dtype, stats_path=tmp_path / "stats.h5")
    values = dataset[[0, 1, 2]].x
    assert values.dtype == dataset[0].y.dtype == dtype
    assert values[:, 0, 0].tolist() == pytest.approx([-1, 0, 1])


def test_get_the_lists(signals):
    paths, arrays = signals
    dataset = CombinedHDF5Dataset(paths, ["fhr"], cs_label=True, stats_path=None)
    chosen = np.flatnonzero(arrays["cs_label"])
    guids, epochs, targets = dataset.get_the_lists()
    assert guids == [f"{'ab'[row // ROWS]}.h5{row % ROWS}" for row in chosen]
    assert epochs == arrays["epoch"][chosen].tolist()
    assert epochs[0].dtype == np.float32
    assert all(isinstance(each, list) for each in (guids, epochs, targets))
    np.testing.assert_array_equal(targets, arrays["target"][chosen])
    every, _, _ = CombinedHDF5Dataset(paths).get_the_lists()
    assert len(every) == 2 * ROWS


def test_older_and_smaller_files_of_statistics(signals, tmp_path):
    paths, arrays = signals
    path = tmp_path / "stats.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("fhr_st")
        group["mean"], group["std"] = np.zeros(5), np.ones(5)
        group.attrs["order0_channels"] = [0, 2]
        group = file.create_group("fhr_ph")
        group["mean"], group["std"] = np.zeros((4, 1)), np.ones((4, 1))
        group.attrs["log_channels"], group.attrs["uses_log_transform"] = [1], False
        group = file.create_group("fhr_up_ph")
        group["mean"], group["std"] = 1.0, 2.0
        group = file.create_group("target")
        group["mean"], group["std"] = 0.0, 5.0
        file.create_group("not_in_the_files").attrs.update({"mean": 1, "std": 0})
        file["elsewhere"] = h5py.ExternalLink("missing.h5", "/fhr")
    dataset = CombinedHDF5Dataset(paths, stats_path=path)
    batch = dataset[list(range(2 * ROWS))]
    log = transformed("fhr_st", arrays["fhr_st"], 1e-6, {"fhr_st": [1, 3, 4]}, {})
    np.testing.assert_allclose(batch.fhr_st.numpy(), log, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(batch.fhr_ph.numpy(), arrays["fhr_ph"], rtol=1e-6)
    np.testing.assert_allclose(batch.fhr_up_ph.numpy(), (arrays["fhr_up_ph"] - 1) / 2, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(batch.target.numpy(), arrays["target"])  # only if it is named
    named = CombinedHDF5Dataset(paths, stats_path=path, normalize_fields=["target"])[0]
    np.testing.assert_allclose(named.target.numpy(), arrays["target"][0] / 5)


def test_channels_last_of_some_fields(signals, tmp_path):
    paths, arrays = signals
    sample = CombinedHDF5Dataset(paths, channels_last=["fhr_st"])[3]
    np.testing.assert_array_equal(sample.fhr_st.numpy(), arrays["fhr_st"][3].T)
    np.testing.assert_array_equal(sample.fhr_ph.numpy(), arrays["fhr_ph"][3])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["target"] = np.arange(24.0).reshape(2, 4, 3)
        file["spectrum"] = np.arange(24.0).reshape(2, 4, 3)
        file["picture"] = np.zeros((2, 4, 3, 3))
    sample = CombinedHDF5Dataset(tmp_path / "a.h5", channels_last=True)[1]
    assert {name: tuple(values.shape) for name, values in sample.items()} == {
        "target": (4, 3), "spectrum": (3, 4), "picture": (4, 3, 3),
    }  # fmt: skip
    with pytest.raises(OptionError, match=r"channels_last: expected a field of \(channels, time\), found 'picture'"):
        CombinedHDF5Dataset(tmp_path / "a.h5", channels_last=["picture"])
    with pytest.raises(OptionError, match=r"channels_last: there is no field 'spectrun'. Did you mean 'spectrum'"):
        CombinedHDF5Dataset(tmp_path / "a.h5", channels_last=["spectrun"])


def test_other_trimming_than_that_of_the_statistics_is_said(signals, tmp_path, caplog):
    paths, arrays = signals
    write_stats(tmp_path / "stats.h5", arrays, 1.0)
    with caplog.at_level(logging.WARNING):
        CombinedHDF5Dataset(paths, stats_path=tmp_path / "stats.h5", trim_minutes=1)
        assert not caplog.text
        CombinedHDF5Dataset(paths, stats_path=tmp_path / "stats.h5")
        assert "trimmed by 1.0 minutes, and trim_minutes=None" in caplog.text


def test_the_cache_holds_values_as_they_are_read(signals, tmp_path):
    paths, arrays = signals
    write_stats(tmp_path / "stats.h5", arrays)
    options = {"stats_path": tmp_path / "stats.h5", "channels_last": True}
    dataset = CombinedHDF5Dataset(paths, cache_size=100, **options)
    first = dataset[4]
    first.fhr_st.zero_()
    again, other = dataset[4], pickle.loads(pickle.dumps(dataset))[4]
    assert torch.equal(again.fhr_st, other.fhr_st)
    assert again.fhr_st.any()
    parts = ConcatDataset([CombinedHDF5Dataset(path, **options) for path in paths])
    for batch in loader(parts, 7, seed=1):
        for i, row in enumerate(batch.epoch.int().tolist()):
            assert torch.equal(batch.fhr_up_ph[i], dataset[row].fhr_up_ph)


@pytest.mark.parametrize("workers", [1])
def test_worker_processes_standardise_too(signals, tmp_path, workers):
    paths, arrays = signals
    moments = write_stats(tmp_path / "stats.h5", arrays)
    dataset = CombinedHDF5Dataset(paths, ["fhr_st", "guid"], stats_path=tmp_path / "stats.h5", channels_last=True)
    batches = list(DataLoader(dataset, 6, num_workers=workers))
    values = expected(arrays, "fhr_st", moments).transpose(0, 2, 1)
    found = torch.cat([batch.fhr_st for batch in batches])
    np.testing.assert_allclose(found.numpy(), values, rtol=2e-5, atol=2e-5)


def test_bad_input(signals, tmp_path):
    paths, arrays = signals
    stats = tmp_path / "stats.h5"
    write_stats(stats, arrays, fields=["fhr", "fhr_st"])
    for options, error, said in (
        ({"stats_path": "missing.h5"}, NotFoundError, "missing.h5"),
        ({"stats_path": __file__}, NotHDF5Error, "signature"),
        (
            {"stats_path": stats, "normalize_fields": ["up"]},
            OptionError,
            "normalize_fields: .* has no statistics of 'up'",
        ),
        (
            {"stats_path": stats, "normalize_fields": ["fhr_sd"]},
            OptionError,
            "no field 'fhr_sd'. Did you mean 'fhr_st'",
        ),
        ({"stats_path": stats, "normalize_fields": "fhr"}, OptionError, r"write \['fhr'\]"),
        (
            {"trim_minutes": 4},
            OptionError,
            "trim_minutes=4 cuts 960 values off both ends of column 'fhr';",
        ),
        ({"trim_minutes": -1}, OptionError, "trim_minutes=-1: expected minutes of 0 or more"),
        ({"trim_minutes": "2"}, OptionError, "trim_minutes='2'"),
        ({"channels_last": "fhr_st"}, OptionError, r"write \['fhr_st'\]"),
    ):
        with pytest.raises(error, match=said):
            CombinedHDF5Dataset(paths, **options)
    # A field that no sample has needs no statistics, and one of the statistics no column.
    assert CombinedHDF5Dataset(paths, ["fhr"], stats_path=stats, normalize_fields=["fhr", "up", "fhr_st"])[0].fhr.any()
    assert CombinedHDF5Dataset(paths, ["fhr_st"], trim_minutes=3)[0].fhr_st.shape == (5, 30)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"mean": np.zeros(4), "std": np.ones(4)}, r"a mean and std for each channel of column 'fhr_st', .* found 4"),
        (
            {"mean": np.zeros(5)},
            "expected 'std' as one number, or one .*, found none; the group has mean",
        ),
        ({"mean": np.zeros((5, 2)), "std": np.ones((5, 2))}, r"found shape \(5, 2\)"),
        ({"mean": np.zeros(5), "std": -np.ones(5)}, "std of 0 or more"),
        ({"mean": np.full(5, np.nan), "std": np.ones(5)}, "a finite mean"),
        ({"mean": np.zeros(5), "std": np.ones(5), "log_channels": [5]}, "channels from 0 to 4 .* found 5"),
    ],
)
def test_statistics_that_make_no_sense(signals, tmp_path, group, said):
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        made = file.create_group("fhr_st")
        for name, values in group.items():
            made[name] = values
    with pytest.raises(SchemaMismatchError, match=f"stats.h5: 'fhr_st': .*{said}"):
        CombinedHDF5Dataset(signals[0], stats_path=tmp_path / "stats.h5")


def test_statistics_lead_nowhere_else(signals, tmp_path):
    layout = h5py.VirtualLayout((5,), "f8")
    layout[:] = h5py.VirtualSource(signals[0][0], "epoch", (5,))
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        group = file.create_group("fhr_st")
        group.create_virtual_dataset("mean", layout)
        group["std"] = np.ones(5)
    with pytest.raises(UnsupportedColumnError, match="leads elsewhere"):
        CombinedHDF5Dataset(signals[0], stats_path=tmp_path / "stats.h5")


def test_values_that_are_not_finite_stay_so(tmp_path):
    values = np.array([np.nan, np.inf, -np.inf, -1, 0, 3e38], "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values[:, None, None].repeat(2, 1)
        file["y"] = values
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        for name, channels in (("x", [0.0, 0.0]), ("y", 0.0)):
            group = file.create_group(name)
            group["mean"], group["std"] = channels, np.ones_like(channels)
        file["x"].attrs["log_channels"] = [1]
    batch = CombinedHDF5Dataset(tmp_path / "a.h5", stats_path=tmp_path / "stats.h5")[list(range(6))]
    with np.errstate(all="ignore"):
        log = np.log(np.maximum(values, 0) + np.float32(1e-6))
    for found, expected_values in ((batch.x[:, 0, 0], values), (batch.x[:, 1, 0], log), (batch.y, values)):
        np.testing.assert_allclose(found.numpy(), expected_values, rtol=1e-6)


def test_statistics_of_a_field_that_is_not_standardised_may_be_unusable(signals, tmp_path):
    paths, arrays = signals
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file["fhr/mean"], file["fhr/std"] = 140.0, 20.0
        file["up/mean"], file["up/std"] = np.nan, 1.0
        file["history/loss"] = np.zeros(3)
    for options in ({"normalize_fields": ["fhr"]}, {"load_fields": ["fhr"]}):
        dataset = CombinedHDF5Dataset(paths, stats_path=tmp_path / "stats.h5", **options)
        np.testing.assert_allclose(dataset[0]["fhr"], (arrays["fhr"][0] - 140) / 20, rtol=1e-5, atol=1e-5)
        assert list(dataset.get_normalization_stats()) == ["fhr"]
        assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)
    for options in ({"normalize_fields": ["fhr", "up"]}, {"load_fields": ["up"]}, {}):
        with pytest.raises(SchemaMismatchError, match="'up': expected a finite mean"):
            CombinedHDF5Dataset(paths, stats_path=tmp_path / "stats.h5", **options)


def test_fields_to_standardise_without_statistics_give_a_warning(signals, caplog):
    paths, arrays = signals
    dataset = CombinedHDF5Dataset(paths, normalize_fields=["up", "fhr"])
    np.testing.assert_array_equal(dataset[0]["fhr"], arrays["fhr"][0])
    assert "normalize_fields=['fhr', 'up']: nothing is standardised without stats_path=" in caplog.text
    caplog.clear()
    CombinedHDF5Dataset(paths, normalize_fields=[])
    assert not caplog.text
