"""Tables beside the files: what joins, what is delivered, and what is refused. pandas-free: dicts are the oracle."""

import decimal
import gzip
import os
import pathlib
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from ray_h5.errors import (
    CastError,
    OptionError,
    PredicateError,
    SchemaMismatchError,
    StaleIndexError,
    TableError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.index.file_options import FileOptions
from ray_h5.storage.local import LOCAL
from ray_h5.tables import table_files
from ray_h5.tables.keys import RowKeys, lines_of
from ray_h5.tables.table_bytes import TableFiles
from ray_h5.torch_data import Groups, H5Dataset, Shuffle, Sidecar, Windows, balance, kfold, loader, part, where
from tests.kit.files import save

ROWS = 4


@pytest.fixture
def files(tmp_path):
    """Three files with text and integer keys, and one attribute each."""
    for number in range(3):
        with h5py.File(tmp_path / f"f{number}.h5", "w") as file:
            file["x"] = np.arange(ROWS * 3.0).reshape(ROWS, 3) + 100 * number
            file["guid"] = np.array([f"{number:02d}{row}".encode() for row in range(ROWS)], object)
            file["number"] = np.arange(ROWS) + 10 * number
            file.attrs["patient"] = f"p{number}"
            file.attrs["fs"] = np.float32(100 + number)
    return tmp_path


def guids():
    return [f"{number:02d}{row}" for number in range(3) for row in range(ROWS)]


def write(folder, text, name="labels.csv"):
    (folder / name).write_text(text)
    return str(folder / name)


def labels(folder, keys=None, name="labels.csv", key="guid"):
    lines = [f"{guid},{i % 3},n{i}" for i, guid in enumerate(guids() if keys is None else keys)]
    return write(folder, "\n".join([f"{key},label,name", *lines, ""]), name)


def dataset(folder, *args, **options):
    return H5Dataset(str(folder / "*.h5"), *args, **options)


def each(samples):
    return [samples[i] for i in range(len(samples))]


def test_keys_of_text_stay_text(files):
    # Arrow alone reads "001" as 1.
    samples = dataset(files, ["guid", "label"], sidecar=Sidecar(labels(files), on="guid"))
    assert samples[0] == {"guid": "000", "label": 0}


@pytest.mark.parametrize("name", ["f{}.h5", "f{}", "{}/f{}.h5", "./f{}.h5", "{}/f{}"])
def test_the_file_is_the_key(files, name):
    folder = {"{}/f{}.h5": files.name, "{}/f{}": str(files)}.get(name)
    names = [name.format(*([folder] if folder else []), number) for number in range(3)]
    table = write(files, "path,site\n" + "".join(f"{each},s{i}\n" for i, each in enumerate(names)))
    samples = dataset(files, ["site"], sidecar=Sidecar(table, on="path"))
    assert [samples[i]["site"] for i in (0, 4, 11)] == ["s0", "s1", "s2"]


@pytest.mark.parametrize("names", [("f1.h5", "f1"), ("{0}/f1.h5", "f1.h5"), ("{0}/f1", "{0}/f1.h5"), ("./f1", "f1")])
def test_two_lines_that_name_one_file_by_two_spellings_are_refused(files, names):
    one, other = (name.format(files) for name in names)
    for order in ((one, other), (other, one)):
        table = write(files, "path,site\nf0,a\nf2,b\n" + "".join(f"{name},{name}\n" for name in order))
        for missing in ("error", "drop"):
            with pytest.raises(SchemaMismatchError, match=r"f1.*two keys, '.*f1.*' and '.*f1.*'. "):
                dataset(files, ["site"], sidecar=Sidecar(table, on="path", missing=missing))
        lines = "".join(f"{name},{row},1\n" for row in range(ROWS) for name in order)
        table = write(files, "path,row,site\n" + lines)
        with pytest.raises(SchemaMismatchError, match="two keys"):
            dataset(files, ["site"], sidecar=Sidecar(table, on=["path", "row"], missing="null"))


def test_a_whole_path_in_a_table_is_no_end_of_another_one():
    rows = RowKeys("group", pa.array(["a", "b/a", "b/a"], pa.large_string()), "group")
    for keys, expected in ((["a"], [0, -1, -1]), (["b/a", "a"], [1, 0, 0]), (["/a/", "./b/a"], [0, 1, 1])):
        assert lines_of([rows], [pa.array(keys)], ["group"], "t").tolist() == expected
    rows = RowKeys("path", pa.array(["/d/run", "/d/run.h5"], pa.large_string()), "path")
    assert lines_of([rows], [pa.array(["run.h5", "run"])], ["path"], "t").tolist() == [1, 0]
    for keys in (["run"], ["/d/run"]):
        with pytest.raises(SchemaMismatchError, match="1 keys are the end of more than one path"):
            lines_of([rows], [pa.array(keys)], ["path"], "t")


def test_the_number_of_a_row(files):
    table = write(files, "row_id,label\n" + "".join(f"{i},{i}\n" for i in reversed(range(12))))
    assert dataset(files, ["label"], sidecar=Sidecar(table, on="row_id"))[7]["label"] == 7
    table = write(files, "label\n" + "".join(f"{i}\n" for i in range(12)))
    assert dataset(files, ["label"], sidecar=Sidecar(table, on="row_id"))[7]["label"] == 7
    one = write(files, "label\n1\n2\n3\n4\n")
    assert H5Dataset(str(files / "f1.h5"), ["label"], sidecar=Sidecar(one, on="row"))[3]["label"] == 4
    with pytest.raises(SchemaMismatchError, match=r"expected 12 lines, found 4"):
        dataset(files, ["label"], sidecar=Sidecar(one, on="row_id"))
    with pytest.raises(UnknownColumnError, match=r"on=\['path', 'row'\]"):
        dataset(files, ["label"], sidecar=Sidecar(one, on="row"))


@pytest.mark.parametrize("how", ["row", "step", "path", "path and step", "in order", "episode and row"])
def test_row_numbers_are_those_of_steps(tmp_path, how, caplog):
    """Windows drop steps, but a table counts the rows of the files, where step k of file f is 100 * f + k."""
    is_one = how in {"row", "step", "in order"}
    for number in range(1 if is_one else 2):
        with h5py.File(tmp_path / f"f{number}.h5", "w") as file:
            file["x"] = np.arange(8) + 100 * number
            file["episode_of"] = np.repeat([0, 1], 4) + 10 * number
    steps = [100 * number + step for number in range(1 if is_one else 2) for step in range(8)]
    on = {"path": ["path", "row"], "path and step": ["path", "step"], "episode and row": ["episode_of", "row"]}
    on = on.get(how, "row" if how == "row" else "step")
    key = ["ep", "row"] if how == "episode and row" else None
    lines = [f"f{x // 100},{x % 100},{i},{x // 100 * 10 + x % 100 // 4},{x}" for i, x in enumerate(steps)]
    table = write(tmp_path, "\n".join([f"path,{'step' if 'step' in how else 'row'},row_id,ep,label", *lines, ""]))
    if how == "in order":
        table = write(tmp_path, "\n".join(["label", *map(str, steps), ""]))
    windows = Windows({"x": range(-1, 2)}, pad="drop", episode="episode_of")
    options = {"windows": windows, "sidecar": Sidecar(table, on=on, key=key)}
    samples = H5Dataset(str(tmp_path / "*.h5"), ["x", "label"], **options)
    assert [int(sample["x"][1]) for sample in samples] == [x for x in steps if x % 4 in {1, 2}]
    assert [int(sample["label"]) for sample in samples] == [int(sample["x"][1]) for sample in samples]
    assert not caplog.records


@pytest.mark.parametrize("missing", ["error", "drop", "null"])
def test_row_ids_of_a_table_are_those_that_rows_are_delivered_with(tmp_path, missing):
    for number in range(2):
        with h5py.File(tmp_path / f"f{number}.h5", "w") as file:
            file["x"] = np.arange(8) + 100 * number
    options = {"windows": Windows({"x": [0, 1]}, pad="drop")}
    rows = H5Dataset(str(tmp_path / "*.h5"), ["x"], **options, include_row_ids=True)[:]
    now = rows["x"][:, 0].tolist()
    lines = [f"{row},{x}" for row, x in zip(rows["row_id"].tolist(), now, strict=True)]
    for text in (["row_id,label", *lines[::-1]], ["label", *map(str, now)]):  # the second one has lines in order
        table = Sidecar(write(tmp_path, "\n".join([*text, ""])), on="row_id", missing=missing)
        found = H5Dataset(str(tmp_path / "*.h5"), ["x", "label"], **options, sidecar=table)[:]
        assert found["label"].tolist() == found["x"][:, 0].tolist() == now
    for text in (["row_id,label", *(f"{step},0" for step in range(16))], ["label", *["0"] * 16]):
        table = Sidecar(write(tmp_path, "\n".join([*text, ""])), on="row_id", missing=missing)
        with pytest.raises(
            SchemaMismatchError, match=r"window.*Numbers of steps are on='step', or on=\['path', 'step'\]"
        ):
            H5Dataset(str(tmp_path / "*.h5"), ["x", "label"], **options, sidecar=table)
    with pytest.raises(UnknownColumnError, match="Besides columns, on= also takes"):
        H5Dataset(str(tmp_path / "*.h5"), ["x", "label"], sidecar=Sidecar(tmp_path / "labels.csv", on="step"))


@pytest.mark.parametrize("windows", [None, Windows({"x": [-1, 0]}, pad="drop")])
def test_lines_of_no_row_are_counted(files, windows, caplog):
    paths = [f"f{number}.h5" for number in range(3)]
    lines = [f"{path},{row},{row}" for path in [*paths, "other.h5"] for row in range(ROWS)]
    table = write(files, "\n".join(["path,row,label", *lines, ""]))
    options = {"windows": windows, "sidecar": Sidecar(table, on=["path", "row"])}
    dataset(files, ["x", "label"], **options)
    assert not caplog.records  # of another file, and of steps without a window
    write(files, "\n".join(["path,row,label", *lines, "f1.h5,4,9", "f2.h5,-1,9", ""]))
    dataset(files, ["x", "label"], **options)
    what = "rows" if windows is None else "steps"
    assert f"2 of 18 lines are of no row, as the files have 12 {what}" in caplog.text
    assert "('f1.h5', '4'), ('f2.h5', '-1')" in caplog.text


@pytest.fixture
def traces(tmp_path):
    save(tmp_path / "traces.h5", {f"data/T_{i}": np.full((5, 2), i, "f4") for i in range(6)})
    return write(
        tmp_path,
        "trace_name,mag,kind\n" + "".join(f"T_{i},{i / 2},k{i % 2}\n" for i in reversed(range(6))),
        "traces.csv",
    )


@pytest.mark.parametrize("key", [None, "trace"])
def test_the_group_is_the_key(traces, tmp_path, key):
    rows = Groups("data/*", key=key)
    sidecar = Sidecar(traces, on=key or "group", key="trace_name")
    samples = H5Dataset(str(tmp_path / "traces.h5"), ["value", "mag"], rows=rows, sidecar=sidecar)
    assert all(samples[i]["mag"] == i / 2 and samples[i]["value"][0, 0] == i for i in range(6))


def test_two_lines_that_name_one_group_are_refused(traces, tmp_path):
    for twice in ("/T_0", "data/T_0", "T_0/"):
        table = write(tmp_path, pathlib.Path(traces).read_text() + f"{twice},9,k\n", "twice.csv")
        sidecar = Sidecar(table, on="group", key="trace_name", missing="drop")
        with pytest.raises(SchemaMismatchError, match=r"T_0.*two keys, .*write the keys"):
            H5Dataset(str(tmp_path / "traces.h5"), ["mag"], rows=Groups("data/*"), sidecar=sidecar)


def test_groups_are_episodes_of_windows(traces, tmp_path):
    save(tmp_path / "demos.h5", {f"data/T_{i}/u": np.arange(4.0) + 10 * i for i in range(6)})
    sidecar = Sidecar(traces, on="group", key="trace_name")
    windows = Windows({"u": [0, 1]}, pad="drop")
    samples = H5Dataset(
        str(tmp_path / "demos.h5"),
        ["u", "mag"],
        where(kind="k1"),
        rows=Groups("data/*"),
        windows=windows,
        sidecar=sidecar,
    )
    assert [(sample["u"][0].item() // 10, sample["mag"].item()) for sample in each(samples)] == [
        (i, i / 2) for i in (1, 3, 5) for _ in range(3)
    ]


def test_predicates_weights_and_folds_name_columns_of_tables(files):
    options = {"sidecar": Sidecar(labels(files), on="guid"), "attrs": ["patient"]}
    assert len(dataset(files, ["x"], where(label=[1, 2], patient="p1"), **options)) == 3
    drawn = loader(str(files / "*.h5"), 6, columns=["label"], shuffle=Shuffle(weights=balance("label")), **options)
    assert len(np.concatenate([batch["label"] for batch in drawn])) == 12
    for train, valid in kfold(str(files / "*.h5"), 3, group="patient", stratify="label", **options):
        counts = [len(dataset(files, ["x"], each, **options)) for each in (train, valid)]
        assert counts == [8, 4]


def test_a_row_without_a_line_is_an_error_that_counts_and_names(files):
    with pytest.raises(SchemaMismatchError, match=r"10 of 12 rows have no line.*'002', '003', '010'") as caught:
        dataset(files, sidecar=Sidecar(labels(files, guids()[:2]), on="guid"))
    assert "'023'" in str(caught.value)
    assert "missing='drop'" in str(caught.value)


def test_rows_without_a_line_are_left_out_everywhere(files):
    options = {"sidecar": Sidecar(labels(files, guids()[::2]), on="guid", missing="drop")}
    samples = dataset(files, ["guid", "label"], **options)
    assert [sample["guid"] for sample in each(samples)] == guids()[::2]
    assert samples.selection.tolist() == list(range(0, 12, 2))
    assert len(dataset(files, ["guid"], where(number=[0, 1, 2, 3]), **options)) == 2
    for predicate in (where(label=7), where(label=None), where(guid=guids()[1])):
        with pytest.raises(PredicateError, match="no sample matches: none of 6 rows passes"):
            dataset(files, ["guid"], predicate, **options)
    parts = [
        dataset(files, ["guid"], valid, **options).selection for _, valid in kfold(str(files / "*.h5"), 3, **options)
    ]
    assert sorted(np.concatenate(parts)) == list(range(0, 12, 2))
    assert {len(part) for part in parts} == {2}
    by_label = kfold(str(files / "*.h5"), 2, group="label", **options)
    assert len(by_label) == 2


def test_rows_without_a_line_have_no_values(files):
    table = write(files, "guid,score,name,when,flag\n" + "".join(f"{g},0.5,n,2020-01-02,true\n" for g in guids()[1:]))
    options = {"sidecar": Sidecar(table, on="guid", missing="null")}
    sample = dataset(files, ["score", "name", "when"], **options)[0]
    assert np.isnan(sample["score"].item())
    assert sample["name"] is None
    assert np.isnat(sample["when"])
    with pytest.raises(SchemaMismatchError, match=r"f0.h5, row 0: column 'flag' of the table has no value"):
        dataset(files, ["flag"], **options)
    assert len(dataset(files, ["flag"], where(flag=True), **options)) == 11
    with pytest.raises(OptionError, match=r"1 rows have no 'name'"):
        kfold(str(files / "*.h5"), 2, group="name", **options)


def test_integers_without_a_value_become_floats_on_request(files):
    table = write(files, "guid,label\n" + "".join(f"{g},{'' if i == 3 else i}\n" for i, g in enumerate(guids())))
    with pytest.raises(SchemaMismatchError, match=r"dtypes=\{'label': 'float64'\}"):
        dataset(files, ["label"], sidecar=Sidecar(table, on="guid"))
    samples = dataset(files, ["label"], sidecar=Sidecar(table, on="guid"), dtypes={"label": "float32"})
    assert np.isnan(samples[3]["label"].item())
    assert samples[4]["label"].item() == 4.0


def test_keys_in_two_lines_are_an_error_that_counts_and_names(files):
    for missing in ("error", "null", "drop"):
        with pytest.raises(SchemaMismatchError, match=r"2 keys 'guid' are in more than one line: '000', '003'"):
            dataset(files, sidecar=Sidecar(labels(files, [*guids(), "000", "003"]), on="guid", missing=missing))
    # Also of keys that no row has.
    with pytest.raises(SchemaMismatchError, match=r"1 keys 'guid' are in more than one line: 'zz'"):
        dataset(files, sidecar=Sidecar(labels(files, [*guids(), "zz", "zz"]), on="guid"))
    assert len(dataset(files, sidecar=Sidecar(labels(files, ["a", *guids(), "zz"]), on="guid"))) == 12


# What a table holds, how it is joined, and what the error says.
UNUSABLE = [
    ("guid,label\n000,1\n001\n", {}, TableError,
     r"labels.csv, line 3: expected 2 fields, as the header has, found 1: '001'"),
    ("guid,label\n000,1\n001,2,3\n", {}, TableError,
     "line 3: expected 2 fields, as the header has, found 3: '001,2,3'"),
    ("", {}, TableError, "is empty"),
    ("guid,guid\n1,2\n", {}, TableError, r"\"?'guid'\"? are there more than once"),
    ("guid;label\n000;1\n", {}, UnknownColumnError,
     "no column 'guid'. Its only column is 'guid;label': pass delimiter=';'"),
    ("gui,label\n000,1\n", {}, UnknownColumnError, "no column 'guid'. Did you mean 'gui'"),
    ("guid,label\n", {}, SchemaMismatchError, "none of the 12 rows has a line"),
    (b"guid,\xe9\n0,1\n", {}, TableError, "the header is not UTF-8"),
    (b"guid,name\n000,Z\xfcrich\n", {}, TableError, "'name' is not UTF-8"),
    ("guid,label\n000,1\n", {"types": {"lable": str}}, UnknownColumnError, r"types: no column 'lable'.*'label'"),
    ("id,label\n000,1\n", {"on": "id"}, UnknownColumnError, r"If 'id' is the column of the table, write key='id'"),
    ("number,a\nx7,1\n", {"on": "number"}, SchemaMismatchError,
     r"the key 'number' holds large_string, where 'number' of the files holds int64.*1 are others: 'x7'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "error", "said"), UNUSABLE, ids=[each[-1][:30] for each in UNUSABLE])
def test_a_csv_that_cannot_be_used(files, text, options, error, said):
    (files / "labels.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(error, match=said):
        dataset(files, sidecar=Sidecar(str(files / "labels.csv"), **{"on": "guid"} | options))


def test_integer_keys_of_parquet_and_text_keys_of_files_do_not_agree(files):
    pq.write_table(pa.table({"guid": np.arange(12), "label": np.arange(12)}), files / "t.parquet")
    said = r"the key 'guid' holds int64, and 'guid' of the files holds large_string"
    with pytest.raises(SchemaMismatchError, match=said):
        dataset(files, sidecar=Sidecar(str(files / "t.parquet"), on="guid"))


def test_the_index_that_pandas_writes_is_no_column(files):
    table = write(files, ",guid,label\n" + "".join(f"{i},{guid},{i}\n" for i, guid in enumerate(guids())))
    assert [row["label"] for row in each(dataset(files, ["x", "label"], sidecar=Sidecar(table, on="guid")))] == list(
        range(3 * ROWS)
    )


def test_missing_entries_of_integer_arrays_are_refused(files):
    arrays = [[1, None], *[[i] for i in range(3 * ROWS - 1)]]
    pq.write_table(pa.table({"guid": guids(), "a": arrays}), files / "t.parquet")
    with pytest.raises(SchemaMismatchError, match="'a' of the table has arrays of int64 with missing entries"):
        dataset(files, ["x", "a"], sidecar=Sidecar(str(files / "t.parquet"), on="guid"))[0]


def test_columns_of_types_that_numpy_lacks_are_named(files, caplog):
    values = [decimal.Decimal("1.5")] * 3 * ROWS
    pq.write_table(pa.table({"guid": guids(), "price": values, "label": range(3 * ROWS)}), files / "t.parquet")
    table = Sidecar(str(files / "t.parquet"), on="guid")
    assert [row["label"] for row in each(dataset(files, sidecar=table))] == list(range(3 * ROWS))
    assert "left out columns of types that numpy and torch lack: price (decimal128" in caplog.text
    with pytest.raises(UnsupportedColumnError, match=r"column 'price' has type decimal128\(.*Write it as numbers"):
        dataset(files, ["x", "price"], sidecar=table)


def test_a_column_with_the_name_of_a_group(files):
    with h5py.File(files / "f0.h5", "a") as file:
        file["meta/y"] = np.arange(ROWS)
    table = write(files, "guid,meta\n" + "".join(f"{guid},1\n" for guid in guids()))
    with pytest.raises(OptionError, match=r"columns 'meta' are in the files and in .*prefix="):
        dataset(files, ["x", "meta"], sidecar=Sidecar(table, on="guid"))


def test_a_csv_with_quotes_newlines_and_a_byte_order_mark(files):
    lines = "".join(f'{guid},"a, ""b""\nc"\n' for guid in guids())
    (files / "labels.csv").write_bytes(b"\xef\xbb\xbf" + f"guid,caption\n{lines}".encode())
    sample = dataset(files, ["caption"], sidecar=Sidecar(str(files / "labels.csv"), on="guid"))[3]
    assert sample["caption"] == 'a, "b"\nc'


def test_tables_with_tabs_or_semicolons(files):
    text = labels(files)
    tabs = write(files, (files / "labels.csv").read_text().replace(",", "\t"), "labels.tsv")
    assert dataset(files, ["label"], sidecar=Sidecar(tabs, on="guid"))[4]["label"] == 1
    semicolons = write(files, (files / "labels.csv").read_text().replace(",", ";"))
    assert dataset(files, ["label"], sidecar=Sidecar(semicolons, on="guid", delimiter=";"))[4]["label"] == 1
    assert text


def test_types_that_are_asked_for(files):
    table = write(files, "guid,zip,at\n" + "".join(f"{g},0050{i % 9},12:3{i % 9}\n" for i, g in enumerate(guids())))
    samples = dataset(files, ["zip", "at"], sidecar=Sidecar(table, on="guid", types={"zip": str}))
    assert samples[3] == {"zip": "00503", "at": "12:33"}
    samples = dataset(files, ["zip"], sidecar=Sidecar(table, on="guid", types={"zip": "int16"}))
    assert samples.read(np.arange(1))["zip"].dtype == "i2"
    with pytest.raises(
        TableError,
        match=r"labels.csv, line 2: column 'at': expected float, as types= says, found '12:30'. .*types=\{'at': str\}",
    ):
        dataset(files, ["at"], sidecar=Sidecar(table, on="guid", types={"at": "float32"}))
    table = write(files, '"a,b",guid,w\n' + "".join(f"1,{g},x\n" for g in guids()))
    with pytest.raises(TableError, match=r"line 2: column 'w': expected int32, .*found 'x'"):
        dataset(files, ["w"], sidecar=Sidecar(table, on="guid", types={"w": "int32"}))
    table = write(files, "guid,it's\n" + "".join(f"{g},{'it' * (i == 3) or i}\n" for i, g in enumerate(guids())))
    with pytest.raises(TableError, match=r'line 5: column "it\'s": expected int8, .*found .it.\. .*"it\'s": str'):
        dataset(files, ["it's"], sidecar=Sidecar(table, on="guid", types={"it's": "int8"}))
    packed = gzip.compress(pathlib.Path(table).read_bytes())
    (files / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TableError, match=r"cannot be read as CSV: .*[Tt]runcated"):
        dataset(files, ["w"], sidecar=Sidecar(files / "cut.csv.gz", on="guid"))


def test_wide_columns_of_parquet_stay_unread(files, monkeypatch):
    read = []
    plain = table_files._read_parquet
    monkeypatch.setattr(table_files, "_read_parquet", lambda *given: (read.append(given[1]), plain(*given))[1])
    wide = np.arange(24, dtype="f4").reshape(12, 2)
    pq.write_table(
        pa.table(
            {
                "guid": guids(),
                "label": np.arange(12),
                "other": np.arange(12),
                "embedding": pa.FixedSizeListArray.from_arrays(wide.reshape(-1), 2),
                "points": pa.array([list(range(i)) for i in range(12)]),
            }
        ),
        files / "table.parquet",
    )
    sidecar = Sidecar(str(files / "table.parquet"), on="guid")
    options = FileOptions.of(str(files / "*.h5"), sidecar=sidecar)
    assert options.index().names == ("guid", "number", "x", "label", "other")
    assert read == ["guid"]
    samples = dataset(files, ["embedding", "points"], where(label=[3, 5]), sidecar=sidecar)
    assert "other" not in read
    assert samples[1]["embedding"].tolist() == wide[5].tolist()
    assert [sample["points"].tolist() for sample in each(samples)] == [
        [0, 1, 2],
        [0, 1, 2, 3, 4],
    ]


def test_a_parquet_that_changes_before_a_column_is_read(files):
    table = pa.table({"guid": guids(), "label": np.arange(12)})
    pq.write_table(table, files / "t.parquet")
    index = FileOptions.of(str(files / "*.h5"), sidecar=Sidecar(str(files / "t.parquet"), on="guid")).index()
    pq.write_table(table.append_column("more", pa.array(np.arange(12))), files / "t.parquet")
    with pytest.raises(StaleIndexError, match=r"t.parquet"):
        index.values(["label"])


@pytest.mark.parametrize("lines", [[*range(11, -1, -1)], range(9)])
def test_a_csv_that_changes_between_two_passes(files, monkeypatch, lines):
    """Times of a day are read in a second pass, and joined by the keys of the first one."""

    def table_of(lines, name):
        return write(files, "guid,at\n" + "".join(f"{guids()[i]},{10 + i}:30\n" for i in lines), name)

    table, read = table_of(range(12), "labels.csv"), pacsv.read_csv

    def changing(*args):
        first = read(*args)
        os.replace(table_of(lines, "new.csv"), table)
        return first

    monkeypatch.setattr(pacsv, "read_csv", changing)
    with pytest.raises(StaleIndexError, match=r"labels.csv: the table changed"):
        dataset(files, ["at"], sidecar=Sidecar(table, on="guid"))


def test_several_tables(files):
    first, second = labels(files, guids()[:6], "a.csv"), labels(files, guids()[6:], "b.csv")
    assert dataset(files, ["name"], sidecar=Sidecar([first, second], on="guid"))[6]["name"] == "n0"
    assert dataset(files, ["name"], sidecar=Sidecar(str(files / "?.csv"), on="guid"))[1]["name"] == "n1"
    sites = write(files, "path,site\nf0.h5,a\nf1.h5,b\nf2.h5,c\n", "sites.csv")
    both = [Sidecar([first, second], on="guid"), Sidecar(sites, on="path", prefix="site/")]
    samples = dataset(files, ["x", "label", "site/site"], sidecar=both)
    assert samples[11]["site/site"] == "c"
    with pytest.raises(OptionError, match=r"'label', 'name' are in more than one table"):
        dataset(files, sidecar=[Sidecar(first, on="guid", missing="drop"), Sidecar(second, on="guid", missing="drop")])


def test_a_key_that_is_not_delivered_may_have_any_name(files):
    first = write(files, "id,a\n" + "".join(f"{guid},{i}\n" for i, guid in enumerate(guids())), "a.csv")
    second = write(files, "id,b\n" + "".join(f"{guid},{-i}\n" for i, guid in enumerate(guids())), "b.csv")
    both = [Sidecar(first, on="guid", key="id"), Sidecar(second, on="guid", key="id")]
    for columns in (None, ["x", "a", "b"]):
        samples = dataset(files, columns, sidecar=both)
        assert [name for name in samples.columns if name not in ("guid", "number")] == ["x", "a", "b"]
        assert (samples[5]["a"], samples[5]["b"]) == (5, -5)
    with pytest.raises(OptionError, match="'id' are in more than one table"):
        dataset(files, ["x", "id"], sidecar=both)
    assert dataset(files, ["id"], sidecar=both[0])[5]["id"] == guids()[5]
    # What is delivered has the name.
    third = write(files, "guid,id\n" + "".join(f"{guid},{2 * i}\n" for i, guid in enumerate(guids())), "c.csv")
    assert dataset(files, sidecar=[both[0], Sidecar(third, on="guid")])[5]["id"] == 10
    assert dataset(files, ["a"], where(id=10), sidecar=[both[0], Sidecar(third, on="guid")])[0]["a"] == 5
    other = write(files, "number,a\n" + "".join(f"{guid},{i}\n" for i, guid in enumerate(guids())), "d.csv")
    sidecar = Sidecar(other, on="guid", key="number")
    assert (dataset(files, sidecar=sidecar)[5]["number"], dataset(files, sidecar=sidecar)[5]["a"]) == (11, 5)
    assert dataset(files, ["a"], where(number=11), sidecar=sidecar)[0]["a"] == 5
    with pytest.raises(OptionError, match="columns 'number' are in the files and in"):
        dataset(files, ["a", "number"], sidecar=sidecar)


def test_a_file_without_rows_needs_no_line(files):
    save(files / "f1.h5", {"x": np.zeros((0, 3)), "guid": np.zeros(0, h5py.string_dtype()), "number": np.zeros(0, int)})
    for missing in ("error", "null", "drop"):
        sidecar = Sidecar(write(files, "path,site\nf0,a\nf2,c\n"), on="path", missing=missing)
        assert [row["site"] for row in each(dataset(files, ["site"], sidecar=sidecar))] == ["a"] * ROWS + ["c"] * ROWS
        with pytest.raises(SchemaMismatchError, match="none of the 2 files has a line"):
            dataset(files, sidecar=Sidecar(write(files, "path,site\nf1,b\n"), on="path", missing=missing))
    with pytest.raises(SchemaMismatchError, match=r"1 of 2 files have no line; their keys: '.*f2.h5'"):
        dataset(files, sidecar=Sidecar(write(files, "path,site\nf0,b\n"), on="path"))


def test_a_name_in_the_files_and_in_the_table(files):
    table = write(files, "guid,x\n" + "".join(f"{g},1\n" for g in guids()))
    for columns in (None, ["number"]):
        with pytest.raises(OptionError, match=r"columns 'x' are in the files and in .*labels.csv.*prefix="):
            dataset(files, columns, sidecar=Sidecar(table, on="guid"))
    assert dataset(files, ["x", "t/x"], sidecar=Sidecar(table, on="guid", prefix="t/"))[0]["t/x"] == 1


def test_attributes_of_files_are_columns(files):
    samples = dataset(files, ["patient", "fs"], where(fs=[100, 102]), attrs=("patient", "fs"))
    assert [samples[i]["patient"] for i in (0, 4)] == ["p0", "p2"]
    assert samples.read(np.arange(1))["fs"].dtype == "f4"
    assert dataset(files, attrs={"rate": "fs"}).columns == ["guid", "number", "x", "rate"]
    with pytest.raises(SchemaMismatchError, match=r"f0.h5: '/' has no attribute 'patien'.*Did you mean 'patient'"):
        dataset(files, attrs=["patien"])
    with h5py.File(files / "f1.h5", "a") as file:
        file.attrs["patient"] = 3
    with pytest.raises(SchemaMismatchError, match=r"'patient' is a text in .*f0.h5 and a number in .*f1.h5"):
        dataset(files, attrs=["patient"])


def test_attributes_come_from_index_dir(files, monkeypatch):
    from ray_h5.index.stored.facts_store import MEMORY

    options = {"attrs": ["patient", "fs"], "index_dir": str(files / "index")}
    expected = dataset(files, **options)[5]
    MEMORY.clear()
    monkeypatch.setattr("ray_h5.read.reader.FileReader.attributes", lambda *_: pytest.fail("read again"))
    found = dataset(files, **options)[5]
    assert {name: str(value) for name, value in found.items()} == {name: str(value) for name, value in expected.items()}


WRONG = [
    (lambda: Sidecar("", on="a"), "path=''"),
    (lambda: Sidecar("a.csv", on=""), "on=''"),
    (lambda: Sidecar("a.csv", on=["a", "b"], key="a"), "a column of the table for each column"),
    (lambda: Sidecar("a.csv", on="a", missing="ignore"), "missing='ignore'"),
    (lambda: Sidecar("a.csv", on="a", delimiter="||"), "delimiter='||'"),
    (lambda: Sidecar("a.csv", on="a", max_rows=0), "max_rows=0"),
    (lambda: Sidecar("a.csv", on="a", missing=["null"]), "'error', 'null' or 'drop'"),
    (lambda: Sidecar("a.csv", on="a", max_bytes="many"), "max_bytes='many'"),
    (lambda: Sidecar("a.csv", on="a", max_bytes="9" * 400), "max_bytes='99"),
    (lambda: FileOptions.of("x.h5", sidecar="labels.csv"), re.escape("write Sidecar('labels.csv', on=...)")),
    (lambda: FileOptions.of("x.h5", attrs="fs"), re.escape("write attrs=['fs']")),
    (lambda: FileOptions.of("x.h5", attrs=[3]), "found 3"),
]


@pytest.mark.parametrize(("make", "match"), WRONG, ids=[match for _, match in WRONG])
def test_arguments_that_cannot_be_used(make, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    h5py.File("x.h5", "w").close()
    with pytest.raises(OptionError, match=match):
        make()


def numbered(folder, values, name="labels.csv", first=0):
    """Write a table with a value for each of the 12 rows, or for those from `first` on."""
    lines = [f"{guid},{value}\n" for guid, value in zip(guids()[first:], values, strict=False)]
    return write(folder, "guid,big\n" + "".join(lines), name)


BIG = [2**63, 2**64 - 1, *range(10)]


def test_large_unsigned_integers_of_a_csv(files):
    sidecar = Sidecar(numbered(files, BIG), on="guid", types={"big": "uint64"})
    samples = dataset(files, ["big"], sidecar=sidecar)
    assert samples.read(np.arange(12))["big"].tolist() == BIG
    assert samples.read(np.arange(12))["big"].dtype == np.uint64
    assert dataset(files, ["big"], where(big=2**64 - 1), sidecar=sidecar).selection.tolist() == [1]
    tables = [numbered(files, BIG[:6], "a.csv"), numbered(files, [*BIG[6:11], ""], "b.csv", 6)]
    gap = Sidecar(tables, on="guid", types={"big": "uint64"})  # a missing value makes no floats of the others
    assert dataset(files, ["big"], ~where(big=None), sidecar=gap).read(np.arange(11))["big"].tolist() == BIG[:11]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([-1, 2**63, *range(10)], 3),
        ([*range(11), 2**64], 13),
        (["", "+18446744073709551615", *range(10)], 3),
        ([-(2**63) - 1, *range(11)], 2),
        ([0, "9" * 6000, *range(10)], 3),
        ([0.5, 2**53 + 1, *range(10)], 3),
        ([0.5, f" -{2**53 + 1}", *range(10)], 3),
        ([2**62 + 1, *range(10), "0.5"], 2),
    ],
)
def test_integers_that_a_float_would_round_are_refused(files, values, line):
    table = numbered(files, values)
    shown = re.escape(str(values[line - 2]).strip()[:80])
    with pytest.raises(
        TableError, match=rf"labels\.csv, line {line}: column 'big' holds the integer {shown}.*types=\{{'big': str\}}"
    ) as caught:
        dataset(files, ["big"], sidecar=Sidecar(table, on="guid"))
    assert len(str(caught.value)) < 600
    texts = dataset(files, ["big"], sidecar=Sidecar(table, on="guid", types={"big": str}))
    assert [row["big"] for row in each(texts)] == [str(value) or None for value in values]
    rounded = dataset(files, ["big"], sidecar=Sidecar(table, on="guid", types={"big": "float64"}))
    assert rounded[line - 2]["big"].item() == float(values[line - 2])


@pytest.mark.parametrize("how", ["inferred", "asked for"])
def test_an_empty_text_of_a_csv_is_none(files, how):
    texts = ["", '""', " ", "NA", "null", *"abcdefg"]
    table = write(files, "guid,name,none\n" + "".join(f"{g},{t},\n" for g, t in zip(guids(), texts, strict=True)))
    sidecar = Sidecar(table, on="guid", types={"name": str} if how == "asked for" else None)
    found = [row["name"] for row in each(dataset(files, ["name"], sidecar=sidecar))]
    assert found == [None, None, " ", "NA", "null", *"abcdefg"]
    assert dataset(files, ["name"], where(name=None), sidecar=sidecar).selection.tolist() == [0, 1]
    assert dataset(files, ["none"], sidecar=sidecar)[0]["none"] is None


def test_a_word_that_stands_for_nothing_elsewhere_is_text_in_each_line_or_in_none(files):
    def found(*texts):
        table = write(files, "guid,w\n" + "".join(f"{g},{t}\n" for g, t in zip(guids(), texts * 12, strict=False)))
        return [row["w"] for row in each(dataset(files, ["w"], sidecar=Sidecar(table, on="guid")))][: len(texts)]

    assert found("NA", "FR") == ["NA", "FR"]
    assert found("NA", "NA") == ["NA", "NA"]
    assert found("NA", "", "null") == ["NA", None, "null"]
    assert found("NaN", "") == [None, None]
    # Beside numbers it is no value: also if they are in another table.
    assert np.isnan(float(found("NA", "1.5")[0]))
    tables = [labels(files, guids()[:6], "a.csv"), labels(files, guids()[6:], "b.csv")]
    for name, value in zip(("a.csv", "b.csv"), ("NA", "2.5"), strict=True):
        lines = (files / name).read_text().splitlines()
        write(files, "\n".join([f"{lines[0]},w", *(f"{line},{value}" for line in lines[1:]), ""]), name)
    values = [row["w"] for row in each(dataset(files, ["w"], sidecar=Sidecar(tables, on="guid")))]
    np.testing.assert_array_equal([float(value) for value in values], np.repeat([np.nan, 2.5], 6))


def test_parquet_tables_whose_integers_do_not_fit_one_type(files):
    for name, values in (("a", np.array(BIG[:6], np.uint64)), ("b", np.arange(6) - 3)):
        start = 0 if name == "a" else 6
        pq.write_table(pa.table({"guid": guids()[start : start + 6], "big": values}), files / f"{name}.parquet")
    with pytest.raises(TableError, match=r"a\.parquet: column 'big' .*int64"):
        dataset(files, ["big"], sidecar=Sidecar(str(files / "*.parquet"), on="guid"))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8"])
def test_whole_numbers_as_pandas_writes_them_beside_a_missing_one(files, dtype):
    numbers = [n for f in range(3) for n in range(10 * f, 10 * f + 4)]
    for number in range(3):
        with h5py.File(files / f"f{number}.h5", "r+") as file:
            values = file["number"][:]
            del file["number"]
            file["number"] = values.astype(dtype)
    table = write(files, "number,label\n" + "".join(f"{n}.0,{n}\n" for n in numbers))
    samples = dataset(files, ["label"], sidecar=Sidecar(table, on="number"))
    assert [row["label"] for row in each(samples)] == numbers
    table = write(files, "number,label\n" + "".join(f"{n}.5,{n}\n" for n in numbers))
    kind = np.dtype(dtype).name
    kind = {"float32": "float", "float64": "double"}.get(kind, kind)
    with pytest.raises(SchemaMismatchError, match=rf"of the files holds {kind}, .*whole numbers.*'0\.5'.*Write whole"):
        dataset(files, ["label"], sidecar=Sidecar(table, on="number"))


def test_floats_that_are_no_keys(files):
    table = write(files, "half,label\n0,1\n")
    with h5py.File(files / "f0.h5", "r+") as file:
        file["half"] = np.arange(4) / 2
    with pytest.raises(SchemaMismatchError, match=r"'half' of the files holds double.*whole numbers.*another column"):
        H5Dataset(files / "f0.h5", ["label"], sidecar=Sidecar(table, on="half"))


def test_an_empty_entry_names_ways_that_work(files):
    """missing='drop' is for rows without a line, and an entry may be empty in a line that is there."""
    table = write(files, "guid,a\n" + "".join(f"{guid},{i or ''}\n" for i, guid in enumerate(guids())))
    sidecar = Sidecar(table, on="guid", missing="drop")
    with pytest.raises(
        SchemaMismatchError, match=r"'a' of the table has no value for this row \(its entry is empty\)"
    ) as raised:
        dataset(files, ["a"], sidecar=sidecar)
    assert "missing=" not in str(raised.value)
    predicate = eval(re.search(r"predicate (~where\(.*?\))[,.]", str(raised.value))[1], {"where": where})
    assert [row["a"] for row in each(dataset(files, ["a"], predicate, sidecar=sidecar))] == list(range(1, 12))
    assert np.isnan(dataset(files, ["a"], sidecar=sidecar, dtypes={"a": "float64"})[0]["a"].item())


def test_an_empty_array_names_a_way_that_works(files):
    arrays = pa.array([None, *[[i, i] for i in range(11)]], pa.list_(pa.int64(), 2))
    pq.write_table(pa.table({"guid": guids(), "a": arrays}), files / "t.parquet")
    with pytest.raises(
        SchemaMismatchError, match=r"remove such lines from the table and pass missing='drop'"
    ) as raised:
        dataset(files, ["a"], sidecar=Sidecar(str(files / "t.parquet"), on="guid"))
    assert "where" not in str(raised.value).rpartition("column")[2]


def write_large(folder, name, rows=1 << 16):
    """Write a small file of a table that is large in memory."""
    if name == "t.csv.gz":
        (folder / name).write_bytes(gzip.compress(b"guid,label\n" + b"a,1\n" * rows))
    elif name == "t.csv":
        (folder / name).write_text("guid,label\n" + "a,1\n" * rows)
    elif name == "text.parquet":
        pq.write_table(pa.table({"guid": pa.array(["a" * 100]).take(pa.array(np.zeros(rows, int)))}), folder / name)
    elif name == "dictionary.parquet":
        codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, "i1")), pa.array(["a" * 100]))
        pq.write_table(pa.table({"guid": codes}), folder / name)
    else:
        columns = {"guid": np.zeros(rows, int), "lists": pa.array([[7] * 20]).take(pa.array(np.zeros(rows, int)))}
        pq.write_table(pa.table(columns), folder / name)
    return folder / name


LARGE = ["t.csv.gz", "t.csv", "text.parquet", "dictionary.parquet", "numbers.parquet"]


@pytest.mark.parametrize("name", LARGE)
def test_a_table_that_is_too_large_is_an_error_before_it_is_taken(files, name):
    path = write_large(files, name)
    with pytest.raises(TableError, match=rf"{name}: the table has 6\d+ lines or more.*at most 60000.*max_rows="):
        dataset(files, ["x"], sidecar=Sidecar(path, on="guid", max_rows=60_000))
    with pytest.raises(TableError, match=rf"{name}: the columns of the table take \d+ bytes.*most 300000.*max_bytes"):
        dataset(files, ["x"], sidecar=Sidecar(path, on="guid", max_bytes=300_000))


def test_the_bounds_of_a_table_are_of_all_its_files_and_columns(files):
    pq.write_table(pa.table({"guid": guids(), "a": range(12), "b": range(12)}), files / "t.parquet")
    assert dataset(files, ["a"], sidecar=Sidecar(files / "t.parquet", on="guid", max_rows=12, max_bytes=400))
    with pytest.raises(TableError, match="max_bytes"):
        dataset(files, ["a", "b"], sidecar=Sidecar(files / "t.parquet", on="guid", max_bytes=300))
    parts = [labels(files, guids()[:6], "a.csv"), labels(files, guids()[6:], "b.csv")]
    assert dataset(files, ["label"], sidecar=Sidecar(parts, on="guid", max_rows=12, max_bytes=500))
    for bounds in ({"max_rows": 11}, {"max_bytes": 300}):
        with pytest.raises(TableError, match=r"b\.csv.*max_"):
            dataset(files, ["label"], sidecar=Sidecar(parts, on="guid", **bounds))


def test_an_error_about_a_column_lists_those_of_tables_and_attributes(files):
    beside = {"sidecar": Sidecar(labels(files), on="guid"), "attrs": ["fs"]}
    said = r"no 'lable'.* Columns of tables and attributes: .*label.*fs\."
    said += r" Did you mean 'label'\?"
    for options in ({"columns": ["x", "lable"]}, {"predicate": where(lable=1)}, {"dtypes": {"lable": "f4"}}):
        with pytest.raises(UnknownColumnError, match=said):
            dataset(files, **{"columns": ["x", "label"]} | options, **beside)
    with pytest.raises(UnknownColumnError, match=rf"stratify='lable': .*{said}"):
        kfold(files, 2, stratify="lable", **beside)


def test_casts(files):
    sidecar = Sidecar(labels(files), on="guid")
    assert (
        dataset(files, ["label"], sidecar=sidecar, dtypes={"label": "uint8"}).read(np.arange(2))["label"].dtype == "u1"
    )
    big = write(files, "guid,label\n" + "".join(f"{g},{300 + i}\n" for i, g in enumerate(guids())))
    with pytest.raises(CastError, match=r"labels.csv: column 'label': the value 300 cannot be cast to int8"):
        dataset(files, ["label"], sidecar=Sidecar(big, on="guid"), dtypes={"label": "int8"})


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float64(), 2)], ids=["list", "array"])
@pytest.mark.parametrize("lost", [300.0, 1.5, np.nan, None])
def test_casts_of_arrays(files, kind, lost):
    rows = [[float(i), 1.0] for i in range(12)]
    pq.write_table(pa.table({"guid": guids(), "v": pa.array(rows, kind)}), files / "good.parquet")
    pq.write_table(pa.table({"guid": guids(), "v": pa.array([*rows[1:], [2.0, lost]], kind)}), files / "bad.parquet")
    good, bad = (Sidecar(files / f"{name}.parquet", on="guid") for name in ("good", "bad"))
    found = each(dataset(files, ["v"], sidecar=good, dtypes={"v": "int8"}))
    assert [row["v"].tolist() for row in found] == rows
    assert found[0]["v"].numpy().dtype == "i1"
    with pytest.raises(CastError, match=r"bad.parquet: column 'v': the value (300.0|1.5|nan) cannot be cast to int8"):
        dataset(files, ["v"], sidecar=bad, dtypes={"v": "int8"})
    if lost is not None:  # a missing entry is refused all the same
        unsafe = dataset(files, ["v"], sidecar=bad, dtypes={"v": "int8"}, casting="unsafe")
        assert unsafe[0]["v"].tolist() == [1, 1]


