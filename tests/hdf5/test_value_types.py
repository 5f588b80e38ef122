"""What the types of HDF5 are described as: a kind, a plain dtype, and what is lost or converted. No file is written."""

import pickle

import h5py
import numpy as np
import pytest
from h5py import h5t

from ray_h5.errors import CorruptFileError, OptionError, UnsupportedColumnError
from ray_h5.hdf5.format.file_bytes import Widths
from ray_h5.hdf5.format.value_types import (
    are_references,
    as_dtype,
    dtype_of,
    empty_record,
    fields_of,
    in_order,
    item_bytes,
    split_array,
    value_type_of,
    without_rows,
)
from ray_h5.manifest.value_type import ValueType

TEXT, INTS, REFERENCE = h5py.string_dtype(), h5py.vlen_dtype("<i2"), h5py.ref_dtype
HEAP = 16  # bytes of a value of varying length: its length, and its address and index in the heap
LEVELS = h5py.enum_dtype({"high": -2, "low": 1}, "i2")


def type_of(dtype):
    return h5t.py_create(np.dtype(dtype), logical=True)


def compound(size, *fields):
    made = h5t.create(h5t.COMPOUND, size)
    for name, offset, field in fields:
        made.insert(name, offset, field if isinstance(field, h5t.TypeID) else type_of(field))
    return made


def unnamed(type_id):
    """The same without the name of a field, which libhdf5 does not write."""
    return h5t.decode(bytes(type_id.encode()).replace(b"unusual\0", bytes(8)))


def with_bits(type_id, bits):
    made = type_id.copy()
    made.set_precision(bits)
    return made


def wide(type_id, size):
    """Numbers in more bytes than they have."""
    made = type_id.copy()
    made.set_size(size)
    return made


def brain_float():
    made = h5t.IEEE_F32LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_size(2)
    return made


BRAIN = brain_float()  # bfloat16, which h5py has as float32


def layout_of(names, formats, offsets, itemsize):
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


def describe(type_id, widths=Widths()):  # noqa: B008
    return value_type_of(type_id, widths, "column 'x'")


PLAIN = [
    *((dtype, "number", np.dtype(dtype).itemsize) for dtype in ("i1", "<i8", ">u4", "<f2", ">f8", "c8", ">c16")),
    ("?", "bool", 1),
    ("S5", "string", 5),
    ("V3", "binary", 3),
    (h5py.opaque_dtype("M8[D]"), "time", 8),
    (h5py.opaque_dtype("m8[ms]"), "time", 8),
    (np.dtype([("a", "u1"), ("b", ">f8"), ("c", [("d", "S2")])], align=True), "struct", 24),
    (np.dtype([("a", "<f4", (2, 3)), ("b", "?")]), "struct", 25),
]


@pytest.mark.parametrize(("dtype", "kind", "nbytes"), PLAIN)
def test_values_that_are_in_the_file_as_in_memory(dtype, kind, nbytes):
    dtype = np.dtype(dtype)
    found = describe(type_of(dtype))
    assert (found.dtype, found.zero.dtype, found.zero.shape, found.array_shape) == (dtype, dtype, (), ())
    assert found.zero.tobytes() == bytes(dtype.itemsize)
    assert found.zero.dtype.metadata is None
    assert found.file_dtype == (None if dtype.isnative else dtype)
    assert pickle.loads(pickle.dumps(found.type)) == found.type
    assert (found.item_bytes, found.odd_type, found.lost_fields) == (nbytes, "", ())
    assert found.type == ValueType(kind, dtype.newbyteorder("="))
    assert dtype_of(bytes(type_of(dtype).encode())) == dtype
    assert describe(type_of(dtype)) is found  # a type is described once


