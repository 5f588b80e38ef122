"""Makers of makers x row kinds: each cell is equal to numpy, or refused; `pinned/makers.txt` is the whole table.

A cell that gives other values than numpy, or raises what is no error of the package, is never pinned: it fails.
"""

import contextlib
import itertools
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import torch

from ray_h5 import (
    DecodeImage,
    Files,
    Grid,
    Groups,
    H5Dataset,
    Patches,
    RayH5Error,
    Sidecar,
    Windows,
    csr,
    fields,
    joined,
    part,
    ragged,
    read_h5,
)
from tests.golden.layouts import png

LENGTHS = (4, 3)
"""Rows of each file, and of each group."""

WIDTH = 6
COMPOUND = np.dtype([("u", "<i4"), ("v", "<f8"), ("p", "<f4", (2,)), ("in", [("q", "<i2"), ("r", "<i2")])])
SHOWN = 7
"""Words of a refusal that are pinned, without what names a place."""


# What a file, or each of its groups, has ------------------------------------------------------------


def write(group, rng, n):
    """Write datasets of n rows, and return them as numpy has them."""
    d = SimpleNamespace(n=n)

    def put(name, values, **how):
        setattr(d, name, values)
        group.create_dataset(name, data=values, **how)

    put("x", rng.integers(0, 99, (n, 3)).astype(">i4"), chunks=(2, 3), compression="gzip")
    put("cube", rng.integers(0, 99, (n, 3, 2)).astype("i2"))
    put("s", rng.integers(0, 99, n))
    put("f", rng.integers(0, 99, n).astype("f4") / 4)
    put("t", np.array([f"é{i}" for i in rng.integers(0, 9, n)], object), dtype=h5py.string_dtype())
    put("tm", np.arange(n, dtype="f8"))
    put("grid", rng.integers(0, 99, (n, 2)))
    put("c", _compound(rng, n))
    put("cj", _compound(rng, (n, 6)))
    put("vlen", _vlen(rng, n), dtype=h5py.vlen_dtype("i4"))
    d.cat, d.ni = _encoded(group, "cat", rng, n), _nullable(group, "ni", rng, n)
    for name, values, said in (
        ("cfx", rng.integers(0, 9, (n, 3)).astype("i2"), {"scale_factor": np.float32(0.5), "_FillValue": np.int16(8)}),
        ("cft", rng.integers(0, 99, n), {"units": "hours since 2000-01-01"}),
        ("cfch", np.array([[*f"c{i:03d}"] for i in rng.integers(0, 999, n)], "S1"), {}),
    ):
        group[name] = values
        group[name].attrs.update(said)
        setattr(d, name, values)
    d.cfx = np.where(d.cfx == 8, np.nan, d.cfx * 0.5).astype("f4")
    d.cft = (np.datetime64("2000-01-01", "h") + d.cft).astype("M8[ns]").astype("i8")
    d.cfch = [b"".join(row).decode() for row in d.cfch]
    d.ref = [rng.integers(0, 9, 1 + i) for i in range(n)]
    for i, values in enumerate(d.ref):
        group[f"cells/{i}"] = values
    group["ref"] = refs = np.array([group[f"cells/{i}"].ref for i in range(n)], h5py.ref_dtype)
    group["jref_0"], group["jref_1"] = refs[:1], refs[1:]
    _end_to_end(group, rng, d)
    _longer(group, rng, d)
    d.X = _sparse(group, "X", rng, n)
    _images(group, rng, d)
    group["genes"] = np.array([f"g{i}" for i in range(WIDTH)], "S2")
    return d


def _compound(rng, shape):
    values = np.zeros(shape, COMPOUND)
    for name in ("u", "v"):
        values[name] = rng.integers(0, 99, values.shape)
    values["p"], values["in"]["q"] = rng.integers(0, 9, (*values.shape, 2)), rng.integers(0, 9, values.shape)
    return values


