import json
import pickle

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray
import ray.data
import torch
from ray.data.block import BlockAccessor
from ray.data.extensions import TensorArray
from ray.data.preprocessor import Preprocessor, PreprocessorNotFittedException
from ray.data.preprocessors import Chain

import ray_h5
from ray_h5 import GaussianNoise, H5Dataset, SpecAugment, Standardize
from ray_h5.errors import (
    ConstantColumnError,
    CorruptFileError,
    NonFiniteError,
    NotFittedError,
    NotFoundError,
    OptionError,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedColumnError,
)
from ray_h5.ray_data.arrow.batch_formats import names_of
from ray_h5.ray_data.preprocessing.standardize import PreprocessorNotFittedError
from ray_h5.transforms.moments import Moments
from ray_h5.transforms.scaler import Scaler
from tests.hdf5.h5kit import concatenated
from tests.ray_data.kit import position_at

pytestmark = pytest.mark.usefixtures("ray_local")


def fitted(rows, axis=None):
    return Scaler(Moments.of(rows, axis))


def read(paths, **options):
    return ray_h5.read_h5(paths, block_rows=8, **options)


def rows_of(ds, name):
    return np.concatenate([batch[name] for batch in ds.iter_batches(batch_size=None)])


def test_what_cannot_be_fitted_on(signals):
    for given in (H5Dataset(signals), {"wide": np.zeros(3)}):
        with pytest.raises(OptionError, match=r"expected a ray.data.Dataset, .* found .*torch_data.Standardize"):
            Standardize(["wide"]).fit(given)


@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_fit_is_numpys_over_all_blocks(signals, axis):
    wide = concatenated(signals, "wide").astype("f8")
    scaler = Standardize(["wide", "epoch"], axis=axis if axis != (0, 2) else None).fit(read(signals)).scalers["epoch"]
    assert np.isclose(scaler.mean, concatenated(signals, "epoch").mean())
    standardize = Standardize(["wide"], axis=axis).fit(read(signals))
    scaler = standardize.scalers["wide"]
    np.testing.assert_allclose(scaler.mean, wide.mean(axis=axis, keepdims=True)[0], rtol=1e-12)
    np.testing.assert_allclose(scaler.moments.std(), wide.std(axis=axis, keepdims=True)[0], rtol=1e-12)
    ds = standardize.transform(read(signals))
    found = rows_of(ds, "wide")
    assert found.dtype == np.float32
    assert np.array_equal(rows_of(ds, "label"), concatenated(signals, "label"))
    expected = (wide - wide.mean(axis=axis, keepdims=True)) / (wide.std(axis=axis, keepdims=True) + 1e-8)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_it_survives_ray_pickle_json_and_npz(signals, tmp_path):
    standardize = Standardize(["wide"], axis=(0, 2), constant="one").fit(read(signals))
    standardize.save(tmp_path / "s.npz")
    batch = {"wide": concatenated(signals, "wide")}
    for back in (
        Preprocessor.deserialize(standardize.serialize()),
        pickle.loads(pickle.dumps(standardize)),
        Standardize.from_json(standardize.to_json()),
        Standardize.load(tmp_path / "s.npz"),
    ):
        assert back.fit_status() == Preprocessor.FitStatus.FITTED
        assert (back.columns, back.axis, back.constant) == (["wide"], (0, 2), "one")
        assert np.array_equal(back.transform_batch(batch)["wide"], standardize.transform_batch(batch)["wide"])
    unfitted = Standardize.from_json(Standardize(["wide"]).to_json())
    assert unfitted.fit_status() == Preprocessor.FitStatus.NOT_FITTED


def test_a_chain_fuses_into_the_read(signals):
    chain = Chain(Standardize(["wide"]), Standardize(["epoch"]))
    found = chain.fit_transform(read(signals, columns=["wide", "epoch"])).materialize()
    assert "ReadH5->Standardize" in found.stats()
    assert abs(rows_of(found, "wide").mean()) < 1e-6
    assert abs(rows_of(chain.transform(read(signals)), "epoch").std() - 1) < 1e-5


