"""Messages reach a program that has not set up logging, and leave alone one that has."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

START = """
import logging, sys
import ray_h5
assert not logging.getLogger("ray_h5").handlers, "an import changes nothing"
from ray_h5 import H5Dataset
log = logging.getLogger("ray_h5.planning.something")
"""


@pytest.fixture
def run(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((4, 3), "f4")
        file["odd"] = np.zeros(4, np.longdouble)  # Arrow and torch lack them: left out

    def program(code):
        words = [sys.executable, "-c", START + code]
        return subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stderr.splitlines()

    return program


def test_messages_are_shown_without_any_logging_set_up(run):
    lines = run("H5Dataset('a.h5'); log.info('blocks of %d', 3); log.debug('no')")
    assert lines[0].startswith("ray_h5: warning: left out 1 of 2 columns: odd")
    assert lines[1:] == ["ray_h5: blocks of 3"]


def test_a_program_that_sets_up_logging_first_is_left_alone(run):
    lines = run("logging.basicConfig(format='mine %(message)s'); H5Dataset('a.h5'); log.info('no'); log.error('yes')")
    assert [line.split()[0] for line in lines] == ["mine", "mine"]
    assert lines[1] == "mine yes"


def test_a_program_that_sets_up_logging_later_is_left_alone(run):
    code = """
H5Dataset('a.h5')
logging.basicConfig(format='mine %(message)s', level=logging.WARNING)
H5Dataset('a.h5', ['x'])
log.info('no'); log.warning('yes')
assert logging.getLogger('ray_h5').level == logging.NOTSET
"""
    assert run(code)[1:] == ["mine yes"]


def test_levels_and_handlers_of_this_package_that_a_program_sets_stay(run):
    code = "logging.getLogger('ray_h5').setLevel(logging.ERROR); H5Dataset('a.h5'); log.warning('no'); log.error('yes')"
    assert run(code) == ["yes"]
    code = """
mine = logging.StreamHandler(sys.stderr)
mine.setFormatter(logging.Formatter('mine %(message)s'))
logging.getLogger('ray_h5').addHandler(mine)
H5Dataset('a.h5', ['x']); log.warning('yes')
"""
    assert run(code) == ["mine yes"]


def test_messages_of_a_test_are_captured(tmp_path, caplog):
    from ray_h5 import H5Dataset

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((4, 3), "f4")
        file["odd"] = np.zeros(4, np.longdouble)
    H5Dataset(tmp_path / "a.h5")
    assert "left out 1 of 2 columns" in caplog.text
