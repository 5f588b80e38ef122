import gc
import os
import pickle

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.utils.data import DataLoader, default_collate

from ray_h5 import Groups, H5DataLoader, H5Dataset, OrderSampler, csr, errors, loader, ragged
from ray_h5.torch_data import H5LazyDataset, create_optimized_dataloader, kfold, where
from tests.index.kit import plan_files
from tests.kit.files import save
from tests.rows.test_ranges_equal_numpy import write_matrix

from .conftest import ids_of


def test_a_sample_has_the_dtypes_of_the_files(files):
    dataset = H5Dataset(files)
    sample = dataset[9]
    assert {name: getattr(value, "dtype", type(value)) for name, value in sample.items()} == {
        "bg_label": torch.uint8,
        "cs_label": torch.uint8,
        "epoch": torch.float32,
        "fhr": torch.float64,
        "fhr_st": torch.float32,
        "guid": str,
        "target": torch.float32,
        "weight": torch.float32,
    }
    assert H5Dataset(files, ["fhr"], dtypes={"fhr": "float16"})[9].fhr.dtype == torch.float16
    assert "60 samples of 4 files" in repr(dataset)


SHORT = {"epoch": np.zeros(9, "f4"), "fhr": np.zeros((10, 40))}
THIN = {"epoch": np.zeros(10, "f4"), "fhr": np.zeros((10, 1))}
READ_ONLY = {"epoch": np.broadcast_to(np.float32(0), 10), "fhr": np.zeros((10, 40))}


@pytest.mark.parametrize("kept_bytes", [0, None])
@pytest.mark.parametrize("out", [SHORT, THIN, READ_ONLY, {"fhr": np.zeros((10, 40))}, {**THIN, "fhr": [0.0]}])
def test_arrays_to_read_into_have_a_place_for_each_sample(files, kept_bytes, out):
    dataset = H5Dataset(files, ["epoch", "fhr"], kept_bytes=kept_bytes)
    dataset.read(np.arange(60))  # the files are open: rows of all of them are planned at once
    with pytest.raises(errors.OptionError, match=r"expected an? .*array"):
        dataset.read(np.arange(10), out)


@pytest.mark.parametrize("kept_bytes", [0, None])
def test_what_is_read_into_other_dtypes_or_longer_arrays_is_held_as_it_is_stored(kept_bytes, tmp_path):
    values = {"x": np.random.default_rng(0).random((40, 3), "f4"), "text": np.array([b"t%d" % i for i in range(40)])}
    dataset = H5Dataset(save(tmp_path / "a.h5", values), kept_bytes=kept_bytes)
    rows = np.random.default_rng(1).permutation(40)[:10]
    for dtype, text, count in [
        ("f2", "S3", 10),
        ("f8", "U9", 12),
        ("f4", "O", 10),
        ("f4", "O", 16),
        (">f4", "S8", 11),
    ] * 2:
        out = {"x": np.zeros((count, 3), dtype), "text": np.zeros(count, text)}
        assert dataset.read(rows, out)["x"] is out["x"]
        np.testing.assert_array_equal(out["x"][:10], values["x"][rows].astype(dtype))
        assert [t if isinstance(t, bytes) else t.encode() for t in out["text"][:10].tolist()] == values["text"][
            rows
        ].tolist()
        assert not out["x"][10:].any()
    np.testing.assert_array_equal(dataset.read(rows)["x"], values["x"][rows])
    for name, dtype in (("x", "i4"), ("text", "S1")):
        out = {"x": np.zeros((10, 3), "f4"), "text": np.zeros(10, "O")} | {
            name: np.zeros((10, 3)[: 1 + (name == "x")], dtype)
        }
        with pytest.raises(errors.CastError, match=f"a.h5, row {rows[0]}: column '{name}': the value"):
            dataset.read(rows, out)


def test_the_table_of_held_rows_counts(tmp_path):
    path = save(tmp_path / "a.h5", {"x": np.arange(40_000) % 100}, dtype="i1", chunks=(1000,))
    for kept_bytes, held in ((40_000 * 8, 40_000), (64_000, 8000), (0, 0)):
        dataset = H5Dataset(path, kept_bytes=kept_bytes)
        for _ in range(2):
            assert (dataset.read(np.arange(40_000))["x"] == np.arange(40_000) % 100).all()
        assert dataset.source.num_held() == held
        assert dataset.source.keeps_all == (held == 40_000)