def test_text_of_parquet_is_as_it_is_written(files):
    """It is counted by the numbers of a dictionary."""
    texts = [None, "", *"abcabcabca"]
    columns = {"guid": guids(), "text": texts, "codes": pa.array(texts).dictionary_encode()}
    pq.write_table(pa.table({**columns, "d.t": texts, "bytes": pa.array(texts, pa.binary())}), files / "t.parquet")
    for paths in ("t.parquet", ["t.parquet"]):
        sidecar = Sidecar([files / path for path in np.atleast_1d(paths)], on="guid")
        found = each(dataset(files, ["text", "codes", "d.t"], sidecar=sidecar))
        assert [list(row.values()) for row in found] == [[text] * 3 for text in texts]


def test_keys_may_be_views_of_text(files):
    pq.write_table(pa.table({"guid": pa.array(guids(), pa.string_view()), "n": range(12)}), files / "labels.parquet")
    sidecar = Sidecar(files / "labels.parquet", on="guid")
    assert [row["n"] for row in each(dataset(files, ["guid", "n"], where(n=[3, 7]), sidecar=sidecar))] == [3, 7]


def test_threads_read_other_columns_of_one_table(tmp_path):
    numbers = range(1000)
    pq.write_table(pa.table({"x": [1], **{f"c{number}": [number] for number in numbers}}), tmp_path / "labels.parquet")
    sidecar = Sidecar(tmp_path / "labels.parquet", on="x")
    table = table_files.open_table(sidecar, TableFiles.of(sidecar, LOCAL))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda number: table.column(f"c{number}").to_pylist(), numbers)
            assert [*found] == [[number] for number in numbers]
    finally:
        sys.setswitchinterval(interval)


