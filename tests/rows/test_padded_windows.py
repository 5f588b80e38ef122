"""Windows of rows of varying length, padded: equal to numpy in each kind of batch."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ray_h5 import Groups, H5Dataset, RayH5Error, TorchCollate, Windows, loader, ragged
from ray_h5.plan.blocks import Block
from ray_h5.plan.row_source import read_rows
from ray_h5.ray_data.arrow.blocks import to_table
from tests.properties import few


def same(sample):
    return sample


def padded(rows, fill, dtype, rest):
    """Return windows of arrays as one array, and the length of each array."""
    lengths = np.array([[len(each) for each in row] for row in rows])
    out = np.full((*lengths.shape, lengths.max(initial=0), *rest), fill, dtype)
    for i, row in enumerate(rows):
        for j, each in enumerate(row):
            out[i, j, : len(each)] = each
    return out, lengths


def write(path, counts, dtype, rest, *, in_groups):
    """Write ragged rows, of one episode or of two groups; return their values by episode."""
    rng, episodes = np.random.default_rng(0), []
    with h5py.File(path, "w") as file:
        for name in ("g0", "g1") if in_groups else ("",):
            group = file.require_group(f"/{name}")
            rows = [(rng.random((count, *rest)) * 9).astype(dtype) for count in counts]
            group["x"] = np.concatenate([*rows, np.empty((0, *rest), dtype)])
            group["ends"], group["t"] = np.cumsum(counts), np.arange(len(counts))
            group.create_dataset("words", data=np.array([b"w"] * sum(counts), "S2"))
            episodes.append(rows)
    return episodes


@few(5)
@given(
    counts=st.lists(st.integers(0, 4), min_size=2, max_size=6),
    dtype=st.sampled_from(["f4", "i8"]),
    rest=st.sampled_from([(), (2,), (2, 3)]),
    in_groups=st.booleans(),
    offsets=st.lists(st.integers(-2, 2), min_size=1, max_size=3),
    end=st.sampled_from(["edge", "zero"]),
    pad=st.sampled_from([True, 7, {"x": -1}]),
)
def test_equal_to_numpy(tmp_path_factory, counts, dtype, rest, in_groups, offsets, end, pad):
    path = tmp_path_factory.mktemp("padded") / "a.h5"
    episodes = write(path, counts, dtype, rest, in_groups=in_groups)
    empty = np.empty((0, *rest), dtype)
    expected = []
    for rows in episodes:
        for t in range(len(rows)):
            steps = [t + each for each in offsets]
            inside = [0 <= each < len(rows) or end == "edge" for each in steps]
            clipped = np.clip(steps, 0, len(rows) - 1).tolist()
            expected.append([rows[each] if there else empty for each, there in zip(clipped, inside, strict=True)])
    options = {"rows": Groups("g*") if in_groups else None, "windows": Windows({"x": offsets}, pad=end)}
    dataset = H5Dataset(path, [ragged("x", ends="ends")], **options, pad=pad)
    fill = pad["x"] if isinstance(pad, dict) else 0 if pad is True else pad
    batches = [range(at, min(at + 3, len(expected))) for at in range(0, len(expected), 3)]
    with_transform = H5Dataset(path, [ragged("x", ends="ends")], **options, pad=pad, transform=same)
    plan = dataset._source.plan
    kinds = {
        "loader": loader(dataset, 3, shuffle=False),
        "samples": DataLoader(with_transform, 3),
        "transform": loader(with_transform, 3, shuffle=False),
        "ray": (
            TorchCollate(padding=pad)(to_table(plan, Block(read_rows(plan, np.array(each)), np.array(each), 0), ["x"]))
            for each in batches
        ),
    }
    for kind, found in kinds.items():
        for batch, each in zip(found, batches, strict=True):
            values, lengths = padded([expected[i] for i in each], fill, dtype, rest)
            assert np.array_equal(batch["x_length"].numpy(), lengths), kind
            assert np.array_equal(batch["x"].numpy(), values), kind
            assert batch["x"].numpy().dtype == np.dtype(dtype)


def test_text_stays_a_list_and_wrong_fills_are_named(tmp_path):
    write(tmp_path / "a.h5", [2, 0, 3], "u1", (), in_groups=False)
    columns = [ragged("x", ends="ends"), ragged("words", ends="ends")]
    windows = Windows({"x": [0, 1], "words": [0, 1]}, pad="drop")
    batch = next(iter(loader(tmp_path / "a.h5", 2, columns=columns, windows=windows, pad=True, shuffle=False)))
    assert batch["x"].shape == (2, 2, 3)
    assert "words_length" not in batch
    with pytest.raises(RayH5Error, match="only numbers can be padded"):
        H5Dataset(tmp_path / "a.h5", columns, windows=windows, pad={"words": 0})
    with pytest.raises(RayH5Error, match="has dtype uint8, which cannot hold -1"):
        H5Dataset(tmp_path / "a.h5", columns, windows=windows, pad={"x": -1})
