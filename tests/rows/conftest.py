import pytest

from tests.kit.stores import served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A store with the bucket `bkt`."""
    pytest.importorskip("obstore")
    folder = tmp_path_factory.mktemp("server")
    (folder / "bkt").mkdir()
    with served(folder) as server:
        yield server
