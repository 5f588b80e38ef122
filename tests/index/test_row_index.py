import logging
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ray_h5 import RowReader
from ray_h5.columns.schema import Cast
from ray_h5.errors import (
    MissingGroupError,
    MissingSourceError,
    NotHDF5Error,
    OptionError,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.hdf5.columns.dataset_header import describe_column
from ray_h5.hdf5.tree import tree
from ray_h5.index.file_options import FileOptions
from ray_h5.index.folds import fold_values
from ray_h5.index.row_index import build_index
from ray_h5.index.scan_files import Lookup
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.manifest.file_table import FileTable
from ray_h5.plan.row_source import read_rows
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import FileIdentity, ObjectIdentity
from ray_h5.torch_data import Groups, H5Dataset, RayH5Error, where
from tests.index.kit import plan_files
from tests.kit.files import save


def rewrite(path, **columns):
    save(path, columns)


def test_columns_are_taken_in_the_order_asked_for_and_once(five_files):
    assert list(build_index(five_files, ["score", "label", "score"]).columns) == ["score", "label"]
    with pytest.raises(OptionError, match="empty list"):
        build_index(five_files, [])


def test_the_first_ten_files_that_differ_are_listed(tmp_path):
    paths = [str(tmp_path / f"{i}.h5") for i in range(14)]
    for i, path in enumerate(paths):
        rewrite(path, x=np.zeros(2, f"i{1 << i // 4}"))
    with pytest.raises(SchemaMismatchError) as caught:
        build_index(paths)
    assert "10 of 14 files" in str(caught.value)
    assert str(caught.value).count("\n  ") == 10
    with pytest.raises(SchemaMismatchError) as caught:
        build_index(paths[2:])
    assert "12 files" in str(caught.value)


def test_files_that_are_not_hdf5_are_listed(five_files):
    for path, content in ((five_files[1], b""), (five_files[3], b"no HDF5")):
        Path(path).write_bytes(content)
    with pytest.raises(NotHDF5Error) as raised:
        build_index(five_files)
    first, *listed, last = str(raised.value).splitlines()
    assert first == "2 of 5 files cannot be read:"
    assert listed == [
        f"  {five_files[1]}: expected an HDF5 file, found an empty one (0 bytes)",
        f"  {five_files[3]}: expected an HDF5 file, found no HDF5 signature in it",
    ]
    assert last == (
        "Restore them from a copy, or move them away; or pass ignore_unreadable_files=True to leave them out."
    )
    with pytest.raises(NotHDF5Error, match=rf"^{five_files[1]}: expected an HDF5 file, found an empty one"):
        build_index(five_files[1:2])
    few = [f"{path}{i}" for path in five_files for i in range(2)]
    for path in few:
        Path(path).touch()
    with pytest.raises(NotHDF5Error, match=r"10 of 10 files .*(\n  .*0 bytes\)){10}\nRestore"):
        build_index(few)


BAD_FILES = {
    "foreign": lambda data: b"no HDF5" + data[7:],
    "cut": lambda data: data[:-100],
    "damaged": lambda data: data[:9] + b"\xff" * 40 + data[49:],
}


@pytest.mark.parametrize("columns", [None, ["label"], ["lab*"]])
@pytest.mark.parametrize("first", BAD_FILES)
def test_all_files_that_cannot_be_read_are_named_or_left_out(five_files, columns, first, caplog):
    with h5py.File(five_files[4]) as file:
        expected = file["label"][:].tolist()
    kinds = [first, *(kind for kind in BAD_FILES if kind != first)]
    for path, kind in zip(five_files, kinds, strict=False):
        Path(path).write_bytes(BAD_FILES[kind](Path(path).read_bytes()))
    Path(five_files[3]).write_bytes(b"")
    with pytest.raises(RayH5Error) as raised:
        FileOptions.of(five_files, columns=columns).index()
    lines = str(raised.value).splitlines()
    assert lines[0] == "4 of 5 files cannot be read:"
    assert [line.split(":")[0].strip() for line in lines[1:5]] == five_files[:4]
    dataset = H5Dataset(five_files, columns, ignore_unreadable_files=True)
    assert dataset[:]["label"].tolist() == expected
    (said,) = [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()]
    assert said.startswith("left out 4 of 5 files, which cannot be read:")
    assert all(f"\n  {path}: " in said for path in five_files[:4])
    with pytest.raises(RayH5Error, match="4 of 4 files cannot be read"):
        H5Dataset(five_files[:4], columns, ignore_unreadable_files=True)


@pytest.mark.parametrize("options", [{"group": "PartType5"}, {"rows": Groups("PartType5")}], ids=["group", "rows"])
def test_files_without_the_group_are_left_out_on_request(tmp_path, options, caplog):
    for number, holes in enumerate([2, 0, 3]):
        gas = {"PartType0/Masses": np.ones(10)}
        save(tmp_path / f"{number}.h5", {**gas, **({"PartType5/Masses": np.full(holes, 7.0)} if holes else {})})
    with pytest.raises(
        MissingGroupError, match=r"1 of 3 files cannot be read(.|\n)*they have no rows of this group"
    ) as caught:
        H5Dataset(tmp_path, **options)
    assert "Did you mean" not in str(caught.value)
    rows = H5Dataset(tmp_path, ignore_unreadable_files=True, **options)
    assert len(rows) == (5 if "group" in options else 2)
    assert "left out 1 of 3 files" in caplog.text
    with pytest.raises(MissingGroupError, match=r"Did you mean 'PartType5'\?"):
        H5Dataset(tmp_path / "0.h5", group="ParType5")


def test_unequal_first_axes_are_listed(tmp_path):
    rewrite(tmp_path / "a.h5", x=np.zeros((5, 2)), y=np.zeros(5), meta=np.zeros(3))
    with pytest.raises(
        SchemaMismatchError, match=r"3 rows: columns=\['meta'\]\n  5 rows: columns=\['x', 'y'\]\n.*group="
    ):
        build_index([str(tmp_path / "a.h5")])
    assert build_index([str(tmp_path / "a.h5")], ["x", "y"]).num_rows == 5


def test_single_values_are_left_out(tmp_path):
    rewrite(tmp_path / "a.h5", x=np.zeros(5), rate=250.0)
    assert list(build_index([str(tmp_path / "a.h5")]).columns) == ["x"]
    with pytest.raises(UnsupportedColumnError, match="'rate' has a single value"):
        build_index([str(tmp_path / "a.h5")], ["x", "rate"])


def varying(element):
    rows = np.empty(4, h5py.vlen_dtype(element))
    rows[:] = [np.arange(i, dtype=element) for i in range(4)]
    return rows


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.full(4, None, h5py.ref_dtype), "has references that lead nowhere"),
        (np.full(4, None, h5py.regionref_dtype), "has type region reference"),
        (np.full(4, "", h5py.vlen_dtype(h5py.string_dtype())), "has type array of object of varying length"),
        (np.full(4, 0, h5py.vlen_dtype(">i4")), "has array of >i4 of varying length, whose byte order h5py loses"),
    ],
    ids=["references", "regions", "lists of text", "big-endian lists"],
)
def test_what_is_not_supported(tmp_path, values, says):
    """The list in docs/files.md, with those of the next test."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (4,), values.dtype)
        file["y"] = np.arange(4)
    with pytest.raises(UnsupportedColumnError, match=re.escape(says)):
        build_index([str(tmp_path / "a.h5")], ["x"])
    assert list(build_index([str(tmp_path / "a.h5")]).columns) == ["y"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros(4, "M8[h]").astype(h5py.opaque_dtype("M8[h]")), "has times of dtype datetime64[h], a unit that"),
        (np.zeros(4, "M8[10s]").astype(h5py.opaque_dtype("M8[10s]")), "has times of dtype datetime64[10s], a unit"),
        (np.zeros(4, "m8[D]").astype(h5py.opaque_dtype("m8[D]")), "has times of dtype timedelta64[D], a unit that"),
        (np.zeros(4, [("t", h5py.opaque_dtype("M8[h]"))]), "has times of dtype datetime64[h], a unit that"),
        (np.zeros(4, np.longdouble), "whose long doubles Arrow and torch lack. RowReader reads it; or write them as"),
        (np.zeros(4, [("x", np.longdouble)]), "whose long doubles Arrow and torch lack"),
        (varying(np.longdouble), "of varying length, whose long doubles Arrow and torch lack"),
        (varying(np.clongdouble), "of varying length, whose long doubles Arrow and torch lack"),
    ],
    ids=[
        "hours",
        "tens of seconds",
        "days",
        "hours inside",
        "long double",
        "long double inside",
        "lists of long doubles",
        "lists of complex long doubles",
    ],
)
def test_what_only_the_reader_reads(tmp_path, values, says):
    rewrite(tmp_path / "a.h5", x=values, y=np.arange(4))
    path = str(tmp_path / "a.h5")
    with pytest.raises(UnsupportedColumnError) as caught:
        build_index([path], ["x"])
    assert str(caught.value).startswith(f"{path}: column 'x' h")
    assert says in str(caught.value)
    assert "RowReader reads it" in str(caught.value)
    with RowReader(path) as reader:
        assert len(reader.read(["x"])["x"]) == 4
    assert list(build_index([path]).columns) == ["y"]


def write_what_cannot_be_read(path, more=0):
    hours = np.zeros((5, 2), "M8[h]").astype(h5py.opaque_dtype("M8[h]"))
    rewrite(path, x=np.zeros(5), tracks=np.zeros((5, 2), np.longdouble), hours=hours, rate=250.0)
    with h5py.File(path, "a") as file:
        file.create_dataset("nothing", dtype="f4")
        file.create_dataset("refs", (5,), h5py.ref_dtype)
        file.create_dataset("lists", (5,), [("values", h5py.vlen_dtype("f4"))])
        for i in range(more):
            file.create_dataset(f"more/{i}", (5, 2), [(f"field_{j}", np.longdouble) for j in range(40)])


def test_what_is_left_out_is_not_said_at_length(tmp_path, caplog):
    write_what_cannot_be_read(tmp_path / "a.h5", 200)
    build_index([str(tmp_path / "a.h5")])
    # A slow machine is told how far it is, too.
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.startswith("left out 204 of 205 columns: ")
    assert "and 199 more; name columns" in said
    assert len(said) < 800


def test_a_file_of_nothing_else_says_what_it_left_out(tmp_path, caplog):
    rewrite(tmp_path / "a.h5", tracks=np.zeros((5, 2), np.longdouble))
    with pytest.raises(SchemaMismatchError, match="found no column"):
        build_index([str(tmp_path / "a.h5")])
    assert "left out 1 of 1 columns: tracks" in caplog.text


def test_links_that_lead_nowhere_are_named_and_the_rest_is_read(tmp_path, caplog):
    far = h5py.ExternalLink("data_000002.h5", "/entry/data")
    loops = {"loop": h5py.SoftLink("/next"), "next": h5py.SoftLink("loop"), "within": h5py.SoftLink("/within/x")}
    rewrite(tmp_path / "a.h5", x=np.zeros(5), gone=h5py.SoftLink("/nothing"), far=far, **loops)
    path, lookup = str(tmp_path / "a.h5"), Lookup(Scope(allow_external=(str(tmp_path),)))
    assert list(build_index([path], lookup=lookup).columns) == ["x"]
    assert "left out 5 of 6 columns: " in caplog.text
    assert "gone (link 'gone' leads to '/nothing', which does not exist)" in caplog.text
    assert "far (external link 'far' leads to " in caplog.text
    for name in ("gone", "far", *loops):
        with pytest.raises(MissingSourceError, match=r"which does not exist|a loop"):
            build_index([path], [name], lookup)
    rewrite(tmp_path / "data_000002.h5", **{"entry/data": np.ones(5)})
    assert sorted(build_index([path], lookup=lookup).columns) == ["far", "x"]


def test_links_that_lead_nowhere_in_groups_that_are_rows(tmp_path, caplog):
    rewrite(tmp_path / "a.h5", **{f"entry{i}/data": np.zeros(i + 1) for i in range(3)})
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["entry1/gone"], file["entry2/loop"] = h5py.SoftLink("/nothing"), h5py.SoftLink("loop")
    path, lookup = str(tmp_path / "a.h5"), Lookup(Scope(rows=Groups("entry*")))
    assert list(build_index([path], lookup=lookup).columns) == ["data"]
    assert "left out 2 of 3 columns: gone" in caplog.text
    with pytest.raises(MissingSourceError, match="which does not exist"):
        build_index([path], ["gone"], lookup)


@pytest.mark.nightly
def test_more_than_two_gib_of_strings(tmp_path):
    """In a predicate, in folds, and in one file."""
    paths, texts = [], [letter * 1_000_000 for letter in "abc"]
    for text, rows in zip(texts, (2300, 100, 100), strict=True):
        paths.append(str(tmp_path / f"{text[0]}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file.create_dataset("s", (rows,), h5py.string_dtype(), fillvalue=text)  # which is never written
    index, plan = plan_files(paths, predicate=where(s=texts[0]))
    assert plan.num_rows == 2300
    folds = fold_values(index, 2, "s", None, 0)
    assert sorted(text[0] for _, test in folds for text in test) == ["a", "b", "c"]
    MEMORY.clear()


def test_strings_of_an_array_in_a_struct_name_their_row_too(tmp_path):
    values = np.array([(1, [b"ok", b"ok"]), (2, [b"ok", b"\xff"])], [("n", "i4"), ("s", "S4", (2,))])
    rewrite(tmp_path / "a.h5", pair=values)
    index = build_index([str(tmp_path / "a.h5")])
    with pytest.raises(UnsupportedColumnError, match=r"a.h5, row 1: column 'pair' holds .* not UTF-8"):
        index.values(["pair"])


def test_files_whose_etags_alone_differ_differ():
    one, other, third = ([FileIdentity(5, 1, 1, 1), ObjectIdentity(tag, 5, 7)] for tag in ("a", "b", "a"))
    files = [FileTable.of(["/a", "s3://bkt/b"], each, [1, 1]) for each in (one, other, third)]
    assert files[0].differ(files[1]).tolist() == [1]
    assert files[0].differ(files[2]).tolist() == []


@pytest.mark.parametrize("indexed", [False, True])
def test_names_of_files_need_not_be_utf8(tmp_path, indexed):
    path = os.fsdecode(os.fsencode(str(tmp_path)) + b"/bad\xff.h5")
    rewrite(path, x=np.arange(3))
    for _ in range(2):
        MEMORY.clear()
        index, plan = plan_files([path], predicate=where(x=2), index_dir=str(tmp_path) if indexed else None)
        assert index.files.path(0) == index.files.all_paths()[0] == path
        assert read_rows(pickle.loads(pickle.dumps(plan)), plan.selection).arrays["x"].tolist() == [2]
        assert plan.fingerprint == plan_files([path], predicate=where(x=2))[1].fingerprint


def test_what_is_no_set_of_files(tmp_path):
    with pytest.raises(OptionError, match="at least one file"):
        build_index([])
    paths = [str(tmp_path / f"{i}.h5") for i in range(3)]
    for path, rows in zip(paths, (5, 1 << 62, 1 << 62), strict=True):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (rows,), "f4", chunks=(1024,), maxshape=(None,))
    with pytest.raises(OptionError, match=rf"{2**63 + 5} rows.*1\.h5 with {2**62} rows"):
        build_index(paths)
    assert build_index(paths[:2]).num_rows == 2**62 + 5


def test_strings_that_are_not_utf8_name_their_row(tmp_path):
    rewrite(tmp_path / "a.h5", s=np.array([b"ok", b"M\xfcller"], dtype=h5py.string_dtype("ascii")))
    index = build_index([str(tmp_path / "a.h5")])
    with pytest.raises(UnsupportedColumnError, match=r"a.h5, row 1: column 's'.*dtypes=\{'s': bytes\}"):
        index.values(["s"])
    index = build_index([str(tmp_path / "a.h5")], cast=Cast({"s": bytes}))
    assert index.values(["s"])["s"].to_pylist() == [b"ok", b"M\xfcller"]


@pytest.mark.parametrize(
    ("dtypes", "error", "says"),
    [
        ({"signl": "f2"}, UnknownColumnError, "Did you mean 'signal'"),
        ({"label": "nonsense"}, OptionError, "no dtype"),
        ({"signal": "nonsense"}, OptionError, "no dtype"),
        ({"signal": torch.float16}, OptionError, "torch.float16 for column 'signal' in dtypes.* Write 'float16'"),
        ({"signal": "flot16"}, OptionError, "'flot16' for column 'signal' in dtypes.* Did you mean 'float16'"),
        ({"signal": None}, OptionError, "None for column 'signal' is no dtype; leave the column out"),
        ({"signal": "S4"}, OptionError, "no type of numbers"),
        ({"name": "f4"}, OptionError, "holds strings"),
    ],
)
def test_dtypes_that_cannot_be(five_files, dtypes, error, says):
    with pytest.raises(error, match=says):
        _ = FileOptions.of(five_files, columns=["signal", "name"], dtypes=dtypes).index().delivered


def test_threads_share_an_index(five_files, tmp_path):
    """Each finds what it asks for, and nothing that another found is lost, or there twice."""
    outside = str(tmp_path / "other.h5")
    rewrite(outside, more=np.arange(4))
    with h5py.File(five_files[0], "a") as file:
        file["more"] = h5py.ExternalLink(outside, "more")
    index = FileOptions.of(five_files[:1], allow_external=tmp_path).index(["label"])
    names = [["more"], ["score"], ["more", "name"], ["score", "more"]] * 4
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(index.values, names))
    assert [list(each) for each in found] == names
    assert [each["more"].to_pylist() for each in found if "more" in each] == [[0, 1, 2, 3]] * 12
    assert set(index.found.columns) == {"more", "score", "name"}
    assert [*index.found.sources] == ["more"]
    copy = pickle.loads(pickle.dumps(index))
    assert copy == index
    assert copy.found.columns == index.found.columns
    assert copy.values(["more"])["more"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("columns", [None, ["signal", "label"]])
@pytest.mark.parametrize(("kind", "place"), [("no bytes", 0), ("no dataset", 2), ("only groups", 5), ("no bytes", 5)])
def test_an_empty_file_is_left_out_with_a_warning(five_files, tmp_path, caplog, kind, place, columns):
    path = tmp_path / "empty.h5"
    if kind == "no bytes":
        path.touch()
    else:
        with h5py.File(path, "w") as file:
            if kind == "only groups":
                file.create_group("a/b")
    given = [*five_files[:place], str(path), *five_files[place:]]
    index = build_index(given, columns)
    assert [path.removeprefix("s3:/") for path in index.files.all_paths()] == five_files
    assert index.num_rows == 13
    assert index.values(["label"])["label"].to_pylist() == [i % 3 for i in range(13)]
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith("left out 1 of 6 files, which are empty: ")
    assert f"{path} ({'0 bytes' if kind == 'no bytes' else 'no dataset'})" in warning


def test_files_that_are_all_empty_or_not_hdf5_are_an_error(five_files, tmp_path):
    for name in ("a.h5", "b.h5"):
        (tmp_path / name).touch()
    with pytest.raises(NotHDF5Error, match="empty"):
        build_index([str(tmp_path / "a.h5"), str(tmp_path / "b.h5")])
    (tmp_path / "c.h5").write_text("no HDF5 at all")
    with pytest.raises(NotHDF5Error, match=r"c\.h5"):
        build_index([str(tmp_path / "a.h5"), str(tmp_path / "c.h5"), *five_files])
    save(tmp_path / "d.h5", {"other": [1]})
    with pytest.raises(SchemaMismatchError, match=r"d\.h5: column 'signal' is missing"):
        build_index([*five_files, str(tmp_path / "d.h5")], ["signal"])


def test_each_of_many_columns_is_described_once_and_none_is_taken_for_a_sample(tmp_path, monkeypatch, caplog):
    rewrite(tmp_path / "a.h5", **{f"gene_{i}": np.zeros(3, "f4") for i in range(300)})
    described = []

    def describe(dataset, name, **options):
        described.append(name)
        return describe_column(dataset, name, **options)

    monkeypatch.setattr(tree, "describe_column", describe)
    assert len(H5Dataset(tmp_path / "a.h5")) == 3
    assert len(described) == len({*described}) == 300
    assert not [each for each in caplog.records if "alike" in each.getMessage()]
