import datetime as dt
import pickle
import re
import tracemalloc
from decimal import Decimal

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
from ray.data.block import BlockAccessor
from ray.data.datatype import DataType
from ray.data.expressions import col, udf
from ray.data.extensions import ArrowTensorArray, TensorArray

import ray_h5
from ray_h5 import any_equal, between, row_mask, where
from ray_h5.errors import PredicateError, UnknownColumnError
from ray_h5.predicates.criteria import where as arrow_where
from ray_h5.predicates.evaluate import evaluate
from ray_h5.torch_data import CombinedHDF5Dataset, H5Dataset, loader
from tests.index.kit import plan_files
from tests.index.test_select import NAMES, table_of, write
from tests.kit.files import save

from .kit import ids_of, ids_read, pushed

pytestmark = [pytest.mark.usefixtures("ray_local"), pytest.mark.versions]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("filtered")
    found = []
    for i, rows in enumerate((40, 0, 60)):
        write(folder / f"{i}.h5", rows, i)
        with h5py.File(folder / f"{i}.h5", "a") as file:
            rng = np.random.default_rng(i)
            file["classes"] = rng.integers(0, 4, (rows, 5))
            file["weight"] = rng.integers(0, 2, (rows, 5))
            file["mask/train"] = np.arange(0, rows, 3)
        found.append(str(folder / f"{i}.h5"))
    return found


def read(paths, **options):
    return ray_h5.read_h5(paths, include_row_ids=True, **{"columns": [*NAMES, "x"], **options})


def kept(paths, expression):
    table = table_of(paths)
    chosen = evaluate(expression, {name: table[name] for name in table.column_names}, table.num_rows)
    return table["row"].take(chosen).to_pylist()


CRITERIA = [
    {"u": 1},
    {"u": [0, 3], "b": True},
    {"f": between(0, 1)},
    {"s": ["a", "ä"]},
    {"s": []},
    {"classes": any_equal(2)},
    {"classes": any_equal(2), "i": between(None, 1)},
    {"mask/train": row_mask()},
]


@pytest.mark.parametrize("criteria", CRITERIA)
def test_the_same_words_select_the_same_rows_with_ray_and_without(paths, criteria):
    plan = plan_files(paths, columns=["x"], predicate=arrow_where(**criteria))[1]
    ds = read(paths, columns=["x"]).filter(expr=where(**criteria))
    assert ids_read(ds) == plan.selection.tolist() == pushed(ds).plan().selection.tolist()
    for predicate in (where(**criteria), ~where(**criteria)):  # those of Ray are taken without it too
        rows = plan_files(paths, columns=["x"], predicate=predicate)[1].selection
        assert rows.tolist() == pushed(read(paths, columns=["x"]).filter(expr=predicate)).plan().selection.tolist()
    negated = read(paths, columns=["x"]).filter(expr=~where(**criteria))
    assert sorted(ids_read(negated) + plan.selection.tolist()) == list(range(100))


def test_datasets_without_ray_take_its_predicates(paths):
    predicate = where(u=1, classes=any_equal(2)) | where(**{"mask/train": row_mask()})
    (expected,) = {tuple(H5Dataset(paths, ["x"], each).selection) for each in (predicate, predicate.to_pyarrow())}
    assert 0 < len(expected) < 100
    assert tuple(CombinedHDF5Dataset(paths, ["x"], predicate=predicate).selection) == expected
    assert sum(len(batch["x"]) for batch in loader(paths, 4, columns=["x"], predicate=predicate)) == len(expected)
    assert b"ray.data" not in pickle.dumps(H5Dataset(paths, ["x"], predicate))  # a worker need not import it
    doubled = udf(return_dtype=DataType.int64())(lambda values: pc.multiply(values, 2))
    with pytest.raises(PredicateError, match="UDF expressions cannot be converted"):
        H5Dataset(paths, ["x"], doubled(col("u")) > 2)


