"""H5Dataset and loader over files in stores: same rows, few requests, and errors with names."""

import pickle
import shutil

import fsspec
import h5py
import numpy as np
import pytest
import torch
from pyarrow.fs import FSSpecHandler, PyFileSystem, S3FileSystem

from ray_h5.cli import main
from ray_h5.compat.optimal_dataloader import OptimalDataLoaderFactory, with_start_method
from ray_h5.errors import NotFoundError, NotReadableError, OptionError, StaleIndexError
from ray_h5.torch_data import H5Dataset, H5LazyDataset, loader, where
from tests.kit.stores import served

pytest.importorskip("obstore")

CANARY = "CANARY0123456789"


@pytest.fixture
def server(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "bkt/runs/deep").mkdir(parents=True)
    for number in range(6):
        folder = "runs/deep" if number > 3 else "runs"
        with h5py.File(tmp_path / f"bkt/{folder}/run_{number}.h5", "w") as file:
            file["x"] = rng.random((20, 5)).astype("f4")
            file.create_dataset("z", data=rng.integers(0, 9, (20, 4)), chunks=(3, 4), compression="gzip")
            file["s"] = np.array([f"row {i}" for i in range(20)], object)
            file["label"] = np.arange(20) % 3
    (tmp_path / "bkt/runs/notes.txt").write_text("no file")
    (tmp_path / "bkt/runs/._run_0.h5").write_text("hidden")
    with served(tmp_path) as server:
        server.data = tmp_path / "bkt"
        yield server


def paths_of(dataset):
    return dataset._source.plan.files.all_paths()


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("s3://bkt/runs/run_*.h5", 4),
        ("s3://bkt/runs", 6),
        ("s3://bkt/runs/", 6),
        ("s3://bkt", 6),
        ("s3://bkt/runs/**/*.h5", 6),
        ("s3://bkt/*/run_[01].h5", 2),
        ("s3://bkt/run*/deep/*.h5", 2),
        ("s3://bkt/run*", 6),
        ("s3://anonymous@bkt/runs/run_1.h5", 1),
        (["s3://bkt/runs/run_3.h5", "s3://bkt/runs/run_1.h5", "s3://bkt/runs/run_?.h5"], 4),
    ],
)
def test_files_folders_and_globs(server, given, count):
    dataset = H5Dataset(given, ["label"], storage_options=server.options)
    assert len(paths_of(dataset)) == count
    assert len(dataset) == 20 * count


def test_files_where_nothing_may_be_listed(server):
    """Credentials may give out files and yet list none."""
    shutil.copy(server.data / "runs/run_1.h5", server.data / "recording")
    server.fail("status", status=403, method="LIST")
    options = {"storage_options": server.options}
    assert len(H5Dataset(["s3://bkt/recording", "s3://bkt/runs/run_1.h5"], **options)) == 40
    missing = ["s3://bkt/runs/run_9.h5", "s3://bkt/runs/run_1.h5"]
    with pytest.raises(NotFoundError, match=r"1 path does not exist:\n  s3://bkt/runs/run_9.h5\n"):
        H5Dataset(missing, **options)
    assert len(H5Dataset(missing, ignore_missing_paths=True, **options)) == 20
    for url in ("s3://bkt/runs", "s3://bkt/runs/*.h5", "s3://bkt/runs/"):
        with pytest.raises(NotReadableError, match="listing it"):
            H5Dataset(url, ignore_missing_paths=True, **options)


