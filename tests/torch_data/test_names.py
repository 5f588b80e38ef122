import re
import subprocess
import sys
from pathlib import Path

import pytest

import ray_h5
from ray_h5 import errors, torch_data


def test_every_public_name_is_there_and_sorted():
    assert torch_data.__all__ == sorted(torch_data.__all__)
    assert all(getattr(torch_data, name).__name__ == name for name in torch_data.__all__)
    assert dir(torch_data) == [name for name in torch_data.__all__ if not name.startswith("_")]


def test_all_names_that_need_no_ray_are_here():
    homes, of_torch = ray_h5._NAMES.homes, {"where", "kfold", "DecodeImage", "Standardize"}
    of_ray = {name for name, home in homes.items() if home.startswith("ray_h5.ray_data")}
    of_documents = {name for name, home in homes.items() if home.startswith("ray_h5.compat")}
    leaves = {leaf for leaf in vars(errors) if leaf.endswith("Error")}
    assert set(torch_data.__all__) == {*homes, *leaves} - of_documents - (of_ray - of_torch)
    assert {*ray_h5.__all__} - {*torch_data.__all__} <= of_ray
    assert torch_data.CastError is ray_h5.CastError
    differ = {name for name in ray_h5.__all__ if getattr(torch_data, name, None) not in (None, getattr(ray_h5, name))}
    assert differ == of_torch
    # Lines after the first one of a name would say something else to type checkers.
    stub = Path(ray_h5.__file__).with_suffix(".pyi").read_text()
    names = re.findall(r"import (\w+) as \1$", stub, re.MULTILINE)
    assert sorted(names) == sorted([*homes, *ray_h5._NAMES.modules])


IMPORTS = """
import copyreg, importlib, pkgutil, sys, types
from multiprocessing.reduction import ForkingPickler
import numpy

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ray":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())

def registered():
    return dict(ForkingPickler._extra_reducers), dict(copyreg.dispatch_table)

before = registered()
from ray_h5 import torch_data
assert "torch" not in sys.modules
assert registered() == before

from torch.utils.data._utils.collate import default_collate_fn_map
before = registered(), dict(default_collate_fn_map)
for name in torch_data.__all__:
    getattr(torch_data, name)
assert (registered(), default_collate_fn_map) == before, "an import changes nothing of torch"

for found in pkgutil.walk_packages(torch_data.__path__, "ray_h5.torch_data."):
    importlib.import_module(found.name)
# An import of a submodule sets an attribute of its package: a module named as a function would hide the function.
assert not [name for name in torch_data.__all__ if isinstance(getattr(torch_data, name), types.ModuleType)]
assert "ray" not in sys.modules
"""


@pytest.mark.slow
def test_imports_bring_no_ray_and_change_nothing_of_torch_and_hide_no_name():
    """In one process: to import torch takes seconds."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORTS], check=True, timeout=100)