def test_filters_around_everything(paths):
    expected = kept(paths, (col("u") > 1).to_pyarrow() & where(s=["a", "b", ""]).to_pyarrow())
    one, two = col("u") > 1, where(s=["a", "b", ""])
    renamed = read(paths).filter(expr=one).rename_columns({"s": "text"}).filter(expr=where(text=["a", "b", ""]))
    assert ids_of(renamed) == expected
    assert sorted(ids_of(read(paths).filter(expr=one).random_shuffle(seed=1).filter(expr=two))) == expected
    assert ids_of(read(paths).map_batches(lambda batch: batch).filter(expr=one & two)) == expected
    assert ids_of(read(paths).filter(expr=one).limit(10_000).filter(expr=two)) == expected
    assert ids_read(read(paths).filter(expr=one & two).filter(expr=where(**{"mask/train": row_mask()}))) == [
        row for row in expected if (row % 3 == 0 if row < 40 else (row - 40) % 3 == 0)
    ]
    limited = read(paths).limit(20).filter(expr=one)
    assert ids_of(limited) == [row for row in kept(paths, one.to_pyarrow()) if row < 20]


@pytest.mark.parametrize(
    ("expression", "error", "says"),
    [
        (col("x") > 0, PredicateError, r"'x' holds an array of shape \(3,\).*any_equal\(value\).*ds.map"),
        (where(x=1), PredicateError, "any_equal"),
        (where(xs=any_equal(1)), UnknownColumnError, "no 'xs'"),
        (col("ss") == "a", UnknownColumnError, "Did you mean 's'"),
        (col("u") > "a", PredicateError, "u: uint8"),
        (where(b=[2]), PredicateError, "b: bool"),
        (where(b=[0.5]), PredicateError, "b: bool"),
        (where(classes=any_equal(1, valid="nothing")), UnknownColumnError, "nothing"),
    ],
)
def test_what_is_no_filter(paths, expression, error, says):
    with pytest.raises(error, match=says):
        read(paths).filter(expr=expression).count()


@pytest.mark.parametrize(
    ("chosen", "criteria", "says"),
    [
        (["x"], {"classes": any_equal(2)}, "no column 'classes'. There is: x."),
        (["x", "classes"], {"clases": any_equal(2)}, "no column 'clases'. Did you mean 'classes'?"),
        (["classes"], {"classes": any_equal(2, valid="weight")}, "no column 'weight'. There is: classes."),
        (["x"], {"mask/train": row_mask()}, "no column 'mask/train'. There is: x."),
        (["x"], {"u": 1}, "no column 'u'. There is: x."),
    ],
)
def test_a_filter_reads_nothing_that_a_selection_dropped(paths, chosen, criteria, says):
    ds = read(paths, columns=["x", "u", "classes", "weight"]).select_columns(chosen)
    with pytest.raises(UnknownColumnError, match=rf"^predicate: {re.escape(says)}$"):
        ds.filter(expr=where(**criteria)).count()


def test_no_row_selected_is_an_empty_dataset(paths):
    ds = read(paths).filter(expr=where(u=200)).select_columns(["x", "s"])
    assert ds.count() == 0
    assert ds.take_all() == []
    assert ds.materialize().schema().names == ["x", "s"]
    assert ds.schema().names == ["x", "s"]
    assert list(ds.iter_torch_batches(batch_size=4)) == []


def test_nothing_is_made_for_each_row_but_what_the_filter_names(tmp_path):
    rows = 1_000_000
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["label"] = np.zeros(rows, "u1")
        file["label"][7] = 1
    source = pushed(ray_h5.read_h5(tmp_path, include_row_ids=True, include_paths=True).filter(expr=where(label=1)))
    ray_h5.build_index(tmp_path, predicate_columns=["label"])  # reading them is another matter
    tracemalloc.start()
    try:
        assert source.plan().selection.tolist() == [7]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * rows  # labels and whether they pass, a byte each; a row id has eight


def test_the_selection_reaches_tasks_by_reference(tmp_path):
    path = save(tmp_path / "a.h5", {"k": np.arange(300_000)})
    ds = ray_h5.read_h5(path, block_rows=50_000).filter(expr=col("k") % 2 == 0)
    source = pushed(ds)
    assert source.plan().selection.nbytes == 8 * 150_000
    tasks = source.get_read_tasks(1, data_context=ray.data.DataContext.get_current())
    assert len(tasks) == 3
    assert max(len(ray.cloudpickle.dumps(task)) for task in tasks) < 20_000
    assert sum(table.num_rows for task in tasks for table in task()) == 150_000


