import io

import h5py
import numpy as np
import pytest
from PIL import Image

from ray_h5.bench.server import FaultServer

ROWS, STEPS = 100, 50


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with the files that the pages read: four runs, samples that are groups, and a file of MATLAB."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "data").mkdir()
    for number in range(4):
        write_run(folder / "data" / f"run_{number}.h5", number)
    (folder / "matlab").mkdir()
    with h5py.File(folder / "matlab" / "a.mat", "w", userblock_size=512) as file:
        file["signal"] = np.arange(30.0).reshape(10, 3)
        file["signal"].attrs["MATLAB_class"] = np.bytes_("double")
    with h5py.File(folder / "samples.h5", "w") as file:
        for i in range(5):
            file[f"sample_{i}/x"] = np.full((3, 4), i, "f4")
            file[f"sample_{i}/y"] = i
    write_episodes(folder)
    with h5py.File(folder / "photos.h5", "w") as file:
        photos = file.create_dataset("photo", (10,), h5py.vlen_dtype("u1"))
        for i in range(10):
            out = io.BytesIO()
            Image.fromarray(np.full((20 + i, 30, 3), 20 * i, "u1")).save(out, "JPEG" if i % 2 else "PNG")
            photos[i] = np.frombuffer(out.getvalue(), "u1")
        file["label"] = np.arange(10)
    write_cells(folder)
    patients = range(ROWS * 4 // 10)
    lines = [f"patient_{number:04d},{('benign', 'malignant')[number % 2]}" for number in patients]
    (folder / "labels.csv").write_text("\n".join(["patient,diagnosis", *lines, ""]))
    return folder


def write_cells(folder):
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (90, 20))
    rows, genes = np.nonzero(counts)
    with h5py.File(folder / "cells.h5ad", "w") as file:
        file.attrs["encoding-type"] = "anndata"
        matrix = file.create_group("X")
        matrix.attrs.update({"encoding-type": "csr_matrix", "shape": counts.shape})
        matrix["data"], matrix["indices"] = counts[rows, genes].astype("f4"), genes.astype("i4")
        matrix["indptr"] = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=90))])
        types = file.create_group("obs/cell_type")
        types.attrs["encoding-type"] = "categorical"
        types["codes"], types["categories"] = rng.integers(0, 2, 90).astype("i1"), [b"B cell", b"T cell"]
        file["obsm/X_pca"] = rng.standard_normal((90, 4)).astype("f4")
        file["var/_index"] = [f"gene{i}".encode() for i in range(20)]
    with h5py.File(folder / "events.h5", "w") as file:
        counts = rng.integers(0, 9, 30)
        file["events/offsets"] = np.concatenate([[0], np.cumsum(counts)])
        for name in ("x", "y"):
            file[f"events/{name}"] = rng.standard_normal(counts.sum())
        file["label"] = rng.integers(0, 3, 30)


def write_episodes(folder):
    rng = np.random.default_rng(0)
    with h5py.File(folder / "demos.h5", "w") as file:
        for i in range(9):
            length = 10 + 5 * i
            group = file.create_group(f"data/demo_{i}")
            group["actions"] = rng.standard_normal((length, 7))
            group["obs/eef"] = rng.standard_normal((length, 3)).astype("f4")
            group.attrs["num_samples"] = length
        file["mask/train"] = [b"demo_0", b"demo_3", b"demo_8"]
    with h5py.File(folder / "well.h5", "w") as file:
        file["t0_fields/u"] = rng.standard_normal((3, 20, 8, 8)).astype("f4")
        file["dimensions/time"] = np.arange(20) / 10
        file["dimensions/x"] = np.linspace(0, 1, 8)


def write_run(path, number):
    rng = np.random.default_rng(number)
    columns = {
        "image": rng.random((ROWS, 3, 32, 32), dtype="f4"),
        "label": rng.integers(0, 4, ROWS),
        "quality": rng.random(ROWS),
        "patient": np.array([f"patient_{(number * ROWS + row) // 10:04d}" for row in range(ROWS)], dtype=object),
        "signal": rng.standard_normal((ROWS, 8, STEPS)).astype("f4"),
        "target": rng.integers(0, 4, (ROWS, STEPS)),
        "weight": (rng.random((ROWS, STEPS)) < 0.9).astype("f4"),
        "mask/train": rng.random(ROWS) < 0.8,
    }
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            if name in ("image", "signal"):
                file.create_dataset(name, data=values, chunks=(1, *values.shape[1:]), compression="lzf")
            else:
                file[name] = values
        file.attrs["site"] = "ABC"[number % 3]
        file.attrs["sampling_rate"] = 250.0


@pytest.fixture(scope="session")
def store(made, tmp_path_factory):
    """The folder `data` of `made` as ``s3://bucket``."""
    root = tmp_path_factory.mktemp("store")
    (root / "bucket").symlink_to(made / "data")
    with FaultServer(root) as server:
        yield server


@pytest.fixture
def folder(made, store, monkeypatch, tmp_path):
    """The files of `made`, below the current folder of the test."""
    options = {"ENDPOINT_URL": store.url, "REGION": "us-east-1", "ALLOW_HTTP": "true", "SKIP_SIGNATURE": "true"}
    for name, value in options.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
