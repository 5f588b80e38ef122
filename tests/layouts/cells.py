"""Cells, neurons, patients and slides."""

import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.sparse

from tests.hdf5.h5kit import texts_of_pandas_3
from tests.layouts.kit import Want, layout, numbers, put


def _cells(dense, genes, seed=0):
    values = np.random.default_rng(seed).integers(0, 3, (6, len(genes))).astype("f4")
    obs = pd.DataFrame({"cell_type": pd.Categorical(list("abcabc"))}, index=[f"c{i}" for i in range(6)])
    x = values if dense else scipy.sparse.csr_matrix(values)
    return anndata.AnnData(x, obs, pd.DataFrame(index=genes), obsm={"X_pca": values[:, :2].copy()})


@layout("AnnData, sparse", extensions=("h5ad",))
def sparse_cells(folder):
    cells = _cells(False, ["g1", "g2", "g3"])
    cells.write_h5ad(folder / "cells.h5ad")
    return Want(6, {"X": (2, cells.X[2].toarray()[0]), "obs/cell_type": (1, "b")})


@layout("AnnData, dense", extensions=("h5ad",))
def dense_cells(folder):
    cells = _cells(True, ["g1", "g2", "g3"])
    cells.write_h5ad(folder / "cells.h5ad")
    return Want(6, {"X": (2, cells.X[2]), "obs/cell_type": (1, "b")})


@layout("AnnData, dense, files with other orders of genes", "warned", "names='var/_index'", extensions=("h5ad",))
def other_genes(folder):
    first, second = _cells(True, ["g1", "g2", "g3"]), _cells(True, ["g3", "g1", "g2"], 1)
    first.write_h5ad(folder / "a.h5ad")
    second.write_h5ad(folder / "b.h5ad")
    return Want(12, {"X": (8, second.X[2][[1, 2, 0]])})


@layout("AnnData, sparse, files with other orders of genes", "warned", "names='var/_index'", extensions=("h5ad",))
def other_genes_sparse(folder):
    first, second = _cells(False, ["g1", "g2", "g3"]), _cells(False, ["g3", "g1", "g2"], 1)
    first.write_h5ad(folder / "a.h5ad")
    second.write_h5ad(folder / "b.h5ad")
    return Want(12, {"X": (8, second.X[2].toarray()[0][[1, 2, 0]])})


@layout("AnnData with pandas 3, files with other orders of genes", "warned", "names='var/_index'", extensions=("h5ad",))
def other_genes_pandas_3(folder):
    want = other_genes_sparse(folder)
    for name in ("a.h5ad", "b.h5ad"):
        texts_of_pandas_3(folder / name, "obs/_index", "var/_index")
    return want


@layout("MuData", "refused", "group='mod/prot'", extensions=("h5mu",))
def mudata(folder):
    for name, genes in (("rna", ["g1", "g2", "g3"]), ("prot", ["p1", "p2"])):
        with h5py.File(folder / "cells.h5mu", "a") as file:
            anndata.io.write_elem(file.require_group("mod"), name, _cells(False, genes))
    with h5py.File(folder / "cells.h5mu", "a") as file:
        file.attrs["encoding-type"], file.attrs["encoding-version"] = "MuData", "0.1.0"
        anndata.io.write_elem(file, "obs", pd.DataFrame(index=[f"c{i}" for i in range(6)]))
        anndata.io.write_elem(file, "var", pd.DataFrame(index=["g1", "g2", "g3", "p1", "p2"]))
        file["obsmap/rna"] = np.arange(1, 7)
    return Want(6, {"X": (2, _cells(False, ["p1", "p2"]).X[2].toarray()[0])})


@layout("10x")
def tenx(folder):
    counts = scipy.sparse.random(4, 6, 0.4, "csc", random_state=1)
    put(
        folder / "filtered_feature_bc_matrix.h5",
        {
            "matrix/data": counts.data,
            "matrix/indices": counts.indices,
            "matrix/indptr": counts.indptr,
            "matrix/shape": np.array([4, 6]),
            "matrix/barcodes": np.array([f"AC{i}".encode() for i in range(6)]),
            "matrix/features/id": np.array([b"a", b"b", b"c", b"d"]),
            "matrix/features/name": np.array([b"a", b"b", b"c", b"d"]),
            "matrix/features/_all_tag_keys": np.array([b"genome"]),
        },
    )
    return Want(6, {"matrix": (2, counts.toarray()[:, 2])})