def open_below(folder):
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(
        {
            os.path.basename(os.readlink(link))
            for link in links
            if os.path.lexists(link) and os.readlink(link).startswith(str(folder))
        }
    )


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted there")
@pytest.mark.parametrize("columns", [["x"], ["stack"], ["side"], ["link", "raw"]])
def test_a_dataset_that_is_closed_has_no_files_open(columns, tmp_path):
    sources = [save(tmp_path / f"source{i}.h5", {"x": np.arange(4.0) + i}, chunks=(3,)) for i in range(2)]
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(8.0)
            for column, shape, at in (
                ("stack", (8,), lambda i: np.s_[4 * i : 4 * i + 4]),
                ("side", (4, 2), lambda i: np.s_[:, i]),
            ):
                layout = h5py.VirtualLayout(shape, "f8")
                for i, source in enumerate(sources):
                    layout[at(i)] = h5py.VirtualSource(source, "x", (4,))
                file.create_virtual_dataset(column, layout)
            file["link"] = h5py.ExternalLink(sources[0], "x")
            file.create_dataset("raw", (4,), "f8", external=[(str(tmp_path / "raw.bin"), 0, 32)])[...] = 1
    other = H5Dataset(str(tmp_path / "b.h5"), columns, allow_external=[tmp_path])
    dataset = H5Dataset(str(tmp_path / "[ab].h5"), columns, allow_external=[tmp_path])
    rows = np.arange(len(dataset))
    before = dataset.read(rows)
    for _ in range(2):
        assert len(open_below(tmp_path)) >= 2
        dataset.release()
        gc.collect()
        assert open_below(tmp_path) == []
        after = dataset.read(rows)
        assert all((before[name] == after[name]).all() for name in columns)
    dataset.close()
    gc.collect()
    assert open_below(tmp_path) == []
    assert (other.read(np.arange(4))[columns[0]] == before[columns[0]][-len(other) :][:4]).all()


@pytest.mark.parametrize("kept_bytes", [0, None])
def test_samples_of_a_read_are_checked(files, kept_bytes):
    dataset = H5Dataset(files, ["epoch"], kept_bytes=kept_bytes)
    assert dataset.read(np.array([-1, 59]))["epoch"].tolist() == [29, 29]
    assert [batch.epoch.tolist() for batch in H5DataLoader(dataset, batch_sampler=[[-1, 3]])] == [[29, 3]]
    for read in (dataset.read, lambda wanted: list(H5DataLoader(dataset, batch_sampler=[wanted.tolist()]))):
        with pytest.raises(errors.RowIndexError, match="index 60 is not among its 60 samples"):
            read(np.array([3, 60]))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"predicate": where(epoch=99)}, errors.PredicateError, "no sample matches: none of 60 rows passes"),
        ({"predicate": where(epok=9)}, errors.UnknownColumnError, "Did you mean 'epoch'"),
        ({"predicate": where(fhr=9)}, errors.PredicateError, "holds an array of shape"),
        ({"predicate": "epoch > 3"}, errors.OptionError, "expected an expression"),
        ({"columns": "fhr"}, errors.OptionError, r"write columns=\['fhr'\]"),
        ({"columns": ["fhr_sd"]}, errors.UnknownColumnError, "Did you mean"),
        ({"kept_bytes": -1}, errors.OptionError, "kept_bytes=-1"),
        ({"kept_bytes": 1.5}, errors.OptionError, "kept_bytes=1.5"),
        ({"cache_bytes": 9}, errors.OptionError, "cache_bytes: .*for files in stores"),
    ],
)
def test_bad_input(files, options, error, said):
    with pytest.raises(error, match=said):
        H5Dataset(files, **options)


def test_origins_are_files_and_rows_there(files):
    dataset = H5Dataset(files, ["guid", "fhr_st"], where(cs_label=True))
    indices = [len(dataset) - 1, 0, -2]
    for index, (path, row) in zip(indices, dataset.origins(indices), strict=True):
        with h5py.File(path) as file:
            assert np.array_equal(file["fhr_st"][row], dataset[index].fhr_st)
    with pytest.raises(IndexError):
        dataset.origins([len(dataset)])


def test_pickling_keeps_the_selection_and_no_handle(files):
    dataset = H5Dataset(files, ["fhr_st"], where(cs_label=True))
    _ = dataset[3]
    again = pickle.loads(pickle.dumps(dataset))
    assert len(again._source._readers) == 0
    assert ids_of(next(iter(DataLoader(again, batch_size=20)))) == list(range(0, 60, 3))


