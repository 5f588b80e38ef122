"""What the shapes of columns say: images, volumes, bags, steps of time, rows along the last axis."""

from __future__ import annotations

from collections.abc import Mapping

from ray_h5.likely_rows.tree import Seen
from ray_h5.likely_rows.usual_names import FEATURES, OF_IMAGES, OF_VOLUMES, TIMES, last, words

_IMAGE_COLUMNS, _IMAGE_SIDE, _IMAGE_RATIO, _IMAGE_CHANNELS = 2, 32, 4, 32
"""Least columns of an image and pixels of a side; most times that one side is the other, and channels."""

_VOLUME_AXES, _VOLUME_SIDE, _BLOCK_SIDE, _MOST_COLOURS = 3, 32, 64, 4
"""Axes of a volume; least length of two of them; length of a block; a shorter axis is the colours of an image."""

_FEW_NUMBERS = 16
"""Numbers about a volume are no more."""


def is_image(columns: Mapping[str, Seen]) -> bool:
    """Return whether the columns of a file are likely one image, with its mask or labels: their rows are its lines."""
    shapes = [column.shape for column in columns.values()]
    sides = {shape[:2] for shape in shapes}
    side = [n or 0 for n in min(sides, key=len)]
    channels = [(shape[2] or 0) if len(shape) == len("HWC") else 0 for shape in shapes]
    is_flat = {*map(len, shapes)} <= {len("HW"), len("HWC")} and max(channels) <= _IMAGE_CHANNELS
    is_named = any(OF_IMAGES & {*words(name)} for name in columns)
    is_picture = len(side) == len("HW") and min(side) >= _IMAGE_SIDE and max(side) <= _IMAGE_RATIO * min(side)
    return len(columns) >= _IMAGE_COLUMNS and len(sides) == 1 and is_picture and is_flat and is_named


def is_one_array(columns: Mapping[str, Seen]) -> bool:
    """Return whether a file is likely one image or volume: its one array has axes of one length.

    A table of people or measurements rarely has as many lines as columns, and so in each of many files.
    """
    if len(columns) != 1:
        return False
    (shape,) = (column.shape for column in columns.values())
    has_colours = len(shape) == len("HWC") and (shape[2] or 0) <= _MOST_COLOURS
    axes = {*(shape[:2] if has_colours else shape)}
    return len(shape) in {len("HW"), _VOLUME_AXES} and len(axes) == 1 and (shape[0] or 0) >= _IMAGE_SIDE


def is_bag(columns: Mapping[str, Seen]) -> bool:
    """Return whether the columns of a file are likely one bag of features, without a label a row."""
    is_labelled = any(len(column.shape) == 1 for column in columns.values())
    return not is_labelled and any(FEATURES & {*words(name)} for name in columns)


def block_of(columns: Mapping[str, Seen], *, differ: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the arrays of a volume and the shape of a block of each; nothing if the columns are no volume.

    With `differ`, files have other shapes, and names say less.
    """
    volumes = {name: column for name, column in columns.items() if len(column.shape) >= _VOLUME_AXES}
    if not volumes:
        return {}
    named = any(OF_VOLUMES & (set(words(name)) | {*name.lower().split("/")}) for name in columns)
    shape = min((volume.shape for volume in volumes.values()), key=len)[:_VOLUME_AXES]
    # Channels before the axes of a volume, such as those of BraTS, beside an array without them.
    channels = [volume for volume in volumes.values() if volume.shape != shape and volume.shape[1:] == shape]
    plain = all(volume.shape == shape or volume in channels for volume in volumes.values())
    if not plain or not (named or differ or channels) or None in shape[1:] or shape[0] is None:
        return {}
    # Other columns are a few numbers about a volume, such as its spacing.
    others = [column for name, column in columns.items() if name not in volumes]
    if any(len(column.shape) != 1 or column.rows == shape[0] or column.rows > _FEW_NUMBERS for column in others):
        return {}
    if sum((n or 0) >= _VOLUME_SIDE for n in shape) < _VOLUME_AXES - 1:
        return {}
    block = tuple(min(n or 1, _BLOCK_SIDE) for n in shape)
    return dict.fromkeys(volumes, block)


def time_axis(columns: Mapping[str, Seen]) -> tuple[str, str] | None:
    """Return a column whose second axis is as long as a column of times, and that column; None if there are none."""
    times = {seen.rows: name for name, seen in columns.items() if len(seen.shape) == 1 and last(name) in TIMES}
    for name, seen in columns.items():
        if len(seen.shape) > 1 and (time := times.get(seen.shape[1] or -1)) is not None and seen.rows not in times:
            return name, time
    return None


def along_last_axis(columns: Mapping[str, Seen], *, any_of: bool = False) -> tuple[int, list[str]] | None:
    """Return the length of the last axis and the columns that share it, where first axes differ; None otherwise.

    With `any_of`, some columns are enough: those with the most values.
    """
    by_length: dict[int, list[str]] = {}
    for name, column in columns.items():
        by_length.setdefault(column.shape[-1] or 0, []).append(name)
    if not by_length:
        return None
    rows, names = max(by_length.items(), key=lambda group: sum(columns[name].values for name in group[1]))
    differ = len({columns[name].rows for name in names}) > 1
    # Arrays that differ in their first axis alone are more often samples of several lengths.
    differ = differ and (any_of or len({len(columns[name].shape) for name in names}) > 1)
    if rows < 2 or len(names) < 2 or not differ or (len(names) < len(columns) and not any_of):
        return None
    return rows, names


def is_of_few_numbers(columns: Mapping[str, Seen]) -> bool:
    """Return whether the last axis that columns share is more likely channels than rows: it is short, and others long.

    A simulation of ``(256, 256, 256, 4)`` has 4 redshifts, and beside it 4 parameters.
    """
    along_last = along_last_axis(columns)
    longest = max((length or 0 for seen in columns.values() for length in seen.shape), default=0)
    return along_last is not None and along_last[0] <= _FEW_NUMBERS < longest


def main_columns(columns: Mapping[str, Seen]) -> tuple[int, list[str]]:
    """Return the length of the first axis and the names of the columns of one length that have the most values."""
    by_length: dict[int, list[str]] = {}
    for name, column in columns.items():
        by_length.setdefault(column.rows, []).append(name)
    return max(by_length.items(), key=lambda group: sum(columns[name].values for name in group[1]))