@layout("loom", "refused", "axes='reversed'", extensions=("loom",))
def loom(folder):
    put(
        folder / "a.loom",
        {
            "matrix": numbers(4, 6),
            "row_attrs/Gene": np.array([b"a", b"b", b"c", b"d"]),
            "col_attrs/CellID": np.array([f"c{i}".encode() for i in range(6)]),
            "layers/spliced": numbers(4, 6),
            "attrs/LOOM_SPEC_VERSION": "3.0.0",
        },
    )
    return Want(6, {"matrix": (2, numbers(4, 6)[:, 2])})


@layout(
    "NWB: units", "refused", "ray_h5.ragged('units/spike_times', ends='units/spike_times_index')", extensions=("nwb",)
)
def nwb(folder):
    put(
        folder / "a.nwb",
        {
            "acquisition/ElectricalSeries/data": numbers(50, 4, dtype="i2"),
            "acquisition/ElectricalSeries/timestamps": numbers(50),
            "units/id": np.arange(3),
            "units/spike_times": numbers(11),
            "units/spike_times_index": np.array([4, 5, 11]),
            "general/extracellular_ephys/electrodes/id": np.arange(4),
            "general/extracellular_ephys/electrodes/x": numbers(4),
            "intervals/trials/id": np.arange(5),
            "intervals/trials/start_time": numbers(5),
            "intervals/trials/stop_time": numbers(5),
            "session_description": "a session",
            "file_create_date": np.array(["2024-01-01"], object),
        },
    )
    return Want(3, {"units/spike_times": (2, numbers(11)[5:])})


@layout("PhysioNet-like: a patient a group", "refused", "rows=ray_h5.Groups('p*')")
def patients(folder):
    for i in range(4):
        put(
            folder / "a.h5",
            {f"p0000{i}/ecg": numbers(50 + i, 2, start=i), f"p0000{i}/label": i % 2, f"p0000{i}/rr": numbers(5 + i)},
        )
    return Want(4, {"ecg": (1, numbers(51, 2, start=1)), "label": (1, 1)})


@layout("ECG: tracings and labels")
def tracings(folder):
    put(folder / "a.hdf5", {"tracings": numbers(8, 40, 12), "exam_id": np.arange(8), "signal_id": np.arange(8)})
    return Want(8, {"tracings": (3, numbers(8, 40, 12)[3])})


@layout("a night a file, with channels of several rates", "refused", "rows=ray_h5.Files()")
def nights(folder):
    for i in range(3):
        put(
            folder / f"night_{i}.h5",
            {"eeg": numbers(90 + i, start=i), "spo2": numbers(9), "hypnogram": np.zeros(3, int)},
        )
    return Want(3, {"eeg": (1, numbers(91, start=1))})


@layout("CAMELYON features: a slide a file", "warned", "rows=ray_h5.Files()")
def slides(folder):
    for i in range(4):
        put(
            folder / f"tumor_{i:03d}.h5", {"features": numbers(7 + i, 16, start=i), "coords": np.zeros((7 + i, 2), int)}
        )
    return Want(4, {"features": (2, numbers(9, 16, start=2))})


@layout("BraTS: a slice a file", "warned", "rows=ray_h5.Files()")
def slices(folder):
    for i in range(4):
        put(
            folder / f"volume_1_slice_{i}.h5",
            {"image": numbers(40, 40, 4, start=i), "mask": np.zeros((40, 40, 3), "u1")},
        )
    return Want(4, {"image": (1, numbers(40, 40, 4, start=1))})


@layout("CREMI: a volume with labels", "warned", "rows=ray_h5.Patches({")
def volumes(folder):
    put(
        folder / "sample_A.hdf",
        {"volumes/raw": numbers(10, 80, 80, dtype="u1"), "volumes/labels/neuron_ids": np.zeros((10, 80, 80), "u8")},
    )
    return Want(4, {"volumes/raw": (0, numbers(10, 80, 80, dtype="u1")[:, :64, :64])}, "sample_A.hdf")


@layout("volumes of several shapes: a scan a file", "warned", "rows=ray_h5.Files()")
def scans(folder):
    for i in range(3):
        put(
            folder / f"scan_{i}.h5",
            {"raw": numbers(9 + i, 40, 36 + i, start=i), "label": np.zeros((9 + i, 40, 36 + i), "u1")},
        )
    return Want(3, {"raw": (1, numbers(10, 40, 37, start=1))})


@layout("volumes of several shapes: a scan a group", "refused")
def scans_in_groups(folder):
    for i in range(6):
        put(
            folder / "scans.h5",
            {
                f"scan_{i}/raw": numbers(9 + i, 40, 36 + i, start=i),
                f"scan_{i}/label": np.zeros((9 + i, 40, 36 + i), "u1"),
            },
        )
    return Want(21, {"raw": (1, numbers(10, 40, 37, start=1)[:9, :, :36])}, "scans.h5")


