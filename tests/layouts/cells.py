"""Cells, neurons, patients and slides."""

from functools import partial

import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.sparse

from tests.hdf5.h5kit import texts_of_pandas_3
from tests.layouts.kit import Want, layout, numbers, put

OTHER_GENES = partial(layout, default="warned", call="names='var/_index'")


def _cells(dense, genes, seed=0):
    values = np.random.default_rng(seed).integers(0, 3, (6, len(genes))).astype("f4")
    obs = pd.DataFrame({"cell_type": pd.Categorical(list("abcabc"))}, index=[f"c{i}" for i in range(6)])
    x = values if dense else scipy.sparse.csr_matrix(values)
    return anndata.AnnData(x, obs, pd.DataFrame(index=genes), obsm={"X_pca": values[:, :2].copy()}), values


@layout("AnnData, sparse")
def sparse_cells(folder, *, dense=False):
    cells, values = _cells(dense, ["g1", "g2", "g3"])
    cells.write_h5ad(folder / "cells.h5ad")
    return Want(6, {"X": (2, values[2]), "obs/cell_type": (1, "b")})


layout("AnnData, dense")(partial(sparse_cells, dense=True))


@OTHER_GENES("AnnData, dense, files with other orders of genes")
def other_genes(folder, *, dense=True):
    for name, genes, seed in (("a.h5ad", ["g1", "g2", "g3"], 0), ("b.h5ad", ["g3", "g1", "g2"], 1)):
        cells, values = _cells(dense, genes, seed)
        cells.write_h5ad(folder / name)
    return Want(12, {"X": (8, values[2][[1, 2, 0]])})


other_genes_sparse = partial(other_genes, dense=False)
OTHER_GENES("AnnData, sparse, files with other orders of genes")(other_genes_sparse)


@OTHER_GENES("AnnData with pandas 3, files with other orders of genes")
def other_genes_pandas_3(folder):
    want = other_genes_sparse(folder)
    for name in ("a.h5ad", "b.h5ad"):
        texts_of_pandas_3(folder / name, "obs/_index", "var/_index")
    return want


@layout("MuData", "refused", "group='mod/prot'")
def mudata(folder):
    with h5py.File(folder / "cells.h5mu", "w") as file:
        for name, genes in (("rna", ["g1", "g2", "g3"]), ("prot", ["p1", "p2"])):
            cells, values = _cells(False, genes)
            anndata.io.write_elem(file.require_group("mod"), name, cells)
        file.attrs["encoding-type"], file.attrs["encoding-version"] = "MuData", "0.1.0"
        anndata.io.write_elem(file, "obs", pd.DataFrame(index=[f"c{i}" for i in range(6)]))
        anndata.io.write_elem(file, "var", pd.DataFrame(index=["g1", "g2", "g3", "p1", "p2"]))
        file["obsmap/rna"] = np.arange(1, 7)
    return Want(6, {"X": (2, values[2])})


@layout("10x")
def tenx(folder):
    counts = scipy.sparse.random(4, 6, 0.4, "csc", random_state=1)
    genes = np.array([b"a", b"b", b"c", b"d"])
    parts = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr, "shape": np.array([4, 6])}
    parts |= {"barcodes": np.array([f"AC{i}".encode() for i in range(6)])}
    features = {"features/id": genes, "features/name": genes, "features/_all_tag_keys": np.array([b"genome"])}
    put(folder / "filtered_feature_bc_matrix.h5", parts | features, below="matrix")
    return Want(6, {"matrix": (2, counts.toarray()[:, 2])})


@layout("10x before version 3", "refused", "columns=[ray_h5.csr('GRCh38'), 'GRCh38/barcodes']")
def old_tenx(folder):
    counts = scipy.sparse.random(4, 6, 0.4, "csc", random_state=1)
    parts = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr, "shape": np.array([4, 6])}
    parts |= {"barcodes": np.array([f"AC{i}".encode() for i in range(6)]), "genes": np.array([b"a", b"b", b"c", b"d"])}
    put(folder / "a.h5", parts, below="GRCh38")
    return Want(6, {"GRCh38": (2, counts.toarray()[:, 2])})


