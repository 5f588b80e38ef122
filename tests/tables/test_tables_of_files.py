"""A table for each file, tables without a header, keys of another machine, and tables in memory."""

import pickle

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ray_h5.errors import NotFoundError, OptionError, SchemaMismatchError, TableError, UnknownColumnError
from ray_h5.torch_data import H5Dataset, Sidecar, Windows, kfold, loader, where

SIZES = [3, 1, 4]
FILES = np.repeat(np.arange(3), SIZES)


@pytest.fixture
def files(tmp_path):
    """Three files in folders of their own, whose ids begin again in each."""
    for number, rows in enumerate(SIZES):
        (tmp_path / f"site{number}").mkdir()
        with h5py.File(tmp_path / f"site{number}" / f"run.v{number}.h5", "w") as file:
            file["x"] = np.arange(rows) + 10 * number
            file["id"] = np.arange(rows)
            file["image"] = np.array([f"/data/site{number}/{row}.png".encode() for row in range(rows)], object)
    return tmp_path


def write(path, table):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    else:
        table.to_csv(path, index=False)


def table_of(number):
    rows = np.arange(SIZES[number])
    return pd.DataFrame({"id": rows, "label": 100 * number + rows})


def write_each(files, template, change=lambda _number, table: table[::-1]):
    for number in range(len(SIZES)):
        path = files / f"site{number}" / template.format(stem=f"run.v{number}", folder=f"site{number}")
        if (table := change(number, table_of(number))) is not None:
            write(path, table)


def opened(files, columns, sidecar, **options):
    return H5Dataset(str(files / "site*" / "*.h5"), columns, sidecar=sidecar, **options)


def labels(samples):
    return [float(samples[i]["label"]) for i in range(len(samples))]


def expected(numbers=(0, 1, 2)):
    return [100 * number + row for number in numbers for row in range(SIZES[number])]


TEMPLATES = ["{stem}.csv", "{stem}.parquet", "../{folder}.csv", "labels/{stem}_a.csv"]
WITHOUT_KEY = {"change": lambda _number, table: table[["label"]]}
OF_ROWS = {"change": lambda _number, table: table[::-1].rename(columns={"id": "row"})}
OF_FILES = {"change": lambda number, table: table.assign(path=f"run.v{number}")}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    ("on", "how"), [("id", {}), ("row", WITHOUT_KEY), ("row", OF_ROWS), (["path", "id"], OF_FILES)]
)
def test_each_file_has_a_table(files, template, on, how):
    write_each(files, template, **how)
    sidecar = Sidecar(template, on=on)
    samples = opened(files, ["x", "label"], sidecar, predicate=where(label=expected((0, 2))))
    assert labels(samples) == expected((0, 2))
    if template == TEMPLATES[0]:
        batches = [*loader(opened(files, ["x", "label"], sidecar), 3, shuffle=False, drop_last=False)]
        assert [each for batch in batches for each in batch["label"].tolist()] == expected()
        train, _ = kfold(str(files / "site*" / "*.h5"), 2, group="label", sidecar=sidecar)[0]
        assert set(labels(opened(files, ["label"], sidecar, predicate=train))) < set(expected())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_a_file_may_have_no_lines(files, ending):
    write_each(files, "{stem}." + ending, lambda number, table: table.iloc[: 0 if number == 1 else None])
    for missing, numbers in (("drop", (0, 2)), ("null", (0, 1, 2))):
        samples = opened(
            files, ["x", "label"], Sidecar("{stem}." + ending, on="id", missing=missing), dtypes={"label": "f4"}
        )
        rows = [float(label) if number != 1 else np.nan for number in numbers for label in expected([number])]
        assert np.array_equal(labels(samples), rows, equal_nan=True)
    with pytest.raises(SchemaMismatchError, match="Keys of the table: none"):
        opened(files, ["x"], Sidecar(table_of(0)[:0], on="id"))
    with pytest.raises(SchemaMismatchError, match="Keys of the table: none"):
        opened(files, ["x"], Sidecar(table_of(0).astype(str)[:0], on="path", key="id"))


