"""examples/jets.py and examples/spikes.py run, and learn from what they read; each is short."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "run", "least"), [("jets", "train", 0.75), ("spikes", "decode", 0.8)])
def test_it_learns(name, run, least, tmp_path):
    torch.manual_seed(0)
    module = load(name)
    module.make_file(tmp_path / "a.h5")
    assert getattr(module, run)(str(tmp_path / "a.h5")) > least
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
