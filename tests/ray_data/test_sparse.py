"""Sparse, ragged and encoded columns through Ray: schema, filters, batches, and the same rows as plain PyTorch."""

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch

import ray_h5
from ray_h5 import H5Dataset, TorchCollate, csr
from ray_h5.columns.schema import ColumnSpec
from ray_h5.columns.sparse_rows import Entries, rows_of
from ray_h5.manifest.value_type import ValueType
from ray_h5.ray_data.arrow.blocks import sparse_array, to_batch
from tests.rows.test_ranges_equal_numpy import random_matrix, write_matrix

ROWS, WIDTH = 60, 12


@pytest.fixture
def cells(tmp_path):
    """Two files of cells, written by hand as AnnData does, and ragged events beside them."""
    for seed in range(2):
        matrix = random_matrix(ROWS, WIDTH, seed)
        with h5py.File(tmp_path / f"{seed}.h5ad", "w") as file:
            file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
            write_matrix(file.create_group("X"), matrix, {"chunks": (16,), "compression": "gzip"})
            types = file.create_group("obs/cell_type")
            types.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0"})
            types["codes"] = np.arange(ROWS, dtype="i1") % 3 - 1
            types["categories"] = ["B cell", "T cell"] if seed else ["T cell", "B cell"]
            file["obs/depth"] = np.arange(ROWS)
            file["events/offsets"] = np.arange(ROWS + 1) * 2
            file["events/x"] = np.arange(2.0 * ROWS)
    return sorted(map(str, tmp_path.glob("*.h5ad")))


def dense(paths):
    found = []
    for seed, _ in enumerate(paths):
        found.append(random_matrix(ROWS, WIDTH, seed).toarray())
    return np.vstack(found)


def types():
    named = [[None, *names] for names in (["T cell", "B cell"], ["B cell", "T cell"])]
    return [names[i % 3] for names in named for i in range(ROWS)]


def batches(ds, size=16, **options):
    return list(ds.iter_torch_batches(batch_size=size, collate_fn=TorchCollate(**options)))


@pytest.mark.usefixtures("ray_local")
class TestInRay:
    def test_rows_travel_as_two_lists(self, cells):
        ds = ray_h5.read_h5(cells, columns=["X", "obs/cell_type"])
        kind = ds.schema().base_schema.field("X").type
        assert [field.name for field in kind] == ["indices", "data", "dense_length"]
        assert kind.field("indices").type == pa.large_list(pa.int32())
        rows = ds.take_all()
        assert [row["obs/cell_type"] for row in rows] == types()
        for row, expected in zip(rows, dense(cells), strict=True):
            found = np.zeros(row["X"]["dense_length"])
            found[row["X"]["indices"]] = row["X"]["data"]
            np.testing.assert_array_equal(found, expected)

    def test_batches_are_dense_or_compressed_rows(self, cells):
        expected = dense(cells)
        for is_dense, layout in ((True, torch.strided), (False, torch.sparse_csr)):
            ds = ray_h5.read_h5(cells, columns=[csr("X", dense=is_dense), "obs/depth"], block_rows=25)
            found = batches(ds, 17)
            assert {each["X"].layout for each in found} == {layout}
            assert list(found[0]) == ["X", "obs/depth"]
            np.testing.assert_array_equal(torch.cat([each["X"].to_dense() for each in found]), expected)

    @pytest.mark.slow
    def test_what_ray_does_to_rows_keeps_them(self, cells):
        ds = ray_h5.read_h5(cells, columns=["X", "obs/depth"]).random_shuffle(seed=0).sort("obs/depth").limit(50)
        found = batches(ds.repartition(3), 7)
        depths = torch.cat([each["obs/depth"] for each in found])
        values = torch.cat([each["X"] for each in found])
        expected = dense(cells)
        for depth, row in zip(depths.tolist(), values.numpy(), strict=True):
            assert any(np.array_equal(row, expected[file * ROWS + depth]) for file in range(2))


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
def test_rows_that_a_function_returned_are_read_by_offsets_of_64_bits(lists):
    """A function that gets numpy arrays makes Ray build the lists again, with offsets of 32 bits."""
    rows = [{"indices": [i % WIDTH], "data": [float(i)], "dense_length": WIDTH} for i in range(ROWS)]
    fields = [("indices", lists(pa.int32())), ("data", lists(pa.float32())), ("dense_length", pa.int32())]
    column = pa.chunked_array([pa.array(rows, pa.struct(fields))])
    assert to_batch(column).indptr.dtype == np.int64
    found = TorchCollate()(pa.table({"X": column}))["X"].numpy()
    np.testing.assert_array_equal(found, np.eye(WIDTH)[np.arange(ROWS) % WIDTH] * np.arange(ROWS)[:, None])


def test_arrow_shares_the_memory_of_what_was_read():
    matrix = random_matrix(50, WIDTH)
    spec = ColumnSpec("X", ValueType("sparse", np.dtype(object), element=np.dtype("f4"), ragged_shape=(WIDTH,)))
    array = sparse_array(rows_of(Entries(matrix.indices, matrix.data), matrix.indptr), spec)
    lists = array.field("data")
    assert lists.values.buffers()[1].address == matrix.data.__array_interface__["data"][0]
    part = pa.chunked_array([array[10:20]])
    np.testing.assert_array_equal(to_batch(part).to_dense(), matrix[10:20].toarray())
    taken = pa.chunked_array([array.take(pa.array([3, 1])), array[4:6]])
    np.testing.assert_array_equal(to_batch(taken).to_dense(), matrix[[3, 1, 4, 5]].toarray())
    assert to_batch(pa.chunked_array([array[:0]])).to_dense().shape[0] == 0


@pytest.mark.parametrize("dtype", [np.complex64, np.bool_, np.int16, np.float16])
def test_types_of_values(tmp_path, dtype):
    matrix = random_matrix(20, WIDTH)
    values = matrix.data.astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_matrix(file.create_group("X"), matrix)
        del file["X/data"]
        file["X/data"] = values
    dataset = H5Dataset(tmp_path, [csr("X")])
    rows = dataset.read(np.arange(20))["X"]
    found = to_batch(pa.chunked_array([sparse_array(rows, dataset.index.columns["X"])]))
    assert found.data.dtype == dtype
    np.testing.assert_array_equal(found.data, values)
