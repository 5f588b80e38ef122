import ast
import pickle
import re
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path

import pytest

import ray_h5
import ray_h5.torch_data
from ray_h5 import call_errors, errors


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


IMPORTS = """
import sys, ray_h5
print([m for m in ("ray", "torch", "h5py", "numpy", "pyarrow") if m in sys.modules])
ray_h5.where, ray_h5.kfold, ray_h5.plots.__doc__
print("ray" in sys.modules)
"""


def test_importing_the_package_imports_nothing_heavy_and_where_and_figures_no_ray():
    assert run(IMPORTS).splitlines() == ["[]", "False"]


def test_every_public_name_is_there_and_sorted():
    assert ray_h5.__all__ == sorted(ray_h5.__all__)
    for name in ray_h5.__all__:
        assert getattr(ray_h5, name).__name__ == name
    for name in ("nonsense", "NonsenseError", "_HOME"):
        with pytest.raises(AttributeError, match=f"'ray_h5' has no attribute '{name}'"):
            getattr(ray_h5, name)


def test_the_public_names_alone_are_shown():
    assert dir(ray_h5.plots) == ray_h5.plots.__all__
    assert dir(ray_h5) == sorted([*ray_h5.__all__, "plots", "torch_data"])
    assert not [name for name in ray_h5.__all__ if name.startswith("_")]


def test_a_name_that_is_not_there_says_where_it_is_or_what_is_near():
    with pytest.raises(AttributeError, match=r"'ray_h5.torch_data' has no .*; it needs Ray: import it from ray_h5$"):
        ray_h5.torch_data.read_h5  # noqa: B018
    for module, name in ((ray_h5, "raed_h5"), (ray_h5.torch_data, "lodaer")):
        with pytest.raises(AttributeError) as caught:
            getattr(module, name)
        assert (caught.value.name, caught.value.obj) == (name, module)  # of which Python offers the nearest name


def options_of(name):
    """Return the options of a public class or function; none if it takes names that are not its own."""
    what = getattr(ray_h5, name)
    if isinstance(what, type) and issubclass(what, (Exception, dict)):
        return []
    found = signature(what).parameters.values()
    any_name = any(each.kind is Parameter.VAR_KEYWORD for each in found)
    return [] if any_name else [each.name for each in found if each.default is not Parameter.empty]


def test_an_option_that_is_not_there_has_a_near_name():
    named = [name for name in {*ray_h5.__all__, *ray_h5.torch_data.__all__} if options_of(name)]
    assert len(named) > 30
    for name in named:
        option = options_of(name)[0]
        message = rf"{name}: there is no option .* Did you mean .*'{option}'"
        with pytest.raises(errors.UnknownOptionError, match=message):
            getattr(ray_h5, name)(**{f"{option}_": None})


def test_an_option_of_another_name_says_what_to_write():
    with pytest.raises(errors.UnknownOptionError, match=r"^data_config: there is no option .* always in order"):
        ray_h5.data_config(preserve_order=True)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ray_h5.Windows(pad="drop"), r"Windows: it needs offsets \(mapping.*Write Windows\(\{'actions'"),
        (ray_h5.Sidecar, r"Sidecar: it needs path \(.*\) and on \(str.*Write Sidecar\('labels.csv', on="),
        (lambda: ray_h5.Sidecar("labels.csv"), r"Sidecar: it needs on \("),
        (lambda: ray_h5.kfold("data/*.h5"), r"kfold: it needs k \(int\)\. Write kfold\('data/\*\.h5', 5\)"),
        (lambda: ray_h5.torch_data.kfold(k=3), r"kfold: it needs paths"),
        (lambda: ray_h5.torch_data.H5LazyDataset("a.h5"), r"H5LazyDataset: it needs x_key"),
        (lambda: ray_h5.between(1), r"between: it needs high"),
        (lambda: ray_h5.torch_data.OrderBatchSampler([1]), r"OrderBatchSampler: it needs batch_size"),
        (ray_h5.torch_data.create_optimized_dataloader, r"create_optimized_dataloader: it needs hdf5_files"),
    ],
)
def test_an_argument_that_is_missing_is_named_with_a_call(call, says):
    with pytest.raises(TypeError, match=rf"^{says}") as caught:
        call()
    assert isinstance(caught.value, errors.RayH5Error)


def test_the_calls_in_errors_have_all_that_is_needed():
    for name, call in call_errors._CALLS.items():
        given = ast.parse(call, mode="eval").body
        assert given.func.id == name
        signature(getattr(ray_h5, name)).bind(*given.args, **{each.arg: None for each in given.keywords})


def test_errors_and_the_classes_of_elsewhere_are_there_too():
    names = {*(leaf.__name__ for leaf in LEAVES), *ray_h5.torch_data.__all__}
    assert [name for name in names if getattr(ray_h5, name).__name__ != name] == []


def test_what_users_write_is_imported_from_two_modules_alone():
    root = Path(__file__).parents[1]
    written = [root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/*.py")]
    # Figures have a package of their own.
    imported = r"(?:from|import) (ray_h5\.(?!torch_data\b(?!\.)|plots\b)[\w.]+)"
    deeper = re.compile(rf"{imported}|(ray_h5\.\w+_data\.\w+\.\w+)")
    assert [(path.name, found) for path in written for found in deeper.findall(path.read_text())] == []


BLOCK = """
import importlib, pkgutil, sys
blocked = {"ray", "torch"}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import ray_h5
for apart in (("ray_h5.torch_data", "ray_h5.compat", "ray_h5.device"), ()):
    apart = (*apart, "ray_h5.ray_data", "ray_h5.bench", "ray_h5.cli.__main__")
    modules = pkgutil.walk_packages(ray_h5.__path__, "ray_h5.")
    names = [module.name for module in modules if not module.name.startswith(apart)]
    for name in names:
        importlib.import_module(name)
    print(*names)
    blocked.discard("torch")
"""


@pytest.mark.slow  # it imports all modules
def test_lower_floors_need_neither_ray_nor_torch_and_torch_data_needs_no_ray():
    lower, all_but_ray = (line.split() for line in run(BLOCK).splitlines())
    assert {"ray_h5.read.reader", "ray_h5.plan.read_plan", "ray_h5.cli"} <= set(lower)
    assert "ray_h5.torch_data.h5_data_loader" in all_but_ray


LEAVES = [error for name, error in vars(errors).items() if name.endswith("Error") and name != "RayH5Error"]


@pytest.mark.parametrize("leaf", LEAVES)
def test_an_error_is_ours_and_the_builtin_and_survives_pickling(leaf):
    builtin = {base for base in leaf.__mro__ if base.__module__ == "builtins"} - {Exception, BaseException, object}
    assert issubclass(leaf, errors.RayH5Error)
    assert builtin
    again = pickle.loads(pickle.dumps(leaf("expected 3, found 4\nin x.h5")))
    assert type(again) is leaf
    assert str(again) == "expected 3, found 4\nin x.h5"


def test_a_name_that_a_module_lacks_is_no_attribute_of_it():
    for package in (ray_h5, ray_h5.torch_data):
        assert not any(hasattr(package, name) for name in ("mix", "make_train_val_indices", "torch_dat"))


def test_a_star_brings_the_errors_too():
    assert run("from ray_h5.torch_data import *; print(issubclass(CastError, RayH5Error))") == "True"