MORE = [
    (TEXT, {"kind": "string", "item_bytes": HEAP}),
    (h5py.string_dtype("ascii"), {"kind": "string", "item_bytes": HEAP}),
    (INTS, {"kind": "list", "item_bytes": HEAP, "element": np.dtype("<i2")}),
    (LEVELS, {"kind": "number", "item_bytes": 2, "odd_type": "", "enum": (("high", -2), ("low", 1))}),
    (h5py.vlen_dtype(LEVELS), {"kind": "list", "element": np.dtype("i2"), "enum": (("high", -2), ("low", 1))}),
    ([("a", [("level", LEVELS), ("ok", "?")]), ("b", "u1")], {"enum": (("a.level.high", -2), ("a.level.low", 1))}),
    ([("a", "<i4"), ("text", TEXT)], {"kind": "struct", "item_bytes": 4 + HEAP, "lost_fields": ()}),
    ([("a", "<i4", (2,)), ("texts", TEXT, (3,))], {"kind": "struct", "item_bytes": 8 + 3 * HEAP}),
    (compound(12, (b"f", 8, "<i4"), (b"r", 0, REFERENCE)), {"lost_fields": ("r",), "odd_type": "", "item_bytes": 12}),
    (compound(20, (b"f", 0, "<i4"), (b"l", 4, INTS)), {"lost_fields": ("l",), "odd_type": ""}),
    (compound(2, (b"\xff", 0, "u1"), (b"f", 1, "u1")), {"lost_fields": ("\\xff",), "odd_type": ""}),
    (compound(8, (b"t", 0, h5t.UNIX_D32LE), (b"f", 4, "<i4")), {"lost_fields": ("t",), "odd_type": ""}),
    (
        compound(24, (b"t", 0, TEXT), (b"f", 16, REFERENCE)),
        {"lost_fields": ("f",), "odd_type": "", "item_bytes": 24 - 8 + HEAP},  # in memory, a text is a pointer
    ),
    (compound(3, (b"bits", 0, h5t.STD_B8BE), (b"t", 1, h5t.STD_U16LE)), {"odd_type": "values that libhdf5 converts"}),
    (compound(9, (b"bits", 8, h5t.STD_B8BE), (b"r", 0, REFERENCE)), {"lost_fields": ("r",), "odd_type": ""}),
    (compound(9, (b"bits", 8, h5t.STD_B8LE), (b"r", 0, REFERENCE)), {"lost_fields": ("r",), "odd_type": ""}),
    (compound(10, (b"bits", 8, h5t.STD_B16LE), (b"r", 0, REFERENCE)), {"odd_type": "compound values that libhdf5"}),
    (
        compound(16, (b"f", 8, h5t.array_create(with_bits(h5t.STD_I32LE, 20), (2,))), (b"r", 0, REFERENCE)),
        {"odd_type": "compound values that libhdf5 converts"},
    ),
    (compound(16, (b"f", 8, np.dtype(("<i4", (2,)))), (b"r", 0, REFERENCE)), {"odd_type": ""}),
    (compound(11, (b"f", 8, BRAIN), (b"r", 0, REFERENCE)), {"lost_fields": ("r",), "odd_type": "compound values that"}),
    (h5t.STD_B16LE, {"kind": "number", "item_bytes": 2, "odd_type": "bit fields of 16 bits"}),
    (with_bits(h5t.STD_I32LE, 20), {"odd_type": "integers of 20 bits in 32, unlike any of numpy's"}),
    (wide(h5t.IEEE_F16LE, 4), {"odd_type": "floats of 16 bits in 32, unlike any of numpy's"}),
    (np.dtype(("<f4", (3,))), {"kind": "number", "item_bytes": 12, "odd_type": "arrays of float32, of shape (3,)"}),
    (np.dtype((TEXT, (2,))), {"kind": "string", "item_bytes": 2 * HEAP}),
]


