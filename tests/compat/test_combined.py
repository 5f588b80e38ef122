import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ray_h5.errors import (
    CastError,
    NotFoundError,
    OptionError,
    PredicateError,
    RowIndexError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.torch_data import CombinedHDF5Dataset, create_optimized_dataloader, kfold, where
from tests.kit.files import save
from tests.torch_data.conftest import ids_of, write_signals

ALL = list(range(60))


def chosen(files, **criteria):
    return ids_of(next(iter(DataLoader(CombinedHDF5Dataset(files, **criteria), batch_size=100))))


def test_a_sample_is_a_dict_that_answers_attributes(files):
    sample = CombinedHDF5Dataset(files)[21]
    assert sorted(sample) == ["bg_label", "cs_label", "epoch", "fhr", "fhr_st", "guid", "target", "weight"]
    assert sample.fhr_st is sample["fhr_st"]
    assert (sample.guid, sample.cs_label, sample.bg_label) == ("patient_005", True, True)
    assert type(sample.cs_label) is type(sample.bg_label) is bool
    for name in ("epoch", "fhr", "fhr_st", "target", "weight"):
        assert sample[name].dtype == torch.float32
    assert sample.fhr_st.shape == (3, 12)
    assert sample.epoch == 21
    with pytest.raises(AttributeError, match="no 'nonsense'; it has"):
        _ = sample.nonsense


def test_numbers_have_one_dtype_and_text_may_be_bytes(files, tmp_path):
    for name in ("fhr_st", "cs_label"):
        with pytest.raises(OptionError, match=f"dtypes: column '{name}': .*dtype=torch.float64.*H5Dataset"):
            CombinedHDF5Dataset(files, dtypes={name: "float64"})
    save(tmp_path / "a.h5", {"site": np.array([b"\xff\xfe", b"a"])})
    dataset = CombinedHDF5Dataset(tmp_path / "a.h5", dtypes={"site": bytes})
    assert [each.site for each in dataset] == [b"\xff\xfe", b"a"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_varying_length_are_padded(tmp_path, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = file.create_dataset("values", (4,), h5py.vlen_dtype("f8"))
        for row, length in enumerate([3, 1, 2, 0]):
            values[row] = np.arange(length)
    dataset = CombinedHDF5Dataset([str(tmp_path / "a.h5")], ["values"], pad=-1, dtype=dtype)
    (batch,) = DataLoader(dataset, batch_size=4)
    assert batch["values"].tolist() == [[0, 1, 2], [0, -1, -1], [0, 1, -1], [-1, -1, -1]]
    assert batch["values"].dtype == dataset[0]["values"].dtype == dtype
    assert batch["values_length"].tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("criteria", "passes"),
    [
        ({}, lambda i: i >= 0),
        ({"cs_label": True}, lambda i: i % 3 == 0),
        ({"cs_label": False, "bg_label": False}, lambda i: i % 3 and i % 7),
        ({"epoch_min": 10.0}, lambda i: i % 30 >= 10),
        ({"epoch_min": 10.0, "epoch_max": 12}, lambda i: 10 <= i % 30 <= 12),
        ({"allowed_guids": ["patient_001", "patient_007", "nobody"]}, lambda i: i // 4 in (1, 7)),
        ({"label": 4}, lambda i: i % 5 == 0 and i % 10),
        ({"label": 4, "cs_label": True}, lambda i: i % 5 == 0 and i % 10 and i % 3 == 0),
    ],
)
def test_criteria(files, criteria, passes):
    assert chosen(files, **criteria) == [i for i in ALL if passes(i)]


def test_the_class_filter_takes_one_hot_targets(tmp_path):
    path = write_signals(tmp_path / "one_hot.h5", 0, 40, one_hot=True)
    assert chosen(path, label=4) == [5, 15, 25, 35]


def test_without_weights_every_time_step_counts(tmp_path):
    path = write_signals(tmp_path / "f.h5", 0, 40)
    with h5py.File(path, "a") as file:
        del file["weight"]
    assert chosen(path, label=4) == list(range(0, 40, 5))


@pytest.mark.parametrize(
    ("criteria", "emptied"),
    [
        ({"cs_label": True, "epoch_min": 99.0}, r"epoch_min=99\.0 left none of the 20 rows"),
        ({"label": 3}, "label=3 left none of the 60 rows"),
        ({"allowed_guids": ["nobody"]}, r"allowed_guids \(1 of them\) left none"),
        ({"epoch_min": 3, "epoch_max": 2}, "epoch_min=3 is above epoch_max=2"),
    ],
)
def test_no_match_says_which_criterion_emptied_it(files, criteria, emptied):
    with pytest.raises(ValueError, match=emptied):
        CombinedHDF5Dataset(files, **criteria)


def test_bad_input(files):
    with pytest.raises(NotFoundError, match=r"missing\.h5"):
        CombinedHDF5Dataset([*files, "missing.h5"])
    with pytest.raises(UnknownColumnError, match="Did you mean 'fhr_st'"):
        CombinedHDF5Dataset(files, load_fields=["fhr_sd"])
    with pytest.raises(OptionError, match="float16"):
        CombinedHDF5Dataset(files, dtype=torch.int64)
    with pytest.raises(OptionError, match="cache_size=-1"):
        CombinedHDF5Dataset(files, cache_size=-1)
    with pytest.raises(OptionError, match="expected a list"):
        CombinedHDF5Dataset(files, allowed_guids="patient_001")
    with pytest.raises(OptionError, match=r"predicate: expected an expression such as where\(label=1\), found str"):
        CombinedHDF5Dataset(files, predicate="nonsense")
    dataset = CombinedHDF5Dataset(files)
    for index in (60, -61):
        with pytest.raises(IndexError, match="0 to 59"):
            dataset[index]
    with pytest.raises(RowIndexError):
        dataset.__getitems__([1, 60])
    assert dataset[-1].epoch == 29
    dataset.close()
    with pytest.raises(OptionError, match="closed"):
        dataset[0]


def test_statistics_are_of_the_rows_in_memory(files):
    dataset = CombinedHDF5Dataset(files, ["fhr_st"], cs_label=True, cache_size=3)
    dataset.__getitems__([0, 1])
    dataset.__getitems__([1, 2])
    stats = dataset.get_stats()
    assert stats["cache_size"] == len(dataset._cache) == 3
    assert stats["dtype"] == torch.float32
    assert stats["cache_capacity"] == stats["total_samples"] == 20
    assert stats["cache_bytes"] == 3 * dataset.row_bytes
    assert stats["cache_hits"] + stats["cache_misses"] == stats["access_count"] == 4
    assert stats["cache_hits"] >= 1
    dataset.clear_cache()
    assert (dataset.get_stats()["cache_size"], dataset.get_stats()["cache_hits"]) == (0, 0)


@pytest.mark.parametrize("kept_bytes", [0, None])
def test_cached_samples_are_the_same_and_nobody_can_change_them(files, kept_bytes):
    dataset = CombinedHDF5Dataset(files, cache_size=40, kept_bytes=kept_bytes)
    plain = CombinedHDF5Dataset(files, cache_size=0, kept_bytes=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        indices = rng.integers(0, 60, 16).tolist()
        found, expected = dataset.__getitems__(indices).whole, plain.__getitems__(indices).whole
        assert found.guid == expected.guid
        assert all(torch.equal(found[n], expected[n]) for n in found if n != "guid")
        found.fhr_st.zero_()
    assert dataset.get_stats()["cache_hit_rate"] > 0.3


def test_options_of_the_loader_and_of_the_dataset_find_their_place(files):
    loader = create_optimized_dataloader(
        files, 8, 2, 0, 1, cs_label=True, label=4, cache_size=10, drop_last=True, prefetch_factor=3, shuffle=False,
        persistent_workers=True, timeout=30, collate_fn=lambda samples: [each.epoch.item() for each in samples],
    )  # fmt: skip
    assert list(loader) == []  # two samples are left
    loader = create_optimized_dataloader(files, 8, 2, 0, 1, shuffle=False, cache_size=10, drop_last=True)
    assert [i for batch in loader for i in ids_of(batch)] == ALL[:56]
    with pytest.raises(TypeError, match="CombinedHDF5Dataset: there is no option 'nonsense'"):
        create_optimized_dataloader(files, 8, 2, 0, 1, nonsense=1)
    with pytest.raises(OptionError, match="rank=2"):
        create_optimized_dataloader(files, 8, 2, 2, 2)
    with pytest.raises(OptionError, match="batch_size=0"):
        create_optimized_dataloader(files, 0)


def test_stats_count_what_threads_read(files):
    batches = create_optimized_dataloader(files, 16, num_workers=2, rank=0, world_size=1)
    assert sum(len(batch.guid) for batch in batches) == 60
    assert batches.dataset.get_stats()["access_count"] == 60
    batches.dataset.clear_cache()
    assert batches.dataset.get_stats()["access_count"] == 0
    uncached = CombinedHDF5Dataset(files, cache_size=0)
    uncached[0]
    assert uncached.get_stats()["access_count"] == 1


@pytest.mark.parametrize(
    ("values", "wanted", "rows"),
    [
        ([-1, 1, 2, 3], ["-1", "1"], [0, 1]),
        ([[-1], [1], [2], [3]], ["1", "site_b_7", "1.5", 1.5, 3, str(10**40)], [1, 3]),
        ([-1.0, 0.1, 2, np.inf], ["0.1", "2.0", "inf", "x", "nan"], [1, 2, 3]),
        (np.array([0.1, 0.2], "f4"), [str(float(np.float32(0.1)))], [0]),
        (["1", "b", "2.5"], [1, "b", 2.5], [0, 1, 2]),
    ],
)
def test_patients_are_found_by_what_samples_call_them(tmp_path, values, wanted, rows):
    save(tmp_path / "a.h5", {"guid": values, "x": np.arange(len(values))})
    assert [int(each.x) for each in CombinedHDF5Dataset(tmp_path / "a.h5", allowed_guids=wanted)] == rows
    everyone = CombinedHDF5Dataset(tmp_path / "a.h5")
    for i, guid in enumerate(each.guid for each in everyone):
        assert [int(each.x) for each in CombinedHDF5Dataset(tmp_path / "a.h5", allowed_guids=[guid])] == [i]
    with pytest.raises(PredicateError, match=r"no sample matches: allowed_guids \(1 of them\) left none"):
        CombinedHDF5Dataset(tmp_path / "a.h5", allowed_guids=["nobody"])


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("values", [[1.0, np.nan, 0, -0.0, 2, -1], [0, 1, 2, -1], [True, False]])
def test_labels_are_filtered_as_samples_show_them(tmp_path, values, shape):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["cs_label"] = file["bg_label"] = np.reshape(values, shape)
        file["x"] = np.arange(len(values))
    everyone = CombinedHDF5Dataset(tmp_path / "a.h5")
    for name in ("cs_label", "bg_label"):
        for wanted in (True, False):
            found = [int(each.x) for each in CombinedHDF5Dataset(tmp_path / "a.h5", **{name: wanted})]
            assert found == [int(each.x) for each in everyone if each[name] is wanted]


def test_complex_numbers_are_refused_by_name(tmp_path):
    save(tmp_path / "a.h5", {"z": np.arange(4) * 1j, "x": np.arange(4)})
    with pytest.raises(UnsupportedColumnError, match=r"'z'.*complex.*load_fields.*H5Dataset"):
        CombinedHDF5Dataset(tmp_path / "a.h5")
    assert len(CombinedHDF5Dataset(tmp_path / "a.h5", ["x"])) == 4


def test_values_in_rows_of_one(tmp_path):
    first = 2**24  # from here on float32 has no odd numbers
    for name, rows in (("a.h5", slice(0, 4)), ("b.h5", slice(4, 6))):
        with h5py.File(tmp_path / name, "w") as file:
            file["guid"] = first + np.arange(6, dtype=">i8")[rows, None]
            file["cs_label"] = np.array([[0], [1], [1]] * 2, "u1")[rows]
            file["bg_label"] = np.array([[True], [False]] * 3)[rows]
            file["epoch"] = np.array([0.1, 1, 2, 3, 4, np.nan], "f4")[rows, None]
            file["x"] = np.arange(12.0).reshape(6, 2)[rows]
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    dataset = CombinedHDF5Dataset(paths)
    assert [each.guid for each in dataset] == [str(first + i) for i in range(6)]
    assert next(iter(DataLoader(dataset, 2))).guid == [str(first), str(first + 1)]
    assert [each.cs_label for each in dataset] == [False, True, True] * 2
    assert dataset[1].epoch.shape == (1,)
    for criteria, rows in (
        ({"allowed_guids": [str(first + 1), first + 4, "7"]}, [1, 4]),
        ({"cs_label": True}, [1, 2, 4, 5]),
        ({"cs_label": False, "bg_label": False}, [3]),
        ({"epoch_min": 0.1, "epoch_max": 3, "bg_label": True}, [0, 2]),
    ):
        for fields in (None, ["x"]):
            chosen = CombinedHDF5Dataset(paths, fields, **criteria)
            assert [each.x[0] / 2 for each in chosen] == rows
    with pytest.raises(PredicateError, match=r"epoch_min=9 left none of the 4 rows before it \(of 6 rows"):
        CombinedHDF5Dataset(paths, cs_label=True, epoch_min=9)


def test_a_predicate_goes_with_the_criteria(files):
    seen = []
    for train, valid in kfold(files, 3, group="guid", stratify="cs_label"):
        parts = [chosen(files, predicate=rows, bg_label=False) for rows in (train, valid)]
        assert sorted(parts[0] + parts[1]) == [i for i in ALL if i % 7]
        assert not {i // 4 for i in parts[0]} & {i // 4 for i in parts[1]}
        seen += parts[1]
        loader = create_optimized_dataloader(files, 8, 0, 0, 1, predicate=valid, bg_label=False, shuffle=False)
        assert [i for batch in loader for i in ids_of(batch)] == parts[1]
    assert sorted(seen) == [i for i in ALL if i % 7]
    with pytest.raises(PredicateError, match=r"predicate left none of the 20 rows .*; predicate keeps 2"):
        CombinedHDF5Dataset(files, cs_label=True, predicate=where(epoch=10))


@pytest.mark.parametrize("fields", [None, ["fhr", "cs_label"]])
def test_files_may_hold_numbers_of_several_dtypes(tmp_path, fields):
    """They are all cast to the dtype of the dataset, and labels to bool."""
    paths = [write_signals(tmp_path / f"{i}.h5", 30 * i, 30) for i in range(2)]
    with h5py.File(paths[1], "a") as file:
        for name, dtype in (("fhr", "f4"), ("epoch", "f8"), ("target", "i8"), ("cs_label", "u1"), ("bg_label", "i4")):
            values = file[name][:]
            del file[name]
            file[name] = values.astype(dtype)
    criteria = {"cs_label": True, "epoch_max": 20, "label": 1}
    alone = [CombinedHDF5Dataset(path, fields, **criteria) for path in paths]
    dataset = CombinedHDF5Dataset(paths, fields, **criteria)
    assert len(dataset) == len(alone[0]) + len(alone[1])
    for i, sample in enumerate([*alone[0], *alone[1]]):
        assert dataset[i].cs_label is sample.cs_label is True
        assert torch.equal(dataset[i].fhr, sample.fhr)
    assert pickle.loads(pickle.dumps(dataset)).columns == dataset.columns


def test_both_ends_of_the_epochs_are_included(tmp_path):
    path = write_signals(tmp_path / "a.h5", 0, 3)
    with h5py.File(path, "a") as file:
        file["epoch"][:] = [0.1, 0.5, 0.7]
    assert chosen([path], epoch_min=0.1, epoch_max=0.5) == [0, 1]
    assert chosen([path], epoch_min=0.7) == [2]
    # As the files hold them, whatever dtype they are delivered in.
    assert chosen([path], epoch_min=0.1, predicate=where(epoch=0.1), dtype=torch.float16) == [0]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_values_that_the_dtype_cannot_hold(tmp_path):
    save(tmp_path / "a.h5", {"time": np.array([2**24 + 1, 2**40 + 1]), "x": np.array([1.0, 1e6])})
    path = str(tmp_path / "a.h5")
    assert CombinedHDF5Dataset(path)[1].time.item() == 2**40  # rounded, as any integer here
    half = CombinedHDF5Dataset(path, ["x"], dtype=torch.float16, kept_bytes=0)
    assert half[0].x.item() == 1
    with pytest.raises(CastError, match=r"column 'x', row 1: the value 1000000\.0 cannot be cast to float16"):
        half[1]
    assert CombinedHDF5Dataset(path, ["x"], dtype=torch.float16, casting="unsafe")[1].x.item() == float("inf")