@layout("a sparse matrix without its shape", "refused", "columns=[ray_h5.csr('counts', shape=(6, 4)), 'cells']")
def matrix_without_a_shape(folder):
    counts = scipy.sparse.random(6, 4, 0.4, "csr", random_state=1)
    parts = {f"counts/{name}": getattr(counts, name) for name in ("data", "indices", "indptr")}
    put(folder / "a.h5", {**parts, "cells": [f"AC{i}" for i in range(6)], "genes": list("abcd")})
    return Want(6, {"counts": (2, counts.toarray()[2])})


@layout("loom", "refused", "axes='reversed'")
def loom(folder):
    genes, cells = np.array([b"a", b"b", b"c", b"d"]), np.array([f"c{i}".encode() for i in range(6)])
    names = {"row_attrs/Gene": genes, "col_attrs/CellID": cells, "attrs/LOOM_SPEC_VERSION": "3.0.0"}
    put(folder / "a.loom", {"matrix": (4, 6), "layers/spliced": (4, 6), **names})
    return Want(6, {"matrix": (2, numbers(4, 6)[:, 2])})


@layout("NWB: units", "refused", "ray_h5.ragged('units/spike_times', ends='units/spike_times_index')")
def nwb(folder):
    electrodes = {"id": np.arange(4), "x": (4,)}
    units = {"id": np.arange(3), "spike_times": (11,), "spike_times_index": np.array([4, 5, 11])}
    series = {"data": numbers(50, 4, dtype="i2"), "timestamps": (50,)}
    put(folder / "a.nwb", series, below="acquisition/ElectricalSeries")
    put(folder / "a.nwb", units, below="units")
    put(folder / "a.nwb", electrodes, below="general/extracellular_ephys/electrodes")
    put(folder / "a.nwb", {"id": np.arange(5), "start_time": (5,), "stop_time": (5,)}, below="intervals/trials")
    put(folder / "a.nwb", {"session_description": "a session", "file_create_date": np.array(["2024-01-01"], object)})
    return Want(3, {"units/spike_times": (2, numbers(11)[5:])})


@layout("PhysioNet-like: a patient a group", "refused", "rows=ray_h5.Groups('p*')")
def patients(folder):
    for i in range(4):
        put(folder / "a.h5", {"ecg": numbers(50 + i, 2, start=i), "label": i % 2, "rr": (5 + i,)}, below=f"p0000{i}")
    return Want(4, {"ecg": (1, numbers(51, 2, start=1)), "label": (1, 1)})


@layout("ECG: tracings and labels")
def tracings(folder):
    put(folder / "a.hdf5", {"tracings": (8, 40, 12), "exam_id": np.arange(8), "signal_id": np.arange(8)})
    return Want(8, {"tracings": (3, numbers(8, 40, 12)[3])})


@layout("a night a file, with channels of several rates", "refused", "rows=ray_h5.Files()")
def nights(folder):
    for i in range(3):
        put(folder / f"night_{i}.h5", {"eeg": numbers(90 + i, start=i), "spo2": (9,), "hypnogram": np.zeros(3, int)})
    return Want(3, {"eeg": (1, numbers(91, start=1))})


@layout("CAMELYON features: a slide a file", "warned", "rows=ray_h5.Files()")
def slides(folder):
    for i in range(4):
        slide = {"features": numbers(7 + i, 16, start=i), "coords": np.zeros((7 + i, 2), int)}
        put(folder / f"tumor_{i:03d}.h5", slide)
    return Want(4, {"features": (2, numbers(9, 16, start=2))})


@layout("BraTS: a slice a file", "warned", "rows=ray_h5.Files()")
def slices(folder):
    for i in range(4):
        slice_ = {"image": numbers(40, 40, 4, start=i), "mask": np.zeros((40, 40, 3), "u1")}
        put(folder / f"volume_1_slice_{i}.h5", slice_)
    return Want(4, {"image": (1, numbers(40, 40, 4, start=1))})


@layout("CREMI: a volume with labels", "warned", "rows=ray_h5.Patches({")
def volumes(folder):
    raw = numbers(10, 80, 80, dtype="u1")
    put(folder / "sample_A.hdf", {"raw": raw, "labels/neuron_ids": np.zeros((10, 80, 80), "u8")}, below="volumes")
    return Want(4, {"volumes/raw": (0, raw[:, :64, :64])}, "sample_A.hdf")