def test_a_small_share_of_the_rows_fills_few_blocks(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((2000, 8), "f4"), chunks=(1, 8))
        file["k"] = np.arange(2000)
    ds = ray_h5.read_h5(path, block_rows=10).filter(expr=col("k") % 100 == 0)
    assert ds.materialize().num_blocks() == 2


def in_block(block, expression):
    """The rows that Ray keeps of a block, where it filters itself."""
    kept = BlockAccessor.for_block(block).filter(expression)
    return list(kept["row"].to_pylist() if isinstance(kept, pa.Table) else kept["row"])


UTC = dt.timezone.utc
TEXT = pa.array(["a", "b", None, ""])
DECIMALS = pa.array([Decimal("0.00"), Decimal("1.00"), None, Decimal("2.50")])
STEPS = np.arange(12).reshape(4, 3)

# Values of a column, what is wanted, the rows that pass, and those that pass what is not.
IN_BLOCKS = [
    *((np.array([0, 1, np.nan, 2.5], kind), *rest) for kind in ("f2", "f4", "f8") for rest in [
        (1, [1], [0, 2, 3]), ([1, 2.5], [1, 3], [0, 2]), (2.5, [3], [0, 1, 2]), (between(0.5, None), [1, 3], [0, 2]),
        (True, [1], [0, 2, 3]), ([-0.0], [0], [1, 2, 3]),
    ]),
    (np.array([0, 1, 2**63, 2**64 - 1], "u8"), [1, 2**64 - 1], [1, 3], [0, 2]),
    (np.array([0, 1, 2**63, 2**64 - 1], "u8"), between(1.0, 2**63), [1, 2], [0, 3]),
    (np.array([True, False, True, True]), 1, [0, 2, 3], [1]),
    (pa.array([True, False, None, True]), [0.0], [1], [0, 3]),
    (pa.array([0, 1, None, 3]), 1.0, [1], [0, 3]),
    (pa.array([0, 1, None, 3]), None, [2], [0, 1, 3]),
    *((DECIMALS.cast(kind), *rest) for kind in (pa.decimal128(3, 2), pa.decimal256(60, 2)) for rest in [
        (1, [1], [0, 3]), (2.5, [3], [0, 1]), ([1, Decimal("2.5")], [1, 3], [0]), (between(1, 2.5), [1, 3], [0]),
    ]),
    (DECIMALS, [2.5], [3], [0, 1]),
    *((text, *rest) for text in (TEXT, TEXT.cast(pa.large_string()), TEXT.dictionary_encode()) for rest in [
        ("a", [0], [1, 3]), (["a", ""], [0, 3], [1]), (["a", None], [0, 2], [1, 3]),
        (between("a", None), [0, 1], [3]),
    ]),
    (pa.array([b"a", b"b", None, b""]), [b"a"], [0], [1, 3]),
    (pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1]), pa.array([1, 2**40])), 2**40, [1, 3], [0]),
    (np.arange(4).astype("M8[ns]"), np.datetime64(3, "ns"), [3], [0, 1, 2]),
    (np.arange(4).astype("m8[ns]"), np.arange(1, 3).astype("m8[ns]"), [1, 2], [0, 3]),
    (pa.array([0, 1, None, 3], pa.timestamp("us", "UTC")), dt.datetime(1970, 1, 1, tzinfo=UTC), [0], [1, 3]),
    (pa.array([0, 1, None, 3], pa.date32()), [dt.date(1970, 1, 2)], [1], [0, 3]),
    (STEPS, any_equal(4), [1], [0, 2, 3]),
    (STEPS.astype("f2"), any_equal(4.0, valid="x"), [1], [0, 2, 3]),
    ((STEPS[:, :1] == [0, 3]).reshape(4, 1, 2), any_equal(1), [1], [0, 2, 3]),
]  # fmt: skip


def blocks_of(values):
    if isinstance(values, np.ndarray):
        tensors = values.ndim > 1
        yield pa.table({"x": ArrowTensorArray.from_numpy(values) if tensors else pa.array(values), "row": range(4)})
        yield pd.DataFrame({"x": TensorArray(values) if tensors else values, "row": range(4)}, index=[7, 3, 3, 1])
    else:
        yield pa.table({"x": values, "row": range(4)})
        yield pa.table({"x": pa.chunked_array([values[:1], values[1:]]), "row": range(4)})
        if not pa.types.is_integer(values.type):  # which pandas makes floats of where one is missing
            yield pd.DataFrame({"x": values.to_pandas(), "row": range(4)}).set_axis([7, 3, 3, 1])