@layout("PCam", "right")
def pcam(folder):
    put(folder / "x.h5", {"x": numbers(6, 8, 8, 3, dtype="u1")})
    return Want(6, {"x": (2, numbers(6, 8, 8, 3, dtype="u1")[2])})


@layout("10x before version 3", "refused", "columns=[ray_h5.csr('GRCh38'), 'GRCh38/barcodes']")
def old_tenx(folder):
    counts = scipy.sparse.random(4, 6, 0.4, "csc", random_state=1)
    parts = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr, "shape": np.array([4, 6])}
    parts |= {"barcodes": np.array([f"AC{i}".encode() for i in range(6)]), "genes": np.array([b"a", b"b", b"c", b"d"])}
    put(folder / "a.h5", {f"GRCh38/{name}": values for name, values in parts.items()})
    return Want(6, {"GRCh38": (2, counts.toarray()[:, 2])})


@layout("a sparse matrix without its shape", "refused", "columns=[ray_h5.csr('counts', shape=(6, 4)), 'cells']")
def matrix_without_a_shape(folder):
    counts = scipy.sparse.random(6, 4, 0.4, "csr", random_state=1)
    parts = {f"counts/{name}": getattr(counts, name) for name in ("data", "indices", "indptr")}
    put(folder / "a.h5", {**parts, "cells": [f"AC{i}" for i in range(6)], "genes": list("abcd")})
    return Want(6, {"counts": (2, counts.toarray()[2])})


@layout("embeddings of proteins", "odd")
def per_protein(folder):
    put(folder / "a.h5", {f"{'ABCDEFGHIJKL'[i % 12]}{i % 10}A{i:02d}{i % 10}": numbers(32, start=i) for i in range(40)})
    return Want(40, {"value": (0, numbers(32))})


@layout("embeddings of residues", "refused", "rows=ray_h5.Groups('*')")
def per_residue(folder):
    put(folder / "a.h5", {f"{'ABCDEFG'[i]}0A{i:02d}{i}": numbers(20 + i, 32, start=i) for i in range(7)})
    return Want(7, {"value": (1, numbers(21, 32, start=1))})


@layout("features by the name of a video", "refused", "rows=ray_h5.Groups('v_*')")
def videos_by_name(folder):
    put(
        folder / "a.h5",
        {f"v_{name}": numbers(5 + i, 16, start=i) for i, name in enumerate(("Ax_Q", "Bz0W", "CyE", "DxR", "FxT"))},
    )
    return Want(5, {"value": (1, numbers(6, 16, start=1))})


@layout("TRIDENT: a slide a file, after an axis of one", "warned", "rows=ray_h5.Files()")
def trident(folder):
    for i in range(3):
        put(
            folder / f"TCGA-{i}.h5",
            {"features": numbers(1, 30 + i, 16, start=i), "coords": np.zeros((1, 30 + i, 2), int)},
        )
    return Want(3, {"features": (2, numbers(1, 32, 16, start=2))})


@layout("nights in one file, with hypnograms at 1/30 Hz", "refused", "rows=ray_h5.Groups('SC*E0')")
def nights_in_one_file(folder):
    for i in range(5):
        n = 20 + i
        put(
            folder / "a.h5",
            {
                f"SC4{i}01E0/signals/EEG Fpz-Cz": numbers(n * 30, start=i),
                f"SC4{i}01E0/signals/EOG horizontal": numbers(n * 30),
                f"SC4{i}01E0/hypnogram": np.arange(n) % 5,
                f"SC4{i}01E0/fs": 100.0,
            },
        )
    return Want(5, {"hypnogram": (2, np.arange(22) % 5)})


@layout("SLEAP: frames along the last axis", "refused")
def sleap(folder):
    put(
        folder / "a.analysis.h5",
        {
            "tracks": numbers(2, 2, 5, 90),
            "track_occupancy": np.zeros((90, 2), "u1"),
            "point_scores": numbers(2, 5, 90),
            "instance_scores": numbers(2, 90),
            "node_names": np.array([b"a", b"b", b"c", b"d", b"e"]),
            "edge_inds": np.zeros((4, 2), int),
        },
    )
    return Want(90, {"tracks": (3, numbers(2, 2, 5, 90)[..., 3].T)})


@layout("DeepLabCut: columns of several levels")
def deep_lab_cut(folder):
    levels = pd.MultiIndex.from_product([["net"], ["nose", "tail"], ["x", "y", "likelihood"]])
    frame = pd.DataFrame(numbers(9, 6, dtype="f8"), columns=levels)
    frame.to_hdf(folder / "a.h5", key="df_with_missing", format="table")
    return Want(9, {"df_with_missing/net/tail/x": (3, 21.0)})