def test_columns_of_tables_and_attributes_under_other_names(tmp_path):
    for i in range(2):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x"], file["t"] = np.arange(3.0) + i, np.arange(3) + 3 * i
            file.attrs["subject"] = f"p{i}"
    pq.write_table(pa.table({"path": ["0.h5", "1.h5"], "score": [7, 8]}), tmp_path / "files.parquet")
    pq.write_table(pa.table({"t": np.arange(6), "stage": np.arange(6) * 10}), tmp_path / "steps.parquet")
    tables = [Sidecar(tmp_path / "files.parquet", on="path"), Sidecar(tmp_path / "steps.parquet", on="t")]
    options = {"sidecar": tables, "attrs": ["subject"]}
    columns = {"value": "x", "who": "subject", "points": "score", "again": "score", "label": "stage"}
    expected = [
        {"value": i + t, "who": f"p{i}", "points": 7 + i, "again": 7 + i, "label": 10 * (3 * i + t)}
        for i in range(2)
        for t in range(3)
    ]
    for windows in (None, Windows({"value": ("x", [0])})):
        names = {name: of for name, of in columns.items() if windows is None or name != "value"}
        found = H5Dataset(
            tmp_path, names if windows is None else {**names, "value": "value"}, windows=windows, **options
        )
        assert [{name: _plain(value) for name, value in row.items()} for row in found] == expected
    chosen = H5Dataset(tmp_path, columns, where(points=8, who="p1"), labels={"label": [50, 40, 30]}, **options)
    assert [row["label"].item() for row in chosen] == [2, 1, 0]
    pq.write_table(pa.table({"path": ["0.h5", "1.h5"], "x": [7, 8]}), tmp_path / "files.parquet")
    with pytest.raises(OptionError, match="'x' are in the files and in"):
        H5Dataset(tmp_path, {"a": "x"}, sidecar=Sidecar(tmp_path / "files.parquet", on="path"))
    for name in ("subject", "stage"):
        for asked in (["x", part(name, {0: [0]})], {"a": part(name, {0: [0]})}):
            with pytest.raises(
                OptionError, match=f"'{name}' is a column of a table or an attribute, which is delivered"
            ):
                H5Dataset(tmp_path, asked, **options | {"sidecar": tables[1]})
    pq.write_table(pa.table({"path": ["0.h5", "1.h5"], "score": [7, 8]}), tmp_path / "files.parquet")
    both = {"windows": Windows({"x": [0], "subject": [0, 1]}), **options}
    with pytest.raises(OptionError, match="'subject' is an attribute of the files, which is the same at each step"):
        H5Dataset(tmp_path, ["x", "subject"], **both)
    both["windows"] = Windows({"x": [0], "score": [0, 1]})
    with pytest.raises(OptionError, match=r"'score' is .* joined by 'path', which has one value for each episode"):
        H5Dataset(tmp_path, ["x", "score"], **both)


def _plain(value):
    return value.reshape(-1)[0].item() if hasattr(value, "reshape") else value
