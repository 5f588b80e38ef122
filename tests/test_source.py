import inspect
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import ray_h5
import ray_h5.torch_data
from ray_h5.cli import commands, main
from ray_h5.errors import OptionError, UnknownOptionError
from ray_h5.options import documented
from ray_h5.source import OptionsButColumns, OptionsOfFolds, Source, SourceOptions

ENTRANCES = {
    "read_h5": ray_h5.read_h5,
    "H5Datasource": ray_h5.H5Datasource,
    "build_index": ray_h5.build_index,
    "kfold": ray_h5.kfold,
    "torch_data.kfold": ray_h5.torch_data.kfold,
    "H5Dataset": ray_h5.torch_data.H5Dataset,
    "loader": ray_h5.torch_data.loader,
}
OPTIONS = {name: each.default for name, each in inspect.signature(Source).parameters.items() if name != "paths"}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_each_way_to_read_lists_all_options(entrance):
    found, entries = inspect.signature(ENTRANCES[entrance]).parameters, documented(ENTRANCES[entrance])
    for name, default in OPTIONS.items():
        own = "hdf5_group" if name == "group" and "kfold" in entrance else name
        assert found[own].default == default
        assert own == name == "group" or entries[own].split("\n", 1)[1] == documented(Source)[name].split("\n", 1)[1]
    assert not {"options", "**options"} & {*found, *entries}
    written = [part for name in entries.values() for part in name.split(" : ")[0].split("\n")[0].split(", ")]
    assert list(dict.fromkeys(written)) == list(found), "in the order of the signature"


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_misspelt_option_is_an_error_that_offers_the_nearest(entrance):
    name = ENTRANCES[entrance].__name__
    with pytest.raises(
        UnknownOptionError, match=rf"^{name}: there is no option 'colums'\. Did you mean 'columns'"
    ) as info:
        ENTRANCES[entrance]("gone.h5", colums=["x"])
    assert isinstance(info.value, TypeError)
    with pytest.raises(TypeError, match=rf"^{name}: it needs "):
        ENTRANCES[entrance](**({"k": 2} if "kfold" in entrance else {}))


def test_type_checkers_know_the_same_options():
    assert SourceOptions.__annotations__.keys() == OPTIONS.keys()
    assert OptionsButColumns.__annotations__.keys() == OPTIONS.keys() - {"columns"}
    assert OptionsOfFolds.__annotations__.keys() == OPTIONS.keys() - {"group"}


def test_documents_list_all_options():
    table = (Path(__file__).parents[1] / "docs" / "files.md").read_text().split("## Columns")[0]
    assert OPTIONS.keys() <= {
        name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in row.strip("`").split("`, `")
    }


@pytest.mark.parametrize("command", ["inspect", "index"])
def test_the_command_line_has_all_options(capsys, command):
    flags = {each.name: each.opts[0] for each in commands.commands[command].params if each.name != "paths"}
    assert OPTIONS.keys() - flags.keys() == {"rows", "filesystem"}
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {flag}" in shown for flag in flags.values())


def test_the_command_line_uses_the_options(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["guid"], file["x"], file["z"] = np.arange(3), np.zeros((3, 4)), np.zeros((4, 3))
        file.attrs["fs"] = 4
    (tmp_path / "t.csv").write_text("guid,label\n0,a\n1,b\n2,c\n")
    inspected = ["inspect", str(tmp_path / "a.h5"), "--index-dir", str(tmp_path / "index"), "--columns"]
    tables = ["--attrs", "fs", "--sidecar", str(tmp_path / "t.csv"), "guid"]
    assert main([*inspected, "x", "label", "fs", *tables]) == 0
    assert "x: float64 (4,), label: string, fs: int64" in capsys.readouterr().out
    tables[-1] = "guid=id"
    (tmp_path / "t.csv").write_text("id,label\n2,a\n1,b\n0,c\n")
    assert main([*inspected, "x", "label", "fs", *tables]) == 0
    assert "x: float64 (4,), label: string, fs: int64" in capsys.readouterr().out
    assert main([*inspected, "z", "--axes", "reversed", "--dtypes", "z=float32"]) == 0
    assert "z: float32 (4,)" in capsys.readouterr().out
    assert list((tmp_path / "index").iterdir())


def test_a_source_checks_itself():
    assert Source(iter(["a.h5"]), columns=["x"]).paths == ["a.h5"]
    found = Source("s3://b/a.h5", attrs=["fs"], storage_options={"region": "x"}, cache_dir="c")
    assert (found.attributes, found.names, found.storage_options) == (
        {"fs": "fs"},
        None,
        {"region": "x", "cache_dir": "c"},
    )
    assert "region" not in repr(found), "there may be credentials"
    for wrong in (
        {"group": None},
        {"dtypes": ["i8"]},
        {"casting": "safe"},
        {"columns": "x"},
        {"rows": 2},
        {"windows": {}},
        {"sidecar": "t.csv"},
        {"attrs": "fs"},
        {"cache_dir": "c", "storage_options": {"cache_dir": "d"}},
    ):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            Source("a.h5", **wrong)
    with pytest.raises(OptionError, match="paths: expected at least one"):
        Source([])


def test_no_function_passes_options_on_by_name():
    package = Path(ray_h5.__file__).parent
    passed = re.compile(rf"^\s*({'|'.join(OPTIONS)})=\1,?$", re.MULTILINE)
    found = {path.name: passed.findall(path.read_text()) for path in package.rglob("*.py")}
    assert not {name: names for name, names in found.items() if len(names) > 2}


def test_classes_on_the_command_line(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["kind"] = np.array(["b", "a", "c"], object)
    assert main(["inspect", str(tmp_path / "a.h5"), "--labels", "kind=auto"]) == 0
    assert "kind: int64 (0=a, 1=b, 2=c)" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "a.h5"), "--labels", "kind=c,b,a"]) == 0
    assert "kind: int64 (0=c, 1=b, 2=a)" in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"dtypes": {"x": "f4"}}, {"labels": {"x": "auto"}}])
def test_options_name_columns_as_columns_calls_them(options):
    option = next(iter(options))
    with pytest.raises(OptionError, match=rf"^{option}: 'x' is a dataset, .* is 'q' in columns=; write 'q'$"):
        Source("a.h5", columns={"q": "x"}, **options)
    Source("a.h5", columns={"q": "x", "x": "x"}, **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ray_h5.Windows("signal", 10), r"^Windows: 1 value too many without a name\. .*Write Windows\(\{"),
        (
            lambda: ray_h5.Patches({"raw": (8, 8)}, 4, 5),
            r"^Patches: 2 values too many without a name\. .*Write Patches\(\{",
        ),
        (
            lambda: ray_h5.loader("gone.h5", 64, True),
            r"^loader: 1 value too many without a name\. Options have names, such as",
        ),
        (lambda: ray_h5.read_h5("gone.h5", ["x"]), r"such as columns=\. Write read_h5\(.*, columns=\['image'\]\)"),
        (lambda: ray_h5.read_h5("gone.h5", predicate=1), r"no option 'predicate'\. Write read_h5\(\.\.\.\)\.filter"),
        (lambda: ray_h5.read_h5("gone.h5", batch_size=1), r"no option 'batch_size'\. Pass it to iter_torch_batches"),
    ],
)
def test_a_value_too_many_without_a_name_says_what_to_write(call, said):
    with pytest.raises(UnknownOptionError, match=said):
        call()
