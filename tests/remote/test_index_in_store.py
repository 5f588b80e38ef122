"""An index beside the files, in a store: it is read, and never written."""

import shutil

import pytest

from ray_h5.cli import main
from ray_h5.errors import OptionError
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.torch_data import H5Dataset
from tests.remote.kit import ROWS, options_of, values_of, write


@pytest.mark.usefixtures("files")
def test_an_index_beside_the_files_plans_them_without_their_metadata(server, bucket, tmp_path):
    options = {"storage_options": options_of(server)}
    H5Dataset("s3://bkt/*.h5", ["x"], **options, index_dir=tmp_path / "index")
    shutil.copytree(tmp_path / "index", bucket / "index")
    before = sorted(path.name for path in (bucket / "index").iterdir())
    MEMORY.clear()
    server.forget()
    dataset = H5Dataset("s3://bkt/*.h5", ["x"], **options, index_dir="s3://bkt/index/")
    (asked,) = [each for each in server.requests() if not each.is_listing]
    assert asked.path.endswith(".h5index")  # its bytes; a listing has its state
    assert len(server.requests()) == 3  # listings of the files, and of the index
    assert (dataset[[3, ROWS + 5]].x.numpy() == values_of([3, ROWS + 5])).all()
    assert sorted(path.name for path in (bucket / "index").iterdir()) == before


def test_what_the_index_lacks_is_found_in_the_files(server, bucket, files, tmp_path, caplog):
    options = {"storage_options": options_of(server)}
    H5Dataset("s3://bkt/*.h5", ["x"], **options, index_dir=tmp_path / "index")
    shutil.copytree(tmp_path / "index", bucket / "index")
    write(files[1], first=ROWS, version=1)  # the index has its older state
    damaged = next((bucket / "index").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-9])
    MEMORY.clear()
    dataset = H5Dataset("s3://bkt/*.h5", ["x"], **options, index_dir="s3://bkt/index")
    assert (dataset[[3]].x.numpy() == values_of([3])).all()
    assert (dataset[[ROWS + 5]].x.numpy() == values_of([ROWS + 5], 1)).all()
    assert "not used" in caplog.text
    MEMORY.clear()
    assert len(H5Dataset("s3://bkt/*.h5", ["x"], **options, index_dir="s3://bkt/none")) == 2 * ROWS


def test_files_on_a_disk_have_their_index_on_a_disk(files):
    with pytest.raises(OptionError, match="index_dir='s3://bkt/index': expected a folder of the local"):
        H5Dataset(files, index_dir="s3://bkt/index")


def test_an_index_is_not_made_in_a_store(capsys):
    assert main(["index", "s3://bkt/*.h5", "--dir", "s3://bkt/index"]) == 1
    assert "an index in a store is only read" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_index_is_not_looked_for_where_nothing_lists_files(server, files, scheme):
    urls = [f"{server.url}/bkt/{path.name}" for path in files]
    with pytest.raises(OptionError, match=rf"index_dir='{scheme}://host/index': .* does not list its files"):
        H5Dataset(urls, ["x"], index_dir=f"{scheme}://host/index")
