"""Train a small classifier on cells of AnnData files: counts of genes as a sparse matrix, cell types as categories.

    python examples/cells.py                                   # makes two files first, as AnnData writes them
    python examples/cells.py --paths "atlas/*.h5ad" --types "B cell" "T cell" --epochs 3

Only cells of the chosen types are read, and each type is drawn equally often. With ``--genes``, only these genes are
delivered, in the order given; each file may have them in an order of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

from ray_h5 import Shuffle, balance, csr
from ray_h5.torch_data import H5Dataset, loader, where

TYPE = "obs/cell_type"
TYPES = ["B cell", "NK cell", "T cell", "monocyte"]
SHARES = [0.1, 0.05, 0.5, 0.35]
CELLS, GENES = 1500, 400


def make_file(path: Path, seed: int) -> None:
    """Write counts of genes as AnnData does: compressed rows, and the names of cells, genes and types."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(TYPES), CELLS, p=SHARES)
    genes = rng.permutation(GENES)  # each file has an order of its own
    rates = 0.1 + 2.0 * (np.random.default_rng(0).random((len(TYPES), GENES)) < 0.1)
    counts = rng.poisson(rates[kinds] * rng.uniform(0.3, 1, (CELLS, 1)))[:, genes]
    rows, columns = np.nonzero(counts)
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        matrix = file.create_group("X")
        matrix.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": counts.shape})
        values = counts[rows, columns].astype(np.float32)
        matrix.create_dataset("data", data=values, maxshape=(None,), compression="gzip")
        matrix.create_dataset("indices", data=columns.astype(np.int32), maxshape=(None,), compression="gzip")
        matrix["indptr"] = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=CELLS))])
        write_table(file, "obs", [f"cell{i}" for i in range(CELLS)], ["cell_type"])
        write_table(file, "var", [f"gene{i}" for i in genes], [])
        types = file.create_group(TYPE)
        types.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
        types["codes"] = kinds.astype(np.int8)
        types["codes"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        write_texts(types, "categories", TYPES)


def write_table(file: h5py.File, name: str, index: list[str], columns: list[str]) -> None:
    table = file.create_group(name)
    table.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
    table.attrs["column-order"] = np.array(columns, h5py.string_dtype())
    write_texts(table, "_index", index)


def write_texts(group: h5py.Group, name: str, texts: list[str]) -> None:
    made = group.create_dataset(name, data=np.array(texts, object), dtype=h5py.string_dtype())
    made.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def train(paths: list[str], types: list[str], genes: list[str] | None, epochs: int) -> float:
    """Train on cells of some types; return the share of all of them that the classifier gets right."""
    counts = csr("X", take=genes, names=None if genes is None else "var/_index")
    cells = H5Dataset(paths, [counts, TYPE], where(**{TYPE: types}))
    batches = loader(cells, 64, shuffle=Shuffle(weights=balance(TYPE)))
    width = cells[0]["X"].shape[0]
    model = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, len(types)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def labels(batch: dict[str, list[str]]) -> torch.Tensor:
        return torch.tensor([types.index(each) for each in batch[TYPE]])

    for epoch in range(epochs):
        seen: Counter[str] = Counter()
        total = 0.0
        for batch in batches:
            loss = nn.functional.cross_entropy(model(torch.log1p(batch["X"])), labels(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch[TYPE])
            seen.update(batch[TYPE])
        print(f"epoch {epoch}: loss {total / seen.total():.3f}, cells drawn {dict(sorted(seen.items()))}")
    right = 0
    with torch.no_grad():
        for batch in loader(cells, 256, shuffle=False):
            right += int((model(torch.log1p(batch["X"])).argmax(1) == labels(batch)).sum())
    print(f"{right} of {len(cells)} cells right")
    return right / len(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", nargs="+", help="files or globs (default: two files that are made first)")
    parser.add_argument("--types", nargs="+", default=TYPES[:3], help="cell types (default: %(default)s)")
    parser.add_argument("--genes", nargs="+", help="names of genes in var/_index (default: all, in one order)")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = arguments.paths
        genes = arguments.genes
        if paths is None:
            for seed in range(2):
                make_file(Path(folder) / f"donor{seed}.h5ad", seed)
            paths = [folder]
            genes = genes or [f"gene{i}" for i in range(GENES)]
        train(paths, arguments.types, genes, arguments.epochs)


if __name__ == "__main__":
    main()