def _vlen(rng, n):
    values = np.empty(n, object)
    values[:] = [rng.integers(0, 99, 2 + i % 3).astype("i4") for i in range(n)]
    return values


def _encoded(group, name, rng, n):
    known, codes = [f"k{i}" for i in rng.permutation(3)], rng.integers(-1, 3, n)
    group[f"{name}/codes"], group[f"{name}/categories"] = codes.astype("i1"), np.array(known, "S2")
    group[name].attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
    return [None if code < 0 else known[code] for code in codes]


def _nullable(group, name, rng, n):
    values, mask = rng.integers(0, 9, n), rng.random(n) < 0.4
    group[f"{name}/values"], group[f"{name}/mask"] = values, mask
    group[name].attrs.update({"encoding-type": "nullable-integer", "encoding-version": "0.1.0"})
    return [None if is_missing else int(value) for value, is_missing in zip(values, mask, strict=True)]


def _sparse(group, name, rng, n):
    dense = (rng.integers(1, 9, (n, WIDTH)) * (rng.random((n, WIDTH)) < 0.5)).astype("f4")
    at, matrix = np.nonzero(dense), group.create_group(name)
    matrix["data"], matrix["indices"] = dense[at], at[1].astype("i4")
    matrix["indptr"] = np.concatenate([[0], np.cumsum((dense != 0).sum(1))])
    matrix.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": dense.shape})
    return dense


