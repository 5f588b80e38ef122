import pytest

from tests.kit.fault_server import FaultServer
from tests.kit.stores import forget_files
from tests.remote.kit import ROWS, write

pytest.importorskip("obstore")


@pytest.fixture
def bucket(tmp_path):
    folder = tmp_path / "bkt"
    folder.mkdir()
    return folder


@pytest.fixture
def files(bucket):
    """Two files of ROWS rows each."""
    return [write(bucket / f"run_{number}.h5", number * ROWS) for number in range(2)]


@pytest.fixture
def server(tmp_path, bucket):  # noqa: ARG001  the folder is served
    with FaultServer(tmp_path) as server:
        yield server


@pytest.fixture
def nothing_stays():
    """What this process knows of files is that of the test alone."""
    forget_files()
    yield
    forget_files()
