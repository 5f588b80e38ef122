"""The adapter for LeRobot has the samples, metadata and losses of the LeRobotDataset that a conversion makes."""

import json
import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.docs.pages import ROOT

from .conftest import ADAPTERS

pytest.importorskip("lerobot")

import lerobot_h5
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.sampler import EpisodeAwareSampler
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.factory import make_policy, make_pre_post_processors

# lerobot, transformers and datasets warn of themselves and of each other.
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

FPS, LENGTHS, SIDE = 10, [9, 4, 12], 32
CAMERA, STATE = "observation.images.top", "observation.state"


@pytest.fixture(params=["aloha", "robomimic"])
def robot(request, tmp_path):
    """Episodes, and the options that read them from files."""
    rng = np.random.default_rng(0)
    episodes = [
        {
            CAMERA: rng.integers(0, 256, (length, SIDE, SIDE, 3), "u1"),
            STATE: rng.standard_normal((length, 5)).astype("f4"),
            "action": rng.standard_normal((length, 3)),
        }
        for length in LENGTHS
    ]
    if request.param == "aloha":
        sources = {CAMERA: "observations/images/top", STATE: "observations/qpos", "action": "action"}
        places = [(f"episode_{number}.hdf5", "/") for number in range(len(LENGTHS))]
        options = {"paths": [str(tmp_path / name) for name, _ in places]}
    else:
        sources = {CAMERA: "obs/agentview_image", STATE: "obs/robot0_eef", "action": "actions"}
        places = [("demo.hdf5", f"data/demo_{number}") for number in range(len(LENGTHS))]
        options = {"paths": str(tmp_path / "demo.hdf5"), "groups": "data/demo_*"}
    for (name, group), episode in zip(places, episodes, strict=True):
        with h5py.File(tmp_path / name, "a") as file:
            for key, source in sources.items():
                file[f"{group}/{source}"] = episode[key]
    return episodes, {**options, "features": sources, "fps": FPS, "task": "push"}


@pytest.fixture
def converted(robot, tmp_path, monkeypatch):
    """The same episodes in LeRobot's format, with images, by its own writer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    features = {
        CAMERA: {"dtype": "image", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]},
        STATE: {"dtype": "float32", "shape": (5,), "names": None},
        "action": {"dtype": "float32", "shape": (3,), "names": None},
    }
    root = tmp_path / "converted"
    writer = LeRobotDataset.create("a/b", FPS, features, root=root, use_videos=False)
    for episode in robot[0]:
        for step in range(len(episode["action"])):
            frame = {key: values[step] for key, values in episode.items()}
            writer.add_frame(frame | {"action": frame["action"].astype("f4"), "task": "push"})
        writer.save_episode()
    writer.finalize()
    return lambda **options: LeRobotDataset("a/b", root=root, **options)


def check_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert (value.shape, value.dtype) == (other[key].shape, other[key].dtype), key
            assert torch.equal(value, other[key]), key
        else:
            assert value == other[key], key


DELTAS = {CAMERA: [-0.1, 0.0], "action": [-0.2, 0.0, 0.1, 0.5]}


def test_samples_and_metadata_are_those_of_a_conversion(robot, converted):
    for deltas in (None, DELTAS):
        theirs = converted(delta_timestamps=deltas)
        ours = lerobot_h5.RobotDataset(**robot[1], delta_timestamps=deltas)
        assert (len(ours), ours.num_episodes) == (len(theirs), theirs.num_episodes) == (sum(LENGTHS), len(LENGTHS))
        for i in range(len(theirs)):
            check_equal(theirs[i], ours[i])
        check_equal(*(next(iter(DataLoader(each, 8, num_workers=2))) for each in (theirs, ours)))
    one, other = theirs.meta, ours.meta
    assert {key: (each["dtype"], tuple(each["shape"])) for key, each in one.features.items()} == {
        key: (each["dtype"], tuple(each["shape"])) for key, each in other.features.items()
    }
    assert one.camera_keys == other.camera_keys == [CAMERA]
    for name in ("dataset_from_index", "dataset_to_index"):
        assert list(one.episodes[name]) == list(other.episodes[name])
    assert one.stats.keys() == other.stats.keys()
    for key, of_key in one.stats.items():
        for name, values in of_key.items():
            np.testing.assert_allclose(np.asarray(values), np.asarray(other.stats[key][name]), 1e-6, 1e-7, err_msg=key)


def test_act_trains_on_it_with_the_losses_of_a_conversion(robot, converted):
    def losses(make):
        config = ACTConfig(
            chunk_size=4, n_action_steps=4, dim_model=16, n_heads=2, dim_feedforward=16, latent_dim=4,
            n_encoder_layers=1, n_vae_encoder_layers=1, pretrained_backbone_weights=None, device="cpu",
            push_to_hub=False, optimizer_lr=1e-3,
        )  # fmt: skip
        dataset = make(config)
        torch.manual_seed(0)
        policy = make_policy(config, ds_meta=dataset.meta)
        prepare, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
        optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-3)
        bounds = (list(dataset.meta.episodes[name]) for name in ("dataset_from_index", "dataset_to_index"))
        batches = DataLoader(dataset, 4, sampler=EpisodeAwareSampler(*bounds, shuffle=True), drop_last=True)
        policy.train()
        found = []
        while len(found) < 10:
            for batch in batches:
                loss, _ = policy.forward(prepare(batch))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
        return found[:10]

    deltas = {"action": [i / FPS for i in range(4)]}
    theirs = losses(lambda _: converted(delta_timestamps=deltas))
    ours = losses(lambda config: lerobot_h5.RobotDataset(**robot[1], policy=config))
    assert ours[-1] < ours[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


PROGRAM = """
import json, sys
from lerobot.scripts import lerobot_train
options = json.loads(sys.argv.pop(1))
if options:
    import lerobot_h5
    lerobot_train.make_dataset = lambda config: lerobot_h5.RobotDataset(**options, policy=config.policy)
lerobot_train.main()
"""


@pytest.mark.parametrize("robot", ["aloha"], indirect=True)
def test_its_training_program_takes_the_dataset(robot, converted, tmp_path):
    root = str(converted().root)
    small = {"chunk_size": 4, "n_action_steps": 4, "dim_model": 16, "n_heads": 2, "dim_feedforward": 16}
    policy = {"type": "act", "device": "cpu", "push_to_hub": "false", "pretrained_backbone_weights": "null", **small}
    run = {"dataset.repo_id": "a/b", "dataset.root": root, "dataset.use_imagenet_stats": "false"}
    run |= {"steps": 2, "batch_size": 4, "num_workers": 0, "log_freq": 1}
    words = [f"--{name}={value}" for name, value in (run | {f"policy.{name}": policy[name] for name in policy}).items()]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ADAPTERS}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    losses = []
    for name, options in (("theirs", {}), ("ours", robot[1])):
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(options), *words, f"--output_dir={name}"]
        done = subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        losses.append(re.findall(r"loss:([\d.]+)", done.stdout + done.stderr))
        assert list((tmp_path / name).glob("checkpoints/000002/pretrained_model/model.safetensors"))
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]