def test_what_does_not_exist(server):
    with pytest.raises(NotFoundError, match=r"run_9\.h5 \(There is: s3:.*run_0\.h5"):  # another number is other data
        H5Dataset(["s3://bkt/runs/run_9.h5", "s3://bkt/runs/run_1.h5"], storage_options=server.options)
    with pytest.raises(NotFoundError, match="a glob that matches nothing"):
        H5Dataset("s3://bkt/runs/*.nc", storage_options=server.options)
    with pytest.raises(NotFoundError):
        H5Dataset("s3://nobucket/x/*.h5", storage_options=server.options)
    kept = ["s3://bkt/none.h5", "s3://bkt/runs/run_1.h5"]
    assert len(H5Dataset(kept, storage_options=server.options, ignore_missing_paths=True)) == 20
    for url in (f"{server.url}/bkt/runs/", f"{server.url}/bkt/runs/*.h5"):
        with pytest.raises(OptionError, match="does not list its files"):
            H5Dataset(url, storage_options={"allow_http": True})
    with pytest.raises(OptionError, match="hdfs"):
        H5Dataset("hdfs://bkt/x.h5")
    with pytest.raises(OptionError, match="storage_options"):
        H5Dataset(str(server.data / "runs/run_1.h5"), storage_options={"region": "x"})


@pytest.mark.parametrize("shuffle", [False, "rows", "chunks", "files"])
def test_the_rows_of_local_files(server, shuffle):
    remote = H5Dataset("s3://bkt/runs/*.h5", storage_options=server.options)
    local = H5Dataset(str(server.data / "runs/run_*.h5"))
    for threads in (0, 2):
        pair = (loader(each, 7, shuffle=shuffle, seed=3, threads=threads) for each in (remote, local))
        for ours, theirs in zip(*pair, strict=True):
            assert ours.keys() == theirs.keys()
            assert ours.s == theirs.s
            assert all(torch.equal(ours[name], theirs[name]) for name in ("x", "z", "label"))
    assert all(each.if_match for each in server.requests() if each.range)


def test_mixed_with_local_files_and_predicates(server):
    given = ["s3://bkt/runs/run_0.h5", str(server.data / "runs/run_1.h5"), f"{server.url}/bkt/runs/run_2.h5"]
    dataset = H5Dataset(given, ["x", "s"], where(label=[1]), storage_options=server.options)
    assert len(dataset) == 21
    by_path = {path.rsplit("/", 1)[-1]: i for i, path in enumerate(paths_of(dataset))}
    for name, file_number in by_path.items():
        with h5py.File(server.data / "runs" / name) as file:
            assert torch.equal(dataset[7 * file_number].x, torch.from_numpy(file["x"][1]))


def test_nothing_secret_is_kept_or_said(server, tmp_path, capsys, caplog):
    secret = {"access_key_id": CANARY, "secret_access_key": CANARY, "session_token": CANARY}
    options = {**server.options, **secret, "skip_signature": False}
    index = tmp_path / "index"
    caplog.set_level("DEBUG")
    dataset = H5Dataset("s3://bkt/runs/run_*.h5", storage_options=options, index_dir=index, kept_bytes=0)
    dataset.read(np.arange(10))
    signed = f"{server.url}/bkt/runs/run_1.h5?X-Amz-Signature={CANARY}"
    web = H5Dataset(signed, storage_options={"allow_http": True}, index_dir=index, kept_bytes=0)
    texts = [repr(each) for each in (dataset, web, dataset._source.plan, web._source.plan, dataset._files, web._files)]
    texts += [repr(dataset._source.plan.scope), str(paths_of(web))]
    assert web[3].label == 0
    assert main(["inspect", signed, "--storage-option", "allow_http=true", "--json"]) == 0
    server.fail("status", status=403)
    for work in (lambda: dataset.read(np.arange(60)), lambda: web.read(np.arange(20))):
        with pytest.raises(NotReadableError, match="refuses") as caught:
            work()
        texts += [str(caught.value), repr(caught.getrepr(style="long", showlocals=False))]
    captured = capsys.readouterr()
    texts += [captured.out, captured.err, caplog.text]
    texts += [path.read_bytes().decode("latin1") for path in index.iterdir()]
    assert not [text for text in texts if CANARY in text]
    assert CANARY.encode() in pickle.dumps(dataset)  # workers need it


@pytest.fixture
def memory(server):
    found = fsspec.filesystem("memory")
    for number in range(3):
        found.pipe(f"/bkt/d/run_{number}.h5", (server.data / f"runs/run_{number}.h5").read_bytes())
    yield found
    found.rm("/bkt", recursive=True)


