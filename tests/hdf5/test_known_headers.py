"""Datasets that are described without libhdf5 are described as by libhdf5, or left to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.errors import RayH5Error
from ray_h5.hdf5.files.external_policy import Access, ExternalPolicy
from ray_h5.hdf5.format.object_headers import FormatError, MessageKind
from ray_h5.hdf5.tree import known_headers
from ray_h5.hdf5.tree.known_headers import KnownHeaders, PlainBytes
from ray_h5.hdf5.tree.tree import H5Tree
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.read.open_file import forget_all
from ray_h5.storage.local import LOCAL, LocalFile
from tests.conformance.corpus import CASES
from tests.hdf5.h5kit import in_fork
from tests.kit.files import save
from tests.properties import few

Described = tuple[dict[str, ColumnLayout], dict[str, RayH5Error]]

TYPES = [
    "u1",
    "<i8",
    ">f4",
    "?",
    "S5",
    "c8",
    h5py.string_dtype(),
    h5py.string_dtype("ascii", 3),
    h5py.vlen_dtype("f4"),
    h5py.enum_dtype({"a": 0, "b": 1}, "i2"),
    np.dtype([("a", "i4"), ("b", "f8", (2,)), ("s", "S3")]),
    np.dtype(("f4", (3, 2))),
]
MANY = "5,000 columns"
"""A file of the corpus that takes longer than all others, and has more names than are looked at here."""

NAMES = ["x", "label", "deep/er/x", "deep/y", "a b", "größe"]


def by_libhdf5(path: str | Path, group: str = "/") -> Described:
    access = Access(str(path), group, ExternalPolicy.of(()), False, LOCAL, "")
    library = H5Tree(access, LocalFile.open(str(path)).identity())
    try:
        return library.describe()
    finally:
        library.close()


def by_headers(path: str | Path, group: str = "/", learn: Described | None = None) -> Described:
    file = LocalFile.open(str(path))
    headers = KnownHeaders(str(path), group, PlainBytes.on_disk(file.descriptor or 0, file.size))
    if learn is not None:
        headers.learn(learn[0], lambda: True)
    return headers.describe()


def assert_alike(found: Described, expected: Described) -> None:
    assert [*found[0]] == [*expected[0]]
    for name, layout in expected[0].items():
        assert repr(found[0][name]) == repr(layout)  # a fill value may be NaN
        assert found[0][name].path == layout.path
    assert {n: (type(e), str(e)) for n, e in found[1].items()} == {n: (type(e), str(e)) for n, e in expected[1].items()}


@st.composite
def datasets(draw: st.DrawFn) -> dict[str, Any]:
    """Draw how a dataset is written, but for its length."""
    dtype = draw(st.sampled_from(TYPES))
    row = draw(st.sampled_from([(), (3,), (2, 1)]))
    options: dict[str, Any] = {"dtype": dtype, "row": row}
    if draw(st.booleans()):
        options["chunks"] = (draw(st.integers(1, 4)), *row)
        options["maxshape"] = (draw(st.sampled_from([None, 99])), *draw(st.sampled_from([row, (None,) * len(row)])))
        filters = [{"compression": "gzip"}, {"compression": "lzf", "shuffle": True}, {"fletcher32": True}]
        options |= draw(st.sampled_from([{}] if np.dtype(dtype).hasobject else [{}, *filters]))
    if np.dtype(dtype).kind in "iuf" and draw(st.booleans()):
        options["fillvalue"] = 3
    options["attributes"] = draw(st.sampled_from([{}, {"unit": "mm", "scale": 2.0}]))
    return options


def write(path: Path, columns: dict[str, dict[str, Any]], rows: int) -> Path:
    with h5py.File(path, "w") as file:
        for name, given in columns.items():
            options = dict(given)
            attributes, row = options.pop("attributes"), options.pop("row")
            file.create_dataset(name, (rows, *row), **options).attrs.update(attributes)
        file["only"] = 1.5
    return path


@few(25)
@given(
    columns=st.dictionaries(st.sampled_from(NAMES), datasets(), max_size=5),
    lengths=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    group=st.sampled_from(["/", "deep"]),
)
def test_alike_datasets_are_described_as_by_libhdf5(tmp_path_factory, columns, lengths, group):
    folder = tmp_path_factory.mktemp("f")
    first, second = (write(folder / f"{n}.h5", columns, rows) for n, rows in enumerate(lengths))
    group = group if any(name.startswith("deep/") for name in columns) else "/"
    by_headers_of_first = by_headers(first, group, by_libhdf5(first, group))
    assert_alike(by_headers_of_first, by_libhdf5(first, group))
    assert_alike(by_headers(second, group), by_libhdf5(second, group))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CASES if case.error is None and case.name != MANY]
)
def test_files_of_the_corpus(tmp_path, case):
    path = tmp_path / "a.h5"
    case.make(path)

    def check() -> None:
        try:
            expected = by_libhdf5(path)
        except RayH5Error:
            with pytest.raises(FormatError):
                by_headers(path)
            return
        try:
            found = by_headers(path, learn=expected)
        except FormatError:
            return
        assert_alike(found, expected)

    in_fork(check) if case.child else check()


def write_plain(path: Path, rows: int = 20, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        values = np.arange(rows * 12, dtype="f4").reshape(rows, 4, 3)
        file.create_dataset("signal", data=values, chunks=(4, 4, 3), compression="gzip", shuffle=True)
        file.create_dataset("grows", data=np.arange(rows), chunks=(5,), maxshape=(None,), fillvalue=7)
        file["deep/time"], file["text"] = np.arange(float(rows)), [f"row {i}" for i in range(rows)]
    return path


@pytest.mark.parametrize("name", ["x", "obs/state", "matrix", "matrix/data"])
def test_a_second_file_is_not_opened_by_libhdf5(tmp_path, monkeypatch, name):
    paths = [write_plain(tmp_path / f"{n}.h5", rows) for n, rows in enumerate((20, 7))]
    for path, rows in zip(paths, (20, 7), strict=True):
        with h5py.File(path, "a") as file:
            file[name] = np.arange(rows)
    RowReader(paths[0]).layout  # noqa: B018  it is found when asked for
    monkeypatch.setattr(h5py.h5f, "open", None)
    layout = RowReader(paths[1]).layout
    assert {name: column.num_rows for name, column in layout.columns.items()} == dict.fromkeys(layout.columns, 7)
    forget_all()
    assert RowReader(paths[1]).column("deep/time").shape == (7,)
    assert RowReader(paths[1], group="deep").column("/time").shape == (7,)
    assert RowReader(paths[1]).read(["deep/time"])["deep/time"].tolist() == [*range(7)]
    assert RowReader(paths[1]).form == ""


def test_fields_that_no_column_has_are_named_for_each_file(tmp_path):
    paths = [tmp_path / f"{n}.h5" for n in range(2)]
    for path in paths:
        with h5py.File(path, "w") as file:
            file.create_dataset("spans", (3,), np.dtype([("start", "i4"), ("series", h5py.ref_dtype)]))
    by_headers(paths[0], learn=by_libhdf5(paths[0]))
    assert_alike(by_headers(paths[1]), by_libhdf5(paths[1]))
    assert [*by_headers(paths[1])[1]] == ["spans/series"]


@pytest.mark.parametrize("name", [b"a/bq", b"a//b", b"./bq", b"."])
def test_names_that_lead_elsewhere(tmp_path, name):
    """libhdf5 follows a name with a slash through groups: it is not that of the object beside it."""
    path = tmp_path / "a.h5"
    save(path, {"a/bq": np.arange(5), "a/b": np.arange(7), "a0bq": np.arange(5) + 100})
    by_headers(path, learn=by_libhdf5(path))
    path.write_bytes(path.read_bytes().replace(b"a0bq\0", name.ljust(4, b"\0") + b"\0"))
    with pytest.raises(FormatError):
        by_headers(path)


@pytest.mark.parametrize("asked", ["all", "one"])
def test_nothing_is_learnt_from_a_file_that_changes_meanwhile(tmp_path, monkeypatch, asked):
    """Other files would be described wrongly."""
    paths = [tmp_path / f"{n}.h5" for n in range(2)]

    for path, dtype in zip(paths, ["i4", "f4"], strict=True):
        save(path, {"x": np.arange(5)}, dtype=dtype)

    def changed_at_the_end(describe: Any) -> Any:
        def described(*given: Any) -> Any:
            found = describe(*given)
            paths[0].write_bytes(paths[1].read_bytes())
            return found

        return described

    monkeypatch.setattr(known_headers, "_HEAD_BYTES", 128)  # the rest is read when it is asked for
    monkeypatch.setattr(H5Tree, "describe", changed_at_the_end(H5Tree.describe))
    monkeypatch.setattr(H5Tree, "column", changed_at_the_end(H5Tree.column))
    for path in paths:
        found = RowReader(path).layout.columns["x"] if asked == "all" else RowReader(path).column("x")
    assert found.dtype == "f4"


def other_names(file: h5py.File) -> None:
    file["other"] = file["text"]


def loop(file: h5py.File) -> None:
    file["deep/up"] = file


def soft_link(file: h5py.File) -> None:
    file["other"] = h5py.SoftLink("/text")


def pytables(file: h5py.File) -> None:
    file["text"].attrs["PSEUDOATOM"] = "object"


def anndata(file: h5py.File) -> None:
    file.attrs["encoding-type"] = "anndata"


def old_anndata(file: h5py.File) -> None:
    file["obs"], file["var"], file["X"] = np.zeros(20, [("x", "f4")]), np.arange(3), np.zeros((20, 3))


def loom(file: h5py.File) -> None:
    file["matrix"], file["row_attrs/x"], file["col_attrs/x"] = np.zeros((20, 3)), np.arange(20), np.arange(3)


def tenx(file: h5py.File) -> None:
    for part in ("barcodes", "shape", "data", "indices", "indptr"):
        file[f"matrix/{part}"] = np.arange(2)


def scale(file: h5py.File) -> None:
    file["text"].make_scale()


def committed_type(file: h5py.File) -> None:
    file["type"] = np.dtype("f4")


def of_committed_type(file: h5py.File) -> None:
    file["type"] = np.dtype("f4")
    file.create_dataset("other", (3,), file["type"])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((20,), "f8")
    layout[:] = h5py.VirtualSource(file["deep/time"])
    file.create_virtual_dataset("other", layout)


def external(file: h5py.File) -> None:
    file.create_dataset("other", (20,), "f8", external=[("raw.bin", 0, 160)])


def no_rows(file: h5py.File) -> None:
    file["other"] = h5py.Empty("f4")


def name_of_no_text(file: h5py.File) -> None:
    file[b"\xff"] = np.arange(3)


def many_names(file: h5py.File) -> None:
    for number in range(400):
        file[f"many/{number}"] = np.arange(3)


@pytest.mark.parametrize(
    "add",
    [
        other_names,
        loop,
        soft_link,
        pytables,
        anndata,
        old_anndata,
        loom,
        tenx,
        scale,
        committed_type,
        of_committed_type,
        virtual,
        external,
        no_rows,
        name_of_no_text,
        many_names,
    ],
)
def test_what_is_not_plain_is_left_to_libhdf5(tmp_path, add):
    path = write_plain(tmp_path / "a.h5")
    by_headers(path, learn=by_libhdf5(path))
    with h5py.File(path, "a") as file:
        add(file)
    with pytest.raises(FormatError):
        by_headers(path)
    layout = RowReader(path, allow_external=[tmp_path]).layout
    assert {"signal", "grows"} <= {*layout.columns}


@pytest.mark.parametrize(("count", "size"), [(5, 0), (65535, 0), (65535, 65504)])
def test_headers_that_lead_to_themselves(tmp_path, monkeypatch, count, size):
    """Blocks of messages that say nothing, each of which leads to itself: little of them is read."""
    path, room = tmp_path / "a.h5", 1 << 16
    with h5py.File(path, "w") as file:
        file["x"], file["room"] = np.arange(5), np.zeros(room, "u1")
        header, begin = h5py.h5g.get_objinfo(file["x"].id).objno[0], file["room"].id.get_offset()
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, header + 2, count)
    unused = data.index(struct.pack("<HHB3x", 0, 144, 0), header)
    for at, rest in ((unused, 120), (begin, size)):
        struct.pack_into("<HHB3xQQHHB3x", data, at, MessageKind.CONTINUATION, 16, 0, begin, room, 0, rest, 0)
    path.write_bytes(data)
    sizes: list[int] = []
    read = PlainBytes.read
    monkeypatch.setattr(PlainBytes, "read", lambda self, at, n: sizes.append(n) or read(self, at, n))
    file = LocalFile.open(str(path))
    with pytest.raises(FormatError):
        PlainBytes.on_disk(file.descriptor or 0, file.size).messages(header)
    assert sum(sizes[:-1]) <= 1 << 24  # what is more is refused


@pytest.mark.parametrize("parts", [65, 1])
def test_names_of_many_groups(tmp_path, parts):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["/".join(["g" * (5000 // parts)] * parts) + "/x"] = np.arange(5)
    with pytest.raises(FormatError):
        by_headers(path, learn=by_libhdf5(path))


@pytest.mark.parametrize("options", [{"libver": "latest"}, {"userblock_size": 512}, {"track_order": True}])
def test_files_that_are_written_otherwise(tmp_path, options):
    path = write_plain(tmp_path / "a.h5", **options)
    with pytest.raises(FormatError):
        by_headers(path)


def test_a_file_that_a_writer_has_open(tmp_path):
    path = write_plain(tmp_path / "a.h5")
    by_headers(path, learn=by_libhdf5(path))
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(FormatError):
        by_headers(path)
    with pytest.raises(RayH5Error, match="lock"):
        RowReader(path).layout  # noqa: B018
    os.close(descriptor)
    by_headers(path)


def damaged(path: Path, step: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file with one byte changed, and where."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(0, len(data), step):
        for value in {data[at] ^ (1 << int(rng.integers(8))), int(rng.choice([0, 1, 127, 255]))} - {data[at]}:
            yield at, data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize("step", [197, pytest.param(5, marks=pytest.mark.nightly)])
def test_damaged_headers_are_left_to_libhdf5(tmp_path, step):
    """What is described from damaged headers is as libhdf5 describes it; it refuses it only for what is not needed.

    That are attributes, and the time of the last change.
    """
    path, other = write_plain(tmp_path / "a.h5"), tmp_path / "b.h5"
    with h5py.File(path, "a") as file:
        file["text"].attrs["unit"] = "mm"
    by_headers(path, learn=by_libhdf5(path))

    def check(tried: list[tuple[int, bytes, Described]]) -> None:
        for at, data, found in tried:
            other.write_bytes(data)
            try:
                expected = by_libhdf5(other)
            except RayH5Error as exc:
                assert "attribute" in str(exc), f"byte {at}"  # noqa: PT017
                continue
            not_needed = {name for name, error in expected[1].items() if "modification time" in str(error)}
            try:
                assert_alike(without(found, not_needed), without(expected, not_needed))
            except AssertionError as exc:
                raise AssertionError(f"byte {at}") from exc

    tried: list[tuple[int, bytes, Described]] = []
    for at, data in damaged(path, step):
        other.write_bytes(data)
        with contextlib.suppress(FormatError):
            tried.append((at, data, by_headers(other)))
    assert len(tried) > 20
    in_fork(partial(check, tried), timeout_s=500)


def without(described: Described, names: set[str]) -> Described:
    columns, refused = ({n: each for n, each in found.items() if n not in names} for found in described)
    return columns, refused
