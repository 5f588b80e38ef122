"""What the values are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from ray_h5.errors import UnsupportedColumnError
from tests.conformance.case import Case
from tests.conformance.storage import in_file
from tests.hdf5.h5kit import dataset_with, plist_with, random_rows

LEVELS = h5py.enum_dtype({"low": 0, "mid": 1, "high": 2}, basetype="u1")
UTF8 = h5py.string_dtype("utf-8", 12)
WORDS = ["", "a", "né", "日本語", "long " * 20]


def _numbers(*dtypes: str) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        for dtype in dtypes:
            data = random_rows((11, 3), dtype)
            file.create_dataset(f"flat {dtype}", data=data)
            file.create_dataset(f"chunked {dtype}", data=data, chunks=(4, 3), compression="gzip", shuffle=True)

    return fill


def _both(data: Any, dtype: Any = None) -> Callable[[h5py.File], None]:
    def fill(file: h5py.File) -> None:
        file.create_dataset("x", data=data, dtype=dtype)
        file.create_dataset("chunked", data=data, dtype=dtype, chunks=(2,), compression="gzip")

    return fill


def _arrays(file: h5py.File) -> None:
    type_id = h5py.h5t.array_create(h5py.h5t.STD_I32LE, (2, 3))
    for name, plist in (("x", plist_with()), ("chunked", plist_with((2,))), ("packed", plist_with((2,), (1, 3)))):
        dataset_with(file, name, (5,), plist, type_id)[:] = np.arange(30).reshape(5, 2, 3)


def _lists(file: h5py.File) -> None:
    dataset = file.create_dataset("x", (5,), h5py.vlen_dtype("i4"))
    for i in range(5):
        dataset[i] = np.arange(i)


def _twenty_bits(file: h5py.File) -> None:
    type_id = h5py.h5t.STD_I32LE.copy()
    type_id.set_precision(20)
    dataset_with(file, "x", (4,), plist_with(), type_id)[:] = np.array([1, -1, 2**19 - 1, -(2**19)], "i4")
    dataset_with(file, "chunked", (4,), plist_with((2,), (1,)), type_id)[:] = np.arange(4, dtype="i4")


def _bfloat(file: h5py.File) -> None:
    type_id = h5py.h5t.IEEE_F32LE.copy()
    type_id.set_fields(15, 7, 8, 0, 7)
    type_id.set_precision(16)
    type_id.set_size(2)
    type_id.set_ebias(127)
    for name, chunk in (("x", None), ("chunked", (2,))):
        space = h5py.h5s.create_simple((4,))
        dataset = h5py.h5d.create(file.id, name.encode(), type_id, space, plist_with(chunk))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([0.5, -1, 3, 0], "f4"))


def _references(file: h5py.File) -> None:
    file["ok"] = np.arange(3)
    file.create_dataset("x", data=np.array([file.ref] * 3, h5py.ref_dtype), dtype=h5py.ref_dtype)
    file["scalar"] = 3
    file["null"] = h5py.Empty("f4")


TIMES = np.arange(5).astype("M8[s]").astype(h5py.opaque_dtype(np.dtype("M8[s]")))
SPANS = np.arange(5).astype("m8[s]").astype(h5py.opaque_dtype(np.dtype("m8[s]")))
RECORDS = np.array([(i, i / 2, b"ab") for i in range(5)], [("a", "<i4"), ("b", ">f8"), ("c", "S3")])
UNSUPPORTED = tuple((name, UnsupportedColumnError) for name in ("x", "scalar", "null"))

VALUES = (
    Case("integers", in_file(_numbers("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))),
    Case("floats", in_file(_numbers("f4", "f8"))),
    Case("float16", in_file(_numbers("f2"))),
    Case("complex", in_file(_numbers("c8", "c16"))),
    Case("big-endian", in_file(_numbers(">i2", ">i4", ">u8", ">f2", ">f4", ">f8", ">c8"))),
    Case("bool", in_file(_both(np.array([1, 0, 0, 1, 1], "?")))),
    Case("enum", in_file(_both(np.array([0, 2, 1, 2], "u1"), LEVELS))),
    Case("fixed strings", in_file(_both(np.array([b"ab", b"", b"abcdef"], "S6")))),
    Case("fixed UTF-8 strings", in_file(_both(np.array([word[:4].encode() for word in WORDS], UTF8)))),
    Case("strings of any length", in_file(_both(WORDS, h5py.string_dtype()))),
    Case("compound", in_file(_both(RECORDS))),
    Case("opaque", in_file(_both(np.array([b"ab", b"c", b"\0d"], "V2")))),
    Case("array type", in_file(_arrays)),
    Case("datetime", in_file(_both(TIMES))),
    Case("timedelta", in_file(_both(SPANS))),
    Case("arrays of any length", in_file(_lists)),
    Case("20-bit integer", in_file(_twenty_bits)),
    Case("bfloat", in_file(_bfloat)),
    Case("references, scalar and null", in_file(_references), refused=UNSUPPORTED),
)
