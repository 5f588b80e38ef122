"""examples/bags.py and examples/patches.py learn from files that they make, and are short."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
_MOST_LINES = 60


def program(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_attention_finds_slides_with_a_few_odd_features(tmp_path):
    bags = program("bags")
    assert bags.train(str(tmp_path), bags.make_slides(str(tmp_path))) >= 0.75


def test_a_convolution_finds_balls(tmp_path):
    patches = program("patches")
    assert patches.train(patches.make_volumes(str(tmp_path)), epochs=2) > 0.5


@pytest.mark.parametrize("name", ["bags", "patches"])
def test_examples_are_short(name):
    assert sum(bool(line.strip()) for line in (EXAMPLES / f"{name}.py").read_text().splitlines()) <= _MOST_LINES
