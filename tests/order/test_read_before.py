"""The order depends on files and options alone: not on what a process read before, nor on an index on disk."""

import h5py
import numpy as np
import pytest

from ray_h5 import Grid, Groups, H5Dataset, Patches, Shuffle, Sidecar, Windows, ragged
from ray_h5.index.file_options import FileOptions
from ray_h5.index.stored.facts_store import MEMORY
from ray_h5.plan.read_plan import make_plan
from tests.rows.test_ranges_equal_numpy import random_matrix, write_matrix


def write_sparse(file, seed):
    """Two matrices, numbers, and text; the rows and chunks of each file have other sizes."""
    dense = np.arange(300)[:, None] < 100 * (seed + 1)
    write_matrix(file.create_group("X"), random_matrix(300, 20, seed), {"chunks": (64 << seed,)})
    write_matrix(file.create_group("Y"), random_matrix(300, 400, seed).multiply(dense).tocsr(), {"chunks": (300,)})
    file.create_dataset("label", data=np.arange(300) % 3, chunks=(50 + seed,))
    file.create_dataset("text", data=[b"a"] * 300, dtype=h5py.string_dtype(), chunks=(7,))


def write_groups(file, seed):
    for number in range(40):
        group = file.create_group(f"g{number}")
        group.create_dataset("x", data=np.zeros((5 + number % 3 + seed * 40, 3)), chunks=(4, 3))
        group["y"] = np.float32(number)
        group["wide"] = np.zeros((6, 200 << seed))


def write_steps(file, seed):
    for number in range(5):
        group = file.create_group(f"g{number}")
        group.create_dataset("x", data=np.zeros((30 + seed, 3)), chunks=(4 + seed, 3))
        group.create_dataset("wide", data=np.zeros((30 + seed, 300)), chunks=(1, 300))
        group["name"] = number


def write_times(file, seed):
    """A signal, a mask and numbers with times of their own; `time` is a dataset, and a column of such windows."""
    file["x"], file["time"] = np.arange(40.0 + seed), np.arange(40.0 + seed)
    file["y/data"], file["y/time"] = np.zeros((10, 3)), np.arange(10) * (3.0 + seed)


def write_grid(file, seed):
    file.create_dataset("u", data=np.zeros((4, 10 + seed, 6)), chunks=(1, 5, 6))
    file.create_dataset("wide", data=np.zeros((4, 10 + seed, 600)), chunks=(1, 2, 600))
    file["t"] = np.arange(10.0 + seed)


def write_volume(file, seed):
    file.create_dataset("raw", data=np.zeros((2, 20 + seed, 16)), chunks=(1, 8, 8))
    file["label"], file["spacing"] = np.arange((20 + seed) * 16).reshape(20 + seed, 16) % 3, 0.5


def write_rows(file, seed):
    file.create_dataset("x", data=np.zeros((60 + seed, 30)), chunks=(8 << seed, 30))
    file.create_dataset("y", data=np.arange(60 + seed), chunks=(60,))


def beside(folder):
    """A table with values of all rows, and one with values of some."""
    for name, stop in (("all", 62), ("some", 40)):
        lines = ["y,w,text", *(f"{number},{number * 2},{'ab' * (number % 5)}" for number in range(stop))]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return {"sidecar": [Sidecar(folder / "all.csv", on="y"),
                        Sidecar(folder / "some.csv", on="y", prefix="some/", missing="drop")]}  # fmt: skip


AT = {"at": {"x": "time", "y/data": "y/time"}}
GROUPS = {"rows": Groups("g*")}
KINDS = {
    "axis": (write_sparse, {}, [["label"], ["X"], ["Y"], ["label", "text"], ["Y", "label"], ["text"]]),
    "groups": (write_groups, GROUPS, [["x"], ["y"], ["wide"], ["x", "y"], None]),
    "windows": (
        write_steps,
        GROUPS | {"windows": Windows({"x": [0, 1]}, per_step=["wide"], constants=["name"])},
        [["x"], ["wide"], ["x", "name"], None],
    ),
    "times": (
        write_times,
        {"windows": Windows({"x": [-1.0, 0.0], "y/data": slice(-6.0, 0.0)}, pad="drop", **AT)},
        [["x"], ["y/data"], ["time", "x"], ["x", "time"], None],
    ),
    "grid": (write_grid, {"rows": Grid(2)}, [["u"], ["wide"], ["u", "t"], ["t", "wide"], None]),
    "patches": (
        write_volume,
        {"rows": Patches({"raw": (8, 8), "label": (8, 8)}, where_any=("label", [1]))},
        [["raw"], ["label"], ["corner"], ["label", "spacing"], None],
    ),
    "drawn patches": (
        write_volume,
        {"rows": Patches({"raw": (8, 8), "label": (8, 8)}, per_file=9, where_any=("label", [1]))},
        [["raw"], ["corner", "label"], None],
    ),
    "tables": (write_rows, beside, [["x"], ["y"], ["w"], ["some/text", "x"], ["y", "w"], None]),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("files"), {}
    for kind, (write, _, _) in KINDS.items():
        found[kind] = [str(folder / f"{kind}{seed}.h5") for seed in range(3)]
        for seed, path in enumerate(found[kind]):
            with h5py.File(path, "w") as file:
                write(file, seed)
    return found


def order_of(paths, columns, index_dir=None, **options):
    """Return all that decides which row has which position, and how the rows are cut into blocks."""
    index = FileOptions.of(paths, index_dir=index_dir, **options).index(columns)
    specs = [index.delivered[name] for name in index.names]
    plans = [make_plan(index, specs, None, Shuffle(unit, 7)) for unit in ("auto", "chunks")]
    steps = plans[0].steps.starts.tolist() if "windows" in options else []
    return [(plan.order.seed, plan.fingerprint, plan.block_rows, plan.row_bytes, steps) for plan in plans]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_before_changes_no_order(files, tmp_path, kind):
    _, options, columns = KINDS[kind]
    options = options(tmp_path) if callable(options) else options
    first, _, third = files[kind]
    asked = [(paths, names) for paths in ([third, first], files[kind]) for names in columns]
    expected = []
    for paths, names in asked:
        MEMORY.clear()
        expected.append(order_of(paths, names, **options))
    folder = str(tmp_path / "index")
    for order, index_dir, forgets in [(1, None, False), (-1, None, False), (1, folder, False), (-1, folder, True)]:
        MEMORY.clear()
        found = []
        for paths, names in asked[::order]:
            found.append(order_of(paths, names, index_dir, **options))
            if forgets:
                MEMORY.clear()
        assert found[::order] == expected


def test_the_row_size_is_that_of_the_files_that_are_read(tmp_path):
    for number, count in enumerate((1, 1000)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"], file["offsets"] = np.zeros(10 * count), np.arange(0, 11) * count
    paths, columns = [str(tmp_path / "0.h5"), str(tmp_path / "1.h5")], [ragged("x", offsets="offsets")]
    MEMORY.clear()
    sizes = [H5Dataset(each, columns).row_bytes for each in (paths, paths[::-1], paths[0], paths[1])]
    assert sizes == [8000, 8000, 8, 8000]
