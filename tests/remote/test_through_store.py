"""The lists of what stays on the disk name what exists."""

from pathlib import Path

from tests.remote.on_disk import LOCAL, ON_DISK, QUICK, SLOW

TESTS = Path(__file__).parents[1]
MODULES = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("test_*.py")}


def test_places_exist():
    missing = [place for place in (*LOCAL, *QUICK, *SLOW) if not any(module.startswith(place) for module in MODULES)]
    assert not missing


def test_tests_exist():
    for name in ON_DISK:
        module, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in MODULES[module], name
        assert not module.startswith(tuple(LOCAL)), name
