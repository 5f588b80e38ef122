"""Small files of each layout, the same bytes each time, and how they are read."""

import csv
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ray_h5 import Files, Grid, Groups, Patches, Sidecar, Windows, fields, ragged

Options = Mapping[str, Any]

LAYOUTS: dict[str, "Layout"] = {}
TEXT = h5py.string_dtype()


@dataclass(frozen=True)
class Layout:
    """A way to store rows.

    `write` makes the files in a folder and returns the options that read them. `image` is a column of encoded images,
    which are delivered decoded. `is_drawn` says that values depend on the epoch.
    """

    name: str
    write: Callable[[Path], Options]
    image: str = ""
    is_drawn: bool = False


def layout(**options):
    def add(write):
        name = write.__name__
        LAYOUTS[name] = Layout(name, write, **options)
        return write

    return add


def numbers(shape, dtype="f4", start=0):
    """Return numbers that differ, in a type that holds them."""
    return ((np.arange(int(np.prod(shape))) * 7 + start) % 251).reshape(shape).astype(dtype)


def files(folder, count=3):
    """Yield (number, file) of new files."""
    for number in range(count):
        with h5py.File(folder / f"run_{number}.h5", "w", libver=("v108", "v110")) as file:
            yield number, file


@layout()
def axis_1(folder):
    """A chunk a row, in several types and filters; three files, one of them empty."""
    for number, file in files(folder):
        rows = (21, 0, 26)[number]
        kinds = {
            "x": ("<f4", {"compression": "gzip", "shuffle": True}),
            "big": (">i8", {}),
            "half": ("<f2", {"compression": "lzf"}),
            "wave": ("<c8", {"fletcher32": True}),
        }
        for name, (dtype, filters) in kinds.items():
            values = numbers((rows, 3), dtype, number)
            file.create_dataset(name, data=values, chunks=(1, 3), maxshape=(None, 3), **filters)
        file["flag"] = numbers(rows, "i1") % 2 == 0
        file["name"] = np.array([f"é{number}.{row}"[: 1 + row % 5] for row in range(rows)], TEXT)
    return {}


@layout()
def axis_16(folder):
    """Sixteen rows a chunk; the lengths of the files are no multiples of it."""
    for number, file in files(folder):
        rows = (40, 19, 37)[number]
        values = numbers((rows, 2, 3), "i2", 1000 * number)
        file.create_dataset("x", data=values, chunks=(16, 2, 3), compression="gzip")
        file.create_dataset("label", data=np.arange(rows, dtype="u1") % 5, chunks=(16,))
    return {}


@layout()
def groups(folder):
    """A group a row; rows differ in length, and one group in each file is shorter than a chunk."""
    for number, file in files(folder, 2):
        for demo in range(17):
            group = file.create_group(f"data/demo_{demo}")
            group.attrs["num_samples"] = 3 + demo % 4
            group.create_dataset(
                "actions", data=numbers((3 + demo % 4, 2), "f4", demo + 50 * number), chunks=(4, 2), maxshape=(None, 2)
            )
            group["reward"] = np.float64(demo) / 8
            group["task"] = f"task {demo % 3}"
    return {"rows": Groups("data/demo_*", attrs=["num_samples"], key="demo")}


@layout()
def grid(folder):
    """Rows along two axes; one column has the second alone, and one is a constant."""
    for number, file in files(folder, 2):
        file.create_dataset("u", data=numbers((5, 4 + number, 3), "f8", number), chunks=(2, 2, 3))
        file["time"] = np.arange(4 + number) / 4
        file["gamma"] = np.float32(number + 0.5)
    return {"rows": Grid(2, of={"time": (1,)}, include_axes=True)}


@layout()
def one_file_a_row(folder):
    """A file a row, of any length."""
    for number, file in files(folder, 23):
        file.create_dataset(
            "features", data=numbers((1 + number % 6, 4), "f2", number), chunks=(2, 4), maxshape=(None, 4)
        )
        file["grade"] = number % 3
    return {"rows": Files(key="slide")}