def _end_to_end(group, rng, d):
    """Write columns in two datasets, or groups, each: ``jx_0`` and ``jx_1`` have the rows of ``x``."""
    cuts = [slice(0, d.n // 2), slice(d.n // 2, d.n)]
    for name in ("x", "s", "t", "c", "vlen"):
        for i, cut in enumerate(cuts):
            group.create_dataset(f"j{name}_{i}", data=getattr(d, name)[cut], dtype=group[name].dtype)
    d.jcat, d.jni, d.jX, d.jr = [], [], [], []
    for i, cut in enumerate(cuts):
        count = cut.stop - cut.start
        d.jcat += _encoded(group, f"jcat_{i}", rng, count)
        d.jni += _nullable(group, f"jni_{i}", rng, count)
        d.jX += [*_sparse(group, f"jX_{i}", rng, count)]
        bounds = np.sort(rng.integers(0, 6, count - 1))
        group[f"run_{i}/x"] = values = rng.integers(0, 99, (5, 2))
        group[f"run_{i}/o"] = offsets = np.array([0, *np.minimum(bounds, 5), 5])
        d.jr += [values[a:b] for a, b in itertools.pairwise(offsets)]


def _longer(group, rng, d):
    """Write longer arrays, of which rows are ranges."""
    counts = rng.integers(1, 4, d.n)
    d.o, m = np.concatenate([[0], np.cumsum(counts)]), int(counts.sum())
    group["ro"], group["re"], group["rn"], group["rs"] = d.o, d.o[1:], counts, d.o[:-1]
    group["rb"] = np.stack([d.o[:-1], d.o[1:]], -1)
    group["rtab"] = np.array(list(zip(d.o[:-1], d.o[1:], strict=True)), [("start", "i8"), ("stop", "i8")])
    for i, cut in enumerate([slice(0, 1), slice(1, d.n)]):
        group[f"rbj_{i}"] = group["rb"][cut]
    d.rx, d.rc = rng.integers(0, 99, (m, 2)), _compound(rng, m)
    group["rx"], group["rc"] = d.rx, d.rc
    for i, cut in enumerate([slice(0, 2), slice(2, m)]):
        group[f"rxj_{i}"] = d.rx[cut]
    d.rt = [f"t{i}" for i in range(m)]
    group["rt"] = np.array(d.rt, "S3")
    d.rcat, d.rni, d.rX = _encoded(group, "rcat", rng, m), _nullable(group, "rni", rng, m), _sparse(group, "rX", rng, m)
    group["rcf"], d.rcf = np.arange(m, dtype="i2"), np.arange(m) * 0.5
    group["rcf"].attrs["scale_factor"] = np.float32(0.5)
    d.rvlen = _vlen(rng, m)
    group.create_dataset("rvlen", data=d.rvlen, dtype=h5py.vlen_dtype("i4"))
    inner = np.concatenate([[0], np.cumsum(rng.integers(1, 3, m))])
    d.rr = [rng.integers(0, 99, b - a) for a, b in itertools.pairwise(inner)]
    group["rry"], group["rri"] = np.concatenate(d.rr), inner


def _images(group, rng, d):
    pixels = [rng.integers(0, 255, (2, 3, 3)).astype("u1") for _ in range(d.n)]
    d.img, encoded = [each.transpose(2, 0, 1) for each in pixels], [np.frombuffer(png(each), "u1") for each in pixels]
    padded = np.array([[*each, 0, 0] for each in encoded], "u1")
    lists = np.empty(d.n, object)
    lists[:] = encoded
    for name, cut in {"img": slice(None), "jimg_0": slice(0, 1), "jimg_1": slice(1, None)}.items():
        group.create_dataset(name, data=lists[cut], dtype=h5py.vlen_dtype("u1"))
    group["imgp"], group["imgo"] = padded, padded[:, :-2].copy().view(f"V{padded.shape[1] - 2}")[:, 0]
    group["rimg"], group["iro"] = np.concatenate(encoded), np.cumsum([0, *map(len, encoded)])


def ranges(d, values):
    return [values[a:b] for a, b in itertools.pairwise(d.o.tolist())]


# Columns --------------------------------------------------------------------------------------------


@dataclass
class Spec:
    """A column: how a user writes it, and its rows as numpy has them."""

    column: Any
    rows: Callable[[Any], Any]
    options: dict = field(default_factory=dict)
    is_part: bool = False  # of a row: of whole datasets, it is another part
    draws: int = 0

    @property
    def name(self):
        return self.column if isinstance(self.column, str) else self.column.name


def _taken(rows, *at):
    return [np.asarray(row)[at] for row in rows]


def _stacked(values, *names):
    return np.stack([values[name].astype("f8") for name in names], -1)


TABLE = {
    "sidecar": Sidecar(
        pa.table({"s": range(100), "num": [2 * s % 7 for s in range(100)], "word": [f"w{s % 9}" for s in range(100)]}),
        on="s",
    )
}
"""Columns of a table beside the files: each row has the line of its `s`."""

R, CF, REV, IMG = {"offsets": "ro"}, {"decode_cf": True}, {"axes": "reversed"}, {"transform": DecodeImage}

SPECS = {
    "plain of numbers": Spec("x", lambda d: d.x),
    "plain of scalar": Spec("s", lambda d: d.s),
    "plain of text": Spec("t", lambda d: d.t),
    "plain of compound": Spec("c", lambda d: d.c),
    "field path of compound": Spec("c/v", lambda d: d.c["v"]),
    "field path of compound (array field)": Spec("c/p", lambda d: d.c["p"]),
    "field path of compound (n,6)": Spec("cj/u", lambda d: d.cj["u"]),
    "plain of vlen": Spec("vlen", lambda d: d.vlen),
    "category of text": Spec("cat", lambda d: d.cat),
    "nullable of integer": Spec("ni", lambda d: d.ni),
    "references of vectors": Spec("ref", lambda d: d.ref),
    "decode_cf of packed": Spec("cfx", lambda d: d.cfx, CF),
    "decode_cf of times": Spec("cft", lambda d: d.cft, CF),
    "decode_cf of characters": Spec("cfch", lambda d: d.cfch, CF),
    "fields of compound": Spec(fields("c", ["v", "u"]), lambda d: _stacked(d.c, "v", "u")),
    "fields of compound (n,6)": Spec(fields("cj", ["v", "u"]), lambda d: _stacked(d.cj, "v", "u")),
    "fields of field path": Spec(fields("c/in", ["r", "q"]), lambda d: _stacked(d.c["in"], "r", "q")),
    "joined of numbers": Spec(joined("jx_*"), lambda d: d.x),
    "joined of scalar": Spec(joined("js_*"), lambda d: d.s),
    "joined of text": Spec(joined("jt_*"), lambda d: d.t),
    "joined of compound": Spec(joined("jc_*"), lambda d: d.c),
    "joined of vlen": Spec(joined("jvlen_*"), lambda d: d.vlen),
    "joined of field path": Spec(joined("jc_*/v"), lambda d: d.c["v"]),
    "joined of fields": Spec(joined(fields("jc_*", ["v", "u"])), lambda d: _stacked(d.c, "v", "u")),
    "joined of part": Spec(joined(part("jx_*", {0: [2, 0]})), lambda d: d.x[:, [2, 0]], is_part=True),
    "joined of category": Spec(joined("jcat_*"), lambda d: d.jcat),
    "joined of nullable": Spec(joined("jni_*"), lambda d: d.jni),
    "joined of csr": Spec(joined("jX_*"), lambda d: d.jX),
    "joined of references": Spec(joined("jref_*"), lambda d: d.ref),
    "joined of ragged": Spec(joined(ragged("run_*/x", offsets="run_*/o")), lambda d: d.jr),
    "ragged of numbers (offsets)": Spec(ragged("rx", **R), lambda d: ranges(d, d.rx)),
    "ragged of numbers (ends)": Spec(ragged("rx", ends="re"), lambda d: ranges(d, d.rx)),
    "ragged of numbers (bounds)": Spec(ragged("rx", bounds="rb"), lambda d: ranges(d, d.rx)),
    "ragged of numbers (counts)": Spec(ragged("rx", counts="rn"), lambda d: ranges(d, d.rx)),
    "ragged of numbers (starts, counts)": Spec(ragged("rx", starts="rs", counts="rn"), lambda d: ranges(d, d.rx)),
    "ragged of numbers (field bounds)": Spec(
        ragged("rx", starts="rtab/start", ends="rtab/stop"), lambda d: ranges(d, d.rx)
    ),
    "ragged of bounds: fields": Spec(ragged("rx", bounds=fields("rtab", ["start", "stop"])), lambda d: ranges(d, d.rx)),
    "ragged of bounds: joined": Spec(ragged("rx", bounds=joined("rbj_*")), lambda d: ranges(d, d.rx)),
    "ragged of compound": Spec(ragged("rc", **R), lambda d: ranges(d, d.rc)),
    "ragged of field path": Spec(ragged("rc/v", **R), lambda d: ranges(d, d.rc["v"])),
    "ragged of text": Spec(ragged("rt", **R), lambda d: ranges(d, d.rt)),
    "ragged of fields": Spec(ragged(fields("rc", ["v", "u"]), **R), lambda d: ranges(d, _stacked(d.rc, "v", "u"))),
    "fields of ragged": Spec(fields(ragged("rc", **R), ["v", "u"]), lambda d: ranges(d, _stacked(d.rc, "v", "u"))),
    "ragged of decode_cf": Spec(ragged("rcf", **R), lambda d: ranges(d, d.rcf), CF),
    "ragged of category": Spec(ragged("rcat", **R), lambda d: ranges(d, d.rcat)),
    "ragged of nullable": Spec(ragged("rni", **R), lambda d: ranges(d, d.rni)),
    "ragged of joined": Spec(ragged(joined("rxj_*"), **R), lambda d: ranges(d, d.rx)),
    "ragged of part": Spec(ragged(part("rx", {0: [1]}), **R), lambda d: ranges(d, d.rx[:, [1]])),
    "ragged of ragged": Spec(ragged(ragged("rry", offsets="rri"), **R), lambda d: ranges(d, d.rr)),
    "ragged of vlen": Spec(ragged("rvlen", **R), lambda d: ranges(d, d.rvlen)),
    "ragged of csr": Spec(ragged("rX", **R), lambda d: ranges(d, d.rX)),
    "csr of sparse": Spec(csr("X"), lambda d: d.X),
    "csr of by path": Spec("X", lambda d: d.X),
    "csr of dense=False": Spec(csr("X", dense=False), lambda d: d.X),
    "csr of take": Spec(csr("X", take=[4, 1]), lambda d: d.X[:, [4, 1]]),
    "csr of take names": Spec(csr("X", take=["g5", "g0"], names="genes"), lambda d: d.X[:, [5, 0]]),
    "csr of joined": Spec(csr(joined("jX_*"), take=[4, 1]), lambda d: _taken(d.jX, [4, 1])),
    "part of numbers": Spec(part("x", {0: [2, 0]}), lambda d: d.x[:, [2, 0]], is_part=True),
    "part of numbers, slice": Spec(part("x", {0: slice(1, None)}), lambda d: d.x[:, 1:], is_part=True),
    "part of numbers, axis 1": Spec(part("cube", {1: [1]}), lambda d: d.cube[..., [1]], is_part=True),
    "part of part": Spec(
        part(part("cube", {0: [2, 0]}), {0: slice(None, None, -1), 1: [1]}),
        lambda d: d.cube[:, [0, 2]][..., [1]],
        is_part=True,
    ),
    "part of random=": Spec(part("x", random=2), lambda d: d.x, is_part=True, draws=2),
    "part of field path (array)": Spec(part("c/p", {0: [1]}), lambda d: d.c["p"][:, [1]], is_part=True),
    "part of fields": Spec(
        part(fields("cj", ["v", "u"]), {0: [5, 2]}), lambda d: _stacked(d.cj, "v", "u")[:, [5, 2]], is_part=True
    ),
    "part of joined": Spec(part(joined("jx_*"), {0: [2, 0]}), lambda d: d.x[:, [2, 0]], is_part=True),
    "part of ragged": Spec(
        part(ragged("rx", **R), {0: slice(0, 2)}), lambda d: [row[:2] for row in ranges(d, d.rx)], is_part=True
    ),
    "part of ragged (step -1)": Spec(
        part(ragged("rx", **R), {0: slice(None, None, -1)}), lambda d: [row[::-1] for row in ranges(d, d.rx)]
    ),
    "part of ragged, random=": Spec(part(ragged("rx", **R), random=2), lambda d: ranges(d, d.rx), draws=2),
    "part of joined ragged": Spec(
        part(joined(ragged("run_*/x", offsets="run_*/o")), {1: [1]}), lambda d: [row[:, [1]] for row in d.jr]
    ),
    "part of csr": Spec(part(csr("X"), {0: [4, 1]}), lambda d: d.X[:, [4, 1]]),
    "part of csr by path": Spec(part("X", {0: slice(0, 3)}), lambda d: d.X[:, :3]),
    "part of vlen": Spec(part("vlen", {0: [1, 0]}), lambda d: _taken(d.vlen, [1, 0]), is_part=True),
    "part of vlen, slice": Spec(part("vlen", {0: slice(1, None)}), lambda d: [row[1:] for row in d.vlen], is_part=True),
    "part of vlen, random=": Spec(part("vlen", random=2), lambda d: d.vlen, is_part=True, draws=2),
    "part of category": Spec(part("cat", {0: [0]}), lambda d: d.cat, is_part=True),
    "part of references": Spec(part("ref", {0: [0]}), lambda d: _taken(d.ref, [0]), is_part=True),
    "part of decode_cf": Spec(part("cfx", {0: [2, 0]}), lambda d: d.cfx[:, [2, 0]], CF, is_part=True),
    "reversed of numbers": Spec("x", lambda d: d.x, REV),
    "reversed of numbers 3-d": Spec("cube", lambda d: d.cube, REV),
    "reversed of scalar": Spec("s", lambda d: d.s, REV),
    "part of reversed": Spec(part("x", {0: [2, 0]}), lambda d: d.x[:, [2, 0]], REV, is_part=True),
    "fields of reversed": Spec(fields("cj", ["v", "u"]), lambda d: _stacked(d.cj, "v", "u"), REV),
    "field path of reversed": Spec("cj/u", lambda d: d.cj["u"], REV),
    "joined of reversed": Spec(joined("jx_*"), lambda d: d.x, REV),
    "ragged of reversed": Spec(ragged("rx", **R), lambda d: ranges(d, d.rx), REV),
    "ragged of reversed (bounds)": Spec(ragged("rx", bounds="rb"), lambda d: ranges(d, d.rx), REV),
    "csr of reversed": Spec(csr("X"), lambda d: d.X, REV),
    "category of reversed": Spec("cat", lambda d: d.cat, REV),
    "reversed of decode_cf": Spec("cfx", lambda d: d.cfx, REV | CF),
    "column of a table": Spec("num", lambda d: 2 * d.s % 7, TABLE),
    "text of a table": Spec("word", lambda d: np.array([f"w{s % 9}" for s in d.s], object), TABLE),
    "images of vlen": Spec("img", lambda d: d.img, IMG),
    "images of rows filled up": Spec("imgp", lambda d: d.img, IMG),
    "images of opaque values": Spec("imgo", lambda d: d.img, IMG),
    "images of ragged": Spec(ragged("rimg", offsets="iro"), lambda d: d.img, IMG),
    "images of joined": Spec(joined("jimg_*"), lambda d: d.img, IMG),
}


# Row kinds: what a user passes, and the rows, given those of each file or group. -------------------------------------


def _shifted(units, *offsets):
    at = np.arange(len(units))
    return [[units[max(0, min(len(units) - 1, i + offset))] for offset in offsets] for i in at]


@dataclass
class Kind:
    """A row kind: what a user passes, given the names of columns, and rows, given the units of a file or a group."""

    options: Callable[..., dict]
    rows: Callable[[list], list] = list
    of: str = "files"
    is_whole: bool = False
    others: tuple[str, ...] = ()
    are_steps: bool = False


KINDS = {
    "first axis": Kind(lambda *_: {}),
    "renamed": Kind(lambda *_: {}),
    "Groups": Kind(lambda *_: {"rows": Groups("g_*")}, lambda units: [units], "groups", is_whole=True),
    "Files": Kind(lambda *_: {"rows": Files()}, lambda units: [units], is_whole=True),
    "Grid of=(0,)": Kind(
        lambda *names: {"rows": Grid(2, of={"grid": (0, 1)} | dict.fromkeys(names, (0,)))},
        lambda units: [unit for unit in units for _ in range(2)],
        others=("grid",),
    ),
    "Patches": Kind(
        lambda *names: {"rows": Patches(dict.fromkeys(names, (2,)), stride=(1,), axes=dict.fromkeys(names, (0,)))},
        lambda units: [units[i : i + 2] for i in range(len(units) - 1)],
        is_whole=True,
    ),
    "Windows": Kind(
        lambda *names: {"windows": Windows(dict.fromkeys(names, range(-1, 2)))},
        lambda units: _shifted(units, -1, 0, 1),
        are_steps=True,
    ),
    "Windows, no offsets": Kind(lambda *_: {"windows": Windows({"tm": [0, 1]})}, others=("tm",)),
    "Windows Groups": Kind(
        lambda *names: {"rows": Groups("g_*"), "windows": Windows(dict.fromkeys(names, range(-1, 2)))},
        lambda units: _shifted(units, -1, 0, 1),
        "groups",
        are_steps=True,
    ),
    "at= list": Kind(
        lambda *names: {"windows": Windows(dict.fromkeys(names, (-1.0, 0.0)), at=dict.fromkeys(names, "tm"))},
        lambda units: _shifted(units, -1, 0),
        are_steps=True,
    ),
    "at= slice": Kind(
        lambda name: {"windows": Windows({"s": [0.0], "v": (name, slice(-1.5, 0.5))}, at={"s": "tm", name: "tm"})},
        lambda units: [units[max(0, i - 1) : i + 1] for i in range(len(units))],
        others=("s", "v"),
    ),
}
IN_RAY = ("first axis", "Groups", "Files", "Patches", "Windows", "Windows Groups")


def write_files(folder):
    """Write the files of all cells, and return what they hold: of files and of groups, plain and reversed."""
    held = {}
    for kind in ("files", "groups"):
        (folder / kind).mkdir()
        (folder / f"reversed {kind}").mkdir()
        rng = np.random.default_rng(7)
        for i, n in enumerate(LENGTHS):
            path = folder / kind / (f"{i}.h5" if kind == "files" else "a.h5")
            with h5py.File(path, "a") as file:
                group = file if kind == "files" else file.create_group(f"g_{i}")
                held.setdefault(kind, []).append(write(group, rng, n))
        for path in (folder / kind).iterdir():
            _reverse(path, folder / f"reversed {kind}" / path.name)
    return held


def _reverse(path, to):
    """Copy a file with the axes of its datasets in the opposite order."""
    with h5py.File(path) as source, h5py.File(to, "w") as file:

        def copy(name, item):
            if isinstance(item, h5py.Group):
                file.require_group(name).attrs.update(item.attrs)
            elif item.dtype != h5py.ref_dtype:
                file.create_dataset(name, data=item[()].T, dtype=item.dtype)
                file[name].attrs.update(item.attrs)

        source.visititems(copy)


def plain(value):
    """Return a value as lists, numbers and texts: of torch, of numpy, or as h5py reads it."""
    if isinstance(value, torch.Tensor):
        value = (value.to_dense() if value.layout is not torch.strided else value).numpy()
    if isinstance(value, (np.datetime64, np.ndarray)) and value.dtype.kind == "M":
        value = value.astype("M8[ns]").astype("i8")
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict) and "indices" in value:  # rows of sparse matrices travel through Ray as their entries
        value = _dense(*map(plain, value.values()))
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "isoformat"):
        return plain(np.datetime64(value, "ns"))
    return None if isinstance(value, float) and value != value else value


