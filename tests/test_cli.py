import io
import os
import re
import sys

import h5py
import hdf5plugin  # noqa: F401  lets h5py read the workloads
import numpy as np
import pytest

from ray_h5 import bench
from ray_h5.cli import main
from tests.bench.files import make_workload
from tests.kit.files import save


def test_an_error_is_one_line_and_a_status(capsys):
    assert main(["inspect", "nothing.h5"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ray-h5: ")
    assert "Traceback" not in shown.err


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ray_h5.bench.measure", interrupted)
    assert main(["bench", "a.h5"]) == 130
    assert capsys.readouterr().err == ""


def test_names_in_an_error_are_no_commands_to_a_terminal(tmp_path, capsys):
    save(tmp_path / "a.h5", {"red \x1b[31m": [1, 2]})
    assert main(["index", str(tmp_path / "a.h5"), "--dir", str(tmp_path / "index"), "--values", "x"]) == 1
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert r"red \x1b[31m" in shown


def test_letters_that_the_output_lacks_are_escaped(tmp_path, monkeypatch):
    save(tmp_path / "a.h5", {"gr\u00f6\u00dfe": [1, 2]})
    for command in (["inspect"], ["inspect", "--json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
        assert main([*command, str(tmp_path / "a.h5")]) == 0
        sys.stdout.flush()
        assert b"gr\\" in written.getvalue()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["inspct"], ["'inspect'"]),
        (["inspect", "a.h5", "--colums", "x"], ["'--columns'"]),
        (["inspect", "a.h5", "--qqqq"], ["--qqqq"]),
        (["inspect", "a.h5", "--columns"], ["'--columns'"]),
        (["inspect", "a.h5", "--columns", "--json"], ["'--columns'"]),
        (["inspect", "a.h5", "--casting", "safe"], ["--casting", "checked", "unsafe"]),
        (["inspect"], ["PATH"]),
        (["repack", "a.h5", "out", "--chunkrows", "1"], ["'--chunk-rows'"]),
        ([], ["inspect", "index", "repack", "bench"]),
    ],
)
def test_usage_errors_end_with_status_2_and_name_the_nearest(given, names, capsys):
    assert main(given) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in names)


def test_bench_compares_the_ways_to_read_the_files(tmp_path, capsys, monkeypatch):
    (tmp_path / "scans").mkdir()
    make_workload("signals", str(tmp_path / "scans"), 0.01)
    monkeypatch.chdir(tmp_path)
    arguments = ["scans", "--columns", "target", "guid", "--batch-size", "8", "--seconds", "0.05", "--no-ray"]
    assert main(["bench", *arguments]) == 0
    head, *lines, limit, loop = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["shuffled", "rows", "rows/s"]
    ways = ["h5py, DataLoader", "h5py, DataLoader, 2 workers", "loader, 1 thread", "loader, 2 threads"]
    assert [line.split("  ")[0] for line in lines][:4] == ways
    assert "waits for the disk" in limit or "is limited by decoding" in limit
    assert loop == "compiled loop: yes" or os.environ.get("RAY_H5_COMPILED") == "0"


@pytest.mark.parametrize(("rows", "held"), [((1, 1), True), ((1, 1200), False)])
def test_bench_says_what_h5py_holds_in_its_chunk_cache(tmp_path, capsys, rows, held):
    """A cache is of one dataset of one file: what a larger one does not hold is not said to be held."""
    for i, many in enumerate(rows):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file.create_dataset("x", data=np.zeros((many, 2048)), chunks=(1, 2048), compression="gzip")
            file["plain"] = np.zeros((many, 2))
    assert main(["bench", str(tmp_path), "--seconds", "0.01", "--no-ray"]) == 0
    assert ("h5py decodes x once, and not for each row" in capsys.readouterr().out) == held


def test_bench_of_a_name_says_where_the_benches_of_the_project_are(capsys):
    assert main(["bench", "read"]) == 1
    assert "python -m tests.bench" in capsys.readouterr().err


def test_index_is_made_ahead(tmp_path, capsys):
    workload = make_workload("signals", str(tmp_path), 0.01)
    folder = str(tmp_path / "index")
    assert main(["index", *workload.paths, "--dir", folder, "--values", "guid", "epoch"]) == 0
    assert f"{len(workload.paths)} files, {workload.rows} rows" in capsys.readouterr().out
    assert len(list((tmp_path / "index").iterdir())) == 1
    assert main(["index", *workload.paths, "--dir", folder, "--values", "fhr_st"]) == 1
    assert "any_equal" in capsys.readouterr().err


def test_index_is_of_what_is_cast(tmp_path, capsys):
    for i, dtype in enumerate(("i4", "i8")):
        save(tmp_path / f"{i}.h5", {"x=y": np.arange(2, dtype=dtype)})
    given = ["index", str(tmp_path), "--dir", str(tmp_path / "index"), "--values", "x=y"]
    assert main(given) == 1
    assert "dtypes= is --dtypes" in capsys.readouterr().err
    assert main([*given, "--dtypes", "x=y=int64"]) == 0
    assert "2 files, 4 rows" in capsys.readouterr().out
    assert main([*given, "--dtypes", "int64"]) == 2
    assert "--dtypes" in capsys.readouterr().err


