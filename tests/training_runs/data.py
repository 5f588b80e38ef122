"""Files of a training run, as a model: which rows they have, and what each row holds."""

import csv
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path

import h5py
import numpy as np

import ray_h5.torch_data
from ray_h5.torch_data import Grid, Groups, Patches, Shuffle, Sidecar, Windows, part, ragged

KINDS = ("axis", "groups", "grid", "windows", "ragged", "patches")
BLOCK = (2, 2)
PER_FILE = 5
FOLDS = 2
PARTS = 2
"""Entries of a row that are drawn, where parts of rows are."""


@dataclass(frozen=True)
class File:
    """A file: its number, how many rows (or steps, or groups) it has, and how often it was written."""

    number: int
    rows: int
    version: int = 0
    chunk: int = 1

    @property
    def first(self):
        """Its first id: no row of any file has that of another one."""
        return 1000 * self.number

    def x(self, count, width):
        """Return numbers that no other file, row or version has; float64 holds them."""
        numbers = np.arange(count * width).reshape(count, width)
        return numbers + 1e6 * self.number + 1e9 * (self.version + 1)


@dataclass(frozen=True)
class Data:
    """Files in a folder, and the options with which they are read."""

    folder: str
    kind: str
    files: tuple[File, ...]
    columns: bool = True
    predicate: bool = False
    offsets: tuple[int, ...] = (-1, 0, 2)
    draw_seed: int = 0
    table: int | None = None
    shuffle: tuple = ("none",)
    fold: int | None = None
    part_seed: int | None = None
    on_grid: bool = False
    fold_seed: int = 3

    def path(self, number):
        # Files of two folders have one name.
        return Path(self.folder) / f"sub_{number % 2}" / f"run_{number // 2}.h5"

    def write(self, file, *, in_place=False):
        """Write a file: a new one under its name, or into the one that is there."""
        path = self.path(file.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        where_to = path if in_place else path.with_suffix(".part")
        with h5py.File(where_to, "r+" if in_place else "w") as opened:
            for name, values in self.datasets(file).items():
                if in_place:
                    opened[name][...] = values
                    continue
                shape = np.shape(values)
                chunks = (min(file.chunk, shape[0]), *shape[1:]) if file.chunk and shape and shape[0] else None
                opened.create_dataset(name, data=values, chunks=chunks, compression="gzip" if chunks else None)
        if not in_place:
            where_to.replace(path)

    def write_table(self):
        with open(Path(self.folder) / "ages.csv", "w", newline="") as opened:
            lines = csv.writer(opened)
            lines.writerow(["id", "age"])
            lines.writerows((key, key % 7 + 100 * self.table) for key in self.ids())

    # What the files hold ------------------------------------------------------------------------

    def ids(self):
        return [file.first + i for file in self.files for i in range(file.rows)]

    def datasets(self, file):
        """Return the datasets of a file."""
        n, ids = file.rows, file.first + np.arange(file.rows)
        if self.kind == "groups":
            found = {}
            for i in range(n):
                found |= {f"g{i}/x": file.x(n, 4)[i][: 1 + i % 4], f"g{i}/id": ids[i], f"g{i}/label": i % 3}
                found |= {f"g{i}/w": 0.5 + i % 4, f"g{i}/length": 1 + i % 4}
            return found
        if self.kind == "grid":
            ids = (file.first + np.arange(n * 3)).reshape(n, 3)
            return {"x": file.x(n * 3, 2).reshape(n, 3, 2), "id": ids, **self.numbers(ids)}
        if self.kind == "patches":
            return {"x": file.x(n + 2, 5), "number": file.number}
        found = {"x": file.x(n, 2), "id": ids, **self.numbers(ids)}
        if self.kind == "ragged":
            offsets = np.concatenate([[0], np.cumsum(np.arange(n) % 4)])
            found |= {"x": file.x(offsets[-1], 1)[:, 0], "offsets": offsets}
        return found

    def numbers(self, ids):
        """Return the columns by which rows are chosen, drawn and sorted."""
        return {"label": ids % 3, "w": 0.5 + ids % 4, "length": 1 + ids % 5}

    def rows(self):
        """Return what each row that is selected holds, by its id; of blocks that are drawn, the arrays by file."""
        found = {}
        for file in sorted(self.files, key=lambda file: self.path(file.number)):
            made, n = self.datasets(file), file.rows
            if self.kind == "patches":
                found[file.number] = made["x"]
            elif self.kind == "groups":
                found |= {file.first + i: {"x": made[f"g{i}/x"], "label": i % 3} for i in range(n)}
            else:
                ids, labels = made["id"].ravel(), made["label"].ravel()
                values = made["x"].reshape(-1, 2) if self.kind == "grid" else made["x"]
                for i, key in enumerate(ids.tolist()):
                    found[key] = {"x": values[i : i + 1][0] if self.kind in ("axis", "grid") else None}
                    if self.kind == "windows":
                        steps = np.clip(i + np.array(self.offsets), 0, n - 1)
                        found[key]["x"] = values[steps]
                    if self.kind == "ragged":
                        found[key]["x"] = values[made["offsets"][i] : made["offsets"][i + 1]]
                    found[key]["label"] = labels[i]
        return found if self.kind == "patches" else self.chosen(found)

    def chosen(self, found):
        """Return what is selected and delivered of some rows."""
        if self.fold is not None:
            folds = np.empty(len(found), int)
            folds[np.random.default_rng(self.fold_seed).permutation(len(found))] = np.arange(len(found)) % FOLDS
            found = {key: row for (key, row), fold in zip(found.items(), folds, strict=True) if fold == self.fold}
        if self.predicate:
            found = {key: row for key, row in found.items() if row["label"] != 2}
        if self.table is not None:
            found = {key: row | {"age": key % 7 + 100 * self.table} for key, row in found.items()}
        if not self.columns:
            found = {key: {k: v for k, v in row.items() if k != "label"} for key, row in found.items()}
        return found

    # How they are read --------------------------------------------------------------------------

    def options(self):
        """Return the options of `H5Dataset` and `read_h5` that decide which rows there are, and what they hold."""
        if self.kind == "patches":
            drawn = {"per_file": PER_FILE, "seed": self.draw_seed}
            rows = Patches({"x": BLOCK}, **({"stride": 1} if self.on_grid else drawn))
            return {"columns": ["x", "corner", "number"], "rows": rows}
        x = ragged("x", offsets="offsets") if self.kind == "ragged" else "x"
        found = {"columns": [x, "id", *(["label"] if self.columns else []), *self.of_table()]}
        if self.kind == "groups":
            found["rows"] = Groups("g*")
            if self.part_seed is not None:
                found["columns"][0] = part("x", random=PARTS, seed=self.part_seed)
        if self.kind == "grid":
            found["rows"] = Grid(2)
        if self.kind == "windows":
            found["windows"] = Windows({"x": list(self.offsets)})
            found["columns"] += ["x_is_pad"]
        if self.table is not None:
            found["sidecar"] = Sidecar(str(Path(self.folder) / "ages.csv"), on="id")
        return found

    def of_table(self):
        return [] if self.table is None else ["age"]

    def filter(self, of=ray_h5.torch_data):
        """Return the predicate, made by `where` and `kfold` of plain PyTorch or of Ray."""
        found = [of.where(label=[0, 1])] if self.predicate and self.kind != "patches" else []
        if self.fold is not None:
            found.append(of.kfold(self.folder, FOLDS, seed=self.fold_seed, **self.options())[self.fold][1])
        return reduce(and_, found) if found else None

    def as_shuffle(self):
        """Return the shuffle that its description means."""
        name, *rest = self.shuffle
        if name == "none":
            return False
        if name == "weights":
            column, seed = rest
            return Shuffle("rows", seed, weights=column)
        if name == "length":
            return Shuffle("rows", rest[0], by_length="length", window_rows=8, run_rows=3)
        seed, window = rest
        return Shuffle(name, seed, window_rows=window if name == "chunks" else None)

    def refused(self):
        """Return, by name, data of which a state of this one must be refused."""
        found = {"a file less": replace(self, files=self.files[:-1])} if len(self.files) > 1 else {}
        if self.kind != "patches":
            more = self.files[0]
            found["more rows"] = replace(self, files=(replace(more, rows=more.rows + 1), *self.files[1:]))
        name, *rest = self.shuffle
        if name != "none":
            found["another shuffle"] = replace(self, shuffle=("none",))
        if name in ("rows", "chunks", "files"):
            found["another seed"] = replace(self, shuffle=(name, rest[0] + 1, *rest[1:]))
        if name == "weights":
            found["other weights"] = replace(self, shuffle=(name, "length", *rest[1:]))
        if self.kind == "patches":
            found["blocks on a grid"] = replace(self, on_grid=True)
            return found | {"other draws": replace(self, draw_seed=self.draw_seed + 1)}
        found |= self.of_other_kinds()
        if self.part_seed is not None:
            found["another seed of parts"] = replace(self, part_seed=self.part_seed + 1)
        if self.fold is not None:
            found["another fold"] = replace(self, fold=1 - self.fold)
            found["folds of another seed"] = replace(self, fold_seed=self.fold_seed + 1)
        elif len(self.ids()) >= FOLDS:
            found["a fold"] = replace(self, fold=0)
        found["other columns"] = replace(self, columns=not self.columns)
        found["another predicate"] = replace(self, predicate=not self.predicate)
        if self.kind == "windows":
            found["other offsets"] = replace(self, offsets=(*self.offsets, 3))
        if self.table is not None:
            found["another table"] = replace(self, table=self.table + 1)
        return found

    def of_other_kinds(self):
        """Return, by name, the same files with other rows."""
        if self.kind == "axis":
            return {"windows over the rows": replace(self, kind="windows")}
        if self.kind == "windows":
            return {"no windows": replace(self, kind="axis")}
        by_axes = self.predicate or self.fold is not None or self.shuffle[0] in ("weights", "length")
        return {"rows along one axis": replace(self, kind="axis")} if self.kind == "grid" and not by_axes else {}
