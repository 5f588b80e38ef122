"""Rows of varying shape in plain PyTorch: padding, casts, and transforms that change their length."""

import copy
import pickle
import warnings

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate

from ray_h5.errors import CastError, OptionError, SchemaMismatchError, UnknownColumnError, UnsupportedColumnError
from ray_h5.torch_data import Grid, Groups, H5Dataset, Sample, Shuffle, Windows, loader

ROWS = Groups("mol_*", key="id")


@pytest.fixture
def molecules(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(6):
            file[f"mol_{i}/numbers"] = np.arange(3 + i, dtype="i2") * 100
            file[f"mol_{i}/positions"] = np.full((1 + i % 3, 3 + i, 3), i, "f4")
            file[f"mol_{i}/smiles"] = [f"C{i}"]
            file[f"mol_{i}/x"] = np.arange(2 + i, dtype="f4")
    return tmp_path / "a.h5"


def test_one_value_pads_numbers_and_leaves_text(molecules):
    batch = next(iter(loader(molecules, 6, shuffle=False, rows=ROWS, pad=True)))
    assert batch.smiles == [[f"C{i}"] for i in range(6)]
    assert batch.positions.shape == (6, 3, 8, 3)
    assert batch.x_length.tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "make", [H5Dataset, lambda path, **options: loader(H5Dataset(path, rows=ROWS), 2, pad=options["pad"])]
)
@pytest.mark.parametrize(
    ("pad", "error", "says"),
    [
        ({"number": 0}, UnknownColumnError, "pad: no column 'number'. Did you mean 'numbers'"),
        ({"smiles": 0}, UnsupportedColumnError, "'smiles' holds text .* Leave it out of pad="),
        ({"numbers": float("nan")}, UnsupportedColumnError, "'numbers' has dtype int16, which cannot hold nan. Pass"),
        ({"numbers": 1 << 15}, UnsupportedColumnError, "'numbers' has dtype int16, which cannot hold 32768"),
        ({"numbers": 10**30}, UnsupportedColumnError, "'numbers' has dtype int16, which cannot hold 1000000"),
        ({"x": 1e300}, UnsupportedColumnError, r"'x' has dtype float32, which cannot hold 1e\+300"),
    ],
)
def test_padding_that_cannot_be_is_an_error_at_once(molecules, make, pad, error, says):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=says):
            make(molecules, rows=ROWS, pad=pad)


def test_a_column_with_the_name_of_the_lengths(molecules):
    with pytest.raises(UnsupportedColumnError, match="column 'x' would be column 'x_length', which there is already"):
        H5Dataset(molecules, ["x", "x_length"], rows=Groups("mol_*", key="x_length"), pad=True)


def test_a_cast_that_loses_a_value_names_file_and_row(molecules):
    dataset = H5Dataset(molecules, ["numbers"], rows=ROWS, dtypes={"numbers": "int8"})
    for read in (lambda: dataset[2], lambda: dataset[[1, 2]], lambda: list(loader(dataset, 3, shuffle=False))):
        with pytest.raises(CastError, match=r"a\.h5, row \d: column 'numbers': the value 200 cannot be cast to int8"):
            read()
    with pytest.raises(CastError, match=r"row 2: column 'numbers'"):
        dataset[2]
    unsafe = H5Dataset(molecules, ["numbers"], rows=ROWS, dtypes={"numbers": "int8"}, casting="unsafe")
    assert unsafe[2].numbers.tolist() == (np.arange(5) * 100).astype("i1").tolist()