@pytest.mark.parametrize(("made", "expected"), MORE, ids=range(len(MORE)))
def test_other_values(made, expected):
    found = describe(type_id := made if isinstance(made, h5t.TypeID) else type_of(made))
    for name, value in expected.items():
        said = getattr(found.type if hasattr(found.type, name) else found, name)
        assert said.startswith(value) if name == "odd_type" and value else said == value, name
    assert found.dtype.names is None or not {*found.lost_fields} & {*found.dtype.names}
    assert found.array_shape == split_array(type_id.dtype)[1] if found.dtype.names is None else True
    assert dtype_of(found.in_file[2:]) == found.dtype
    narrow = describe(type_id, Widths(4, 2))
    heaps = {"list": 1, "string": 1 if found.dtype.kind == "O" else 0}.get(found.type.kind, 0)
    assert found.item_bytes - narrow.item_bytes >= 4 * heaps
    assert (narrow.in_file[:2], found.in_file[:2]) == (bytes([2, 4]), bytes([8, 8]))


ROOM = [
    (compound(4, (b"f", 0, BRAIN), (b"i", 2, "<u2")), [("f", "<f4"), ("i", "<u2")]),
    (compound(40, (b"f", 0, BRAIN), (b"i", 2, "<u2")), [("f", "<f4"), ("i", "<u2")]),
    (compound(5, (b"f", 0, h5t.array_create(BRAIN, (2,))), (b"i", 4, "i1")), [("f", "<f4", (2,)), ("i", "i1")]),
    (
        compound(44, (b"in", 4, compound(40, (b"f", 38, BRAIN), (b"g", 36, wide(h5t.IEEE_F16LE, 2))))),
        [("in", [("g", "<f2"), ("f", "<f4")])],
    ),
    (compound(11, (b"f", 8, BRAIN), (b"r", 0, REFERENCE)), [("f", "<f4")]),
    (compound(10, (b"t", 0, TEXT), (b"f", 8, BRAIN)), [("t", TEXT), ("f", "<f4")]),
    (compound(3, (b"f", 0, wide(h5t.IEEE_F16LE, 3))), [("f", "<f4")]),
]


@pytest.mark.parametrize(("made", "dtype"), ROOM, ids=range(len(ROOM)))
def test_fields_that_numpy_has_in_more_bytes_do_not_reach_into_the_next(made, dtype):
    assert describe(made).dtype == np.dtype(dtype)


def test_fields_are_listed_as_they_lie():
    inner = compound(2, (b"z", 1, "u1"), (b"y", 0, "u1"))
    made = compound(16, (b"late", 8, "<f8"), (b"early", 0, "<i4"), (b"inner", 4, inner))
    expected = layout_of(["early", "inner", "late"], ["<i4", [("y", "u1"), ("z", "u1")], "<f8"], [0, 4, 8], 16)
    assert describe(made).dtype == expected
    assert [(name, offset) for name, offset, _ in fields_of(in_order(made))] == [
        (b"early", 0),
        (b"inner", 4),
        (b"late", 8),
    ]
    assert in_order(ordered := type_of([("a", "u1"), ("b", "u1")])) is ordered
    array = h5t.array_create(inner, (3,))
    assert in_order(array).dtype == np.dtype(([("y", "u1"), ("z", "u1")], (3,)))
    assert in_order(ordered := h5t.array_create(type_of("i4"), (3,))) is ordered
    assert fields_of(type_of("i4")) == []


REFUSED = [
    (REFERENCE, "column 'x' has references to other objects, and no values"),
    (h5py.regionref_dtype, "column 'x' has type region reference, which cannot be read as rows"),
    (h5py.vlen_dtype(">i2"), "has array of >i2 of varying length, whose byte order h5py loses"),
    (h5py.vlen_dtype(TEXT), "has type array of object of varying length, which cannot"),
    (h5py.vlen_dtype(np.dtype([("a", "i4")])), "of varying length, which cannot be read as rows"),
    ([("r", REFERENCE)], "column 'x', field 'r', has references inside a compound type"),
    ([("r", h5py.regionref_dtype)], "column 'x', field 'r', has region references inside"),
    ([("l", INTS, (2,))], "column 'x', field 'l', has arrays of varying length inside"),
    ([("in", [("l", INTS)])], "column 'x', field 'in', field 'l', has arrays of varying length inside"),
    (unnamed(compound(1, (b"unusual", 0, "u1"))), "column 'x' has a field without a name"),
    (unnamed(compound(9, (b"unusual", 0, "u1"), (b"r", 1, REFERENCE))), "has a field without a name|references"),
    (wide(h5t.IEEE_F64LE, 32), "column 'x' has floats of 64 bits, which numpy lacks"),
    (compound(16, (b"i", 0, wide(h5t.STD_I64LE, 16))), "column 'x', field 'i', has a type that numpy lacks: data type"),
    (h5t.UNIX_D32LE, "column 'x' has a type that numpy lacks: HDF5's own time"),
    (compound(4, (b"t", 0, h5t.UNIX_D32LE)), "column 'x', field 't', has a type that numpy lacks: HDF5's own time"),
    (
        compound(4, (b"in", 0, compound(4, (b"\xfft", 0, h5t.UNIX_D32LE)))),
        "column 'x', field 'in.\N{REPLACEMENT CHARACTER}t', has a type that numpy lacks",
    ),
]


