"""DLIO generates files and trains on them, by its own programs, through both classes of the adapter."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import h5py
import pytest

from tests.docs.pages import ROOT

from .conftest import ADAPTERS

pytest.importorskip("dlio_benchmark")

pytestmark = pytest.mark.nightly

FILES, SAMPLES, BATCH, EPOCHS = 3, 8, 4, 2

CONFIG = {
    "workflow.evaluation": False,
    "dataset.format": "hdf5",
    "dataset.data_folder": "data",
    "dataset.num_files_train": FILES,
    "dataset.num_files_eval": 0,
    "dataset.num_samples_per_file": SAMPLES,
    "dataset.record_length": 1024,
    "dataset.num_subfolders_train": 0,
    "dataset.num_subfolders_eval": 0,
    "dataset.generation_buffer_size": 1 << 16,
    "reader.batch_size": BATCH,
    "reader.sample_shuffle": "seed",
    "train.epochs": EPOCHS,
    "train.computation_time": 0.001,
}

RECORDING = """
import dlio_h5, hashlib, os

def note(sample):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(hashlib.sha256(sample.tobytes()).hexdigest() + chr(10))

class Loader(dlio_h5.H5DataLoader):
    def next(self):
        for batch in super().next():
            [note(sample.numpy()) for sample in batch]
            yield batch

class Reader(dlio_h5.H5Reader):
    def get_sample(self, filename, sample_index):
        super().get_sample(filename, sample_index)
        note(self.sample)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dlio")
    (folder / "recording.py").write_text(RECORDING)
    if find_spec("tensorflow") is None:  # DLIO imports it for a profiler that is off
        (folder / "tensorflow.py").touch()
    run(folder, "generated", {"workflow.generate_data": True, "workflow.train": False})
    return folder


def run(folder, name, options):
    """Run DLIO's program; return its report."""
    config = [f"++workload.{key}={value}" for key, value in (CONFIG | options | {"output.folder": name}).items()]
    paths = os.pathsep.join(map(str, (ROOT, ADAPTERS, folder)))
    environment = os.environ | {"PYTHONPATH": paths, "NOTES": str(folder / f"{name}.txt"), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "dlio_benchmark.main", "workload=default", *config]
    done = subprocess.run(
        program, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    summary = folder / name / "summary.json"
    return json.loads(summary.read_text()) if summary.exists() else {}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("name", ["Loader", "Reader"])
def test_dlio_trains_on_each_sample_once_an_epoch(folder, name, threads):
    options = {"reader.read_threads": threads}
    if name == "Loader":
        options |= {"reader.data_loader_classname": "recording.Loader", "reader.data_loader_sampler": "index"}
    else:
        options |= {"reader.reader_classname": "recording.Reader"}
    report = run(folder, f"{name}{threads}", options)
    assert report["num_files_train"] == FILES
    speeds = report["metric"]["train_throughput_samples_per_second"]
    assert len(speeds) == EPOCHS
    assert min(speeds) > 0
    assert report["metric"]["train_au_mean_percentage"] > 0
    samples = []
    for path in sorted((folder / "data" / "train").glob("*.hdf5")):
        with h5py.File(path) as file:
            samples += [hashlib.sha256(sample.tobytes()).hexdigest() for sample in file["records"][()]]
    noted = Path(folder / f"{name}{threads}.txt").read_text().split()
    assert sorted(noted) == sorted(EPOCHS * samples)
    if name == "Loader":  # workers of DLIO's own loader note in any order
        epochs = [noted[: len(samples)], noted[len(samples) :]]
        assert epochs[0] != epochs[1]
        assert sorted(epochs[0]) == sorted(samples)
