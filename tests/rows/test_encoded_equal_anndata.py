"""Encoded groups: equal to what anndata reads from the same file. Older forms, 10x and loom are made by hand."""

import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from ray_h5 import errors
from ray_h5.cli import main
from ray_h5.columns.derived_columns import Ragged
from ray_h5.torch_data import H5Dataset, RayH5Error, RowReader, csr, ragged, where
from tests.rows.test_ranges_equal_numpy import random_matrix, write_matrix

anndata = pytest.importorskip("anndata", reason="anndata is the oracle of these tests")
pd = pytest.importorskip("pandas")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::anndata.OldFormatWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

N, GENES = 60, 15


def cells(seed=0, kind="csr"):
    rng = np.random.default_rng(seed)
    matrix = random_matrix(N, GENES, seed)
    types = pd.Categorical.from_codes(rng.integers(-1, 3, N), ["B cell", "T cell", "é"])
    obs = pd.DataFrame(
        {
            "cell_type": types,
            "batch": pd.Categorical(rng.integers(0, 3, N) * 10),
            "counts": rng.integers(0, 99, N),
            "score": rng.normal(size=N),
            "good": rng.random(N) < 0.5,
            "maybe": pd.array([None if i % 7 == 0 else i for i in range(N)], dtype="Int64"),
            "perhaps": pd.array([None if i % 5 == 0 else i % 2 == 0 for i in range(N)], dtype="boolean"),
            "note": [f"note {i}" for i in range(N)],
        },
        index=[f"cell{i}" for i in range(N)],
    )
    var = pd.DataFrame(index=[f"gene{i}" for i in range(GENES)])
    made = anndata.AnnData({"csr": matrix, "csc": matrix.tocsc(), "dense": matrix.toarray()}[kind], obs=obs, var=var)
    made.layers["counts"] = matrix * 2
    made.obsm["X_pca"] = rng.normal(size=(N, 4)).astype(np.float32)
    made.obsp["near"] = sp.random(N, N, 0.05, format="csr", rng=rng)
    made.uns["list"] = [1, 2, 3]
    made.varm["loadings"] = rng.normal(size=(GENES, 2))
    made.raw = made
    return made


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    made = cells()
    made.obs["note"] = made.obs["note"].astype(object)
    path = tmp_path_factory.mktemp("written") / "a.h5ad"
    made.write_h5ad(path, compression="gzip")
    return path, anndata.read_h5ad(path)


@pytest.fixture
def stored(written, tmp_path):
    return shutil.copy(written[0], tmp_path), written[1]


def test_every_column_equals_anndata(stored):
    path, oracle = stored
    whole = H5Dataset(path)[:]
    assert set(whole) == {
        "X", "layers/counts", "obs/_index", *(f"obs/{name}" for name in oracle.obs), "obsm/X_pca", "obsp/near", "raw/X",
    }  # fmt: skip
    np.testing.assert_array_equal(whole["X"], oracle.X.toarray())
    np.testing.assert_array_equal(whole["layers/counts"], oracle.layers["counts"].toarray())
    np.testing.assert_array_equal(whole["raw/X"], oracle.raw.X.toarray())
    np.testing.assert_array_equal(whole["obsp/near"], oracle.obsp["near"].toarray())
    np.testing.assert_array_equal(whole["obsm/X_pca"], oracle.obsm["X_pca"])
    assert whole["obs/_index"] == list(oracle.obs.index)
    for name in ("cell_type", "batch", "maybe", "perhaps"):
        values = oracle.obs[name].astype(object)
        assert whole[f"obs/{name}"] == values.where(values.notna(), None).tolist()
    for name in ("counts", "score", "good"):
        np.testing.assert_array_equal(whole[f"obs/{name}"], oracle.obs[name])
    assert whole["obs/note"] == oracle.obs["note"].tolist()


