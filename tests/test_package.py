import pickle
import subprocess
import sys

import pytest

import ray_h5
from ray_h5 import errors


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, ray_h5; print([m for m in ('ray', 'torch', 'h5py', 'numpy', 'pyarrow') if m in sys.modules])"
    assert run(code) == "[]"


def test_every_public_name_is_there_and_sorted():
    assert ray_h5.__all__ == sorted(ray_h5.__all__)
    for name in ray_h5.__all__:
        assert getattr(ray_h5, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ray_h5.nonsense


BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import importlib, pkgutil, ray_h5
for module in pkgutil.walk_packages(ray_h5.__path__, "ray_h5."):
    if not module.name.startswith({apart!r}):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.mark.parametrize(("blocked", "engine"), [("ray", "ray_h5.ray_data"), ("torch", "ray_h5.torch_data")])
def test_lower_floors_need_neither_ray_nor_torch(blocked, engine):
    apart = (engine, "ray_h5.ray_data", "ray_h5.bench", "ray_h5.__main__")
    found = run(BLOCK.format(blocked=blocked, apart=apart))
    assert "ray_h5.hdf5.reader" in found
    assert "ray_h5.planning.epoch.plan" in found
    assert "ray_h5.cli" in found


LEAVES = [getattr(errors, name) for name in errors.__all__ if name != "RayH5Error"]


@pytest.mark.parametrize("leaf", LEAVES)
def test_an_error_is_ours_and_the_builtin_and_survives_pickling(leaf):
    builtin = {base for base in leaf.__mro__ if base.__module__ == "builtins"} - {Exception, BaseException, object}
    assert issubclass(leaf, errors.RayH5Error)
    assert builtin
    again = pickle.loads(pickle.dumps(leaf("expected 3, found 4\nin x.h5")))
    assert type(again) is leaf
    assert str(again) == "expected 3, found 4\nin x.h5"


def test_all_errors_are_listed():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert sorted(defined) == errors.__all__