def _dense(indices, data, width, steps=1):
    rows = np.zeros(width)
    rows[indices] = data
    return plain(rows.reshape(steps, -1) if steps > 1 else rows)


def _is_drawn(found, unit, draws):
    """Return whether a value has so many of the entries of a unit, in their order."""
    entries = iter(unit)
    return len(found) == min(draws, len(unit)) and all(any(one == other for other in entries) for one in found)


def is_same(found, expected, draws, *, are_steps):
    """Return whether rows are those of numpy; of drawn ones, entries of these."""
    if not draws:
        return found == expected
    pairs = [*zip(found, expected, strict=True)] if len(found) == len(expected) else [([None], [])]
    pairs = [each for pair in pairs for each in zip(*pair, strict=True)] if are_steps else pairs
    return all(_is_drawn(one, unit, draws) for one, unit in pairs)


def is_of_type(value, type_, shape=None, levels=None):
    """Return whether a value is what its type says: its dtype, shape, lists, and that it may be missing.

    `shape` and `levels` are those of a list in one: its axes of one length, and then lists in lists.
    """
    if value is None:
        return type_.may_be_missing
    if type_.kind in {"number", "bool"}:
        array = np.asarray(value)
        return (array.dtype, array.shape) == (type_.dtype, type_.row_shape)
    if type_.kind == "ragged" and type_.element.kind in "biufc":
        array, axes = np.asarray(value), type_.ragged_shape
        fits = array.ndim == len(axes) and all(one in {None, n} for one, n in zip(axes, array.shape, strict=True))
        return fits and array.dtype == type_.element
    if type_.kind != "list":
        return True
    shape, levels = (type_.row_shape, len(type_.ragged_shape) or 1) if shape is None else (shape, levels)
    if shape:
        return len(value) == shape[0] and all(is_of_type(each, type_, shape[1:], levels) for each in value)
    if levels > 1:
        return all(is_of_type(each, type_, (), levels - 1) for each in value)
    array = np.asarray(value)
    is_plain = array.dtype == object or array.dtype.kind in "SU" or not array.size
    return is_plain or (array.dtype, array.shape[1:]) == (type_.element.base, type_.element.shape)