@pytest.mark.slow
def test_fit_reads_its_columns_only_and_names_the_row_of_what_is_not_finite(signals):
    with h5py.File(signals[2], "r+") as file:
        file["other"][5, 3], file["other"][4, 7] = np.nan, np.inf
    Standardize(["wide"]).fit(read(signals))
    for sample_rows in (None, 50):
        with pytest.raises(NonFiniteError, match=r"column 'other': 1 NaN .* inf at 7, in the row with row_id 24;"):
            Standardize(["other"], sample_rows=sample_rows).fit(read(signals, include_row_ids=True))
    with pytest.raises(NonFiniteError, match=r"column 'other': .* inf at 7, in row 0 of its batch .*include_row_ids"):
        Standardize(["other"]).fit(read(signals))
    with h5py.File(signals[2], "r+") as file:
        file["other"][4, 7] = 0
    moments = Standardize(["other"], nan_policy="omit").fit(read(signals)).scalers["other"].moments
    assert moments.count == 50 * 200 - 1


def padded(signals):
    return read(signals, include_row_ids=True, tail="pad", tail_rows=32)  # 64 rows, of 50


SAMPLED = {
    "ids": lambda signals: read(signals, include_row_ids=True),
    "after a function": lambda signals: read(signals, include_row_ids=True).map_batches(lambda batch: batch),
    "dropped": lambda signals: read(signals, include_row_ids=True, tail="drop", tail_rows=32),
    "padded": padded,
    "padded in memory": lambda signals: padded(signals).materialize(),
    "without ids": read,
    "ids twice": lambda signals: read(signals, include_row_ids=True).union(read(signals, include_row_ids=True)),
}
"""Datasets of 50 rows; the number of sampled rows is exact where each id is there once."""


@pytest.mark.slow
@pytest.mark.parametrize("made", SAMPLED)
def test_fit_has_each_row_once_or_a_sample_of_them(signals, made):
    ds, total = SAMPLED[made](signals), 100 if made == "ids twice" else 50

    def fit(**options):
        return Standardize(["epoch"], **options).fit(ds).scalers["epoch"]

    whole, epochs = fit(), concatenated(signals, "epoch")
    assert fit(sample_rows=500).moments.count == whole.moments.count == total
    assert np.allclose([whole.mean, whole.moments.std()], [epochs.mean(), epochs.std()])
    samples = [fit(sample_rows=20, seed=seed) for seed in (0, 0, 1)]
    assert samples[0].mean == samples[1].mean
    counts = [int(each.moments.count) for each in samples]
    # Of each of 20 ids both rows would be 40.
    assert all(5 < count < 35 for count in counts) if made in ("without ids", "ids twice") else counts == [20] * 3


@pytest.mark.slow
def test_fit_uses_no_position_up(signals):
    ds = read(signals)
    ray_h5.set_epoch(ds, 0, position_at(ds, 0, 8))
    for each in (ds, ds.map_batches(lambda batch: batch)):
        assert Standardize(["epoch"]).fit(each).scalers["epoch"].moments.count == 50
    assert len(rows_of(ds, "epoch")) == 42


def test_a_sample_of_which_nothing_came_is_not_said_to_be_no_rows(signals):
    ds = read(signals).drop_columns(["other"])

    def fit_often():
        for seed in range(40):  # by chance one row, or some, or none
            Standardize(["epoch"], sample_rows=1, seed=seed, constant="one").fit(ds)

    with pytest.raises(NotFittedError, match="sample_rows=1: none of the rows that were drawn was read"):
        fit_often()


def test_before_fit(signals):
    standardize = Standardize(["wide"])
    for call in (
        lambda: standardize.transform(read(signals)),
        lambda: standardize.transform_batch({}),
        lambda: standardize.inverse_transform_batch({}),
        lambda: standardize.scalers,
        lambda: standardize.save("nowhere.npz"),
    ):
        with pytest.raises(PreprocessorNotFittedError, match="call fit") as caught:
            call()
        assert isinstance(caught.value, NotFittedError)
        assert isinstance(caught.value, PreprocessorNotFittedException)


