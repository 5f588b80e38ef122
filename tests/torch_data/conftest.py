import gc
import weakref

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ray_h5.plan import row_source
from ray_h5.read.jobs import ReadStats
from ray_h5.read.joint_columns import JointColumns

ROWS = (20, 0, 15, 25)
STEPS = 12


def write_signals(path, first, rows, one_hot=False):
    """Rows whose values tell which row they are: fhr_st of row i is i everywhere but at [0, 0]."""
    ids = np.arange(first, first + rows)
    rng = np.random.default_rng(first)
    target = rng.integers(0, 3, (rows, STEPS)).astype("f4")
    target[:, : STEPS // 2] = np.where(ids % 5 == 0, 4, target[:, : STEPS // 2].T).T  # class 4: every fifth row
    weight = np.ones((rows, STEPS), "f4")
    weight[ids % 10 == 0, : STEPS // 2] = 0  # of which every second has it only where nothing is valid
    with h5py.File(path, "w") as file:
        options = {"chunks": (1, 3, STEPS), "compression": "lzf"} if rows else {}
        file.create_dataset(
            "fhr_st", data=np.broadcast_to(ids[:, None, None], (rows, 3, STEPS)).astype("f4"), **options
        )
        file["fhr"] = np.broadcast_to(ids[:, None], (rows, 40)).astype("f8")
        file["target"] = np.eye(5, dtype="f4")[target.astype(int)].reshape(rows, STEPS, 5) if one_hot else target
        file["weight"] = weight
        file["epoch"] = (ids % 30).astype("f4")
        file["cs_label"] = (ids % 3 == 0).astype("u1")
        file["bg_label"] = (ids % 7 == 0).astype("u1")
        file["guid"] = np.array([f"patient_{i // 4:03d}" for i in ids], dtype=h5py.string_dtype())
    return str(path)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Four files of 60 rows together, one of them empty."""
    folder = tmp_path_factory.mktemp("signals")
    return [write_signals(folder / f"f{i}.h5", sum(ROWS[:i]), rows) for i, rows in enumerate(ROWS)]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """One file of 50 inputs (2, 5) f4 and targets i8; input i is i everywhere."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.h5"
    with h5py.File(path, "w") as file:
        images = np.broadcast_to(np.arange(50)[:, None, None], (50, 2, 5)).astype("f4")
        file.create_dataset("images", data=images, chunks=(8, 2, 5), compression="gzip")
        file["labels"] = np.arange(50) % 4
        file["bytes"] = np.arange(50 * 4 * 4 * 3, dtype="u1").reshape(50, 4, 4, 3)
        file["names"] = np.array([f"n{i}" for i in range(50)], dtype=h5py.string_dtype())
        file["short"] = np.arange(7)
        file.create_group("nested")["scores"] = np.arange(50, dtype=">f8")
    return str(path)


@pytest.fixture
def decoded(monkeypatch):
    """Return what counts the chunks that were decoded since it was called last."""
    stats, run_reads, counted = ReadStats(), row_source.run_reads, [0]
    monkeypatch.setattr(JointColumns, "of_files", lambda *_: None)  # it counts nothing
    monkeypatch.setattr(row_source, "run_reads", lambda *given, **more: stats.add(run_reads(*given, **more)))

    def since():
        counted.append(stats.chunks_decoded)
        return counted[-1] - counted[-2]

    return since


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def ended_workers(monkeypatch):
    """End the workers of each `DataLoader` with its test.

    An error that a worker raised keeps the iteration alive, until garbage is collected in some later test. There torch
    waits 5 s for each worker: the queue that would tell it to end is gone before the iteration.
    """
    iterations = weakref.WeakSet()
    init = _MultiProcessingDataLoaderIter.__init__

    def noted(self, loader):
        iterations.add(self)
        init(self, loader)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "__init__", noted)
    yield
    for each in list(iterations):
        each._shutdown_workers()


def error_of(batches):
    """Return an error without its traceback, which keeps the iteration: torch would wait 5 s for its workers."""
    gc.disable()  # the error of a worker that ends is raised wherever Python is: it is lost inside a collection
    try:
        list(batches)
    except (ValueError, RuntimeError) as exc:
        return exc.with_traceback(None)
    finally:
        gc.enable()


def ids_of(batch):
    """The rows of a batch of signals."""
    return batch["fhr_st"][:, 0, 0].int().tolist()
