import json

import h5py
import hdf5plugin  # noqa: F401  lets h5py read the workloads
import numpy as np
import pytest

import ray_h5
from ray_h5 import RowReader, bench
from ray_h5.bench.measure import Result
from ray_h5.bench.workloads import make_workload
from ray_h5.cli import main

KEYS = ["baseline", "bench", "case", "goal", "ok", "ours", "ratio", "spread", "theirs", "unit"]


def result(**other):
    values = dict.fromkeys(KEYS) | {"bench": "read", "case": "all", "baseline": "pread", "unit": "MB/s", "ours": 1500.0}
    return Result(**(values | {"theirs": 750.0, "ratio": 2.0, "spread": (1.9, 2.1), "goal": 1.5, "ok": True} | other))


@pytest.fixture
def one_bench(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "BENCHES", {"read": lambda options: asked.append(options) or [result()]})
    return asked


def test_bench_prints_a_table(one_bench, capsys):
    assert main(["bench", "read", "--size", "0.5", "--turns", "7"]) == 0
    assert (one_bench[0].size, one_bench[0].turns) == (0.5, 7)
    table, notes = capsys.readouterr().out.split("\n\n")
    head, line = table.splitlines()
    assert head.split() == ["bench", "case", "baseline", "unit", "ours", "theirs", "ratio", "spread"]
    assert line.split() == ["read", "all", "pread", "MB/s", "1500", "750", "2x", "1.9..2.1"]
    assert [each.split(":")[0] for each in notes.splitlines()] == ["ours, theirs", "ratio", "spread", "too small"]
    assert "at --size 0.5 " in notes


@pytest.mark.usefixtures("one_bench")
def test_bench_prints_the_goals_of_this_version_if_asked(capsys):
    assert main(["bench", "read", "--size", "0.5", "--goals"]) == 0
    table, notes = capsys.readouterr().out.split("\n\n")
    head, line = table.splitlines()
    assert head.split()[-2:] == ["goal", "ok"]
    assert line.split()[-3:] == [">=", "1.5", "yes"]
    assert "at --size 0.5 it is not judged" in notes


def test_the_words_in_the_names_of_cases_are_explained(monkeypatch, capsys):
    monkeypatch.setattr(bench, "BENCHES", {"read": lambda _: [result(case="combined, kept nothing, threads 2")]})
    assert main(["bench", "read"]) == 0
    shown = capsys.readouterr().out
    assert "combined: CombinedHDF5Dataset" in shown
    assert "kept nothing: ray_h5 holds no rows" in shown
    assert "warm:" not in shown
    assert "too small" not in shown


@pytest.mark.parametrize(("size", "shown"), [(1.0, False), (0.01, None)])
def test_goals_are_judged_at_full_size_only(monkeypatch, size, shown):
    from ray_h5.bench.cases import read

    monkeypatch.setattr(read, "bench_read", lambda _: [result(ok=False)])
    (found,) = bench.BENCHES["read"](bench.BenchOptions(size))
    assert (found.ok, found.goal) == (shown, 1.5)


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ray-h5 {ray_h5.__version__}\n"


def test_bench_prints_json(one_bench, capsys):
    assert main(["bench", "read", "--json"]) == 0
    assert len(one_bench) == 1
    assert [sorted(each) for each in json.loads(capsys.readouterr().out)] == [KEYS]


def test_a_workload_is_made_once_and_read_as_h5py_reads_it(tmp_path):
    made = [make_workload(name, str(tmp_path), 0.01) for name in ("signals", "flat", "images")]
    for workload in made:
        for path in workload.paths:
            names = [column.name for column in workload.columns if column.dtype != "str"]
            with RowReader(path) as reader, h5py.File(path) as file:
                found = reader.read(names)
                assert all(found[name].tobytes() == file[name][:].tobytes() for name in names)
                assert len(found[names[0]]) * len(workload.paths) == workload.rows
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*.h5"))]
    assert make_workload("signals", str(tmp_path), 0.01).paths == made[0].paths
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*.h5"))] == times


