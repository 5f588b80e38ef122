"""Messages reach a program that has not set up logging, and leave alone one that has."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

PROGRAMS = {
    "nothing is set up": "H5Dataset('a.h5'); log.info('blocks of %d', 3); log.debug('no')",
    "set up first": """
logging.basicConfig(format='mine %(message)s'); H5Dataset('a.h5'); log.info('no'); log.error('yes')
""",
    "set up later": """
H5Dataset('a.h5')
logging.basicConfig(format='mine %(message)s', level=logging.WARNING)
H5Dataset('a.h5', ['x'])
log.info('no'); log.warning('yes')
assert logging.getLogger('ray_h5').level == logging.NOTSET
""",
    "level": """
logging.getLogger('ray_h5').setLevel(logging.ERROR); H5Dataset('a.h5'); log.warning('no'); log.error('yes')
""",
    "handler": """
mine = logging.StreamHandler(sys.stderr)
mine.setFormatter(logging.Formatter('mine %(message)s'))
logging.getLogger('ray_h5').addHandler(mine)
H5Dataset('a.h5', ['x']); log.warning('yes')
""",
}

FORKS = """
import json, logging, os, sys
import ray_h5
assert not logging.getLogger("ray_h5").handlers, "an import changes nothing"
from ray_h5 import H5Dataset
log = logging.getLogger("ray_h5.order.something")
found = {}
for name, code in json.loads(sys.argv[1]).items():
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(send, 2)
        exec(code)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        found[name] = pipe.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0, found
print(json.dumps(found))
"""


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("log")]  # they share programs that print


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each program writes to its stderr, line by line. Each is a fork of one that has imported the package."""
    folder = tmp_path_factory.mktemp("log")
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.zeros((4, 3), "f4")
        file["odd"] = np.zeros(4, np.longdouble)  # Arrow and torch lack them: left out
    command = [sys.executable, "-c", FORKS, json.dumps(PROGRAMS)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout)


def test_messages_are_shown_without_any_logging_set_up(said):
    lines = said["nothing is set up"]
    assert lines[0].startswith("ray_h5: warning: left out 1 of 2 columns: odd")
    assert lines[1:] == ["ray_h5: blocks of 3"]


def test_a_program_that_sets_up_logging_first_is_left_alone(said):
    lines = said["set up first"]
    assert [line.split()[0] for line in lines] == ["mine", "mine"]
    assert lines[1] == "mine yes"


def test_a_program_that_sets_up_logging_later_is_left_alone(said):
    assert said["set up later"][1:] == ["mine yes"]


def test_levels_and_handlers_of_this_package_that_a_program_sets_stay(said):
    assert said["level"] == ["yes"]
    assert said["handler"] == ["mine yes"]
