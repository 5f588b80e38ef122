"""Robots, and other episodes."""

import h5py
import numpy as np

from tests.layouts.kit import Want, layout, numbers, put


@layout("robomimic", "refused", "rows=ray_h5.Groups('data/demo_*')")
def robomimic(folder):
    lengths = (5, 7, 6)
    for i, n in enumerate(lengths):
        demo = {"actions": numbers(n, 7), "dones": np.zeros(n), "rewards": np.zeros(n), "states": numbers(n, 9)}
        for view in ("obs", "next_obs"):
            demo |= {
                f"{view}/robot0_eef_pos": numbers(n, 3, start=i),
                f"{view}/agentview_image": np.zeros((n, 8, 8, 3), "u1"),
            }
        put(folder / "demo.hdf5", {f"data/demo_{i}/{name}": each for name, each in demo.items()})
    put(folder / "demo.hdf5", {"mask/train": ["demo_0", "demo_1"], "mask/valid": ["demo_2"]})
    with h5py.File(folder / "demo.hdf5", "a") as file:
        file["data"].attrs["env_args"] = "{}"
        for i, n in enumerate(lengths):
            file[f"data/demo_{i}"].attrs["num_samples"] = n
    return Want(3, {"obs/robot0_eef_pos": (1, numbers(7, 3, start=1))})


@layout("robomimic with demos of one length", "warned", "rows=ray_h5.Groups('data/demo_*')")
def equal_demos(folder):
    for i in range(12):
        put(
            folder / "demo.hdf5",
            {f"data/demo_{i}/actions": numbers(6, 7, start=i), f"data/demo_{i}/obs/pos": numbers(6, 3)},
        )
    return Want(12, {"actions": (11, numbers(6, 7, start=11))})


@layout("Isaac Lab", "refused", "rows=ray_h5.Groups('data/demo_*')")
def isaac_lab(folder):
    for i, n in enumerate((5, 9)):
        put(
            folder / "dataset.hdf5",
            {
                f"data/demo_{i}/actions": numbers(n, 8),
                f"data/demo_{i}/initial_state/articulation/robot/joint_position": numbers(1, 9),
                f"data/demo_{i}/states/articulation/robot/joint_position": numbers(n, 9),
                f"data/demo_{i}/states/rigid_object/cube/root_pose": numbers(n, 7, start=i),
            },
        )
    return Want(2, {"states/rigid_object/cube/root_pose": (1, numbers(9, 7, start=1))})


@layout("ALOHA: a file an episode")
def aloha(folder):
    for i in range(3):
        n = 4 + i
        arrays = {
            "action": numbers(n, 14, start=i),
            "observations/qpos": numbers(n, 14),
            "observations/qvel": numbers(n, 14),
        }
        arrays |= {f"observations/images/{cam}": np.zeros((n, 6, 8, 3), "u1") for cam in ("cam_high", "cam_left_wrist")}
        put(folder / f"episode_{i}.hdf5", arrays, sim=True)
    return Want(15, {"action": (4, numbers(14, start=1))})


@layout("LeRobot-like")
def lerobot(folder):
    put(
        folder / "a.h5",
        {
            "action": numbers(30, 6),
            "observation.state": numbers(30, 6),
            "timestamp": numbers(30),
            "episode_index": np.repeat([0, 1, 2], 10),
            "frame_index": np.tile(np.arange(10), 3),
            "index": np.arange(30),
            "task_index": np.zeros(30, int),
        },
    )
    return Want(30, {"action": (4, numbers(30, 6)[4])})


@layout("D4RL", "refused", "columns=['actions', 'infos/qpos', 'observations', 'rewards', 'terminals', 'timeouts']")
def d4rl(folder):
    n = 40
    put(
        folder / "halfcheetah.hdf5",
        {
            "observations": numbers(n, 17),
            "actions": numbers(n, 6),
            "rewards": numbers(n),
            "infos/qpos": numbers(n, 9),
            "terminals": np.zeros(n, bool),
            "timeouts": np.arange(n) % 10 == 9,
            "metadata/policy/fc0/weight": numbers(16, 17),
            "metadata/policy/fc0/bias": numbers(16),
            "metadata/policy/last_fc/weight": numbers(6, 16),
            "metadata/algorithm": "SAC",
        },
    )
    return Want(n, {"observations": (3, numbers(n, 17)[3])})


@layout("Minari", "refused", "rows=ray_h5.Groups('episode_*')")
def minari(folder):
    for i, n in enumerate((5, 3, 8)):
        put(
            folder / "main_data.hdf5",
            {
                f"episode_{i}/actions": numbers(n, 2, start=i),
                f"episode_{i}/observations/desired_goal": numbers(n + 1, 2),
                f"episode_{i}/observations/observation": numbers(n + 1, 4),
                f"episode_{i}/rewards": numbers(n),
                f"episode_{i}/terminations": np.zeros(n, bool),
                f"episode_{i}/truncations": np.zeros(n, bool),
            },
        )
    return Want(3, {"actions": (2, numbers(8, 2, start=2))})


@layout("diffusion policy: ends of episodes", "refused", "columns=['data/action', 'data/state']")
def episode_ends(folder):
    put(
        folder / "a.h5",
        {"data/action": numbers(30, 2), "data/state": numbers(30, 5), "meta/episode_ends": [10, 18, 30]},
    )
    return Want(30, {"data/action": (7, numbers(30, 2)[7])})


@layout("BridgeData: tasks of trajectories", "refused", "rows=ray_h5.Groups('*/traj*')")
def trajectories_of_tasks(folder):
    number = 0
    for task in ("close_drawer", "open_drawer", "stack_blocks"):
        for i in range(4):
            number += 1
            group = f"{task}/traj{i}"
            put(
                folder / "a.h5",
                {
                    f"{group}/actions": numbers(3 + i, 7, start=number),
                    f"{group}/images0": np.zeros((3 + i, 4, 4, 3), "u1"),
                },
            )
    return Want(12, {"actions": (4, numbers(3, 7, start=5))})


@layout("TVSum: a video a group", "refused", "rows=ray_h5.Groups('video_*')")
def videos(folder):
    for i in range(1, 5):
        n = 5 + i
        put(
            folder / "tvsum.h5",
            {
                f"video_{i}/features": numbers(n, 8, start=i),
                f"video_{i}/gtscore": numbers(n),
                f"video_{i}/n_frames": 15 * n,
                f"video_{i}/picks": np.arange(n) * 15,
                f"video_{i}/user_summary": numbers(20, 15 * n),
                f"video_{i}/change_points": np.zeros((2 + i, 2), int),
            },
        )
    return Want(4, {"features": (0, numbers(6, 8, start=1))})