def test_an_error_is_one_line_and_a_status(capsys):
    assert main(["bench", "read", "--size", "-1"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ray-h5: OptionError: ")
    assert "Traceback" not in shown.err


def test_a_folder_that_is_none_is_no_traceback(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["bench", "read", "--size", "0.001", "--folder", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"ray-h5: [Errno 17] File exists: '{tmp_path / 'file'}'\n"


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupted(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "BENCHES", {"read": interrupted})
    assert main(["bench", "read"]) == 130
    assert capsys.readouterr().err == ""


def test_names_in_an_error_are_no_commands_to_a_terminal(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["red \x1b[31m"] = [1, 2]
    assert main(["index", str(tmp_path / "a.h5"), "--dir", str(tmp_path / "index"), "--values", "x"]) == 1
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert r"red \x1b[31m" in shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["inspct"], "Did you mean 'inspect'?"),
        (["inspect", "a.h5", "--colums", "x"], "Did you mean '--columns'?"),
        (["bench", "pers"], "Did you mean 'peers'?"),
        (["inspect", "a.h5", "--qqqq"], "unrecognized arguments: --qqqq."),
        (["repack", "a.h5", "out", "--chunkrows", "1"], "Did you mean '--chunk-rows'"),
        (["inspect", "a.h5", "--rows", "Files()"], "Did you mean '--groups' or '--windows'?"),  # repack has --rows
        ([], "inspect   show what files hold"),
    ],
)
def test_names_that_are_misspelt_are_offered(given, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(given)
    found = capsys.readouterr().err
    assert said in found
    assert "There is" not in found


def test_an_unknown_bench_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "nonsense"])
    assert "read" in capsys.readouterr().err


def test_index_is_made_ahead(tmp_path, capsys):
    workload = make_workload("signals", str(tmp_path), 0.01)
    folder = str(tmp_path / "index")
    assert main(["index", *workload.paths, "--dir", folder, "--values", "guid", "epoch"]) == 0
    assert f"{len(workload.paths)} files, {workload.rows} rows" in capsys.readouterr().out
    assert len(list((tmp_path / "index").iterdir())) == len(workload.paths)
    assert main(["index", *workload.paths, "--dir", folder, "--values", "fhr_st"]) == 1
    assert "any_equal" in capsys.readouterr().err


def test_index_is_of_what_is_cast(tmp_path, capsys):
    for i, dtype in enumerate(("i4", "i8")):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["x=y"] = np.arange(2, dtype=dtype)
    given = ["index", str(tmp_path), "--dir", str(tmp_path / "index"), "--values", "x=y"]
    assert main(given) == 1
    assert "pass --dtypes x=y=int64." in capsys.readouterr().err
    assert main([*given, "--dtypes", "x=y=int64"]) == 0
    assert "2 files, 4 rows" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*given, "--dtypes", "int64"])
    assert "expected NAME=DTYPE, such as image=float16, found 'int64'" in capsys.readouterr().err


def test_inspect_tells_what_a_shuffle_costs(tmp_path, capsys):
    path = make_workload("images", str(tmp_path), 0.05).paths[3]
    assert main(["inspect", path, "--shuffle", "rows"]) == 0
    rows = capsys.readouterr().out
    assert main(["inspect", path, "--shuffle", "auto"]) == 0
    assert "shuffled by rows" in rows
    assert "shuffled by chunks" in capsys.readouterr().out


def test_without_rows_there_is_no_shuffle(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [[0.0]][:0]
    assert main(["inspect", str(tmp_path / "a.h5"), "--shuffle", "auto"]) == 0
    assert "there are no rows to shuffle" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "index"])