def test_predicates_name_values(stored):
    path, oracle = stored
    is_t = (oracle.obs["cell_type"] == "T cell").to_numpy()
    found = H5Dataset(path, ["X"], where(**{"obs/cell_type": "T cell"}))
    np.testing.assert_array_equal(found.selection, np.flatnonzero(is_t))
    np.testing.assert_array_equal(found[:]["X"], oracle.X[is_t].toarray())
    found = H5Dataset(path, ["X"], where(**{"obs/cell_type": ["é", "T cell"], "obs/batch": [10, 20]}))
    chosen = oracle.obs["cell_type"].isin(["é", "T cell"]) & oracle.obs["batch"].isin([10, 20])
    np.testing.assert_array_equal(found.selection, np.flatnonzero(chosen))
    assert H5Dataset(path, ["X"], where(**{"obs/maybe": 30})).selection.tolist() == [30]
    assert len(H5Dataset(path, ["X"], where(**{"obs/perhaps": True}))) == int(oracle.obs["perhaps"].sum())


def test_the_index_on_disk_has_values_and_bounds(stored, tmp_path):
    path, _oracle = stored
    wanted = where(**{"obs/cell_type": "T cell"})
    first = H5Dataset(path, ["X", "obs/maybe"], wanted, index_dir=tmp_path / "index")
    from ray_h5.index.stored.facts_store import MEMORY

    MEMORY.clear()
    again = H5Dataset(path, ["X", "obs/maybe"], wanted, index_dir=tmp_path / "index")
    assert again.index == first.index
    np.testing.assert_array_equal(again[:]["X"], first[:]["X"])
    assert again.index.tables[0].bounds.keys() == {Ragged("", offsets="X/indptr")}


def test_codes(stored):
    path, oracle = stored
    whole = H5Dataset(path, ["obs/cell_type", "obs/batch"], dtypes={"obs/cell_type": "int32", "obs/batch": "float32"})[
        :
    ]
    np.testing.assert_array_equal(whole["obs/cell_type"], oracle.obs["cell_type"].cat.codes)
    np.testing.assert_array_equal(whole["obs/batch"], oracle.obs["batch"].astype("float32"))
    assert H5Dataset(path, ["obs/cell_type"], dtypes={"obs/cell_type": bytes})[:]["obs/cell_type"][0] in {
        b"B cell", b"T cell", "é".encode(), None,
    }  # fmt: skip
    with pytest.raises(errors.OptionError, match="cannot be delivered as float32"):
        H5Dataset(path, dtypes={"obs/cell_type": "float32"})
    with pytest.raises(errors.CastError, match="-1"):
        H5Dataset(path, ["obs/cell_type"], dtypes={"obs/cell_type": "uint8"})[:]


def test_missing_values_as_numbers(stored):
    path, oracle = stored
    found = H5Dataset(path, ["obs/maybe"], dtypes={"obs/maybe": "float64"})[:]["obs/maybe"]
    np.testing.assert_array_equal(found, oracle.obs["maybe"].to_numpy(float, na_value=np.nan))
    with pytest.raises(errors.CastError, match="row 0: the value is missing"):
        H5Dataset(path, ["obs/maybe"], dtypes={"obs/maybe": "int64"})[:]


def test_codes_of_files_that_disagree(tmp_path):
    paths = [tmp_path / "a.h5ad", tmp_path / "b.h5ad"]
    for path, categories in zip(paths, (["B", "T"], ["T", "B"]), strict=True):
        made = cells()
        made.obs["cell_type"] = pd.Categorical.from_codes([0] * N, categories)
        made.write_h5ad(path)
    assert set(H5Dataset(paths, ["obs/cell_type"])[:]["obs/cell_type"]) == {"B", "T"}
    with pytest.raises(errors.SchemaMismatchError, match="disagree on what its integers mean"):
        H5Dataset(paths, ["obs/cell_type"], dtypes={"obs/cell_type": "int8"})


def test_genes_by_name(stored):
    path, oracle = stored
    names = ["gene7", "gene0", "gene14"]
    found = H5Dataset(path, [csr("X", take=names, names="var/_index")])[:]["X"]
    np.testing.assert_array_equal(found, oracle[:, names].X.toarray())
    with pytest.raises(errors.UnknownColumnError, match=r"such as 'gene99'\. There is: gene0"):
        H5Dataset(path, [csr("X", take=["gene1", "gene99"], names="var/_index")])


