"""Columns that are likely samples: alike groups or datasets, each a sample or an episode.

Rows lie along the first axis of a dataset. With a group or a dataset for each sample, that axis is often time. Whether
alike columns are samples is a guess, made from their names, types and neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_h5.messages import common_pattern, printable
from ray_h5.planning.paths import natural_key

_MANY = 32
"""This many that are alike may be samples, whatever they are called; there are fewer leads or cameras."""

_NAMED_GROUPS = 5
"""This many groups with the same columns may be samples with names of their own, such as patients or molecules."""

_SHORT = 2
"""Letters of a name such as x1, V6 or u10, which says nothing of what is counted."""

_MAX_DEPTH = 32

_MAX_NAME = 60


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLES = _words_of(
    """sample example instance item entry record demo demonstration episode ep trial traj trajectory rollout run sim
    simulation sequence seq clip video scene molecule mol conformer conformation structure crystal graph protein ligand
    patient subject subj sub participant person user case study scan volume vol exam visit session recording rec trace
    shot event evt sweep epoch segment window batch frame cell spectrum spectra snapshot realization tile patch
    experiment flight track song utterance utt speaker doc document sentence galaxy star halo night day tree plant mouse
    animal"""
)
"""What samples and episodes are called."""

_PARTS = _words_of(
    """lead ch chan channel cam camera sensor imu probe electrode mic microphone antenna port detector station joint
    motor dof axis dim dimension component comp coeff mode level lev layer block conv dense band wavelength bin
    feature feat var variable col column field param parameter attr factor gene marker head class label target input
    output view crop scale agent robot arm hand finger leg foot gripper player team eeg ecg emg eog ppg acc accel gyro
    mag left right top bottom front back wrist high low x y z mean std min max fold qpos qvel pos vel rot rgb depth"""
)
"""What parts of one sample are called: channels, sensors, views, fields."""

_AXES = _words_of("t time times timestamp timestamps date f freq frequency frequencies wavelength wavelengths")
"""Columns that samples of one length may share."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Groups or datasets that are likely samples.

    Attributes
    ----------
    names : tuple of str
        Their names, sorted, below `parent`.
    parent : str
        The group that they are in; empty for the group that is read.
    are_groups : bool
        Whether they are groups.
    """

    names: tuple[str, ...]
    parent: str
    are_groups: bool

    @property
    def rows(self) -> str:
        """The argument that makes rows of them."""
        pattern = f"{self.parent}/{common_pattern(self.names)}".strip("/")
        return f"rows=ray_h5.Groups({pattern!r})"

    def __str__(self) -> str:
        first, last = (_short(name) for name in (self.names[0], self.names[-1]))
        where = f"{printable(self.parent)}/" if self.parent else ""
        return f"{where}{first} ... {last}: {len(self.names)} {'groups' if self.are_groups else 'columns'} alike"


def likely_samples(columns: Mapping[str, tuple[Hashable, Hashable]]) -> Alike | None:
    """Return the groups or datasets that are likely samples; None if there are none.

    Parameters
    ----------
    columns : mapping of str to tuple
        By the name of each column: its dtype, and the shape of a row.
    """
    tree: dict[str, Any] = {}
    for name, found in columns.items():
        *groups, last = name.split("/", _MAX_DEPTH)
        here = tree
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = found
    level: list[tuple[str, Mapping[str, Any]]] = [("", tree)]
    while level:
        for parent, nodes in level:
            for alike in _alike(parent, nodes):
                return alike
        level = [(f"{parent}/{name}".strip("/"), node) for parent, nodes in level for name, node in _groups(nodes)]
    return None


def _groups(nodes: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((name, node) for name, node in nodes.items() if isinstance(node, dict))


def _alike(parent: str, nodes: Mapping[str, Any]) -> Iterator[Alike]:
    """Yield the nodes of one group that are likely samples."""
    sets: dict[tuple[str, tuple[bool, Hashable]], list[str]] = {}
    named: dict[Hashable, list[str]] = {}
    for name, node in nodes.items():
        is_group = isinstance(node, dict)
        # Samples in groups may differ in the shapes of their rows, as molecules do in their atoms.
        like = (is_group, _structure(node) if is_group else node)
        sets.setdefault((re.sub(r"\d+", "#", name), like), []).append(name)
        if is_group:
            named.setdefault(like, []).append(name)
    for (_, (is_group, _)), names in sets.items():
        if len(names) > 1 and _are_samples(names, is_group, [each for each in nodes if each not in names]):
            yield Alike(tuple(sorted(names, key=natural_key)), parent, is_group)
    for names in named.values():
        most = 2 if all(re.search(r"\d", name) for name in names) and not _short_names(names) else _NAMED_GROUPS
        if len(names) >= most and (len(names) >= _MANY or not any(_PARTS & set(_words(name)) for name in names)):
            yield Alike(tuple(sorted(names, key=natural_key)), parent, are_groups=True)


def _structure(node: Mapping[str, Any]) -> Hashable:
    """Return what is equal for groups with the same columns of the same dtypes."""
    return frozenset((name, _structure(each) if isinstance(each, dict) else each[0]) for name, each in node.items())


def _are_samples(names: Sequence[str], are_groups: bool, others: Sequence[str]) -> bool:
    """Return whether names that differ in a number are those of samples."""
    if len(names) >= _MANY:
        return True
    before, words = _counted(names), set(_words(names[0]))
    if not words or before in _SAMPLES:
        return True  # a number, or a date, alone
    if before in _PARTS or words & _PARTS:
        return False
    if words & _SAMPLES or are_groups:
        return True
    # A column that is no axis, such as a label, has a value for each row: the rows are samples already.
    return len(before) > _SHORT and all(set(_words(each)) & _AXES for each in others)


def _counted(names: Sequence[str]) -> str:
    """Return the word before the first number that differs."""
    one, other = (re.split(r"(\d+)", name) for name in names[:2])
    at = next((i for i in range(1, len(one), 2) if one[i] != other[i]), 1)
    words = [word for part in one[:at:2] for word in _words(part)]
    return words[-1] if words else ""


def _words(name: str) -> list[str]:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_a-zA-Z]+", name)
    lower = [part.lower() for part in parts]
    return [word[:-1] if word.endswith("s") and word[:-1] in _SAMPLES | _PARTS else word for word in lower]


def _short_names(names: Sequence[str]) -> bool:
    return all(len("".join(_words(name))) <= _SHORT for name in names)


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."