def half(sample):
    return {**sample, "x": sample["x"][: len(sample["x"]) // 2]}


def in_place(sample):
    sample.x = sample.x[:2]
    return sample


def batches_of(kind, dataset):
    if kind == "loader":
        return loader(dataset, 3, shuffle=False)
    return DataLoader(dataset, 3, num_workers=1 if kind == "workers" else 0)


@pytest.mark.parametrize("kind", ["loader", "DataLoader", "workers"])
def test_samples_of_several_lengths_name_the_column(molecules, kind):
    dataset = H5Dataset(molecules, ["x", "id"], transform=half, rows=ROWS)
    with pytest.raises(
        SchemaMismatchError, match=r"column 'x': samples of shapes \(1,\), \(2,\) do not make one tensor; crop or pad"
    ):
        list(batches_of(kind, dataset))


def scaled(sample):
    return {**sample, "x": sample["x"] * 2}


@pytest.mark.parametrize("kind", ["loader", "DataLoader", "workers"])
@pytest.mark.parametrize("make", [scaled, half, in_place, lambda sample: sample])
def test_rows_are_padded_after_a_transform(molecules, kind, make):
    columns = ["id", "x", "positions", "smiles"]
    dataset = H5Dataset(molecules, columns, transform=make, rows=ROWS, pad={"x": -1, "positions": 0})
    plain = H5Dataset(molecules, columns, rows=ROWS)
    for begin, batch in zip((0, 3), batches_of(kind, dataset), strict=True):
        wanted = [make(plain[begin + i]) for i in range(3)]
        assert batch.id == [each["id"] for each in wanted]
        assert batch.x_length.tolist() == [len(each["x"]) for each in wanted]
        assert batch.positions_length.tolist() == [list(each["positions"].shape) for each in wanted]
        for i, each in enumerate(wanted):
            count = len(each["x"])
            assert torch.equal(batch.x[i, :count], each["x"])
            assert (batch.x[i, count:] == -1).all()
            assert torch.equal(batch.positions[i][tuple(map(slice, each["positions"].shape))], each["positions"])


def test_a_transform_may_return_other_types(molecules):
    pairs = H5Dataset(molecules, ["x", "id"], transform=lambda s: (s.x[:2], s.id), rows=ROWS, pad=True)
    assert next(iter(DataLoader(pairs, 2)))[0].tolist() == [[0, 1], [0, 1]]
    numpy = H5Dataset(molecules, ["x"], transform=lambda s: {"x": s.x.numpy() + 1}, rows=ROWS, pad=True)
    assert next(iter(DataLoader(numpy, 2))).x.tolist() == [[1, 2, 0], [1, 2, 3]]
    means = H5Dataset(molecules, ["x"], transform=lambda s: {"x": s.x.mean()}, rows=ROWS, pad=True)
    assert next(iter(DataLoader(means, 2))).x.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_lengths_are_there_in_all_batches_whatever_a_transform_returns(of_varying_length, size):
    wanted = [i % 4 for i in range(5)]
    for transform in (lambda sample: {"x": sample.x}, lambda sample: {"x": sample.x.numpy()}, dict, None):
        dataset = H5Dataset(of_varying_length, ["x"], transform=transform, pad=True)
        for batches in (
            loader(dataset, size, shuffle=False),
            DataLoader(dataset, size),
            [dataset[[i]] for i in range(5)],
        ):
            assert [length for batch in batches for length in batch["x_length"].tolist()] == wanted


@pytest.mark.parametrize("transform", [None, lambda sample: sample, lambda sample: {"x": sample.x}])
def test_a_sample_has_the_lengths_that_its_batch_has(molecules, transform):
    dataset = H5Dataset(molecules, ["x", "positions", "id"], transform=transform, rows=ROWS, pad=True)
    batch = dataset[:]
    for i, sample in enumerate(dataset):
        assert set(sample) == set(batch)
        assert sample["x_length"] == len(sample["x"]) == batch["x_length"][i]
        if transform is None:
            assert sample["positions_length"].tolist() == [*sample["positions"].shape]
    batches = DataLoader(dataset, 2, collate_fn=lambda samples: [sample["x_length"] for sample in samples])
    assert [length for lengths in batches for length in lengths] == batch["x_length"].tolist()


def test_lengths_of_samples_are_those_after_the_transform(molecules):
    def cropped(sample):
        assert "x_length" not in sample  # a transform sees the columns alone
        sample.x = sample.x[:1]
        return sample

    dataset = H5Dataset(molecules, ["x"], transform=cropped, rows=ROWS, pad=True)
    assert [sample.x_length.item() for sample in dataset] == dataset[:].x_length.tolist() == [1] * len(dataset)
    joint = ConcatDataset([dataset, H5Dataset(molecules, ["x"], rows=ROWS, pad=True)])
    assert default_collate([joint[0], joint[len(joint) - 1]]).x_length.tolist() == [1, len(joint[len(joint) - 1].x)]


def test_a_transform_that_is_no_function(molecules):
    with pytest.raises(OptionError, match="transform='x': expected a function of a sample"):
        H5Dataset(molecules, transform="x", rows=ROWS)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_lengths_have_a_shape_that_does_not_depend_on_the_batch(tmp_path, size):
    shapes = [(2, 5), (3, 5), (3, 5), (4, 5), (1, 6), (2, 7)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, shape in enumerate(shapes):
            file[f"s{i}/image"], file[f"s{i}/steps"] = np.ones(shape), np.ones((shape[0], 3))
    dataset = H5Dataset(tmp_path / "a.h5", ["image", "steps"], rows=Groups("s*"), pad=True)
    changed = H5Dataset(tmp_path / "a.h5", ["image", "steps"], rows=Groups("s*"), pad=True, transform=dict)
    for batches in (
        loader(dataset, size, shuffle=False),
        DataLoader(dataset, size),
        DataLoader(changed, size),
        DataLoader(ConcatDataset([Subset(dataset, range(3)), Subset(dataset, range(3, 6))]), size),
    ):
        found = list(batches)
        assert torch.cat([each["image_length"] for each in found]).tolist() == [list(shape) for shape in shapes]
        assert torch.cat([each["steps_length"] for each in found]).tolist() == [shape[0] for shape in shapes]


@pytest.fixture
def recordings(tmp_path):
    """Two files whose steps differ in shape, as groups, as rows of a file, and as a grid."""
    with h5py.File(tmp_path / "a.h5", "w") as one, h5py.File(tmp_path / "b.h5", "w") as other:
        for i, (file, length, width) in enumerate([(one, 4, 3), (other, 6, 5)]):
            image = np.arange(length * width, dtype="u1").reshape(length, width) + i
            file["image"], file["action"] = image, np.arange(length, dtype="f4")
            for demo in range(2):
                group = file.create_group(f"demo_{demo}")
                group["image"], group["action"] = image + demo, np.arange(length, dtype="f4")
            file["field"] = np.stack([image, image + 1])
    return [str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]


def test_a_grid_over_files_that_differ_in_the_shape_of_a_value(recordings):
    dataset = H5Dataset(recordings, ["field"], rows=Grid(2), dtypes={"field": "float32"})
    assert [each.field.shape for each in dataset] == [(3,)] * 8 + [(5,)] * 12
    assert dataset[7].field.tolist() == [10.0, 11.0, 12.0]
    windowed = H5Dataset(recordings, ["image"], rows=Groups("demo_*"), windows=Windows({"image": [0]}))
    with pytest.raises(OptionError, match="rows of varying shape"):
        windowed.epoch_order(Shuffle(by_length="image"))


@pytest.fixture
def of_varying_length(tmp_path):
    """HDF5's own arrays of varying length: numbers, booleans and complex numbers, and two a row."""
    with h5py.File(tmp_path / "v.h5", "w") as file:
        for name, dtype in {"x": "f4", "flag": "?", "z": "c8", "pair": "i2"}.items():
            shape = (5, 2) if name == "pair" else (5,)
            made = file.create_dataset(name, shape, h5py.vlen_dtype(np.dtype(dtype)))
            for at in np.ndindex(shape):
                made[at] = np.arange(sum(at) % 4).astype(dtype)
    return tmp_path / "v.h5"


@pytest.mark.parametrize("kind", ["loader", "DataLoader"])
def test_arrays_of_varying_length_are_padded(of_varying_length, kind):
    dataset = H5Dataset(of_varying_length, ["x", "flag", "z"], pad={"x": -1, "flag": 1, "z": 0})
    with h5py.File(of_varying_length) as file:
        rows = {name: list(file[name][()]) for name in ("x", "flag", "z")}
    for begin, batch in zip((0, 3), batches_of(kind, dataset), strict=True):
        for name, fill in (("x", -1), ("flag", 1), ("z", 0)):
            wanted = rows[name][begin : begin + 3]
            longest = max(map(len, wanted))
            assert batch[name + "_length"].tolist() == [len(row) for row in wanted]
            assert batch[name].numpy().dtype == wanted[0].dtype
            padded = [np.pad(row, (0, longest - len(row)), constant_values=fill) for row in wanted]
            np.testing.assert_array_equal(batch[name], np.stack(padded))
    assert torch.equal(dataset[3]["x"], torch.tensor([0.0, 1.0, 2.0]))
    assert isinstance(next(iter(loader(of_varying_length, 2, columns=["x"]))).x, list)


@pytest.mark.parametrize(
    "again", [lambda sample: sample.copy(), copy.copy, lambda sample: pickle.loads(pickle.dumps(sample))]
)
def test_a_sample_that_was_copied_has_the_lengths_of_its_rows(molecules, again):
    dataset = H5Dataset(molecules, ["x"], rows=ROWS, pad=True)
    samples = [again(dataset[i]) for i in range(3)]
    assert {type(sample) for sample in samples} == {Sample}
    assert default_collate(samples).x[0].tolist() == [0, 1, 0, 0]
    for sample in samples:
        sample.x = sample.x[:2]
    assert default_collate(samples).x_length.tolist() == [2, 2, 2]
    for sample in samples:
        sample.x_length = torch.tensor(9)
    assert default_collate(samples).x_length.tolist() == [9, 9, 9]  # what a user sets stays


@pytest.mark.parametrize(
    "changed", [lambda x: x.requires_grad_(), lambda x: x.to("meta"), lambda x: x.to_sparse(), lambda x: x > 1]
)
def test_the_length_of_a_sample_is_that_of_its_shape(molecules, changed):
    dataset = H5Dataset(molecules, ["x"], rows=ROWS, pad=-1, transform=lambda sample: {"x": changed(sample.x)})
    assert [int(dataset[i].x_length) for i in range(3)] == [2, 3, 4]


def test_samples_without_padding_can_be_copied_and_sent(molecules):
    sample = H5Dataset(molecules, ["x", "id"], rows=ROWS, pad=True)[1]
    for found in (sample.copy(), copy.copy(sample), pickle.loads(pickle.dumps(sample))):
        assert type(found) is type(sample)
        batch = default_collate([found, H5Dataset(molecules, ["x", "id"], rows=ROWS, pad=True)[0]])
        assert batch.x.tolist() == [[0, 1, 2], [0, 1, 0]]


def test_a_column_that_is_named_has_lengths_where_all_rows_have_one_shape(tmp_path):
    """As in Ray, where rows of what a function returned may have one shape in each batch."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.arange(20.0).reshape(10, 2), np.arange(10)
    dataset = H5Dataset(tmp_path / "a.h5", pad={"x": 0.0, "y": 0})
    plain, changed = dataset, H5Dataset(tmp_path / "a.h5", pad={"x": 0.0, "y": 0}, transform=lambda sample: sample)
    assert plain[3].x_length == 2
    for made in (loader(plain, 4), loader(changed, 4), DataLoader(plain, 4), DataLoader(changed, 4)):
        for batch in made:
            assert {*batch} == {"x", "x_length", "y"}
            assert batch.x_length.tolist() == [2] * len(batch.x)
            assert batch.x.shape == (len(batch.y), 2)