def test_genes_in_another_order_in_another_file(tmp_path):
    one, other = cells(0), cells(1)[:, ::-1].copy()
    paths = [tmp_path / "a.h5ad", tmp_path / "b.h5ad"]
    one.write_h5ad(paths[0])
    other.write_h5ad(paths[1])
    names = ["gene3", "gene2"]
    found = H5Dataset(paths, [csr("X", take=names, names="var/_index")])[:]["X"]
    np.testing.assert_array_equal(found, np.vstack([one[:, names].X.toarray(), other[:, names].X.toarray()]))


def test_columns_compressed_along_the_other_axis_are_refused(tmp_path, caplog):
    cells(kind="csc").write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(errors.UnsupportedColumnError, match=r"csc_matrix.*adata\.X\.tocsr\(\)"):
        H5Dataset(tmp_path, ["X"])
    assert "X" not in H5Dataset(tmp_path).columns
    assert "X (" in caplog.text


def test_awkward_arrays_of_one_level(tmp_path):
    ak = pytest.importorskip("awkward")
    made = cells()
    lists = ak.Array([[float(k) for k in range(i % 4)] for i in range(N)])
    made.obsm["lists"] = lists
    made.write_h5ad(tmp_path / "a.h5ad")
    found = H5Dataset(tmp_path, ["obsm/lists"])[:]["obsm/lists"]
    assert [each.tolist() for each in found] == lists.to_list()


def awkward_by_hand(group, counts, form='{"class": "ListOffsetArray", "form_key": "node0", "content": '
                    '{"class": "NumpyArray", "form_key": "node1"}}'):  # fmt: skip
    group.attrs.update({"encoding-type": "awkward-array", "form": form, "length": len(counts)})
    group["node0-offsets"] = np.concatenate([[0], np.cumsum(counts)])
    group["node1-data"] = np.arange(sum(counts), dtype=float)


def test_awkward_arrays_by_hand(tmp_path):
    made, counts = cells(), np.arange(N) % 4
    made.write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        awkward_by_hand(file.create_group("obsm/lists"), counts)
        awkward_by_hand(file.create_group("obsm/deep"), counts, '{"class": "RecordArray"}')
    found = H5Dataset(tmp_path, ["obsm/lists", "X"])[:]["obsm/lists"]
    assert [len(each) for each in found] == counts.tolist()
    same = H5Dataset(tmp_path, [ragged("obsm/lists/node1-data", offsets="obsm/lists/node0-offsets")])[:]
    assert [a.tolist() for a in found] == [b.tolist() for b in same["obsm/lists/node1-data"]]
    with pytest.raises(errors.UnsupportedColumnError, match="another form than one level of lists"):
        H5Dataset(tmp_path, ["obsm/deep"])


# Older forms, made by hand as their specifications say ---------------------------------------------


def as_07(path, made):
    """Write what anndata 0.7 wrote: codes with a reference to their categories."""
    with h5py.File(path, "w") as file:
        write_matrix(file.create_group("X"), made.X)
        file["X"].attrs["encoding-version"] = "0.1.0"
        for name, index in (("obs", made.obs.index), ("var", made.var.index)):
            group = file.create_group(name)
            group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.1.0", "_index": "index"})
            group.attrs["column-order"] = ["cell_type", "counts"] if name == "obs" else np.empty(0)
            group["index"] = np.array(index, object)
        file["obs/cell_type"] = made.obs["cell_type"].cat.codes.to_numpy()
        file["obs/__categories/cell_type"] = np.array(made.obs["cell_type"].cat.categories, object)
        file["obs/__categories/cell_type"].attrs["ordered"] = False
        file["obs/cell_type"].attrs["categories"] = file["obs/__categories/cell_type"].ref
        file["obs/counts"] = made.obs["counts"].to_numpy()


