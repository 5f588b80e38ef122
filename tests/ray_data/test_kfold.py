import os

import pytest

import ray_h5
import ray_h5.torch_data
from ray_h5.errors import NotFoundError, PredicateError
from ray_h5.torch_data import H5Dataset

from .kit import ids_read, write_chunked

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.mark.parametrize("stratify", [None, "label"])
def test_folds_part_the_rows_by_group(tmp_path, stratify):
    paths = write_chunked(tmp_path)
    ds = ray_h5.read_h5(paths, columns=["x"], include_row_ids=True)
    folds = ray_h5.kfold(paths, 3, "guid", stratify, seed=4, index_dir=tmp_path / "index")
    assert len(folds) == 3
    tested = []
    for train, test in folds:
        ids = ids_read(ds.filter(expr=test))
        assert sorted([*ids, *ids_read(ds.filter(expr=train))]) == list(range(150))
        # All ten rows of a group, or none of them.
        assert all(sum(i // 10 == group for i in ids) in (0, 10) for group in range(15))
        tested += ids
    assert len(ids) == ds.filter(expr=test).count()
    assert sorted(tested) == list(range(150))
    again = ray_h5.kfold(paths, 3, "guid", stratify, seed=4)
    assert [str(fold) for fold in again] == [str(fold) for fold in folds]


def test_folds_are_of_the_files_that_are_asked_for(tmp_path):
    paths = write_chunked(tmp_path, (20, 20, 20))
    os.rename(paths[2], tmp_path / "f2.nc")
    options = {"file_extensions": ["h5", "nc"], "ignore_missing_paths": True}
    given = [tmp_path, tmp_path / "gone.h5"]
    with pytest.raises(NotFoundError, match="pass ignore_missing_paths=True"):
        ray_h5.kfold(given, 2, "guid", None)
    found = ray_h5.kfold(given, 2, "guid", None, **options)
    ds = ray_h5.read_h5(given, include_row_ids=True, **options)
    assert sorted(row for _, test in found for row in ids_read(ds.filter(expr=test))) == list(range(60))
    plain = ray_h5.torch_data.kfold(given, 2, "guid", None, **options)
    assert [str(test.to_pyarrow()) for _, test in found] == [str(test) for _, test in plain]


@pytest.mark.parametrize("stratify", [None, "label"])
def test_without_a_group_rows_are_folded_one_by_one(tmp_path, stratify):
    paths = write_chunked(tmp_path)
    ds = ray_h5.read_h5(paths, columns=["x"], include_row_ids=True, shuffle=True)
    folds = ray_h5.kfold(paths, 4, stratify=stratify, seed=2)
    tested = []
    for (train, test), (_, plain) in zip(
        folds, ray_h5.torch_data.kfold(paths, 4, stratify=stratify, seed=2), strict=True
    ):
        ids = sorted(ids_read(ds.filter(expr=test)))
        assert (
            ids == H5Dataset(paths, ["x"], plain).selection.tolist() == H5Dataset(paths, ["x"], test).selection.tolist()
        )
        assert sorted(ids + ids_read(ds.filter(expr=train))) == list(range(150))
        assert len(ids) in (37, 38)
        if stratify is not None:
            assert all(abs(sum(i % 3 == label for i in ids) - 12.5) <= 1 for label in range(3))
        tested += ids
    assert sorted(tested) == list(range(150))
    assert tested != list(range(150))
    other = ray_h5.kfold(paths, 4, stratify=stratify, seed=3)
    assert sorted(ids_read(ds.filter(expr=other[0][1]))) != sorted(ids_read(ds.filter(expr=folds[0][1])))
    label = ray_h5.where(label=1)
    both = [ids_read(ds.filter(expr=each & label)) for each in (~folds[0][0], folds[0][1])]
    assert sorted(both[0]) == sorted(both[1])


def test_folds_of_rows_belong_to_their_files(tmp_path):
    paths = write_chunked(tmp_path)
    train, _ = ray_h5.kfold(paths, 4)[0]
    with pytest.raises(PredicateError, match="these folds are of 150 rows in 4 files, found 80 rows in 3 files"):
        ray_h5.read_h5(paths[:3]).filter(expr=train).count()
    ds = ray_h5.read_h5(paths).map_batches(lambda batch: batch)
    with pytest.raises(PredicateError, match=r"kfold\(\): .*Put the filter directly after read_h5"):
        ds.filter(expr=train).count()
