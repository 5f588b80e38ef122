"""Tables beside the files: what joins, what is delivered, and what is refused. pandas-free: dicts are the oracle."""

import decimal
import pickle
import re

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_h5 import Groups, Shuffle, Sidecar, Windows, balance
from ray_h5.errors import (
    CastError,
    NotFoundError,
    OptionError,
    SchemaMismatchError,
    StaleIndexError,
    TableError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.planning.epoch.plan import make_plan
from ray_h5.planning.files import FileOptions
from ray_h5.planning.tables import table_files
from ray_h5.torch_data import H5Dataset, kfold, loader, where

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


def test_columns_of_a_csv_join_by_a_column(files):
    samples = dataset(files, sidecar=Sidecar(labels(files), on="guid"))
    assert samples.columns == ["guid", "number", "x", "label", "name"]
    assert [samples[i]["label"].item() for i in range(12)] == [i % 3 for i in range(12)]
    assert [sample["name"] for sample in map(samples.__getitem__, [11, 0, 5])] == ["n11", "n0", "n5"]


def test_keys_of_text_stay_text(files):
    # Arrow alone reads "001" as 1.
    samples = dataset(files, ["guid", "label"], sidecar=Sidecar(labels(files), on="guid"))
    assert samples[0] == {"guid": "000", "label": 0}


def test_keys_of_integers_are_compared_as_integers(files):
    table = write(
        files, "number,label\n" + "".join(f"{n:03d},{n}\n" for f in range(3) for n in range(10 * f, 10 * f + 4))
    )
    samples = dataset(files, ["number", "label"], sidecar=Sidecar(table, on="number"))
    assert all(samples[i]["label"] == samples[i]["number"] for i in range(12))


def test_a_key_of_another_name(files):
    samples = dataset(files, ["label"], sidecar=Sidecar(labels(files, key="id"), on="guid", key="id"))
    assert samples[4]["label"] == 1


def test_the_key_column_of_a_table_with_another_name_is_no_column(files):
    assert dataset(files, sidecar=Sidecar(labels(files, key="id"), on="guid", key="id")).columns == [
        "guid", "number", "x", "label", "name",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["f{}.h5", "f{}", "{}/f{}.h5", "./f{}.h5", "{}/f{}"])
def test_the_file_is_the_key(files, name):
    folder = {"{}/f{}.h5": files.name, "{}/f{}": str(files)}.get(name)
    names = [name.format(*([folder] if folder else []), number) for number in range(3)]
    table = write(files, "path,site\n" + "".join(f"{each},s{i}\n" for i, each in enumerate(names)))
    samples = dataset(files, ["site"], sidecar=Sidecar(table, on="path"))
    assert [samples[i]["site"] for i in (0, 4, 11)] == ["s0", "s1", "s2"]


def test_a_name_that_two_files_have_is_refused(files):
    (files / "other").mkdir()
    (files / "f0.h5").rename(files / "other" / "f1.h5")
    table = write(files, "path,site\nf1.h5,a\nf2.h5,b\n")
    with pytest.raises(SchemaMismatchError, match=r"1 keys are the end of more than one path, such as 'f1.h5'"):
        H5Dataset(str(files), sidecar=Sidecar(table, on="path"))
    table = write(files, "path,site\nother/f1.h5,a\nf2.h5,b\nf1.h5,c\n")
    with pytest.raises(SchemaMismatchError, match=r"ends with two keys"):
        H5Dataset(str(files), sidecar=Sidecar(table, on="path"))


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


def test_a_key_of_several_columns(files):
    lines = [f"f{number}.h5,{row},{number * 10 + row}" for number in range(3) for row in reversed(range(ROWS))]
    table = write(files, "\n".join(["file,row,label", *lines, ""]))
    samples = dataset(files, ["number", "label"], sidecar=Sidecar(table, on=["path", "row"], key=["file", "row"]))
    assert all(samples[i]["label"] == samples[i]["number"] for i in range(12))
    table = write(files, "\n".join(["file,row,label", *lines, lines[0], ""]))
    with pytest.raises(SchemaMismatchError, match=r"1 keys \('file', 'row'\) are in more than one line"):
        dataset(files, ["label"], sidecar=Sidecar(table, on=["path", "row"], key=["file", "row"]))


@pytest.fixture
def traces(tmp_path):
    with h5py.File(tmp_path / "traces.h5", "w") as file:
        for i in range(6):
            file[f"data/T_{i}"] = np.full((5, 2), i, "f4")
    return write(tmp_path, "trace_name,mag,kind\n" + "".join(f"T_{i},{i / 2},k{i % 2}\n" for i in reversed(range(6))))


@pytest.mark.parametrize("key", [None, "trace"])
def test_the_group_is_the_key(traces, tmp_path, key):
    rows = Groups("data/*", key=key)
    sidecar = Sidecar(traces, on=key or "group", key="trace_name")
    samples = H5Dataset(str(tmp_path / "traces.h5"), ["value", "mag"], rows=rows, sidecar=sidecar)
    assert all(samples[i]["mag"] == i / 2 and samples[i]["value"][0, 0] == i for i in range(6))


def test_groups_are_episodes_of_windows(traces, tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for i in range(6):
            file[f"data/T_{i}/u"] = np.arange(4.0) + 10 * i
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
    assert np.bincount(np.concatenate([batch["label"] for batch in drawn])).tolist() == [4, 4, 4]
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


def test_casts(files):
    sidecar = Sidecar(labels(files), on="guid")
    assert (
        dataset(files, ["label"], sidecar=sidecar, dtypes={"label": "uint8"}).read(np.arange(2))["label"].dtype == "u1"
    )
    big = write(files, "guid,label\n" + "".join(f"{g},{300 + i}\n" for i, g in enumerate(guids())))
    with pytest.raises(CastError, match=r"labels.csv: column 'label': the value 300 cannot be cast to int8"):
        dataset(files, ["label"], sidecar=Sidecar(big, on="guid"), dtypes={"label": "int8"})


def test_no_row_has_a_line(files):
    table = labels(files, [f"x{i}" for i in range(12)])
    for missing in ("error", "null", "drop"):
        with pytest.raises(SchemaMismatchError, match=r"none of the 12 rows has a line.*'000'.*'x0'"):
            dataset(files, sidecar=Sidecar(table, on="guid", missing=missing))


def test_keys_in_two_lines_are_an_error_that_counts_and_names(files):
    for missing in ("error", "null", "drop"):
        with pytest.raises(SchemaMismatchError, match=r"2 keys 'guid' are in more than one line: '000', '003'"):
            dataset(files, sidecar=Sidecar(labels(files, [*guids(), "000", "003"]), on="guid", missing=missing))
    # Also of keys that no row has.
    with pytest.raises(SchemaMismatchError, match=r"1 keys 'guid' are in more than one line: 'zz'"):
        dataset(files, sidecar=Sidecar(labels(files, [*guids(), "zz", "zz"]), on="guid"))
    assert len(dataset(files, sidecar=Sidecar(labels(files, ["a", *guids(), "zz"]), on="guid"))) == 12


RAGGED = {
    "guid,label\n000,1\n001\n": r"labels.csv, line 3: expected 2 fields, as the header has, found 1: '001'",
    "guid,label\n000,1\n001,2,3\n": r"line 3: expected 2 fields, as the header has, found 3: '001,2,3'",
    "": "is empty",
    "guid,guid\n1,2\n": r"\"?'guid'\"? are there more than once",
    "guid;label\n000;1\n": r"no column 'guid'. Its only column is 'guid;label': pass delimiter=';'",
    "gui,label\n000,1\n": "no column 'guid'. Did you mean 'gui'",
    "guid,label\n": "none of the 12 rows has a line",
}


@pytest.mark.parametrize("text", RAGGED)
def test_a_csv_that_cannot_be_used(files, text):
    with pytest.raises((TableError, UnknownColumnError, SchemaMismatchError), match=RAGGED[text]):
        dataset(files, sidecar=Sidecar(write(files, text), on="guid"))


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


def test_a_type_for_no_column_is_an_error(files):
    with pytest.raises(UnknownColumnError, match=r"types: no column 'lable'.*'label'"):
        dataset(files, ["x"], sidecar=Sidecar(labels(files), on="guid", types={"lable": str}))


def test_a_column_with_the_name_of_a_group(files):
    with h5py.File(files / "f0.h5", "a") as file:
        file["meta/y"] = np.arange(ROWS)
    table = write(files, "guid,meta\n" + "".join(f"{guid},1\n" for guid in guids()))
    with pytest.raises(OptionError, match=r"The table has a column of this name.*prefix="):
        dataset(files, ["x", "meta"], sidecar=Sidecar(table, on="guid"))


def test_a_header_of_another_encoding(files):
    (files / "labels.csv").write_bytes("guid,\xe9\n0,1\n".encode("latin1"))
    with pytest.raises(TableError, match="the header is not UTF-8"):
        dataset(files, ["x"], sidecar=Sidecar(str(files / "labels.csv"), on="guid"))


def test_large_unsigned_keys(tmp_path):
    keys = np.array([2**64 - 1, 2**63, 5], np.uint64)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["k"], file["x"] = keys, np.arange(3)
    table = write(tmp_path, "k,a\n" + "".join(f"{key},{i}\n" for i, key in enumerate(keys.tolist())))
    assert [row["a"] for row in H5Dataset(tmp_path / "f.h5", ["x", "a"], sidecar=Sidecar(table, on="k"))] == [0, 1, 2]


def test_a_csv_of_another_encoding(files):
    (files / "labels.csv").write_bytes("guid,name\n000,Zürich\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"'name' is not UTF-8"):
        dataset(files, sidecar=Sidecar(str(files / "labels.csv"), on="guid"))


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


def test_a_column_whose_later_values_are_text_is_text(files, monkeypatch):
    monkeypatch.setattr("ray_h5.planning.tables.csv_files._BLOCK_BYTES", 64)
    table = write(files, "guid,code\n" + "".join(f"{g},{'x' if i > 9 else i}\n" for i, g in enumerate(guids())))
    samples = dataset(files, ["code"], sidecar=Sidecar(table, on="guid"))
    assert [samples[i]["code"] for i in (0, 11)] == ["0", "x"]


def test_types_that_are_asked_for(files):
    table = write(files, "guid,zip,at\n" + "".join(f"{g},0050{i % 9},12:3{i % 9}\n" for i, g in enumerate(guids())))
    samples = dataset(files, ["zip", "at"], sidecar=Sidecar(table, on="guid", types={"zip": str}))
    assert samples[3] == {"zip": "00503", "at": "12:33"}
    samples = dataset(files, ["zip"], sidecar=Sidecar(table, on="guid", types={"zip": "int16"}))
    assert samples.read(np.arange(1))["zip"].dtype == "i2"
    with pytest.raises(OptionError, match=r"column 'at'.*see types="):
        dataset(files, ["at"], sidecar=Sidecar(table, on="guid", types={"at": "float32"}))


def test_wide_columns_of_parquet_stay_unread(files, monkeypatch):
    read = []
    plain = table_files._read_parquet
    monkeypatch.setattr(table_files, "_read_parquet", lambda path, name: (read.append(name), plain(path, name))[1])
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


def test_integer_keys_of_parquet_and_text_keys_of_files_do_not_agree(files):
    pq.write_table(pa.table({"guid": np.arange(12), "label": np.arange(12)}), files / "t.parquet")
    with pytest.raises(SchemaMismatchError, match=r"the key 'guid' is of type int64, and 'guid' of the files is text"):
        dataset(files, sidecar=Sidecar(str(files / "t.parquet"), on="guid"))
    with pytest.raises(
        SchemaMismatchError,
        match=r"'number' of the files holds int64.*the key 'number' of the table text: 1 keys .*'x7'",
    ):
        dataset(files, sidecar=Sidecar(write(files, "number,a\nx7,1\n"), on="number"))


def test_a_parquet_that_changes_before_a_column_is_read(files):
    table = pa.table({"guid": guids(), "label": np.arange(12)})
    pq.write_table(table, files / "t.parquet")
    index = FileOptions.of(str(files / "*.h5"), sidecar=Sidecar(str(files / "t.parquet"), on="guid")).index()
    pq.write_table(table.append_column("more", pa.array(np.arange(12))), files / "t.parquet")
    with pytest.raises(StaleIndexError, match=r"t.parquet"):
        index.look_up(["label"])


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
    from ray_h5.planning.index.cache import MEMORY

    options = {"attrs": ["patient", "fs"], "index_dir": str(files / "index")}
    expected = dataset(files, **options)[5]
    MEMORY.clear()
    monkeypatch.setattr("ray_h5.hdf5.reader.RowReader.attributes", lambda *_: pytest.fail("read again"))
    found = dataset(files, **options)[5]
    assert {name: str(value) for name, value in found.items()} == {name: str(value) for name, value in expected.items()}


def test_attributes_of_a_group(files):
    with h5py.File(files / "f0.h5", "a") as file:
        file["inner/y"] = np.arange(3)
        file["inner"].attrs["unit"] = "m"
    assert H5Dataset(str(files / "f0.h5"), group="inner", attrs=["unit"])[2] == {"y": 2, "unit": "m"}


def test_the_plan_holds_the_lines_that_are_used(files):
    keys = [*guids(), *(f"x{i}" for i in range(1000))]
    pq.write_table(pa.table({"guid": keys, "label": np.arange(len(keys))}), files / "t.parquet")
    index = FileOptions.of(str(files / "*.h5"), sidecar=Sidecar(str(files / "t.parquet"), on="guid")).index(["label"])
    plan = make_plan(index, list(index.delivered.values())[:1], np.array([3, 7]))
    (part,) = plan.joined.parts
    assert part.columns["label"].to_pylist() == [3, 7]
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.joined.array("label", plan.files, np.array([7, 3])).tolist() == [7, 3]


WRONG = [
    (lambda: Sidecar("", on="a"), "path=''"),
    (lambda: Sidecar("a.csv", on=""), "on=''"),
    (lambda: Sidecar("a.csv", on=["a", "b"], key="a"), "a column of the table for each column"),
    (lambda: Sidecar("a.csv", on="a", missing="ignore"), "missing='ignore'"),
    (lambda: Sidecar("a.csv", on="a", delimiter="||"), "delimiter='||'"),
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


def test_a_table_that_does_not_exist(files):
    with pytest.raises(NotFoundError, match=r"nothing.csv"):
        dataset(files, sidecar=Sidecar(str(files / "nothing.csv"), on="guid"))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.sampled_from([None, "a", "b", "c", "á", "001", "1", ""]), max_size=12),
    keys=st.lists(st.sampled_from(["a", "b", "c", "á", "001", "1", "", "x"]), unique=True, max_size=8),
)
def test_lines_are_those_of_a_dict(rows, keys):
    from ray_h5.planning.tables.keys import RowKeys, lines_of

    found = lines_of([RowKeys("k", pa.array(rows, pa.large_string()))], [pa.array(keys, pa.string())], ["k"], "t")
    expected = {key: line for line, key in enumerate(keys)}
    assert found.tolist() == [expected.get(row, -1) for row in rows]
    both = [RowKeys("k", pa.array(rows, pa.large_string())), RowKeys("n", pa.array(np.arange(len(rows)) % 2))]
    lines = [pa.array([key for key in keys for _ in range(2)], pa.string()), pa.array([0, 1] * len(keys), pa.int64())]
    found = lines_of(both, lines, ["k", "n"], "t")
    assert found.tolist() == [2 * expected[row] + i % 2 if row in expected else -1 for i, row in enumerate(rows)]


def test_the_index_looks_up_columns_of_tables_and_of_files(files):
    index = FileOptions.of(str(files / "*.h5"), sidecar=Sidecar(labels(files), on="guid"), attrs=["fs"]).index(
        ["label"]
    )
    found = index.look_up(["number", "label", "fs"])
    assert pc.sum(found["label"]).as_py() == 12
    assert found["fs"].to_pylist()[::4] == [100, 101, 102]


def numbered(folder, values, name="labels.csv", first=0):
    """Write a table with a value for each of the 12 rows, or for those from `first` on."""
    lines = [f"{guid},{value}\n" for guid, value in zip(guids()[first:], values, strict=False)]
    return write(folder, "guid,big\n" + "".join(lines), name)


BIG = [2**63, 2**64 - 1, *range(10)]


def test_large_unsigned_integers_of_a_csv(files):
    sidecar = Sidecar(numbered(files, BIG), on="guid")
    samples = dataset(files, ["big"], sidecar=sidecar)
    assert samples.read(np.arange(12))["big"].tolist() == BIG
    assert samples.read(np.arange(12))["big"].dtype == np.uint64
    assert dataset(files, ["big"], where(big=2**64 - 1), sidecar=sidecar).selection.tolist() == [1]
    gap = Sidecar(numbered(files, [*BIG[:11], ""]), on="guid")  # a missing value makes no floats of the others
    assert dataset(files, ["big"], ~where(big=None), sidecar=gap).read(np.arange(11))["big"].tolist() == BIG[:11]
    signed = Sidecar(numbered(files, [f"+{each}" for each in BIG]), on="guid")
    assert dataset(files, ["big"], sidecar=signed).read(np.arange(12))["big"].tolist() == BIG


def test_integers_that_no_type_holds_are_refused(files):
    for values in ([-1, 2**63, *range(10)], [2**64, *range(11)], [-(2**63) - 1, *range(11)]):
        table = numbered(files, values)
        with pytest.raises(
            TableError, match=r"labels\.csv: column 'big' holds integers .*64 bits.*types=\{'big': str\}"
        ):
            dataset(files, ["big"], sidecar=Sidecar(table, on="guid"))
        texts = dataset(files, ["big"], sidecar=Sidecar(table, on="guid", types={"big": str}))
        assert [row["big"] for row in each(texts)] == list(map(str, values))
        rounded = dataset(files, ["big"], sidecar=Sidecar(table, on="guid", types={"big": "float64"}))
        assert rounded[0]["big"].item() == float(values[0])


def test_integers_beside_floats_are_not_rounded(files):
    table = Sidecar(numbered(files, ["0.5", 2**53 + 1, *range(10)]), on="guid")
    with pytest.raises(TableError, match=r"'big' holds floats, and the integer 9007199254740993"):
        dataset(files, ["big"], sidecar=table)
    exact = Sidecar(numbered(files, ["0.5", 2**53, "1e300", 2**62, *range(8)]), on="guid")
    assert dataset(files, ["big"], sidecar=exact)[3]["big"].item() == 2.0**62


def test_large_integers_in_one_of_several_tables(files):
    first = numbered(files, BIG[:6], "a.csv")
    both = Sidecar([first, numbered(files, BIG[6:], "b.csv", 6)], on="guid")
    assert dataset(files, ["big"], sidecar=both).read(np.arange(12))["big"].tolist() == BIG
    for rest, what in (([-1] * 6, "uint64"), ([0.5] * 6, "double")):
        wrong = Sidecar([first, numbered(files, rest, "b.csv", 6)], on="guid")
        with pytest.raises(TableError, match=rf"'big' .*{what}"):
            dataset(files, ["big"], sidecar=wrong)


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
    with pytest.raises(SchemaMismatchError, match=rf"of the files holds {kind}, .*table text.*'0\.5'.*Write the keys"):
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


def test_a_row_without_a_line_names_ways_that_work(files):
    table = labels(files, guids()[1:])
    with pytest.raises(
        SchemaMismatchError, match=r"'label' of the table has no value for this row \(it has no line\)"
    ) as raised:
        dataset(files, ["label"], sidecar=Sidecar(table, on="guid", missing="null"))
    predicate = eval(re.search(r"predicate (~where\(.*?\))[,.]", str(raised.value))[1], {"where": where})
    assert len(dataset(files, ["label"], predicate, sidecar=Sidecar(table, on="guid", missing="null"))) == 11
    assert "missing='drop'" in str(raised.value)
    assert len(dataset(files, ["label"], sidecar=Sidecar(table, on="guid", missing="drop"))) == 11


def test_an_empty_array_names_a_way_that_works(files):
    arrays = pa.array([None, *[[i, i] for i in range(11)]], pa.list_(pa.int64(), 2))
    pq.write_table(pa.table({"guid": guids(), "a": arrays}), files / "t.parquet")
    with pytest.raises(
        SchemaMismatchError, match=r"remove such lines from the table and pass missing='drop'"
    ) as raised:
        dataset(files, ["a"], sidecar=Sidecar(str(files / "t.parquet"), on="guid"))
    assert "where" not in str(raised.value).rpartition("column")[2]