def test_without_rows_there_is_no_shuffle(tmp_path, capsys):
    save(tmp_path / "a.h5", {"x": [[0.0]][:0]})
    assert main(["inspect", str(tmp_path / "a.h5"), "--shuffle", "auto"]) == 0
    assert "there are no rows to shuffle" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "index"])
def test_paths_that_are_missing_can_be_left_out(tmp_path, capsys, command):
    save(tmp_path / "a.h5", {"x": [1, 2]})
    options = ["--dir", str(tmp_path / "index")] if command == "index" else []
    given = [command, str(tmp_path / "a.h5"), str(tmp_path / "gone.h5"), *options]
    assert main(given) == 1
    assert "--ignore-missing-paths" in capsys.readouterr().err
    assert main([*given, "--ignore-missing-paths"]) == 0


def test_errors_name_the_flags_of_options(tmp_path, capsys):
    save(tmp_path / "a.h5", {"long": np.arange(300), "t2m": np.arange(20.0)})
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["long"] = np.arange(300.0)
        file["link"] = h5py.ExternalLink(str(tmp_path / "elsewhere" / "c.h5"), "x")
    save(tmp_path / "c.h5", {f"demo_{i}/x": np.arange(3 + i) for i in range(2)})
    a, b, c = (str(tmp_path / f"{name}.h5") for name in "abc")
    index = ["index", "--dir", str(tmp_path / "index")]
    long = ["--columns", "long"]
    for given, named in [
        ([*index, a], "columns= is --columns, group= is --group"),
        ([*index, a, b, *long], "dtypes= is --dtypes"),
        ([*index, a, *long, "--dtypes", "long=int8", "--values", "long"], "casting= is --casting"),
        ([*index, b, "--columns", "link"], "allow_external= is --allow-external"),
        ([*index, a, "--group", "/a"], "group= is --group"),
        ([*index, c], "rows= is --groups, --each-file, --grid or --patches"),
        (["bench", a, "--seconds", "0"], "--seconds 0.0: expected"),
        (["inspect", a, *long, "--shuffle", "row"], "--shuffle row: expected auto, rows"),
        (["inspect", a, *long, "--shuffle", "weights"], "--shuffle weights: expected"),
        (["inspect", str(tmp_path / "group=3" / "a.h5")], f"{tmp_path}/group=3/a.h5"),
    ]:
        assert main(given) == 1
        assert named in capsys.readouterr().err


def test_repack_writes_and_prints_what_it_gained(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((600, 700)), chunks=(600, 700), compression="gzip")
        file["label"] = np.arange(600) % 3
    out = tmp_path / "out"
    assert main(["repack", str(tmp_path / "a.h5"), str(out)]) == 0
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.out.splitlines()[1:]] == ["chunks", "shuffled epoch, on a sample"]
    assert printed.err == ""
    assert main(["repack", str(tmp_path / "a.h5"), str(out)]) == 1
    shown = capsys.readouterr().err
    assert "OutputExistsError: " in shown
    assert "overwrite= is --overwrite, resume= is --resume" in shown


def test_a_name_in_a_path_or_in_quotes_is_no_option(tmp_path, capsys):
    save(tmp_path / "a.h5", {"x": np.arange(3)})
    missing = str(tmp_path / "group=3" / "dtypes=4.h5")
    columns = ["index", str(tmp_path / "a.h5"), "--dir", str(tmp_path / "index"), "--columns", "casting=5"]
    for given in (["inspect", missing], columns):
        assert main(given) == 1
        assert not re.search(r"(group|dtypes|casting)= is", capsys.readouterr().err)


def test_an_error_of_a_flag_of_repack_begins_with_it(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["x"] = np.arange(10)
    assert main(["repack", str(tmp_path / "a.h5"), str(tmp_path / "b.h5"), "--page", "1MiB"]) == 1
    shown = capsys.readouterr().err
    assert f"--page 1048576: {tmp_path}/a.h5 begins with 512 bytes" in shown
    assert "drop= is --drop" in shown


def test_bench_bounds_the_files_that_h5py_has_open(tmp_path, capsys, monkeypatch):
    for number in range(12):
        save(tmp_path / f"{number:02}.h5", {"x": np.arange(3) + 10 * number})
    monkeypatch.setattr(bench, "_MOST_OPEN", 5)
    paths = sorted(map(str, tmp_path.iterdir()))
    before, rows = h5py.h5f.get_obj_count(types=h5py.h5f.OBJ_FILE), bench.H5pyRows(paths, ["x"], "/")
    for row in np.random.default_rng(0).permutation(36).tolist() * 2:
        assert rows[row] == {"x": row % 3 + 10 * (row // 3)}
        assert h5py.h5f.get_obj_count(types=h5py.h5f.OBJ_FILE) <= 5 + before
    assert main(["bench", str(tmp_path), "--seconds", "0.01", "--no-ray"]) == 0
    assert "h5py has 5 of 12 files open at a time" in capsys.readouterr().out