@pytest.mark.parametrize(("values", "wanted", "rows", "others"), IN_BLOCKS)
def test_blocks_are_filtered_as_files_are(values, wanted, rows, others):
    for block in blocks_of(values):
        assert in_block(block, where(x=wanted)) == rows
        assert in_block(block, ~where(x=wanted)) == others
        assert in_block(block, where(x=wanted, row=between(1, None)) | (col("row") == 0)) == sorted({0, *rows})


@pytest.mark.parametrize(
    ("values", "wanted", "says"),
    [
        (STEPS, 1, r"'x' holds an array of shape \(3,\) a row.*any_equal\(value\)"),
        (STEPS, row_mask(), r"row_mask\(\): 'x' says which rows of the files to take.*directly after read_h5"),
        (STEPS, any_equal(1, valid="row"), r"any_equal\(1\): column 'x' has \(3,\) time steps a row.*'row'"),
        (STEPS.reshape(4, 1, 3), any_equal(3), "one-hot of 3 classes"),
        (np.array(["a", "b", "c", "d"]), 1, "x: .*string: column 'x' holds text, which is compared with text only"),
        (np.array(["a", "b", "c", "d"]), any_equal(1), "expected numbers of shape"),
        (np.arange(4), "1", "holds numbers, which are compared with numbers only, such as 3; found '1'"),
        (np.array([True, False, True, True]), 2, "x: bool"),
        (pa.array([[1], [2], [], None]), 1, "x: .*list<"),
    ],
)
def test_what_blocks_cannot_be_filtered_by(values, wanted, says):
    for block in blocks_of(values):
        with pytest.raises(PredicateError, match=says):
            in_block(block, where(x=wanted))


def test_a_criterion_follows_a_column_that_is_renamed(paths):
    expected = ids_read(
        read(paths, columns=["x", "classes", "weight"]).filter(expr=where(classes=any_equal(2, valid="weight")))
    )
    renamed = read(paths, columns=["x", "classes", "weight"]).rename_columns({"classes": "c", "weight": "w"})
    assert ids_of(renamed.filter(expr=where(c=any_equal(2, valid="w")))) == expected
    mapped = renamed.map_batches(lambda batch: batch).rename_columns({"c": "d"})
    assert ids_of(mapped.filter(expr=where(d=any_equal(2, valid="w")))) == expected


@pytest.mark.parametrize(("name", "option"), [("row_id", "include_row_ids"), ("path", "include_paths")])
def test_a_column_that_an_option_adds_is_named_with_it(paths, name, option):
    ds = ray_h5.read_h5(paths, columns=["x"])
    with pytest.raises(UnknownColumnError, match=f"no '{name}' .* {option}=True adds this column: pass it"):
        ds.filter(expr=where(**{name: [1, 2]} if name == "row_id" else {name: paths[0]})).count()


def test_a_predicate_of_ray_and_of_pyarrow_is_refused(paths):
    with pytest.raises(PredicateError, match="this predicate combines both"):
        read(paths).filter(expr=where(u=1) & arrow_where(b=True)).take_all()


def test_a_filter_that_no_row_passes_is_said(paths, caplog):
    ds = ray_h5.read_h5(paths, columns=["i"]).filter(expr=where(s="of no row"))
    assert ds.count() == len(ds.take_all()) == 0
    assert "no row matches: none of" in caplog.text
    assert 'passes (s == "of no row")' in caplog.text


def test_a_step_is_known_when_rows_are_read(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(20.0)})
    windows = ray_h5.Windows({"x": [-1, 0]}, stride=3)
    ds = ray_h5.read_h5(tmp_path / "a.h5", windows=windows, include_steps=True)
    assert [row["step"] for row in ds.take_all()] == [*range(0, 20, 3)]
    with pytest.raises(PredicateError, match="'step' is known when rows are read; filter by it after reading"):
        ds.filter(expr=where(step=3)).count()
    assert ray_h5.Standardize(["x"]).fit(ds).scalers["x"].mean.item() == pytest.approx(120 / 13)