def expected_rows(spec, kind, held):
    return [plain(row) for d in held[kind.of] for row in kind.rows([*spec.rows(d)])]


def cell(spec, kind_name, folder, held):
    """Return what a cell is: "ok", "WRONG ...", or the error."""
    kind, is_renamed = KINDS[kind_name], kind_name == "renamed"
    if kind.is_whole and spec.is_part:
        return ""
    name = "new" if is_renamed else "v" if "v" in kind.others else spec.name
    others = [other for other in kind.others if other != spec.name]
    columns = {"new": spec.column} if is_renamed else [spec.column, *others]
    where = folder / (f"reversed {kind.of}" if spec.options.get("axes") else kind.of)
    given = spec.options if spec.options is not IMG else {"transform": DecodeImage(name)}
    try:
        dataset = H5Dataset(where, columns, **kind.options(spec.name), **given)
        values = [dataset[i][name] for i in range(len(dataset))]
        found = [*map(plain, values)]
    except RayH5Error as error:
        said = re.sub(r"^.*?\.h5(: group '[^']*')?:? ", "", str(error).replace(repr(spec.column), "..."))
        return f"{type(error).__name__}: {' '.join(said.split()[:SHOWN])}"
    expected = expected_rows(spec, kind, held)
    if is_same(found, expected, spec.draws, are_steps=kind.are_steps):
        (column,) = (column for column in dataset.source.plan.columns if column.name == name)
        is_right = "transform" in given or all(is_of_type(value, column.type) for value in values)
        return "ok" if is_right else f"ok, but not of its type {column}"
    return f"WRONG {str(found)[:60]}, expected {str(expected)[:60]}"