def _scan(i):
    return {"raw": numbers(9 + i, 40, 36 + i, start=i), "label": np.zeros((9 + i, 40, 36 + i), "u1")}


@layout("volumes of several shapes: a scan a file", "warned", "rows=ray_h5.Files()")
def scans(folder):
    for i in range(3):
        put(folder / f"scan_{i}.h5", _scan(i))
    return Want(3, {"raw": (1, _scan(1)["raw"])})


@layout("volumes of several shapes: a scan a group", "refused")
def scans_in_groups(folder):
    for i in range(6):
        put(folder / "scans.h5", _scan(i), below=f"scan_{i}")
    return Want(21, {"raw": (1, _scan(1)["raw"][:9, :, :36])}, "scans.h5")


@layout("PCam", "right")
def pcam(folder):
    put(folder / "x.h5", {"x": numbers(6, 8, 8, 3, dtype="u1")})
    return Want(6, {"x": (2, numbers(6, 8, 8, 3, dtype="u1")[2])})


@layout("embeddings of proteins", "warned", "rows=ray_h5.Groups('*')")
def per_protein(folder):
    put(folder / "a.h5", {f"{'ABCDEFGHIJKL'[i % 12]}{i % 10}A{i:02d}{i % 10}": numbers(32, start=i) for i in range(40)})
    return Want(40, {"value": (0, numbers(32))})


@layout("embeddings of residues", "refused", "rows=ray_h5.Groups('*')")
def per_residue(folder):
    put(folder / "a.h5", {f"{'ABCDEFG'[i]}0A{i:02d}{i}": numbers(20 + i, 32, start=i) for i in range(7)})
    return Want(7, {"value": (1, numbers(21, 32, start=1))})


@layout("features by the name of a video", "refused", "rows=ray_h5.Groups('v_*')")
def videos_by_name(folder):
    names = ("Ax_Q", "Bz0W", "CyE", "DxR", "FxT")
    put(folder / "a.h5", {f"v_{name}": numbers(5 + i, 16, start=i) for i, name in enumerate(names)})
    return Want(5, {"value": (1, numbers(6, 16, start=1))})


@layout("TRIDENT: a slide a file, after an axis of one", "warned", "rows=ray_h5.Files()")
def trident(folder):
    for i in range(3):
        slide = {"features": numbers(1, 30 + i, 16, start=i), "coords": np.zeros((1, 30 + i, 2), int)}
        put(folder / f"TCGA-{i}.h5", slide)
    return Want(3, {"features": (2, numbers(1, 32, 16, start=2))})


@layout("nights in one file, with hypnograms at 1/30 Hz", "refused", "rows=ray_h5.Groups('SC*E0')")
def nights_in_one_file(folder):
    for i in range(5):
        n = 20 + i
        signals = {"signals/EEG Fpz-Cz": numbers(n * 30, start=i), "signals/EOG horizontal": (n * 30,)}
        put(folder / "a.h5", signals | {"hypnogram": np.arange(n) % 5, "fs": 100.0}, below=f"SC4{i}01E0")
    return Want(5, {"hypnogram": (2, np.arange(22) % 5)})


@layout("SLEAP: frames along the last axis", "refused")
def sleap(folder):
    arrays = {"tracks": (2, 2, 5, 90), "point_scores": (2, 5, 90), "instance_scores": (2, 90)}
    arrays |= {"track_occupancy": np.zeros((90, 2), "u1"), "edge_inds": np.zeros((4, 2), int)}
    put(folder / "a.analysis.h5", arrays | {"node_names": np.array([b"a", b"b", b"c", b"d", b"e"])})
    return Want(90, {"tracks": (3, numbers(2, 2, 5, 90)[..., 3].T)})


@layout("DeepLabCut: columns of several levels")
def deep_lab_cut(folder):
    levels = pd.MultiIndex.from_product([["net"], ["nose", "tail"], ["x", "y", "likelihood"]])
    frame = pd.DataFrame(numbers(9, 6, dtype="f8"), columns=levels)
    frame.to_hdf(folder / "a.h5", key="df_with_missing", format="table")
    return Want(9, {"df_with_missing/net/tail/x": (3, 21.0)})
