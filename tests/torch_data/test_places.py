"""Columns that say where samples come from: the file, the row, and the step of a window."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from ray_h5.errors import OptionError, UnknownColumnError
from ray_h5.torch_data import CombinedHDF5Dataset, Groups, H5Dataset, Windows, loader, where
from tests.kit.files import save

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number, rows in enumerate((30, 20)):
        save(folder / f"{number}.h5", {"x": np.arange(rows) + 100 * number, "label": np.arange(rows) % 2})
    return [str(folder / "0.h5"), str(folder / "1.h5")]


def check(batch, paths):
    x = batch["x"].numpy().astype(int)
    number = x // 100
    assert batch["path"] == [paths[each] for each in number]
    assert batch["row_id"].dtype == torch.int64
    assert batch["row_id"].tolist() == (x % 100 + 30 * number).tolist()


@pytest.mark.parametrize("how", [{"threads": 0}, {"threads": 2}, {"workers": 1}])
@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_say_their_file_and_row(paths, how, shuffle):
    options = {"columns": ["x"], "include_paths": True, "include_row_ids": True, "predicate": where(label=1)}
    batches = list(loader(paths, 7, shuffle=shuffle, **options, **how))
    for batch in batches:
        check(batch, paths)
    assert sorted(torch.cat([batch["row_id"] for batch in batches]).tolist()) == [*range(1, 50, 2)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_and_subsets_have_them_too(paths, workers):
    made = H5Dataset(paths, ["x"], include_paths=True, include_row_ids=True)
    assert made.columns == ["x", "path", "row_id"]
    assert (made[31].x, made[31].path, made[31].row_id) == (101, paths[1], 31)
    for batch in DataLoader(made, 7, num_workers=workers):
        check(batch, paths)
    for batch in loader(Subset(made, [3, 40, 1]), 2):
        check(batch, paths)
    combined = CombinedHDF5Dataset(paths, ["x"], include_paths=True, include_row_ids=True)
    check(next(iter(loader(combined, 40))), paths)


def test_row_ids_of_samples_are_no_part_of_the_indices(paths):
    dataset = H5Dataset(paths, ["x"], include_row_ids=True)
    indices = np.arange(4)[::-1]
    batch = dataset[indices]
    assert batch.row_id.tolist() == [3, 2, 1, 0] == dataset.row_ids(indices).tolist()
    indices[:] = 0
    assert batch.row_id.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(("name", "option"), [("row_id", "include_row_ids"), ("path", "include_paths")])
def test_columns_name_an_added_one(paths, name, option):
    with pytest.raises(UnknownColumnError, match=rf"no '{name}' .*{option}=True adds this column: .*out of columns="):
        loader(paths, 7, columns=[name, "x"], **{option: True})


def test_a_predicate_names_an_added_column(paths):
    options = {"include_paths": True, "include_row_ids": True}
    chosen = where(row_id=[3, 31, 40]) | where(path=paths[1], label=1)
    for kind in (H5Dataset, CombinedHDF5Dataset):
        made = kind(paths, ["x"], predicate=chosen, **options)
        batch = next(iter(loader(made, 40, shuffle=False)))
        assert batch["row_id"].tolist() == [3, 31, 33, 35, 37, 39, 40, *range(41, 50, 2)]
        check(batch, paths)
    for batch in loader(paths, 2, columns=["x"], predicate=where(row_id=[31]), **options):
        assert batch["x"].tolist() == [101]
    with pytest.raises(UnknownColumnError, match=r"no 'row_id' .*include_row_ids=True adds this column: pass it"):
        H5Dataset(paths, ["x"], where(row_id=[31]))


def test_windows_say_their_step(paths):
    windows = Windows({"x": range(-1, 3)}, stride=4, pad="drop")
    for batch in loader(paths, 5, columns=["x"], windows=windows, include_steps=True, include_paths=True):
        assert batch["step"].tolist() == (batch["x"][:, 1] % 100).tolist()
        assert batch["path"] == [paths[each] for each in (batch["x"][:, 1] // 100).tolist()]


def test_steps_of_groups_count_through_the_file(tmp_path):
    save(tmp_path / "a.h5", {f"demo_{number}/x": np.arange(steps) + 5 * number for number, steps in enumerate((5, 3))})
    options = {"rows": Groups("demo_*"), "windows": Windows({"x": [0]}), "include_steps": True}
    (batch,) = loader(tmp_path / "a.h5", 8, columns=["x"], shuffle=False, **options)
    assert batch["step"].tolist() == batch["x"][:, 0].tolist() == [*range(8)]


def test_bad_input(paths, tmp_path):
    with pytest.raises(OptionError, match=r"include_steps=True: .*expected windows"):
        H5Dataset(paths, include_steps=True)
    save(tmp_path / "path.h5", {"path": np.arange(3)})
    with pytest.raises(OptionError, match="a column 'path' of their own"):
        H5Dataset(tmp_path / "path.h5", include_paths=True)
