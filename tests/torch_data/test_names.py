import subprocess
import sys

import pytest

import ray_h5
from ray_h5 import errors, torch_data


def test_every_public_name_is_there_and_sorted():
    assert torch_data.__all__ == sorted(torch_data.__all__)
    assert all(getattr(torch_data, name).__name__ == name for name in torch_data.__all__)
    assert dir(torch_data) == [name for name in torch_data.__all__ if not name.startswith("_")]


def test_all_names_that_need_no_ray_are_here():
    of_ray = {name for name, home in ray_h5._HOMES.items() if home.startswith("ray_h5.ray_data.")}
    of_documents = {name for name, home in ray_h5._HOMES.items() if home.startswith("ray_h5.compat")}
    leaves = {leaf for leaf in vars(errors) if leaf.endswith("Error")}
    others = of_documents | (of_ray - {"where", "kfold", "DecodeImage", "Standardize"})
    assert set(torch_data.__all__) == {*ray_h5._HOMES, *leaves} - others
    assert {*ray_h5.__all__} - {*torch_data.__all__} <= of_ray
    assert torch_data.CastError is ray_h5.CastError


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