@pytest.mark.slow
def test_errors_of_tasks_have_their_names(signals):
    known = read(signals)
    unknown = known.map_batches(lambda batch: batch)  # its schema is not known before it runs
    for ds in (known, unknown):
        with pytest.raises(UnknownColumnError, match="no column 'nothing'"):
            Standardize(["nothing"]).fit(ds)
        with pytest.raises(UnsupportedColumnError, match="column 'guid'"):
            Standardize(["guid"]).fit(ds)
        with pytest.raises(OptionError, match="column 'wide': axis=-1: expected axis 0"):
            Standardize(["wide"], axis=-1).fit(ds)
    with pytest.raises(NotFittedError, match="no rows"):
        Standardize(["wide"]).fit(read(signals[1:2]))
    constant = ray.data.from_items([{"x": 5.0}] * 9)
    with pytest.raises(ConstantColumnError, match="column 'x': standard deviation 0: all values are 5"):
        Standardize(["x"]).fit(constant)
    assert (rows_of(Standardize(["x"], constant="one").fit_transform(constant), "x") == 0).all()


@pytest.mark.parametrize("axis", [None, 0])
def test_rows_that_lack_an_axis_are_not_taken_for_one_row(axis):
    # Four scalars have the shape of one row of four.
    standardize = fitted_without_ray(x=fitted(np.random.default_rng(0).standard_normal((50, 4)), axis))
    scalars = ray.data.from_items([{"x": float(i)} for i in range(4)], override_num_blocks=1)
    with pytest.raises(SchemaMismatchError, match=r"column 'x': shape \(0,\) .* expected one axis more"):
        standardize.transform(scalars)
    unknown = scalars.map_batches(lambda batch: batch)  # its schema is not known before it runs
    with pytest.raises(Exception, match=r"column 'x': shape \(4,\) .* expected one axis more"):
        standardize.transform(unknown).take_all()
    with pytest.raises(UnknownColumnError, match="no column 'x'"):
        standardize.transform(scalars.rename_columns({"x": "y"}))
    for call in (standardize.transform_batch, standardize.inverse_transform_batch):
        for batch in (pd.DataFrame({"x": np.ones(4)}), pa.table({"x": np.ones(4)})):
            with pytest.raises(SchemaMismatchError, match=r"column 'x': shape \(4,\) .* expected one axis more"):
                call(batch)
        assert call({"x": np.ones(4)})["x"].shape == (4,)  # a mapping may be one row


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("wide", {}, "expected a list"),
        ([], {}, "expected a list"),
        (["x"], {"epsilon": -1}, "epsilon"),
        (["x"], {"nan_policy": "skip"}, "nan_policy"),
        (["x"], {"constant": "skip"}, "constant"),
        (["x"], {"sample_rows": 0}, "sample_rows=0: expected an integer of 1"),
        (["x"], {"axis": 1}, r"axis=1: expected axis 0, the rows, among them, such as \(0, 1\)"),
        (["x", "x"], {}, "expected each name once"),
        ([3], {}, "expected a list"),
        (["x"], {"seed": -1}, "seed=-1: expected an integer of 0 or more"),
    ],
)
def test_options(columns, options, words):
    with pytest.raises(OptionError, match=words):
        Standardize(columns, **options)


def test_options_may_be_values_of_numpy():
    made = Standardize(np.array(["wide", "x"]), axis=(np.int64(0), 2), epsilon=np.float32(0.5), sample_rows=np.int32(9))
    back = Standardize.from_json(made.to_json())
    assert (back.columns, back.axis, back.epsilon, back.sample_rows) == (["wide", "x"], (0, 2), 0.5, 9)
    assert Standardize(["wide"], axis=[0, 2]).axis == (0, 2)


