"""In Ray, columns that one file encodes and another does not: categories and texts, masks and plain values."""

import pytest

import ray_h5
from ray_h5.ray_data.training.collate import TorchCollate
from tests.rows.test_encoded_and_plain import mixed  # noqa: F401  a fixture


@pytest.mark.usefixtures("ray_local")
def test_values_in_ray(mixed, tmp_path):  # noqa: F811
    folder, texts = mixed
    columns = ["obs/kind", "obs/n", "obs/batch"]
    ds = ray_h5.read_h5(folder, columns=columns, index_dir=tmp_path / "index")
    assert [str(each) for each in ds.schema().types] == ["string", "int64", "int64"]
    rows = ds.take_all()
    assert [row["obs/kind"] for row in rows] == texts
    assert [row["obs/n"] for row in rows][:8] == [1, None, 3, 4, 5, 6, 0, 1]
    assert ds.filter(expr=ray_h5.where(**{"obs/batch": 30})).count() == 6


@pytest.mark.usefixtures("ray_local")
def test_values_that_may_be_missing_have_one_type_in_each_batch(mixed):  # noqa: F811
    ds = ray_h5.read_h5(mixed[0], columns=["obs/n"], block_rows=4)
    batches = [each["obs/n"] for each in ds.iter_torch_batches(batch_size=5, collate_fn=TorchCollate())]
    assert [type(each) for each in batches] == [list] * 4
    assert [value for each in batches for value in each] == [1, None, 3, 4, 5, 6, *range(6), *range(6)]