def test_paths_that_are_missing_can_be_left_out(tmp_path, capsys, command):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1, 2]
    options = ["--dir", str(tmp_path / "index")] if command == "index" else []
    given = [command, str(tmp_path / "a.h5"), str(tmp_path / "gone.h5"), *options]
    assert main(given) == 1
    assert "pass --ignore-missing-paths to go on" in capsys.readouterr().err
    assert main([*given, "--ignore-missing-paths"]) == 0


def test_errors_speak_of_flags(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["long"] = np.arange(300)
        file["t2m"], file["lat long"] = np.arange(20.0), np.arange(20.0)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["long"] = np.arange(300.0)
        file["link"] = h5py.ExternalLink(str(tmp_path / "elsewhere" / "c.h5"), "x")
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    index = ["index", "--dir", str(tmp_path / "index")]

    def said(*given):
        assert main([*given]) == 1
        return capsys.readouterr().err

    message = said(*index, a)
    assert "\n  20 rows: --columns 'lat long' t2m\n  300 rows: --columns long\n" in message
    assert "with --group." in message
    assert "pass --dtypes long=float64." in said(*index, a, b, "--columns", "long")
    assert "--casting unsafe casts all the same" in said(
        *index, a, "--columns", "long", "--dtypes", "long=int8", "--values", "long"
    )
    assert f"pass --allow-external {tmp_path}/elsewhere" in said(*index, b, "--columns", "link")
    assert "--group /a names no group" in said(*index, a, "--group", "/a")
    for name, n in (("demo_0", 3), ("demo_1", 4)):
        with h5py.File(tmp_path / "c.h5", "a") as file:
            file[f"{name}/x"] = np.arange(n)
    message = said(*index, str(tmp_path / "c.h5"))
    assert "If each is a sample, pass --groups 'demo_*'. " in message
    assert "pass columns=[ray_h5.joined('demo_*/x', name='x')]." in message  # which a command cannot say
    assert "If each file is one sample, a bag of features or a volume, pass --each-file." in message
    assert "--turns 3: expected 5 or more" in said("bench", "read", "--turns", "3")
    assert "--shuffle row: expected one of 'auto', 'rows'" in said(
        "inspect", a, "--columns", "long", "--shuffle", "row"
    )
    assert "--shuffle weights: expected a column, too, such as 'weights:label'" in said(
        "inspect", a, "--columns", "long", "--shuffle", "weights"
    )
    missing = said("inspect", str(tmp_path / "group=3" / "a.h5"))
    assert f"{tmp_path}/group=3/a.h5" in missing


def test_repack_writes_and_prints_what_it_gained(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((600, 700)), chunks=(600, 700), compression="gzip")
        file["label"] = np.arange(600) % 3
    out = tmp_path / "out"
    assert main(["repack", str(tmp_path / "a.h5"), str(out)]) == 0
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.out.splitlines()[1:]] == ["chunks", "shuffled epoch, on a sample"]
    assert printed.err == ""
    options = ["--where", "label == 1", "--codec", "lz4", "--files", "2", "--overwrite", "--no-measure"]
    assert main(["repack", str(tmp_path / "a.h5"), str(out), *options]) == 0
    assert "rows: 200" in capsys.readouterr().out
    assert main(["repack", str(tmp_path / "a.h5"), str(out)]) == 1
    assert "a.h5 exists already. Pass --overwrite to replace it, --resume" in capsys.readouterr().err


def test_repack_takes_row_kinds_as_in_python(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(3):
            file[f"data/demo_{i}/x"] = np.full((i + 1, 2), i)
    command = ["repack", str(tmp_path / "a.h5"), str(tmp_path / "b.h5"), "--no-measure", "--rows"]
    assert main([*command, 'Groups("data/demo_*", key="demo")']) == 0
    assert "rows: 3" in capsys.readouterr().out
    for wrong in ("Groups(open('x'))", "open('x')", "Groups(", "Windows({})", "Groups(1, 2, 3)"):
        assert main([*command, wrong]) == 1
        assert "OptionError: " in capsys.readouterr().err
