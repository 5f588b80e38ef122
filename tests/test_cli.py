import json

import pytest

from ray_h5.cli import main


def test_bench_prints_a_table_and_json(capsys, tmp_path):
    arguments = ["bench", "read", "--size", "0.01", "--folder", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {tuple(sorted(each)) for each in results} == {
        tuple(sorted(["bench", "case", "baseline", "unit", "ours", "theirs", "ratio", "spread", "goal", "ok"]))
    }
    assert main(arguments) == 0
    assert "h5py_fancy" in capsys.readouterr().out


def test_an_error_is_one_line_and_a_status(capsys):
    assert main(["bench", "read", "--size", "-1"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ray-h5: OptionError: ")
    assert "Traceback" not in shown.err


def test_an_unknown_bench_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "nonsense"])
    assert "read" in capsys.readouterr().err