def as_06(path, made):
    """Write what anndata wrote before 0.7: tables as compound values, categories in uns."""
    codes = made.obs["cell_type"].cat.codes.to_numpy()
    obs = np.zeros(N, [("index", "S10"), ("cell_type", "i1"), ("counts", "i8")])
    obs["index"], obs["cell_type"] = np.array(made.obs.index, "S10"), codes
    obs["counts"] = made.obs["counts"]
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(made.X, name)
        group.attrs.update({"h5sparse_format": "csr", "h5sparse_shape": made.X.shape})
        file["obs"] = obs
        file["var"] = np.array([(name.encode(),) for name in made.var.index], [("index", "S10")])
        file["uns/cell_type_categories"] = np.array(made.obs["cell_type"].cat.categories, object)


@pytest.mark.parametrize("write", [as_07, as_06])
def test_older_forms(tmp_path, write):
    made = cells()
    write(tmp_path / "a.h5ad", made)
    oracle = anndata.read_h5ad(tmp_path / "a.h5ad")
    whole = H5Dataset(tmp_path)[:]
    assert set(whole) == {"X", "obs/index", "obs/cell_type", "obs/counts"}
    np.testing.assert_array_equal(whole["X"], oracle.X.toarray())
    values = oracle.obs["cell_type"].astype(object)
    assert whole["obs/cell_type"] == values.where(values.notna(), None).tolist()
    np.testing.assert_array_equal(whole["obs/counts"], oracle.obs["counts"])
    assert whole["obs/index"] == list(oracle.obs.index)
    chosen = H5Dataset(tmp_path, ["X"], where(**{"obs/cell_type": "T cell"}))
    np.testing.assert_array_equal(chosen.selection, np.flatnonzero(oracle.obs["cell_type"] == "T cell"))


@pytest.mark.parametrize("attribute", ["shape", "h5sparse_shape"])
def test_a_shape_without_a_format(tmp_path, attribute):
    made = cells()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("counts")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(made.X, name)
        group.attrs[attribute] = made.X.shape
    np.testing.assert_array_equal(H5Dataset(tmp_path / "a.h5", [csr("counts")])[:]["counts"], made.X.toarray())


def as_10x(path, matrix, group="matrix"):
    """Write a matrix of cells x genes as 10x does: genes x cells, compressed along the cells."""
    with h5py.File(path, "w") as file:
        write_matrix(file.create_group(group), matrix, shape="dataset", index_dtype=np.int64)
        file[f"{group}/barcodes"] = np.array([f"AAAC-{i}" for i in range(matrix.shape[0])], "S18")
        file[f"{group}/features/id"] = np.array([f"ENSG{i}" for i in range(matrix.shape[1])], "S12")
        file[f"{group}/features/name"] = np.array([f"gene{i}" for i in range(matrix.shape[1])], "S12")


@pytest.mark.parametrize("shape", [(20, 7), (7, 20), (9, 9)])
def test_10x(tmp_path, shape):
    matrix = random_matrix(*shape)
    as_10x(tmp_path / "a.h5", matrix)
    whole = H5Dataset(tmp_path / "a.h5")[:]
    assert set(whole) == {"matrix", "matrix/barcodes"}
    np.testing.assert_array_equal(whole["matrix"], matrix.toarray())
    assert whole["matrix/barcodes"][1] == "AAAC-1"
    wanted = [csr("matrix", take=["gene3"], names="matrix/features/name"), "matrix/barcodes"]
    found = H5Dataset(tmp_path / "a.h5", wanted)[:]
    np.testing.assert_array_equal(found["matrix"], matrix.toarray()[:, 3:4])


def test_10x_before_version_3(tmp_path):
    matrix = random_matrix(20, 7)
    as_10x(tmp_path / "a.h5", matrix, "GRCh38")
    for columns in (["GRCh38", "GRCh38/barcodes"], [csr("GRCh38"), "GRCh38/barcodes"]):
        np.testing.assert_array_equal(H5Dataset(tmp_path / "a.h5", columns)[:]["GRCh38"], matrix.toarray())
    with pytest.raises(errors.SchemaMismatchError, match=r"'GRCh38' holds a sparse matrix.*csr\('GRCh38'\)"):
        H5Dataset(tmp_path / "a.h5")