def test_what_is_no_standardize(tmp_path):
    for text in ("{", "[]", "{}", '{"columns": ["x"], "axis": null, "scalers": {"x": {}}}'):
        with pytest.raises(OptionError, match="expected a result of Standardize"):
            Standardize.from_json(text)
    with pytest.raises(OptionError, match="expected a result of Standardize"):
        Standardize.from_json(None)
    path = tmp_path / "s.npz"
    with pytest.raises(NotFoundError, match="no such file"):
        Standardize.load(path)
    for content in (b"", b"PK\x03\x04 and no more", b"words"):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"s\.npz: expected an npz file") as caught:
            Standardize.load(path)
        assert "pickle" not in str(caught.value)
    with pytest.raises(CorruptFileError, match="expected an npz file"):
        Standardize.load(tmp_path)
    np.savez(path, header=np.array('{"format": "ray_h5.scalers", "version": 99}'))
    with pytest.raises(CorruptFileError, match="version 99"):
        Standardize.load(path)
    np.savez(path, header=np.array([{}], dtype=object))  # a pickle, which is never loaded
    with pytest.raises(CorruptFileError, match="expected an npz file"):
        Standardize.load(path)
    with pytest.raises(OptionError, match=r"s3://bucket/s\.npz: expected a path of the local file system"):
        Standardize.load("s3://bucket/s.npz")


def test_where_nothing_can_be_written_nothing_is_left(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match="expected the name of a file, found a folder"):
        fitted_without_ray().save(tmp_path / "folder")
    with pytest.raises(NotFoundError, match="folder to write it to is missing"):
        fitted_without_ray().save(tmp_path / "none" / "s.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("scalers",), []),
        (("columns",), ["q"]),
        (("columns",), ["x", "q"]),
        (("extra",), 1),
        (("scalers", "x"), None),
        (("scalers", "x", "moments", "m2"), [-1]),
        (("scalers", "x", "moments", "mean"), ["a"]),
    ],
)
def test_a_state_that_is_damaged(path, value):
    state = json.loads(fitted_without_ray().to_json())
    assert Standardize.from_dict(state).columns == ["x"]
    place = state
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(OptionError, match="expected a result of Standardize"):
        Standardize.from_json(json.dumps(state))


def fitted_without_ray(columns=("x",), **scalers):
    standardize = Standardize(list(columns), axis=0)
    standardize.stats_ = scalers or {"x": fitted(np.arange(10.0))}
    return standardize


def test_batches_of_any_kind(signals):
    ds = read(signals, columns=["wide", "epoch", "label"])
    standardize = Standardize(["wide", "epoch"]).fit(ds)
    batch = ds.take_batch(6)
    expected = standardize.transform_batch(batch)
    back = standardize.inverse_transform_batch(expected)
    plain = pd.DataFrame({**batch, "wide": list(batch["wide"])}, index=range(3, 9))
    tensors = pd.DataFrame({**batch, "wide": TensorArray(batch["wide"])})
    for given in (ds.limit(6).to_pandas(), plain, tensors, ds.take_batch(6, batch_format="pyarrow")):
        found = standardize.transform_batch(given)
        assert type(found) is type(given)
        assert names_of(found) == names_of(given)
        once = BlockAccessor.for_block(found).to_numpy()
        again = BlockAccessor.for_block(standardize.inverse_transform_batch(found)).to_numpy()
        for name in ("wide", "epoch"):
            assert np.array_equal(np.stack(list(once[name])), expected[name])
            assert np.array_equal(np.stack(list(again[name])), back[name])
    assert standardize.transform_batch(plain).index.tolist() == list(range(3, 9))
    assert plain["wide"][3] is not standardize.transform_batch(plain)["wide"][3]
    found = standardize.transform_batch({name: torch.from_numpy(array.copy()) for name, array in batch.items()})
    assert isinstance(found["wide"], torch.Tensor)
    assert np.array_equal(found["wide"].numpy(), expected["wide"])
    for row in (
        ds.take(1)[0],
        {name: array[0] for name, array in batch.items()},
        {"wide": batch["wide"][0], "epoch": 3},
    ):
        found = standardize.transform_batch(row)
        assert np.array_equal(found["wide"], expected["wide"][0])
        assert np.ndim(found["epoch"]) == 0