def test_ending_an_epoch_early_leaves_no_thread(files):
    import threading

    before = {*threading.enumerate()}
    for _ in range(3):
        for _batch in loader(files, 4, columns=["fhr_st"], threads=2):
            break
    assert {*threading.enumerate()} <= before  # those of other tests may have ended


def test_a_predicate_sees_what_is_delivered_as_in_ray(tmp_path):
    path = save(tmp_path / "a.h5", {"epoch": np.array([9.5, 10.5, 10.9, 11.5], "f4"), "x": np.arange(4.0)})
    options = {"columns": ["epoch", "x"], "predicate": where(epoch=10), "dtypes": {"epoch": "u1"}}
    options["casting"] = "unsafe"
    dataset = H5Dataset(path, **options)
    assert [sample.x.item() for sample in dataset] == [1, 2]
    assert dataset.row_ids(range(len(dataset))).tolist() == plan_files([path], **options)[1].selection.tolist()


def test_a_state_that_would_tell_what_was_read_ahead_is_refused(files):
    dataset = H5Dataset(files, ["fhr_st"])
    batches = H5DataLoader(dataset, 7, OrderSampler(dataset), threads=1)
    next(iter(batches))
    with pytest.raises(errors.OptionError, match="OrderSampler of run_length=1 has no state after the last batch"):
        batches.state_dict()
    inside = OrderSampler(dataset, stretch=7)
    next(iter(inside))
    resumed = loader(dataset, 7, seed=0)
    resumed.load_state_dict(inside.state_dict())  # one row is done
    assert [len(batch["guid" if "guid" in batch else "fhr_st"]) for batch in resumed] == [7] * 8 + [3]


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_threads_and_what_they_read_ahead_are_numbers(files, wrong):
    with pytest.raises(errors.OptionError, match=r"threads=.*expected an integer of 0 or more"):
        loader(files, threads=wrong)
    with pytest.raises(errors.OptionError, match=r"prefetch_factor=.*expected an integer of 1 or more, or None"):
        create_optimized_dataloader(files, prefetch_factor=wrong)
    with pytest.raises(errors.OptionError, match="prefetch_factor=0"):
        H5DataLoader(H5Dataset(files), prefetch_factor=0)
    assert len(list(loader(files, threads=np.int64(2)))) == 1


def test_what_is_no_one_dataset_is_named(files):
    dataset = H5Dataset(files)
    with pytest.raises(errors.OptionError, match=r"found the path '.*'; write H5Dataset\('"):
        OrderSampler("data/*.h5")  # a text has a length
    with pytest.raises(errors.OptionError, match=r"paths: found a dataset, H5Dataset; pass its paths: expected a file"):
        kfold(dataset, 2)


def test_a_loader_without_a_batch_says_so(files, caplog):
    for size, drop_last in ((60, True), (61, False)):
        assert len(loader(files, size, drop_last=drop_last)) == 1
    assert not caplog.text
    assert not list(loader(files, 61, drop_last=True))
    assert "there is no batch: 60 samples make none of 61 on each rank with drop_last=True" in caplog.text


def test_a_loader_of_empty_files_says_that_they_have_no_samples(tmp_path, caplog):
    save(tmp_path / "a.h5", {"x": np.zeros((0, 3), "f4")})
    assert not list(loader(tmp_path, 4))
    assert "there is no batch: H5Dataset(0 samples of 1 file: x) has no samples" in caplog.text
    assert "drop_last" not in caplog.text


def orders_of(batches, passes):
    return [[i for batch in batches for i in ids_of(batch)] for _ in range(passes)]


def ten_times(sample):
    for value in sample.values():
        if isinstance(value, np.void):
            value["a"] *= 10
        elif isinstance(value, (torch.Tensor, np.ndarray)):
            np.multiply(value, 10, out=value) if isinstance(value, np.ndarray) else value.mul_(10)
        elif isinstance(value, list):
            for each in value:
                np.multiply(each, 10, out=each)
    return sample


