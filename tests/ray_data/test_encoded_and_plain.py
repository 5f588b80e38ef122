"""In Ray, columns that one file encodes and another does not: categories and texts, masks and plain values."""

import pytest

import ray_h5
from tests.planning.rows.test_encoded_and_plain import mixed  # noqa: F401  a fixture


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
