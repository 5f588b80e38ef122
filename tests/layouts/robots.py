"""Robots, and other episodes."""

import h5py
import numpy as np

from tests.layouts.kit import Want, layout, numbers, put


@layout("robomimic", "refused", "rows=ray_h5.Groups('data/demo_*')")
def robomimic(folder):
    for i, n in enumerate((5, 7, 6)):
        demo = {"actions": (n, 7), "dones": np.zeros(n), "rewards": np.zeros(n), "states": (n, 9)}
        for view in ("obs", "next_obs"):
            demo[f"{view}/robot0_eef_pos"] = numbers(n, 3, start=i)
            demo[f"{view}/agentview_image"] = np.zeros((n, 8, 8, 3), "u1")
        put(folder / "demo.hdf5", demo, below=f"data/demo_{i}")
        with h5py.File(folder / "demo.hdf5", "a") as file:
            file[f"data/demo_{i}"].attrs["num_samples"] = n
            file["data"].attrs["env_args"] = "{}"
    put(folder / "demo.hdf5", {"mask/train": ["demo_0", "demo_1"], "mask/valid": ["demo_2"]})
    return Want(3, {"obs/robot0_eef_pos": (1, numbers(7, 3, start=1))})


@layout("robomimic with demos of one length", "warned", "rows=ray_h5.Groups('data/demo_*')")
def equal_demos(folder):
    for i in range(12):
        put(folder / "demo.hdf5", {"actions": numbers(6, 7, start=i), "obs/pos": (6, 3)}, below=f"data/demo_{i}")
    return Want(12, {"actions": (11, numbers(6, 7, start=11))})


@layout("Isaac Lab", "refused", "rows=ray_h5.Groups('data/demo_*')")
def isaac_lab(folder):
    for i, n in enumerate((5, 9)):
        robot = "articulation/robot/joint_position"
        demo = {"actions": (n, 8), f"initial_state/{robot}": (1, 9), f"states/{robot}": (n, 9)}
        demo["states/rigid_object/cube/root_pose"] = numbers(n, 7, start=i)
        put(folder / "dataset.hdf5", demo, below=f"data/demo_{i}")
    return Want(2, {"states/rigid_object/cube/root_pose": (1, numbers(9, 7, start=1))})


@layout("ALOHA: a file an episode")
def aloha(folder):
    for i in range(3):
        n = 4 + i
        episode = {"action": numbers(n, 14, start=i), "observations/qpos": (n, 14), "observations/qvel": (n, 14)}
        images = {f"observations/images/{cam}": np.zeros((n, 6, 8, 3), "u1") for cam in ("cam_high", "cam_left_wrist")}
        put(folder / f"episode_{i}.hdf5", episode | images, sim=True)
    return Want(15, {"action": (4, numbers(14, start=1))})


@layout("LeRobot-like")
def lerobot(folder):
    frames = {"action": (30, 6), "observation.state": (30, 6), "timestamp": (30,), "index": np.arange(30)}
    frames |= {"episode_index": np.repeat([0, 1, 2], 10), "frame_index": np.tile(np.arange(10), 3)}
    put(folder / "a.h5", frames | {"task_index": np.zeros(30, int)})
    return Want(30, {"action": (4, numbers(30, 6)[4])})


@layout("D4RL", "refused", "columns=['actions', 'infos/qpos', 'observations', 'rewards', 'terminals', 'timeouts']")
def d4rl(folder):
    n = 40
    steps = {"observations": (n, 17), "actions": (n, 6), "rewards": (n,), "infos/qpos": (n, 9)}
    steps |= {"terminals": np.zeros(n, bool), "timeouts": np.arange(n) % 10 == 9}
    policy = {"policy/fc0/weight": (16, 17), "policy/fc0/bias": (16,), "policy/last_fc/weight": (6, 16)}
    put(folder / "halfcheetah.hdf5", steps)
    put(folder / "halfcheetah.hdf5", policy | {"algorithm": "SAC"}, below="metadata")
    return Want(n, {"observations": (3, numbers(n, 17)[3])})


@layout("Minari", "refused", "rows=ray_h5.Groups('episode_*')")
def minari(folder):
    for i, n in enumerate((5, 3, 8)):
        episode = {"actions": numbers(n, 2, start=i), "rewards": (n,)}
        episode |= {"observations/desired_goal": (n + 1, 2), "observations/observation": (n + 1, 4)}
        episode |= {"terminations": np.zeros(n, bool), "truncations": np.zeros(n, bool)}
        put(folder / "main_data.hdf5", episode, below=f"episode_{i}")
    return Want(3, {"actions": (2, numbers(8, 2, start=2))})


@layout("diffusion policy: ends of episodes", "refused", "columns=['data/action', 'data/state']")
def episode_ends(folder):
    put(folder / "a.h5", {"data/action": (30, 2), "data/state": (30, 5), "meta/episode_ends": [10, 18, 30]})
    return Want(30, {"data/action": (7, numbers(30, 2)[7])})


@layout("BridgeData: tasks of trajectories", "refused", "rows=ray_h5.Groups('*/traj*')")
def trajectories_of_tasks(folder):
    for number in range(12):
        task, i = ("close_drawer", "open_drawer", "stack_blocks")[number // 4], number % 4
        steps = {"actions": numbers(3 + i, 7, start=number + 1), "images0": np.zeros((3 + i, 4, 4, 3), "u1")}
        put(folder / "a.h5", steps, below=f"{task}/traj{i}")
    return Want(12, {"actions": (4, numbers(3, 7, start=5))})


@layout("TVSum: a video a group", "refused", "rows=ray_h5.Groups('video_*')")
def videos(folder):
    for i in range(1, 5):
        n = 5 + i
        video = {"features": numbers(n, 8, start=i), "gtscore": (n,), "user_summary": (20, 15 * n)}
        video |= {"n_frames": 15 * n, "picks": np.arange(n) * 15, "change_points": np.zeros((2 + i, 2), int)}
        put(folder / "tvsum.h5", video, below=f"video_{i}")
    return Want(4, {"features": (0, numbers(6, 8, start=1))})