@layout()
def windows_over_groups(folder):
    """Windows of each step of an episode, padded at its ends."""
    for number, file in files(folder, 2):
        for demo in range(4):
            steps = 5 + (demo + number) % 3
            group = file.create_group(f"demo_{demo}")
            group.create_dataset("obs", data=numbers((steps, 3), "f4", demo), chunks=(2, 3), compression="lzf")
            group["actions"] = numbers((steps, 2), "f4", demo + 9)
            group["goal"] = numbers((20,), "i4", demo)
    windows = Windows({"obs": [-2, -1, 0], "actions": range(4)}, pad=("edge", "zero"), constants=["goal"])
    return {"rows": Groups("demo_*"), "windows": windows}


@layout()
def windows_by_time(folder):
    """Columns of other rates, by their times."""
    for number, file in files(folder, 2):
        file["video/data"] = numbers((24, 2, 2), "u1", number)
        file["video/timestamps"] = np.arange(24) / 8
        file["speed/data"] = numbers((9,), "f4", number)
        file["speed/timestamps"] = np.arange(9) / 4 + 1 / 16
    offsets = {"video/data": [-0.25, 0.0], "speed/data": slice(-0.5, 0.5)}
    return {"windows": Windows(offsets, at="timestamps", pad="edge")}


def volumes(folder):
    for number, file in files(folder, 3):
        shape = (6, 7 + number, 5)
        file.create_dataset("raw", data=numbers(shape, "f4", number), chunks=(3, 3, 3), compression="gzip")
        file["label"] = (numbers(shape, "u1") % 4).astype("u1")
        file["spacing"] = np.float32(number)


SHAPES = {"raw": (3, 4, 2), "label": (3, 4, 2)}


@layout()
def patches_on_a_grid(folder):
    volumes(folder)
    return {"rows": Patches(SHAPES, stride=2, key="scan")}


@layout(is_drawn=True)
def patches_drawn(folder):
    volumes(folder)
    return {"rows": Patches(SHAPES, per_file=11, where_any=("label", [1, 2]), seed=5)}


@layout()
def ragged_rows(folder):
    """Values of all rows end to end, by offsets, and by starts and counts."""
    for number, file in files(folder, 2):
        counts = (np.arange(22) + number) % 5
        offsets = np.concatenate([[0], np.cumsum(counts)])
        file.create_dataset("events/x", data=numbers((offsets[-1], 2), "i4", number), chunks=(8, 2))
        file["events/offsets"] = offsets
        file.create_dataset("hits", data=numbers((offsets[-1],), "f4", number), chunks=(8,), compression="gzip")
        file["first"], file["count"] = offsets[:-1], counts
        file["label"] = np.arange(22) % 2
    return {
        "columns": [
            ragged("events/x", offsets="events/offsets"),
            ragged("hits", starts="first", counts="count"),
            "label",
        ]
    }


@layout()
def csr_rows(folder):
    """A sparse matrix as AnnData writes it, beside a dense column."""
    for number, file in files(folder, 2):
        counts = (np.arange(24) + number) % 4
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype("i8")
        group = file.create_group("X")
        group.create_dataset("data", data=numbers((indptr[-1],), "f4", number) + 1, chunks=(8,), compression="gzip")
        columns = [(row + 2 * np.arange(count)) % 9 for row, count in enumerate(counts)]
        group.create_dataset("indices", data=np.concatenate([np.sort(each) for each in columns]).astype("i4"))
        group["indptr"] = indptr
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (24, 9)})
        file["depth"] = counts
    return {"columns": ["X", "depth"]}


def encoded(file, name, kind, **arrays):
    group = file.create_group(name)
    group.attrs.update({"encoding-type": kind, "encoding-version": "0.2.0"})
    for key, values in arrays.items():
        group[key] = values
    return group


@layout()
def categories(folder):
    """Categories that files number in other orders, and numbers that may be missing, as AnnData writes them."""
    names = [["B", "T", "NK"], ["T", "é", "B"]]
    for number, file in files(folder, 2):
        rows = 20 + number
        codes = (np.arange(rows) % 4 - 1).astype("i1")
        kind = encoded(file, "obs/kind", "categorical", codes=codes, categories=np.array(names[number], TEXT))
        kind.attrs["ordered"] = False
        encoded(file, "obs/n", "nullable-integer", values=np.arange(rows), mask=np.arange(rows) % 5 == 0)
        file["obs/batch"] = np.array([f"b{row // 7}" for row in range(rows)], TEXT)
    return {"columns": ["obs/kind", "obs/n", "obs/batch"], "labels": {"obs/batch": "auto"}}


