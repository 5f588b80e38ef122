import io

import h5py
import numpy as np
import pytest
from PIL import Image

from ray_h5.codecs import pipeline
from tests.kit.fault_server import FaultServer

ROWS, STEPS = 100, 50


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with the files that the pages read: four runs, samples that are groups, and a file of MATLAB."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "data").mkdir()
    for number in range(4):
        write_run(folder / "data" / f"run_{number}.h5", number)
    (folder / "targets").mkdir()
    for number in range(4):
        with h5py.File(folder / "targets" / f"run_{number}.h5", "w") as file:
            file["target"] = np.arange(float(ROWS))
            file["temperature"] = np.arange(float(ROWS))
    (folder / "matlab").mkdir()
    with h5py.File(folder / "matlab" / "a.mat", "w", userblock_size=512) as file:
        file["signal"] = np.arange(30.0).reshape(10, 3)
        file["signal"].attrs["MATLAB_class"] = np.bytes_("double")
    words = np.frombuffer("go".encode("utf-16-le"), "<u2")[:, None]
    with h5py.File(folder / "session.mat", "w", userblock_size=512) as file:
        for name, values in {"spikes": np.arange(5.0)[:, None], "words": words}.items():
            target = file.create_dataset(f"#refs#/{name}", data=values)
            target.attrs["MATLAB_class"] = np.bytes_("char" if name == "words" else "double")
            file.create_dataset(name, (2, 1), h5py.ref_dtype)[...] = [[target.ref]] * 2
    with h5py.File(folder / "samples.h5", "w") as file:
        for i in range(5):
            file[f"sample_{i}/x"] = np.full((3, 4), i, "f4")
            file[f"sample_{i}/y"] = i
    write_episodes(folder)
    write_slides_and_scans(folder)
    with h5py.File(folder / "photos.h5", "w") as file:
        photos = file.create_dataset("photo", (10,), h5py.vlen_dtype("u1"))
        for i in range(10):
            out = io.BytesIO()
            Image.fromarray(np.full((20 + i, 30, 3), 20 * i, "u1")).save(out, "JPEG" if i % 2 else "PNG")
            photos[i] = np.frombuffer(out.getvalue(), "u1")
        file["label"] = np.arange(10)
    write_cells(folder)
    write_parts(folder)
    write_molecules(folder)
    write_waveforms(folder)
    (folder / "clevr").mkdir()
    with h5py.File(folder / "clevr" / "features.h5", "w") as file:
        file["features"] = np.zeros((12, 8, 2, 2), "f4")
        file["scene"] = [("indoor", "outdoor")[i % 2] for i in range(12)]
    with h5py.File(folder / "clevr" / "questions.h5", "w") as file:
        file["question"], file["image_idx"] = np.zeros((50, 6), "i4"), np.arange(50) % 12
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
        drugs = file.create_group("obs/perturbation")
        drugs.attrs["encoding-type"] = "categorical"
        drugs["codes"], drugs["categories"] = np.arange(90, dtype="i1") % 3, [b"control", b"drug A", b"drug B"]
        file["obsm/X_pca"] = rng.standard_normal((90, 4)).astype("f4")
        file["var/_index"] = [f"gene{i}".encode() for i in range(20)]
    with h5py.File(folder / "events.h5", "w") as file:
        counts = rng.integers(0, 9, 30)
        file["events/offsets"] = np.concatenate([[0], np.cumsum(counts)])
        for name in ("x", "y"):
            file[f"events/{name}"] = rng.standard_normal(counts.sum())
        file["label"] = rng.integers(0, 3, 30)


def write_parts(folder):
    rng = np.random.default_rng(0)
    with h5py.File(folder / "jets.h5", "w") as file:
        jets = np.zeros((60, 40), [(name, "f4") for name in ("pt", "eta", "phi", "m")])
        event = np.zeros(60, [("weight", "f4"), ("label", "i4")])
        event["weight"] = rng.random(60)
        file.create_dataset("jets", data=jets, chunks=(10, 40), compression="gzip")
        file["event"] = event
    with h5py.File(folder / "weather.h5", "w") as file:
        file.create_dataset("fields", data=rng.random((6, 10, 24, 32)).astype("f4"), chunks=(1, 1, 24, 32))
        file["channels"] = [b"t2m", b"u10", *(b"c%d" % i for i in range(8))]
    with h5py.File(folder / "session.h5", "w") as file:
        for name, rate in (("lfp", 200), ("speed", 30)):
            file[f"{name}/timestamps"] = np.arange(20 * rate) / rate
            file[f"{name}/data"] = rng.random(20 * rate)
        file["spikes"] = np.sort(rng.random(300) * 20)
        file["sleep/stage"] = rng.integers(0, 3, 10)
        file["sleep/stage"].attrs["rate"] = 0.5


def write_molecules(folder):
    rng = np.random.default_rng(0)
    with h5py.File(folder / "molecules.h5", "w") as file:
        for i in range(40):
            atoms = rng.integers(3, 12)
            group = file.create_group(f"molecule_{i}")
            group["atomic_numbers"] = rng.choice([1, 6, 7, 8], atoms).astype("u1")
            group["positions"] = rng.standard_normal((atoms, 3)).astype("f4")
            group["energy"] = -float(atoms)


def write_waveforms(folder):
    """A bucket of waveforms and a table, as SeisBench writes them."""
    rng = np.random.default_rng(0)
    ends = rng.integers(60, 101, 30)
    with h5py.File(folder / "waveforms.hdf5", "w") as file:
        file["data_format/component_order"] = "ZNE"
        file["data/bucket0"] = rng.standard_normal((30, 3, 100)).astype("f4")
    lines = [f"bucket0${i},:3,:{end},{rng.integers(5, 50)}" for i, end in enumerate(ends)]
    lines = [f'"{line.rpartition(",")[0]}",{line.rpartition(",")[2]}' for line in lines]
    (folder / "metadata.csv").write_text("\n".join(["trace_name,trace_p_arrival_sample", *lines, ""]))


def write_slides_and_scans(folder):
    rng = np.random.default_rng(0)
    (folder / "slides").mkdir()
    (folder / "scans").mkdir()
    for i in range(6):
        with h5py.File(folder / "slides" / f"slide_{i}.h5", "w") as file:
            file["features"] = rng.standard_normal((50 + 30 * i, 16)).astype("f4")
            file["coords"] = rng.integers(0, 999, (50 + 30 * i, 2))
            file.attrs["mpp"] = 0.5
    lines = ["slide_id,label", *(f"slide_{i},{i % 2}" for i in range(6)), ""]
    (folder / "slides.csv").write_text("\n".join(lines))
    for i in range(3):
        with h5py.File(folder / "scans" / f"scan_{i}.h5", "w") as file:
            shape = (12 + i, 16, 16 + i)
            how = {"chunks": (8, 8, 8), "compression": "gzip"}
            file.create_dataset("raw", data=rng.standard_normal(shape).astype("f4"), **how)
            file.create_dataset("label", data=rng.integers(0, 2, shape).astype("u1"), **how)


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
    monkeypatch.setattr(pipeline, "CODECS", {**pipeline.CODECS})  # a page adds one
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    pipeline.decodes.cache_clear()  # it knows the codec that a page added
