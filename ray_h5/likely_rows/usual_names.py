"""What samples, parts of samples, axes and splits are called."""

from __future__ import annotations

import re


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


SAMPLES = _words_of(
    """sample example instance item entry record demo demonstration episode ep trial traj trajectory rollout run sim
    simulation sequence seq clip video scene molecule mol conformer conformation structure crystal graph protein ligand
    patient subject subj sub participant person user case study scan volume vol exam visit session recording rec trace
    shot event evt sweep epoch segment window batch frame cell spectrum spectra snapshot realization tile patch
    experiment flight track song utterance utt speaker doc document sentence galaxy star halo night day tree plant mouse
    animal img"""
)
"""What samples and episodes are called."""

PARTS = _words_of(
    """lead ch chan channel cam camera sensor imu probe electrode mic microphone antenna port detector station joint
    motor dof axis dim dimension component comp coeff mode level lev layer block conv dense band wavelength bin
    feature feat var variable col column field param parameter attr factor gene marker head class label target input
    output view crop scale agent robot arm hand finger leg foot gripper player team eeg ecg emg eog ppg acc accel gyro
    mag left right top bottom front back wrist high low x y z mean std min max fold qpos qvel pos vel rot rgb depth
    resolution setup"""
)
"""What parts of one sample are called: channels, sensors, views, fields."""

AXES = _words_of("t time times timestamp timestamps date f freq frequency frequencies wavelength wavelengths")
"""Columns that samples of one length may share."""

OF_IMAGES = _words_of("image images img mask masks seg segmentation label labels annotation slice climate scene target")
"""What the columns of one image are called."""

TARGETS = _words_of(
    """mask masks msk msks seg segs segmentation segmentations label labels lbl lbls annotation annotations anno annos
    target targets gt gts truth"""
)
"""What the groups of targets are called, beside those of inputs."""

OF_VOLUMES = _words_of("raw volume volumes vol em ct mri tomogram stack")
"""What arrays are called of which samples are blocks."""

FEATURES = _words_of("feature features feat feats embedding embeddings")
"""What the columns of a bag are called, as of a slide."""

SPLITS = ("train", "training", "tr", "valid", "validation", "val", "dev", "test", "testing", "te")

OFFSETS = _words_of("offset offsets indptr ptr splits seqlens")
STARTS = _words_of("start starts begin first")
COUNTS = _words_of("count counts length lengths")
BOUNDS = _words_of("bounds boxes ranges spans boundaries window")
"""What integers are called that say where the values of each row are."""

START_FIELDS = _words_of("start begin first index pos position offset")
COUNT_FIELDS = _words_of("n_items nitems n num count length len size")
END_FIELDS = _words_of("stop end")
"""What fields of tables are called that say where the values of each row are."""

TIMES = _words_of("t time times timestamp timestamps")
ENDS = _words_of("episode_ends episode_end ep_ends ep_end traj_ends")
EPISODE_STARTS = _words_of(
    "episode_starts episode_start episode_offsets ep_offset ep_offsets ep_start ep_starts traj_starts traj_offsets"
)
EPISODE_LENGTHS = _words_of(
    """episode_lengths episode_length episode_lens episode_len ep_len ep_lens ep_length ep_lengths traj_lengths
    traj_length traj_lens"""
)
FLAGS = _words_of("terminals timeouts terminal done dones truncations terminations is_last")
EPISODES = _words_of("episode_id episode_index episode traj_id trajectory_id")

EVENTS = _words_of("event_id event_index event_number eventid event_no evt_id evtid frame_id sample_id sample_index")
"""What says which entries belong together, of samples that are several entries: hits of an event."""


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case; those that are known in the singular."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_a-zA-Z]+", name)
    lower = [part.lower() for part in parts]
    return [word[:-1] if word.endswith("s") and word[:-1] in SAMPLES | PARTS else word for word in lower]


def last(name: str) -> str:
    """Return the last name of a path, in lower case."""
    return name.rsplit("/", 1)[-1].lower()