@layout()
def cf(folder):
    """Scaled values with a fill value, and times in units of CF."""
    for number, file in files(folder, 2):
        packed = file.create_dataset("t2m", data=numbers((25, 3), "i2", number), chunks=(4, 3))
        scale, offset = np.float32(0.25), np.float32(10)
        packed.attrs.update({"scale_factor": scale, "add_offset": offset, "_FillValue": np.int16(21)})
        file["time"] = np.arange(25) * 6
        file["time"].attrs["units"] = f"hours since 20{10 + number}-02-27 00:00:00"
    return {"decode_cf": True}


@layout()
def compound(folder):
    """Fields of compound values as columns, and several of them as one."""
    dtype = np.dtype([("pt", "<f4"), ("id", ">i4"), ("eta", "<f4"), ("tag", "S3")])
    for number, file in files(folder, 2):
        values = np.zeros((23, 3), dtype)
        values["pt"], values["id"] = numbers((23, 3), "f4", number), numbers((23, 3), "i4", 3)
        values["eta"], values["tag"] = numbers((23, 3), "f4", 8) / 16, np.array(["a", "bcd", ""])
        file.create_dataset("jets", data=values, chunks=(5, 3), compression="gzip", shuffle=True)
        file["event"] = values[:, 0]
    return {"columns": [fields("jets", ["eta", "pt"]), "jets/id", "event/tag"]}


def png(pixels):
    """Return an image of (height, width, 3) bytes as a PNG, without compression: the same bytes with any zlib."""
    height, width = pixels.shape[:2]
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    found = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for kind, body in [(b"IHDR", head), (b"IDAT", zlib.compress(lines, 0)), (b"IEND", b"")]:
        found += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return found


@layout(image="image")
def images(folder):
    """Encoded images of one shape."""
    for number, file in files(folder, 2):
        column = file.create_dataset("image", (21,), h5py.vlen_dtype("u1"))
        for row in range(21):
            column[row] = np.frombuffer(png(numbers((4, 5, 3), "u1", row + 31 * number)), "u1")
        file["label"] = np.arange(21) % 3
    return {}


@layout()
def virtual_stack(folder):
    """A virtual dataset that stacks blocks of sources, with rows that none of them has."""
    (folder / "parts").mkdir()
    rows = [13, 9, 17]
    virtual = h5py.VirtualLayout((sum(rows) + 4, 3), "f4")
    first = 2
    for number, file in files(folder / "parts"):
        file.create_dataset("x", data=numbers((rows[number], 3), "f4", number), chunks=(4, 3), compression="gzip")
        source = h5py.VirtualSource(f"parts/run_{number}.h5", "x", (rows[number], 3))
        virtual[first : first + rows[number]] = source
        first += rows[number] + number
    with h5py.File(folder / "all.h5", "w", libver=("v110", "v110")) as file:
        file.create_virtual_dataset("x", virtual, fillvalue=-5)
        file["label"] = np.arange(sum(rows) + 4) % 3
    return {"paths": str(folder / "all.h5"), "allow_external": [str(folder)]}


@layout()
def table_beside(folder):
    """Labels in a CSV file, joined by a column of text."""
    for number, file in files(folder, 2):
        file["patient"] = np.array([f"p{(row * 5) % 12 + 6 * number}" for row in range(24)], TEXT)
        file.create_dataset("x", data=numbers((24, 2), "f4", number), chunks=(6, 2))
    with open(folder / "patients.csv", "w", newline="") as opened:
        lines = csv.writer(opened)
        lines.writerow(["patient", "age", "site"])
        lines.writerows([f"p{number}", 20 + number, "AB"[number % 2]] for number in range(17))
    return {"sidecar": Sidecar(str(folder / "patients.csv"), on="patient", missing="drop")}