@pytest.mark.parametrize("options", [{}, {"kept_bytes": 0}])
@pytest.mark.parametrize("column", ["number", "lists", "pairs_of_lists", "struct", "ragged", "csr", "group"])
def test_a_transform_in_place_changes_its_own_sample_only(tmp_path, column, options):
    ones = np.ones(3, np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["number"] = np.ones((6, 2))
        for name, shape in (("lists", (6,)), ("pairs_of_lists", (6, 2))):
            lists = file.create_dataset(name, shape, h5py.vlen_dtype(np.float32))
            for place in np.ndindex(*shape):
                lists[place] = ones
        file["struct"] = np.ones(6, [("a", "i4"), ("b", "f4", (2,))])
        file["ragged"], file["offsets"] = np.ones(18), np.arange(7) * 3
        write_matrix(file.create_group("csr"), sp.csr_matrix(np.ones((6, 4), np.float32)))
        for i in range(6):
            file[f"groups/{i}/group"] = np.ones(i + 1)
    made = {"ragged": ragged("ragged", offsets="offsets"), "csr": csr("csr")}
    if column == "group":
        options = {**options, "group": "groups", "rows": Groups("*")}
    dataset = H5Dataset(tmp_path, [made.get(column, column)], transform=ten_times, **options)
    expected = str(dataset[1])
    assert "10" in expected
    found = [dataset[1], *dataset.__getitems__([1, 0, 1]), dataset[1], *dataset.__getitems__([1, 2])]
    assert [str(found[i]) for i in (0, 1, 3, 4, 5)] == [expected] * 5


@pytest.mark.parametrize("make", [loader, create_optimized_dataloader])
def test_each_pass_is_the_next_epoch(files, make):
    expected = []
    for epoch in range(7):
        chosen = make(files, 7)
        (chosen.sampler if make is create_optimized_dataloader else chosen).set_epoch(epoch)
        expected += orders_of(chosen, 1)
    assert len(set(map(tuple, expected))) == 7
    batches = make(files, 7)
    assert orders_of(batches, 3) == expected[:3]
    batches.sampler.set_epoch(1)
    assert batches.sampler.epoch == 1
    assert orders_of(batches, 2) == expected[1:3]
    batches.sampler.set_epoch(5)
    batches.sampler.set_epoch(5)
    next(iter(batches))  # a pass that ends early is one too
    assert orders_of(batches, 1) == expected[6:]


def test_processes_of_the_optimized_loader_advance_too(files):
    batches = create_optimized_dataloader(files, 7, 1, multiprocessing_context="fork")
    assert not isinstance(batches, H5DataLoader)
    first, second = orders_of(batches, 2)
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second
    assert [second] == orders_of(_at_epoch(create_optimized_dataloader(files, 7), 1), 1)


def _at_epoch(batches, epoch):
    batches.sampler.set_epoch(epoch)
    return batches


def test_passes_at_the_same_time_are_of_two_epochs(files):
    epochs = orders_of(loader(files, 7, columns=["fhr_st"]), 3)
    batches = loader(files, 7, columns=["fhr_st"])
    both = [(ids_of(one), ids_of(other)) for one, other in zip(batches, batches, strict=True)]
    assert [[i for ids in side for i in ids] for side in zip(*both, strict=True)] == epochs[:2]
    assert orders_of(batches, 1) == epochs[2:]


@pytest.mark.parametrize(("threads", "world_size"), [(0, 1), (2, 2)])
def test_a_state_of_a_later_pass_resumes_in_that_pass(files, threads, world_size):
    def make():
        return loader(files, 7, columns=["fhr_st"], threads=threads, rank=0, world_size=world_size)

    epochs = [[ids_of(batch) for batch in batches] for batches in [make()] for _ in range(3)]
    for done in range(len(epochs[1]) + 1):
        batches = make()
        assert len(list(batches)) == len(epochs[0])
        running = iter(batches)
        head = [ids_of(next(running)) for _ in range(done)]
        state = batches.state_dict()
        resumed = make()
        resumed.load_state_dict(state)
        resumed.set_epoch(1)  # as frameworks do; it changes nothing
        assert head + [ids_of(batch) for batch in resumed] == epochs[1]
        assert [ids_of(batch) for batch in resumed] == epochs[2]


def by_epoch(samples):
    samples.sort(key=lambda sample: -int(sample["epoch"]))
    samples.append(samples.pop(0))
    return default_collate(samples)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_may_change_the_list_of_samples(files, workers):
    dataset = H5Dataset(files, ["epoch", "fhr_st"])
    batches = DataLoader(dataset, batch_size=6, num_workers=workers, collate_fn=by_epoch)
    assert ids_of(next(iter(batches))) == [4, 3, 2, 1, 0, 5]
    samples = dataset.__getitems__([1, 2, 3])
    del samples[1]
    samples[0] = dataset[7]
    samples.reverse()
    assert len(samples) == 2
    assert ids_of(default_collate(samples)) == [3, 7]
    assert [int(sample.epoch) for sample in samples[:]] == [3, 7]


@pytest.mark.parametrize("indices", [[0.5, 1.0], np.arange(3) / 2, [True, False], torch.ones(2, dtype=torch.bool)])
def test_what_is_no_index_is_not_made_one(files, indices):
    dataset = H5Dataset(files, ["epoch"])
    with pytest.raises(errors.OptionError, match="expected integers for indices"):
        dataset.__getitems__(indices)
    assert len(dataset.__getitems__([])) == 0
    assert [int(each.epoch) for each in dataset.__getitems__([torch.tensor(4), np.uint8(3), -60])] == [4, 3, 0]


def test_text_that_is_not_utf_8(tmp_path):
    path = save(tmp_path / "a.h5", {"name": np.array([b"a", b"\xff\xfe", b"c"]), "x": np.arange(3)})
    dataset = H5Dataset(path)
    assert dataset[0]["name"] == "a"
    lazy = H5LazyDataset(path, "x", "name")
    message = r"a\.h5, row 1: column 'name' holds b'\\xff\\xfe', which is not UTF-8.*: bytes"
    batches = loader(dataset, 2, shuffle=False)
    for read in (lambda: dataset[1], lambda: dataset.__getitems__([0, 1]), lambda: lazy[1], lambda: list(batches)):
        with pytest.raises(errors.UnsupportedColumnError, match=message):
            read()
    as_stored = H5Dataset(path, dtypes={"name": bytes})
    assert as_stored[1]["name"] == b"\xff\xfe"
    (batch,) = DataLoader(as_stored, batch_size=3)
    assert batch["name"] == [b"a", b"\xff\xfe", b"c"]


def test_a_cast_that_loses_a_value_is_an_error(tmp_path):
    save(tmp_path / "a.h5", {"x": np.array([1, 2, 300, 4]), "y": np.array([[0.5, 1], [2, 3], [4, 5], [6, np.nan]])})
    path, narrow = str(tmp_path / "a.h5"), {"x": "int8"}
    dataset = H5Dataset(path, dtypes=narrow)
    with pytest.raises(errors.CastError, match=r"a\.h5: column 'x', row 2: the value 300 cannot be cast to int8"):
        dataset[2]
    with pytest.raises(errors.CastError, match="row 2"):
        list(loader(dataset, 4))
    unsafe = H5Dataset(path, dtypes=narrow, casting="unsafe")
    assert [sample.x.item() for sample in unsafe] == [1, 2, 44, 4]
    assert next(iter(loader(unsafe, 4, shuffle=False)))["x"].tolist() == [1, 2, 44, 4]
    with pytest.raises(errors.CastError, match=r"column 'y', row 0: the value 0\.5 cannot be cast to int32"):
        list(loader(H5Dataset(path, ["y"], dtypes={"y": "int32"}), 4))
    assert H5Dataset(path, dtypes={"y": "float16"})[3].y.tolist()[0] == 6
    with pytest.raises(errors.OptionError, match="casting='safe': expected 'checked'"):
        H5Dataset(path, casting="safe")


def test_rows_that_are_left_out_need_no_cast(tmp_path):
    save(tmp_path / "a.h5", {"x": np.where(np.arange(64) % 2, 1000, np.arange(64)), "odd": np.arange(64) % 2})
    dataset = H5Dataset(str(tmp_path / "a.h5"), ["x"], where(odd=0), dtypes={"x": "int8"})
    assert [batch["x"].tolist() for batch in loader(dataset, 16, shuffle=False)] == [
        list(range(0, 32, 2)),
        list(range(32, 64, 2)),
    ]
    with pytest.raises(errors.CastError, match="row 1: the value 1000"):
        H5Dataset(str(tmp_path / "a.h5"), ["odd"], where(x=2), dtypes={"x": "int8"})
    wrapped = H5Dataset(
        str(tmp_path / "a.h5"), ["odd"], where(x=np.int64(1000).astype("i1")), dtypes={"x": "int8"}, casting="unsafe"
    )
    assert len(wrapped) == 32
    with pytest.raises(errors.CastError, match="row 1: the value 1000"):  # what was looked up unchecked does not count
        H5Dataset(str(tmp_path / "a.h5"), ["odd"], where(x=2), dtypes={"x": "int8"})