def wrong_in_ray(kind_name, options, names, folder, held):
    """Read columns at once with Ray, under other names, and return those whose rows are not those of numpy."""
    kind, specs = KINDS[kind_name], {f"c{i}": SPECS[name] for i, name in enumerate(names)}
    columns = {name: spec.column for name, spec in specs.items()} | {other: other for other in kind.others}
    where = folder / (f"reversed {kind.of}" if options.get("axes") else kind.of)
    given = {} if options is IMG else options
    ds = read_h5(where, columns=columns, **kind.options(*specs), **given)
    rows = (ds.map_batches(DecodeImage([*specs])) if options is IMG else ds).take_all()
    found = {name: [plain(row[name]) for row in rows] for name in specs}
    return {
        str(spec.column): str(found[name])[:99]
        for name, spec in specs.items()
        if not is_same(found[name], expected_rows(spec, kind, held), spec.draws, are_steps=kind.are_steps)
    }


@contextlib.contextmanager
def files():
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Path(folder), write_files(Path(folder))


def table_of(folder, held, part=slice(None)):
    """Return a part of the cells, a line each."""
    cells = [(spec, kind) for spec in SPECS for kind in KINDS][part]
    found = ((spec, kind, cell(SPECS[spec], kind, folder, held)) for spec, kind in cells)
    return [" | ".join(line) for line in found if line[-1]]


def makers_text():
    with files() as (folder, held):
        return "\n".join(table_of(folder, held)) + "\n"