def test_batches_without_rows_stay_of_their_kind():
    rows = np.random.default_rng(0).standard_normal((9, 4)).astype("f4")
    standardize = fitted_without_ray("xy", x=fitted(rows, 0), y=fitted(np.arange(9)))
    tensors = TensorArray(rows)
    table = pa.table({"x": tensors.__arrow_array__(), "y": np.arange(9)})
    lists = pa.table({"x": rows.tolist(), "y": np.arange(9)})
    frame, objects = (pd.DataFrame({"x": each, "y": np.arange(9)}) for each in (tensors, list(rows)))
    for call in (standardize.transform_batch, standardize.inverse_transform_batch):
        for batch in (table, frame, objects):
            empty, full = call(batch[:0]), call(batch)
            assert (type(empty), len(empty)) == (type(batch), 0)
            kinds = (lambda found: found.schema) if batch is table else (lambda found: found.dtypes.tolist())
            assert kinds(empty) == kinds(full)
        # How long they would be is not known.
        assert call(lists[:0]).schema.field("x") == lists.schema.field("x")


def test_what_is_no_batch():
    standardize = fitted_without_ray()
    for call in (standardize.transform_batch, standardize.inverse_transform_batch):
        for found in (np.arange(4.0), [1, 2], None):
            with pytest.raises(OptionError, match=r"expected a batch, .* found .*; pass one array as"):
                call(found)
        with pytest.raises(UnknownColumnError, match=r"no column 'x'\. There is: 0\.$"):
            call(pd.DataFrame({0: [1.0]}))
        for found in (pa.table({"y": [1.0]}), pd.DataFrame({"y": [1.0]}), {"y": np.ones(1)}):
            with pytest.raises(UnknownColumnError, match=r"no column 'x'\. There is: y\.$"):
                call(found)
    ragged = pd.DataFrame({"x": [np.ones(2), np.ones(3)]})
    with pytest.raises(SchemaMismatchError, match=r"column 'x': rows have the shapes \(2,\), \(3,\)"):
        standardize.transform_batch(ragged)


def test_rows_of_many_shapes_are_an_error_before_any_task(signals):
    standardize = Standardize(["wide"]).fit(read(signals))

    def ragged(batch):
        rows = np.empty(len(batch["wide"]), dtype=object)
        rows[:] = [row[:, : 3 + i % 3] for i, row in enumerate(batch["wide"])]
        return {"wide": rows, "label": batch["label"]}

    ds = read(signals).map_batches(ragged).materialize()
    with pytest.raises(SchemaMismatchError, match="column 'wide': its rows differ in shape"):
        standardize.transform(ds)
    assert rows_of(Standardize(["label"]).fit(ds).transform(ds), "label").dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SpecAugment, GaussianNoise])
def test_ray_may_make_an_augmentation_of_its_class(signals, kind):
    # Two datasets: what is made of one counts its epochs together.
    ds, same = (read(signals, columns=["wide"], include_row_ids=True, include_row_keys=True) for _ in range(2))
    arguments = {"time_mask_param": 8, "freq_mask_param": 2} if kind is SpecAugment else {"std": 0.5}
    made = ds.map_batches(kind, fn_constructor_args=("wide",), fn_constructor_kwargs=arguments, concurrency=1)
    expected = same.map_batches(kind("wide", **arguments))
    assert np.array_equal(rows_of(made, "wide"), rows_of(expected, "wide"))


def test_a_repr_shows_what_was_fitted_in_a_few_words():
    standardize = Standardize(["x", "y"], axis=(0, 2))
    assert repr(standardize) == "Standardize(['x', 'y'], axis=(0, 2), not fitted)"
    scaler = fitted(np.arange(24.0).reshape(4, 2, 3), axis=(0, 2))
    standardize.stats_ = {"x": scaler, "y": scaler}
    shown = "mean 10 to 13 at 2 places, std 6.758 to 6.758 at 2 places"
    assert repr(standardize) == f"Standardize(['x', 'y'], axis=(0, 2), x: {shown}; y: {shown})"
    many = Standardize([str(i) for i in range(40)])
    many.stats_ = dict.fromkeys(many.columns, scaler)
    assert repr(many).endswith("; and 36 more)")