def test_loom_is_refused_by_name(tmp_path):
    with h5py.File(tmp_path / "a.loom", "w") as file:
        file["matrix"], file["row_attrs/Gene"], file["col_attrs/CellID"] = np.zeros((4, 9)), [b"g"] * 4, [b"c"] * 9
        file.create_group("layers")
    for columns in (None, ["matrix"]):
        with pytest.raises(errors.UnsupportedColumnError, match=r"loom file.*axes='reversed'"):
            H5Dataset(tmp_path / "a.loom", columns)


# Bad files ----------------------------------------------------------------------------------------


def test_codes_outside_the_categories(stored):
    path, _ = stored
    with h5py.File(path, "r+") as file:
        file["obs/cell_type/codes"][5] = 3
        file["obs/batch/codes"][6] = -2
    with pytest.raises(errors.CorruptFileError, match=r"'obs/cell_type', row 5: code 3 stands for nothing"):
        H5Dataset(path, ["obs/cell_type"])[:]
    with pytest.raises(errors.CorruptFileError, match=r"row 6: code -2"):
        H5Dataset(path, ["X"], where(**{"obs/batch": 10}))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("obs/cell_type/codes", np.zeros(N)),
        ("obs/cell_type/codes", np.zeros((N, 2), "i1")),
        ("obs/cell_type/categories", np.zeros((3, 2))),
        ("obs/maybe/mask", np.zeros(N - 1, bool)),
        ("obs/maybe/mask", np.zeros(N)),
    ],
)
def test_parts_of_the_wrong_shape(stored, name, values):
    path, _ = stored
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = values
    column = name.rpartition("/")[0]
    with pytest.raises(RayH5Error, match=column):
        H5Dataset(path, [column])[:]
    assert column not in H5Dataset(path, ["X"]).columns  # the others can be read


def test_names_of_genes_may_be_categories(stored):
    path, oracle = stored
    with h5py.File(path, "r+") as file:
        group = file.create_group("var/symbol")
        group.attrs["encoding-type"] = "categorical"
        group["codes"], group["categories"] = (
            np.arange(GENES, dtype="i1")[::-1],
            [f"S{i}".encode() for i in range(GENES)],
        )
    found = H5Dataset(path, [csr("X", take=["S0", "S3"], names="var/symbol")])[:]["X"]
    np.testing.assert_array_equal(found, oracle.X.toarray()[:, [GENES - 1, GENES - 4]])
    with pytest.raises(errors.UnknownColumnError, match="no 'var/symbols'"):
        H5Dataset(path, [csr("X", take=["S0"], names="var/symbols")])


def test_what_encodes_no_column(stored):
    path, _ = stored
    for name in ("layers", "obs", "raw"):
        with pytest.raises(errors.UnsupportedColumnError, match="its columns are below it"):
            H5Dataset(path, [name])
    with pytest.raises(errors.SchemaMismatchError, match="parts of a sparse matrix"):
        H5Dataset(path, group="X")
    for columns in (["X"], ["obs/cell_type"]):
        with pytest.raises(errors.UnsupportedColumnError, match="is a group that encodes a column"):
            RowReader(path).read(columns)


def test_inspect_says_what_columns_are(stored, capsys):
    path, _ = stored
    assert main(["inspect", str(path), "--columns", "X", "--shuffle", "chunks"]) == 0
    shown = capsys.readouterr().out
    for said in ("sparse float32", "category string", "optional int64", "shuffled by chunks"):
        assert said in shown


def test_a_name_without_its_group_is_offered_with_it(stored):
    path, _ = stored
    with pytest.raises(errors.UnknownColumnError, match="obs/cell_type"):
        H5Dataset(path, ["obs/celltype"])
    with pytest.raises(errors.UnknownColumnError, match=r"no 'cell_type'\. Did you mean 'obs/cell_type'\?$"):
        H5Dataset(str(path), ["X", "cell_type"])
