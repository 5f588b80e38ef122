"""`ray-h5 inspect` of files in a store: what opening them and an epoch cost."""

import json
import re

import h5py
import numpy as np
import pytest

from ray_h5.cli import main
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.store_cost import request_cost
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.row_source import read_rows
from tests.remote.kit import options_of, write

URL = "s3://bkt/*.h5"


def inspected(server, capsys, *words):
    options = options_of(server)
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    assert main(["inspect", *words, *given]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_what_an_epoch_costs(server, capsys):
    text = inspected(server, capsys, URL)
    section = text.partition("In the store:\n")[2]
    assert "opened with 2 requests" in section
    assert "an epoch in order: about " in section
    assert "an epoch shuffled by rows: about " in section
    assert "h5repack" not in section
    found = json.loads(inspected(server, capsys, URL, "--json"))["store"]
    assert found["opening"]["requests"] == 0  # this process knows it by now
    assert [each["order"] for each in found["epochs"]] == ["in order", "shuffled by rows"]
    assert found["epochs"][0]["waste"] == pytest.approx(1, abs=0.1)


@pytest.mark.usefixtures("files")
def test_values_of_storage_options_are_not_on_the_page(server, capsys, tmp_path):
    inspected(server, capsys, URL, "--html", str(tmp_path / "a.html"))
    page = (tmp_path / "a.html").read_text()
    options = options_of(server)
    assert all(name in page for name in options)
    assert options["endpoint"] not in page


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("shuffle", [None, Shuffle("rows")])
def test_the_cost_is_that_of_the_read(server, shuffle):
    index = FileOptions.of(URL, storage_options=options_of(server)).index()
    plan = make_plan(index, list(index.columns.values()), shuffle=shuffle)
    rows = plan.at(np.arange(100), 0)
    server.forget()
    cost = request_cost(plan, rows)
    assert server.requests() == []
    read_rows(plan, rows)
    asked = server.requests(method="GET")
    assert (cost.requests, cost.bytes_read) == (len(asked), sum(each.nbytes for each in asked))


@pytest.mark.slow
def test_metadata_in_many_places(server, bucket, capsys):
    with h5py.File(bucket / "a.h5", "w", rdcc_nbytes=0) as file:
        columns = [file.create_dataset(name, (6000, 500), "f8", chunks=(1, 500)) for name in "ab"]
        for row in range(6000):
            for column in columns:
                column[row] = row
    text = inspected(server, capsys, "s3://bkt/a.h5")
    page = int(re.search(r"`h5repack -S PAGE -G (\d+) in.h5 out.h5`", text)[1])
    with h5py.File(bucket / "b.h5", "w", fs_strategy="page", fs_page_size=page) as file:
        for name in "ab":
            file.create_dataset(name, data=np.zeros((6000, 500)), chunks=(1, 500))
    assert "opened with 2 requests" in inspected(server, capsys, "s3://bkt/b.h5")


def test_files_on_a_disk_have_no_such_section(tmp_path, capsys):
    assert main(["inspect", str(write(tmp_path / "a.h5"))]) == 0
    assert "In the store" not in capsys.readouterr().out
