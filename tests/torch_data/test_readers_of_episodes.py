"""Windows give, item for item, what the readers give that people have for episodes: these are written out plainly here.

robomimic's SequenceDataset, and LeRobot's delta_timestamps.
"""

import itertools

import h5py
import numpy as np
import pytest

from ray_h5 import Groups, H5Dataset, Windows, row_mask, where
from ray_h5.errors import OptionError

# robomimic --------------------------------------------------------------------------------------

DEMO_LENGTHS = {"demo_0": 6, "demo_1": 3, "demo_2": 9, "demo_10": 4}


def write_demos(path):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, length in DEMO_LENGTHS.items():
            demo = file.create_group(f"data/{name}")
            demo.attrs["num_samples"] = length
            demo["actions"] = rng.normal(size=(length, 7))
            demo["rewards"] = rng.normal(size=length)
            demo.create_dataset("obs/image", data=rng.integers(0, 255, (length, 4, 4, 3), "u1"), chunks=(1, 4, 4, 3))
            demo["obs/eef"] = rng.normal(size=(length, 3)).astype("f4")
        file["mask/train"] = [b"demo_10", b"demo_2", b"demo_0"]


def robomimic_items(path, *, frame_stack, seq_length, pad_frame_stack, pad_seq_length, mask=None):
    """Yield the items of a SequenceDataset: one index set for observations and actions, padded with edge values."""
    with h5py.File(path) as file:
        names = [name.decode() for name in file[f"mask/{mask}"]] if mask else list(file["data"])
        for name in sorted(names, key=lambda name: int(name[5:])):
            demo = file["data"][name]
            length = demo.attrs["num_samples"]
            count = length
            if not pad_frame_stack:
                count -= frame_stack - 1
            if not pad_seq_length:
                count -= seq_length - 1
            for number in range(max(count, 0)):
                t = number + (0 if pad_frame_stack else frame_stack - 1)
                begin, end = max(0, t - (frame_stack - 1)), min(length, t + seq_length)
                pads = max(0, (frame_stack - 1) - t), max(0, t + seq_length - length)
                mask_of = np.array([False] * pads[0] + [True] * (end - begin) + [False] * pads[1])[:, None]
                item = {"pad_mask": mask_of}
                for key in ("actions", "rewards", "obs/image", "obs/eef"):
                    values = demo[key][begin:end]
                    first, last = [values[:1]] * pads[0], [values[-1:]] * pads[1]
                    item[key] = np.concatenate([*first, values, *last])
                yield item


@pytest.mark.parametrize(("pad_frame_stack", "pad_seq_length"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize(("frame_stack", "seq_length", "mask"), [(2, 3, None), (1, 5, "train"), (3, 16, None)])
def test_robomimic(tmp_path, frame_stack, seq_length, pad_frame_stack, pad_seq_length, mask):
    path = tmp_path / "demos.hdf5"
    write_demos(path)
    options = {"frame_stack": frame_stack, "seq_length": seq_length, "mask": mask}
    expected = list(robomimic_items(path, pad_frame_stack=pad_frame_stack, pad_seq_length=pad_seq_length, **options))
    steps = range(-(frame_stack - 1), seq_length)
    keys = ["actions", "rewards", "obs/image", "obs/eef"]
    windows = Windows(
        dict.fromkeys(keys, steps),
        pad=("edge" if pad_frame_stack else "drop", "edge" if pad_seq_length else "drop"),
    )
    rows = Groups("data/demo_*", attrs=("num_samples",))
    predicate = where(**{f"mask/{mask}": row_mask()}) if mask else None
    if not expected:
        with pytest.raises(OptionError, match=r"a row needs 1[68] steps"):
            H5Dataset(path, rows=rows, windows=windows, predicate=predicate)
        return
    pads = pad_frame_stack or pad_seq_length
    columns = [*keys, *(["actions_is_pad"] if pads else [])]
    dataset = H5Dataset(path, columns, predicate, rows=rows, windows=windows)
    assert len(dataset) == len(expected)
    for item, other in zip(dataset, expected, strict=True):
        for key in keys:
            assert item[key].numpy().dtype == other[key].dtype
            np.testing.assert_array_equal(item[key].numpy(), other[key])
        if pads:
            np.testing.assert_array_equal(~item["actions_is_pad"].numpy()[:, None], other["pad_mask"])
        else:
            assert other["pad_mask"].all()


# LeRobot ----------------------------------------------------------------------------------------


def lerobot_items(columns, episode_index, delta_timestamps, fps):
    """Yield the items of a LeRobotDataset: offsets in seconds, clipped to the episode."""
    ends = np.flatnonzero(np.diff(episode_index, append=episode_index[-1] + 1)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    for idx, number in enumerate(episode_index):
        episode = np.flatnonzero(np.unique(episode_index) == number)[0]
        item = {}
        for key, values in columns.items():
            if key not in delta_timestamps:
                item[key] = values[idx]
                continue
            deltas = [round(seconds * fps) for seconds in delta_timestamps[key]]
            low, high = starts[episode], ends[episode]
            item[key] = np.stack([values[max(low, min(high - 1, idx + delta))] for delta in deltas])
            item[f"{key}_is_pad"] = np.array([not low <= idx + delta < high for delta in deltas])
        yield item


@pytest.mark.parametrize("fps", [10, 30, 29.97])
def test_lerobot(tmp_path, fps):
    rng = np.random.default_rng(1)
    lengths = [5, 1, 8, 3]
    episode_index = np.repeat(np.arange(4), lengths)
    columns = {
        "observation.state": rng.normal(size=(17, 6)).astype("f4"),
        "action": rng.normal(size=(17, 2)).astype("f4"),
        "timestamp": np.concatenate([np.arange(n) / fps for n in lengths]).astype("f4"),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["episode_index"] = episode_index
        for name, values in columns.items():
            file[name] = values
    deltas = {"observation.state": [-3 / fps, -1 / fps, 0], "action": [i / fps for i in range(4)]}
    expected = list(lerobot_items(columns, episode_index, deltas, fps))
    dataset = H5Dataset(tmp_path / "a.h5", windows=Windows(deltas, fps=fps, episode="episode_index"))
    assert len(dataset) == len(expected)
    for item, other in zip(dataset, expected, strict=True):
        for key, values in other.items():
            np.testing.assert_array_equal(np.asarray(item[key]), values, err_msg=key)


def test_offsets_in_seconds_that_are_no_step():
    with pytest.raises(OptionError, match=r"0.05 s is 0.5000 steps at fps=10; expected a whole number"):
        Windows({"action": [0.05]}, fps=10)
    assert Windows({"action": [0.10005]}, fps=10).columns[0].offsets == (1,)
    with pytest.raises(OptionError, match="steps at fps"):
        Windows({"action": [0.10011]}, fps=10)