@pytest.mark.parametrize(("on", "match"), [("path", "whole"), ("path", "tail"), (["path", "row"], "whole")])
def test_a_table_of_each_folder_names_files_of_its_own(tmp_path, on, match):
    """Frames have the same names in each folder; tables have lines of frames that are not there."""
    for folder, frame in np.ndindex(3, 4):
        (tmp_path / f"t{folder}").mkdir(exist_ok=True)
        with h5py.File(tmp_path / f"t{folder}" / f"{frame}.h5", "w") as file:
            file["x"] = np.arange(2) + 10 * frame + 100 * folder
    rows = [(frame, row) for frame in (3, 0, 1, 2, 8) for row in range(2 if on != "path" else 1)]
    for folder in range(3):
        names = [f"/home/me/{frame}.h5" if match == "tail" else f"{frame}" for frame, _ in rows]
        table = {
            "file": names,
            "id": [row for _, row in rows],
            "wind": [100 * folder + 10 * f + row for f, row in rows],
        }
        write(tmp_path / f"t{folder}" / "track.csv", pd.DataFrame(table))
    key = "file" if on == "path" else ["file", "id"]
    options = {"sidecar": Sidecar("../{folder}/track.csv", on=on, key=key, match=match)}
    samples = H5Dataset(str(tmp_path / "*" / "*.h5"), ["x", "wind"], **options)
    assert len(samples) == 24
    for row in samples:
        assert int(row["wind"]) == int(row["x"]) - (int(row["x"]) % 10 if on == "path" else 0)
    write(tmp_path / "t1" / "track.csv", pd.DataFrame(table).iloc[: -2 * len(rows) // 5])
    with pytest.raises(SchemaMismatchError, match=r"track\.csv and 2 more: .* have no line.*t1/2\.h5"):
        H5Dataset(str(tmp_path / "*" / "*.h5"), ["x", "wind"], **options)
    write(tmp_path / "t1" / "track.csv", pd.DataFrame(table)[:0])
    others = Sidecar("../{folder}/track.csv", on=on, key=key, match=match, missing="drop")
    assert len(H5Dataset(str(tmp_path / "*" / "*.h5"), ["x", "wind"], sidecar=others)) == 16


def test_tables_of_files_count_steps_of_windows(files):
    write_each(files, "{stem}.csv", **WITHOUT_KEY)
    windows = Windows({"x": (0, 1)}, pad="drop")
    samples = opened(files, ["x", "label"], Sidecar("{stem}.csv", on="step"), windows=windows)
    assert labels(samples) == [each for each in expected() if each not in (2, 100, 203)]


@pytest.mark.parametrize("on", ["id", "row"])
def test_a_file_without_its_table(files, on):
    write_each(
        files, "{stem}.csv", lambda number, table: None if number == 1 else table if on == "id" else table[["label"]]
    )
    with pytest.raises(NotFoundError, match=r"sidecar='\{stem\}\.csv': [^$]*run\.v1\.csv[^$]*missing='drop'"):
        opened(files, ["label"], Sidecar("{stem}.csv", on=on))
    with pytest.raises(NotFoundError, match=r"sidecar='\{stem\}\.tsv': found no file in"):
        opened(files, ["label"], Sidecar("{stem}.tsv", on=on, missing="drop"))
    (files / "lists").mkdir()
    (files / "lists/labels.txt").write_text("label\n1\n")
    with pytest.raises(NotFoundError, match=r"csv or .*\. Name other endings in a glob, such as '\*\.txt'\.$"):
        opened(files, ["label"], Sidecar(files / "lists", on=on))
    assert labels(opened(files, ["x", "label"], Sidecar("{stem}.csv", on=on, missing="drop"))) == expected((0, 2))
    samples = opened(files, ["label"], Sidecar("{stem}.csv", on=on, missing="null"), dtypes={"label": "float32"})
    assert [int(each) for each in labels(samples) if each == each] == expected((0, 2))


def test_a_table_of_one_file_that_does_not_fit_it(files):
    write_each(files, "{stem}.csv", lambda number, table: table[["label"]][: 2 if number == 2 else None])
    with pytest.raises(SchemaMismatchError, match=r"run\.v2\.csv.*expected 4 lines, one for each row, found 2"):
        opened(files, ["label"], Sidecar("{stem}.csv", on="row"))
    write_each(files, "{stem}.csv", lambda number, table: pd.concat([table, table[:1]]) if number == 1 else table)
    with pytest.raises(SchemaMismatchError, match=r"'table', 'id'.*more than one line"):
        opened(files, ["label"], Sidecar("{stem}.csv", on="id"))
    with pytest.raises(OptionError, match=r"one path with \{stem\}"):
        Sidecar(["{stem}.csv", "more.csv"], on="id")


def test_lists_without_a_header(files):
    names = ["path", "label"]
    (files / "list.txt").write_text("site0/run.v0.h5 7\nsite1/run.v1.h5 8\nsite2/run.v2.h5 9\n")
    sidecar = Sidecar(files / "list.txt", on="path", names=names, delimiter=" ")
    assert labels(opened(files, ["x", "label"], sidecar)) == (FILES + 7).tolist()
    with pytest.raises(UnknownColumnError, match="no column 'file'"):
        opened(files, ["x"], Sidecar(files / "list.txt", on="path", key="file", names=names, delimiter=" "))
    (files / "list.txt").write_text("a 7 0\nb 8\n")
    with pytest.raises(TableError, match=r"line 2: expected 3 fields, as names= has, found 2"):
        opened(files, ["x"], Sidecar(files / "list.txt", on="path", names=["path", "label", "more"], delimiter=" "))
    (files / "list.txt").write_text("a 9223372036854775809\nb 1.5\n")
    with pytest.raises(TableError, match="line 1: column 'label' holds the integer"):
        opened(files, ["x"], Sidecar(files / "list.txt", on="path", names=names, delimiter=" "))
    pq.write_table(pa.table({"path": ["a"]}), files / "t.parquet")
    with pytest.raises(TableError, match="leave names= out"):
        opened(files, ["x"], Sidecar(files / "t.parquet", on="path", names=["path"]))


def random_tree(rng, depth=3, count=40):
    return sorted({"/".join(f"{'abc'[level]}{rng.integers(3)}" for level in range(depth)) for _ in range(count)})


@pytest.mark.parametrize("seed", range(4))
def test_keys_of_another_machine(files, seed):
    """Images of two machines: the folders below the data are the same, those above differ."""
    rng = np.random.default_rng(seed)
    names = random_tree(rng)
    with h5py.File(files / "all.h5", "w") as file:
        file["image"] = np.array([f"/here/data/{name}.png".encode() for name in [*names, *names]], object)
    lines = rng.permutation(len(names))
    above = ["/home/me/train/", "C:\\me\\"][seed % 2]
    keys = [above + f"{names[i]}.png".replace("/", "/\\"[seed % 2]) for i in lines]
    sidecar = Sidecar(pa.table({"image": keys, "label": lines}), on="image", match="tail")
    assert labels(H5Dataset(files / "all.h5", ["image", "label"], sidecar=sidecar)) == [*range(len(names))] * 2
    with pytest.raises(SchemaMismatchError, match="none of the"):
        H5Dataset(files / "all.h5", ["label"], sidecar=Sidecar(sidecar.path, on="image"))


BY_TAIL = [
    (["run.v0", "run.v1.h5", "run.v2"], [0, 1, 2]),
    (["/x/site0/run.v0.h5", "/y/run.v1", "/x/other/run.v2.h5"], [0, 1, 2]),
    (["/x/run.v0.h5", "/y/run.v0.h5", "/z/run.v1.h5", "/z/run.v2.h5"], r"'/x/run.v0.h5'.*'/y/run.v0.h5'"),
    (["/x/site0/run.v0.h5", "/y/site9/run.v0.h5", "/z/run.v1.h5", "/z/run.v2.h5"], [0, 2, 3]),
    (["run.v0.h5", "run.v1.h5"], "4 of 8 rows have no line|1 of 3 files have no line"),
]


@pytest.mark.parametrize(("keys", "found"), BY_TAIL)
def test_files_of_another_machine(files, keys, found):
    sidecar = Sidecar(pa.table({"path": keys, "label": range(len(keys))}), on="path", match="tail")
    if isinstance(found, str):
        with pytest.raises(SchemaMismatchError, match=found):
            opened(files, ["x", "label"], sidecar)
    else:
        assert labels(opened(files, ["x", "label"], sidecar)) == np.repeat(found, SIZES).tolist()


def test_rows_whose_last_parts_do_not_tell_them_apart(files):
    with h5py.File(files / "all.h5", "w") as file:
        file["image"] = np.array([b"/d/p1/scan.png", b"/d/p2/scan.png", b"/d/p3/scan.png"], object)

    def read(keys, missing="error"):
        sidecar = Sidecar(
            pa.table({"image": keys, "label": range(len(keys))}), on="image", match="tail", missing=missing
        )
        return labels(H5Dataset(files / "all.h5", ["image", "label"], sidecar=sidecar))

    assert read(["/e/p1/scan.png", "/e/p2/scan.png"], "drop") == [0, 1]
    with pytest.raises(SchemaMismatchError, match="1 of 3 rows have no line"):
        read(["/e/p1/scan.png", "/e/p2/scan.png"])
    with pytest.raises(SchemaMismatchError, match=r"'/d/p1/scan.png'.*'/d/p2/scan.png'.*'/e/x/scan.png'"):
        read(["/e/x/scan.png"], "drop")
    with pytest.raises(OptionError, match="a key of text, found 'id' of int64"):
        opened(files, ["x"], Sidecar(pa.table({"id": [0]}), on="id", match="tail"))


IN_MEMORY = {
    "pandas": lambda table: table,
    "index": lambda table: table.set_index("image"),
    "unnamed index": lambda table: table.set_index(np.arange(len(table)) + 3),
    "category": lambda table: table.assign(site=table["site"].astype("category")),
    "arrow": pa.Table.from_pandas,
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_a_table_in_memory(files, kind):
    images = [f"/data/site{number}/{row}.png" for number, rows in enumerate(SIZES) for row in range(rows)]
    table = pd.DataFrame({"image": images, "label": expected(), "site": [f"s{number}" for number in FILES]})[::-1]
    frame = IN_MEMORY[kind](table)
    sidecar = Sidecar(frame, on="image")
    if kind != "arrow":
        frame["label"] = -1  # what was given stays
    samples = opened(files, ["x", "label", "site"], pickle.loads(pickle.dumps(sidecar)))
    assert samples[3] == {"x": 10, "label": 100, "site": "s1"}
    workers = torch.utils.data.DataLoader(samples, batch_size=3, num_workers=1 if kind == "pandas" else 0)
    assert [each for batch in workers for each in batch["label"].tolist()] == expected()
    batches = [*loader(samples, 3, shuffle=False, drop_last=False)]
    assert [each for batch in batches for each in batch["label"].tolist()] == expected()
    assert len(opened(files, ["x"], sidecar, predicate=where(site="s2"))) == SIZES[2]
    assert sidecar == pickle.loads(pickle.dumps(sidecar))


def test_tables_in_memory_that_cannot_be_used(files):
    with pytest.raises(TableError, match="the table in memory: the table has 2 lines or more; expected at most 1"):
        opened(files, ["x"], Sidecar(pd.DataFrame({"id": [0, 1]}), on="id", max_rows=1))
    with pytest.raises(TableError, match="the table in memory: the columns of the table take 16 bytes"):
        opened(files, ["x"], Sidecar(pd.DataFrame({"id": [0, 1]}), on="id", max_bytes=8))
    with pytest.raises(TableError, match="Give each column a name of its own and one type"):
        Sidecar(pd.DataFrame({"id": [0, "b", object()]}), on="id")
    with pytest.raises(OptionError, match="no options of CSV"):
        Sidecar(pd.DataFrame({"id": [0]}), on="id", delimiter=";")
    with pytest.raises(OptionError, match="expected the path of a table"):
        Sidecar({"id": [0]}, on="id")
    with pytest.raises(UnknownColumnError, match="the table in memory: no column 'id'"):
        opened(files, ["x"], Sidecar(pd.DataFrame({"number": [0]}), on="id"))
