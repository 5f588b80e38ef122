"""The lists of what stays on the disk name what exists."""

from pathlib import Path

import pytest

from tests.remote.on_disk import LOCAL, ON_DISK, QUICK, SLOW

TESTS = Path(__file__).parents[1]
MODULES = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("test_*.py")}


@pytest.mark.parametrize("place", [*LOCAL, *QUICK, *SLOW])
def test_places_exist(place):
    assert any(module.startswith(place) for module in MODULES)


@pytest.mark.parametrize("name", ON_DISK)
def test_tests_exist(name):
    module, _, test = name.partition("::")
    assert f"def {test.partition('[')[0]}(" in MODULES[module]
    assert not module.startswith(tuple(LOCAL))