@pytest.mark.parametrize(("made", "says"), REFUSED, ids=range(len(REFUSED)))
def test_values_that_no_row_has(made, says):
    type_id = made if isinstance(made, h5t.TypeID) else type_of(made)
    with pytest.raises(UnsupportedColumnError, match=says) as found:
        describe(type_id)
    assert found.value.is_encoded == (made is REFERENCE) == are_references(type_id)


def test_a_damaged_type_of_varying_length():
    stored = bytearray(type_of(TEXT).encode())
    for at in range(len(stored) - 3):
        if stored[at : at + 4] == b"\1\0\0\0" and at > 12:  # the size of a character
            stored[at] = 7
            break
    with pytest.raises(CorruptFileError, match="column 'x' has a type that is damaged"):
        describe(h5t.decode(bytes(stored)))
    list_of_odd_kind = bytearray(type_of(INTS).encode())
    list_of_odd_kind[3] |= 2
    in_fields = compound(HEAP, (b"t", 0, h5t.decode(bytes(stored))))
    for made in (
        h5t.decode(bytes(list_of_odd_kind)),
        in_fields,
        h5t.array_create(in_fields, (2,)),
        h5t.vlen_create(in_fields),
    ):
        with pytest.raises(CorruptFileError, match="Restore the file"):
            describe(made)


def test_bytes_in_the_file():
    """`get_size` is what a value takes in memory, where one of varying length is a pointer."""
    assert [item_bytes(type_of(TEXT), size) for size in (2, 4, 8)] == [10, 12, 16]
    nested = [("a", "<i4"), ("in", [("t", TEXT), ("l", INTS, (2, 2))])]
    assert [item_bytes(type_of(nested), size) for size in (4, 8)] == [4 + 5 * 12, 4 + 5 * 16]


def test_the_error_of_a_dataset_without_rows():
    assert [without_rows("x", is_single=single).has_rows for single in (False, True)] == [False, None]
    assert without_rows("x").has_rows is False


def test_dtypes():
    assert split_array(np.dtype((np.dtype(("<f4", (3,))), (2,)))) == (np.dtype("<f4"), (2, 3))
    assert split_array(np.dtype("i4")) == (np.dtype("i4"), ())
    record = empty_record(np.dtype([("a", "i4"), ("t", TEXT), ("in", [("t", TEXT), ("f", "f4")])]))
    assert record.tolist() == (0, b"", (b"", 0.0))
    assert as_dtype(">f4", "x") == np.dtype(">f4")
    torch_dtype = type("dtype", (), {"__repr__": lambda _: "torch.float32", "__str__": lambda _: "torch.float32"})()
    with pytest.raises(OptionError, match=r"torch\.float32 for column 'x' is no dtype of numpy\. Write 'float32'\."):
        as_dtype(torch_dtype, "column 'x'")
    other = type("dtype", (), {"__str__": lambda _: "torch.float23"})()
    with pytest.raises(OptionError, match=r"for x is no dtype of numpy\. There is: bool"):
        as_dtype(other, "x")
    with pytest.raises(OptionError, match=r"'flaot32' for x is no dtype of numpy.*'float32'"):
        as_dtype("flaot32", "x")