@pytest.mark.parametrize("wrap", [lambda fs: fs, lambda fs: PyFileSystem(FSSpecHandler(fs))])
def test_file_systems(server, memory, wrap):
    local = H5Dataset([str(server.data / f"runs/run_{number}.h5") for number in range(3)])
    for given in ("bkt/d/*.h5", "/bkt/d", "memory://bkt/d", [f"bkt/d/run_{number}.h5" for number in range(3)]):
        dataset = H5Dataset(given, filesystem=wrap(memory), kept_bytes=0)
        assert paths_of(dataset) == [f"memory://bkt/d/run_{number}.h5" for number in range(3)]
        for ours, theirs in zip(loader(dataset, 9, seed=1), loader(local, 9, seed=1), strict=True):
            assert ours.s == theirs.s
            assert all(torch.equal(ours[name], theirs[name]) for name in ("x", "z", "label"))
    memory.pipe("/bkt/d/run_1.h5", (server.data / "runs/run_2.h5").read_bytes())
    with pytest.raises(StaleIndexError, match="run_1"):
        dataset.read(np.arange(30))
    with pytest.raises(NotFoundError, match="memory://bkt/none"):
        H5Dataset("bkt/none/x.h5", filesystem=wrap(memory))
    with pytest.raises(OptionError, match="pass one of them"):
        H5Dataset("bkt/d", filesystem=wrap(memory), storage_options={"region": "x"})
    with pytest.raises(OptionError, match=r"cache_dir: .*no cache"):
        H5Dataset("bkt/d", filesystem=wrap(memory), cache_dir="nvme", cache_bytes="1GB")


def test_a_file_system_of_s3(server):
    host = server.url.removeprefix("http://")
    found = S3FileSystem(endpoint_override=host, scheme="http", anonymous=True, region="us-east-1")
    for given in ("bkt/runs/run_*.h5", "s3://bkt/runs/*.h5", "s3://bkt/runs"):
        local = H5Dataset(f"{server.data.parent}/{given.removeprefix('s3://')}")
        dataset = H5Dataset(given, filesystem=found, kept_bytes=0)
        assert len(dataset) == len(local)
        for ours, theirs in zip(loader(dataset, 9, seed=1), loader(local, 9, seed=1), strict=True):
            assert ours.s == theirs.s
            assert torch.equal(ours.x, theirs.x)


@pytest.mark.slow
def test_workers_are_started_by_forkserver(server):
    dataset = H5Dataset("s3://bkt/runs/run_*.h5", ["x"], storage_options=server.options)
    made = OptimalDataLoaderFactory.create_validation_loader(dataset, 8, num_workers=1)
    assert made.multiprocessing_context.get_start_method() == "forkserver"
    assert sum(len(batch.x) for batch in made) == 80
    local = H5Dataset(str(server.data / "runs/run_0.h5"), ["x"])
    made = OptimalDataLoaderFactory.create_validation_loader(local, 8, num_workers=1)
    assert made.multiprocessing_context is None


def test_datasets_of_pairs(server):
    pairs = H5LazyDataset("s3://bkt/runs/run_0.h5", "x", "label", storage_options=server.options)
    with h5py.File(server.data / "runs/run_0.h5") as file:
        for i in (3, 0, 19):
            x, label = pickle.loads(pickle.dumps(pairs))[i]
            assert np.array_equal(x, file["x"][i])
            assert label == file["label"][i]
    with pytest.raises(NotFoundError, match=r"run_9\.h5"):
        H5LazyDataset("s3://bkt/runs/run_9.h5", "x", storage_options=server.options)
    with pytest.raises(OptionError, match="regionn"):
        H5LazyDataset("s3://bkt/runs/run_0.h5", "x", storage_options={**server.options, "regionn": "x"})
    assert with_start_method(pairs, {"num_workers": 1})["multiprocessing_context"] == "forkserver"
