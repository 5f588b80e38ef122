"""How columns are called, and where links lead."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np

from ray_h5.errors import ExternalDataError, MissingSourceError, UnsupportedColumnError
from tests.conformance.case import Case
from tests.conformance.storage import in_file
from tests.hdf5.h5kit import dataset_with, layout_of, plist_with
from tests.kit.files import save

ROWS = np.arange(5)


def _letters(file: h5py.File) -> None:
    odd = ("日本語", "é", "e\u0301", "with space", " leading", "a/b/../c", "dot.ted", ".hidden", "..", "...", "%b", "-")
    for name in (*odd, "new\nline", "quote'\"", "back\\slash", "C:", "x" * 1000, "🦜"):
        file[name] = ROWS


def _invalid(file: h5py.File) -> None:
    h5py.h5d.create(file.id, b"\xff\xfe", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((5,)), plist_with())
    file["ok"] = ROWS
    file["group/ok"] = ROWS


def _there(path: Path) -> Path:
    folder = path.parent / "there"
    folder.mkdir(exist_ok=True)
    return folder


def _secret(path: Path) -> str:
    secret = _there(path) / "secret.h5"
    save(secret, {"s": ROWS + 100})
    return os.path.relpath(secret, path.parent)  # relative to the file, also in a store


def _link(path: Path) -> None:
    save(path, {"x": h5py.ExternalLink(_secret(path), "/s"), "ok": ROWS})


def _raw(path: Path) -> None:
    raw = _there(path) / "raw.bin"
    raw.write_bytes((ROWS + 100).tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (5,), "i8", external=[(str(raw), 0, 40)])
        file["ok"] = ROWS


def _virtual(path: Path) -> None:
    save(path, {"x": layout_of(_secret(path), "s"), "ok": ROWS})


def _gone(path: Path) -> None:
    _virtual(path)
    (_there(path) / "secret.h5").unlink()


def _loops(file: h5py.File) -> None:
    file["x"], file["y"] = h5py.SoftLink("/y"), h5py.SoftLink("/x")
    file["nowhere"] = h5py.SoftLink("/gone")
    file["ok"] = ROWS
    file["group/self"] = h5py.SoftLink("/group")
    file["group/hard"] = file["group"]
    file["group/ok"] = ROWS


def _alias(file: h5py.File) -> None:
    dataset_with(file, "x", (5,), plist_with((2,), (1,)))[:] = ROWS
    file["hard"] = file["x"]
    file["soft"] = h5py.SoftLink("/x")
    file["group/soft"] = h5py.SoftLink("../x") if "../x" in file else h5py.SoftLink("/hard")


def _outside(name: str, make: object, error: type[Exception] = ExternalDataError, **options: object) -> Case:
    return Case(name, make, error, "column", fuzz=False, **options)


NAMES = (
    Case("names in other letters", in_file(_letters)),
    Case("names of invalid UTF-8", in_file(_invalid), refused=((r"\xff\xfe", UnsupportedColumnError),)),
    Case("aliases", in_file(_alias)),
    Case("external link, allowed", _link, allow=("there",), fuzz=False),
    _outside("external link, outside", _link),
    Case("external storage, allowed", _raw, allow=("there",), fuzz=False),
    _outside("external storage, outside", _raw),
    Case("virtual, allowed", _virtual, allow=("there",), fuzz=False),
    _outside("virtual, outside", _virtual),
    _outside("virtual, source is missing", _gone, MissingSourceError, allow=("there",)),
    Case(
        "link loops",
        in_file(_loops),
        refused=tuple((name, MissingSourceError) for name in ("x", "y", "nowhere")),
    ),
)
